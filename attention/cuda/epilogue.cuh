/* epilogue.cuh: from accumulated V to the output: the sink once, 1 / sum, V's
 * scale, the output's type; and the merge of partial results in chunk order.
 *
 * States here have their max in log2 units.  Owns nothing; device code only. */
#ifndef ATTENTION_CUDA_EPILOGUE_CUH
#define ATTENTION_CUDA_EPILOGUE_CUH

#include "attention/cuda/call.h"
#include "attention/cuda/ptx.cuh"
#include "attention/feature_math.h"

/* Raw scores of a fragment (rows lane/4, lane/4 + 8) to log2 units. */
__device__ __forceinline__ void scale_scores(const struct attn_call &c, const float factor[2],
                                             float x[4])
{
    if (c.softcap > 0.0f) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = attn_softcap(x[i] * factor[i >> 1] * 0.6931471805599453f, c.softcap) *
                   1.4426950408889634f;
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] *= factor[i >> 1];
    }
}

/* Factor of a head's accumulated V, V's per-tensor scale included. */
__device__ __forceinline__ float output_factor(const struct attn_call &c, struct attn_state s,
                                               int head)
{
    float sink = 0.0f;
    if (c.head_sink != NULL)
        sink = c.dtype_bf16 ? to_float(((const __nv_bfloat16 *)c.head_sink)[head])
                            : to_float(((const __half *)c.head_sink)[head]);
    s.max = s.sum > 0.0f ? s.max * 0.6931471805599453f : ATTN_NO_MAX;
    float f = attn_state_finish(s, c.head_sink != NULL, sink);
    return c.v_scale != NULL && !c.v_channel ? f * c.v_scale[0] : f;
}

/* Four neighbouring channels of (token, head), those inside the head. */
__device__ __forceinline__ void write_output(const struct attn_call &c, int token, int head,
                                             int channel, float4 o, float factor)
{
    if (channel >= c.v_head_size)
        return;
    float x[4] = { o.x * factor, o.y * factor, o.z * factor, o.w * factor };
    if (c.v_channel) {
        const float *scale = c.v_scale + (int64_t)(head / c.group) * c.head_size + channel;
        for (int i = 0; i < 4 && channel + i < c.v_head_size; i++)
            x[i] *= scale[i];
    }
    int64_t at = ((int64_t)token * c.heads + head) * c.v_head_size + channel;
    if (c.v_head_size % 4 == 0) {
        uint2 raw;
        raw.x = c.dtype_bf16 ? pack2<__nv_bfloat16>(x[0], x[1]) : pack2<__half>(x[0], x[1]);
        raw.y = c.dtype_bf16 ? pack2<__nv_bfloat16>(x[2], x[3]) : pack2<__half>(x[2], x[3]);
        *(uint2 *)((uint16_t *)c.output + at) = raw;
        return;
    }
    for (int i = 0; i < 4 && channel + i < c.v_head_size; i++) {
        if (c.dtype_bf16)
            ((__nv_bfloat16 *)c.output)[at + i] = __float2bfloat16_rn(x[i]);
        else
            ((__half *)c.output)[at + i] = __float2half_rn(x[i]);
    }
}

/* One channel of (token, head), V's channel scale included here. */
__device__ __forceinline__ void write_channel(const struct attn_call &c, int token, int head,
                                              int channel, float x)
{
    int64_t at = ((int64_t)token * c.heads + head) * c.v_head_size + channel;
    if (c.v_channel)
        x *= c.v_scale[(int64_t)(head / c.group) * c.head_size + channel];
    if (c.dtype_bf16)
        ((__nv_bfloat16 *)c.output)[at] = __float2bfloat16_rn(x);
    else
        ((__half *)c.output)[at] = __float2half_rn(x);
}

/* Index of a partial result: row is the token's rank among split tokens, or
 * the sequence where it has one token only. */
__device__ __forceinline__ int64_t part_index(const struct attn_call &c, int row, int chunk,
                                              int head)
{
    return ((int64_t)row * c.max_chunks + chunk) * c.heads + head;
}

/* Merge a row's chunks, by one warp, in chunk order.  D is the width of partial
 * rows.  Weights of 32 chunks at a time lie one a lane, so that the reads of O do
 * not wait for those of the states. */
template <int D>
__device__ __forceinline__ void merge_row(const struct attn_call &c, int token, int row, int head,
                                          int n_chunks)
{
    enum { EACH = (D + 127) / 128, UNROLL = EACH == 1 ? 8 : EACH == 2 ? 4 : 2 };
    int lane = threadIdx.x & 31;
    struct attn_state t = { ATTN_NO_MAX, 0.0f };
    float4 o[EACH];
#pragma unroll
    for (int k = 0; k < EACH; k++)
        o[k] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int i = lane; i < n_chunks; i += 32)
        t.max = fmaxf(t.max, __ldcg(&c.part_state[part_index(c, row, i, head) * 2]));
    t.max = warp_max(t.max);
    for (int base = 0; base < n_chunks; base += 32) {
        int mine = base + lane, n = min(32, n_chunks - base);
        float weight = 0.0f;
        if (mine < n_chunks) {
            float2 s = __ldcg((const float2 *)&c.part_state[part_index(c, row, mine, head) * 2]);
            weight = exp2_approx(s.x - t.max);
            t.sum += s.y * weight;
        }
#pragma unroll UNROLL
        for (int i = 0; i < n; i++) {
            float f = __shfl_sync(0xffffffffu, weight, i);
            const float *from = c.part + part_index(c, row, base + i, head) * D;
#pragma unroll
            for (int k = 0; k < EACH; k++) {
                if (k * 128 + lane * 4 >= D)
                    continue;
                float4 x = __ldcg((const float4 *)&from[k * 128 + lane * 4]);
                o[k].x += x.x * f;
                o[k].y += x.y * f;
                o[k].z += x.z * f;
                o[k].w += x.w * f;
            }
        }
    }
    t.sum = warp_sum(t.sum);
    float factor = output_factor(c, t, head);
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        if (k * 128 + lane * 4 < D)
            write_output(c, token, head, k * 128 + lane * 4, o[k], factor);
    }
}

#endif
