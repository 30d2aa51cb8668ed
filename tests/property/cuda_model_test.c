/* cuda_model_test.c: the whole model on a GPU against itself and the host.
 *
 *   cuda_model_test [--seed N] [--steps N] MODEL_DIR
 *
 * sampling   every row's token, logprob and alternatives equal what the host's
 *            sampler makes of the same logits, over random parameters
 * replay     steps that are replayed from captured graphs, their rows growing,
 *            shrinking, vanishing and trading places between prompts that run
 *            eagerly, give the logits of an eager model within rounding
 * again      the same steps once more give the same bits
 * Exit code 77 where there is no plugin or no GPU. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/cpu/sampling.h"
#include "support/model_driver.h"
#include "support/numbers.h"
#include "support/rng.h"

enum { ROWS = 24, LENGTH = 320, LISTS = 4 };

static uint32_t n_failed;

static void fail(const char *what, uint32_t step, uint32_t i)
{
    if (n_failed++ < 20)
        printf("FAIL %s: step %u, output %u\n", what, step, i);
}

static void check(enum err_code rc, const struct err *e, const char *what)
{
    if (rc == ERR_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, e->message);
    exit(2);
}

static struct driver *open_driver(const char *dir, bool eager)
{
    struct driver_options o = { .path = dir,
                                .dtype = MODEL_BFLOAT16,
                                .device = MODEL_DEVICE_CUDA,
                                .max_model_len = LENGTH,
                                .max_tokens = 512,
                                .max_rows = ROWS,
                                .max_outputs = 2 * ROWS,
                                .n_blocks = ROWS * (LENGTH / 16) * 4,
                                .eager = eager };
    return driver_open_or_exit(&o);
}

static void start_row(struct driver *d, struct rng *r, uint32_t s, uint32_t vocab)
{
    uint32_t n = 1 + (uint32_t)rng_below(r, 40);
    driver_reset(d, s);
    for (uint32_t i = 0; i < n; i++) {
        int32_t t = (int32_t)rng_below(r, vocab);
        driver_append(d, s, &t, 1);
    }
}

/* ---- sampling ---- */

struct drawn {
    struct sample_params params;
    struct logit_bias bias[LISTS];
    int32_t stop[LISTS];
};

static void draw_params(struct drawn *p, struct rng *r, uint32_t vocab)
{
    static const float temperature[] = { 0, 0.5f, 1, 1.5f, 5 }, top_p[] = { 1, 0.95f, 0.5f, 0.05f };
    static const float min_p[] = { 0, 0, 0.02f, 0.3f }, repetition[] = { 1, 1, 1.3f, 0.8f };
    static const float presence[] = { 0, 0, 0.7f, -1 }, frequency[] = { 0, 0, 0.4f, -0.3f };
    static const int32_t top_k[] = { 0, 1, 2, 40, 1000, 100000 }, top[] = { -1, -1, 0, 1, 7, 20 };
    struct sample_params *q = &p->params;
    *q = (struct sample_params){
        .temperature = temperature[rng_below(r, 5)],
        .top_p = top_p[rng_below(r, 4)],
        .min_p = min_p[rng_below(r, 4)],
        .top_k = top_k[rng_below(r, 6)],
        .repetition_penalty = repetition[rng_below(r, 4)],
        .presence_penalty = presence[rng_below(r, 4)],
        .frequency_penalty = frequency[rng_below(r, 4)],
        .n_logprobs = top[rng_below(r, 6)],
        .min_tokens = (uint32_t)rng_below(r, 30),
        .n_stop_ids = (uint32_t)rng_below(r, LISTS),
        .n_bias = (uint32_t)rng_below(r, LISTS),
        .stop_ids = p->stop,
        .bias = p->bias,
    };
    for (int i = 0; i < LISTS; i++) {
        p->stop[i] = (int32_t)rng_below(r, vocab);
        p->bias[i] =
            (struct logit_bias){ (int32_t)rng_below(r, vocab), (float)(rng_unit(r) * 20 - 10) };
    }
}

static void compare_sampled(const struct sampled *a, const struct sampled *b, uint32_t step,
                            uint32_t i)
{
    if (a->token != b->token || a->failed != b->failed)
        fail("token", step, i);
    if (!(fabsf(a->logprob - b->logprob) <= 1e-4f))
        fail("logprob", step, i);
    if (a->n_top != b->n_top) {
        fail("number of alternatives", step, i);
        return;
    }
    for (uint32_t k = 0; k < a->n_top; k++)
        if (a->top_token[k] != b->top_token[k] ||
            !(fabsf(a->top_logprob[k] - b->top_logprob[k]) <= 1e-4f))
            fail("alternative", step, i);
}

