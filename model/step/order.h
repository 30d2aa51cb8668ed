/* order.h: a step's rows in the order in which MLA computes them: those
 * that attend to the latent cache first, then those that are expanded.
 *
 * A row is expanded when its sequence begins in this step with at least
 * `expand_from` tokens.  Owns the reordered copy of a plan.  The engine's
 * thread. */
#ifndef MODEL_STEP_ORDER_H
#define MODEL_STEP_ORDER_H

#include "model/step/ops.h"

struct step_order;

/* The leading part of a step; the rest is expanded. */
struct step_part {
    uint32_t n_rows, n_tokens;
    uint32_t max_query_len, max_kv_len; /* over its rows */
};

/* For steps within lim. */
MUST_USE enum err_code model_step_order_create(struct step_order **out,
                                               const struct ops_limits *lim, struct err *e);
void model_step_order_destroy(struct step_order *s);

/* *out: the plan to compute in p's stead: p itself where its rows are in order,
 * else a copy, borrowed until the next call; its outputs keep their places.
 * *absorbed: what comes before the first expanded row.  ERR_LIMIT for a plan
 * beyond lim. */
MUST_USE enum err_code model_step_order_apply(struct step_order *s, const struct step_plan *p,
                                              uint32_t expand_from, const struct step_plan **out,
                                              struct step_part *absorbed, struct err *e);

#endif
