/* inner.c: which inner loops this machine runs.  See inner.h. */
#include "attention/cpu/inner.h"

const struct attn_cpu_inner *attn_cpu_inner_choose(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("bmi2"))
        return &attn_cpu_inner_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("bmi2"))
        return &attn_cpu_inner_avx2;
#endif
    return &attn_cpu_inner_base;
}
