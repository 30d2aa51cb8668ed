/* rope.h: rotary settings, from either dialect of config.json to tables.
 * Pure functions; any thread. */
#ifndef MODEL_LOAD_ROPE_H
#define MODEL_LOAD_ROPE_H

#include "model/load/config.h"
#include "proto/text/json_file.h"

/* Fill c->rope[] from rope_parameters, or from rope_theta, rope_scaling,
 * rope_local_base_freq and partial_rotary_factor; and DeepSeek's correction of
 * c->softmax_scale. */
MUST_USE enum err_code model_config_read_rope(struct model_config *c, const struct json_object *o,
                                              struct err *e);

/* Channels that are rotated: a multiple of 2, at most head_dim (MLA: its rope
 * part). */
uint32_t model_rope_dim(const struct model_config *c, const struct rope_config *r);

/* cos and sin of every position and pair, [n_positions, model_rope_dim/2] float32,
 * attention factors multiplied in.  max_model_len chooses longrope's factors. */
void model_rope_fill(const struct model_config *c, const struct rope_config *r,
                     uint32_t max_model_len, float *cos_out, float *sin_out);

#endif
