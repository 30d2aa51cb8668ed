/* reserve.c: a sequence's steps: reserve, commit, roll back.
 *
 * Engine thread alone.  A reservation is counted before anything moves, so that
 * a refusal has changed nothing; a rollback puts back the very blocks that were
 * there.  Windows are left behind at commit, when nothing can need them again;
 * blocks that a copy reads stay held until the copy has run. */
#include "kvpool/blocks.h"
#include "kvpool/copies.h"
#include "kvpool/lists.h"
#include "kvpool/sequence.h"

/* What a reserve of n tokens takes and what it gives back first. */
struct demand {
    uint32_t n_cols;   /* new columns, in every group              */
    uint32_t n_copies; /* blocks to be copied before they can be written */
    uint32_t n_gain;   /* blocks below a window that become idle at once */
};

static uint32_t end_of(const struct seq *s)
{
    return s->n_computed + s->n_reserved;
}

/* The group's part-filled last block that the next token goes to, if it must
 * be copied first: shared with another table, or published by one. */
static blk_id must_copy(const struct kvpool *p, const struct seq *s, uint32_t g)
{
    uint32_t offset = s->n_computed & (p->block_tokens - 1);
    if (s->n_reserved > 0 || offset == 0)
        return BLK_NONE;
    blk_id b = kvpool_row(p, s, g)[s->n_computed >> p->shift];
    return b == BLK_NONE || kvpool_blk_writable(p, b, offset) ? BLK_NONE : b;
}

/* A chunk of several tokens may not keep the block that a boundary at the last
 * whole block would still need: the ring's bound counts on it. */
static uint32_t first_for(const struct kvpool *p, const struct seq *s, uint32_t g, uint32_t n)
{
    return n < 2 ? s->first[g] : kvpool_window_first(p, g, s->n_computed);
}

static struct demand demand_of(const struct kvpool *p, const struct seq *s, uint32_t n)
{
    uint32_t end = end_of(s);
    struct demand d = { .n_cols = kvpool_cols(p, end + n) - kvpool_cols(p, end) };
    bool partial = s->n_reserved == 0 && (end & (p->block_tokens - 1)) != 0;
    if (!partial && p->n_unlimited == p->n_groups)
        return d;
    for (uint32_t g = 0; g < p->n_groups; g++) {
        if (partial && must_copy(p, s, g) != BLK_NONE)
            d.n_copies++;
        if (kvpool_in_flight(p))
            continue;
        for (uint32_t i = s->first[g]; i < first_for(p, s, g, n); i++) {
            blk_id b = kvpool_row(p, s, g)[i];
            d.n_gain += b != BLK_NONE && kvpool_blk(p, b)->ref == 1 && !kvpool_blk(p, b)->poisoned;
        }
    }
    return d;
}

static void drop_below(struct kvpool *p, struct seq *s, uint32_t g, uint32_t first)
{
    blk_id *row = kvpool_row(p, s, g);
    for (; s->first[g] < first; s->first[g]++) {
        blk_id b = row[s->first[g]];
        row[s->first[g]] = BLK_NONE;
        if (b != BLK_NONE)
            kvpool_blk_drop(p, b, false);
    }
}

/* ---- reserve, roll back, commit ------------------------------------------------------ */

uint32_t kvpool_reserve_cost(const struct kvpool *p, seq_id id, uint32_t n)
{
    struct demand d = demand_of(p, kvpool_seq(p, id), n);
    uint32_t need = d.n_cols * p->n_groups + d.n_copies;
    return need > d.n_gain ? need - d.n_gain : 0;
}

enum err_code kvpool_reserve(struct kvpool *p, seq_id id, uint32_t n, struct err *e)
{
    struct seq *s = kvpool_seq(p, id);
    uint32_t end = end_of(s), have = kvpool_cols(p, end);
    if (n > p->cfg.max_chunk)
        return err_set(e, ERR_LIMIT, "%u tokens in one step: at most %u", n, p->cfg.max_chunk);
    if (n > p->cfg.max_seq_tokens - end)
        return err_set(e, ERR_LIMIT, "sequence of %llu tokens: at most %u",
                       (unsigned long long)end + n, p->cfg.max_seq_tokens);
    if (n == 0)
        return ERR_OK;
    struct demand d = demand_of(p, s, n);
    uint64_t need = (uint64_t)d.n_cols * p->n_groups + d.n_copies;
    if (need > (uint64_t)kvpool_n_idle(p) + d.n_gain)
        return err_set(e, ERR_BUSY, "%llu KV blocks wanted: %u idle of %u",
                       (unsigned long long)need, kvpool_n_idle(p), p->cfg.n_blocks);
    enum err_code rc = kvpool_seq_grow(p, s, have + d.n_cols, end + n, e);
    if (rc == ERR_OK && d.n_copies > 0)
        rc = kvpool_copies_grow(p, d.n_copies, e);
    if (rc != ERR_OK)
        return rc;

    if (p->n_unlimited < p->n_groups)
        for (uint32_t g = 0; g < p->n_groups; g++)
            drop_below(p, s, g, first_for(p, s, g, n));
    for (uint32_t g = 0; g < p->n_groups; g++) {
        blk_id from = d.n_copies > 0 ? must_copy(p, s, g) : BLK_NONE;
        if (from != BLK_NONE)
            kvpool_copy_block(p, s, g, from);
        kvpool_blk_take(p, g, kvpool_row(p, s, g) + have, d.n_cols);
    }
    if (s->n_reserved == 0)
        s->reserved_at = p->launched;
    s->n_reserved += n;
    s->n_last = n;
    return ERR_OK;
}

void kvpool_rollback(struct kvpool *p, seq_id id)
{
    struct seq *s = kvpool_seq(p, id);
    bool unseen = s->reserved_at == p->launched;
    uint32_t had = kvpool_cols(p, end_of(s));
    s->n_reserved -= s->n_last;
    s->n_last = s->n_reserved;
    for (uint32_t i = had; i-- > kvpool_cols(p, end_of(s));)
        for (uint32_t g = 0; g < p->n_groups; g++)
            if (kvpool_row(p, s, g)[i] != BLK_NONE)
                kvpool_blk_drop(p, kvpool_row(p, s, g)[i], unseen);
    if (s->n_reserved == 0)
        kvpool_copies_undo(p, s, unseen);
}

void kvpool_commit(struct kvpool *p, seq_id id, const int32_t *tokens, uint32_t n)
{
    struct seq *s = kvpool_seq(p, id);
    assert(n <= s->n_reserved);
    if (n == 0)
        return;
    uint32_t from = s->n_computed, known = s->n_known > from ? s->n_known - from : 0;
    known = known < n ? known : n;
    assert(memcmp(s->tokens + from, tokens, known * sizeof *tokens) == 0);
    memcpy(s->tokens + from + known, tokens + known, (n - known) * sizeof *tokens);
    if (s->n_sources > 0)
        kvpool_copies_finish(p, s);
    s->n_computed += n;
    s->n_reserved -= n;
    s->n_last = s->n_last < s->n_reserved ? s->n_last : s->n_reserved;
    if (s->n_known < s->n_computed)
        s->n_known = s->n_computed;
    if (s->n_published < s->n_computed >> p->shift)
        kvpool_prefix_publish(p, id);
    if (p->n_unlimited < p->n_groups) {
        uint32_t whole = s->n_computed & ~(p->block_tokens - 1);
        for (uint32_t g = 0; g < p->n_groups; g++)
            drop_below(p, s, g, kvpool_window_first(p, g, whole));
    }
}
