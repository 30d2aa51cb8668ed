/* engine_bench.c: how fast the model computes, and what the host adds.
 *
 * usage: engine_bench [--device cpu|cuda] [--dtype auto|float32|bfloat16]
 *                     [--threads N] [--max-tokens N] [--graphs 0|1]
 *                     [--batch 1,8,32] [--context N] [--prefill 512] [--steps N]
 *                     [--expand-from N] DIR
 *        engine_bench --trace FILE|poisson [--rate R] [--burst N] [--requests N]
 *                     [--in A-B] [--out A-B] [--seed N] [--tflops X] [--tbps X] [--gflop X] DIR
 * --trace: requests that arrive over time instead (engine_trace.h).  --expand-from: model_limits'
 * (MLA: 4294967295 keeps prefill absorbed).  Prints load time, prefill tokens/s (one prompt of the
 * given length) and decode tokens/s per batch, each row at the given context: the model alone, then
 * driven by the scheduler, one step after the other and overlapped.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/engine_loop.h"
#include "bench/engine_trace.h"
#include "support/model_driver.h"

struct options {
    struct driver_options driver;
    uint32_t batch[16], n_batch, context, prefill, steps;
    struct trace_options trace;
    bool traced;
};

static const char usage[] =
    "usage: engine_bench [--device cpu|cuda] [--dtype auto|float32|bfloat16] [--threads N]\n"
    "                    [--max-tokens N] [--graphs 0|1] [--batch A,B,...] [--context N]\n"
    "                    [--prefill N] [--steps N] [--expand-from N] DIR\n"
    "       engine_bench --trace FILE|poisson [--rate R] [--burst N] [--requests N]\n"
    "                    [--in A-B] [--out A-B] [--seed N] [--tflops X] [--tbps X] [--gflop X] "
    "DIR\n"
    "--trace: requests that arrive over time: from FILE, lines of \"seconds prompt-tokens\n"
    "output-tokens\", or with exponential gaps, R a second (0: all at once), N together;\n"
    "lengths are uniform in A-B.  X, for a bound: the device's rates, a token's operations.\n";

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* CPU time of all threads: what a step costs on a machine that has other work. */
static double cpu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void die(const struct err *e)
{
    fprintf(stderr, "engine_bench: %s\n", e->message);
    exit(1);
}

static void fill(struct driver *d, uint32_t s, uint32_t n)
{
    uint32_t vocab = model_describe(driver_model(d))->vocab_size;
    driver_reset(d, s);
    for (uint32_t i = 0; i < n; i++) {
        int32_t t = (int32_t)((s * 7919u + i * 104729u + 13u) % vocab);
        driver_append(d, s, &t, 1);
    }
}

/* Compute the pending tokens of s, in steps of at most max tokens. */
static void prefill(struct driver *d, uint32_t s, uint32_t max)
{
    const struct sampled *out;
    uint32_t n_out;
    struct err e;
    while (driver_pending(d, s) > 0) {
        uint32_t n = driver_pending(d, s);
        struct driver_row row = { .seq = s, .n = n < max ? n : max };
        if (driver_step(d, &row, 1, &out, &n_out, &e) != ERR_OK)
            die(&e);
    }
}

static void bench_prefill(struct driver *d, const struct options *o)
{
    double best = 1e9, cpu = 1e9;
    for (int i = 0; i < 4; i++) {
        fill(d, 0, o->prefill);
        double t = now(), c = cpu_now();
        prefill(d, 0, o->driver.max_tokens);
        t = now() - t;
        c = cpu_now() - c;
        best = t < best ? t : best;
        cpu = c < cpu ? c : cpu;
    }
    printf("prefill %u tokens: %.1f ms (%.1f ms of CPU), %.1f tok/s\n", o->prefill, best * 1e3,
           cpu * 1e3, o->prefill / best);
}

