/* cuda_dense_test.c: attn_dense_* on a GPU against the CPU reference.
 *
 *   cuda_dense_test [--plugin FILE] [--seed N] [--calls N] [--time N]
 *
 * Random ragged calls: widths up to 192 and 128, grouped heads, windows, softcap,
 * tokens before the first sequence and behind the last, sequences without tokens.
 * Output within rounding of the CPU's, zero where no sequence is; the latent cache
 * to the bit, and nowhere else written; a call repeated, and a sequence alone, give
 * the same bits.  Rows that no query may read are NaN.  --time N prints the median
 * of N runs of prompts of DeepSeek V3's attention (128 heads of 192 and 128).
 * Exit code 77 where there is no plugin, no GPU, or the backend serves no such call
 * there. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/platform/device.h"
#include "attention/feature_math.h"
#include "proto/number/formats.h"
#include "attention/platform/plugin.h"
#include "support/attn_world.h"
#include "support/numbers.h"
#include "support/plugin_path.h"
#include "support/rng.h"

enum { SEQS = 6, BLOCK = 16 };

struct bench {
    const struct device_ops *dev;
    struct attn *cpu, *gpu;
    void *stream;
    int failures;
};

static void check(enum err_code rc, const struct err *e, const char *what)
{
    if (rc == ERR_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, e->message);
    exit(2);
}

/* ---- tensors --------------------------------------------------------------------- */

enum tensor { QUERY, KEY, VALUE, CU, OUTPUT, LATENT, CACHE, SLOTS, SCALE, TENSORS };

static struct attn_tensor *tensor_of(struct attn_dense *d, enum tensor i)
{
    struct attn_tensor *const all[TENSORS] = { &d->query,        &d->key,          &d->value,
                                               &d->cu_seqlens,   &d->output,       &d->latent,
                                               &d->latent_cache, &d->slot_mapping, &d->k_scale };
    return all[i];
}

static void make(struct attn_tensor *t, enum attn_dtype type, int32_t rank, int64_t d0, int64_t d1,
                 int64_t d2, int64_t d3)
{
    *t = attn_view(NULL, type, rank, d0, d1, d2, d3);
    t->data = malloc(world_bytes(t) + 1);
    if (t->data == NULL)
        exit(2);
    memset(t->data, 0xFF, world_bytes(t)); /* NaN */
}

static void put16(struct attn_tensor *t, int64_t i, float x)
{
    ((uint16_t *)t->data)[i] = t->dtype == ATTN_F16 ? float_to_f16(x) : float_to_bf16(x);
}

static void fill_rows(struct attn_tensor *t, struct rng *r, int64_t first, int64_t end)
{
    for (int64_t i = first * t->shape[1]; i < end * t->shape[1]; i++)
        put16(t, i, (float)(rng_unit(r) * 2 - 1));
}

/* Row lengths of the calls that are drawn. */
static int32_t draw_length(struct rng *r)
{
    switch (rng_below(r, 4)) {
    case 0:
        return 0;
    case 1:
        return 1 + (int32_t)rng_below(r, 20);
    case 2:
        return 1 + (int32_t)rng_below(r, 300);
    default:
        return 128 * (int32_t)(1 + rng_below(r, 3)) + (int32_t)rng_below(r, 3) - 1;
    }
}

