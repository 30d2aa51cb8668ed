/* hopper.cuh: prefill on sm_90a, 16-bit caches, heads of up to 128 channels.
 *
 *   q       [tokens, heads, q_width] from the prologue
 *   caches  [blocks, block_size, kv_heads, head_size], bf16 or fp16
 *   output  T
 * Items as in prefill.cuh: (sequence, 128 packed rows, kv head).  One warpgroup
 * copies Q and tiles of 128 keys through the block table; two warpgroups of 64
 * rows compute, each running its softmax while the other holds the matrix
 * units.
 * launch   persistent: one CTA of 384 threads a SM; items in turn
 * smem     2 x Q of 32 KiB, 2 stages of K and V of 64 KiB at 128 channels
 * bound    matrix units: 4 heads D pairs FLOP at 780 TFLOP/s
 *
 * Owns nothing.  Called by the backend, after the prologue, on its stream. */
#ifndef ATTENTION_CUDA_HOPPER_CUH
#define ATTENTION_CUDA_HOPPER_CUH

#include "attention/cuda/cache.cuh"
#include "attention/cuda/epilogue.cuh"
#include "attention/cuda/kernels.h"
#include "attention/cuda/launch.cuh"
#include "attention/cuda/room.h"
#include "attention/cuda/wgmma.cuh"
#include "attention/cuda/work.cuh"

