/* sim.c: the real pool and scheduler under synthetic load.
 *
 * Usage: sim [--option value]...   (sim --help lists them with their defaults)
 * Prints what a policy makes of a trace: throughput, hits, preemptions,
 * recomputation, latencies, fairness, pool use.  The ledger is checked all
 * through; a broken one, a lost request or a wrong token count ends with 1. */
#include "sim/sim.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SLOT_BITS = 20, SLOTS = 1 << SLOT_BITS, MAX_OUTPUT = 2048 };

/* A later turn, waiting for its time: a binary heap. */
struct later {
    uint64_t at_us;
    struct session *s;
};

struct sim {
    struct trace trace;
    struct kv_layout lay;
    struct kvpool *pool;
    struct sched *sched;
    struct sampled *out;
    struct session **slot; /* [SLOTS] live requests by id */
    uint32_t *slot_free, n_slot_free;
    uint64_t generation;
    struct later *heap;
    uint32_t n_heap, cap_heap;
    struct session **ended; /* of the last commit */
    uint32_t n_ended;
    uint64_t now_us, n_submitted, n_finished, n_refused, n_limit, n_rows, n_wrong;
    uint64_t max_requests;
    bool by_tenant;
    uint32_t n_tenants;
    struct tally ttft, ttft_light, ttft_kind[SIM_KINDS], itl;
    uint64_t preempted_requests, most_preempted;
    struct fairness fair;
    double use_sum, waste_sum, running_sum;
    uint64_t n_samples;
    bool dump;
};

struct options {
    uint64_t requests, seed, blocks, rows, budget, queue, partial, threshold, look_ahead, tenants;
    uint64_t itl_us, check, max_len;
    double rate, zipf, burst;
    const char *trace, *policy, *layout;
    bool no_prefix, table, dump;
};

static const int32_t eos = 0;

static void fail(const char *what)
{
    fprintf(stderr, "sim: %s\n", what);
    exit(1);
}

static uint64_t clock_of(void *ctx)
{
    return ((struct sim *)ctx)->now_us;
}

/* --- the heap of later turns --------------------------------------------------- */

static void later_push(struct sim *m, uint64_t at_us, struct session *s)
{
    if (m->n_heap == m->cap_heap) {
        m->cap_heap = m->cap_heap * 2 + 1024;
        m->heap = realloc(m->heap, m->cap_heap * sizeof *m->heap);
        if (m->heap == NULL)
            fail("out of memory");
    }
    uint32_t i = m->n_heap++;
    for (; i > 0 && m->heap[(i - 1) / 2].at_us > at_us; i = (i - 1) / 2)
        m->heap[i] = m->heap[(i - 1) / 2];
    m->heap[i] = (struct later){ at_us, s };
}

static struct session *later_pop(struct sim *m)
{
    struct session *s = m->heap[0].s;
    struct later last = m->heap[--m->n_heap];
    uint32_t i = 0;
    for (;;) {
        uint32_t c = 2 * i + 1;
        if (c >= m->n_heap)
            break;
        if (c + 1 < m->n_heap && m->heap[c + 1].at_us < m->heap[c].at_us)
            c++;
        if (m->heap[c].at_us >= last.at_us)
            break;
        m->heap[i] = m->heap[c];
        i = c;
    }
    if (m->n_heap > 0)
        m->heap[i] = last;
    return s;
}

/* --- what clients hear ----------------------------------------------------------- */

static void hear_token(struct sim *m, struct session *s, const struct sched_event *ev)
{
    if (ev->position != s->n_prompt + s->heard)
        m->n_wrong++;
    s->text[s->n_text++] = ev->out->token;
    if (s->heard++ == 0) {
        uint64_t us = m->now_us - s->arrived_us;
        tally_add(&m->ttft, us);
        tally_add(&m->ttft_kind[s->kind], us);
        if (s->tenant >= m->n_tenants / 2)
            tally_add(&m->ttft_light, us);
        fairness_waits(&m->fair, s->tenant, -1);
        fairness_serves(&m->fair, s->tenant, ev->n_prompt - ev->n_cached);
    } else {
        tally_add(&m->itl, m->now_us - s->last_us);
    }
    s->last_us = m->now_us;
    fairness_serves(&m->fair, s->tenant, 1);
}

