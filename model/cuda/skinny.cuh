/* skinny.cuh: y = x W^T for at most 16 rows of x, as fast as W can be read.
 *
 *   w     [n_rows, n_cols] bf16, rows as loaded
 *   in    [n, in_ld] bf16
 *   to    by enum op_out; GLU: rows [0, n_rows / 2) are gates, the rest up
 * A warp multiplies a tile of 16 rows of W (GLU: 8 gates and their 8 of up), the
 * MMA's M side, with all tokens, its N side, over its share of the columns
 * (skinny.h).  W goes through a ring of the warp's own, so that the main loop has no
 * barrier; x comes straight from the caches.  The order of the columns inside a
 * matmul is free: each lane takes 8 neighbours of a row of W and of x, and two MMAs
 * use them up.  Sums are float32: of a warp in order of its chunks, then over groups
 * and CTAs in order.  The cut depends on the matrix and the device alone, so a row's
 * result does not depend on the other rows.
 * launch   clusters of `split` CTAs, 256 threads, persistent over blocks; the ring
 *          is filled before what is upstream has finished, and what is downstream
 *          may start when the last chunk is on its way
 * smem     a ring of `stages` x 4 KiB a warp; the partial sums take its last stage
 * bound    HBM: 2 n_rows n_cols bytes at 4.3 TB/s */
#ifndef MODEL_CUDA_SKINNY_CUH
#define MODEL_CUDA_SKINNY_CUH

#include "attention/cuda/ptx.cuh"
#include "model/cuda/activate.cuh"
#include "model/cuda/skinny.h"

namespace skinny
{

typedef __nv_bfloat16 bf16;

enum {
    WARPS = 8,
    THREADS = WARPS * 32,
    TILE = 16,  /* rows                */
    COLS = 128, /* of a chunk          */
    STEP = 32,  /* columns of two MMAs */
    ROW_BYTES = COLS * 2,
    STAGE_BYTES = TILE * ROW_BYTES,
    MOST_STAGES = 7, /* as wait_copies can wait */
    PITCH = TILE + 4 /* floats between tokens of partial sums */
};

/* 16 bytes of which `bytes` are read, the rest zeroed. */
__device__ __forceinline__ void copy_piece(uint32_t to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(bytes)
                 : "memory");
}

/* Until at most n groups of copies are under way. */
__device__ __forceinline__ void wait_copies(int n)
{
    switch (n) {
    case 0:
        copy_wait<0>();
        break;
    case 1:
        copy_wait<1>();
        break;
    case 2:
        copy_wait<2>();
        break;
    case 3:
        copy_wait<3>();
        break;
    case 4:
        copy_wait<4>();
        break;
    default:
        copy_wait<5>();
    }
}

__device__ __forceinline__ uint4 load_shared(uint32_t address)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

/* ---- clusters: before sm_90 a CTA is alone ---- */

/* Of the same place in the shared memory of a CTA of the cluster. */
__device__ __forceinline__ float load_from(uint32_t address, int rank)
{
    float v;
#if __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %1, %2; "
                 "ld.shared::cluster.f32 %0, [a]; }"
                 : "=f"(v)
                 : "r"(address), "r"(rank)
                 : "memory");
#else
    (void)rank;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
#endif
    return v;
}

__device__ __forceinline__ int rank_in_cluster(void)
{
    int r = 0;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
#endif
    return r;
}

__device__ __forceinline__ void sync_cluster(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
#else
    __syncthreads();
#endif
}

/* ---- the walk over W ---- */

/* What a warp works on. */
struct place {
    uint32_t ring;   /* of the CTA's first warp                 */
    uint32_t own;    /* of this warp                            */
    int tile, chunk; /* its tile of each block, its first chunk */
    int first, step; /* blocks                                  */
    int rank;
};

/* Chunk by chunk, block by block. */
struct cursor {
    int block, i, slot;
};

/* Whether it goes on in the same block. */
__device__ __forceinline__ bool advance(const struct skinny_call &c, const struct place &p,
                                        struct cursor *x)
{
    x->slot = x->slot + 1 == c.cut.stages ? 0 : x->slot + 1;
    if (++x->i < c.cut.chunks)
        return true;
    x->i = 0;
    x->block += p.step;
    return false;
}

/* First column of chunk i of this warp. */
__device__ __forceinline__ int column(const struct skinny_call &c, const struct place &p, int i)
{
    return (p.chunk + i * c.cut.groups) * COLS;
}

/* The copier's side: its cursor, and this lane's place in the rows of a tile.  A
 * tile's rows lie in two runs of 8; for gates and up they are apart. */
struct copier {
    struct cursor at;
    const bf16 *low, *high; /* this lane's first row of each run                   */
    int there, above;       /* rows inside the matrix from each run's first one on */
};

