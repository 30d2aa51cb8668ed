/* admit.c: who starts, and when.
 *
 * Looks at the first in line only, so that nobody is overtaken for ever: a
 * preempted sequence before a new request of the same priority.  A start must
 * fit in the idle blocks beside what the running rows will still take.  Owns
 * nothing beyond struct sched.  Engine thread.  Promises: a refused start
 * changes no queue and holds no block; while a protected sequence runs or
 * starts, room is kept for every running one's longest, so it is not preempted
 * again. */
#include "scheduler/admit.h"

#include <stddef.h>

#include "scheduler/finish.h"
#include "scheduler/rows.h"

enum {
    RETRY_STEPS = 8, /* a refused start is looked at again after so many */
    HIT_STEPS = 32   /* so long a look-up of a waiting request is believed */
};

/* Tokens a sequence has in KV at its longest. */
static uint64_t longest_of(const struct seq *q)
{
    const struct req *r = q->req;
    return (uint64_t)r->r.n_prompt + (r->limit > 0 ? r->limit - 1 : 0);
}

/* Blocks of a sequence of n_tokens that has `left` of them still to compute: a
 * ring is as wide as its largest chunk makes it. */
static uint64_t blocks_for(const struct sched *s, uint64_t n_tokens, uint32_t left)
{
    uint32_t chunk =
        sched_policy_chunk(left, s->cfg.long_prefill_threshold, s->cfg.max_num_batched_tokens);
    return kv_layout_blocks_for(&s->lay, n_tokens, chunk > 0 ? chunk : 1);
}

/* Tokens a sequence should have room for when it runs. */
static uint64_t wanted_tokens(const struct sched *s, const struct seq *q, bool whole)
{
    uint64_t longest = longest_of(q);
    if (whole)
        return longest;
    uint64_t rest = longest > q->known ? longest - q->known : 0;
    return q->known + sched_policy_look_ahead(s->cfg.look_ahead_tokens, rest, q->n_preempted);
}

/* Blocks that the running still take until each has what it should have room
 * for.  whole: up to its longest, copies of shared blocks included. */
static uint64_t growth_blocks(const struct sched *s, bool whole)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < s->n_run; i++) {
        const struct seq *q = s->run[i];
        uint64_t want = blocks_for(s, wanted_tokens(s, q, whole), q->known - q->computed);
        /* A ring replaces what it shares; a fork copies its last block. */
        uint64_t has =
            whole && s->windowed ? kvpool_gain(s->pool, q->sid) : kvpool_held(s->pool, q->sid);
        if (want > has)
            sum += want - has;
        if (q->req->r.n > 1)
            sum += s->lay.n_groups;
    }
    return sum;
}

static bool any_protected(const struct sched *s)
{
    for (uint32_t i = 0; i < s->n_run; i++)
        if (s->run[i]->n_preempted >= POLICY_PROTECT_AFTER)
            return true;
    return false;
}

static uint32_t n_part_done(const struct sched *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_run; i++)
        n += sched_seq_left(s->run[i]) > s->run[i]->planned && sched_seq_left(s->run[i]) > 1;
    return n;
}

struct seq *sched_admit_next(struct sched *s)
{
    struct seq *back = s->queue.resume_first;
    struct level *l = s->queue.first;
    if (l == NULL || (back != NULL && sched_queue_priority(&s->queue, back->req) <= l->priority))
        return back;
    struct req *r = sched_queue_peek(&s->queue);
    return &r->seq[r->lead];
}

/* What one start looks like before and after its prefix is held. */
struct start {
    struct seq *q;
    bool whole;
    uint64_t want; /* blocks over its whole table */
    uint32_t n_cached;
    struct sched_policy_room room;
};

static struct kvpool_key key_of(const struct seq *q)
{
    struct kvpool_key key = q->req->r.key;
    if (q->req->lp_next < q->req->r.n_prompt && q->choice == q->req->lead)
        key.no_lookup = true;
    key.again = q->req->looked_up;
    return key;
}

