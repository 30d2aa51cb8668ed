/* mla_forms_test.c: the two forms of latent attention against each other.
 *
 *   mla_forms_test [--backend cpu|cuda] [--seed N] [--steps N] FIXTURE_DIR...
 *
 * Two copies of each model that has latent attention compute the same ragged
 * steps: one absorbs every row, the other expands each row that begins in a
 * step.  A step mixes, in any order, prompts that begin, chunks, rows over a
 * prefix hit and decodes, so later steps read what both forms wrote.  All logits
 * agree: float32 within 1e-5 of their norm in every step (cuda: bfloat16 within
 * 2e-2, but where experts are chosen the median row of all steps).  Where a form was used the two
 * differ in some bit, and without it in none: the test would see an expansion
 * that never happens. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/fixture.h"
#include "support/model_driver.h"
#include "support/numbers.h"
#include "support/rng.h"

enum { ROWS = 6, LENGTH = 160 };

struct pair {
    struct driver *absorbed, *expanded;
    uint32_t vocab;
    bool moe, cuda;
};

static uint32_t n_failed;

static void check(enum err_code rc, const struct err *e, const char *what)
{
    if (rc == ERR_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, e->message);
    exit(2);
}

static struct driver *open_driver(const char *dir, bool cuda, uint32_t expand_from)
{
    struct driver_options o = { .path = dir,
                                .dtype = cuda ? MODEL_BFLOAT16 : MODEL_FLOAT32,
                                .device = cuda ? MODEL_DEVICE_CUDA : MODEL_DEVICE_CPU,
                                .max_model_len = LENGTH,
                                .max_tokens = ROWS * LENGTH,
                                .max_rows = ROWS,
                                .max_outputs = ROWS * LENGTH,
                                .n_blocks = 4 * ROWS * LENGTH / 16,
                                .expand_from = expand_from };
    return driver_open_or_exit(&o);
}

/* ---- steps ---- */

static void append(struct pair *p, struct rng *r, uint32_t s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        int32_t t = (int32_t)rng_below(r, p->vocab);
        driver_append(p->absorbed, s, &t, 1);
        driver_append(p->expanded, s, &t, 1);
    }
}

static void reset(struct pair *p, uint32_t s)
{
    driver_reset(p->absorbed, s);
    driver_reset(p->expanded, s);
}

/* A sequence begins: alone, or from whole blocks of the one beside it, which is
 * not reset as long as they are shared. */
static void begin(struct pair *p, struct rng *r, uint32_t s)
{
    uint32_t from = s ^ 1u,
             done = driver_length(p->absorbed, from) - driver_pending(p->absorbed, from);
    reset(p, s);
    if (s % 2 == 1 && done >= 16 && rng_below(r, 2) == 0) {
        uint32_t blocks = 1 + (uint32_t)rng_below(r, done / 16);
        driver_share(p->absorbed, s, from, blocks);
        driver_share(p->expanded, s, from, blocks);
    }
    uint32_t room = LENGTH - driver_length(p->absorbed, s), most = room < 70 ? room : 70;
    append(p, r, s, 1 + (uint32_t)rng_below(r, most));
}

/* Rows of one step in random order; *fresh: one begins with two tokens or more. */
static uint32_t draw(struct pair *p, struct rng *r, struct driver_row row[ROWS], bool *fresh)
{
    uint32_t n = 0;
    *fresh = false;
    for (uint32_t s = 0; s < ROWS; s++) {
        uint32_t length = driver_length(p->absorbed, s);
        bool full = length + 1 >= LENGTH;
        if (s % 2 == 0 && full) /* who may share its blocks goes too */
            reset(p, s + 1);
        if (full || length == 0 || (s % 2 == 1 && rng_below(r, 4) == 0))
            begin(p, r, s);
        else if (driver_pending(p->absorbed, s) == 0)
            append(p, r, s, 1);
        if (rng_below(r, 4) == 0)
            continue;
        uint32_t pending = driver_pending(p->absorbed, s);
        uint32_t take = rng_below(r, 3) ? pending : 1 + (uint32_t)rng_below(r, pending);
        *fresh = *fresh || (pending == driver_length(p->absorbed, s) && take >= 2);
        row[n++] = (struct driver_row){ .seq = s, .n = take, .all = true };
    }
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = (uint32_t)rng_below(r, i);
        struct driver_row swap = row[i - 1];
        row[i - 1] = row[j];
        row[j] = swap;
    }
    return n;
}

/* Each row's error, of all steps. */
struct errors {
    double *each;
    size_t n;
};

static void keep(struct errors *all, const struct pair *p, const float *got, const float *want,
                 uint32_t n)
{
    all->each = realloc(all->each, (all->n + n) * sizeof *all->each);
    if (all->each == NULL)
        exit(2);
    for (size_t i = 0; i < n; i++)
        all->each[all->n++] = relative_error(got + i * p->vocab, want + i * p->vocab, p->vocab);
}

