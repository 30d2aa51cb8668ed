/* prefix.c: the index of computed prefixes.
 *
 * Owns nodes, buckets and the two ghost filters.  Engine thread alone.
 * A hit is proved, not believed: a node matches when its parent is the node
 * just matched and its tokens are equal, so that no hash collision can hand one
 * request another's KV.  Roots hold salt and adapter as their "tokens", which
 * makes key domains exact in the same way.  O(1) a block. */
#include "kvpool/internal.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { LEAST_GHOSTS = 4096 };

/* ---- hashing ---------------------------------------------------------------- */

static struct hash128 cut(const struct kvpool *p, struct hash128 h)
{
    uint32_t bits = p->cfg.hash_bits;
    if (bits != 0 && bits < 64) {
        h.lo &= ((uint64_t)1 << bits) - 1;
        h.hi = 0;
    }
    return h;
}

/* Chain hash of one block more: the blocks' own hashes do not depend on each
 * other, so a processor overlaps them. */
static inline struct hash128 chain_next(const struct kvpool *p, struct hash128 parent,
                                        const int32_t *tokens)
{
    XXH128_hash_t own =
        XXH3_128bits_withSeed(tokens, (size_t)p->block_tokens * sizeof *tokens, p->cfg.hash_seed);
    uint64_t both[4] = { parent.lo, parent.hi, own.low64, own.high64 };
    XXH128_hash_t h = XXH3_128bits(both, sizeof both);
    return cut(p, (struct hash128){ h.low64, h.high64 });
}

static inline struct hash128 mix(struct hash128 chain, struct hash128 domain)
{
    return (struct hash128){ chain.lo ^ domain.lo, chain.hi ^ domain.hi };
}

struct hash128 kvpool_prefix_domain(const struct kvpool *p, uint64_t salt, uint64_t adapter)
{
    uint64_t both[2] = { salt, adapter };
    XXH128_hash_t h = XXH3_128bits_withSeed(both, sizeof both, ~p->cfg.hash_seed);
    return cut(p, (struct hash128){ h.low64, h.high64 });
}

/* ---- nodes ------------------------------------------------------------------ */

static inline const int32_t *tokens_of(const struct kvpool *p, uint32_t n)
{
    return p->node_tokens + (size_t)n * p->block_tokens;
}

static inline blk_id *blocks_of(const struct kvpool *p, uint32_t n)
{
    return p->node_blk + (size_t)n * p->n_groups;
}

static inline uint32_t find_node(const struct kvpool *p, uint32_t parent, struct hash128 key,
                                 const int32_t *tokens)
{
    for (uint32_t n = p->bucket[key.lo & p->bucket_mask]; n != NIL; n = p->node[n].next) {
        const struct node *d = &p->node[n];
        if (d->key.lo != key.lo || d->key.hi != key.hi)
            continue;
        if (p->trust_hash ||
            (d->parent == parent &&
             memcmp(tokens_of(p, n), tokens, (size_t)p->block_tokens * sizeof *tokens) == 0))
            return n;
    }
    return NIL;
}

static void unlink_node(struct kvpool *p, uint32_t n)
{
    uint32_t *at = &p->bucket[p->node[n].key.lo & p->bucket_mask];
    while (*at != n)
        at = &p->node[*at].next;
    *at = p->node[n].next;
}

/* Free n and its ancestors while nothing names them. */
static void drop_unused(struct kvpool *p, uint32_t n)
{
    while (n != NIL && p->node[n].refs == 0 && p->node[n].n_resident == 0) {
        uint32_t parent = p->node[n].parent;
        unlink_node(p, n);
        p->node[n].next = p->node_free;
        p->node[n].n_resident = NIL; /* unused */
        p->node_free = n;
        p->n_nodes_used--;
        if (parent != NIL)
            p->node[parent].refs--;
        n = parent;
    }
}

void kvpool_prefix_tidy(struct kvpool *p, uint32_t n)
{
    if (p->node[n].n_resident != NIL)
        drop_unused(p, n);
}

void kvpool_prefix_leave(struct kvpool *p, uint32_t node)
{
    p->node[node].refs--;
    drop_unused(p, node);
}

