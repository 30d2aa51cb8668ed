/* prologue.cu: everything that happens to a token's heads before attention.
 *
 *   query, key, value   this step's rows, T (packed or separate)
 *   -> q                the query as the next kernel wants it (call.h, q_form)
 *   -> caches           K and V rows, normed, rotated, quantised, at their slots
 *   -> output           zeros for padding tokens
 *   -> arrived          zeroed for the kernel that follows
 * Two kernels.  The wide one keeps a row in the registers of 8, 16 or 32 lanes, 16
 * bytes of the input a lane, and reads a token's cos and sin once for all of the heads
 * of a warp; the other takes rows of any width through shared memory.  Static facts
 * choose, so that a row's bits do not depend on the batch.
 * launch   a warp for 1, 2 or 4 rows of a token's Q, K and V heads, or for eight times
 *          as many when tokens are many; 128 threads or fewer
 * smem     wide: none; else one fp32 row of head_size a warp
 * bound    memory: one read, one write; latency where tokens are few
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

/* ---- rows of 16-byte pieces in registers ------------------------------------ */

enum { PIECE = 8 }; /* channels: 16 bytes of T */

/* A lane's part of a row: pieces lane + 32 k, or one where LANES lanes share a row. */
template <int EACH> struct pieces {
    uint4 raw[EACH];
};

/* Eight values from element `at` on. */
template <typename T> __device__ __forceinline__ void read8(const void *p, int64_t at, float *x)
{
    const T *from = (const T *)p + at;
    if (((uintptr_t)from & 15) == 0) {
        uint4 raw = *(const uint4 *)from;
        unpack<T>(raw.x, x);
        unpack<T>(raw.y, x + 2);
        unpack<T>(raw.z, x + 4);
        unpack<T>(raw.w, x + 6);
        return;
    }
#pragma unroll
    for (int e = 0; e < PIECE; e++)
        x[e] = to_float(from[e]);
}

template <typename T> __device__ __forceinline__ uint4 pack8(const float *x)
{
    return make_uint4(pack2<T>(x[0], x[1]), pack2<T>(x[2], x[3]), pack2<T>(x[4], x[5]),
                      pack2<T>(x[6], x[7]));
}

/* What rotates a lane's piece `slot`; half-split pairs: its partner's piece holds the
 * other channels, and sin has the sign of this half. */
struct piece_angles {
    float cos_[PIECE], sin_[PIECE];
    int slot, partner;
    bool turns;
};

template <typename T, int LANES>
__device__ __forceinline__ void read_piece_angles(const struct attn_call &c, int position,
                                                  struct piece_angles *a)
{
    int sub = (threadIdx.x & 31) % LANES, half = c.rotary_dim / 2;
    a->slot = c.rotary_offset / PIECE / LANES;
    a->partner = threadIdx.x & 31;
    int rel = (a->slot * LANES + sub) * PIECE - c.rotary_offset;
    a->turns = rel >= 0 && rel < c.rotary_dim;
    if (!a->turns)
        return;
    int64_t row = (int64_t)min(max(position, 0), c.rotary_rows - 1) * half;
    if (c.rotary_interleaved) {
#pragma unroll
        for (int e = 0; e < PIECE / 2; e++)
            read_angle<T>(c, position, rel / 2 + e, &a->cos_[e], &a->sin_[e]);
        return;
    }
    bool first = rel < half;
    int i = first ? rel : rel - half;
    read8<T>(c.cos_cache, row + i, a->cos_);
    read8<T>(c.sin_cache, row + i, a->sin_);
    a->partner += first ? half / PIECE : -(half / PIECE);
#pragma unroll
    for (int e = 0; e < PIECE; e++)
        a->sin_[e] = first ? -a->sin_[e] : a->sin_[e];
}

/* Called by whole warps; only lanes that turn change their channels. */
__device__ __forceinline__ void rotate_piece(const struct attn_call &c,
                                             const struct piece_angles &a, bool turns, float *x)
{
    if (c.rotary_interleaved) {
#pragma unroll
        for (int e = 0; e < PIECE; e += 2)
            if (turns)
                attn_rope_pair(x + e, x + e + 1, a.cos_[e / 2], a.sin_[e / 2]);
        return;
    }
#pragma unroll
    for (int e = 0; e < PIECE; e++) {
        float other = __shfl_sync(0xffffffffu, x[e], a.partner);
        float y = fmaf(x[e], a.cos_[e], other * a.sin_[e]);
        x[e] = turns ? y : x[e];
    }
}