static void hear(void *ctx, const struct sched_event *ev)
{
    struct sim *m = ctx;
    struct session *s = m->slot[ev->id & (SLOTS - 1)];
    if (s == NULL || s->id != ev->id) {
        m->n_wrong++;
        return;
    }
    if (ev->kind == SCHED_TOKEN) {
        hear_token(m, s, ev);
        return;
    }
    if (ev->finish != FINISH_STOP || s->heard != s->n_output)
        m->n_wrong++;
    m->preempted_requests += ev->n_preempted > 0;
    if (ev->n_preempted > m->most_preempted)
        m->most_preempted = ev->n_preempted;
    m->n_finished++;
    m->ended[m->n_ended++] = s;
}

/* --- what clients send -------------------------------------------------------------- */

static void session_end(struct session *s)
{
    session_free(s);
}

/* One line: what another server needs to be asked the same. */
static void dump_request(const struct session *s)
{
    printf("{\"at_us\":%llu,\"tenant\":%u,\"max_tokens\":%u,\"prompt\":[",
           (unsigned long long)s->arrived_us, s->tenant, s->n_output);
    for (uint32_t i = 0; i < s->n_prompt; i++)
        printf(i == 0 ? "%d" : ",%d", s->text[i]);
    printf("]}\n");
}

static void send_turn(struct sim *m, struct session *s)
{
    if (m->n_submitted >= m->max_requests || m->n_slot_free == 0) {
        session_end(s);
        return;
    }
    uint32_t slot = m->slot_free[m->n_slot_free - 1];
    s->id = m->generation++ << SLOT_BITS | slot;
    s->params = (struct sample_params){
        .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1, .n_stop_ids = 1, .stop_ids = &eos
    };
    struct sched_request q = { .id = s->id,
                               .prompt = s->text,
                               .n_prompt = s->n_prompt,
                               .max_tokens = MAX_OUTPUT,
                               .n = 1,
                               .tenant = m->by_tenant ? s->tenant + 1 : 0,
                               .params = &s->params };
    struct err e;
    m->n_submitted++;
    enum err_code rc = sched_submit(m->sched, &q, &e);
    if (rc != ERR_OK) {
        *(rc == ERR_BUSY ? &m->n_refused : &m->n_limit) += 1;
        session_end(s);
        return;
    }
    m->n_slot_free--;
    m->slot[slot] = s;
    fairness_waits(&m->fair, s->tenant, 1);
    if (m->dump)
        dump_request(s);
}

static uint64_t next_arrival_us(const struct sim *m)
{
    uint64_t at = m->n_submitted < m->max_requests ? trace_next_us(&m->trace) : UINT64_MAX;
    return m->n_heap > 0 && m->heap[0].at_us < at ? m->heap[0].at_us : at;
}

static void take_arrivals(struct sim *m)
{
    for (uint64_t at; (at = next_arrival_us(m)) <= m->now_us;) {
        struct session *s;
        if (m->n_heap > 0 && m->heap[0].at_us == at) {
            s = later_pop(m);
            if (!trace_turn(&m->trace, s)) {
                session_end(s);
                continue;
            }
        } else {
            s = trace_new(&m->trace);
            if (s == NULL)
                continue; /* drawn too long for the context */
        }
        s->arrived_us = at;
        send_turn(m, s);
    }
}

static void after_commit(struct sim *m)
{
    for (uint32_t i = 0; i < m->n_ended; i++) {
        struct session *s = m->ended[i];
        uint32_t slot = (uint32_t)(s->id & (SLOTS - 1));
        m->slot[slot] = NULL;
        m->slot_free[m->n_slot_free++] = slot;
        if (s->turns_left == 0)
            session_end(s);
        else
            later_push(m, m->now_us + trace_think_us(s), s);
    }
    m->n_ended = 0;
}

/* --- the run -------------------------------------------------------------------------- */

