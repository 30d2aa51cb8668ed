/* sched.h: what runs in this step.
 *
 * Owns the requests from submission to their last token: queue, admission,
 * token budget, chunked prefill mixed with decode, preemption by recompute,
 * cancellation, stop rules.  Knows no thread, socket or device: one call plans
 * a step, another commits its outcome.  Called by the engine thread alone.
 *
 * A step is a transaction:  sched_next -> (compute) -> sched_commit, or
 * sched_abort when the compute failed.  With overlap the next one may be planned
 * before the one in flight is committed; steps end in the order of their plans.  There is no
 * prefill or decode phase, only tokens computed catching up with tokens known. */
#ifndef SCHEDULER_SCHED_H
#define SCHEDULER_SCHED_H

#include <stdbool.h>
#include <stdint.h>

#include "kvpool/kvpool.h"
#include "proto/err.h"
#include "proto/ids.h"
#include "proto/plan/sample_params.h"
#include "proto/plan/step_plan.h"

enum sched_policy { SCHED_FCFS, SCHED_PRIORITY };

struct sched_config {
    uint32_t max_num_seqs;           /* rows a step                             */
    uint32_t max_num_batched_tokens; /* token budget a step                     */
    uint32_t max_model_len;          /* prompt + output                         */
    uint32_t max_queued;             /* waiting requests; then ERR_BUSY         */
    uint64_t max_queued_tokens;      /* their prompt tokens; 0: no cap          */
    uint32_t long_prefill_threshold; /* cap of one prompt's chunk; 0: budget    */
    uint32_t max_partial_prefills;   /* prompts part-done at once; >= 1         */
    enum sched_policy policy;
    uint32_t itl_target_us;     /* 0: off; else prefill chunks are sized by
                                 * measured step times                     */
    uint32_t max_outputs;       /* plan_outputs a step, >= max_num_seqs; 0:
                                 * max(256, 2 * max_num_seqs); n of a request
                                 * is at most max_outputs - max_num_seqs + 1 */
    uint32_t look_ahead_tokens; /* room a row should have to grow before another
                                 * starts; 0: 64; 1: none, preempt instead  */
    bool overlap;               /* the next step may be planned while one is in
                                 * flight: plans may have token_from        */
    uint32_t check_every;       /* steps between ledger checks; 0: 1 in
                                 * debug builds, 4096 in release           */
};

/* Why a sequence ended.  ERROR has a code and a message: ERR_NOMEM, ERR_LIMIT (it
 * needs more KV blocks than can be had), ERR_INTERNAL (its logits were not finite,
 * or a block of it is damaged), or the failed step's own (sched_abort). */
enum finish { FINISH_NONE, FINISH_STOP, FINISH_LENGTH, FINISH_CANCELLED, FINISH_ERROR };

/* One request: n sequences from one prompt.  The scheduler copies the struct
 * and borrows what it points to until the request's last `done` event. */
struct sched_request {
    req_id id;
    const int32_t *prompt;
    uint32_t n_prompt;    /* >= 1 */
    uint32_t max_tokens;  /* per sequence, >= 1; 0 allowed with prompt_logprobs */
    uint32_t n;           /* sequences, >= 1 */
    bool prompt_logprobs; /* an event per prompt token, first position excluded */
    int32_t priority;     /* lower first (vLLM's meaning) */
    uint64_t tenant;      /* fairness key: hash of the API key; 0: none */
    struct kvpool_key key;
    const struct sample_params *params;
};

/* What a commit tells the outside, in order per sequence.  A stop id is told as
 * a SCHED_TOKEN like any other, and counts in n_output; the SCHED_DONE behind it
 * carries it as stop_id, so that the reader can hide its text.  Prompt scores
 * are told once a request, with the choice that computes the prompt (0 unless
 * that one was cancelled). */
enum sched_event_kind {
    SCHED_PROMPT_TOKEN, /* prompt_logprobs: `out` scores prompt[position]  */
    SCHED_TOKEN,        /* a token was generated                           */
    SCHED_DONE          /* sequence `choice` ended; nothing more follows    */
};

struct sched_event {
    enum sched_event_kind kind;
    req_id id;
    uint32_t choice;           /* 0..n-1 */
    uint32_t position;         /* of the token in the sequence */
    const struct sampled *out; /* borrowed for the callback; NULL for DONE */
    enum finish finish;        /* DONE only */
    int32_t stop_id;           /* DONE by FINISH_STOP: the id that stopped it; else -1 */
    uint32_t n_prompt, n_output, n_cached, n_preempted; /* DONE and TOKEN */
    struct kvpool_lookup found;                /* DONE and TOKEN: the request's first start's; all 0
                                                * before it */
    uint64_t queued_us, prefill_us, decode_us; /* DONE */
    const struct err *why;                     /* DONE by FINISH_ERROR, else NULL; borrowed for the
                                                * callback */
};

/* The callback must not call the scheduler; it may be called by sched_cancel,
 * sched_next (a request that cannot go on ends with FINISH_ERROR), sched_commit
 * and sched_abort. */
