/* linear_bench.c: the CPU backend's matrix products beside oneDNN's.
 *
 * usage: OMP_NUM_THREADS=N OMP_WAIT_POLICY=passive linear_bench [--threads N]
 *                                                               [--type bfloat16|float32]
 *
 * For the weight shapes of a 1B Llama and 1 to 512 rows: GFLOP/s of either, and
 * how many of the rows have other bits among the others than alone.  oneDNN
 * packs its weights for each row count it is timed at; ours are packed once. */
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "model/load/convert.h"
#include "model/step/ops.h"
#include "proto/number/formats.h"
#include "support/rng.h"

struct bench {
    enum op_dtype type;
    uint32_t n, k; /* outputs, inputs */
    void *weights; /* [n][k] T */
    void *in;      /* [512][k] T */
    float *ours, *theirs;
    float *ours_alone, *theirs_alone; /* [512][n]: each row computed by itself */
    struct ops ops;
    struct op_matrix *matrix;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static size_t element(enum op_dtype t)
{
    return t == OP_F32 ? 4 : 2;
}

static void fill(void *p, size_t n, enum op_dtype type, struct rng *r)
{
    for (size_t i = 0; i < n; i++) {
        float v = (float)(rng_unit(r) - 0.5);
        if (type == OP_F32)
            ((float *)p)[i] = v;
        else
            ((uint16_t *)p)[i] = float_to_bf16(v);
    }
}

static void check(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "linear_bench: %s failed\n", what);
        exit(1);
    }
}

/* Seconds of one call of fn: the best of five runs of at least 50 ms. */
static double seconds(void (*fn)(void *), void *ctx)
{
    double best = 1e9;
    fn(ctx);
    for (int run = 0; run < 5; run++) {
        double t0 = now();
        int calls = 0;
        do {
            fn(ctx);
            calls++;
        } while (now() - t0 < 0.05);
        double each = (now() - t0) / calls;
        best = each < best ? each : best;
    }
    return best;
}

struct ours_call {
    struct bench *b;
    float *to;
    uint32_t rows;
};

static void ours(void *ctx)
{
    struct ours_call *c = ctx;
    struct op_linear l = { .w = c->b->matrix,
                           .in = c->b->in,
                           .in_ld = c->b->k,
                           .to = c->to,
                           .to_ld = c->b->n,
                           .out = OP_OUT_F32 };
    c->b->ops.linear(c->b->ops.self, &l, c->rows);
}

struct theirs_call {
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[3];
    dnnl_stream_t stream;
};

static void theirs(void *ctx)
{
    struct theirs_call *c = ctx;
    check(dnnl_primitive_execute(c->primitive, c->stream, 3, c->args) == dnnl_success, "execute");
    dnnl_stream_wait(c->stream);
}

static void make_desc(dnnl_memory_desc_t *d, int64_t a, int64_t b, dnnl_data_type_t t,
                      dnnl_format_tag_t tag)
{
    dnnl_dims_t dims = { a, b };
    check(dnnl_memory_desc_init_by_tag(d, 2, dims, t, tag) == dnnl_success, "memory desc");
}

/* A matmul of m rows with weights reordered to the layout it asks for. */
static void theirs_open(struct theirs_call *c, struct bench *b, uint32_t m, dnnl_engine_t engine)
{
    dnnl_data_type_t t = b->type == OP_F32 ? dnnl_f32 : dnnl_bf16;
    dnnl_memory_desc_t src, any, plain, dst;
    make_desc(&src, m, b->k, t, dnnl_ab);
    make_desc(&any, b->k, b->n, t, dnnl_format_tag_any);
    make_desc(&plain, b->k, b->n, t, dnnl_ba);
    make_desc(&dst, m, b->n, dnnl_f32, dnnl_ab);
    dnnl_matmul_desc_t desc;
    check(dnnl_matmul_desc_init(&desc, &src, &any, NULL, &dst) == dnnl_success, "matmul");
    dnnl_primitive_desc_t pd;
    check(dnnl_primitive_desc_create(&pd, &desc, NULL, engine, NULL) == dnnl_success, "matmul");
    check(dnnl_primitive_create(&c->primitive, pd) == dnnl_success, "matmul");
    const dnnl_memory_desc_t *packed = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    dnnl_memory_t from, to, in, out;
    check(dnnl_memory_create(&from, &plain, engine, b->weights) == dnnl_success, "memory");
    check(dnnl_memory_create(&to, packed, engine, DNNL_MEMORY_ALLOCATE) == dnnl_success, "memory");
    check(dnnl_memory_create(&in, &src, engine, b->in) == dnnl_success, "memory");
    check(dnnl_memory_create(&out, &dst, engine, b->theirs) == dnnl_success, "memory");
    dnnl_primitive_desc_t reorder;
    dnnl_primitive_t pack;
    check(dnnl_reorder_primitive_desc_create(&reorder, &plain, engine, packed, engine, NULL) ==
              dnnl_success,
          "reorder");
    check(dnnl_primitive_create(&pack, reorder) == dnnl_success, "reorder");
    dnnl_exec_arg_t args[2] = { { DNNL_ARG_FROM, from }, { DNNL_ARG_TO, to } };
    check(dnnl_primitive_execute(pack, c->stream, 2, args) == dnnl_success, "reorder");
    dnnl_stream_wait(c->stream);
    dnnl_primitive_destroy(pack);
    dnnl_primitive_desc_destroy(reorder);
    dnnl_primitive_desc_destroy(pd);
    dnnl_memory_destroy(from);
    c->args[0] = (dnnl_exec_arg_t){ DNNL_ARG_SRC, in };
    c->args[1] = (dnnl_exec_arg_t){ DNNL_ARG_WEIGHTS, to };
    c->args[2] = (dnnl_exec_arg_t){ DNNL_ARG_DST, out };
}

