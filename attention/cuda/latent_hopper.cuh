/* latent_hopper.cuh: absorbed MLA on sm_90a over a 16-bit latent cache: one cached row
 * is a key of 576 channels whose first 512 are the value, for all query heads.
 *
 *   q       [tokens, heads, 576] from the prologue
 *   cache   [blocks, block_size, 1, 576], bf16 or fp16
 *   part    [sequences, max_chunks, heads, 512] fp32 and (max in log2, sum)
 *   output  T, 512 a head
 * Items as in latent.cuh: (sequence, 64 packed rows, chunk of keys).  One warpgroup
 * copies Q and tiles of 64 keys; the second computes scores and weights, and the first
 * 256 output channels; the third, which gets the weights through shared memory, the
 * other 256.  While the second is at its softmax, the third's products and the copies of
 * the next tile are under way.  A tile's halves (channels 0..255, 256..575) have
 * barriers of their own: each is free when the warpgroup that reads it as V has.
 * launch   persistent: one CTA of 384 threads a SM
 * smem     Q 72 KiB, 2 tiles of keys of 72 KiB, weights 8 KiB
 * bound    matrix units: 2 (576 + 512) heads pairs FLOP at 780 TFLOP/s
 *
 * Owns nothing.  Called by the backend, after the prologue, on its stream. */
#ifndef ATTENTION_CUDA_LATENT_HOPPER_CUH
#define ATTENTION_CUDA_LATENT_HOPPER_CUH

#include "attention/cuda/cache.cuh"
#include "attention/cuda/epilogue.cuh"
#include "attention/cuda/hopper_tiles.cuh"
#include "attention/cuda/kernels.h"
#include "attention/cuda/launch.cuh"
#include "attention/cuda/smem_budget.h"
#include "attention/cuda/work.cuh"