static void run_sampling(struct driver *d, struct rng *r, uint32_t steps, uint32_t vocab)
{
    static struct drawn drawn[ROWS];
    struct sampler *host;
    struct err e;
    uint32_t n_compared = 0;
    check(model_sampler_create(&host, vocab, 2 * ROWS, NULL, &e), &e, "sampler");
    for (uint32_t s = 0; s < ROWS; s++)
        start_row(d, r, s, vocab);
    for (uint32_t step = 0; step < steps; step++) {
        struct driver_row row[ROWS];
        const struct sampled *got, *want;
        uint32_t n = 1 + (uint32_t)rng_below(r, ROWS), n_out;
        for (uint32_t i = 0; i < n; i++) {
            if (driver_length(d, i) + 1 >= LENGTH)
                start_row(d, r, i, vocab);
            draw_params(&drawn[i], r, vocab);
            row[i] = (struct driver_row){ .seq = i,
                                          .n = driver_pending(d, i),
                                          .params = &drawn[i].params,
                                          .seed = rng_next(r),
                                          .n_prompt = 1 + driver_length(d, i) / 2 };
        }
        check(driver_step(d, row, n, &got, &n_out, &e), &e, "step");
        check(model_sampler_run(host, driver_plan(d), model_logits(driver_model(d)), &want, &e), &e,
              "host sampler");
        for (uint32_t i = 0; i < n_out; i++) {
            compare_sampled(&got[i], &want[i], step, i);
            int32_t t = got[i].token < 0 ? 0 : got[i].token;
            driver_append(d, row[i].seq, &t, 1);
            n_compared++;
        }
    }
    model_sampler_destroy(host);
    printf("sampling: %u rows compared\n", n_compared);
}

/* ---- replay ---- */

/* Rows of one step in random order; prompts of rows that start are whole. */
static uint32_t draw_rows(struct driver *d, struct rng *r, struct driver_row row[ROWS],
                          uint32_t vocab)
{
    uint32_t most = rng_below(r, 3) == 0 ? 1 : ROWS, n = (uint32_t)rng_below(r, most + 1);
    uint32_t order[ROWS];
    for (uint32_t i = 0; i < ROWS; i++)
        order[i] = i;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = i + (uint32_t)rng_below(r, ROWS - i), s = order[j];
        order[j] = order[i];
        if (driver_length(d, s) == 0 || driver_length(d, s) + 1 >= LENGTH || rng_below(r, 200) == 0)
            start_row(d, r, s, vocab);
        row[i] = (struct driver_row){ .seq = s, .n = driver_pending(d, s) };
    }
    return n;
}

/* Steps drawn from one seed; the logits of all go to `out` when not NULL, else
 * are compared with `want`: to the bit, or within rounding. */
static void run_steps(struct driver *d, uint64_t seed, uint32_t steps, uint32_t vocab, float *out,
                      const float *want, bool exact, const char *what)
{
    struct rng r = { seed };
    size_t at = 0;
    double worst = 0;
    struct err e;
    for (uint32_t s = 0; s < ROWS; s++)
        driver_reset(d, s);
    for (uint32_t step = 0; step < steps; step++) {
        struct driver_row row[ROWS];
        const struct sampled *got;
        uint32_t n = draw_rows(d, &r, row, vocab), n_out;
        check(driver_step(d, row, n, &got, &n_out, &e), &e, what);
        const float *logits = model_logits(driver_model(d));
        for (uint32_t i = 0; i < n_out; i++, at += vocab) {
            int32_t t = (int32_t)rng_below(&r, vocab); /* the same for every run */
            driver_append(d, row[i].seq, &t, 1);
            if (out != NULL)
                memcpy(out + at, logits + (size_t)i * vocab, vocab * sizeof *out);
            if (want == NULL)
                continue;
            double error = relative_error(logits + (size_t)i * vocab, want + at, vocab);
            worst = error > worst || error != error ? error : worst;
            if (exact ? memcmp(logits + (size_t)i * vocab, want + at, vocab * sizeof *out) != 0
                      : !(error <= 2e-2))
                fail(what, step, i);
        }
    }
    printf("%s: %zu rows, worst error %.2e\n", what, at / vocab, worst);
}

int main(int argc, char **argv)
{
    uint64_t seed = 1;
    uint32_t steps = 300;
    int i = 1;
    for (; i + 1 < argc && strncmp(argv[i], "--", 2) == 0; i += 2) {
        if (strcmp(argv[i], "--seed") == 0)
            seed = strtoull(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--steps") == 0)
            steps = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        else
            break;
    }
    if (i + 1 != argc || steps == 0) {
        fprintf(stderr, "usage: cuda_model_test [--seed N] [--steps N] MODEL_DIR\n");
        return 2;
    }
    struct driver *graphs = open_driver(argv[i], false), *eager = open_driver(argv[i], true);
    uint32_t vocab = model_describe(driver_model(graphs))->vocab_size;
    struct rng r = { seed };
    float *logits = malloc((size_t)steps * ROWS * vocab * sizeof *logits);
    if (logits == NULL)
        return 2;
    run_sampling(graphs, &r, steps, vocab);
    run_steps(graphs, seed, steps, vocab, logits, NULL, false, "captured");
    run_steps(graphs, seed, steps, vocab, NULL, logits, true, "captured again");
    run_steps(eager, seed, steps, vocab, NULL, logits, false, "eager");
    free(logits);
    driver_close(graphs);
    driver_close(eager);
    printf("%s: %u failures\n", n_failed ? "FAIL" : "ok", n_failed);
    return n_failed != 0;
}
