/* ptx.cuh: the instructions the kernels are made of, one function each.
 *
 * Owns nothing; device code only.  Shared-memory addresses are the 32-bit ones
 * of the shared window. */
#ifndef ATTENTION_CUDA_PTX_CUH
#define ATTENTION_CUDA_PTX_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "proto/number/formats.h"

__device__ __forceinline__ uint32_t smem_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- asynchronous copies: 16 bytes, of which `bytes` are read, rest zeroed -- */

__device__ __forceinline__ void copy16(uint32_t to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N> __device__ __forceinline__ void copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* ---- dependent launches --------------------------------------------------- */

/* Everything before this grid in the stream is complete and visible after. */
__device__ __forceinline__ void wait_for_upstream(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The next grid may start; it must itself wait before it uses our results. */
__device__ __forceinline__ void release_downstream(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* ---- matrix fragments ----------------------------------------------------- */

__device__ __forceinline__ void load_matrices(uint32_t r[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void load_matrices_t(uint32_t r[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* c (16 x 8) += a (16 x 16) b (16 x 8), 16-bit inputs of type M, fp32 sums. */
template <typename M>
__device__ __forceinline__ void mma(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    if constexpr (sizeof(M) == 2 && __is_same(M, __nv_bfloat16)) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
}

/* The transpose of an 8 x 8 matrix of 16-bit elements, two a lane. */
__device__ __forceinline__ uint32_t transpose8x8(uint32_t x)
{
    uint32_t r;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(x));
    return r;
}

/* Bring the line at p into L2; always safe, L2 is where the device agrees. */
__device__ __forceinline__ void warm_l2(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* The same for `bytes` from p on, both multiples of 16. */
__device__ __forceinline__ void warm_l2_run(const void *p, int bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
#endif
}

/* ---- numbers -------------------------------------------------------------- */

__device__ __forceinline__ float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

template <typename M> __device__ __forceinline__ uint32_t pack2(float lo, float hi)
{
    uint32_t r;
    if constexpr (__is_same(M, __nv_bfloat16))
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

__device__ __forceinline__ float to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

__device__ __forceinline__ float to_float(__half x)
{
    return __half2float(x);
}

template <typename T> __device__ __forceinline__ T from_float(float x)
{
    if constexpr (__is_same(T, __nv_bfloat16))
        return __float2bfloat16_rn(x);
    else
        return __float2half_rn(x);
}

/* Two e4m3 codes, the low byte first, as two halves.  Exact; before sm_89 the
 * NaN code becomes 480. */
__device__ __forceinline__ uint32_t e4m3x2_half2(uint32_t two)
{
    uint32_t r;
#if __CUDA_ARCH__ >= 890
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"((uint16_t)two));
#else
    uint32_t wide = __byte_perm(two, 0, 0x1404); /* each byte atop a half */
    uint32_t bits = (wide & 0x80008000u) | ((wide & 0x7F007F00u) >> 1);
    __half2 scaled = __hmul2(*(__half2 *)&bits, __float2half2_rn(256.0f));
    r = *(uint32_t *)&scaled;
#endif
    return r;
}

/* e4m3 codes of two numbers, lo's in the low byte; bit for bit float_to_e4m3. */
__device__ __forceinline__ uint32_t floats_e4m3x2(float lo, float hi)
{
#if __CUDA_ARCH__ >= 890
    uint16_t r;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo));
    /* A NaN keeps its sign. */
    uint32_t lo_nan = lo != lo ? (__float_as_uint(lo) >> 24 & 0x80u) : 0u;
    uint32_t hi_nan = hi != hi ? (__float_as_uint(hi) >> 16 & 0x8000u) : 0u;
    return r | lo_nan | hi_nan;
#else
    return (uint32_t)float_to_e4m3(lo) | (uint32_t)float_to_e4m3(hi) << 8;
#endif
}

/* Two int8 codes as two halves: 0x64 over u is 1024 + u. */
__device__ __forceinline__ uint32_t int8x2_half2(uint32_t two)
{
    uint32_t biased = __byte_perm(two ^ 0x8080u, 0x64646464u, 0x4140);
    __half2 r = __hsub2(*(__half2 *)&biased, __float2half2_rn(1152.0f));
    return *(uint32_t *)&r;
}

/* ---- reductions over the four lanes that share a fragment row or column ------ */

__device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* Over the eight lanes that share a fragment column. */
__device__ __forceinline__ float column_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 4));
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 8));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 16));
}

__device__ __forceinline__ float column_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 4);
    x += __shfl_xor_sync(0xffffffffu, x, 8);
    return x + __shfl_xor_sync(0xffffffffu, x, 16);
}

__device__ __forceinline__ float warp_sum(float x)
{
    for (int i = 16; i > 0; i >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}

__device__ __forceinline__ float warp_max(float x)
{
    for (int i = 16; i > 0; i >>= 1)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}

#endif
