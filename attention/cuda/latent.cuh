/* latent.cuh: absorbed MLA over the latent cache: one cached row is a key of 576
 * channels whose first 512 are the value, for all query heads.
 *
 *   q       [tokens, heads, 576] from the prologue, 16-bit
 *   cache   [blocks, block_size, 1, 576] of KIND
 *   part    [sequences, max_chunks, heads, 512] fp32 and (max in log2, sum)
 *   output  T, 512 a head
 * An item is (sequence, 64 packed rows, chunk of keys).  Eight warps: for a tile of
 * 32 keys each computes 16 rows x 16 keys of scores; the weights go through shared
 * memory; then each warp owns 64 of the 512 output channels for all rows.
 * Sequences of one query split their keys; a second kernel merges the chunks.
 * launch   persistent: one CTA of 256 threads a SM
 * smem     Q 72 KiB, STAGES x 32 rows, weights
 * bound    matrix units by mma.sync, and shared memory for Q
 *
 * Owns nothing.  Called by the backend, after the prologue, on its stream. */
#ifndef ATTENTION_CUDA_LATENT_CUH
#define ATTENTION_CUDA_LATENT_CUH

#include "attention/cuda/cache.cuh"
#include "attention/cuda/epilogue.cuh"
#include "attention/cuda/kernels.h"
#include "attention/cuda/launch.cuh"
#include "attention/cuda/smem_budget.h"
#include "attention/cuda/work.cuh"

