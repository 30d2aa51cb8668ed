/* generic.cu: any shape and every feature, one CTA a (token, head).
 *
 *   q       fp32 from the prologue          caches  as stored
 *   output  T          qk  scores or probabilities, when asked for
 * launch   grid tokens * heads, 128 threads
 * smem     the query row, 128 weights
 * bound    nothing: it is the kernel of attention_bias, output_qk and head sizes
 *          without an instance, and the oracle of the others on the device
 *
 * Owns nothing.  Called by the backend, after the prologue, on its stream. */
#include "attention/attn.h"
#include "attention/cuda/kernels.h"
#include "attention/cuda/launch.cuh"
#include "attention/cuda/work.cuh"
#include "proto/number/formats.h"

namespace
{

enum { THREADS = 128 };

/* One query head of one token. */
struct query {
    const float *q; /* shared memory */
    const int32_t *row;
    int t, h, kv_head, b, j;
    int64_t position, kv_len;
};

template <typename T>
__device__ __forceinline__ float cached(const struct attn_call &c, const void *cache, int64_t i)
{
    if (c.cache == CACHE_INT8)
        return (float)((const int8_t *)cache)[i];
    if (c.cache == CACHE_E4M3)
        return e4m3_to_float(((const uint8_t *)cache)[i]);
    return to_float(((const T *)cache)[i]);
}

__device__ __forceinline__ float channel_scale(const struct attn_call &c, const float *scale,
                                               bool by_channel, int kv_head, int i)
{
    if (c.cache != CACHE_INT8 && c.cache != CACHE_E4M3)
        return 1.0f;
    return by_channel ? scale[(int64_t)kv_head * c.head_size + i] : scale[0];
}

/* Score of key k after step 4 of the contract; *admitted tells whether it counts. */
template <typename T>
__device__ float score(const struct attn_call &c, const struct query &u, int64_t k, bool *admitted)
{
    *admitted = false;
    if (!attn_visible(u.position, k, u.kv_len, c.window))
        return 0.0f;
    int64_t slot = attn_slot(u.row, c.table_cols, k, c.block_shift, c.num_blocks);
    if (slot < 0)
        return 0.0f;
    *admitted = true;
    int64_t at = (slot * c.kv_heads + u.kv_head) * c.head_size;
    float x = 0.0f;
    for (int i = 0; i < c.head_size; i++)
        x += u.q[i] * (cached<T>(c, c.key_cache, at + i) *
                       channel_scale(c, c.k_scale, c.k_channel, u.kv_head, i));
    x *= c.scale;
    if (c.bias != NULL && u.j >= 0 && u.j < c.bias_rows && k < c.bias_cols) {
        int64_t from = u.b * c.bias_stride_batch + u.h * c.bias_stride_head + u.j * c.bias_cols + k;
        x += to_float(((const T *)c.bias)[from]);
    }
    return attn_softcap(x, c.softcap);
}

__device__ float block_reduce(float x, bool sum, float *scratch)
{
    x = sum ? warp_sum(x) : warp_max(x);
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        scratch[threadIdx.x >> 5] = x;
    __syncthreads();
    float r = scratch[0];
    for (int i = 1; i < THREADS / 32; i++)
        r = sum ? r + scratch[i] : fmaxf(r, scratch[i]);
    return r;
}

__device__ void write_qk(const struct attn_call &c, const struct query &u, int64_t k, float x)
{
    int64_t at = ((int64_t)u.h * c.tokens + u.t) * c.qk_cols + k;
    if (c.qk_dtype == ATTN_F32)
        ((float *)c.qk)[at] = x;
    else if (c.qk_dtype == ATTN_F16)
        ((__half *)c.qk)[at] = __float2half_rn(x);
    else
        ((__nv_bfloat16 *)c.qk)[at] = __float2bfloat16_rn(x);
}

/* Every column of the query's row of output_qk. */
template <typename T>
__device__ void write_qk_row(const struct attn_call &c, const struct query &u, struct attn_state s,
                             float sink, bool has_sink)
{
    float factor = attn_state_finish(s, has_sink, sink);
    for (int64_t k = threadIdx.x; k < c.qk_cols; k += THREADS) {
        bool admitted;
        float x = score<T>(c, u, k, &admitted);
        if (c.qk_mode == ATTN_QK_SCORES)
            write_qk(c, u, k, admitted ? x : -INFINITY);
        else
            write_qk(c, u, k, admitted ? exp_nonpositive(x - s.max) * factor : 0.0f);
    }
}

template <typename T> __global__ void generic(const __grid_constant__ struct attn_call c)
{
    extern __shared__ float shared[];
    float *q = shared, *weight = q + c.head_size, *acc = weight + THREADS;
    float *scratch = acc + c.v_head_size;
    struct query u = {};
    u.t = blockIdx.x / c.heads;
    u.h = blockIdx.x % c.heads;

    wait_for_upstream();
    int first, past;
    u.b = token_sequence(c, u.t, &first, &past);
    u.q = q;
    u.kv_head = u.h / c.group;
    u.position = u.kv_len = -1;
    if (u.b >= 0) {
        u.row = c.block_table + (int64_t)u.b * c.table_cols;
        u.j = u.t - first;
        u.position = query_position(c, u.t, past, u.j);
        u.kv_len = (int64_t)past + c.cu_seqlens[u.b + 1] - first;
        for (int i = threadIdx.x; i < c.head_size; i += THREADS)
            q[i] = ((const float *)c.q)[((int64_t)u.t * c.heads + u.h) * c.q_width + i];
    }
    for (int i = threadIdx.x; i < c.v_head_size; i += THREADS)
        acc[i] = 0.0f;
    __syncthreads();

    struct attn_state s = { ATTN_NO_MAX, 0.0f };
    int64_t begin = attn_first_key(u.position, c.window) & ~(int64_t)(THREADS - 1);
    int64_t capacity = (int64_t)c.table_cols << c.block_shift;
    int64_t end = min(attn_end_key(u.position, u.kv_len), capacity);
    for (int64_t base = begin; base < end; base += THREADS) {
        bool admitted;
        float x = score<T>(c, u, base + threadIdx.x, &admitted);
        float top = fmaxf(s.max, block_reduce(admitted ? x : ATTN_NO_MAX, false, scratch));
        float w = admitted ? exp_nonpositive(x - top) : 0.0f;
        weight[threadIdx.x] = w;
        float old = s.sum > 0.0f ? exp_nonpositive(s.max - top) : 0.0f;
        s.sum = s.sum * old + block_reduce(w, true, scratch);
        s.max = top;
        for (int i = threadIdx.x; i < c.v_head_size; i += THREADS) {
            float a = acc[i] * old;
            for (int k = 0; k < THREADS && base + k < end; k++) {
                if (weight[k] == 0.0f)
                    continue;
                int64_t slot =
                    attn_slot(u.row, c.table_cols, base + k, c.block_shift, c.num_blocks);
                int64_t at = (slot * c.kv_heads + u.kv_head) * c.head_size + i;
                a += weight[k] * cached<T>(c, c.value_cache, at);
            }
            acc[i] = a;
        }
        __syncthreads();
    }
    bool has_sink = c.head_sink != NULL;
    float sink = has_sink ? to_float(((const T *)c.head_sink)[u.h]) : 0.0f;
    float factor = attn_state_finish(s, has_sink, sink);
    T *out = (T *)c.output + ((int64_t)u.t * c.heads + u.h) * c.v_head_size;
    for (int i = threadIdx.x; i < c.v_head_size; i += THREADS)
        out[i] =
            from_float<T>(acc[i] * factor * channel_scale(c, c.v_scale, c.v_channel, u.kv_head, i));
    if (c.qk != NULL)
        write_qk_row<T>(c, u, s, sink, has_sink);
}

} // namespace

cudaError_t launch_generic(const struct attn_call *c, cudaStream_t stream)
{
    size_t smem = ((size_t)c->head_size + c->v_head_size + THREADS + THREADS / 32) * 4;
    unsigned blocks = (unsigned)((int64_t)c->tokens * c->heads);
    const void *f =
        c->dtype_bf16 ? (const void *)generic<__nv_bfloat16> : (const void *)generic<__half>;
    if (smem > 48 * 1024) {
        cudaError_t rc =
            cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
        if (rc != cudaSuccess)
            return rc;
    }
    if (c->dtype_bf16)
        return launch(generic<__nv_bfloat16>, blocks, THREADS, smem, stream, *c);
    return launch(generic<__half>, blocks, THREADS, smem, stream, *c);
}
