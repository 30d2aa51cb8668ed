/* bits.h: a float's bits, and the operations on floats that are written with
 * comparisons and additions alone, so that they give the same bits everywhere
 * and loops over them become vector code.
 *
 * Compiles as C17 and as CUDA (HD then marks host and device functions).  Pure
 * functions; any thread, any device. */
#ifndef PROTO_NUMBER_BITS_H
#define PROTO_NUMBER_BITS_H

#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define HD __host__ __device__ __forceinline__
#else
#define HD inline __attribute__((always_inline))
#endif

static HD uint32_t float_to_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static HD float bits_to_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* The larger; b where either is NaN. */
static HD float float_max(float a, float b)
{
    return a > b ? a : b;
}

/* The smaller; b where either is NaN. */
static HD float float_min(float a, float b)
{
    return a < b ? a : b;
}

/* 1.5 * 2^23: a float of magnitude under 2^22 added to it is rounded to the
 * nearest integer, ties to even, and the sum's bits count up from those of
 * FLOAT_ROUND, which are FLOAT_ROUND_BITS. */
#define FLOAT_ROUND      12582912.0f
#define FLOAT_ROUND_BITS 0x4B400000u

/* The nearest integer, ties to even, for |x| < 2^22. */
static HD float float_rint(float x)
{
#if defined(__CUDA_ARCH__)
    return rintf(x);
#else
    return (x + FLOAT_ROUND) - FLOAT_ROUND;
#endif
}

#endif
