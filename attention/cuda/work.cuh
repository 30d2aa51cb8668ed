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

enum { WORK_SPAN = 1024 }; /* sequences planned at once */

/* In shared memory. */
struct work_plan {
    int32_t units[WORK_SPAN + 1]; /* exclusive sums of tiles * chunks          */
    int32_t rows[WORK_SPAN + 1];  /* exclusive sums of the tokens served here  */
    int32_t warp_units[8], warp_rows[8];
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

/* Cut sequence b for a kernel of tile_rows; nothing where another kernel serves
 * it. */
template <int SHARE>
__device__ __forceinline__ struct plan_seq cut_sequence(const struct attn_call &c, int b,
                                                        int tile_rows, int *first, int *n)
{
    sequence_tokens(c, b, first, n);
    if (SHARE != SHARE_LATENT && is_split(c, *n) != (SHARE == SHARE_SPLIT))
        *n = 0;
    int capacity = (int)min((int64_t)c.table_cols << c.block_shift, (int64_t)INT32_MAX);
    struct plan_seq s =
        plan_sequence(c.past_seqlens[b], *n, c.window, c.positions != NULL, capacity,
                      c.max_chunks, c.group, tile_rows);
    if (s.n_tiles == 0)
        *n = 0;
    if (SHARE == SHARE_PREFILL || (SHARE == SHARE_LATENT && *n > 1)) {
        s.n_chunks = s.n_chunks > 0;
        s.chunk = INT32_MAX;
    }
    return s;
}

/* Plan sequences [base, base + WORK_SPAN): fills p->units and p->rows, carrying
 * rows_before.  Ends in a barrier.  THREADS is a multiple of 32, at most 256. */
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
        int first, k;
        struct plan_seq s = cut_sequence<SHARE>(c, base + i, tile_rows, &first, &k);
        units += s.n_tiles * s.n_chunks;
        rows += k;
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
        int first, k;
        p->units[i] = u;
        p->rows[i] = r;
        struct plan_seq s = cut_sequence<SHARE>(c, base + i, tile_rows, &first, &k);
        u += s.n_tiles * s.n_chunks;
        r += k;
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

/* The sequence of token t by a search whose steps read 32 entries at once;
 * called by a whole warp.  -1 for padding (t >= cu_seqlens[batch]). */
__device__ __forceinline__ int token_sequence(const struct attn_call &c, int t)
{
    int lo = 0, n = c.batch + 1; /* cu[lo] <= t */
    int lane = threadIdx.x & 31;
    while (n > 1) {
        int step = (n + 31) / 32;
        int i = lo + lane * step;
        bool below = lane * step < n && c.cu_seqlens[i] <= t;
        uint32_t votes = __ballot_sync(0xffffffffu, below);
        int k = votes == 0 ? 0 : 31 - __clz(votes);
        n = min(step, n - k * step);
        lo += k * step;
    }
    return lo >= c.batch ? -1 : lo;
}

/* Position of query j (token t) of a sequence with past tokens cached. */
__device__ __forceinline__ int query_position(const struct attn_call &c, int t, int past, int j)
{
    return c.positions != NULL ? c.positions[t] : past + j;
}

#endif