static void bench_decode(struct driver *d, const struct options *o, uint32_t batch)
{
    double best = 1e9, total = 0, cpu = 0;
    struct err e;
    for (uint32_t s = 0; s < batch; s++) {
        fill(d, s, o->context);
        prefill(d, s, o->driver.max_tokens);
    }
    for (uint32_t i = 0; i < o->steps; i++) {
        struct driver_row row[DRIVER_SEQS];
        const struct sampled *out;
        uint32_t n_out;
        for (uint32_t s = 0; s < batch; s++) {
            int32_t t = (int32_t)(s + i);
            driver_append(d, s, &t, 1);
            row[s] = (struct driver_row){ .seq = s, .n = 1 };
        }
        double t = now(), c = cpu_now();
        if (driver_step(d, row, batch, &out, &n_out, &e) != ERR_OK)
            die(&e);
        t = now() - t;
        cpu += cpu_now() - c;
        total += t;
        best = t < best ? t : best;
    }
    printf("decode batch %u at context %u: %.3f ms a step (best %.3f, %.3f of CPU), %.1f tok/s "
           "(best %.1f)\n",
           batch, o->context, total / o->steps * 1e3, best * 1e3, cpu / o->steps * 1e3,
           batch * o->steps / total, batch / best);
}

/* "A" or "A-B". */
static bool parse_range(const char *text, uint32_t *low, uint32_t *high)
{
    char *end;
    *low = *high = (uint32_t)strtoul(text, &end, 10);
    if (*end == '-')
        *high = (uint32_t)strtoul(end + 1, &end, 10);
    return *end == '\0' && *low > 0 && *high >= *low;
}

/* false: not an option of a trace, or a bad value. */
static bool parse_trace(struct options *o, const char *name, const char *v)
{
    struct trace_options *t = &o->trace;
    if (strcmp(name, "--trace") == 0)
        t->file = strcmp(v, "poisson") == 0 ? NULL : v;
    else if (strcmp(name, "--rate") == 0)
        t->rate = strtod(v, NULL);
    else if (strcmp(name, "--burst") == 0)
        t->burst = (uint32_t)strtoul(v, NULL, 10);
    else if (strcmp(name, "--requests") == 0)
        t->n = (uint32_t)strtoul(v, NULL, 10);
    else if (strcmp(name, "--in") == 0)
        return parse_range(v, &t->in_low, &t->in_high);
    else if (strcmp(name, "--out") == 0)
        return parse_range(v, &t->out_low, &t->out_high);
    else if (strcmp(name, "--seed") == 0)
        t->seed = strtoull(v, NULL, 10);
    else if (strcmp(name, "--tflops") == 0)
        t->tflops = strtod(v, NULL);
    else if (strcmp(name, "--tbps") == 0)
        t->tbps = strtod(v, NULL);
    else if (strcmp(name, "--gflop") == 0)
        t->gflop = strtod(v, NULL);
    else
        return false;
    o->traced = o->traced || strcmp(name, "--trace") == 0;
    return t->rate >= 0 && t->burst > 0 && t->n > 0;
}

