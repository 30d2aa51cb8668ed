/* lists.c: the lists that blocks wait in while nobody holds them.
 *
 * Owns the lists and the count of quarantined blocks.  Engine thread alone. */
#include "kvpool/lists.h"

void kvpool_lists_init(struct kvpool *p)
{
    struct blk_list empty = { .head = NIL, .tail = NIL };
    p->free = p->resting = empty;
    p->cached = (struct lru){ 0 };
    for (uint32_t i = 0; i < STRIPES; i++) {
        p->cached.first[i] = UINT64_MAX;
        p->cached.head[i] = p->cached.tail[i] = NIL;
    }
}

static void lru_append(struct kvpool *p, struct lru *l, uint32_t b)
{
    uint32_t stripe = l->put, tail = l->tail[stripe];
    struct blk *k = kvpool_blk(p, b);
    uint64_t now = ++l->time;
    k->at = (uint32_t)now;
    k->stripe = stripe & 31;
    k->prev = tail;
    k->next = NIL;
    if (tail == NIL) {
        l->head[stripe] = b;
        l->first[stripe] = now;
    } else {
        kvpool_blk(p, tail)->next = b;
    }
    l->tail[stripe] = b;
    l->put = kvpool_next_stripe(stripe);
    l->n++;
}

/* Onto the free list.  `at` names the block FREE_AHEAD further down, for take
 * to fetch: one above that of the block that led so far. */
static void push_free(struct kvpool *p, uint32_t b)
{
    const struct blk_list *l = &p->free;
    uint32_t below = l->head == NIL ? NIL : kvpool_blk(p, l->head)->at;
    if (below < p->cfg.n_blocks)
        below = kvpool_blk(p, below)->prev;
    else if (l->n == FREE_AHEAD)
        below = l->tail;
    kvpool_blk(p, b)->at = below;
    kvpool_list_push(p, &p->free, b);
}

void kvpool_blk_make_idle(struct kvpool *p, blk_id b)
{
    struct blk *k = kvpool_blk(p, b);
    if (k->poisoned) {
        k->state = BLK_QUARANTINED;
        p->n_quarantined++;
    } else if (k->node != NIL) {
        k->state = BLK_CACHED;
        lru_append(p, &p->cached, (uint32_t)b);
    } else {
        k->state = BLK_FREE;
        push_free(p, (uint32_t)b);
    }
}

void kvpool_walk_start(struct lru_walk *w, const struct kvpool *p)
{
    w->l = &p->cached;
    memcpy(w->at, w->l->head, sizeof w->at);
    memcpy(w->time, w->l->first, sizeof w->time);
}

uint32_t kvpool_walk_next(struct lru_walk *w, const struct kvpool *p)
{
    uint32_t stripe = 0;
    for (uint32_t i = 1; i < STRIPES; i++)
        if (w->at[i] != NIL && (w->at[stripe] == NIL || w->time[i] < w->time[stripe]))
            stripe = i;
    uint32_t b = w->at[stripe];
    w->stripe = stripe;
    uint32_t next = b < p->cfg.n_blocks ? kvpool_blk(p, b)->next : NIL;
    w->at[stripe] = next;
    w->time[stripe] = next < p->cfg.n_blocks ? kvpool_cached_at(p, w->l, next) : UINT64_MAX;
    return b;
}
