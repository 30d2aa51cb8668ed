/* prefix.c: what the index of computed prefixes is used for.
 *
 * Look-up, publishing, withdrawing, and why a prompt missed.  Engine thread
 * alone.  A hit is proved, not believed: a node matches when its parent is the
 * node just matched and its tokens are equal, so that no hash collision can hand
 * one request another's KV.  A root holds the salt as its "tokens", which keeps
 * salts apart as exactly.  O(1) a block. */
#include "kvpool/prefix.h"

#include <string.h>

#include "kvpool/blocks.h"
#include "kvpool/nodes.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

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

struct hash128 kvpool_prefix_domain(const struct kvpool *p, uint64_t salt)
{
    XXH128_hash_t h = XXH3_128bits_withSeed(&salt, sizeof salt, ~p->cfg.hash_seed);
    return cut(p, (struct hash128){ h.low64, h.high64 });
}

/* ---- roots ------------------------------------------------------------------- */

/* Roots are nodes whose tokens are the salt. */
static void domain_tokens(const struct kvpool *p, uint64_t salt, int32_t *out)
{
    memset(out, 0, (size_t)p->block_tokens * sizeof *out);
    memcpy(out, &salt, sizeof salt);
}

static inline uint32_t home_bucket(const struct kvpool *p, uint64_t key)
{
    return (uint32_t)key & p->bucket_mask;
}

static uint32_t find_root(const struct kvpool *p, uint64_t salt, struct hash128 domain)
{
    int32_t as_tokens[256]; /* block_tokens is at most 256 */
    domain_tokens(p, salt, as_tokens);
    return kvpool_node_find(p, NIL, home_bucket(p, domain.lo), domain.lo, as_tokens);
}

/* ---- reasons of misses --------------------------------------------------------- */

static inline void note_unsalted(struct kvpool *p, uint64_t chain)
{
    p->unsalted[chain & p->unsalted_mask] = kvpool_fingerprint(chain);
}

/* Until the first salt no chain has one and none can miss by salt, so the filter
 * is not kept; here it is filled, once in the pool's life. */
