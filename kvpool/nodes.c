/* nodes.c: nodes, the index that finds them, and its ghosts of evicted ones.
 *
 * Owns records, buckets and the stack of unused nodes.  Engine thread alone.
 * Everything is O(1) but for a bucket's overflow list, which is seldom there and
 * short.  Memory accesses are what costs: a node is reached through one bucket of
 * the index, shared by four consecutive blocks, and lies in one record with the
 * block it names. */
#include "kvpool/nodes.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kvpool/lists.h"

/* ---- the index --------------------------------------------------------------- */

#define HIGH ((uint64_t)0x8080808080808080u)

static inline struct bucket *home_bucket(const struct kvpool *p, uint64_t key)
{
    return &p->bucket[key & p->bucket_mask];
}

static uint32_t find_in(const struct kvpool *p, const struct bucket *l, uint32_t parent,
                        uint64_t key, const int32_t *tokens)
{
    for (uint64_t match = kvpool_bucket_match(l, key) & l->used; match != 0; match &= match - 1) {
        uint32_t n = l->value[kvpool_mask_first(match)];
        if (kvpool_node_is(p, n, parent, key, tokens))
            return n;
    }
    return NIL;
}

uint32_t kvpool_node_find(const struct kvpool *p, uint32_t parent, uint32_t bucket, uint64_t key,
                          const int32_t *tokens)
{
    const struct bucket *l = &p->bucket[bucket], *own = home_bucket(p, key);
    uint32_t n = find_in(p, l, parent, key, tokens);
    if (n != NIL || l->n_elsewhere == 0)
        return n;
    if (own != l)
        n = find_in(p, own, parent, key, tokens);
    if (n == NIL)
        for (n = own->overflow; n != NIL; n = kvpool_node(p, n)->next)
            if (kvpool_node_is(p, n, parent, key, tokens))
                break;
    return n;
}

/* The entry with this key's ghost; BUCKET_ENTRIES: none. */
static uint32_t find_ghost(const struct bucket *l, uint64_t key)
{
    for (uint64_t match = kvpool_bucket_match(l, key) & l->ghost; match != 0; match &= match - 1)
        if (l->value[kvpool_mask_first(match)] == kvpool_fingerprint(key))
            return kvpool_mask_first(match);
    return BUCKET_ENTRIES;
}

static bool put_in(struct kvpool *p, struct bucket *l, uint32_t n, uint32_t place)
{
    struct node *d = kvpool_node(p, n);
    uint64_t key = d->key, match = ~l->used & HIGH;
    if (match == 0)
        return false;
    uint32_t w = find_ghost(l, key);
    if (w < BUCKET_ENTRIES) {
        d->evicted = true;
    } else { /* an empty entry; where none is, the key selects the ghost that goes */
        uint64_t picked = match >> (key >> 40 & 56) << (key >> 40 & 56);
        match = (match & ~l->ghost) != 0 ? match & ~l->ghost : picked != 0 ? picked : match;
        w = kvpool_mask_first(match);
    }
    uint64_t bit = (uint64_t)0x80 << 8 * w;
    l->tags = (l->tags & ~(2 * bit - (bit >> 7))) | (key >> 32 & 0xff) << 8 * w;
    l->used |= bit;
    l->ghost &= ~bit;
    l->value[w] = n;
    d->place = (uint8_t)(place + w);
    return true;
}

void kvpool_index_put(struct kvpool *p, uint32_t n)
{
    struct node *d = kvpool_node(p, n);
    struct bucket *l = &p->bucket[d->bucket], *own = home_bucket(p, d->key);
    if (put_in(p, l, n, 0))
        return;
    l->n_elsewhere++;
    if (own != l && put_in(p, own, n, AT_HOME))
        return;
    d->place = IN_OVERFLOW;
    d->next = own->overflow;
    own->overflow = n;
}

static void take_out(struct kvpool *p, uint32_t n)
{
    struct node *d = kvpool_node(p, n);
    struct bucket *l = d->place < AT_HOME ? &p->bucket[d->bucket] : home_bucket(p, d->key);
    if (d->place >= AT_HOME)
        p->bucket[d->bucket].n_elsewhere--;
    if (d->place == IN_OVERFLOW) {
        uint32_t *at = &l->overflow;
        while (*at != n)
            at = &kvpool_node(p, *at)->next;
        *at = d->next;
        return;
    }
    uint64_t bit = (uint64_t)0x80 << 8 * (d->place % BUCKET_ENTRIES);
    l->used &= ~bit;
    if (d->evicted) {
        l->ghost |= bit;
        l->value[d->place % BUCKET_ENTRIES] = kvpool_fingerprint(d->key);
    }
}

