/* dense_hopper.cu: causal attention over contiguous K and V on sm_90a, K of up to
 * 192 channels and V of up to 128: latent attention's expanded prompts.
 *
 *   query, key, value  [tokens, heads, width], 16-bit     output  T
 * An item is (unit, head): 128 query rows of one head against the keys that they
 * see, 128 a tile.  One warpgroup copies and two of 64 rows compute
 * (hopper_tiles.cuh).  Items of a head follow one another, so that its K and V stay
 * in L2; a counter hands them out, for causal work differs from unit to unit.
 * launch   persistent: one CTA of 384 threads a SM
 * smem     Q of 48 KiB, 2 stages of K (48 KiB) and V (32 KiB)
 * bound    matrix units: 2 (192 + 128) heads pairs FLOP at 780 TFLOP/s
 *
 * Owns nothing.  Called by dense.cu, after its rows kernel, on its stream. */
#include "attention/cuda/dense.h"
#include "attention/cuda/call.h"
#include "attention/cuda/hopper_tiles.cuh"
#include "attention/cuda/launch.cuh"

namespace
{

using hopper::bar;
using hopper::BOX_BYTES;
using hopper::GROUP;
using hopper::KEYS;
using hopper::meet;
using hopper::PANEL_BYTES;
using hopper::THREADS;
using hopper::TILE;
using hopper::tile_at;

static_assert((int)TILE == (int)DENSE_ROWS && (int)KEYS == (int)TILE, "Q lies like K");

enum {
    STAGES = 2,
    K_BYTES = DENSE_K / 64 * PANEL_BYTES, /* and Q's */
    V_BYTES = DENSE_V / 64 * PANEL_BYTES,
    STAGE_BYTES = K_BYTES + V_BYTES,
    DATA_BYTES = K_BYTES + STAGES * STAGE_BYTES,
    SMEM_BYTES = 1024 + DATA_BYTES + BOX_BYTES
};

/* The n-th item of a CTA is named in id[n % 2]: it may be written while the copying
 * threads still read the one before. */
typedef struct hopper::ring<STAGES> ring;
typedef struct hopper::turn<STAGES> turn;

struct mailbox {
    ring ring_;
    uint64_t q_full, q_empty;
    int id[2];
};
static_assert(sizeof(struct mailbox) <= BOX_BYTES, "the barriers' room");

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

__device__ __forceinline__ void copy_k(const struct dense_call &c, const struct item &w,
                                       uint32_t to, int pos)
{
    int64_t stride = (int64_t)c.kv_heads * c.k_width * 2;
    const char *k = (const char *)c.key + (w.first + pos) * stride + w.kv_head * c.k_width * 2;
    copy_tile<DENSE_K / 64>(to, k, stride, c.k_width, w.end - pos);
}

__device__ __forceinline__ void copy_v(const struct dense_call &c, const struct item &w,
                                       uint32_t to, int pos)
{
    int64_t stride = (int64_t)c.kv_heads * c.v_width * 2;
    const char *v = (const char *)c.value + (w.first + pos) * stride + w.kv_head * c.v_width * 2;
    copy_tile<DENSE_V / 64>(to, v, stride, c.v_width, w.end - pos);
}

/* K and V of an item, in the order in which they are used: V of a tile after K of the
 * next. */
__device__ __forceinline__ void feed_tiles(const struct dense_call &c, const struct item &w,
                                           uint32_t data, ring *r, turn *k, turn *v)
{
    uint32_t k_data = data + K_BYTES, v_data = k_data + STAGES * K_BYTES;
    for (int i = 0; i <= w.n; i++) {
        int pos = w.pos0 + i * KEYS;
        if (i < w.n) {
            barrier_wait(bar(&r->k_empty[k->stage]), k->phase ^ 1);
            copy_k(c, w, k_data + k->stage * K_BYTES, pos);
            barrier_arrive_copied(bar(&r->k_full[k->stage]));
            k->next();
        }
        if (i > 0) {
            barrier_wait(bar(&r->v_empty[v->stage]), v->phase ^ 1);
            copy_v(c, w, v_data + v->stage * V_BYTES, pos - KEYS);
            barrier_arrive_copied(bar(&r->v_full[v->stage]));
            v->next();
        }
    }
}

__device__ __forceinline__ void feed(const struct dense_call &c, uint32_t data, struct mailbox *box,
                                     int n_units)
{
    int items = n_units * c.heads, next = blockIdx.x;
    turn k = { 0, 0 }, v = { 0, 0 };
    for (int nth = 0;; nth++) {
        barrier_wait(bar(&box->q_empty), (nth & 1) ^ 1);
        if (threadIdx.x == 0) {
            box->id[nth & 1] = next;
            barrier_arrive(bar(&box->q_full));
        }
        meet();
        int id = box->id[nth & 1];
        if (id >= items) {
            barrier_arrive_copied(bar(&box->q_full));
            return;
        }
        struct item w = find_item(c, id, n_units);
        copy_query(c, w, data);
        barrier_arrive_copied(bar(&box->q_full));
        if (threadIdx.x == 0)
            next = (int)(gridDim.x + atomicAdd(&c.list->taken, 1u));
        feed_tiles(c, w, data, &box->ring_, &k, &v);
    }
}

/* ---- a computing warpgroup ------------------------------------------------------- */

/* Scores of the tile at pos that a row does not see; rows beyond the item's see
 * what they like. */
__device__ __forceinline__ void mask(const struct dense_call &c, const struct item &w, int pos,
                                     float (&x)[64])
{
    int low = w.row0 + hopper::warp_row();
    if (pos + KEYS - 1 <= low && (c.window <= 0 || low + 15 - pos < c.window))
        return;
    int row = low + ((threadIdx.x & 31) >> 2);
    struct hopper::key_range seen[2];
#pragma unroll
    for (int h = 0; h < 2; h++)
        seen[h] = hopper::seen_keys(0, w.end, row + h * 8, c.window);
    hopper::mask_keys(x, pos, seen);
}

/* What a tile's scores go through. */
struct dense_scores {
    enum { HOLES = false };
    const struct dense_call &c;
    const struct item &w;

