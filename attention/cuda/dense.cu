/* dense.cu: attention over contiguous K and V (attn_dense_*): the call, and the
 * kernel before the attention kernel.
 *
 *   latent       [tokens, width] T -> its slots in the cache, quantised
 *   output       zeros for tokens of no sequence
 *   cu_seqlens   -> the list of units: a sequence's tiles from the last, which
 *                sees most keys
 * launch   a warp a token, eight a CTA; the first CTA also writes the list
 * bound    memory: one read, one write
 *
 * Owns nothing; called by the backend, on its stream. */
#include "attention/cuda/dense.h"

#include "attention/cuda/call.h"
#include "attention/cuda/interfaces.h"
#include "attention/cuda/launch.cuh"
#include "attention/cuda/ptx.cuh"
#include "attention/feature_math.h"
#include "proto/number/formats.h"

namespace
{

enum { WARPS = 8, THREADS = WARPS * 32 };

/* ---- the list ---------------------------------------------------------------- */

/* Sums over the threads before this one, and over all. */
__device__ int scan(int n, int *total)
{
    __shared__ int sums[WARPS];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, sum = n;
    for (int d = 1; d < 32; d <<= 1) {
        int up = __shfl_up_sync(0xffffffffu, sum, d);
        sum += lane >= d ? up : 0;
    }
    __syncthreads(); /* the last span's readers */
    if (lane == 31)
        sums[warp] = sum;
    __syncthreads();
    int before = 0;
    *total = 0;
    for (int w = 0; w < WARPS; w++) {
        before += w < warp ? sums[w] : 0;
        *total += sums[w];
    }
    return before + sum - n;
}

__device__ void write_list(const struct dense_call &c)
{
    int64_t at = 0; /* cu_seqlens is not trusted: what does not fit is lost */
    for (int base = 0; base < c.batch; base += THREADS) {
        int b = base + threadIdx.x, first = 0, n = 0, total;
        if (b < c.batch) {
            first = min(max(c.cu_seqlens[b], 0), c.tokens);
            n = min(max(c.cu_seqlens[b + 1], first), c.tokens) - first;
        }
        int tiles = (n + DENSE_ROWS - 1) / DENSE_ROWS;
        int64_t place = at + scan(tiles, &total);
        for (int i = tiles - 1; i >= 0 && place < c.most_units; i--, place++)
            c.unit[place] = { first, n, i * DENSE_ROWS, 0 };
        at += total;
    }
    if (threadIdx.x == 0) {
        c.list->n_units = (int32_t)min(at, (int64_t)c.most_units);
        c.list->taken = 0;
    }
}

/* ---- rows --------------------------------------------------------------------- */

/* Two channels of a latent row to the cache. */
template <typename T>
__device__ __forceinline__ void store_pair(const struct dense_call &c, int64_t at, int channel,
                                           uint32_t pair)
{
    if (c.cache_kind == CACHE_BF16 || c.cache_kind == CACHE_F16) {
        *(uint32_t *)((T *)c.cache + at + channel) = pair;
        return;
    }
    const T *x = (const T *)&pair;
    uint32_t code[2];
    for (int k = 0; k < 2; k++) {
        float s = c.k_scale[c.k_channel ? channel + k : 0];
        code[k] = c.cache_kind == CACHE_INT8 ? (uint8_t)quantize_int8(to_float(x[k]), s)
                                             : quantize_e4m3(to_float(x[k]), s);
    }
    *(uint16_t *)((uint8_t *)c.cache + at + channel) = (uint16_t)(code[0] | code[1] << 8);
}

template <typename T>
__global__ void __launch_bounds__(THREADS) dense_rows(const __grid_constant__ struct dense_call c)
{
    int lane = threadIdx.x & 31, t = blockIdx.x * WARPS + (threadIdx.x >> 5);
    wait_for_upstream();
    release_downstream();
    if (blockIdx.x == 0)
        write_list(c);
    if (t >= c.tokens)
        return;
    if (t < c.cu_seqlens[0] || t >= c.cu_seqlens[c.batch]) {
        int64_t width = (int64_t)c.heads * c.v_width;
        for (int64_t i = lane * 8; i < width; i += 256)
            *(uint4 *)((T *)c.output + t * width + i) = make_uint4(0, 0, 0, 0);
        return;
    }
    if (c.latent == NULL)
        return;
    int64_t slot = attn_checked_slot(c.slot_mapping[t], c.n_slots);
    const T *from = (const T *)c.latent + (int64_t)t * c.latent_width;
    for (int i = lane * 2; slot >= 0 && i < c.latent_width; i += 64)
        store_pair<T>(c, slot * c.latent_width, i, *(const uint32_t *)(from + i));
}

/* ---- host --------------------------------------------------------------------- */

int64_t most_units(const struct attn_dense *d)
{
    int64_t tokens = d->query.shape[0], seqs = d->cu_seqlens.shape[0] - 1;
    return tokens / DENSE_ROWS + (seqs < tokens ? seqs : tokens);
}

enum err_code check_alignment(const struct attn_dense *d, struct err *e)
{
    const struct {
        const struct attn_tensor *t;
        const char *name;
    } wide[] = { { &d->query, "query" },   { &d->key, "key" },
                 { &d->value, "value" },   { &d->output, "output" },
                 { &d->latent, "latent" }, { &d->latent_cache, "latent_cache" } };
    for (const auto &w : wide)
        if (w.t->rank != 0 && (uintptr_t)w.t->data % 16 != 0)
            return err_set_param(e, ERR_INVALID, w.name, "%s at %p: expected 16-byte alignment",
                                 w.name, w.t->data);
    return ERR_OK;
}

struct dense_call make_call(const struct attn_dense *d, void *workspace)
{
    struct dense_call c = {};
    c.query = d->query.data;
    c.key = d->key.data;
    c.value = d->value.data;
    c.output = d->output.data;
    c.cu_seqlens = (const int32_t *)d->cu_seqlens.data;
    c.list = (struct dense_head *)workspace;
    c.unit = (struct dense_unit *)(c.list + 1);
    c.tokens = (int32_t)d->query.shape[0];
    c.batch = (int32_t)d->cu_seqlens.shape[0] - 1;
    c.heads = d->num_heads;
    c.kv_heads = d->kv_num_heads;
    c.k_width = (int32_t)(d->query.shape[1] / d->num_heads);
    c.v_width = (int32_t)(d->value.shape[1] / d->kv_num_heads);
    c.most_units = (int32_t)most_units(d);
    c.window = d->local_window_size > 0 ? d->local_window_size : 0;
    c.dtype_bf16 = d->query.dtype == ATTN_BF16;
    c.scale = d->scale;
    c.softcap = d->softcap;
    if (d->latent.rank == 0)
        return c;
    enum attn_dtype cache = d->latent_cache.dtype;
    c.latent = d->latent.data;
    c.cache = d->latent_cache.data;
    c.slot_mapping = (const int32_t *)d->slot_mapping.data;
    c.k_scale = d->k_scale.rank != 0 ? (const float *)d->k_scale.data : NULL;
    c.latent_width = (int32_t)d->latent.shape[1];
    c.k_channel = d->k_quant_type == ATTN_PER_CHANNEL;
    c.cache_kind = cache == ATTN_BF16   ? CACHE_BF16
                   : cache == ATTN_F16  ? CACHE_F16
                   : cache == ATTN_E4M3 ? CACHE_E4M3
                                        : CACHE_INT8;
    c.n_slots = d->latent_cache.shape[0] * d->latent_cache.shape[1];
    return c;
}

} // namespace

