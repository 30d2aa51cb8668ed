/* ledger.c: the sums of the pool, proved and, where they fail, contained.
 *
 * kvpool_check() recounts everything from the tables of the open sequences and
 * compares; kvpool.h numbers what must hold.  A block at fault is quarantined:
 * it leaves the index, is never handed out again, and the derived structures
 * are rebuilt around it, so that the daemon serves on with a smaller pool.
 * Engine thread alone; O(blocks + table entries), no allocation. */
#include "kvpool/lists.h"
#include "kvpool/nodes.h"

#include <stdarg.h>
#include <stdio.h>

/* One run of the check.  Scratch arrays, one entry a block. */
struct audit {
    struct kvpool *p;
    struct err *e;
    uint32_t *ref;    /* references found in tables and reservations           */
    uint32_t *source; /* of these, copy sources; BAD: at fault                 */
    uint32_t *mark;   /* times seen in lists; then writers                     */
    uint64_t n_violations;
};

#define BAD      0x80000000u
#define REF_BITS 0x7ffffu

/* Record one violation; the first one's words are reported.  b < 0: no block. */
static void PRINTF_LIKE(4, 5)
    violation(struct audit *a, int number, int64_t b, const char *fmt, ...)
{
    if (a->n_violations++ == 0) {
        char text[ERR_MESSAGE_BYTES];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        err_set(a->e, ERR_INVALID, "ledger invariant (%d): %s", number, text);
    }
    if (b >= 0 && b < a->p->cfg.n_blocks)
        a->source[b] |= BAD;
}

static bool in_pool(const struct kvpool *p, blk_id b)
{
    return b >= 0 && (uint32_t)b < p->cfg.n_blocks;
}

/* (1), (7): count what the tables name. */
static void count_tables(struct audit *a)
{
    struct kvpool *p = a->p;
    for (uint32_t id = 0; id < p->n_slots; id++) {
        const struct seq *s = &p->seq[id];
        if (!s->open)
            continue;
        uint32_t n_cols = kvpool_cols(p, s->n_computed + s->n_reserved);
        for (uint32_t g = 0; g < p->n_groups; g++) {
            const blk_id *row = kvpool_row(p, s, g);
            if (s->first[g] > kvpool_window_first(p, g, s->n_computed))
                violation(a, 7, -1, "sequence %u group %u: mapped from column %u, window needs %u",
                          id, g, s->first[g], kvpool_window_first(p, g, s->n_computed));
            for (uint32_t i = 0; i < n_cols; i++) {
                if (i < s->first[g]) {
                    if (row[i] != BLK_NONE)
                        violation(a, 7, row[i],
                                  "sequence %u group %u column %u is %d below the window: "
                                  "expected -1",
                                  id, g, i, row[i]);
                } else if (row[i] == BLK_NONE && s->damaged) {
                    continue; /* lost, reported when it was */
                } else if (!in_pool(p, row[i])) {
                    violation(a, 7, -1, "sequence %u group %u column %u is %d: expected 0..%u", id,
                              g, i, row[i], p->cfg.n_blocks - 1);
                } else {
                    a->ref[row[i]]++;
                    if (kvpool_blk(p, row[i])->group != g)
                        violation(a, 8, row[i], "block %d in a row of group %u belongs to group %u",
                                  row[i], g, kvpool_blk(p, row[i])->group);
                }
            }
            if (in_pool(p, s->source[g])) {
                a->ref[s->source[g]]++;
                a->source[s->source[g]]++;
            }
        }
    }
}

/* (8): pins' columns, counted whole. */
static uint32_t count_pinned(const struct kvpool *p)
{
    uint32_t n = 0;
    for (uint32_t id = p->cfg.max_seqs; id < p->n_slots; id++)
        for (uint32_t g = 0; p->seq[id].open && g < p->n_groups; g++)
            n += p->seq[id].n_published - p->seq[id].first[g];
    return n;
}

