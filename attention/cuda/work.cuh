/* work.cuh: each kernel's share of a ragged batch, planned on the device.
 *
 * Every CTA scans the step's lengths itself (lengths -> window clip -> tiles and
 * chunks -> prefix sums in shared memory), so there is no planner's list that a
 * replay could find stale, and nothing to launch before.  Items are then handed
 * out by one counter; who computes an item does not change its result.
 *
 * Owns nothing; called by all threads of a CTA together. */
#ifndef ATTENTION_CUDA_WORK_CUH
#define ATTENTION_CUDA_WORK_CUH

#include "attention/cuda/call.h"
#include "attention/cuda/planner.h"
#include "attention/cuda/ptx.cuh"

/* In shared memory: WORK_SPAN sequences at a time. */
struct work_plan {
    int32_t units[WORK_SPAN + 1]; /* exclusive sums of tiles * chunks          */
    int32_t rows[WORK_SPAN + 1];  /* exclusive sums of the tokens served here  */
    int32_t first[WORK_SPAN], fresh[WORK_SPAN], past[WORK_SPAN];
    int32_t warp_units[16], warp_rows[16];
    int32_t next;
};

/* New tokens of sequence b; cu_seqlens is not trusted. */
__device__ __forceinline__ void sequence_tokens(const struct attn_call &c, int b, int *first, int *n)
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

/* Who serves which sequences, and how their keys are cut. */
enum share {
    SHARE_SPLIT,   /* those of few rows, in chunks             */
    SHARE_PREFILL, /* the others, all keys at once             */
    SHARE_LATENT   /* all: one query in chunks, more at once   */
};

/* Cut a sequence of n new tokens after past for a kernel of tile_rows; nothing
 * where another kernel serves it. */
template <int SHARE>
__device__ __forceinline__ struct plan_seq cut_sequence(const struct attn_call &c, int past,
                                                        int n, int tile_rows)
{
    if (SHARE != SHARE_LATENT && is_split(c, n) != (SHARE == SHARE_SPLIT))
        n = 0;
    int capacity = (int)min((int64_t)c.table_cols << c.block_shift, (int64_t)INT32_MAX);
    struct plan_seq s = plan_sequence(past, n, c.window, c.positions != NULL, capacity,
                                      c.max_chunks, c.group, tile_rows);
    if (SHARE == SHARE_PREFILL || (SHARE == SHARE_LATENT && n > 1)) {
        s.n_chunks = s.n_chunks > 0;
        s.chunk = INT32_MAX;
    }
    return s;
}

/* Plan sequences [base, base + WORK_SPAN): fills p->units and p->rows, carrying
 * rows_before.  Ends in a barrier.  THREADS is a multiple of 32, at most 512. */
template <int SHARE, int THREADS>
__device__ void plan_work(const struct attn_call &c, struct work_plan *p, int base,
                          int rows_before, int tile_rows)
{
    int n = min(WORK_SPAN, c.batch - base);
    int each = (n + THREADS - 1) / THREADS;
    int from = min((int)threadIdx.x * each, n), to = min(from + each, n);
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int units = 0, rows = 0;
    for (int i = from; i < to; i++) {
        sequence_tokens(c, base + i, &p->first[i], &p->fresh[i]);
        p->past[i] = c.past_seqlens[base + i];
        struct plan_seq s = cut_sequence<SHARE>(c, p->past[i], p->fresh[i], tile_rows);
        units += s.n_tiles * s.n_chunks;
        rows += s.n_tiles > 0 ? p->fresh[i] : 0;
    }
    int u = units, r = rows;
    for (int d = 1; d < 32; d <<= 1) {
        int du = __shfl_up_sync(0xffffffffu, u, d), dr = __shfl_up_sync(0xffffffffu, r, d);
        if (lane >= d) {
            u += du;
            r += dr;
        }
    }
    if (lane == 31) {
        p->warp_units[warp] = u;
        p->warp_rows[warp] = r;
    }
    __syncthreads();
    u -= units;
    r += rows_before - rows;
    for (int w = 0; w < warp; w++) {
        u += p->warp_units[w];
        r += p->warp_rows[w];
    }
    for (int i = from; i < to; i++) {
        p->units[i] = u;
        p->rows[i] = r;
        struct plan_seq s = cut_sequence<SHARE>(c, p->past[i], p->fresh[i], tile_rows);
        u += s.n_tiles * s.n_chunks;
        r += s.n_tiles > 0 ? p->fresh[i] : 0;
    }
    if (threadIdx.x == THREADS - 1) {
        p->units[n] = u;
        p->rows[n] = r;
    }
    __syncthreads();
}

/* The sequence (relative to base) that unit u belongs to: the last i with
 * units[i] <= u, sequences without units skipped. */
__device__ __forceinline__ int unit_sequence(const struct work_plan *p, int n, int u)
{
    int lo = 0, hi = n;
    while (hi - lo > 1) {
        int mid = (lo + hi) >> 1;
        if (p->units[mid] <= u)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
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