/* The model knows when an answer ends; the scheduler does not. */
static void compute(struct sim *m, const struct step_plan *p)
{
    for (uint32_t i = 0; i < p->n_outputs; i++) {
        const struct plan_output *o = &p->output[i];
        const struct session *s =
            (const void *)((const char *)o->params - offsetof(struct session, params));
        bool last = o->n_history - o->n_prompt + 1 == s->n_output;
        uint64_t hash = (s->salt + o->n_history) * 0x9E3779B97F4A7C15u;
        m->out[i] = (struct sampled){ .token = last ? eos : 1 + (int32_t)(hash >> 48) };
    }
}

static void sample_pool(struct sim *m)
{
    struct kvpool_stats st;
    struct sched_stats ss;
    kvpool_stats(m->pool, &st);
    sched_stats(m->sched, &ss);
    double slots = (double)st.n_held * m->lay.block_tokens;
    m->use_sum += (double)st.n_held / (double)st.n_blocks;
    m->waste_sum += slots > 0 ? (double)st.tokens_wasted / slots : 0;
    m->running_sum += ss.n_running;
    m->n_samples++;
}

static void run(struct sim *m)
{
    for (uint64_t step = 0;; step++) {
        take_arrivals(m);
        const struct step_plan *p = sched_next(m->sched);
        if (p == NULL) {
            uint64_t at = next_arrival_us(m);
            if (at == UINT64_MAX)
                return;
            m->now_us = at > m->now_us ? at : m->now_us;
            continue;
        }
        compute(m, p);
        m->now_us += gpu_step_us(&gpu_8b, &m->lay, p);
        m->n_rows += p->n_tokens;
        sched_commit(m->sched, p, m->out);
        after_commit(m);
        fairness_tick(&m->fair, m->now_us);
        if (step % 64 == 0)
            sample_pool(m);
    }
}

static void verify(const struct sim *m)
{
    struct kvpool_stats st;
    struct sched_stats ss;
    struct err e;
    kvpool_stats(m->pool, &st);
    sched_stats(m->sched, &ss);
    if (ss.ledger_violations > 0) {
        fprintf(stderr, "sim: ledger: %s\n", sched_last_violation(m->sched)->message);
        exit(1);
    }
    if (kvpool_check(m->pool, &e) != ERR_OK) {
        fprintf(stderr, "sim: ledger: %s\n", e.message);
        exit(1);
    }
    if (st.n_held + st.n_resting + st.n_seqs + ss.n_running + ss.n_waiting != 0)
        fail("blocks or sequences are left at the end");
    if (m->n_wrong > 0)
        fail("a request's tokens were lost, repeated or too few");
    if (m->n_finished + m->n_refused + m->n_limit != m->n_submitted)
        fail("requests were lost");
}

/* --- figures ---------------------------------------------------------------------------- */

