/* sample.cu: from a row of logits to a token, by the rules of sampling.h.
 *
 * The largest logit of every SLICE is found by a block each; then one block a row
 * does the rest, which for a greedy row without logprobs is to compare those.
 * Weights are e^((x - top) / temperature) by the host's own formula, operation
 * for operation (this file is compiled without fused multiply-add), and never
 * stored: each pass computes them again.  A filter finds its threshold by three
 * passes of a radix search over the weights' bits, with masses in fixed point,
 * so that no order of addition shows in a result.
 * See ops_cuda.h. */
#include "attention/cuda/launch.cuh"
#include "attention/cuda/ptx.cuh"
#include "model/cuda/ops_cuda.h"
#include "proto/number/exp.h"
#include "proto/number/philox.h"
#include "proto/plan/sample_rules.h"

#include <math.h>

namespace
{

enum { THREADS = 1024, WARPS = THREADS / 32, BINS = 1024, DIGIT = 10, BITS = 30 };
enum { SLICE = 4096, SLICE_THREADS = 256 };

/* ---- over the block ---- */

struct shared {
    unsigned long long bin[BINS];
    unsigned long long scan[WARPS];
    double sum[WARPS];
    float top[WARPS];
    int32_t id[WARPS];
    unsigned long long found[3]; /* bin, what is above it, what is in it */
    int32_t pick;
};

/* A logit and its id; larger first, then lower id. */
struct best {
    float x;
    int32_t id;
};

__device__ bool ahead(struct best a, struct best b)
{
    return sample_before(a.x, a.id, b.x, b.id);
}

__device__ struct best warp_best(struct best b)
{
    for (int d = 16; d > 0; d /= 2) {
        struct best o = { __shfl_xor_sync(~0u, b.x, d), __shfl_xor_sync(~0u, b.id, d) };
        b = ahead(o, b) ? o : b;
    }
    return b;
}

__device__ struct best block_best(struct shared *s, struct best b)
{
    b = warp_best(b);
    if (threadIdx.x % 32 == 0) {
        s->top[threadIdx.x / 32] = b.x;
        s->id[threadIdx.x / 32] = b.id;
    }
    __syncthreads();
    b = warp_best({ s->top[threadIdx.x % 32], s->id[threadIdx.x % 32] });
    __syncthreads();
    return b;
}

__device__ double sum_of_warp(double v)
{
    for (int d = 16; d > 0; d /= 2)
        v += __shfl_xor_sync(~0u, v, d);
    return v;
}

/* The sum over the block in a fixed order, the same in every thread. */
__device__ double block_sum(struct shared *s, double v)
{
    v = sum_of_warp(v);
    if (threadIdx.x % 32 == 0)
        s->sum[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (int i = 0; i < WARPS; i++)
        v += s->sum[i];
    __syncthreads();
    return v;
}

/* The largest of x. */
__device__ struct best row_best(struct shared *s, const float *x, uint32_t vocab)
{
    struct best b = { -INFINITY, INT32_MAX };
    for (uint32_t i = threadIdx.x; i < vocab; i += THREADS) {
        struct best o = { x[i], (int32_t)i };
        b = ahead(o, b) ? o : b;
    }
    return block_best(s, b);
}

/* ---- filters ---- */

/* The weights of a row, and the last one kept so far. */
struct row {
    const float *y;
    uint32_t vocab;
    float top, scale; /* 1 / temperature */
    float last_w;
    int32_t last_id;
};

__device__ float weight(const struct row *r, uint32_t i)
{
    return exp_any((r->y[i] - r->top) * r->scale);
}

__device__ bool kept(const struct row *r, float w, uint32_t id)
{
    return sample_kept(w, (int32_t)id, r->last_w, r->last_id);
}

/* A weight's share of 2^44; the vocabulary has fewer than 2^20 entries. */
__device__ unsigned long long fixed_mass(float w)
{
    return (unsigned long long)((double)w * 0x1p44);
}

/* From the top bin downwards: the bin in which the running total reaches want
 * (>= 1), what is above it, and what it holds. */
__device__ void find_bin(struct shared *s, unsigned long long want)
{
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned long long own = s->bin[BINS - 1 - threadIdx.x], sum = own, before = 0;
    for (int d = 1; d < 32; d *= 2) {
        unsigned long long up = __shfl_up_sync(~0u, sum, d);
        sum += lane >= d ? up : 0;
    }
    if (lane == 31)
        s->scan[warp] = sum;
    __syncthreads();
    for (uint32_t i = 0; i < warp; i++)
        before += s->scan[i];
    sum += before;
    if (sum >= want && sum - own < want) {
        s->found[0] = BINS - 1 - threadIdx.x;
        s->found[1] = sum - own;
        s->found[2] = own;
    }
    __syncthreads();
}

/* Add the kept weights whose leading bits are `prefix` to the bins of the next
 * digit: their number, or their mass. */
__device__ void fill_bins(struct shared *s, const struct row *r, bool by_mass, uint32_t prefix,
                          int shift)
{
    s->bin[threadIdx.x] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < r->vocab; i += THREADS) {
        float w = weight(r, i);
        uint32_t bits = __float_as_uint(w);
        if (kept(r, w, i) && bits >> (shift + DIGIT) == prefix)
            atomicAdd(&s->bin[bits >> shift & (BINS - 1)], by_mass ? fixed_mass(w) : 1ull);
    }
    __syncthreads();
}

/* The id of the rank-th kept weight (from 1) that equals w, by id. */
__device__ int32_t nth_equal(struct shared *s, const struct row *r, float w,
                             unsigned long long rank)
{
    if (threadIdx.x == 0)
        s->pick = INT32_MAX;
    __syncthreads();
    unsigned long long seen = 0;
    for (uint32_t base = 0; base < r->vocab && seen < rank; base += THREADS) {
        uint32_t i = base + threadIdx.x, warp = threadIdx.x / 32;
        bool hit = i < r->vocab && weight(r, i) == w && kept(r, w, i);
        uint32_t votes = __ballot_sync(~0u, hit);
        if (threadIdx.x % 32 == 0)
            s->scan[warp] = __popc(votes);
        __syncthreads();
        unsigned long long at = seen;
        for (uint32_t k = 0; k < WARPS; k++) {
            at += k < warp ? s->scan[k] : 0;
            seen += s->scan[k];
        }
        at += __popc(votes & ((2u << threadIdx.x % 32) - 1));
        if (hit && at == rank)
            s->pick = (int32_t)i;
        __syncthreads();
    }
    return s->pick;
}

/* Lower the last kept item to the top `count` (share 0), or to the fewest that
 * hold `share` of the kept weight. */
__device__ void tighten(struct shared *s, struct row *r, uint32_t count, double share)
{
    bool by_mass = count == 0;
    unsigned long long want = count, total = 0;
    uint32_t prefix = 0;
    for (int shift = BITS - DIGIT; shift >= 0; shift -= DIGIT) {
        fill_bins(s, r, by_mass, prefix, shift);
        if (shift == BITS - DIGIT) {
            for (int i = 0; i < BINS; i++)
                total += s->bin[i];
            if (by_mass)
                want = (unsigned long long)ceil(share * (double)total);
            else if (want >= total)
                return;
            want = want < 1 ? 1 : want > total ? total : want;
        }
        find_bin(s, want);
        prefix = prefix << DIGIT | (uint32_t)s->found[0];
        want -= s->found[1];
        __syncthreads();
    }
    float w = __uint_as_float(prefix);
    unsigned long long unit = by_mass ? fixed_mass(w) : 1;
    unsigned long long equal = s->found[2] / unit, rank = (want + unit - 1) / unit;
    int32_t id = rank >= equal ? INT32_MAX : nth_equal(s, r, w, rank);
    if (w > r->last_w || id < r->last_id)
        r->last_id = id;
    r->last_w = w;
    __syncthreads();
}

/* ---- choosing ---- */

/* Each warp owns a stretch of ids; the one in which the running total passes
 * the drawn point walks its stretch. */
__device__ int32_t draw(struct shared *s, const struct row *r, const struct sample_row *p)
{
    float floor = sample_floor(p->min_p);
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t each = (r->vocab + THREADS - 1) / THREADS * 32, begin = warp * each;
    uint32_t end = begin + each < r->vocab ? begin + each : r->vocab;
    double own = 0, total = 0, before = 0;
    for (uint32_t i = begin + lane; i < end; i += 32) {
        float w = weight(r, i);
        own += kept(r, w, i) && w >= floor ? (double)w : 0.0;
    }
    own = sum_of_warp(own);
    if (lane == 0)
        s->sum[warp] = own;
    if (threadIdx.x == 0)
        s->pick = -1;
    __syncthreads();
    int crossing = -1;
    for (int k = 0; k < WARPS; k++)
        total += s->sum[k];
    double u = philox_unit(p->seed, p->n_history) * total, at = 0;
    for (int k = 0; k < WARPS; k++) {
        bool holds = s->sum[k] > 0;
        if (holds && (crossing < 0 || at <= u)) {
            crossing = k;
            before = at;
        }
        at += s->sum[k];
    }
    if ((int)warp == crossing) {
        int32_t pick = -1;
        bool done = false;
        for (uint32_t base = begin; base < end && !done; base += 32) {
            uint32_t i = base + lane;
            float w = i < end ? weight(r, i) : 0.0f;
            bool in = i < end && w > 0 && kept(r, w, i) && w >= floor;
            double sum = in ? (double)w : 0.0;
            for (int d = 1; d < 32; d *= 2) {
                double up = __shfl_up_sync(~0u, sum, d);
                sum += (int)lane >= d ? up : 0.0;
            }
            uint32_t could = __ballot_sync(~0u, in);
            uint32_t past = __ballot_sync(~0u, in && before + sum > u);
            if (could != 0)
                pick = (int32_t)base + (past ? __ffs(past) - 1 : 31 - __clz(could));
            done = past != 0;
            before += __shfl_sync(~0u, sum, 31);
        }
        if (lane == 0)
            s->pick = pick;
    }
    __syncthreads();
    return s->pick;
}

__device__ int32_t choose(struct shared *s, const struct sample_row *p, const float *y,
                          uint32_t vocab, struct best top)
{
    if (sample_greedy(p->temperature, p->top_k))
        return top.id;
    struct row r = { y, vocab, top.x, 1 / p->temperature, 0.0f, INT32_MAX };
    if (sample_cuts_top_k(p->top_k, vocab))
        tighten(s, &r, (uint32_t)p->top_k, 0);
    if (p->top_p < 1)
        tighten(s, &r, 0, sample_share(p->top_p));
    return draw(s, &r, p);
}

/* ---- what changes logits ---- */

__device__ void edit(const struct sample_row *p, const float *x, uint32_t vocab, float *y,
                     uint32_t *seen)
{
    for (uint32_t i = threadIdx.x; i < vocab; i += THREADS)
        y[i] = x[i];
    if (p->penalised)
        for (uint32_t i = threadIdx.x; i < p->n_history; i += THREADS) {
            uint32_t t = (uint32_t)p->history[i];
            if (t < vocab && i < p->n_prompt)
                atomicOr(&seen[t], SAMPLE_IN_PROMPT);
            else if (t < vocab)
                atomicAdd(&seen[t], 1);
        }
    __syncthreads();
    if (threadIdx.x == 0)
        sample_bias_and_mask(y, vocab, p->bias, p->n_bias, p->stop, p->n_stop);
    __syncthreads();
    if (!p->penalised)
        return;
    for (uint32_t i = threadIdx.x; i < vocab; i += THREADS) {
        if (seen[i] == 0)
            continue;
        y[i] = sample_penalise(y[i], seen[i], p->repetition, p->frequency, p->presence);
        seen[i] = 0;
    }
    __syncthreads();
}

/* ---- logprobs ---- */

/* Sum of e^(x - top): sixteen partial sums of every 256, like the host. */
__device__ double exp_sum(struct shared *s, const float *x, uint32_t vocab, float top)
{
    double sum = 0;
    uint32_t chunks = (vocab + 255) / 256;
    for (uint32_t k = threadIdx.x; k < chunks * 16; k += THREADS) {
        uint32_t at = k / 16 * 256 + k % 16;
        float part = 0;
        for (uint32_t i = 0; i < 16; i++, at += 16)
            part += at < vocab ? exp_any(x[at] - top) : 0.0f;
        sum += (double)part;
    }
    return block_sum(s, sum);
}

__device__ void report(struct shared *s, const struct sample_row *p, const float *x, uint32_t vocab,
                       float top, int32_t token)
{
    float log_sum = top + (float)log(exp_sum(s, x, vocab, top));
    struct best last = { INFINITY, -1 };
    if (threadIdx.x == 0)
        p->out->logprob = x[token] - log_sum;
    for (uint32_t k = 0; k < p->n_top; k++) {
        struct best b = { -INFINITY, INT32_MAX };
        for (uint32_t i = threadIdx.x; i < vocab; i += THREADS) {
            struct best o = { x[i], (int32_t)i };
            b = ahead(last, o) && ahead(o, b) ? o : b;
        }
        last = block_best(s, b);
        if (threadIdx.x == 0) {
            p->top_token[k] = last.id;
            p->top_logprob[k] = last.x - log_sum;
        }
    }
}

/* A block a slice of a row. */
__global__ void __launch_bounds__(SLICE_THREADS)
    scan_slices(const struct sample_row *rows, const float *logits, struct sample_part *parts,
                uint32_t vocab, uint32_t n_slices)
{
    __shared__ struct sample_part warp[SLICE_THREADS / 32];
    uint32_t row = blockIdx.x / n_slices, begin = blockIdx.x % n_slices * SLICE;
    uint32_t end = min(begin + SLICE, vocab);
    const float *x = logits + (size_t)row * vocab;
    struct best b = { -INFINITY, INT32_MAX };
    int ok = 1;
    wait_for_upstream();
    release_downstream();
    if (rows[row].out == NULL)
        return;
#pragma unroll 8
    for (uint32_t i = begin + threadIdx.x; i < end; i += SLICE_THREADS) {
        struct best o = { x[i], (int32_t)i };
        ok &= isfinite(o.x);
        b = ahead(o, b) ? o : b;
    }
    b = warp_best(b);
    ok = __all_sync(~0u, ok);
    if (threadIdx.x % 32 == 0)
        warp[threadIdx.x / 32] = { b.x, b.id, ok };
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    for (int i = 1; i < SLICE_THREADS / 32; i++) {
        struct best o = { warp[i].x, warp[i].id };
        b = ahead(o, b) ? o : b;
        ok &= warp[i].finite;
    }
    parts[blockIdx.x] = { b.x, b.id, ok };
}

/* The largest of the row's slices; *finite: none is infinite or NaN. */
__device__ struct best best_of_slices(struct shared *s, const struct sample_part *parts,
                                      uint32_t n_slices, int *finite)
{
    struct best b = { -INFINITY, INT32_MAX };
    int ok = 1;
    for (uint32_t i = threadIdx.x; i < n_slices; i += THREADS) {
        struct best o = { parts[i].x, parts[i].id };
        ok &= parts[i].finite;
        b = ahead(o, b) ? o : b;
    }
    *finite = __syncthreads_and(ok);
    return block_best(s, b);
}

__global__ void __launch_bounds__(THREADS)
    sample_rows(const struct sample_row *rows, const float *logits, struct sample_scratch scratch,
                uint32_t vocab, uint32_t n_slices)
{
    __shared__ struct shared s;
    const struct sample_row *p = &rows[blockIdx.x];
    size_t at = (size_t)blockIdx.x * vocab;
    const float *x = logits + at, *y = x;
    int finite;
    wait_for_upstream();
    release_downstream();
    if (p->out == NULL)
        return;
    struct best raw =
        best_of_slices(&s, scratch.parts + (size_t)blockIdx.x * n_slices, n_slices, &finite);
    struct best top = raw;
    int32_t token = p->target;
    if (!finite || (token >= 0 && (uint32_t)token >= vocab)) {
        token = -1;
    } else if (token < 0) {
        if (p->penalised || p->n_bias > 0 || p->n_stop > 0) {
            edit(p, x, vocab, scratch.edited + at, scratch.seen + at);
            y = scratch.edited + at;
            top = row_best(&s, y, vocab);
        }
        token = top.x > -INFINITY && top.x < INFINITY ? choose(&s, p, y, vocab, top) : -1;
    }
    if (threadIdx.x == 0)
        *p->out = { token, token < 0, 0.0f };
    if (token >= 0 && p->want_logprob)
        report(&s, p, x, vocab, raw.x, token);
}

} // namespace

uint32_t sample_slices(uint32_t vocab)
{
    return (vocab + SLICE - 1) / SLICE;
}

cudaError_t sample_launch(const struct sample_row *rows, const float *logits,
                          const struct sample_scratch *s, uint32_t n, uint32_t vocab,
                          cudaStream_t stream)
{
    const uint32_t n_slices = sample_slices(vocab);
    cudaError_t rc = launch(scan_slices, n * n_slices, SLICE_THREADS, 0, stream, rows, logits,
                            s->parts, vocab, n_slices);
    if (rc != cudaSuccess)
        return rc;
    return launch(sample_rows, n, THREADS, 0, stream, rows, logits, *s, vocab, n_slices);
}