/* (1), (2), (3), (8): each block's own account. */
static void check_blocks(struct audit *a)
{
    struct kvpool *p = a->p;
    uint32_t n[5] = { 0 }, held[KV_GROUPS] = { 0 };
    for (uint32_t b = 0; b < p->cfg.n_blocks; b++) {
        const struct blk *k = kvpool_blk(p, b);
        if (k->ref != a->ref[b])
            violation(a, 1, b, "block %u has ref %u: tables name it %u times", b, k->ref,
                      a->ref[b]);
        if (k->sources != (a->source[b] & ~BAD))
            violation(a, 1, b, "block %u has %u copies reading it: reservations say %u", b,
                      k->sources, a->source[b] & ~BAD);
        if (k->state > BLK_QUARANTINED || (k->state == BLK_HELD) != (k->ref > 0)) {
            violation(a, 2, b, "block %u is in state %u with ref %u", b, k->state, k->ref);
            continue;
        }
        n[k->state]++;
        if (k->state == BLK_HELD)
            held[k->group < KV_GROUPS ? k->group : 0]++;
        if ((k->state == BLK_FREE && k->node != NIL) || (k->state == BLK_CACHED && k->node == NIL))
            violation(a, 3, b, "block %u is %s, but %s", b,
                      k->state == BLK_FREE ? "free" : "cached",
                      k->node == NIL ? "has no hash" : "has a hash");
    }
    if (n[BLK_HELD] != p->n_held || n[BLK_QUARANTINED] != p->n_quarantined)
        violation(a, 2, -1, "%u held and %u quarantined blocks counted: ledger has %u and %u",
                  n[BLK_HELD], n[BLK_QUARANTINED], p->n_held, p->n_quarantined);
    for (uint32_t g = 0; g < p->n_groups; g++)
        if (held[g] != p->group_held[g])
            violation(a, 8, -1, "group %u holds %u blocks: ledger has %u", g, held[g],
                      p->group_held[g]);
    if (count_pinned(p) != p->n_pinned)
        violation(a, 8, -1, "pins name %u blocks: ledger has %u", count_pinned(p), p->n_pinned);
    uint64_t sum = (uint64_t)p->free.n + p->cached.n + p->resting.n + p->n_held + p->n_quarantined;
    if (sum != p->cfg.n_blocks)
        violation(a, 2, -1,
                  "%u free + %u cached + %u resting + %u held + %u quarantined = %llu: pool has %u",
                  p->free.n, p->cached.n, p->resting.n, p->n_held, p->n_quarantined,
                  (unsigned long long)sum, p->cfg.n_blocks);
}

/* (2), (9): b, which a list leads to from `before`, is there once and in its
 * place; in eviction order it was last used no sooner than `older`.  False: the
 * list cannot be followed. */
static bool check_member(struct audit *a, uint32_t b, uint32_t before, uint32_t older,
                         enum blk_state state, const char *name)
{
    struct kvpool *p = a->p;
    if (b >= p->cfg.n_blocks || a->mark[b] != 0) {
        violation(a, 9, b < p->cfg.n_blocks ? (int64_t)b : -1,
                  "the %s list leads to block %u twice or out of the pool", name, b);
        return false;
    }
    const struct blk *k = kvpool_blk(p, b);
    a->mark[b] = 1;
    if (k->state != state)
        violation(a, 9, b, "block %u in the %s list is in state %u: expected %u", b, name, k->state,
                  (unsigned)state);
    if (k->prev != before)
        violation(a, 9, b, "block %u in the %s list follows %u: it says %u", b, name, before,
                  k->prev);
    if (state != BLK_FREE && older != NIL && kvpool_blk(p, older)->step > k->step)
        violation(a, 9, b, "block %u in the %s list was used at step %llu: after one of step %llu",
                  b, name, (unsigned long long)k->step,
                  (unsigned long long)kvpool_blk(p, older)->step);
    return true;
}

