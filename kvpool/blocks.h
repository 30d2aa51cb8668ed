/* blocks.h: a block's life between held, resting and idle.
 *
 * Layer 4 of kvpool's inside, over lists.h and nodes.h.  Engine thread alone. */
#ifndef KVPOOL_BLOCKS_H
#define KVPOOL_BLOCKS_H

#include "kvpool/pool.h"

/* n idle blocks for group g, each held once, into out[]; evicts.  That many
 * must be idle. */
void kvpool_blk_take(struct kvpool *p, uint32_t g, blk_id *out, uint32_t n);

/* One more holder of a block that is held, resting or cached. */
void kvpool_blk_hold(struct kvpool *p, blk_id b);

/* One holder less; rests when a step is in flight, unless `unseen`: no launched
 * step knows the block. */
void kvpool_blk_drop(struct kvpool *p, blk_id b, bool unseen);

/* Whether the one table that names b may write to it from `offset` on: nobody
 * else's, not published, and no copy still to be made reads that far. */
static inline bool kvpool_blk_writable(const struct kvpool *p, blk_id b, uint32_t offset)
{
    const struct blk *k = kvpool_blk(p, b);
    return k->ref - k->sources == 1 && k->node == NIL && (k->sources == 0 || k->copied <= offset);
}

#endif
