/* weights_load.h: what the files that load weights share: loader.c reads and stores, for
 * weights_layer.c, and for weights.c, which calls both.  The thread that
 * opens the model. */
#ifndef MODEL_STEP_WEIGHTS_LOAD_H
#define MODEL_STEP_WEIGHTS_LOAD_H

#include "model/step/weights.h"

struct loader {
    struct weights *w;
    const struct model_config *c;
    struct checkpoint *ck;
    uint32_t max_model_len;
};

/* Bytes to the device, owned by the weights. */
MUST_USE enum err_code model_loader_store(struct loader *l, const void *host, size_t bytes,
                                          const char *what, void **out, struct err *e);

/* float32 values, stored as T (bfloat16 rounded to nearest even; v is overwritten) or
 * float32. */
MUST_USE enum err_code model_loader_values(struct loader *l, float *v, size_t n, bool as_t,
                                           const char *what, void **out, struct err *e);

/* A vector [n] as float32 in fresh host memory, taken by the caller. */
MUST_USE enum err_code model_loader_read(struct loader *l, const char *name, uint32_t n,
                                         float **out, struct err *e);

/* A vector [n] + plus on the device, as T or float32. */
MUST_USE enum err_code model_loader_vector(struct loader *l, const char *name, uint32_t n,
                                           float plus, bool as_t, void **out, struct err *e);

/* Pack a matrix; *out is owned by whoever holds the pointer. */
MUST_USE enum err_code model_loader_matrix(struct loader *l, const struct op_matrix_desc *d,
                                           struct op_matrix **out, struct err *e);

/* 1 where the family stores norm weights minus one, else 0. */
static inline float loader_plus_one(const struct loader *l)
{
    return l->c->family->features & FAMILY_NORM_PLUS_ONE ? 1 : 0;
}

/* All of layer i. */
MUST_USE enum err_code model_loader_layer(struct loader *l, uint32_t i, struct err *e);

#endif
