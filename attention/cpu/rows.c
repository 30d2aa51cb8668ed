/* rows.c: rows of float16, bfloat16 and float32 to and from float.
 *
 * Pure functions; any thread. */
#include <string.h>

#include "attention/cpu/job.h"

void attn_cpu_row_load(enum attn_dtype d, const void *from, int64_t n, float *to)
{
    const uint16_t *h = from;
    if (d == ATTN_F32)
        memcpy(to, from, (size_t)n * sizeof *to);
    else if (d == ATTN_BF16)
        for (int64_t i = 0; i < n; i++)
            to[i] = bf16_to_float(h[i]);
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = f16_to_float(h[i]);
}

void attn_cpu_row_store(enum attn_dtype d, const float *from, int64_t n, void *to)
{
    uint16_t *h = to;
    if (d == ATTN_F32)
        memcpy(to, from, (size_t)n * sizeof *from);
    else if (d == ATTN_BF16)
        for (int64_t i = 0; i < n; i++)
            h[i] = float_to_bf16(from[i]);
    else
        for (int64_t i = 0; i < n; i++)
            h[i] = float_to_f16(from[i]);
}
