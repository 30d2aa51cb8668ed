/* kernels_avx512.c: the kernels on AVX-512 (F, BW, VL, DQ). */
#include <immintrin.h>

#include "model/cpu/kernels_sets.h"

enum { LANES = 16 };
#define MICRO_ROWS 12

typedef __m512 V;

#define v_zero()      _mm512_setzero_ps()
#define v_load(p)     _mm512_loadu_ps(p)
#define v_set(x)      _mm512_set1_ps(x)
#define v_store(p, v) _mm512_storeu_ps(p, v)
#define v_fma         _mm512_fmadd_ps

static inline V v_widen(const uint16_t *p)
{
    __m256i h = _mm256_loadu_si256((const __m256i *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

#include "model/cpu/kernels_body.h"

const struct cpu_kernels model_cpu_kernels_avx512 = {
    .name = "avx512",
    .micro_rows = MICRO_ROWS,
    .micro = { [PANEL_F32] = micro_f32,
               [PANEL_BF16] = micro_bf16,
               [PANEL_PAIRS] = model_cpu_micro_avx512bf16 },
    .micro_pair = { [PANEL_F32] = pair_f32,
                    [PANEL_BF16] = pair_bf16,
                    [PANEL_PAIRS] = model_cpu_micro_pair_avx512bf16 },
    .finish = finish,
    .norm = norm,
    .sum_of_squares = sum_of_squares,
    .max = max,
    .exp_sum = exp_sum,
    .widen = widen,
    .narrow = narrow,
    .add = add,
};
