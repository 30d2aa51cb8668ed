/* convert.c: see convert.h. */
#include "model/load/convert.h"

#include <math.h>
#include <string.h>

#include "proto/number/formats.h"

static uint16_t load16(const unsigned char *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

void model_convert_strided(const unsigned char *data, enum st_dtype dtype, uint64_t at,
                           uint64_t stride, uint32_t n, float *out)
{
    if (dtype == ST_F32) {
        const unsigned char *p = data + at * 4;
        for (uint32_t i = 0; i < n; i++, p += stride * 4)
            memcpy(&out[i], p, 4);
    } else if (dtype == ST_BF16) {
        const unsigned char *p = data + at * 2;
        for (uint32_t i = 0; i < n; i++, p += stride * 2)
            out[i] = bf16_to_float(load16(p));
    } else {
        const unsigned char *p = data + at * 2;
        for (uint32_t i = 0; i < n; i++, p += stride * 2)
            out[i] = f16_to_float(load16(p));
    }
}

void model_convert_to_bf16(const float *v, size_t n, uint16_t *out)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h = float_to_bf16(v[i]);
        memcpy((unsigned char *)out + i * 2, &h, 2);
    }
}

void model_convert_mxfp4(const unsigned char *blocks, const unsigned char *scales, uint64_t n,
                         uint16_t *out)
{
    static const float code[16] = { 0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                    -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6 };
    for (uint64_t g = 0; g < n / 32; g++) {
        float scale = scales[g] == 255 ? NAN : ldexpf(1, scales[g] - 127);
        for (int i = 0; i < 32; i++) {
            unsigned char byte = blocks[g * 16 + (uint64_t)i / 2];
            out[g * 32 + (uint64_t)i] = float_to_bf16(code[i % 2 ? byte >> 4 : byte & 15] * scale);
        }
    }
}
