/* attention_bench.c: how fast the CUDA operator is, against what memory and
 * matrix units allow.
 *
 *   attention_bench [--plugin FILE] [--table decode|prefill|latent|goals]
 *                   [--cache bf16|e4m3|int8] [--batch N] [--context N]
 *                   [--random] [--samples N] [--check 0|1] [--begin 0|1]
 *
 * One row a shape: median and spread in microseconds of a CUDA-graph replay of the
 * operator (prologue, attention, merge) with the lists that attn_begin made for the
 * step (--begin 0: each call makes its own); the prologue alone, and the call without
 * the merge where a kernel of its own merges, each a graph; attn_begin alone; bytes
 * that must move and their rate; the share of the read floor (bytes at READ_TBPS) or of
 * the matrix rate.  --table goals prints the shapes that the project's goals name, a
 * short row each, with the best peer's time beside (measured on an H200 before) as a
 * ratio.
 *
 * Before each replay a decode call reads 256 MB of other keys, so that L2 holds no data
 * of the call and next to nothing that has to be written back.  Data is random, blocks
 * lie in shuffled order, outputs are poisoned before and held against the reference
 * kernel after (--check 0 leaves that out).  --random draws lengths from
 * [context / 16, context].  Exit code 77 where there is no plugin or no GPU. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/attn.h"
#include "attention/platform/device.h"
#include "attention/feature_math.h"
#include "proto/number/formats.h"
#include "attention/platform/plugin.h"
#include "support/plugin_path.h"
#include "support/rng.h"

enum { PATTERN_BYTES = 64 << 20, MAX_SAMPLES = 200 };

/* Ceilings measured on an H200: a read-only stream, and a bf16 product. */
#define READ_TBPS     4.4
#define MATRIX_TFLOPS 780.0

struct shape {
    int32_t batch, context, query; /* query: new tokens a sequence, of the context */
    int32_t heads, kv_heads, head_size, v_head_size, block;
    enum attn_dtype cache;
    bool random;
};

/* A call that is ready to run. */
struct call {
    struct attn_args args;
    struct attn_attrs attrs;
    struct attn_plan plan;
    void *workspace;
    double visible, pairs; /* keys over the sequences; (query, key) over them */
};

struct bench {
    const struct device_ops *dev;
    const struct attn_backend *backend;
    struct attn *attn, *oracle, *until[ATTN_STAGE_ATTEND + 1]; /* until: by last stage */
    void *stream, *begin_event, *end_event;
    struct call flush; /* reads 256 MB */
    uint8_t *pattern;  /* PATTERN_BYTES of random bits, host */
    int samples;
    bool check, begin;
};

/* Medians in microseconds; begin 0: left out; error below 0: not checked. */
struct timing {
    char kernel[64];
    double all, low, high, begin, prologue, merge, error, bytes, flops, floor;
};

static void must(enum err_code rc, const struct err *e, const char *what)
{
    if (rc == ERR_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, e->message);
    exit(2);
}

static int64_t elements(const struct attn_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= t->shape[i];
    return n;
}

static size_t bytes_of(const struct attn_tensor *t)
{
    return (size_t)elements(t) * attn_dtype_bytes(t->dtype);
}

/* ---- data ------------------------------------------------------------------ */

static struct attn_tensor device_tensor(struct bench *b, enum attn_dtype d, int32_t rank,
                                        int64_t d0, int64_t d1, int64_t d2, int64_t d3)
{
    struct attn_tensor t = attn_view(NULL, d, rank, d0, d1, d2, d3);
    struct err e;
    must(b->dev->alloc(&t.data, bytes_of(&t), &e), &e, "device memory");
    t.device = ATTN_CUDA;
    return t;
}

/* Random bits that are numbers of magnitude under 2 in every format. */
static void make_pattern(struct bench *b, enum attn_dtype d)
{
    struct rng r = { 7 };
    for (size_t i = 0; i < PATTERN_BYTES; i += 8) {
        uint64_t x = rng_next(&r);
        if (d == ATTN_BF16) /* sign, exponent 0x3C..0x3F, all of the mantissa */
            x = (x & 0x81FF81FF81FF81FFu) | 0x3E003E003E003E00u;
        else if (d == ATTN_E4M3)
            x &= 0xBFBFBFBFBFBFBFBFu;
        memcpy(b->pattern + i, &x, 8);
    }
}

