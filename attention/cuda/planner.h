/* planner.h: how a sequence's work is cut, from its own lengths alone, and the
 * list that a step's work becomes.
 *
 * Every split boundary depends on nothing but the sequence's position range, so
 * a row's result is the same alone and in any batch, and the same whatever
 * bounds sized the launch.  A list holds the units of all sequences by falling
 * size class; who computes a unit, and when, does not change its result.
 * C17 and CUDA; the tests run it on the host. */
#ifndef ATTENTION_CUDA_PLANNER_H
#define ATTENTION_CUDA_PLANNER_H

#include <stdbool.h>
#include <stdint.h>

#include "attention/feature_math.h"

enum {
    PLAN_CHUNK_MIN = 256, /* keys; partial results then cost 3 % of bf16 reads */
    PLAN_CHUNK_MAX = 2048,
    PLAN_CHUNKS = 16,   /* at most, between the two */
    PLAN_GRANULE = 16,  /* keys that share a block whatever its size */
    PLAN_CLASSES = 8,   /* of size: more than 16384 keys, more than 8192, ..., the rest */
    PLAN_MOST = 1 << 30 /* where sums stop; no list is as long */
};

/* One sequence: keys [lo, hi) over all its queries, in n_chunks chunks of
 * `chunk` keys that start at multiples of chunk; n_tiles tiles of packed rows. */
struct plan_seq {
    int32_t lo, hi, chunk, n_chunks, n_tiles;
};

/* How fine a kernel's sequences are cut: chunks of at least `least` keys, a power of
 * two up to PLAN_CHUNK_MAX; longer where `chunks` of them do not reach. */
struct plan_rule {
    int32_t least, chunks;
};

/* Keys a chunk for a range of span keys: a power of two. */
static HD int32_t plan_chunk(int32_t span, struct plan_rule rule)
{
    int32_t c = rule.least;
    while (c < PLAN_CHUNK_MAX && c * rule.chunks < span)
        c *= 2;
    return c;
}

/* Most chunks that any range within max_kv keys is cut into. */
static HD int32_t plan_max_chunks(int64_t max_kv, struct plan_rule rule)
{
    int64_t few = max_kv / rule.least + 2;
    int64_t many = max_kv / PLAN_CHUNK_MAX + 2;
    int64_t cap = rule.chunks + 2;
    int64_t n = few < cap ? few : cap;
    return (int32_t)(many > n ? many : n);
}

/* The share of the range's keys that chunk i covers, clipped to [lo, hi). */
static HD void plan_chunk_range(const struct plan_seq *s, int32_t i, int32_t *begin, int32_t *end)
{
    int64_t first = s->lo / s->chunk + (int64_t)i;
    int64_t b = first * s->chunk, e = b + s->chunk;
    *begin = (int32_t)(b > s->lo ? b : s->lo);
    *end = (int32_t)(e < s->hi ? e : s->hi);
}

/* Cut a sequence of n_new queries after past keys.  capacity: keys its table
 * row can name; max_chunks: what the workspace holds (work beyond is lost, by
 * the contract of too small a bound); tile_rows and group: packed rows. */
static HD struct plan_seq plan_sequence(int32_t past, int32_t n_new, int32_t window,
                                        int has_positions, int32_t capacity, int32_t max_chunks,
                                        int32_t group, int32_t tile_rows, struct plan_rule rule)
{
    struct plan_seq s = { 0, 0, rule.least, 0, 0 };
    if (n_new <= 0 || past < 0)
        return s;
    int64_t end = (int64_t)past + n_new;
    s.hi = (int32_t)(end < capacity ? end : capacity);
    if (window > 0 && !has_positions)
        s.lo = (int32_t)attn_first_key(past, window);
    if (s.lo > s.hi)
        s.lo = s.hi;
    s.chunk = plan_chunk(s.hi - s.lo, rule);
    s.n_chunks = s.hi > s.lo ? (s.hi - 1) / s.chunk - s.lo / s.chunk + 1 : 1;
    if (s.n_chunks > max_chunks)
        s.n_chunks = max_chunks;
    s.n_tiles = (int32_t)(((int64_t)n_new * group + tile_rows - 1) / tile_rows);
    return s;
}

/* ---- a step's list ---------------------------------------------------------- */

/* Work on packed rows [row0, row0 + n_rows) of one sequence, for every KV head:
 * keys [begin, end) of chunk `chunk`, not yet clipped to what the rows see. */
struct plan_unit {
    int32_t seq, first, past, row0; /* first: the sequence's first token        */
    int32_t begin, end, chunk, n_chunks;
    int32_t n_rows, part_row; /* of the first token, in the partial results      */
    int32_t unused[2];        /* three vectors of 16 bytes                       */
};

