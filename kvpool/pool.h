/* pool.h: the pool's data, and how its records and tables are reached.
 *
 * The lowest layer of kvpool's inside: every other header builds on it.
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
 * index    a hash table of buckets, each one cache line with a few nodes
 * seqs     tables (one row a group), tokens, and where publishing has got to */
#ifndef KVPOOL_POOL_H
#define KVPOOL_POOL_H

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "kvpool/kvpool.h"

#define NIL UINT32_MAX

enum blk_state { BLK_FREE, BLK_CACHED, BLK_RESTING, BLK_HELD, BLK_QUARANTINED };

/* The first half of a record's first cache line. */
struct blk {
    uint64_t step;         /* idle or resting: the step that may last have used it */
    uint32_t node;         /* published under; NIL: not                            */
    uint32_t prev, next;   /* in the list of its state; NIL: end                   */
    uint32_t at;           /* cached: when, by the lower half of lru.time; free:
                            * the block FREE_AHEAD further down, NIL: none         */
    uint32_t ref : 19;     /* table entries and copy sources naming it             */
    uint32_t stripe : 5;   /* of struct lru, when cached                           */
    uint32_t state : 3;    /* enum blk_state                                       */
    uint32_t poisoned : 1; /* to be quarantined when nobody holds it               */
    uint16_t sources;      /* of ref: copy sources of reservations                 */
    uint8_t copied;        /* furthest offset its copies read, while sources > 0   */
    uint8_t group;         /* last held by; meaningful while held or published     */
};

static_assert(sizeof(struct blk) == 32, "a block is half a cache line");

struct blk_list {
    uint32_t head, tail, n;
};

enum { STRIPES = 7, FREE_AHEAD = 8 };

/* Cached blocks in the order they were cached: a list striped over several, which
 * take the blocks in turn; the oldest of the stripes' heads is the oldest of all.
 * So the blocks that eviction comes to next are known without following one list
 * from cache miss to cache miss.  A prime, as texts have round lengths. */
struct lru {
    uint32_t n;
    uint32_t put, turn;      /* stripes that come next: to cache, to evict  */
    uint64_t time;           /* blocks ever cached here                     */
    uint64_t taken;          /* when the block evicted last had been cached */
    uint64_t first[STRIPES]; /* when the head was; UINT64_MAX: empty stripe */
    uint32_t head[STRIPES], tail[STRIPES];
};

struct hash128 {
    uint64_t lo, hi;
};

/* The second half, with its resident blocks, one a group, behind; then its
 * tokens: a layout of one group and 16 tokens fills two adjacent cache lines. */
struct node {
    uint64_t key;       /* of its chain hash, mixed with its domain         */
    uint32_t bucket;    /* of the index: its run's                          */
    uint32_t parent;    /* NIL: a root, whose tokens are the salt           */
    uint32_t next;      /* in its home bucket's overflow list, when there   */
    uint32_t refs;      /* children, and sequences whose cursor it is       */
    uint8_t n_resident; /* groups whose block is resident                   */
    uint8_t place;      /* in the index, see struct bucket                  */
    bool in_use : 1;
    bool stacked : 1; /* in kvpool.node_stack; what is not in use is      */
    bool evicted : 1; /* a block of it once was                           */
    blk_id block[];   /* [n_groups]; BLK_NONE: not resident               */
};

static_assert(offsetof(struct node, block) == 28, "with one block, half a cache line");

/* A node's place: entry 0..7 of its run's bucket, or AT_HOME + entry of its home
 * bucket, or in the home bucket's overflow list. */
enum {
    BUCKET_ENTRIES = 8,
    BUCKET_RUN = 4,
    AT_HOME = BUCKET_ENTRIES,
    IN_OVERFLOW = 2 * BUCKET_ENTRIES
};

/* One cache line of the index.  BUCKET_RUN consecutive blocks of a chain (columns
 * 4k to 4k + 3) share the bucket that the first one's key selects, so that what is
 * used together is fetched together.  A node that finds it full goes to the bucket
 * of its own key, its home, and from there to the overflow list.  An evicted
 * node's entry becomes a ghost: it keeps the key's fingerprint until another node
 * takes the entry.  Byte i of each word is entry i's. */