static void report(const struct sim *m, const struct options *o, double wall_s)
{
    static const char *const kinds[] = { "chat", "rag", "agent", "long" };
    struct kvpool_stats st;
    struct sched_stats ss;
    kvpool_stats(m->pool, &st);
    sched_stats(m->sched, &ss);
    double computed = (double)m->n_rows, virt_s = (double)m->now_us / 1e6;
    double n = m->n_samples > 0 ? (double)m->n_samples : 1;
    double jain = m->fair.n_windows > 0 ? m->fair.sum / (double)m->fair.n_windows : 1;
    double hits = ss.tokens_prompt > 0
                      ? 100.0 * (double)ss.tokens_prompt_cached / (double)ss.tokens_prompt
                      : 0;
    double again = computed > 0 ? 100.0 * (double)ss.tokens_recomputed / computed : 0;
    if (o->table) {
        printf(
            "| %s | %s%s | %.0f | %.1f | %llu | %.2f | %.0f / %.0f | %.0f | %.1f / %.1f | %.3f | "
            "%.0f |\n",
            o->trace, o->policy, o->itl_us != 0 ? ", ITL target" : "",
            (double)ss.tokens_output / virt_s, hits, (unsigned long long)ss.preemptions, again,
            tally_ms(&m->ttft, 0.5), tally_ms(&m->ttft, 0.99), tally_ms(&m->ttft_light, 0.99),
            tally_ms(&m->itl, 0.5), tally_ms(&m->itl, 0.99), jain, 100 * m->use_sum / n);
        return;
    }
    printf("trace %s, policy %s, layout %s, %llu blocks, %llu rows, %llu tokens a step\n", o->trace,
           o->policy, o->layout, (unsigned long long)o->blocks, (unsigned long long)o->rows,
           (unsigned long long)o->budget);
    printf("requests      %llu sent, %llu finished, %llu refused by a full queue, %llu too long\n",
           (unsigned long long)m->n_submitted, (unsigned long long)m->n_finished,
           (unsigned long long)m->n_refused, (unsigned long long)m->n_limit);
    printf("virtual time  %.0f s, %.0f output and %.0f prompt tokens/s, %.0f rows running, %llu "
           "steps\n",
           virt_s, (double)ss.tokens_output / virt_s, (double)ss.tokens_prompt / virt_s,
           m->running_sum / n, (unsigned long long)ss.steps);
    printf("prefix hits   %.1f %% of %llu prompt tokens\n", hits,
           (unsigned long long)ss.tokens_prompt);
    printf("preemptions   %llu (of %llu requests, at most %llu of one), recomputed %.2f %% of "
           "computed tokens\n",
           (unsigned long long)ss.preemptions, (unsigned long long)m->preempted_requests,
           (unsigned long long)m->most_preempted, again);
    printf("TTFT          p50 %.0f  p90 %.0f  p99 %.0f ms; small tenants p99 %.0f ms\n",
           tally_ms(&m->ttft, 0.5), tally_ms(&m->ttft, 0.9), tally_ms(&m->ttft, 0.99),
           tally_ms(&m->ttft_light, 0.99));
    for (uint32_t k = 0; k < SIM_KINDS; k++)
        if (m->ttft_kind[k].n > 0)
            printf("  %-11s p50 %.0f  p99 %.0f ms of %llu\n", kinds[k],
                   tally_ms(&m->ttft_kind[k], 0.5), tally_ms(&m->ttft_kind[k], 0.99),
                   (unsigned long long)m->ttft_kind[k].n);
    printf("ITL           p50 %.1f  p90 %.1f  p99 %.1f ms\n", tally_ms(&m->itl, 0.5),
           tally_ms(&m->itl, 0.9), tally_ms(&m->itl, 0.99));
    printf(
        "fairness      Jain %.3f over %llu windows of 10 s with two or more backlogged tenants\n",
        jain, (unsigned long long)m->fair.n_windows);
    printf("pool          %.1f %% held, %.1f %% of held slots unused; ledger exact\n",
           100 * m->use_sum / n, 100 * m->waste_sum / n);
    printf("host          %.1f s of CPU, %.3f us a token row, %.1f us a step\n", wall_s,
           1e6 * wall_s / computed, 1e6 * wall_s / (double)ss.steps);
}

/* --- set-up ------------------------------------------------------------------------------- */

static void open_pool(struct sim *m, const struct options *o, const struct sched_config *sc)
{
    struct kv_layer_desc layer[32];
    struct err e;
    for (uint32_t i = 0; i < 32; i++) {
        bool window = strcmp(o->layout, "mixed") == 0 && i % 6 != 5;
        layer[i] =
            (struct kv_layer_desc){ window ? KV_WINDOW : KV_FULL, window ? 1024 : 0, 8, 128, 128 };
    }
    if (kv_layout_init(&m->lay, layer, 32, 16, KV_BF16, KV_BF16, &e) != ERR_OK)
        fail(e.message);
    struct kvpool_config pc = { .n_blocks = (uint32_t)o->blocks * m->lay.n_groups,
                                .max_seqs = sc->max_num_seqs,
                                .max_seq_tokens = sc->max_model_len,
                                .max_chunk = sc->max_num_batched_tokens,
                                .prefix_caching = !o->no_prefix };
    if (kvpool_create(&m->pool, &m->lay, &pc, &e) != ERR_OK)
        fail(e.message);
}