static void fill_random(struct bench *b, struct attn_tensor *t)
{
    struct err e;
    size_t n = bytes_of(t);
    make_pattern(b, t->dtype);
    for (size_t at = 0; at < n; at += PATTERN_BYTES) {
        size_t part = n - at < PATTERN_BYTES ? n - at : PATTERN_BYTES;
        must(b->dev->copy((char *)t->data + at, b->pattern, part, HOST_TO_DEVICE, b->stream, &e),
             &e, "filling");
    }
    must(b->dev->stream_wait(b->stream, &e), &e, "filling");
}

static void put(struct bench *b, struct attn_tensor *t, const void *host)
{
    struct err e;
    must(b->dev->copy(t->data, host, bytes_of(t), HOST_TO_DEVICE, b->stream, &e), &e, "copying");
    must(b->dev->stream_wait(b->stream, &e), &e, "copying");
}

/* Lengths, prefix sums and a shuffled block table. */
static void make_tables(struct bench *b, const struct shape *s, struct attn_args *a,
                        double *visible, double *pairs)
{
    struct rng r = { 11 };
    int32_t cols = (s->context + s->block - 1) / s->block, n_blocks = s->batch * cols;
    int32_t *cu = calloc((size_t)s->batch + 1, 4), *past = calloc((size_t)s->batch, 4);
    int32_t *table = calloc((size_t)n_blocks, 4);
    *visible = *pairs = 0;
    for (int32_t i = 0; i < n_blocks; i++) {
        int32_t j = (int32_t)rng_below(&r, (uint32_t)i + 1);
        table[i] = table[j];
        table[j] = i;
    }
    for (int32_t i = 0; i < s->batch; i++) {
        int32_t low = s->context / 16;
        int32_t kv =
            s->random ? low + (int32_t)rng_below(&r, (uint32_t)(s->context - low + 1)) : s->context;
        kv = kv < s->query ? s->query : kv;
        cu[i + 1] = cu[i] + s->query;
        past[i] = kv - s->query;
        *visible += kv;
        *pairs += (double)s->query * past[i] + 0.5 * s->query * (s->query + 1.0);
    }
    a->in[ATTN_CU_SEQLENS] = device_tensor(b, ATTN_I32, 1, s->batch + 1, 0, 0, 0);
    a->in[ATTN_PAST_SEQLENS] = device_tensor(b, ATTN_I32, 1, s->batch, 0, 0, 0);
    a->in[ATTN_BLOCK_TABLE] = device_tensor(b, ATTN_I32, 2, s->batch, cols, 0, 0);
    put(b, &a->in[ATTN_CU_SEQLENS], cu);
    put(b, &a->in[ATTN_PAST_SEQLENS], past);
    put(b, &a->in[ATTN_BLOCK_TABLE], table);
    free(cu);
    free(past);
    free(table);
}