/* The rows of the tile in the cursor's block. */
__device__ __forceinline__ void find_rows(const struct skinny_call &c, const struct place &p,
                                          struct copier *k)
{
    bool glu = c.out == OP_OUT_GLU;
    int lane = threadIdx.x & 31, odd = lane >> 4;
    int tile = k->at.block * c.cut.tiles + p.tile, all = glu ? c.n_rows / 2 : c.n_rows;
    int low = tile * (glu ? 8 : 16), high = glu ? c.n_rows / 2 + low : low + 8;
    k->there = all - low;
    k->above = glu ? k->there : k->there - 8;
    k->low = c.w + (size_t)(k->there > 0 ? low + odd : odd) * c.n_cols;
    k->high = c.w + (size_t)(k->above > 0 ? high + odd : odd) * c.n_cols;
}

/* Four rows of a run, every other one. */
template <bool WHOLE>
__device__ __forceinline__ void copy_run(const struct skinny_call &c, uint32_t to, const bf16 *from,
                                         int bytes, int there)
{
    size_t step = 2 * (size_t)c.n_cols;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        bool inside = WHOLE || 2 * r + (int)(threadIdx.x >> 4 & 1) < there;
        copy_piece(to + r * 2 * ROW_BYTES, inside ? from : c.w, inside ? bytes : 0);
        from += step;
    }
}

/* Start the copies of one chunk (one commit group, empty past the end).  Odd
 * rows have the halves of each 128 bytes swapped: the reader's banks differ. */
__device__ __forceinline__ void fetch(const struct skinny_call &c, const struct place &p,
                                      struct copier *k)
{
    if (k->at.block < c.cut.blocks) {
        int lane = threadIdx.x & 31, odd = lane >> 4, piece = lane & 15;
        int col = column(c, p, k->at.i) + piece * 8, bytes = col < c.n_cols ? 16 : 0;
        uint32_t to = p.own + k->at.slot * STAGE_BYTES + odd * ROW_BYTES + (piece ^ odd << 2) * 16;
        col = min(col, c.n_cols - 8);
        if (min(k->there, k->above) >= 8) {
            copy_run<true>(c, to, k->low + col, bytes, 8);
            copy_run<true>(c, to + 8 * ROW_BYTES, k->high + col, bytes, 8);
        } else {
            copy_run<false>(c, to, k->low + col, bytes, k->there);
            copy_run<false>(c, to + 8 * ROW_BYTES, k->high + col, bytes, k->above);
        }
        if (!advance(c, p, &k->at)) {
            if (k->at.block < c.cut.blocks)
                find_rows(c, p, k);
            else
                release_downstream(); /* whose copies follow these without a gap */
        }
    }
    copy_commit();
}

/* ---- multiplying ---- */

/* This warp's sums: 16 rows of W by 8 NT tokens. */
template <int NT> struct sums {
    float v[NT][4];
};

/* Of each token, this lane's 8 columns of a step. */
template <int NT> struct tokens {
    uint4 v[NT];
};

/* Columns col and on of each token, `from` this lane's first column of row 0. */
template <int NT>
__device__ __forceinline__ void load_tokens(const struct skinny_call &c, const bf16 *from, int col,
                                            struct tokens<NT> *t)
{
    int lane = threadIdx.x & 31;
    bool inside = col + (lane & 3) * 8 < c.n_cols;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        int token = min(n * 8 + (lane >> 2), c.n - 1);
        t->v[n] = inside ? *(const uint4 *)(from + token * (uint32_t)c.in_ld + col)
                         : make_uint4(0, 0, 0, 0);
    }
}

/* Step s of the stage: `at` is where this lane's row begins, `half` which half of
 * 128 bytes its first step lies in. */
template <int NT>
__device__ __forceinline__ void multiply(uint32_t at, uint32_t half, int s,
                                         const struct tokens<NT> &t, struct sums<NT> *sum)
{
    at += (s & 1 ? half ^ 64 : half) + s / 2 * 128;
    uint4 w = load_shared(at), v = load_shared(at + 8 * ROW_BYTES);
    uint32_t low[4] = { w.x, v.x, w.y, v.y }, high[4] = { w.z, v.z, w.w, v.w };
#pragma unroll
    for (int n = 0; n < NT; n++) {
        uint32_t b[2] = { t.v[n].x, t.v[n].y };
        mma<bf16>(sum->v[n], low, b);
    }
#pragma unroll
    for (int n = 0; n < NT; n++) {
        uint32_t b[2] = { t.v[n].z, t.v[n].w };
        mma<bf16>(sum->v[n], high, b);
    }
}

/* ---- results ---- */

/* [token][row] of this warp, into a stage that it has used up. */
template <int NT>
__device__ __forceinline__ void put_partial(uint32_t stage, const struct sums<NT> &s)
{
    int lane = threadIdx.x & 31;
    uint32_t to = stage + ((lane & 3) * 2 * PITCH + (lane >> 2)) * 4;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(
                             to + ((n * 8 + (i & 1)) * PITCH + (i >> 1) * 8) * 4),
                         "f"(s.v[n][i])
                         : "memory");
}

/* The sum of a row of a tile and a token over CTAs and groups. */
__device__ __forceinline__ float whole_sum(const struct skinny_call &c, const struct place &p,
                                           int slot, int tile, int row, int token)
{
    uint32_t warp_bytes = c.cut.stages * STAGE_BYTES, group_bytes = c.cut.tiles * warp_bytes;
    uint32_t at = p.ring + tile * warp_bytes + slot * STAGE_BYTES + (token * PITCH + row) * 4;
    float v = 0.0f;
    for (int rank = 0; rank < c.cut.split; rank++)
        for (int g = 0; g < c.cut.groups; g++)
            v += load_from(at + g * group_bytes, rank);
    return v;
}

