/* work.cuh: each kernel's share of a ragged batch, as the planner listed it.
 *
 * Items are a list's units times the KV heads, the heads of a unit adjacent; one
 * counter hands them out.  The list was finished before the kernel's predecessor
 * in the stream began, so it may be read before wait_for_upstream(); the counter
 * may not be touched.
 *
 * Owns nothing; device code only. */
#ifndef ATTENTION_CUDA_WORK_CUH
#define ATTENTION_CUDA_WORK_CUH

#include "attention/cuda/call.h"
#include "attention/cuda/planner.h"
#include "attention/cuda/ptx.cuh"

/* New tokens of sequence b; cu_seqlens is not trusted. */
__device__ __forceinline__ void sequence_tokens(const struct attn_call &c, int b, int *first,
                                                int *n)
{
    int lo = c.cu_seqlens[b], hi = c.cu_seqlens[b + 1];
    lo = min(max(lo, 0), c.tokens);
    hi = min(max(hi, lo), c.tokens);
    *first = lo;
    *n = hi - lo;
}

/* Whether the split kernel serves a sequence of n new tokens. */
__device__ __forceinline__ bool is_split(const struct attn_call &c, int n)
{
    return (int64_t)n * c.group <= c.split_rows;
}

/* Cut a sequence of n new tokens after past for a kernel of tile_rows; nothing
 * where another kernel serves it. */
__device__ __forceinline__ struct plan_seq cut_sequence(const struct attn_call &c, enum share share,
                                                        int past, int n, int tile_rows)
{
    if (share != SHARE_LATENT && is_split(c, n) != (share == SHARE_SPLIT))
        n = 0;
    int capacity = (int)min((int64_t)c.table_cols << c.block_shift, (int64_t)INT32_MAX);
    struct plan_seq s =
        plan_sequence(past, n, c.window, c.positions != NULL, capacity, c.max_chunks, c.group,
                      tile_rows, { c.chunk_least, c.chunks });
    if (share == SHARE_PREFILL || (share == SHARE_LATENT && n > 1)) {
        s.n_chunks = s.n_chunks > 0;
        s.chunk = INT32_MAX;
    }
    return s;
}

/* Items of a list. */
__device__ __forceinline__ int list_items(const struct attn_call &c, int list)
{
    return __ldcg(&c.list[list]->n_units) * c.kv_heads;
}

/* The unit of item id; its head is id % kv_heads. */
__device__ __forceinline__ struct plan_unit list_unit(const struct attn_call &c, int list, int id)
{
    union {
        int4 raw[3];
        struct plan_unit unit;
    } u;
    const int4 *from = (const int4 *)&c.unit[list][id / c.kv_heads];
#pragma unroll
    for (int i = 0; i < 3; i++)
        u.raw[i] = __ldcg(from + i);
    return u.unit;
}

/* An item beyond the first gridDim.x: one call an item that is computed, so that the
 * last call of a launch leaves the counter as it found it. */
__device__ __forceinline__ int next_item(const struct attn_call &c, int list, int items)
{
    return (int)(gridDim.x + atomicInc(&c.list[list]->taken, (unsigned)items - 1));
}

/* The sequence of token t, its first token and its past, by a search whose steps
 * read 32 entries at once; called by a whole warp.  -1 for padding
 * (t >= cu_seqlens[batch]). */
__device__ __forceinline__ int token_sequence(const struct attn_call &c, int t, int *first,
                                              int *past)
{
    int lo = 0, n = c.batch + 1; /* cu[lo] <= t */
    int lane = threadIdx.x & 31;
    for (;;) {
        int step = (n + 31) / 32, i = lo + lane * step;
        bool inside = lane * step < n;
        int start = inside ? c.cu_seqlens[i] : INT32_MAX;
        int cached = step == 1 && inside && i < c.batch ? c.past_seqlens[i] : 0;
        uint32_t votes = __ballot_sync(0xffffffffu, inside && start <= t);
        int k = votes == 0 ? 0 : 31 - __clz(votes);
        if (step == 1) {
            *first = __shfl_sync(0xffffffffu, start, k);
            *past = __shfl_sync(0xffffffffu, cached, k);
            return lo + k >= c.batch ? -1 : lo + k;
        }
        n = min(step, n - k * step);
        lo += k * step;
    }
}

/* Position of query j (token t) of a sequence with past tokens cached. */
__device__ __forceinline__ int query_position(const struct attn_call &c, int t, int past, int j)
{
    return c.positions != NULL ? c.positions[t] : past + j;
}

#endif
