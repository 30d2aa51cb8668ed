/* feature_math.h: the operator's scalar mathematics, written once.
 *
 * Compiles as C17 and as CUDA (HD then marks host and device functions), so
 * that the reference and the kernels cannot drift: what is visible, where a
 * token lives, softcap, sink, rotation, the softmax state and its merge.  The
 * number formats of the cache are proto/number's.  Pure functions; any thread,
 * any device. */
#ifndef ATTENTION_FEATURE_MATH_H
#define ATTENTION_FEATURE_MATH_H

#include "proto/number/bits.h"
#include "proto/number/exp.h"
#include "proto/plan/kv_slot.h"

/* ---- where and what --------------------------------------------------------- */

/* Whether a query at position p admits key position k of a sequence of kv_len
 * keys.  window <= 0: unlimited; the query itself counts as one of the window. */
static HD int attn_visible(int64_t p, int64_t k, int64_t kv_len, int64_t window)
{
    return k >= 0 && k <= p && k < kv_len && (window <= 0 || p - k < window);
}

/* The admitted positions are [attn_first_key, attn_end_key), holes apart. */
static HD int64_t attn_first_key(int64_t p, int64_t window)
{
    int64_t lo = window > 0 ? p - window + 1 : 0;
    return lo > 0 ? lo : 0;
}

static HD int64_t attn_end_key(int64_t p, int64_t kv_len)
{
    int64_t hi = p + 1 < kv_len ? p + 1 : kv_len;
    return hi > 0 ? hi : 0;
}

/* Block that holds position pos, from a sequence's table row; -1 when not
 * mapped, past the last column, or not a block of the pool. */
static HD int32_t attn_block(const int32_t *row, int64_t cols, int64_t pos, int32_t block_shift,
                             int64_t num_blocks)
{
    int64_t i = pos >> block_shift;
    int32_t b;
    if (pos < 0 || i >= cols)
        return -1;
    b = row[i];
    return b >= 0 && b < num_blocks ? b : -1;
}

/* Slot of position pos: block * block_size + offset, or -1. */
static HD int64_t attn_slot(const int32_t *row, int64_t cols, int64_t pos, int32_t block_shift,
                            int64_t num_blocks)
{
    int32_t b = attn_block(row, cols, pos, block_shift, num_blocks);
    return b < 0 ? -1 : kv_slot(b, pos, block_shift);
}

/* An explicit slot, -1 when it is not one of the pool. */
static HD int64_t attn_checked_slot(int32_t slot, int64_t num_slots)
{
    return slot >= 0 && slot < num_slots ? slot : -1;
}

/* ---- functions -------------------------------------------------------------- */

/* tanh, absolute error under 2e-7. */
static HD float attn_tanh(float x)
{
    float a = x < 0.0f ? -x : x;
    float t = exp_nonpositive(-2.0f * a);
    float big = (1.0f - t) / (1.0f + t);
    float s = x * x;
    float small = a * (1.0f + s * (-0.333333333f + s * (0.133333333f - s * 0.0539682540f)));
    float r = a < 0.1f ? small : big;
    return x < 0.0f ? -r : r;
}

/* cap * tanh(x / cap); cap <= 0: x. */
static HD float attn_softcap(float x, float cap)
{
    return cap > 0.0f ? cap * attn_tanh(x / cap) : x;
}

/* Rotate the pair (a, b). */
static HD void attn_rope_pair(float *a, float *b, float cos_, float sin_)
{
    float x = *a, y = *b;
    *a = x * cos_ - y * sin_;
    *b = x * sin_ + y * cos_;
}

/* The same in double: where the result is to be right to the last place. */
static HD void attn_rope_pair_exact(double *a, double *b, double cos_, double sin_)
{
    double x = *a, y = *b;
    *a = x * cos_ - y * sin_;
    *b = x * sin_ + y * cos_;
}

/* Channels of rotary pair i, relative to rotary_offset. */
static HD void attn_rope_channels(int32_t i, int32_t rotary_dim, int interleaved, int32_t *a,
                                  int32_t *b)
{
    *a = interleaved ? 2 * i : i;
    *b = interleaved ? 2 * i + 1 : i + rotary_dim / 2;
}

/* ---- softmax state ------------------------------------------------------------ */

/* The running maximum of no scores.  Finite, so that differences stay numbers;
 * whether anything was admitted is told by sum != 0, never by the maximum. */
#define ATTN_NO_MAX (-1e30f)

/* Of scores x: max, and sum of e^(x - max).  The weighted V goes beside it. */
struct attn_state {
    float max, sum;
};

/* Merge b into a.  The weighted V of the two are to be scaled by *ca and *cb
 * and added; the factor of an empty side is 0.  NaN stays NaN. */
static HD void attn_state_merge(struct attn_state *a, struct attn_state b, float *ca, float *cb)
{
    float m = a->sum == 0.0f ? b.max : b.sum == 0.0f ? a->max : float_max(a->max, b.max);
    *ca = a->sum == 0.0f ? 0.0f : exp_nonpositive(a->max - m);
    *cb = b.sum == 0.0f ? 0.0f : exp_nonpositive(b.max - m);
    a->sum = a->sum * *ca + b.sum * *cb;
    a->max = m;
}

/* Factor that turns weighted V into the output, the sink being one more logit
 * in the denominator only; 0 when nothing was admitted.  has_sink 0: no sink. */
static HD float attn_state_finish(struct attn_state s, int has_sink, float sink)
{
    float m, c;
    if (s.sum == 0.0f)
        return 0.0f;
    if (!has_sink)
        return 1.0f / s.sum;
    m = float_max(s.max, sink);
    c = exp_nonpositive(s.max - m);
    return c / (s.sum * c + exp_nonpositive(sink - m));
}

#endif
