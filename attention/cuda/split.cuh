/* split.cuh: few query rows against long paged histories, keys split over CTAs.
 *
 *   q       [tokens, heads, q_width] from the prologue, 16-bit
 *   caches  [blocks, block_size, kv_heads, head_size] of KIND
 *   part    [rows, max_chunks, heads, v_width] fp32 and (max in log2, sum)
 *   output  T
 * An item is (sequence, 16 packed rows, chunk of keys, kv head).  The four warps
 * of a CTA split its keys by granules of 16, each with its own ring of stages, so
 * that the main loop has no CTA barrier and every cache byte is read from shared
 * memory once.  A sequence of one chunk writes its output at once; otherwise the
 * last chunk to arrive merges all of them in chunk order.
 * launch   persistent: CTAS_PER_SM * SMs, 128 threads; fixed at capture
 * smem     4 warps x STAGES x 16 keys x (K + V) rows, and the work plan
 * bound    HBM: 64 rows x 4096 keys x 8 heads x 512 B = 1.07 GB, 244 us at 4.4 TB/s
 *
 * Owns nothing.  Called by the backend, after the prologue, on its stream. */
#ifndef ATTENTION_CUDA_SPLIT_CUH
#define ATTENTION_CUDA_SPLIT_CUH

#include "attention/cuda/cache.cuh"
#include "attention/cuda/epilogue.cuh"
#include "attention/cuda/kernels.h"
#include "attention/cuda/launch.cuh"
#include "attention/cuda/work.cuh"

