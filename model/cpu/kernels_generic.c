/* kernels_generic.c: the kernels in portable C, for any machine. */
#include <string.h>

#include "model/cpu/kernels_sets.h"
#include "proto/number/formats.h"

enum { LANES = 4 };
#define MICRO_ROWS 3

typedef struct {
    float f[LANES];
} V;

static inline V v_zero(void)
{
    return (V){ { 0, 0, 0, 0 } };
}

static inline V v_load(const float *p)
{
    return (V){ { p[0], p[1], p[2], p[3] } };
}

static inline V v_widen(const uint16_t *p)
{
    return (V){ { bf16_to_float(p[0]), bf16_to_float(p[1]), bf16_to_float(p[2]),
                  bf16_to_float(p[3]) } };
}

static inline V v_set(float x)
{
    return (V){ { x, x, x, x } };
}

static inline V v_fma(V a, V b, V c)
{
    return (V){ { a.f[0] * b.f[0] + c.f[0], a.f[1] * b.f[1] + c.f[1], a.f[2] * b.f[2] + c.f[2],
                  a.f[3] * b.f[3] + c.f[3] } };
}

static inline void v_store(float *p, V v)
{
    memcpy(p, v.f, sizeof v.f);
}

#include "model/cpu/kernels_body.h"

const struct cpu_kernels model_cpu_kernels_generic = {
    .name = "generic",
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
