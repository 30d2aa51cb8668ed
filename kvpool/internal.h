/* internal.h: the pool's data and the operations its files share.
 *
 * Included by kvpool/'s own files and by tests that must look inside (or break
 * something on purpose); by nobody else.  Engine thread alone.
 *
 * blocks   one struct blk an id; three lists (free, cached, resting); a held
 *          block is in none of them
 * prefix   one struct node for every distinct run of whole blocks from a
 *          sequence's start.  A node knows its parent and its own tokens, so a
 *          path from the root is an exact proof of equality; per group it names
 *          the block that holds its KV, if any is resident
 * seqs     tables (one row a group), tokens, and where publishing has got to */
#ifndef KVPOOL_INTERNAL_H
#define KVPOOL_INTERNAL_H

#include <assert.h>
#include <stddef.h>

#include "kvpool/kvpool.h"

#define NIL UINT32_MAX

enum blk_state { BLK_FREE, BLK_CACHED, BLK_RESTING, BLK_HELD, BLK_QUARANTINED };

/* 32 bytes, so that a block is one line of the cache. */
struct blk {
    uint64_t step;       /* idle or resting: the step that may last have used it */
    uint32_t node;       /* published under; NIL: not                            */
    uint32_t prev, next; /* in the list of its state; NIL: end                   */
    uint32_t queued;     /* its entry in kvpool.queue, when cached               */
    uint32_t ref : 24;   /* table entries and copy sources naming it             */
    uint32_t state : 3;  /* enum blk_state                                       */
    uint32_t rank : 2;   /* of eviction: its users' highest since handed out     */
    uint32_t doomed : 1; /* to be quarantined when nobody holds it               */
    uint16_t sources;    /* of ref: copy sources of reservations                 */
    uint8_t copied;      /* furthest offset its copies read, while sources > 0   */
    uint8_t group;       /* last held by; meaningful while held or published     */
};

static_assert(sizeof(struct blk) == 32, "a block is half a cache line");
static_assert(KVPOOL_RANKS <= 4, "rank has two bits");

struct blk_list {
    uint32_t head, tail, n;
};

struct hash128 {
    uint64_t lo, hi;
};

/* Head of a node's record; its resident blocks, one a group, and its tokens
 * follow, so that a look-up touches adjacent lines only. */
struct node {
    struct hash128 key;  /* chain hash of its tokens, mixed with its domain      */
    uint32_t parent;     /* NIL: a root; its tokens are salt and adapter         */
    uint32_t next;       /* in its bucket                                        */
    uint32_t refs;       /* children, and sequences standing on it               */
    uint32_t n_resident; /* groups whose block is resident; NIL: node not in use */
};

struct seq {
    bool open;
    bool publish;     /* false once no node could be had                    */
    bool damaged;     /* the ledger check found a block of it at fault */
    uint32_t n_known; /* tokens[]                                           */
    uint32_t n_computed;
    uint32_t n_reserved;   /* past the computed ones                             */
    uint32_t n_last;       /* of these, by the last reserve                      */
    uint64_t reserved_at;  /* pool->launched at the first open reserve          */
    uint32_t n_published;  /* whole blocks walked into the prefix index         */
    uint32_t node;         /* of the last of these; NIL: none                   */
    struct hash128 chain;  /* hash of the published tokens                      */
    struct hash128 domain; /* hash of salt and adapter                         */
    uint64_t salt, adapter;
    uint8_t rank;
    struct kvpool_lookup found; /* at open */
    uint64_t expires; /* pins only */
    uint32_t keep[3]; /* boundaries (in blocks) whose window tail is kept:
                       * prompt end, where a repeat of the prompt can hit, a
                       * branch seen at open; 0: none                        */
    int32_t *tokens;  /* [cap_tokens] owned                                 */
    blk_id *table;    /* [n_groups][cap_cols] owned                         */
    uint32_t cap_tokens, cap_cols;
    uint32_t first[KV_GROUPS]; /* columns below are -1                         */
    blk_id source[KV_GROUPS];  /* copied from by the open reservation          */
    uint32_t n_sources;
    uint32_t next; /* unused slots                                       */
};

struct counters {
    uint64_t query_tokens, hit_tokens;
    uint64_t miss_never, miss_evicted, miss_salt, miss_granularity, miss_window;
    uint64_t evictions, copies, published;
    uint64_t checked_step, violations;
};

struct kvpool {
    struct kv_layout lay;
    struct kvpool_config cfg;
    uint32_t block_tokens, shift, n_groups, max_cols;
    uint32_t n_unlimited;    /* groups without a window */
    uint32_t boundary_every; /* blocks                  */

