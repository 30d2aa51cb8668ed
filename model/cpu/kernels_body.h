/* kernels_body.h: the kernels of kernels.h over one vector type; included once
 * by each instruction set's file, which defines
 *   V, LANES          vector of LANES floats
 *   MICRO_ROWS        block height that fits the registers
 *   v_zero() v_load(p) v_widen(p: LANES bfloat16) v_set(float) v_store(p, v)
 *   v_fma(a, b, c)    a * b + c
 * Everything is static; the including file exports one table. */
#include <math.h>
#include <stddef.h>

#include "model/cpu/kernels.h"
#include "model/cpu/vmath.h"
#include "proto/number/formats.h"

enum { NV = PANEL / LANES };

#define UNROLL _Pragma("GCC unroll 16")

static inline __attribute__((always_inline)) void micro_f32_rows(const float *w, const float *a,
                                                                 uint32_t n_k, const int mr,
                                                                 float *c, const char *ahead,
                                                                 size_t stride)
{
    V acc[MICRO_ROWS][NV];
    UNROLL for (int m = 0; m < mr; m++) UNROLL for (int j = 0; j < NV; j++) acc[m][j] = v_zero();
    for (uint32_t k = 0; k < n_k; k++, w += PANEL, a += mr, ahead += stride) {
        V b[NV];
        __builtin_prefetch(ahead);
        __builtin_prefetch(ahead + stride / 2);
        UNROLL for (int j = 0; j < NV; j++) b[j] = v_load(w + j * LANES);
        UNROLL for (int m = 0; m < mr; m++)
        {
            V x = v_set(a[m]);
            UNROLL for (int j = 0; j < NV; j++) acc[m][j] = v_fma(x, b[j], acc[m][j]);
        }
    }
    UNROLL for (int m = 0; m < mr; m++) UNROLL for (int j = 0; j < NV; j++)
        v_store(c + m * PANEL + j * LANES, acc[m][j]);
}

static inline __attribute__((always_inline)) void micro_bf16_rows(const uint16_t *w, const float *a,
                                                                  uint32_t n_k, const int mr,
                                                                  float *c, const char *ahead,
                                                                  size_t stride)
{
    V acc[MICRO_ROWS][NV];
    UNROLL for (int m = 0; m < mr; m++) UNROLL for (int j = 0; j < NV; j++) acc[m][j] = v_zero();
    for (uint32_t k = 0; k < n_k; k++, w += PANEL, a += mr, ahead += stride) {
        V b[NV];
        __builtin_prefetch(ahead);
        __builtin_prefetch(ahead + stride / 2);
        UNROLL for (int j = 0; j < NV; j++) b[j] = v_widen(w + j * LANES);
        UNROLL for (int m = 0; m < mr; m++)
        {
            V x = v_set(a[m]);
            UNROLL for (int j = 0; j < NV; j++) acc[m][j] = v_fma(x, b[j], acc[m][j]);
        }
    }
    UNROLL for (int m = 0; m < mr; m++) UNROLL for (int j = 0; j < NV; j++)
        v_store(c + m * PANEL + j * LANES, acc[m][j]);
}

#if MICRO_ROWS > 3
static inline __attribute__((always_inline)) void pair_f32_rows(const float *w, size_t next,
                                                                const float *a, uint32_t n_k,
                                                                const int mr, float *c)
{
    V acc[PAIR_ROWS][2 * NV];
    UNROLL for (int m = 0; m < mr; m++) UNROLL for (int j = 0; j < 2 * NV; j++) acc[m][j] =
        v_zero();
    for (uint32_t k = 0; k < n_k; k++, w += PANEL, a += mr) {
        V b[2 * NV];
        UNROLL for (int j = 0; j < NV; j++)
        {
            b[j] = v_load(w + j * LANES);
            b[NV + j] = v_load(w + next + j * LANES);
        }
        UNROLL for (int m = 0; m < mr; m++)
        {
            V x = v_set(a[m]);
            UNROLL for (int j = 0; j < 2 * NV; j++) acc[m][j] = v_fma(x, b[j], acc[m][j]);
        }
    }
    UNROLL for (int m = 0; m < mr; m++) UNROLL for (int j = 0; j < 2 * NV; j++)
        v_store(c + (j / NV * mr + m) * PANEL + j % NV * LANES, acc[m][j]);
}

