/* moe.cu: mixture-of-experts layers on the device.
 *
 * Router matmuls, routing, a list of (expert, tile) pairs, two grouped
 * matmuls and a sum in the order of each token's choice: nothing is decided on
 * the host, so that a captured step routes anew on every replay.  A token's
 * result depends on that token alone: rows of a tile do not mix.
 * See ops_cuda.h. */
#include "model/cuda/activate.cuh"
#include "model/cuda/ops_cuda.h"

#include <cuda_bf16.h>
#include <mma.h>
#include <stdlib.h>
#include <string.h>

namespace
{

enum { THREADS = 128, TILE = 32, COLS = 64, DEPTH = 32, PAD = DEPTH + 8, EXPERTS = 1024 };

typedef __nv_bfloat16 bf16;

/* ---- routing ---- */

/* One warp an output: float32 matmul of a bf16 row with a float32 row. */
__global__ void router_matmul(const bf16 *x, const float *w, const float *bias, uint32_t hidden,
                              uint32_t n_experts, uint32_t n, float *out)
{
    uint32_t lane = threadIdx.x % 32;
    size_t at = (size_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (at >= (size_t)n * n_experts)
        return;
    const bf16 *row = x + at / n_experts * hidden;
    const float *col = w + at % n_experts * hidden;
    float sum = 0.0f;
    for (uint32_t i = lane; i < hidden; i += 32)
        sum += (float)row[i] * col[i];
    for (int d = 16; d > 0; d /= 2)
        sum += __shfl_xor_sync(~0u, sum, d);
    if (lane == 0)
        out[at] = sum + (bias != NULL ? bias[at % n_experts] : 0.0f);
}

struct pick {
    float x;
    int32_t id;
};

/* The largest over the warp, ties to the lowest id. */
__device__ struct pick warp_best(struct pick b)
{
    for (int d = 16; d > 0; d /= 2) {
        struct pick o = { __shfl_xor_sync(~0u, b.x, d), __shfl_xor_sync(~0u, b.id, d) };
        b = o.x > b.x || (o.x == b.x && o.id < b.id) ? o : b;
    }
    return b;
}

__device__ float warp_sum(float v)
{
    for (int d = 16; d > 0; d /= 2)
        v += __shfl_xor_sync(~0u, v, d);
    return v;
}

/* The k largest of x by the warp; chosen entries' bits are set in taken. */
__device__ void warp_top_k(const float *x, uint32_t n, uint32_t k, uint32_t *taken, int32_t *out)
{
    uint32_t lane = threadIdx.x % 32;
    for (uint32_t i = lane; i < (n + 31) / 32; i += 32)
        taken[i] = 0;
    __syncwarp();
    for (uint32_t j = 0; j < k; j++) {
        struct pick b = { -INFINITY, INT32_MAX };
        for (uint32_t i = lane; i < n; i += 32) {
            struct pick o = { x[i], (int32_t)i };
            bool free = (taken[i / 32] >> i % 32 & 1) == 0;
            b = free && (b.id == INT32_MAX || o.x > b.x) ? o : b;
        }
        b = warp_best(b);
        b.id = b.id == INT32_MAX ? 0 : b.id; /* only where x holds NaN */
        if (lane == 0) {
            taken[b.id / 32] |= 1u << b.id % 32;
            out[j] = b.id;
        }
        __syncwarp();
    }
}

/* Shared memory of one token. */
struct routing {
    float score[EXPERTS], prob[EXPERTS], group[EXPERTS];
    uint32_t taken[EXPERTS / 32];
    int32_t chosen[EXPERTS];
};

__device__ void warp_softmax(float *x, uint32_t n)
{
    float top = -INFINITY, sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < n; i += 32)
        top = fmaxf(top, x[i]);
    for (int d = 16; d > 0; d /= 2)
        top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
    for (uint32_t i = threadIdx.x; i < n; i += 32) {
        x[i] = expf(x[i] - top);
        sum += x[i];
    }
    sum = warp_sum(sum);
    for (uint32_t i = threadIdx.x; i < n; i += 32)
        x[i] /= sum;
    __syncwarp();
}

/* Experts outside the best groups become -INFINITY. */
__device__ void keep_groups(const struct moe_config *m, struct routing *r)
{
    uint32_t per = m->n_experts / m->n_groups;
    if (m->n_groups == 1)
        return;
    for (uint32_t g = threadIdx.x; g < m->n_groups; g += 32) {
        float a = -INFINITY, b = -INFINITY;
        for (uint32_t i = g * per; i < (g + 1) * per; i++) {
            float v = r->score[i];
            b = v > a ? a : v > b ? v : b;
            a = v > a ? v : a;
        }
        r->group[g] = m->routing == ROUTE_SIGMOID_BIAS ? a + b : a;
    }
    __syncwarp();
    warp_top_k(r->group, m->n_groups, m->top_groups, r->taken, r->chosen);
    for (uint32_t i = threadIdx.x; i < m->n_experts; i += 32) {
        uint32_t g = i / per;
        if ((r->taken[g / 32] >> g % 32 & 1) == 0)
            r->score[i] = -INFINITY;
    }
    __syncwarp();
}

/* One warp a token. */
__global__ void route(struct moe_config m, const float *logits, const float *choice_bias,
                      int32_t *expert, float *weight)
{
    __shared__ struct routing r;
    uint32_t k = m.top_k;
    for (uint32_t i = threadIdx.x; i < m.n_experts; i += 32)
        r.prob[i] = logits[(size_t)blockIdx.x * m.n_experts + i];
    __syncwarp();
    if (m.routing == ROUTE_SIGMOID_BIAS) {
        for (uint32_t i = threadIdx.x; i < m.n_experts; i += 32)
            r.prob[i] = 1.0f / (1.0f + expf(-r.prob[i]));
    } else if (m.routing != ROUTE_TOPK_SOFTMAX) {
        warp_softmax(r.prob, m.n_experts);
    }
    for (uint32_t i = threadIdx.x; i < m.n_experts; i += 32)
        r.score[i] = r.prob[i] + (choice_bias != NULL ? choice_bias[i] : 0.0f);
    __syncwarp();
    keep_groups(&m, &r);
    warp_top_k(r.score, m.n_experts, k, r.taken, r.chosen);
    for (uint32_t j = threadIdx.x; j < k; j += 32)
        r.group[j] = r.prob[r.chosen[j]];
    __syncwarp();
    float sum = 0.0f;
    for (uint32_t j = 0; j < k; j++)
        sum += r.group[j];
    if (m.routing == ROUTE_TOPK_SOFTMAX)
        warp_softmax(r.group, k);
    for (uint32_t j = threadIdx.x; j < k; j += 32) {
        float v = r.group[j];
        v = m.norm_topk ? v / (sum + 1e-20f) : v;
        expert[(size_t)blockIdx.x * k + j] = r.chosen[j];
        weight[(size_t)blockIdx.x * k + j] = v * m.scale;
    }
}

/* Slots in expert order (any order inside an expert), and the tiles that cover
 * them.  One block. */
__global__ void sort_slots(const int32_t *expert, uint32_t n_pairs, uint32_t top_k,
                           uint32_t n_experts, int32_t *begin, int32_t *row, int32_t *slot,
                           int32_t *tile, uint32_t max_tiles)
{
    __shared__ int32_t count[EXPERTS], next[EXPERTS];
    for (uint32_t i = threadIdx.x; i < n_experts; i += blockDim.x)
        count[i] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n_pairs; i += blockDim.x)
        atomicAdd(&count[expert[i]], 1);
    __syncthreads();
    if (threadIdx.x == 0) {
        int32_t at = 0;
        uint32_t tiles = 0;
        for (uint32_t x = 0; x < n_experts; x++) {
            begin[x] = next[x] = at;
            for (int32_t t = 0; t < count[x] && tiles < max_tiles; t += TILE) {
                tile[tiles] = (int32_t)x;
                tile[max_tiles + tiles++] = at + t;
            }
            at += count[x];
        }
        begin[n_experts] = at;
        tile[2 * max_tiles] = (int32_t)tiles;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n_pairs; i += blockDim.x) {
        int32_t at = atomicAdd(&next[expert[i]], 1);
        row[at] = (int32_t)(i / top_k);
        slot[i] = at;
    }
}

