/* attention_cpu_bench.c: how fast the CPU backend attends.
 *
 *   attention_cpu_bench [threads [shape [repetitions]]]
 *
 * For each shape: microseconds of one layer's call, the rate at which keys and
 * values are read (decode) and of arithmetic (prefill).  Caches are far larger
 * than a core's own, and each repetition uses another layer's.  One thread is
 * timed by its own CPU time, so that a busy machine disturbs less. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "attention/attn.h"
#include "attention/platform/workers.h"
#include "proto/number/formats.h"

static clockid_t clock_used = CLOCK_MONOTONIC;

static double now(void)
{
    struct timespec t;
    clock_gettime(clock_used, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct shape {
    int batch, chunk, past, heads, kv_heads, width;
    enum attn_dtype t, cache;
};

static void fill(void *p, size_t bytes, enum attn_dtype d)
{
    uint32_t x = 1;
    for (size_t i = 0; i < bytes / attn_dtype_bytes(d); i++) {
        x = x * 1664525u + 1013904223u;
        float f = (float)(x >> 9) / (float)(1 << 23) - 0.5f;
        if (d == ATTN_F32)
            ((float *)p)[i] = f;
        else if (d == ATTN_BF16)
            ((uint16_t *)p)[i] = float_to_bf16(f);
        else
            ((uint8_t *)p)[i] = (uint8_t)(d == ATTN_E4M3 ? (x >> 24 & 0xBF) : x >> 24);
    }
}

enum { BLOCK = 16, LAYERS = 4 };

static void bench(struct attn *a, const struct shape *s, int repetitions)
{
    int tokens = s->batch * s->chunk, len = s->past + s->chunk;
    int cols = (len + BLOCK - 1) / BLOCK, blocks = cols * s->batch;
    size_t kv = (size_t)blocks * BLOCK * (size_t)s->kv_heads * (size_t)s->width *
                attn_dtype_bytes(s->cache);
    size_t e = attn_dtype_bytes(s->t),
           row = (size_t)(s->heads + 2 * s->kv_heads) * (size_t)s->width;
    struct attn_attrs attrs = attn_attrs_default(s->heads, s->kv_heads);
    struct attn_args args = { 0 };
    struct attn_plan plan;
    struct err err = { 0 };
    float scale = 0.01f;
    int32_t *cu = calloc((size_t)s->batch + 1, 4), *past = calloc((size_t)s->batch, 4);
    int32_t *table = calloc((size_t)blocks, 4);
    char *k = malloc(kv * LAYERS), *v = malloc(kv * LAYERS), *ws;
    void *query = malloc((size_t)tokens * row * e), *out = malloc((size_t)tokens * row * e);
    double best = 1e9, pairs = 0;
    fill(k, kv * LAYERS, s->cache);
    fill(v, kv * LAYERS, s->cache);
    fill(query, (size_t)tokens * row * e, s->t);
    for (int b = 0; b < s->batch; b++) {
        cu[b + 1] = cu[b] + s->chunk;
        past[b] = s->past;
        for (int i = 0; i < cols; i++)
            table[b * cols + i] = i * s->batch + b;
    }
    for (int j = 0; j < s->chunk; j++)
        pairs += (double)s->batch * (s->past + j + 1);
    args.in[ATTN_QUERY] = attn_view(query, s->t, 2, tokens, (int64_t)row, 0, 0);
    args.in[ATTN_KEY_CACHE] = attn_view(k, s->cache, 4, blocks, BLOCK, s->kv_heads, s->width);
    args.in[ATTN_VALUE_CACHE] = attn_view(v, s->cache, 4, blocks, BLOCK, s->kv_heads, s->width);
    args.in[ATTN_CU_SEQLENS] = attn_view(cu, ATTN_I32, 1, s->batch + 1, 0, 0, 0);
    args.in[ATTN_PAST_SEQLENS] = attn_view(past, ATTN_I32, 1, s->batch, 0, 0, 0);
    args.in[ATTN_BLOCK_TABLE] = attn_view(table, ATTN_I32, 2, s->batch, cols, 0, 0);
    args.out[ATTN_OUT] = attn_view(out, s->t, 2, tokens, s->heads * s->width, 0, 0);
    if (s->cache != s->t) {
        attrs.k_quant_type = attrs.v_quant_type = ATTN_PER_TENSOR;
        args.in[ATTN_K_SCALE] = args.in[ATTN_V_SCALE] = attn_view(&scale, ATTN_F32, 1, 1, 0, 0, 0);
    }
    if (attn_plan(a, &attrs, &args, &plan, &err) != ERR_OK) {
        printf("%s\n", err.message);
        exit(1);
    }
    ws = malloc(plan.workspace_bytes);
    for (int i = 0; i < repetitions; i++) {
        double t0 = now(), t;
        args.in[ATTN_KEY_CACHE].data = k + kv * (size_t)(i % LAYERS);
        args.in[ATTN_VALUE_CACHE].data = v + kv * (size_t)(i % LAYERS);
        if (attn_run(a, &plan, &args, ws, NULL, &err) != ERR_OK)
            exit(1);
        t = now() - t0;
        best = t < best ? t : best;
    }
    printf("batch %3d x %4d tokens, past %5d, %d/%d x %3d, cache %-12s %9.0f us %7.2f GB/s %8.1f "
           "GFLOP/s\n",
           s->batch, s->chunk, s->past, s->heads, s->kv_heads, s->width, attn_dtype_name(s->cache),
           best * 1e6,
           2.0 * s->batch * len * s->kv_heads * s->width * (double)attn_dtype_bytes(s->cache) /
               best / 1e9,
           4.0 * pairs * s->heads * s->width / best / 1e9);
    free(ws);
    free(k);
    free(v);
    free(query);
    free(out);
    free(cu);
    free(past);
    free(table);
}

int main(int argc, char **argv)
{
    static const struct shape shapes[] = {
        { 1, 1, 1000, 32, 8, 64, ATTN_BF16, ATTN_BF16 },
        { 1, 1, 4000, 32, 8, 128, ATTN_BF16, ATTN_BF16 },
        { 1, 1, 4000, 32, 8, 128, ATTN_F32, ATTN_F32 },
        { 1, 1, 4000, 32, 8, 128, ATTN_BF16, ATTN_INT8 },
        { 1, 1, 4000, 32, 8, 128, ATTN_BF16, ATTN_E4M3 },
        { 1, 1, 4000, 32, 32, 128, ATTN_BF16, ATTN_BF16 },
        { 8, 1, 1000, 32, 8, 64, ATTN_BF16, ATTN_BF16 },
        { 32, 1, 1000, 32, 8, 64, ATTN_BF16, ATTN_BF16 },
        { 32, 1, 2000, 32, 8, 128, ATTN_BF16, ATTN_BF16 },
        { 1, 512, 0, 32, 8, 64, ATTN_BF16, ATTN_BF16 },
        { 1, 512, 2048, 32, 8, 64, ATTN_BF16, ATTN_BF16 },
        { 1, 2048, 0, 32, 8, 128, ATTN_BF16, ATTN_BF16 },
        { 1, 512, 0, 32, 8, 64, ATTN_F32, ATTN_F32 },
    };
    struct attn_options opt = { 0 };
    struct attn *a = NULL;
    struct err e = { 0 };
    uint32_t n = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0;
    int only = argc > 2 ? atoi(argv[2]) : -1;
    if (workers_create(&opt.workers, n, &e) != ERR_OK || attn_open(&a, &opt, &e) != ERR_OK) {
        fprintf(stderr, "%s\n", e.message);
        return 1;
    }
    if (workers_count(opt.workers) == 1)
        clock_used = CLOCK_THREAD_CPUTIME_ID;
    printf("%u threads\n", workers_count(opt.workers));
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (only < 0 || only == (int)i)
            bench(a, &shapes[i], argc > 3 ? atoi(argv[3]) : 12);
    attn_close(a);
    workers_destroy(opt.workers);
    return 0;
}
