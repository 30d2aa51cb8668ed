/* kernels_avx512bf16.c: matrix multiplication of bfloat16 pairs, accumulated in float32.
 *
 * Per k pair a block of mr rows costs two loads of weights, mr broadcasts and
 * 2 mr dot products.  Accumulators: 2 mr of the 32 registers. */
#include <immintrin.h>

#include "model/cpu/kernels_sets.h"

#define UNROLL _Pragma("GCC unroll 16")

enum { PAIR_BYTES = PANEL * 4 };

static inline __attribute__((always_inline)) void rows(const unsigned char *w, const int32_t *a,
                                                       uint32_t n_k, const int mr, float *c,
                                                       const char *ahead, size_t stride)
{
    __m512 acc[MICRO_ROWS_MAX][2];
    UNROLL for (int m = 0; m < mr; m++)
    {
        acc[m][0] = _mm512_setzero_ps();
        acc[m][1] = _mm512_setzero_ps();
    }
    for (uint32_t k = 0; k < n_k; k++, w += PAIR_BYTES, a += mr, ahead += stride) {
        __m512bh b0 = (__m512bh)_mm512_loadu_si512(w);
        __m512bh b1 = (__m512bh)_mm512_loadu_si512(w + 64);
        _mm_prefetch(ahead, _MM_HINT_T0);
        _mm_prefetch(ahead + stride / 2, _MM_HINT_T0);
        UNROLL for (int m = 0; m < mr; m++)
        {
            __m512bh x = (__m512bh)_mm512_set1_epi32(a[m]);
            acc[m][0] = _mm512_dpbf16_ps(acc[m][0], x, b0);
            acc[m][1] = _mm512_dpbf16_ps(acc[m][1], x, b1);
        }
    }
    UNROLL for (int m = 0; m < mr; m++)
    {
        _mm512_storeu_ps(c + m * PANEL, acc[m][0]);
        _mm512_storeu_ps(c + m * PANEL + 16, acc[m][1]);
    }
}

/* Two panels: four loads of weights, mr broadcasts, 4 mr dot products. */
static inline __attribute__((always_inline)) void pair_rows(const unsigned char *w, size_t next,
                                                            const int32_t *a, uint32_t n_k,
                                                            const int mr, float *c)
{
    __m512 acc[PAIR_ROWS][4];
    UNROLL for (int m = 0; m < mr; m++) UNROLL for (int j = 0; j < 4; j++) acc[m][j] =
        _mm512_setzero_ps();
    for (uint32_t k = 0; k < n_k; k++, w += PAIR_BYTES, a += mr) {
        __m512bh b0 = (__m512bh)_mm512_loadu_si512(w);
        __m512bh b1 = (__m512bh)_mm512_loadu_si512(w + 64);
        __m512bh b2 = (__m512bh)_mm512_loadu_si512(w + next);
        __m512bh b3 = (__m512bh)_mm512_loadu_si512(w + next + 64);
        UNROLL for (int m = 0; m < mr; m++)
        {
            __m512bh x = (__m512bh)_mm512_set1_epi32(a[m]);
            acc[m][0] = _mm512_dpbf16_ps(acc[m][0], x, b0);
            acc[m][1] = _mm512_dpbf16_ps(acc[m][1], x, b1);
            acc[m][2] = _mm512_dpbf16_ps(acc[m][2], x, b2);
            acc[m][3] = _mm512_dpbf16_ps(acc[m][3], x, b3);
        }
    }
    UNROLL for (int m = 0; m < mr; m++) UNROLL for (int j = 0; j < 4; j++)
        _mm512_storeu_ps(c + (j / 2 * mr + m) * PANEL + j % 2 * 16, acc[m][j]);
}

void model_cpu_micro_pair_avx512bf16(const void *panel, size_t panel_bytes, const void *a,
                                     uint32_t n_k, uint32_t mr, float *c)
{
    switch (mr) {
    case 1:
        pair_rows(panel, panel_bytes, a, n_k, 1, c);
        break;
    case 2:
        pair_rows(panel, panel_bytes, a, n_k, 2, c);
        break;
    case 3:
        pair_rows(panel, panel_bytes, a, n_k, 3, c);
        break;
    case 4:
        pair_rows(panel, panel_bytes, a, n_k, 4, c);
        break;
    default:
        break;
    }
}

#define CASE(n)                                                                                    \
    case n:                                                                                        \
        rows(panel, a, n_k, n, c, ahead, stride);                                                  \
        break;

void model_cpu_micro_avx512bf16(const void *panel, const void *a, uint32_t n_k, uint32_t mr,
                                float *c, const char *ahead, size_t stride)
{
    switch (mr) {
        CASE(1)
        CASE(2)
        CASE(3)
        CASE(4)
        CASE(5)
        CASE(6)
        CASE(7)
        CASE(8)
        CASE(9)
        CASE(10)
        CASE(11)
        CASE(12)
    default:
        break;
    }
}
