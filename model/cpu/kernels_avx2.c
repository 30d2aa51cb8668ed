/* kernels_avx2.c: the kernels on AVX2 and FMA. */
#include <immintrin.h>

#include "model/cpu/kernels_sets.h"

enum { LANES = 8 };
#define MICRO_ROWS 3

typedef __m256 V;

#define v_zero()      _mm256_setzero_ps()
#define v_load(p)     _mm256_loadu_ps(p)
#define v_set(x)      _mm256_set1_ps(x)
#define v_store(p, v) _mm256_storeu_ps(p, v)
#define v_fma         _mm256_fmadd_ps

static inline V v_widen(const uint16_t *p)
{
    __m128i h = _mm_loadu_si128((const __m128i *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

#include "model/cpu/kernels_body.h"

const struct cpu_kernels model_cpu_kernels_avx2 = {
    .name = "avx2",
    .micro_rows = MICRO_ROWS,
    .micro = { [PANEL_F32] = micro_f32, [PANEL_BF16] = micro_bf16 },
    .finish = finish,
    .norm = norm,
    .sum_of_squares = sum_of_squares,
    .max = max,
    .exp_sum = exp_sum,
    .widen = widen,
    .narrow = narrow,
    .add = add,
};