__device__ __forceinline__ void put_result(const struct skinny_call &c, size_t at, int channel,
                                           float v, float up, float old)
{
    if (c.bias != NULL) {
        v += c.bias[channel];
        up += c.out == OP_OUT_GLU ? c.bias[c.n_rows / 2 + channel] : 0.0f;
    }
    if (c.out == OP_OUT_T)
        ((bf16 *)c.to)[at] = __float2bfloat16(v);
    else if (c.out == OP_OUT_GLU)
        ((bf16 *)c.to)[at] = __float2bfloat16(activate(v, up, c.act, c.limit));
    else
        ((float *)c.to)[at] = c.out == OP_OUT_ADD ? old + v : v;
}

/* This CTA's share of a block's channels, once all partial sums are there. */
__device__ __forceinline__ void finish_block(const struct skinny_call &c, const struct place &p,
                                             int block, int slot)
{
    enum { EARLY = 4 }; /* results whose old values are read before the barrier */
    bool glu = c.out == OP_OUT_GLU;
    int width = c.cut.tiles * TILE / (glu ? 2 : 1), all = c.n_rows / (glu ? 2 : 1);
    int share = width / c.cut.split, first = block * width + p.rank * share;
    float old[EARLY] = {};
    if (c.out == OP_OUT_ADD) {
#pragma unroll
        for (int e = 0; e < EARLY; e++) {
            int i = threadIdx.x + e * THREADS, token = i / share, channel = first + i % share;
            if (token < c.n && channel < all)
                old[e] = ((const float *)c.to)[token * c.to_ld + channel];
        }
    }
    sync_cluster();
    for (int i = threadIdx.x; i < share * c.n; i += THREADS) {
        int token = i / share, channel = first + i % share, at = p.rank * share + i % share;
        size_t to = token * c.to_ld + channel;
        float was = old[0];
        old[0] = old[1];
        old[1] = old[2];
        old[2] = old[3];
        if (channel >= all)
            continue;
        int tile = glu ? at / 8 : at / TILE, row = glu ? at % 8 : at % TILE;
        float v = whole_sum(c, p, slot, tile, row, token);
        float up = glu ? whole_sum(c, p, slot, tile, row + 8, token) : 0.0f;
        if (c.out == OP_OUT_ADD && i >= EARLY * THREADS)
            was = ((const float *)c.to)[to];
        put_result(c, to, channel, v, up, was);
    }
    sync_cluster();
}

/* One chunk: its tokens are on their way while W is waited for. */
template <int NT>
__device__ __forceinline__ void work_chunk(const struct skinny_call &c, const struct place &p,
                                           const struct cursor &x, struct copier *copier,
                                           struct sums<NT> *s)
{
    enum { STEPS = COLS / STEP };
    struct tokens<NT> t[STEPS];
    int lane = threadIdx.x & 31, g = lane >> 2, col = column(c, p, x.i);
    const bf16 *from = c.in + (lane & 3) * 8;
    uint32_t at = p.own + x.slot * STAGE_BYTES + g * ROW_BYTES + (lane & 3) * 16;
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        load_tokens<NT>(c, from, col + i * STEP, &t[i]);
    wait_copies(c.cut.stages - 2);
    __syncwarp();
    fetch(c, p, copier);
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        multiply<NT>(at, (g & 1) * 64, i, t[i], s);
}

/* Registers for two CTAs on a multiprocessor. */
template <int NT>
__global__ void __maxnreg__(112) matmul(const __grid_constant__ struct skinny_call c)
{
    extern __shared__ __align__(128) char data[];
    int warp = threadIdx.x >> 5;
    struct place p;
    p.rank = rank_in_cluster();
    p.ring = smem_address(data);
    p.own = p.ring + warp * c.cut.stages * STAGE_BYTES;
    p.tile = warp % c.cut.tiles;
    p.chunk = p.rank * c.cut.chunks * c.cut.groups + warp / c.cut.tiles;
    p.first = (int)blockIdx.x / c.cut.split;
    p.step = (int)gridDim.x / c.cut.split;
    bool works = warp < c.cut.tiles * c.cut.groups;
    struct cursor x = { p.first, 0, 0 };
    struct copier copier;
    copier.at = x;

    find_rows(c, p, &copier);
    for (int i = 0; works && i < c.cut.stages - 1; i++)
        fetch(c, p, &copier);
    wait_for_upstream();
    while (x.block < c.cut.blocks) {
        struct sums<NT> s = {
        };
        int block = x.block, slot;
        bool more;
        do {
            slot = x.slot;
            if (works)
                work_chunk<NT>(c, p, x, &copier, &s);
            more = advance(c, p, &x);
        } while (more);
        if (works)
            put_partial<NT>(p.own + slot * STAGE_BYTES, s);
        finish_block(c, p, block, slot);
    }
}

} // namespace skinny

#endif
