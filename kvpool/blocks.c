/* blocks.c: a block's way between held, resting, cached and free.
 *
 * Owns the lists and the counts.  Engine thread alone.  Every operation is O(1);
 * handing out takes unpublished blocks first, newest first, then, of the lowest
 * rank cached, the block that was used longest ago. */
#include "kvpool/internal.h"

/* ---- the order of eviction ------------------------------------------------ */

void kvpool_lists_init(struct kvpool *p)
{
    struct blk_list empty = { .head = NIL, .tail = NIL };
    p->free = p->resting = empty;
    for (uint32_t r = 0; r < KVPOOL_RANKS; r++) {
        struct lru *l = &p->cached[r];
        *l = (struct lru){ 0 };
        for (uint32_t i = 0; i < LANES; i++) {
            l->first[i] = UINT64_MAX;
            l->head[i] = l->tail[i] = NIL;
        }
    }
    p->n_cached = 0;
}

static inline uint32_t next_lane(uint32_t lane)
{
    return lane + 1 < LANES ? lane + 1 : 0;
}

/* When b was cached: exact for the latest 2^32 cachings. */
static inline uint64_t when(const struct kvpool *p, const struct lru *l, uint32_t b)
{
    return l->time - ((uint32_t)l->time - kvpool_blk(p, b)->at);
}

static void lru_append(struct kvpool *p, struct lru *l, uint32_t b)
{
    uint32_t lane = l->put, tail = l->tail[lane];
    struct blk *k = kvpool_blk(p, b);
    uint64_t now = ++l->time;
    k->at = (uint32_t)now;
    k->lane = lane & 31;
    k->prev = tail;
    k->next = NIL;
    if (tail == NIL) {
        l->head[lane] = b;
        l->first[lane] = now;
    } else {
        kvpool_blk(p, tail)->next = b;
    }
    l->tail[lane] = b;
    l->put = next_lane(lane);
    l->n++;
    p->n_cached++;
}

/* Neighbours are only written to, which nothing has to wait for. */
static void lru_remove(struct kvpool *p, struct lru *l, uint32_t b)
{
    const struct blk *k = kvpool_blk(p, b);
    uint32_t lane = k->lane, prev = k->prev, next = k->next;
    if (prev == NIL) {
        l->head[lane] = next;
        l->first[lane] = next == NIL ? UINT64_MAX : when(p, l, next);
    } else {
        kvpool_blk(p, prev)->next = next;
    }
    *(next == NIL ? &l->tail[lane] : &kvpool_blk(p, next)->prev) = prev;
    l->n--;
    p->n_cached--;
}

/* The lane whose head is the oldest.  Most often they take turns. */
static uint32_t oldest_lane(const struct lru *l)
{
    uint32_t lane = l->turn;
    if (l->first[lane] != l->taken + 1)
        for (uint32_t i = 0; i < LANES; i++)
            lane = l->first[i] < l->first[lane] ? i : lane;
    return lane;
}

/* The lowest rank that has any. */
static uint32_t lowest(const struct kvpool *p)
{
    uint32_t r = 0;
    while (r + 1 < KVPOOL_RANKS && p->cached[r].n == 0)
        r++;
    return r;
}

uint32_t kvpool_oldest(const struct kvpool *p)
{
    const struct lru *l = &p->cached[lowest(p)];
    return l->head[oldest_lane(l)];
}

void kvpool_walk_start(struct lru_walk *w, const struct kvpool *p, uint32_t rank)
{
    w->l = &p->cached[rank];
    memcpy(w->at, w->l->head, sizeof w->at);
    memcpy(w->time, w->l->first, sizeof w->time);
}

uint32_t kvpool_walk_next(struct lru_walk *w, const struct kvpool *p)
{
    uint32_t lane = 0;
    for (uint32_t i = 1; i < LANES; i++)
        if (w->at[i] != NIL && (w->at[lane] == NIL || w->time[i] < w->time[lane]))
            lane = i;
    uint32_t b = w->at[lane];
    w->lane = lane;
    uint32_t next = b < p->cfg.n_blocks ? kvpool_blk(p, b)->next : NIL;
    w->at[lane] = next;
    w->time[lane] = next < p->cfg.n_blocks ? when(p, w->l, next) : UINT64_MAX;
    return b;
}