/* Over the lanes that share a row. */
template <int LANES> __device__ __forceinline__ float lanes_sum(float x)
{
#pragma unroll
    for (int i = LANES / 2; i > 0; i >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}

template <int LANES> __device__ __forceinline__ float lanes_max(float x)
{
#pragma unroll
    for (int i = LANES / 2; i > 0; i >>= 1)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}

/* Which row a lane works on: of Q, K or V (part), head h; not there: none. */
struct row_name {
    int part, h;
    bool there;
};

/* x * w / sqrt(mean(x^2) + epsilon), for the rows that have weights; whole warps. */
template <typename T, int LANES, int EACH>
__device__ __forceinline__ void norm_pieces(const struct attn_call &c, const struct row_name &r,
                                            float (*x)[PIECE])
{
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < EACH; k++)
#pragma unroll
        for (int e = 0; e < PIECE; e++)
            sum = fmaf(x[k][e], x[k][e], sum);
    float f = rsqrtf(lanes_sum<LANES>(sum) / (float)c.head_size + c.epsilon);
    const void *weight = r.part == 0 ? c.q_norm : c.k_norm;
    if (!r.there || r.part > 1 || weight == NULL)
        return;
    int sub = (threadIdx.x & 31) % LANES;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int channel = (k * LANES + sub) * PIECE;
        if (channel >= c.head_size)
            continue;
        float w[PIECE];
        read8<T>(weight, channel, w);
#pragma unroll
        for (int e = 0; e < PIECE; e++)
            x[k][e] = x[k][e] * f * w[e];
    }
}

/* Q as Q_HALF, like write_q_half; whole warps. */
template <int LANES, int EACH>
__device__ __forceinline__ void write_pieces_half(const struct attn_call &c,
                                                  const struct row_name &r, int t,
                                                  float (*x)[PIECE])
{
    int sub = (threadIdx.x & 31) % LANES;
    bool mine = r.there && r.part == 0;
    float largest = 0.0f;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int channel = (k * LANES + sub) * PIECE;
#pragma unroll
        for (int e = 0; e < PIECE; e++) {
            if (mine && c.k_channel && channel < c.head_size)
                x[k][e] *= c.k_scale[(int64_t)(r.h / c.group) * c.head_size + channel + e];
            largest = fmaxf(largest, fabsf(x[k][e]));
        }
    }
    largest = lanes_max<LANES>(largest);
    if (!mine)
        return;
    int exponent = 0;
    if (largest > 0.0f && largest < INFINITY)
        frexpf(largest, &exponent);
    exponent = min(max(exponent, -100), 127); /* both powers stay finite */
    float down = ldexpf(1.0f, -exponent);
    int64_t row = (int64_t)t * c.heads + r.h;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int piece = k * LANES + sub;
        if (piece * PIECE >= c.q_width)
            continue;
        uint32_t p[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            p[i] = pack2<__half>(x[k][2 * i] * down, x[k][2 * i + 1] * down);
        /* Of each 16 channels the first two of every four come first. */
        __half *to = (__half *)c.q + row * c.q_width + (piece & ~1) * PIECE + (piece & 1) * 4;
        *(uint2 *)to = make_uint2(p[0], p[2]);
        *(uint2 *)(to + 8) = make_uint2(p[1], p[3]);
    }
    if (sub == 0)
        c.q_factor[row] = ldexpf(1.0f, exponent) * (c.k_channel ? 1.0f : c.k_scale[0]);
}

/* Q in the form that is wanted; whole warps. */
template <typename T, int LANES, int EACH>
__device__ __forceinline__ void write_pieces(const struct attn_call &c, const struct row_name &r,
                                             int t, float (*x)[PIECE])
{
    int sub = (threadIdx.x & 31) % LANES;
    int64_t row = (int64_t)t * c.heads + r.h;
    if (c.q_form == Q_HALF)
        write_pieces_half<LANES, EACH>(c, r, t, x);
    if (!r.there || r.part != 0)
        return;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int channel = (k * LANES + sub) * PIECE;
        if (c.q_form == Q_HALF || channel >= c.q_width)
            continue;
        if (c.q_form == Q_FLOAT) {
            float4 *to = (float4 *)((float *)c.q + row * c.q_width + channel);
            to[0] = make_float4(x[k][0], x[k][1], x[k][2], x[k][3]);
            to[1] = make_float4(x[k][4], x[k][5], x[k][6], x[k][7]);
        } else {
            *(uint4 *)((T *)c.q + row * c.q_width + channel) = pack8<T>(x[k]);
        }
    }
    if (sub == 0)
        c.arrived[row] = 0;
}