    struct blk *blk;
    struct blk_list free, cached[KVPOOL_RANKS], resting;
    uint32_t n_cached;         /* over all ranks */
    uint32_t *queue, n_queued; /* [n_blocks] ring: blocks in the order they were
                                * cached; only a hint of what to fetch next   */
    uint32_t n_held, n_quarantined, group_held[KV_GROUPS];
    uint64_t launched, retired;

    char *nodes; /* [n_nodes] records of node_bytes each */
    size_t node_bytes;
    uint32_t *node_stack; /* unused nodes */
    uint32_t n_nodes, n_nodes_unused;
    uint32_t *bucket, bucket_mask;
    uint32_t *ghost_evicted, *ghost_plain; /* what was published once: reasons of misses */
    uint32_t ghost_mask;
    bool salted;     /* a salt or adapter was ever seen                     */
    bool trust_hash; /* tests only: skip the token compare                  */

    struct seq *seq;
    uint32_t n_slots; /* max_seqs sequences, then max_pins pins */
    uint32_t seq_free, n_seqs, pin_free, n_pins, n_pinned;

    struct plan_copy *copy, *copy_out;
    uint32_t n_copies, cap_copies;
    uint32_t *path;         /* [max_cols] scratch of a look-up      */
    uint32_t *scratch;      /* [3 * n_blocks] scratch of the check  */
    uint32_t *node_scratch; /* [n_nodes]                       */
    struct counters count;
};

/* ---- windows: what a group may forget ------------------------------------ */

/* First column that a query at position `computed` or later still reads. */
static inline uint32_t kvpool_window_first(const struct kvpool *p, uint32_t g, uint32_t computed)
{
    uint32_t w = p->lay.group[g].window;
    return w == 0 || computed + 1 <= w ? 0 : (computed + 1 - w) >> p->shift;
}

/* Whether windowed group g keeps column col of s published for later hits. */
bool kvpool_window_keeps(const struct kvpool *p, const struct seq *s, uint32_t g, uint32_t col);

/* Default distance of periodic boundaries, in blocks. */
uint32_t kvpool_window_every(const struct kv_layout *lay);

/* ---- blocks --------------------------------------------------------------- */

static inline void kvpool_list_unlink(struct kvpool *p, struct blk_list *l, uint32_t b)
{
    uint32_t prev = p->blk[b].prev, next = p->blk[b].next;
    *(prev == NIL ? &l->head : &p->blk[prev].next) = next;
    *(next == NIL ? &l->tail : &p->blk[next].prev) = prev;
    l->n--;
}

static inline void kvpool_list_append(struct kvpool *p, struct blk_list *l, uint32_t b)
{
    p->blk[b].prev = l->tail;
    p->blk[b].next = NIL;
    if (l->tail == NIL)
        l->head = b;
    else
        p->blk[l->tail].next = b;
    l->tail = b;
    l->n++;
}

static inline void kvpool_list_push(struct kvpool *p, struct blk_list *l, uint32_t b)
{
    p->blk[b].prev = NIL;
    p->blk[b].next = l->head;
    if (l->head == NIL)
        l->tail = b;
    else
        p->blk[l->head].prev = b;
    l->head = b;
    l->n++;
}

static inline uint32_t kvpool_n_idle(const struct kvpool *p)
{
    return p->free.n + p->n_cached;
}

/* The list that eviction takes from: the lowest rank that has any. */
static inline struct blk_list *kvpool_victims(struct kvpool *p)
{
    uint32_t r = 0;
    while (r + 1 < KVPOOL_RANKS && p->cached[r].n == 0)
        r++;
    return &p->cached[r];
}

/* A cached block leaves its list. */
static inline void kvpool_uncache(struct kvpool *p, uint32_t b)
{
    kvpool_list_unlink(p, &p->cached[p->blk[b].rank], b);
    p->n_cached--;
}

/* A held or just published block serves a user of this rank. */
static inline void kvpool_raise(struct kvpool *p, blk_id b, uint8_t rank)
{
    if (p->blk[b].rank < rank)
        p->blk[b].rank = rank & 3;
}

/* A step was launched and has not ended. */
static inline bool kvpool_in_flight(const struct kvpool *p)
{
    return p->launched > p->retired;
}

/* All lists empty. */
void kvpool_lists_init(struct kvpool *p);

/* n idle blocks for group g, each held once, into out[]; evicts.  That many
 * must be idle. */