namespace split
{

enum { WARPS = 4, THREADS = WARPS * 32, ROWS = 16, GRANULE = PLAN_GRANULE };

template <int KIND, int D> struct shape {
    typedef cache_tile<KIND, D> tile;
    enum {
        STAGE_BYTES = 2 * GRANULE * tile::ROW_BYTES,
        CTAS_PER_SM = STAGE_BYTES <= 8192 ? 2 : 1,
        STAGES = STAGE_BYTES <= 2048 ? 8 : STAGE_BYTES <= 4096 ? 6 : 3,
        RING_BYTES = STAGES * STAGE_BYTES,
        /* The merge of the warps reuses the rings. */
        MERGE_STRIDE = D + 4,
        MERGE_BYTES = WARPS * ROWS * MERGE_STRIDE * 4,
        DATA_BYTES = WARPS * RING_BYTES > MERGE_BYTES ? WARPS * RING_BYTES : MERGE_BYTES,
        SMEM_BYTES = DATA_BYTES + sizeof(struct work_plan) + WARPS * ROWS * 8 + 16
    };
};

/* What a CTA works on: uniform over its threads, but for my_position. */
struct item {
    int seq, first, n_rows, kv_head, chunk, n_chunks, row0;
    int part_row; /* of the sequence's first token, in the partial results */
    int begin, end;
    int low, high; /* of the valid rows' positions */
    int my_position[2]; /* of rows lane/4 and lane/4 + 8; -1 for none */
    const int32_t *table;
};

/* Token and head of packed row r (within the sequence) of an item. */
__device__ __forceinline__ int row_token(const struct attn_call &c, const struct item &w, int r)
{
    return w.first + r / c.group;
}

__device__ __forceinline__ int row_head(const struct attn_call &c, const struct item &w, int r)
{
    return w.kv_head * c.group + r % c.group;
}

__device__ __forceinline__ void find_item(const struct attn_call &c, const struct work_plan *p,
                                          int base, int n, int id, struct item *w)
{
    int u = id / c.kv_heads, lane = threadIdx.x & 31;
    int i = unit_sequence(p, n, u), n_new;
    w->kv_head = id % c.kv_heads;
    w->seq = base + i;
    struct plan_seq s = cut_sequence<SHARE_SPLIT>(c, w->seq, ROWS, &w->first, &n_new);
    u -= p->units[i];
    w->chunk = u % s.n_chunks;
    w->n_chunks = s.n_chunks;
    w->row0 = u / s.n_chunks * ROWS;
    w->n_rows = min(ROWS, n_new * c.group - w->row0);
    w->part_row = p->rows[i];
    w->table = c.block_table + (int64_t)w->seq * c.table_cols;

    int r = lane & 15, position = -1;
    int past = c.past_seqlens[w->seq];
    if (r < w->n_rows) {
        int j = (w->row0 + r) / c.group;
        position = query_position(c, w->first + j, past, j);
    }
    w->my_position[0] = __shfl_sync(0xffffffffu, position, lane >> 2);
    w->my_position[1] = __shfl_sync(0xffffffffu, position, (lane >> 2) + 8);
    w->high = __reduce_max_sync(0xffffffffu, position);
    w->low = __reduce_min_sync(0xffffffffu, r < w->n_rows ? position : INT32_MAX);
    plan_chunk_range(&s, w->chunk, &w->begin, &w->end);
    if (c.window > 0)
        w->begin = max(w->begin, w->low - c.window + 1);
    w->end = min(w->end - 1, w->high) + 1;
    /* More rows than the partial results hold: only cu_seqlens that overlap. */
    if (w->n_chunks > 1 && w->part_row + n_new > c.part_rows)
        w->n_rows = 0;
}

/* One warp's running result: rows lane/4 and lane/4 + 8 of the tile. */
template <int D> struct state {
    float o[D / 8][4];
    float max[2], sum[2]; /* sum: this lane's share */
};

template <int KIND, int D> struct warp_ring {
    typedef cache_tile<KIND, D> tile;
    typedef shape<KIND, D> sh;
    const struct attn_call &c;
    const struct item &w;
    uint32_t smem;
    int first, count;  /* this warp's granules: first, first + WARPS, ... */
    int blocks;        /* lane i: table entry of granule 32 * n + i       */
    uint32_t mapped;   /* bit i % 32: granule i has a block               */

    __device__ warp_ring(const struct attn_call &call, const struct item &work, uint32_t at)
        : c(call), w(work), smem(at), blocks(-1), mapped(0)
    {
        int warp = threadIdx.x >> 5;
        int g0 = w.begin / GRANULE, g1 = (w.end + GRANULE - 1) / GRANULE;
        first = g0 + warp;
        count = w.end > w.begin && g1 > first ? (g1 - first + WARPS - 1) / WARPS : 0;
    }

    /* Start the copies of granule i (one commit group, empty past the end). */
    __device__ __forceinline__ void fetch(int i)
    {
        int lane = threadIdx.x & 31;
        if (i < count) {
            if ((i & 31) == 0) {
                int g = first + (i + lane) * WARPS;
                blocks = i + lane < count ? granule_block(c, w.table, g * GRANULE) : -1;
            }
            int block = __shfl_sync(0xffffffffu, blocks, i & 31);
            mapped = (mapped & ~(1u << (i & 31))) | ((uint32_t)(block >= 0) << (i & 31));
            if (block >= 0)
                copy_rows(i, block);
        }
        copy_commit();
    }

    __device__ __forceinline__ void copy_rows(int i, int block)
    {
        enum { PER_PASS = 32 / tile::PIECES > 0 ? 32 / tile::PIECES : 1,
               COLS = tile::PIECES > 32 ? tile::PIECES / 32 : 1 };
        int lane = threadIdx.x & 31;
        int pos = (first + i * WARPS) * GRANULE;
        int row_bytes = c.head_size * tile::ELEMENT;
        int64_t at = cache_offset(c, block, pos, w.kv_head, row_bytes);
        int64_t stride = (int64_t)c.kv_heads * row_bytes;
        const char *k = (const char *)c.key_cache + at, *v = (const char *)c.value_cache + at;
        uint32_t to = smem + (i % sh::STAGES) * sh::STAGE_BYTES;
        int v_bytes = c.v_head_size * tile::ELEMENT;
#pragma unroll
        for (int r0 = 0; r0 < GRANULE; r0 += PER_PASS) {
#pragma unroll
            for (int col = 0; col < COLS; col++) {
                int r = r0 + (tile::PIECES >= 32 ? 0 : lane / tile::PIECES);
                int p = (tile::PIECES >= 32 ? lane : lane % tile::PIECES) + col * 32;
                bool inside = pos + r >= w.begin && pos + r < w.end;
                int64_t from = inside ? r * stride + p * 16 : 0;
                bool k_real = inside && p * 16 < row_bytes, v_real = inside && p * 16 < v_bytes;
                copy16(to + tile::at(r, p), k_real ? k + from : k, k_real ? 16 : 0);
                copy16(to + GRANULE * tile::ROW_BYTES + tile::at(r, p), v_real ? v + from : v,
                       v_real ? 16 : 0);
            }
        }
    }
};

/* Scores of one granule, scaled to log2 units and masked. */
template <int KIND, int D>
__device__ __forceinline__ void scores(const struct attn_call &c, const struct item &w,
                                       const uint32_t (*q)[4], const float factor[2],
                                       uint32_t k_tile, int pos, float x[2][4])
{
    typedef cache_tile<KIND, D> tile;
    typedef typename tile::M M;
    int quad = threadIdx.x & 3;
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i >> 2][i & 3] = 0.0f;
#pragma unroll
    for (int s = 0; s < D / 32; s++) {
        uint32_t b[2][2][2];
        tile::k_fragments(b, k_tile, 0, s);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            mma<M>(x[0], q[s * 2 + h], b[h][0]);
            mma<M>(x[1], q[s * 2 + h], b[h][1]);
        }
    }
    scale_scores(c, factor, x[0]);
    scale_scores(c, factor, x[1]);
    bool whole = pos >= w.begin && pos + GRANULE <= w.end && pos + GRANULE - 1 <= w.low &&
                 (c.window <= 0 || w.high - pos < c.window);
    if (whole)
        return;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int k = pos + (i >> 2) * 8 + quad * 2 + (i & 1), p = w.my_position[(i >> 1) & 1];
        bool seen = k >= w.begin && k < w.end && k <= p && (c.window <= 0 || p - k < c.window);
        if (!seen)
            x[i >> 2][i & 3] = -INFINITY;
    }
}