/* ---- grouped matmuls ---- */

struct group_call {
    const bf16 *in;       /* rows of depth */
    const int32_t *row;   /* slot -> row of in; NULL: the slot itself */
    const bf16 *const *w; /* [experts], rows of depth                 */
    const float *const *bias;
    const int32_t *begin, *tile;
    uint32_t max_tiles, depth, width; /* width: outputs; of gate alone with glu */
    bool glu;
    enum act_kind act;
    float limit;
    bf16 *mid;   /* glu: [slots, width]  */
    float *wide; /* else                 */
};

struct tiles {
    union {
        struct {
            bf16 a[TILE][PAD], b[COLS][PAD];
        };
        float c[TILE][COLS + 4];
    };
};

/* Row `r` of the tile's weights: with glu the first half are gates. */
__device__ int64_t weight_row(const struct group_call *g, uint32_t col0, uint32_t r)
{
    if (!g->glu)
        return col0 + r < g->width ? (int64_t)(col0 + r) : -1;
    uint32_t half = COLS / 2, col = col0 / 2 + r % half;
    if (col >= g->width)
        return -1;
    return r < half ? (int64_t)col : (int64_t)g->width + col;
}

/* Four channels at once; beyond the depth, zero. */
__device__ void load_four(bf16 *to, const bf16 *from, uint32_t k, uint32_t depth)
{
    for (int i = 0; i < 4; i++)
        to[i] = from != NULL && k + i < depth ? from[k + i] : __float2bfloat16(0.0f);
}

