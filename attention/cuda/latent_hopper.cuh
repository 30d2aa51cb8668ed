/* latent_hopper.cuh: absorbed MLA on sm_90a, 16-bit latents of 576 channels whose
 * first 512 are the value, for all query heads.
 *
 *   q       [tokens, heads, 576] from the prologue
 *   cache   [blocks, block_size, 1, 576], bf16 or fp16
 *   part    [sequences, max_chunks, heads, 512] fp32 and (max in log2, sum)
 *   output  T, 512 a head
 * Items as in latent.cuh: (sequence, 64 packed rows, chunk of keys).  The first
 * warpgroup holds Q (five panels of 64 channels in registers, four in shared memory)
 * and turns tiles of 48 keys into weights in shared memory; the other two each own 256
 * of the 512 output channels, add weights x V to them, and copy the next tile into the
 * stage that they have just left.  Copies run on into the next item.
 * launch   persistent: one CTA of 384 threads a SM; items from the list's counter
 * smem     3 stages of 54 KiB of keys and 8 KiB of weights, Q 32 KiB
 * bound    matrix units: rows x keys x (576 + 512) x 2 FLOP at 780 TFLOP/s
 *
 * Owns nothing.  Called by the backend, after the prologue, on its stream. */
#ifndef ATTENTION_CUDA_LATENT_HOPPER_CUH
#define ATTENTION_CUDA_LATENT_HOPPER_CUH

#include "attention/cuda/cache.cuh"
#include "attention/cuda/epilogue.cuh"
#include "attention/cuda/kernels.h"
#include "attention/cuda/launch.cuh"
#include "attention/cuda/smem_budget.h"
#include "attention/cuda/wgmma.cuh"
#include "attention/cuda/work.cuh"