struct bucket {
    uint64_t tags;        /* a byte of the key                                 */
    uint64_t used, ghost; /* 0x80: value is a node; a fingerprint              */
    uint32_t value[BUCKET_ENTRIES];
    uint32_t overflow;    /* nodes that found this, their home, full too       */
    uint32_t n_elsewhere; /* nodes of runs that belong here, but lie elsewhere */
};

static_assert(sizeof(struct bucket) == 64, "a bucket is a cache line");

struct seq {
    bool open;
    bool publish;     /* false once no node could be had                   */
    bool damaged;     /* the ledger check found a block of it at fault     */
    uint32_t n_known; /* tokens[]                                          */
    uint32_t n_computed;
    uint32_t n_reserved;   /* past the computed ones                            */
    uint32_t n_last;       /* of these, by the last reserve                     */
    uint64_t reserved_at;  /* pool->launched at the first open reserve          */
    uint32_t n_published;  /* whole blocks walked into the prefix index         */
    uint32_t node;         /* the cursor: of the last of these; NIL: none       */
    uint32_t bucket;       /* of the index: where that node's run is            */
    struct hash128 chain;  /* hash of the published tokens                      */
    struct hash128 domain; /* hash of the salt                                  */
    uint64_t salt;
    struct kvpool_lookup found; /* at open                                           */
    uint64_t expires;           /* pins only                                         */
    uint32_t keep[3];           /* boundaries (in blocks) whose window tail is kept:
                                 * prompt end, where a repeat of the prompt can hit, a
                                 * branch seen at open; 0: none                      */
    int32_t *tokens;            /* [cap_tokens] owned                                */
    blk_id *table;              /* [n_groups][cap_cols] owned                        */
    uint32_t cap_tokens, cap_cols;
    uint32_t first[KV_GROUPS]; /* columns below are -1                              */
    blk_id source[KV_GROUPS];  /* copied from by the open reservation               */
    uint32_t n_sources;
    uint32_t next; /* unused slots                                      */
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
    struct lru cached;
    uint32_t n_held, n_quarantined, group_held[KV_GROUPS];
    uint64_t launched, retired;

    uint32_t n_nodes, n_nodes_unused;
    uint32_t *node_stack, n_stacked; /* unused nodes, and some that were taken
                                      * by number and are skipped                */
    struct bucket *bucket;
    uint32_t bucket_mask;
    uint32_t *unsalted; /* fingerprints of chains published without a salt:
                         * reasons of misses                                */
    uint32_t unsalted_mask;
    bool salted;     /* a salt was ever seen                                  */
    bool trust_hash; /* tests only: skip the token compare                    */

    struct seq *seq;
    uint32_t n_slots; /* max_seqs sequences, then max_pins pins */
    uint32_t seq_free, n_seqs, pin_free, n_pins, n_pinned;

    struct plan_copy *copy, *copy_out;
    uint32_t n_copies, cap_copies;
    uint32_t *path;         /* [max_cols] scratch of a look-up      */
    uint32_t *scratch;      /* [3 * n_blocks] scratch of the check  */
    uint32_t *node_scratch; /* [n_nodes]                            */
    struct counters count;
};

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

/* The record is about to be read or written: its first two cache lines.  NIL:
 * none. */
static inline void kvpool_record_prefetch(const struct kvpool *p, uint32_t i)
{
    if (i == NIL)
        return;
    const char *at = kvpool_record(p, i);
    kvpool_fetch(at);
    kvpool_fetch(at + 64);
}

/* ---- tables ------------------------------------------------------------------- */

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

/* A step was launched and has not ended. */
static inline bool kvpool_in_flight(const struct kvpool *p)
{
    return p->launched > p->retired;
}

/* ---- windows: what a group may forget (window.c) ------------------------------- */

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

#endif
