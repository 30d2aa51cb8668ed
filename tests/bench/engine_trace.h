/* engine_trace.h: requests that arrive over time, through the real scheduler and
 * pool, on a started model.  One thread. */
#ifndef TESTS_BENCH_ENGINE_TRACE_H
#define TESTS_BENCH_ENGINE_TRACE_H

#include "model/model.h"

struct trace_request {
    double at_s; /* arrival, from the start of the run; ascending */
    uint32_t n_in, n_out;
};

struct trace {
    struct trace_request *request; /* [n], owned */
    uint32_t n;
};

/* How a trace is drawn or where it is read from. */
struct trace_options {
    const char *file; /* lines "seconds prompt-tokens output-tokens", # begins a comment; or NULL */
    double rate;      /* arrivals a second, exponential gaps; 0: all at once */
    uint32_t burst;   /* requests that arrive together, >= 1; the rate stays */
    uint32_t n;       /* requests */
    uint32_t in_low, in_high, out_low, out_high; /* lengths, uniform */
    uint64_t seed;
    /* For the bound; 0: none is printed.  The device's rates, and what a token costs. */
    double tflops, tbps, gflop;
};

/* ERR_IO, ERR_INVALID (names the line), ERR_NOMEM. */
MUST_USE enum err_code trace_make(struct trace *out, const struct trace_options *o, struct err *e);
void trace_free(struct trace *t);

/* Run it in real time: arrivals are submitted when they are due; print output
 * tokens a second, time to first token, time between tokens, and the share of the
 * bound below.  Every prompt is random, so none is in the prefix cache.
 *
 * Bound: the run takes at least as long as each of
 *   work     gflop a computed token, and the KV bytes that each generated token's
 *            attention reads, one after the other, at the device's rates
 *   weights  every step reads them, and a step gives at most max_rows tokens
 *   last     an arrival and one step a token behind it
 * For dense models without windows: all weights and keys are read. */
struct trace_limits {
    uint32_t n_blocks, max_tokens, max_rows, max_outputs;
};
MUST_USE enum err_code trace_run(struct model *m, const struct trace *t,
                                 const struct trace_limits *lim, const struct trace_options *o,
                                 struct err *e);

#endif
