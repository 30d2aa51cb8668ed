/* checkpoint.h: the tensors of a model directory, whichever files hold them.
 *
 * model.safetensors alone, or the shards that model.safetensors.index.json
 * names.  Only what the index names exists; a stray shard beside it does not.
 * Mapped, not read: tensors are borrowed until close.  Immutable after open
 * but for the used marks, which belong to the loading thread. */
#ifndef MODEL_LOAD_CHECKPOINT_H
#define MODEL_LOAD_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/load/safetensors.h"
#include "proto/err.h"

struct checkpoint;

MUST_USE enum err_code model_checkpoint_open(struct checkpoint **out, const char *dir,
                                             struct err *e);
void model_checkpoint_close(struct checkpoint *c);

/* NULL when absent. Marks the tensor used. */
const struct st_tensor *model_checkpoint_find(struct checkpoint *c, const char *name);

/* The tensor of that name, dtype BF16, F16 or F32, of exactly this shape (in
 * messages, the file, name, both shapes).  Marks it used. */
MUST_USE enum err_code model_checkpoint_need(struct checkpoint *c, const char *name,
                                             uint32_t n_dims, const uint64_t *shape,
                                             const struct st_tensor **out, struct err *e);

size_t model_checkpoint_n_tensors(const struct checkpoint *c);
const struct st_tensor *model_checkpoint_at(const struct checkpoint *c, size_t i, bool *used);

#endif