static void check_list(struct audit *a, const struct blk_list *l, enum blk_state state,
                       const char *name)
{
    uint32_t n = 0, before = NIL;
    for (uint32_t b = l->head; b != NIL; before = b, b = kvpool_blk(a->p, b)->next, n++)
        if (!check_member(a, b, before, before, state, name))
            return;
    if (n != l->n || l->tail != before)
        violation(a, 9, -1, "the %s list has %u blocks ending in %u: ledger has %u and %u", name, n,
                  before, l->n, l->tail);
}

/* (9): the cached blocks, in eviction order over all stripes. */
static void check_cached(struct audit *a)
{
    const struct kvpool *p = a->p;
    const struct lru *l = &p->cached;
    struct lru_walk w;
    uint32_t n = 0, before = NIL, last[STRIPES];
    memset(last, 0xff, sizeof last);
    kvpool_walk_start(&w, p);
    for (uint32_t b; (b = kvpool_walk_next(&w, p)) != NIL; before = last[w.stripe] = b, n++) {
        if (!check_member(a, b, last[w.stripe], before, BLK_CACHED, "cached"))
            return;
        const struct blk *k = kvpool_blk(p, b);
        if (k->stripe != w.stripe)
            violation(a, 9, b, "block %u of stripe %u is in stripe %u", b, k->stripe, w.stripe);
        if (k->prev == NIL && k->at != (uint32_t)l->first[w.stripe])
            violation(a, 9, b, "block %u was cached as number %u: its stripe begins with %u", b,
                      k->at, (uint32_t)l->first[w.stripe]);
    }
    for (uint32_t i = 0; i < STRIPES; i++)
        if (l->tail[i] != last[i])
            violation(a, 9, -1, "stripe %u ends in block %u: ledger has %u", i, last[i],
                      l->tail[i]);
    if (n != l->n)
        violation(a, 9, -1, "%u cached blocks: ledger has %u", n, l->n);
}

static void check_lists(struct audit *a)
{
    struct kvpool *p = a->p;
    memset(a->mark, 0, p->cfg.n_blocks * sizeof *a->mark);
    check_list(a, &p->free, BLK_FREE, "free");
    check_cached(a);
    check_list(a, &p->resting, BLK_RESTING, "resting");
    for (uint32_t b = 0; b < p->cfg.n_blocks; b++)
        if (a->mark[b] == 0 && kvpool_blk(p, b)->state <= BLK_RESTING)
            violation(a, 9, b, "block %u in state %u is in no list", b, kvpool_blk(p, b)->state);
}

static bool names(const struct kvpool *p, uint32_t node, uint32_t g, uint32_t b)
{
    return node < p->n_nodes && kvpool_node(p, node)->in_use && g < p->n_groups &&
           kvpool_node_blocks(p, node)[g] == (blk_id)b;
}

/* (6): node n, in use, agrees with its blocks and lies in the index. */
static void check_node(struct audit *a, uint32_t n)
{
    struct kvpool *p = a->p;
    uint32_t n_here = 0;
    for (uint32_t g = 0; g < p->n_groups; g++) {
        blk_id b = kvpool_node_blocks(p, n)[g];
        if (b == BLK_NONE)
            continue;
        n_here++;
        if (!in_pool(p, b) || kvpool_blk(p, b)->node != n)
            violation(a, 6, b, "node %u names block %d of group %u: block does not agree", n, b, g);
    }
    if (n_here != kvpool_node(p, n)->n_resident)
        violation(a, 6, -1, "node %u has %u resident blocks: it says %u", n, n_here,
                  kvpool_node(p, n)->n_resident);
    if (!kvpool_index_has(p, n))
        violation(a, 6, -1, "node %u is not in the index where it says", n);
}

/* (6): the index has nothing but the nodes in use, and every other number can
 * be had. */
