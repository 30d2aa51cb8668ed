/* internal.h: the pool's data and the operations its files share.
 *
 * Included by kvpool/'s own files and by tests that must look inside (or break
 * something on purpose); by nobody else.  Engine thread alone.
 *
 * blocks   one struct blk an id; three lists (free, cached, resting); a held
 *          block is in none of them
 * nodes    one struct node for every distinct run of whole blocks from a
 *          sequence's start.  A node knows its parent and its own tokens, so a
 *          path from the root is an exact proof of equality; per group it names
 *          the block that holds its KV, if any is resident
 * records  block i and node i lie in one record with node i's tokens.  They
 *          have nothing to do with each other, but a node takes its first
 *          block's number where it can: then one place in memory has it all
 * index    lines of a few nodes each, found by hash
 * seqs     tables (one row a group), tokens, and where publishing has got to */
#ifndef KVPOOL_INTERNAL_H
#define KVPOOL_INTERNAL_H

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "kvpool/kvpool.h"

#define NIL UINT32_MAX

enum blk_state { BLK_FREE, BLK_CACHED, BLK_RESTING, BLK_HELD, BLK_QUARANTINED };

/* The first half of a record's first line. */
struct blk {
    uint64_t step;       /* idle or resting: the step that may last have used it */
    uint32_t node;       /* published under; NIL: not                            */
    uint32_t prev, next; /* in the list of its state; NIL: end                   */
    uint32_t at;         /* cached: when, by the lower half of lru.time; free:
                          * the block FREE_AHEAD further down, NIL: none         */
    uint32_t ref : 19;   /* table entries and copy sources naming it             */
    uint32_t lane : 5;   /* of struct lru, when cached                           */
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

enum { LANES = 7, FREE_AHEAD = 8 };

/* Cached blocks of one rank, in the order they were cached.  They are dealt out
 * to lanes, each a list; the oldest of the lanes' heads is the oldest of all.  So
 * the blocks that eviction comes to next are known without following one list
 * from miss to miss.  A prime, as texts have round lengths. */
struct lru {
    uint32_t n;
    uint32_t put, turn;    /* lanes that come next: to cache, to evict     */
    uint64_t time;         /* blocks ever cached here                      */
    uint64_t taken;        /* when the block evicted last had been cached  */
    uint64_t first[LANES]; /* when the head was; UINT64_MAX: empty lane    */
    uint32_t head[LANES], tail[LANES];
};

struct hash128 {
    uint64_t lo, hi;
};

/* The second half, with its resident blocks, one a group, behind; then its
 * tokens: a layout of one group and 16 tokens fills two adjacent lines. */
struct node {
    uint64_t key;       /* of its chain hash, mixed with its domain       */
    uint32_t line;      /* of the index: where its four are               */
    uint32_t parent;    /* NIL: a root; its tokens are salt and adapter   */
    uint32_t next;      /* in its line's chain, when way is CHAINED       */
    uint32_t refs;      /* children, and sequences standing on it         */
    uint8_t n_resident; /* groups whose block is resident                 */
    uint8_t way;        /* its place in the index, see struct line        */
    bool in_use : 1;
    bool stacked : 1; /* in kvpool.node_stack; what is not in use is    */
    bool evicted : 1; /* a block of it once was                         */
    blk_id block[];   /* [n_groups]; BLK_NONE: not resident             */
};

static_assert(offsetof(struct node, block) == 28, "with one block, half a cache line");

enum { WAYS = 8, FOUR = 4, OWN = WAYS, CHAINED = 2 * WAYS };

/* One cache line of the index.  Four consecutive blocks of a chain (columns 4k
 * to 4k + 3) share the line that the first one's key selects, so that what is
 * used together is fetched together.  A node that finds it full goes to the
 * line of its own key, and from there to the chain.  An evicted node's way
 * remembers its mark until another takes it.  Byte w of each word is way w's. */
struct line {
    uint64_t tags;        /* a byte of the key                                */
    uint64_t used, ghost; /* 0x80: value is a node; a mark                    */
    uint32_t value[WAYS];
    uint32_t chain;  /* nodes that found their own line full too              */
    uint32_t n_away; /* nodes that belong here, but lie elsewhere             */
};

static_assert(sizeof(struct line) == 64, "a line of the cache");

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
    uint32_t line;         /* of the index: where that node's four are          */
    struct hash128 chain;  /* hash of the published tokens                      */
    struct hash128 domain; /* hash of salt and adapter                         */
    uint64_t salt, adapter;
    uint8_t rank;
    struct kvpool_lookup found; /* at open */
    uint64_t expires;           /* pins only */
    uint32_t keep[3];           /* boundaries (in blocks) whose window tail is kept:
                                 * prompt end, where a repeat of the prompt can hit, a
                                 * branch seen at open; 0: none                        */
    int32_t *tokens;            /* [cap_tokens] owned                                 */
    blk_id *table;              /* [n_groups][cap_cols] owned                         */
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