namespace latent_hopper
{

enum {
    GROUP = 128,
    THREADS = 3 * GROUP,
    ROWS = LATENT_ROWS,
    KEYS = 48, /* with 64, Q would need more registers than a warpgroup can have */
    GRANULES = KEYS / PLAN_GRANULE,
    STAGES = 3,
    DK = LATENT_K,
    DV = 512,
    PANELS = DK / 64,
    PANEL_BYTES = KEYS * 128, /* of keys: 64 channels */
    TILE_BYTES = PANELS * PANEL_BYTES,
    HALF_PANELS = DV / 2 / 64,                 /* of one warpgroup's value channels */
    WEIGHT_BYTES = ROWS * 128,                 /* rows of 96 bytes, padded */
    QUERY_PANELS = 4,                          /* the last ones, in shared memory */
    QUERY_STEPS = (PANELS - QUERY_PANELS) * 4, /* of 16 channels, in registers */
    QUERY_PANEL_BYTES = ROWS * 128,
    WEIGHTS_AT = STAGES * TILE_BYTES,
    QUERY_AT = WEIGHTS_AT + STAGES * WEIGHT_BYTES,
    DATA_BYTES = QUERY_AT + QUERY_PANELS * QUERY_PANEL_BYTES,
    SMEM_BYTES = latent_hopper_bytes()
};
static_assert(TILE_BYTES % 1024 == 0 && PANEL_BYTES % 1024 == 0, "swizzled panels");

/* What all warpgroups need of an item; id -1: there is none. */
struct item {
    int id, seq, first, past, n_rows, row0, chunk, n_chunks;
    int begin, end, pos0, n; /* keys; first tile, tiles            */
    int low, high;           /* positions of the tile's valid rows */
};

/* Barriers and notes between the warpgroups, in shared memory.  The n-th item of
 * a CTA lies in slot n % 2, the n-th tile in stage n % STAGES. */
struct mailbox {
    uint64_t full[STAGES], weights_full[STAGES];
    uint64_t item_full[2], item_empty[2], sums_full[2];
    uint32_t mapped[STAGES];    /* bit i: granule i has a block     */
    float shrink[STAGES][ROWS]; /* what O is multiplied by first */
    float factor[2][ROWS];      /* of an item's finished rows       */
    int position[ROWS];         /* of its rows; -1 for none         */
    float max[ROWS], sum[ROWS]; /* of its rows so far               */
    struct item item[2];
};
static_assert(DATA_BYTES + sizeof(struct mailbox) <= SMEM_BYTES, "smem_budget.h");

__device__ __forceinline__ uint32_t bar(const uint64_t *b)
{
    return smem_address(b);
}

/* Byte offset of piece p (16 bytes) of row r in a panel. */
__device__ __forceinline__ uint32_t panel_at(int r, int p)
{
    return (uint32_t)(r * 128 + ((p ^ r) & 7) * 16);
}

/* Find item id for everybody; called by one warp. */
__device__ __forceinline__ void find_item(const struct attn_call &c, int id, int items,
                                          struct item *to)
{
    int lane = threadIdx.x & 31;
    if (id >= items) {
        if (lane == 0)
            to->id = -1;
        return;
    }
    struct plan_unit u = list_unit(c, LIST_SPLIT, id);
    int low = INT32_MAX, high = -1;
    for (int r = lane; r < u.n_rows; r += 32) {
        int j = (u.row0 + r) / c.group;
        int position = query_position(c, u.first + j, u.past, j);
        low = min(low, position);
        high = max(high, position);
    }
    low = __reduce_min_sync(0xffffffffu, low);
    high = __reduce_max_sync(0xffffffffu, high);
    if (lane != 0)
        return;
    int begin = c.window > 0 ? max(u.begin, low - c.window + 1) : u.begin;
    int end = min(u.end - 1, high) + 1, pos0 = begin & ~(PLAN_GRANULE - 1);
    to->id = id;
    to->seq = u.seq;
    to->first = u.first;
    to->past = u.past;
    to->n_rows = u.n_rows;
    to->row0 = u.row0;
    to->chunk = u.chunk;
    to->n_chunks = u.n_chunks;
    to->begin = begin;
    to->end = end;
    to->pos0 = pos0;
    to->n = end > begin ? (end - pos0 + KEYS - 1) / KEYS : 0;
    to->low = low;
    to->high = high;
}

__device__ __forceinline__ int64_t row_index(const struct attn_call &c, const struct item &w, int r)
{
    int row = w.row0 + min(r, w.n_rows - 1);
    return (int64_t)(w.first + row / c.group) * c.heads + row % c.group;
}

/* A warp has read what it needs of the n-th item. */
__device__ __forceinline__ void leave_item(struct mailbox *box, int nth)
{
    __syncwarp();
    if ((threadIdx.x & 31) == 0)
        barrier_arrive(bar(&box->item_empty[nth & 1]));
}

__device__ __forceinline__ const struct item &enter_item(struct mailbox *box, int nth)
{
    barrier_wait(bar(&box->item_full[nth & 1]), nth >> 1 & 1);
    return box->item[nth & 1];
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---- copies: by the two warpgroups of values --------------------------------------- */

/* The tile that is copied next, and is on its way to L2: tile `at` of the n-th item; lane i knows
 * the block of granule i % 4, -1 beyond the tile, where `known`. */
struct cursor {
    int nth, at, stage, block;
    bool known;
};

__device__ __forceinline__ void look_up(const struct attn_call &c, const struct item &w,
                                        struct cursor *k, bool warm)
{
    int granule = threadIdx.x & 3, pos = w.pos0 + k->at * KEYS + granule * PLAN_GRANULE;
    const int32_t *table = c.block_table + (int64_t)w.seq * c.table_cols;
    k->block = granule < GRANULES && pos < w.end ? granule_block(c, table, pos) : -1;
    if (warm && k->block >= 0)
        warm_l2_run((const char *)c.key_cache + cache_offset(c, k->block, pos, 0, DK * 2),
                    PLAN_GRANULE * DK * 2);
    k->known = true;
}

/* Start the copies of one tile: this warpgroup's four panels of values, and its
 * share of the keys' last panel. */
__device__ __forceinline__ void copy_tile(const struct attn_call &c, const struct item &w,
                                          const struct cursor &k, uint32_t data, int half)
{
    int tid = threadIdx.x & (GROUP - 1), p = tid & 7, r0 = tid >> 3;
    int pos = w.pos0 + k.at * KEYS;
    bool whole = pos >= w.begin && pos + KEYS <= w.end;
    uint32_t to = data + k.stage * TILE_BYTES + half * HALF_PANELS * PANEL_BYTES + panel_at(r0, p);
    int last = DV / 64 - half * HALF_PANELS; /* panels to the last one */
#pragma unroll
    for (int g = 0; g < GRANULES; g++) {
        int block = __shfl_sync(0xffffffffu, k.block, g), key = pos + g * PLAN_GRANULE;
        bool inside = block >= 0 && (whole || (key + r0 >= w.begin && key + r0 < w.end));
        uint32_t slot = cache_slot(c, block, key) + (uint32_t)r0;
        const char *from = (const char *)c.key_cache + (inside ? (uint64_t)slot * (DK * 2) : 0) +
                           half * HALF_PANELS * 128 + p * 16;
        uint32_t row = to + g * PLAN_GRANULE * 128;
#pragma unroll
        for (int i = 0; i < HALF_PANELS; i++)
            copy16(row + i * PANEL_BYTES, from + i * 128, inside ? 16 : 0);
        if ((g > 0) == half)
            copy16(row + last * PANEL_BYTES, from + last * 128, inside ? 16 : 0);
    }
}

/* Copy tiles of items up to `last` into the stages that are free. */
__device__ __forceinline__ void copy_ahead(const struct attn_call &c, struct mailbox *box,
                                           struct cursor *k, uint32_t data, int half, int last,
                                           int *free)
{
    while (*free > 0 && k->nth <= last) {
        const struct item &w = enter_item(box, k->nth);
        if (w.id < 0)
            return;
        if (w.n == 0) {
            k->nth++;
            continue;
        }
        if (!k->known)
            look_up(c, w, k, half == 0 && (threadIdx.x & (GROUP - 1)) < GRANULES);
        if (half == 0) {
            uint32_t mapped = __ballot_sync(0xffffffffu, k->block >= 0) & ((1 << GRANULES) - 1);
            if ((threadIdx.x & (GROUP - 1)) == 0) {
                box->mapped[k->stage] = mapped;
                barrier_arrive(bar(&box->full[k->stage]));
            }
        }
        copy_tile(c, w, *k, data, half);
        barrier_arrive_copied(bar(&box->full[k->stage]));
        k->stage = k->stage + 1 == STAGES ? 0 : k->stage + 1;
        --*free;
        if (++k->at < w.n) {
            look_up(c, w, k, half == 0 && (threadIdx.x & (GROUP - 1)) < GRANULES);
        } else { /* the slot of an item whose tiles are all copied may change */
            k->nth++;
            k->at = 0;
            k->known = false;
        }
    }
}

/* ---- scores: the first warpgroup ---------------------------------------------------- */

__device__ __forceinline__ void scores_sync(void)
{
    asm volatile("bar.sync 1, 128;" ::: "memory");
}

/* Q's first panels to registers, the others to shared memory, where the rows' states
 * begin. */
__device__ __forceinline__ void load_query(const struct attn_call &c, const struct item &w,
                                           uint32_t (&q)[QUERY_STEPS][4], uint32_t to,
                                           struct mailbox *box)
{
    enum { PIECES = QUERY_PANELS * 8 };
    if (threadIdx.x < ROWS) {
        int r = threadIdx.x, j = (w.row0 + r) / c.group;
        box->position[r] = r < w.n_rows ? query_position(c, w.first + j, w.past, j) : -1;
        box->max[r] = ATTN_NO_MAX;
        box->sum[r] = 0.0f;
    }
#pragma unroll 4
    for (int i = threadIdx.x; i < ROWS * PIECES; i += GROUP) {
        int r = i / PIECES, p = i % PIECES;
        const char *from = (const char *)c.q + (row_index(c, w, r) * DK + QUERY_STEPS * 16) * 2;
        copy16(to + (p >> 3) * QUERY_PANEL_BYTES + panel_at(r, p & 7), from + p * 16, 16);
    }
    int lane = threadIdx.x & 31, row = (threadIdx.x >> 5) * 16 + (lane >> 2);
    const uint32_t *top = (const uint32_t *)c.q + row_index(c, w, row) * (DK / 2) + (lane & 3);
    const uint32_t *low = (const uint32_t *)c.q + row_index(c, w, row + 8) * (DK / 2) + (lane & 3);
#pragma unroll
    for (int k = 0; k < QUERY_STEPS; k++) {
        q[k][0] = __ldcg(top + k * 8);
        q[k][1] = __ldcg(low + k * 8);
        q[k][2] = __ldcg(top + k * 8 + 4);
        q[k][3] = __ldcg(low + k * 8 + 4);
    }
    copy_commit();
    copy_wait<0>();
    fence_proxy_async();
    scores_sync();
}

/* Mask the scores of the tile at pos where any row does not see all of it. */
__device__ __forceinline__ void mask(const struct attn_call &c, const struct item &w,
                                     const int *position, uint32_t mapped, int pos, float (&x)[24])
{
    bool whole = mapped == (1 << GRANULES) - 1 && pos >= w.begin && pos + KEYS <= w.end &&
                 pos + KEYS - 1 <= w.low && (c.window <= 0 || w.high - pos < c.window);
    if (whole)
        return;
    int quad = threadIdx.x & 3, row = (threadIdx.x >> 5) * 16 + ((threadIdx.x & 31) >> 2);
    int at[2] = { position[row], position[row + 8] };
#pragma unroll
    for (int i = 0; i < 24; i++) {
        int k = pos + (i >> 2) * 8 + quad * 2 + (i & 1), p = at[(i >> 1) & 1];
        bool seen = k >= w.begin && k < w.end && k <= p && (c.window <= 0 || p - k < c.window) &&
                    (mapped >> (i >> 3) & 1);
        if (!seen)
            x[i] = -INFINITY;
    }
}

/* Scores, in units of 1 / factor of a power of two, to weights, for the other
 * warpgroups; the rows' states run along. */
template <typename M>
__device__ __forceinline__ void weigh(float (&x)[24], float factor, char *weights, float *shrink,
                                      struct mailbox *box)
{
    int lane = threadIdx.x & 31, quad = lane & 3;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = (threadIdx.x >> 5) * 16 + (lane >> 2) + r * 8;
        float before = box->max[row], top = -INFINITY, part = 0.0f;
#pragma unroll
        for (int i = 0; i < KEYS / 8; i++)
            top = fmaxf(top, fmaxf(x[i * 4 + r * 2], x[i * 4 + r * 2 + 1]));
        top = fmaxf(before, quad_max(top) * factor);
#pragma unroll
        for (int i = 0; i < KEYS / 8; i++) {
            float a = exp2_approx(fmaf(x[i * 4 + r * 2], factor, -top));
            float b = exp2_approx(fmaf(x[i * 4 + r * 2 + 1], factor, -top));
            part += a + b;
            *(uint32_t *)(weights + panel_at(row, i) + quad * 4) = pack2<M>(a, b);
        }
        part = quad_sum(part);
        __syncwarp(); /* every lane has read the row's maximum */
        if (quad == 0) {
            float less = exp2_approx(before - top);
            shrink[row] = less;
            box->max[row] = top;
            box->sum[row] = box->sum[row] * less + part;
        }
    }
}

/* An item's rows are summed: their states where it is a chunk, and the factors. */
__device__ __forceinline__ void post_sums(const struct attn_call &c, const struct item &w,
                                          struct mailbox *box, int nth)
{
    int r = threadIdx.x, head = (w.row0 + r) % c.group;
    if (r < ROWS) {
        struct attn_state t = { box->max[r], box->sum[r] };
        box->factor[nth & 1][r] = output_factor(c, t, head);
        if (w.n_chunks > 1 && r < w.n_rows)
            *(float2 *)&c.part_state[part_index(c, w.seq, w.chunk, head) * 2] =
                make_float2(t.max, t.sum);
    }
    barrier_arrive(bar(&box->sums_full[nth & 1]));
}

template <typename M>
__device__ __forceinline__ void score_items(const struct attn_call &c, char *data,
                                            struct mailbox *box)
{
    uint32_t query = smem_address(data) + QUERY_AT;
    int stage = 0;
    uint32_t phase = 0;
    for (int nth = 0;; nth++) {
        const struct item &w = enter_item(box, nth);
        if (w.id < 0)
            return;
        uint32_t q[QUERY_STEPS][4];
        load_query(c, w, q, query, box);
        for (int i = 0; i < w.n; i++) {
            float x[24];
            uint32_t keys = smem_address(data) + stage * TILE_BYTES;
            barrier_wait(bar(&box->full[stage]), phase);
            fence_proxy_async();
            uint32_t mapped = box->mapped[stage];
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < QUERY_STEPS; k++)
                wgmma_rows<M>(x, q[k], tile_descriptor(keys + k / 4 * PANEL_BYTES + k % 4 * 32, 16),
                              k > 0);
#pragma unroll
            for (int k = QUERY_STEPS; k < DK / 16; k++)
                wgmma_rows<M>(
                    x,
                    tile_descriptor(query + (k - QUERY_STEPS) / 4 * QUERY_PANEL_BYTES + k % 4 * 32,
                                    16),
                    tile_descriptor(keys + k / 4 * PANEL_BYTES + k % 4 * 32, 16));
            wgmma_commit();
            wgmma_wait<0>();
            pin(x);
            /* Scaling rides on the exponential where nothing comes between. */
            float log2_scale = c.scale * 1.4426950408889634f;
            bool plain = c.softcap <= 0.0f && log2_scale > 0.0f;
            if (!plain) {
                float factor[2] = { log2_scale, log2_scale };
#pragma unroll
                for (int k = 0; k < KEYS / 8; k++)
                    scale_scores(c, factor, &x[k * 4]);
            }
            mask(c, w, box->position, mapped, w.pos0 + i * KEYS, x);
            weigh<M>(x, plain ? log2_scale : 1.0f, data + WEIGHTS_AT + stage * WEIGHT_BYTES,
                     box->shrink[stage], box);
            fence_proxy_async();
            barrier_arrive(bar(&box->weights_full[stage]));
            stage = stage + 1 == STAGES ? 0 : stage + 1;
            phase ^= stage == 0;
        }
        scores_sync();
        post_sums(c, w, box, nth);
        scores_sync();
        leave_item(box, nth);
    }
}