static void check_lines(struct audit *a)
{
    struct kvpool *p = a->p;
    uint32_t n_linked = 0, n_elsewhere = 0, n_say_elsewhere = 0, n_used = 0, n_stacked = 0;
    for (uint32_t i = 0; i <= p->bucket_mask; i++) {
        const struct bucket *l = &p->bucket[i];
        n_elsewhere += l->n_elsewhere;
        n_linked += (uint32_t)__builtin_popcountll(l->used);
        for (uint32_t n = l->overflow; n < p->n_nodes && n_linked <= p->n_nodes;
             n = kvpool_node(p, n)->next)
            n_linked++;
    }
    for (uint32_t n = 0; n < p->n_nodes; n++) {
        const struct node *d = kvpool_node(p, n);
        n_used += d->in_use;
        n_stacked += d->stacked;
        n_say_elsewhere += d->in_use && d->place >= AT_HOME;
        if (!d->in_use && !d->stacked)
            violation(a, 6, -1, "node %u is not in use, but can never be again", n);
    }
    if (n_used != p->n_nodes - p->n_nodes_unused)
        violation(a, 6, -1, "%u nodes are in use: ledger has %u", n_used,
                  p->n_nodes - p->n_nodes_unused);
    if (n_stacked != p->n_stacked)
        violation(a, 6, -1, "%u nodes are stacked: ledger has %u", n_stacked, p->n_stacked);
    if (n_linked != n_used || n_elsewhere != n_say_elsewhere)
        violation(a, 6, -1, "the index has %u nodes, %u away from their bucket: %u and %u are",
                  n_linked, n_elsewhere, n_used, n_say_elsewhere);
}

/* (6): blocks and nodes name each other; nodes are counted by who needs them. */
static void check_index(struct audit *a)
{
    struct kvpool *p = a->p;
    uint32_t *refs = p->node_scratch;
    memset(refs, 0, p->n_nodes * sizeof *refs);
    for (uint32_t b = 0; b < p->cfg.n_blocks; b++) {
        const struct blk *k = kvpool_blk(p, b);
        if (k->node != NIL && !names(p, k->node, k->group, b))
            violation(a, 6, b, "block %u says it is published under node %u: node does not name it",
                      b, k->node);
    }
    for (uint32_t n = 0; n < p->n_nodes; n++)
        if (kvpool_node(p, n)->in_use) {
            check_node(a, n);
            if (kvpool_node(p, n)->parent != NIL)
                refs[kvpool_node(p, n)->parent]++;
        }
    for (uint32_t id = 0; id < p->n_slots; id++)
        if (p->seq[id].open && p->seq[id].node != NIL)
            refs[p->seq[id].node]++;
    for (uint32_t n = 0; n < p->n_nodes; n++)
        if (kvpool_node(p, n)->in_use &&
            (kvpool_node(p, n)->refs != refs[n] || refs[n] + kvpool_node(p, n)->n_resident == 0))
            violation(a, 6, -1, "node %u has %u references, %u counted", n, kvpool_node(p, n)->refs,
                      refs[n]);
    check_lines(a);
}

/* (5): what s has published is its own text, and the unlimited groups' rows are
 * the published blocks. */
static void check_published(struct audit *a, uint32_t id)
{
    struct kvpool *p = a->p;
    const struct seq *s = &p->seq[id];
    if (s->n_published > s->n_computed >> p->shift)
        violation(a, 5, -1, "sequence %u published %u blocks: %u tokens are computed", id,
                  s->n_published, s->n_computed);
    uint32_t n = s->node;
    for (uint32_t i = s->n_published; i-- > 0 && n != NIL; n = kvpool_node(p, n)->parent) {
        if (memcmp(kvpool_node_tokens(p, n), s->tokens + ((size_t)i << p->shift),
                   p->block_tokens * sizeof *s->tokens) != 0)
            violation(a, 5, -1, "sequence %u block %u: node %u has other tokens", id, i, n);
        for (uint32_t g = 0; g < p->n_groups; g++) {
            blk_id mine = kvpool_row(p, s, g)[i];
            if (p->lay.group[g].window == 0 && mine != kvpool_node_blocks(p, n)[g] &&
                in_pool(p, mine) && !kvpool_blk(p, mine)->poisoned)
                violation(a, 5, mine, "sequence %u group %u column %u is block %d: published is %d",
                          id, g, i, mine, kvpool_node_blocks(p, n)[g]);
        }
    }
}