namespace latent_hopper
{

using hopper::bar;
using hopper::GROUP;
using hopper::meet;
using hopper::THREADS;
using hopper::warp_arrive;

enum {
    ROWS = LATENT_ROWS,
    KEYS = 64,
    STAGES = 2,
    DK = LATENT_K,
    HALF = 256,         /* channels of V that a warpgroup computes */
    PANEL = KEYS * 128, /* bytes of 64 channels */
    TILE_BYTES = DK / 64 * PANEL,
    DATA_BYTES = (1 + STAGES) * TILE_BYTES + PANEL,
    BOX_BYTES = 2048,
    SMEM_BYTES = latent_hopper_bytes()
};
static_assert((int)ROWS == (int)KEYS, "Q lies like K");
static_assert(1024 + DATA_BYTES + BOX_BYTES == SMEM_BYTES, "smem_budget.h");

typedef struct hopper::turn<STAGES> turn;

struct item {
    int seq, first, n_rows, row0, chunk, n_chunks, past;
    int begin, end, pos0, n; /* keys; first tile, tiles; n below 0: no more items */
    const int32_t *table;
};

/* The same in shared memory. */
struct note {
    int4 rows, keys, rest;
};

struct mailbox {
    struct note note;
    uint64_t q_full, q_empty;
    uint64_t low_full[STAGES], low_empty[STAGES], high_full[STAGES], high_empty[STAGES];
    uint64_t p_full, p_empty;
    uint32_t mapped[STAGES]; /* bit i: granule i of the tile has a block */
    int next[2];
    float shrink[ROWS]; /* of O before a tile; after the last the factor of the output */
};
static_assert(sizeof(struct mailbox) <= BOX_BYTES, "smem_budget.h");

__device__ __forceinline__ struct item find_item(const struct attn_call &c, int id)
{
    struct plan_unit u = list_unit(c, LIST_SPLIT, id);
    int lane = threadIdx.x & 31, low = INT32_MAX, high = -1;
    struct item w;
    w.seq = u.seq;
    w.first = u.first;
    w.n_rows = u.n_rows;
    w.row0 = u.row0;
    w.chunk = u.chunk;
    w.n_chunks = u.n_chunks;
    w.past = u.past;
    w.table = c.block_table + (int64_t)u.seq * c.table_cols;
    for (int r = lane; r < w.n_rows; r += 32) {
        int j = (w.row0 + r) / c.group;
        int position = query_position(c, w.first + j, w.past, j);
        low = min(low, position);
        high = max(high, position);
    }
    low = __reduce_min_sync(0xffffffffu, low);
    high = __reduce_max_sync(0xffffffffu, high);
    w.begin = c.window > 0 ? max(u.begin, low - c.window + 1) : u.begin;
    w.end = min(u.end - 1, high) + 1;
    w.pos0 = w.begin & ~(PLAN_GRANULE - 1);
    w.n = w.end > w.begin ? (w.end - w.pos0 + KEYS - 1) / KEYS : 0;
    return w;
}

/* Byte offset of piece p (16 bytes) of row r in a tile of panels of 64 rows. */
__device__ __forceinline__ uint32_t tile_at(int r, int p)
{
    return (uint32_t)((p >> 3) * PANEL + r * 128 + ((p ^ r) & 7) * 16);
}

/* ---- the copying warpgroup ----------------------------------------------------- */

__device__ __forceinline__ void copy_query(const struct attn_call &c, const struct item &w,
                                           uint32_t to)
{
    enum { PIECES = DK / 8 };
    const char *from = (const char *)c.q + ((int64_t)w.first * c.heads + w.row0) * DK * 2;
    for (int i = threadIdx.x; i < ROWS * PIECES; i += GROUP) {
        int r = i / PIECES, p = i % PIECES;
        bool there = r < w.n_rows;
        copy16(to + tile_at(r, p), from + (there ? i * 16 : 0), there ? 16 : 0);
    }
}

/* Lane i's part of a tile's table entries: granule i % 4. */
__device__ __forceinline__ int look_up(const struct attn_call &c, const struct item &w, int pos)
{
    pos += (threadIdx.x & 3) * PLAN_GRANULE;
    return pos < w.end ? granule_block(c, w.table, pos) : -1;
}

/* Pieces [P0, P0 + N) of the 64 keys from pos, N a power of two up to 32; whole: all keys
 * are inside and mapped, else what is not there is zeroed. */
template <int P0, int N>
__device__ __forceinline__ void copy_pieces(const struct attn_call &c, const struct item &w,
                                            int blocks, bool whole, uint32_t to, int pos)
{
    enum { PER_PASS = GROUP / N };
    int p = P0 + threadIdx.x % N, r0 = threadIdx.x / N, in_block = (1 << c.block_shift) - 1;
    const char *from = (const char *)c.key_cache + p * 16;
#pragma unroll 4
    for (int i = 0; i < KEYS / PER_PASS; i++) {
        int granule = i * PER_PASS / 16, r = i * PER_PASS + r0;
        int block = __shfl_sync(0xffffffffu, blocks, granule);
        bool there = whole || (block >= 0 && pos + r >= w.begin && pos + r < w.end);
        uint32_t slot = ((uint32_t)block << c.block_shift) + (uint32_t)((pos + r) & in_block);
        copy16(to + tile_at(r, p), from + (there ? (uint64_t)slot * (DK * 2) : 0), there ? 16 : 0);
    }
}

__device__ __forceinline__ void feed_tiles(const struct attn_call &c, const struct item &w,
                                           uint32_t data, struct mailbox *box, turn *t)
{
    int blocks = look_up(c, w, w.pos0);
    for (int i = 0; i < w.n; i++) {
        int pos = w.pos0 + i * KEYS, next = look_up(c, w, pos + KEYS);
        /* The next tile comes to L2 while its stage is still read; a granule's rows follow
         * one another. */
        if (threadIdx.x < KEYS / PLAN_GRANULE && next >= 0)
            warm_l2_run(
                (const char *)c.key_cache +
                    cache_offset(c, next, pos + KEYS + threadIdx.x * PLAN_GRANULE, 0, DK * 2),
                PLAN_GRANULE * DK * 2);
        uint32_t to = data + (1 + t->stage) * TILE_BYTES;
        uint32_t mapped = __ballot_sync(0xffffffffu, blocks >= 0) & 0xF;
        bool whole = mapped == 0xF && pos >= w.begin && pos + KEYS <= w.end;
        barrier_wait(bar(&box->low_empty[t->stage]), t->phase ^ 1);
        if (threadIdx.x == 0) {
            box->mapped[t->stage] = mapped;
            barrier_arrive(bar(&box->low_full[t->stage]));
        }
        copy_pieces<0, 32>(c, w, blocks, whole, to, pos);
        barrier_arrive_copied(bar(&box->low_full[t->stage]));
        barrier_wait(bar(&box->high_empty[t->stage]), t->phase ^ 1);
        copy_pieces<32, 32>(c, w, blocks, whole, to, pos);
        copy_pieces<64, 8>(c, w, blocks, whole, to, pos);
        barrier_arrive_copied(bar(&box->high_full[t->stage]));
        t->next();
        blocks = next;
    }
}

/* All items of a CTA: its own first, then what the counter gives. */
__device__ __forceinline__ void feed(const struct attn_call &c, uint32_t data, struct mailbox *box,
                                     int items)
{
    turn t = { 0, 0 };
    int next = blockIdx.x;
    for (int nth = 0;; nth++) {
        if (threadIdx.x == 0)
            box->next[nth & 1] = next;
        meet();
        int id = box->next[nth & 1];
        struct item w = {};
        w.n = -1;
        if (id < items)
            w = find_item(c, id);
        barrier_wait(bar(&box->q_empty), (nth & 1) ^ 1);
        if (threadIdx.x == 0) {
            box->note.rows = make_int4(w.seq, w.first, w.n_rows, w.row0);
            box->note.keys = make_int4(w.begin, w.end, w.pos0, w.n);
            box->note.rest = make_int4(w.chunk, w.n_chunks, w.past, 0);
            barrier_arrive(bar(&box->q_full));
        }
        if (id < items)
            copy_query(c, w, data);
        barrier_arrive_copied(bar(&box->q_full));
        if (id >= items)
            return;
        if (threadIdx.x == 0)
            next = next_item(c, LIST_SPLIT, items);
        feed_tiles(c, w, data, box, &t);
    }
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---- both computing warpgroups ------------------------------------------------- */

/* By one lane, which frees the note later, for its warp. */
__device__ __forceinline__ struct item read_note(const struct note *note)
{
    int4 rows = {}, keys = {}, rest = {};
    if ((threadIdx.x & 31) == 0) {
        rows = note->rows;
        keys = note->keys;
        rest = note->rest;
    }
    struct item w;
    w.seq = __shfl_sync(0xffffffffu, rows.x, 0);
    w.first = __shfl_sync(0xffffffffu, rows.y, 0);
    w.n_rows = __shfl_sync(0xffffffffu, rows.z, 0);
    w.row0 = __shfl_sync(0xffffffffu, rows.w, 0);
    w.begin = __shfl_sync(0xffffffffu, keys.x, 0);
    w.end = __shfl_sync(0xffffffffu, keys.y, 0);
    w.pos0 = __shfl_sync(0xffffffffu, keys.z, 0);
    w.n = __shfl_sync(0xffffffffu, keys.w, 0);
    w.chunk = __shfl_sync(0xffffffffu, rest.x, 0);
    w.n_chunks = __shfl_sync(0xffffffffu, rest.y, 0);
    w.past = __shfl_sync(0xffffffffu, rest.z, 0);
    w.table = NULL;
    return w;
}

/* The row of the tile that this lane has for h = 0 or 1. */
__device__ __forceinline__ int lane_row(int h)
{
    return (threadIdx.x >> 5 & 3) * 16 + ((threadIdx.x & 31) >> 2) + h * 8;
}

__device__ __forceinline__ void shrink_output(float (&o)[HALF / 2], const float shrink[2])
{
    if (__any_sync(0xffffffffu, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
        for (int i = 0; i < HALF / 2; i++)
            o[i] *= shrink[(i >> 1) & 1];
    }
}

/* Channels from channel0 on of this lane's rows: to the output, times factor, where the
 * sequence is one chunk, else to the partial results. */
template <typename M>
__device__ __forceinline__ void store(const struct attn_call &c, const struct item &w,
                                      const float (&o)[HALF / 2], const float factor[2],
                                      int channel0)
{
    enum { DV = 2 * HALF };
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = lane_row(h), row = w.row0 + min(r, w.n_rows - 1);
        int token = w.first + row / c.group, head = row % c.group;
        bool there = r < w.n_rows;
        if (w.n_chunks == 1) {
            M *to = (M *)c.output + ((int64_t)token * c.heads + head) * DV + channel0;
            hopper::store_row<M, HALF>(o, h, factor[h], to, HALF, there);
            continue;
        }
        float *to = c.part + part_index(c, w.seq, w.chunk, head) * DV + channel0;
#pragma unroll
        for (int n = 0; n < HALF / 8; n++)
            if (there)
                *(float2 *)&to[n * 8 + (threadIdx.x & 3) * 2] =
                    make_float2(o[n * 4 + h * 2], o[n * 4 + h * 2 + 1]);
    }
}

/* ---- the warpgroup of the scores ------------------------------------------------- */

/* One lane's rows. */
struct my_rows {
    int position[2]; /* -1 for none                */
    int low, high;   /* over the warp's valid rows */
    float factor[2];
};

__device__ __forceinline__ struct my_rows find_rows(const struct attn_call &c, const struct item &w)
{
    struct my_rows m;
    m.low = INT32_MAX;
    m.high = -1;
    for (int h = 0; h < 2; h++) {
        int r = lane_row(h), j = (w.row0 + min(r, w.n_rows - 1)) / c.group;
        bool valid = r < w.n_rows;
        m.position[h] = valid ? query_position(c, w.first + j, w.past, j) : -1;
        m.high = max(m.high, m.position[h]);
        m.low = min(m.low, valid ? m.position[h] : INT32_MAX);
        m.factor[h] = c.scale * 1.4426950408889634f;
    }
    m.low = __reduce_min_sync(0xffffffffu, m.low);
    m.high = __reduce_max_sync(0xffffffffu, m.high);
    return m;
}

/* Mask the scores of the tile at pos where any row does not see all of it. */
__device__ __forceinline__ void mask(const struct attn_call &c, const struct item &w,
                                     const struct my_rows &m, uint32_t mapped, int pos,
                                     float (&x)[KEYS / 2])
{
    bool whole = mapped == 0xF && pos >= w.begin && pos + KEYS <= w.end &&
                 pos + KEYS - 1 <= m.low && (c.window <= 0 || m.high - pos < c.window);
    if (whole)
        return;
    struct hopper::key_range seen[2];
#pragma unroll
    for (int h = 0; h < 2; h++)
        seen[h] = hopper::seen_keys(w.begin, w.end, m.position[h], c.window);
    hopper::mask_keys(x, pos, seen);
    if (mapped != 0xF)
        hopper::mask_holes(x, mapped);
}

/* Scores of panels [FROM, TO). */
template <typename M, int FROM, int TO>
__device__ __forceinline__ void start_scores(float (&x)[KEYS / 2], uint32_t q_tile, uint32_t k_tile)
{
#pragma unroll
    for (int k = FROM * 4; k < TO * 4; k++) {
        uint32_t at = (k / 4) * PANEL + (k % 4) * 32;
        product_rows<M>(x, tile_descriptor(q_tile + at, 16), tile_descriptor(k_tile + at, 16),
                        k > 0);
    }
}

/* The weights, for the other warpgroup too. */
__device__ __forceinline__ void send_weights(const uint32_t (&p)[KEYS / 16][4], char *to)
{
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            *(uint32_t *)(to + tile_at(lane_row(i & 1), k * 2 + (i >> 1)) + (threadIdx.x & 3) * 4) =
                p[k][i];
}

__device__ __forceinline__ void send_rows(const float v[2], float *to)
{
    if ((threadIdx.x & 3) == 0) {
        to[lane_row(0)] = v[0];
        to[lane_row(1)] = v[1];
    }
}

template <typename M>
__device__ __forceinline__ void score_item(const struct attn_call &c, const struct item &w,
                                           char *data, struct mailbox *box, turn *t,
                                           uint32_t *round)
{
    uint32_t q_tile = smem_address(data);
    char *weights = data + (1 + STAGES) * TILE_BYTES;
    struct my_rows m = find_rows(c, w);
    float o[HALF / 2], x[KEYS / 2], shrink[2];
    float max[2] = { ATTN_NO_MAX, ATTN_NO_MAX }, sum[2] = { 0.0f, 0.0f };
    uint32_t p[KEYS / 16][4];
    int before = 0; /* stage whose V is still being read */
    /* Scaling rides on the exponential where nothing comes between. */
    bool plain = c.softcap <= 0.0f && m.factor[0] > 0.0f;
#pragma unroll
    for (int i = 0; i < HALF / 2; i++)
        o[i] = 0.0f;
    for (int i = 0; i < w.n; i++) {
        uint32_t k_tile = q_tile + (1 + t->stage) * TILE_BYTES;
        barrier_wait(bar(&box->low_full[t->stage]), t->phase);
        publish_to_matrix_units();
        products_begin();
        start_scores<M, 0, 4>(x, q_tile, k_tile);
        barrier_wait(bar(&box->high_full[t->stage]), t->phase);
        publish_to_matrix_units();
        start_scores<M, 4, 9>(x, q_tile, k_tile);
        products_commit();
        uint32_t mapped =
            __shfl_sync(0xffffffffu, (threadIdx.x & 31) == 0 ? box->mapped[t->stage] : 0u, 0);
        if (i > 0) {
            products_wait<1>();
            warp_arrive(&box->low_empty[before]);
        }
        products_wait<0>();
        pin(x);
        pin(o);
        if (i + 1 == w.n)
            warp_arrive(&box->q_empty); /* the next item's Q may come */
        if (!plain) {
#pragma unroll
            for (int k = 0; k < KEYS / 8; k++)
                scale_scores(c, m.factor, &x[k * 4]);
        }
        mask(c, w, m, mapped, w.pos0 + i * KEYS, x);
        hopper::weigh(x, plain ? m.factor[0] : 1.0f, max, sum, shrink);
#pragma unroll
        for (int k = 0; k < KEYS / 4; k++)
            p[k >> 2][k & 3] = pack2<M>(x[k * 2], x[k * 2 + 1]);
        barrier_wait(bar(&box->p_empty), (*round & 1) ^ 1);
        ++*round;
        send_weights(p, weights);
        send_rows(shrink, box->shrink);
        publish_to_matrix_units();
        barrier_arrive(bar(&box->p_full));
        shrink_output(o, shrink);
        pin(o);
        products_begin();
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++)
            product_columns<M>(o, p[k], tile_descriptor(k_tile + k * 16 * 128, PANEL));
        products_commit();
        before = t->stage;
        t->next();
    }
    products_wait<0>();
    pin(o);
    warp_arrive(w.n > 0 ? &box->low_empty[before] : &box->q_empty);
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = lane_row(h), row = w.row0 + min(r, w.n_rows - 1), head = row % c.group;
        struct attn_state s = { max[h], quad_sum(sum[h]) };
        factor[h] = output_factor(c, s, head);
        if (w.n_chunks > 1 && (threadIdx.x & 3) == 0 && r < w.n_rows)
            *(float2 *)&c.part_state[part_index(c, w.seq, w.chunk, head) * 2] =
                make_float2(s.max, s.sum);
    }
    barrier_wait(bar(&box->p_empty), (*round & 1) ^ 1);
    ++*round;
    send_rows(factor, box->shrink);
    barrier_arrive(bar(&box->p_full));
    store<M>(c, w, o, factor, 0);
}

