/* attention_property_test.c: what must hold of the operator for any call.
 *
 *   attention_property_test [rounds] [seed]
 *
 * Random scenes against the naive oracle, and relations between layouts of one
 * scene that must agree to the bit.  Default rounds keep it short; a long run is
 * by hand. */
#include <math.h>
#include <stdio.h>

#include "attention/attn.h"
#include "attention/cpu/inner.h"
#include "attention/platform/workers.h"
#include "oracle/attn_oracle.h"
#include "oracle/attn_scene.h"
#include "support/rng.h"
#include "support/test.h"

static uint32_t rounds = 20;
static uint64_t first_seed = 1;

static struct attn *open_cpu(struct workers *w)
{
    struct attn_options opt = { .workers = w };
    struct attn *a = NULL;
    struct err e = { 0 };
    assert_ok(attn_open(&a, &opt, &e), e);
    return a;
}

static enum attn_dtype any_type(struct rng *r)
{
    return (enum attn_dtype)rng_below(r, 3);
}

static bool same_tensor(const struct attn_tensor *x, const struct attn_tensor *y)
{
    return built_bytes(x) == built_bytes(y) &&
           (built_bytes(x) == 0 || memcmp(x->data, y->data, built_bytes(x)) == 0);
}

/* Every output of two runs of one scene. */
static void assert_same(const struct scene *s, const struct built *x, const struct built *y,
                        const char *what, uint64_t seed)
{
    if (!same_tensor(&x->args.out[ATTN_OUT], &y->args.out[ATTN_OUT]))
        fail_msg("seed %llu: %s changed output", (unsigned long long)seed, what);
    if (!same_tensor(&x->args.out[ATTN_QK], &y->args.out[ATTN_QK]))
        fail_msg("seed %llu: %s changed output_qk", (unsigned long long)seed, what);
    if (!built_same_rows(s, x, y))
        fail_msg("seed %llu: %s changed the caches", (unsigned long long)seed, what);
}

/* Tokens [from, from + n) of x's output are y's. */
static void assert_part(const struct built *x, int64_t from, const struct built *y,
                        const char *what, uint64_t seed)
{
    const struct attn_tensor *a = &x->args.out[ATTN_OUT], *b = &y->args.out[ATTN_OUT];
    size_t row = (size_t)a->shape[1] * attn_dtype_bytes(a->dtype);
    if (memcmp((char *)a->data + (size_t)from * row, b->data, built_bytes(b)) != 0)
        fail_msg("seed %llu: %s changed output", (unsigned long long)seed, what);
}

/* ---- against the oracle ------------------------------------------------------------- */

static void assert_close(const struct attn_tensor *t, const double *want, double tol,
                         const char *what, uint64_t seed)
{
    int64_t n = (int64_t)(built_bytes(t) / attn_dtype_bytes(t->dtype));
    for (int64_t i = 0; i < n; i++) {
        double got = oracle_value(t->dtype, t->data, i);
        bool same = isinf(want[i]) ? got == want[i] : fabs(got - want[i]) <= tol;
        if (!same)
            fail_msg("seed %llu: %s[%lld] is %.9g, the oracle says %.9g", (unsigned long long)seed,
                     what, (long long)i, got, want[i]);
    }
}

static double tolerance(enum attn_dtype d)
{
    return d == ATTN_F32 ? 2e-5 : d == ATTN_F16 ? 3e-3 : 2.5e-2;
}

/* One step of a cache type near x. */
static double step_near(const struct scene *s, double x)
{
    double scale = 0.0131; /* no scale of a scene is larger */
    int e;
    switch (s->cache) {
    case ATTN_INT8:
        return scale;
    case ATTN_E4M3:
        return fabs(x) / 8 + scale / 512;
    default:
        frexp(fabs(x) > 1 ? x : 1, &e);
        return ldexp(1, e - 1 - (s->cache == ATTN_F32 ? 23 : s->cache == ATTN_F16 ? 10 : 7));
    }
}

