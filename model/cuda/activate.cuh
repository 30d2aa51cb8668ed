/* activate.cuh: the gated activations of an MLP, one pair at a time. */
#ifndef MODEL_CUDA_ACTIVATE_CUH
#define MODEL_CUDA_ACTIVATE_CUH

#include <math.h>

extern "C" {
#include "model/load/config.h"
}

static __device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static __device__ __forceinline__ float activate(float g, float u, enum act_kind act, float limit)
{
    switch (act) {
    case ACT_SILU:
        return g * sigmoid(g) * u;
    case ACT_GELU_TANH:
        return g * sigmoid(1.59576912f * (g + 0.044715f * g * g * g)) * u;
    case ACT_GELU:
        return 0.5f * g * (1.0f + erff(g * 0.70710678f)) * u;
    case ACT_CLAMPED_SWIGLU:
        g = g > limit ? limit : g;
        u = u > limit ? limit : u < -limit ? -limit : u;
        return (u + 1.0f) * (g * sigmoid(1.702f * g));
    }
    return 0.0f;
}

#endif