static void theirs_close(struct theirs_call *c)
{
    for (int i = 0; i < 3; i++)
        dnnl_memory_destroy(c->args[i].memory);
    dnnl_primitive_destroy(c->primitive);
}

/* Every row of the input computed by itself, by both. */
static void each_alone(struct bench *b, dnnl_engine_t engine, dnnl_stream_t stream)
{
    struct theirs_call t = { .stream = stream };
    char *in = b->in;
    theirs_open(&t, b, 1, engine);
    for (uint32_t i = 0; i < 512; i++) {
        b->in = in + (size_t)i * b->k * element(b->type);
        struct ours_call o = { b, b->ours_alone + (size_t)i * b->n, 1 };
        ours(&o);
        dnnl_memory_set_data_handle(t.args[0].memory, b->in);
        theirs(&t);
        memcpy(b->theirs_alone + (size_t)i * b->n, b->theirs, b->n * sizeof(float));
    }
    b->in = in;
    theirs_close(&t);
}

static uint32_t changed(const float *among, const float *alone, uint32_t rows, uint32_t n)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < rows; i++)
        count += memcmp(among + (size_t)i * n, alone + (size_t)i * n, n * sizeof(float)) != 0;
    return count;
}

static void run_shape(struct bench *b, uint32_t threads, dnnl_engine_t engine, dnnl_stream_t stream)
{
    static const uint32_t rows[] = { 1, 8, 13, 32, 512 };
    struct rng r = { b->n * 31u + b->k };
    struct err e = { 0 };
    b->weights = malloc((size_t)b->n * b->k * element(b->type));
    b->in = malloc((size_t)512 * b->k * element(b->type));
    b->ours = malloc((size_t)512 * b->n * sizeof(float));
    b->theirs = malloc((size_t)512 * b->n * sizeof(float));
    b->ours_alone = malloc((size_t)512 * b->n * sizeof(float));
    b->theirs_alone = malloc((size_t)512 * b->n * sizeof(float));
    check(b->weights && b->in && b->ours && b->theirs && b->ours_alone && b->theirs_alone,
          "allocation");
    fill(b->weights, (size_t)b->n * b->k, b->type, &r);
    fill(b->in, (size_t)512 * b->k, b->type, &r);
    struct op_matrix_desc d = { .n_cols = b->k, .n_pieces = 1 };
    d.piece[0] = (struct op_piece){ .data = b->weights,
                                    .dtype = b->type == OP_F32 ? ST_F32 : ST_BF16,
                                    .row_stride = b->k,
                                    .col_stride = 1,
                                    .n_rows = b->n };
    struct ops_limits lim = { .max_tokens = 512, .max_outputs = 1 };
    check(model_cpu_open(&b->ops, b->type, threads, &e) == ERR_OK, e.message);
    check(b->ops.matrix_create(b->ops.self, &d, &b->matrix, &e) == ERR_OK, e.message);
    check(b->ops.start(b->ops.self, &lim, &e) == ERR_OK, e.message);
    each_alone(b, engine, stream);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct ours_call o = { b, b->ours, rows[i] };
        struct theirs_call t = { .stream = stream };
        double t0 = now();
        theirs_open(&t, b, rows[i], engine);
        double s_open = now() - t0;
        double flop = 2.0 * b->n * b->k * rows[i];
        double s_ours = seconds(ours, &o), s_theirs = seconds(theirs, &t);
        theirs_close(&t);
        double worst = 0;
        for (size_t k = 0; k < (size_t)rows[i] * b->n; k++) {
            double diff = (double)b->ours[k] - (double)b->theirs[k];
            worst = diff > worst ? diff : -diff > worst ? -diff : worst;
        }
        printf("  %6u x %-6u %4u rows  quire %7.1f  oneDNN %7.1f GFLOP/s  ratio %.2f   rows that "
               "differ from themselves alone: quire %u, oneDNN %u   oneDNN's primitive and packing "
               "%.1f ms   max difference %.1e\n",
               b->n, b->k, rows[i], flop / s_ours / 1e9, flop / s_theirs / 1e9, s_theirs / s_ours,
               changed(b->ours, b->ours_alone, rows[i], b->n),
               changed(b->theirs, b->theirs_alone, rows[i], b->n), s_open * 1e3, worst);
    }
    b->ops.matrix_destroy(b->ops.self, b->matrix);
    b->ops.close(b->ops.self);
    free(b->weights);
    free(b->in);
    free(b->ours);
    free(b->theirs);
    free(b->ours_alone);
    free(b->theirs_alone);
}

int main(int argc, char **argv)
{
    static const uint32_t shape[][2] = {
        { 3072, 2048 }, { 2048, 2048 }, { 16384, 2048 }, { 2048, 8192 }
    };
    struct bench b = { .type = OP_BF16 };
    uint32_t threads = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--threads") == 0)
            threads = (uint32_t)atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--type") == 0)
            b.type = strcmp(argv[i + 1], "float32") == 0 ? OP_F32 : OP_BF16;
    }
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    check(dnnl_engine_create(&engine, dnnl_cpu, 0) == dnnl_success, "engine");
    check(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags) == dnnl_success, "stream");
    printf("%s, %u threads\n", b.type == OP_F32 ? "float32" : "bfloat16", threads);
    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++) {
        b.n = shape[i][0];
        b.k = shape[i][1];
        run_shape(&b, threads, engine, stream);
    }
    dnnl_stream_destroy(stream);
    dnnl_engine_destroy(engine);
    return 0;
}
