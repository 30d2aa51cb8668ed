/* engine_loop.c: see engine_loop.h.  The loop is the engine thread's: plan, begin,
 * wait for the oldest, commit; without mail and events. */
#include "bench/engine_loop.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "scheduler/sched.h"

struct loop {
    struct model *m;
    struct kvpool *pool;
    struct sched *sched;
    int32_t *prompt;
    /* sums over the measured steps, ns */
    uint64_t plan, begin, wait, commit, gap, n, n_gaps;
    uint64_t ended; /* when the last step was seen to have ended */
};

static const struct sample_params greedy = { .top_p = 1,
                                             .repetition_penalty = 1,
                                             .n_logprobs = -1 };

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

static void no_event(void *ctx, const struct sched_event *ev)
{
    (void)ctx;
    (void)ev;
}

static void must(enum err_code rc, const struct err *e)
{
    if (rc == ERR_OK)
        return;
    fprintf(stderr, "engine_bench: %s\n", e->message);
    exit(1);
}

static void submit_all(struct loop *l, uint32_t batch, uint32_t context, uint32_t tokens)
{
    const struct model_info *info = model_describe(l->m);
    struct err e;
    l->prompt = malloc((size_t)batch * context * sizeof *l->prompt);
    if (l->prompt == NULL)
        must(err_nomem(&e, "prompts", (size_t)batch * context * sizeof *l->prompt), &e);
    for (uint32_t s = 0; s < batch; s++) {
        int32_t *p = l->prompt + (size_t)s * context;
        for (uint32_t i = 0; i < context; i++)
            p[i] = (int32_t)((s * 7919u + i * 104729u + 13u) % info->vocab_size);
        struct sched_request r = { .id = s + 1,
                                   .prompt = p,
                                   .n_prompt = context,
                                   .max_tokens = tokens,
                                   .n = 1,
                                   .params = &greedy };
        must(sched_submit(l->sched, &r, &e), &e);
    }
}

/* Wait for a step and commit it.  behind: the next one was begun already. */
static void end_step(struct loop *l, const struct step_plan *p, bool behind, bool measured)
{
    const struct sampled *out;
    struct err e;
    uint64_t t0 = now_ns();
    must(model_collect(l->m, p->step, &out, &e), &e);
    l->ended = now_ns();
    sched_commit(l->sched, p, out);
    if (!measured)
        return;
    l->wait += l->ended - t0;
    l->commit += now_ns() - l->ended;
    /* A wait means that the step still ran when its successor was in the queue. */
    if (behind)
        l->n_gaps += l->ended - t0 < 2000;
}

static void run(struct loop *l, uint32_t batch, bool overlap)
{
    const struct step_plan *flight = NULL;
    struct err e;
    bool before = false, whole = false; /* all rows decode: in the last step, in this one */
    for (;;) {
        uint64_t t0 = now_ns();
        const struct step_plan *p = sched_next(l->sched);
        uint64_t t1 = now_ns();
        before = whole;
        whole = p != NULL && p->n_rows == batch && p->n_tokens == batch;
        bool measured = before && whole;
        if (p != NULL)
            must(model_forward(l->m, p, &e), &e);
        uint64_t t2 = now_ns();
        if (measured) {
            l->n++;
            l->plan += t1 - t0;
            l->begin += t2 - t1;
            l->gap += flight == NULL ? t2 - l->ended : 0;
        }
        if (flight != NULL)
            end_step(l, flight, p != NULL, measured);
        if (p == NULL && flight == NULL)
            return;
        flight = p;
        if (!overlap && p != NULL) {
            end_step(l, p, false, measured);
            flight = NULL;
        }
    }
}

void engine_loop_bench(struct model *m, uint32_t n_blocks, uint32_t max_tokens,
                       uint32_t max_outputs, uint32_t batch, uint32_t context, uint32_t steps,
                       bool overlap)
{
    const struct model_info *info = model_describe(m);
    struct loop l = { .m = m };
    struct err e;
    struct kvpool_config pc = { .n_blocks = n_blocks,
                                .max_seqs = batch,
                                .max_seq_tokens = info->max_model_len,
                                .max_chunk = max_tokens };
    struct sched_config sc = { .max_num_seqs = batch,
                               .max_num_batched_tokens = max_tokens,
                               .max_model_len = info->max_model_len,
                               .max_queued = batch,
                               .max_partial_prefills = 1,
                               .max_outputs = max_outputs,
                               .overlap = overlap };
    must(kvpool_create(&l.pool, &info->layout, &pc, &e), &e);
    must(sched_create(&l.sched, l.pool, &info->layout, &sc, now_us, NULL,
                      &(struct sched_sink){ NULL, no_event }, &e),
         &e);
    /* Rows that start early must still run when the last one does. */
    uint32_t tokens = steps + 2 + (batch * context + max_tokens - 1) / max_tokens;
    if (tokens > info->max_model_len - context)
        tokens = info->max_model_len - context;
    submit_all(&l, batch, context, tokens);
    run(&l, batch, overlap);
    double n = l.n > 0 ? (double)l.n * 1e3 : 1e3; /* ns to us */
    double step = ((double)(l.plan + l.begin + l.wait + l.commit)) / n;
    printf("loop batch %u at context %u, %s: %.1f us a step (%.1f tok/s); host: plan %.1f, begin "
           "%.1f, commit %.1f us",
           batch, context, overlap ? "overlapped" : "one by one", step, batch / step * 1e6,
           (double)l.plan / n, (double)l.begin / n, (double)l.commit / n);
    if (info->async && overlap)
        printf("; begun too late for the device: %llu of %llu", (unsigned long long)l.n_gaps,
               (unsigned long long)l.n);
    else if (info->async)
        printf("; the device waits %.1f us", (double)l.gap / n);
    printf("\n");
    sched_destroy(l.sched);
    kvpool_destroy(l.pool);
    free(l.prompt);
}
