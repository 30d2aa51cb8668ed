/* rows.cu: the kernels over rows: embedding, norms, activations, copies.
 *
 * A row's result depends on that row alone.  Norms sum in float32 in an order
 * fixed by the width.  What a decode step queues between products starts as a
 * dependent (attention/cuda/launch.cuh).  See ops_cuda.h. */
#include "attention/cuda/launch.cuh"
#include "attention/cuda/ptx.cuh"
#include "attention/feature_math.h"
#include "model/cuda/activate.cuh"
#include "model/cuda/ops_cuda.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace
{

enum { THREADS = 256 };

unsigned blocks_for(size_t n)
{
    size_t b = (n + THREADS - 1) / THREADS;
    return (unsigned)(b < 65535 * 8 ? b : 65535 * 8);
}

template <typename F>
__global__ void embed_rows(const F *table, const int32_t *token, uint32_t hidden, float scale,
                           float *x)
{
    wait_for_upstream();
    release_downstream();
    const F *from = table + (size_t)token[blockIdx.x] * hidden;
    float *to = x + (size_t)blockIdx.x * hidden;
    for (uint32_t i = threadIdx.x; i < hidden; i += blockDim.x)
        to[i] = (float)from[i] * scale;
}

/* Sum over the block, the same in every thread. */
__device__ float block_sum(float v)
{
    __shared__ float part[32];
    for (int d = 16; d > 0; d /= 2)
        v += __shfl_xor_sync(~0u, v, d);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = v;
    __syncthreads();
    v = threadIdx.x % 32 < blockDim.x / 32 ? part[threadIdx.x % 32] : 0.0f;
    for (int d = 16; d > 0; d /= 2)
        v += __shfl_xor_sync(~0u, v, d);
    __syncthreads();
    return v;
}

template <typename F> __device__ float row_scale(const F *x, uint32_t width, float eps)
{
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x)
        sum += (float)x[i] * (float)x[i];
    return 1.0f / sqrtf(block_sum(sum) / (float)width + eps);
}

/* Four channels a piece, EARLY pieces a thread kept between the two passes. */
enum { EARLY = 4 };

__device__ __forceinline__ void put_four(__nv_bfloat16 *out, float4 x, float4 w, float scale)
{
    uint2 r = { pack2<__nv_bfloat16>(x.x * scale * w.x, x.y * scale * w.y),
                pack2<__nv_bfloat16>(x.z * scale * w.z, x.w * scale * w.w) };
    *(uint2 *)out = r;
}

__device__ __forceinline__ float squares(float4 v)
{
    return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
}

/* width is a multiple of four, all rows lie on 16 bytes. */
__global__ void norm_fours(const float4 *x, const float4 *w, float eps, uint32_t width,
                           __nv_bfloat16 *out)
{
    uint32_t n = width / 4;
    float4 v[EARLY], u[EARLY];
    release_downstream();
#pragma unroll
    for (uint32_t k = 0; k < EARLY; k++)
        if (threadIdx.x + k * THREADS < n)
            u[k] = w[threadIdx.x + k * THREADS];
    wait_for_upstream();
    x += (size_t)blockIdx.x * n;
    out += (size_t)blockIdx.x * width;
    float sum = 0.0f;
#pragma unroll
    for (uint32_t k = 0; k < EARLY; k++)
        if (threadIdx.x + k * THREADS < n)
            v[k] = x[threadIdx.x + k * THREADS];
#pragma unroll
    for (uint32_t k = 0; k < EARLY; k++)
        if (threadIdx.x + k * THREADS < n)
            sum += squares(v[k]);
    for (uint32_t i = threadIdx.x + EARLY * THREADS; i < n; i += THREADS)
        sum += squares(x[i]);
    float scale = 1.0f / sqrtf(block_sum(sum) / (float)width + eps);
#pragma unroll
    for (uint32_t k = 0; k < EARLY; k++)
        if (threadIdx.x + k * THREADS < n)
            put_four(out + (threadIdx.x + k * THREADS) * 4, v[k], u[k], scale);
    for (uint32_t i = threadIdx.x + EARLY * THREADS; i < n; i += THREADS)
        put_four(out + i * 4, x[i], w[i], scale);
}

__global__ void norm_rows(const float *x, const float *w, float eps, uint32_t width,
                          __nv_bfloat16 *out)
{
    wait_for_upstream();
    release_downstream();
    x += (size_t)blockIdx.x * width;
    out += (size_t)blockIdx.x * width;
    float scale = w != NULL ? row_scale(x, width, eps) : 1.0f;
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x)
        out[i] = __float2bfloat16(w != NULL ? x[i] * scale * w[i] : x[i]);
}

__global__ void norm_add_rows(float *x, const float *y, const float *w, float eps, uint32_t width)
{
    wait_for_upstream();
    release_downstream();
    x += (size_t)blockIdx.x * width;
    y += (size_t)blockIdx.x * width;
    float scale = row_scale(y, width, eps);
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x)
        x[i] += y[i] * scale * w[i];
}

