/* model_conformance.c: model families against logits of their reference.
 *
 * usage: model_conformance [--backend cpu|cuda] [--dtype float32|bfloat16] DIR...
 * The cuda backend computes in bfloat16; without a GPU the exit code is 77.
 * Each DIR holds config.json (and config.v5.json), fixture.json and logits.
 * Every dialect is loaded and computed: each prompt whole, token by token, in
 * chunks, over prefix hits and beside others; then free greedy runs.  Latent
 * attention is computed so in its absorbed form throughout, with whatever begins
 * in a step expanded, and as the model chooses. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/fixture.h"
#include "support/model_driver.h"
#include "support/numbers.h"

static uint32_t n_passed, n_failed;
static enum model_dtype dtype = MODEL_FLOAT32;
static enum model_device device = MODEL_DEVICE_CPU;

/* What one prompt gave: logits of the positions from `first` on. */
struct capture {
    float *logits;
    uint32_t first;
};

static void verdict(bool ok, const char *label, const char *what, double error)
{
    if (ok)
        n_passed++;
    else
        n_failed++;
    printf("%s %s: %s: error %.2e\n", ok ? "ok  " : "FAIL", label, what, error);
}

static void fault(const char *label, const char *what, const struct err *e)
{
    n_failed++;
    printf("FAIL %s: %s: %s\n", label, what, e->message);
}

/* float32: all positions together within 1e-5.  bfloat16: 2e-2; where experts
 * are chosen a choice may flip, so there the median position counts: 5e-2. */
static void judge(const struct fixture_prompt *p, const struct capture *c, bool moe,
                  const char *label, const char *what)
{
    uint32_t n = p->n - c->first;
    const float *want = p->logits + (size_t)c->first * p->vocab;
    double error = relative_error(c->logits, want, (size_t)n * p->vocab);
    if (dtype == MODEL_FLOAT32) {
        verdict(error <= 1e-5, label, what, error);
    } else if (!moe) {
        verdict(error <= 2e-2, label, what, error);
    } else {
        double *each = malloc(n * sizeof *each);
        for (uint32_t i = 0; i < n; i++)
            each[i] = relative_error(c->logits + (size_t)i * p->vocab, want + (size_t)i * p->vocab,
                                     p->vocab);
        qsort(each, n, sizeof *each, ascending);
        verdict(each[n / 2] <= 5e-2, label, what, each[n / 2]);
        free(each);
    }
}

/* Compute all pending tokens of s in chunks, logits of every position. */
static enum err_code teacher_force(struct driver *d, uint32_t s, uint32_t chunk, uint32_t vocab,
                                   float *logits, struct err *e)
{
    while (driver_pending(d, s) > 0) {
        uint32_t n = driver_pending(d, s), n_out;
        const struct sampled *out;
        struct driver_row row = { .seq = s, .n = chunk && chunk < n ? chunk : n, .all = true };
        enum err_code rc = driver_step(d, &row, 1, &out, &n_out, e);
        if (rc)
            return rc;
        memcpy(logits, model_logits(driver_model(d)), (size_t)n_out * vocab * sizeof *logits);
        logits += (size_t)n_out * vocab;
    }
    return ERR_OK;
}

static void check_chunks(struct driver *d, const struct fixture_prompt *p, uint32_t chunk, bool moe,
                         const char *label)
{
    struct err e;
    char what[64];
    struct capture c = { malloc((size_t)p->n * p->vocab * sizeof(float)), 0 };
    snprintf(what, sizeof what, "%u tokens, %s %u", p->n, chunk ? "in chunks of" : "whole", chunk);
    driver_reset(d, 0);
    driver_append(d, 0, p->token, p->n);
    if (teacher_force(d, 0, chunk, p->vocab, c.logits, &e) != ERR_OK)
        fault(label, what, &e);
    else
        judge(p, &c, moe, label, what);
    free(c.logits);
}