__device__ void load_fast(bf16 *to, const bf16 *from, uint32_t k, uint32_t depth)
{
    if (from != NULL && k + 4 <= depth && depth % 4 == 0)
        *(uint2 *)to = *(const uint2 *)(from + k);
    else
        load_four(to, from, k, depth);
}

__device__ void store_tile(const struct group_call *g, const struct tiles *t, const float *bias,
                           uint32_t first, uint32_t n, uint32_t col0)
{
    uint32_t wide = g->glu ? COLS / 2 : COLS, at = g->glu ? col0 / 2 : col0;
    for (uint32_t i = threadIdx.x; i < TILE * wide; i += THREADS) {
        uint32_t r = i / wide, c = i % wide, col = at + c;
        if (r >= n || col >= g->width)
            continue;
        size_t to = (size_t)(first + r) * g->width + col;
        float v = t->c[r][c] + (bias != NULL ? bias[col] : 0.0f);
        if (g->glu) {
            float u = t->c[r][c + wide] + (bias != NULL ? bias[g->width + col] : 0.0f);
            g->mid[to] = __float2bfloat16(activate(v, u, g->act, g->limit));
        } else {
            g->wide[to] = v;
        }
    }
}

/* grid (columns / COLS, max_tiles): one tile of 32 slots by 64 weight rows. */
__global__ void __launch_bounds__(THREADS) grouped_matmul(struct group_call g)
{
    using namespace nvcuda;
    __shared__ __align__(16) struct tiles t;
    __shared__ const bf16 *a_row[TILE], *b_row[COLS];
    uint32_t y = blockIdx.y, col0 = blockIdx.x * COLS, warp = threadIdx.x / 32;
    if (y >= (uint32_t)g.tile[2 * g.max_tiles])
        return;
    int32_t x = g.tile[y], first = g.tile[g.max_tiles + y];
    uint32_t n = (uint32_t)min(g.begin[x + 1] - first, (int32_t)TILE);
    for (uint32_t i = threadIdx.x; i < TILE + COLS; i += THREADS) {
        if (i < TILE) {
            int32_t s = first + (int32_t)i;
            a_row[i] = i < n ? g.in + (size_t)(g.row ? g.row[s] : s) * g.depth : NULL;
        } else {
            int64_t r = weight_row(&g, col0, i - TILE);
            b_row[i - TILE] = r >= 0 ? g.w[x] + r * g.depth : NULL;
        }
    }
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc[2];
    wmma::fill_fragment(acc[0], 0.0f);
    wmma::fill_fragment(acc[1], 0.0f);
    uint32_t r0 = warp / 2 * 16, c0 = warp % 2 * 32;
    for (uint32_t k = 0; k < g.depth; k += DEPTH) {
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < (TILE + COLS) * DEPTH / 4; i += THREADS) {
            uint32_t r = i / (DEPTH / 4), c = i % (DEPTH / 4) * 4;
            if (r < TILE)
                load_fast(&t.a[r][c], a_row[r], k + c, g.depth);
            else
                load_fast(&t.b[r - TILE][c], b_row[r - TILE], k + c, g.depth);
        }
        __syncthreads();
        for (uint32_t j = 0; j < DEPTH; j += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, bf16, wmma::row_major> a;
            wmma::fragment<wmma::matrix_b, 16, 16, 16, bf16, wmma::col_major> b;
            wmma::load_matrix_sync(a, &t.a[r0][j], PAD);
            for (int i = 0; i < 2; i++) {
                wmma::load_matrix_sync(b, &t.b[c0 + 16 * i][j], PAD);
                wmma::mma_sync(acc[i], a, b, acc[i]);
            }
        }
    }
    __syncthreads();
    for (int i = 0; i < 2; i++)
        wmma::store_matrix_sync(&t.c[r0][c0 + 16 * i], acc[i], COLS + 4, wmma::mem_row_major);
    __syncthreads();
    store_tile(&g, &t, g.bias[x], (uint32_t)first, n, col0);
}

