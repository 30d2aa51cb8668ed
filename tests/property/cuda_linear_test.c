/* cuda_linear_test.c: the GPU's products of a step's rows, through ops.h.
 *
 *   cuda_linear_test [--seed N] [--quick 0|1]
 *
 * right      every kind of result, with and without bias, agrees with double
 *            arithmetic over shapes with tails in every direction, 1 to 33 rows
 * inside     nothing is written beside the rows and channels asked for
 * alone      a row's result has the same bits alone and among up to 16 rows
 * chained    products that read each other's results and are queued together
 *            give the bits that they give one at a time
 * --quick: small shapes and few row counts, for a memory checker.
 * Exit code 77 where there is no plugin or no GPU. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/backend.h"
#include "proto/number/formats.h"
#include "support/rng.h"

enum { SKIPPED = 77, MOST = 33, ALONE = 16, SAMPLE = 96, SPARE = 24 };

struct shape {
    uint32_t n, k;         /* outputs (of gate and up together), inputs */
    bool glu, bias, large; /* large: compared in places, with some row counts */
};

static const struct shape shapes[] = {
    { 1, 8, false, false, false },       { 16, 8, false, true, false },
    { 2, 24, true, true, false },        { 17, 72, false, true, false },
    { 128, 64, false, false, false },    { 130, 200, true, false, false },
    { 200, 136, false, true, false },    { 1000, 520, false, false, false },
    { 1010, 1032, true, true, true },    { 768, 2056, false, true, true },
    { 24, 4096, false, true, false },    { 2112, 4104, false, false, true },
    { 129, 70, false, true, false },     { 96, 12, true, false, false },
    { 6144, 4096, false, true, true },   { 4096, 4096, false, false, true },
    { 28672, 4096, true, false, true },  { 4096, 14336, false, false, true },
    { 40000, 4096, false, false, true }, { 6000, 2880, true, true, true },
};

enum { SHAPES = sizeof shapes / sizeof *shapes };

struct problem {
    struct shape s;
    struct op_matrix *m;
    uint16_t *w;
    float *bias;
};

struct world {
    struct ops ops;
    struct problem p[SHAPES];
    struct rng r;
    uint16_t *x;            /* [MOST, widest] */
    void *in, *out, *alone; /* device */
    unsigned char *got, *one;
    uint32_t widest, tallest;
    uint32_t n_failed;
    bool quick;
};

static void check(enum err_code rc, const struct err *e, const char *what)
{
    if (rc == ERR_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, e->message);
    exit(2);
}

static void fail(struct world *w, const struct shape *s, uint32_t n, enum op_out out,
                 const char *what, uint32_t row, uint32_t channel, double got, double want)
{
    static const char *const name[] = { "T", "F32", "ADD", "GLU" };
    if (w->n_failed++ < 20)
        printf("FAIL %s: %u x %u%s, %u rows, %s: [%u][%u] is %g, expected %g\n", what, s->n, s->k,
               s->bias ? " with bias" : "", n, name[out], row, channel, got, want);
}

static void make_matrix(struct world *w, struct problem *p)
{
    const struct shape *s = &p->s;
    size_t n = (size_t)s->n * s->k;
    double spread = 2 / sqrt(s->k);
    struct err e;
    p->w = malloc(n * sizeof *p->w);
    p->bias = malloc(s->n * sizeof *p->bias);
    if (p->w == NULL || p->bias == NULL)
        exit(2);
    for (size_t i = 0; i < n; i += 4) {
        uint64_t bits = rng_next(&w->r);
        for (size_t j = i; j < n && j < i + 4; j++, bits >>= 16)
            p->w[j] = float_to_bf16((float)(((double)(bits & 0xFFFF) / 65536 - 0.5) * spread));
    }
    for (uint32_t i = 0; i < s->n; i++)
        p->bias[i] = bf16_to_float(float_to_bf16((float)rng_unit(&w->r) - 0.5f));
    struct st_tensor bias = { .dtype = ST_F32, .data = (unsigned char *)p->bias };
    uint32_t half = s->glu ? s->n / 2 : s->n;
    struct op_matrix_desc d = { .n_cols = s->k, .n_pieces = s->glu ? 2 : 1, .glu = s->glu };
    for (uint32_t i = 0; i < d.n_pieces; i++)
        d.piece[i] = (struct op_piece){ .data = (unsigned char *)(p->w + (size_t)i * half * s->k),
                                        .dtype = ST_BF16,
                                        .row_stride = s->k,
                                        .col_stride = 1,
                                        .n_rows = half,
                                        .bias = s->bias ? &bias : NULL,
                                        .bias_at = i * half,
                                        .bias_stride = 1 };
    check(w->ops.matrix_create(w->ops.self, &d, &p->m, &e), &e, "matrix");
}

