/* hopper.cuh: prefill on sm_90a, 16-bit caches, heads of up to 128 channels.
 *
 *   q       [tokens, heads, q_width] from the prologue
 *   caches  [blocks, block_size, kv_heads, head_size], bf16 or fp16
 *   output  T
 * Items as in prefill.cuh: (sequence, 128 packed rows, kv head), handed out by the
 * list's counter.  The copying warpgroup takes an item, notes it for the others beside
 * its Q, and copies tiles of 128 keys through the block table; two warpgroups of 64
 * rows compute (hopper_tiles.cuh).
 * launch   persistent: one CTA of 384 threads a SM
 * smem     2 x Q of 32 KiB, 2 stages of K and V of 64 KiB at 128 channels
 * bound    matrix units: 4 heads D pairs FLOP at 780 TFLOP/s
 *
 * Owns nothing.  Called by the backend, after the prologue, on its stream. */
#ifndef ATTENTION_CUDA_HOPPER_CUH
#define ATTENTION_CUDA_HOPPER_CUH

#include "attention/cuda/cache.cuh"
#include "attention/cuda/epilogue.cuh"
#include "attention/cuda/hopper_tiles.cuh"
#include "attention/cuda/kernels.h"
#include "attention/cuda/launch.cuh"
#include "attention/cuda/smem_budget.h"
#include "attention/cuda/work.cuh"