/* Every mapped row of both caches: what the call left, what it should have. */
static void assert_caches(const struct scene *s, const struct built *b, const double *got,
                          const double *want, const char *what, uint64_t seed)
{
    int64_t width = (int64_t)s->kv_heads * s->head_size;
    for (int32_t q = 0; q < s->n_seqs; q++)
        for (int32_t pos = 0; pos < s->past[q] + s->q_len[q]; pos++) {
            int64_t slot = built_slot(b, q, pos);
            for (int64_t i = slot * width; slot >= 0 && i < (slot + 1) * width; i++) {
                double most = fmax(fabs(got[i]), fabs(want[i]));
                if (!(fabs(got[i] - want[i]) <= 1.001 * step_near(s, most)))
                    fail_msg("seed %llu: %s of sequence %d position %d: %.9g, the oracle %.9g",
                             (unsigned long long)seed, what, q, pos, got[i], want[i]);
            }
        }
}

static void check_against_oracle(struct attn *a, struct rng *r, uint64_t seed)
{
    struct scene_wish wish = {
        .dtype = any_type(r), .max_seqs = 4, .max_past = 330, .max_new = 20
    };
    struct scene *s = scene_random(r, &wish);
    struct layout l = { 16 << rng_below(r, 4), r->state, 2, rng_below(r, 2), 0, 0 };
    double tol = tolerance(s->dtype);
    struct oracle_result before, after;
    struct built b;
    scene_build(s, &l, &b);
    oracle_store(&b.attrs, &b.args, &before);
    built_run(a, &b);
    oracle_attend(&b.attrs, &b.args, &after);
    assert_caches(s, &b, after.k, before.k, "key_cache", seed);
    if (!s->latent)
        assert_caches(s, &b, after.v, before.v, "value_cache", seed);
    assert_close(&b.args.out[ATTN_OUT], after.out, tol, "output", seed);
    if (after.qk != NULL)
        assert_close(&b.args.out[ATTN_QK], after.qk, 4 * fmax(tol, tolerance(s->qk_dtype)),
                     "output_qk", seed);
    oracle_free(&before);
    oracle_free(&after);
    built_free(&b);
    scene_free(s);
}

TEST(agrees_with_the_oracle)
{
    struct workers *w = NULL;
    struct err e = { 0 };
    struct attn *a;
    assert_ok(workers_create(&w, 3, &e), e);
    a = open_cpu(w);
    for (uint32_t i = 0; i < rounds; i++) {
        struct rng r = { first_seed + i };
        check_against_oracle(a, &r, first_seed + i);
    }
    attn_close(a);
    workers_destroy(w);
}

/* ---- layouts that must agree to the bit ------------------------------------------------ */

/* Paged equals contiguous (one block holds everything), any block order, any
 * block size, explicit or derived slots, bounds absent, tight or loose, NaN in
 * every byte that the call may not read. */
TEST(layout_changes_nothing)
{
    struct attn *a = open_cpu(NULL);
    for (uint32_t i = 0; i < rounds; i++) {
        uint64_t seed = first_seed + 1000 + i;
        struct rng r = { seed };
        struct scene_wish wish = {
            .dtype = any_type(&r), .max_seqs = 5, .max_past = 600, .max_new = 40
        };
        struct scene *s = scene_random(&r, &wish);
        const struct {
            struct layout l;
            const char *what;
        } other[] = {
            { { 16, 77, 0, false, 0, 0 }, "permuting blocks" },
            { { 1024, 5, 0, false, 0, 0 }, "contiguous storage" },
            { { 64, 9, 3, true, 0, 0 }, "explicit slots and block size" },
            { { 16, 7, 2, true, 1, 0 }, "tight bounds" },
            { { 16, 7, 2, true, 2, 0 }, "loose bounds" },
            { { 32, 8, 4, true, 0, 0xFF }, "poison" },
        };
        struct layout base = { 16, 3, 1, false, 0, 0 };
        struct built x;
        scene_build(s, &base, &x);
        built_run(a, &x);
        for (size_t k = 0; k < sizeof other / sizeof *other; k++) {
            struct built y;
            if (s->hole_from < s->hole_to && other[k].l.block_size > 256)
                continue;
            scene_build(s, &other[k].l, &y);
            built_run(a, &y);
            assert_same(s, &x, &y, other[k].what, seed);
            built_free(&y);
        }
        built_free(&x);
        scene_free(s);
    }
    attn_close(a);
}

