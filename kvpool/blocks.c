/* blocks.c: a block's way between held, resting, cached and free.
 *
 * Owns the three lists and the counts.  Engine thread alone.  Every operation
 * is O(1); handing out takes unpublished blocks first, newest first, then, of
 * the lowest rank cached, the block that was used longest ago. */
#include "kvpool/internal.h"

enum { AHEAD = 32 }; /* evictions whose memory is fetched together */

void kvpool_lists_init(struct kvpool *p)
{
    struct blk_list empty = { .head = NIL, .tail = NIL };
    p->free = p->resting = empty;
    for (uint32_t r = 0; r < KVPOOL_RANKS; r++)
        p->cached[r] = empty;
    p->n_cached = 0;
}

static void hand_out(struct kvpool *p, uint32_t g, uint32_t b)
{
    struct blk *k = &p->blk[b];
    k->ref = 1;
    k->state = BLK_HELD;
    k->group = (uint8_t)g;
    k->rank = 0;
}

/* The n blocks used longest ago leave the index.  They are scattered in memory:
 * each pass fetches what the next one reads. */
static void evict(struct kvpool *p, uint32_t g, blk_id *out, uint32_t n)
{
    uint32_t b = kvpool_victims(p)->head, at = p->blk[b].queued;
    for (uint32_t i = 1; i < n; i++) { /* most likely these come next */
        at = at + 1 < p->cfg.n_blocks ? at + 1 : 0;
        __builtin_prefetch(&p->blk[p->queue[at]], 1);
    }
    for (uint32_t i = 0; i < n; i++, b = p->blk[b].next) {
        assert(b != NIL);
        out[i] = (blk_id)b;
    }
    for (int stage = 0; stage < 2; stage++)
        for (uint32_t i = 0; i < n; i++)
            kvpool_prefix_prefetch(p, (uint32_t)out[i], stage);
    for (uint32_t i = 0; i < n; i++) {
        kvpool_uncache(p, (uint32_t)out[i]);
        kvpool_prefix_forget(p, out[i], true);
        hand_out(p, g, (uint32_t)out[i]);
    }
    p->count.evictions += n;
}

void kvpool_blk_take(struct kvpool *p, uint32_t g, blk_id *out, uint32_t n)
{
    uint32_t i = 0;
    for (; i < n && p->free.head != NIL; i++) {
        uint32_t b = p->free.head;
        kvpool_list_unlink(p, &p->free, b);
        hand_out(p, g, b);
        out[i] = (blk_id)b;
    }
    for (uint32_t m; i < n; i += m) {
        m = n - i < AHEAD ? n - i : AHEAD;
        if (m > kvpool_victims(p)->n)
            m = kvpool_victims(p)->n;
        assert(m > 0);
        evict(p, g, out + i, m);
    }
    p->n_held += n;
    p->group_held[g] += n;
}

void kvpool_blk_hold(struct kvpool *p, blk_id b)
{
    struct blk *k = &p->blk[b];
    if (k->ref++ > 0)
        return;
    assert(k->state == BLK_CACHED || k->state == BLK_RESTING);
    if (k->state == BLK_CACHED)
        kvpool_uncache(p, (uint32_t)b);
    else
        kvpool_list_unlink(p, &p->resting, (uint32_t)b);
    k->state = BLK_HELD;
    p->n_held++;
    p->group_held[k->group]++;
}

void kvpool_blk_settle(struct kvpool *p, blk_id b)
{
    struct blk *k = &p->blk[b];
    if (k->doomed) {
        k->state = BLK_QUARANTINED;
        p->n_quarantined++;
    } else if (k->node != NIL) {
        k->state = BLK_CACHED;
        kvpool_list_append(p, &p->cached[k->rank], (uint32_t)b);
        p->n_cached++;
        p->blk[b].queued = p->n_queued;
        p->queue[p->n_queued] = (uint32_t)b;
        p->n_queued = p->n_queued + 1 < p->cfg.n_blocks ? p->n_queued + 1 : 0;
    } else {
        k->state = BLK_FREE;
        kvpool_list_push(p, &p->free, (uint32_t)b);
    }
}

void kvpool_blk_drop(struct kvpool *p, blk_id b, bool unseen)
{
    struct blk *k = &p->blk[b];
    assert(k->ref > 0 && k->state == BLK_HELD);
    if (--k->ref > 0)
        return;
    p->n_held--;
    p->group_held[k->group]--;
    k->step = p->launched;
    if (kvpool_in_flight(p) && !unseen) {
        k->state = BLK_RESTING;
        kvpool_list_append(p, &p->resting, (uint32_t)b);
    } else {
        kvpool_blk_settle(p, b);
    }
}

void kvpool_launch(struct kvpool *p, uint64_t step)
{
    assert(step > p->launched);
    p->launched = step;
}

/* Blocks come to rest in the order of their steps, so the due ones lead. */
void kvpool_retire(struct kvpool *p, uint64_t step)
{
    if (step > p->retired)
        p->retired = step;
    while (p->resting.head != NIL && p->blk[p->resting.head].step <= p->retired) {
        uint32_t b = p->resting.head;
        kvpool_list_unlink(p, &p->resting, b);
        kvpool_blk_settle(p, (blk_id)b);
    }
}

uint32_t kvpool_reset_cache(struct kvpool *p)
{
    uint32_t n = 0;
    while (p->n_cached > 0) {
        uint32_t b = kvpool_victims(p)->head;
        kvpool_uncache(p, b);
        kvpool_prefix_forget(p, (blk_id)b, false);
        kvpool_blk_settle(p, (blk_id)b);
        n++;
    }
    for (uint32_t b = p->resting.head; b != NIL; b = p->blk[b].next)
        if (p->blk[b].node != NIL) {
            kvpool_prefix_forget(p, (blk_id)b, false);
            n++;
        }
    return n;
}
