/* forward.h: one step through the layers, written once for every family and
 * device.
 *
 * Owns the activations, the KV slabs and the attention handle.  The engine's
 * thread. */
#ifndef MODEL_STEP_FORWARD_H
#define MODEL_STEP_FORWARD_H

#include "model/load/config.h"
#include "model/step/ops.h"
#include "model/step/weights.h"
#include "proto/plan/kv_layout.h"

struct forward;

struct forward_limits {
    uint32_t n_blocks, max_tokens, max_rows, max_outputs;
    uint32_t max_seq_tokens; /* of the longest sequence */
    bool eager;              /* capture nothing */
    bool poison;             /* as model_limits says */
    uint32_t expand_from;    /* MLA: tokens from which on a row that begins in a
                              * step is expanded; 0: what operation counts say,
                              * UINT32_MAX: never (tests and benchmarks) */
};

/* One pass at a time.  ops, config, weights and layout are borrowed until destroy. */
MUST_USE enum err_code model_forward_create(struct forward **out, const struct ops *ops,
                                            const struct model_config *c, const struct weights *w,
                                            const struct kv_layout *lay,
                                            const struct forward_limits *lim, struct err *e);
void model_forward_destroy(struct forward *f);

/* Queue the plan; once ops->collect has waited, logits stand, [n_outputs, vocab]
 * float32 on the device. */
MUST_USE enum err_code model_forward_step(struct forward *f, const struct step_plan *plan,
                                          struct err *e);
float *model_forward_logits(const struct forward *f);

#endif
