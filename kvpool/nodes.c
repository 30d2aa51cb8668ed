/* nodes.c: nodes, the index that finds them, and what it remembers of the gone.
 *
 * Owns records, lines and the stack of unused nodes.  Engine thread alone.
 * Everything is O(1) but for a line's chain, which is seldom there and short.
 * Memory is what costs: a node is reached through one line of the index, shared
 * by four blocks in a row, and lies in one record with the block it names. */
#include "kvpool/internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- the index --------------------------------------------------------------- */

#define HIGH ((uint64_t)0x8080808080808080u)

static inline struct line *own_line(const struct kvpool *p, uint64_t key)
{
    return &p->line[key & p->line_mask];
}

static uint32_t find_in(const struct kvpool *p, const struct line *l, uint32_t parent, uint64_t key,
                        const int32_t *tokens)
{
    for (uint64_t ways = kvpool_line_ways(l, key) & l->used; ways != 0; ways &= ways - 1) {
        uint32_t n = l->value[kvpool_line_first(ways)];
        if (kvpool_node_is(p, n, parent, key, tokens))
            return n;
    }
    return NIL;
}

uint32_t kvpool_node_find(const struct kvpool *p, uint32_t parent, uint32_t line, uint64_t key,
                          const int32_t *tokens)
{
    const struct line *l = &p->line[line], *own = own_line(p, key);
    uint32_t n = find_in(p, l, parent, key, tokens);
    if (n != NIL || l->n_away == 0)
        return n;
    if (own != l)
        n = find_in(p, own, parent, key, tokens);
    if (n == NIL)
        for (n = own->chain; n != NIL; n = kvpool_node(p, n)->next)
            if (kvpool_node_is(p, n, parent, key, tokens))
                break;
    return n;
}

/* The way where this key is remembered; WAYS: none. */
static uint32_t find_ghost(const struct line *l, uint64_t key)
{
    for (uint64_t ways = kvpool_line_ways(l, key) & l->ghost; ways != 0; ways &= ways - 1)
        if (l->value[kvpool_line_first(ways)] == kvpool_mark(key))
            return kvpool_line_first(ways);
    return WAYS;
}

static bool put_in(struct kvpool *p, struct line *l, uint32_t n, uint32_t place)
{
    struct node *d = kvpool_node(p, n);
    uint64_t key = d->key, ways = ~l->used & HIGH;
    if (ways == 0)
        return false;
    uint32_t w = find_ghost(l, key);
    if (w < WAYS) {
        d->evicted = true;
    } else { /* what a way remembers goes when all do; which, is the key's pick */
        uint64_t picked = ways >> (key >> 40 & 56) << (key >> 40 & 56);
        ways = (ways & ~l->ghost) != 0 ? ways & ~l->ghost : picked != 0 ? picked : ways;
        w = kvpool_line_first(ways);
    }
    uint64_t way = (uint64_t)0x80 << 8 * w;
    l->tags = (l->tags & ~(2 * way - (way >> 7))) | (key >> 32 & 0xff) << 8 * w;
    l->used |= way;
    l->ghost &= ~way;
    l->value[w] = n;
    d->way = (uint8_t)(place + w);
    return true;
}

void kvpool_index_put(struct kvpool *p, uint32_t n)
{
    struct node *d = kvpool_node(p, n);
    struct line *l = &p->line[d->line], *own = own_line(p, d->key);
    if (put_in(p, l, n, 0))
        return;
    l->n_away++;
    if (own != l && put_in(p, own, n, OWN))
        return;
    d->way = CHAINED;
    d->next = own->chain;
    own->chain = n;
}

static void take_out(struct kvpool *p, uint32_t n)
{
    struct node *d = kvpool_node(p, n);
    struct line *l = d->way < OWN ? &p->line[d->line] : own_line(p, d->key);
    if (d->way >= OWN)
        p->line[d->line].n_away--;
    if (d->way == CHAINED) {
        uint32_t *at = &l->chain;
        while (*at != n)
            at = &kvpool_node(p, *at)->next;
        *at = d->next;
        return;
    }
    uint64_t way = (uint64_t)0x80 << 8 * (d->way % WAYS);
    l->used &= ~way;
    if (d->evicted) {
        l->ghost |= way;
        l->value[d->way % WAYS] = kvpool_mark(d->key);
    }
}

void kvpool_index_clear(struct kvpool *p)
{
    for (uint32_t i = 0; i <= p->line_mask; i++) {
        p->line[i].used = 0;
        p->line[i].chain = NIL;
        p->line[i].n_away = 0;
    }
}