namespace latent
{

enum {
    WARPS = 8,
    THREADS = WARPS * 32,
    ROWS = LATENT_ROWS,
    KEYS = LATENT_KEYS,
    DK = LATENT_K,
    DV = 512,
    SUBS = ROWS / 16
};

/* Per row, between warps, in shared memory. */
struct exchange {
    float top[2][ROWS]; /* by half of the keys */
    float shrink[ROWS];
    float sum[2][ROWS];
    float max[ROWS];
    int next; /* item */
};

template <int KIND, int STAGES_> struct shape {
    typedef cache_tile<KIND, DK> tile;
    enum {
        STAGES = STAGES_,
        STAGE_BYTES = KEYS * tile::ROW_BYTES,
        Q_ROW = DK * 2,
        Q_BYTES = ROWS * Q_ROW,
        P_ROW = KEYS * 2, /* 64 bytes: four pieces, swizzled in pairs of rows */
        P_BYTES = ROWS * P_ROW,
        DATA_BYTES = Q_BYTES + STAGES * STAGE_BYTES + P_BYTES,
        SMEM_BYTES = latent_bytes(tile::ELEMENT, STAGES)
    };
    static_assert(DATA_BYTES + sizeof(struct exchange) == SMEM_BYTES, "smem_budget.h");
};

struct item {
    int seq, first, n_rows, row0, chunk, n_chunks;
    int begin, end;
    int low, high;      /* positions of the tile's valid rows            */
    int my_position[2]; /* of this lane's score rows; -1 for none         */
    const int32_t *table;
};

__device__ __forceinline__ uint32_t q_at(int r, int p)
{
    return (uint32_t)(r * DK * 2 + (p ^ (r & 7)) * 16);
}

__device__ __forceinline__ uint32_t p_at(int r, int p)
{
    return (uint32_t)(r * KEYS * 2 + (p ^ ((r >> 1) & 3)) * 16);
}

__device__ __forceinline__ void find_item(const struct attn_call &c, int id, struct item *w)
{
    struct plan_unit u = list_unit(c, LIST_SPLIT, id);
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, past = u.past;
    w->seq = u.seq;
    w->first = u.first;
    w->chunk = u.chunk;
    w->n_chunks = u.n_chunks;
    w->row0 = u.row0;
    w->n_rows = u.n_rows;
    w->table = c.block_table + (int64_t)w->seq * c.table_cols;
    w->low = INT32_MAX;
    w->high = -1;
    for (int r = lane; r < w->n_rows; r += 32) {
        int j = (w->row0 + r) / c.group;
        int position = query_position(c, w->first + j, past, j);
        w->low = min(w->low, position);
        w->high = max(w->high, position);
    }
    w->low = __reduce_min_sync(0xffffffffu, w->low);
    w->high = __reduce_max_sync(0xffffffffu, w->high);
    for (int h = 0; h < 2; h++) {
        int r = (warp & 3) * 16 + (lane >> 2) + h * 8;
        int j = (w->row0 + r) / c.group;
        w->my_position[h] = r < w->n_rows ? query_position(c, w->first + j, past, j) : -1;
    }
    w->begin = c.window > 0 ? max(u.begin, w->low - c.window + 1) : u.begin;
    w->end = min(u.end - 1, w->high) + 1;
}

__device__ __forceinline__ int64_t row_index(const struct attn_call &c, const struct item &w, int r)
{
    int row = w.row0 + min(r, w.n_rows - 1);
    return (int64_t)(w.first + row / c.group) * c.heads + row % c.group;
}

__device__ __forceinline__ void fetch_query(const struct attn_call &c, const struct item &w,
                                            uint32_t to)
{
    enum { PIECES = DK * 2 / 16 };
    for (int i = threadIdx.x; i < ROWS * PIECES; i += THREADS) {
        int r = i / PIECES, p = i % PIECES;
        copy16(to + q_at(r, p), (const char *)c.q + row_index(c, w, r) * DK * 2 + p * 16,
               r < w.n_rows ? 16 : 0);
    }
}

/* Block of the granule at pos; -1 beyond the item's keys. */
__device__ __forceinline__ int granule_of(const struct attn_call &c, const struct item &w, int pos)
{
    return pos < w.end ? granule_block(c, w.table, pos) : -1;
}

/* The same where all 32 keys are there: a granule's rows follow one another. */
template <int KIND>
__device__ __forceinline__ void fetch_whole(const struct attn_call &c, uint32_t to, int pos,
                                            int block0, int block1)
{
    typedef cache_tile<KIND, DK> tile;
    enum { HALF_PIECES = 16 * tile::PIECES };
    const char *from0 =
        (const char *)c.key_cache + cache_offset(c, block0, pos, 0, tile::ROW_BYTES);
    const char *from1 =
        (const char *)c.key_cache + cache_offset(c, block1, pos + 16, 0, tile::ROW_BYTES);
    from1 -= HALF_PIECES * 16;
#pragma unroll 3
    for (int k = 0; k < (2 * HALF_PIECES + THREADS - 1) / THREADS; k++) {
        uint32_t i = k * THREADS + threadIdx.x, r = i / tile::PIECES, p = i % tile::PIECES;
        if (2 * HALF_PIECES % THREADS != 0 && r >= KEYS)
            break;
        copy16(to + tile::at(r, p), (i < HALF_PIECES ? from0 : from1) + i * 16, 16);
    }
}

/* Start the copies of the 32 keys from pos; blocks of its two granules given. */
template <int KIND>
__device__ __forceinline__ void fetch_keys(const struct attn_call &c, const struct item &w,
                                           uint32_t to, int pos, int block0, int block1)
{
    typedef cache_tile<KIND, DK> tile;
#pragma unroll
    for (int k = 0; k < (KEYS * tile::PIECES + THREADS - 1) / THREADS; k++) {
        int i = k * THREADS + threadIdx.x, r = i / tile::PIECES, p = i % tile::PIECES;
        if (KEYS * tile::PIECES % THREADS != 0 && r >= KEYS)
            break;
        int block = r < 16 ? block0 : block1;
        bool inside = block >= 0 && pos + r >= w.begin && pos + r < w.end;
        int64_t at = inside ? cache_offset(c, block, pos + r, 0, tile::ROW_BYTES) + p * 16 : 0;
        copy16(to + tile::at(r, p), (const char *)c.key_cache + at, inside ? 16 : 0);
    }
}

/* Scores of the warp's 16 rows and 16 keys, in log2 units and masked. */
template <int KIND>
__device__ __forceinline__ void scores(const struct attn_call &c, const struct item &w,
                                       const float factor[2], uint32_t q_tile, uint32_t k_tile,
                                       int pos, bool mapped, float x[2][4])
{
    typedef cache_tile<KIND, DK> tile;
    typedef typename tile::M M;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, half = warp >> 2;
    int row = (warp & 3) * 16 + (lane & 15);
    /* The swizzle repeats every 128 bytes of Q: four places, then constants. */
    uint32_t q_place[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        q_place[i] = q_tile + q_at(row, i * 2 + (lane >> 4));
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i >> 2][i & 3] = 0.0f;
#pragma unroll
    for (int s = 0; s < DK / 32; s++) {
        uint32_t q[2][4], b[2][2][2];
        load_matrices(q[0], q_place[(s & 1) * 2] + (s >> 1) * 128);
        load_matrices(q[1], q_place[(s & 1) * 2 + 1] + (s >> 1) * 128);
        /* The same for K: the offset of step s & 1 of its first panel. */
        tile::k_fragments(b, k_tile + (s >> 1) * (64 * tile::ELEMENT), half * 16, s & 1);
        mma<M>(x[0], q[0], b[0][0]);
        mma<M>(x[1], q[0], b[0][1]);
        mma<M>(x[0], q[1], b[1][0]);
        mma<M>(x[1], q[1], b[1][1]);
    }
    scale_scores(c, factor, x[0]);
    scale_scores(c, factor, x[1]);
    pos += half * 16;
    bool whole = mapped && pos >= w.begin && pos + 16 <= w.end && pos + 15 <= w.low &&
                 (c.window <= 0 || w.high - pos < c.window);
    if (whole)
        return;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int k = pos + (i >> 2) * 8 + (lane & 3) * 2 + (i & 1), p = w.my_position[(i >> 1) & 1];
        bool seen =
            mapped && k >= w.begin && k < w.end && k <= p && (c.window <= 0 || p - k < c.window);
        if (!seen)
            x[i >> 2][i & 3] = -INFINITY;
    }
}

