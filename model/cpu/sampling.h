/* sampling.h: from rows of logits to tokens, on the host.
 *
 * Per row, in this order: logit_bias, the mask of min_tokens, repetition,
 * presence and frequency penalties, temperature, top_k, top_p, min_p; then one
 * uniform number of Philox4x32-10, keyed by the sequence's seed and the
 * position of the token, picks from what is left in order of id.  Temperatures
 * below 1e-5 and top_k = 1 are greedy: the largest logit, ties to the lowest
 * id.  Reported logprobs are the log-softmax of the raw logits.  A row with a
 * logit that is not finite fails and names no token.
 *
 * What a row gets depends on that row alone.  Owns scratch per worker and the
 * results of two steps; called by the engine's thread, and computed by
 * its pool. */
#ifndef MODEL_CPU_SAMPLING_H
#define MODEL_CPU_SAMPLING_H

#include "attention/platform/workers.h"
#include "proto/err.h"
#include "proto/plan/step_plan.h"

struct sampler;

MUST_USE enum err_code model_sampler_create(struct sampler **out, uint32_t vocab,
                                            uint32_t max_outputs, struct workers *pool,
                                            struct err *e);
void model_sampler_destroy(struct sampler *s);

/* out[i] for plan->output[i], from logits [n_outputs, vocab].  Borrowed until
 * the call after the next. */
MUST_USE enum err_code model_sampler_run(struct sampler *s, const struct step_plan *plan,
                                         const float *logits, const struct sampled **out,
                                         struct err *e);

#endif
