/* inner.h: the inner loops of the CPU backend, compiled once per instruction set.
 *
 * inner_body.h holds the one text; inner_base.c, inner_avx2.c and inner_avx512.c
 * compile it for their target, and attn_cpu_inner_choose picks the best that this
 * machine runs.  Pure functions on the caller's memory; any thread.
 *
 * Promise: each number is computed by one fixed chain of operations (a score
 * over channels in order, an output over keys in order), whatever rows or keys
 * are computed beside it.  Tiling, batching and threads cannot change a bit. */
#ifndef ATTENTION_CPU_INNER_H
#define ATTENTION_CPU_INNER_H

#include <stdint.h>

#include "attention/attn.h"
#include "attention/feature_math.h"

enum {
    INNER_KEYS = 32, /* keys loaded together: a sub-tile     */
    INNER_PAD = 32,  /* rows of V and of sums are multiples */
    INNER_ROWS = 4   /* rows that share their loads         */
};

struct attn_cpu_inner {
    const char *name;
    /* kt[c * INNER_KEYS + i] = row[i][c] as float, times scale[c] for 8-bit
     * types; 0 where row[i] is NULL.  width is a multiple of 8. */
    void (*load_keys)(enum attn_dtype d, const void *const *row, const float *scale, int32_t width,
                      float *kt);
    /* v[i * stride + c], likewise; channels width..stride are 0. */
    void (*load_values)(enum attn_dtype d, const void *const *row, const float *scale,
                        int32_t width, int32_t stride, float *v);
    /* s[r * s_stride + i] = sum over c of q[r * width + c] * kt[c][i], i < INNER_KEYS. */
    void (*scores)(const float *q, int32_t n_rows, int32_t width, const float *kt, float *s,
                   int32_t s_stride);
    /* acc[r * stride + c] += sum over i in [lo, hi) of p[r * p_stride + i] * v[i][c]. */
    void (*weigh)(const float *p, int32_t p_stride, int32_t n_rows, const float *v, int32_t stride,
                  int32_t lo, int32_t hi, float *acc);
    /* x = softcap(s * scale + bias); n a multiple of INNER_KEYS; bias may be NULL. */
    void (*finish)(float *s, int32_t n, float scale, const float *bias, float cap);
    /* s becomes e^(s - max); returns max and sum.  All -inf: {ATTN_NO_MAX, 0}, s
     * becomes 0.  n a multiple of INNER_KEYS. */
    struct attn_state (*softmax)(float *s, int32_t n);
    /* a = a * ca + b * cb, n a multiple of INNER_PAD. */
    void (*merge)(float *a, float ca, const float *b, float cb, int32_t n);
};

extern const struct attn_cpu_inner attn_cpu_inner_base;
#if defined(__x86_64__)
extern const struct attn_cpu_inner attn_cpu_inner_avx2, attn_cpu_inner_avx512;
#endif

/* The best for this machine. */
const struct attn_cpu_inner *attn_cpu_inner_choose(void);

#endif
