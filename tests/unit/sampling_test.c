/* sampling_test.c: choosing tokens: Philox against its published vectors, the
 * filters against a sorting oracle, and the rules of mixed batches. */
#include "support/test.h"

#include <math.h>
#include <stdio.h>

#include "proto/number/philox.h"
#include "model/cpu/sampling.h"
#include "support/rng.h"

enum { VOCAB = 1000, ROWS = 16 };

static const struct sample_params plain = {
    .temperature = 0, .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1
};

struct batch {
    struct plan_output output[ROWS];
    struct sample_params params[ROWS];
    float logits[ROWS * VOCAB];
    int32_t history[64];
    struct step_plan plan;
};

static struct batch *batch_of(uint32_t n)
{
    struct batch *b = calloc(1, sizeof *b);
    b->plan.n_outputs = n;
    b->plan.output = b->output;
    for (uint32_t i = 0; i < n; i++) {
        b->params[i] = plain;
        b->output[i] = (struct plan_output){ .target = -1,
                                             .params = &b->params[i],
                                             .seed = i,
                                             .history = b->history,
                                             .n_history = 8,
                                             .n_prompt = 4 };
    }
    return b;
}

static void randomise(struct batch *b, uint32_t row, struct rng *r)
{
    for (int i = 0; i < VOCAB; i++)
        b->logits[row * VOCAB + (uint32_t)i] = (float)(rng_unit(r) * 12 - 6);
}

static const struct sampled *sample(struct sampler *s, const struct batch *b)
{
    const struct sampled *out = NULL;
    struct err e;
    assert_ok(model_sampler_run(s, &b->plan, b->logits, &out, &e), e);
    return out;
}

static struct sampler *sampler_of(struct workers *w)
{
    struct sampler *s;
    struct err e;
    assert_ok(model_sampler_create(&s, VOCAB, ROWS, w, &e), e);
    return s;
}

TEST(greedy_takes_the_lowest_of_equals)
{
    struct sampler *s = sampler_of(NULL);
    struct batch *b = batch_of(5);
    for (uint32_t r = 0; r < 5; r++) {
        b->logits[r * VOCAB + 700] = b->logits[r * VOCAB + 300] = b->logits[r * VOCAB + 999] = 5;
    }
    b->params[1].temperature = 1e-40f; /* no temperature is too small */
    b->params[2].temperature = 1e-6f;
    b->params[3].temperature = 1;
    b->params[3].top_k = 1;
    b->params[4].temperature = 1;
    b->params[4].top_p = 0; /* the first of the order */
    const struct sampled *out = sample(s, b);
    for (uint32_t r = 0; r < 5; r++) {
        assert_int_equal(out[r].token, 300);
        assert_false(out[r].failed);
    }
    model_sampler_destroy(s);
    free(b);
}

/* ---- the oracle: sort, cut, renormalise, walk by id ---- */

struct pair {
    double w;
    int id;
};

static int by_weight(const void *a, const void *b)
{
    const struct pair *x = a, *y = b;
    return x->w != y->w ? (x->w < y->w) - (x->w > y->w) : x->id - y->id;
}

/* Which ids may be drawn. near: a weight so close to a cut that rounding decides. */
static void oracle(const float *x, const struct sample_params *p, bool kept[VOCAB], bool *near)
{
    struct pair o[VOCAB];
    double top = -1e300, total = 0, sum = 0;
    uint32_t n = VOCAB, m = 0;
    *near = false;
    for (int i = 0; i < VOCAB; i++)
        top = x[i] > top ? x[i] : top;
    for (int i = 0; i < VOCAB; i++)
        o[i] = (struct pair){ exp(((double)x[i] - top) / p->temperature), i };
    qsort(o, VOCAB, sizeof *o, by_weight);
    if (p->top_k > 0 && (uint32_t)p->top_k < n)
        n = (uint32_t)p->top_k;
    if (n < VOCAB && o[n - 1].w - o[n].w < 1e-5 * o[n].w)
        *near = true;
    for (uint32_t i = 0; i < n; i++)
        total += o[i].w;
    for (m = 0; m < n; m++) {
        double before = sum;
        if (fabs(before - p->top_p * total) < 1e-5 * total)
            *near = true;
        if (m > 0 && before >= p->top_p * total)
            break;
        sum += o[m].w;
    }
    memset(kept, 0, VOCAB * sizeof *kept);
    for (uint32_t i = 0; i < m; i++) {
        kept[o[i].id] = o[i].w >= p->min_p;
        if (fabs(o[i].w - p->min_p) < 1e-5)
            *near = true;
    }
}