namespace hopper
{

/* Tiles of Q, and stages of K and of V. */
enum { QUERIES = 2, STAGES = 2 };

template <int D> struct shape {
    enum {
        TILE_BYTES = D / 64 * PANEL_BYTES, /* Q, K or V */
        DATA_BYTES = TILE_BYTES * (QUERIES + 2 * STAGES),
        SMEM_BYTES = hopper_bytes(D)
    };
    static_assert(1024 + DATA_BYTES + BOX_BYTES == SMEM_BYTES, "smem_budget.h");
};

struct item {
    int first, n_rows, kv_head, row0;
    int begin, end, pos0, n; /* keys; first tile, tiles */
    int past;
    const int32_t *table;
};

/* An item as the computing warpgroups get it; n below 0: there are no more. */
struct note {
    int4 rows, keys, rest; /* first, n_rows, kv_head, row0; begin, end, pos0, n; past */
};

/* Between the warpgroups, in shared memory.  The n-th item of a CTA uses note and Q tile
 * n % QUERIES, for the (n / QUERIES)-th time. */
struct mailbox {
    struct note note[QUERIES];
    struct ring<STAGES> ring;
    uint64_t q_full[QUERIES], q_empty[QUERIES];
    int next[2]; /* the copying warpgroup's next item */
};
static_assert(sizeof(struct mailbox) <= BOX_BYTES, "smem_budget.h");

/* Items of a head follow one another, so that its K and V stay in L2. */
__device__ __forceinline__ void find_item(const struct attn_call &c, int id, int n_units,
                                          struct item *w)
{
    struct plan_unit u = list_unit(c, LIST_PREFILL, id % n_units * c.kv_heads);
    int lane = threadIdx.x & 31;
    w->past = u.past;
    w->first = u.first;
    w->kv_head = id / n_units;
    w->row0 = u.row0;
    w->n_rows = u.n_rows;
    w->table = c.block_table + (int64_t)u.seq * c.table_cols;
    int low = INT32_MAX, high = -1;
    if (c.positions == NULL) {
        low = w->past + w->row0 / c.group;
        high = w->past + (w->row0 + w->n_rows - 1) / c.group;
    } else {
        for (int r = lane; r < w->n_rows; r += 32) {
            int position = c.positions[w->first + (w->row0 + r) / c.group];
            low = min(low, position);
            high = max(high, position);
        }
        low = __reduce_min_sync(0xffffffffu, low);
        high = __reduce_max_sync(0xffffffffu, high);
    }
    w->begin = c.window > 0 ? max(u.begin, low - c.window + 1) : u.begin;
    w->end = min(u.end - 1, high) + 1;
    w->pos0 = w->begin & ~(PLAN_GRANULE - 1);
    w->n = w->end > w->begin ? (w->end - w->pos0 + KEYS - 1) / KEYS : 0;
}

/* ---- the copying warpgroup ----------------------------------------------------- */

template <int D>
__device__ __forceinline__ void copy_query(const struct attn_call &c, const struct item &w,
                                           uint32_t to)
{
    enum { PIECES = D / 8 };
    for (int i = threadIdx.x; i < TILE * PIECES; i += GROUP) {
        int r = i / PIECES, p = i % PIECES, row = w.row0 + min(r, w.n_rows - 1);
        int64_t at =
            (int64_t)(w.first + row / c.group) * c.heads + w.kv_head * c.group + row % c.group;
        copy16(to + tile_at(r, p), (const char *)c.q + at * D * 2 + p * 16, r < w.n_rows ? 16 : 0);
    }
}

/* Lane i's part of a tile's table entries: granule i % 8. */
__device__ __forceinline__ int look_up(const struct attn_call &c, const struct item &w, int pos)
{
    pos += (threadIdx.x & 7) * PLAN_GRANULE;
    return pos < w.end ? granule_block(c, w.table, pos) : -1;
}

/* Whether a tile's rows are all inside, mapped and of full width. */
template <int D>
__device__ __forceinline__ bool is_whole(const struct attn_call &c, const struct item &w,
                                         uint32_t mapped, int pos)
{
    return mapped == 0xFF && pos >= w.begin && pos + KEYS <= w.end && c.head_size == D &&
           c.v_head_size == D;
}

/* Rows of a whole tile of one cache by granules. */
template <int D>
__device__ __forceinline__ void copy_whole(const struct attn_call &c, const struct item &w,
                                           const void *cache, int blocks, uint32_t to, int pos)
{
    enum { PIECES = D / 8, PER_PASS = GROUP / PIECES };
    int p = threadIdx.x % PIECES, r0 = threadIdx.x / PIECES;
    uint32_t slot_bytes = (uint32_t)c.kv_heads * D * 2;
    const char *from = (const char *)cache + (int64_t)w.kv_head * D * 2 + p * 16;
    to += tile_at(r0, p); /* the swizzle repeats every 8 rows */
#pragma unroll
    for (int i = 0; i < KEYS / PER_PASS; i++) {
        int granule = i * PER_PASS / 16, in_granule = i * PER_PASS % 16 + r0;
        int block = __shfl_sync(0xffffffffu, blocks, granule);
        uint32_t slot = cache_slot(c, block, pos + granule * 16) + (uint32_t)in_granule;
        copy16(to + i * PER_PASS * 128, from + (uint64_t)slot * slot_bytes, 16);
    }
}

/* Rows of any tile of one cache, `width` channels wide; what is not there is zeroed. */
template <int D>
__device__ __forceinline__ void copy_any(const struct attn_call &c, const struct item &w,
                                         const void *cache, int width, int blocks, uint32_t to,
                                         int pos)
{
    enum { PIECES = D / 8, PER_PASS = GROUP / PIECES };
    int p = threadIdx.x % PIECES;
    bool real = p * 8 < width;
#pragma unroll
    for (int i = 0; i < KEYS / PER_PASS; i++) {
        int r = i * PER_PASS + threadIdx.x / PIECES;
        int block = __shfl_sync(0xffffffffu, blocks, i * PER_PASS / 16);
        bool inside = real && block >= 0 && pos + r >= w.begin && pos + r < w.end;
        int64_t at =
            inside ? cache_offset(c, block, pos + r, w.kv_head, c.head_size * 2) + p * 16 : 0;
        copy16(to + tile_at(r, p), (const char *)cache + at, inside ? 16 : 0);
    }
}

template <int D>
__device__ __forceinline__ void copy_tile(const struct attn_call &c, const struct item &w,
                                          const void *cache, int width, int blocks, bool whole,
                                          uint32_t to, int pos)
{
    if (whole)
        copy_whole<D>(c, w, cache, blocks, to, pos);
    else
        copy_any<D>(c, w, cache, width, blocks, to, pos);
}

/* K and V of an item, in the order in which they are used: V of a tile after K of the
 * next. */
template <int D>
__device__ __forceinline__ void feed_tiles(const struct attn_call &c, const struct item &w,
                                           uint32_t data, struct ring<STAGES> *ring,
                                           struct turn<STAGES> *k, struct turn<STAGES> *v)
{
    typedef shape<D> sh;
    uint32_t k_data = data + QUERIES * sh::TILE_BYTES, v_data = k_data + STAGES * sh::TILE_BYTES;
    int blocks = look_up(c, w, w.pos0), before = -1;
    bool whole_before = false;
    for (int i = 0; i <= w.n; i++) {
        int pos = w.pos0 + i * KEYS, next = -1;
        bool whole = false;
        if (i < w.n) {
            next = look_up(c, w, pos + KEYS);
            uint32_t mapped = __ballot_sync(0xffffffffu, blocks >= 0) & 0xFF;
            whole = is_whole<D>(c, w, mapped, pos);
            barrier_wait(bar(&ring->k_empty[k->stage]), k->phase ^ 1);
            if (threadIdx.x == 0) {
                ring->mapped[k->stage] = mapped;
                barrier_arrive(bar(&ring->k_full[k->stage]));
            }
            copy_tile<D>(c, w, c.key_cache, c.head_size, blocks, whole,
                         k_data + k->stage * sh::TILE_BYTES, pos);
            barrier_arrive_copied(bar(&ring->k_full[k->stage]));
            k->next();
        }
        if (i > 0) {
            barrier_wait(bar(&ring->v_empty[v->stage]), v->phase ^ 1);
            copy_tile<D>(c, w, c.value_cache, c.v_head_size, before, whole_before,
                         v_data + v->stage * sh::TILE_BYTES, pos - KEYS);
            barrier_arrive_copied(bar(&ring->v_full[v->stage]));
            v->next();
        }
        before = blocks;
        blocks = next;
        whole_before = whole;
    }
}

__device__ __forceinline__ void write_note(struct note *note, const struct item &w)
{
    note->rows = make_int4(w.first, w.n_rows, w.kv_head, w.row0);
    note->keys = make_int4(w.begin, w.end, w.pos0, w.n);
    note->rest = make_int4(w.past, 0, 0, 0);
}

/* All items of a CTA: its own first, then what the counter gives. */
template <int D>
__device__ __forceinline__ void feed(const struct attn_call &c, uint32_t data, struct mailbox *box,
                                     int items)
{
    struct turn<STAGES> k = { 0, 0 }, v = { 0, 0 };
    int next = blockIdx.x;
    for (int nth = 0;; nth++) {
        int at = nth % QUERIES;
        if (threadIdx.x == 0)
            box->next[nth & 1] = next;
        meet();
        int id = box->next[nth & 1];
        struct item w = {};
        w.n = -1;
        if (id < items)
            find_item(c, id, items / c.kv_heads, &w);
        barrier_wait(bar(&box->q_empty[at]), (nth / QUERIES & 1) ^ 1);
        if (threadIdx.x == 0) {
            write_note(&box->note[at], w);
            barrier_arrive(bar(&box->q_full[at]));
        }
        if (id < items)
            copy_query<D>(c, w, data + at * shape<D>::TILE_BYTES);
        barrier_arrive_copied(bar(&box->q_full[at]));
        if (id >= items)
            return;
        if (threadIdx.x == 0)
            next = next_item(c, LIST_PREFILL, items);
        feed_tiles<D>(c, w, data, &box->ring, &k, &v);
    }
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---- a computing warpgroup ------------------------------------------------------- */

/* One lane's rows: (warp row, + 8). */
struct my_rows {
    int position[2]; /* -1 for none                */
    int low, high;   /* over the warp's valid rows */
    float factor[2];
};

__device__ __forceinline__ void find_rows(const struct attn_call &c, const struct item &w,
                                          struct my_rows *m)
{
    int lane = threadIdx.x & 31;
    m->low = INT32_MAX;
    m->high = -1;
    for (int h = 0; h < 2; h++) {
        int r = warp_row() + (lane >> 2) + h * 8, row = w.row0 + min(r, w.n_rows - 1);
        int j = row / c.group;
        bool valid = r < w.n_rows;
        m->position[h] = valid ? query_position(c, w.first + j, w.past, j) : -1;
        m->high = max(m->high, m->position[h]);
        m->low = min(m->low, valid ? m->position[h] : INT32_MAX);
        m->factor[h] = c.scale * 1.4426950408889634f;
    }
    m->low = __reduce_min_sync(0xffffffffu, m->low);
    m->high = __reduce_max_sync(0xffffffffu, m->high);
}

/* Mask the scores of the tile at pos where any row does not see all of it. */
__device__ __forceinline__ void mask(const struct attn_call &c, const struct item &w,
                                     const struct my_rows &m, uint32_t mapped, int pos,
                                     float (&x)[64])
{
    bool whole = mapped == 0xFF && pos >= w.begin && pos + KEYS <= w.end &&
                 pos + KEYS - 1 <= m.low && (c.window <= 0 || m.high - pos < c.window);
    if (whole)
        return;
    struct hopper::key_range seen[2];
#pragma unroll
    for (int h = 0; h < 2; h++)
        seen[h] = hopper::seen_keys(w.begin, w.end, m.position[h], c.window);
    hopper::mask_keys(x, pos, seen);
    if (mapped != 0xFF)
        hopper::mask_holes(x, mapped);
}

/* What a tile's scores go through. */
struct paged_scores {
    enum { HOLES = true };
    const struct attn_call &c;
    const struct item &w;
    const struct my_rows &m;

    __device__ __forceinline__ float operator()(int i, uint32_t mapped, float (&x)[64]) const
    {
        /* Scaling rides on the exponential where nothing comes between. */
        bool plain = c.softcap <= 0.0f && m.factor[0] > 0.0f;
        if (!plain) {
#pragma unroll
            for (int k = 0; k < 16; k++)
                scale_scores(c, m.factor, &x[k * 4]);
        }
        mask(c, w, m, mapped, w.pos0 + i * KEYS, x);
        return plain ? m.factor[0] : 1.0f;
    }
};

template <typename M, int D>
__device__ __forceinline__ void store(const struct attn_call &c, const struct item &w,
                                      const struct rows_state<D> &s)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int in_tile = warp_row() + ((threadIdx.x & 31) >> 2) + h * 8;
        int row = w.row0 + min(in_tile, w.n_rows - 1);
        int token = w.first + row / c.group, head = w.kv_head * c.group + row % c.group;
        struct attn_state t = { s.max[h], quad_sum(s.sum[h]) };
        M *to = (M *)c.output + ((int64_t)token * c.heads + head) * c.v_head_size;
        hopper::store_row<M, D>(s.o, h, output_factor(c, t, head), to, c.v_head_size,
                                in_tile < w.n_rows);
    }
}

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
    w.first = __shfl_sync(0xffffffffu, rows.x, 0);
    w.n_rows = __shfl_sync(0xffffffffu, rows.y, 0);
    w.kv_head = __shfl_sync(0xffffffffu, rows.z, 0);
    w.row0 = __shfl_sync(0xffffffffu, rows.w, 0);
    w.begin = __shfl_sync(0xffffffffu, keys.x, 0);
    w.end = __shfl_sync(0xffffffffu, keys.y, 0);
    w.pos0 = __shfl_sync(0xffffffffu, keys.z, 0);
    w.n = __shfl_sync(0xffffffffu, keys.w, 0);
    w.past = __shfl_sync(0xffffffffu, rest.x, 0);
    w.table = NULL;
    return w;
}