/* Fold one granule into the warp's state. */
template <int KIND, int D>
__device__ __forceinline__ void fold(struct state<D> &s, float x[2][4], uint32_t v_tile)
{
    typedef cache_tile<KIND, D> tile;
    typedef typename tile::M M;
    float top[2], shrink[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float m = fmaxf(fmaxf(x[0][r * 2], x[0][r * 2 + 1]), fmaxf(x[1][r * 2], x[1][r * 2 + 1]));
        top[r] = fmaxf(s.max[r], quad_max(m));
        shrink[r] = exp2_approx(s.max[r] - top[r]);
    }
    if (__any_sync(0xffffffffu, top[0] != s.max[0] || top[1] != s.max[1])) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            s.sum[r] *= shrink[r];
            s.max[r] = top[r];
        }
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            s.o[i][0] *= shrink[0];
            s.o[i][1] *= shrink[0];
            s.o[i][2] *= shrink[1];
            s.o[i][3] *= shrink[1];
        }
    }
    uint32_t p[4];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int r = (i >> 1) & 1;
        x[i >> 2][i & 3] = exp2_approx(x[i >> 2][i & 3] - s.max[r]);
        s.sum[r] += x[i >> 2][i & 3];
    }
    p[0] = pack2<M>(x[0][0], x[0][1]);
    p[1] = pack2<M>(x[0][2], x[0][3]);
    p[2] = pack2<M>(x[1][0], x[1][1]);
    p[3] = pack2<M>(x[1][2], x[1][3]);
#pragma unroll
    for (int n = 0; n < D / 32; n++) {
        uint32_t b[4][2];
        tile::v_fragments(b, v_tile, 0, n);
#pragma unroll
        for (int i = 0; i < 4; i++)
            mma<M>(s.o[n * 4 + i], p, b[i]);
    }
}

/* Q fragments of the item's rows, straight from the workspace. */
template <int KIND, int D>
__device__ __forceinline__ void load_query(const struct attn_call &c, const struct item &w,
                                           uint32_t (*q)[4], float factor[2])
{
    int lane = threadIdx.x & 31;
    const uint32_t *rows[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int in_tile = (lane >> 2) + r * 8;
        int row = w.row0 + min(in_tile, w.n_rows - 1);
        int64_t at = (int64_t)row_token(c, w, row) * c.heads + row_head(c, w, row);
        rows[r] = (const uint32_t *)((const uint16_t *)c.q + at * D);
        factor[r] = c.scale * 1.4426950408889634f * (c.q_form == Q_HALF ? c.q_factor[at] : 1.0f);
    }
#pragma unroll
    for (int s = 0; s < D / 16; s++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            q[s][i] = rows[i & 1][s * 8 + (i >> 1) * 4 + (lane & 3)];
    }
}

