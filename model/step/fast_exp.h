/* fast_exp.h: one exponential for host and device, the same bits on both where
 * multiplications and additions are not fused.  Branch-free, so that compilers
 * turn it into vector code.  Pure function; any thread. */
#ifndef MODEL_STEP_FAST_EXP_H
#define MODEL_STEP_FAST_EXP_H

#include "attention/feature_math.h"

/* e^x within 2 units of the last place; 0 and infinity beyond the range. */
static HD float fast_exp(float x)
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
    int32_t i = (int32_t)(attn_float_bits(t) - 0x4B400000u), half = i >> 1;
    float a = attn_bits_float((uint32_t)(half + 127) << 23);
    float b = attn_bits_float((uint32_t)(i - half + 127) << 23);
    float v = p * a * b;
    v = x < bottom ? 0.0f : v;
    return x > top ? attn_bits_float(0x7F800000u) : v;
}

#endif
