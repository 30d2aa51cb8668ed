/* sched_bench.c: host time of a decode step.
 *
 * Rows that decode at a given context, everything else idle: microseconds of
 * sched_next, sched_commit and both, per step; the best and the median of many.
 * Arguments: rows (256), context tokens (2048), layout full|mixed (full). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "scheduler/sched.h"

enum { STEPS = 600, WARM = 40, OUTPUT = 3000 };

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t now_us(void *ctx)
{
    (void)ctx;
    return now_ns() / 1000;
}

static void count(void *ctx, const struct sched_event *ev)
{
    *(uint64_t *)ctx += ev->kind == SCHED_TOKEN;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void report(const char *what, uint64_t *ns)
{
    enum { MEDIAN = STEPS / 2, P99 = STEPS - STEPS / 100 };

    qsort(ns, STEPS, sizeof *ns, by_value);
    printf("%-8s best %8.1f us   median %8.1f us   p99 %8.1f us\n", what, (double)ns[0] / 1000,
           (double)ns[MEDIAN] / 1000, (double)ns[P99] / 1000);
}

static void must(enum err_code rc, const struct err *e)
{
    if (rc == ERR_OK)
        return;
    fprintf(stderr, "%s\n", e->message);
    exit(1);
}

struct bench {
    struct kv_layout lay;
    struct kvpool *pool;
    struct sched *sched;
    struct sampled *out;
    uint64_t heard;
    uint32_t rows, context;
};

static void open_bench(struct bench *b, bool mixed)
{
    struct kv_layer_desc layer[6];
    uint32_t n = 0;
    struct err e;
    layer[n++] = (struct kv_layer_desc){ KV_FULL, 0, 8, 128, 128 };
    for (; mixed && n < 6; n++)
        layer[n] = (struct kv_layer_desc){ KV_WINDOW, 1024, 8, 128, 128 };
    must(kv_layout_init(&b->lay, layer, n, 16, KV_BF16, KV_BF16, &e), &e);
    uint32_t len = b->context + OUTPUT, cols = len / 16 + 2;
    struct kvpool_config pc = { .n_blocks = b->rows * cols * b->lay.n_groups,
                                .max_seqs = b->rows,
                                .max_seq_tokens = len,
                                .max_chunk = 8192,
                                .prefix_caching = true };
    must(kvpool_create(&b->pool, &b->lay, &pc, &e), &e);
    struct sched_config sc = { .max_num_seqs = b->rows,
                               .max_num_batched_tokens = 8192,
                               .max_model_len = len,
                               .max_queued = b->rows,
                               .max_partial_prefills = 4 };
    must(sched_create(&b->sched, b->pool, &b->lay, &sc, now_us, NULL,
                      &(struct sched_sink){ &b->heard, count }, &e),
         &e);
    b->out = calloc(b->rows * 2 + 256, sizeof *b->out);
    if (b->out == NULL)
        exit(1);
}

int main(int argc, char **argv)
{
    struct bench b = { .rows = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 256,
                       .context = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 2048 };
    static uint64_t plan_ns[STEPS], commit_ns[STEPS], both_ns[STEPS];
    bool mixed = argc > 3 && strcmp(argv[3], "mixed") == 0;
    open_bench(&b, mixed);
    int32_t *prompt = malloc((b.context + 1) * sizeof *prompt);
    if (prompt == NULL)
        return 1;
    struct sample_params p = { .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1 };
    struct err e;
    for (uint32_t r = 0; r < b.rows; r++) {
        for (uint32_t i = 0; i < b.context; i++)
            prompt[i] = (int32_t)(r * 7919u + i * 31u) & 0xffff;
        /* The scheduler borrows prompts, so each is a copy of its own. */
        int32_t *own = malloc(b.context * sizeof *own);
        if (own == NULL)
            return 1;
        memcpy(own, prompt, b.context * sizeof *own);
        struct sched_request q = { .id = r,
                                   .prompt = own,
                                   .n_prompt = b.context,
                                   .max_tokens = OUTPUT,
                                   .n = 1,
                                   .params = &p };
        must(sched_submit(b.sched, &q, &e), &e);
    }
    const struct step_plan *plan;
    do {
        plan = sched_next(b.sched);
        sched_commit(b.sched, plan, b.out);
    } while (plan->n_tokens != b.rows || plan->n_rows != b.rows);
    for (int i = -WARM; i < STEPS; i++) {
        uint64_t t0 = now_ns();
        plan = sched_next(b.sched);
        uint64_t t1 = now_ns();
        sched_commit(b.sched, plan, b.out);
        uint64_t t2 = now_ns();
        if (plan->n_tokens != b.rows) {
            fprintf(stderr, "a step of %u tokens: not %u decode rows\n", plan->n_tokens, b.rows);
            return 1;
        }
        if (i >= 0) {
            plan_ns[i] = t1 - t0;
            commit_ns[i] = t2 - t1;
            both_ns[i] = t2 - t0;
        }
    }
    printf("%u rows at %u tokens, %u groups\n", b.rows, b.context, b.lay.n_groups);
    report("next", plan_ns);
    report("commit", commit_ns);
    report("step", both_ns);
    sched_destroy(b.sched);
    kvpool_destroy(b.pool);
    return 0;
}
