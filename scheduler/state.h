/* state.h: struct sched, and the steps that are planned or in flight.
 *
 * Layer 3 of the scheduler's inside, over queue.h.  Engine thread. */
#ifndef SCHEDULER_STATE_H
#define SCHEDULER_STATE_H

#include "scheduler/plan.h"
#include "scheduler/policy.h"
#include "scheduler/queue.h"

/* A row of a step. */
struct step_row {
    struct seq *seq; /* NULL: dropped while planning */
    uint32_t n;      /* tokens */
    uint32_t n_outputs;
};

/* A step being planned or in flight. */
struct step {
    struct step_row *row;         /* [n_rows] of [max_num_seqs] */
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
    bool in_callback;         /* inside a callback: no public call may come */
    uint32_t block_shift;
    struct sched_policy_pace pace;

    struct seq **cand;                  /* scratch, [max_num_seqs] */
    struct sched_policy_victim *victim; /* scratch, [max_num_seqs] */
    struct sched_policy_prompt *part;   /* scratch, [max_num_seqs] */
    seq_id *sid;                        /* [max_num_seqs] of the plan's rows */

    struct req *deferred; /* ended, latest first: freed when their last step has ended */
    struct sched_stats stats;
    struct err last_violation;
};

/* The oldest step in flight. */
static inline struct step *sched_step_oldest(struct sched *s)
{
    return &s->steps[(s->step - s->n_flight + 1) % STEPS];
}

#endif