static inline __attribute__((always_inline)) void pair_bf16_rows(const uint16_t *w, size_t next,
                                                                 const float *a, uint32_t n_k,
                                                                 const int mr, float *c)
{
    V acc[PAIR_ROWS][2 * NV];
    UNROLL for (int m = 0; m < mr; m++) UNROLL for (int j = 0; j < 2 * NV; j++) acc[m][j] =
        v_zero();
    for (uint32_t k = 0; k < n_k; k++, w += PANEL, a += mr) {
        V b[2 * NV];
        UNROLL for (int j = 0; j < NV; j++)
        {
            b[j] = v_widen(w + j * LANES);
            b[NV + j] = v_widen(w + next + j * LANES);
        }
        UNROLL for (int m = 0; m < mr; m++)
        {
            V x = v_set(a[m]);
            UNROLL for (int j = 0; j < 2 * NV; j++) acc[m][j] = v_fma(x, b[j], acc[m][j]);
        }
    }
    UNROLL for (int m = 0; m < mr; m++) UNROLL for (int j = 0; j < 2 * NV; j++)
        v_store(c + (j / NV * mr + m) * PANEL + j % NV * LANES, acc[m][j]);
}

#define PAIR_CASE(fn, size, n)                                                                     \
    case n:                                                                                        \
        fn(panel, panel_bytes / (size), a, n_k, n, c);                                             \
        break;

static void pair_f32(const void *panel, size_t panel_bytes, const void *a, uint32_t n_k,
                     uint32_t mr, float *c)
{
    switch (mr) {
        PAIR_CASE(pair_f32_rows, 4, 1)
        PAIR_CASE(pair_f32_rows, 4, 2)
        PAIR_CASE(pair_f32_rows, 4, 3)
        PAIR_CASE(pair_f32_rows, 4, 4)
    default:
        break;
    }
}

static void pair_bf16(const void *panel, size_t panel_bytes, const void *a, uint32_t n_k,
                      uint32_t mr, float *c)
{
    switch (mr) {
        PAIR_CASE(pair_bf16_rows, 2, 1)
        PAIR_CASE(pair_bf16_rows, 2, 2)
        PAIR_CASE(pair_bf16_rows, 2, 3)
        PAIR_CASE(pair_bf16_rows, 2, 4)
    default:
        break;
    }
}
#endif

#define MICRO_CASE(fn, n)                                                                          \
    case n:                                                                                        \
        fn(panel, a, n_k, n, c, ahead, stride);                                                    \
        break;

static void micro_f32(const void *panel, const void *a, uint32_t n_k, uint32_t mr, float *c,
                      const char *ahead, size_t stride)
{
    switch (mr) {
        MICRO_CASE(micro_f32_rows, 1)
        MICRO_CASE(micro_f32_rows, 2)
        MICRO_CASE(micro_f32_rows, 3)
#if MICRO_ROWS > 3
        MICRO_CASE(micro_f32_rows, 4)
        MICRO_CASE(micro_f32_rows, 5)
        MICRO_CASE(micro_f32_rows, 6)
        MICRO_CASE(micro_f32_rows, 7)
        MICRO_CASE(micro_f32_rows, 8)
        MICRO_CASE(micro_f32_rows, 9)
        MICRO_CASE(micro_f32_rows, 10)
        MICRO_CASE(micro_f32_rows, 11)
        MICRO_CASE(micro_f32_rows, 12)
#endif
    default:
        break;
    }
}

static void micro_bf16(const void *panel, const void *a, uint32_t n_k, uint32_t mr, float *c,
                       const char *ahead, size_t stride)
{
    switch (mr) {
        MICRO_CASE(micro_bf16_rows, 1)
        MICRO_CASE(micro_bf16_rows, 2)
        MICRO_CASE(micro_bf16_rows, 3)
#if MICRO_ROWS > 3
        MICRO_CASE(micro_bf16_rows, 4)
        MICRO_CASE(micro_bf16_rows, 5)
        MICRO_CASE(micro_bf16_rows, 6)
        MICRO_CASE(micro_bf16_rows, 7)
        MICRO_CASE(micro_bf16_rows, 8)
        MICRO_CASE(micro_bf16_rows, 9)
        MICRO_CASE(micro_bf16_rows, 10)
        MICRO_CASE(micro_bf16_rows, 11)
        MICRO_CASE(micro_bf16_rows, 12)
#endif
    default:
        break;
    }
}

static void narrow(const float *x, uint32_t n, enum op_dtype type, void *out)
{
    if (type == OP_F32) {
        memcpy(out, x, n * sizeof *x);
        return;
    }
    uint16_t *h = out;
    for (uint32_t i = 0; i < n; i++)
        h[i] = float_to_bf16(x[i]);
}

static void widen(const void *x, enum op_dtype type, uint32_t n, float scale, float *out)
{
    if (type == OP_F32) {
        const float *f = x;
        for (uint32_t i = 0; i < n; i++)
            out[i] = f[i] * scale;
        return;
    }
    const uint16_t *h = x;
    for (uint32_t i = 0; i < n; i++)
        out[i] = bf16_to_float(h[i]) * scale;
}

static void add(float *x, const float *y, uint32_t n, float scale)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] += y[i] * scale;
}