/* (4), first pass: mark the blocks each reservation writes to.  A damaged
 * sequence was reported when it was found. */
static bool mark_writers(struct audit *a)
{
    struct kvpool *p = a->p;
    bool any = false;
    memset(a->mark, 0, p->cfg.n_blocks * sizeof *a->mark);
    for (uint32_t id = 0; id < p->n_slots; id++) {
        const struct seq *s = &p->seq[id];
        if (!s->open || s->damaged || s->n_reserved == 0)
            continue;
        uint32_t n_cols = kvpool_cols(p, s->n_computed + s->n_reserved);
        for (uint32_t g = 0; g < p->n_groups; g++)
            for (uint32_t i = s->n_computed >> p->shift; i < n_cols; i++) {
                blk_id b = kvpool_row(p, s, g)[i];
                if (!in_pool(p, b))
                    continue;
                if (kvpool_blk(p, b)->node != NIL)
                    violation(a, 4, b, "sequence %u will write to block %d: it is published", id,
                              b);
                if (a->mark[b] != 0)
                    violation(a, 4, b, "sequences %u and %u will write to block %d", a->mark[b] - 1,
                              id, b);
                a->mark[b] = id + 1;
                any = any || a->ref[b] > 1;
            }
    }
    return any;
}

/* Sequence id reads block b at column col, in its table or for a copy. */
static void check_reader(struct audit *a, uint32_t id, blk_id b, uint32_t col)
{
    const struct kvpool *p = a->p;
    if (!in_pool(p, b) || a->mark[b] == 0 || a->mark[b] == id + 1)
        return;
    const struct seq *s = &p->seq[id], *w = &p->seq[a->mark[b] - 1];
    if (w->n_computed >> p->shift != col || s->n_computed > w->n_computed)
        violation(a, 4, b,
                  "sequence %u will write to block %d at %u: sequence %u reads it up to %u",
                  a->mark[b] - 1, b, w->n_computed, id, s->n_computed);
}

/* (4), second pass: nobody else reads what they will write. */
static void check_readers(struct audit *a)
{
    struct kvpool *p = a->p;
    for (uint32_t id = 0; id < p->n_slots; id++) {
        const struct seq *s = &p->seq[id];
        if (!s->open || s->damaged)
            continue;
        uint32_t n_cols = kvpool_cols(p, s->n_computed);
        for (uint32_t g = 0; g < p->n_groups; g++) {
            for (uint32_t i = s->first[g]; i < n_cols; i++)
                check_reader(a, id, kvpool_row(p, s, g)[i], i);
            check_reader(a, id, s->source[g], s->n_computed >> p->shift);
        }
    }
}

/* ---- repair ------------------------------------------------------------------------ */

/* Entries that name no block go; a sequence that reads a block at fault, or
 * lost one, is damaged. */
static void repair_tables(struct audit *a)
{
    struct kvpool *p = a->p;
    for (uint32_t id = 0; id < p->n_slots; id++) {
        struct seq *s = &p->seq[id];
        if (!s->open)
            continue;
        uint32_t n_cols = kvpool_cols(p, s->n_computed + s->n_reserved);
        for (uint32_t g = 0; g < p->n_groups; g++)
            for (uint32_t i = 0; i < n_cols; i++) {
                blk_id *b = &kvpool_row(p, s, g)[i];
                if (i >= s->first[g] && (!in_pool(p, *b) || kvpool_blk(p, *b)->poisoned))
                    s->damaged = true;
                if (i < s->first[g] || !in_pool(p, *b))
                    *b = BLK_NONE;
                else
                    kvpool_blk(p, *b)->group = (uint8_t)g;
            }
    }
}