/* A second sequence takes over as many whole blocks as it can. */
static void check_hit(struct driver *d, const struct fixture_prompt *p, uint32_t chunk, bool moe,
                      const char *label)
{
    struct err e;
    char what[64];
    uint32_t blocks = (p->n - 1) / 16;
    struct capture c = { malloc((size_t)p->n * p->vocab * sizeof(float)), blocks * 16 };
    snprintf(what, sizeof what, "%u tokens, %u over a hit, chunk %u", p->n, blocks * 16, chunk);
    driver_reset(d, 0);
    driver_append(d, 0, p->token, p->n);
    enum err_code rc = teacher_force(d, 0, 0, p->vocab, c.logits, &e);
    driver_share(d, 1, 0, blocks);
    driver_append(d, 1, p->token + c.first, p->n - c.first);
    if (rc == ERR_OK)
        rc = teacher_force(d, 1, chunk, p->vocab, c.logits, &e);
    if (rc != ERR_OK)
        fault(label, what, &e);
    else
        judge(p, &c, moe, label, what);
    driver_reset(d, 1);
    free(c.logits);
}

/* All prompts in one step. */
static void check_beside(struct driver *d, const struct fixture *f, bool moe, const char *label)
{
    struct driver_row row[FIXTURE_PROMPTS];
    const struct sampled *out;
    uint32_t n_out;
    struct err e;
    for (uint32_t i = 0; i < f->n_prompts; i++) {
        driver_reset(d, i);
        driver_append(d, i, f->prompt[i].token, f->prompt[i].n);
        row[i] = (struct driver_row){ .seq = i, .n = f->prompt[i].n, .all = true };
    }
    if (driver_step(d, row, f->n_prompts, &out, &n_out, &e) != ERR_OK) {
        fault(label, "beside each other", &e);
        return;
    }
    const float *logits = model_logits(driver_model(d));
    for (uint32_t i = 0; i < f->n_prompts; i++) {
        struct capture c = { (float *)logits, 0 };
        judge(&f->prompt[i], &c, moe, label, "beside each other");
        logits += (size_t)f->prompt[i].n * f->prompt[i].vocab;
    }
}

/* A choice below this margin may be decided by rounding. */
static double least_margin(void)
{
    return dtype == MODEL_FLOAT32 ? 1e-3 : 0.05;
}

static void check_greedy(struct driver *d, const struct fixture_prompt *p, uint32_t chunk,
                         const char *label)
{
    struct err e;
    uint32_t n = p->n - p->n_prompt, i = 0;
    int32_t *got = malloc(n * sizeof *got);
    driver_reset(d, 0);
    driver_append(d, 0, p->token, p->n_prompt);
    if (driver_greedy(d, 0, n, chunk, got, &e) != ERR_OK) {
        fault(label, "greedy", &e);
    } else {
        while (i < n && p->margin[i] >= least_margin() && got[i] == p->token[p->n_prompt + i])
            i++;
        bool ok = i == n || p->margin[i] < least_margin();
        printf("%s %s: greedy, chunk %u: %u of %u tokens\n", ok ? "ok  " : "FAIL", label, chunk, i,
               n);
        if (ok)
            n_passed++;
        else
            n_failed++;
    }
    free(got);
}

static void run_checks(struct driver *d, const struct fixture *f, bool moe, const char *label)
{
    static const uint32_t chunks[] = { 0, 1, 7, 16, 23 };
    for (uint32_t i = 0; i < f->n_prompts; i++) {
        const struct fixture_prompt *p = &f->prompt[i];
        for (size_t k = 0; k < sizeof chunks / sizeof *chunks; k++)
            check_chunks(d, p, chunks[k], moe, label);
        check_hit(d, p, 0, moe, label);
        check_hit(d, p, 1, moe, label);
        if (dtype == MODEL_FLOAT32 || (device == MODEL_DEVICE_CUDA && !moe)) {
            check_greedy(d, p, 0, label);
            check_greedy(d, p, 7, label);
        }
    }
    check_beside(d, f, moe, label);
}

/* Load and compute; ends the program where the device is missing. */
static void run_form(const struct driver_options *o, const struct fixture *f, bool moe,
                     const char *temp, const char *label)
{
    struct err e;
    struct driver *d = driver_open(o, &e);
    if (d == NULL && strncmp(e.message, "device cuda: ", 13) == 0) {
        printf("skipped: %s\n", e.message);
        fixture_remove(temp);
        exit(77);
    }
    if (d == NULL) {
        fault(label, "loading", &e);
        return;
    }
    run_checks(d, f, moe, label);
    driver_close(d);
}