/* Poison over every slot that no table entry names, entries below the window
 * included: 0xFF is NaN in each float type and in e4m3. */
TEST(unmapped_slots_are_never_read)
{
    struct attn *a = open_cpu(NULL);
    for (uint32_t i = 0; i < rounds; i++) {
        uint64_t seed = first_seed + 2000 + i;
        struct rng r = { seed };
        struct scene_wish wish = { .dtype = any_type(&r),
                                   .max_seqs = 4,
                                   .max_past = 400,
                                   .max_new = 10,
                                   .no_positions = true,
                                   .no_holes = true };
        struct scene *s = scene_random(&r, &wish);
        struct layout l = { 16, 3, 6, true, 0, 0xFF };
        struct built x, y;
        int32_t window = 17 + (int32_t)rng_below(&r, 200), *table;
        int64_t cols;
        s->attrs.local_window_size = window;
        scene_build(s, &l, &x);
        built_run(a, &x);
        scene_build(s, &l, &y);
        table = y.args.in[ATTN_BLOCK_TABLE].data;
        cols = y.args.in[ATTN_BLOCK_TABLE].shape[1];
        for (int32_t b = 0; b < s->n_seqs; b++)
            for (int64_t k = 0; k < cols && (k + 1) * 16 <= s->past[b] - window + 1; k++) {
                int64_t n = y.args.in[ATTN_KEY_CACHE].shape[0];
                memset((char *)y.args.in[ATTN_KEY_CACHE].data +
                           (size_t)table[b * cols + k] * 16 * s->k_row,
                       0xFF, 16 * s->k_row);
                if (s->v_row > 0)
                    memset((char *)y.args.in[ATTN_VALUE_CACHE].data +
                               (size_t)table[b * cols + k] * 16 * s->v_row,
                           0xFF, 16 * s->v_row);
                /* unmapped, stale, or out of range */
                table[b * cols + k] = rng_below(&r, 3) == 0   ? -1
                                      : rng_below(&r, 2) == 0 ? (int32_t)rng_below(&r, (uint32_t)n)
                                                              : (int32_t)n + 5;
            }
        built_run(a, &y);
        if (!same_tensor(&x.args.out[ATTN_OUT], &y.args.out[ATTN_OUT]) ||
            !same_tensor(&x.args.out[ATTN_QK], &y.args.out[ATTN_QK]))
            fail_msg("seed %llu: something below the window was read", (unsigned long long)seed);
        built_free(&x);
        built_free(&y);
        scene_free(s);
    }
    attn_close(a);
}

TEST(splitting_a_batch_changes_nothing)
{
    struct attn *a = open_cpu(NULL);
    for (uint32_t i = 0; i < rounds; i++) {
        uint64_t seed = first_seed + 3000 + i;
        struct rng r = { seed };
        struct scene_wish wish = {
            .dtype = any_type(&r), .max_seqs = 6, .max_past = 600, .max_new = 30, .no_qk = true
        };
        struct scene *s = scene_random(&r, &wish);
        struct layout l = { 16, seed, 0, false, 0, 0 };
        struct built x, y;
        scene_build(s, &l, &x);
        built_run(a, &x);
        for (int32_t b = 0; b < s->n_seqs; b++) {
            struct scene *one = scene_cut(s, b, 0, s->q_len[b]);
            scene_build(one, &l, &y);
            built_run(a, &y);
            assert_part(&x, scene_first_token(s, b), &y, "taking a sequence alone", seed);
            built_free(&y);
            scene_free(one);
        }
        built_free(&x);
        scene_free(s);
    }
    attn_close(a);
}

/* A prompt in chunks of any size, down to single tokens, equals the prompt at
 * once: prefill and decode are the same arithmetic. */