/* ---- values: the second and the third warpgroup -------------------------------------- */

/* Rows to the output (one chunk) or to the partial results. */
template <typename M>
__device__ __forceinline__ void store(const struct attn_call &c, const struct item &w,
                                      const float (&o)[2][64], const float *factor, int half)
{
    int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3;
    int channel = half * (DV / 2) + (lane & 3) * 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int in_tile = warp * 16 + (lane >> 2) + r * 8, row = w.row0 + in_tile;
        if (in_tile >= w.n_rows)
            continue;
        int token = w.first + row / c.group, head = row % c.group;
        if (w.n_chunks > 1) {
            float *to = c.part + part_index(c, w.seq, w.chunk, head) * DV + channel;
#pragma unroll
            for (int n = 0; n < 32; n++)
                *(float2 *)(to + n * 8) = make_float2(o[n >> 4][(n & 15) * 4 + r * 2],
                                                      o[n >> 4][(n & 15) * 4 + r * 2 + 1]);
        } else {
            float f = factor[in_tile];
            uint16_t *to = (uint16_t *)c.output + ((int64_t)token * c.heads + head) * DV + channel;
#pragma unroll
            for (int n = 0; n < 32; n++)
                *(uint32_t *)(to + n * 8) = pack2<M>(o[n >> 4][(n & 15) * 4 + r * 2] * f,
                                                     o[n >> 4][(n & 15) * 4 + r * 2 + 1] * f);
        }
    }
}