void kvpool_prefix_note_salt(struct kvpool *p, uint64_t salt)
{
    if (p->salted || salt == 0)
        return;
    p->salted = true;
    uint64_t domain = kvpool_prefix_domain(p, 0).lo;
    for (uint32_t n = 0; n < p->n_nodes; n++)
        if (kvpool_node(p, n)->in_use && kvpool_node(p, n)->parent != NIL)
            note_unsalted(p, kvpool_node(p, n)->key ^ domain);
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
    uint64_t domain = kvpool_prefix_domain(p, key->salt).lo, chain = hit->missed;
    if (hit->has_missed && kvpool_index_recalls(p, hit->missed_bucket, chain ^ domain))
        l.miss_evicted = rest;
    else if (hit->has_missed && p->salted &&
             p->unsalted[chain & p->unsalted_mask] == kvpool_fingerprint(chain))
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

/* A pipeline over a run of blocks: each is hashed up to RING blocks before it is
 * needed, which gives its bucket of the index; the bucket is read a CHUNK later,
 * which gives the node.  Each stage prefetches what the next reads.  Prefetches
 * stand in tight loops: one that misses the TLB stalls the code behind it, but
 * not other prefetches. */
enum { CHUNK = 16, RING = 4 * CHUNK };

struct pipeline {
    const int32_t *tokens;
    uint64_t domain;
    uint32_t n, col;       /* blocks, and the first one's column            */
    uint32_t hashed, seen; /* so many of them                               */
    uint32_t last;         /* bucket of the last one hashed                   */
    struct hash128 before; /* chain hash before the first one               */
    struct ahead {
        struct hash128 chain;
        uint32_t bucket, candidate;
        bool elsewhere;
    } at[RING]; /* block i at i % RING */
};

static void pipeline_init(struct pipeline *r, const int32_t *tokens, uint32_t n, uint32_t col,
                          uint64_t domain)
{
    r->tokens = tokens;
    r->domain = domain;
    r->n = n;
    r->col = col;
    r->hashed = r->seen = r->last = 0;
    r->before = (struct hash128){ 0 };
}

/* Hash the blocks before `end` that are not yet.  The chain stays in registers. */
static inline void pipeline_hash(const struct kvpool *p, struct pipeline *r, uint32_t end)
{
    struct hash128 chain = r->before;
    uint32_t bucket = r->last;
    for (uint32_t i = r->hashed; i < end; i++) {
        struct ahead *a = &r->at[i % RING];
        chain = chain_next(p, chain, r->tokens + ((size_t)i << p->shift));
        if ((r->col + i) % BUCKET_RUN == 0)
            bucket = home_bucket(p, chain.lo ^ r->domain);
        a->chain.lo = chain.lo;
        a->chain.hi = chain.hi;
        a->bucket = bucket;
    }
    for (uint32_t i = r->hashed; i < end; i += BUCKET_RUN)
        kvpool_fetch(&p->bucket[r->at[i % RING].bucket]);
    kvpool_fetch(&p->bucket[bucket]);
    r->before.lo = chain.lo;
    r->before.hi = chain.hi;
    r->last = bucket;
    r->hashed = end;
}

/* Read the buckets of the blocks before `end` that are not yet. */
static inline void pipeline_candidates(const struct kvpool *p, struct pipeline *r, uint32_t end)
{
    for (uint32_t i = r->seen; i < end; i++) {
        struct ahead *a = &r->at[i % RING];
        uint64_t key = a->chain.lo ^ r->domain;
        uint32_t n = kvpool_index_candidate(p, a->bucket, key, &a->elsewhere);
        if (n != NIL)
            kvpool_record_prefetch(p, n);
        else if (a->elsewhere)
            kvpool_fetch(&p->bucket[home_bucket(p, key)]);
        a->candidate = n;
    }
    r->seen = end;
}

static inline uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Block i is needed next; i is 0 or follows that of the last call. */
static inline const struct ahead *pipeline_to(const struct kvpool *p, struct pipeline *r,
                                              uint32_t i)
{
    if (i % CHUNK == 0 && r->seen < r->n) {
        for (uint32_t far = i == 0 ? RING / 2 : RING; far <= RING; far += RING / 2)
            if (r->hashed < least(r->n, i + far))
                pipeline_hash(p, r, least(r->n, i + far));
        pipeline_candidates(p, r, least(r->n, i + RING - CHUNK));
    }
    return &r->at[i % RING];
}

/* The node of that block under parent; NIL: none. */
static inline uint32_t pipeline_find(const struct kvpool *p, const struct pipeline *r,
                                     const struct ahead *a, uint32_t parent, const int32_t *tokens)
{
    uint64_t key = a->chain.lo ^ r->domain;
    if (a->candidate == NIL && !a->elsewhere)
        return NIL;
    if (a->candidate != NIL && kvpool_node_is(p, a->candidate, parent, key, tokens))
        return a->candidate;
    return kvpool_node_find(p, parent, a->bucket, key, tokens);
}

/* Prefetch the list neighbours of these nodes' blocks: holding the blocks changes
 * them. */
static void fetch_neighbours(const struct kvpool *p, const uint32_t *path, uint32_t from,
                             uint32_t end)
{
    for (uint32_t i = from; i < end; i++) {
        blk_id b = kvpool_node_blocks(p, path[i])[0];
        if (b == BLK_NONE)
            continue;
        const struct blk *k = kvpool_blk(p, b);
        if (k->prev != NIL)
            kvpool_fetch(kvpool_blk(p, k->prev));
        if (k->next != NIL)
            kvpool_fetch(kvpool_blk(p, k->next));
    }
}

void kvpool_prefix_walk(const struct kvpool *p, const int32_t *tokens, uint32_t n,
                        const struct kvpool_key *key, uint32_t *path, struct prefix_hit *hit)
{
    *hit = (struct prefix_hit){ .node = NIL };
    if (!p->cfg.prefix_caching || n == 0)
        return;
    struct hash128 domain = kvpool_prefix_domain(p, key->salt);
    struct pipeline r;
    pipeline_init(&r, tokens, (n - 1) >> p->shift, 0, domain.lo);
    uint32_t at = find_root(p, key->salt, domain), run[KV_GROUPS] = { 0 };
    for (uint32_t i = 0; i < r.n; i++) {
        const struct ahead *a = pipeline_to(p, &r, i);
        if (at != NIL)
            at = pipeline_find(p, &r, a, at, tokens + ((size_t)i << p->shift));
        if (at == NIL || !resident(p, at, run)) {
            hit->missed = a->chain.lo;
            hit->missed_bucket = a->bucket;
            hit->has_missed = true;
            return;
        }
        if (path != NULL) {
            path[i] = at;
            if ((i + 1) % CHUNK == 0 || i + 1 == r.n)
                fetch_neighbours(p, path, i / CHUNK * CHUNK, i + 1);
        }
        hit->n_walked = i + 1;
        if (p->n_unlimited == p->n_groups || is_boundary(p, i + 1, run)) {
            hit->n_blocks = i + 1;
            hit->node = at;
            hit->bucket = a->bucket;
            hit->chain = a->chain;
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
    if (*slot == mine || mine == BLK_NONE || kvpool_blk(p, mine)->node != NIL ||
        kvpool_blk(p, mine)->poisoned)
        return;
    if (*slot != BLK_NONE) {
        *entry = *slot;
        kvpool_blk_hold(p, *slot);
        kvpool_blk_drop(p, mine, false);
    } else if (wanted) {
        *slot = mine;
        kvpool_blk(p, mine)->node = node;
        kvpool_node(p, node)->n_resident++;
        p->count.published++;
    }
}

/* s's cursor to the root of its salt, made if need be. */
static bool cursor_to_root(struct kvpool *p, struct seq *s)
{
    uint32_t root = find_root(p, s->salt, s->domain);
    if (root == NIL) {
        int32_t as_tokens[256];
        domain_tokens(p, s->salt, as_tokens);
        root = kvpool_node_add(p, NIL, NIL, home_bucket(p, s->domain.lo), s->domain.lo, as_tokens);
    }
    if (root == NIL)
        return false;
    kvpool_node(p, root)->refs++;
    s->node = root;
    return true;
}

/* s's cursor to the node of the next whole block, made if need be: with the number
 * of the block that will be the first under it. */
static bool cursor_advance(struct kvpool *p, struct seq *s, const struct pipeline *r,
                           const struct ahead *a)
{
    uint32_t col = s->n_published;
    const int32_t *tokens = s->tokens + ((size_t)col << p->shift);
    uint32_t n = pipeline_find(p, r, a, s->node, tokens);
    if (n == NIL)
        n = kvpool_node_add(p, col < s->first[0] ? NIL : (uint32_t)kvpool_row(p, s, 0)[col],
                            s->node, a->bucket, a->chain.lo ^ r->domain, tokens);
    if (n == NIL)
        return false;
    kvpool_node(p, n)->refs++;
    kvpool_node(p, s->node)->refs--; /* its child n keeps it */
    s->node = n;
    s->bucket = a->bucket;
    s->chain = a->chain;
    s->n_published++;
    if (p->salted)
        note_unsalted(p, a->chain.lo);
    return true;
}

/* Publish the whole blocks up to `full`; false: no node could be had. */
static bool publish_to(struct kvpool *p, struct seq *s, uint32_t full)
{
    uint32_t col = s->n_published, n = full - col;
    struct pipeline r;
    pipeline_init(&r, s->tokens + ((size_t)col << p->shift), n, col, s->domain.lo);
    r.before = s->chain;
    r.last = s->bucket;
    for (uint32_t i = 0; i < n; i++, col++) {
        if (!cursor_advance(p, s, &r, pipeline_to(p, &r, i)))
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
        s->publish = cursor_to_root(p, s);
    if (s->publish && s->n_published < full)
        s->publish = publish_to(p, s, full);
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