namespace hopper
{

enum { GROUP = 128, THREADS = 3 * GROUP, TILE = 128, KEYS = 128, STAGES = 2, PANEL = 64 };

template <int D> struct shape {
    enum {
        PANEL_BYTES = KEYS * 128,
        TILE_BYTES = D / PANEL * PANEL_BYTES,       /* Q, K or V */
        DATA_BYTES = TILE_BYTES * (2 + 2 * STAGES), /* two of Q, then stages of K, V */
        SMEM_BYTES = hopper_bytes(D)
    };
    static_assert(1024 + DATA_BYTES + 128 == SMEM_BYTES, "room.h");
};

/* Barriers and notes between the warpgroups, in shared memory. */
struct mailbox {
    uint64_t full[STAGES], empty[STAGES], q_full[2], q_empty[2];
    uint32_t mapped[STAGES]; /* bit i: granule i has a block */
};

struct item {
    int first, n_rows, kv_head, row0;
    int begin, end, pos0, n; /* keys; first tile, tiles */
    int past;
    const int32_t *table;
};

__device__ __forceinline__ void find_item(const struct attn_call &c, int id, struct item *w)
{
    struct plan_unit u = list_unit(c, LIST_PREFILL, id);
    int lane = threadIdx.x & 31;
    w->past = u.past;
    w->first = u.first;
    w->kv_head = id % c.kv_heads;
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

/* Byte offset of piece p (16 bytes) of row r in a tile of panels of KEYS rows. */
__device__ __forceinline__ uint32_t tile_at(int r, int p)
{
    return (uint32_t)((p >> 3) * KEYS * 128 + r * 128 + ((p ^ r) & 7) * 16);
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

/* Rows of a tile by whole granules: every one inside, mapped and of full width. */
template <int D>
__device__ __forceinline__ void copy_whole(const struct attn_call &c, const struct item &w,
                                           int blocks, uint32_t to, int pos)
{
    enum { PIECES = D / 8, PER_PASS = GROUP / PIECES };
    int p = threadIdx.x % PIECES, r0 = threadIdx.x / PIECES;
    int in_block = (1 << c.block_shift) - 1;
    uint32_t slot_bytes = (uint32_t)c.kv_heads * D * 2;
    int64_t mine = (int64_t)w.kv_head * D * 2 + p * 16;
    const char *k = (const char *)c.key_cache + mine, *v = (const char *)c.value_cache + mine;
    to += tile_at(r0, p); /* the swizzle repeats every 8 rows */
#pragma unroll
    for (int i = 0; i < KEYS / PER_PASS; i++) {
        int granule = i * PER_PASS / 16, in_granule = i * PER_PASS % 16 + r0;
        uint32_t block = (uint32_t)__shfl_sync(0xffffffffu, blocks, granule);
        uint32_t slot =
            (block << c.block_shift) + (uint32_t)((pos + granule * 16) & in_block) + in_granule;
        uint64_t at = (uint64_t)slot * slot_bytes;
        copy16(to + i * PER_PASS * 128, k + at, 16);
        copy16(to + shape<D>::TILE_BYTES + i * PER_PASS * 128, v + at, 16);
    }
}

/* Rows of any tile; what is not there is zeroed. */
template <int D>
__device__ __forceinline__ void copy_any(const struct attn_call &c, const struct item &w,
                                         int blocks, uint32_t to, int pos)
{
    enum { PIECES = D / 8, PER_PASS = GROUP / PIECES };
    int p = threadIdx.x % PIECES, row_bytes = c.head_size * 2;
    bool k_real = p * 16 < row_bytes, v_real = p * 16 < c.v_head_size * 2;
#pragma unroll
    for (int i = 0; i < KEYS / PER_PASS; i++) {
        int r = i * PER_PASS + threadIdx.x / PIECES;
        int block = __shfl_sync(0xffffffffu, blocks, i * PER_PASS / 16);
        bool inside = block >= 0 && pos + r >= w.begin && pos + r < w.end;
        int64_t at = inside ? cache_offset(c, block, pos + r, w.kv_head, row_bytes) + p * 16 : 0;
        copy16(to + tile_at(r, p), (const char *)c.key_cache + (k_real ? at : 0),
               inside && k_real ? 16 : 0);
        copy16(to + shape<D>::TILE_BYTES + tile_at(r, p),
               (const char *)c.value_cache + (v_real ? at : 0), inside && v_real ? 16 : 0);
    }
}

/* Which tile of the ring comes next, for either side. */
struct turn {
    int stage;
    uint32_t phase;

    __device__ __forceinline__ void next(void)
    {
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        phase ^= stage == 0;
    }
};

__device__ __forceinline__ uint32_t bar(const uint64_t *b)
{
    return smem_address(b);
}

/* The n-th item of a CTA uses Q tile n % 2, for the (n / 2)-th time. */
template <int D>
__device__ __forceinline__ void feed(const struct attn_call &c, const struct item &w, uint32_t data,
                                     struct mailbox *box, struct turn *t, int nth)
{
    typedef shape<D> sh;
    int now = look_up(c, w, w.pos0);
    barrier_wait(bar(&box->q_empty[nth & 1]), (nth >> 1 & 1) ^ 1);
    copy_query<D>(c, w, data + (nth & 1) * sh::TILE_BYTES);
    barrier_arrive_copied(bar(&box->q_full[nth & 1]));
    for (int i = 0; i < w.n; i++) {
        int pos = w.pos0 + i * KEYS;
        uint32_t to = data + sh::TILE_BYTES * (2 + 2 * t->stage);
        int next = look_up(c, w, pos + KEYS);
        uint32_t mapped = __ballot_sync(0xffffffffu, now >= 0) & 0xFF;
        barrier_wait(bar(&box->empty[t->stage]), t->phase ^ 1);
        if (threadIdx.x == 0) {
            box->mapped[t->stage] = mapped;
            barrier_arrive(bar(&box->full[t->stage]));
        }
        if (mapped == 0xFF && pos >= w.begin && pos + KEYS <= w.end && c.head_size == D &&
            c.v_head_size == D)
            copy_whole<D>(c, w, now, to, pos);
        else
            copy_any<D>(c, w, now, to, pos);
        barrier_arrive_copied(bar(&box->full[t->stage]));
        t->next();
        now = next;
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
    int lane = threadIdx.x & 31, warp = (threadIdx.x - GROUP) >> 5;
    m->low = INT32_MAX;
    m->high = -1;
    for (int h = 0; h < 2; h++) {
        int r = warp * 16 + (lane >> 2) + h * 8, row = w.row0 + min(r, w.n_rows - 1);
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
    int quad = threadIdx.x & 3;
#pragma unroll
    for (int i = 0; i < 64; i++) {
        int k = pos + (i >> 2) * 8 + quad * 2 + (i & 1), p = m.position[(i >> 1) & 1];
        bool seen = k >= w.begin && k < w.end && k <= p && (c.window <= 0 || p - k < c.window) &&
                    (mapped >> (i >> 3) & 1);
        if (!seen)
            x[i] = -INFINITY;
    }
}

/* Scores, in units of 1 / factor of a power of two, to weights; returns by how
 * much O shrinks. */
__device__ __forceinline__ void weigh(float (&x)[64], float factor, float max[2], float sum[2],
                                      float shrink[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = -INFINITY, part = 0.0f;
#pragma unroll
        for (int i = 0; i < 16; i++)
            top = fmaxf(top, fmaxf(x[i * 4 + r * 2], x[i * 4 + r * 2 + 1]));
        top = fmaxf(max[r], quad_max(top) * factor);
        shrink[r] = exp2_approx(max[r] - top);
        max[r] = top;
#pragma unroll
        for (int i = 0; i < 16; i++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float *v = &x[i * 4 + r * 2 + e];
                *v = exp2_approx(fmaf(*v, factor, -top));
                part += *v;
            }
        sum[r] = sum[r] * shrink[r] + part;
    }
}

template <typename M, int D>
__device__ __forceinline__ void start_scores(float (&x)[64], uint32_t q_tile, uint32_t k_tile)
{
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t at = (k / 4) * KEYS * 128 + (k % 4) * 32;
        product_rows<M>(x, tile_descriptor(q_tile + at, 16), tile_descriptor(k_tile + at, 16),
                        k > 0);
    }
}

template <typename M, int D>
__device__ __forceinline__ void start_output(float (&o)[D / 2], const uint32_t (&p)[KEYS / 16][4],
                                             uint32_t v_tile)
{
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
        product_columns<M>(o, p[k], tile_descriptor(v_tile + k * 16 * 128, KEYS * 128));
}

template <int D>
__device__ __forceinline__ void store(const struct attn_call &c, const struct item &w,
                                      const float (&o)[D / 2], const float max[2],
                                      const float sum[2])
{
    int lane = threadIdx.x & 31, warp = (threadIdx.x - GROUP) >> 5, quad = lane & 3;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int in_tile = warp * 16 + (lane >> 2) + r * 8, row = w.row0 + min(in_tile, w.n_rows - 1);
        int token = w.first + row / c.group, head = w.kv_head * c.group + row % c.group;
        struct attn_state t = { max[r], quad_sum(sum[r]) };
        float factor = output_factor(c, t, head);
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            /* Even quads take tile n, odd ones tile n + 1. */
            bool odd = quad & 1;
            float a0 = o[n * 4 + r * 2], a1 = o[n * 4 + r * 2 + 1];
            float b0 = o[n * 4 + 4 + r * 2], b1 = o[n * 4 + 4 + r * 2 + 1];
            float s0 = __shfl_xor_sync(0xffffffffu, odd ? a0 : b0, 1);
            float s1 = __shfl_xor_sync(0xffffffffu, odd ? a1 : b1, 1);
            float4 v = odd ? make_float4(s0, s1, b0, b1) : make_float4(a0, a1, s0, s1);
            if (in_tile < w.n_rows)
                write_output(c, token, head, (n + odd) * 8 + (quad & 2) * 2, v, factor);
        }
    }
}

/* The two computing warpgroups issue their scores in turn, so that one's softmax
 * falls into the other's products. */
__device__ __forceinline__ void take_turn(int group)
{
    asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory");
}

__device__ __forceinline__ void give_turn(int group)
{
    asm volatile("bar.arrive %0, 256;" ::"r"(1 + (group ^ 1)) : "memory");
}

template <typename M, int D>
__device__ __forceinline__ void compute(const struct attn_call &c, const struct item &w,
                                        uint32_t data, struct mailbox *box, struct turn *t, int nth)
{
    typedef shape<D> sh;
    struct my_rows m;
    float o[D / 2], x[64], max[2], sum[2], shrink[2];
    int group = (threadIdx.x >> 7) - 1;
    uint32_t q_tile = data + (nth & 1) * sh::TILE_BYTES + group * 64 * 128;
    find_rows(c, w, &m);
#pragma unroll
    for (int i = 0; i < D / 2; i++)
        o[i] = 0.0f;
    max[0] = max[1] = ATTN_NO_MAX;
    sum[0] = sum[1] = 0.0f;
    barrier_wait(bar(&box->q_full[nth & 1]), nth >> 1 & 1);
    /* Scaling rides on the exponential where nothing comes between. */
    bool plain = c.softcap <= 0.0f && m.factor[0] > 0.0f;
    int before = 0; /* stage whose V is still being read */
    for (int i = 0; i < w.n; i++) {
        uint32_t k_tile = data + sh::TILE_BYTES * (2 + 2 * t->stage);
        int pos = w.pos0 + i * KEYS;
        barrier_wait(bar(&box->full[t->stage]), t->phase);
        publish_to_matrix_units();
        uint32_t mapped = box->mapped[t->stage];
        take_turn(group);
        products_begin();
        start_scores<M, D>(x, q_tile, k_tile);
        products_commit();
        give_turn(group);
        if (i > 0) {
            products_wait<1>();
            if ((threadIdx.x & 31) == 0)
                barrier_arrive(bar(&box->empty[before]));
        }
        products_wait<0>();
        pin(x);
        pin(o);
        if (!plain) {
#pragma unroll
            for (int k = 0; k < 16; k++)
                scale_scores(c, m.factor, &x[k * 4]);
        }
        mask(c, w, m, mapped, pos, x);
        weigh(x, plain ? m.factor[0] : 1.0f, max, sum, shrink);
        uint32_t p[KEYS / 16][4];
#pragma unroll
        for (int k = 0; k < KEYS / 4; k++)
            p[k >> 2][k & 3] = pack2<M>(x[k * 2], x[k * 2 + 1]);
        if (__any_sync(0xffffffffu, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
            for (int k = 0; k < D / 2; k++)
                o[k] *= shrink[(k >> 1) & 1];
        }
        pin(o);
        products_begin();
        start_output<M, D>(o, p, k_tile + sh::TILE_BYTES);
        products_commit();
        before = t->stage;
        t->next();
    }
    products_wait<0>();
    pin(o);
    if (w.n > 0 && (threadIdx.x & 31) == 0)
        barrier_arrive(bar(&box->empty[before]));
    __syncwarp();
    if ((threadIdx.x & 31) == 0)
        barrier_arrive(bar(&box->q_empty[nth & 1]));
    store<D>(c, w, o, max, sum);
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
    int nth = 0;
    struct turn t = { 0, 0 };

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(bar(&box->full[i]), GROUP + 1);
            barrier_init(bar(&box->empty[i]), 8);
        }
        for (int i = 0; i < 2; i++) {
            barrier_init(bar(&box->q_full[i]), GROUP);
            barrier_init(bar(&box->q_empty[i]), 8);
        }
        publish_to_matrix_units();
    }
    __syncthreads();
    int items = list_items(c, LIST_PREFILL);
    wait_for_upstream();
    if (threadIdx.x < GROUP) {
        registers_down<40>();
        for (int id = blockIdx.x; id < items; id += gridDim.x, nth++) {
            struct item w;
            find_item(c, id, &w);
            feed<D>(c, w, smem_address(data), box, &t, nth);
        }
    } else {
        registers_up<232>();
        if (threadIdx.x >= 2 * GROUP)
            give_turn(1); /* the first group begins */
        for (int id = blockIdx.x; id < items; id += gridDim.x, nth++) {
            struct item w;
            find_item(c, id, &w);
            compute<M, D>(c, w, smem_address(data), box, &t, nth);
        }
    }
#endif
}

template <int KIND, int D> cudaError_t prepare(void)
{
    return cudaFuncSetAttribute(hopper_kernel<KIND, D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                shape<D>::SMEM_BYTES);
}

template <int KIND> cudaError_t prepare_any(int width, const struct cuda_room *)
{
    return width == 64 ? prepare<KIND, 64>() : prepare<KIND, 128>();
}

template <int KIND, int D>
cudaError_t start(const struct attn_call *c, const struct cuda_room *room, cudaStream_t stream)
{
    return launch(hopper_kernel<KIND, D>, (unsigned)room->n_sm, THREADS, shape<D>::SMEM_BYTES,
                  stream, *c);
}

template <int KIND>
cudaError_t start_any(const struct attn_call *c, const struct cuda_room *room, cudaStream_t stream)
{
    return c->q_width == 64 ? start<KIND, 64>(c, room, stream) : start<KIND, 128>(c, room, stream);
}

} // namespace hopper

#endif
