/* prologue.cu: everything that happens to a token's heads before attention.
 *
 *   query, key, value   this step's rows, T (packed or separate)
 *   -> q                the query as the next kernel wants it (call.h, q_form)
 *   -> caches           K and V rows, normed, rotated, quantised, at their slots
 *   -> output           zeros for padding tokens
 *   -> arrived          zeroed for the kernel that follows
 * launch   one warp a (token, head) of Q, K and V, or eight heads a warp when tokens
 *          are many; 128 threads or fewer
 * smem     one fp32 row of head_size a warp
 * bound    latency: one read, a norm, a rotation, one write
 *
 * Owns nothing.  Called by the backend, on its stream. */
#include "attention/cuda/kernels.h"
#include "attention/cuda/launch.cuh"
#include "attention/cuda/work.cuh"
#include "proto/number/formats.h"

namespace
{

template <typename T> __device__ __forceinline__ float element(const void *p, int64_t i)
{
    return to_float(((const T *)p)[i]);
}

/* A row is moved in pairs: lane l has elements 64 k + 2 l and the next, so that
 * a warp reads 128 bytes in a row and no two lanes meet in a bank. */
enum { EARLY = 4 }; /* pairs a lane that are read ahead: rows of up to 256 */

struct early_row {
    uint32_t pair[EARLY];
};

template <typename T> __device__ __forceinline__ void unpack(uint32_t pair, float *x)
{
    const T *t = (const T *)&pair;
    *(float2 *)x = make_float2(to_float(t[0]), to_float(t[1]));
}

/* x, a head's row in shared memory: x * w / sqrt(mean(x^2) + epsilon). */
template <typename T>
__device__ void norm_row(const struct attn_call &c, float *x, const void *weight)
{
    int lane = threadIdx.x & 31;
    float sum = 0.0f;
    for (int i = lane; i < c.head_size; i += 32)
        sum += x[i] * x[i];
    float r = rsqrtf(warp_sum(sum) / (float)c.head_size + c.epsilon);
    for (int i = lane; i < c.head_size; i += 32)
        x[i] = x[i] * r * element<T>(weight, i);
    __syncwarp();
}

/* This lane's share of a row of cos and sin: pairs lane + 32 k. */
enum { ANGLES = 4 }; /* rotary_dim up to 256; beyond, they are read again */

struct angles {
    float cos_[ANGLES], sin_[ANGLES];
};

template <typename T>
__device__ __forceinline__ void read_angle(const struct attn_call &c, int position, int i,
                                           float *cos_, float *sin_)
{
    int row = min(max(position, 0), c.rotary_rows - 1);
    int64_t at = (int64_t)row * (c.rotary_dim / 2) + i;
    *cos_ = element<T>(c.cos_cache, at);
    *sin_ = element<T>(c.sin_cache, at);
}

template <typename T>
__device__ __forceinline__ struct angles read_angles(const struct attn_call &c, int position)
{
    int lane = threadIdx.x & 31;
    struct angles a = {};
#pragma unroll
    for (int k = 0; k < ANGLES; k++)
        if (lane + 32 * k < c.rotary_dim / 2)
            read_angle<T>(c, position, lane + 32 * k, &a.cos_[k], &a.sin_[k]);
    return a;
}

__device__ __forceinline__ void rotate_pair(const struct attn_call &c, float *x, int i, float cos_,
                                            float sin_)
{
    int a, b;
    attn_rope_channels(i, c.rotary_dim, c.rotary_interleaved, &a, &b);
    attn_rope_pair(x + c.rotary_offset + a, x + c.rotary_offset + b, cos_, sin_);
}

template <typename T>
__device__ __forceinline__ void rotate_row(const struct attn_call &c, float *x,
                                           const struct angles &angle, int position)
{
    int half = c.rotary_dim / 2, lane = threadIdx.x & 31;
#pragma unroll
    for (int k = 0; k < ANGLES; k++)
        if (lane + 32 * k < half)
            rotate_pair(c, x, lane + 32 * k, angle.cos_[k], angle.sin_[k]);
    for (int i = lane + 32 * ANGLES; i < half; i += 32) {
        float cos_, sin_;
        read_angle<T>(c, position, i, &cos_, &sin_);
        rotate_pair(c, x, i, cos_, sin_);
    }
    __syncwarp();
}

/* Q as Q_HALF: K's channel scales and a power of two folded in. */
__device__ void write_q_half(const struct attn_call &c, float *x, int t, int h)
{
    int lane = threadIdx.x & 31, kv_head = h / c.group;
    float largest = 0.0f;
    for (int i = lane; i < c.head_size; i += 32) {
        if (c.k_channel)
            x[i] *= c.k_scale[(int64_t)kv_head * c.head_size + i];
        largest = fmaxf(largest, fabsf(x[i]));
    }
    largest = warp_max(largest);
    int exponent = 0;
    if (largest > 0.0f && largest < INFINITY)
        frexpf(largest, &exponent);
    exponent = min(max(exponent, -100), 127); /* both powers stay finite */
    float down = ldexpf(1.0f, -exponent);
    __half *q = (__half *)c.q + ((int64_t)t * c.heads + h) * c.q_width;
    for (int i = lane; i < c.q_width; i += 32) {
        int at = i & 15, quad = at >> 2, e = at & 3;
        int place = (i & ~15) + (e < 2 ? 2 * quad + e : 8 + 2 * quad + e - 2);
        q[place] = __float2half_rn(i < c.head_size ? x[i] * down : 0.0f);
    }
    if (lane == 0)
        c.q_factor[(int64_t)t * c.heads + h] =
            ldexpf(1.0f, exponent) * (c.k_channel ? 1.0f : c.k_scale[0]);
}

template <typename T> __device__ void write_q(const struct attn_call &c, float *x, int t, int h)
{
    int lane = threadIdx.x & 31;
    int64_t at = ((int64_t)t * c.heads + h) * c.q_width;
    if (c.q_form == Q_HALF) {
        write_q_half(c, x, t, h);
    } else if (c.q_form == Q_FLOAT) {
        for (int i = lane; i < c.head_size; i += 32)
            ((float *)c.q)[at + i] = x[i];
    } else {
        T *q = (T *)c.q + at;
        for (int i = lane * 2; i < c.head_size; i += 64)
            *(uint32_t *)(q + i) = pack2<T>(x[i], x[i + 1]);
        for (int i = c.head_size + lane; i < c.q_width; i += 32)
            q[i] = from_float<T>(0.0f);
    }
    if (lane == 0)
        c.arrived[(int64_t)t * c.heads + h] = 0;
}

/* Quantise and store a K or V row at slot. */
template <typename T>
__device__ void store_row(const struct attn_call &c, const float *x, void *cache, int64_t slot,
                          int kv_head, const float *scale, bool by_channel)
{
    int lane = threadIdx.x & 31;
    int64_t at = (slot * c.kv_heads + kv_head) * c.head_size;
    if (c.cache == CACHE_BF16 || c.cache == CACHE_F16) {
        for (int i = lane * 2; i < c.head_size; i += 64)
            *(uint32_t *)((T *)cache + at + i) = pack2<T>(x[i], x[i + 1]);
        return;
    }
    for (int i = lane * 2; i < c.head_size; i += 64) {
        uint32_t code[2];
        for (int k = 0; k < 2; k++) {
            float s = by_channel ? scale[(int64_t)kv_head * c.head_size + i + k] : scale[0];
            code[k] = c.cache == CACHE_INT8 ? (uint8_t)quantize_int8(x[i + k], s)
                                            : quantize_e4m3(x[i + k], s);
        }
        *(uint16_t *)((uint8_t *)cache + at + i) = (uint16_t)(code[0] | code[1] << 8);
    }
}

template <typename T> __device__ void zero_output(const struct attn_call &c, int t, int h)
{
    T *out = (T *)c.output + ((int64_t)t * c.heads + h) * c.v_head_size;
    for (int i = threadIdx.x & 31; i < c.v_head_size; i += 32)
        out[i] = from_float<T>(0.0f);
}

/* Where token t's K and V go, -1 for nowhere. */
__device__ int64_t token_slot(const struct attn_call &c, int t, int b, int legacy)
{
    if (c.slot_mapping != NULL)
        return attn_checked_slot(c.slot_mapping[t], (int64_t)c.num_blocks << c.block_shift);
    return attn_slot(c.block_table + (int64_t)b * c.table_cols, c.table_cols, legacy, c.block_shift,
                     c.num_blocks);
}

template <typename T>
__device__ const T *source_row(const struct attn_call &c, int t, int part, int head)
{
    int64_t row = t;
    if (part == 0)
        return (const T *)c.query + row * c.query_stride + (int64_t)head * c.head_size;
    if (c.key == NULL) {
        int64_t skip = c.heads + (part == 2 ? c.kv_heads : 0) + head;
        return (const T *)c.query + row * c.query_stride + skip * c.head_size;
    }
    return (const T *)(part == 1 ? c.key : c.value) + row * c.key_stride +
           (int64_t)head * c.head_size;
}

/* One head of a token, its row's first elements already in flight. */
template <typename T>
__device__ void head(const struct attn_call &c, float *x, const T *from,
                     const struct early_row &early, const struct angles &angle, int t, int part,
                     int h, int64_t slot, int position)
{
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int k = 0; k < EARLY; k++)
        if (k * 64 + lane * 2 < c.head_size)
            unpack<T>(early.pair[k], x + k * 64 + lane * 2);
    for (int i = EARLY * 64 + lane * 2; i < c.head_size; i += 64)
        unpack<T>(*(const uint32_t *)(from + i), x + i);
    __syncwarp();
    const void *weight = part == 0 ? c.q_norm : c.k_norm;
    if (part < 2 && weight != NULL)
        norm_row<T>(c, x, weight);
    if (part < 2 && c.rotary_dim > 0)
        rotate_row<T>(c, x, angle, position);
    if (part == 0)
        write_q<T>(c, x, t, h);
    else
        store_row<T>(c, x, part == 1 ? c.key_cache : c.value_cache, slot, h,
                     part == 1 ? c.k_scale : c.v_scale, part == 1 ? c.k_channel : c.v_channel);
    __syncwarp();
}