    char *records; /* [max(n_blocks, n_nodes)] of record_bytes each */
    size_t record_bytes;

    struct blk_list free, resting;
    struct lru cached[KVPOOL_RANKS];
    uint32_t n_cached; /* over all ranks */
    uint32_t n_held, n_quarantined, group_held[KV_GROUPS];
    uint64_t launched, retired;

    uint32_t n_nodes, n_nodes_unused;
    uint32_t *node_stack, n_stacked; /* unused nodes, and some that were taken
                                      * by number and are skipped             */
    struct line *line;
    uint32_t line_mask;
    uint32_t *ghost_plain; /* plain chains published once: reasons of misses */
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

/* ---- memory ------------------------------------------------------------------ */

/* What lies at `at` is about to be used.  A compiler drops calls of functions
 * that only fetch, as if they did nothing; the empty statement keeps them. */
static inline void kvpool_fetch(const void *at)
{
    __builtin_prefetch(at, 1);
    __asm__ volatile("");
}

/* ---- records ---------------------------------------------------------------- */

static inline char *kvpool_record(const struct kvpool *p, uint32_t i)
{
    return p->records + i * p->record_bytes;
}

static inline struct blk *kvpool_blk(const struct kvpool *p, blk_id b)
{
    return (struct blk *)kvpool_record(p, (uint32_t)b);
}

static inline struct node *kvpool_node(const struct kvpool *p, uint32_t n)
{
    return (struct node *)(kvpool_record(p, n) + sizeof(struct blk));
}

/* The node's resident blocks, [n_groups]; BLK_NONE where there is none. */
static inline blk_id *kvpool_node_blocks(const struct kvpool *p, uint32_t n)
{
    return kvpool_node(p, n)->block;
}

static inline int32_t *kvpool_node_tokens(const struct kvpool *p, uint32_t n)
{
    return kvpool_node_blocks(p, n) + p->n_groups;
}

/* The record is about to be read or written: its first two lines.  NIL: none. */
static inline void kvpool_record_prefetch(const struct kvpool *p, uint32_t i)
{
    if (i == NIL)
        return;
    const char *at = kvpool_record(p, i);
    kvpool_fetch(at);
    kvpool_fetch(at + 64);
    ;
}

/* ---- blocks --------------------------------------------------------------- */

static inline void kvpool_list_unlink(struct kvpool *p, struct blk_list *l, uint32_t b)
{
    uint32_t prev = kvpool_blk(p, b)->prev, next = kvpool_blk(p, b)->next;
    *(prev == NIL ? &l->head : &kvpool_blk(p, prev)->next) = next;
    *(next == NIL ? &l->tail : &kvpool_blk(p, next)->prev) = prev;
    l->n--;
}

static inline void kvpool_list_append(struct kvpool *p, struct blk_list *l, uint32_t b)
{
    kvpool_blk(p, b)->prev = l->tail;
    kvpool_blk(p, b)->next = NIL;
    if (l->tail == NIL)
        l->head = b;
    else
        kvpool_blk(p, l->tail)->next = b;
    l->tail = b;
    l->n++;
}

static inline void kvpool_list_push(struct kvpool *p, struct blk_list *l, uint32_t b)
{
    kvpool_blk(p, b)->prev = NIL;
    kvpool_blk(p, b)->next = l->head;
    if (l->head == NIL)
        l->tail = b;
    else
        kvpool_blk(p, l->head)->prev = b;
    l->head = b;
    l->n++;
}

static inline uint32_t kvpool_n_idle(const struct kvpool *p)
{
    return p->free.n + p->n_cached;
}

/* The block that eviction takes next: of the lowest rank that has any, the one
 * cached longest ago; NIL: none. */
uint32_t kvpool_oldest(const struct kvpool *p);

/* The cached blocks of one rank in the order of eviction, over all lanes. */
struct lru_walk {
    const struct lru *l;
    uint32_t at[LANES], lane; /* lane: of the block that came last */
    uint64_t time[LANES];
};
void kvpool_walk_start(struct lru_walk *w, const struct kvpool *p, uint32_t rank);
/* The next block; NIL: no more.  It may be none of the pool's, which ends its
 * lane: the check finds out so. */
uint32_t kvpool_walk_next(struct lru_walk *w, const struct kvpool *p);

/* A cached block leaves its list. */
void kvpool_uncache(struct kvpool *p, uint32_t b);

/* A held or just published block serves a user of this rank. */
static inline void kvpool_raise(struct kvpool *p, blk_id b, uint8_t rank)
{
    if (kvpool_blk(p, b)->rank < rank)
        kvpool_blk(p, b)->rank = rank & 3;
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
    const struct blk *k = kvpool_blk(p, b);
    return k->ref - k->sources == 1 && k->node == NIL && (k->sources == 0 || k->copied <= offset);
}

/* ---- prefix index --------------------------------------------------------- */

struct prefix_hit {
    uint32_t n_blocks;    /* usable: the boundary                            */
    uint32_t n_walked;    /* known and resident in every unlimited group     */
    uint32_t node;        /* of the boundary; NIL when n_blocks = 0          */
    uint32_t line;        /* of that node's four                             */
    struct hash128 chain; /* at the boundary                                 */
    uint64_t missed;      /* chain hash of the first block not walked        */
    uint32_t missed_line; /* its four's                                      */
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

/* What withdrawing b from the index will touch is about to be needed.  NIL: none. */
void kvpool_prefix_prefetch(const struct kvpool *p, uint32_t b);

/* ---- nodes and their index ------------------------------------------------ */

static inline uint32_t kvpool_mark(uint64_t key)
{
    return (uint32_t)(key >> 32);
}

/* The ways that may have this key's tag: 0x80 in their bytes.  All that do, and
 * seldom one above such that does not. */
static inline uint64_t kvpool_line_ways(const struct line *l, uint64_t key)
{
    const uint64_t ones = 0x0101010101010101u;
    uint64_t differ = l->tags ^ (key >> 32 & 0xff) * ones;
    return (differ - ones) & ~differ & ones << 7;
}

/* The first way of a set that is not empty. */
static inline uint32_t kvpool_line_first(uint64_t ways)
{
    return (uint32_t)__builtin_ctzll(ways) / 8;
}

/* A node in `line` that may have this key, without looking at it; NIL if there is
 * none.  *elsewhere: it may also lie in other lines. */
static inline uint32_t kvpool_index_guess(const struct kvpool *p, uint32_t line, uint64_t key,
                                          bool *elsewhere)
{
    const struct line *l = &p->line[line];
    uint64_t ways = kvpool_line_ways(l, key) & l->used;
    *elsewhere = l->n_away > 0;
    return ways == 0 ? NIL : l->value[kvpool_line_first(ways)];
}

/* Four tokens in a register of the processor's, wherever they lie. */
typedef uint64_t four_tokens __attribute__((vector_size(16), aligned(sizeof(int32_t)), may_alias));

/* Whether two blocks of n tokens, 16 or a multiple, are equal. */
static inline bool kvpool_same(const int32_t *a, const int32_t *b, uint32_t n)
{
    four_tokens differ = { 0 };
    for (uint32_t i = 0; i < n; i += 16) {
        const four_tokens *x = (const four_tokens *)(a + i), *y = (const four_tokens *)(b + i);
        differ |= (x[0] ^ y[0]) | (x[1] ^ y[1]) | (x[2] ^ y[2]) | (x[3] ^ y[3]);
    }
    return (differ[0] | differ[1]) == 0;
}

static inline void kvpool_copy(int32_t *to, const int32_t *from, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16) {
        four_tokens *x = (four_tokens *)(to + i);
        const four_tokens *y = (const four_tokens *)(from + i);
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
uint32_t kvpool_node_find(const struct kvpool *p, uint32_t parent, uint32_t line, uint64_t key,
                          const int32_t *tokens);

/* A new node in the index, with the number `wish` if that is to be had; NIL when
 * none is, even by evicting a few cached blocks. */
uint32_t kvpool_node_add(struct kvpool *p, uint32_t wish, uint32_t parent, uint32_t line,
                         uint64_t key, const int32_t *tokens);

/* Put a node in use into the index, which does not have it.  Clearing takes all
 * nodes out. */
void kvpool_index_put(struct kvpool *p, uint32_t n);
void kvpool_index_clear(struct kvpool *p);

/* Whether the index has n where n says. */
bool kvpool_index_has(const struct kvpool *p, uint32_t n);

/* Whether a node with this key lost a block to eviction, as far as remembered. */
bool kvpool_index_recalls(const struct kvpool *p, uint32_t line, uint64_t key);

/* Give an unused node back. */
void kvpool_node_stack(struct kvpool *p, uint32_t n);

/* Free n if it is in use and nothing names it, and its ancestors likewise. */
void kvpool_node_tidy(struct kvpool *p, uint32_t n);

/* One reference to a node less (a sequence left it). */
void kvpool_node_leave(struct kvpool *p, uint32_t node);

MUST_USE enum err_code kvpool_nodes_init(struct kvpool *p, struct err *e);
void kvpool_nodes_fini(struct kvpool *p);

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