static struct attn_attrs make_args(struct bench *b, const struct shape *s, struct attn_args *a,
                                   double *visible, double *pairs)
{
    struct attn_attrs attrs = attn_attrs_default(s->heads, s->kv_heads);
    bool latent = s->v_head_size != s->head_size, quantised = s->cache != ATTN_BF16;
    int64_t tokens = (int64_t)s->batch * s->query, d = s->head_size;
    int32_t rotary = latent ? 64 : s->head_size;
    float scale = s->cache == ATTN_INT8 ? 1.0f / 64 : 0.5f;
    memset(a, 0, sizeof *a);
    make_tables(b, s, a, visible, pairs);
    int64_t n_blocks = elements(&a->in[ATTN_BLOCK_TABLE]);
    a->in[ATTN_QUERY] = device_tensor(b, ATTN_BF16, 2, tokens, s->heads * d, 0, 0);
    a->in[ATTN_KEY] = device_tensor(b, ATTN_BF16, 2, tokens, s->kv_heads * d, 0, 0);
    a->in[ATTN_KEY_CACHE] = device_tensor(b, s->cache, 4, n_blocks, s->block, s->kv_heads, d);
    a->in[ATTN_COS_CACHE] = device_tensor(b, ATTN_BF16, 2, s->context, rotary / 2, 0, 0);
    a->in[ATTN_SIN_CACHE] = device_tensor(b, ATTN_BF16, 2, s->context, rotary / 2, 0, 0);
    if (!latent) {
        a->in[ATTN_VALUE] = device_tensor(b, ATTN_BF16, 2, tokens, s->kv_heads * d, 0, 0);
        a->in[ATTN_VALUE_CACHE] = device_tensor(b, s->cache, 4, n_blocks, s->block, s->kv_heads, d);
    }
    for (int i = 0; i < ATTN_INPUTS; i++)
        if (attn_present(&a->in[i]) && a->in[i].dtype != ATTN_I32)
            fill_random(b, &a->in[i]);
    if (quantised) {
        a->in[ATTN_K_SCALE] = device_tensor(b, ATTN_F32, 1, 1, 0, 0, 0);
        put(b, &a->in[ATTN_K_SCALE], &scale);
        attrs.k_quant_type = ATTN_PER_TENSOR;
    }
    if (quantised && !latent) {
        a->in[ATTN_V_SCALE] = device_tensor(b, ATTN_F32, 1, 1, 0, 0, 0);
        put(b, &a->in[ATTN_V_SCALE], &scale);
        attrs.v_quant_type = ATTN_PER_TENSOR;
    }
    a->out[ATTN_OUT] =
        device_tensor(b, ATTN_BF16, 2, tokens, (int64_t)s->heads * s->v_head_size, 0, 0);
    attrs.do_rotary = 1;
    attrs.rotary_offset = latent ? s->v_head_size : 0;
    attrs.kv_cache_layout = latent ? ATTN_LATENT : ATTN_SEPARATE;
    attrs.v_head_size = latent ? s->v_head_size : 0;
    attrs.scale = latent ? 1.0f / sqrtf(192.0f) : 0;
    return attrs;
}

static void make_call(struct bench *b, const struct shape *s, struct call *c)
{
    memset(c, 0, sizeof *c);
    c->attrs = make_args(b, s, &c->args, &c->visible, &c->pairs);
}

static void free_call(struct bench *b, struct call *c)
{
    for (int i = 0; i < ATTN_INPUTS; i++)
        if (attn_present(&c->args.in[i]))
            b->dev->free(c->args.in[i].data);
    b->dev->free(c->args.out[ATTN_OUT].data);
    b->dev->free(c->workspace);
}

/* ---- one shape -------------------------------------------------------------- */

static uint16_t *run_once(struct bench *b, struct attn *attn, const struct attn_attrs *attrs,
                          struct attn_args *a)
{
    struct attn_plan plan;
    struct err e;
    void *workspace;
    size_t n = bytes_of(&a->out[ATTN_OUT]);
    uint16_t *out = malloc(n);
    must(attn_plan(attn, attrs, a, &plan, &e), &e, "attn_plan");
    must(b->dev->alloc(&workspace, plan.workspace_bytes, &e), &e, "workspace");
    must(b->dev->fill(a->out[ATTN_OUT].data, 0xFF, n, b->stream, &e), &e, "poison");
    must(attn_run(attn, &plan, a, workspace, b->stream, &e), &e, "attn_run");
    must(b->dev->copy(out, a->out[ATTN_OUT].data, n, DEVICE_TO_HOST, b->stream, &e), &e, "reading");
    must(b->dev->stream_wait(b->stream, &e), &e, "running");
    b->dev->free(workspace);
    return out;
}

/* ||got - want|| / ||want|| against the reference kernel. */
static double relative_error(struct bench *b, const struct attn_attrs *attrs, struct attn_args *a)
{
    int64_t n = elements(&a->out[ATTN_OUT]);
    uint16_t *got = run_once(b, b->attn, attrs, a), *want = run_once(b, b->oracle, attrs, a);
    double off = 0, all = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = bf16_to_float(got[i]), y = bf16_to_float(want[i]);
        off += (x - y) * (x - y);
        all += y * y;
    }
    free(got);
    free(want);
    return sqrt(off / all);
}

static int by_value(const void *x, const void *y)
{
    double d = *(const double *)x - *(const double *)y;
    return d < 0 ? -1 : d > 0;
}

static void run_call(struct bench *b, struct attn *attn, struct call *c)
{
    struct err e;
    must(attn_run(attn, &c->plan, &c->args, c->workspace, b->stream, &e), &e, "attn_run");
}

