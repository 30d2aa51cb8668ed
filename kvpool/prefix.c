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

enum {
    LEAST_GHOSTS = 4096,
    LINE = 64,
    AHEAD = 32 /* blocks whose memory is fetched together */
};

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

static inline uint32_t find_node(const struct kvpool *p, uint32_t parent, struct hash128 key,
                                 const int32_t *tokens)
{
    for (uint32_t n = p->bucket[key.lo & p->bucket_mask]; n != NIL; n = kvpool_node(p, n)->next) {
        const struct node *d = kvpool_node(p, n);
        if (d->key.lo != key.lo || d->key.hi != key.hi)
            continue;
        if (p->trust_hash ||
            (d->parent == parent && memcmp(kvpool_node_tokens(p, n), tokens,
                                           (size_t)p->block_tokens * sizeof *tokens) == 0))
            return n;
    }
    return NIL;
}

static void unlink_node(struct kvpool *p, uint32_t n)
{
    uint32_t *at = &p->bucket[kvpool_node(p, n)->key.lo & p->bucket_mask];
    while (*at != n)
        at = &kvpool_node(p, *at)->next;
    *at = kvpool_node(p, n)->next;
}

/* Free n and its ancestors while nothing names them. */
static void drop_unused(struct kvpool *p, uint32_t n)
{
    while (n != NIL && kvpool_node(p, n)->refs == 0 && kvpool_node(p, n)->n_resident == 0) {
        uint32_t parent = kvpool_node(p, n)->parent;
        unlink_node(p, n);
        kvpool_node(p, n)->n_resident = NIL; /* not in use */
        p->node_stack[p->n_nodes_unused++] = n;
        if (parent != NIL)
            kvpool_node(p, parent)->refs--;
        n = parent;
    }
}

void kvpool_prefix_tidy(struct kvpool *p, uint32_t n)
{
    if (kvpool_node(p, n)->n_resident != NIL)
        drop_unused(p, n);
}

void kvpool_prefix_leave(struct kvpool *p, uint32_t node)
{
    kvpool_node(p, node)->refs--;
    drop_unused(p, node);
}

/* A node for `tokens` under parent, not yet in the index; NIL when none can be
 * had even by evicting a few cached blocks. */
static uint32_t add_node(struct kvpool *p, uint32_t parent, struct hash128 key,
                         const int32_t *tokens)
{
    for (int tries = 0; p->n_nodes_unused == 0 && tries < 8 && p->n_cached > 0; tries++) {
        blk_id b = (blk_id)kvpool_victims(p)->head;
        kvpool_uncache(p, (uint32_t)b);
        kvpool_prefix_forget(p, b, true);
        kvpool_blk_settle(p, b);
        p->count.evictions++;
    }
    if (p->n_nodes_unused == 0)
        return NIL;
    uint32_t n = p->node_stack[--p->n_nodes_unused];
    uint32_t *head = &p->bucket[key.lo & p->bucket_mask];
    *kvpool_node(p, n) = (struct node){ .key = key, .parent = parent, .next = *head };
    *head = n;
    memcpy(kvpool_node_tokens(p, n), tokens, (size_t)p->block_tokens * sizeof *tokens);
    for (uint32_t g = 0; g < p->n_groups; g++)
        kvpool_node_blocks(p, n)[g] = BLK_NONE;
    if (parent != NIL)
        kvpool_node(p, parent)->refs++;
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
        if (kvpool_node(p, n)->n_resident != NIL && kvpool_node(p, n)->parent != NIL)
            ghost_put(p->ghost_plain, p->ghost_mask, mix(kvpool_node(p, n)->key, plain));
}

struct kvpool_lookup kvpool_prefix_divide(const struct kvpool *p, const struct kvpool_key *key,
                                          const struct prefix_hit *hit, uint32_t n)
{
    uint32_t most = (n - 1) >> p->shift;
    struct kvpool_lookup l = { .query_tokens = n,
                               .hit_tokens = hit->n_blocks << p->shift,
                               .miss_granularity = n - (most << p->shift),
                               .miss_window = (hit->n_walked - hit->n_blocks) << p->shift };
    uint32_t rest = (most - hit->n_walked) << p->shift;
    if (rest == 0)
        return l;
    struct hash128 domain = kvpool_prefix_domain(p, key->salt, key->adapter);
    if (hit->has_missed && ghost_has(p->ghost_evicted, p->ghost_mask, mix(hit->missed, domain)))
        l.miss_evicted = rest;
    else if (hit->has_missed && p->salted && ghost_has(p->ghost_plain, p->ghost_mask, hit->missed))
        l.miss_salt = rest;
    else
        l.miss_never = rest;
    return l;
}

