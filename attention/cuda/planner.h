/* planner.h: how a sequence's work is cut, from its own lengths alone.
 *
 * Every split boundary depends on nothing but the sequence's position range, so
 * a row's result is the same alone and in any batch, and the same whatever
 * bounds sized the launch.  C17 and CUDA; the tests run it on the host. */
#ifndef ATTENTION_CUDA_PLANNER_H
#define ATTENTION_CUDA_PLANNER_H

#include <stdint.h>

#include "attention/feature_math.h"

enum {
    PLAN_CHUNK_MIN = 256, /* keys; partial results then cost 3 % of bf16 reads */
    PLAN_CHUNK_MAX = 2048,
    PLAN_CHUNKS = 16, /* at most, between the two */
    PLAN_GRANULE = 16, /* keys that share a block whatever its size */
    WORK_SPAN = 256    /* sequences that a CTA plans at once */
};

/* One sequence: keys [lo, hi) over all its queries, in n_chunks chunks of
 * `chunk` keys that start at multiples of chunk; n_tiles tiles of packed rows. */
struct plan_seq {
    int32_t lo, hi, chunk, n_chunks, n_tiles;
};

/* Keys a chunk for a range of span keys: a power of two. */
static HD int32_t plan_chunk(int32_t span)
{
    int32_t c = PLAN_CHUNK_MIN;
    while (c < PLAN_CHUNK_MAX && c * PLAN_CHUNKS < span)
        c *= 2;
    return c;
}

/* Most chunks that any range within max_kv keys is cut into. */
static HD int32_t plan_max_chunks(int64_t max_kv)
{
    int64_t few = max_kv / PLAN_CHUNK_MIN + 2;
    int64_t many = max_kv / PLAN_CHUNK_MAX + 2;
    int64_t cap = PLAN_CHUNKS + 2;
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
                                        int32_t group, int32_t tile_rows)
{
    struct plan_seq s = {0, 0, PLAN_CHUNK_MIN, 0, 0};
    if (n_new <= 0 || past < 0)
        return s;
    int64_t end = (int64_t)past + n_new;
    s.hi = (int32_t)(end < capacity ? end : capacity);
    if (window > 0 && !has_positions)
        s.lo = (int32_t)attn_first_key(past, window);
    if (s.lo > s.hi)
        s.lo = s.hi;
    s.chunk = plan_chunk(s.hi - s.lo);
    s.n_chunks = s.hi > s.lo ? (s.hi - 1) / s.chunk - s.lo / s.chunk + 1 : 1;
    if (s.n_chunks > max_chunks)
        s.n_chunks = max_chunks;
    s.n_tiles = (int32_t)(((int64_t)n_new * group + tile_rows - 1) / tile_rows);
    return s;
}

#endif
