/* lists.h: the lists that blocks wait in while nobody holds them.
 *
 * Layer 2 of kvpool's inside, over pool.h.  Owns struct blk_list and struct lru;
 * the short operations are inline, as every block passes through them.  Engine
 * thread alone; all O(1) but for a walk. */
#ifndef KVPOOL_LISTS_H
#define KVPOOL_LISTS_H

#include "kvpool/pool.h"

static inline void kvpool_list_unlink(struct kvpool *p, struct blk_list *l, uint32_t b)
{
    uint32_t prev = kvpool_blk(p, b)->prev, next = kvpool_blk(p, b)->next;
    *(prev == NIL ? &l->head : &kvpool_blk(p, prev)->next) = next;
    *(next == NIL ? &l->tail : &kvpool_blk(p, next)->prev) = prev;
    l->n--;
}

static inline void kvpool_list_append(struct kvpool *p, struct blk_list *l, uint32_t b)
{
    kvpool_blk(p, b)->prev = l->tail;
    kvpool_blk(p, b)->next = NIL;
    if (l->tail == NIL)
        l->head = b;
    else
        kvpool_blk(p, l->tail)->next = b;
    l->tail = b;
    l->n++;
}

static inline void kvpool_list_push(struct kvpool *p, struct blk_list *l, uint32_t b)
{
    kvpool_blk(p, b)->prev = NIL;
    kvpool_blk(p, b)->next = l->head;
    if (l->head == NIL)
        l->tail = b;
    else
        kvpool_blk(p, l->head)->prev = b;
    l->head = b;
    l->n++;
}

static inline uint32_t kvpool_n_idle(const struct kvpool *p)
{
    return p->free.n + p->cached.n;
}

/* All lists empty. */
void kvpool_lists_init(struct kvpool *p);

/* A block that nobody holds and no step reads goes where it belongs: to the
 * cached ones when it is published, else to the free ones, or into quarantine. */
void kvpool_blk_make_idle(struct kvpool *p, blk_id b);

/* ---- the order of eviction ----------------------------------------------------- */

static inline uint32_t kvpool_next_stripe(uint32_t stripe)
{
    return stripe + 1 < STRIPES ? stripe + 1 : 0;
}

/* When b was cached: exact for the latest 2^32 cachings. */
static inline uint64_t kvpool_cached_at(const struct kvpool *p, const struct lru *l, uint32_t b)
{
    return l->time - ((uint32_t)l->time - kvpool_blk(p, b)->at);
}

/* A cached block leaves its list.  Neighbours are only written to, which nothing
 * has to wait for. */
static inline void kvpool_uncache(struct kvpool *p, uint32_t b)
{
    struct lru *l = &p->cached;
    const struct blk *k = kvpool_blk(p, b);
    uint32_t stripe = k->stripe, prev = k->prev, next = k->next;
    if (prev == NIL) {
        l->head[stripe] = next;
        l->first[stripe] = next == NIL ? UINT64_MAX : kvpool_cached_at(p, l, next);
    } else {
        kvpool_blk(p, prev)->next = next;
    }
    *(next == NIL ? &l->tail[stripe] : &kvpool_blk(p, next)->prev) = prev;
    l->n--;
}

/* The stripe whose head is the oldest.  Most often they take turns. */
static inline uint32_t kvpool_oldest_stripe(const struct lru *l)
{
    uint32_t stripe = l->turn;
    if (l->first[stripe] != l->taken + 1)
        for (uint32_t i = 0; i < STRIPES; i++)
            stripe = l->first[i] < l->first[stripe] ? i : stripe;
    return stripe;
}

/* The block that eviction takes next: the one cached longest ago; NIL: none. */
static inline uint32_t kvpool_oldest(const struct kvpool *p)
{
    return p->cached.head[kvpool_oldest_stripe(&p->cached)];
}

/* It leaves its list, to be evicted; there must be one. */
static inline uint32_t kvpool_next_victim(struct kvpool *p)
{
    struct lru *l = &p->cached;
    uint32_t stripe = kvpool_oldest_stripe(l), b = l->head[stripe];
    assert(b != NIL);
    l->taken = l->first[stripe];
    l->turn = kvpool_next_stripe(stripe);
    kvpool_uncache(p, b);
    return b;
}

/* The cached blocks in the order of eviction, over all stripes. */
struct lru_walk {
    const struct lru *l;
    uint32_t at[STRIPES], stripe; /* stripe: of the block that came last */
    uint64_t time[STRIPES];
};
void kvpool_walk_start(struct lru_walk *w, const struct kvpool *p);
/* The next block; NIL: no more.  It may be none of the pool's, which ends its
 * stripe: the check finds out so. */
uint32_t kvpool_walk_next(struct lru_walk *w, const struct kvpool *p);

#endif