static void draw_cache(struct attn_dense *d, struct rng *r, int32_t n)
{
    static const enum attn_dtype quantised[] = { ATTN_INT8, ATTN_E4M3 };
    int32_t width = 8 * (int32_t)(1 + rng_below(r, 72)), blocks = n / BLOCK + 2;
    enum attn_dtype type = d->query.dtype;
    if (rng_below(r, 2) == 0) {
        type = quantised[rng_below(r, 2)];
        d->k_quant_type = rng_below(r, 2) ? ATTN_PER_TENSOR : ATTN_PER_CHANNEL;
        if (d->k_quant_type == ATTN_PER_TENSOR)
            make(&d->k_scale, ATTN_F32, 1, 1, 0, 0, 0);
        else
            make(&d->k_scale, ATTN_F32, 3, 1, 1, width, 0);
        for (int64_t i = 0; i < world_elements(&d->k_scale); i++)
            ((float *)d->k_scale.data)[i] = 0.01f + 0.02f * (float)rng_unit(r);
    }
    make(&d->latent, d->query.dtype, 2, n, width, 0, 0);
    make(&d->latent_cache, type, 4, blocks, BLOCK, 1, width);
    make(&d->slot_mapping, ATTN_I32, 1, n, 0, 0, 0);
    int32_t *slot = d->slot_mapping.data, last = blocks * BLOCK - 1;
    for (int32_t t = 0; t < n; t++)
        slot[t] = rng_below(r, 10) ? last - t : rng_below(r, 2) ? -1 : 1 << 30;
}

static void draw_call(struct attn_dense *d, struct rng *r)
{
    enum attn_dtype type = rng_below(r, 3) ? ATTN_BF16 : ATTN_F16;
    int32_t kv_heads = 1 + (int32_t)rng_below(r, 3), group = 1 + (int32_t)rng_below(r, 3);
    int32_t k = rng_below(r, 2) ? 192 : 8 * (int32_t)(1 + rng_below(r, 24));
    int32_t v = rng_below(r, 2) ? 128 : 8 * (int32_t)(1 + rng_below(r, 16));
    int32_t cu[SEQS + 1], n;
    cu[0] = rng_below(r, 2) ? 0 : (int32_t)rng_below(r, 40);
    for (int i = 0; i < SEQS; i++)
        cu[i + 1] = cu[i] + draw_length(r);
    n = cu[SEQS] + (rng_below(r, 2) ? 0 : (int32_t)rng_below(r, 10));
    *d = (struct attn_dense){ .num_heads = kv_heads * group,
                              .kv_num_heads = kv_heads,
                              .scale = 0.02f + 0.2f * (float)rng_unit(r),
                              .softcap = rng_below(r, 4) ? 0 : 5,
                              .local_window_size = -1 };
    if (rng_below(r, 4) == 0)
        d->local_window_size = 1 + (int32_t)rng_below(r, 200);
    make(&d->query, type, 2, n, (int64_t)kv_heads * group * k, 0, 0);
    make(&d->key, type, 2, n, (int64_t)kv_heads * k, 0, 0);
    make(&d->value, type, 2, n, (int64_t)kv_heads * v, 0, 0);
    make(&d->output, type, 2, n, (int64_t)kv_heads * group * v, 0, 0);
    make(&d->cu_seqlens, ATTN_I32, 1, SEQS + 1, 0, 0, 0);
    memcpy(d->cu_seqlens.data, cu, sizeof cu);
    fill_rows(&d->query, r, cu[0], cu[SEQS]);
    fill_rows(&d->key, r, cu[0], cu[SEQS]);
    fill_rows(&d->value, r, cu[0], cu[SEQS]);
    if (rng_below(r, 4)) {
        draw_cache(d, r, n);
        fill_rows(&d->latent, r, cu[0], cu[SEQS]);
    }
}

static void free_call(struct attn_dense *d)
{
    for (int i = 0; i < TENSORS; i++)
        free(tensor_of(d, (enum tensor)i)->data);
}

/* ---- runs ------------------------------------------------------------------------ */

static void run_cpu(struct bench *b, struct attn_dense *d)
{
    struct err e;
    uint64_t bytes;
    check(attn_dense_plan(b->cpu, d, &bytes, &e), &e, "CPU plan");
    void *workspace = malloc(bytes + 1);
    check(attn_dense_run(b->cpu, d, workspace, NULL, &e), &e, "CPU run");
    free(workspace);
}

