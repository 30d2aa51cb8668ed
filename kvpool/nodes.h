/* nodes.h: nodes, and the index that finds them by hash.
 *
 * Layer 3 of kvpool's inside, over lists.h: what is looked up and changed of one
 * node at a time; prefix.h does so for runs of blocks.  Engine thread alone. */
#ifndef KVPOOL_NODES_H
#define KVPOOL_NODES_H

#include "kvpool/pool.h"

/* What a ghost remembers of an evicted node's key. */
static inline uint32_t kvpool_fingerprint(uint64_t key)
{
    return (uint32_t)(key >> 32);
}

/* The entries that may have this key's tag: 0x80 in their bytes.  All that do, and
 * seldom one above such that does not. */
static inline uint64_t kvpool_bucket_match(const struct bucket *l, uint64_t key)
{
    const uint64_t ones = 0x0101010101010101u;
    uint64_t differ = l->tags ^ (key >> 32 & 0xff) * ones;
    return (differ - ones) & ~differ & ones << 7;
}

/* The first entry of such a set, which is not empty. */
static inline uint32_t kvpool_mask_first(uint64_t match)
{
    return (uint32_t)__builtin_ctzll(match) / 8;
}

/* A node in `bucket` that may have this key, without looking at it; NIL if there is
 * none.  *elsewhere: it may also lie in other buckets. */
static inline uint32_t kvpool_index_candidate(const struct kvpool *p, uint32_t bucket, uint64_t key,
                                              bool *elsewhere)
{
    const struct bucket *l = &p->bucket[bucket];
    uint64_t match = kvpool_bucket_match(l, key) & l->used;
    *elsewhere = l->n_elsewhere > 0;
    return match == 0 ? NIL : l->value[kvpool_mask_first(match)];
}

/* Four tokens in a vector register, loaded from any address. */
typedef uint64_t token_vector __attribute__((vector_size(16), aligned(sizeof(int32_t)), may_alias));

/* Whether two blocks of n tokens, 16 or a multiple, are equal. */
static inline bool kvpool_same(const int32_t *a, const int32_t *b, uint32_t n)
{
    token_vector differ = { 0 };
    for (uint32_t i = 0; i < n; i += 16) {
        const token_vector *x = (const token_vector *)(a + i), *y = (const token_vector *)(b + i);
        differ |= (x[0] ^ y[0]) | (x[1] ^ y[1]) | (x[2] ^ y[2]) | (x[3] ^ y[3]);
    }
    return (differ[0] | differ[1]) == 0;
}

static inline void kvpool_copy(int32_t *to, const int32_t *from, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16) {
        token_vector *x = (token_vector *)(to + i);
        const token_vector *y = (const token_vector *)(from + i);
        for (int j = 0; j < 4; j++)
            x[j] = y[j];
    }
}

/* Node n is the one for these tokens under parent. */
static inline bool kvpool_node_is(const struct kvpool *p, uint32_t n, uint32_t parent, uint64_t key,
                                  const int32_t *tokens)
{
    const struct node *d = kvpool_node(p, n);
    if (!d->in_use || d->key != key)
        return false;
    if (p->trust_hash)
        return true;
    return d->parent == parent && kvpool_same(kvpool_node_tokens(p, n), tokens, p->block_tokens);
}

/* The node for these tokens under parent, NIL: none. */
uint32_t kvpool_node_find(const struct kvpool *p, uint32_t parent, uint32_t bucket, uint64_t key,
                          const int32_t *tokens);

/* A new node in the index, with the number `preferred` if that is unused; NIL when
 * none is to be had, even by evicting a few cached blocks. */
uint32_t kvpool_node_add(struct kvpool *p, uint32_t preferred, uint32_t parent, uint32_t bucket,
                         uint64_t key, const int32_t *tokens);

/* Put a node in use into the index, which does not have it.  Clearing takes all
 * nodes out. */
void kvpool_index_put(struct kvpool *p, uint32_t n);
void kvpool_index_clear(struct kvpool *p);

/* Whether the index has n where n says. */
bool kvpool_index_has(const struct kvpool *p, uint32_t n);

/* Whether a node with this key lost a block to eviction, as far as remembered. */
bool kvpool_index_recalls(const struct kvpool *p, uint32_t bucket, uint64_t key);

/* Give an unused node back. */
void kvpool_node_recycle(struct kvpool *p, uint32_t n);

/* Free n if it is in use and nothing names it, and its ancestors likewise. */
void kvpool_node_free_unused(struct kvpool *p, uint32_t n);

/* One reference to a node less (a sequence left it). */
void kvpool_node_unref(struct kvpool *p, uint32_t node);

MUST_USE enum err_code kvpool_nodes_init(struct kvpool *p, struct err *e);
void kvpool_nodes_fini(struct kvpool *p);

/* Zeroed memory; large arrays lie on huge pages where the system has them.
 * NULL when there is none; released by free(). */
void *kvpool_array(size_t n, size_t size);

/* Withdraw b from the index: it is handed out, quarantined or reset.  A node
 * that nothing names any more is freed, with its ancestors. */
void kvpool_node_withdraw(struct kvpool *p, blk_id b, bool evicted);

/* What withdrawing b from the index will touch is about to be needed.  NIL: none. */
void kvpool_node_prefetch(const struct kvpool *p, uint32_t b);

#endif
