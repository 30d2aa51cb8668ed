/* formats.h: the number formats of weights, activations and the KV cache, to
 * and from float: bfloat16, IEEE half, float8e4m3fn, scaled int8.
 *
 * Every function defines its result for all inputs, NaN and infinity included.
 * Compiles as C17 and as CUDA, with the same bits; branch-free, so that loops
 * over it become vector code.  Pure functions; any thread, any device. */
#ifndef PROTO_NUMBER_FORMATS_H
#define PROTO_NUMBER_FORMATS_H

#include "proto/number/bits.h"

/* ---- bfloat16: the upper half of a float ------------------------------------ */

static HD float bf16_to_float(uint16_t h)
{
    return bits_to_float((uint32_t)h << 16);
}

/* Nearest even; overflow to infinity, NaN stays NaN. */
static HD uint16_t float_to_bf16(float x)
{
    uint32_t u = float_to_bits(x);
    uint32_t r = (u + 0x7FFFu + (u >> 16 & 1u)) >> 16;
    return (uint16_t)((u & 0x7FFFFFFFu) > 0x7F800000u ? (u >> 16 | 0x40u) : r);
}

/* ---- IEEE half ---------------------------------------------------------------- */

static HD float f16_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t mag = (uint32_t)(h & 0x7FFFu);
    /* The exponent is off by 112; the product is exact, subnormals included. */
    uint32_t fin = float_to_bits(bits_to_float(mag << 13) * 0x1p112f);
    uint32_t inf = mag << 13 | 0x7F800000u;
    return bits_to_float(sign | (mag >= 0x7C00u ? inf : fin));
}

/* Nearest even; overflow to infinity, NaN stays NaN. */
static HD uint16_t float_to_f16(float x)
{
    uint32_t u = float_to_bits(x);
    uint32_t sign = u >> 16 & 0x8000u;
    uint32_t a = u & 0x7FFFFFFFu;
    uint32_t r;
    if (a > 0x7F800000u)
        return (uint16_t)(sign | 0x7E00u);
    if (a >= 0x47800000u) /* 65536 and up */
        return (uint16_t)(sign | 0x7C00u);
    if (a < 0x38800000u) { /* below 2^-14: the sum aligns and rounds in float */
        float t = bits_to_float(a) + 0.5f;
        r = float_to_bits(t) - 0x3F000000u;
    } else {
        r = (a + 0xC8000000u + 0xFFFu + (a >> 13 & 1u)) >> 13;
    }
    return (uint16_t)(sign | r);
}

/* ---- float8e4m3fn: no infinity, NaN is 0x7F and 0xFF, largest 448 --------------- */

static HD float e4m3_to_float(uint8_t q)
{
    uint32_t sign = (uint32_t)(q & 0x80u) << 24;
    uint32_t mag = (uint32_t)(q & 0x7Fu);
    uint32_t fin = float_to_bits(bits_to_float(mag << 20) * 0x1p120f);
    return bits_to_float(sign | (mag == 0x7Fu ? 0x7FC00000u : fin));
}

/* Saturating to +-448, nearest even; NaN stays NaN. */
static HD uint8_t float_to_e4m3(float x)
{
    uint32_t u = float_to_bits(x);
    uint32_t sign = u >> 24 & 0x80u;
    uint32_t a = u & 0x7FFFFFFFu;
    uint32_t r;
    if (a > 0x7F800000u)
        return (uint8_t)(sign | 0x7Fu);
    if (a >= 0x43E00000u) /* 448 and up */
        return (uint8_t)(sign | 0x7Eu);
    if (a < 0x3C800000u) {                    /* below 2^-6: subnormal, units of 2^-9 */
        float t = bits_to_float(a) + 0x1p14f; /* 2^14: one ulp is 2^-9 */
        r = float_to_bits(t) - 0x46800000u;
    } else {
        r = (a + 0xC4000000u + 0x7FFFFu + (a >> 20 & 1u)) >> 20;
    }
    return (uint8_t)(sign | r);
}

/* ---- scaled 8-bit values: the number is code * scale ------------------------------ */

/* x / scale rounded to nearest even and clamped to [-128, 127]; a scale of 0 and
 * NaN give 0. */
static HD int8_t quantize_int8(float x, float scale)
{
    float q = scale == 0.0f ? 0.0f : x / scale;
    q = q == q ? q : 0.0f;
    q = float_min(float_max(q, -128.0f), 127.0f);
    return (int8_t)float_rint(q);
}

/* x / scale as e4m3; a scale of 0 gives 0. */
static HD uint8_t quantize_e4m3(float x, float scale)
{
    return scale == 0.0f ? (uint8_t)0 : float_to_e4m3(x / scale);
}

#endif