static int parse(struct options *o, int argc, char **argv)
{
    int i = 1;
    for (; i + 1 < argc && strncmp(argv[i], "--", 2) == 0; i += 2) {
        char *v = argv[i + 1];
        if (strcmp(argv[i], "--dtype") == 0) {
            o->driver.dtype = strcmp(v, "float32") == 0    ? MODEL_FLOAT32
                              : strcmp(v, "bfloat16") == 0 ? MODEL_BFLOAT16
                                                           : MODEL_AUTO;
        } else if (strcmp(argv[i], "--device") == 0) {
            o->driver.device = strcmp(v, "cuda") == 0 ? MODEL_DEVICE_CUDA : MODEL_DEVICE_CPU;
        } else if (strcmp(argv[i], "--max-tokens") == 0) {
            o->driver.max_tokens = (uint32_t)strtoul(v, NULL, 10);
        } else if (strcmp(argv[i], "--expand-from") == 0) {
            o->driver.expand_from = (uint32_t)strtoul(v, NULL, 10);
        } else if (strcmp(argv[i], "--graphs") == 0) {
            o->driver.eager = strcmp(v, "0") == 0;
        } else if (strcmp(argv[i], "--threads") == 0) {
            o->driver.n_threads = (uint32_t)strtoul(v, NULL, 10);
        } else if (strcmp(argv[i], "--context") == 0) {
            o->context = (uint32_t)strtoul(v, NULL, 10);
        } else if (strcmp(argv[i], "--prefill") == 0) {
            o->prefill = (uint32_t)strtoul(v, NULL, 10);
        } else if (strcmp(argv[i], "--steps") == 0) {
            o->steps = (uint32_t)strtoul(v, NULL, 10);
        } else if (strcmp(argv[i], "--batch") == 0) {
            o->n_batch = 0;
            for (char *p = strtok(v, ","); p && o->n_batch < 16; p = strtok(NULL, ","))
                o->batch[o->n_batch++] = (uint32_t)strtoul(p, NULL, 10);
        } else if (!parse_trace(o, argv[i], v)) {
            return -1;
        }
    }
    for (uint32_t b = 0; b < o->n_batch; b++)
        if (o->batch[b] == 0 || o->batch[b] > DRIVER_SEQS)
            return -1;
    return i + 1 == argc && argv[i][0] != '-' && o->steps > 0 && o->context > 0 ? i : -1;
}

static void bench_trace(struct driver *d, const struct options *o, const struct trace *t)
{
    struct trace_limits lim = { driver_blocks(d), o->driver.max_tokens, o->driver.max_rows,
                                o->driver.max_outputs };
    struct err e;
    if (trace_run(driver_model(d), t, &lim, &o->trace, &e) != ERR_OK)
        die(&e);
}

/* Tokens of the longest row that any part of the run needs. */
static uint32_t longest_row(const struct options *o, const struct trace *t)
{
    uint32_t n = o->context + 2 * o->steps + 256; /* the loop's rows start one after the other */
    n = n > o->prefill ? n : o->prefill;
    if (o->traced)
        n = 0;
    for (uint32_t i = 0; i < t->n; i++)
        if (t->request[i].n_in + t->request[i].n_out > n)
            n = t->request[i].n_in + t->request[i].n_out;
    return n;
}

int main(int argc, char **argv)
{
    struct options o = {
        .batch = { 1, 8, 32 }, .n_batch = 3, .context = 128, .prefill = 512, .steps = 16
    };
    struct trace trace = { 0 };
    struct err e;
    o.trace = (struct trace_options){
        .burst = 1, .n = 64, .in_low = 128, .in_high = 128, .out_low = 64, .out_high = 64, .seed = 1
    };
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        fputs(usage, stdout);
        return 0;
    }
    int at = parse(&o, argc, argv);
    if (at < 0) {
        fputs(usage, stderr);
        return 2;
    }
    if (o.traced && trace_make(&trace, &o.trace, &e) != ERR_OK)
        die(&e);
    o.driver.path = argv[at];
    o.driver.max_model_len = longest_row(&o, &trace);
    if (o.driver.max_tokens == 0)
        o.driver.max_tokens = 512;
    o.driver.max_rows = o.driver.max_outputs = DRIVER_SEQS;
    double t = now();
    struct driver *d = driver_open(&o.driver, &e);
    if (d == NULL)
        die(&e);
    const struct model_info *info = model_describe(driver_model(d));
    printf("%s, %.2f G parameters, %s, loaded in %.2f s\n", info->architecture,
           (double)info->n_parameters * 1e-9, info->dtype, now() - t);
    if (o.traced) {
        bench_trace(d, &o, &trace);
        trace_free(&trace);
        driver_close(d);
        return 0;
    }
    if (o.prefill > 0)
        bench_prefill(d, &o);
    for (uint32_t b = 0; b < o.n_batch; b++)
        bench_decode(d, &o, o.batch[b]);
    for (uint32_t b = 0; b < 2 * o.n_batch; b++)
        engine_loop_bench(driver_model(d), driver_blocks(d), o.driver.max_tokens,
                          o.driver.max_outputs, o.batch[b / 2], o.context, o.steps, b % 2);
    driver_close(d);
    return 0;
}