/* The warp's scores to weights in shared memory; max and sum run along. */
template <typename M>
__device__ __forceinline__ void weigh(float x[2][4], float max[2], float sum[2],
                                      struct exchange *ex, char *weights)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, half = warp >> 2, quad = lane & 3;
    int row = (warp & 3) * 16 + (lane >> 2);
    for (int r = 0; r < 2; r++) {
        float m = fmaxf(fmaxf(x[0][r * 2], x[0][r * 2 + 1]), fmaxf(x[1][r * 2], x[1][r * 2 + 1]));
        m = quad_max(m);
        if (quad == 0)
            ex->top[half][row + r * 8] = m;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int in_tile = row + r * 8;
        float top = fmaxf(max[r], fmaxf(ex->top[0][in_tile], ex->top[1][in_tile]));
        float shrink = exp2_approx(max[r] - top);
        max[r] = top;
        sum[r] *= shrink;
        if (quad == 0 && half == 0)
            ex->shrink[in_tile] = shrink;
#pragma unroll
        for (int n = 0; n < 2; n++) {
            float a = exp2_approx(x[n][r * 2] - top), b = exp2_approx(x[n][r * 2 + 1] - top);
            sum[r] += a + b;
            *(uint32_t *)(weights + p_at(in_tile, half * 2 + n) + quad * 4) = pack2<M>(a, b);
        }
    }
    __syncthreads();
}

/* O of the warp's 64 channels, all rows: shrink, then add weights x V. */
template <int KIND>
__device__ __forceinline__ void accumulate(float (*o)[8][4], const struct exchange *ex,
                                           uint32_t weights, uint32_t v_tile)
{
    typedef cache_tile<KIND, DK> tile;
    typedef typename tile::M M;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int sub = 0; sub < SUBS; sub++) {
        float a = ex->shrink[sub * 16 + (lane >> 2)], b = ex->shrink[sub * 16 + (lane >> 2) + 8];
        if (__any_sync(0xffffffffu, a != 1.0f || b != 1.0f)) {
#pragma unroll
            for (int n = 0; n < 8; n++) {
                o[sub][n][0] *= a;
                o[sub][n][1] *= a;
                o[sub][n][2] *= b;
                o[sub][n][3] *= b;
            }
        }
    }
