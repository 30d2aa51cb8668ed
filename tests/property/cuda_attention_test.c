/* cuda_attention_test.c: the CUDA backend against the CPU reference on random
 * calls, and against itself.
 *
 *   cuda_attention_test [--plugin FILE] [--seed N] [--worlds N] [--graphs N]
 *                       [--shared BYTES] [--trace 1]
 *
 * For each world: every kernel that takes the call agrees with the CPU within
 * the tolerance of the dtype; bounds absent, tight and loose give the same bits;
 * so do a run repeated, and two runs that share what attn_begin worked out; a
 * sequence alone gives the bits it has in the batch; bounds far too small, and
 * lengths that are no lengths, touch no memory that is not theirs (the run under
 * compute-sanitizer shows it).  For each graph: one capture of attn_begin and two
 * runs, replayed over steps whose lengths grow, shrink, vanish and trade places,
 * equals an eager run to the bit and the CPU within tolerance.  Workspace, schedule
 * and unread cache memory are poison throughout.
 * --shared runs what a device with so little shared memory a block would run.
 * Exit code 77 where there is no plugin or no GPU. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/attn.h"
#include "attention/platform/device.h"
#include "attention/platform/plugin.h"
#include "support/attn_world.h"
#include "support/plugin_path.h"

enum { RESULTS = 4 };

struct bench {
    const struct device_ops *dev;
    const struct attn_backend *backend;
    struct attn *cpu, *gpu;
    void *stream;
    bool trace; /* describe each call before it runs */
    bool begun; /* run_gpu: attn_begin, then two runs */
    uint32_t shared_limit;
    int failures;
};

static void check(enum err_code rc, const struct err *e, const char *what)
{
    if (rc == ERR_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, e->message);
    exit(2);
}

/* ---- the device's copy of a call ------------------------------------------- */

/* Output, caches, output_qk: raw bytes on the host. */
struct result {
    void *data[RESULTS];
    size_t bytes[RESULTS];
};

static struct attn_tensor *result_tensor(struct attn_args *a, int i)
{
    return i == 0   ? &a->out[ATTN_OUT]
           : i == 1 ? &a->in[ATTN_KEY_CACHE]
           : i == 2 ? &a->in[ATTN_VALUE_CACHE]
                    : &a->out[ATTN_QK];
}

static void result_free(struct result *r)
{
    for (int i = 0; i < RESULTS; i++)
        free(r->data[i]);
    memset(r, 0, sizeof *r);
}

static void mirror_create(struct bench *b, struct attn_args *to, const struct attn_args *from)
{
    struct err e;
    *to = *from;
    for (int i = 0; i < ATTN_INPUTS + ATTN_OUTPUTS; i++) {
        struct attn_tensor *t = i < ATTN_INPUTS ? &to->in[i] : &to->out[i - ATTN_INPUTS];
        if (!attn_present(t) || i == ATTN_METADATA)
            continue;
        check(b->dev->alloc(&t->data, world_bytes(t), &e), &e, "mirror");
        t->device = ATTN_CUDA;
    }
}

static void mirror_destroy(struct bench *b, struct attn_args *a)
{
    for (int i = 0; i < ATTN_INPUTS; i++)
        if (attn_present(&a->in[i]) && i != ATTN_METADATA)
            b->dev->free(a->in[i].data);
    for (int o = 0; o < ATTN_OUTPUTS; o++)
        if (attn_present(&a->out[o]))
            b->dev->free(a->out[o].data);
}

/* Inputs of the host's step to the device's addresses; outputs poisoned. */
static void upload(struct bench *b, struct attn_args *to, const struct attn_args *from)
{
    struct err e;
    for (int i = 0; i < ATTN_INPUTS; i++) {
        const struct attn_tensor *t = &from->in[i];
        if (attn_present(t) && i != ATTN_METADATA)
            check(b->dev->copy(to->in[i].data, t->data, world_bytes(t), HOST_TO_DEVICE, b->stream,
                               &e),
                  &e, "upload");
    }
    for (int o = 0; o < ATTN_OUTPUTS; o++)
        if (attn_present(&to->out[o]))
            check(b->dev->fill(to->out[o].data, 0xFF, world_bytes(&to->out[o]), b->stream, &e), &e,
                  "poison");
}