/* Nodes keep only the blocks that agree and are not at fault; then they are
 * counted and linked anew. */
static void repair_index(struct audit *a)
{
    struct kvpool *p = a->p;
    for (uint32_t b = 0; b < p->cfg.n_blocks; b++) {
        struct blk *k = kvpool_blk(p, b);
        if (k->node != NIL && (k->poisoned || !names(p, k->node, k->group, b)))
            k->node = NIL;
    }
    kvpool_index_clear(p);
    p->n_nodes_unused = p->n_stacked = 0;
    for (uint32_t n = 0; n < p->n_nodes; n++) {
        struct node *d = kvpool_node(p, n);
        d->stacked = false;
        if (!d->in_use) {
            kvpool_node_recycle(p, n);
            continue;
        }
        d->n_resident = 0;
        d->refs = 0;
        for (uint32_t g = 0; g < p->n_groups; g++) {
            blk_id *b = &d->block[g];
            if (!in_pool(p, *b) || kvpool_blk(p, *b)->node != n || kvpool_blk(p, *b)->group != g)
                *b = BLK_NONE;
            d->n_resident += *b != BLK_NONE;
        }
        kvpool_index_put(p, n);
    }
    for (uint32_t n = 0; n < p->n_nodes; n++)
        if (kvpool_node(p, n)->in_use && kvpool_node(p, n)->parent != NIL)
            kvpool_node(p, kvpool_node(p, n)->parent)->refs++;
    for (uint32_t id = 0; id < p->n_slots; id++)
        if (p->seq[id].open && p->seq[id].node != NIL)
            kvpool_node(p, p->seq[id].node)->refs++;
    for (uint32_t n = 0; n < p->n_nodes; n++)
        kvpool_node_free_unused(p, n);
}

/* Append b to order[] unless it was seen; false: it was, or is none. */
static bool follow_one(struct audit *a, uint32_t b, uint32_t *order, uint32_t *n)
{
    if (b >= a->p->cfg.n_blocks || a->ref[b] >= BAD)
        return false;
    a->ref[b] |= BAD; /* seen */
    order[(*n)++] = b;
    return true;
}

/* The lists' order as far as they can be followed, into order[]. */
static void follow(struct audit *a, const struct blk_list *l, uint32_t *order, uint32_t *n)
{
    for (uint32_t b = l->head; follow_one(a, b, order, n);)
        b = kvpool_blk(a->p, b)->next;
}

static void follow_cached(struct audit *a, uint32_t *order, uint32_t *n)
{
    struct lru_walk w;
    kvpool_walk_start(&w, a->p);
    for (uint32_t b; (b = kvpool_walk_next(&w, a->p)) != NIL;)
        if (!follow_one(a, b, order, n))
            w.at[w.stripe] = NIL;
}