/* to[token] += weight * result of each chosen expert, best first. */
__global__ void combine(const float *result, const int32_t *slot, const float *weight,
                        uint32_t top_k, uint32_t hidden, float *to)
{
    slot += (size_t)blockIdx.x * top_k;
    weight += (size_t)blockIdx.x * top_k;
    to += (size_t)blockIdx.x * hidden;
    for (uint32_t i = threadIdx.x; i < hidden; i += blockDim.x) {
        float v = to[i];
        for (uint32_t j = 0; j < top_k; j++)
            v += result[(size_t)slot[j] * hidden + i] * weight[j];
        to[i] = v;
    }
}

/* ---- tables ---- */

enum err_code table_pointers(struct cuda_ops *o, struct op_matrix *const *m, uint32_t n,
                             const void ***data, const float ***bias, struct err *e)
{
    const void **host = (const void **)calloc(2ul * n, sizeof *host);
    void *device = NULL;
    if (host == NULL)
        return err_nomem(e, "expert table", 2ul * n * sizeof *host);
    for (uint32_t i = 0; i < n; i++) {
        host[i] = m[i]->data;
        host[n + i] = m[i]->bias;
    }
    enum err_code rc = cuda_result(cudaMalloc(&device, 2ul * n * sizeof *host), "expert table", e);
    if (rc == ERR_OK)
        rc = cuda_result(cudaMemcpyAsync(device, host, 2ul * n * sizeof *host,
                                         cudaMemcpyHostToDevice, o->stream),
                         "expert table", e);
    if (rc == ERR_OK)
        rc = cuda_result(cudaStreamSynchronize(o->stream), "expert table", e);
    free(host);
    *data = (const void **)device;
    *bias = (const float **)device + n;
    return rc;
}

/* The table of a layer, made when the layer first runs (which is eager). */
const struct expert_table *table_of(struct cuda_ops *o, const struct op_moe *m)
{
    struct expert_table *t = o->tables;
    uint32_t n = m->config->n_experts;
    while (t != NULL && t->router != m->router)
        t = t->next;
    if (t != NULL)
        return t;
    t = (struct expert_table *)calloc(1, sizeof *t);
    if (t == NULL) {
        if (o->fault.code == ERR_OK)
            (void)err_nomem(&o->fault, "expert table", sizeof *t);
        return NULL;
    }
    t->router = m->router;
    t->inter = m->gate_up[0]->n_rows / 2;
    t->next = o->tables;
    o->tables = t;
    struct err e;
    enum err_code rc = table_pointers(o, m->gate_up, n, &t->up, &t->up_bias, &e);
    if (rc == ERR_OK)
        rc = table_pointers(o, m->down, n, &t->down, &t->down_bias, &e);
    if (rc == ERR_OK && m->choice_bias != NULL) {
        rc = cuda_result(cudaMalloc((void **)&t->choice_bias, n * 4ul), "router bias", &e);
        if (rc == ERR_OK)
            rc = cuda_result(
                cudaMemcpy(t->choice_bias, m->choice_bias, n * 4ul, cudaMemcpyHostToDevice),
                "router bias", &e);
    }
    if (rc != ERR_OK && o->fault.code == ERR_OK)
        o->fault = e;
    return rc == ERR_OK ? t : NULL;
}

void run_group(struct cuda_ops *o, struct group_call g, uint32_t n_pairs, uint32_t n_experts)
{
    uint32_t most = n_pairs < n_experts ? n_pairs : n_experts, wide = g.glu ? 2 * g.width : g.width;
    dim3 grid((wide + COLS - 1) / COLS, most + n_pairs / TILE);
    grouped_matmul<<<grid, THREADS, 0, o->stream>>>(g);
    check_launch(o, "expert matmuls");
}

uint32_t max_tiles(const struct moe_config *c, uint32_t n)
{
    uint32_t pairs = n * c->top_k;
    return (pairs < c->n_experts ? pairs : c->n_experts) + pairs / TILE;
}

