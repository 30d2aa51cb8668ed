/* dense_hopper.cu: causal attention over contiguous K and V on sm_90a, K of up to
 * 192 channels and V of up to 128: latent attention's expanded prompts.
 *
 *   query, key, value  [tokens, heads, width], 16-bit     output  T
 * An item is (unit, head): 128 query rows of one head against the keys that they
 * see, 128 a tile.  As in hopper.cuh one warpgroup copies and two of 64 rows
 * compute, in turns.  Items of a head follow one another, so that its K and V stay
 * in L2; a counter hands them out, for causal work differs from unit to unit.
 * launch   persistent: one CTA of 384 threads a SM
 * smem     Q of 48 KiB, 2 stages of K (48 KiB) and V (32 KiB)
 * bound    matrix units: 2 (192 + 128) heads pairs FLOP at 780 TFLOP/s
 *
 * Owns nothing.  Called by dense.cu, after its rows kernel, on its stream. */
#include "attention/cuda/dense.h"
#include "attention/cuda/hopper.cuh"

namespace
{

using hopper::bar;
using hopper::GROUP;
using hopper::KEYS;
using hopper::STAGES;
using hopper::THREADS;
using hopper::TILE;
using hopper::tile_at;
using hopper::turn;

static_assert((int)TILE == (int)DENSE_ROWS && (int)KEYS == (int)TILE, "Q lies like K");

enum {
    PANEL_BYTES = KEYS * 128,
    K_BYTES = DENSE_K / 64 * PANEL_BYTES, /* and Q's */
    V_BYTES = DENSE_V / 64 * PANEL_BYTES,
    STAGE_BYTES = K_BYTES + V_BYTES,
    DATA_BYTES = K_BYTES + STAGES * STAGE_BYTES,
    SMEM_BYTES = 1024 + DATA_BYTES + 128
};

struct mailbox {
    uint64_t full[STAGES], empty[STAGES], q_full, q_empty;
    int id; /* of the item whose Q is there */
};

struct item {
    int first, head, kv_head, row0, n_rows;
    int begin, end, pos0, n; /* keys that any row sees; first tile, tiles */
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ __forceinline__ struct item find_item(const struct dense_call &c, int id, int n_units)
{
    int4 raw = __ldcg((const int4 *)&c.unit[id % n_units]);
    struct item w;
    w.first = raw.x;
    w.head = id / n_units;
    w.kv_head = w.head / (c.heads / c.kv_heads);
    w.row0 = raw.z;
    w.n_rows = min((int)TILE, raw.y - raw.z);
    w.begin = c.window > 0 ? max(0, w.row0 - c.window + 1) : 0;
    w.end = w.row0 + w.n_rows;
    w.pos0 = w.begin / KEYS * KEYS;
    w.n = (w.end - w.pos0 + KEYS - 1) / KEYS;
    return w;
}

/* ---- the copying warpgroup ----------------------------------------------------- */

/* A tile of PANELS x 64 channels: rows r of n, `stride` bytes apart from `from` on;
 * the rest, and channels beyond the width, are zeroed. */
template <int PANELS>
__device__ __forceinline__ void copy_tile(uint32_t to, const char *from, int64_t stride, int width,
                                          int n)
{
    int p = threadIdx.x & 7, r = threadIdx.x >> 3;
    const char *row = from + r * stride + p * 16;
    to += tile_at(r, p); /* the swizzle repeats every 8 rows */
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++, r += 16, row += 16 * stride, to += 16 * 128)
#pragma unroll
        for (int panel = 0; panel < PANELS; panel++) {
            bool there = r < n && (panel * 8 + p) * 8 < width;
            copy16(to + panel * PANEL_BYTES, there ? row + panel * 128 : from, there ? 16 : 0);
        }
}

__device__ __forceinline__ void copy_query(const struct dense_call &c, const struct item &w,
                                           uint32_t to)
{
    int64_t stride = (int64_t)c.heads * c.k_width * 2;
    const char *from = (const char *)c.query + (w.first + w.row0) * stride + w.head * c.k_width * 2;
    copy_tile<DENSE_K / 64>(to, from, stride, c.k_width, w.n_rows);
}

__device__ __forceinline__ void copy_stage(const struct dense_call &c, const struct item &w,
                                           uint32_t to, int pos)
{
    int64_t k_stride = (int64_t)c.kv_heads * c.k_width * 2;
    int64_t v_stride = (int64_t)c.kv_heads * c.v_width * 2;
    const char *k = (const char *)c.key + (w.first + pos) * k_stride + w.kv_head * c.k_width * 2;
    const char *v = (const char *)c.value + (w.first + pos) * v_stride + w.kv_head * c.v_width * 2;
    copy_tile<DENSE_K / 64>(to, k, k_stride, c.k_width, w.end - pos);
    copy_tile<DENSE_V / 64>(to + K_BYTES, v, v_stride, c.v_width, w.end - pos);
}

/* The producers agree on what thread 0 wrote. */
__device__ __forceinline__ void meet(void)
{
    asm volatile("bar.sync 3, 128;" ::: "memory");
}

__device__ __forceinline__ void feed(const struct dense_call &c, uint32_t data, struct mailbox *box,
                                     int n_units)
{
    int items = n_units * c.heads, next = blockIdx.x;
    struct turn t = { 0, 0 };
    for (int nth = 0;; nth++) {
        barrier_wait(bar(&box->q_empty), (nth & 1) ^ 1);
        if (threadIdx.x == 0) {
            box->id = next;
            barrier_arrive(bar(&box->q_full));
        }
        meet();
        int id = box->id;
        if (id >= items) {
            barrier_arrive_copied(bar(&box->q_full));
            return;
        }
        struct item w = find_item(c, id, n_units);
        copy_query(c, w, data);
        barrier_arrive_copied(bar(&box->q_full));
        if (threadIdx.x == 0)
            next = (int)(gridDim.x + atomicAdd(&c.list->taken, 1u));
        for (int i = 0; i < w.n; i++) {
            barrier_wait(bar(&box->empty[t.stage]), t.phase ^ 1);
            copy_stage(c, w, data + K_BYTES + t.stage * STAGE_BYTES, w.pos0 + i * KEYS);
            barrier_arrive_copied(bar(&box->full[t.stage]));
            t.next();
        }
    }
}

/* ---- a computing warpgroup ------------------------------------------------------- */

/* The first row of this warp's 16 in the item's tile. */
__device__ __forceinline__ int warp_row(void)
{
    return ((threadIdx.x - GROUP) >> 5) * 16;
}

/* Scores of the tile at pos that a row does not see; rows beyond the item's see
 * what they like. */
__device__ __forceinline__ void mask(const struct dense_call &c, const struct item &w, int pos,
                                     float (&x)[64])
{
    int low = w.row0 + warp_row();
    if (pos + KEYS - 1 <= low && (c.window <= 0 || low + 15 - pos < c.window))
        return;
    int quad = threadIdx.x & 3, row = low + ((threadIdx.x & 31) >> 2);
#pragma unroll
    for (int i = 0; i < 64; i++) {
        int k = pos + (i >> 2) * 8 + quad * 2 + (i & 1), p = row + ((i >> 1) & 1) * 8;
        if (k > p || k >= w.end || (c.window > 0 && p - k >= c.window))
            x[i] = -INFINITY;
    }
}

/* Four channels a lane, like hopper.cuh's store. */
template <typename M>
__device__ __forceinline__ void store(const struct dense_call &c, const struct item &w,
                                      const float (&o)[64], const float sum[2])
{
    int lane = threadIdx.x & 31, quad = lane & 3;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = warp_row() + (lane >> 2) + r * 8;
        float total = quad_sum(sum[r]), factor = total > 0.0f ? 1.0f / total : 0.0f;
        M *to = (M *)c.output + ((int64_t)(w.first + w.row0 + row) * c.heads + w.head) * c.v_width;
#pragma unroll
        for (int n = 0; n < DENSE_V / 8; n += 2) {
            /* Even quads take tile n, odd ones tile n + 1. */
            bool odd = quad & 1;
            float a0 = o[n * 4 + r * 2], a1 = o[n * 4 + r * 2 + 1];
            float b0 = o[n * 4 + 4 + r * 2], b1 = o[n * 4 + 4 + r * 2 + 1];
            float s0 = __shfl_xor_sync(0xffffffffu, odd ? a0 : b0, 1);
            float s1 = __shfl_xor_sync(0xffffffffu, odd ? a1 : b1, 1);
            float v[4] = { odd ? s0 : a0, odd ? s1 : a1, odd ? b0 : s0, odd ? b1 : s1 };
            int channel = (n + odd) * 8 + (quad & 2) * 2;
            if (row >= w.n_rows || channel >= c.v_width)
                continue;
            uint2 raw = { pack2<M>(v[0] * factor, v[1] * factor),
                          pack2<M>(v[2] * factor, v[3] * factor) };
            *(uint2 *)(to + channel) = raw;
        }
    }
}

