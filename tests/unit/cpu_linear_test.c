/* cpu_linear_test.c: packed products on every instruction set of this machine:
 * right against double arithmetic, and the same bits for a row whatever stands
 * beside it, however many threads there are. */
#include "support/test.h"

#include <math.h>
#include <stdio.h>

#include "model/load/convert.h"
#include "model/cpu/linear.h"
#include "proto/number/formats.h"
#include "support/rng.h"

static const char *const sets[] = { "generic", "avx2", "avx512" };

struct problem {
    uint32_t n, k, m; /* outputs, inputs, rows */
    enum op_dtype type;
    enum st_dtype stored;
    bool bias, glu;
};

static uint16_t bf16(double v)
{
    return float_to_bf16((float)v);
}

/* Weights [n, k] in `stored`, whose values come back in w. */
static unsigned char *weights_of(const struct problem *p, struct rng *r, float *w)
{
    size_t n = (size_t)p->n * p->k;
    unsigned char *raw = malloc(n * 4 + 1);
    for (size_t i = 0; i < n; i++) {
        float v = bf16_to_float(bf16((rng_unit(r) - 0.5) / 4));
        w[i] = v;
        if (p->stored == ST_F32) {
            memcpy(raw + 1 + i * 4, &v, 4); /* unaligned, as files are */
        } else {
            uint16_t h = float_to_bf16(v);
            memcpy(raw + 1 + i * 2, &h, 2);
        }
    }
    return raw;
}

static void check(const struct cpu_kernels *k, struct workers *pool, const struct problem *p)
{
    struct rng r = { p->n * 7919u + p->k * 31u + p->m };
    size_t outs = p->glu ? p->n / 2 : p->n;
    float *w = malloc((size_t)p->n * p->k * sizeof *w), *x = malloc((size_t)p->m * p->k * 4);
    float *y = calloc((size_t)p->m * outs, 4), *one = calloc(outs, 4), *bias = malloc(p->n * 4);
    void *scratch = malloc(model_cpu_linear_scratch(p->m, p->k));
    unsigned char *raw = weights_of(p, &r, w);
    struct st_tensor b = { .dtype = ST_F32, .data = (unsigned char *)bias };
    struct op_matrix_desc d = { .n_cols = p->k, .n_pieces = 2, .glu = p->glu };
    uint32_t half = p->glu ? p->n / 2 : p->n / 3;
    for (uint32_t i = 0; i < p->n; i++)
        bias[i] = (float)rng_unit(&r);
    for (int i = 0; i < 2; i++)
        d.piece[i] = (struct op_piece){
            .data = raw + 1 + (i ? (size_t)half * p->k : 0) * (p->stored == ST_F32 ? 4 : 2),
            .dtype = p->stored,
            .row_stride = p->k,
            .col_stride = 1,
            .n_rows = i ? p->n - half : half,
            .bias = p->bias ? &b : NULL,
            .bias_at = i ? half : 0,
            .bias_stride = 1
        };
    void *in = x;
    uint16_t *x16 = malloc((size_t)p->m * p->k * 2);
    for (size_t i = 0; i < (size_t)p->m * p->k; i++) {
        x16[i] = bf16(rng_unit(&r) - 0.5);
        x[i] = bf16_to_float(x16[i]);
    }
    if (p->type == OP_BF16)
        in = x16;
    struct op_matrix *mat;
    struct err e;
    assert_ok(model_cpu_matrix_create(pool, k, p->type, &d, &mat, &e), e);
    struct op_linear l = { .w = mat,
                           .in = in,
                           .in_ld = p->k,
                           .to = y,
                           .to_ld = outs,
                           .out = p->glu ? OP_OUT_GLU : OP_OUT_F32,
                           .act = ACT_SILU };
    model_cpu_linear(pool, k, p->type, &l, p->m, scratch);
    size_t size = p->glu && p->type == OP_BF16 ? 2 : 4;
    for (uint32_t i = 0; i < p->m; i++) {
        for (size_t j = 0; j < outs; j++) {
            double v[2] = { 0, 0 }, mag = 0;
            for (int h = 0; h <= (int)p->glu; h++) {
                size_t row = j + (h ? half : 0);
                for (uint32_t c = 0; c < p->k; c++) {
                    double t = (double)w[row * p->k + c] * x[(size_t)i * p->k + c];
                    v[h] += t;
                    mag += fabs(t);
                }
                v[h] += p->bias ? bias[row] : 0;
            }
            double want = p->glu ? v[0] / (1 + exp(-v[0])) * v[1] : v[0];
            size_t at = (size_t)i * outs + j;
            double got = size == 4 ? (double)y[at] : (double)bf16_to_float(((uint16_t *)y)[at]);
            double tolerance = size == 4 ? 3e-6 * (mag + 1) : 5e-3 * (fabs(want) + 0.1);
            if (fabs(got - want) > tolerance)
                fail_msg("%s %ux%u, %u rows: [%u][%zu] is %g, expected %g", k->name, p->n, p->k,
                         p->m, i, j, got, want);
        }
        /* Alone: the same bits. */
        l.in = (unsigned char *)in + (size_t)i * p->k * (p->type == OP_F32 ? 4 : 2);
        l.to = one;
        model_cpu_linear(NULL, k, p->type, &l, 1, scratch);
        assert_memory_equal(one, (unsigned char *)y + (size_t)i * outs * size, outs * size);
        l.in = in;
    }
    model_cpu_matrix_destroy(mat);
    free(w);
    free(x);
    free(x16);
    free(y);
    free(one);
    free(bias);
    free(scratch);
    free(raw);
}

