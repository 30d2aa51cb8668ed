/* vmath.h: branch-free scalar math that compilers turn into vector code.
 * Pure functions; any thread. */
#ifndef MODEL_CPU_VMATH_H
#define MODEL_CPU_VMATH_H

#include <stdint.h>
#include <string.h>

#include "model/step/fast_exp.h"
#include "model/step/ops.h"

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