/* A node for `tokens` under parent, not yet in the index; NIL when none can be
 * had even by evicting a few cached blocks. */
static uint32_t add_node(struct kvpool *p, uint32_t parent, struct hash128 key,
                         const int32_t *tokens)
{
    for (int tries = 0; p->node_free == NIL && tries < 8 && p->cached.head != NIL; tries++) {
        blk_id b = (blk_id)p->cached.head;
        kvpool_list_unlink(p, &p->cached, (uint32_t)b);
        kvpool_prefix_forget(p, b, true);
        kvpool_blk_settle(p, b);
        p->count.evictions++;
    }
    uint32_t n = p->node_free;
    if (n == NIL)
        return NIL;
    struct node *d = &p->node[n];
    p->node_free = d->next;
    p->n_nodes_used++;
    uint32_t *head = &p->bucket[key.lo & p->bucket_mask];
    *d = (struct node){ .key = key, .parent = parent, .next = *head };
    *head = n;
    memcpy(p->node_tokens + (size_t)n * p->block_tokens, tokens,
           (size_t)p->block_tokens * sizeof *tokens);
    for (uint32_t g = 0; g < p->n_groups; g++)
        blocks_of(p, n)[g] = BLK_NONE;
    if (parent != NIL)
        p->node[parent].refs++;
    return n;
}

/* Roots are nodes whose tokens spell the key domain. */
static void domain_tokens(const struct kvpool *p, uint64_t salt, uint64_t adapter, int32_t *out)
{
    uint64_t both[2] = { salt, adapter };
    memset(out, 0, (size_t)p->block_tokens * sizeof *out);
    memcpy(out, both, sizeof both);
}

static uint32_t find_root(const struct kvpool *p, uint64_t salt, uint64_t adapter,
                          struct hash128 domain)
{
    int32_t spelt[256]; /* block_tokens is at most 256 */
    domain_tokens(p, salt, adapter, spelt);
    return find_node(p, NIL, domain, spelt);
}

/* ---- ghosts: what the index once knew ---------------------------------------- */

static inline uint32_t ghost_mark(struct hash128 h)
{
    return (uint32_t)(h.hi >> 32) | 1;
}

static inline void ghost_put(uint32_t *table, uint32_t mask, struct hash128 h)
{
    table[h.lo & mask] = ghost_mark(h);
}

static inline bool ghost_has(const uint32_t *table, uint32_t mask, struct hash128 h)
{
    return table[h.lo & mask] == ghost_mark(h);
}

/* Until the first salt all chains are plain and none can miss by salt, so the
 * plain filter is not kept; here it catches up, once in the pool's life. */
void kvpool_prefix_note_salt(struct kvpool *p, uint64_t salt, uint64_t adapter)
{
    if (p->salted || (salt == 0 && adapter == 0))
        return;
    p->salted = true;
    struct hash128 plain = kvpool_prefix_domain(p, 0, 0);
    for (uint32_t n = 0; n < p->n_nodes; n++)
        if (p->node[n].n_resident != NIL && p->node[n].parent != NIL)
            ghost_put(p->ghost_plain, p->ghost_mask, mix(p->node[n].key, plain));
}

void kvpool_prefix_count(struct kvpool *p, const struct kvpool_key *key,
                         const struct prefix_hit *hit, uint32_t n)
{
    struct counters *c = &p->count;
    uint32_t most = (n - 1) >> p->shift;
    c->query_tokens += n;
    c->hit_tokens += (uint64_t)hit->n_blocks << p->shift;
    c->miss_granularity += n - (most << p->shift);
    c->miss_window += (uint64_t)(hit->n_walked - hit->n_blocks) << p->shift;
    uint64_t rest = (uint64_t)(most - hit->n_walked) << p->shift;
    if (rest == 0)
        return;
    struct hash128 domain = kvpool_prefix_domain(p, key->salt, key->adapter);
    if (hit->has_missed && ghost_has(p->ghost_evicted, p->ghost_mask, mix(hit->missed, domain)))
        c->miss_evicted += rest;
    else if (hit->has_missed && p->salted && ghost_has(p->ghost_plain, p->ghost_mask, hit->missed))
        c->miss_salt += rest;
    else
        c->miss_never += rest;
}

