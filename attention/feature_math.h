/* feature_math.h: the operator's scalar mathematics, written once.
 *
 * Compiles as C17 and as CUDA (HD then marks host and device functions), so
 * that the reference and the kernels cannot drift: what is visible, where a
 * token lives, softcap, sink, rotation, the softmax state and its merge, and
 * the number formats of the cache.  Pure functions; any thread, any device. */
#ifndef ATTENTION_FEATURE_MATH_H
#define ATTENTION_FEATURE_MATH_H

#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define HD __host__ __device__ __forceinline__
#else
#define HD inline __attribute__((always_inline))
#endif

/* ---- bits ----------------------------------------------------------------- */

static HD uint32_t attn_float_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static HD float attn_bits_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static HD float attn_maxf(float a, float b)
{
    return a > b ? a : b;
}

static HD float attn_minf(float a, float b)
{
    return a < b ? a : b;
}

/* 1.5 * 2^23: a float of magnitude under 2^22 added to it is rounded to the
 * nearest integer, ties to even, and the sum's bits count up from the magic's. */
#define ATTN_ROUND_MAGIC 12582912.0f
#define ATTN_ROUND_BITS  0x4B400000u

static HD float attn_rint(float x)
{
#if defined(__CUDA_ARCH__)
    return rintf(x);
#else
    return (x + ATTN_ROUND_MAGIC) - ATTN_ROUND_MAGIC;
#endif
}

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
    return b < 0 ? -1 : ((int64_t)b << block_shift) + (pos & (((int64_t)1 << block_shift) - 1));
}

/* An explicit slot, -1 when it is not one of the pool. */
static HD int64_t attn_checked_slot(int32_t slot, int64_t num_slots)
{
    return slot >= 0 && slot < num_slots ? slot : -1;
}

/* ---- functions -------------------------------------------------------------- */

/* e^x for x <= 0, relative error under 2e-7; exactly 0 below -87, 1 at 0; NaN
 * stays NaN.  Branch-free, so that a loop over it vectorises. */
static HD float attn_exp(float x)
{
    float c = attn_maxf(-88.0f, x);
    float t = c * 1.44269504088896341f + ATTN_ROUND_MAGIC;
    float n = t - ATTN_ROUND_MAGIC;
    float r = (c - n * 0.693359375f) + n * 2.12194440e-4f;
    float scale = attn_bits_float((attn_float_bits(t) - ATTN_ROUND_BITS + 127u) << 23);
    float y = 1.9875691500e-4f * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = (y * (r * r) + r) + 1.0f;
    return x < -87.0f ? 0.0f : y * scale;
}

/* tanh, absolute error under 2e-7. */
static HD float attn_tanh(float x)
{
    float a = x < 0.0f ? -x : x;
    float t = attn_exp(-2.0f * a);
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
    float m = a->sum == 0.0f ? b.max : b.sum == 0.0f ? a->max : attn_maxf(a->max, b.max);
    *ca = a->sum == 0.0f ? 0.0f : attn_exp(a->max - m);
    *cb = b.sum == 0.0f ? 0.0f : attn_exp(b.max - m);
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
    m = attn_maxf(s.max, sink);
    c = attn_exp(s.max - m);
    return c / (s.sum * c + attn_exp(sink - m));
}

/* ---- number formats ------------------------------------------------------------ */

static HD float attn_bf16_float(uint16_t h)
{
    return attn_bits_float((uint32_t)h << 16);
}

/* Nearest even; NaN stays NaN. */
static HD uint16_t attn_float_bf16(float x)
{
    uint32_t u = attn_float_bits(x);
    uint32_t r = (u + 0x7FFFu + (u >> 16 & 1u)) >> 16;
    return (uint16_t)((u & 0x7FFFFFFFu) > 0x7F800000u ? (u >> 16 | 0x40u) : r);
}

static HD float attn_f16_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t mag = (uint32_t)(h & 0x7FFFu);
    /* The exponent is off by 112; the product is exact, subnormals included. */
    uint32_t fin = attn_float_bits(attn_bits_float(mag << 13) * 0x1p112f);
    uint32_t inf = mag << 13 | 0x7F800000u;
    return attn_bits_float(sign | (mag >= 0x7C00u ? inf : fin));
}

/* Nearest even; overflow to infinity, NaN stays NaN. */
static HD uint16_t attn_float_f16(float x)
{
    uint32_t u = attn_float_bits(x);
    uint32_t sign = u >> 16 & 0x8000u;
    uint32_t a = u & 0x7FFFFFFFu;
    uint32_t r;
    if (a > 0x7F800000u)
        return (uint16_t)(sign | 0x7E00u);
    if (a >= 0x47800000u) /* 65536 and up */
        return (uint16_t)(sign | 0x7C00u);
    if (a < 0x38800000u) { /* below 2^-14: the sum aligns and rounds in fp32 */
        float t = attn_bits_float(a) + 0.5f;
        r = attn_float_bits(t) - 0x3F000000u;
    } else {
        r = (a + 0xC8000000u + 0xFFFu + (a >> 13 & 1u)) >> 13;
    }
    return (uint16_t)(sign | r);
}

/* float8e4m3fn: no infinity, NaN is 0x7F and 0xFF, largest 448. */
static HD float attn_e4m3_float(uint8_t q)
{
    uint32_t sign = (uint32_t)(q & 0x80u) << 24;
    uint32_t mag = (uint32_t)(q & 0x7Fu);
    uint32_t fin = attn_float_bits(attn_bits_float(mag << 20) * 0x1p120f);
    return attn_bits_float(sign | (mag == 0x7Fu ? 0x7FC00000u : fin));
}

/* Saturating to +-448, nearest even; NaN stays NaN. */
static HD uint8_t attn_float_e4m3(float x)
{
    uint32_t u = attn_float_bits(x);
    uint32_t sign = u >> 24 & 0x80u;
    uint32_t a = u & 0x7FFFFFFFu;
    uint32_t r;
    if (a > 0x7F800000u)
        return (uint8_t)(sign | 0x7Fu);
    if (a >= 0x43E00000u) /* 448 and up */
        return (uint8_t)(sign | 0x7Eu);
    if (a < 0x3C800000u) {                      /* below 2^-6: subnormal, units of 2^-9 */
        float t = attn_bits_float(a) + 0x1p14f; /* 2^14: one ulp is 2^-9 */
        r = attn_float_bits(t) - 0x46800000u;
    } else {
        r = (a + 0xC4000000u + 0x7FFFFu + (a >> 20 & 1u)) >> 20;
    }
    return (uint8_t)(sign | r);
}

/* x / s rounded to nearest even and clamped to [-128, 127]; a scale of 0 and
 * NaN give 0. */
static HD int8_t attn_float_int8(float x, float s)
{
    float q = s == 0.0f ? 0.0f : x / s;
    q = q == q ? q : 0.0f;
    q = attn_minf(attn_maxf(q, -128.0f), 127.0f);
    return (int8_t)attn_rint(q);
}

/* x / s as e4m3; a scale of 0 gives 0. */
static HD uint8_t attn_quant_e4m3(float x, float s)
{
    return s == 0.0f ? (uint8_t)0 : attn_float_e4m3(x / s);
}

#endif
