/* resolve.h: the tokens that a plan leaves to the step before it.
 *
 * For backends that sample on the host: puts what the step before sampled where
 * token_from names it, and at the end of the histories that penalties read.
 * Owns the copies.  The engine's thread. */
#ifndef MODEL_STEP_RESOLVE_H
#define MODEL_STEP_RESOLVE_H

#include <stddef.h>

#include "proto/err.h"
#include "proto/plan/step_plan.h"

/* Zeroed: empty. */
struct step_resolve {
    struct step_plan plan;
    int32_t *token, *history;
    struct plan_output *output;
    size_t cap_token, cap_output, cap_history;
};

void model_step_resolve_fini(struct step_resolve *r);

/* *out: p itself where it names every token, else a copy that does, borrowed
 * until the next call.  before: results of step p->step - 1, [n_before]; NULL
 * where that step was not the last computed.  A result without a token (its
 * request ends) counts as token 0.  ERR_INVALID: an output that is not there.
 * ERR_NOMEM. */
MUST_USE enum err_code model_step_resolve_apply(struct step_resolve *r, const struct step_plan *p,
                                                const struct sampled *before, uint32_t n_before,
                                                const struct step_plan **out, struct err *e);

#endif