void kvpool_index_clear(struct kvpool *p)
{
    for (uint32_t i = 0; i <= p->bucket_mask; i++) {
        p->bucket[i].used = 0;
        p->bucket[i].overflow = NIL;
        p->bucket[i].n_elsewhere = 0;
    }
}

bool kvpool_index_has(const struct kvpool *p, uint32_t n)
{
    const struct node *d = kvpool_node(p, n);
    const struct bucket *own = home_bucket(p, d->key);
    if (d->bucket > p->bucket_mask || d->place > IN_OVERFLOW)
        return false;
    if (d->place < IN_OVERFLOW) {
        const struct bucket *l = d->place < AT_HOME ? &p->bucket[d->bucket] : own;
        return (l->used >> 8 * (d->place % BUCKET_ENTRIES) & 0x80) != 0 &&
               l->value[d->place % BUCKET_ENTRIES] == n;
    }
    uint32_t at = own->overflow;
    for (uint32_t i = 0; at != n && at < p->n_nodes && i < p->n_nodes; i++)
        at = kvpool_node(p, at)->next;
    return at == n;
}

/* The same of one bucket. */
static bool recalls(const struct kvpool *p, const struct bucket *l, uint64_t key)
{
    for (uint64_t match = kvpool_bucket_match(l, key) & l->used; match != 0; match &= match - 1) {
        const struct node *d = kvpool_node(p, l->value[kvpool_mask_first(match)]);
        if (d->key == key && d->evicted)
            return true;
    }
    return find_ghost(l, key) < BUCKET_ENTRIES;
}

bool kvpool_index_recalls(const struct kvpool *p, uint32_t bucket, uint64_t key)
{
    return recalls(p, &p->bucket[bucket], key) || recalls(p, home_bucket(p, key), key);
}

/* ---- nodes ------------------------------------------------------------------ */

void kvpool_node_recycle(struct kvpool *p, uint32_t n)
{
    struct node *d = kvpool_node(p, n);
    d->in_use = false;
    p->n_nodes_unused++;
    if (!d->stacked)
        p->node_stack[p->n_stacked++] = n;
    d->stacked = true;
}

/* Free n and its ancestors while nothing names them. */
static void drop_unused(struct kvpool *p, uint32_t n)
{
    while (n != NIL && kvpool_node(p, n)->refs == 0 && kvpool_node(p, n)->n_resident == 0) {
        uint32_t parent = kvpool_node(p, n)->parent;
        take_out(p, n);
        kvpool_node_recycle(p, n);
        if (parent != NIL)
            kvpool_node(p, parent)->refs--;
        n = parent;
    }
}

void kvpool_node_free_unused(struct kvpool *p, uint32_t n)
{
    if (kvpool_node(p, n)->in_use)
        drop_unused(p, n);
}

void kvpool_node_unref(struct kvpool *p, uint32_t node)
{
    kvpool_node(p, node)->refs--;
    drop_unused(p, node);
}

/* An unused number: `preferred` if it is unused. */
static uint32_t take_number(struct kvpool *p, uint32_t preferred)
{
    uint32_t n = preferred;
    if (preferred >= p->n_nodes || kvpool_node(p, preferred)->in_use)
        do {
            n = p->node_stack[--p->n_stacked];
            kvpool_node(p, n)->stacked = false;
        } while (kvpool_node(p, n)->in_use);
    p->n_nodes_unused--;
    return n;
}

uint32_t kvpool_node_add(struct kvpool *p, uint32_t preferred, uint32_t parent, uint32_t bucket,
                         uint64_t key, const int32_t *tokens)
{
    for (int tries = 0; p->n_nodes_unused == 0 && tries < 8 && p->cached.n > 0; tries++) {
        blk_id b = (blk_id)kvpool_oldest(p);
        kvpool_uncache(p, (uint32_t)b);
        kvpool_node_withdraw(p, b, true);
        kvpool_blk_make_idle(p, b);
        p->count.evictions++;
    }
    if (p->n_nodes_unused == 0)
        return NIL;
    uint32_t n = take_number(p, preferred);
    struct node *d = kvpool_node(p, n);
    d->key = key;
    d->bucket = bucket;
    d->parent = parent;
    d->refs = 0;
    d->n_resident = 0;
    d->in_use = true;
    d->evicted = false;
    for (uint32_t g = 0; g < p->n_groups; g++)
        d->block[g] = BLK_NONE;
    kvpool_copy(kvpool_node_tokens(p, n), tokens, p->block_tokens);
    kvpool_index_put(p, n);
    if (parent != NIL)
        kvpool_node(p, parent)->refs++;
    return n;
}

