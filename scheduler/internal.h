/* internal.h: what the scheduler's files share; nobody else includes it.
 *
 * A request owns its sequences; a sequence is in exactly one place:
 *
 *   UNBORN -first token-> RUN or WAIT     (n > 1: the lead computes the prompt)
 *   WAIT   -admit->       RUN             (new: in a flow; resumed: in resume)
 *   RUN    -preempt->     WAIT
 *   any    -finish->      DONE
 *
 * Engine thread.  Invariants, held between public calls:
 * (1) run[] holds exactly the RUN sequences, in admission order, each with an
 *     open pool sequence; n_run <= max_num_seqs.
 * (2) A WAIT or UNBORN or DONE sequence holds no pool sequence.
 * (3) computed = kvpool_length(sid) <= known - (1 unless the prompt only), and
 *     computed + flight <= known + due.
 * (4) A request without a live sequence is freed, or is on the zombie list until
 *     the steps launched in its life have ended.
 * (5) flight and due are 0 unless a step is in flight; due is 0 or 1. */
#ifndef SCHEDULER_INTERNAL_H
#define SCHEDULER_INTERNAL_H

#include "scheduler/plan.h"
#include "scheduler/policy.h"
#include "scheduler/sched.h"

enum seq_state { SEQ_UNBORN, SEQ_WAIT, SEQ_RUN, SEQ_DONE };

struct seq {
    struct req *req;
    uint32_t choice;
    enum seq_state state;
    seq_id sid;    /* RUN only                                           */
    int32_t *hist; /* owned; prompt and output, [known] of [cap]; NULL
                    * until first admitted                               */
    uint32_t known, cap;
    uint32_t computed;   /* tokens in KV                                       */
    uint32_t planned;    /* of the step being planned                          */
    uint32_t flight;     /* of the steps in flight                             */
    uint32_t due;        /* tokens that the steps in flight will sample for it */
    uint32_t due_output; /* with due: which output of the last launched step   */
    uint32_t n_output;
    uint32_t n_preempted;
    uint32_t lost;   /* tokens whose KV a preemption dropped               */
    uint64_t passed; /* see policy_prompt                                  */
    uint32_t hit;    /* tokens found cached at hit_step, while waiting     */
    uint64_t hit_step;
    enum err_code failed;    /* why it cannot go on: ends with the plan; or ERR_OK */
    uint64_t first_us;       /* clock at its first token                           */
    struct seq *prev, *next; /* resume list                                        */
};

struct flow;

struct req {
    struct sched_request r;
    uint64_t arrival;
    uint64_t submit_us, start_us; /* start: first admission; 0 before             */
    uint32_t limit;               /* output tokens of a sequence                  */
    uint32_t n_live;              /* sequences not DONE                           */
    uint32_t lead;                /* choice that computes the prompt              */
    uint32_t lp_next;             /* next prompt position whose score is due;
                                   * n_prompt when none is                        */
    uint32_t n_cached;
    struct kvpool_lookup found;      /* by its first start                           */
    bool looked_up;                  /* its prefix was counted once                  */
    bool corrupted;                  /* counted as such                              */
    uint64_t retry_step, retry_idle; /* refused admission: do not look before     */
    struct flow *flow;               /* while waiting for its first admission     */
    struct tenant *tenant;
    struct req *wait_prev, *wait_next; /* in its flow                             */
    struct req *id_next;               /* hash chain                                */
    struct req *prev, *next;           /* all live requests, by arrival             */
    uint64_t last_step;                /* a zombie: no later step names it          */
    struct seq seq[];                  /* [r.n]                                     */
};

/* --- queue.c: who waits, in which order -------------------------------- */

struct tenant {
    uint64_t key;
    int64_t deficit;
    uint32_t n_reqs;     /* live requests */
    struct flow *flows;  /* one a level in which it waits */
    struct tenant *next; /* hash chain */
};

/* One tenant's waiting requests of one priority, by arrival. */
struct flow {
    struct tenant *tenant;
    struct level *level;
    struct req *head, *tail;
    struct flow *prev, *next; /* ring of its level */
    struct flow *other;       /* its tenant's next flow */
};

struct level {
    int32_t priority;
    struct flow *turn; /* whose turn it is; the ring is never empty */
    struct level *prev, *next;
};

struct queue {
    bool by_priority;
    struct level *first; /* ascending priority */
    struct tenant **tenant;
    struct req **id;
    uint32_t mask;      /* of both tables */
    uint32_t n_waiting; /* requests never admitted yet */
    uint64_t n_waiting_tokens;
    uint32_t n_tenants;
    struct req *oldest, *newest;
    struct seq *resume_first, *resume_last; /* by priority, arrival, choice */
    uint32_t n_resume;
    uint64_t n_resume_tokens;
};

MUST_USE enum err_code queue_init(struct queue *q, uint32_t max_reqs, bool by_priority,
                                  struct err *e);
void queue_fini(struct queue *q);
struct req *queue_find(const struct queue *q, req_id id);
/* Register a new request and queue it.  ERR_NOMEM changes nothing. */
MUST_USE enum err_code queue_add(struct queue *q, struct req *r, struct err *e);
/* Forget a request altogether (it may still wait); does not free it. */
void queue_remove(struct queue *q, struct req *r);
/* The new request whose turn it is, or NULL; its place is kept until it is
 * taken, so that asking again gives the same one unless a better level came. */