/* Sum the warps' states into out[row][channel] order: leaves each row's (max, sum)
 * in ml[0..ROWS) and the warps' scaled O in shared memory. */
template <int KIND, int D>
__device__ __forceinline__ void join_warps(const struct item &w, struct state<D> &s, float *merge,
                                           float *ml)
{
    typedef shape<KIND, D> sh;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, quad = lane & 3;
    for (int r = 0; r < 2; r++) {
        s.sum[r] = quad_sum(s.sum[r]);
        if (quad == 0) {
            ml[(warp * ROWS + g + r * 8) * 2] = s.max[r];
            ml[(warp * ROWS + g + r * 8) * 2 + 1] = s.sum[r];
        }
    }
    __syncthreads(); /* the rings are no longer read either */
    float scale[2];
    for (int r = 0; r < 2; r++) {
        float top = ATTN_NO_MAX;
        for (int i = 0; i < WARPS; i++)
            top = fmaxf(top, ml[(i * ROWS + g + r * 8) * 2]);
        scale[r] = exp2_approx(s.max[r] - top);
    }
    float *mine = merge + warp * ROWS * sh::MERGE_STRIDE;
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = g + (i >> 1) * 8;
            if (row < w.n_rows)
                mine[row * sh::MERGE_STRIDE + cache_tile<KIND, D>::channel(n, quad, i & 1)] =
                    s.o[n][i] * scale[i >> 1];
        }
    }
    __syncthreads();
}

/* (max, sum) of a tile row over the warps. */
__device__ __forceinline__ struct attn_state joined_state(const float *ml, int row)
{
    struct attn_state t = {ATTN_NO_MAX, 0.0f};
    for (int i = 0; i < WARPS; i++)
        t.max = fmaxf(t.max, ml[(i * ROWS + row) * 2]);
    for (int i = 0; i < WARPS; i++)
        t.sum += ml[(i * ROWS + row) * 2 + 1] * exp2_approx(ml[(i * ROWS + row) * 2] - t.max);
    return t;
}

/* Write the joined tile: to the output when the sequence is one chunk, else to
 * the partial results. */
template <int KIND, int D>
__device__ __forceinline__ void store_tile(const struct attn_call &c, const struct item &w,
                                           const float *merge, const float *ml)
{
    typedef shape<KIND, D> sh;
    for (int i = threadIdx.x * 4; i < w.n_rows * D; i += THREADS * 4) {
        int row = i / D, ch = i % D;
        float4 o = {0.0f, 0.0f, 0.0f, 0.0f};
        for (int k = 0; k < WARPS; k++) {
            const float4 x = *(const float4 *)&merge[(k * ROWS + row) * sh::MERGE_STRIDE + ch];
            o.x += x.x;
            o.y += x.y;
            o.z += x.z;
            o.w += x.w;
        }
        struct attn_state t = joined_state(ml, row);
        int head = row_head(c, w, w.row0 + row), token = row_token(c, w, w.row0 + row);
        if (w.n_chunks == 1) {
            write_output(c, token, head, ch, o, output_factor(c, t, head));
        } else {
            int64_t at = part_index(c, w.part_row + token - w.first, w.chunk, head);
            *(float4 *)&c.part[at * D + ch] = o;
            if (ch == 0)
                *(float2 *)&c.part_state[at * 2] = make_float2(t.max, t.sum);
        }
    }
}

/* The last chunk of a tile to arrive merges them all. */
template <int D>
__device__ __forceinline__ void merge_chunks(const struct attn_call &c, const struct item &w,
                                             int *arrival)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        int64_t at = (int64_t)row_token(c, w, w.row0) * c.heads + row_head(c, w, w.row0);
        __threadfence();
        *arrival = (int)atomicAdd(&c.arrived[at], 1u);
        __threadfence();
    }
    __syncthreads();
    if (*arrival != w.n_chunks - 1)
        return;
    for (int r = threadIdx.x >> 5; r < w.n_rows; r += WARPS) {
        int head = row_head(c, w, w.row0 + r), token = row_token(c, w, w.row0 + r);
        merge_row<D>(c, token, w.part_row + token - w.first, head, w.n_chunks);
    }
}

