/* engine_trace.c: see engine_trace.h.  The loop is the engine thread's, overlapped:
 * submit what is due, plan, begin, wait for the oldest step, commit.  Owns the
 * prompts and the records of one run. */
#include "bench/engine_trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/try.h"
#include "scheduler/sched.h"
#include "support/rng.h"

/* ---- traces ---- */

void trace_free(struct trace *t)
{
    free(t->request);
    *t = (struct trace){ 0 };
}

static enum err_code read_trace(struct trace *t, FILE *f, const char *name, struct err *e)
{
    char line[256];
    double last = 0;
    uint32_t cap = 0;
    for (uint32_t at = 1; fgets(line, sizeof line, f) != NULL; at++) {
        struct trace_request r;
        char *text = line + strspn(line, " \t");
        if (*text == '#' || *text == '\n' || *text == '\0')
            continue;
        if (sscanf(text, "%lf %u %u", &r.at_s, &r.n_in, &r.n_out) != 3 || !(r.at_s >= last) ||
            r.n_in == 0 || r.n_out == 0)
            return err_set(e, ERR_INVALID,
                           "%s:%u: expected ascending seconds, prompt tokens and output tokens, "
                           "at least one of each",
                           name, at);
        if (t->n == cap) {
            cap = cap ? 2 * cap : 256;
            struct trace_request *grown = realloc(t->request, cap * sizeof *grown);
            if (grown == NULL)
                return err_nomem(e, "trace", cap * sizeof *grown);
            t->request = grown;
        }
        t->request[t->n++] = r;
        last = r.at_s;
    }
    return t->n > 0 ? ERR_OK : err_set(e, ERR_INVALID, "%s: no request", name);
}

static uint32_t between(struct rng *r, uint32_t low, uint32_t high)
{
    return low + rng_below(r, high - low + 1);
}

static enum err_code draw_trace(struct trace *t, const struct trace_options *o, struct err *e)
{
    struct rng r = { o->seed };
    double at = 0;
    t->request = calloc(o->n, sizeof *t->request);
    if (t->request == NULL)
        return err_nomem(e, "trace", o->n * sizeof *t->request);
    t->n = o->n;
    for (uint32_t i = 0; i < o->n; i++) {
        if (o->rate > 0 && i > 0 && i % o->burst == 0)
            at -= log(1 - rng_unit(&r)) * o->burst / o->rate;
        t->request[i] = (struct trace_request){ at, between(&r, o->in_low, o->in_high),
                                                between(&r, o->out_low, o->out_high) };
    }
    return ERR_OK;
}

enum err_code trace_make(struct trace *out, const struct trace_options *o, struct err *e)
{
    struct trace t = { 0 };
    enum err_code rc;
    if (o->file == NULL) {
        rc = draw_trace(&t, o, e);
    } else {
        FILE *f = fopen(o->file, "r");
        if (f == NULL)
            return err_set(e, ERR_IO, "%s: cannot be read", o->file);
        rc = read_trace(&t, f, o->file, e);
        fclose(f);
    }
    if (rc == ERR_OK)
        *out = t;
    else
        trace_free(&t);
    return rc;
}

/* ---- a run ---- */

struct record {
    int32_t *prompt;
    double last_s; /* of its latest token; of its arrival before the first */
};

struct times {
    double *s; /* [cap], seconds */
    size_t n, cap;
};