static struct result download(struct bench *b, struct attn_args *a)
{
    struct result r = { 0 };
    struct err e;
    for (int i = 0; i < RESULTS; i++) {
        struct attn_tensor *t = result_tensor(a, i);
        if (!attn_present(t))
            continue;
        r.bytes[i] = world_bytes(t);
        r.data[i] = malloc(r.bytes[i] + 1);
        check(b->dev->copy(r.data[i], t->data, r.bytes[i], DEVICE_TO_HOST, b->stream, &e), &e,
              "download");
    }
    check(b->dev->stream_wait(b->stream, &e), &e, "step");
    return r;
}

static void *poisoned(struct bench *b, uint64_t bytes)
{
    struct err e;
    void *p;
    check(b->dev->alloc(&p, bytes, &e), &e, "device memory");
    check(b->dev->fill(p, 0xFF, bytes, b->stream, &e), &e, "poison");
    return p;
}

/* attn_begin and two layers' runs, the first one's output poisoned in between. */
static void run_begun(struct bench *b, struct attn *gpu, const struct attn_plan *plan,
                      struct attn_args *a, void *workspace)
{
    struct err e;
    check(attn_begin(gpu, plan, a, b->stream, &e), &e, "attn_begin");
    check(attn_run(gpu, plan, a, workspace, b->stream, &e), &e, "attn_run");
    check(b->dev->fill(a->out[ATTN_OUT].data, 0xFF, world_bytes(&a->out[ATTN_OUT]), b->stream, &e),
          &e, "poison");
    check(attn_run(gpu, plan, a, workspace, b->stream, &e), &e, "attn_run");
}

/* Run the host's step on the device under bounds (0: absent); false when the
 * backend refuses the call. */
static bool run_gpu(struct bench *b, struct attn *gpu, const struct attn_world *w,
                    const struct attn_args *host, int32_t q_bound, int32_t kv_bound,
                    struct result *out, char *name)
{
    struct attn_args a;
    struct attn_plan plan;
    struct err e;
    void *workspace;
    int32_t meta[2] = { q_bound, kv_bound };
    mirror_create(b, &a, host);
    if (q_bound > 0)
        a.in[ATTN_METADATA] = attn_view(meta, ATTN_I32, 1, 2, 0, 0, 0);
    enum err_code rc = attn_plan(gpu, &w->attrs, &a, &plan, &e);
    if (rc == ERR_OK) {
        attn_plan_name(&plan, name, 64);
        workspace = poisoned(b, plan.workspace_bytes);
        a.schedule = b->begun ? poisoned(b, plan.schedule_bytes) : NULL;
        upload(b, &a, host);
        if (b->begun)
            run_begun(b, gpu, &plan, &a, workspace);
        else
            check(attn_run(gpu, &plan, &a, workspace, b->stream, &e), &e, "attn_run");
        *out = download(b, &a);
        b->dev->free(workspace);
        b->dev->free(a.schedule);
    } else if (gpu == b->gpu) {
        fprintf(stderr, "attn_plan: %s\n", e.message);
        exit(2);
    }
    mirror_destroy(b, &a);
    return rc == ERR_OK;
}

static struct result run_cpu(struct bench *b, const struct attn_world *w)
{
    struct attn_args a = w->args;
    struct attn_plan plan;
    struct result r = { 0 };
    struct err e;
    for (int i = 0; i < RESULTS; i++) {
        struct attn_tensor *t = result_tensor(&a, i);
        if (!attn_present(t))
            continue;
        r.bytes[i] = world_bytes(t);
        r.data[i] = malloc(r.bytes[i] + 1);
        if (i == 1 || i == 2)
            memcpy(r.data[i], t->data, r.bytes[i]);
        else
            memset(r.data[i], 0xFF, r.bytes[i]);
        t->data = r.data[i];
    }
    check(attn_plan(b->cpu, &w->attrs, &a, &plan, &e), &e, "plan on the CPU");
    void *workspace = malloc(plan.workspace_bytes + 64);
    void *aligned = (void *)(((uintptr_t)workspace + 63) & ~(uintptr_t)63);
    check(attn_run(b->cpu, &plan, &a, aligned, NULL, &e), &e, "run on the CPU");
    free(workspace);
    return r;
}