void kvpool_prefix_count(struct kvpool *p, const struct kvpool_lookup *l)
{
    struct counters *c = &p->count;
    c->query_tokens += l->query_tokens;
    c->hit_tokens += l->hit_tokens;
    c->miss_granularity += l->miss_granularity;
    c->miss_window += l->miss_window;
    c->miss_evicted += l->miss_evicted;
    c->miss_salt += l->miss_salt;
    c->miss_never += l->miss_never;
}

/* ---- look-up ------------------------------------------------------------------ */

/* Whether node n holds KV of every unlimited group; windowed groups' runs of
 * resident blocks ending here are counted in run[]. */
static inline bool resident(const struct kvpool *p, uint32_t n, uint32_t *run)
{
    const blk_id *b = kvpool_node_blocks(p, n);
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

/* Chain hashes of up to AHEAD blocks from `chain` on, with their buckets, and
 * then the nodes these lead to, on their way into the cache. */
static void look_ahead(const struct kvpool *p, const int32_t *tokens, uint32_t n,
                       struct hash128 chain, struct hash128 domain, struct hash128 *out)
{
    for (uint32_t i = 0; i < n; i++) {
        out[i] = chain = chain_next(p, chain, tokens + ((size_t)i << p->shift));
        __builtin_prefetch(&p->bucket[mix(chain, domain).lo & p->bucket_mask]);
    }
    for (uint32_t i = 0; n > 1 && i < n; i++) {
        uint32_t head = p->bucket[mix(out[i], domain).lo & p->bucket_mask];
        if (head != NIL)
            kvpool_node_prefetch(p, head);
    }
}

void kvpool_prefix_walk(const struct kvpool *p, const int32_t *tokens, uint32_t n,
                        const struct kvpool_key *key, uint32_t *path, struct prefix_hit *hit)
{
    *hit = (struct prefix_hit){ .node = NIL };
    if (!p->cfg.prefix_caching || n == 0)
        return;
    struct hash128 domain = kvpool_prefix_domain(p, key->salt, key->adapter), ahead[AHEAD] = { 0 };
    uint32_t at = find_root(p, key->salt, key->adapter, domain), run[KV_GROUPS] = { 0 };
    uint32_t most = (n - 1) >> p->shift;
    for (uint32_t i = 0; i < most; i++) {
        const int32_t *block = tokens + ((size_t)i << p->shift);
        if (i % AHEAD == 0)
            look_ahead(p, block, most - i < AHEAD ? most - i : AHEAD, ahead[AHEAD - 1], domain,
                       ahead);
        struct hash128 chain = ahead[i % AHEAD];
        if (at != NIL)
            at = find_node(p, at, mix(chain, domain), block);
        if (at == NIL || !resident(p, at, run)) {
            hit->missed = chain;
            hit->has_missed = true;
            return;
        }
        if (path != NULL) {
            path[i] = at;
            blk_id b = kvpool_node_blocks(p, at)[0];
            if (b != BLK_NONE)
                __builtin_prefetch(&p->blk[b], 1);
        }
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
    blk_id *entry = kvpool_row(p, s, g) + col, *slot = kvpool_node_blocks(p, node) + g,
           mine = *entry;
    if (*slot == mine || mine == BLK_NONE || p->blk[mine].node != NIL || p->blk[mine].doomed)
        return;
    if (*slot != BLK_NONE) {
        *entry = *slot;
        kvpool_blk_hold(p, *slot);
        kvpool_raise(p, *slot, s->rank);
        kvpool_blk_drop(p, mine, false);
    } else if (wanted) {
        *slot = mine;
        p->blk[mine].node = node;
        kvpool_raise(p, mine, s->rank);
        kvpool_node(p, node)->n_resident++;
        p->count.published++;
    }
}

/* Stand on the root of s's key domain, made if need be. */
static bool stand_on_root(struct kvpool *p, struct seq *s)
{
    uint32_t root = find_root(p, s->salt, s->adapter, s->domain);
    if (root == NIL) {
        int32_t spelt[256];
        domain_tokens(p, s->salt, s->adapter, spelt);
        root = add_node(p, NIL, s->domain, spelt);
    }
    if (root == NIL)
        return false;
    kvpool_node(p, root)->refs++;
    s->node = root;
    return true;
}

/* Stand on the node of the next whole block, made if need be. */
static bool step_forward(struct kvpool *p, struct seq *s, struct hash128 chain)
{
    const int32_t *block = s->tokens + ((size_t)s->n_published << p->shift);
    struct hash128 key = mix(chain, s->domain);
    uint32_t n = find_node(p, s->node, key, block);
    if (n == NIL)
        n = add_node(p, s->node, key, block);
    if (n == NIL)
        return false;
    kvpool_node(p, n)->refs++;
    kvpool_prefix_leave(p, s->node);
    s->node = n;
    s->chain = chain;
    s->n_published++;
    if (p->salted)
        ghost_put(p->ghost_plain, p->ghost_mask, chain);
    return true;
}

/* Publish n <= AHEAD whole blocks more. */
static bool publish_some(struct kvpool *p, struct seq *s, uint32_t n)
{
    struct hash128 ahead[AHEAD];
    look_ahead(p, s->tokens + ((size_t)s->n_published << p->shift), n, s->chain, s->domain, ahead);
    for (uint32_t i = 0; i < n && i < p->n_nodes_unused; i++)
        kvpool_node_prefetch(p, p->node_stack[p->n_nodes_unused - 1 - i]);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t col = s->n_published;
        if (!step_forward(p, s, ahead[i]))
            return false;
        for (uint32_t g = 0; g < p->n_groups; g++)
            if (col >= s->first[g])
                publish_block(p, s, g, col, s->node,
                              p->lay.group[g].window == 0 || kvpool_window_keeps(p, s, g, col));
    }
    return true;
}

void kvpool_prefix_publish(struct kvpool *p, seq_id id)
{
    struct seq *s = kvpool_seq(p, id);
    uint32_t full = s->n_computed >> p->shift;
    if (s->publish && s->node == NIL)
        s->publish = stand_on_root(p, s);
    while (s->publish && s->n_published < full) {
        uint32_t left = full - s->n_published;
        s->publish = publish_some(p, s, left < AHEAD ? left : AHEAD);
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
    for (uint32_t col = k; col-- > low; n = kvpool_node(p, n)->parent)
        for (uint32_t g = 0; g < p->n_groups; g++)
            if (p->lay.group[g].window != 0 && col >= s->first[g])
                publish_block(p, s, g, col, n, kvpool_window_first(p, g, k << p->shift) <= col);
}

void kvpool_prefix_prefetch(const struct kvpool *p, uint32_t b, int stage)
{
    uint32_t n = p->blk[b].node;
    if (n == NIL)
        return;
    if (stage == 0) {
        __builtin_prefetch(kvpool_node(p, n), 1);
    } else {
        struct hash128 key = kvpool_node(p, n)->key;
        __builtin_prefetch(&p->bucket[key.lo & p->bucket_mask], 1);
        __builtin_prefetch(&p->ghost_evicted[key.lo & p->ghost_mask], 1);
    }
}

void kvpool_prefix_forget(struct kvpool *p, blk_id b, bool evicted)
{
    struct blk *k = &p->blk[b];
    uint32_t n = k->node;
    kvpool_node_blocks(p, n)[k->group] = BLK_NONE;
    k->node = NIL;
    if (evicted)
        ghost_put(p->ghost_evicted, p->ghost_mask, kvpool_node(p, n)->key);
    kvpool_node(p, n)->n_resident--;
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
    while (buckets < 4 * n) /* seldom two in one: a second is a second miss */
        buckets *= 2;
    uint64_t ghosts = p->cfg.prefix_caching ? buckets : 1;
    if (p->cfg.prefix_caching && ghosts < LEAST_GHOSTS)
        ghosts = LEAST_GHOSTS;
    p->ghost_mask = (uint32_t)ghosts - 1;
    p->n_nodes = (uint32_t)n;
    p->bucket_mask = (uint32_t)buckets - 1;
    p->node_bytes = sizeof(struct node) + (p->n_groups + (size_t)p->block_tokens) * sizeof(int32_t);
    p->node_bytes = (p->node_bytes + LINE - 1) / LINE * LINE;
    p->nodes = kvpool_array(n, p->node_bytes);
    p->node_stack = kvpool_array(n, sizeof *p->node_stack);
    p->node_scratch = kvpool_array(n, sizeof *p->node_scratch);
    p->bucket = kvpool_array(buckets, sizeof *p->bucket);
    p->ghost_evicted = kvpool_array(ghosts, sizeof *p->ghost_evicted);
    p->ghost_plain = kvpool_array(ghosts, sizeof *p->ghost_plain);
    if (p->nodes == NULL || p->node_stack == NULL || p->bucket == NULL ||
        p->ghost_evicted == NULL || p->ghost_plain == NULL || p->node_scratch == NULL)
        return err_nomem(e, "prefix index", (unsigned long long)n * p->node_bytes);
    memset(p->bucket, 0xff, (size_t)buckets * sizeof *p->bucket);
    for (uint32_t i = p->n_nodes; i-- > 0;) {
        kvpool_node(p, i)->n_resident = NIL;
        p->node_stack[p->n_nodes_unused++] = i;
    }
    return ERR_OK;
}

void kvpool_prefix_fini(struct kvpool *p)
{
    free(p->nodes);
    free(p->node_stack);
    free(p->node_scratch);
    free(p->bucket);
    free(p->ghost_evicted);
    free(p->ghost_plain);
}