/* Replay the graph that has been captured on b->stream: microseconds, sorted. */
static void time_graph(struct bench *b, double *us)
{
    struct err e;
    void *graph;
    must(b->dev->capture_end(b->stream, &graph, &e), &e, "capture");
    for (int i = -3; i < b->samples; i++) {
        double t;
        run_call(b, b->attn, &b->flush);
        must(b->dev->event_record(b->begin_event, b->stream, &e), &e, "event");
        must(b->dev->graph_launch(graph, b->stream, &e), &e, "replay");
        must(b->dev->event_record(b->end_event, b->stream, &e), &e, "event");
        must(b->dev->event_wait(b->end_event, &e), &e, "replay");
        must(b->dev->event_elapsed(b->begin_event, b->end_event, &t, &e), &e, "event");
        if (i >= 0)
            us[i] = t;
    }
    qsort(us, (size_t)b->samples, sizeof *us, by_value);
    b->dev->graph_destroy(graph);
}

static void plan_call(struct bench *b, struct call *c)
{
    struct err e;
    must(attn_plan(b->attn, &c->attrs, &c->args, &c->plan, &e), &e, "attn_plan");
    must(b->dev->alloc(&c->workspace, c->plan.workspace_bytes, &e), &e, "workspace");
}

/* Median of a call's replays on a backend, all of them in us. */
static double time_call(struct bench *b, struct attn *attn, struct call *c, double *us)
{
    struct err e;
    must(b->dev->capture_begin(b->stream, &e), &e, "capture");
    run_call(b, attn, c);
    time_graph(b, us);
    return us[b->samples / 2];
}

static struct timing measure(struct bench *b, struct call *c)
{
    struct timing t = { .error = -1 };
    double us[MAX_SAMPLES];
    struct err e;
    void *schedule = NULL;
    plan_call(b, c);
    attn_plan_name(&c->plan, t.kernel, sizeof t.kernel);
    if (b->begin && c->plan.schedule_bytes > 0) {
        must(b->dev->alloc(&schedule, c->plan.schedule_bytes, &e), &e, "schedule");
        c->args.schedule = schedule;
        must(b->dev->capture_begin(b->stream, &e), &e, "capture");
        must(attn_begin(b->attn, &c->plan, &c->args, b->stream, &e), &e, "attn_begin");
        time_graph(b, us);
        t.begin = us[b->samples / 2];
    }
    t.prologue = time_call(b, b->until[ATTN_STAGE_PROLOGUE], c, us);
    t.merge = -time_call(b, b->until[ATTN_STAGE_ATTEND], c, us);
    t.all = time_call(b, b->attn, c, us);
    t.merge += t.all;
    t.low = us[b->samples / 10];
    t.high = us[b->samples * 9 / 10];
    c->args.schedule = NULL;
    b->dev->free(schedule);
    return t;
}

static struct timing time_shape(struct bench *b, const struct shape *s)
{
    struct call c;
    make_call(b, s, &c);
    bool latent = s->v_head_size != s->head_size;
    double width = (double)attn_dtype_bytes(s->cache) * (latent ? s->head_size : 2 * s->head_size);
    double tokens = (double)s->batch * s->query;
    struct timing t = measure(b, &c);
    t.bytes =
        c.visible * s->kv_heads * width + tokens * 2 * s->heads * (s->head_size + s->v_head_size);
    t.flops = 2.0 * s->heads * (s->head_size + s->v_head_size) * c.pairs;
    t.floor = fmax(t.bytes / (READ_TBPS * 1e6), t.flops / (MATRIX_TFLOPS * 1e6));
    if (b->check)
        t.error = relative_error(b, &c.attrs, &c.args);
    free_call(b, &c);
    return t;
}

static void one_shape(struct bench *b, const struct shape *s)
{
    struct timing t = time_shape(b, s);
    printf("%-14s %4d x %-6d q %-5d %d/%d x %d %-13s %9.1f us  [%.1f %.1f]  prologue %.1f  merge "
           "%.1f  begin %.1f  %6.2f TB/s %6.0f TFLOP/s  floor %8.1f us = %3.0f %%  error %.1e\n",
           t.kernel, s->batch, s->context, s->query, s->heads, s->kv_heads, s->head_size,
           attn_dtype_name(s->cache), t.all, t.low, t.high, t.prologue, t.merge, t.begin,
           t.bytes / t.all / 1e6, t.flops / t.all / 1e6, t.floor, 100 * t.floor / t.all, t.error);
    fflush(stdout);
}