/* A piece of a K or V row at its place in the cache. */
template <typename T>
__device__ __forceinline__ void store_piece(const struct attn_call &c, const struct row_name &r,
                                            int64_t slot, int channel, const float *x)
{
    void *cache = r.part == 1 ? c.key_cache : c.value_cache;
    int64_t at = (slot * c.kv_heads + r.h) * c.head_size + channel;
    if (c.cache == CACHE_BF16 || c.cache == CACHE_F16) {
        *(uint4 *)((T *)cache + at) = pack8<T>(x);
        return;
    }
    const float *scale = r.part == 1 ? c.k_scale : c.v_scale;
    bool by_channel = r.part == 1 ? c.k_channel : c.v_channel;
    uint32_t word[2] = { 0, 0 };
#pragma unroll
    for (int e = 0; e < PIECE; e += 2) {
        float s0 = scale[by_channel ? r.h * c.head_size + channel + e : 0];
        float s1 = by_channel ? scale[r.h * c.head_size + channel + e + 1] : s0;
        uint32_t two;
        if (c.cache == CACHE_INT8)
            two = (uint8_t)quantize_int8(x[e], s0) | (uint32_t)(uint8_t)quantize_int8(x[e + 1], s1)
                                                         << 8;
        else /* a scale of 0 gives 0, like quantize_e4m3 */
            two = floats_e4m3x2(s0 == 0.0f ? 0.0f : x[e] / s0, s1 == 0.0f ? 0.0f : x[e + 1] / s1);
        word[e >> 2] |= two << (e & 2) * 8;
    }
    *(uint2 *)((uint8_t *)cache + at) = make_uint2(word[0], word[1]);
}

template <typename T, int LANES, int EACH>
__device__ __forceinline__ struct pieces<EACH> read_pieces(const struct attn_call &c, int t,
                                                           const struct row_name &r)
{
    struct pieces<EACH> p;
    int sub = (threadIdx.x & 31) % LANES;
    const T *from = r.there ? source_row<T>(c, t, r.part, r.h) : NULL;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int channel = (k * LANES + sub) * PIECE;
        p.raw[k] = r.there && channel < c.head_size ? *(const uint4 *)(from + channel)
                                                    : make_uint4(0, 0, 0, 0);
    }
    return p;
}

__device__ __forceinline__ struct row_name name_row(const struct attn_call &c, int i, int end)
{
    struct row_name r;
    r.there = i < end;
    r.part = part_of(c, i, &r.h);
    return r;
}

/* The rows of one pass; whole warps, b and slot alike for all lanes. */
template <typename T, int LANES, int EACH>
__device__ __forceinline__ void finish_rows(const struct attn_call &c, const struct pieces<EACH> &p,
                                            const struct piece_angles &angle, int t,
                                            const struct row_name &r, int64_t slot)
{
    int sub = (threadIdx.x & 31) % LANES;
    float x[EACH][PIECE];
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        unpack<T>(p.raw[k].x, x[k]);
        unpack<T>(p.raw[k].y, x[k] + 2);
        unpack<T>(p.raw[k].z, x[k] + 4);
        unpack<T>(p.raw[k].w, x[k] + 6);
    }
    if (c.q_norm != NULL || c.k_norm != NULL)
        norm_pieces<T, LANES, EACH>(c, r, x);
    if (c.rotary_dim > 0) {
#pragma unroll
        for (int k = 0; k < EACH; k++)
            rotate_piece(c, angle, angle.turns && r.part < 2 && k == angle.slot, x[k]);
    }
    write_pieces<T, LANES, EACH>(c, r, t, x);
    if (!r.there || r.part == 0 || slot < 0)
        return;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int channel = (k * LANES + sub) * PIECE;
        if (channel < c.head_size)
            store_piece<T>(c, r, slot, channel, x[k]);
    }
}

