/* sample_rules.h: the rules of sampling that every device follows, one token at
 * a time: what bias, masks and penalties do to a logit, which parameters mean
 * "greedy" or "off", and the order of candidates.
 *
 * Compiles as C17 and as CUDA.  Pure functions on the caller's memory; any
 * thread, any device. */
#ifndef PROTO_PLAN_SAMPLE_RULES_H
#define PROTO_PLAN_SAMPLE_RULES_H

#include <math.h>
#include <stdbool.h>

#include "proto/number/bits.h"
#include "proto/plan/sample_params.h"

/* The largest logit is taken, without a draw: the temperature is so low that
 * dividing by it could overflow, or only one candidate is left. */
static HD bool sample_greedy(float temperature, int32_t top_k)
{
    return temperature < 1e-5f || top_k == 1;
}

/* Whether top_k leaves anything out of a vocabulary of that many. */
static HD bool sample_cuts_top_k(int32_t top_k, uint32_t vocab)
{
    return top_k > 1 && (uint32_t)top_k < vocab;
}

/* Share of the weight that top_p keeps, in [0, 1]. */
static HD float sample_share(float top_p)
{
    return top_p < 1.0f ? float_max(top_p, 0.0f) : 1.0f;
}

/* Least weight that min_p keeps, the largest weight being 1. */
static HD float sample_floor(float min_p)
{
    return float_max(min_p, 0.0f);
}

/* Candidates are ordered by falling weight, then by id. */
static HD bool sample_before(float weight, int32_t id, float other_weight, int32_t other_id)
{
    return weight > other_weight || (weight == other_weight && id < other_id);
}

/* Whether a candidate is kept when (last_weight, last_id) is the last one that is. */
static HD bool sample_kept(float weight, int32_t id, float last_weight, int32_t last_id)
{
    return weight > last_weight || (weight == last_weight && id <= last_id);
}

/* Add the biases, then mask ids with -infinity; ids outside of the vocabulary are
 * passed over. */
static HD void sample_bias_and_mask(float *logit, uint32_t vocab, const struct logit_bias *bias,
                                    uint32_t n_bias, const int32_t *masked, uint32_t n_masked)
{
    for (uint32_t i = 0; i < n_bias; i++)
        if ((uint32_t)bias[i].token < vocab)
            logit[bias[i].token] += bias[i].bias;
    for (uint32_t i = 0; i < n_masked; i++)
        if ((uint32_t)masked[i] < vocab)
            logit[masked[i]] = -INFINITY;
}

/* What penalties need to know of a token: how often it is in the output, and in
 * the highest bit whether it is in the prompt.  0: not seen. */
#define SAMPLE_IN_PROMPT 0x80000000u

/* A logit after the penalties of a token that was seen.  Repetition divides a
 * positive one and multiplies a negative one; the others are subtracted where the
 * token is in the output. */
static HD float sample_penalise(float logit, uint32_t seen, float repetition, float frequency,
                                float presence)
{
    uint32_t n = seen & ~SAMPLE_IN_PROMPT;
    float y = logit > 0 ? logit / repetition : logit * repetition;
    return n > 0 ? y - (frequency * (float)n + presence) : y;
}

#endif