/* ---- look-up ------------------------------------------------------------------ */

/* Whether node n holds KV of every unlimited group; windowed groups' runs of
 * resident blocks ending here are counted in run[]. */
static inline bool resident(const struct kvpool *p, uint32_t n, uint32_t *run)
{
    const blk_id *b = blocks_of(p, n);
    for (uint32_t g = 0; g < p->n_groups; g++)
        if (p->lay.group[g].window == 0) {
            if (b[g] == BLK_NONE)
                return false;
        } else {
            run[g] = b[g] == BLK_NONE ? 0 : run[g] + 1;
        }
    return true;
}

static inline bool is_boundary(const struct kvpool *p, uint32_t k, const uint32_t *run)
{
    for (uint32_t g = 0; g < p->n_groups; g++)
        if (p->lay.group[g].window != 0 && run[g] < k - kvpool_window_first(p, g, k << p->shift))
            return false;
    return true;
}

void kvpool_prefix_walk(const struct kvpool *p, const int32_t *tokens, uint32_t n,
                        const struct kvpool_key *key, uint32_t *path, struct prefix_hit *hit)
{
    *hit = (struct prefix_hit){ .node = NIL };
    if (!p->cfg.prefix_caching || n == 0)
        return;
    struct hash128 domain = kvpool_prefix_domain(p, key->salt, key->adapter), chain = { 0, 0 };
    uint32_t at = find_root(p, key->salt, key->adapter, domain), run[KV_GROUPS] = { 0 };
    uint32_t most = (n - 1) >> p->shift;
    for (uint32_t i = 0; i < most; i++) {
        const int32_t *block = tokens + ((size_t)i << p->shift);
        chain = chain_next(p, chain, block);
        if (at != NIL)
            at = find_node(p, at, mix(chain, domain), block);
        if (at == NIL || !resident(p, at, run)) {
            hit->missed = chain;
            hit->has_missed = true;
            return;
        }
        if (path != NULL)
            path[i] = at;
        hit->n_walked = i + 1;
        if (p->n_unlimited == p->n_groups || is_boundary(p, i + 1, run)) {
            hit->n_blocks = i + 1;
            hit->node = at;
            hit->chain = chain;
        }
    }
}

/* ---- publishing ----------------------------------------------------------------- */

/* Column col of group g is full and computed.  When its node has a block
 * already, that one takes the place of ours; else ours is published if wanted. */
static inline void publish_block(struct kvpool *p, struct seq *s, uint32_t g, uint32_t col,
                                 uint32_t node, bool wanted)
{
    blk_id *entry = kvpool_row(p, s, g) + col, *slot = blocks_of(p, node) + g, mine = *entry;
    if (*slot == mine || mine == BLK_NONE || p->blk[mine].node != NIL || p->blk[mine].doomed)
        return;
    if (*slot != BLK_NONE) {
        *entry = *slot;
        kvpool_blk_hold(p, *slot);
        kvpool_blk_drop(p, mine, false);
    } else if (wanted) {
        *slot = mine;
        p->blk[mine].node = node;
        p->node[node].n_resident++;
        p->count.published++;
    }
}

/* Stand on the node of the next whole block, made if need be. */
static bool step_forward(struct kvpool *p, struct seq *s)
{
    const int32_t *block = s->tokens + ((size_t)s->n_published << p->shift);
    if (s->node == NIL) {
        uint32_t root = find_root(p, s->salt, s->adapter, s->domain);
        if (root == NIL) {
            int32_t spelt[256];
            domain_tokens(p, s->salt, s->adapter, spelt);
            root = add_node(p, NIL, s->domain, spelt);
        }
        if (root == NIL)
            return false;
        p->node[root].refs++;
        s->node = root;
    }
    struct hash128 chain = chain_next(p, s->chain, block), key = mix(chain, s->domain);
    uint32_t n = find_node(p, s->node, key, block);
    if (n == NIL)
        n = add_node(p, s->node, key, block);
    if (n == NIL)
        return false;
    p->node[n].refs++;
    kvpool_prefix_leave(p, s->node);
    s->node = n;
    s->chain = chain;
    if (p->salted)
        ghost_put(p->ghost_plain, p->ghost_mask, chain);
    return true;
}

