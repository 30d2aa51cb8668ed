/* prefill.cuh: many query rows against their paged history, one pass.
 *
 *   q       [tokens, heads, q_width] from the prologue, 16-bit
 *   caches  [blocks, block_size, kv_heads, head_size] of KIND
 *   output  T
 * An item is (sequence, TILE packed rows, kv head); the rows of a tile are
 * (token, head of the group) pairs, so grouped heads share every K/V tile.  Four
 * warps of 16 or 32 rows; KEYS keys a stage, two stages.
 * launch   persistent: CTAS_PER_SM * SMs, 128 threads
 * smem     Q tile, 2 stages of K and V
 * bound    matrix units by mma.sync: about 60 % of what wgmma reaches
 *
 * Owns nothing.  Called by the backend, after the prologue, on its stream. */
#ifndef ATTENTION_CUDA_PREFILL_CUH
#define ATTENTION_CUDA_PREFILL_CUH

#include "attention/cuda/cache.cuh"
#include "attention/cuda/epilogue.cuh"
#include "attention/cuda/kernels.h"
#include "attention/cuda/launch.cuh"
#include "attention/cuda/smem_budget.h"
#include "attention/cuda/work.cuh"

namespace prefill
{

enum { WARPS = 4, THREADS = WARPS * 32, STAGES = 2, HALF = 32 };

template <int KIND, int D> struct shape {
    typedef cache_tile<KIND, D> tile;
    enum {
        SUBS = D <= 128 ? 2 : 1, /* 16-row parts a warp */
        TILE = WARPS * 16 * SUBS,
        KEYS = prefill_keys(D),
        HALVES = KEYS / HALF,
        KV_BYTES = KEYS * tile::ROW_BYTES,
        STAGE_BYTES = 2 * KV_BYTES,
        Q_ROW = D * 2,
        Q_BYTES = TILE * Q_ROW,
        DATA_BYTES = Q_BYTES + STAGES * STAGE_BYTES,
        SMEM_BYTES = prefill_bytes(tile::ELEMENT, D),
        CTAS_PER_SM = 2
    };
    static_assert(TILE == prefill_rows(D) && DATA_BYTES + 16 == SMEM_BYTES, "smem_budget.h");
};

struct item {
    int first, n_rows, kv_head, row0;
    int begin, end;
    const int32_t *table;
};

/* What one lane knows of its rows: SUBS x (lane/4, lane/4 + 8). */
template <int SUBS> struct my_rows {
    int position[SUBS][2]; /* -1 for none */
    int low, high;         /* over the warp's valid rows; low > high when none */
};

/* Piece p of row r of the Q tile, rows of 2 * D bytes. */
template <int D> __device__ __forceinline__ uint32_t q_at(int r, int p)
{
    return (uint32_t)(r * D * 2 + (p ^ (r & 7)) * 16);
}

template <int KIND, int D>
__device__ __forceinline__ void find_item(const struct attn_call &c, int id, struct item *w,
                                          struct my_rows<shape<KIND, D>::SUBS> *m)
{
    typedef shape<KIND, D> sh;
    struct plan_unit u = list_unit(c, LIST_PREFILL, id);
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, past = u.past;
    w->first = u.first;
    w->kv_head = id % c.kv_heads;
    w->row0 = u.row0;
    w->n_rows = u.n_rows;
    w->table = c.block_table + (int64_t)u.seq * c.table_cols;

    int low = INT32_MAX, high = -1;
    for (int r = lane; r < sh::TILE; r += 32) {
        if (r >= w->n_rows)
            continue;
        int j = (w->row0 + r) / c.group;
        int position = query_position(c, w->first + j, past, j);
        low = min(low, position);
        high = max(high, position);
    }
    low = __reduce_min_sync(0xffffffffu, low);
    high = __reduce_max_sync(0xffffffffu, high);
    w->begin = c.window > 0 ? max(u.begin, low - c.window + 1) : u.begin;
    w->end = min(u.end - 1, high) + 1;

