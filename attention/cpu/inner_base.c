/* inner_base.c: the inner loops for any machine (SSE2, NEON and others).
 * See inner.h. */
#define INNER_NAME  attn_cpu_inner_base
#define INNER_LABEL "base"
#define LANES       4
#if defined(__aarch64__)
#include <arm_neon.h>
#define FMA(a, b, c) ((vf)vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b)))
#else
#define FMA(a, b, c) ((a) * (b) + (c))
#endif
#include "attention/cpu/inner_body.h"