/* LANES lanes a row, EACH pieces a lane. */
template <typename T, int LANES, int EACH>
__global__ void __launch_bounds__(128, EACH == 1 ? 8 : 4)
    wide_prologue(const __grid_constant__ struct attn_call c, int per_token, int per_warp)
{
    enum { ROWS = 32 / LANES };
    int warp = threadIdx.x >> 5, which = (threadIdx.x & 31) / LANES;
    int warps_a_token = (per_token + per_warp - 1) / per_warp;
    int64_t id = (int64_t)blockIdx.x * (blockDim.x >> 5) + warp;

    wait_for_upstream();
    release_downstream();
    int t = (int)(id / warps_a_token), i = (int)(id % warps_a_token) * per_warp;
    int end = min(i + per_warp, per_token), first, past;
    if (t >= c.tokens)
        return;
    /* Rows are on their way while the sequence is looked for, or the rows before
     * them worked on. */
    struct row_name r = name_row(c, i + which, end);
    struct pieces<EACH> p = read_pieces<T, LANES, EACH>(c, t, r);
    int b = token_sequence(c, t, &first, &past);
    if (b < 0) {
        for (; i < min(end, c.heads); i++)
            zero_output<T>(c, t, i);
        return;
    }
    int legacy = past + t - first;
    int position = c.positions != NULL ? c.positions[t] : legacy;
    int64_t slot = end > c.heads ? token_slot(c, t, b, legacy) : -1;
    struct piece_angles angle = {};
    if (c.rotary_dim > 0)
        read_piece_angles<T, LANES>(c, position, &angle);
    for (; i < end; i += ROWS) {
        struct row_name next = name_row(c, i + ROWS + which, end);
        struct pieces<EACH> later = read_pieces<T, LANES, EACH>(c, t, next);
        finish_rows<T, LANES, EACH>(c, p, angle, t, r, slot);
        p = later;
        r = next;
    }
}

/* Whether the wide kernel takes a call: pairs lie in one piece, or in two of the same
 * number of two lanes. */
bool is_wide(const struct attn_call *c)
{
    const int span = 32 * PIECE; /* of the pieces of one number */
    int last = c->rotary_offset + c->rotary_dim - 1;
    if (c->head_size > 3 * span)
        return false;
    if (c->rotary_dim == 0)
        return true;
    return c->rotary_dim % (c->rotary_interleaved ? PIECE : 2 * PIECE) == 0 &&
           c->rotary_offset / span == last / span;
}

template <typename T>
cudaError_t launch_wide(const struct attn_call *c, int per_token, cudaStream_t stream)
{
    int width = c->q_form == Q_FLOAT ? c->head_size : c->q_width;
    int lanes = width <= 64 ? 8 : width <= 128 ? 16 : 32, per_pass = 32 / lanes;
    int per_warp = (int64_t)c->tokens * per_token <= 16384 ? per_pass : 8 * per_pass;
    int64_t warps = (int64_t)c->tokens * ((per_token + per_warp - 1) / per_warp);
    unsigned blocks = (unsigned)((warps + 3) / 4);
    return width > 256
               ? launch(wide_prologue<T, 32, 3>, blocks, 128, 0, stream, *c, per_token, per_warp)
           : lanes == 8
               ? launch(wide_prologue<T, 8, 1>, blocks, 128, 0, stream, *c, per_token, per_warp)
           : lanes == 16
               ? launch(wide_prologue<T, 16, 1>, blocks, 128, 0, stream, *c, per_token, per_warp)
               : launch(wide_prologue<T, 32, 1>, blocks, 128, 0, stream, *c, per_token, per_warp);
}

template <typename T> cudaError_t prepare_wide(void)
{
    cudaError_t rc = keep_shared_memory(wide_prologue<T, 8, 1>);
    if (rc == cudaSuccess)
        rc = keep_shared_memory(wide_prologue<T, 16, 1>);
    if (rc == cudaSuccess)
        rc = keep_shared_memory(wide_prologue<T, 32, 1>);
    return rc != cudaSuccess ? rc : keep_shared_memory(wide_prologue<T, 32, 3>);
}

} // namespace

cudaError_t prepare_prologue(void)
{
    cudaError_t rc = keep_shared_memory(prologue<__nv_bfloat16>);
    if (rc == cudaSuccess)
        rc = keep_shared_memory(prologue<__half>);
    if (rc == cudaSuccess)
        rc = prepare_wide<__nv_bfloat16>();
    return rc != cudaSuccess ? rc : prepare_wide<__half>();
}

cudaError_t launch_prologue(const struct attn_call *c, cudaStream_t stream)
{
    int per_token = c->heads + c->kv_heads * (c->latent ? 1 : 2);
    if (is_wide(c))
        return c->dtype_bf16 ? launch_wide<__nv_bfloat16>(c, per_token, stream)
                             : launch_wide<__half>(c, per_token, stream);
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
