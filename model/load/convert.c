/* convert.c: see convert.h. */
#include "model/load/convert.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static uint16_t load16(const unsigned char *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static float from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, mantissa = h & 0x3FFu;
    uint32_t exponent = h >> 10 & 0x1Fu;
    if (exponent == 0x1F)
        return from_bits(sign | 0x7F800000u | mantissa << 13);
    if (exponent == 0) {
        float f = (float)mantissa * 0x1p-24f;
        return sign ? -f : f;
    }
    return from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

void convert_strided(const unsigned char *data, enum st_dtype dtype, uint64_t at, uint64_t stride,
                     uint32_t n, float *out)
{
    if (dtype == ST_F32) {
        const unsigned char *p = data + at * 4;
        for (uint32_t i = 0; i < n; i++, p += stride * 4)
            memcpy(&out[i], p, 4);
    } else if (dtype == ST_BF16) {
        const unsigned char *p = data + at * 2;
        for (uint32_t i = 0; i < n; i++, p += stride * 2)
            out[i] = from_bits((uint32_t)load16(p) << 16);
    } else {
        const unsigned char *p = data + at * 2;
        for (uint32_t i = 0; i < n; i++, p += stride * 2)
            out[i] = half_to_float(load16(p));
    }
}

void convert_to_bf16(const float *v, size_t n, uint16_t *out)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &v[i], sizeof u);
        bool nan = (u & 0x7FFFFFFFu) > 0x7F800000u;
        uint16_t h = (uint16_t)(nan ? u >> 16 | 0x40u : (u + 0x7FFFu + (u >> 16 & 1)) >> 16);
        memcpy((unsigned char *)out + i * 2, &h, 2);
    }
}

void convert_mxfp4(const unsigned char *blocks, const unsigned char *scales, uint64_t n,
                   uint16_t *out)
{
    static const float code[16] = { 0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                    -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6 };
    for (uint64_t g = 0; g < n / 32; g++) {
        float scale = scales[g] == 255 ? NAN : ldexpf(1, scales[g] - 127);
        for (int i = 0; i < 32; i++) {
            unsigned char byte = blocks[g * 16 + (uint64_t)i / 2];
            float v = code[i % 2 ? byte >> 4 : byte & 15] * scale;
            uint32_t u;
            memcpy(&u, &v, sizeof u);
            out[g * 32 + (uint64_t)i] = (uint16_t)(u >> 16);
        }
    }
}
