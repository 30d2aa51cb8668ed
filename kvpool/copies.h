/* copies.h: blocks to be copied before they can be written.
 *
 * Layer 6 of kvpool's inside, over blocks.h.  Engine thread alone. */
#ifndef KVPOOL_COPIES_H
#define KVPOOL_COPIES_H

#include "kvpool/pool.h"

/* Room for n more copies; ERR_NOMEM changes nothing. */
MUST_USE enum err_code kvpool_copies_grow(struct kvpool *p, uint32_t n, struct err *e);

/* A fresh block takes the place of `from`, which is group g's part-filled last
 * one: it becomes a source of s's reservation.  There must be room. */
void kvpool_copy_block(struct kvpool *p, struct seq *s, uint32_t g, blk_id from);

/* The step that copied has run: s's sources are released. */
void kvpool_copies_finish(struct kvpool *p, struct seq *s);

/* Put the sources back into the table; unseen as in kvpool_blk_drop. */
void kvpool_copies_undo(struct kvpool *p, struct seq *s, bool unseen);

/* s closes with copies that may not have run: cancel them, release their
 * sources. */
void kvpool_copies_cancel(struct kvpool *p, struct seq *s);

#endif
