/* vmath.h: branch-free scalar math that compilers turn into vector code.
 * Pure functions; any thread. */
#ifndef MODEL_CPU_VMATH_H
#define MODEL_CPU_VMATH_H

#include "proto/number/exp.h"

static inline float sigmoid(float x)
{
    return 1.0f / (1.0f + exp_any(-x));
}

/* 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), as x * sigmoid(2 u). */
static inline float gelu_tanh(float x)
{
    return x * sigmoid(1.59576912f * (x + 0.044715f * x * x * x));
}

#endif