/* ---- the other ------------------------------------------------------------------ */

template <typename M>
__device__ __forceinline__ void follow_item(const struct attn_call &c, const struct item &w,
                                            uint32_t data, struct mailbox *box, turn *t,
                                            uint32_t *round)
{
    uint32_t weights = data + (1 + STAGES) * TILE_BYTES;
    float o[HALF / 2], shrink[2];
#pragma unroll
    for (int i = 0; i < HALF / 2; i++)
        o[i] = 0.0f;
    for (int i = 0; i < w.n; i++) {
        uint32_t v_tile = data + (1 + t->stage) * TILE_BYTES + HALF / 64 * PANEL;
        barrier_wait(bar(&box->p_full), *round & 1);
        ++*round;
        publish_to_matrix_units();
        shrink[0] = box->shrink[lane_row(0)];
        shrink[1] = box->shrink[lane_row(1)];
        shrink_output(o, shrink);
        pin(o);
        products_begin();
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++)
            product_columns<M>(o, tile_descriptor(weights + k * 32, 16),
                               tile_descriptor(v_tile + k * 16 * 128, PANEL));
        products_commit();
        products_wait<0>();
        pin(o);
        barrier_arrive(bar(&box->p_empty));
        warp_arrive(&box->high_empty[t->stage]);
        t->next();
    }
    barrier_wait(bar(&box->p_full), *round & 1);
    ++*round;
    float factor[2] = { box->shrink[lane_row(0)], box->shrink[lane_row(1)] };
    barrier_arrive(bar(&box->p_empty));
    store<M>(c, w, o, factor, HALF);
}

