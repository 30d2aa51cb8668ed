/* blocks.c: a block's life between held, resting, cached and free.
 *
 * Owns the states and the counts of held blocks.  Engine thread alone.  Every
 * operation is O(1); handing out takes unpublished blocks first, newest first,
 * then the cached block that was used longest ago. */
#include "kvpool/blocks.h"

#include "kvpool/lists.h"
#include "kvpool/nodes.h"

/* ---- taking, holding, dropping ----------------------------------------------- */

static void hand_out(struct kvpool *p, uint32_t g, uint32_t b)
{
    struct blk *k = kvpool_blk(p, b);
    k->ref = 1;
    k->state = BLK_HELD;
    k->group = (uint8_t)g;
}

/* Prefetch what the next evictions will touch, one block a stripe, and the records
 * of those after them.  Prefetches in a row share their page look-ups. */
static void fetch_victims(const struct kvpool *p, const struct lru *l)
{
    for (uint32_t i = 0; i < STRIPES; i++)
        if (l->head[i] != NIL) {
            kvpool_node_prefetch(p, l->head[i]);
            kvpool_record_prefetch(p, kvpool_blk(p, l->head[i])->next);
        }
}

/* The n blocks used longest ago leave the index.  They are scattered in memory:
 * as many as there are stripes leave their lists at once, and while they leave the
 * index, what the next ones will touch is being fetched. */
static void evict(struct kvpool *p, uint32_t g, blk_id *out, uint32_t n)
{
    const struct lru *l = &p->cached;
    for (uint32_t i = 0; n >= STRIPES && i < STRIPES; i++) /* the last may be long ago */
        kvpool_record_prefetch(p, l->head[i]);
    if (n >= STRIPES)
        fetch_victims(p, l);
    for (uint32_t i = 0; i < n; i++) {
        if (i % STRIPES == 0) {
            for (uint32_t j = i; j < n && j < i + STRIPES; j++)
                out[j] = (blk_id)kvpool_next_victim(p);
            fetch_victims(p, l);
        }
        kvpool_node_withdraw(p, out[i], true);
        hand_out(p, g, (uint32_t)out[i]);
    }
    p->count.evictions += n;
}

void kvpool_blk_take(struct kvpool *p, uint32_t g, blk_id *out, uint32_t n)
{
    uint32_t i = 0;
    for (; i < n && p->free.head != NIL; i++) {
        uint32_t b = p->free.head;
        kvpool_record_prefetch(p, kvpool_blk(p, b)->at);
        kvpool_list_unlink(p, &p->free, b);
        hand_out(p, g, b);
        out[i] = (blk_id)b;
    }
    if (i < n)
        evict(p, g, out + i, n - i);
    p->n_held += n;
    p->group_held[g] += n;
}

void kvpool_blk_hold(struct kvpool *p, blk_id b)
{
    struct blk *k = kvpool_blk(p, b);
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

void kvpool_blk_drop(struct kvpool *p, blk_id b, bool unseen)
{
    struct blk *k = kvpool_blk(p, b);
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
        kvpool_blk_make_idle(p, b);
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
    while (p->resting.head != NIL && kvpool_blk(p, p->resting.head)->step <= p->retired) {
        uint32_t b = p->resting.head;
        kvpool_list_unlink(p, &p->resting, b);
        kvpool_blk_make_idle(p, (blk_id)b);
    }
}

uint32_t kvpool_reset_cache(struct kvpool *p)
{
    uint32_t n = 0;
    while (p->cached.n > 0) {
        uint32_t b = kvpool_oldest(p);
        kvpool_uncache(p, b);
        kvpool_node_withdraw(p, (blk_id)b, false);
        kvpool_blk_make_idle(p, (blk_id)b);
        n++;
    }
    for (uint32_t b = p->resting.head; b != NIL; b = kvpool_blk(p, b)->next)
        if (kvpool_blk(p, b)->node != NIL) {
            kvpool_node_withdraw(p, (blk_id)b, false);
            n++;
        }
    return n;
}
