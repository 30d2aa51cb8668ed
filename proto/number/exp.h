/* exp.h: the exponential, for host and device, the same bits on both where
 * multiplications and additions are not fused.
 *
 * Two, because both are in inner loops: softmax needs no argument above 0 and
 * takes the shorter one.  Branch-free, so that loops over them become vector
 * code.  Compiles as C17 and as CUDA.  Pure functions; any thread, any device. */
#ifndef PROTO_NUMBER_EXP_H
#define PROTO_NUMBER_EXP_H

#include "proto/number/bits.h"

/* e^x for x <= 0, relative error under 2e-7; exactly 0 below -87, 1 at 0; NaN
 * stays NaN. */
static HD float exp_nonpositive(float x)
{
    float c = float_max(-88.0f, x);
    float t = c * 1.44269504088896341f + FLOAT_ROUND;
    float n = t - FLOAT_ROUND;
    float r = (c - n * 0.693359375f) + n * 2.12194440e-4f;
    float scale = bits_to_float((float_to_bits(t) - FLOAT_ROUND_BITS + 127u) << 23);
    float y = 1.9875691500e-4f * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = (y * (r * r) + r) + 1.0f;
    return x < -87.0f ? 0.0f : y * scale;
}

/* e^x within 2 units of the last place; 0 below -87.33654, where the result would
 * be subnormal, and infinity above 88.722839; NaN stays NaN. */
static HD float exp_any(float x)
{
    const float top = 88.722839f, bottom = -87.336540f;
    float y = x < bottom ? bottom : x;
    y = y > top ? top : y;
    /* n = nearest integer to y / ln 2; |r| <= ln 2 / 2. */
    float t = y * 1.44269504f + FLOAT_ROUND;
    float n = t - FLOAT_ROUND;
    float r = (y - n * 0.693145752f) - n * 1.42860677e-6f;
    float p = 1.98412698e-4f;
    p = p * r + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    /* 2^n in two steps, so that n = 128 does not overflow early. */
    int32_t i = (int32_t)(float_to_bits(t) - FLOAT_ROUND_BITS), half = i >> 1;
    float a = bits_to_float((uint32_t)(half + 127) << 23);
    float b = bits_to_float((uint32_t)(i - half + 127) << 23);
    float v = p * a * b;
    v = x < bottom ? 0.0f : v;
    return x > top ? bits_to_float(0x7F800000u) : v;
}

#endif