/* A copy of the call on the device. */
static struct attn_dense mirror(struct bench *b, struct attn_dense *from)
{
    struct attn_dense d = *from;
    struct err e;
    for (int i = 0; i < TENSORS; i++) {
        struct attn_tensor *t = tensor_of(&d, (enum tensor)i);
        const void *host = t->data;
        if (!attn_present(t))
            continue;
        t->device = ATTN_CUDA;
        check(b->dev->alloc(&t->data, world_bytes(t) + 256, &e), &e, "device memory");
        check(b->dev->copy(t->data, host, world_bytes(t), HOST_TO_DEVICE, b->stream, &e), &e,
              "upload");
    }
    return d;
}

static void free_mirror(struct bench *b, struct attn_dense *d)
{
    for (int i = 0; i < TENSORS; i++)
        if (attn_present(tensor_of(d, (enum tensor)i)))
            b->dev->free(tensor_of(d, (enum tensor)i)->data);
}

/* Output and cache of the call as the device has them, into `to`'s tensors. */
static void run_gpu(struct bench *b, struct attn_dense *from, struct attn_tensor *out,
                    struct attn_tensor *cache)
{
    struct attn_dense d = mirror(b, from);
    struct err e;
    uint64_t bytes;
    void *workspace;
    check(attn_dense_plan(b->gpu, &d, &bytes, &e), &e, "GPU plan");
    check(b->dev->alloc(&workspace, bytes + 64, &e), &e, "workspace");
    check(b->dev->fill(workspace, 0xFF, bytes, b->stream, &e), &e, "poison");
    check(attn_dense_run(b->gpu, &d, workspace, b->stream, &e), &e, "GPU run");
    check(b->dev->copy(out->data, d.output.data, world_bytes(out), DEVICE_TO_HOST, b->stream, &e),
          &e, "download");
    if (attn_present(&d.latent_cache))
        check(b->dev->copy(cache->data, d.latent_cache.data, world_bytes(cache), DEVICE_TO_HOST,
                           b->stream, &e),
              &e, "download");
    check(b->dev->stream_wait(b->stream, &e), &e, "call");
    b->dev->free(workspace);
    free_mirror(b, &d);
}

static struct attn_tensor like(const struct attn_tensor *t)
{
    struct attn_tensor c = *t;
    if (attn_present(t))
        make(&c, t->dtype, t->rank, t->shape[0], t->shape[1], t->shape[2], t->shape[3]);
    return c;
}

/* ---- checks ---------------------------------------------------------------------- */

static void complain(struct bench *b, const struct attn_dense *d, uint64_t seed, const char *what,
                     double value)
{
    if (b->failures++ < 20)
        printf("FAIL seed %llu: %s: %g (%lld tokens, %d heads, widths %lld %lld)\n",
               (unsigned long long)seed, what, value, (long long)d->query.shape[0], d->num_heads,
               (long long)d->query.shape[1] / d->num_heads,
               (long long)d->value.shape[1] / d->kv_num_heads);
}

/* Relative error over a sequence, and NaN anywhere. */
static void compare(struct bench *b, const struct attn_dense *d, const struct attn_tensor *got,
                    uint64_t seed)
{
    const int32_t *cu = d->cu_seqlens.data;
    int64_t width = d->output.shape[1];
    for (int64_t i = 0; i < world_elements(got); i++) {
        bool inside = i / width >= cu[0] && i / width < cu[SEQS];
        if (!inside && ((const uint16_t *)got->data)[i] != 0) {
            complain(b, d, seed, "a token of no sequence", (double)i);
            return;
        }
    }
    for (int s = 0; s < SEQS; s++) {
        double diff = 0, norm = 0;
        for (int64_t i = cu[s] * width; i < cu[s + 1] * width; i++) {
            double want = (double)world_value(&d->output, i), x = (double)world_value(got, i);
            diff += (x - want) * (x - want);
            norm += want * want;
        }
        double error = norm > 0 ? sqrt(diff / norm) : sqrt(diff);
        if (!(error <= (d->query.dtype == ATTN_F16 ? 2e-3 : 1e-2)))
            complain(b, d, seed, "output", error);
    }
}