__global__ void norm_part_rows(__nv_bfloat16 *y, size_t ld, uint32_t width, const float *w,
                               float eps)
{
    wait_for_upstream();
    release_downstream();
    y += (size_t)blockIdx.x * ld;
    float scale = row_scale(y, width, eps);
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x)
        y[i] = __float2bfloat16((float)y[i] * scale * w[i]);
}

/* ---- activations ---- */

/* Eight at a time where width is a multiple of eight. */
struct alignas(16) eight {
    __nv_bfloat16 v[8];
};

__global__ void glu_eight(const __nv_bfloat16 *both, uint32_t width, enum act_kind act, float limit,
                          size_t n, __nv_bfloat16 *to, size_t to_ld)
{
    uint32_t wide = width / 8;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < n * wide; i += (size_t)gridDim.x * blockDim.x) {
        size_t row = i / wide, col = i % wide * 8;
        const __nv_bfloat16 *from = both + row * 2 * width + col;
        struct eight g = *(const struct eight *)from, u = *(const struct eight *)(from + width), r;
        for (int k = 0; k < 8; k++)
            r.v[k] = __float2bfloat16(activate((float)g.v[k], (float)u.v[k], act, limit));
        *(struct eight *)(to + row * to_ld + col) = r;
    }
}

__global__ void glu_one(const __nv_bfloat16 *both, uint32_t width, enum act_kind act, float limit,
                        size_t n, __nv_bfloat16 *to, size_t to_ld)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < n * width; i += (size_t)gridDim.x * blockDim.x) {
        size_t row = i / width, col = i % width;
        const __nv_bfloat16 *from = both + row * 2 * width + col;
        to[row * to_ld + col] =
            __float2bfloat16(activate((float)from[0], (float)from[width], act, limit));
    }
}

/* ---- moving ---- */

__global__ void copy_parts(const uint16_t *from, size_t from_ld, size_t from_part, uint16_t *to,
                           size_t to_ld, size_t to_part, uint32_t n_parts, uint32_t width)
{
    from += blockIdx.x * from_ld;
    to += blockIdx.x * to_ld;
    for (uint32_t i = threadIdx.x; i < n_parts * width; i += blockDim.x) {
        uint32_t part = i / width, at = i % width;
        to[part * to_part + at] = from[part * from_part + at];
    }
}

/* A CTA a token. */
__global__ void rope_rows(struct op_rope r)
{
    uint32_t t = r.first + blockIdx.x, lo = 0, hi = r.n_rows; /* cu[lo] <= t */
    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;
        if ((uint32_t)r.cu_seqlens[mid] <= t)
            lo = mid;
        else
            hi = mid;
    }
    uint32_t p = min(t - (uint32_t)r.cu_seqlens[lo], r.table_rows - 1), half = r.dim / 2;
    const __nv_bfloat16 *cos_ = (const __nv_bfloat16 *)r.cos + (size_t)p * half;
    const __nv_bfloat16 *sin_ = (const __nv_bfloat16 *)r.sin + (size_t)p * half;
    __nv_bfloat16 *x = (__nv_bfloat16 *)r.x + blockIdx.x * r.ld;
    for (uint32_t i = threadIdx.x; i < r.n_parts * half; i += blockDim.x) {
        uint32_t k = i % half;
        __nv_bfloat16 *part = x + i / half * r.step;
        int32_t at[2];
        attn_rope_channels((int32_t)k, (int32_t)r.dim, r.interleaved, &at[0], &at[1]);
        float a = (float)part[at[0]], b = (float)part[at[1]];
        attn_rope_pair(&a, &b, (float)cos_[k], (float)sin_[k]);
        part[at[0]] = __float2bfloat16(a);
        part[at[1]] = __float2bfloat16(b);
    }
}

__global__ void gather_rows(const float *x, const uint32_t *row, uint32_t width, float *out)
{
    wait_for_upstream();
    release_downstream();
    const float *from = x + (size_t)row[blockIdx.x] * width;
    float *to = out + (size_t)blockIdx.x * width;
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x)
        to[i] = from[i];
}

__global__ void softcap_all(float *x, float cap, size_t n)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < n; i += (size_t)gridDim.x * blockDim.x)
        x[i] = cap * tanhf(x[i] / cap);
}

__global__ void spread_table(const int32_t *from, uint32_t cols, int32_t *to, uint32_t to_cols)
{
    for (uint32_t i = threadIdx.x; i < cols; i += blockDim.x)
        to[(size_t)blockIdx.x * to_cols + i] = from[(size_t)blockIdx.x * cols + i];
}

/* A failed output has no token; its row's result is dropped. */
__global__ void patch_tokens(const struct token_patch *patch, uint32_t n,
                             const struct sample_out *results)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        *patch[i].to = max(results[patch[i].from].token, 0);
}

} // namespace

enum err_code rows_open(struct err *e)
{
    const cudaError_t prepared[] = { keep_shared_memory(norm_fours), keep_shared_memory(norm_rows),
                                     keep_shared_memory(norm_add_rows),
                                     keep_shared_memory(norm_part_rows),
                                     keep_shared_memory(gather_rows) };
    for (cudaError_t rc : prepared)
        if (rc != cudaSuccess)
            return cuda_result(rc, "preparing kernels over rows", e);
    return ERR_OK;
}