#pragma unroll
    for (int g = 0; g < KEYS / 16; g++) {
        uint32_t p[SUBS][4];
#pragma unroll
        for (int sub = 0; sub < SUBS; sub++)
            load_matrices(p[sub], weights + p_at(sub * 16 + (lane & 15), g * 2 + (lane >> 4)));
#pragma unroll
        for (int s = 0; s < 2; s++) {
            uint32_t b[4][2];
            tile::v_fragments(b, v_tile, g * 16, warp * 2 + s);
#pragma unroll
            for (int sub = 0; sub < SUBS; sub++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    mma<M>(o[sub][s * 4 + i], p[sub], b[i]);
        }
    }
}

/* Rows to the output (one chunk) or to the partial results. */
template <int KIND>
__device__ __forceinline__ void store(const struct attn_call &c, const struct item &w,
                                      float (*o)[8][4], const struct exchange *ex)
{
    typedef cache_tile<KIND, DK> tile;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, quad = lane & 3;
#pragma unroll
    for (int sub = 0; sub < SUBS; sub++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int in_tile = sub * 16 + (lane >> 2) + r * 8;
            if (in_tile >= w.n_rows)
                continue;
            int row = w.row0 + in_tile, token = w.first + row / c.group, head = row % c.group;
            struct attn_state t = { ex->max[in_tile], ex->sum[0][in_tile] + ex->sum[1][in_tile] };
            float factor = output_factor(c, t, head);
            int64_t at = part_index(c, w.seq, w.chunk, head);
            if (w.n_chunks > 1 && warp == 0 && quad == 0)
                *(float2 *)&c.part_state[at * 2] = make_float2(t.max, t.sum);
#pragma unroll
            for (int n = 0; n < 8; n++) {
                int channel = warp * 64 + tile::channel(n, quad, 0);
                float a = o[sub][n][r * 2], b = o[sub][n][r * 2 + 1];
                int second = warp * 64 + tile::channel(n, quad, 1);
                if (w.n_chunks == 1) {
                    write_channel(c, token, head, channel, a * factor);
                    write_channel(c, token, head, second, b * factor);
                } else if (tile::ELEMENT == 2) {
                    *(float2 *)&c.part[at * DV + channel] = make_float2(a, b);
                } else {
                    c.part[at * DV + channel] = a;
                    c.part[at * DV + second] = b;
                }
            }
        }
}