/* 16 partial sums, added as a tree: the order depends on n alone. */
static float sum_of_squares(const float *x, uint32_t n)
{
    float s[16] = { 0 };
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++)
            s[j] += x[i + (uint32_t)j] * x[i + (uint32_t)j];
    for (int j = 0; i < n; i++, j++)
        s[j] += x[i] * x[i];
    for (int half = 8; half > 0; half /= 2)
        for (int j = 0; j < half; j++)
            s[j] += s[j + half];
    return s[0];
}

static float max(const float *x, uint32_t n, bool *finite)
{
    float top[16], zero[16];
    uint32_t i = 0;
    for (int j = 0; j < 16; j++) {
        top[j] = -INFINITY;
        zero[j] = 0;
    }
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) {
            float v = x[i + (uint32_t)j];
            top[j] = v > top[j] ? v : top[j];
            zero[j] += v * 0.0f; /* NaN unless v is finite */
        }
    for (int j = 0; i < n; i++, j++) {
        top[j] = x[i] > top[j] ? x[i] : top[j];
        zero[j] += x[i] * 0.0f;
    }
    for (int j = 1; j < 16; j++) {
        top[0] = top[j] > top[0] ? top[j] : top[0];
        zero[0] += zero[j];
    }
    *finite = zero[0] == 0.0f;
    return top[0];
}

static double exp_sum(const float *x, uint32_t n, float shift, float scale, float *out)
{
    enum { CHUNK = 256 };
    float e[CHUNK];
    double sum = 0;
    for (uint32_t at = 0; at < n; at += CHUNK) {
        uint32_t m = n - at < CHUNK ? n - at : CHUNK;
        float s[16] = { 0 };
        for (uint32_t i = 0; i < m; i++)
            e[i] = exp_any((x[at + i] - shift) * scale);
        for (uint32_t i = m; i < CHUNK; i++)
            e[i] = 0;
        for (uint32_t i = 0; i < CHUNK; i += 16)
            for (int j = 0; j < 16; j++)
                s[j] += e[i + (uint32_t)j];
        for (int j = 0; j < 16; j++)
            sum += (double)s[j];
        if (out != NULL)
            memcpy(out + at, e, m * sizeof *e);
    }
    return sum;
}

static void norm(const float *x, const float *w, float eps, uint32_t n, enum op_dtype type,
                 void *out)
{
    if (w == NULL) {
        narrow(x, n, type, out);
        return;
    }
    float scale = 1.0f / sqrtf(sum_of_squares(x, n) / (float)n + eps);
    if (type == OP_F32) {
        float *f = out;
        for (uint32_t i = 0; i < n; i++)
            f[i] = x[i] * scale * w[i];
        return;
    }
    uint16_t *h = out;
    for (uint32_t i = 0; i < n; i++)
        h[i] = float_to_bf16(x[i] * scale * w[i]);
}

/* v[0..16) gates, v[16..32) ups -> v[0..16). */
static inline void glu(float *v, enum act_kind act, float limit)
{
    enum { HALF = PANEL / 2 };
    float *u = v + HALF;
    switch (act) {
    case ACT_SILU:
        for (int i = 0; i < HALF; i++)
            v[i] = v[i] * sigmoid(v[i]) * u[i];
        break;
    case ACT_GELU_TANH:
        for (int i = 0; i < HALF; i++)
            v[i] = gelu_tanh(v[i]) * u[i];
        break;
    case ACT_GELU:
        for (int i = 0; i < HALF; i++)
            v[i] = 0.5f * v[i] * (1.0f + erff(v[i] * 0.70710678f)) * u[i];
        break;
    case ACT_CLAMPED_SWIGLU:
        for (int i = 0; i < HALF; i++) {
            float g = v[i] > limit ? limit : v[i];
            float y = u[i] > limit ? limit : u[i];
            y = y < -limit ? -limit : y;
            v[i] = (y + 1.0f) * (g * sigmoid(1.702f * g));
        }
        break;
    }
}

static void finish_row(const struct finish *f, float *v, size_t row)
{
    uint32_t n = f->n_valid;
    float *to = (float *)f->to + row * f->ld;
    switch (f->out) {
    case OP_OUT_F32:
        memcpy(to, v, n * sizeof *v);
        return;
    case OP_OUT_ADD:
        if (n == PANEL) {
            for (int i = 0; i < PANEL; i++)
                to[i] += v[i];
            return;
        }
        for (uint32_t i = 0; i < n; i++)
            to[i] += v[i];
        return;
    case OP_OUT_GLU:
        glu(v, f->act, f->limit);
        break;
    case OP_OUT_T:
        break;
    }
    if (f->type == OP_F32)
        memcpy(to, v, n * sizeof *v);
    else
        narrow(v, n, OP_BF16, (uint16_t *)f->to + row * f->ld);
}

static void finish(const struct finish *f, float *c, uint32_t mr)
{
    for (uint32_t m = 0; m < mr; m++, c += PANEL) {
        if (f->bias != NULL)
            for (int i = 0; i < PANEL; i++)
                c[i] += f->bias[i];
        finish_row(f, c, m);
    }
}
