/* inner_avx512.c: the inner loops for x86-64-v4 (AVX-512).  See inner.h. */
#include <immintrin.h>
#define INNER_NAME   attn_cpu_inner_avx512
#define INNER_LABEL  "avx512"
#define LANES        16
#define FMA(a, b, c) _mm512_fmadd_ps((a), (b), (c))
#include "attention/cpu/inner_body.h"