struct run {
    struct model *m;
    struct kvpool *pool;
    struct sched *sched;
    const struct trace *trace;
    struct record *record; /* [trace->n] */
    struct times first, between, whole;
    uint64_t n_tokens, n_cached;
    uint32_t n_submitted, n_done, n_failed;
    uint64_t start_ns;
    struct rng rng;
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

static double elapsed(const struct run *r)
{
    return (double)(now_ns() - r->start_ns) * 1e-9;
}

/* There is room: trace_run counted. */
static void add(struct times *t, double s)
{
    if (t->n < t->cap)
        t->s[t->n++] = s;
}

static void on_event(void *ctx, const struct sched_event *ev)
{
    struct run *r = ctx;
    struct record *k = &r->record[ev->id - 1];
    double arrived = r->trace->request[ev->id - 1].at_s, now = elapsed(r);
    if (ev->kind == SCHED_TOKEN) {
        add(ev->n_output <= 1 ? &r->first : &r->between,
            now - (ev->n_output <= 1 ? arrived : k->last_s));
        k->last_s = now;
        r->n_tokens++;
    }
    if (ev->kind == SCHED_DONE) {
        add(&r->whole, now - arrived);
        r->n_cached += ev->n_cached;
        r->n_done++;
        r->n_failed += ev->finish != FINISH_LENGTH && ev->finish != FINISH_STOP;
    }
}

static enum err_code submit(struct run *r, uint32_t i, struct err *e)
{
    const struct trace_request *q = &r->trace->request[i];
    uint32_t vocab = model_describe(r->m)->vocab_size;
    struct record *k = &r->record[i];
    k->prompt = malloc(q->n_in * sizeof *k->prompt);
    if (k->prompt == NULL)
        return err_nomem(e, "prompt", q->n_in * sizeof *k->prompt);
    for (uint32_t t = 0; t < q->n_in; t++)
        k->prompt[t] = (int32_t)rng_below(&r->rng, vocab);
    struct sched_request s = { .id = i + 1,
                               .prompt = k->prompt,
                               .n_prompt = q->n_in,
                               .max_tokens = q->n_out,
                               .n = 1,
                               .params = &greedy };
    return sched_submit(r->sched, &s, e);
}

/* Until the next arrival; nothing runs. */
static void sleep_until_due(const struct run *r)
{
    double s = r->trace->request[r->n_submitted].at_s - elapsed(r);
    if (s <= 0)
        return;
    struct timespec t = { (time_t)s, (long)((s - floor(s)) * 1e9) };
    nanosleep(&t, NULL);
}

static enum err_code end_step(struct run *r, const struct step_plan *p, struct err *e)
{
    const struct sampled *out;
    TRY(model_collect(r->m, p->step, &out, e));
    sched_commit(r->sched, p, out);
    return ERR_OK;
}

static enum err_code loop(struct run *r, struct err *e)
{
    const struct step_plan *flight = NULL;
    r->start_ns = now_ns();
    while (r->n_done < r->trace->n) {
        while (r->n_submitted < r->trace->n && r->trace->request[r->n_submitted].at_s <= elapsed(r))
            TRY(submit(r, r->n_submitted++, e));
        const struct step_plan *p = sched_next(r->sched);
        if (p != NULL)
            TRY(model_forward(r->m, p, e));
        if (flight != NULL)
            TRY(end_step(r, flight, e));
        else if (p == NULL && r->n_submitted < r->trace->n)
            sleep_until_due(r);
        flight = p;
    }
    return ERR_OK;
}

/* ---- the report ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_times(const char *name, struct times *t)
{
    static const double q[] = { 0.5, 0.9, 0.99, 1 };
    static const char *const label[] = { "p50", "p90", "p99", "max" };
    qsort(t->s, t->n, sizeof *t->s, by_value);
    printf("  %-5s", name);
    for (int i = 0; i < 4 && t->n > 0; i++)
        printf("  %s %9.2f", label[i], t->s[(size_t)(q[i] * (double)(t->n - 1) + 0.5)] * 1e3);
    printf(" ms\n");
}

/* Bytes of a token's keys and values over all layers. */
static double kv_bytes(const struct kv_layout *lay)
{
    return (double)kv_layout_block_bytes(lay) / lay->block_tokens * lay->n_groups;
}

/* Seconds; see engine_trace.h. */
static double bound_s(const struct run *r, const struct trace_limits *lim,
                      const struct trace_options *o)
{
    const struct model_info *info = model_describe(r->m);
    double flop = 0, bytes = 0, out = 0, last = 0, kv = kv_bytes(&info->layout);
    double step = (double)info->weight_bytes / (o->tbps * 1e12);
    for (uint32_t i = 0; i < r->trace->n; i++) {
        const struct trace_request *q = &r->trace->request[i];
        double n = (double)q->n_in + q->n_out - 1;
        flop += o->gflop * 1e9 * n;
        bytes += kv * q->n_out * (q->n_in + 0.5 * (q->n_out - 1));
        out += q->n_out;
        last = fmax(last, q->at_s + q->n_out * step);
    }
    return fmax(
        fmax(flop / (o->tflops * 1e12) + bytes / (o->tbps * 1e12), out / lim->max_rows * step),
        last);
}

static void report(struct run *r, const struct trace_limits *lim, const struct trace_options *o,
                   double wall)
{
    uint64_t in = 0;
    for (uint32_t i = 0; i < r->trace->n; i++)
        in += r->trace->request[i].n_in;
    printf("trace of %u requests over %.2f s", r->trace->n,
           r->trace->request[r->trace->n - 1].at_s);
    if (o->file != NULL)
        printf(" (%s)", o->file);
    else
        printf(" (rate %g/s, bursts of %u, seed %llu)", o->rate, o->burst,
               (unsigned long long)o->seed);
    printf(": %.2f s, %u failed\n", wall, r->n_failed);
    printf("  output %llu tokens, %.1f tok/s;  prompt %llu tokens (%llu cached), %.1f tok/s\n",
           (unsigned long long)r->n_tokens, (double)r->n_tokens / wall, (unsigned long long)in,
           (unsigned long long)r->n_cached, (double)in / wall);
    print_times("TTFT", &r->first);
    print_times("ITL", &r->between);
    print_times("whole", &r->whole);
    if (o->tflops > 0 && o->tbps > 0 && o->gflop > 0) {
        double bound = bound_s(r, lim, o);
        printf(
            "  bound %.2f s (%.1f tok/s at %g TFLOP/s, %g TB/s and %g GFLOP a token): %.1f %% of "
            "it reached\n",
            bound, (double)r->n_tokens / bound, o->tflops, o->tbps, o->gflop, 100 * bound / wall);
    }
}

static enum err_code open_run(struct run *r, const struct trace_limits *lim, struct err *e)
{
    const struct model_info *info = model_describe(r->m);
    struct kvpool_config pc = { .n_blocks = lim->n_blocks,
                                .max_seqs = lim->max_rows,
                                .max_seq_tokens = info->max_model_len,
                                .max_chunk = lim->max_tokens };
    struct sched_config sc = { .max_num_seqs = lim->max_rows,
                               .max_num_batched_tokens = lim->max_tokens,
                               .max_model_len = info->max_model_len,
                               .max_queued = r->trace->n,
                               .max_partial_prefills = 1,
                               .max_outputs = lim->max_outputs,
                               .overlap = true };
    struct times *all[] = { &r->first, &r->between, &r->whole };
    size_t out = 0;
    for (uint32_t i = 0; i < r->trace->n; i++)
        out += r->trace->request[i].n_out;
    for (int i = 0; i < 3; i++) {
        all[i]->cap = i == 1 ? out : r->trace->n;
        all[i]->s = calloc(all[i]->cap, sizeof(double));
        if (all[i]->s == NULL)
            return err_nomem(e, "times", all[i]->cap * sizeof(double));
    }
    r->record = calloc(r->trace->n, sizeof *r->record);
    if (r->record == NULL)
        return err_nomem(e, "records", r->trace->n * sizeof *r->record);
    TRY(kvpool_create(&r->pool, &info->layout, &pc, e));
    return sched_create(&r->sched, r->pool, &info->layout, &sc, now_us, NULL,
                        &(struct sched_sink){ r, on_event }, e);
}

enum err_code trace_run(struct model *m, const struct trace *t, const struct trace_limits *lim,
                        const struct trace_options *o, struct err *e)
{
    struct run r = { .m = m, .trace = t, .rng = { o->seed + 1 } };
    enum err_code rc = open_run(&r, lim, e);
    if (rc == ERR_OK)
        rc = loop(&r, e);
    if (rc == ERR_OK)
        report(&r, lim, o, elapsed(&r));
    sched_destroy(r.sched);
    kvpool_destroy(r.pool);
    for (uint32_t i = 0; r.record != NULL && i < t->n; i++)
        free(r.record[i].prompt);
    free(r.record);
    free(r.first.s);
    free(r.between.s);
    free(r.whole.s);
    return rc;
}
