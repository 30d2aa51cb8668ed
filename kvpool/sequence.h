/* sequence.h: slots of sequences and pins, and the blocks they hold.
 *
 * Layer 7 of kvpool's inside, over prefix.h's hits and copies.h.  Engine thread
 * alone. */
#ifndef KVPOOL_SEQUENCE_H
#define KVPOOL_SEQUENCE_H

#include "kvpool/prefix.h"

/* Room for n_cols columns and n_tokens tokens; ERR_NOMEM changes nothing. */
MUST_USE enum err_code kvpool_seq_grow(struct kvpool *p, struct seq *s, uint32_t n_cols,
                                       uint32_t n_tokens, struct err *e);

/* A slot from the given free list, with room for n_tokens, started over. */
MUST_USE enum err_code kvpool_seq_take(struct kvpool *p, uint32_t *from, uint32_t n_tokens,
                                       seq_id *out, struct err *e);

/* Hold the blocks of a hit for s: all of an unlimited group, a window's tail. */
void kvpool_seq_hold(struct kvpool *p, struct seq *s, const struct prefix_hit *hit);

/* Give up all of s's blocks and its slot, tail first, so that of a chain its
 * end is evicted first. */
void kvpool_seq_release(struct kvpool *p, seq_id s, uint32_t *to);

#endif
