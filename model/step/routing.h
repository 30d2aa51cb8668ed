/* routing.h: which experts a token visits, and with what weights.
 * Pure function; any thread. */
#ifndef MODEL_STEP_ROUTING_H
#define MODEL_STEP_ROUTING_H

#include "model/load/config.h"

enum { ROUTE_EXPERTS = 4096, ROUTE_TOP = 64 };

/* From one token's router logits [n_experts] (overwritten) to top_k experts,
 * best first (ties to the lowest), and their weights, scale included. */
void model_route_token(const struct moe_config *m, float *logits, const float *choice_bias,
                       uint32_t expert[ROUTE_TOP], float weight[ROUTE_TOP]);

#endif