bool kvpool_index_has(const struct kvpool *p, uint32_t n)
{
    const struct node *d = kvpool_node(p, n);
    const struct line *own = own_line(p, d->key);
    if (d->line > p->line_mask || d->way > CHAINED)
        return false;
    if (d->way < CHAINED) {
        const struct line *l = d->way < OWN ? &p->line[d->line] : own;
        return (l->used >> 8 * (d->way % WAYS) & 0x80) != 0 && l->value[d->way % WAYS] == n;
    }
    uint32_t at = own->chain;
    for (uint32_t i = 0; at != n && at < p->n_nodes && i < p->n_nodes; i++)
        at = kvpool_node(p, at)->next;
    return at == n;
}

/* The same of one line. */
static bool recalls(const struct kvpool *p, const struct line *l, uint64_t key)
{
    for (uint64_t ways = kvpool_line_ways(l, key) & l->used; ways != 0; ways &= ways - 1) {
        const struct node *d = kvpool_node(p, l->value[kvpool_line_first(ways)]);
        if (d->key == key && d->evicted)
            return true;
    }
    return find_ghost(l, key) < WAYS;
}

bool kvpool_index_recalls(const struct kvpool *p, uint32_t line, uint64_t key)
{
    return recalls(p, &p->line[line], key) || recalls(p, own_line(p, key), key);
}

/* ---- nodes ------------------------------------------------------------------ */

void kvpool_node_stack(struct kvpool *p, uint32_t n)
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
        kvpool_node_stack(p, n);
        if (parent != NIL)
            kvpool_node(p, parent)->refs--;
        n = parent;
    }
}

void kvpool_node_tidy(struct kvpool *p, uint32_t n)
{
    if (kvpool_node(p, n)->in_use)
        drop_unused(p, n);
}

void kvpool_node_leave(struct kvpool *p, uint32_t node)
{
    kvpool_node(p, node)->refs--;
    drop_unused(p, node);
}

/* An unused number: `wish` if it is one. */
static uint32_t take_number(struct kvpool *p, uint32_t wish)
{
    uint32_t n = wish;
    if (wish >= p->n_nodes || kvpool_node(p, wish)->in_use)
        do {
            n = p->node_stack[--p->n_stacked];
            kvpool_node(p, n)->stacked = false;
        } while (kvpool_node(p, n)->in_use);
    p->n_nodes_unused--;
    return n;
}

uint32_t kvpool_node_add(struct kvpool *p, uint32_t wish, uint32_t parent, uint32_t line,
                         uint64_t key, const int32_t *tokens)
{
    for (int tries = 0; p->n_nodes_unused == 0 && tries < 8 && p->n_cached > 0; tries++) {
        blk_id b = (blk_id)kvpool_oldest(p);
        kvpool_uncache(p, (uint32_t)b);
        kvpool_prefix_forget(p, b, true);
        kvpool_blk_settle(p, b);
        p->count.evictions++;
    }
    if (p->n_nodes_unused == 0)
        return NIL;
    uint32_t n = take_number(p, wish);
    struct node *d = kvpool_node(p, n);
    d->key = key;
    d->line = line;
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

/* ---- storage ------------------------------------------------------------------ */

enum { HUGE_PAGE = 2 << 20, CACHE_LINE = 64, LEAST_LINES = 512 };

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
    uint64_t n = nodes_wanted(p), lines = LEAST_LINES;
    while (p->cfg.prefix_caching && lines < n / 2)
        lines *= 2;
    uint64_t ghosts = p->cfg.prefix_caching ? 4 * lines : 1;
    uint64_t n_records = n > p->cfg.n_blocks ? n : p->cfg.n_blocks;
    uint32_t tokens = p->cfg.prefix_caching ? p->block_tokens : 0;
    p->n_nodes = (uint32_t)n;
    p->line_mask = (uint32_t)lines - 1;
    p->ghost_mask = (uint32_t)ghosts - 1;
    p->record_bytes = sizeof(struct blk) + offsetof(struct node, block) +
                      (p->n_groups + (size_t)tokens) * sizeof(int32_t);
    p->record_bytes = (p->record_bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    p->records = kvpool_array(n_records, p->record_bytes);
    p->node_stack = kvpool_array(n, sizeof *p->node_stack);
    p->node_scratch = kvpool_array(n, sizeof *p->node_scratch);
    p->line = kvpool_array(lines, sizeof *p->line);
    p->ghost_plain = kvpool_array(ghosts, sizeof *p->ghost_plain);
    if (p->records == NULL || p->node_stack == NULL || p->node_scratch == NULL || p->line == NULL ||
        p->ghost_plain == NULL)
        return err_nomem(e, "KV blocks and prefix index",
                         (unsigned long long)n_records * p->record_bytes);
    kvpool_index_clear(p);
    for (uint32_t i = 0; i < p->n_nodes; i++) /* blocks' own numbers last out */
        kvpool_node_stack(p, i);
    return ERR_OK;
}

void kvpool_nodes_fini(struct kvpool *p)
{
    free(p->records);
    free(p->node_stack);
    free(p->node_scratch);
    free(p->line);
    free(p->ghost_plain);
}