    m->low = INT32_MAX;
    m->high = -1;
    for (int sub = 0; sub < sh::SUBS; sub++) {
        for (int h = 0; h < 2; h++) {
            int r = (warp * sh::SUBS + sub) * 16 + (lane >> 2) + h * 8;
            int j = (w->row0 + r) / c.group;
            int position = r < w->n_rows ? query_position(c, w->first + j, past, j) : -1;
            m->position[sub][h] = position;
            m->high = max(m->high, position);
            m->low = min(m->low, r < w->n_rows ? position : INT32_MAX);
        }
    }
    m->low = __reduce_min_sync(0xffffffffu, m->low);
    m->high = __reduce_max_sync(0xffffffffu, m->high);
}

/* Start copying the item's Q rows; rows beyond it are zeroed. */
template <int KIND, int D>
__device__ __forceinline__ void fetch_query(const struct attn_call &c, const struct item &w,
                                            uint32_t to)
{
    typedef shape<KIND, D> sh;
    enum { PIECES = sh::Q_ROW / 16 };
    for (int i = threadIdx.x; i < sh::TILE * PIECES; i += THREADS) {
        int r = i / PIECES, p = i % PIECES;
        int row = w.row0 + min(r, w.n_rows - 1);
        int64_t at =
            (int64_t)(w.first + row / c.group) * c.heads + w.kv_head * c.group + row % c.group;
        copy16(to + q_at<D>(r, p), (const char *)c.q + at * sh::Q_ROW + p * 16,
               r < w.n_rows ? 16 : 0);
    }
}

/* The table entries of a stage's granules. */
template <int KEYS> struct stage_blocks {
    int block[KEYS / 16];

    __device__ __forceinline__ void look_up(const struct attn_call &c, const struct item &w,
                                            int pos)
    {
#pragma unroll
        for (int i = 0; i < KEYS / 16; i++)
            block[i] = pos + i * 16 < w.end ? granule_block(c, w.table, pos + i * 16) : -1;
    }

    /* Bit i: granule i is mapped. */
    __device__ __forceinline__ uint32_t mapped(void) const
    {
        uint32_t bits = 0;
#pragma unroll
        for (int i = 0; i < KEYS / 16; i++)
            bits |= (uint32_t)(block[i] >= 0) << i;
        return bits;
    }
};

template <int KIND, int D>
__device__ __forceinline__ void fetch_stage(const struct attn_call &c, const struct item &w,
                                            const struct stage_blocks<shape<KIND, D>::KEYS> &sb,
                                            uint32_t to, int pos)
{
    typedef shape<KIND, D> sh;
    typedef cache_tile<KIND, D> tile;
    enum { PER_PASS = THREADS / tile::PIECES };
    int p = threadIdx.x % tile::PIECES, row_bytes = c.head_size * tile::ELEMENT;
    bool k_real = p * 16 < row_bytes, v_real = p * 16 < c.v_head_size * tile::ELEMENT;
#pragma unroll
    for (int i = 0; i < sh::KEYS / PER_PASS; i++) {
        int r = i * PER_PASS + threadIdx.x / tile::PIECES;
        int block = sb.block[i * PER_PASS / 16];
        if (PER_PASS == 32 && threadIdx.x / tile::PIECES >= 16)
            block = sb.block[i * PER_PASS / 16 + 1];
        bool inside = block >= 0 && pos + r >= w.begin && pos + r < w.end;
        int64_t at = inside ? cache_offset(c, block, pos + r, w.kv_head, row_bytes) + p * 16 : 0;
        copy16(to + tile::at(r, p), (const char *)c.key_cache + (k_real ? at : 0),
               inside && k_real ? 16 : 0);
        copy16(to + sh::KV_BYTES + tile::at(r, p), (const char *)c.value_cache + (v_real ? at : 0),
               inside && v_real ? 16 : 0);
    }
}

template <int KIND, int D> struct state {
    enum { SUBS = shape<KIND, D>::SUBS };
    float o[SUBS][D / 8][4];
    float max[SUBS][2], sum[SUBS][2];
};

/* Scores of HALF keys from tile row r0 for all the warp's rows. */
template <int KIND, int D>
__device__ __forceinline__ void scores(const struct attn_call &c, uint32_t q_tile, uint32_t k_tile,
                                       int r0, float (*x)[HALF / 8][4])
{
    typedef shape<KIND, D> sh;
    typedef cache_tile<KIND, D> tile;
    typedef typename tile::M M;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int sub = 0; sub < sh::SUBS; sub++)
#pragma unroll
        for (int i = 0; i < HALF / 2; i++)
            x[sub][i >> 2][i & 3] = 0.0f;
#pragma unroll
    for (int s = 0; s < D / 32; s++) {
        uint32_t q[sh::SUBS][2][4];
#pragma unroll
        for (int sub = 0; sub < sh::SUBS; sub++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int r = (warp * sh::SUBS + sub) * 16 + (lane & 15);
                load_matrices(q[sub][h], q_tile + q_at<D>(r, s * 4 + h * 2 + (lane >> 4)));
            }
#pragma unroll
        for (int g = 0; g < HALF / 16; g++) {
            uint32_t b[2][2][2];
            tile::k_fragments(b, k_tile, r0 + g * 16, s);
#pragma unroll
            for (int sub = 0; sub < sh::SUBS; sub++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    mma<M>(x[sub][g * 2], q[sub][h], b[h][0]);
                    mma<M>(x[sub][g * 2 + 1], q[sub][h], b[h][1]);
                }
        }
    }
}

