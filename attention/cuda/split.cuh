/* split.cuh: few query rows against long paged histories, keys split over CTAs.
 *
 *   q       [tokens, heads, q_width] from the prologue, 16-bit
 *   caches  [blocks, block_size, kv_heads, head_size] of KIND
 *   part    [rows, max_chunks, heads, v_width] fp32 and (max in log2, sum)
 *   output  T
 * An item is (sequence, 8 or 16 packed rows, chunk of keys, kv head).  The four
 * warps of a CTA split its keys by granules of 16, each with its own ring of stages,
 * so that the main loop has no CTA barrier and every cache byte is read from shared
 * memory once.  Keys are the rows of both matrix products and query rows their
 * columns, so that a group of up to 8 heads fills a tile.  A sequence of one chunk
 * writes its output at once; otherwise the last chunk to arrive merges all of them
 * in chunk order.
 * launch   persistent: CTAS_PER_SM * SMs, 128 threads; fixed at capture
 * smem     4 warps x STAGES x 16 keys x (K + V) rows
 * bound    HBM: 64 rows x 4096 keys x 8 heads x 512 B = 1.07 GB, 244 us at 4.4 TB/s
 *
 * Owns nothing.  Called by the backend, after the prologue, on its stream. */
#ifndef ATTENTION_CUDA_SPLIT_CUH
#define ATTENTION_CUDA_SPLIT_CUH

#include "attention/cuda/cache.cuh"
#include "attention/cuda/epilogue.cuh"
#include "attention/cuda/kernels.h"
#include "attention/cuda/launch.cuh"
#include "attention/cuda/smem_budget.h"
#include "attention/cuda/work.cuh"