static bool has_tensor(const struct fixture *f, const char *part)
{
    bool found = false;
    for (const cJSON *t = cJSON_GetObjectItem(f->root, "tensors")->child; t != NULL; t = t->next)
        found = found || strstr(t->string, part) != NULL;
    return found;
}

static void run_dialect(const char *dir, const char *temp, const char *config,
                        const struct fixture *f)
{
    static const struct {
        uint32_t expand_from;
        const char *name;
    } forms[] = { { 0, "" }, { UINT32_MAX, ", absorbed" }, { 1, ", expanded" } };
    char from[4096], to[4096], label[256];
    struct err e;
    uint32_t longest = 0, total = 0;
    snprintf(label, sizeof label, "%s %s", f->family, config);
    snprintf(from, sizeof from, "%s/%s", dir, config);
    snprintf(to, sizeof to, "%s/config.json", temp);
    if (fixture_copy(from, to, &e) != ERR_OK) {
        fault(label, "config", &e);
        return;
    }
    for (uint32_t i = 0; i < f->n_prompts; i++) {
        longest = f->prompt[i].n > longest ? f->prompt[i].n : longest;
        total += f->prompt[i].n;
    }
    struct driver_options o = { .path = temp,
                                .dtype = dtype,
                                .device = device,
                                .max_model_len = longest,
                                .max_tokens = total,
                                .max_rows = FIXTURE_PROMPTS,
                                .max_outputs = total };
    bool moe = has_tensor(f, "experts"), latent = has_tensor(f, "kv_a_proj_with_mqa");
    for (size_t i = 0; i < (latent ? sizeof forms / sizeof *forms : 1); i++) {
        snprintf(label, sizeof label, "%s %s%s", f->family, config, forms[i].name);
        o.expand_from = forms[i].expand_from;
        run_form(&o, f, moe, temp, label);
    }
}

static void run_dir(const char *dir)
{
    struct fixture f;
    struct err e;
    char temp[4096], v5[4096];
    if (fixture_read(&f, dir, &e) != ERR_OK || fixture_temp_dir(temp, sizeof temp, &e) != ERR_OK) {
        fault(dir, "fixture", &e);
        fixture_fini(&f);
        return;
    }
    if (fixture_write_weights(&f, temp, &e) != ERR_OK) {
        fault(dir, "weights", &e);
    } else {
        run_dialect(dir, temp, "config.json", &f);
        snprintf(v5, sizeof v5, "%s/config.v5.json", dir);
        if (access(v5, F_OK) == 0)
            run_dialect(dir, temp, "config.v5.json", &f);
    }
    fixture_remove(temp);
    fixture_fini(&f);
}

int main(int argc, char **argv)
{
    int i = 1;
    for (; i + 1 < argc && strncmp(argv[i], "--", 2) == 0; i += 2) {
        if (strcmp(argv[i], "--backend") == 0 && strcmp(argv[i + 1], "cpu") == 0)
            continue;
        if (strcmp(argv[i], "--backend") == 0 && strcmp(argv[i + 1], "cuda") == 0) {
            device = MODEL_DEVICE_CUDA;
            dtype = MODEL_BFLOAT16;
            continue;
        }
        if (strcmp(argv[i], "--dtype") == 0 && strcmp(argv[i + 1], "float32") == 0)
            dtype = MODEL_FLOAT32;
        else if (strcmp(argv[i], "--dtype") == 0 && strcmp(argv[i + 1], "bfloat16") == 0)
            dtype = MODEL_BFLOAT16;
        else
            break;
    }
    if (i >= argc || strncmp(argv[i], "--", 2) == 0) {
        fprintf(stderr, "usage: model_conformance [--backend cpu|cuda] [--dtype float32|bfloat16] "
                        "DIR...\n");
        return 2;
    }
    for (; i < argc; i++)
        run_dir(argv[i]);
    printf("%u passed, %u failed\n", n_passed, n_failed);
    return n_failed != 0;
}