cudaError_t dense_prepare(int major, int minor, int block_bytes, bool *runs)
{
    *runs = QUIRE_CUDA_HOPPER && major == 9 && minor == 0 && block_bytes >= dense_hopper_bytes();
    return *runs ? dense_hopper_prepare() : cudaSuccess;
}

enum err_code dense_workspace(const struct attn_dense *d, uint64_t *bytes, struct err *e)
{
    int64_t k = d->query.shape[1] / d->num_heads, v = d->value.shape[1] / d->kv_num_heads;
    if (k > DENSE_K || v > DENSE_V)
        return err_set_param(e, ERR_INVALID, "query",
                             "query: widths %lld and %lld, backend cuda serves up to %d and %d",
                             (long long)k, (long long)v, (int)DENSE_K, (int)DENSE_V);
    if (most_units(d) * d->num_heads > INT32_MAX / 2)
        return err_set_param(e, ERR_INVALID, "query",
                             "query: %lld tokens of %d heads, more than one call can attend",
                             (long long)d->query.shape[0], (int)d->num_heads);
    *bytes = sizeof(struct dense_head) + (uint64_t)most_units(d) * sizeof(struct dense_unit);
    return ERR_OK;
}

enum err_code dense_attend(const struct attn_dense *d, int n_sm, void *workspace,
                           cudaStream_t stream, struct err *e)
{
    uint64_t bytes;
    enum err_code rc = dense_workspace(d, &bytes, e);
    if (rc == ERR_OK)
        rc = check_alignment(d, e);
    if (rc != ERR_OK || d->query.shape[0] == 0)
        return rc;
    struct dense_call c = make_call(d, workspace);
    unsigned blocks = (unsigned)((c.tokens + WARPS - 1) / WARPS);
    cudaError_t rows = c.dtype_bf16
                           ? launch(dense_rows<__nv_bfloat16>, blocks, THREADS, 0, stream, c)
                           : launch(dense_rows<__half>, blocks, THREADS, 0, stream, c);
    rc = cuda_result(rows, "launching the rows of dense attention", e);
    return rc != ERR_OK
               ? rc
               : cuda_result(dense_hopper_launch(&c, n_sm, stream), "launching dense attention", e);
}