/* Mask the half tile at position pos; mapped: one bit a granule of it. */
template <int SUBS>
__device__ __forceinline__ void mask(const struct attn_call &c, const struct item &w,
                                     const struct my_rows<SUBS> &m, uint32_t mapped, int pos,
                                     float (*x)[HALF / 8][4])
{
    bool whole = mapped == 3 && pos >= w.begin && pos + HALF <= w.end && pos + HALF - 1 <= m.low &&
                 (c.window <= 0 || m.high - pos < c.window);
    if (whole)
        return;
    int quad = threadIdx.x & 3;
#pragma unroll
    for (int sub = 0; sub < SUBS; sub++)
#pragma unroll
        for (int i = 0; i < HALF / 2; i++) {
            int k = pos + (i >> 2) * 8 + quad * 2 + (i & 1), p = m.position[sub][(i >> 1) & 1];
            bool seen = k >= w.begin && k < w.end && k <= p &&
                        (c.window <= 0 || p - k < c.window) && (mapped >> (i >> 3) & 1);
            if (!seen)
                x[sub][i >> 2][i & 3] = -INFINITY;
        }
}

template <int KIND, int D>
__device__ __forceinline__ void fold(struct state<KIND, D> &st, float (*x)[HALF / 8][4],
                                     uint32_t v_tile, int r0)
{
    typedef shape<KIND, D> sh;
    typedef cache_tile<KIND, D> tile;
    typedef typename tile::M M;
    uint32_t p[sh::SUBS][HALF / 16][4];
#pragma unroll
    for (int sub = 0; sub < sh::SUBS; sub++) {
        float shrink[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float m = ATTN_NO_MAX;
#pragma unroll
            for (int i = 0; i < HALF / 8; i++)
                m = fmaxf(m, fmaxf(x[sub][i][r * 2], x[sub][i][r * 2 + 1]));
            float top = fmaxf(st.max[sub][r], quad_max(m));
            shrink[r] = exp2_approx(st.max[sub][r] - top);
            st.max[sub][r] = top;
            st.sum[sub][r] *= shrink[r];
        }
        if (__any_sync(0xffffffffu, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
            for (int i = 0; i < D / 8; i++) {
                st.o[sub][i][0] *= shrink[0];
                st.o[sub][i][1] *= shrink[0];
                st.o[sub][i][2] *= shrink[1];
                st.o[sub][i][3] *= shrink[1];
            }
        }
#pragma unroll
        for (int i = 0; i < HALF / 2; i++) {
            int r = (i >> 1) & 1;
            float e = exp2_approx(x[sub][i >> 2][i & 3] - st.max[sub][r]);
            x[sub][i >> 2][i & 3] = e;
            st.sum[sub][r] += e;
        }
#pragma unroll
        for (int g = 0; g < HALF / 16; g++) {
            p[sub][g][0] = pack2<M>(x[sub][g * 2][0], x[sub][g * 2][1]);
            p[sub][g][1] = pack2<M>(x[sub][g * 2][2], x[sub][g * 2][3]);
            p[sub][g][2] = pack2<M>(x[sub][g * 2 + 1][0], x[sub][g * 2 + 1][1]);
            p[sub][g][3] = pack2<M>(x[sub][g * 2 + 1][2], x[sub][g * 2 + 1][3]);
        }
    }
#pragma unroll
    for (int n = 0; n < D / 32; n++)
#pragma unroll
        for (int g = 0; g < HALF / 16; g++) {
            uint32_t b[4][2];
            tile::v_fragments(b, v_tile, r0 + g * 16, n);
#pragma unroll
            for (int sub = 0; sub < sh::SUBS; sub++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    mma<M>(st.o[sub][n * 4 + i], p[sub][g], b[i]);
        }
}

/* The warp's rows to the output.  A lane's fragments are pairs of neighbouring
 * channels; quads exchange so that each writes four. */
template <int KIND, int D>
__device__ __forceinline__ void store(const struct attn_call &c, const struct item &w,
                                      struct state<KIND, D> &st)
{
    typedef shape<KIND, D> sh;
    typedef cache_tile<KIND, D> tile;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, quad = lane & 3;
#pragma unroll
    for (int sub = 0; sub < sh::SUBS; sub++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int in_tile = (warp * sh::SUBS + sub) * 16 + (lane >> 2) + r * 8;
            int row = w.row0 + min(in_tile, w.n_rows - 1);
            int token = w.first + row / c.group, head = w.kv_head * c.group + row % c.group;
            struct attn_state t = { st.max[sub][r], quad_sum(st.sum[sub][r]) };
            float factor = output_factor(c, t, head);
#pragma unroll
            for (int n = 0; n < D / 8; n += 2) {
                float *a = &st.o[sub][n][r * 2], *b = &st.o[sub][n + 1][r * 2];
                int channel;
                float4 o;
                if (tile::ELEMENT == 1) {
                    channel = tile::channel(n, quad, 0);
                    o = make_float4(a[0], b[0], a[1], b[1]);
                } else {
                    /* Even quads take tile n, odd ones tile n + 1. */
                    bool odd = quad & 1;
                    float s0 = odd ? a[0] : b[0], s1 = odd ? a[1] : b[1];
                    s0 = __shfl_xor_sync(0xffffffffu, s0, 1);
                    s1 = __shfl_xor_sync(0xffffffffu, s1, 1);
                    channel = (n + odd) * 8 + (quad & 2) * 2;
                    o = odd ? make_float4(s0, s1, b[0], b[1]) : make_float4(a[0], a[1], s0, s1);
                }
                if (in_tile < w.n_rows)
                    write_output(c, token, head, channel, o, factor);
            }
        }
}

template <int KIND, int D>
__device__ __forceinline__ void compute(const struct attn_call &c, const struct item &w,
                                        const struct my_rows<shape<KIND, D>::SUBS> &m, char *data)
{
    typedef shape<KIND, D> sh;
    struct state<KIND, D> st;
    struct stage_blocks<sh::KEYS> now, next;
    uint32_t q_tile = smem_address(data), ring = q_tile + sh::Q_BYTES;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int pos0 = w.begin & ~15, n = w.end > w.begin ? (w.end - pos0 + sh::KEYS - 1) / sh::KEYS : 0;
    float factor[sh::SUBS][2];
#pragma unroll
    for (int sub = 0; sub < sh::SUBS; sub++) {
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            st.o[sub][i][0] = st.o[sub][i][1] = st.o[sub][i][2] = st.o[sub][i][3] = 0.0f;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int in_tile = (warp * sh::SUBS + sub) * 16 + (lane >> 2) + r * 8;
            int row = w.row0 + min(in_tile, w.n_rows - 1);
            int64_t at =
                (int64_t)(w.first + row / c.group) * c.heads + w.kv_head * c.group + row % c.group;
            st.max[sub][r] = ATTN_NO_MAX;
            st.sum[sub][r] = 0.0f;
            factor[sub][r] =
                c.scale * 1.4426950408889634f * (c.q_form == Q_HALF ? c.q_factor[at] : 1.0f);
        }
    }
    now.look_up(c, w, pos0);
    fetch_query<KIND, D>(c, w, q_tile);
    if (n > 0)
        fetch_stage<KIND, D>(c, w, now, ring, pos0);
    copy_commit();
    next.look_up(c, w, pos0 + sh::KEYS);
    for (int i = 0; i < n; i++) {
        int pos = pos0 + i * sh::KEYS;
        copy_wait<0>();
        __syncthreads();
        uint32_t mapped = now.mapped(), stage = ring + (i & 1) * sh::STAGE_BYTES;
        if (i + 1 < n)
            fetch_stage<KIND, D>(c, w, next, ring + (~i & 1) * sh::STAGE_BYTES, pos + sh::KEYS);
        copy_commit();
        now = next;
        next.look_up(c, w, pos + 2 * sh::KEYS);
#pragma unroll 1
        for (int half = 0; half < sh::HALVES; half++) {
            int at = pos + half * HALF;
            if (at > m.high || at >= w.end || (c.window > 0 && m.low - at - HALF >= c.window))
                continue;
            float x[sh::SUBS][HALF / 8][4];
            scores<KIND, D>(c, q_tile, stage, half * HALF, x);
#pragma unroll
            for (int sub = 0; sub < sh::SUBS; sub++)
#pragma unroll
                for (int k = 0; k < HALF / 8; k++)
                    scale_scores(c, factor[sub], x[sub][k]);
            mask<sh::SUBS>(c, w, m, mapped >> (half * 2) & 3, at, x);
            fold<KIND, D>(st, x, stage + sh::KV_BYTES, half * HALF);
        }
    }
    copy_wait<0>();
    store<KIND, D>(c, w, st);
}

template <int KIND, int D>
__global__ void __launch_bounds__(THREADS, 2)
    prefill_kernel(const __grid_constant__ struct attn_call c)
{
    typedef shape<KIND, D> sh;
    extern __shared__ __align__(128) char data[];
    int *next = (int *)(data + sh::DATA_BYTES);
    int items = list_items(c, LIST_PREFILL);

    wait_for_upstream();
    for (int id = blockIdx.x; id < items;) {
        struct item w;
        struct my_rows<sh::SUBS> m;
        if (threadIdx.x == 0)
            *next = next_item(c, LIST_PREFILL, items);
        find_item<KIND, D>(c, id, &w, &m);
        compute<KIND, D>(c, w, m, data);
        __syncthreads();
        id = *next;
        __syncthreads();
    }
}

template <int KIND, int D> cudaError_t prepare(void)
{
    return cudaFuncSetAttribute(prefill_kernel<KIND, D>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize,
                                shape<KIND, D>::SMEM_BYTES);
}

template <int KIND, int D>
cudaError_t start(const struct attn_call *c, const struct device_limits *limits,
                  cudaStream_t stream)
{
    typedef shape<KIND, D> sh;
    int ctas = resident_ctas(limits, sh::SMEM_BYTES, sh::CTAS_PER_SM);
    return launch(prefill_kernel<KIND, D>, (unsigned)(limits->n_sm * ctas), THREADS, sh::SMEM_BYTES,
                  stream, *c);
}

template <int KIND> cudaError_t prepare_any(int width, const struct device_limits *)
{
    return width == 64    ? prepare<KIND, 64>()
           : width == 128 ? prepare<KIND, 128>()
                          : prepare<KIND, 256>();
}

template <int KIND>
cudaError_t start_any(const struct attn_call *c, const struct device_limits *limits,
                      cudaStream_t stream)
{
    return c->q_width == 64    ? start<KIND, 64>(c, limits, stream)
           : c->q_width == 128 ? start<KIND, 128>(c, limits, stream)
                               : start<KIND, 256>(c, limits, stream);
}

} // namespace prefill

#endif