size_t take(size_t *at, size_t bytes)
{
    size_t here = *at;
    *at = (here + bytes + 255) & ~(size_t)255;
    return here;
}

/* Where the parts of the scratch lie; returns its bytes. */
size_t lay_out(const struct moe_config *c, const struct ops_limits *lim, char *base,
               struct moe_scratch *s)
{
    size_t at = 0, n = lim->max_tokens, pairs = n * c->top_k;
    s->max_tiles = max_tiles(c, lim->max_tokens);
    s->logits = (float *)(base + take(&at, n * c->n_experts * 4));
    s->expert = (int32_t *)(base + take(&at, pairs * 4));
    s->weight = (float *)(base + take(&at, pairs * 4));
    s->slot = (int32_t *)(base + take(&at, pairs * 4));
    s->row = (int32_t *)(base + take(&at, pairs * 4));
    s->begin = (int32_t *)(base + take(&at, (c->n_experts + 1) * 4ul));
    s->tile = (int32_t *)(base + take(&at, (2ul * s->max_tiles + 1) * 4));
    s->mid = base + take(&at, pairs * c->intermediate * 2);
    s->result = (float *)(base + take(&at, pairs * lim->hidden * 4));
    return at;
}

} // namespace

enum err_code moe_start(struct cuda_ops *o, struct err *e)
{
    const struct moe_config *c = &o->moe;
    struct moe_scratch s;
    void *base = NULL;
    if (c->n_experts == 0)
        return ERR_OK;
    if (c->n_experts > EXPERTS)
        return err_set(e, ERR_INVALID,
                       "config.json: %u experts, the cuda backend routes among at "
                       "most %d",
                       c->n_experts, EXPERTS);
    enum err_code rc =
        cuda_result(cudaMalloc(&base, lay_out(c, &o->lim, (char *)256, &s)), "expert scratch", e);
    if (rc == ERR_OK)
        lay_out(c, &o->lim, (char *)base, &o->experts);
    return rc;
}

void moe_run(struct cuda_ops *o, const struct op_moe *m, uint32_t n)
{
    const struct moe_config *c = m->config;
    const struct moe_scratch *s = &o->experts;
    const struct expert_table *t = table_of(o, m);
    uint32_t pairs = n * c->top_k;
    size_t outputs = (size_t)n * c->n_experts;
    if (n == 0 || t == NULL)
        return;
    router_matmul<<<(unsigned)((outputs + 7) / 8), 256, 0, o->stream>>>(
        (const bf16 *)m->in, (const float *)m->router->data, m->router->bias, m->hidden,
        c->n_experts, n, s->logits);
    check_launch(o, "router");
    route<<<n, 32, 0, o->stream>>>(*c, s->logits, t->choice_bias, s->expert, s->weight);
    check_launch(o, "routing");
    sort_slots<<<1, 1024, 0, o->stream>>>(s->expert, pairs, c->top_k, c->n_experts, s->begin,
                                          s->row, s->slot, s->tile, s->max_tiles);
    check_launch(o, "sorting by expert");
    struct group_call g = {};
    g.begin = s->begin;
    g.tile = s->tile;
    g.max_tiles = s->max_tiles;
    g.in = (const bf16 *)m->in;
    g.row = s->row;
    g.w = (const bf16 *const *)t->up;
    g.bias = t->up_bias;
    g.depth = m->hidden;
    g.width = t->inter;
    g.glu = true;
    g.act = m->act;
    g.limit = m->limit;
    g.mid = (bf16 *)s->mid;
    run_group(o, g, pairs, c->n_experts);
    g.in = (const bf16 *)s->mid;
    g.row = NULL;
    g.w = (const bf16 *const *)t->down;
    g.bias = t->down_bias;
    g.depth = t->inter;
    g.width = m->hidden;
    g.glu = false;
    g.wide = s->result;
    run_group(o, g, pairs, c->n_experts);
    combine<<<n, 256, 0, o->stream>>>(s->result, s->slot, s->weight, c->top_k, m->hidden, m->to);
    check_launch(o, "adding experts");
}

void moe_free(struct cuda_ops *o)
{
    cudaFree(o->experts.logits);
    o->experts = {};
    while (o->tables != NULL) {
        struct expert_table *next = o->tables->next;
        cudaFree((void *)o->tables->up);
        cudaFree((void *)o->tables->down);
        cudaFree(o->tables->choice_bias);
        free(o->tables);
        o->tables = next;
    }
}
