/* request.h: a request, its sequences and their token histories.
 *
 * The lowest layer of the scheduler's inside, beside policy.h and plan.h.  Engine
 * thread.  A request owns its sequences; a sequence is in exactly one place:
 *
 *   UNFORKED -first token-> RUN or WAIT     (n > 1: the lead computes the prompt)
 *   WAIT     -admit->       RUN             (first: in a flow; resumed: in resume)
 *   RUN      -preempt->     WAIT
 *   any      -finish->      DONE
 *
 * sched.h numbers the invariants, check.c checks them. */
#ifndef SCHEDULER_REQUEST_H
#define SCHEDULER_REQUEST_H

#include "scheduler/sched.h"

enum seq_state { SEQ_UNFORKED, SEQ_WAIT, SEQ_RUN, SEQ_DONE };

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
    uint64_t passed; /* see sched_policy_prompt                                  */
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
    uint64_t last_step;                /* ended: no later step names it              */
    struct seq seq[];                  /* [r.n]                                     */
};

MUST_USE struct req *sched_req_create(const struct sched_request *r, uint32_t limit);
void sched_req_free(struct req *r);
/* Room for `want` tokens in the sequence's history; false: out of memory. */
MUST_USE bool sched_seq_grow(struct seq *q, uint32_t want);
/* Tokens known, whether or not a history is held already. */
const int32_t *sched_seq_tokens(const struct seq *q);

/* The first position that no launched step computes, and the tokens from there
 * that are known or will be. */
static inline uint32_t sched_seq_start(const struct seq *q)
{
    return q->computed + q->flight;
}
static inline uint32_t sched_seq_left(const struct seq *q)
{
    return q->known + q->due - sched_seq_start(q);
}

#endif
