/* sched_world.h: the real pool and scheduler beside a model made of hashes.
 *
 * The model keeps what a KV cache keeps: a cell a slot, holding a hash of the
 * sequence up to that position, computed from the cell before it, which is read
 * through the plan's block table.  So a wrong table, slot, copy, hit or early
 * reuse of a block changes a cell, and every output checks every cell that it
 * may see against the plain sequence.  The next token is a hash of the sequence
 * and the seed: what a request must say is known without a scheduler.
 * With sched.overlap a step is computed only after the next one was planned, as
 * late as a device could.
 * One thread; failures abort the cmocka test. */
#ifndef TESTS_PROPERTY_SCHED_WORLD_H
#define TESTS_PROPERTY_SCHED_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "scheduler/sched.h"

enum { WORLD_REQS = 8192, WORLD_VOCAB = 1000, WORLD_CHOICES = 64 };

struct world_seq {
    uint32_t n_output, n_preempted;
    uint64_t chain; /* hash of prompt and output so far */
    bool done;
    enum finish finish;
    int32_t stop_id;
    enum err_code code; /* of its end, ERR_OK unless by FINISH_ERROR */
    char message[ERR_MESSAGE_BYTES];
};

struct world_req {
    bool used;
    struct sched_request r;
    struct sample_params params;
    int32_t *prompt;
    int32_t stop_ids[4];
    uint32_t lp_next, n_live, n_cached;
    uint32_t limit;
    bool cancelled; /* some of it was */
    struct world_seq *seq;
};

/* A step in flight: what the plan only lends until compute has read it is kept. */
struct world_flight {
    const struct step_plan *plan;
    uint32_t n_outputs;
    int32_t **history; /* [n_outputs] */
    struct plan_copy *copy;
    struct sampled *out;
};

struct world_config {
    uint32_t n_blocks, block_tokens;     /* block_tokens 0: 16 */
    uint32_t n_full, n_windowed, window; /* layers; 0, 0: one full layer */
    uint32_t max_seqs;                   /* pool sequences; 0: max_num_seqs */
    bool no_prefix_caching;
    struct sched_config sched; /* zero fields get defaults */
};

struct world {
    struct kv_layout lay;
    struct kvpool *pool;
    struct sched *sched;
    uint32_t n_blocks;
    uint64_t *cell; /* [n_blocks * block_tokens] */
    uint64_t *chain_scratch;
    uint32_t max_model_len, max_num_seqs, budget;
    struct world_req *req; /* [WORLD_REQS] by id */
    uint64_t clock_us, us_a_token;
    uint64_t n_tokens, n_steps, most_rows, most_tokens, next_fail; /* next_fail: output number
                                                                    * whose logits fail */
    uint64_t n_outputs;
    const struct step_plan *in_flight; /* planned last; NULL when none is in flight */
    struct world_flight flight[2];     /* oldest first */
    uint32_t n_flight;
    bool overlap;
    uint64_t after_abort;       /* a step planned behind one that was aborted */
    struct sampled *last;       /* results of step last_step */
    uint64_t last_step;         /* from 1 */
    bool may_fail;              /* requests may end in errors */
    bool may_break;             /* the ledger may be found broken */
    void (*guard)(bool inside); /* called around the scheduler's calls; or NULL */
};

void world_open(struct world *w, const struct world_config *cfg);
/* Everything has ended: no sequence, no held or resting block, ledger exact. */
void world_expect_idle(struct world *w);
void world_close(struct world *w);

/* Submit under id; the prompt is copied.  Fields of *like other than id, prompt
 * and params are taken; params from *p (stop ids copied). */
enum err_code world_submit(struct world *w, const struct sched_request *like,
                           const struct sample_params *p, struct err *e);
/* A request of n_prompt tokens drawn from seed and max_tokens, greedy. */
enum err_code world_submit_simple(struct world *w, req_id id, uint64_t seed, uint32_t n_prompt,
                                  uint32_t max_tokens);
/* r with a prompt of r.n_prompt tokens drawn from seed; params NULL: greedy. */
enum err_code world_submit_like(struct world *w, struct sched_request r, uint64_t seed,
                                const struct sample_params *p, struct err *e);
void world_cancel(struct world *w, req_id id, int32_t choice);
/* Forget an ended request's id. */
void world_forget(struct world *w, req_id id);

/* Plan; compute and commit the oldest in flight.  False when nothing can run. */
bool world_plan(struct world *w);
void world_finish(struct world *w);
/* The oldest in flight fails. */
void world_abort(struct world *w, const char *message);
/* One of each; with overlap a step stays in flight.  False: nothing is left. */
bool world_step(struct world *w);
/* Step until nothing is left; fails after `most` steps. */
void world_drain(struct world *w, uint64_t most);

/* Token i of the prompt that world_submit_simple draws from seed. */
int32_t world_prompt_token(uint64_t seed, uint32_t i);
/* The next token after a sequence with this chain hash. */
int32_t world_next_token(uint64_t chain, uint64_t seed);
uint64_t world_chain(uint64_t chain, int32_t token);

#endif