    __device__ __forceinline__ float operator()(int i, uint32_t, float (&x)[64]) const
    {
        if (c.softcap > 0.0f) {
#pragma unroll
            for (int k = 0; k < 64; k++)
                x[k] = attn_softcap(x[k] * c.scale, c.softcap) * 1.4426950408889634f;
        }
        mask(c, w, w.pos0 + i * KEYS, x);
        return c.softcap > 0.0f ? 1.0f : c.scale * 1.4426950408889634f;
    }
};

template <typename M>
__device__ __forceinline__ void store(const struct dense_call &c, const struct item &w,
                                      const struct hopper::rows_state<DENSE_V> &s)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = hopper::warp_row() + ((threadIdx.x & 31) >> 2) + h * 8;
        float total = quad_sum(s.sum[h]), factor = total > 0.0f ? 1.0f / total : 0.0f;
        M *to = (M *)c.output + ((int64_t)(w.first + w.row0 + row) * c.heads + w.head) * c.v_width;
        hopper::store_row<M, DENSE_V>(s.o, h, factor, to, c.v_width, row < w.n_rows);
    }
}

template <typename M>
__device__ __forceinline__ void work(const struct dense_call &c, uint32_t data, struct mailbox *box,
                                     int n_units)
{
    turn k = { 0, 0 }, v = { 0, 0 };
    struct hopper::tiles at;
    at.q = data + ((threadIdx.x >> 7) - 1) * 64 * 128;
    at.k = data + K_BYTES;
    at.v = at.k + STAGES * K_BYTES;
    at.q_empty = &box->q_empty;
    for (int nth = 0;; nth++) {
        barrier_wait(bar(&box->q_full), nth & 1);
        /* Read by the lane that frees it later. */
        int id = (threadIdx.x & 31) == 0 ? box->id[nth & 1] : 0;
        id = __shfl_sync(0xffffffffu, id, 0);
        if (id >= n_units * c.heads)
            return;
        struct item w = find_item(c, id, n_units);
        struct hopper::rows_state<DENSE_V> s;
        at.n = w.n;
        hopper::attend<M, DENSE_K, DENSE_V, STAGES>(at, &box->ring_, &k, &v, dense_scores{ c, w },
                                                    &s);
        store<M>(c, w, s);
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
        hopper::init_ring(&box->ring_, 0);
        barrier_init(bar(&box->q_full), GROUP + 1);
        barrier_init(bar(&box->q_empty), 8);
        fence_proxy_async();
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
