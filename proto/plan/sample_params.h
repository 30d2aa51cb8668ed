/* sample_params.h: how the next token of one request is chosen.
 *
 * Filled from a client's body by the codec, immutable afterwards, read by the
 * scheduler (stop rules) and by model/ (sampling).  Owned by whoever holds the
 * request; arrays are owned with it. */
#ifndef PROTO_PLAN_SAMPLE_PARAMS_H
#define PROTO_PLAN_SAMPLE_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

struct logit_bias {
    int32_t token;
    float bias; /* added to the logit before everything else; -100..100 */
};

struct sample_params {
    float temperature;        /* 0: greedy (argmax, ties to the lowest id)       */
    float top_p;              /* (0, 1]; 1: off                                  */
    float min_p;              /* [0, 1]; 0: off                                  */
    int32_t top_k;            /* <= 0: off                                       */
    float repetition_penalty; /* > 0; 1: off; over prompt and output             */
    float presence_penalty;   /* -2..2; over output                              */
    float frequency_penalty;  /* -2..2; over output                              */
    uint64_t seed;            /* Philox key; set by the server when not given    */
    int32_t n_logprobs;       /* -1: none; else top-k alternatives to report     */
    uint32_t min_tokens;      /* ids in stop_ids are masked below this length    */
    uint32_t n_stop_ids;
    const int32_t *stop_ids; /* EOS ids (unless ignore_eos) and stop_token_ids  */
    uint32_t n_bias;
    const struct logit_bias *bias;
};

/* Whether a penalty reads the tokens so far. */
static inline bool sample_penalised(const struct sample_params *p)
{
    return p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0;
}

#endif
