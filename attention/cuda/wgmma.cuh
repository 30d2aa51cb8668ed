/* wgmma.cuh: sm_90a's warpgroup matrix instructions (wgmma) and what they need: descriptors of
 * 128-byte-swizzled tiles, barriers in shared memory, registers moved between
 * warpgroups.
 *
 * A tile is panels of 64 16-bit columns; a panel is rows of 128 bytes whose 16-byte
 * pieces are swizzled by the row, 1024-byte aligned.  Owns nothing; device code. */
#ifndef ATTENTION_CUDA_WGMMA_CUH
#define ATTENTION_CUDA_WGMMA_CUH

#include "attention/cuda/ptx.cuh"

/* ---- barriers in shared memory ---------------------------------------------- */

__device__ __forceinline__ void barrier_init(uint32_t bar, int count)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* Arrives once the copies that this thread has started are done. */
__device__ __forceinline__ void barrier_arrive_copied(uint32_t bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(bar) : "memory");
}

/* Until the phase of this parity has completed. */
__device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity)
{
    uint32_t done;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; "
                     "selp.b32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(bar), "r"(parity)
                     : "memory");
    } while (!done);
}

/* What this thread wrote to shared memory, or knows to be written, before the
 * matrix units read it. */
__device__ __forceinline__ void fence_proxy_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <int N> __device__ __forceinline__ void registers_down(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> __device__ __forceinline__ void registers_up(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* ---- wgmma --------------------------------------------------------------------- */

/* Of a swizzled tile at a shared address: the step between groups of 8 rows is
 * 1024 bytes; `across` is the step between panels, which matters only where
 * the product's long side runs along the panels. */
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t address, uint32_t across)
{
    return (uint64_t)(address >> 4 & 0x3FFF) | (uint64_t)(across >> 4 & 0x3FFF) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

__device__ __forceinline__ void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N> __device__ __forceinline__ void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Keeps the compiler from moving uses of accumulators across a wait. */
template <int N> __device__ __forceinline__ void pin(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

#define D4(i)  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define REGS24                                                                                     \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23}"
#define REGS32                                                                                     \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"  \
    "%25,%26,%27,%28,%29,%30,%31}"
#define REGS64                                                                                     \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"  \
    "%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"

/* d (64 x 128) = or += a b: both from shared memory, both with the summed index
 * along their rows. */
template <typename M>
__device__ __forceinline__ void wgmma_rows(float (&d)[64], uint64_t a, uint64_t b, bool add)
{
    if constexpr (__is_same(M, __nv_bfloat16))
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; "
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " REGS64
                     ", %64, %65, p, 1, 1, 0, 0; }"
                     : D16(0), D16(16), D16(32), D16(48)
                     : "l"(a), "l"(b), "r"((int)add));
    else
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; "
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " REGS64
                     ", %64, %65, p, 1, 1, 0, 0; }"
                     : D16(0), D16(16), D16(32), D16(48)
                     : "l"(a), "l"(b), "r"((int)add));
}

/* d (64 x N) += a b: a from registers, b from shared memory with the summed index
 * down its rows.  N = 128 or 64. */
template <typename M>
__device__ __forceinline__ void wgmma_columns(float (&d)[64], const uint32_t a[4], uint64_t b)
{
    if constexpr (__is_same(M, __nv_bfloat16))
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " REGS64
                     ", {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
                     : D16(0), D16(16), D16(32), D16(48)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    else
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " REGS64
                     ", {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
                     : D16(0), D16(16), D16(32), D16(48)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

template <typename M>
__device__ __forceinline__ void wgmma_columns(float (&d)[32], const uint32_t a[4], uint64_t b)
{
    if constexpr (__is_same(M, __nv_bfloat16))
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " REGS32
                     ", {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
                     : D16(0), D16(16)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    else
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " REGS32
                     ", {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
                     : D16(0), D16(16)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* d (64 x 48) = or += a b: a from registers, b from shared memory with the summed
 * index along its rows. */
template <typename M>
__device__ __forceinline__ void wgmma_rows(float (&d)[24], const uint32_t (&a)[4], uint64_t b,
                                           bool add)
{
    if constexpr (__is_same(M, __nv_bfloat16))
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %29, 0; "
                     "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 " REGS24
                     ", {%24,%25,%26,%27}, %28, p, 1, 1, 0; }"
                     : D16(0), D4(16), D4(20)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
    else
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %29, 0; "
                     "wgmma.mma_async.sync.aligned.m64n48k16.f32.f16.f16 " REGS24
                     ", {%24,%25,%26,%27}, %28, p, 1, 1, 0; }"
                     : D16(0), D4(16), D4(20)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}

/* The same with a from shared memory, added. */
template <typename M>
__device__ __forceinline__ void wgmma_rows(float (&d)[24], uint64_t a, uint64_t b)
{
    if constexpr (__is_same(M, __nv_bfloat16))
        asm volatile("wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 " REGS24
                     ", %24, %25, 1, 1, 1, 0, 0;"
                     : D16(0), D4(16), D4(20)
                     : "l"(a), "l"(b));
    else
        asm volatile("wgmma.mma_async.sync.aligned.m64n48k16.f32.f16.f16 " REGS24
                     ", %24, %25, 1, 1, 1, 0, 0;"
                     : D16(0), D4(16), D4(20)
                     : "l"(a), "l"(b));
}

/* d (64 x 128) += a b: both from shared memory, a with the summed index along its
 * rows, b with it down its rows. */
template <typename M>
__device__ __forceinline__ void wgmma_columns(float (&d)[64], uint64_t a, uint64_t b)
{
    if constexpr (__is_same(M, __nv_bfloat16))
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " REGS64
                     ", %64, %65, 1, 1, 1, 0, 1;"
                     : D16(0), D16(16), D16(32), D16(48)
                     : "l"(a), "l"(b));
    else
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " REGS64
                     ", %64, %65, 1, 1, 1, 0, 1;"
                     : D16(0), D16(16), D16(32), D16(48)
                     : "l"(a), "l"(b));
}

#undef D4
#undef D16
#undef REGS24
#undef REGS32
#undef REGS64

#endif

#endif