struct sched_sink {
    void *ctx;
    void (*event)(void *ctx, const struct sched_event *ev);
};

struct sched;

/* The pool is borrowed for the scheduler's life; now_us is a monotonic clock. */
MUST_USE enum err_code sched_create(struct sched **out, struct kvpool *pool,
                                    const struct kv_layout *lay, const struct sched_config *cfg,
                                    uint64_t (*now_us)(void *), void *clock_ctx,
                                    const struct sched_sink *sink, struct err *e);
void sched_destroy(struct sched *s);

/* Queue a request.  ERR_BUSY: queue full (both numbers in the message).
 * ERR_LIMIT: the prompt leaves no room in max_model_len, or prompt + max_tokens
 * can never fit the pool (both numbers).  ERR_INVALID: a count is out of range.
 * ERR_CONFLICT: the id is live.  ERR_NOMEM.  Nothing changed on error.  Output
 * is cut at max_model_len with FINISH_LENGTH. */
MUST_USE enum err_code sched_submit(struct sched *s, const struct sched_request *r, struct err *e);

/* End a request (choice < 0) or one of its sequences now; its DONE events come
 * with FINISH_CANCELLED before this returns.  Unknown ids are ignored: false.
 * Allowed while a step is in flight: its results for the sequence are dropped
 * and its blocks rest; plans in flight still name what the request lent then, so
 * a step's compute must have read its plan before. */
bool sched_cancel(struct sched *s, req_id id, int32_t choice);

/* Plan the next step; NULL when nothing can run (with overlap and a step in
 * flight: nothing before that one's results are known).  Borrowed until commit
 * or abort; exactly one of them follows. */
const struct step_plan *sched_next(struct sched *s);

/* out[i] answers plan->output[i]; the oldest step in flight.  Emits events. */
void sched_commit(struct sched *s, const struct step_plan *plan, const struct sampled *out);

/* The oldest step in flight did not happen: every row's request ends with
 * FINISH_ERROR.  A step planned behind it stands, and drops what was theirs. */
void sched_abort(struct sched *s, const struct step_plan *plan, const struct err *why);

struct sched_stats {
    uint32_t n_running, n_waiting;
    uint64_t n_waiting_tokens;
    uint64_t steps, tokens_prompt, tokens_prompt_cached, tokens_output; /* counters */
    uint64_t preemptions, tokens_recomputed;
    uint64_t finished[FINISH_ERROR + 1]; /* sequences */
    uint64_t ledger_violations;          /* checks that failed */
    uint64_t corrupted;                  /* requests that ended because their logits were not
                                          * finite */
};
void sched_stats(const struct sched *s, struct sched_stats *out);

/* Check the numbered invariants, which hold between public calls; ERR_INVALID
 * names the first that does not, the request and both values.  Changes nothing.
 * Debug builds check after every sched_next, commit and abort, and end the
 * program where one fails.
 * (1) A live request is found by its id, stands in the order of arrival, and has
 *     as many live sequences as it says, at least one.
 * (2) A live sequence is in exactly one place: among the running, in a flow (the
 *     lead of a request that never started), in the list to resume, or unforked
 *     (its lead has not given the first token).
 * (3) At most max_num_seqs run.  They, and only they, hold a sequence of the pool,
 *     each its own.
 * (4) Tokens computed are the pool's length; tokens in flight are those of the
 *     sequence's rows in the steps in flight, and the pool's reservation.
 * (5) Known = prompt + output, output within its limit; computed + in flight <=
 *     known + due; due is what the steps in flight sample for it, at most one each.
 * (6) The counts of waiting requests, resuming sequences and their tokens are
 *     the sums.
 * (7) Levels ascend by priority; a flow is never empty and holds its tenant's
 *     requests of its level by arrival; tenants count their live requests, their
 *     deficits are in bounds.
 * (8) At most 1 + overlap steps are in flight, each within the budgets of rows,
 *     tokens and outputs.
 * (9) Ended requests are kept exactly while a step in flight may name them. */
MUST_USE enum err_code sched_check(const struct sched *s, struct err *e);
/* The last failed ledger check, borrowed; NULL when there was none. */
const struct err *sched_last_violation(const struct sched *s);

/* Live requests, for the admin page: calls fn for each, in queue order. */
struct sched_live {
    req_id id;
    bool running;
    uint32_t n_prompt, n_computed, n_output, n_blocks, n_preempted;
    int32_t priority;
    uint64_t waited_us;
};
void sched_each(const struct sched *s, void (*fn)(void *ctx, const struct sched_live *r),
                void *ctx);
/* A row of the latest planned step: whose it is, and how many of the sequence's
 * known tokens are left to compute behind it; 0: it gives a token. */
struct sched_row {
    req_id id;
    uint32_t choice, left;
    bool decodes; /* one token, behind the whole prompt */
};
struct sched_row sched_plan_row(const struct sched *s, const struct step_plan *plan, uint32_t row);
/* Sequences that hold blocks, for the block map: sid is the pool's. */
void sched_each_holder(const struct sched *s,
                       void (*fn)(void *ctx, req_id id, uint32_t choice, seq_id sid), void *ctx);

#endif