void rows_embed(struct cuda_ops *o, const void *table, enum st_dtype dtype, const int32_t *token,
                uint32_t n, uint32_t hidden, float scale, float *x)
{
    cudaError_t rc;
    if (dtype == ST_F32)
        rc = launch(embed_rows<float>, n, THREADS, 0, o->stream, (const float *)table, token,
                    hidden, scale, x);
    else if (dtype == ST_BF16)
        rc = launch(embed_rows<__nv_bfloat16>, n, THREADS, 0, o->stream,
                    (const __nv_bfloat16 *)table, token, hidden, scale, x);
    else
        rc = launch(embed_rows<__half>, n, THREADS, 0, o->stream, (const __half *)table, token,
                    hidden, scale, x);
    keep_fault(o, rc, "embedding");
}

void rows_norm(struct cuda_ops *o, const float *x, const float *w, float eps, uint32_t n,
               uint32_t width, void *out)
{
    __nv_bfloat16 *to = (__nv_bfloat16 *)out;
    bool fours = w != NULL && width % 4 == 0 && (uintptr_t)x % 16 == 0 && (uintptr_t)w % 16 == 0 &&
                 (uintptr_t)out % 8 == 0;
    keep_fault(o,
               fours ? launch(norm_fours, n, THREADS, 0, o->stream, (const float4 *)x,
                              (const float4 *)w, eps, width, to)
                     : launch(norm_rows, n, THREADS, 0, o->stream, x, w, eps, width, to),
               "norm");
}

void rows_norm_add(struct cuda_ops *o, float *x, const float *y, const float *w, float eps,
                   uint32_t n, uint32_t width)
{
    keep_fault(o, launch(norm_add_rows, n, THREADS, 0, o->stream, x, y, w, eps, width),
               "norm onto the residual");
}

void rows_norm_part(struct cuda_ops *o, void *y, size_t ld, uint32_t at, uint32_t width,
                    const float *w, float eps, uint32_t n)
{
    keep_fault(o,
               launch(norm_part_rows, n, THREADS, 0, o->stream, (__nv_bfloat16 *)y + at, ld, width,
                      w, eps),
               "norm of a part");
}

void rows_glu(struct cuda_ops *o, const void *both, uint32_t width, enum act_kind act, float limit,
              uint32_t n, void *to, size_t to_ld)
{
    const __nv_bfloat16 *from = (const __nv_bfloat16 *)both;
    if (width % 8 == 0 && to_ld % 8 == 0 && (uintptr_t)to % 16 == 0)
        glu_eight<<<blocks_for((size_t)n * width / 8), THREADS, 0, o->stream>>>(
            from, width, act, limit, n, (__nv_bfloat16 *)to, to_ld);
    else
        glu_one<<<blocks_for((size_t)n * width), THREADS, 0, o->stream>>>(
            from, width, act, limit, n, (__nv_bfloat16 *)to, to_ld);
    check_launch(o, "activation");
}

void rows_copy_parts(struct cuda_ops *o, const void *from, size_t from_ld, size_t from_part,
                     void *to, size_t to_ld, size_t to_part, uint32_t n, uint32_t n_parts,
                     uint32_t width)
{
    copy_parts<<<n, THREADS, 0, o->stream>>>((const uint16_t *)from, from_ld, from_part,
                                             (uint16_t *)to, to_ld, to_part, n_parts, width);
    check_launch(o, "copying parts");
}

void rows_rope(struct cuda_ops *o, const struct op_rope *r, uint32_t n)
{
    rope_rows<<<n, THREADS, 0, o->stream>>>(*r);
    check_launch(o, "rotating");
}

void rows_gather(struct cuda_ops *o, const float *x, const uint32_t *row, uint32_t n,
                 uint32_t width, float *out)
{
    keep_fault(o, launch(gather_rows, n, THREADS, 0, o->stream, x, row, width, out),
               "gathering rows");
}

void rows_softcap(struct cuda_ops *o, float *x, float cap, size_t n)
{
    softcap_all<<<blocks_for(n), THREADS, 0, o->stream>>>(x, cap, n);
    check_launch(o, "softcap");
}

void rows_spread_table(struct cuda_ops *o, const int32_t *from, uint32_t rows, uint32_t cols,
                       int32_t *to, uint32_t to_cols)
{
    if (rows == 0 || cols == 0)
        return;
    spread_table<<<rows, THREADS, 0, o->stream>>>(from, cols, to, to_cols);
    check_launch(o, "spreading a block table");
}

void rows_patch_tokens(struct cuda_ops *o, const struct token_patch *patch, uint32_t n,
                       const struct sample_out *results)
{
    if (n == 0)
        return;
    patch_tokens<<<blocks_for(n), THREADS, 0, o->stream>>>(patch, n, results);
    check_launch(o, "placing sampled tokens");
}