struct req *queue_peek(struct queue *q);
/* Take a waiting request out of its flow: it starts or ends. */
void queue_take(struct queue *q, struct req *r);
void queue_charge(struct req *r, uint64_t n_tokens);
void queue_resume_add(struct queue *q, struct seq *s);
void queue_resume_take(struct queue *q, struct seq *s);
int32_t queue_priority(const struct queue *q, const struct req *r);

/* --- the scheduler ------------------------------------------------------ */

/* A row of a step. */
struct row {
    struct seq *seq; /* NULL: dropped while planning */
    uint32_t n;      /* tokens */
    uint32_t n_outputs;
};

/* A step being planned or in flight. */
struct step {
    struct row *row;              /* [n_rows] of [max_num_seqs] */
    uint32_t n_rows, n_live_rows; /* the latter without those dropped while planning */
    struct seq **out_seq;         /* [max_outputs] whom each output belongs to */
    uint32_t n_outputs;           /* planned so far */
    struct plan_buffer plan;
    uint32_t n_decodes, n_prompt_tokens;
    uint32_t n_preempted; /* while it was planned */
    bool starved;         /* a running row found no block beside a step in flight */
    uint64_t start_us;    /* when the device could begin it */
};

enum { STEPS = 2 };

struct sched {
    struct kvpool *pool; /* borrowed */
    struct kv_layout lay;
    struct sched_config cfg;
    uint64_t (*now_us)(void *);
    void *clock_ctx;
    struct sched_sink sink;
    bool windowed; /* some group has a window */

    struct queue queue;
    struct seq **run; /* [n_run] of [max_num_seqs] */
    uint32_t n_run;
    uint32_t turn; /* rotates who goes first when the budget is short */
    uint64_t arrivals, step;
    uint64_t n_blocks;

    struct step steps[STEPS]; /* step n is steps[n % STEPS]; the second only with
                               * cfg.overlap */
    struct step *now;         /* being planned */
    uint32_t n_flight;        /* the last launched steps, not yet committed or aborted */
    bool busy;                /* inside a callback: no public call may come */
    uint32_t block_shift;
    struct policy_pace pace;

    struct seq **cand;            /* scratch, [max_num_seqs] */
    struct policy_victim *victim; /* scratch, [max_num_seqs] */
    struct policy_prompt *part;   /* scratch, [max_num_seqs] */
    seq_id *sid;                  /* [max_num_seqs] of the plan's rows */

    struct req *zombies; /* ended, latest first; freed when their last step has ended */
    struct sched_stats stats;
    struct err last_violation;
};

/* request.c: histories, endings, events */
MUST_USE struct req *req_create(const struct sched_request *r, uint32_t limit);
void req_free(struct req *r);
/* Room for `want` tokens in the sequence's history; false: out of memory. */
MUST_USE bool seq_hold(struct seq *q, uint32_t want);
/* Tokens known, whether or not a history is held already. */
const int32_t *seq_known(const struct seq *q);
void run_add(struct sched *s, struct seq *q);
void run_remove(struct sched *s, struct seq *q);
/* Close what it holds in the pool. */
void seq_release(struct sched *s, struct seq *q);
/* End one sequence: release, event, and the request with its last one.  The
 * request must not be touched afterwards unless another sequence lives. */
void seq_finish(struct sched *s, struct seq *q, enum finish why, int32_t stop_id,
                const struct err *why_failed);
/* End every sequence that lives. */
void req_finish(struct sched *s, struct req *r, enum finish why, const struct err *why_failed);
void emit(struct sched *s, const struct sched_event *ev);
/* Those that no step in flight names. */
void zombies_free(struct sched *s);
/* The first position that no launched step computes, and the tokens from there
 * that are known or will be. */
static inline uint32_t seq_start(const struct seq *q)
{
    return q->computed + q->flight;
}
static inline uint32_t seq_left(const struct seq *q)
{
    return q->known + q->due - seq_start(q);
}
/* The oldest step in flight. */
static inline struct step *step_oldest(struct sched *s)
{
    return &s->steps[(s->step - s->n_flight + 1) % STEPS];
}

/* admit.c */
/* Tokens a sequence has in KV at its longest. */
uint64_t seq_longest(const struct seq *q);
/* Start waiting sequences as rows of the step, within the budget. */
void admit(struct sched *s, uint32_t *budget);
/* The same for those that have less to compute than any part-done prompt. */
void admit_shorter(struct sched *s, uint32_t *budget);
/* Whoever would be admitted next, or NULL. */
struct seq *admit_next(struct sched *s);

/* step.c */
/* Plan n tokens of q as the next row; ERR_BUSY: no blocks, nothing changed. */
MUST_USE enum err_code row_add(struct sched *s, struct seq *q, uint32_t n, struct err *e);
/* Undo q's row, if it has one and the step is only being planned. */
void row_drop(struct sched *s, struct seq *q);
/* The largest chunk <= n whose outputs still fit the step; 0: none does. */
uint32_t row_fit(const struct sched *s, const struct seq *q, uint32_t n);

#endif
