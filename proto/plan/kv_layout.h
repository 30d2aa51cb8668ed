/* kv_layout.h: how the KV cache of a model is cut into groups, slabs and blocks.
 *
 * Layers are grouped by attention kind (full, each window size, latent) into
 * groups of equal layer count (the last group of a kind may be short).  A block
 * holds block_tokens tokens of ONE group's layers, and every group draws its
 * blocks from the same pool of n_blocks ids, so a block costs the same bytes
 * whichever group holds it.
 *
 * Storage is layers_per_group slab pairs (K and V; LATENT has K only).  Slab i
 * has shape [n_blocks, block_tokens, kv_heads, width] and serves the i-th layer
 * of every group: two groups never hold the same block, so they never collide.
 * Hence the operator's block_table and slot_mapping of a group are valid for
 * slab i without translation:  slot = block * block_tokens + position % block_tokens.
 *
 * Pure data; any thread. */
#ifndef PROTO_PLAN_KV_LAYOUT_H
#define PROTO_PLAN_KV_LAYOUT_H

#include <stdint.h>

#include "proto/err.h"

enum { KV_GROUPS = 32, KV_LAYERS = 512 };

enum kv_kind { KV_FULL, KV_WINDOW, KV_LATENT };

enum kv_dtype { KV_F32, KV_F16, KV_BF16, KV_INT8, KV_E4M3 };

/* One transformer layer's cache, as the model describes it. */
struct kv_layer_desc {
    enum kv_kind kind;
    uint32_t window;   /* tokens, the query's own included; 0 unless KV_WINDOW */
    uint32_t kv_heads; /* 1 for KV_LATENT                                      */
    uint32_t k_width;  /* channels of a K head                                 */
    uint32_t v_width;  /* channels of a V head; 0 for KV_LATENT                */
};

struct kv_group {
    enum kv_kind kind;
    uint32_t window;   /* 0: unlimited */
    uint32_t n_layers; /* <= layers_per_group */
};

struct kv_layout {
    uint32_t block_tokens; /* power of two, 16..256 */
    uint32_t n_groups;
    uint32_t layers_per_group; /* = number of slab pairs */
    uint32_t kv_heads, k_width, v_width;
    enum kv_dtype k_dtype, v_dtype;
    struct kv_group group[KV_GROUPS];
    uint32_t n_layers;
    uint16_t layer_group[KV_LAYERS]; /* layer -> group                 */
    uint16_t layer_slab[KV_LAYERS];  /* layer -> index within its group */
};

/* Group n_layers layers.  Chooses layers_per_group for the fewest groups whose
 * padding (unused slab rows of short groups) stays within an eighth of the
 * layers, the least padding where none does; full groups come before windowed
 * ones.  ERR_INVALID names the layer when widths or heads
 * differ between layers, a window is 0, block_tokens is not a power of two in
 * 16..256, or more than KV_GROUPS groups would be needed. */
MUST_USE enum err_code kv_layout_init(struct kv_layout *out, const struct kv_layer_desc *layers,
                                      uint32_t n_layers, uint32_t block_tokens,
                                      enum kv_dtype k_dtype, enum kv_dtype v_dtype, struct err *e);

/* Bytes of one element. */
uint32_t kv_dtype_bytes(enum kv_dtype d);

/* Bytes of one block over all its slabs, K and V. */
uint64_t kv_layout_block_bytes(const struct kv_layout *lay);

/* Bytes of slab i's K (V) part for a pool of n_blocks. */
uint64_t kv_layout_k_slab_bytes(const struct kv_layout *lay, uint32_t n_blocks);
uint64_t kv_layout_v_slab_bytes(const struct kv_layout *lay, uint32_t n_blocks);

/* Blocks a sequence of n_tokens holds over all groups when at most chunk new
 * tokens enter a step: full groups ceil(n/B); a window W holds
 * min(ceil(n/B), ceil((W + chunk - 1)/B) + 1) (spec/paged-attention, windows). */
uint64_t kv_layout_blocks_for(const struct kv_layout *lay, uint64_t n_tokens, uint32_t chunk);

#endif
