/* prefix.h: the index of computed prefixes, as sequences use it.
 *
 * Layer 5 of kvpool's inside, over blocks.h and nodes.h.  Engine thread alone. */
#ifndef KVPOOL_PREFIX_H
#define KVPOOL_PREFIX_H

#include "kvpool/pool.h"

struct prefix_hit {
    uint32_t n_blocks;      /* usable: the boundary                            */
    uint32_t n_walked;      /* known and resident in every unlimited group     */
    uint32_t node;          /* of the boundary; NIL when n_blocks = 0          */
    uint32_t bucket;        /* of that node's run                              */
    struct hash128 chain;   /* at the boundary                                 */
    uint64_t missed;        /* chain hash of the first block not walked        */
    uint32_t missed_bucket; /* its run's                                     */
    bool has_missed;
};

/* Walk tokens' whole blocks, at most (n - 1) / block_tokens.  path may be NULL;
 * else path[i] is the node of block i for the blocks walked. */
void kvpool_prefix_walk(const struct kvpool *p, const int32_t *tokens, uint32_t n,
                        const struct kvpool_key *key, uint32_t *path, struct prefix_hit *hit);

/* How n tokens divide into the hit and the misses, by reason. */
struct kvpool_lookup kvpool_prefix_divide(const struct kvpool *p, const struct kvpool_key *key,
                                          const struct prefix_hit *hit, uint32_t n);

/* The same into the counters. */
void kvpool_prefix_count(struct kvpool *p, const struct kvpool_lookup *l);

struct hash128 kvpool_prefix_domain(const struct kvpool *p, uint64_t salt);

/* A salt is about to be used: from now on remember unsalted chains. */
void kvpool_prefix_note_salt(struct kvpool *p, uint64_t salt);

/* Publish s's computed whole blocks that are not yet. */
void kvpool_prefix_publish(struct kvpool *p, seq_id s);

/* s is about to close: keep the window tails of its last whole block. */
void kvpool_prefix_publish_end(struct kvpool *p, seq_id s);

#endif