static double activated(double g, double u, enum act_kind act, double limit)
{
    switch (act) {
    case ACT_SILU:
        return g / (1 + exp(-g)) * u;
    case ACT_GELU_TANH:
        return 0.5 * g * (1 + tanh(0.7978845608028654 * (g + 0.044715 * g * g * g))) * u;
    case ACT_GELU:
        return 0.5 * g * (1 + erf(g / sqrt(2))) * u;
    case ACT_CLAMPED_SWIGLU:
        g = g > limit ? limit : g;
        u = u > limit ? limit : u < -limit ? -limit : u;
        return (u + 1) * g / (1 + exp(-1.702 * g));
    }
    return NAN;
}

static double dot(const struct world *w, const struct problem *p, uint32_t row, uint32_t channel)
{
    const uint16_t *a = p->w + (size_t)channel * p->s.k, *b = w->x + (size_t)row * w->widest;
    double v = p->s.bias ? p->bias[channel] : 0;
    for (uint32_t i = 0; i < p->s.k; i++)
        v += (double)bf16_to_float(a[i]) * bf16_to_float(b[i]);
    return v;
}

/* What lies in a result before the product: sums are added to it. */
static float before(size_t at)
{
    return (float)(at % 17) - 8;
}

struct call {
    enum op_out out;
    enum act_kind act;
    uint32_t n, channels;
    size_t ld, size; /* elements, bytes an element */
};

static struct call call_of(const struct shape *s, enum op_out out, uint32_t n)
{
    struct call c = {
        .out = out, .n = n, .channels = s->glu ? s->n / 2 : s->n, .act = (enum act_kind)(n % 4)
    };
    c.ld = c.channels + SPARE;
    c.size = out == OP_OUT_T || out == OP_OUT_GLU ? 2 : 4;
    return c;
}

/* Queue the product of rows [first, first + n) onto memory that says whether it
 * was written. */
static void run(struct world *w, const struct problem *p, const struct call *c, uint32_t first,
                void *to, unsigned char *host)
{
    size_t n = (c->n + 1ul) * c->ld, bytes = n * c->size;
    struct err e;
    memset(host, 0xFF, bytes);
    if (c->out == OP_OUT_ADD)
        for (size_t i = 0; i < n; i++)
            ((float *)host)[i] = before(i % c->ld + first * 3ul + i / c->ld * 3ul);
    check(w->ops.upload(w->ops.self, to, host, bytes, &e), &e, "upload");
    struct op_linear l = { .w = p->m,
                           .in = (uint16_t *)w->in + (size_t)first * w->widest,
                           .in_ld = w->widest,
                           .to = to,
                           .to_ld = c->ld,
                           .out = c->out,
                           .act = c->act,
                           .limit = 0.4f };
    w->ops.linear(w->ops.self, &l, c->n);
    check(w->ops.download(w->ops.self, host, to, bytes, &e), &e, "product");
}

static double value(const struct call *c, const unsigned char *host, uint32_t row, uint32_t ch)
{
    size_t at = row * c->ld + ch;
    return c->size == 2 ? (double)bf16_to_float(((const uint16_t *)host)[at])
                        : (double)((const float *)host)[at];
}

static void compare(struct world *w, const struct problem *p, const struct call *c, uint32_t row,
                    uint32_t ch)
{
    double want = dot(w, p, row, ch), got = value(c, w->got, row, ch);
    if (c->out == OP_OUT_GLU)
        want = activated(want, dot(w, p, row, c->channels + ch), c->act, 0.4f);
    if (c->out == OP_OUT_ADD)
        want += before(ch + row * 3ul);
    /* float32 sums, bf16 results; what the library multiplies is rounded to bf16
     * before it is gated. */
    double tolerance = c->out == OP_OUT_GLU ? 1.2e-2 * fabs(want) + 4e-3
                       : c->out == OP_OUT_T ? 8e-3 * fabs(want) + 2e-3
                                            : 3e-5 * (fabs(want) + 8);
    if (!(fabs(got - want) <= tolerance))
        fail(w, &p->s, c->n, c->out, "right", row, ch, got, want);
}

