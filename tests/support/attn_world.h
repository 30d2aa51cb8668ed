/* attn_world.h: random calls of the attention operator, on host memory.
 *
 * A world fixes what no step changes (shapes, dtypes, attributes, capacities);
 * world_step fills every tensor anew for one step: lengths, block tables with
 * holes and stale entries, slots, positions, data.  Whatever no query may read
 * is poison (NaN bits), so that a kernel which reads too much shows it.
 * Owns its tensors.  One thread. */
#ifndef TESTS_SUPPORT_ATTN_WORLD_H
#define TESTS_SUPPORT_ATTN_WORLD_H

#include <stdbool.h>

#include "attention/attn.h"
#include "support/rng.h"

enum world_lengths { WORLD_RANDOM, WORLD_GROWN, WORLD_SHRUNK, WORLD_ZERO, WORLD_PERMUTED };

/* What a world may contain; a field left 0 lets chance decide. */
struct world_wish {
    bool decode;    /* token_count = batch_size                      */
    bool plain;     /* no bias, no output_qk: the fused kernels       */
    bool one_each;  /* every sequence at most one new token          */
    int32_t max_kv; /* capacity of a sequence, tokens                */
};

struct attn_world {
    struct rng rng;
    struct world_wish wish;
    struct attn_attrs attrs;
    struct attn_args args; /* host tensors, owned */
    int32_t batch, tokens, head_size, block_size, cols, num_blocks;
    int32_t *new_tokens; /* [batch] of the current step, owned */
    int64_t longest_kv, longest_query;
};

/* Aborts when memory runs out. */
void world_create(struct attn_world *w, uint64_t seed, struct world_wish wish);
void world_destroy(struct attn_world *w);
void world_step(struct attn_world *w, enum world_lengths how);

/* One line: shapes and features. */
void world_describe(const struct attn_world *w, char *buf, size_t n);

/* Elements and bytes of a tensor; element i as a float. */
int64_t world_elements(const struct attn_tensor *t);
size_t world_bytes(const struct attn_tensor *t);
float world_value(const struct attn_tensor *t, int64_t i);

#endif