template <typename M>
__device__ __forceinline__ void add_values(const struct attn_call &c, uint32_t data,
                                           struct mailbox *box, int items, int half)
{
    int free = STAGES, stage = 0;
    int row = ((threadIdx.x >> 5) & 3) * 16 + ((threadIdx.x & 31) >> 2);
    uint32_t phase = 0;
    bool finder = threadIdx.x >> 5 == GROUP / 32; /* one warp */
    struct cursor k = {};
    if (finder) {
        find_item(c, (int)blockIdx.x, items, &box->item[0]);
        __syncwarp();
        if ((threadIdx.x & 31) == 0)
            barrier_arrive(bar(&box->item_full[0]));
    }
    for (int nth = 0;; nth++) {
        const struct item &w = enter_item(box, nth);
        if (w.id < 0)
            return;
        copy_ahead(c, box, &k, data, half, nth, &free);
        if (finder) {
            int next = 0, slot = (nth + 1) & 1;
            if ((threadIdx.x & 31) == 0)
                next = next_item(c, LIST_SPLIT, items);
            next = __shfl_sync(0xffffffffu, next, 0);
            barrier_wait(bar(&box->item_empty[slot]), ((nth + 1) >> 1 & 1) ^ 1);
            find_item(c, next, items, &box->item[slot]);
            __syncwarp();
            if ((threadIdx.x & 31) == 0)
                barrier_arrive(bar(&box->item_full[slot]));
        }
        float o[2][64]; /* 128 channels each */
#pragma unroll
        for (int i = 0; i < 128; i++)
            o[i >> 6][i & 63] = 0.0f;
        for (int i = w.n; i > 0; i--) {
            uint32_t weights = data + WEIGHTS_AT + stage * WEIGHT_BYTES;
            uint32_t values = data + stage * TILE_BYTES + half * HALF_PANELS * PANEL_BYTES;
            /* The first warpgroup has published the keys to the matrix units: a fence
             * here would wait for the copies that this thread has under way. */
            barrier_wait(bar(&box->weights_full[stage]), phase);
            float a = box->shrink[stage][row], b = box->shrink[stage][row + 8];
            if (__any_sync(0xffffffffu, a != 1.0f || b != 1.0f)) {
#pragma unroll
                for (int e = 0; e < 128; e++)
                    o[e >> 6][e & 63] *= e & 2 ? b : a;
            }
            pin(o[0]);
            pin(o[1]);
            wgmma_fence();
#pragma unroll
            for (int s = 0; s < KEYS / 16; s++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    wgmma_columns<M>(
                        o[e], tile_descriptor(weights + s * 32, 16),
                        tile_descriptor(values + e * 2 * PANEL_BYTES + s * 16 * 128, PANEL_BYTES));
            wgmma_commit();
            wgmma_wait<0>();
            pin(o[0]);
            pin(o[1]);
            /* All of the group have left the stage before it is filled again. */
            if (half == 0)
                asm volatile("bar.sync 2, 128;" ::: "memory");
            else
                asm volatile("bar.sync 3, 128;" ::: "memory");
            free++;
            copy_ahead(c, box, &k, data, half, nth + 1, &free);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
            phase ^= stage == 0;
        }
        barrier_wait(bar(&box->sums_full[nth & 1]), nth >> 1 & 1);
        store<M>(c, w, o, box->factor[nth & 1], half);
        leave_item(box, nth);
    }
}

#endif

template <int KIND>
__global__ void __launch_bounds__(THREADS, 1)
    latent_hopper_kernel(const __grid_constant__ struct attn_call c)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    typedef typename cache_type<KIND>::mma_type M;
    extern __shared__ __align__(1024) char latent_data[];
    char *data = latent_data;
    struct mailbox *box = (struct mailbox *)(data + DATA_BYTES);