static void trace(const struct bench *b, const struct attn_world *w, const char *what)
{
    char line[512];
    if (!b->trace)
        return;
    world_describe(w, line, sizeof line);
    printf("%s: %s\n", what, line);
    fflush(stdout);
}

/* ---- comparing --------------------------------------------------------------- */

static void complain(struct bench *b, const struct attn_world *w, const char *what)
{
    char line[512];
    world_describe(w, line, sizeof line);
    printf("FAIL %s\n     %s\n", what, line);
    b->failures++;
}

/* Worst |got - want| in tolerances; caches: in steps of the format. */
static double distance(const struct attn_world *w, int which, const struct result *got,
                       const struct result *want)
{
    struct attn_args a = w->args;
    struct attn_tensor *t = result_tensor(&a, which);
    bool half = w->args.in[ATTN_QUERY].dtype == ATTN_F16;
    bool cache = which == 1 || which == 2;
    double tol = half ? 3e-3 : 2.5e-2, worst = 0;
    if (which == 3)
        tol *= 4;
    for (int64_t i = 0; got->data[which] != NULL && i < world_elements(t); i++) {
        size_t n = attn_dtype_bytes(t->dtype), at = (size_t)i * n;
        if (memcmp((char *)got->data[which] + at, (char *)want->data[which] + at, n) == 0)
            continue;
        t->data = got->data[which];
        double x = world_value(t, i);
        t->data = want->data[which];
        double y = world_value(t, i);
        if (isinf(y) && x == y)
            continue;
        double unit = tol;
        if (cache && t->dtype == ATTN_INT8)
            unit = 1;
        else if (cache) /* the spacing at the larger of |y| and a small one */
            unit = ldexp(fmax(fabs(y), t->dtype == ATTN_E4M3 ? 0x1p-6 : 1),
                         t->dtype == ATTN_F16    ? -10
                         : t->dtype == ATTN_BF16 ? -7
                                                 : -3);
        double d = fabs(x - y) / unit;
        worst = d > worst || isnan(d) ? (isnan(d) ? INFINITY : d) : worst;
    }
    return worst;
}

static bool agree(struct bench *b, const struct attn_world *w, const char *what,
                  const struct result *got, const struct result *want)
{
    static const char *const names[RESULTS] = { "output", "key_cache", "value_cache", "output_qk" };
    for (int i = 0; i < RESULTS; i++) {
        double d = distance(w, i, got, want);
        if (d > 1.0001) {
            char line[160];
            snprintf(line, sizeof line, "%s: %s off by %.3g of the tolerance", what, names[i], d);
            complain(b, w, line);
            return false;
        }
    }
    return true;
}

static bool same_bits(struct bench *b, const struct attn_world *w, const char *what,
                      const struct result *x, const struct result *y)
{
    for (int i = 0; i < RESULTS; i++) {
        if (x->bytes[i] == 0 || memcmp(x->data[i], y->data[i], x->bytes[i]) == 0)
            continue;
        char line[160];
        snprintf(line, sizeof line, "%s: result %d differs", what, i);
        complain(b, w, line);
        return false;
    }
    return true;
}

/* ---- properties ---------------------------------------------------------------- */

/* The rows of one sequence, run alone, have the bits they have in the batch. */
static void alone(struct bench *b, const struct attn_world *w, const struct result *batch,
                  int32_t seq)
{
    const int32_t *cu = w->args.in[ATTN_CU_SEQLENS].data;
    int32_t n = w->new_tokens[seq], group = w->attrs.num_heads / w->attrs.kv_num_heads;
    struct attn_world one = *w;
    int32_t own_cu[2] = { 0, n };
    char name[64];
    /* Calls of decode shape give long sequences to the split kernel. */
    if (n == 0 || (w->tokens <= w->batch && n * group > 16))
        return;
    one.batch = 1;
    one.tokens = n;
    for (int i = 0; i < ATTN_INPUTS; i++) {
        struct attn_tensor *t = &one.args.in[i];
        int64_t from = i == ATTN_PAST_SEQLENS || i == ATTN_BLOCK_TABLE ? seq : cu[seq];
        int64_t rows = i == ATTN_PAST_SEQLENS || i == ATTN_BLOCK_TABLE ? 1 : n;
        bool ragged = i <= ATTN_VALUE || i == ATTN_SLOT_MAPPING || i == ATTN_QUERY_POSITIONS ||
                      i == ATTN_PAST_SEQLENS || i == ATTN_BLOCK_TABLE;
        if (!attn_present(t) || !ragged)
            continue;
        size_t row = world_bytes(t) / (size_t)t->shape[0];
        t->data = (char *)t->data + (size_t)from * row;
        t->shape[0] = rows;
    }
    one.args.in[ATTN_CU_SEQLENS] = attn_view(own_cu, ATTN_I32, 1, 2, 0, 0, 0);
    one.args.out[ATTN_OUT].shape[0] = n;
    struct result r = { 0 };
    run_gpu(b, b->gpu, &one, &one.args, 0, 0, &r, name);
    size_t row = world_bytes(&w->args.out[ATTN_OUT]) / (size_t)w->tokens;
    if (memcmp(r.data[0], (char *)batch->data[0] + (size_t)cu[seq] * row, (size_t)n * row) != 0) {
        char line[120];
        snprintf(line, sizeof line, "sequence %d of %d tokens, alone by %s: other bits", seq, n,
                 name);
        complain(b, w, line);
    }
    result_free(&r);
}