static double median(struct errors *all)
{
    if (all->n == 0)
        return 0;
    qsort(all->each, all->n, sizeof *all->each, ascending);
    return all->each[all->n / 2];
}

static void run_steps(struct pair *p, struct rng *r, uint32_t steps, const char *name)
{
    bool by_median = p->cuda && p->moe;
    double limit = p->cuda ? 2e-2 : 1e-5, worst = 0;
    struct errors all = { 0 };
    uint32_t n_fresh = 0, n_differ = 0;
    bool before = false; /* an expansion, in any step so far */
    for (uint32_t step = 0; step < steps; step++) {
        struct driver_row row[ROWS];
        const struct sampled *out;
        struct err e;
        uint32_t n_out, n_same;
        bool fresh;
        uint32_t n = draw(p, r, row, &fresh);
        if (n == 0)
            continue;
        check(driver_step(p->absorbed, row, n, &out, &n_out, &e), &e, "absorbed step");
        check(driver_step(p->expanded, row, n, &out, &n_same, &e), &e, "expanded step");
        const float *want = model_logits(driver_model(p->absorbed));
        const float *got = model_logits(driver_model(p->expanded));
        double error = relative_error(got, want, (size_t)n_out * p->vocab);
        keep(&all, p, got, want, n_out);
        bool differ = memcmp(got, want, (size_t)n_out * p->vocab * sizeof *got) != 0;
        worst = error > worst ? error : worst;
        before = before || fresh;
        n_fresh += fresh;
        n_differ += differ && fresh;
        if ((!by_median && !(error <= limit)) || n_same != n_out || (differ && !before)) {
            n_failed++;
            printf("FAIL %s: step %u: error %.2e\n", name, step, error);
        }
    }
    if (n_fresh == 0 || n_differ < n_fresh / 2) {
        n_failed++;
        printf("FAIL %s: %u steps expanded rows, %u of them differ in a bit\n", name, n_fresh,
               n_differ);
    }
    if (!(median(&all) <= limit)) {
        n_failed++;
        printf("FAIL %s: median error %.2e\n", name, median(&all));
    }
    printf("%s: %u steps, %u with expanded rows, error %.2e, of the median row %.2e\n", name, steps,
           n_fresh, worst, median(&all));
    free(all.each);
}

static void run_dir(const char *dir, bool cuda, uint64_t seed, uint32_t steps)
{
    struct fixture f;
    struct rng r = { seed };
    struct err e;
    char temp[2048], from[4096], to[4096];
    check(fixture_read(&f, dir, &e), &e, dir);
    struct pair p = { .vocab = f.prompt[0].vocab, .cuda = cuda };
    bool latent = false;
    for (const cJSON *t = cJSON_GetObjectItem(f.root, "tensors")->child; t != NULL; t = t->next) {
        latent = latent || strstr(t->string, "kv_a_proj_with_mqa") != NULL;
        p.moe = p.moe || strstr(t->string, "experts") != NULL;
    }
    if (latent) {
        check(fixture_temp_dir(temp, sizeof temp, &e), &e, dir);
        check(fixture_write_weights(&f, temp, &e), &e, dir);
        snprintf(from, sizeof from, "%s/config.json", dir);
        snprintf(to, sizeof to, "%s/config.json", temp);
        check(fixture_copy(from, to, &e), &e, dir);
        p.absorbed = open_driver(temp, cuda, UINT32_MAX);
        p.expanded = open_driver(temp, cuda, 2);
        fixture_remove(temp);
        run_steps(&p, &r, steps, f.family);
        driver_close(p.absorbed);
        driver_close(p.expanded);
    }
    fixture_fini(&f);
}

int main(int argc, char **argv)
{
    uint64_t seed = 1;
    uint32_t steps = 60;
    bool cuda = false;
    int i = 1;
    for (; i + 1 < argc && strncmp(argv[i], "--", 2) == 0; i += 2) {
        if (strcmp(argv[i], "--backend") == 0)
            cuda = strcmp(argv[i + 1], "cuda") == 0;
        else if (strcmp(argv[i], "--seed") == 0)
            seed = strtoull(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--steps") == 0)
            steps = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        else
            break;
    }
    if (i >= argc || strncmp(argv[i], "--", 2) == 0) {
        fprintf(stderr, "usage: mla_forms_test [--backend cpu|cuda] [--seed N] [--steps N] "
                        "FIXTURE_DIR...\n");
        return 2;
    }
    for (; i < argc; i++)
        run_dir(argv[i], cuda, seed, steps);
    return n_failed != 0;
}