static int draw_oracle(const float *x, const struct sample_params *p, const bool kept[VOCAB],
                       double u, bool *near)
{
    double sum = 0, at = 0, top = -1e300;
    int last = -1;
    for (int i = 0; i < VOCAB; i++)
        top = x[i] > top ? x[i] : top;
    for (int i = 0; i < VOCAB; i++)
        sum += kept[i] ? exp(((double)x[i] - top) / p->temperature) : 0;
    for (int i = 0; i < VOCAB; i++) {
        if (!kept[i])
            continue;
        last = i;
        at += exp(((double)x[i] - top) / p->temperature);
        if (fabs(at - u * sum) < 1e-5 * sum)
            *near = true;
        if (at > u * sum)
            break;
    }
    return last;
}

TEST(filters_equal_a_sorting_oracle)
{
    struct sampler *s = sampler_of(NULL);
    struct rng r = { 2026 };
    int compared = 0;
    for (int round = 0; round < 400; round++) {
        struct batch *b = batch_of(1);
        struct sample_params *p = &b->params[0];
        bool kept[VOCAB], near, near_draw = false;
        randomise(b, 0, &r);
        if (round % 5 == 0) /* many equal logits */
            for (int i = 0; i < VOCAB; i++)
                b->logits[i] = roundf(b->logits[i]);
        p->temperature = (float)(0.05 + rng_unit(&r) * 2);
        p->top_k = rng_below(&r, 3) ? (int32_t)rng_below(&r, 120) : 0;
        p->top_k = p->top_k == 1 ? 2 : p->top_k;
        p->top_p = rng_below(&r, 3) ? (float)rng_unit(&r) : 1;
        p->min_p = rng_below(&r, 3) ? 0 : (float)(rng_unit(&r) * 0.3);
        b->output[0].seed = rng_next(&r);
        oracle(b->logits, p, kept, &near);
        int want = draw_oracle(b->logits, p, kept,
                               philox_unit(b->output[0].seed, b->output[0].n_history), &near_draw);
        const struct sampled *out = sample(s, b);
        if (!near) {
            assert_true(kept[out[0].token]);
            if (!near_draw) {
                assert_int_equal(out[0].token, want);
                compared++;
            }
        }
        free(b);
    }
    assert_true(compared > 300);
    model_sampler_destroy(s);
}

TEST(penalties_bias_and_masks_apply_in_order)
{
    struct sampler *s = sampler_of(NULL);
    struct batch *b = batch_of(6);
    static const struct logit_bias bias[] = { { 10, 3 }, { VOCAB + 5, 100 } };
    static const int32_t stops[] = { 10 };
    int32_t history[8] = { 10, 11, 12, 11, 20, 20, 21, 11 };
    memcpy(b->history, history, sizeof history);
    for (uint32_t r = 0; r < 6; r++) {
        b->logits[r * VOCAB + 10] = 4;
        b->logits[r * VOCAB + 20] = 3.5f;
        b->logits[r * VOCAB + 30] = 3;
    }
    b->params[0].n_bias = 2; /* 10 becomes 7; an id beyond the vocabulary is ignored */
    b->params[0].bias = bias;
    b->params[1].min_tokens = 5; /* 4 generated: 10 is still masked */
    b->params[1].n_stop_ids = 1;
    b->params[1].stop_ids = stops;
    b->params[2] = b->params[1];
    b->params[2].min_tokens = 4;
    b->params[3].repetition_penalty = 2; /* 10 -> 2, 20 -> 1.75, 30 stays */
    b->params[4].presence_penalty = 1;   /* output holds 20, 21, 11: 20 -> 2.5; 10 stays */
    b->params[5].frequency_penalty = 1;  /* 20 twice -> 1.5 */
    b->params[5].n_bias = 1;
    static const struct logit_bias down[] = { { 10, -100 } };
    b->params[5].bias = down;
    static const int want[] = { 10, 20, 10, 30, 10, 30 };
    for (int pass = 0; pass < 2; pass++) { /* nothing is remembered between rows */
        const struct sampled *out = sample(s, b);
        for (uint32_t r = 0; r < 6; r++)
            assert_int_equal(out[r].token, want[r]);
    }
    model_sampler_destroy(s);
    free(b);
}

TEST(logprobs_are_of_the_raw_logits)
{
    struct sampler *s = sampler_of(NULL);
    struct batch *b = batch_of(3);
    struct rng r = { 7 };
    static const struct logit_bias bias[] = { { 123, 100 } };
    randomise(b, 0, &r);
    memcpy(b->logits + VOCAB, b->logits, VOCAB * sizeof(float));
    memcpy(b->logits + 2 * VOCAB, b->logits, VOCAB * sizeof(float));
    b->params[0].n_logprobs = 5;
    b->params[0].n_bias = 1;
    b->params[0].bias = bias;
    b->params[0].temperature = 0.5f;
    b->output[1].target = 77; /* a prompt's logprob */
    b->params[2].n_logprobs = 0;
    double sum = 0;
    for (int i = 0; i < VOCAB; i++)
        sum += exp((double)b->logits[i]);
    const struct sampled *out = sample(s, b);
    assert_int_equal(out[0].token, 123);
    assert_true(fabs(out[0].logprob - (b->logits[123] - log(sum))) < 1e-4);
    assert_int_equal(out[0].n_top, 5);
    for (uint32_t i = 0; i < 5; i++) {
        uint32_t better = 0;
        for (int k = 0; k < VOCAB; k++)
            better += b->logits[k] > b->logits[out[0].top_token[i]];
        assert_int_equal(better, i);
        assert_true(fabs(out[0].top_logprob[i] - (b->logits[out[0].top_token[i]] - log(sum))) <
                    1e-4);
    }
    assert_int_equal(out[1].token, 77);
    assert_true(fabs(out[1].logprob - (b->logits[77] - log(sum))) < 1e-4);
    assert_int_equal(out[2].n_top, 0);
    assert_true(out[2].logprob < 0);
    model_sampler_destroy(s);
    free(b);
}

