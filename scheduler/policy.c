/* policy.c: the scheduler's decisions as pure functions.
 *
 * Owns nothing; any thread.  See policy.h for what each promises. */
#include "scheduler/policy.h"

bool sched_policy_prompt_before(const struct sched_policy_prompt *a,
                                const struct sched_policy_prompt *b)
{
    if (a->priority != b->priority)
        return a->priority < b->priority;
    int64_t ka = (int64_t)(a->left - a->passed);
    int64_t kb = (int64_t)(b->left - b->passed);
    if (ka != kb)
        return ka < kb;
    return a->arrival < b->arrival;
}

uint32_t sched_policy_chunk(uint64_t left, uint32_t cap, uint32_t budget)
{
    uint64_t n = left;
    if (cap != 0 && n > cap)
        n = cap;
    return n > budget ? budget : (uint32_t)n;
}

/* Whether preempting a is better than preempting b. */
static bool better_victim(const struct sched_policy_victim *a, const struct sched_policy_victim *b,
                          uint32_t want)
{
    bool pa = a->n_preempted >= POLICY_PROTECT_AFTER, pb = b->n_preempted >= POLICY_PROTECT_AFTER;
    if (pa != pb)
        return pb;
    if (a->priority != b->priority)
        return a->priority > b->priority;
    uint64_t ga = a->gain < want ? a->gain : want, gb = b->gain < want ? b->gain : want;
    uint32_t sa = a->n_preempted < 8 ? a->n_preempted : 8;
    uint32_t sb = b->n_preempted < 8 ? b->n_preempted : 8;
    uint64_t ca = ((uint64_t)a->recompute << sa) * gb;
    uint64_t cb = ((uint64_t)b->recompute << sb) * ga;
    if (ca != cb)
        return ca < cb;
    return a->arrival > b->arrival;
}

int32_t sched_policy_pick_victim(const struct sched_policy_victim *c, uint32_t n, uint32_t want)
{
    int32_t best = -1;
    if (want == 0)
        want = 1;
    for (uint32_t i = 0; i < n; i++) {
        if (c[i].gain == 0)
            continue;
        if (best < 0 || better_victim(&c[i], &c[best], want))
            best = (int32_t)i;
    }
    return best;
}

bool sched_policy_fits(const struct sched_policy_room *r)
{
    if (r->n_running == 0)
        return r->need <= r->idle;
    return r->need + r->promised + r->growth <= r->idle;
}

uint64_t sched_policy_look_ahead(uint32_t base, uint64_t remaining, uint32_t n_preempted)
{
    if (n_preempted >= POLICY_PROTECT_AFTER)
        return remaining;
    uint64_t n = (uint64_t)base << (2 * n_preempted);
    return n < remaining ? n : remaining;
}

int64_t sched_policy_rounds(int64_t best_deficit)
{
    if (best_deficit > 0)
        return 0;
    return -best_deficit / POLICY_QUANTUM_TOKENS + 1;
}

int64_t sched_policy_charge(int64_t deficit, uint64_t n_tokens)
{
    int64_t room = deficit + POLICY_MAX_DEBT_TOKENS;
    if (room <= 0 || n_tokens >= (uint64_t)room)
        return -POLICY_MAX_DEBT_TOKENS;
    return deficit - (int64_t)n_tokens;
}

int64_t sched_policy_credit(int64_t deficit, int64_t rounds)
{
    int64_t d = deficit + rounds * POLICY_QUANTUM_TOKENS;
    return d > POLICY_QUANTUM_TOKENS ? POLICY_QUANTUM_TOKENS : d;
}

void sched_policy_pace_add(struct sched_policy_pace *p, uint32_t n_prompt_tokens, uint64_t step_us)
{
    const double fade = 0.98;
    double x = n_prompt_tokens, y = (double)step_us;
    p->w = p->w * fade + 1;
    p->x = p->x * fade + x;
    p->xx = p->xx * fade + x * x;
    p->y = p->y * fade + y;
    p->xy = p->xy * fade + x * y;
    /* A slope needs token counts that differ: spread of at least one chunk. */
    double var = p->xx / p->w - (p->x / p->w) * (p->x / p->w);
    if (var >= POLICY_MIN_CHUNK_TOKENS * (double)POLICY_MIN_CHUNK_TOKENS) {
        double slope = (p->xy / p->w - p->x / p->w * (p->y / p->w)) / var;
        if (slope > 0)
            p->slope_us = slope;
    }
}

uint32_t sched_policy_pace_tokens(const struct sched_policy_pace *p, uint32_t target_us,
                                  uint32_t budget)
{
    if (p->w < 4)
        return budget;
    if (p->slope_us <= 0) /* counts never differed: make them */
        return budget / 2 > POLICY_MIN_CHUNK_TOKENS ? budget / 2 : budget;
    double base = (p->y - p->slope_us * p->x) / p->w;
    double n = ((double)target_us - base) / p->slope_us;
    if (n < POLICY_MIN_CHUNK_TOKENS)
        n = POLICY_MIN_CHUNK_TOKENS;
    return n >= budget ? budget : (uint32_t)n;
}