template <typename M>
__device__ __forceinline__ void compute(const struct dense_call &c, const struct item &w,
                                        uint32_t data, struct mailbox *box, struct turn *t)
{
    float o[64], x[64], max[2] = { ATTN_NO_MAX, ATTN_NO_MAX }, sum[2] = { 0.0f, 0.0f }, shrink[2];
    int group = (threadIdx.x >> 7) - 1, before = 0; /* stage whose V is still being read */
    uint32_t q_tile = data + group * 64 * 128;
    float factor = c.scale * 1.4426950408889634f;
#pragma unroll
    for (int i = 0; i < 64; i++)
        o[i] = 0.0f;
    for (int i = 0; i < w.n; i++) {
        uint32_t k_tile = data + K_BYTES + t->stage * STAGE_BYTES;
        int pos = w.pos0 + i * KEYS;
        barrier_wait(bar(&box->full[t->stage]), t->phase);
        publish_to_matrix_units();
        hopper::take_turn(group);
        products_begin();
        hopper::start_scores<M, DENSE_K>(x, q_tile, k_tile);
        products_commit();
        hopper::give_turn(group);
        if (i > 0) {
            products_wait<1>();
            if ((threadIdx.x & 31) == 0)
                barrier_arrive(bar(&box->empty[before]));
        }
        products_wait<0>();
        pin(x);
        pin(o);
        if (i + 1 == w.n && (threadIdx.x & 31) == 0)
            barrier_arrive(bar(&box->q_empty)); /* the next item's Q may come */
        if (c.softcap > 0.0f) {
#pragma unroll
            for (int k = 0; k < 64; k++)
                x[k] = attn_softcap(x[k] * c.scale, c.softcap) * 1.4426950408889634f;
        }
        mask(c, w, pos, x);
        hopper::weigh(x, c.softcap > 0.0f ? 1.0f : factor, max, sum, shrink);
        uint32_t p[KEYS / 16][4];
#pragma unroll
        for (int k = 0; k < KEYS / 4; k++)
            p[k >> 2][k & 3] = pack2<M>(x[k * 2], x[k * 2 + 1]);
        if (__any_sync(0xffffffffu, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
            for (int k = 0; k < 64; k++)
                o[k] *= shrink[(k >> 1) & 1];
        }
        pin(o);
        products_begin();
        hopper::start_output<M, DENSE_V>(o, p, k_tile + K_BYTES);
        products_commit();
        before = t->stage;
        t->next();
    }
    products_wait<0>();
    pin(o);
    if ((threadIdx.x & 31) == 0)
        barrier_arrive(bar(&box->empty[before]));
    store<M>(c, w, o, sum);
}

template <typename M>
__device__ __forceinline__ void work(const struct dense_call &c, uint32_t data, struct mailbox *box,
                                     int n_units)
{
    struct turn t = { 0, 0 };
    for (int nth = 0;; nth++) {
        barrier_wait(bar(&box->q_full), nth & 1);
        int id = box->id;
        __syncwarp();
        if (id >= n_units * c.heads)
            return;
        compute<M>(c, find_item(c, id, n_units), data, box, &t);
    }
}

#endif

template <typename M>
__global__ void __launch_bounds__(THREADS, 1)
    dense_kernel(const __grid_constant__ struct dense_call c)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ char raw[];
    char *data = raw + (-smem_address(raw) & 1023);
    struct mailbox *box = (struct mailbox *)(data + DATA_BYTES);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(bar(&box->full[i]), GROUP);
            barrier_init(bar(&box->empty[i]), 8);
        }
        barrier_init(bar(&box->q_full), GROUP + 1);
        barrier_init(bar(&box->q_empty), 8);
        publish_to_matrix_units();
    }
    __syncthreads();
    wait_for_upstream();
    int n_units = __ldcg(&c.list->n_units);
    if (threadIdx.x < GROUP) {
        registers_down<40>();
        feed(c, smem_address(data), box, n_units);
    } else {
        registers_up<232>();
        if (threadIdx.x >= 2 * GROUP)
            hopper::give_turn(1); /* the first group begins */
        work<M>(c, smem_address(data), box, n_units);
    }
#endif
}

} // namespace

int dense_hopper_bytes(void)
{
    return SMEM_BYTES;
}

cudaError_t dense_hopper_prepare(void)
{
    cudaError_t rc = cudaFuncSetAttribute(dense_kernel<__nv_bfloat16>,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES);
    return rc != cudaSuccess
               ? rc
               : cudaFuncSetAttribute(dense_kernel<__half>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES);
}

cudaError_t dense_hopper_launch(const struct dense_call *c, int n_sm, cudaStream_t stream)
{
    unsigned ctas = (unsigned)n_sm;
    return c->dtype_bf16
               ? launch(dense_kernel<__nv_bfloat16>, ctas, THREADS, SMEM_BYTES, stream, *c)
               : launch(dense_kernel<__half>, ctas, THREADS, SMEM_BYTES, stream, *c);
}
