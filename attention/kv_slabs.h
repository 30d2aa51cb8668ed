/* kv_slabs.h: the bytes of the KV cache, which kvpool's block ids address.
 *
 * Owns the slab pairs of a layout: for each layer of a group one K slab and one
 * V slab of shape (n_blocks, block_tokens, kv_heads, width), on the device of
 * the attention backend.  On the CPU a page of a slab costs nothing until it is
 * first written.  Used by the engine thread; views may be read on any thread. */
#ifndef ATTENTION_KV_SLABS_H
#define ATTENTION_KV_SLABS_H

#include "attention/attn.h"
#include "proto/plan/kv_layout.h"
#include "proto/plan/step_plan.h"

struct attn_kv;

/* Map the slabs of n_blocks blocks, zeroed.  a is borrowed until destroy, lay is
 * copied. */
MUST_USE enum err_code attn_kv_create(struct attn_kv **out, struct attn *a,
                                      const struct kv_layout *lay, uint32_t n_blocks,
                                      struct err *e);
void attn_kv_destroy(struct attn_kv *kv);

/* The caches of a layer, ready to be inputs 3 and 4.  attn_kv_value is absent
 * (rank 0) for a latent layer. */
struct attn_tensor attn_kv_key(const struct attn_kv *kv, uint32_t layer);
struct attn_tensor attn_kv_value(const struct attn_kv *kv, uint32_t layer);

uint32_t attn_kv_n_blocks(const struct attn_kv *kv);

/* Bytes mapped over all slabs. */
uint64_t attn_kv_bytes(const struct attn_kv *kv);

/* Copy whole blocks over all slabs, in order, before anything that is queued on
 * stream afterwards: copy-on-write.  ERR_INVALID names an id out of range, and
 * then nothing has been copied. */
MUST_USE enum err_code attn_kv_copy(struct attn_kv *kv, const struct plan_copy *copy,
                                    uint32_t n_copies, void *stream, struct err *e);

/* Debugging: the last block of each slab, which nobody else may use, is filled with
 * NaN; attn_kv_poison then copies it over every block whose first slot the plan
 * stores, before anything that is queued on stream afterwards, so that what a
 * block held before, and what was never stored, cannot be read unnoticed. */
MUST_USE enum err_code attn_kv_poison_init(struct attn_kv *kv, struct err *e);
MUST_USE enum err_code attn_kv_poison(struct attn_kv *kv, const struct step_plan *p, void *stream,
                                      struct err *e);

/* kv_dtype and attn_dtype name the same formats. */
enum attn_dtype attn_dtype_of_kv(enum kv_dtype d);

#endif
