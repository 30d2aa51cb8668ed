/* planner.cu: a step's lengths to the lists that its attention kernels work off,
 * once for all layers of a class.
 *
 *   cu_seqlens, past_seqlens -> list head, units (planner.h), counters at 0
 * Sequences are cut 256 at a time, a thread each; scans over their tallies say where
 * each one's units go, by falling size class and then by sequence, and a warp a
 * sequence writes them.  Every unit that is read is written in the same run: a
 * list's length is too.  Lengths that are not true (cu_seqlens that overlap) give
 * at most as many units as there is room for.
 * launch   one CTA a list, 256 threads; fixed at capture
 * smem     the scan's, and what is known of 256 sequences
 * bound    latency: two dependent reads, a scan, a write
 *
 * Owns nothing.  Called by the backend, on its stream. */
#include <cub/block/block_scan.cuh>

#include "attention/cuda/kernels.h"
#include "attention/cuda/launch.cuh"
#include "attention/cuda/work.cuh"

namespace
{

enum { THREADS = 256, WARPS = THREADS / 32 };

struct add_tallies {
    __device__ __forceinline__ struct plan_tally operator()(const struct plan_tally &a,
                                                            const struct plan_tally &b) const
    {
        struct plan_tally t;
#pragma unroll
        for (int k = 0; k < PLAN_CLASSES; k++)
            t.n[k] = plan_sum(a.n[k], b.n[k]);
        t.rows = plan_sum(a.rows, b.rows);
        return t;
    }
};

typedef cub::BlockScan<struct plan_tally, THREADS> tally_scan;

/* A sequence on its way from the thread that cut it to the warp that lists it. */
struct sequence {
    struct plan_seq cut;
    struct plan_tally own, start;
    int32_t first, past, fresh;
};

struct shared {
    typename tally_scan::TempStorage scan;
    struct sequence seq[THREADS];
};

__device__ void read_sequence(const struct attn_call &c, enum share share, int tile_rows, int b,
                              struct sequence *s)
{
    s->cut = {};
    s->own = {};
    if (b >= c.batch)
        return;
    sequence_tokens(c, b, &s->first, &s->fresh);
    s->past = c.past_seqlens[b];
    s->cut = cut_sequence(c, share, s->past, s->fresh, tile_rows);
    s->own = plan_count(&s->cut, s->past, c.positions != NULL ? 0 : c.window, c.group, tile_rows);
    s->own.rows = s->cut.n_tiles > 0 ? (uint32_t)s->fresh : 0;
}

/* Exclusive sums over the CTA's sequences, and their total. */
__device__ struct plan_tally scan_tallies(struct shared *sh, const struct plan_tally &own,
                                          struct plan_tally *total)
{
    struct plan_tally before;
    tally_scan(sh->scan).ExclusiveScan(own, before, plan_tally{}, add_tallies(), *total);
    __syncthreads();
    return before;
}

/* One warp: a sequence's units to their places. */
__device__ void list_sequence(const struct attn_call &c, int list, int b, const struct sequence &s)
{
    int tile_rows = c.tile_rows[list];
    int64_t units = (int64_t)s.cut.n_tiles * s.cut.n_chunks;
    bool lost = s.cut.n_chunks > 1 && !c.latent &&
                s.start.rows + (uint32_t)s.fresh > (uint32_t)c.part_rows;
    for (int64_t u = threadIdx.x & 31; u < units; u += 32) {
        uint32_t at = plan_slot(&s.own, &s.start, (uint32_t)u);
        if (at >= (uint32_t)c.most_units[list])
            break;
        int32_t tile, chunk, begin, end;
        plan_place(&s.cut, (int32_t)u, &tile, &chunk);
        plan_chunk_range(&s.cut, chunk, &begin, &end);
        int row0 = tile * tile_rows;
        int n_rows = lost ? 0 : min(tile_rows, s.fresh * c.group - row0);
        int4 *to = (int4 *)&c.unit[list][at];
        to[0] = make_int4(b, s.first, s.past, row0);
        to[1] = make_int4(begin, end, chunk, s.cut.n_chunks);
        to[2] = make_int4(n_rows, (int)s.start.rows, 0, 0);
    }
}

__device__ void write_list(const struct attn_call &c, struct shared *sh, int list,
                           enum share share)
{
    struct plan_tally total = {}, span = {}, before = {};
    struct sequence mine;
    bool one_span = c.batch <= THREADS;
    for (int base = 0; base < c.batch; base += THREADS) {
        read_sequence(c, share, c.tile_rows[list], base + (int)threadIdx.x, &mine);
        before = scan_tallies(sh, mine.own, &span);
        total = add_tallies()(total, span);
    }
    /* Classes follow one another. */
    struct plan_tally start = {};
    for (int k = 1; k < PLAN_CLASSES; k++)
        start.n[k] = plan_sum(start.n[k - 1], total.n[k - 1]);
    if (threadIdx.x == 0) {
        uint32_t units = plan_sum(start.n[PLAN_CLASSES - 1], total.n[PLAN_CLASSES - 1]);
        c.list[list]->n_units = (int32_t)min(units, (uint32_t)c.most_units[list]);
        c.list[list]->taken = 0;
    }
    for (int base = 0; base < c.batch; base += THREADS) {
        if (!one_span) {
            read_sequence(c, share, c.tile_rows[list], base + (int)threadIdx.x, &mine);
            before = scan_tallies(sh, mine.own, &span);
        }
        mine.start = add_tallies()(start, before);
        sh->seq[threadIdx.x] = mine;
        start = add_tallies()(start, span);
        __syncthreads();
        for (int i = threadIdx.x >> 5; i < min((int)THREADS, c.batch - base); i += WARPS)
            list_sequence(c, list, base + i, sh->seq[i]);
        __syncthreads();
    }
}

__global__ void __launch_bounds__(THREADS) planner(const __grid_constant__ struct attn_call c)
{
    __shared__ struct shared sh;
    wait_for_upstream();
    release_downstream();
    if (blockIdx.x == LIST_PREFILL)
        write_list(c, &sh, LIST_PREFILL, SHARE_PREFILL);
    else
        write_list(c, &sh, LIST_SPLIT, c.latent ? SHARE_LATENT : SHARE_SPLIT);
}

} // namespace

cudaError_t prepare_planner(void)
{
    return keep_shared_memory(planner);
}

cudaError_t launch_planner(const struct attn_call *c, cudaStream_t stream)
{
    unsigned lists = c->tile_rows[LIST_PREFILL] > 0 ? 2 : 1;
    return launch(planner, lists, THREADS, 0, stream, *c);
}
