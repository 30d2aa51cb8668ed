/* convert.h: checkpoint number formats to float32.  Pure functions; any thread. */
#ifndef MODEL_LOAD_CONVERT_H
#define MODEL_LOAD_CONVERT_H

#include <stddef.h>
#include <stdint.h>

#include "model/load/safetensors.h"

/* out[i] = element (at + i * stride) of data, for BF16, F16 and F32 at any
 * alignment. */
void model_convert_strided(const unsigned char *data, enum st_dtype dtype, uint64_t at,
                           uint64_t stride, uint32_t n, float *out);

/* float32 to bfloat16, nearest even; out may be the same memory. */
void model_convert_to_bf16(const float *v, size_t n, uint16_t *out);

/* MXFP4: n/32 groups of 16 bytes (two e2m1 codes each, low nibble first) and a
 * scale byte (2^(s-127)) each, to bfloat16, exactly where bfloat16 can hold it. */
void model_convert_mxfp4(const unsigned char *blocks, const unsigned char *scales, uint64_t n,
                         uint16_t *out);

#endif
