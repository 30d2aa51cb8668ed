/* rows.cu: the kernels over rows: embedding, norms, activations, copies.
 *
 * A row's result depends on that row alone.  Norms sum in float32 in an order
 * fixed by the width.  What a decode step queues between matmuls starts as a
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

__device__ __forceinline__ void put_vec4(__nv_bfloat16 *out, float4 x, float4 w, float scale)
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
__global__ void norm_vec4(const float4 *x, const float4 *w, float eps, uint32_t width,
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
            put_vec4(out + (threadIdx.x + k * THREADS) * 4, v[k], u[k], scale);
    for (uint32_t i = threadIdx.x + EARLY * THREADS; i < n; i += THREADS)
        put_vec4(out + i * 4, x[i], w[i], scale);
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
struct alignas(16) vec8 {
    __nv_bfloat16 v[8];
};

/* `blocks` blocks a row. */
__global__ void glu_vec8(const __nv_bfloat16 *both, uint32_t width, enum act_kind act, float limit,
                         uint32_t blocks, __nv_bfloat16 *to, size_t to_ld)
{
    uint32_t row = blockIdx.x / blocks, col = (blockIdx.x % blocks * THREADS + threadIdx.x) * 8;
    const __nv_bfloat16 *from = both + (size_t)row * 2 * width + col;
    wait_for_upstream();
    release_downstream();
    if (col >= width)
        return;
    struct vec8 g = *(const struct vec8 *)from, u = *(const struct vec8 *)(from + width), r;
    for (int k = 0; k < 8; k++)
        r.v[k] = __float2bfloat16(activate((float)g.v[k], (float)u.v[k], act, limit));
    *(struct vec8 *)(to + row * to_ld + col) = r;
}

__global__ void glu_scalar(const __nv_bfloat16 *both, uint32_t width, enum act_kind act,
                           float limit, uint32_t blocks, __nv_bfloat16 *to, size_t to_ld)
{
    uint32_t row = blockIdx.x / blocks, col = blockIdx.x % blocks * THREADS + threadIdx.x;
    const __nv_bfloat16 *from = both + (size_t)row * 2 * width + col;
    wait_for_upstream();
    release_downstream();
    if (col < width)
        to[row * to_ld + col] =
            __float2bfloat16(activate((float)from[0], (float)from[width], act, limit));
}

/* ---- moving ---- */

__global__ void copy_parts(const uint16_t *from, size_t from_ld, size_t from_part, uint16_t *to,
                           size_t to_ld, size_t to_part, uint32_t n_parts, uint32_t width)
{
    wait_for_upstream();
    release_downstream();
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
    wait_for_upstream();
    release_downstream();
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
    wait_for_upstream();
    release_downstream();
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < n; i += (size_t)gridDim.x * blockDim.x)
        x[i] = cap * tanhf(x[i] / cap);
}

/* A block a row of every table; the rest place tokens.  A failed output has no token;
 * its row's result is dropped. */
__global__ void arrive(struct step_arrival a)
{
    uint32_t group = blockIdx.x / max(a.n_rows, 1u), row = blockIdx.x - group * a.n_rows;
    wait_for_upstream();
    if (group < a.n_groups && a.n_rows > 0) {
        const int32_t *from = a.table[group] + (size_t)row * a.cols[group];
        for (uint32_t i = threadIdx.x; i < a.cols[group]; i += THREADS)
            a.to[group][(size_t)row * a.to_cols + i] = from[i];
        return;
    }
    uint32_t i = (blockIdx.x - a.n_groups * a.n_rows) * THREADS + threadIdx.x;
    if (i < a.n_patches)
        *a.patch[i].to = max(a.results[a.patch[i].from].token, 0);
}

} // namespace

enum err_code rows_open(struct err *e)
{
    const cudaError_t prepared[] = {
        keep_shared_memory(norm_vec4),     keep_shared_memory(norm_rows),
        keep_shared_memory(norm_add_rows), keep_shared_memory(norm_part_rows),
        keep_shared_memory(gather_rows),   keep_shared_memory(glu_vec8),
        keep_shared_memory(glu_scalar)
    };
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
    bool vec4 = w != NULL && width % 4 == 0 && (uintptr_t)x % 16 == 0 && (uintptr_t)w % 16 == 0 &&
                (uintptr_t)out % 8 == 0;
    keep_fault(o,
               vec4 ? launch(norm_vec4, n, THREADS, 0, o->stream, (const float4 *)x,
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
    bool wide = width % 8 == 0 && to_ld % 8 == 0 && (uintptr_t)to % 16 == 0;
    uint32_t each = THREADS * (wide ? 8 : 1), blocks = (width + each - 1) / each;
    keep_fault(o,
               launch(wide ? glu_vec8 : glu_scalar, n * blocks, THREADS, 0, o->stream, from, width,
                      act, limit, blocks, (__nv_bfloat16 *)to, to_ld),
               "activation");
}

void rows_copy_parts(struct cuda_ops *o, const void *from, size_t from_ld, size_t from_part,
                     void *to, size_t to_ld, size_t to_part, uint32_t n, uint32_t n_parts,
                     uint32_t width)
{
    keep_fault(o,
               launch(copy_parts, n, THREADS, 0, o->stream, (const uint16_t *)from, from_ld,
                      from_part, (uint16_t *)to, to_ld, to_part, n_parts, width),
               "copying parts");
}

void rows_rope(struct cuda_ops *o, const struct op_rope *r, uint32_t n)
{
    keep_fault(o, launch(rope_rows, n, THREADS, 0, o->stream, *r), "rotating");
}

void rows_gather(struct cuda_ops *o, const float *x, const uint32_t *row, uint32_t n,
                 uint32_t width, float *out)
{
    keep_fault(o, launch(gather_rows, n, THREADS, 0, o->stream, x, row, width, out),
               "gathering rows");
}

void rows_softcap(struct cuda_ops *o, float *x, float cap, size_t n)
{
    keep_fault(o, launch(softcap_all, blocks_for(n), THREADS, 0, o->stream, x, cap, n), "softcap");
}

void rows_arrive(struct cuda_ops *o, const struct step_arrival *a)
{
    uint32_t blocks = a->n_groups * a->n_rows + (a->n_patches + THREADS - 1) / THREADS;
    if (blocks > 0)
        keep_fault(o, launch(arrive, blocks, THREADS, 0, o->stream, *a), "placing a step's arrays");
}