TEST(chunks_equal_the_whole)
{
    struct attn *a = open_cpu(NULL);
    for (uint32_t i = 0; i < rounds; i++) {
        uint64_t seed = first_seed + 4000 + i;
        struct rng r = { seed };
        struct scene_wish wish = { .dtype = any_type(&r),
                                   .max_seqs = 1,
                                   .max_past = 300,
                                   .max_new = 300,
                                   .no_qk = true,
                                   .no_positions = true };
        struct scene *s = scene_random(&r, &wish);
        struct layout l = { 16, seed, 0, false, 0, 0 };
        struct built x, y;
        scene_build(s, &l, &x);
        built_run(a, &x);
        for (int32_t from = 0; from < s->q_len[0];) {
            int32_t left = s->q_len[0] - from;
            int32_t n = rng_below(&r, 3) == 0 ? 1 : 1 + (int32_t)rng_below(&r, 120);
            struct scene *c = scene_cut(s, 0, from, n < left ? n : left);
            scene_build(c, &l, &y);
            built_run(a, &y);
            assert_part(&x, from, &y, "chunking", seed);
            scene_absorb(c, &y, 0);
            for (int32_t pos = 0; pos < c->past[0] + c->q_len[0]; pos++) {
                memcpy(s->k_hist[0] + (size_t)pos * s->k_row, c->k_hist[0] + (size_t)pos * s->k_row,
                       s->k_row);
                memcpy(s->v_hist[0] + (size_t)pos * s->v_row, c->v_hist[0] + (size_t)pos * s->v_row,
                       s->v_row);
            }
            from += c->q_len[0];
            built_free(&y);
            scene_free(c);
        }
        built_free(&x);
        scene_free(s);
    }
    attn_close(a);
}

/* The pool's size changes nothing, splits of a long context included. */
TEST(threads_change_nothing)
{
    for (uint32_t i = 0; i < rounds / 2; i++) {
        uint64_t seed = first_seed + 5000 + i;
        struct rng r = { seed };
        struct scene_wish wish = {
            .dtype = any_type(&r), .max_seqs = 3, .max_past = 3000, .max_new = 8
        };
        struct scene *s = scene_random(&r, &wish);
        struct layout l = { 64, seed, 0, false, (int32_t)rng_below(&r, 3), 0 };
        struct built x, y;
        struct attn *alone = open_cpu(NULL);
        scene_build(s, &l, &x);
        built_run(alone, &x);
        for (uint32_t n = 2; n <= 7; n += 5) {
            struct workers *w = NULL;
            struct err e = { 0 };
            struct attn *a;
            assert_ok(workers_create(&w, n, &e), e);
            a = open_cpu(w);
            scene_build(s, &l, &y);
            built_run(a, &y);
            assert_same(s, &x, &y, "the number of threads", seed);
            attn_close(a);
            workers_destroy(w);
            built_free(&y);
        }
        attn_close(alone);
        built_free(&x);
        scene_free(s);
    }
}

/* A bound that is too small may lose work but stays in bounds; here it loses
 * nothing.  (Sanitizers watch the reads and writes.) */
TEST(too_small_bounds_are_safe)
{
    struct workers *w = NULL;
    struct err e = { 0 };
    struct attn *a;
    assert_ok(workers_create(&w, 4, &e), e);
    a = open_cpu(w);
    for (uint32_t i = 0; i < rounds / 2; i++) {
        struct rng r = { first_seed + 6000 + i };
        struct scene_wish wish = {
            .dtype = ATTN_F32, .max_seqs = 2, .max_past = 2000, .max_new = 6
        };
        struct scene *s = scene_random(&r, &wish);
        struct layout l = { 16, r.state, 0, false, 1, 0 };
        struct built x, y;
        scene_build(s, &l, &x);
        built_run(a, &x);
        scene_build(s, &l, &y);
        y.meta[0] = 1;
        y.meta[1] = 1 + (int32_t)rng_below(&r, 300);
        y.args.in[ATTN_METADATA].data = y.meta;
        built_run(a, &y);
        assert_same(s, &x, &y, "a bound too small", first_seed + 6000 + i);
        built_free(&x);
        built_free(&y);
        scene_free(s);
    }
    attn_close(a);
    workers_destroy(w);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        RUN(agrees_with_the_oracle),        RUN(layout_changes_nothing),
        RUN(unmapped_slots_are_never_read), RUN(splitting_a_batch_changes_nothing),
        RUN(chunks_equal_the_whole),        RUN(threads_change_nothing),
        RUN(too_small_bounds_are_safe),
    };
    if (argc > 1)
        rounds = (uint32_t)strtoul(argv[1], NULL, 10);
    if (argc > 2)
        first_seed = strtoull(argv[2], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
