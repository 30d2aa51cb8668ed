/* inner_avx2.c: the inner loops for x86-64-v3 (AVX2, FMA).  See inner.h. */
#include <immintrin.h>
#define INNER_NAME   attn_cpu_inner_avx2
#define INNER_LABEL  "avx2"
#define LANES        8
#define FMA(a, b, c) _mm256_fmadd_ps((a), (b), (c))
#include "attention/cpu/inner_body.h"
