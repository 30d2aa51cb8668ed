/* backend.h: which device a model computes on.
 *
 * Owns the plugin that a device backend came from.  The thread that opens the
 * model. */
#ifndef MODEL_BACKEND_H
#define MODEL_BACKEND_H

#include "attention/platform/plugin.h"
#include "model/step/ops.h"

struct backend {
    struct plugin *plugin;             /* NULL on the CPU                    */
    char note[ERR_MESSAGE_BYTES + 64]; /* why this backend; "" when asked for */
    char kernels[256];                 /* model_info's */
};

/* Open the operations that opt->device and opt->dtype ask for.  AUTO takes a
 * GPU that can be used, else the CPU, and notes the reason; CUDA without one is
 * the plugin's or the driver's error.  On failure nothing stays open. */
MUST_USE enum err_code model_backend_open(struct backend *b, struct ops *ops,
                                          const struct model_options *opt, struct err *e);
/* Also after a failed open, or none (zeroed). */
void model_backend_close(struct backend *b, struct ops *ops);

#endif