/* Sequence s alone, its tokens first: the bits of the batch. */
static void alone(struct bench *b, const struct attn_dense *batch, const struct attn_tensor *whole,
                  int s, uint64_t seed)
{
    const int32_t *cu = batch->cu_seqlens.data;
    int32_t n = cu[s + 1] - cu[s], own[2] = { 0, n };
    struct attn_dense d = *batch;
    if (n == 0)
        return;
    for (int i = 0; i < TENSORS; i++) {
        struct attn_tensor *t = tensor_of(&d, (enum tensor)i);
        bool ragged = i == QUERY || i == KEY || i == VALUE || i == OUTPUT;
        if (i >= LATENT)
            *t = (struct attn_tensor){ 0 };
        if (!ragged)
            continue;
        t->data = (char *)t->data + (size_t)cu[s] * (size_t)t->shape[1] * 2;
        t->shape[0] = n;
    }
    d.k_quant_type = ATTN_QUANT_NONE;
    d.cu_seqlens = attn_view(own, ATTN_I32, 1, 2, 0, 0, 0);
    struct attn_tensor out = like(&d.output), none = { 0 };
    run_gpu(b, &d, &out, &none);
    if (memcmp(out.data, (char *)whole->data + (size_t)cu[s] * (size_t)out.shape[1] * 2,
               world_bytes(&out)) != 0)
        complain(b, batch, seed, "a sequence alone has other bits", s);
    free(out.data);
}

static void one_call(struct bench *b, uint64_t seed)
{
    struct rng r = { seed };
    struct attn_dense d;
    draw_call(&d, &r);
    struct attn_tensor out = like(&d.output), again = like(&d.output);
    struct attn_tensor cache = like(&d.latent_cache), spare = like(&d.latent_cache);
    run_gpu(b, &d, &out, &cache);
    run_gpu(b, &d, &again, &spare);
    if (memcmp(out.data, again.data, world_bytes(&out)) != 0)
        complain(b, &d, seed, "a call repeated has other bits", 0);
    alone(b, &d, &out, (int)rng_below(&r, SEQS), seed);
    run_cpu(b, &d); /* writes the call's own output and cache */
    compare(b, &d, &out, seed);
    if (attn_present(&cache) && memcmp(cache.data, d.latent_cache.data, world_bytes(&cache)) != 0)
        complain(b, &d, seed, "the latent cache", 0);
    free(out.data);
    free(again.data);
    if (attn_present(&cache)) {
        free(cache.data);
        free(spare.data);
    }
    free_call(&d);
}

/* ---- time ------------------------------------------------------------------------ */

static void time_shape(struct bench *b, int32_t seqs, int32_t length, int repeats)
{
    enum { HEADS = 128, K = 192, V = 128 };
    struct rng r = { 7 };
    struct err e;
    int64_t n = (int64_t)seqs * length;
    struct attn_dense d = {
        .num_heads = HEADS, .kv_num_heads = HEADS, .scale = 0.07f, .local_window_size = -1
    };
    uint64_t bytes;
    void *workspace, *from, *to;
    make(&d.query, ATTN_BF16, 2, n, HEADS * K, 0, 0);
    make(&d.key, ATTN_BF16, 2, n, HEADS * K, 0, 0);
    make(&d.value, ATTN_BF16, 2, n, HEADS * V, 0, 0);
    make(&d.output, ATTN_BF16, 2, n, HEADS * V, 0, 0);
    make(&d.cu_seqlens, ATTN_I32, 1, seqs + 1, 0, 0, 0);
    for (int32_t i = 0; i <= seqs; i++)
        ((int32_t *)d.cu_seqlens.data)[i] = i * length;
    fill_rows(&d.query, &r, 0, n);
    fill_rows(&d.key, &r, 0, n);
    fill_rows(&d.value, &r, 0, n);
    struct attn_dense g = mirror(b, &d);
    free_call(&d);
    check(attn_dense_plan(b->gpu, &g, &bytes, &e), &e, "GPU plan");
    check(b->dev->alloc(&workspace, bytes + 64, &e), &e, "workspace");
    check(b->dev->event_create(&from, &e), &e, "event");
    check(b->dev->event_create(&to, &e), &e, "event");
    double *us = calloc((size_t)repeats, sizeof *us);
    for (int i = -3; i < repeats; i++) {
        double one;
        check(b->dev->event_record(from, b->stream, &e), &e, "event");
        check(attn_dense_run(b->gpu, &g, workspace, b->stream, &e), &e, "GPU run");
        check(b->dev->event_record(to, b->stream, &e), &e, "event");
        check(b->dev->event_wait(to, &e), &e, "call");
        check(b->dev->event_elapsed(from, to, &one, &e), &e, "call");
        if (i >= 0)
            us[i] = one;
    }
    qsort(us, (size_t)repeats, sizeof *us, ascending);
    double flop = 2.0 * HEADS * (K + V) * seqs * ((double)length * (length + 1) / 2);
    printf("%d x %d tokens: %.0f us, %.0f TFLOP/s\n", seqs, length, us[repeats / 2],
           flop / us[repeats / 2] * 1e-6);
    free(us);
    b->dev->event_destroy(from);
    b->dev->event_destroy(to);
    b->dev->free(workspace);
    free_mirror(b, &g);
}