static void every_set(struct workers *pool, const struct problem *p)
{
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        const struct cpu_kernels *k = model_cpu_kernels_named(sets[i]);
        if (k != NULL)
            check(k, pool, p);
    }
}

TEST(products_are_right_and_rows_independent)
{
    static const uint32_t rows[] = { 1, 2, 3, 5, 12, 13, 25, 40, 77 };
    struct workers *pool;
    struct err e;
    assert_ok(workers_create(&pool, 3, &e), e);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int t = 0; t < 4; t++) {
            struct problem p = { .n = 70 + 16 * (uint32_t)i,
                                 .k = 67 + 2 * (uint32_t)i,
                                 .m = rows[i],
                                 .type = t & 1 ? OP_BF16 : OP_F32,
                                 .stored = t & 2 ? ST_BF16 : ST_F32,
                                 .bias = i % 2 == 0 };
            every_set(pool, &p);
            p.glu = true;
            every_set(i % 3 ? pool : NULL, &p);
        }
    workers_destroy(pool);
}

TEST(exponentials_are_close_and_bounded)
{
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        const struct cpu_kernels *k = model_cpu_kernels_named(sets[i]);
        float x[513], y[513];
        if (k == NULL)
            continue;
        for (int j = 0; j < 513; j++)
            x[j] = (float)(j - 256) * 0.34f;
        double sum = k->exp_sum(x, 513, 0, 1, y), want = 0;
        for (int j = 0; j < 513; j++) {
            double e = exp((double)x[j]);
            assert_true(fabs(y[j] - e) <= 3e-7 * e);
            want += e;
        }
        assert_true(fabs(sum - want) < 1e-5 * want);
        x[0] = -INFINITY;
        x[1] = 0;
        assert_true(k->exp_sum(x, 2, 0, 1, y) == 1.0);
        assert_true(y[0] == 0 && y[1] == 1);
    }
}

TEST(maximum_and_finiteness)
{
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        const struct cpu_kernels *k = model_cpu_kernels_named(sets[i]);
        for (uint32_t n = 1; k != NULL && n < 70; n++) {
            float x[70];
            bool finite;
            for (uint32_t j = 0; j < n; j++)
                x[j] = -(float)((j * 37u) % 11u) - 1;
            x[n / 2] = 3;
            assert_true(k->max(x, n, &finite) == 3);
            assert_true(finite);
            x[n - 1] = n % 3 == 0 ? NAN : n % 3 == 1 ? INFINITY : -INFINITY;
            (void)k->max(x, n, &finite);
            assert_false(finite);
        }
    }
}

TEST(formats_convert_exactly)
{
    static const unsigned char half[] = { 0x00, 0x3c, 0x00, 0xc0, 0x01, 0x00,
                                          0xff, 0x7b, 0x00, 0x7c, 0x00, 0x80 };
    static const float want[] = { 1, -2, 0x1p-24f, 65504, INFINITY, -0.0f };
    float out[32];
    model_convert_strided(half, ST_F16, 0, 1, 6, out);
    assert_memory_equal(out, want, sizeof want);
    /* All 16 codes, low nibble first, at scale 2^1. */
    unsigned char block[16], scale = 128;
    uint16_t got[32];
    for (int i = 0; i < 16; i++)
        block[i] = (unsigned char)((2 * i + 1) % 16 << 4 | 2 * i % 16);
    model_convert_mxfp4(block, &scale, 32, got);
    static const float code[] = { 0, 1, 2, 3, 4, 6, 8, 12, -0.0f, -1, -2, -3, -4, -6, -8, -12 };
    for (int i = 0; i < 32; i++)
        assert_true(bf16_to_float(got[i]) == code[i % 16]);
    assert_int_equal(float_to_bf16(1.00390625f), 0x3f80); /* a tie goes to even */
    assert_int_equal(float_to_bf16(1.01171875f), 0x3f82);
    assert_true(isnan(bf16_to_float(float_to_bf16(NAN))));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(products_are_right_and_rows_independent),
        RUN(exponentials_are_close_and_bounded),
        RUN(maximum_and_finiteness),
        RUN(formats_convert_exactly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
