/* prefill_again_test.c: what a decode step adds, a prefill finds again.
 *
 *   prefill_again_test FIXTURE_DIR...
 *
 * For each model (latent, grouped and windowed attention among them), in float32
 * and through the scheduler and the pool: 64 greedy tokens of one request, against
 * 64 requests for a single token whose prompts grow by those tokens; with prefix
 * caching and without, prompts whole and in chunks, and latent attention also with
 * every prompt expanded.  The same ids, except behind a choice that is a tie within
 * rounding. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "model/model.h"
#include "scheduler/sched.h"
#include "support/fixture.h"

enum { TOKENS = 64, LENGTH = 256, SEQS = 4 };

static const float tie = 1e-4f;
static uint32_t n_failed;

struct way {
    const char *name;
    bool caching;
    uint32_t budget, expand_from;
};

/* Model, pool and scheduler, and what the last request gave. */
struct world {
    struct model *model;
    struct kvpool *pool;
    struct sched *sched;
    struct sample_params params;
    req_id last;
    int32_t token[TOKENS];
    float margin[TOKENS]; /* in log probability, of the first over the second */
    uint32_t n, n_cached;
    bool failed;
};

static void check(enum err_code rc, const struct err *e, const char *what)
{
    if (rc == ERR_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, e->message);
    exit(2);
}

static uint64_t now_us(void *ctx)
{
    struct timespec t;
    (void)ctx;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void on_event(void *ctx, const struct sched_event *ev)
{
    struct world *w = ctx;
    if (ev->kind == SCHED_TOKEN && w->n < TOKENS) {
        w->margin[w->n] =
            ev->out->n_top > 1 ? ev->out->top_logprob[0] - ev->out->top_logprob[1] : 0;
        w->token[w->n++] = ev->out->token;
        w->n_cached = ev->n_cached;
    }
    w->failed = w->failed || (ev->kind == SCHED_DONE && ev->finish != FINISH_LENGTH);
}

static void open_world(struct world *w, const char *dir, const struct way *y)
{
    struct err e;
    memset(w, 0, sizeof *w);
    struct model_options mo = { .path = dir,
                                .dtype = MODEL_FLOAT32,
                                .device = MODEL_DEVICE_CPU,
                                .block_tokens = 16,
                                .max_model_len = LENGTH,
                                .n_threads = 1 };
    check(model_open(&w->model, &mo, &e), &e, dir);
    const struct kv_layout *lay = &model_describe(w->model)->layout;
    uint32_t blocks = SEQS * LENGTH / 16 * lay->n_groups;
    struct model_limits lim = { .n_blocks = blocks,
                                .max_tokens = y->budget,
                                .max_rows = SEQS,
                                .max_outputs = SEQS,
                                .expand_from = y->expand_from };
    struct kvpool_config pc = { .n_blocks = blocks,
                                .max_seqs = SEQS,
                                .max_seq_tokens = LENGTH,
                                .max_chunk = y->budget,
                                .prefix_caching = y->caching };
    struct sched_config sc = { .max_num_seqs = SEQS,
                               .max_num_batched_tokens = y->budget,
                               .max_model_len = LENGTH,
                               .max_queued = 2,
                               .max_partial_prefills = 1,
                               .max_outputs = SEQS };
    struct sched_sink sink = { .ctx = w, .event = on_event };
    check(model_start(w->model, &lim, &e), &e, dir);
    check(kvpool_create(&w->pool, lay, &pc, &e), &e, "pool");
    check(sched_create(&w->sched, w->pool, lay, &sc, now_us, NULL, &sink, &e), &e, "scheduler");
    w->params = (struct sample_params){ .top_p = 1, .repetition_penalty = 1, .n_logprobs = 2 };
}

static void close_world(struct world *w)
{
    sched_destroy(w->sched);
    kvpool_destroy(w->pool);
    model_close(w->model);
}

/* max tokens after the prompt, into w->token. */
static void request(struct world *w, const int32_t *prompt, uint32_t n_prompt, uint32_t max)
{
    struct sched_request r = { .id = ++w->last,
                               .prompt = prompt,
                               .n_prompt = n_prompt,
                               .max_tokens = max,
                               .n = 1,
                               .params = &w->params };
    const struct step_plan *plan;
    struct err e;
    w->n = 0;
    check(sched_submit(w->sched, &r, &e), &e, "submit");
    while ((plan = sched_next(w->sched)) != NULL) {
        const struct sampled *out;
        check(model_forward(w->model, plan, &e), &e, "forward");
        check(model_collect(w->model, plan->step, &out, &e), &e, "collect");
        sched_commit(w->sched, plan, out);
    }
    if (w->failed || w->n != max) {
        fprintf(stderr, "request %llu: %u of %u tokens\n", (unsigned long long)r.id, w->n, max);
        exit(2);
    }
}

static void run_way(const char *name, const char *dir, const struct fixture_prompt *p,
                    const struct way *y)
{
    int32_t text[LENGTH], want[TOKENS];
    float margin[TOKENS];
    uint32_t n_cached = 0, i = 0;
    struct world w;
    memcpy(text, p->token, p->n_prompt * sizeof *text);
    open_world(&w, dir, y);
    request(&w, text, p->n_prompt, TOKENS);
    memcpy(want, w.token, sizeof want);
    memcpy(margin, w.margin, sizeof margin);
    memcpy(text + p->n_prompt, want, sizeof want);
    for (; i < TOKENS; i++) {
        request(&w, text, p->n_prompt + i, 1);
        n_cached += w.n_cached;
        if (w.token[0] != want[i])
            break;
    }
    bool tied = i < TOKENS && i >= TOKENS / 2 && margin[i] < tie;
    bool ok = (i == TOKENS || tied) && (n_cached > 0) == y->caching;
    printf("%s %s, %s: %u of %u tokens, %u cached%s\n", ok ? "ok  " : "FAIL", name, y->name, i,
           TOKENS, n_cached, tied ? ", then a tie" : "");
    n_failed += !ok;
    close_world(&w);
}

static void run_dir(const char *dir)
{
    static const struct way ways[] = {
        { "cached", true, LENGTH, 0 },
        { "not cached", false, LENGTH, 0 },
        { "not cached, in chunks", false, 24, 0 },
        { "cached, expanded", true, LENGTH, 2 },
        { "not cached, expanded", false, LENGTH, 2 },
    };
    struct fixture f;
    struct err e;
    char temp[2048], from[4096], to[4096];
    bool latent = false;
    check(fixture_read(&f, dir, &e), &e, dir);
    check(fixture_temp_dir(temp, sizeof temp, &e), &e, dir);
    check(fixture_write_weights(&f, temp, &e), &e, dir);
    snprintf(from, sizeof from, "%s/config.json", dir);
    snprintf(to, sizeof to, "%s/config.json", temp);
    check(fixture_copy(from, to, &e), &e, dir);
    for (const cJSON *t = cJSON_GetObjectItem(f.root, "tensors")->child; t != NULL; t = t->next)
        latent = latent || strstr(t->string, "kv_a_proj_with_mqa") != NULL;
    for (size_t i = 0; i < (latent ? 5 : 3); i++)
        run_way(f.family, temp, &f.prompt[0], &ways[i]);
    fixture_remove(temp);
    fixture_fini(&f);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: prefill_again_test FIXTURE_DIR...\n");
        return 2;
    }
    for (int i = 1; i < argc; i++)
        run_dir(argv[i]);
    return n_failed != 0;
}