/* The policies that are compared: a scheduler configuration each. */
static void set_policy(struct sim *m, const struct options *o, struct sched_config *sc)
{
    m->by_tenant = strcmp(o->policy, "quire") == 0;
    if (m->by_tenant) {
        sc->max_partial_prefills = (uint32_t)o->partial;
        sc->long_prefill_threshold = (uint32_t)o->threshold;
        sc->look_ahead_tokens = (uint32_t)o->look_ahead;
    } else if (strcmp(o->policy, "vllm") == 0) {
        /* Arrival order, one part-done prompt, start whenever the prompt fits. */
        sc->max_partial_prefills = 1;
        sc->look_ahead_tokens = 1;
    } else if (strcmp(o->policy, "fcfs") == 0) {
        /* Arrival order, the whole output reserved: nothing is ever preempted. */
        sc->max_partial_prefills = 1;
        sc->look_ahead_tokens = INT32_MAX;
    } else {
        fail("--policy: quire, vllm or fcfs expected");
    }
}

static void set_trace(struct trace_config *t, const struct options *o)
{
    static const struct {
        const char *name;
        uint32_t share[SIM_KINDS];
        double rate, burst;
    } traces[] = {
        { "chat", { 100, 0, 0, 0 }, 7, 1 },   { "rag", { 0, 100, 0, 0 }, 12, 1 },
        { "agent", { 0, 0, 100, 0 }, 4, 1 },  { "long", { 0, 0, 0, 100 }, 2, 1 },
        { "mix", { 55, 25, 15, 5 }, 5.5, 1 }, { "burst", { 55, 25, 15, 5 }, 3, 6 },
    };
    for (size_t i = 0; i < sizeof traces / sizeof traces[0]; i++) {
        if (strcmp(o->trace, traces[i].name) != 0)
            continue;
        memcpy(t->share, traces[i].share, sizeof t->share);
        t->rate = o->rate > 0 ? o->rate : traces[i].rate;
        t->burst = o->burst > 0 ? o->burst : traces[i].burst;
        t->burst_every_s = 60;
        t->burst_for_s = 8;
        t->n_tenants = (uint32_t)o->tenants;
        t->zipf = o->zipf;
        t->max_model_len = (uint32_t)o->max_len;
        return;
    }
    fail("--trace: chat, rag, agent, long, mix or burst expected");
}

static void open_sim(struct sim *m, const struct options *o)
{
    struct err e;
    struct trace_config tc;
    struct sched_config sc = { .max_num_seqs = (uint32_t)o->rows,
                               .max_num_batched_tokens = (uint32_t)o->budget,
                               .max_model_len = (uint32_t)o->max_len,
                               .max_queued = (uint32_t)o->queue,
                               .itl_target_us = (uint32_t)o->itl_us,
                               .check_every = (uint32_t)o->check };
    set_policy(m, o, &sc);
    set_trace(&tc, o);
    m->max_requests = o->requests;
    m->dump = o->dump;
    m->n_tenants = (uint32_t)o->tenants;
    open_pool(m, o, &sc);
    if (sched_create(&m->sched, m->pool, &m->lay, &sc, clock_of, m, &(struct sched_sink){ m, hear },
                     &e) != ERR_OK)
        fail(e.message);
    m->out = calloc(o->rows * 2 + 256, sizeof *m->out);
    m->slot = calloc(SLOTS, sizeof *m->slot);
    m->slot_free = calloc(SLOTS, sizeof *m->slot_free);
    m->ended = calloc(o->rows + 1, sizeof *m->ended);
    if (m->out == NULL || m->slot == NULL || m->slot_free == NULL || m->ended == NULL ||
        !trace_open(&m->trace, &tc, o->seed) || !fairness_open(&m->fair, m->n_tenants))
        fail("out of memory");
    for (uint32_t i = SLOTS; i-- > 0;)
        m->slot_free[m->n_slot_free++] = i;
}

static void close_sim(struct sim *m)
{
    while (m->n_heap > 0)
        session_free(later_pop(m));
    sched_destroy(m->sched);
    kvpool_destroy(m->pool);
    trace_close(&m->trace);
    fairness_close(&m->fair);
    free(m->out);
    free(m->slot);
    free(m->slot_free);
    free(m->ended);
    free(m->heap);
    free(m);
}