template <typename M>
__device__ __forceinline__ void work(const struct attn_call &c, char *data, struct mailbox *box)
{
    bool scores = threadIdx.x < 2 * GROUP;
    turn t = { 0, 0 };
    uint32_t round = 0;
    for (int nth = 0;; nth++) {
        barrier_wait(bar(&box->q_full), nth & 1);
        publish_to_matrix_units();
        struct item w = read_note(&box->note);
        if (w.n < 0)
            return;
        if (scores) {
            score_item<M>(c, w, data, box, &t, &round);
        } else {
            warp_arrive(&box->q_empty);
            follow_item<M>(c, w, smem_address(data), box, &t, &round);
        }
    }
}

#endif

template <int KIND>
__global__ void __launch_bounds__(THREADS, 1)
    latent_hopper_kernel(const __grid_constant__ struct attn_call c)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    typedef typename cache_type<KIND>::mma_type M;
    extern __shared__ char raw[];
    char *data = raw + (-smem_address(raw) & 1023);
    struct mailbox *box = (struct mailbox *)(data + DATA_BYTES);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(bar(&box->low_full[i]), GROUP + 1);
            barrier_init(bar(&box->high_full[i]), GROUP);
            barrier_init(bar(&box->low_empty[i]), 4);
            barrier_init(bar(&box->high_empty[i]), 4);
        }
        barrier_init(bar(&box->q_full), GROUP + 1);
        barrier_init(bar(&box->q_empty), 8);
        barrier_init(bar(&box->p_full), GROUP);
        barrier_init(bar(&box->p_empty), GROUP);
        publish_to_matrix_units();
    }
    __syncthreads();
    int items = list_items(c, LIST_SPLIT);
    wait_for_upstream();
    if (threadIdx.x < GROUP) {
        registers_down<56>();
        feed(c, smem_address(data), box, items);
    } else {
        registers_up<224>();
        work<M>(c, data, box);
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