static bool refuse(struct sched *s, const struct start *st)
{
    const struct sched_policy_room *m = &st->room;
    uint64_t all = m->need + (m->n_running > 0 ? m->promised + m->growth : 0);
    st->q->req->retry_idle = all;
    st->q->req->retry_step = s->step + RETRY_STEPS;
    return false;
}

/* Whether the hoped-for hits would be enough.  A look-up costs its prompt's
 * length, so it is made only when the answer depends on it. */
static bool could_start(struct sched *s, struct start *st, uint32_t budget)
{
    struct seq *q = st->q;
    struct kvpool_key key = key_of(q);
    st->room.need = st->want;
    bool slot = n_part_done(s) < s->cfg.max_partial_prefills;
    uint32_t chunk = sched_policy_chunk(q->known, s->cfg.long_prefill_threshold, budget);
    if (sched_policy_fits(&st->room) && (slot || chunk == q->known))
        return true;
    uint32_t hit = kvpool_peek(s->pool, sched_seq_tokens(q), q->known, &key);
    uint64_t full = 0;
    for (uint32_t g = 0; g < s->lay.n_groups; g++)
        full += s->lay.group[g].window == 0 || hit <= s->lay.group[g].window;
    uint64_t held = full * (hit >> s->block_shift);
    st->room.need = st->want > held ? st->want - held : 0;
    if (!sched_policy_fits(&st->room))
        return refuse(s, st);
    chunk = sched_policy_chunk(q->known - hit, s->cfg.long_prefill_threshold, budget);
    if (slot || chunk == q->known - hit)
        return true;
    st->q->req->retry_idle = UINT64_MAX; /* a slot or more budget, not blocks */
    st->q->req->retry_step = s->step + 1;
    return false;
}

/* Leave the queue: from here on it runs. */
static void book_start(struct sched *s, struct seq *q, uint32_t n_cached)
{
    struct req *r = q->req;
    if (r->flow != NULL) {
        sched_queue_take(&s->queue, r);
        sched_queue_charge(r, q->known - n_cached);
        uint64_t now = s->now_us(s->clock_ctx);
        r->start_us = now > 0 ? now : 1;
        r->n_cached = n_cached;
        r->found = kvpool_lookup(s->pool, q->sid);
        s->stats.tokens_prompt += r->r.n_prompt;
        s->stats.tokens_prompt_cached += n_cached;
    } else {
        sched_queue_resume_take(&s->queue, q);
        if (q->lost > n_cached)
            s->stats.tokens_recomputed += q->lost - n_cached;
    }
    q->lost = 0;
    q->passed = 0;
    q->computed = n_cached;
    q->planned = q->flight = q->due = 0;
    sched_run_add(s, q);
}

enum outcome { STARTED, REFUSED, ENDED };

/* q holds its prefix now: exact figures. */
static enum outcome start_opened(struct sched *s, struct start *st, uint32_t *budget)
{
    struct seq *q = st->q;
    st->room.idle = kvpool_idle(s->pool);
    uint64_t held = kvpool_held(s->pool, q->sid);
    st->room.need = st->want > held ? st->want - held : 0;
    uint32_t left = q->known - st->n_cached;
    q->computed = st->n_cached;
    uint32_t n = sched_policy_chunk(left, s->cfg.long_prefill_threshold, *budget);
    n = sched_row_fit(s, q, n);
    bool slot = n == left || n_part_done(s) < s->cfg.max_partial_prefills;
    bool fits = sched_policy_fits(&st->room);
    bool memory = true;
    if (!fits || !slot || n == 0 || !(memory = sched_seq_grow(q, q->known + 1))) {
        sched_seq_release(s, q);
        if (!memory) {
            struct err e;
            err_nomem(&e, "the sequence's tokens", (q->known + 1) * sizeof *q->hist);
            sched_seq_finish(s, q, FINISH_ERROR, -1, &e);
            return ENDED;
        }
        if (!fits)
            refuse(s, st);
        return REFUSED;
    }
    book_start(s, q, st->n_cached);
    struct err e;
    enum err_code rc = sched_row_add(s, q, n, &e);
    if (rc == ERR_OK)
        *budget -= n;
    else if (rc != ERR_BUSY) /* BUSY: runs, and tries again next step */
        q->failed = rc;
    return rc == ERR_OK ? STARTED : REFUSED;
}