void kvpool_blk_take(struct kvpool *p, uint32_t g, blk_id *out, uint32_t n);

/* One more holder of a block that is held, resting or cached. */
void kvpool_blk_hold(struct kvpool *p, blk_id b);

/* One holder less; rests when a step is in flight, unless `unseen`: no launched
 * step knows the block. */
void kvpool_blk_drop(struct kvpool *p, blk_id b, bool unseen);

/* A block that nobody holds goes where it belongs now. */
void kvpool_blk_settle(struct kvpool *p, blk_id b);

/* Whether the one table that names b may write to it from `offset` on: nobody
 * else's, not published, and no copy still to be made reads that far. */
static inline bool kvpool_blk_writable(const struct kvpool *p, blk_id b, uint32_t offset)
{
    const struct blk *k = &p->blk[b];
    return k->ref - k->sources == 1 && k->node == NIL && (k->sources == 0 || k->copied <= offset);
}

/* ---- prefix index --------------------------------------------------------- */

static inline struct node *kvpool_node(const struct kvpool *p, uint32_t n)
{
    return (struct node *)(p->nodes + n * p->node_bytes);
}

/* The node's resident blocks, [n_groups]; BLK_NONE where there is none. */
static inline blk_id *kvpool_node_blocks(const struct kvpool *p, uint32_t n)
{
    return (blk_id *)(kvpool_node(p, n) + 1);
}

static inline int32_t *kvpool_node_tokens(const struct kvpool *p, uint32_t n)
{
    return kvpool_node_blocks(p, n) + p->n_groups;
}

/* The record is about to be read or written: its first two lines. */
static inline void kvpool_node_prefetch(const struct kvpool *p, uint32_t n)
{
    const char *at = p->nodes + n * p->node_bytes;
    __builtin_prefetch(at);
    __builtin_prefetch(at + 64);
}

struct prefix_hit {
    uint32_t n_blocks;     /* usable: the boundary                            */
    uint32_t n_walked;     /* known and resident in every unlimited group     */
    uint32_t node;         /* of the boundary; NIL when n_blocks = 0          */
    struct hash128 chain;  /* at the boundary                                 */
    struct hash128 missed; /* chain hash of the first block not walked       */
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

struct hash128 kvpool_prefix_domain(const struct kvpool *p, uint64_t salt, uint64_t adapter);

/* A salt or adapter is about to be used: from now on remember plain chains. */
void kvpool_prefix_note_salt(struct kvpool *p, uint64_t salt, uint64_t adapter);

/* Publish s's computed whole blocks that are not yet. */
void kvpool_prefix_publish(struct kvpool *p, seq_id s);

/* s is about to close: keep the window tails of its last whole block. */
void kvpool_prefix_publish_end(struct kvpool *p, seq_id s);

/* Withdraw b from the index: it is handed out, quarantined or reset.  A node
 * that nothing names any more goes, with its ancestors. */
void kvpool_prefix_forget(struct kvpool *p, blk_id b, bool evicted);

/* b's node, and what withdrawing b will touch, are about to be needed. */
void kvpool_prefix_prefetch(const struct kvpool *p, uint32_t b, int stage);

/* Free n if it is in use and nothing names it, and its ancestors likewise. */
void kvpool_prefix_tidy(struct kvpool *p, uint32_t n);

/* One reference to a node less (a sequence left it). */
void kvpool_prefix_leave(struct kvpool *p, uint32_t node);

MUST_USE enum err_code kvpool_prefix_init(struct kvpool *p, struct err *e);
void kvpool_prefix_fini(struct kvpool *p);

/* Zeroed memory; large arrays lie on huge pages where the system has them.
 * NULL when there is none; released by free(). */
void *kvpool_array(size_t n, size_t size);

/* ---- sequences ------------------------------------------------------------ */

static inline blk_id *kvpool_row(const struct kvpool *p, const struct seq *s, uint32_t g)
{
    (void)p;
    return s->table + (size_t)g * s->cap_cols;
}

static inline uint32_t kvpool_cols(const struct kvpool *p, uint32_t n_tokens)
{
    return (n_tokens + p->block_tokens - 1) >> p->shift;
}

static inline struct seq *kvpool_seq(const struct kvpool *p, seq_id s)
{
    assert(s < p->n_slots && p->seq[s].open);
    return &p->seq[s];
}

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

/* s closes with copies that may not have run: cancel them, release their
 * sources. */
void kvpool_seq_drop_sources(struct kvpool *p, struct seq *s);

#endif