void kvpool_uncache(struct kvpool *p, uint32_t b)
{
    lru_remove(p, &p->cached[kvpool_blk(p, b)->rank], b);
}

/* The oldest block of the lowest rank leaves its list. */
static uint32_t next_victim(struct kvpool *p)
{
    struct lru *l = &p->cached[lowest(p)];
    uint32_t lane = oldest_lane(l), b = l->head[lane];
    assert(b != NIL);
    l->taken = l->first[lane];
    l->turn = next_lane(lane);
    lru_remove(p, l, b);
    return b;
}

/* ---- taking, holding, dropping ----------------------------------------------- */

static void hand_out(struct kvpool *p, uint32_t g, uint32_t b)
{
    struct blk *k = kvpool_blk(p, b);
    k->ref = 1;
    k->state = BLK_HELD;
    k->group = (uint8_t)g;
    k->rank = 0;
}

/* What the next evictions will touch, one a lane, is fetched; and the records of
 * those after them.  Fetches in a row find their pages together. */
static void fetch_victims(const struct kvpool *p, const struct lru *l)
{
    for (uint32_t i = 0; i < LANES; i++)
        if (l->head[i] != NIL) {
            kvpool_prefix_prefetch(p, l->head[i]);
            kvpool_record_prefetch(p, kvpool_blk(p, l->head[i])->next);
        }
}

/* The n blocks used longest ago leave the index.  They are scattered in memory:
 * as many as there are lanes leave their lists at once, and while they leave the
 * index, what the next ones will touch is on its way. */
static void evict(struct kvpool *p, uint32_t g, blk_id *out, uint32_t n)
{
    const struct lru *first = &p->cached[lowest(p)];
    for (uint32_t i = 0; n >= LANES && i < LANES; i++) /* the last may be long ago */
        kvpool_record_prefetch(p, first->head[i]);
    if (n >= LANES)
        fetch_victims(p, first);
    for (uint32_t i = 0; i < n; i++) {
        if (i % LANES == 0) {
            for (uint32_t j = i; j < n && j < i + LANES; j++)
                out[j] = (blk_id)next_victim(p);
            fetch_victims(p, &p->cached[lowest(p)]);
        }
        kvpool_prefix_forget(p, out[i], true);
        hand_out(p, g, (uint32_t)out[i]);
    }
    p->count.evictions += n;
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

void kvpool_blk_settle(struct kvpool *p, blk_id b)
{
    struct blk *k = kvpool_blk(p, b);
    if (k->doomed) {
        k->state = BLK_QUARANTINED;
        p->n_quarantined++;
    } else if (k->node != NIL) {
        k->state = BLK_CACHED;
        lru_append(p, &p->cached[k->rank], (uint32_t)b);
    } else {
        k->state = BLK_FREE;
        push_free(p, (uint32_t)b);
    }
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
    while (p->resting.head != NIL && kvpool_blk(p, p->resting.head)->step <= p->retired) {
        uint32_t b = p->resting.head;
        kvpool_list_unlink(p, &p->resting, b);
        kvpool_blk_settle(p, (blk_id)b);
    }
}

uint32_t kvpool_reset_cache(struct kvpool *p)
{
    uint32_t n = 0;
    while (p->n_cached > 0) {
        uint32_t b = kvpool_oldest(p);
        kvpool_uncache(p, b);
        kvpool_prefix_forget(p, (blk_id)b, false);
        kvpool_blk_settle(p, (blk_id)b);
        n++;
    }
    for (uint32_t b = p->resting.head; b != NIL; b = kvpool_blk(p, b)->next)
        if (kvpool_blk(p, b)->node != NIL) {
            kvpool_prefix_forget(p, (blk_id)b, false);
            n++;
        }
    return n;
}