void kvpool_prefix_publish(struct kvpool *p, seq_id id)
{
    struct seq *s = kvpool_seq(p, id);
    uint32_t full = s->n_computed >> p->shift;
    while (s->publish && s->n_published < full) {
        uint32_t col = s->n_published;
        if (!step_forward(p, s)) {
            s->publish = false;
            return;
        }
        s->n_published++;
        for (uint32_t g = 0; g < p->n_groups; g++)
            if (col >= s->first[g])
                publish_block(p, s, g, col, s->node,
                              p->lay.group[g].window == 0 || kvpool_window_keeps(p, s, g, col));
    }
}

void kvpool_prefix_publish_end(struct kvpool *p, seq_id id)
{
    struct seq *s = kvpool_seq(p, id);
    uint32_t k = s->n_published, n = s->node, low = k;
    if (p->n_unlimited == p->n_groups || !s->publish || k == 0 || k != s->n_computed >> p->shift)
        return;
    for (uint32_t g = 0; g < p->n_groups; g++) {
        uint32_t first = kvpool_window_first(p, g, k << p->shift);
        if (p->lay.group[g].window != 0 && first < low)
            low = first;
    }
    for (uint32_t col = k; col-- > low; n = p->node[n].parent)
        for (uint32_t g = 0; g < p->n_groups; g++)
            if (p->lay.group[g].window != 0 && col >= s->first[g])
                publish_block(p, s, g, col, n, kvpool_window_first(p, g, k << p->shift) <= col);
}

void kvpool_prefix_forget(struct kvpool *p, blk_id b, bool evicted)
{
    struct blk *k = &p->blk[b];
    uint32_t n = k->node;
    blocks_of(p, n)[k->group] = BLK_NONE;
    k->node = NIL;
    if (evicted)
        ghost_put(p->ghost_evicted, p->ghost_mask, p->node[n].key);
    p->node[n].n_resident--;
    drop_unused(p, n);
}

/* ---- storage ---------------------------------------------------------------------- */

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

enum err_code kvpool_prefix_init(struct kvpool *p, struct err *e)
{
    uint64_t n = nodes_wanted(p), buckets = 1;
    while (buckets < n)
        buckets *= 2;
    uint64_t ghosts = p->cfg.prefix_caching ? 2 * buckets : 1;
    if (p->cfg.prefix_caching && ghosts < LEAST_GHOSTS)
        ghosts = LEAST_GHOSTS;
    p->ghost_mask = (uint32_t)ghosts - 1;
    size_t token_bytes = (size_t)n * p->block_tokens * sizeof(int32_t);
    p->n_nodes = (uint32_t)n;
    p->bucket_mask = (uint32_t)buckets - 1;
    p->node = malloc((size_t)n * sizeof *p->node);
    p->node_tokens = malloc(token_bytes);
    p->node_blk = malloc((size_t)n * p->n_groups * sizeof *p->node_blk);
    p->node_scratch = malloc((size_t)n * sizeof *p->node_scratch);
    p->bucket = malloc((size_t)buckets * sizeof *p->bucket);
    p->ghost_evicted = calloc((size_t)ghosts, sizeof *p->ghost_evicted);
    p->ghost_plain = calloc((size_t)ghosts, sizeof *p->ghost_plain);
    if (p->node == NULL || p->node_tokens == NULL || p->node_blk == NULL || p->bucket == NULL ||
        p->ghost_evicted == NULL || p->ghost_plain == NULL || p->node_scratch == NULL)
        return err_nomem(e, "prefix index", (unsigned long long)token_bytes);
    memset(p->bucket, 0xff, (size_t)buckets * sizeof *p->bucket);
    p->node_free = NIL;
    for (uint32_t i = p->n_nodes; i-- > 0;) {
        p->node[i] = (struct node){ .next = p->node_free, .parent = NIL, .n_resident = NIL };
        p->node_free = i;
    }
    return ERR_OK;
}

void kvpool_prefix_fini(struct kvpool *p)
{
    free(p->node);
    free(p->node_tokens);
    free(p->node_blk);
    free(p->node_scratch);
    free(p->bucket);
    free(p->ghost_evicted);
    free(p->ghost_plain);
}
