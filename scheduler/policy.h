/* policy.h: the scheduler's decisions as pure functions.
 *
 * Owns nothing and calls nothing: each function maps a small view, filled by
 * the caller, to a choice, so that every rule is tested without a pool.  Any
 * thread.  Promises: the same view gives the same choice; no allocation; no
 * loop longer than the view. */
#ifndef SCHEDULER_POLICY_H
#define SCHEDULER_POLICY_H

#include <stdbool.h>
#include <stdint.h>

enum {
    POLICY_PROTECT_AFTER = 3,       /* preemptions after which a request is protected  */
    POLICY_LOOK_AHEAD_TOKENS = 64,  /* room a row should have beyond its known tokens  */
    POLICY_QUANTUM_TOKENS = 512,    /* a tenant's share in one round                   */
    POLICY_MAX_DEBT_TOKENS = 32768, /* a tenant's deficit is never further below 0 */
    POLICY_MIN_CHUNK_TOKENS = 16    /* a latency target never goes below this          */
};

/* --- part-done prompts ------------------------------------------------- */

struct sched_policy_prompt {
    uint64_t left;    /* tokens still to compute                                 */
    uint64_t passed;  /* prompt tokens given to others in steps that gave it less
                       * than it could take                                      */
    uint64_t arrival; /* order of submission                                     */
    int32_t priority; /* lower first; equal for all unless priorities are on     */
};

/* Whether a goes before b: lower priority first, then the shorter one; each
 * token given to others counts for the one passed over, so that a prompt of n
 * tokens is passed over by at most about n tokens. */
bool sched_policy_prompt_before(const struct sched_policy_prompt *a,
                                const struct sched_policy_prompt *b);

/* Tokens of one prompt's chunk: what is left, under the cap (0: none) and the
 * budget that remains. */
uint32_t sched_policy_chunk(uint64_t left, uint32_t cap, uint32_t budget);

/* --- preemption -------------------------------------------------------- */

struct sched_policy_victim {
    uint32_t gain;        /* blocks that become idle          */
    uint32_t recompute;   /* tokens to be computed again      */
    uint32_t n_preempted; /* how often it was a victim before */
    int32_t priority;
    uint64_t arrival;
};

/* Index of the one to preempt when `want` blocks are wanted, or -1 when none
 * frees a block.  In this order: unprotected before protected; higher priority
 * number first; least recompute per useful block (gain up to want), doubled for
 * each earlier preemption; latest arrival. */
int32_t sched_policy_pick_victim(const struct sched_policy_victim *c, uint32_t n, uint32_t want);

/* --- admission --------------------------------------------------------- */

struct sched_policy_room {
    uint64_t idle;     /* blocks free or cached now                               */
    uint64_t promised; /* blocks that running, part-done prompts will still take  */
    uint64_t growth;   /* reserve for running rows                                */
    uint64_t need;     /* blocks the candidate wants beyond those it holds        */
    uint32_t n_running;
};

/* Whether the candidate may start: what it needs and what the running
 * will still take fits in the idle blocks; alone, only its own need counts. */
bool sched_policy_fits(const struct sched_policy_room *r);

/* Tokens beyond the known ones for which room is wanted by a row that was
 * preempted n_preempted times: base, fourfold each time, the whole rest of
 * `remaining` when protected. */
uint64_t sched_policy_look_ahead(uint32_t base, uint64_t remaining, uint32_t n_preempted);

/* --- fairness ---------------------------------------------------------- */

/* Deficit round robin, charged afterwards: a tenant may start work while its
 * deficit is positive; tokens are taken off as they are known.  When no waiting
 * tenant may start, all get as many quanta as bring the best one above zero. */
int64_t sched_policy_rounds(int64_t best_deficit);
int64_t sched_policy_charge(int64_t deficit, uint64_t n_tokens);
int64_t sched_policy_credit(int64_t deficit, int64_t rounds);

/* --- latency target ---------------------------------------------------- */

/* A step's time as base + slope * prompt tokens, fitted by least squares over
 * a fading window of measured steps that had decode rows. */
struct sched_policy_pace {
    double w, x, xx, y, xy; /* faded sums: weight, tokens, tokens^2, us, tokens*us */
    double slope_us;        /* last slope that could be told from noise            */
};

void sched_policy_pace_add(struct sched_policy_pace *p, uint32_t n_prompt_tokens, uint64_t step_us);

/* Prompt tokens that a step with decode rows may carry to stay within
 * target_us; `budget` until a few steps were seen, half of it until their token
 * counts differed. */
uint32_t sched_policy_pace_tokens(const struct sched_policy_pace *p, uint32_t target_us,
                                  uint32_t budget);

#endif