/* What stands before a list's units; the counter has a line of its own. */
struct plan_head {
    int32_t n_units, unused[31];
    uint32_t taken; /* units times KV heads handed out; back at 0 after the last */
    uint32_t unused_too[31];
};

/* Units by size class, and rows of partial results: of a sequence, or sums. */
struct plan_tally {
    uint32_t n[PLAN_CLASSES], rows;
};

static HD uint32_t plan_sum(uint64_t a, uint64_t b)
{
    const uint64_t most = PLAN_MOST;
    return (uint32_t)(a + b < most ? a + b : most);
}

/* Keys that class k has more of, but for the last class. */
static HD int32_t plan_class_keys(int k)
{
    return 16384 >> k;
}

static HD int plan_class(int32_t keys)
{
    int k = 0;
    while (k < PLAN_CLASSES - 1 && keys <= plan_class_keys(k))
        k++;
    return k;
}

static HD int32_t plan_chunk_keys(const struct plan_seq *s, int32_t i)
{
    int32_t begin, end;
    plan_chunk_range(s, i, &begin, &end);
    return end - begin;
}

/* Tiles of a sequence in one chunk whose rows see more than `keys` keys, a window
 * of more than that given: causal work grows with the row. */
static HD int32_t plan_tiles_above(const struct plan_seq *s, int32_t past, int32_t keys,
                                   int32_t group, int32_t tile_rows)
{
    if (s->hi - s->lo <= keys)
        return 0;
    int64_t query = (int64_t)s->lo + keys - past; /* the first that sees enough */
    int64_t tile = query > 0 ? query * group / tile_rows : 0;
    return tile < s->n_tiles ? s->n_tiles - (int32_t)tile : 0;
}

/* A sequence's units by class. */
static HD struct plan_tally plan_count(const struct plan_seq *s, int32_t past, int32_t window,
                                       int32_t group, int32_t tile_rows)
{
    struct plan_tally t = { { 0 }, 0 };
    if (s->n_tiles == 0)
        return t;
    if (s->n_chunks > 1) {
        uint64_t inner = (uint64_t)(s->n_chunks - 2) * (uint64_t)s->n_tiles;
        int k = plan_class(s->chunk);
        t.n[k] = plan_sum(inner, 0);
        k = plan_class(plan_chunk_keys(s, 0));
        t.n[k] = plan_sum(t.n[k], (uint64_t)s->n_tiles);
        k = plan_class(plan_chunk_keys(s, s->n_chunks - 1));
        t.n[k] = plan_sum(t.n[k], (uint64_t)s->n_tiles);
        return t;
    }
    uint32_t above = 0;
    for (int k = 0; k < PLAN_CLASSES - 1; k++) {
        int32_t keys = plan_class_keys(k);
        bool in_window = window <= 0 || (int64_t)window + tile_rows / group > keys;
        uint32_t more = in_window ? (uint32_t)plan_tiles_above(s, past, keys, group, tile_rows) : 0;
        t.n[k] = more - above;
        above = more;
    }
    t.n[PLAN_CLASSES - 1] = (uint32_t)s->n_tiles - above;
    return t;
}

/* Unit u of a sequence in the order of its classes: whole chunks before the first
 * and the last, the tiles of a chunk together; tiles of a single chunk from the
 * last. */
static HD void plan_place(const struct plan_seq *s, int32_t u, int32_t *tile, int32_t *chunk)
{
    if (s->n_chunks == 1) {
        *tile = s->n_tiles - 1 - u;
        *chunk = 0;
        return;
    }
    int32_t rank = u / s->n_tiles, last = s->n_chunks - 1;
    *tile = u % s->n_tiles;
    *chunk = rank + 1;
    if (rank >= last - 1) {
        bool first_is_larger = plan_chunk_keys(s, 0) >= plan_chunk_keys(s, last);
        *chunk = (rank == last - 1) == first_is_larger ? 0 : last;
    }
}

/* Where unit u goes in the list: start has a place for the sequence's first unit
 * of each class. */
static HD uint32_t plan_slot(const struct plan_tally *own, const struct plan_tally *start,
                             uint32_t u)
{
    int k = 0;
    while (k < PLAN_CLASSES - 1 && u >= own->n[k]) {
        u -= own->n[k];
        k++;
    }
    return plan_sum(start->n[k], u);
}

/* Most units that true lengths give: `tokens` tokens of at most `seqs` sequences,
 * each in at most max_chunks chunks. */
static HD int64_t plan_most_units(int64_t tokens, int64_t seqs, int32_t group, int32_t tile_rows,
                                  int32_t max_chunks)
{
    int64_t live = tokens < seqs ? tokens : seqs;
    return (tokens * group + live * (tile_rows - 1)) / tile_rows * max_chunks;
}

#endif
