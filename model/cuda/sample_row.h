/* sample_row.h: what the sampling kernel reads and writes for one output, and
 * how its token gets into the next step.
 * Plain data, copied as it lies; pointers are the device's. */
#ifndef MODEL_CUDA_SAMPLE_ROW_H
#define MODEL_CUDA_SAMPLE_ROW_H

#include <stdint.h>

#include "proto/plan/sample_params.h"

struct sample_out {
    int32_t token, failed;
    float logprob;
};

/* *to = the token of an output of the step before: what the plan could not know. */
struct token_patch {
    int32_t *to;
    uint32_t from;
};

/* A plan_output and its parameters; min_tokens is resolved: stop holds the ids
 * to mask, or none. */
struct sample_row {
    struct sample_out *out; /* NULL: skip */
    int32_t *top_token;     /* [n_top] */
    float *top_logprob;     /* [n_top] */
    const int32_t *history; /* [n_history] where penalties are on */
    const struct logit_bias *bias;
    const int32_t *stop;
    uint64_t seed;
    uint32_t n_top, n_history, n_prompt, n_bias, n_stop;
    float temperature, top_p, min_p;
    float repetition, presence, frequency;
    int32_t top_k, target;
    int32_t penalised, want_logprob;
};

/* The largest logit of a slice of a row, and whether all of them are finite. */
struct sample_part {
    float x;
    int32_t id, finite;
};

struct sample_scratch {
    float *edited;             /* [max_outputs, vocab] */
    uint32_t *seen;            /* the same; zero between steps */
    struct sample_part *parts; /* [max_outputs, sample_slices] */
};

#endif