namespace split
{

enum {
    WARPS = SPLIT_WARPS,
    THREADS = WARPS * 32,
    GRANULE = SPLIT_GRANULE,
    WARM_BYTES = 12 << 20 /* read ahead by all CTAs together */
};
static_assert((int)GRANULE == (int)PLAN_GRANULE, "what shares a block");

/* Between the warps, in shared memory: each warp's (max, sum) of each row, an item
 * to come, how many of its tile's chunks arrived before this one. */
template <int ROWS> struct exchange {
    float state[WARPS * ROWS * 2];
    int next, rank;
};

/* ROWS packed rows a tile: 8, or 16 for larger groups. */
template <int KIND, int D, int ROWS, int STAGES_> struct shape {
    typedef cache_tile<KIND, D> tile;
    enum {
        STAGES = STAGES_,
        CTAS_PER_SM = split_ctas(tile::ELEMENT, D, ROWS),
        STAGE_BYTES = split_stage_bytes(tile::ELEMENT, D),
        RING_BYTES = STAGES * STAGE_BYTES,
        SMEM_BYTES = split_bytes(tile::ELEMENT, D, ROWS, STAGES),
        DATA_BYTES = SMEM_BYTES - sizeof(struct exchange<ROWS>)
    };
    static_assert(sizeof(struct exchange<ROWS>) == split_exchange_bytes(ROWS), "smem_budget.h");
    static_assert(STAGE_BYTES == 2 * GRANULE * tile::ROW_BYTES, "smem_budget.h");
};

/* The merge of the warps reuses the rings: rows of O, one a warp and row. */
template <int D> struct merge_tile {
    enum { STRIDE = D + 4 };
};

/* What a CTA works on: uniform over its threads, but for my_position. */
template <int ROWS> struct item {
    int first, n_rows, kv_head, chunk, n_chunks, row0;
    int part_row; /* of the sequence's first token, in the partial results */
    int begin, end;
    int low, high;                /* of the valid rows' positions              */
    int my_position[ROWS / 8][2]; /* of rows 8 i + 2 (lane % 4) + {0, 1}; -1 for none */
    const int32_t *table;
};

/* Token and head of row r of an item's tile. */
template <int ROWS>
__device__ __forceinline__ int row_token(const struct attn_call &c, const struct item<ROWS> &w,
                                         int r)
{
    return w.first + (w.row0 + r) / c.group;
}

template <int ROWS>
__device__ __forceinline__ int row_head(const struct attn_call &c, const struct item<ROWS> &w,
                                        int r)
{
    return w.kv_head * c.group + (w.row0 + r) % c.group;
}

template <int ROWS>
__device__ __forceinline__ void find_item(const struct attn_call &c, const struct plan_unit &u,
                                          int kv_head, struct item<ROWS> *w)
{
    int lane = threadIdx.x & 31;
    w->kv_head = kv_head;
    w->first = u.first;
    w->chunk = u.chunk;
    w->n_chunks = u.n_chunks;
    w->row0 = u.row0;
    w->n_rows = u.n_rows;
    w->part_row = u.part_row;
    w->table = c.block_table + (int64_t)u.seq * c.table_cols;

    int r = lane & (ROWS - 1), position = -1;
    if (r < w->n_rows) {
        int j = (w->row0 + r) / c.group;
        position = query_position(c, w->first + j, u.past, j);
    }
#pragma unroll
    for (int k = 0; k < ROWS / 8; k++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            w->my_position[k][e] = __shfl_sync(0xffffffffu, position, k * 8 + (lane & 3) * 2 + e);
    w->high = __reduce_max_sync(0xffffffffu, position);
    w->low = __reduce_min_sync(0xffffffffu, r < w->n_rows ? position : INT32_MAX);
    w->begin = c.window > 0 ? max(u.begin, w->low - c.window + 1) : u.begin;
    w->end = min(u.end - 1, w->high) + 1;
}

/* One warp's running result; lanes hold rows 8 k + 2 (lane % 4) + {0, 1}. */
template <int D, int ROWS> struct state {
    float o[ROWS / 8][D / 16][4];
    float max[ROWS / 8][2], sum[ROWS / 8][2]; /* sum: this lane's share */
};

template <int KIND, int D, int ROWS, int STAGES> struct warp_ring {
    typedef cache_tile<KIND, D> tile;
    typedef shape<KIND, D, ROWS, STAGES> sh;
    const struct attn_call &c;
    const struct item<ROWS> &w;
    uint32_t smem;
    int first, count; /* this warp's granules: first, first + WARPS, ... */
    int blocks;       /* lane i: table entry of granule 32 * n + i       */
    uint32_t mapped;  /* bit i % 32: granule i has a block               */

    __device__ warp_ring(const struct attn_call &call, const struct item<ROWS> &work, uint32_t at)
        : c(call), w(work), smem(at)
    {
    }

    /* w is another item: its granules, and where the first of them lie. */
    __device__ __forceinline__ void restart(void)
    {
        int g0 = w.begin / GRANULE, g1 = (w.end + GRANULE - 1) / GRANULE;
        first = g0 + (int)(threadIdx.x >> 5);
        count = w.end > w.begin && g1 > first ? (g1 - first + WARPS - 1) / WARPS : 0;
        mapped = 0;
        look_up(0);
    }

    /* Start all copies that the stages have room for. */
    __device__ __forceinline__ void fill(void)
    {
        for (int i = 0; i < sh::STAGES - 1; i++)
            fetch(i);
    }

    __device__ __forceinline__ void look_up(int i)
    {
        int n = i + (threadIdx.x & 31);
        blocks = n < count ? granule_block(c, w.table, (first + n * WARPS) * GRANULE) : -1;
    }

    /* Start the copies of granule i (one commit group, empty past the end). */
    __device__ __forceinline__ void fetch(int i)
    {
        if (i < count) {
            if ((i & 31) == 0 && i > 0)
                look_up(i);
            int block = __shfl_sync(0xffffffffu, blocks, i & 31);
            mapped = (mapped & ~(1u << (i & 31))) | ((uint32_t)(block >= 0) << (i & 31));
            int pos = (first + i * WARPS) * GRANULE;
            bool whole =
                pos >= w.begin && pos + GRANULE <= w.end && c.head_size == D && c.v_head_size == D;
            if (block >= 0 && whole)
                copy_whole(i, block);
            else if (block >= 0)
                copy_rows(i, block);
        }
        copy_commit();
    }

    /* A granule that is there in full width and length. */
    __device__ __forceinline__ void copy_whole(int i, int block)
    {
        enum { PER_PASS = 32 / tile::PIECES > 0 ? 32 / tile::PIECES : 1 };
        int lane = threadIdx.x & 31, r0 = PER_PASS > 1 ? lane / tile::PIECES : 0;
        int p = PER_PASS > 1 ? lane % tile::PIECES : lane;
        int pos = (first + i * WARPS) * GRANULE;
        uint32_t slot_bytes = (uint32_t)(c.kv_heads * tile::ROW_BYTES);
        uint32_t slot = cache_slot(c, block, pos) + (uint32_t)r0;
        int64_t at = (int64_t)((uint64_t)slot * slot_bytes) + w.kv_head * tile::ROW_BYTES + p * 16;
        const char *k = (const char *)c.key_cache + at, *v = (const char *)c.value_cache + at;
        uint32_t to = smem + (i % sh::STAGES) * sh::STAGE_BYTES;
#pragma unroll
        for (int r = 0; r < GRANULE; r += PER_PASS) {
            uint32_t step = (uint32_t)r * slot_bytes;
            copy16(to + tile::at(r + r0, p), k + step, 16);
            copy16(to + GRANULE * tile::ROW_BYTES + tile::at(r + r0, p), v + step, 16);
        }
    }

    __device__ __forceinline__ void copy_rows(int i, int block)
    {
        enum {
            PER_PASS = 32 / tile::PIECES > 0 ? 32 / tile::PIECES : 1,
            COLS = tile::PIECES > 32 ? tile::PIECES / 32 : 1
        };
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

    /* Bring the first granules into L2, before what is upstream has finished: with
     * CTAs at work, so many that its own reads need not queue behind them. */
    __device__ __forceinline__ void warm(int ctas)
    {
        int lane = threadIdx.x & 31, row_bytes = c.head_size * tile::ELEMENT;
        int64_t stride = (int64_t)c.kv_heads * row_bytes;
        int most = max(min(WARM_BYTES / (WARPS * sh::STAGE_BYTES) / ctas, 8), 1);
        for (int i = 0; i < min(count, most); i++) {
            int block = __shfl_sync(0xffffffffu, blocks, i);
            if (block < 0)
                continue;
            int pos = (first + i * WARPS) * GRANULE;
            int64_t at = cache_offset(c, block, pos, w.kv_head, row_bytes) + (lane & 15) * stride;
            const char *row = (const char *)(lane < 16 ? c.key_cache : c.value_cache) + at;
            for (int line = 0; line < row_bytes; line += 128)
                warm_l2(row + line);
        }
    }
};

/* Scores of one granule (keys x rows), scaled to log2 units and masked. */
template <int KIND, int D, int ROWS>
__device__ __forceinline__ void scores(const struct attn_call &c, const struct item<ROWS> &w,
                                       const uint32_t (*q)[D / 16][2], const float (*factor)[2],
                                       uint32_t k_tile, int pos, float (*x)[4])
{
    typedef cache_tile<KIND, D> tile;
    typedef typename tile::M M;
    float y[ROWS / 8][4]; /* a second sum, to halve the chain of products */
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++)
        x[i >> 2][i & 3] = y[i >> 2][i & 3] = 0.0f;
#pragma unroll
    for (int s = 0; s < D / 32; s++) {
        uint32_t a[2][4];
        tile::k_left(a, k_tile, 0, s);
#pragma unroll
        for (int k = 0; k < ROWS / 8; k++) {
            mma<M>(x[k], a[0], q[k][s * 2]);
            mma<M>(y[k], a[1], q[k][s * 2 + 1]);
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) {
        float *e = &x[i >> 2][i & 3];
        *e += y[i >> 2][i & 3];
        *e *= factor[i >> 2][i & 1];
        if (c.softcap > 0.0f)
            *e = attn_softcap(*e * 0.6931471805599453f, c.softcap) * 1.4426950408889634f;
    }
    bool whole = pos >= w.begin && pos + GRANULE <= w.end && pos + GRANULE - 1 <= w.low &&
                 (c.window <= 0 || w.high - pos < c.window);
    if (whole)
        return;
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) {
        int k = pos + ((threadIdx.x & 31) >> 2) + (i >> 1 & 1) * 8;
        int p = w.my_position[i >> 2][i & 1];
        bool seen = k >= w.begin && k < w.end && k <= p && (c.window <= 0 || p - k < c.window);
        if (!seen)
            x[i >> 2][i & 3] = -INFINITY;
    }
}

/* Fold one granule into the warp's state. */
template <int KIND, int D, int ROWS>
__device__ __forceinline__ void fold(struct state<D, ROWS> &s, float (*x)[4], uint32_t v_tile)
{
    typedef cache_tile<KIND, D> tile;
    typedef typename tile::M M;
    uint32_t p[ROWS / 8][2];
#pragma unroll
    for (int k = 0; k < ROWS / 8; k++) {
        float shrink[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float top = fmaxf(s.max[k][e], column_max(fmaxf(x[k][e], x[k][2 + e])));
            shrink[e] = exp2_approx(s.max[k][e] - top);
            s.max[k][e] = top;
            s.sum[k][e] *= shrink[e];
        }
        if (__any_sync(0xffffffffu, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
            for (int t = 0; t < D / 16; t++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    s.o[k][t][i] *= shrink[i & 1];
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[k][i] = exp2_approx(x[k][i] - s.max[k][i & 1]);
            s.sum[k][i & 1] += x[k][i];
        }
        p[k][0] = transpose8x8(pack2<M>(x[k][0], x[k][1]));
        p[k][1] = transpose8x8(pack2<M>(x[k][2], x[k][3]));
    }
#pragma unroll
    for (int n = 0; n < D / 32; n++) {
        uint32_t a[2][4];
        tile::v_left(a, v_tile, 0, n);
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int k = 0; k < ROWS / 8; k++)
                mma<M>(s.o[k][n * 2 + h], a[h], p[k]);
    }
}

/* Q fragments of the item's rows, straight from the workspace. */
template <int D, int ROWS>
__device__ __forceinline__ void load_query(const struct attn_call &c, const struct item<ROWS> &w,
                                           uint32_t (*q)[D / 16][2], float (*factor)[2])
{
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int k = 0; k < ROWS / 8; k++) {
        int r = max(min(k * 8 + (lane >> 2), w.n_rows - 1), 0);
        int64_t at = (int64_t)row_token(c, w, r) * c.heads + row_head(c, w, r);
        const uint32_t *row = (const uint32_t *)((const uint16_t *)c.q + at * D);
#pragma unroll
        for (int s = 0; s < D / 16; s++) {
            q[k][s][0] = row[s * 8 + (lane & 3)];
            q[k][s][1] = row[s * 8 + 4 + (lane & 3)];
        }
#pragma unroll
        for (int e = 0; e < 2; e++) {
            r = max(min(k * 8 + (lane & 3) * 2 + e, w.n_rows - 1), 0);
            at = (int64_t)row_token(c, w, r) * c.heads + row_head(c, w, r);
            factor[k][e] =
                c.scale * 1.4426950408889634f * (c.q_form == Q_HALF ? c.q_factor[at] : 1.0f);
        }
    }
}

/* Bring the warps' states to one scale: each row's (max, sum) by warp in ml, and
 * the scaled O of each warp in shared memory. */
template <int KIND, int D, int ROWS>
__device__ __forceinline__ void join_warps(const struct item<ROWS> &w, struct state<D, ROWS> &s,
                                           float *merge, float *ml)
{
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, quad = lane & 3;
#pragma unroll
    for (int i = 0; i < ROWS / 4; i++) {
        int k = i >> 1, e = i & 1, row = k * 8 + quad * 2 + e;
        s.sum[k][e] = column_sum(s.sum[k][e]);
        if (g == 0) {
            ml[(warp * ROWS + row) * 2] = s.max[k][e];
            ml[(warp * ROWS + row) * 2 + 1] = s.sum[k][e];
        }
    }
    __syncthreads(); /* the rings are no longer read either */
    float *mine = merge + warp * ROWS * merge_tile<D>::STRIDE;
#pragma unroll
    for (int i = 0; i < ROWS / 4; i++) {
        int k = i >> 1, e = i & 1, row = k * 8 + quad * 2 + e;
        float top = ATTN_NO_MAX;
        for (int n = 0; n < WARPS; n++)
            top = fmaxf(top, ml[(n * ROWS + row) * 2]);
        float scale = exp2_approx(s.max[k][e] - top);
        if (row >= w.n_rows)
            continue;
#pragma unroll
        for (int t = 0; t < D / 16; t++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                mine[row * merge_tile<D>::STRIDE + cache_tile<KIND, D>::left_channel(t, g, h)] =
                    s.o[k][t][h * 2 + e] * scale;
    }
    __syncthreads();
}

/* (max, sum) of a tile row over the warps. */
template <int ROWS>
__device__ __forceinline__ struct attn_state joined_state(const float *ml, int row)
{
    struct attn_state t = { ATTN_NO_MAX, 0.0f };
    for (int i = 0; i < WARPS; i++)
        t.max = fmaxf(t.max, ml[(i * ROWS + row) * 2]);
    for (int i = 0; i < WARPS; i++)
        t.sum += ml[(i * ROWS + row) * 2 + 1] * exp2_approx(ml[(i * ROWS + row) * 2] - t.max);
    return t;
}

/* Write the joined tile: to the output when the sequence is one chunk, else to
 * the partial results. */
template <int KIND, int D, int ROWS>
__device__ __forceinline__ void store_tile(const struct attn_call &c, const struct item<ROWS> &w,
                                           const float *merge, const float *ml)
{
    for (int i = threadIdx.x * 4; i < w.n_rows * D; i += THREADS * 4) {
        int row = i / D, ch = i % D;
        float4 o = { 0.0f, 0.0f, 0.0f, 0.0f };
        for (int k = 0; k < WARPS; k++) {
            const float4 x = *(const float4 *)&merge[(k * ROWS + row) * merge_tile<D>::STRIDE + ch];
            o.x += x.x;
            o.y += x.y;
            o.z += x.z;
            o.w += x.w;
        }
        struct attn_state t = joined_state<ROWS>(ml, row);
        int head = row_head(c, w, row), token = row_token(c, w, row);
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

/* A chunk whose result is on its way to those that it is merged with. */
struct sent {
    int first, row0, kv_head, part_row, n_rows, n_chunks;
};

/* All partial results of the tile are out, after a barrier: count the chunk. */
__device__ __forceinline__ int count_chunk(const struct attn_call &c, const struct sent &t)
{
    int64_t at =
        (int64_t)(t.first + t.row0 / c.group) * c.heads + t.kv_head * c.group + t.row0 % c.group;
    __threadfence();
    return (int)atomicAdd(&c.arrived[at], 1u);
}

/* Merge the tile's chunks, the last of which has arrived. */
template <int D>
__device__ __forceinline__ void merge_chunks(const struct attn_call &c, const struct sent &t)
{
    for (int r = threadIdx.x >> 5; r < t.n_rows; r += WARPS) {
        int row = t.row0 + r, token = row / c.group;
        merge_row<D>(c, t.first + token, t.part_row + token, t.kv_head * c.group + row % c.group,
                     t.n_chunks);
    }
}

/* An item's keys, whose first copies have been started: a tile for each warp, and
 * the warps' tiles on one scale in shared memory. */
template <int KIND, int D, int ROWS, int STAGES>
__device__ __forceinline__ void compute(const struct attn_call &c, const struct item<ROWS> &w,
                                        struct warp_ring<KIND, D, ROWS, STAGES> &ring, char *data,
                                        struct exchange<ROWS> *ex)
{
    typedef shape<KIND, D, ROWS, STAGES> sh;
    uint32_t q[ROWS / 8][D / 16][2];
    float factor[ROWS / 8][2], x[ROWS / 8][4];
    struct state<D, ROWS> s;
    load_query<D, ROWS>(c, w, q, factor);
#pragma unroll
    for (int k = 0; k < ROWS / 8; k++) {
#pragma unroll
        for (int t = 0; t < D / 16; t++)
            s.o[k][t][0] = s.o[k][t][1] = s.o[k][t][2] = s.o[k][t][3] = 0.0f;
        s.max[k][0] = s.max[k][1] = ATTN_NO_MAX;
        s.sum[k][0] = s.sum[k][1] = 0.0f;
    }
    for (int i = 0; i < ring.count; i++) {
        if constexpr (STAGES > 1)
            copy_wait<STAGES - 2>();
        __syncwarp();
        ring.fetch(i + STAGES - 1);
        if constexpr (STAGES == 1) {
            copy_wait<0>();
            __syncwarp();
        }
        if ((ring.mapped >> (i & 31) & 1u) == 0)
            continue;
        uint32_t k_tile = ring.smem + (i % sh::STAGES) * sh::STAGE_BYTES;
        int pos = (ring.first + i * WARPS) * GRANULE;
        scores<KIND, D, ROWS>(c, w, q, factor, k_tile, pos, x);
        fold<KIND, D, ROWS>(s, x, k_tile + GRANULE * cache_tile<KIND, D>::ROW_BYTES);
    }
    copy_wait<0>();
    join_warps<KIND, D, ROWS>(w, s, (float *)data, ex->state);
}

/* Items of a CTA: its own first, then what the counter gives.  The next item's copies
 * begin before the chunks of the last are merged. */
template <int KIND, int D, int ROWS, int STAGES>
__global__ void __launch_bounds__(THREADS, shape<KIND, D, ROWS, STAGES>::CTAS_PER_SM)
    split_kernel(const __grid_constant__ struct attn_call c)
{
    typedef shape<KIND, D, ROWS, STAGES> sh;
    extern __shared__ __align__(128) char data[];
    struct exchange<ROWS> *ex = (struct exchange<ROWS> *)(data + sh::DATA_BYTES);
    int items = list_items(c, LIST_SPLIT), id = blockIdx.x;
    struct item<ROWS> w;
    uint32_t mine = smem_address(data) + (threadIdx.x >> 5) * sh::RING_BYTES;
    struct warp_ring<KIND, D, ROWS, STAGES> ring(c, w, mine);
    if (id < items) {
        find_item<ROWS>(c, list_unit(c, LIST_SPLIT, id), id % c.kv_heads, &w);
        ring.restart();
        ring.warm(min((int)gridDim.x, items));
    }
    /* Also for who comes after us, and relies on what came before us. */
    wait_for_upstream();
    if (id < items)
        ring.fill();
    while (id < items) {
        struct plan_unit u;
        if (threadIdx.x == 0)
            ex->next = next_item(c, LIST_SPLIT, items);
        compute<KIND, D, ROWS, STAGES>(c, w, ring, data, ex);
        id = ex->next;
        if (id < items)
            u = list_unit(c, LIST_SPLIT, id);
        store_tile<KIND, D, ROWS>(c, w, (const float *)data, ex->state);
        struct sent sent = { w.first, w.row0, w.kv_head, w.part_row, w.n_rows, w.n_chunks };
        __syncthreads();
        int rank = 0;
        if (threadIdx.x == 0 && sent.n_chunks > 1)
            rank = count_chunk(c, sent);
        if (id < items) {
            find_item<ROWS>(c, u, id % c.kv_heads, &w);
            ring.restart();
            ring.fill();
        }
        if (threadIdx.x == 0) {
            ex->rank = rank;
            if (sent.n_chunks > 1 && rank == sent.n_chunks - 1)
                __threadfence(); /* what the others sent is there to be read */
        }
        __syncthreads();
        if (sent.n_chunks > 1 && ex->rank == sent.n_chunks - 1)
            merge_chunks<D>(c, sent);
    }
}

template <int KIND, int D, int ROWS, int STAGES> struct instance {
    typedef shape<KIND, D, ROWS, STAGES> sh;

    static cudaError_t prepare(void)
    {
        return cudaFuncSetAttribute(split_kernel<KIND, D, ROWS, STAGES>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, sh::SMEM_BYTES);
    }

    static cudaError_t start(const struct attn_call *c, const struct device_limits *limits,
                             cudaStream_t stream)
    {
        int ctas = resident_ctas(limits, sh::SMEM_BYTES, sh::CTAS_PER_SM);
        return launch(split_kernel<KIND, D, ROWS, STAGES>, (unsigned)(limits->n_sm * ctas), THREADS,
                      sh::SMEM_BYTES, stream, *c);
    }
};

/* The instance that the device has room for; c NULL: only ready it. */
template <int KIND, int D, int ROWS>
cudaError_t choose(const struct attn_call *c, const struct device_limits *limits,
                   cudaStream_t stream)
{
    constexpr int ELEMENT = cache_tile<KIND, D>::ELEMENT;
    constexpr int FULL = split_full_stages(ELEMENT, D, ROWS);
    constexpr int FEW = split_few_stages(ELEMENT, D, ROWS);
    int stages = split_stages(limits, ELEMENT, D, ROWS);
    static_assert(FULL >= 2, "a ring needs a stage in flight");
    if (stages == FULL)
        return c == NULL ? instance<KIND, D, ROWS, FULL>::prepare()
                         : instance<KIND, D, ROWS, FULL>::start(c, limits, stream);
    if constexpr (FEW != FULL)
        if (stages == FEW)
            return c == NULL ? instance<KIND, D, ROWS, FEW>::prepare()
                             : instance<KIND, D, ROWS, FEW>::start(c, limits, stream);
    return cudaErrorInvalidConfiguration;
}

template <int KIND, int D> cudaError_t prepare_rows(const struct device_limits *limits)
{
    cudaError_t rc = choose<KIND, D, 8>(NULL, limits, 0);
    return rc != cudaSuccess ? rc : choose<KIND, D, 16>(NULL, limits, 0);
}

template <int KIND> cudaError_t prepare_any(int width, const struct device_limits *limits)
{
    return width == 64    ? prepare_rows<KIND, 64>(limits)
           : width == 128 ? prepare_rows<KIND, 128>(limits)
                          : prepare_rows<KIND, 256>(limits);
}

template <int KIND, int D>
cudaError_t start_rows(const struct attn_call *c, const struct device_limits *limits,
                       cudaStream_t stream)
{
    return c->tile_rows[LIST_SPLIT] == 8 ? choose<KIND, D, 8>(c, limits, stream)
                                         : choose<KIND, D, 16>(c, limits, stream);
}

template <int KIND>
cudaError_t start_any(const struct attn_call *c, const struct device_limits *limits,
                      cudaStream_t stream)
{
    return c->q_width == 64    ? start_rows<KIND, 64>(c, limits, stream)
           : c->q_width == 128 ? start_rows<KIND, 128>(c, limits, stream)
                               : start_rows<KIND, 256>(c, limits, stream);
}

} // namespace split

#endif