static enum outcome try_start(struct sched *s, struct seq *q, uint32_t *budget)
{
    struct start st = { .q = q };
    st.room.idle = kvpool_idle(s->pool);
    st.room.n_running = s->n_run;
    if (s->n_run > 0 && s->step < q->req->retry_step && st.room.idle < q->req->retry_idle)
        return REFUSED;
    st.whole = q->n_preempted >= POLICY_PROTECT_AFTER || any_protected(s);
    /* Alone, it needs no more than the pool was found to have at submission. */
    st.want = blocks_for(s, wanted_tokens(s, q, st.whole), q->known);
    st.room.growth = growth_blocks(s, st.whole);
    if (!could_start(s, &st, *budget))
        return REFUSED;

    struct kvpool_key key = key_of(q);
    struct err e;
    enum err_code rc =
        kvpool_open(s->pool, sched_seq_tokens(q), q->known, &key, &q->sid, &st.n_cached, &e);
    if (rc == ERR_BUSY)
        return REFUSED;
    if (rc != ERR_OK) {
        q->sid = SEQ_NONE;
        sched_seq_finish(s, q, FINISH_ERROR, -1, &e);
        return ENDED;
    }
    q->req->looked_up = true;
    return start_opened(s, &st, budget);
}

void sched_admit(struct sched *s, uint32_t *budget)
{
    while (*budget > 0 && s->n_run < s->cfg.max_num_seqs) {
        struct seq *q = sched_admit_next(s);
        if (q == NULL || try_start(s, q, budget) == REFUSED)
            return;
    }
}

/* The part-done prompt that would be served first; false: there is none. */
static bool first_part_done(const struct sched *s, struct sched_policy_prompt *first)
{
    bool any = false;
    for (uint32_t i = 0; i < s->n_run; i++) {
        const struct seq *q = s->run[i];
        struct sched_policy_prompt p = { .left = sched_seq_left(q),
                                         .passed = q->passed,
                                         .arrival = q->req->arrival,
                                         .priority = sched_queue_priority(&s->queue, q->req) };
        if (p.left <= 1 || q->planned > 0)
            continue;
        if (!any || sched_policy_prompt_before(&p, first))
            *first = p;
        any = true;
    }
    return any;
}

static struct sched_policy_prompt view_of_waiting(struct sched *s, struct seq *q)
{
    if (q->hit_step == 0 || s->step >= q->hit_step + HIT_STEPS) {
        struct kvpool_key key = key_of(q);
        q->hit = kvpool_peek(s->pool, sched_seq_tokens(q), q->known, &key);
        q->hit_step = s->step + 1;
    }
    return (struct sched_policy_prompt){ .left = q->known - q->hit,
                                         .arrival = q->req->arrival,
                                         .priority = sched_queue_priority(&s->queue, q->req) };
}

void sched_admit_shorter(struct sched *s, uint32_t *budget)
{
    struct sched_policy_prompt first;
    if (!first_part_done(s, &first))
        return;
    while (*budget > 0 && s->n_run < s->cfg.max_num_seqs) {
        struct seq *q = sched_admit_next(s);
        if (q == NULL)
            return;
        struct sched_policy_prompt p = view_of_waiting(s, q);
        if (!sched_policy_prompt_before(&p, &first) || try_start(s, q, budget) == REFUSED)
            return;
    }
}
