/* kernels.c: choosing the instruction set. */
#include "model/cpu/kernels.h"

#include <stddef.h>
#include <string.h>

#include "model/cpu/kernels_sets.h"

#if defined(__x86_64__)
static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

bool model_cpu_has_bf16(void)
{
    return has_avx512() && __builtin_cpu_supports("avx512bf16");
}
#else
bool model_cpu_has_bf16(void)
{
    return false;
}
#endif

const struct cpu_kernels *model_cpu_kernels_named(const char *name)
{
    if (strcmp(name, "generic") == 0)
        return &model_cpu_kernels_generic;
#if defined(__x86_64__)
    if (strcmp(name, "avx2") == 0 && has_avx2())
        return &model_cpu_kernels_avx2;
    if (strcmp(name, "avx512") == 0 && has_avx512())
        return &model_cpu_kernels_avx512;
#endif
    return NULL;
}

const struct cpu_kernels *model_cpu_kernels_best(void)
{
    static const char *const order[] = { "avx512", "avx2", "generic" };
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        const struct cpu_kernels *k = model_cpu_kernels_named(order[i]);
        if (k != NULL)
            return k;
    }
    return &model_cpu_kernels_generic;
}