static void repair_blocks(struct audit *a)
{
    struct kvpool *p = a->p;
    uint32_t *order = a->mark, n = 0;
    follow(a, &p->resting, order, &n);
    uint32_t end = n;
    follow_cached(a, order, &n);
    follow(a, &p->free, order, &n);
    kvpool_lists_init(p);
    p->n_held = p->n_quarantined = 0;
    memset(p->group_held, 0, sizeof p->group_held);
    for (uint32_t b = 0; b < p->cfg.n_blocks; b++) {
        struct blk *k = kvpool_blk(p, b);
        bool listed = a->ref[b] >= BAD;
        k->ref = a->ref[b] & REF_BITS;
        k->sources = (uint16_t)(a->source[b] & ~BAD);
        if (k->ref > 0) {
            k->state = BLK_HELD;
            p->n_held++;
            p->group_held[k->group]++;
        } else if (!listed || k->poisoned) {
            k->state = BLK_QUARANTINED;
            p->n_quarantined++;
        } else {
            k->state = BLK_FREE; /* placed below */
        }
    }
    uint64_t step = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t b = order[i];
        if (kvpool_blk(p, b)->state != BLK_FREE)
            continue;
        if (i == end)
            step = 0; /* dates rise along a list, up to now */
        step = kvpool_blk(p, b)->step > step ? kvpool_blk(p, b)->step : step;
        step = step < p->launched ? step : p->launched;
        kvpool_blk(p, b)->step = step;
        if (i < end) {
            kvpool_blk(p, b)->state = BLK_RESTING;
            kvpool_list_append(p, &p->resting, b);
        } else {
            kvpool_blk_make_idle(p, (blk_id)b);
        }
    }
}

/* ---- public ---------------------------------------------------------------------------- */

enum err_code kvpool_check(struct kvpool *p, struct err *e)
{
    uint32_t n = p->cfg.n_blocks;
    struct audit a = { .p = p,
                       .e = e,
                       .ref = p->scratch,
                       .source = p->scratch + n,
                       .mark = p->scratch + 2 * (size_t)n };
    memset(p->scratch, 0, (size_t)n * 2 * sizeof *p->scratch);
    count_tables(&a);
    check_blocks(&a);
    check_lists(&a);
    check_index(&a);
    for (uint32_t id = 0; id < p->n_slots; id++)
        if (p->seq[id].open)
            check_published(&a, id);
    if (mark_writers(&a))
        check_readers(&a);
    p->count.checked_step = p->launched;
    if (a.n_violations == 0)
        return ERR_OK;
    p->count.violations += a.n_violations;
    for (uint32_t b = 0; b < n; b++)
        kvpool_blk(p, b)->poisoned |= (a.source[b] & BAD) != 0;
    p->n_pinned = count_pinned(p);
    repair_tables(&a);
    repair_index(&a);
    repair_blocks(&a);
    return ERR_INVALID;
}

void kvpool_stats(const struct kvpool *p, struct kvpool_stats *out)
{
    const struct counters *c = &p->count;
    *out = (struct kvpool_stats){
        .n_blocks = p->cfg.n_blocks,
        .n_free = p->free.n,
        .n_cached = p->cached.n,
        .n_held = p->n_held,
        .n_resting = p->resting.n,
        .n_seqs = p->n_seqs,
        .query_tokens = c->query_tokens,
        .hit_tokens = c->hit_tokens,
        .miss_never = c->miss_never,
        .miss_evicted = c->miss_evicted,
        .miss_salt = c->miss_salt,
        .miss_granularity = c->miss_granularity,
        .miss_window = c->miss_window,
        .evictions = c->evictions,
        .copies = c->copies,
        .published = c->published,
        .checked_step = c->checked_step,
        .violations = c->violations,
        .quarantined = p->n_quarantined,
        .n_pins = p->n_pins,
        .n_pinned = p->n_pinned,
    };
    if (p->cached.n > 0)
        out->oldest_cached_step = kvpool_blk(p, kvpool_oldest(p))->step;
    for (uint32_t g = 0; g < p->n_groups; g++)
        out->group_held[g] = p->group_held[g];
    for (uint32_t id = 0; id < p->cfg.max_seqs; id++) {
        const struct seq *s = &p->seq[id];
        if (!s->open)
            continue;
        uint64_t slots = (uint64_t)kvpool_cols(p, s->n_computed + s->n_reserved) << p->shift;
        for (uint32_t g = 0; g < p->n_groups; g++) {
            uint64_t below = (uint64_t)s->first[g] << p->shift;
            out->tokens_held += s->n_computed > below ? s->n_computed - below : 0;
            out->tokens_wasted += slots - s->n_computed;
        }
    }
}