/* A row's token depends on that row alone: beside others, on any pool. */
TEST(rows_do_not_see_each_other)
{
    struct workers *w;
    struct err e;
    assert_ok(workers_create(&w, 3, &e), e);
    struct sampler *alone = sampler_of(NULL), *pooled = sampler_of(w);
    struct rng r = { 99 };
    struct batch *b = batch_of(ROWS);
    static const struct logit_bias bias[] = { { 5, -100 } };
    for (uint32_t i = 0; i < ROWS; i++) {
        randomise(b, i, &r);
        b->output[i].seed = 42;
        b->output[i].n_history = 1 + i % 5;
        b->output[i].n_prompt = 1;
        switch (i % 4) {
        case 1:
            b->params[i].temperature = 1;
            break;
        case 2:
            b->params[i].temperature = 0.7f;
            b->params[i].top_p = 0.9f;
            break;
        case 3:
            b->params[i].n_bias = 1;
            b->params[i].bias = bias;
            b->params[i].frequency_penalty = 0.5f;
            break;
        default:
            break;
        }
    }
    const struct sampled *all = sample(pooled, b);
    for (uint32_t i = 0; i < ROWS; i++) {
        struct batch *one = batch_of(1);
        one->output[0] = b->output[i];
        memcpy(one->logits, b->logits + i * VOCAB, VOCAB * sizeof(float));
        assert_int_equal(sample(alone, one)[0].token, all[i].token);
        assert_false(all[i].failed);
        free(one);
    }
    model_sampler_destroy(alone);
    model_sampler_destroy(pooled);
    workers_destroy(w);
    free(b);
}

TEST(logits_that_are_not_finite_name_no_token)
{
    static const float bad[] = { NAN, INFINITY, -INFINITY };
    struct sampler *s = sampler_of(NULL);
    struct batch *b = batch_of(5);
    for (uint32_t i = 0; i < 3; i++)
        b->logits[i * VOCAB + 999 - i] = bad[i];
    b->params[1].temperature = 1;
    b->params[2].n_logprobs = 3;
    b->output[4].target = VOCAB; /* no such id */
    const struct sampled *out = sample(s, b);
    for (uint32_t i = 0; i < 5; i++)
        assert_true(out[i].failed == (i != 3));
    assert_int_equal(out[2].token, -1);
    assert_int_equal(out[2].n_top, 0);
    model_sampler_destroy(s);
    free(b);
}

/* Frequencies of draws against the weights: chi-square over 8 ids. */
TEST(draws_follow_the_weights)
{
    struct sampler *s = sampler_of(NULL);
    struct batch *b = batch_of(1);
    double p[8], sum = 0, chi = 0;
    int count[8] = { 0 }, n = 20000;
    for (int i = 0; i < VOCAB; i++)
        b->logits[i] = -1000;
    for (int i = 0; i < 8; i++) {
        b->logits[i * 100] = (float)i * 0.3f;
        p[i] = exp((double)b->logits[i * 100]);
        sum += p[i];
    }
    b->params[0].temperature = 1;
    for (int i = 0; i < n; i++) {
        b->output[0].seed = (uint64_t)i * 0x9E3779B97F4A7C15u;
        int32_t t = sample(s, b)[0].token;
        assert_int_equal(t % 100, 0);
        count[t / 100]++;
    }
    for (int i = 0; i < 8; i++) {
        double want = n * p[i] / sum;
        chi += (count[i] - want) * (count[i] - want) / want;
    }
    assert_true(chi < 24.3); /* 0.1 % of 7 degrees of freedom */
    model_sampler_destroy(s);
    free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(greedy_takes_the_lowest_of_equals),
        RUN(filters_equal_a_sorting_oracle),
        RUN(penalties_bias_and_masks_apply_in_order),
        RUN(logprobs_are_of_the_raw_logits),
        RUN(rows_do_not_see_each_other),
        RUN(logits_that_are_not_finite_name_no_token),
        RUN(draws_follow_the_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