/* ---- tables ------------------------------------------------------------------- */

static void decode_table(struct bench *b, struct shape s, int32_t batch, int32_t context)
{
    static const int32_t batches[] = { 1, 4, 16, 64, 128 };
    static const int32_t contexts[] = { 1024, 4096, 16384, 65536 };
    s.query = 1;
    for (int i = 0; i < 5; i++) {
        for (int j = 0; j < 4; j++) {
            s.batch = batch > 0 ? batch : batches[i];
            s.context = context > 0 ? context : contexts[j];
            if (batch <= 0 && s.batch >= 64 && s.context > 16384)
                continue;
            one_shape(b, &s);
            if (context > 0)
                break;
        }
        if (batch > 0)
            break;
    }
}

static void prefill_table(struct bench *b, struct shape s)
{
    static const int32_t batches[] = { 16, 4, 1 };
    for (int i = 0; i < 3; i++) {
        s.batch = batches[i];
        s.query = s.context = 16384 / s.batch;
        one_shape(b, &s);
    }
}

static struct shape latent_shape(struct shape s)
{
    s.query = 1;
    s.heads = 128;
    s.kv_heads = 1;
    s.head_size = 576;
    s.v_head_size = 512;
    s.block = 64;
    return s;
}

static void latent_table(struct bench *b, struct shape s)
{
    static const int32_t shapes[][2] = { { 16, 4096 }, { 64, 4096 }, { 128, 4096 }, { 4, 65536 } };
    s = latent_shape(s);
    for (int i = 0; i < 4; i++) {
        s.batch = shapes[i][0];
        s.context = shapes[i][1];
        one_shape(b, &s);
    }
}

/* The shapes of the project's goals.  Peers' medians, each measured on an H200 from its
 * own sources, attention alone: FlashAttention-3, FlashMLA, FlashInfer, XQA. */
static void goals_table(struct bench *b, struct shape s)
{
    enum work { PREFILL, LATENT, DECODE, DECODE_8BIT };
    static const char *const names[] = { "prefill", "latent", "decode", "decode 8-bit" };
    static const struct {
        enum work work;
        int32_t batch, context;
        const char *peer;
        double peer_us;
    } rows[] = {
        { PREFILL, 16, 1024, "FA3", 340 },        { PREFILL, 4, 4096, "FA3", 921 },
        { PREFILL, 1, 16384, "FA3", 3368 },       { LATENT, 16, 4096, "FlashMLA", 57.4 },
        { LATENT, 64, 4096, "FlashMLA", 139 },    { LATENT, 128, 4096, "FlashMLA", 264 },
        { LATENT, 4, 65536, "FlashMLA", 154 },    { DECODE, 1, 1024, "XQA", 12.8 },
        { DECODE, 4, 4096, "XQA", 31.9 },         { DECODE, 16, 1024, "XQA", 30.9 },
        { DECODE, 16, 4096, "FlashInfer", 84.1 }, { DECODE, 64, 4096, "FlashInfer", 267 },
        { DECODE, 128, 4096, "FlashInfer", 513 }, { DECODE_8BIT, 1, 1024, "XQA", 11.0 },
        { DECODE_8BIT, 16, 4096, "XQA", 59.3 },   { DECODE_8BIT, 64, 4096, "XQA", 173 },
        { DECODE_8BIT, 128, 4096, "XQA", 271 },
    };
    printf("%-13s %11s %9s %17s %9s %7s %7s %7s %18s %6s %9s\n", "work", "shape", "us", "10 % 90 %",
           "prologue", "merge", "begin", "floor", "peer", "ratio", "error");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct shape one = rows[i].work == LATENT ? latent_shape(s) : s;
        one.batch = rows[i].batch;
        one.context = rows[i].context;
        one.query = rows[i].work == PREFILL ? rows[i].context : 1;
        one.cache = rows[i].work == DECODE_8BIT ? ATTN_E4M3 : ATTN_BF16;
        struct timing t = time_shape(b, &one);
        printf("%-13s %4d x %-5d %8.1f [%7.1f %7.1f] %9.1f %7.1f %7.1f %6.0f%% %11s %6.1f %6.2f "
               "%9.1e\n",
               names[rows[i].work], one.batch, one.context, t.all, t.low, t.high, t.prologue,
               t.merge, t.begin, 100 * t.floor / t.all, rows[i].peer, rows[i].peer_us,
               t.all / rows[i].peer_us, t.error);
        fflush(stdout);
    }
}