/* Head i of the token's Q, K and V heads in turn: which of the three, and which. */
__device__ __forceinline__ int part_of(const struct attn_call &c, int i, int *h)
{
    int part = i < c.heads ? 0 : i < c.heads + c.kv_heads ? 1 : 2;
    *h = part == 0 ? i : part == 1 ? i - c.heads : i - c.heads - c.kv_heads;
    return part;
}

template <typename T>
__device__ __forceinline__ struct early_row start_row(const struct attn_call &c, int t, int i,
                                                      const T **from)
{
    int h, part = part_of(c, i, &h), lane = threadIdx.x & 31;
    struct early_row r;
    *from = source_row<T>(c, t, part, h);
#pragma unroll
    for (int k = 0; k < EARLY; k++)
        r.pair[k] =
            k * 64 + lane * 2 < c.head_size ? *(const uint32_t *)(*from + k * 64 + lane * 2) : 0;
    return r;
}

template <typename T>
__global__ void prologue(const __grid_constant__ struct attn_call c, int per_token, int per_warp)
{
    extern __shared__ float rows[];
    int warp = threadIdx.x >> 5;
    float *x = rows + (int64_t)warp * c.head_size;
    int warps_a_token = (per_token + per_warp - 1) / per_warp;
    int64_t id = (int64_t)blockIdx.x * (blockDim.x >> 5) + warp;

    wait_for_upstream();
    release_downstream();
    int t = (int)(id / warps_a_token), i = (int)(id % warps_a_token) * per_warp;
    int end = min(i + per_warp, per_token), first, past;
    if (t >= c.tokens)
        return;
    /* A row is on its way while the sequence is looked for, or the row before
     * it worked on. */
    const T *from, *next;
    struct early_row early = start_row<T>(c, t, i, &from);
    int b = token_sequence(c, t, &first, &past);
    int legacy = past + t - first;
    int position = b >= 0 && c.positions != NULL ? c.positions[t] : legacy;
    int64_t slot = b >= 0 && end > c.heads ? token_slot(c, t, b, legacy) : -1;
    struct angles angle = {};
    if (c.rotary_dim > 0 && b >= 0)
        angle = read_angles<T>(c, position);
    for (; i < end; i++) {
        int h, part = part_of(c, i, &h);
        struct early_row later = early;
        next = from;
        if (i + 1 < end)
            later = start_row<T>(c, t, i + 1, &next);
        if (b >= 0 && (part == 0 || slot >= 0))
            head<T>(c, x, from, early, angle, t, part, h, slot, position);
        else if (b < 0 && part == 0)
            zero_output<T>(c, t, h);
        early = later;
        from = next;
    }
}

} // namespace

cudaError_t prepare_prologue(void)
{
    cudaError_t rc = keep_shared_memory(prologue<__nv_bfloat16>);
    return rc != cudaSuccess ? rc : keep_shared_memory(prologue<__half>);
}

cudaError_t launch_prologue(const struct attn_call *c, cudaStream_t stream)
{
    int per_token = c->heads + c->kv_heads * (c->latent ? 1 : 2);
    /* A warp a head while that leaves warps to spare, then several heads a warp. */
    int per_warp = (int64_t)c->tokens * per_token <= 16384 ? 1 : 8;
    int64_t warps_a_token = (per_token + per_warp - 1) / per_warp;
    int warps = 4;
    while (warps > 1 && (int64_t)warps * c->head_size * 4 > 48 * 1024)
        warps /= 2;
    unsigned blocks = (unsigned)(((int64_t)c->tokens * warps_a_token + warps - 1) / warps);
    size_t smem = (size_t)warps * c->head_size * 4;
    if (c->dtype_bf16)
        return launch(prologue<__nv_bfloat16>, blocks, warps * 32, smem, stream, *c, per_token,
                      per_warp);
    return launch(prologue<__half>, blocks, warps * 32, smem, stream, *c, per_token, per_warp);
}
