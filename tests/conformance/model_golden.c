/* model_golden.c: the bundled model repeats its golden continuations, however
 * the work is cut: alone, 32 at once, in chunks, over a prefix hit.
 *
 * usage: model_golden [--backend cpu|cuda] MODEL_DIR
 * On the CPU in float32; on a GPU in bfloat16, each compared up to the first
 * choice that rounding may flip.  Without a GPU the exit code is 77. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/text/json_file.h"
#include "support/model_driver.h"

enum { PROMPTS_MAX = 16, IDS_MAX = 256, ROWS = 32 };

struct golden {
    int32_t prompt[IDS_MAX], want[IDS_MAX];
    double margin[IDS_MAX];
    uint32_t n_prompt, n;
};

static struct golden golden[PROMPTS_MAX];
static uint32_t n_golden, n_passed, n_failed, n_compared;
static double least_margin = 1e-3;

static uint32_t read_ids(const cJSON *list, int32_t *out)
{
    uint32_t n = 0;
    for (const cJSON *v = list ? list->child : NULL; v != NULL && n < IDS_MAX; v = v->next)
        out[n++] = (int32_t)v->valuedouble;
    return n;
}

static void read_golden(const char *dir)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/golden.json", dir);
    FILE *f = fopen(path, "rb");
    static char text[1 << 20];
    size_t n = f ? fread(text, 1, sizeof text, f) : 0;
    if (f)
        fclose(f);
    cJSON *root = cJSON_ParseWithLength(text, n);
    if (!cJSON_IsArray(root)) {
        fprintf(stderr, "model_golden: %s: cannot be read\n", path);
        exit(2);
    }
    for (const cJSON *g = root->child; g != NULL && n_golden < PROMPTS_MAX; g = g->next) {
        struct golden *to = &golden[n_golden++];
        uint32_t m = 0;
        to->n_prompt = read_ids(cJSON_GetObjectItem(g, "ids"), to->prompt);
        to->n = read_ids(cJSON_GetObjectItem(g, "greedy"), to->want);
        const cJSON *list = cJSON_GetObjectItem(g, "margins");
        for (const cJSON *v = list ? list->child : NULL; v != NULL && m < IDS_MAX; v = v->next)
            to->margin[m++] = v->valuedouble;
        if (to->n_prompt == 0 || to->n == 0 || m != to->n) {
            fprintf(stderr, "model_golden: %s: a prompt is incomplete\n", path);
            exit(2);
        }
    }
    cJSON_Delete(root);
}

/* Compared up to the first choice that rounding may flip. */
static void compare(const char *how, uint32_t which, const int32_t *got)
{
    const struct golden *g = &golden[which];
    for (uint32_t i = 0; i < g->n; i++) {
        if (g->margin[i] < least_margin)
            break;
        n_compared++;
        if (got[i] != g->want[i]) {
            printf("FAIL %s, prompt %u: token %u is %d, expected %d (margin %g)\n", how, which, i,
                   got[i], g->want[i], g->margin[i]);
            n_failed++;
            return;
        }
    }
    n_passed++;
}

static void must(enum err_code rc, const struct err *e)
{
    if (rc == ERR_OK)
        return;
    fprintf(stderr, "model_golden: %s\n", e->message);
    exit(1);
}

static void run_alone(struct driver *d, uint32_t chunk, const char *how)
{
    struct err e;
    for (uint32_t i = 0; i < n_golden; i++) {
        int32_t got[IDS_MAX];
        driver_reset(d, 0);
        driver_append(d, 0, golden[i].prompt, golden[i].n_prompt);
        must(driver_greedy(d, 0, golden[i].n, chunk, got, &e), &e);
        compare(how, i, got);
    }
}

/* 32 sequences, started one step after the other so that prompts run beside
 * decodes. */
static void run_together(struct driver *d)
{
    static int32_t got[ROWS][IDS_MAX];
    uint32_t n[ROWS] = { 0 }, n_out, left = ROWS;
    struct err e;
    for (uint32_t s = 0; s < ROWS; s++) {
        driver_reset(d, s);
        driver_append(d, s, golden[s % n_golden].prompt, golden[s % n_golden].n_prompt);
    }
    for (uint32_t step = 1; left > 0; step++) {
        struct driver_row row[ROWS];
        uint32_t n_rows = 0, m = 0;
        for (uint32_t s = 0; s < ROWS && s < 3 * step; s++)
            if (n[s] < golden[s % n_golden].n)
                row[n_rows++] = (struct driver_row){ .seq = s, .n = driver_pending(d, s) };
        const struct sampled *out;
        must(driver_step(d, row, n_rows, &out, &n_out, &e), &e);
        for (uint32_t r = 0; r < n_rows; r++) {
            uint32_t s = row[r].seq;
            got[s][n[s]++] = out[m].token;
            driver_append(d, s, &out[m++].token, 1);
            left -= n[s] == golden[s % n_golden].n;
        }
    }
    for (uint32_t s = 0; s < ROWS; s++)
        compare("32 at once", s % n_golden, got[s]);
}

static void run_hit(struct driver *d)
{
    struct err e;
    for (uint32_t i = 0; i < n_golden; i++) {
        int32_t got[IDS_MAX];
        const struct golden *g = &golden[i];
        driver_reset(d, 0);
        driver_append(d, 0, g->prompt, g->n_prompt);
        must(driver_greedy(d, 0, g->n, 0, got, &e), &e);
        /* The second one finds the prompt and 20 tokens, in whole blocks. */
        uint32_t have = driver_share(d, 1, 0, (g->n_prompt + 20) / 16);
        uint32_t skipped = have - g->n_prompt;
        driver_append(d, 1, driver_tokens(d, 0) + have, 5);
        must(driver_greedy(d, 1, g->n - skipped - 5, 0, got + skipped + 5, &e), &e);
        compare("over a hit", i, got);
        driver_reset(d, 1);
    }
}

int main(int argc, char **argv)
{
    struct err e;
    bool cuda = argc == 4 && strcmp(argv[1], "--backend") == 0 && strcmp(argv[2], "cuda") == 0;
    bool cpu = argc == 4 && strcmp(argv[1], "--backend") == 0 && strcmp(argv[2], "cpu") == 0;
    if (argc != 2 && !cuda && !cpu) {
        fprintf(stderr, "usage: model_golden [--backend cpu|cuda] MODEL_DIR\n");
        return 2;
    }
    read_golden(argv[argc - 1]);
    struct driver_options o = { .path = argv[argc - 1],
                                .dtype = MODEL_FLOAT32,
                                .max_model_len = 512,
                                .max_tokens = 1024,
                                .max_rows = ROWS,
                                .max_outputs = ROWS };
    if (cuda) {
        o.device = MODEL_DEVICE_CUDA;
        o.dtype = MODEL_BFLOAT16;
        least_margin = 0.05;
    }
    struct driver *d = driver_open(&o, &e);
    if (d == NULL) {
        fprintf(stderr, "model_golden: %s\n", e.message);
        return strncmp(e.message, "device cuda: ", 13) == 0 ? 77 : 1;
    }
    run_alone(d, 0, "alone");
    run_alone(d, 7, "chunks of 7");
    run_alone(d, 16, "chunks of 16");
    run_together(d);
    run_hit(d);
    driver_close(d);
    printf("%u passed, %u failed, %u tokens compared\n", n_passed, n_failed, n_compared);
    return n_failed != 0;
}