/* ---- main ----------------------------------------------------------------------- */

static void open_bench(struct bench *b)
{
    struct attn_options opt = { .backend = b->backend };
    struct err e;
    must(attn_open(&b->attn, &opt, &e), &e, "CUDA backend");
    for (int i = ATTN_STAGE_PROLOGUE; i <= ATTN_STAGE_ATTEND; i++) {
        opt.last_stage = i;
        must(attn_open(&b->until[i], &opt, &e), &e, "CUDA backend");
    }
    opt.last_stage = ATTN_STAGE_ALL;
    opt.only_kernel = "reference";
    must(attn_open(&b->oracle, &opt, &e), &e, "CUDA backend");
    must(b->dev->stream_create(&b->stream, &e), &e, "stream");
    must(b->dev->event_create(&b->begin_event, &e), &e, "event");
    must(b->dev->event_create(&b->end_event, &e), &e, "event");
    must(b->dev->alloc_pinned((void **)&b->pattern, PATTERN_BYTES, &e), &e, "pattern");
    /* One chunk a sequence and few heads: next to nothing is written. */
    struct shape reader = { 256, 256, 1, 8, 8, 128, 128, 16, ATTN_BF16, false };
    make_call(b, &reader, &b->flush);
    plan_call(b, &b->flush);
}

static void close_bench(struct bench *b)
{
    free_call(b, &b->flush);
    b->dev->free_pinned(b->pattern);
    b->dev->event_destroy(b->begin_event);
    b->dev->event_destroy(b->end_event);
    b->dev->stream_destroy(b->stream);
    attn_close(b->oracle);
    for (int i = ATTN_STAGE_PROLOGUE; i <= ATTN_STAGE_ATTEND; i++)
        attn_close(b->until[i]);
    attn_close(b->attn);
}

int main(int argc, char **argv)
{
    char path[4096];
    const char *table = "decode";
    int32_t batch = 0, context = 0;
    struct bench b = { .samples = 30, .check = true, .begin = true };
    struct shape s = { 1, 1024, 1, 32, 8, 128, 128, 16, ATTN_BF16, false };
    struct plugin *plugin;
    struct device_info info;
    struct err e = { 0 };
    default_plugin(path, sizeof path);
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--random") == 0) {
            s.random = true;
            continue;
        }
        if (strcmp(argv[i], "--plugin") == 0)
            snprintf(path, sizeof path, "%s", value);
        else if (strcmp(argv[i], "--table") == 0)
            table = value;
        else if (strcmp(argv[i], "--cache") == 0)
            s.cache = strcmp(value, "e4m3") == 0   ? ATTN_E4M3
                      : strcmp(value, "int8") == 0 ? ATTN_INT8
                                                   : ATTN_BF16;
        else if (strcmp(argv[i], "--batch") == 0)
            batch = atoi(value);
        else if (strcmp(argv[i], "--context") == 0)
            context = atoi(value);
        else if (strcmp(argv[i], "--samples") == 0)
            b.samples = atoi(value) < 1 ? 1 : atoi(value) > MAX_SAMPLES ? MAX_SAMPLES : atoi(value);
        else if (strcmp(argv[i], "--check") == 0)
            b.check = atoi(value) != 0;
        else if (strcmp(argv[i], "--begin") == 0)
            b.begin = atoi(value) != 0;
        i++;
    }
    if (plugin_open(&plugin, path, &e) != ERR_OK)
        return skip(e.message);
    b.dev = plugin_find(plugin, ATTN_ABI, "device");
    b.backend = plugin_find(plugin, ATTN_ABI, "attention");
    if (b.dev == NULL || b.backend == NULL || b.dev->count(&e) == 0 ||
        b.dev->open(0, &info, &e) != ERR_OK)
        return skip(e.message);
    open_bench(&b);
    printf("%s, %d SMs\n", info.name, info.n_sm);
    if (strcmp(table, "prefill") == 0)
        prefill_table(&b, s);
    else if (strcmp(table, "latent") == 0)
        latent_table(&b, s);
    else if (strcmp(table, "goals") == 0)
        goals_table(&b, s);
    else
        decode_table(&b, s, batch, context);
    close_bench(&b);
    plugin_close(plugin);
    return 0;
}
