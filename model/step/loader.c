/* loader.c: from a checkpoint's tensors to vectors and matrices on the device, counted.
 * See weights_load.h. */
#include <stdlib.h>

#include "model/load/convert.h"
#include "model/step/weights_load.h"
#include "proto/try.h"

enum err_code model_loader_store(struct loader *l, const void *host, size_t bytes, const char *what,
                                 void **out, struct err *e)
{
    struct weights *w = l->w;
    struct allocation *grown =
        realloc(w->allocation, (w->n_allocations + 1) * sizeof *w->allocation);
    if (grown == NULL)
        return err_nomem(e, what, (w->n_allocations + 1) * sizeof *grown);
    w->allocation = grown;
    void *p;
    TRY(w->ops->alloc(w->ops->self, bytes, what, &p, e));
    w->allocation[w->n_allocations++] = (struct allocation){ p, bytes };
    TRY(w->ops->upload(w->ops->self, p, host, bytes, e));
    w->n_bytes += bytes;
    *out = p;
    return ERR_OK;
}

/* float32 values, stored as T (bfloat16 rounded to nearest even) or float32. */
enum err_code model_loader_values(struct loader *l, float *v, size_t n, bool as_t, const char *what,
                                  void **out, struct err *e)
{
    if (as_t && l->w->ops->type == OP_BF16) {
        model_convert_to_bf16(v, n, (uint16_t *)v);
        return model_loader_store(l, v, n * 2, what, out, e);
    }
    return model_loader_store(l, v, n * 4, what, out, e);
}

enum err_code model_loader_read(struct loader *l, const char *name, uint32_t n, float **out,
                                struct err *e)
{
    uint64_t shape[1] = { n };
    const struct st_tensor *t;
    TRY(model_checkpoint_need(l->ck, name, 1, shape, &t, e));
    float *v = malloc(n * sizeof *v);
    if (v == NULL)
        return err_nomem(e, name, n * sizeof *v);
    model_convert_strided(t->data, t->dtype, 0, 1, n, v);
    l->w->n_parameters += n;
    *out = v;
    return ERR_OK;
}

enum err_code model_loader_vector(struct loader *l, const char *name, uint32_t n, float plus,
                                  bool as_t, void **out, struct err *e)
{
    float *v;
    TRY(model_loader_read(l, name, n, &v, e));
    for (uint32_t i = 0; i < n; i++)
        v[i] += plus;
    enum err_code rc = model_loader_values(l, v, n, as_t, name, out, e);
    free(v);
    return rc;
}

enum err_code model_loader_matrix(struct loader *l, const struct op_matrix_desc *d,
                                  struct op_matrix **out, struct err *e)
{
    const struct ops *o = l->w->ops;
    TRY(o->matrix_create(o->self, d, out, e));
    l->w->n_bytes += o->matrix_bytes(*out);
    return ERR_OK;
}