template <int KIND, int D>
__device__ __forceinline__ void compute(const struct attn_call &c, const struct item &w,
                                        char *data, float *ml, int *arrival)
{
    typedef shape<KIND, D> sh;
    uint32_t q[D / 16][4];
    float factor[2];
    struct state<D> s;
    warp_ring<KIND, D> ring(c, w, smem_address(data) + (threadIdx.x >> 5) * sh::RING_BYTES);
    for (int i = 0; i < sh::STAGES - 1; i++)
        ring.fetch(i);
    load_query<KIND, D>(c, w, q, factor);
#pragma unroll
    for (int i = 0; i < D / 8; i++)
        s.o[i][0] = s.o[i][1] = s.o[i][2] = s.o[i][3] = 0.0f;
    s.max[0] = s.max[1] = ATTN_NO_MAX;
    s.sum[0] = s.sum[1] = 0.0f;
    for (int i = 0; i < ring.count; i++) {
        copy_wait<sh::STAGES - 2>();
        __syncwarp();
        ring.fetch(i + sh::STAGES - 1);
        if ((ring.mapped >> (i & 31) & 1u) == 0)
            continue;
        uint32_t k_tile = ring.smem + (i % sh::STAGES) * sh::STAGE_BYTES;
        float x[2][4];
        scores<KIND, D>(c, w, q, factor, k_tile, (ring.first + i * WARPS) * GRANULE, x);
        fold<KIND, D>(s, x, k_tile + GRANULE * cache_tile<KIND, D>::ROW_BYTES);
    }
    copy_wait<0>();
    join_warps<KIND, D>(w, s, (float *)data, ml);
    store_tile<KIND, D>(c, w, (const float *)data, ml);
    if (w.n_chunks > 1)
        merge_chunks<D>(c, w, arrival);
}

template <int KIND, int D>
__global__ void __launch_bounds__(THREADS, shape<KIND, D>::CTAS_PER_SM)
    split_kernel(const __grid_constant__ struct attn_call c)
{
    typedef shape<KIND, D> sh;
    extern __shared__ __align__(128) char data[];
    struct work_plan *plan = (struct work_plan *)(data + sh::DATA_BYTES);
    float *ml = (float *)(plan + 1);
    int *arrival = (int *)(ml + WARPS * ROWS * 2);
    int id = blockIdx.x, id0 = 0, rows = 0;
    bool waited = false;

    for (int base = 0; base < c.batch; base += WORK_SPAN) {
        int n = min(WORK_SPAN, c.batch - base);
        plan_work<SHARE_SPLIT, THREADS>(c, plan, base, rows, ROWS);
        rows = plan->rows[n];
        int id1 = id0 + plan->units[n] * c.kv_heads;
        if (!waited)
            wait_for_upstream();
        waited = true;
        while (id < id1) {
            struct item w;
            if (threadIdx.x == 0)
                plan->next = gridDim.x + (int)atomicAdd(c.work, 1u);
            find_item(c, plan, base, n, id - id0, &w);
            if (w.n_rows > 0)
                compute<KIND, D>(c, w, data, ml, arrival);
            __syncthreads();
            id = plan->next;
            __syncthreads();
        }
        id0 = id1;
    }
}

template <int KIND, int D> cudaError_t prepare(void)
{
    return cudaFuncSetAttribute(split_kernel<KIND, D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                shape<KIND, D>::SMEM_BYTES);
}

template <int KIND, int D>
cudaError_t start(const struct attn_call *c, int n_sm, cudaStream_t stream)
{
    typedef shape<KIND, D> sh;
    return launch(split_kernel<KIND, D>, (unsigned)(n_sm * sh::CTAS_PER_SM), THREADS,
                  sh::SMEM_BYTES, stream, *c);
}

template <int KIND> cudaError_t prepare_all(void)
{
    cudaError_t rc = prepare<KIND, 64>();
    if (rc == cudaSuccess)
        rc = prepare<KIND, 128>();
    return rc != cudaSuccess ? rc : prepare<KIND, 256>();
}

template <int KIND>
cudaError_t start_any(const struct attn_call *c, int n_sm, cudaStream_t stream)
{
    return c->q_width == 64    ? start<KIND, 64>(c, n_sm, stream)
           : c->q_width == 128 ? start<KIND, 128>(c, n_sm, stream)
                               : start<KIND, 256>(c, n_sm, stream);
}

} // namespace split

#endif
