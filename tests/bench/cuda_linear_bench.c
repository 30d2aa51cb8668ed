/* cuda_linear_bench.c: products of up to 256 rows on a GPU beside cuBLASLt's.
 *
 * usage: cuda_linear_bench [--rows 1,8,16]
 * Llama-3.1-8B's matrices, random weights.  A sample is a captured queue of
 * products with as many different matrices as exceed the L2 cache three times,
 * after a product with another large matrix has filled L2 with lines that nobody has
 * to write back; medians of SAMPLES, each product's share.  The
 * library's column is the same product through ops.h's `heads` of one head,
 * which always goes there; its result is T, ungated. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/backend.h"
#include "support/rng.h"

enum { SAMPLES = 21, COPIES = 12, ROWS = 256 };

struct shape {
    const char *name;
    uint32_t n, k;
    enum op_out out;
    uint32_t copies;
};

static const struct shape shapes[] = {
    { "qkv", 6144, 4096, OP_OUT_T, 8 },        { "o", 4096, 4096, OP_OUT_ADD, 12 },
    { "gate_up", 28672, 4096, OP_OUT_GLU, 4 }, { "down", 4096, 14336, OP_OUT_ADD, 4 },
    { "head", 128256, 4096, OP_OUT_F32, 2 },
};

enum { SHAPES = sizeof shapes / sizeof *shapes, GATE_UP = 2, HEAD = 4 };

struct world {
    struct ops ops;
    struct op_matrix *m[SHAPES][COPIES];
    void *in, *out, *stream, *from, *to;
    uint32_t rows[16], n_rows;
};

static void check(enum err_code rc, const struct err *e)
{
    if (rc == ERR_OK)
        return;
    fprintf(stderr, "cuda_linear_bench: %s\n", e->message);
    exit(1);
}

static void make_matrices(struct world *w)
{
    struct rng r = { 7 };
    size_t most = 128256ul * 4096;
    uint16_t *data = malloc(most * 2);
    struct err e;
    if (data == NULL)
        exit(1);
    for (size_t i = 0; i < most; i++) /* +-[2^-7, 2^-5) */
        data[i] = (uint16_t)(0x3C00 | (rng_next(&r) & 0x80FF));
    for (int i = 0; i < SHAPES; i++)
        for (uint32_t c = 0; c < shapes[i].copies; c++) {
            const struct shape *s = &shapes[i];
            bool glu = s->out == OP_OUT_GLU;
            uint32_t half = glu ? s->n / 2 : s->n;
            struct op_matrix_desc d = { .n_cols = s->k, .n_pieces = glu ? 2 : 1, .glu = glu };
            for (uint32_t p = 0; p < d.n_pieces; p++)
                d.piece[p] =
                    (struct op_piece){ .data = (unsigned char *)(data + (size_t)p * half * s->k),
                                       .dtype = ST_BF16,
                                       .row_stride = s->k,
                                       .col_stride = 1,
                                       .n_rows = half };
            check(w->ops.matrix_create(w->ops.self, &d, &w->m[i][c], &e), &e);
        }
    free(data);
}

static void make_world(struct world *w)
{
    struct moe_config none = { 0 };
    struct ops_limits lim = { .max_tokens = ROWS,
                              .max_rows = ROWS,
                              .max_outputs = 1,
                              .n_groups = 1,
                              .table_cols = 1,
                              .vocab = 16,
                              .hidden = 16,
                              .moe = &none };
    struct rng r = { 8 };
    size_t n = ROWS * 14336ul;
    uint16_t *x = malloc(n * 2);
    void *self = w->ops.self;
    struct err e;
    if (x == NULL)
        exit(1);
    for (size_t i = 0; i < n; i++) /* +-[1/8, 1/2) */
        x[i] = (uint16_t)(0x3E00 | (rng_next(&r) & 0x80FF));
    make_matrices(w);
    check(w->ops.start(self, &lim, &e), &e);
    check(w->ops.alloc(self, n * 2, "input", &w->in, &e), &e);
    check(w->ops.alloc(self, ROWS * 128256ul * 4, "output", &w->out, &e), &e);
    check(w->ops.upload(self, w->in, x, n * 2, &e), &e);
    w->stream = w->ops.stream(self);
    check(w->ops.device->event_create(&w->from, &e), &e);
    check(w->ops.device->event_create(&w->to, &e), &e);
    free(x);
}

