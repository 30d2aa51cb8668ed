/* hopper_tiles.cuh: what the prefill kernels of sm_90a share: tiles of 128 rows in
 * shared memory, the ring that K and V pass through, and the loop of a computing
 * warpgroup over the key tiles of its 64 rows.
 *
 * A CTA is a copying warpgroup and two that compute.  K and V of a tile have barriers
 * of their own: K is free once its scores are computed, V a tile later.  In the loop
 * the scores of a tile and the weighted V of the tile before are queued together, and
 * the softmax runs while the second is under way; the two computing warpgroups queue
 * in turns, so that one's softmax also falls into the other's products.
 *
 * Owns nothing; device code only. */
#ifndef ATTENTION_CUDA_HOPPER_TILES_CUH
#define ATTENTION_CUDA_HOPPER_TILES_CUH

#include "attention/cuda/wgmma.cuh"
#include "attention/feature_math.h"

namespace hopper
{

enum {
    GROUP = 128, /* threads of a warpgroup */
    THREADS = 3 * GROUP,
    TILE = 128, /* rows of Q                                  */
    KEYS = 128, /* of a tile of K and V                       */
    PANEL_BYTES = KEYS * 128,
    BOX_BYTES = 256 /* what a kernel's barriers and notes have room for */
};

/* Of K and V, from the copying warpgroup to the others and back. */
template <int STAGES> struct ring {
    uint64_t k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
    uint32_t mapped[STAGES]; /* bit i: granule i of K's tile has a block */
};

/* Which stage of a ring comes next, for either side. */
template <int STAGES> struct turn {
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

/* k_notes: arrivals at k_full beside the copying threads'. */
template <int STAGES> __device__ __forceinline__ void init_ring(struct ring<STAGES> *r, int k_notes)
{
    for (int i = 0; i < STAGES; i++) {
        barrier_init(bar(&r->k_full[i]), GROUP + k_notes);
        barrier_init(bar(&r->v_full[i]), GROUP);
        barrier_init(bar(&r->k_empty[i]), 8);
        barrier_init(bar(&r->v_empty[i]), 8);
    }
}

/* By a warp that computes: one arrival for its lanes. */
__device__ __forceinline__ void warp_arrive(const uint64_t *b)
{
    if ((threadIdx.x & 31) == 0)
        barrier_arrive(bar(b));
}

/* Byte offset of piece p (16 bytes) of row r in a tile of panels of KEYS rows. */
__device__ __forceinline__ uint32_t tile_at(int r, int p)
{
    return (uint32_t)((p >> 3) * PANEL_BYTES + r * 128 + ((p ^ r) & 7) * 16);
}

/* The copying threads agree on what one of them wrote. */
__device__ __forceinline__ void meet(void)
{
    asm volatile("bar.sync 3, 128;" ::: "memory");
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* The two computing warpgroups queue their products in turn. */
__device__ __forceinline__ void take_turn(int group)
{
    asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory");
}

__device__ __forceinline__ void give_turn(int group)
{
    asm volatile("bar.arrive %0, 256;" ::"r"(1 + (group ^ 1)) : "memory");
}

/* The first row of this warp's 16 in the tile of Q. */
__device__ __forceinline__ int warp_row(void)
{
    return ((threadIdx.x - GROUP) >> 5) * 16;
}

/* The keys that a row sees of [begin, end): span + 1 from lo on. */
struct key_range {
    int lo;
    uint32_t span;
};

__device__ __forceinline__ struct key_range seen_keys(int begin, int end, int position, int window)
{
    int hi = min(end - 1, position), lo = window > 0 ? max(begin, position - window + 1) : begin;
    if (hi < lo)
        return { INT32_MIN, 0 }; /* no key */
    return { lo, (uint32_t)(hi - lo) };
}

/* Mask the scores of N / 4 tiles of 8 keys from pos on; seen: of this lane's two rows. */
template <int N>
__device__ __forceinline__ void mask_keys(float (&x)[N], int pos, const struct key_range seen[2])
{
    int first = pos + (threadIdx.x & 3) * 2;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const struct key_range &r = seen[(i >> 1) & 1];
        uint32_t at = (uint32_t)(first + (i >> 2) * 8 + (i & 1)) - (uint32_t)r.lo;
        x[i] = at <= r.span ? x[i] : -INFINITY;
    }
}

/* Mask the granules of 16 keys that have no block. */
template <int N> __device__ __forceinline__ void mask_holes(float (&x)[N], uint32_t mapped)
{
#pragma unroll
    for (int g = 0; g < N / 8; g++) {
        bool there = mapped >> g & 1;
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[g * 8 + i] = there ? x[g * 8 + i] : -INFINITY;
    }
}

/* Scores, in units of 1 / factor of a power of two, to weights; returns by how
 * much O shrinks. */
template <int N>
__device__ __forceinline__ void weigh(float (&x)[N], float factor, float max[2], float sum[2],
                                      float shrink[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = -INFINITY, part = 0.0f;
#pragma unroll
        for (int i = 0; i < N / 4; i++)
            top = fmaxf(top, fmaxf(x[i * 4 + r * 2], x[i * 4 + r * 2 + 1]));
        top = fmaxf(max[r], quad_max(top) * factor);
        shrink[r] = exp2_approx(max[r] - top);
        max[r] = top;
#pragma unroll
        for (int i = 0; i < N / 4; i++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float *v = &x[i * 4 + r * 2 + e];
                *v = exp2_approx(fmaf(*v, factor, -top));
                part += *v;
            }
        sum[r] = sum[r] * shrink[r] + part;
    }
}

template <typename M, int K>
__device__ __forceinline__ void start_scores(float (&x)[64], uint32_t q_tile, uint32_t k_tile)
{
#pragma unroll
    for (int k = 0; k < K / 16; k++) {
        uint32_t at = (k / 4) * PANEL_BYTES + (k % 4) * 32;
        wgmma_rows<M>(x, tile_descriptor(q_tile + at, 16), tile_descriptor(k_tile + at, 16), k > 0);
    }
    wgmma_commit();
}

template <typename M, int V>
__device__ __forceinline__ void start_output(float (&o)[V / 2], const uint32_t (&p)[KEYS / 16][4],
                                             uint32_t v_tile)
{
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
        wgmma_columns<M>(o, p[k], tile_descriptor(v_tile + k * 16 * 128, PANEL_BYTES));
    wgmma_commit();
}

template <typename M>
__device__ __forceinline__ void pack_weights(const float (&x)[64], uint32_t (&p)[KEYS / 16][4])
{
#pragma unroll
    for (int k = 0; k < KEYS / 4; k++)
        p[k >> 2][k & 3] = pack2<M>(x[k * 2], x[k * 2 + 1]);
}

/* Where an item's tiles lie. */
struct tiles {
    uint32_t q, k, v;        /* this warpgroup's rows of Q; stage 0 of K and of V */
    const uint64_t *q_empty; /* told when Q has been read                         */
    int n;                   /* tiles of keys                                     */
};

/* A computing warpgroup's state over an item. */
template <int V> struct rows_state {
    float o[V / 2], max[2], sum[2]; /* sum: this lane's share */
};

/* Which granules of the tile in a stage have blocks; read by the lane that frees it. */
template <typename SCORES, int STAGES>
__device__ __forceinline__ uint32_t holes(const struct ring<STAGES> *r, int stage)
{
    if (!SCORES::HOLES)
        return 0xFF;
    return __shfl_sync(0xffffffffu, (threadIdx.x & 31) == 0 ? r->mapped[stage] : 0u, 0);
}

/* The scores of tile i are computed. */
template <int STAGES>
__device__ __forceinline__ void free_k(const struct tiles &at, struct ring<STAGES> *r,
                                       struct turn<STAGES> *k, int i)
{
    warp_arrive(&r->k_empty[k->stage]);
    k->next();
    if (i + 1 == at.n)
        warp_arrive(at.q_empty); /* the next item's Q may come */
}

/* All key tiles of an item.  scores(i, mapped, x) scales and masks the scores of tile
 * i and returns the factor that is left to the exponential. */
template <typename M, int K, int V, int STAGES, typename SCORES>
__device__ __forceinline__ void attend(const struct tiles &at, struct ring<STAGES> *ring,
                                       struct turn<STAGES> *k, struct turn<STAGES> *v,
                                       const SCORES &scores, struct rows_state<V> *s)
{
    enum { K_BYTES = K / 64 * PANEL_BYTES, V_BYTES = V / 64 * PANEL_BYTES };
    int group = (threadIdx.x >> 7) - 1;
    float x[64], shrink[2];
    uint32_t p[KEYS / 16][4];
#pragma unroll
    for (int i = 0; i < V / 2; i++)
        s->o[i] = 0.0f;
    s->max[0] = s->max[1] = ATTN_NO_MAX;
    s->sum[0] = s->sum[1] = 0.0f;
    if (at.n == 0) {
        warp_arrive(at.q_empty);
        return;
    }
    barrier_wait(bar(&ring->k_full[k->stage]), k->phase);
    fence_proxy_async();
    take_turn(group);
    wgmma_fence();
    start_scores<M, K>(x, at.q, at.k + k->stage * K_BYTES);
    give_turn(group);
    uint32_t mapped = holes<SCORES, STAGES>(ring, k->stage);
    wgmma_wait<0>();
    pin(x);
    free_k(at, ring, k, 0);
    weigh(x, scores(0, mapped, x), s->max, s->sum, shrink);
    pack_weights<M>(x, p);
    for (int i = 1; i < at.n; i++) {
        barrier_wait(bar(&ring->k_full[k->stage]), k->phase);
        fence_proxy_async();
        take_turn(group);
        wgmma_fence();
        start_scores<M, K>(x, at.q, at.k + k->stage * K_BYTES);
        barrier_wait(bar(&ring->v_full[v->stage]), v->phase);
        fence_proxy_async();
        start_output<M, V>(s->o, p, at.v + v->stage * V_BYTES);
        give_turn(group);
        mapped = holes<SCORES, STAGES>(ring, k->stage);
        wgmma_wait<1>();
        pin(x);
        free_k(at, ring, k, i);
        weigh(x, scores(i, mapped, x), s->max, s->sum, shrink);
        wgmma_wait<0>();
        pin(s->o);
        warp_arrive(&ring->v_empty[v->stage]);
        v->next();
        if (__any_sync(0xffffffffu, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
            for (int e = 0; e < V / 2; e++)
                s->o[e] *= shrink[(e >> 1) & 1];
        }
        pack_weights<M>(x, p);
    }
    barrier_wait(bar(&ring->v_full[v->stage]), v->phase);
    fence_proxy_async();
    pin(s->o);
    wgmma_fence();
    start_output<M, V>(s->o, p, at.v + v->stage * V_BYTES);
    wgmma_wait<0>();
    pin(s->o);
    warp_arrive(&ring->v_empty[v->stage]);
    v->next();
}

/* Of four tiles of 8 channels a lane has w[i]: channels 2 quad and 2 quad + 1 of tile
 * i, packed.  Returns all eight of tile quad. */
__device__ __forceinline__ uint4 gather_piece(const uint32_t (&w)[4])
{
    bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    uint32_t r = __shfl_xor_sync(0xffffffffu, odd ? w[0] : w[1], 1);
    uint32_t even0 = odd ? r : w[0], odd0 = odd ? w[1] : r; /* tile odd     */
    r = __shfl_xor_sync(0xffffffffu, odd ? w[2] : w[3], 1);
    uint32_t even1 = odd ? r : w[2], odd1 = odd ? w[3] : r; /* tile odd + 2 */
    uint32_t a = __shfl_xor_sync(0xffffffffu, high ? even0 : even1, 2);
    uint32_t b = __shfl_xor_sync(0xffffffffu, high ? odd0 : odd1, 2);
    return high ? make_uint4(a, b, even1, odd1) : make_uint4(even0, odd0, a, b);
}

/* This lane's rows (h: the warp's row lane / 4, + 8) times factor, to `to`: 16 bytes a
 * store, the channels below width, a multiple of 8.  Called by whole warps; there:
 * whether the row is. */
template <typename M, int V>
__device__ __forceinline__ void store_row(const float (&o)[V / 2], int h, float factor, void *to,
                                          int width, bool there)
{
    int quad = threadIdx.x & 3;
#pragma unroll
    for (int n = 0; n < V / 8; n += 4) {
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[i] = pack2<M>(o[(n + i) * 4 + h * 2] * factor, o[(n + i) * 4 + h * 2 + 1] * factor);
        uint4 piece = gather_piece(w);
        if (there && (n + quad) * 8 < width)
            *(uint4 *)((M *)to + (n + quad) * 8) = piece;
    }
}

#endif

} // namespace hopper

#endif