/* Lengths that are none: overlapping, negative, huge.  Only safe. */
static void wild(struct bench *b, const struct attn_world *w, struct rng *r)
{
    struct attn_args a = w->args;
    struct result none = { 0 };
    char name[64];
    size_t n = (size_t)w->batch;
    int32_t *cu = malloc((n + 1) * sizeof *cu), *past = malloc(n * sizeof *past);
    for (size_t i = 0; i <= n; i++)
        cu[i] = (int32_t)rng_below(r, (uint32_t)w->tokens + 9) - 4;
    for (size_t i = 0; i < n; i++)
        past[i] = rng_below(r, 4) ? (int32_t)rng_below(r, 3000) - 9 : (int32_t)rng_next(r);
    a.in[ATTN_CU_SEQLENS].data = cu;
    a.in[ATTN_PAST_SEQLENS].data = past;
    for (int begun = 0; begun < 2; begun++) {
        b->begun = begun;
        run_gpu(b, b->gpu, w, &a, 0, 0, &none, name);
        result_free(&none);
    }
    b->begun = false;
    free(cu);
    free(past);
}

static void one_world(struct bench *b, uint64_t seed)
{
    struct attn_world w;
    struct result base = { 0 }, other = { 0 };
    char name[64] = "?";
    struct rng r = { seed };
    struct world_wish wish = { .decode = rng_below(&r, 2), .plain = rng_below(&r, 3) > 0 };
    wish.one_each = wish.decode && rng_below(&r, 2);
    world_create(&w, seed, wish);
    world_step(&w, WORLD_RANDOM);
    trace(b, &w, "world");
    struct result want = run_cpu(b, &w);
    run_gpu(b, b->gpu, &w, &w.args, 0, 0, &base, name);
    bool ok = agree(b, &w, name, &base, &want);
    int32_t q = (int32_t)w.longest_query, kv = (int32_t)w.longest_kv;
    for (int i = 0; ok && i < 4; i++) {
        static const char *const what[] = { "bounds tight", "bounds loose", "a second run",
                                            "runs with attn_begin" };
        b->begun = i == 3;
        run_gpu(b, b->gpu, &w, &w.args,
                i == 0   ? q + (q == 0)
                : i == 1 ? 2 * q + 7
                         : 0,
                i == 0   ? kv + (kv == 0)
                : i == 1 ? 2 * kv + 300
                         : 0,
                &other, name);
        ok = same_bits(b, &w, what[i], &base, &other);
        result_free(&other);
    }
    b->begun = false;
    for (uint32_t k = 0; ok && k < b->backend->n_kernels; k++) {
        struct attn_options opt = { .backend = b->backend,
                                    .only_kernel = b->backend->kernel[k].name,
                                    .shared_limit = b->shared_limit };
        struct attn *only;
        struct err e;
        check(attn_open(&only, &opt, &e), &e, "attn_open");
        if (run_gpu(b, only, &w, &w.args, 0, 0, &other, name))
            agree(b, &w, name, &other, &want);
        result_free(&other);
        attn_close(only);
    }
    for (int32_t s = 0; ok && s < w.batch && s < 4 && wish.plain; s++)
        alone(b, &w, &base, s);
    run_gpu(b, b->gpu, &w, &w.args, 1, 20, &other, name); /* too small: only safe */
    result_free(&other);
    wild(b, &w, &r);
    result_free(&base);
    result_free(&want);
    world_destroy(&w);
}