template <int KIND, int STAGES>
__device__ __forceinline__ void compute(const struct attn_call &c, const struct item &w, char *data,
                                        struct exchange *ex)
{
    typedef shape<KIND, STAGES> sh;
    typedef typename sh::tile::M M;
    uint32_t q_tile = smem_address(data), ring = q_tile + sh::Q_BYTES;
    char *weights = data + sh::Q_BYTES + sh::STAGES * sh::STAGE_BYTES;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, row = (warp & 3) * 16 + (lane >> 2);
    int pos0 = w.begin & ~15, n = w.end > w.begin ? (w.end - pos0 + KEYS - 1) / KEYS : 0;
    float o[SUBS][8][4], max[2], sum[2], factor[2];
    uint32_t mapped = 0; /* two bits a stage in flight */
#pragma unroll
    for (int i = 0; i < SUBS * 32; i++)
        o[i >> 5][(i >> 2) & 7][i & 3] = 0.0f;
    for (int r = 0; r < 2; r++) {
        max[r] = ATTN_NO_MAX;
        sum[r] = 0.0f;
        factor[r] = c.scale * 1.4426950408889634f *
                    (c.q_form == Q_HALF ? c.q_factor[row_index(c, w, row + r * 8)] : 1.0f);
    }
    int b0 = granule_of(c, w, pos0), b1 = granule_of(c, w, pos0 + 16);
    fetch_query(c, w, q_tile);
    for (int i = 0; i < n + sh::STAGES - 1; i++) {
        /* Fetch tile i; compute tile i - (STAGES - 1). */
        int now = i - (sh::STAGES - 1), pos = pos0 + i * KEYS;
        if (now >= 0) {
            copy_wait<sh::STAGES - 2>();
            __syncthreads();
        }
        if (i < n) {
            uint32_t to = ring + i % sh::STAGES * sh::STAGE_BYTES;
            if (b0 >= 0 && b1 >= 0 && pos >= w.begin && pos + KEYS <= w.end)
                fetch_whole<KIND>(c, to, pos, b0, b1);
            else
                fetch_keys<KIND>(c, w, to, pos, b0, b1);
            uint32_t bits = (uint32_t)(b0 >= 0) | (uint32_t)(b1 >= 0) << 1;
            mapped = (mapped & ~(3u << i % sh::STAGES * 2)) | bits << i % sh::STAGES * 2;
            b0 = granule_of(c, w, pos + KEYS);
            b1 = granule_of(c, w, pos + KEYS + 16);
        }
        copy_commit();
        if (now < 0)
            continue;
        int stage = now % sh::STAGES;
        uint32_t tile = ring + stage * sh::STAGE_BYTES;
        float x[2][4];
        scores<KIND>(c, w, factor, q_tile, tile, pos0 + now * KEYS,
                     mapped >> (stage * 2 + (warp >> 2)) & 1, x);
        weigh<M>(x, max, sum, ex, weights);
        accumulate<KIND>(o, ex, smem_address(weights), tile);
    }
    copy_wait<0>();
    for (int r = 0; r < 2; r++) {
        sum[r] = quad_sum(sum[r]);
        if ((lane & 3) == 0) {
            ex->sum[warp >> 2][row + r * 8] = sum[r];
            if (warp < 4)
                ex->max[row + r * 8] = max[r];
        }
    }
    __syncthreads();
    store<KIND>(c, w, o, ex);
}

template <int KIND, int STAGES>
__global__ void __launch_bounds__(THREADS, 1)
    latent_kernel(const __grid_constant__ struct attn_call c)
{
    typedef shape<KIND, STAGES> sh;
    extern __shared__ __align__(128) char data[];
    struct exchange *ex = (struct exchange *)(data + sh::DATA_BYTES);
    int items = list_items(c, LIST_SPLIT);

    wait_for_upstream();
    for (int id = blockIdx.x; id < items;) {
        struct item w;
        if (threadIdx.x == 0)
            ex->next = next_item(c, LIST_SPLIT, items);
        find_item(c, id, &w);
        compute<KIND, STAGES>(c, w, data, ex);
        __syncthreads();
        id = ex->next;
        __syncthreads();
    }
}

/* The instance that the device has room for; c NULL: only ready it. */
template <int KIND, int STAGES>
cudaError_t use(const struct attn_call *c, const struct device_limits *limits, cudaStream_t stream)
{
    enum { SMEM_BYTES = shape<KIND, STAGES>::SMEM_BYTES };
    if (c == NULL)
        return cudaFuncSetAttribute(latent_kernel<KIND, STAGES>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES);
    return launch(latent_kernel<KIND, STAGES>, (unsigned)limits->n_sm, THREADS, SMEM_BYTES, stream,
                  *c);
}

template <int KIND>
cudaError_t choose(const struct attn_call *c, const struct device_limits *limits,
                   cudaStream_t stream)
{
    constexpr int ELEMENT = cache_tile<KIND, DK>::ELEMENT;
    constexpr int FULL = latent_full_stages(ELEMENT), FEW = latent_few_stages(ELEMENT);
    int stages = latent_stages(limits, ELEMENT);
    if (stages == FULL)
        return use<KIND, FULL>(c, limits, stream);
    if constexpr (FEW != FULL)
        if (stages == FEW)
            return use<KIND, FEW>(c, limits, stream);
    return cudaErrorInvalidConfiguration;
}

template <int KIND> cudaError_t prepare(int, const struct device_limits *limits)
{
    return choose<KIND>(NULL, limits, 0);
}

} // namespace latent

#endif