/* The bytes beside the result are as they were. */
static void inside(struct world *w, const struct problem *p, const struct call *c)
{
    for (uint32_t row = 0; row <= c->n; row++)
        for (size_t ch = row < c->n ? c->channels : 0; ch < c->ld; ch++) {
            size_t at = row * c->ld + ch;
            bool kept = c->out == OP_OUT_ADD ? ((float *)w->got)[at] == before(ch + row * 3ul)
                        : c->size == 4       ? ((uint32_t *)w->got)[at] == ~0u
                                             : ((uint16_t *)w->got)[at] == 0xFFFF;
            if (!kept) {
                fail(w, &p->s, c->n, c->out, "inside", row, (uint32_t)ch, 0, 0);
                return;
            }
        }
}

static void compare_rows(struct world *w, const struct problem *p, const struct call *c)
{
    for (uint32_t row = 0; row < c->n; row++) {
        if (!p->s.large) {
            for (uint32_t ch = 0; ch < c->channels; ch++)
                compare(w, p, c, row, ch);
            continue;
        }
        for (uint32_t i = 0; i < SAMPLE / c->n + 2; i++)
            compare(w, p, c, row, rng_below(&w->r, c->channels));
        compare(w, p, c, row, row);
        compare(w, p, c, row, c->channels - 1 - row);
    }
}

static void alone(struct world *w, const struct problem *p, const struct call *c)
{
    struct call one = *c;
    one.n = 1;
    for (uint32_t row = 0; row < c->n; row++) {
        run(w, p, &one, row, w->alone, w->one);
        if (memcmp(w->one, w->got + row * c->ld * c->size, c->channels * c->size) != 0) {
            uint32_t ch = 0;
            while (ch + 1 < c->channels && value(c, w->one, 0, ch) == value(c, w->got, row, ch))
                ch++;
            fail(w, &p->s, c->n, c->out, "alone", row, ch, value(c, w->one, 0, ch),
                 value(c, w->got, row, ch));
            return;
        }
    }
}

static bool some_rows(const struct world *w, const struct problem *p, uint32_t n)
{
    static const uint32_t few[] = { 1, 2, 7, 8, 9, 16, 17, 31, 32, 33 };
    for (size_t i = 0; i < sizeof few / sizeof *few; i++)
        if (few[i] == n)
            return !w->quick || n == 1 || n == 9 || n == 16 || n == 33;
    return !w->quick && !p->s.large;
}

static void run_problem(struct world *w, const struct problem *p)
{
    for (uint32_t n = 1; n <= MOST; n++) {
        if (!some_rows(w, p, n))
            continue;
        for (int out = OP_OUT_T; out <= OP_OUT_GLU; out++) {
            if ((out == OP_OUT_GLU) != p->s.glu)
                continue;
            struct call c = call_of(&p->s, (enum op_out)out, n);
            run(w, p, &c, 0, w->out, w->got);
            compare_rows(w, p, &c);
            inside(w, p, &c);
            if (n <= ALONE && p->s.k % 8 == 0)
                alone(w, p, &c);
        }
    }
}

/* ---- chained ---- */

/* up (gated), down and up again, queued at once or one at a time. */
static void chain(struct world *w, const struct problem *up, const struct problem *down, uint32_t n,
                  bool each)
{
    uint32_t mid = up->s.n / 2, wide = down->s.n;
    char *at = w->out;
    struct err e;
    for (int i = 0; i < 6; i++) {
        bool gated = i % 2 == 0;
        size_t bytes = (size_t)n * (gated ? mid : wide) * 2;
        const void *in = i == 0 ? w->in : at;
        char *to = i == 0 ? at : at + (size_t)n * (gated ? wide : mid) * 2 / 256 * 256 + 256;
        struct op_linear l = { .w = gated ? up->m : down->m,
                               .in = in,
                               .in_ld = i == 0  ? w->widest
                                        : gated ? wide
                                                : mid,
                               .to = to,
                               .to_ld = gated ? mid : wide,
                               .act = ACT_SILU,
                               .out = gated ? OP_OUT_GLU : OP_OUT_T };
        w->ops.linear(w->ops.self, &l, n);
        if (each || i == 5)
            check(w->ops.download(w->ops.self, each ? w->one : w->got, to, bytes, &e), &e, "chain");
        at = to;
    }
}