/* ---- a block leaves the index ---------------------------------------------- */

void kvpool_node_prefetch(const struct kvpool *p, uint32_t b)
{
    uint32_t n = b == NIL ? NIL : kvpool_blk(p, b)->node;
    if (n != b) { /* not where the block is: it has to come first */
        kvpool_record_prefetch(p, n);
        return;
    }
    if (n == NIL)
        return;
    kvpool_fetch(&p->bucket[kvpool_node(p, n)->bucket]);
    kvpool_record_prefetch(p, kvpool_node(p, n)->parent);
}

void kvpool_node_withdraw(struct kvpool *p, blk_id b, bool evicted)
{
    struct blk *k = kvpool_blk(p, b);
    uint32_t n = k->node;
    struct node *d = kvpool_node(p, n);
    d->block[k->group] = BLK_NONE;
    k->node = NIL;
    d->evicted = d->evicted || evicted;
    d->n_resident--;
    kvpool_node_free_unused(p, n);
}

/* ---- storage ------------------------------------------------------------------ */

enum { HUGE_PAGE = 2 << 20, CACHE_LINE = 64, MIN_LINES = 512 };

void *kvpool_array(size_t n, size_t size)
{
    size_t bytes = n * size;
    bool large = bytes >= HUGE_PAGE;
    void *a = NULL;
    if (posix_memalign(&a, large ? HUGE_PAGE : CACHE_LINE, bytes) != 0)
        return NULL;
#ifdef MADV_HUGEPAGE
    if (large)
        madvise(a, bytes, MADV_HUGEPAGE); /* a hint: failure costs only speed */
#endif
    memset(a, 0, bytes);
    return a;
}

/* A layout with an unlimited group has at least one block behind every useful
 * node.  One without keeps nodes whose blocks have left the window. */
static uint64_t nodes_wanted(const struct kvpool *p)
{
    if (!p->cfg.prefix_caching)
        return 1;
    uint64_t n = (uint64_t)p->cfg.n_blocks * (p->n_unlimited > 0 ? 1 : 4);
    n += n / 4 + p->cfg.max_seqs + 64;
    if (p->n_unlimited == 0)
        n += 4 * (uint64_t)p->max_cols;
    return n < INT32_MAX ? n : INT32_MAX;
}

enum err_code kvpool_nodes_init(struct kvpool *p, struct err *e)
{
    uint64_t n = nodes_wanted(p), lines = MIN_LINES;
    while (p->cfg.prefix_caching && lines < n / 2)
        lines *= 2;
    uint64_t ghosts = p->cfg.prefix_caching ? 4 * lines : 1;
    uint64_t n_records = n > p->cfg.n_blocks ? n : p->cfg.n_blocks;
    uint32_t tokens = p->cfg.prefix_caching ? p->block_tokens : 0;
    p->n_nodes = (uint32_t)n;
    p->bucket_mask = (uint32_t)lines - 1;
    p->unsalted_mask = (uint32_t)ghosts - 1;
    p->record_bytes = sizeof(struct blk) + offsetof(struct node, block) +
                      (p->n_groups + (size_t)tokens) * sizeof(int32_t);
    p->record_bytes = (p->record_bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    p->records = kvpool_array(n_records, p->record_bytes);
    p->node_stack = kvpool_array(n, sizeof *p->node_stack);
    p->node_scratch = kvpool_array(n, sizeof *p->node_scratch);
    p->bucket = kvpool_array(lines, sizeof *p->bucket);
    p->unsalted = kvpool_array(ghosts, sizeof *p->unsalted);
    if (p->records == NULL || p->node_stack == NULL || p->node_scratch == NULL ||
        p->bucket == NULL || p->unsalted == NULL)
        return err_nomem(e, "KV blocks and prefix index",
                         (unsigned long long)n_records * p->record_bytes);
    kvpool_index_clear(p);
    for (uint32_t i = 0; i < p->n_nodes; i++) /* the lowest, also block numbers, are used last */
        kvpool_node_recycle(p, i);
    return ERR_OK;
}

void kvpool_nodes_fini(struct kvpool *p)
{
    free(p->records);
    free(p->node_stack);
    free(p->node_scratch);
    free(p->bucket);
    free(p->unsalted);
}