static void one_graph(struct bench *b, uint64_t seed)
{
    static const enum world_lengths order[] = { WORLD_GROWN,  WORLD_SHRUNK, WORLD_PERMUTED,
                                                WORLD_ZERO,   WORLD_GROWN,  WORLD_PERMUTED,
                                                WORLD_RANDOM, WORLD_SHRUNK };
    struct attn_world w;
    struct attn_args a;
    struct attn_plan plan;
    struct err e;
    void *workspace, *graph;
    char name[64];
    struct rng r = { seed };
    world_create(&w, seed, (struct world_wish){ .decode = rng_below(&r, 4) > 0, .plain = true });
    world_step(&w, WORLD_SHRUNK);
    trace(b, &w, "graph");
    mirror_create(b, &a, &w.args);
    check(attn_plan(b->gpu, &w.attrs, &a, &plan, &e), &e, "attn_plan");
    workspace = poisoned(b, plan.workspace_bytes);
    a.schedule = poisoned(b, plan.schedule_bytes);
    upload(b, &a, &w.args);
    check(b->dev->capture_begin(b->stream, &e), &e, "capture");
    run_begun(b, b->gpu, &plan, &a, workspace);
    check(b->dev->capture_end(b->stream, &graph, &e), &e, "capture");
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        struct result eager = { 0 };
        world_step(&w, order[i]);
        struct result want = run_cpu(b, &w);
        upload(b, &a, &w.args);
        check(b->dev->graph_launch(graph, b->stream, &e), &e, "replay");
        struct result got = download(b, &a);
        run_gpu(b, b->gpu, &w, &w.args, 0, 0, &eager, name);
        bool ok = agree(b, &w, "replay against the CPU", &got, &want) &&
                  same_bits(b, &w, "replay against eager", &got, &eager);
        result_free(&want);
        result_free(&got);
        result_free(&eager);
        if (!ok)
            break;
    }
    b->dev->graph_destroy(graph);
    b->dev->free(workspace);
    b->dev->free(a.schedule);
    mirror_destroy(b, &a);
    world_destroy(&w);
}

/* ---- main ------------------------------------------------------------------------ */

int main(int argc, char **argv)
{
    char path[4096];
    unsigned long seed = 1, worlds = 60, graphs = 12;
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
        else if (strcmp(argv[i], "--worlds") == 0)
            worlds = value;
        else if (strcmp(argv[i], "--graphs") == 0)
            graphs = value;
        else if (strcmp(argv[i], "--shared") == 0)
            b.shared_limit = (uint32_t)value;
        else if (strcmp(argv[i], "--trace") == 0)
            b.trace = value != 0;
    }
    if (plugin_open(&plugin, path, &e) != ERR_OK)
        return skip(e.message);
    b.dev = plugin_find(plugin, ATTN_ABI, "device");
    b.backend = plugin_find(plugin, ATTN_ABI, "attention");
    if (b.dev == NULL || b.backend == NULL) {
        fprintf(stderr, "%s: no interface \"device\" or \"attention\" of ABI %d\n", path, ATTN_ABI);
        return 2;
    }
    if (b.dev->count(&e) == 0 || b.dev->open(0, &info, &e) != ERR_OK)
        return skip(e.message);
    check(attn_open(&b.cpu, &(struct attn_options){ 0 }, &e), &e, "CPU backend");
    struct attn_options opt = { .backend = b.backend, .shared_limit = b.shared_limit };
    check(attn_open(&b.gpu, &opt, &e), &e, "CUDA");
    check(b.dev->stream_create(&b.stream, &e), &e, "stream");
    for (unsigned long i = 0; i < worlds; i++)
        one_world(&b, seed * 1000003 + i);
    for (unsigned long i = 0; i < graphs; i++)
        one_graph(&b, seed * 7000003 + i);
    b.dev->stream_destroy(b.stream);
    attn_close(b.gpu);
    attn_close(b.cpu);
    plugin_close(plugin);
    printf("%s: %lu worlds, %lu graphs, %d failures\n", info.name, worlds, graphs, b.failures);
    return b.failures == 0 ? 0 : 1;
}