static void run_chains(struct world *w)
{
    const struct problem *up = NULL, *down = NULL;
    for (int i = 0; i < SHAPES; i++) {
        if (w->p[i].m != NULL && w->p[i].s.n == 28672)
            up = &w->p[i];
        if (w->p[i].m != NULL && w->p[i].s.k == 14336)
            down = &w->p[i];
    }
    if (up == NULL || down == NULL)
        return;
    for (uint32_t n = 1; n <= ALONE; n += n < 8 ? 3 : 7)
        for (int again = 0; again < 8; again++) {
            chain(w, up, down, n, true);
            chain(w, up, down, n, false);
            if (memcmp(w->one, w->got, (size_t)n * down->s.n * 2) != 0)
                fail(w, &down->s, n, OP_OUT_T, "chained", 0, 0, 0, 0);
        }
}

/* ---- the whole ---- */

static void make_world(struct world *w)
{
    struct moe_config none = { 0 };
    struct ops_limits lim = { .max_tokens = MOST,
                              .max_rows = MOST,
                              .max_outputs = 1,
                              .n_groups = 1,
                              .table_cols = 1,
                              .vocab = 16,
                              .hidden = 16,
                              .moe = &none };
    struct err e;
    for (int i = 0; i < SHAPES; i++) {
        w->p[i].s = shapes[i];
        if (w->quick && shapes[i].large && shapes[i].n > 3000)
            continue;
        make_matrix(w, &w->p[i]);
        w->widest = shapes[i].k > w->widest ? shapes[i].k : w->widest;
        w->tallest = shapes[i].n > w->tallest ? shapes[i].n : w->tallest;
    }
    size_t n_in = (size_t)MOST * w->widest, n_out = (MOST + 1ul) * (w->tallest + SPARE) * 4;
    void *self = w->ops.self;
    check(w->ops.start(self, &lim, &e), &e, "start");
    check(w->ops.alloc(self, n_in * 2, "input", &w->in, &e), &e, "input");
    check(w->ops.alloc(self, n_out * 2, "output", &w->out, &e), &e, "output");
    check(w->ops.alloc(self, n_out, "output", &w->alone, &e), &e, "output");
    w->x = malloc(n_in * 2);
    w->got = malloc(n_out);
    w->one = malloc(n_out);
    if (w->x == NULL || w->got == NULL || w->one == NULL)
        exit(2);
    for (size_t i = 0; i < n_in; i++)
        w->x[i] = float_to_bf16((float)(rng_unit(&w->r) * 2 - 1));
    check(w->ops.upload(self, w->in, w->x, n_in * 2, &e), &e, "input");
}

int main(int argc, char **argv)
{
    static struct world w;
    struct model_options opt = { .device = MODEL_DEVICE_CUDA };
    struct backend b;
    struct err e;
    w.r.state = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seed") == 0)
            w.r.state = strtoull(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--quick") == 0)
            w.quick = argv[i + 1][0] == '1';
    }
    if (model_backend_open(&b, &w.ops, &opt, &e) != ERR_OK) {
        fprintf(stderr, "%s\n", e.message);
        return SKIPPED;
    }
    make_world(&w);
    for (int i = 0; i < SHAPES; i++)
        if (w.p[i].m != NULL)
            run_problem(&w, &w.p[i]);
    run_chains(&w);
    check(w.ops.finish(w.ops.self, &e), &e, "finish");
    for (int i = 0; i < SHAPES; i++) {
        if (w.p[i].m != NULL)
            w.ops.matrix_destroy(w.ops.self, w.p[i].m);
        free(w.p[i].w);
        free(w.p[i].bias);
    }
    w.ops.release(w.ops.self, w.in, 0);
    w.ops.release(w.ops.self, w.out, 0);
    w.ops.release(w.ops.self, w.alone, 0);
    free(w.x);
    free(w.got);
    free(w.one);
    model_backend_close(&b, &w.ops);
    printf("%s: %u failures\n", w.n_failed ? "FAIL" : "ok", w.n_failed);
    return w.n_failed != 0;
}