/* Some copies of a matrix, one after another. */
static void queue(struct world *w, int i, uint32_t copies, uint32_t rows, bool library)
{
    const struct shape *s = &shapes[i];
    for (uint32_t c = 0; c < copies; c++) {
        struct op_linear l = { .w = w->m[i][c],
                               .in = w->in,
                               .in_ld = s->k,
                               .to = w->out,
                               .to_ld = s->out == OP_OUT_GLU ? s->n / 2 : s->n,
                               .out = s->out,
                               .act = ACT_SILU };
        struct op_heads h = {
            .w = &w->m[i][c], .n_heads = 1, .in = w->in, .in_ld = s->k, .to = w->out, .to_ld = s->n
        };
        if (library)
            w->ops.heads(w->ops.self, &h, rows);
        else
            w->ops.linear(w->ops.self, &l, rows);
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Microseconds a product. */
static double measure(struct world *w, int i, uint32_t rows, bool library)
{
    const struct device_ops *d = w->ops.device;
    double us[SAMPLES];
    void *graph;
    struct err e;
    queue(w, i, shapes[i].copies, rows, library); /* chooses algorithms */
    check(w->ops.finish(w->ops.self, &e), &e);
    check(w->ops.collect(w->ops.self, NULL, &e), &e);
    check(d->capture_begin(w->stream, &e), &e);
    queue(w, i, shapes[i].copies, rows, library);
    check(d->capture_end(w->stream, &graph, &e), &e);
    for (int k = 0; k < SAMPLES; k++) {
        queue(w, i == HEAD ? GATE_UP : HEAD, 1, 1, false); /* L2 holds none of what follows */
        check(d->event_record(w->from, w->stream, &e), &e);
        check(d->graph_launch(graph, w->stream, &e), &e);
        check(d->event_record(w->to, w->stream, &e), &e);
        check(d->event_wait(w->to, &e), &e);
        check(d->event_elapsed(w->from, w->to, &us[k], &e), &e);
    }
    d->graph_destroy(graph);
    qsort(us, SAMPLES, sizeof *us, by_value);
    return us[SAMPLES / 2] / shapes[i].copies;
}

static int parse(struct world *w, int argc, char **argv)
{
    w->rows[0] = 1;
    w->rows[1] = 8;
    w->rows[2] = 16;
    w->n_rows = 3;
    if (argc == 1)
        return 0;
    if (argc != 3 || strcmp(argv[1], "--rows") != 0)
        return -1;
    w->n_rows = 0;
    for (char *p = strtok(argv[2], ","); p && w->n_rows < 16; p = strtok(NULL, ",")) {
        uint32_t n = (uint32_t)strtoul(p, NULL, 10);
        if (n == 0 || n > ROWS)
            return -1;
        w->rows[w->n_rows++] = n;
    }
    return w->n_rows > 0 ? 0 : -1;
}

int main(int argc, char **argv)
{
    static struct world w;
    struct model_options opt = { .device = MODEL_DEVICE_CUDA };
    struct backend b;
    struct err e;
    if (parse(&w, argc, argv) != 0) {
        fprintf(stderr, "usage: cuda_linear_bench [--rows N,N,...], each 1 to %d\n", ROWS);
        return 2;
    }
    check(model_backend_open(&b, &w.ops, &opt, &e), &e);
    make_world(&w);
    printf("%-8s %6s %6s %5s  %18s  %18s  %5s\n", "matrix", "n", "k", "rows", "us (TB/s)",
           "cuBLASLt", "ratio");
    for (int i = 0; i < SHAPES; i++)
        for (uint32_t k = 0; k < w.n_rows; k++) {
            double bytes = 2.0 * shapes[i].n * shapes[i].k;
            double own = measure(&w, i, w.rows[k], false), lib = measure(&w, i, w.rows[k], true);
            printf("%-8s %6u %6u %5u  %9.1f (%5.2f)   %9.1f (%5.2f)   %5.2f\n", shapes[i].name,
                   shapes[i].n, shapes[i].k, w.rows[k], own, bytes / own * 1e-6, lib,
                   bytes / lib * 1e-6, lib / own);
        }
    w.ops.device->event_destroy(w.from);
    w.ops.device->event_destroy(w.to);
    for (int i = 0; i < SHAPES; i++)
        for (uint32_t c = 0; c < shapes[i].copies; c++)
            w.ops.matrix_destroy(w.ops.self, w.m[i][c]);
    void *memory[] = { w.in, w.out };
    for (int i = 0; i < 2; i++)
        w.ops.release(w.ops.self, memory[i], 0);
    model_backend_close(&b, &w.ops);
    return 0;
}
