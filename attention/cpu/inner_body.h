/* inner_body.h: the text of the inner loops; see inner.h for what they promise.
 *
 * Included by one file per instruction set, which defines INNER_NAME (the table
 * it exports), INNER_LABEL, LANES (floats of one vector) and FMA(a, b, c) = a*b+c
 * on such vectors.  Compiled with -Wno-psabi: vectors wider than the target's
 * registers pass only between functions of this file that are always inlined. */
#include <math.h>
#include <string.h>

#include "attention/cpu/inner.h"
#include "proto/number/formats.h"

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef float f8 __attribute__((vector_size(32)));
typedef int32_t i8x32 __attribute__((vector_size(32)));
typedef uint32_t u8x32 __attribute__((vector_size(32)));
#define INLINE static inline __attribute__((always_inline))

INLINE vf load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

INLINE vf splat(float x)
{
    return x - (vf){ 0 };
}

/* Eight small integers as int32. */
#if defined(__AVX2__)
#define WIDEN_U16(p) ((u8x32)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p))))
#define WIDEN_U8(p)  ((u8x32)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p))))
#define WIDEN_S8(p)  ((i8x32)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p))))
#else
#define WIDEN(name, small, big)                                                                    \
    INLINE big name(const char *p)                                                                 \
    {                                                                                              \
        small x[8];                                                                                \
        memcpy(x, p, sizeof x);                                                                    \
        return (big){ x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7] };                            \
    }
WIDEN(WIDEN_U16, uint16_t, u8x32)
WIDEN(WIDEN_U8, uint8_t, u8x32)
WIDEN(WIDEN_S8, int8_t, i8x32)
#endif

INLINE void store8(float *p, f8 v)
{
    memcpy(p, &v, sizeof v);
}

/* ---- eight elements of any type --------------------------------------------- */

INLINE f8 select8(i8x32 mask, u8x32 a, u8x32 b)
{
    u8x32 m = (u8x32)mask;
    return (f8)((a & m) | (b & ~m));
}

#if defined(__F16C__)
INLINE f8 load_f16(const char *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

/* Moved to where a half has them, sign, exponent and mantissa are the value
 * times 2^-8, subnormals included; NaN is put in by hand. */
INLINE f8 load_e4m3(const char *p)
{
    __m128i u = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)p));
    __m128i mag = _mm_and_si128(u, _mm_set1_epi16(0x7F));
    __m128i nan = _mm_cmpeq_epi16(mag, _mm_set1_epi16(0x7F));
    __m128i sign = _mm_slli_epi16(_mm_sub_epi16(u, mag), 8);
    __m128i half = _mm_or_si128(sign, _mm_slli_epi16(mag, 7));
    half = _mm_or_si128(half, _mm_and_si128(nan, _mm_set1_epi16(0x7E00)));
    return _mm256_cvtph_ps(half) * 0x1p8f;
}
#else
INLINE f8 load_f16(const char *p)
{
    uint16_t h[8];
    f8 x;
    memcpy(h, p, sizeof h);
    for (int i = 0; i < 8; i++)
        x[i] = f16_to_float(h[i]);
    return x;
}

INLINE f8 load_e4m3(const char *p)
{
    uint8_t q[8];
    f8 x;
    memcpy(q, p, sizeof q);
    for (int i = 0; i < 8; i++)
        x[i] = e4m3_to_float(q[i]);
    return x;
}
#endif

INLINE f8 load8(enum attn_dtype d, const char *p, const float *scale)
{
    f8 x, s;
    if (d == ATTN_F32) {
        memcpy(&x, p, sizeof x);
        return x;
    }
    if (d == ATTN_BF16)
        return (f8)(WIDEN_U16(p) << 16);
    if (d == ATTN_F16)
        return load_f16(p);
    memcpy(&s, scale, sizeof s);
    if (d == ATTN_INT8)
        return __builtin_convertvector(WIDEN_S8(p), f8) * s;
    return load_e4m3(p) * s;
}