static const struct flag {
    const char *name;
    enum { FLAG_COUNT, FLAG_REAL, FLAG_TEXT, FLAG_ON } kind;
    size_t at;
    const char *help;
} flags[] = {
    { "--requests", FLAG_COUNT, offsetof(struct options, requests), "how many to send" },
    { "--trace", FLAG_TEXT, offsetof(struct options, trace), "chat rag agent long mix burst" },
    { "--policy", FLAG_TEXT, offsetof(struct options, policy), "quire vllm fcfs" },
    { "--layout", FLAG_TEXT, offsetof(struct options, layout), "full, or mixed: 5 of 6 windowed" },
    { "--rate", FLAG_REAL, offsetof(struct options, rate),
      "new sessions a second; 0: the trace's" },
    { "--burst", FLAG_REAL, offsetof(struct options, burst), "rate factor in 8 s of each minute" },
    { "--tenants", FLAG_COUNT, offsetof(struct options, tenants), "API keys" },
    { "--zipf", FLAG_REAL, offsetof(struct options, zipf), "how unequal they are" },
    { "--blocks", FLAG_COUNT, offsetof(struct options, blocks), "KV blocks of 16 tokens, a group" },
    { "--rows", FLAG_COUNT, offsetof(struct options, rows), "max_num_seqs" },
    { "--budget", FLAG_COUNT, offsetof(struct options, budget), "max_num_batched_tokens" },
    { "--queue", FLAG_COUNT, offsetof(struct options, queue), "max_queued" },
    { "--max-len", FLAG_COUNT, offsetof(struct options, max_len), "max_model_len" },
    { "--partial", FLAG_COUNT, offsetof(struct options, partial), "quire: max_partial_prefills" },
    { "--threshold", FLAG_COUNT, offsetof(struct options, threshold),
      "quire: long_prefill_threshold" },
    { "--look-ahead", FLAG_COUNT, offsetof(struct options, look_ahead),
      "quire: look_ahead_tokens" },
    { "--itl-target", FLAG_COUNT, offsetof(struct options, itl_us), "us; 0: off" },
    { "--check", FLAG_COUNT, offsetof(struct options, check), "steps between ledger checks" },
    { "--seed", FLAG_COUNT, offsetof(struct options, seed), "of the trace" },
    { "--no-prefix", FLAG_ON, offsetof(struct options, no_prefix), "no prefix caching" },
    { "--dump", FLAG_ON, offsetof(struct options, dump), "print each request as JSON" },
    { "--table", FLAG_ON, offsetof(struct options, table), "print one row of a table" },
};

static void parse(struct options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const struct flag *f = NULL;
        for (size_t k = 0; k < sizeof flags / sizeof flags[0]; k++)
            if (strcmp(flags[k].name, argv[i]) == 0)
                f = &flags[k];
        if (f == NULL || (f->kind != FLAG_ON && i + 1 == argc)) {
            for (size_t k = 0; k < sizeof flags / sizeof flags[0]; k++)
                printf("%-13s %s\n", flags[k].name, flags[k].help);
            exit(strcmp(argv[i], "--help") != 0);
        }
        char *at = (char *)o + f->at;
        if (f->kind == FLAG_ON)
            *(bool *)at = true;
        else if (f->kind == FLAG_TEXT)
            *(const char **)(void *)at = argv[++i];
        else if (f->kind == FLAG_REAL)
            *(double *)(void *)at = strtod(argv[++i], NULL);
        else
            *(uint64_t *)(void *)at = strtoull(argv[++i], NULL, 10);
    }
    if (o->tenants == 0 || o->rows == 0 || o->requests == 0)
        fail("--tenants, --rows and --requests: at least 1 expected");
}

int main(int argc, char **argv)
{
    struct options o = { .requests = 20000,
                         .seed = 1,
                         .blocks = 12000,
                         .rows = 256,
                         .budget = 2048,
                         .queue = 100000,
                         .partial = 4,
                         .threshold = 1024,
                         .look_ahead = 0,
                         .tenants = 50,
                         .max_len = 32768,
                         .zipf = 1.1,
                         .check = 64,
                         .trace = "mix",
                         .policy = "quire",
                         .layout = "full" };
    parse(&o, argc, argv);
    struct sim *m = calloc(1, sizeof *m);
    if (m == NULL)
        fail("out of memory");
    open_sim(m, &o);
    struct timespec a, b;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    run(m);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    verify(m);
    report(m, &o, (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec));
    close_sim(m);
    return 0;
}