/* ---- main ------------------------------------------------------------------------ */

/* Whether the backend serves dense attention on this device. */
static enum err_code probe(struct bench *b, struct err *e)
{
    struct rng r = { 1 };
    struct attn_dense d;
    uint64_t bytes;
    draw_call(&d, &r);
    struct attn_dense g = mirror(b, &d);
    enum err_code rc = attn_dense_plan(b->gpu, &g, &bytes, e);
    free_mirror(b, &g);
    free_call(&d);
    return rc;
}

int main(int argc, char **argv)
{
    char path[4096];
    unsigned long seed = 1, calls = 60, repeats = 0;
    struct bench b = { 0 };
    struct plugin *plugin;
    struct device_info info;
    struct err e = { 0 };
    default_plugin(path, sizeof path);
    for (int i = 1; i + 1 < argc; i += 2) {
        unsigned long value = strtoul(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--plugin") == 0)
            snprintf(path, sizeof path, "%s", argv[i + 1]);
        else if (strcmp(argv[i], "--seed") == 0)
            seed = value;
        else if (strcmp(argv[i], "--calls") == 0)
            calls = value;
        else if (strcmp(argv[i], "--time") == 0)
            repeats = value;
    }
    if (plugin_open(&plugin, path, &e) != ERR_OK)
        return skip(e.message);
    b.dev = plugin_find(plugin, ATTN_ABI, "device");
    struct attn_options opt = { .backend = plugin_find(plugin, ATTN_ABI, "attention") };
    if (b.dev == NULL || opt.backend == NULL) {
        fprintf(stderr, "%s: no interface \"device\" or \"attention\" of ABI %d\n", path, ATTN_ABI);
        return 2;
    }
    if (b.dev->count(&e) == 0 || b.dev->open(0, &info, &e) != ERR_OK)
        return skip(e.message);
    check(attn_open(&b.cpu, &(struct attn_options){ 0 }, &e), &e, "CPU backend");
    check(attn_open(&b.gpu, &opt, &e), &e, "CUDA");
    check(b.dev->stream_create(&b.stream, &e), &e, "stream");
    enum err_code served = probe(&b, &e);
    for (unsigned long i = 0; served == ERR_OK && i < calls; i++)
        one_call(&b, seed * 1000003 + i);
    static const int32_t shapes[][2] = { { 16, 1024 }, { 4, 4096 }, { 1, 16384 } };
    for (size_t i = 0; served == ERR_OK && repeats > 0 && i < 3; i++)
        time_shape(&b, shapes[i][0], shapes[i][1], (int)repeats);
    b.dev->stream_destroy(b.stream);
    attn_close(b.gpu);
    attn_close(b.cpu);
    plugin_close(plugin);
    if (served != ERR_OK)
        return skip(e.message);
    printf("%s: %lu calls, %d failures\n", info.name, calls, b.failures);
    return b.failures == 0 ? 0 : 1;
}