    if ((smem_address(data) & 1023) != 0) /* swizzled panels would lie elsewhere */
        __trap();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(bar(&box->full[i]), 2 * GROUP + 1);
            barrier_init(bar(&box->weights_full[i]), GROUP);
        }
        for (int i = 0; i < 2; i++) {
            barrier_init(bar(&box->item_full[i]), 1);
            barrier_init(bar(&box->item_empty[i]), THREADS / 32);
            barrier_init(bar(&box->sums_full[i]), GROUP);
        }
        fence_proxy_async();
    }
    __syncthreads();
    int items = list_items(c, LIST_SPLIT);
    wait_for_upstream();
    release_downstream();
    /* By one lane's word, so that the compiler knows that no warp diverges here. */
    int group = __shfl_sync(0xffffffffu, (int)(threadIdx.x / GROUP), 0);
    if (group == 0) {
        registers_down<152>();
        score_items<M>(c, data, box);
    } else {
        registers_up<176>();
        add_values<M>(c, smem_address(data), box, items, group - 1);
    }
#endif
}

template <int KIND> cudaError_t prepare(int, const struct device_limits *)
{
    return cudaFuncSetAttribute(latent_hopper_kernel<KIND>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES);
}

template <int KIND>
cudaError_t start(const struct attn_call *c, const struct device_limits *limits,
                  cudaStream_t stream)
{
    return launch(latent_hopper_kernel<KIND>, (unsigned)limits->n_sm, THREADS, SMEM_BYTES, stream,
                  *c);
}

} // namespace latent_hopper

#endif