/* Columns of eight rows become rows of eight. */
INLINE void transpose8(f8 r[8])
{
    f8 t[8], u[8];
    for (int i = 0; i < 4; i++) {
        t[2 * i] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        t[2 * i + 1] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            f8 a = t[i + j], b = t[i + 2 + j];
            u[i + 2 * j] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
            u[i + 2 * j + 1] = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int j = 0; j < 4; j++) {
        r[j] = __builtin_shufflevector(u[j], u[4 + j], 0, 1, 2, 3, 8, 9, 10, 11);
        r[4 + j] = __builtin_shufflevector(u[j], u[4 + j], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

/* A row to read eight elements at a time; an absent one reads zeros. */
struct cursor {
    const char *at;
    size_t step; /* bytes to the next eight */
};

INLINE struct cursor cursor_of(const void *row, size_t element)
{
    static const char zeros[32];
    return row != NULL ? (struct cursor){ row, 8 * element } : (struct cursor){ zeros, 0 };
}

/* ---- loading ------------------------------------------------------------------ */

INLINE void load_keys_of(enum attn_dtype d, size_t element, const void *const *row,
                         const float *scale, int32_t width, float *kt)
{
    for (int k = 0; k < INNER_KEYS; k += 8) {
        struct cursor at[8];
        for (int i = 0; i < 8; i++)
            at[i] = cursor_of(row[k + i], element);
        for (int32_t c = 0; c < width; c += 8) {
            f8 r[8];
            for (int i = 0; i < 8; i++) {
                r[i] = load8(d, at[i].at, scale != NULL ? scale + c : NULL);
                at[i].at += at[i].step;
            }
            transpose8(r);
            for (int i = 0; i < 8; i++)
                store8(kt + (size_t)(c + i) * INNER_KEYS + k, r[i]);
        }
    }
}

/* bfloat16 moves as pairs of channels, half the shuffles: the low half of a pair
 * is the even channel, the high half the odd one. */
INLINE void load_keys_bf16(const void *const *row, int32_t width, float *kt)
{
    for (int k = 0; k < INNER_KEYS; k += 8) {
        struct cursor at[8];
        int32_t c = 0;
        for (int i = 0; i < 8; i++)
            at[i] = cursor_of(row[k + i], 4);
        for (; c + 16 <= width; c += 16) {
            f8 r[8];
            for (int i = 0; i < 8; i++) {
                memcpy(&r[i], at[i].at, sizeof r[i]);
                at[i].at += at[i].step;
            }
            transpose8(r);
            for (int i = 0; i < 8; i++) {
                float *to = kt + (size_t)(c + 2 * i) * INNER_KEYS + k;
                store8(to, (f8)((u8x32)r[i] << 16));
                store8(to + INNER_KEYS, (f8)((u8x32)r[i] & 0xFFFF0000u));
            }
        }
        if (c < width) {
            f8 r[8];
            for (int i = 0; i < 8; i++)
                r[i] = load8(ATTN_BF16, at[i].at, NULL);
            transpose8(r);
            for (int i = 0; i < 8; i++)
                store8(kt + (size_t)(c + i) * INNER_KEYS + k, r[i]);
        }
    }
}

static void load_keys(enum attn_dtype d, const void *const *row, const float *scale, int32_t width,
                      float *kt)
{
    switch (d) {
    case ATTN_F32:
        load_keys_of(ATTN_F32, 4, row, NULL, width, kt);
        break;
    case ATTN_F16:
        load_keys_of(ATTN_F16, 2, row, NULL, width, kt);
        break;
    case ATTN_BF16:
        load_keys_bf16(row, width, kt);
        break;
    case ATTN_INT8:
        load_keys_of(ATTN_INT8, 1, row, scale, width, kt);
        break;
    default:
        load_keys_of(ATTN_E4M3, 1, row, scale, width, kt);
        break;
    }
}

INLINE void load_values_of(enum attn_dtype d, size_t element, const void *const *row,
                           const float *scale, int32_t width, int32_t stride, float *v)
{
    for (int k = 0; k < INNER_KEYS; k++) {
        struct cursor at = cursor_of(row[k], element);
        float *to = v + (size_t)k * stride;
        int32_t c = 0;
        for (; c < width; c += 8, at.at += at.step)
            store8(to + c, load8(d, at.at, scale != NULL ? scale + c : NULL));
        for (; c < stride; c += 8)
            store8(to + c, (f8){ 0 });
    }
}

static void load_values(enum attn_dtype d, const void *const *row, const float *scale,
                        int32_t width, int32_t stride, float *v)
{
    switch (d) {
    case ATTN_F32:
        load_values_of(ATTN_F32, 4, row, NULL, width, stride, v);
        break;
    case ATTN_F16:
        load_values_of(ATTN_F16, 2, row, NULL, width, stride, v);
        break;
    case ATTN_BF16:
        load_values_of(ATTN_BF16, 2, row, NULL, width, stride, v);
        break;
    case ATTN_INT8:
        load_values_of(ATTN_INT8, 1, row, scale, width, stride, v);
        break;
    default:
        load_values_of(ATTN_E4M3, 1, row, scale, width, stride, v);
        break;
    }
}

/* ---- scores and outputs ------------------------------------------------------------------- */

/* n rows by two vectors of keys: n * 2 sums in registers. */
INLINE void scores_of(int n, const float *q, int32_t width, const float *kt, float *s,
                      int32_t s_stride)
{
    for (int k = 0; k < INNER_KEYS; k += 2 * LANES) {
        vf sum[INNER_ROWS][2] = { 0 };
        for (int32_t c = 0; c < width; c++) {
            vf k0 = load(kt + (size_t)c * INNER_KEYS + k);
            vf k1 = load(kt + (size_t)c * INNER_KEYS + k + LANES);
            for (int r = 0; r < n; r++) {
                vf x = splat(q[(size_t)r * width + c]);
                sum[r][0] = FMA(x, k0, sum[r][0]);
                sum[r][1] = FMA(x, k1, sum[r][1]);
            }
        }
        for (int r = 0; r < n; r++) {
            store(s + (size_t)r * s_stride + k, sum[r][0]);
            store(s + (size_t)r * s_stride + k + LANES, sum[r][1]);
        }
    }
}

static void scores(const float *q, int32_t n_rows, int32_t width, const float *kt, float *s,
                   int32_t s_stride)
{
    int32_t r = 0;
    for (; r + 4 <= n_rows; r += 4)
        scores_of(4, q + (size_t)r * width, width, kt, s + (size_t)r * s_stride, s_stride);
    if (r + 2 <= n_rows) {
        scores_of(2, q + (size_t)r * width, width, kt, s + (size_t)r * s_stride, s_stride);
        r += 2;
    }
    if (r < n_rows)
        scores_of(1, q + (size_t)r * width, width, kt, s + (size_t)r * s_stride, s_stride);
}

INLINE void weigh_of(int n, const float *p, int32_t p_stride, const float *v, int32_t stride,
                     int32_t lo, int32_t hi, float *acc)
{
    for (int32_t c = 0; c < stride; c += 2 * LANES) {
        vf sum[INNER_ROWS][2];
        for (int r = 0; r < n; r++) {
            sum[r][0] = load(acc + (size_t)r * stride + c);
            sum[r][1] = load(acc + (size_t)r * stride + c + LANES);
        }
        for (int32_t k = lo; k < hi; k++) {
            vf v0 = load(v + (size_t)k * stride + c);
            vf v1 = load(v + (size_t)k * stride + c + LANES);
            for (int r = 0; r < n; r++) {
                vf x = splat(p[(size_t)r * p_stride + k]);
                sum[r][0] = FMA(x, v0, sum[r][0]);
                sum[r][1] = FMA(x, v1, sum[r][1]);
            }
        }
        for (int r = 0; r < n; r++) {
            store(acc + (size_t)r * stride + c, sum[r][0]);
            store(acc + (size_t)r * stride + c + LANES, sum[r][1]);
        }
    }
}

static void weigh(const float *p, int32_t p_stride, int32_t n_rows, const float *v, int32_t stride,
                  int32_t lo, int32_t hi, float *acc)
{
    int32_t r = 0;
    for (; r + 4 <= n_rows; r += 4)
        weigh_of(4, p + (size_t)r * p_stride, p_stride, v, stride, lo, hi,
                 acc + (size_t)r * stride);
    if (r + 2 <= n_rows) {
        weigh_of(2, p + (size_t)r * p_stride, p_stride, v, stride, lo, hi,
                 acc + (size_t)r * stride);
        r += 2;
    }
    if (r < n_rows)
        weigh_of(1, p + (size_t)r * p_stride, p_stride, v, stride, lo, hi,
                 acc + (size_t)r * stride);
}

/* ---- the row ---------------------------------------------------------------------- */

static void finish(float *restrict s, int32_t n, float scale, const float *restrict bias, float cap)
{
    if (bias != NULL)
        for (int32_t i = 0; i < n; i++)
            s[i] = s[i] * scale + bias[i];
    else
        for (int32_t i = 0; i < n; i++)
            s[i] = s[i] * scale;
    if (cap > 0.0f)
        for (int32_t i = 0; i < n; i++)
            s[i] = cap * attn_tanh(s[i] / cap);
}

/* The sum runs in INNER_KEYS lanes (lane = position mod INNER_KEYS), then over
 * the lanes in order: the same for every range that holds the same positions. */
static struct attn_state softmax(float *restrict s, int32_t n)
{
    float lane[INNER_KEYS], max = -INFINITY;
    for (int i = 0; i < INNER_KEYS; i++)
        lane[i] = s[i];
    for (int32_t k = INNER_KEYS; k < n; k += INNER_KEYS)
        for (int i = 0; i < INNER_KEYS; i++)
            lane[i] = float_max(lane[i], s[k + i]);
    for (int i = 0; i < INNER_KEYS; i++)
        max = float_max(max, lane[i]);
    if (max == -INFINITY) {
        memset(s, 0, (size_t)n * sizeof *s);
        return (struct attn_state){ ATTN_NO_MAX, 0.0f };
    }
    for (int32_t i = 0; i < n; i++)
        s[i] = exp_nonpositive(s[i] - max);
    memcpy(lane, s, sizeof lane);
    for (int32_t k = INNER_KEYS; k < n; k += INNER_KEYS)
        for (int i = 0; i < INNER_KEYS; i++)
            lane[i] += s[k + i];
    for (int half = INNER_KEYS / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return (struct attn_state){ max, lane[0] };
}

static void merge(float *restrict a, float ca, const float *restrict b, float cb, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        a[i] = a[i] * ca + b[i] * cb;
}

const struct attn_cpu_inner INNER_NAME = {
    .name = INNER_LABEL,
    .load_keys = load_keys,
    .load_values = load_values,
    .scores = scores,
    .weigh = weigh,
    .finish = finish,
    .softmax = softmax,
    .merge = merge,
};
