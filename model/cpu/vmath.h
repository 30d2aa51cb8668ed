/* vmath.h: branch-free scalar math that compilers turn into vector code.
 * Pure functions; any thread. */
#ifndef MODEL_CPU_VMATH_H
#define MODEL_CPU_VMATH_H

#include <stdint.h>
#include <string.h>

#include "model/ops.h"

static inline float bits_to_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t float_to_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float bf16_to_float(uint16_t h)
{
    return bits_to_float((uint32_t)h << 16);
}

/* Nearest even; NaN stays NaN. */
static inline uint16_t float_to_bf16(float f)
{
    uint32_t u = float_to_bits(f);
    uint32_t rounded = (u + 0x7FFFu + (u >> 16 & 1)) >> 16;
    uint32_t nan = (u >> 16) | 0x40u;
    return (uint16_t)((u & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded);
}

/* e^x within 2 units of the last place; 0 and infinity beyond the range. */
static inline float fast_exp(float x)
{
    const float top = 88.722839f, bottom = -87.336540f;
    float y = x < bottom ? bottom : x;
    y = y > top ? top : y;
    /* n = nearest integer to y / ln 2, by the float trick; |r| <= ln2 / 2. */
    float t = y * 1.44269504f + 12582912.0f;
    float n = t - 12582912.0f;
    float r = (y - n * 0.693145752f) - n * 1.42860677e-6f;
    float p = 1.98412698e-4f;
    p = p * r + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    /* 2^n in two steps, so that n = 128 does not overflow early. */
    int32_t i = (int32_t)(float_to_bits(t) - 0x4B400000u), half = i >> 1;
    float a = bits_to_float((uint32_t)(half + 127) << 23);
    float b = bits_to_float((uint32_t)(i - half + 127) << 23);
    float v = p * a * b;
    v = x < bottom ? 0.0f : v;
    return x > top ? bits_to_float(0x7F800000u) : v;
}

static inline float sigmoid(float x)
{
    return 1.0f / (1.0f + fast_exp(-x));
}

/* 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), as x * sigmoid(2 u). */
static inline float gelu_tanh(float x)
{
    return x * sigmoid(1.59576912f * (x + 0.044715f * x * x * x));
}

#endif