template <typename M, int D>
__device__ __forceinline__ void work(const struct attn_call &c, uint32_t data, struct mailbox *box)
{
    typedef shape<D> sh;
    int group = (threadIdx.x >> 7) - 1;
    struct turn<STAGES> k = { 0, 0 }, v = { 0, 0 };
    struct tiles at;
    at.k = data + QUERIES * sh::TILE_BYTES;
    at.v = at.k + STAGES * sh::TILE_BYTES;
    for (int nth = 0;; nth++) {
        int q = nth % QUERIES;
        barrier_wait(bar(&box->q_full[q]), nth / QUERIES & 1);
        struct item w = read_note(&box->note[q]);
        if (w.n < 0)
            return;
        struct my_rows m;
        find_rows(c, w, &m);
        at.q = data + q * sh::TILE_BYTES + group * 64 * 128;
        at.q_empty = &box->q_empty[q];
        at.n = w.n;
        struct rows_state<D> s;
        attend<M, D, D, STAGES>(at, &box->ring, &k, &v, paged_scores{ c, w, m }, &s);
        store<M, D>(c, w, s);
    }
}

#endif

template <int KIND, int D>
__global__ void __launch_bounds__(THREADS, 1)
    hopper_kernel(const __grid_constant__ struct attn_call c)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    typedef shape<D> sh;
    typedef typename cache_type<KIND>::mma_type M;
    extern __shared__ char raw[];
    char *data = raw + (-smem_address(raw) & 1023);
    struct mailbox *box = (struct mailbox *)(data + sh::DATA_BYTES);

    if (threadIdx.x == 0) {
        init_ring(&box->ring, 1);
        for (int i = 0; i < QUERIES; i++) {
            barrier_init(bar(&box->q_full[i]), GROUP + 1);
            barrier_init(bar(&box->q_empty[i]), 8);
        }
        fence_proxy_async();
    }
    __syncthreads();
    int items = list_items(c, LIST_PREFILL);
    wait_for_upstream();
    if (threadIdx.x < GROUP) {
        registers_down<56>();
        feed<D>(c, smem_address(data), box, items);
    } else {
        registers_up<224>();
        if (threadIdx.x >= 2 * GROUP)
            give_turn(1); /* the first group begins */
        work<M, D>(c, smem_address(data), box);
    }
#endif
}

template <int KIND, int D> cudaError_t prepare(void)
{
    return cudaFuncSetAttribute(hopper_kernel<KIND, D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                shape<D>::SMEM_BYTES);
}

template <int KIND> cudaError_t prepare_any(int width, const struct device_limits *)
{
    return width == 64 ? prepare<KIND, 64>() : prepare<KIND, 128>();
}

template <int KIND, int D>
cudaError_t start(const struct attn_call *c, const struct device_limits *limits,
                  cudaStream_t stream)
{
    return launch(hopper_kernel<KIND, D>, (unsigned)limits->n_sm, THREADS, shape<D>::SMEM_BYTES,
                  stream, *c);
}

template <int KIND>
cudaError_t start_any(const struct attn_call *c, const struct device_limits *limits,
                      cudaStream_t stream)
{
    return c->q_width == 64 ? start<KIND, 64>(c, limits, stream)
                            : start<KIND, 128>(c, limits, stream);
}

} // namespace hopper

#endif
