/* kernels_sets.h: the tables of kernels.h, one per instruction set. Constant. */
#ifndef MODEL_CPU_KERNELS_SETS_H
#define MODEL_CPU_KERNELS_SETS_H

#include "model/cpu/kernels.h"

extern const struct cpu_kernels model_cpu_kernels_generic;
#if defined(__x86_64__)
extern const struct cpu_kernels model_cpu_kernels_avx2;
extern const struct cpu_kernels model_cpu_kernels_avx512;
/* PANEL_PAIRS on AVX512-BF16. */
micro_fn model_cpu_micro_avx512bf16;
micro_pair_fn model_cpu_micro_pair_avx512bf16;
#endif

#endif
