/* planner.cu: a step's lengths to the lists that its attention kernels work off,
 * once for all layers of a class.
 *
 *   cu_seqlens, past_seqlens -> list head, units (planner.h), counters at 0
 * Sequences are cut 256 at a time, a thread each; scans over their tallies say where
 * each one's units go, by falling size class and then by sequence; then a thread
 * writes a unit.  A list's length and all of its units are written in every run.
 * Lengths that cannot be true (cu_seqlens that overlap), more units than there is
 * room for, are no work at all.
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

enum { THREADS = 256 };

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

/* What the threads that write units know of a sequence. */
struct sequence {
    struct plan_seq cut;
    struct plan_tally own, start;
    int32_t first, past, fresh;
};

struct shared {
    typename tally_scan::TempStorage scan;
    struct sequence seq[THREADS];
    uint32_t units[THREADS]; /* of the sequences before each one */
};

__device__ void read_sequence(const struct attn_call &c, int list, int b, struct sequence *s)
{
    int tile_rows = c.tile_rows[list];
    s->cut = {};
    s->own = {};
    if (b >= c.batch)
        return;
    sequence_tokens(c, b, &s->first, &s->fresh);
    s->past = c.past_seqlens[b];
    s->cut = cut_sequence(c, c.share[list], s->past, s->fresh, tile_rows);
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

__device__ uint32_t all_units(const struct plan_tally &t)
{
    uint32_t n = 0;
#pragma unroll
    for (int k = 0; k < PLAN_CLASSES; k++)
        n = plan_sum(n, t.n[k]);
    return n;
}

/* The last of n sequences that has no more than u units before it. */
__device__ int unit_sequence(const struct shared *sh, int n, uint32_t u)
{
    int lo = 0, hi = n;
    while (hi - lo > 1) {
        int mid = (lo + hi) >> 1;
        if (sh->units[mid] <= u)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

/* Unit u of sequence b to its place. */
__device__ void write_unit(const struct attn_call &c, int list, int b, const struct sequence &s,
                           uint32_t u)
{
    int32_t tile_rows = c.tile_rows[list], tile, chunk, begin, end;
    plan_place(&s.cut, (int32_t)u, &tile, &chunk);
    plan_chunk_range(&s.cut, chunk, &begin, &end);
    /* More rows than the partial results hold: only cu_seqlens that overlap. */
    bool lost = c.share[list] == SHARE_SPLIT && s.cut.n_chunks > 1 &&
                s.start.rows + (uint32_t)s.fresh > (uint32_t)c.part_rows;
    int row0 = tile * tile_rows;
    int n_rows = lost ? 0 : min(tile_rows, s.fresh * c.group - row0);
    int4 *to = (int4 *)&c.unit[list][plan_slot(&s.own, &s.start, u)];
    to[0] = make_int4(b, s.first, s.past, row0);
    to[1] = make_int4(begin, end, chunk, s.cut.n_chunks);
    to[2] = make_int4(n_rows, (int)s.start.rows, 0, 0);
}

__device__ void write_list(const struct attn_call &c, struct shared *sh, int list)
{
    struct plan_tally total = {}, span = {}, before = {}, start = {};
    struct sequence mine;
    for (int base = 0; base < c.batch; base += THREADS) {
        read_sequence(c, list, base + (int)threadIdx.x, &mine);
        before = scan_tallies(sh, mine.own, &span);
        total = add_tallies()(total, span);
    }
    uint32_t units = all_units(total);
    if (units > (uint32_t)c.most_units[list])
        units = 0;
    if (threadIdx.x == 0) {
        c.list[list]->n_units = (int32_t)units;
        c.list[list]->taken = 0;
    }
    /* Classes follow one another. */
    for (int k = 1; k < PLAN_CLASSES; k++)
        start.n[k] = start.n[k - 1] + total.n[k - 1];
    for (int base = 0; units > 0 && base < c.batch; base += THREADS) {
        if (c.batch > THREADS) {
            read_sequence(c, list, base + (int)threadIdx.x, &mine);
            before = scan_tallies(sh, mine.own, &span);
        }
        mine.start = add_tallies()(start, before);
        sh->seq[threadIdx.x] = mine;
        sh->units[threadIdx.x] = all_units(before);
        start = add_tallies()(start, span);
        __syncthreads();
        uint32_t here = all_units(span);
        for (uint32_t u = threadIdx.x; u < here; u += THREADS) {
            int i = unit_sequence(sh, min((int)THREADS, c.batch - base), u);
            write_unit(c, list, base + i, sh->seq[i], u - sh->units[i]);
        }
        __syncthreads();
    }
}

__global__ void __launch_bounds__(THREADS) planner(const __grid_constant__ struct attn_call c)
{
    __shared__ struct shared sh;
    wait_for_upstream();
    release_downstream();
    write_list(c, &sh, (int)blockIdx.x);
}

} // namespace

cudaError_t prepare_planner(void)
{
    return keep_shared_memory(planner);
}

cudaError_t launch_planner(const struct attn_call *c, cudaStream_t stream)
{
    unsigned lists = c->share[LIST_PREFILL] != SHARE_NONE ? 2 : 1;
    return launch(planner, lists, THREADS, 0, stream, *c);
}
