/* prefix.c: what the index of computed prefixes is used for.
 *
 * Look-up, publishing, withdrawing, and why a prompt missed.  Engine thread
 * alone.  A hit is proved, not believed: a node matches when its parent is the
 * node just matched and its tokens are equal, so that no hash collision can hand
 * one request another's KV.  Roots hold salt and adapter as their "tokens", which
 * makes key domains exact in the same way.  O(1) a block. */
#include "kvpool/internal.h"

#include <string.h>

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

struct hash128 kvpool_prefix_domain(const struct kvpool *p, uint64_t salt, uint64_t adapter)
{
    uint64_t both[2] = { salt, adapter };
    XXH128_hash_t h = XXH3_128bits_withSeed(both, sizeof both, ~p->cfg.hash_seed);
    return cut(p, (struct hash128){ h.low64, h.high64 });
}

/* ---- roots ------------------------------------------------------------------- */

/* Roots are nodes whose tokens spell the key domain. */
static void domain_tokens(const struct kvpool *p, uint64_t salt, uint64_t adapter, int32_t *out)
{
    uint64_t both[2] = { salt, adapter };
    memset(out, 0, (size_t)p->block_tokens * sizeof *out);
    memcpy(out, both, sizeof both);
}

static inline uint32_t own_line(const struct kvpool *p, uint64_t key)
{
    return (uint32_t)key & p->line_mask;
}

static uint32_t find_root(const struct kvpool *p, uint64_t salt, uint64_t adapter,
                          struct hash128 domain)
{
    int32_t spelt[256]; /* block_tokens is at most 256 */
    domain_tokens(p, salt, adapter, spelt);
    return kvpool_node_find(p, NIL, own_line(p, domain.lo), domain.lo, spelt);
}

/* ---- reasons of misses --------------------------------------------------------- */

static inline void note_plain(struct kvpool *p, uint64_t chain)
{
    p->ghost_plain[chain & p->ghost_mask] = kvpool_mark(chain);
}

/* Until the first salt all chains are plain and none can miss by salt, so the
 * plain filter is not kept; here it catches up, once in the pool's life. */
void kvpool_prefix_note_salt(struct kvpool *p, uint64_t salt, uint64_t adapter)
{
    if (p->salted || (salt == 0 && adapter == 0))
        return;
    p->salted = true;
    uint64_t plain = kvpool_prefix_domain(p, 0, 0).lo;
    for (uint32_t n = 0; n < p->n_nodes; n++)
        if (kvpool_node(p, n)->in_use && kvpool_node(p, n)->parent != NIL)
            note_plain(p, kvpool_node(p, n)->key ^ plain);
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
    uint64_t domain = kvpool_prefix_domain(p, key->salt, key->adapter).lo, chain = hit->missed;
    if (hit->has_missed && kvpool_index_recalls(p, hit->missed_line, chain ^ domain))
        l.miss_evicted = rest;
    else if (hit->has_missed && p->salted &&
             p->ghost_plain[chain & p->ghost_mask] == kvpool_mark(chain))
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

/* A run of blocks on its way into the cache: hashed up to RING blocks before
 * their turn, which shows their lines of the index; these are looked at a CHUNK
 * later, which shows the nodes.  Fetches stand together: one whose page must be
 * looked up holds up the code behind it, but not the fetches. */
enum { CHUNK = 16, RING = 4 * CHUNK };

struct run {
    const int32_t *tokens;
    uint64_t domain;
    uint32_t n, col;       /* blocks, and the first one's column            */
    uint32_t hashed, seen; /* so many of them                               */
    uint32_t last;         /* line of the last one hashed                   */
    struct hash128 before; /* chain hash before the first one               */
    struct ahead {
        struct hash128 chain;
        uint32_t line, guess;
        bool elsewhere;
    } at[RING]; /* block i at i % RING */
};

static void run_init(struct run *r, const int32_t *tokens, uint32_t n, uint32_t col,
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
static inline void run_hash(const struct kvpool *p, struct run *r, uint32_t end)
{
    struct hash128 chain = r->before;
    uint32_t line = r->last;
    for (uint32_t i = r->hashed; i < end; i++) {
        struct ahead *a = &r->at[i % RING];
        chain = chain_next(p, chain, r->tokens + ((size_t)i << p->shift));
        if ((r->col + i) % FOUR == 0)
            line = own_line(p, chain.lo ^ r->domain);
        a->chain.lo = chain.lo;
        a->chain.hi = chain.hi;
        a->line = line;
    }
    for (uint32_t i = r->hashed; i < end; i += FOUR)
        kvpool_fetch(&p->line[r->at[i % RING].line]);
    kvpool_fetch(&p->line[line]);
    r->before.lo = chain.lo;
    r->before.hi = chain.hi;
    r->last = line;
    r->hashed = end;
}

/* Look at the lines of the blocks before `end` that are not yet. */
static inline void run_guess(const struct kvpool *p, struct run *r, uint32_t end)
{
    for (uint32_t i = r->seen; i < end; i++) {
        struct ahead *a = &r->at[i % RING];
        uint64_t key = a->chain.lo ^ r->domain;
        uint32_t n = kvpool_index_guess(p, a->line, key, &a->elsewhere);
        if (n != NIL)
            kvpool_record_prefetch(p, n);
        else if (a->elsewhere)
            kvpool_fetch(&p->line[own_line(p, key)]);
        a->guess = n;
    }
    r->seen = end;
}

static inline uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Block i is about to be needed; i is 0 or the one after the last such. */
static inline const struct ahead *run_to(const struct kvpool *p, struct run *r, uint32_t i)
{
    if (i % CHUNK == 0 && r->seen < r->n) {
        for (uint32_t far = i == 0 ? RING / 2 : RING; far <= RING; far += RING / 2)
            if (r->hashed < least(r->n, i + far))
                run_hash(p, r, least(r->n, i + far));
        run_guess(p, r, least(r->n, i + RING - CHUNK));
    }
    return &r->at[i % RING];
}

/* The node of that block under parent; NIL: none. */
static inline uint32_t run_find(const struct kvpool *p, const struct run *r, const struct ahead *a,
                                uint32_t parent, const int32_t *tokens)
{
    uint64_t key = a->chain.lo ^ r->domain;
    if (a->guess == NIL && !a->elsewhere)
        return NIL;
    if (a->guess != NIL && kvpool_node_is(p, a->guess, parent, key, tokens))
        return a->guess;
    return kvpool_node_find(p, parent, a->line, key, tokens);
}

/* These nodes' blocks will be held: their neighbours in their lists change. */
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
    struct hash128 domain = kvpool_prefix_domain(p, key->salt, key->adapter);
    struct run r;
    run_init(&r, tokens, (n - 1) >> p->shift, 0, domain.lo);
    uint32_t at = find_root(p, key->salt, key->adapter, domain), run[KV_GROUPS] = { 0 };
    for (uint32_t i = 0; i < r.n; i++) {
        const struct ahead *a = run_to(p, &r, i);
        if (at != NIL)
            at = run_find(p, &r, a, at, tokens + ((size_t)i << p->shift));
        if (at == NIL || !resident(p, at, run)) {
            hit->missed = a->chain.lo;
            hit->missed_line = a->line;
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
            hit->line = a->line;
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
        kvpool_blk(p, mine)->doomed)
        return;
    if (*slot != BLK_NONE) {
        *entry = *slot;
        kvpool_blk_hold(p, *slot);
        kvpool_raise(p, *slot, s->rank);
        kvpool_blk_drop(p, mine, false);
    } else if (wanted) {
        *slot = mine;
        kvpool_blk(p, mine)->node = node;
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
        root = kvpool_node_add(p, NIL, NIL, own_line(p, s->domain.lo), s->domain.lo, spelt);
    }
    if (root == NIL)
        return false;
    kvpool_node(p, root)->refs++;
    s->node = root;
    return true;
}

/* Stand on the node of the next whole block, made if need be: with the number of
 * the block that will be the first under it. */
static bool step_forward(struct kvpool *p, struct seq *s, const struct run *r,
                         const struct ahead *a)
{
    uint32_t col = s->n_published;
    const int32_t *tokens = s->tokens + ((size_t)col << p->shift);
    uint32_t n = run_find(p, r, a, s->node, tokens);
    if (n == NIL)
        n = kvpool_node_add(p, col < s->first[0] ? NIL : (uint32_t)kvpool_row(p, s, 0)[col],
                            s->node, a->line, a->chain.lo ^ r->domain, tokens);
    if (n == NIL)
        return false;
    kvpool_node(p, n)->refs++;
    kvpool_node(p, s->node)->refs--; /* its child n keeps it */
    s->node = n;
    s->line = a->line;
    s->chain = a->chain;
    s->n_published++;
    if (p->salted)
        note_plain(p, a->chain.lo);
    return true;
}

/* Publish the whole blocks up to `full`; false: no node could be had. */
static bool publish_to(struct kvpool *p, struct seq *s, uint32_t full)
{
    uint32_t col = s->n_published, n = full - col;
    struct run r;
    run_init(&r, s->tokens + ((size_t)col << p->shift), n, col, s->domain.lo);
    r.before = s->chain;
    r.last = s->line;
    for (uint32_t i = 0; i < n; i++, col++) {
        if (!step_forward(p, s, &r, run_to(p, &r, i)))
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

void kvpool_prefix_prefetch(const struct kvpool *p, uint32_t b)
{
    uint32_t n = b == NIL ? NIL : kvpool_blk(p, b)->node;
    if (n != b) { /* not where the block is: it has to come first */
        kvpool_record_prefetch(p, n);
        return;
    }
    if (n == NIL)
        return;
    kvpool_fetch(&p->line[kvpool_node(p, n)->line]);
    kvpool_record_prefetch(p, kvpool_node(p, n)->parent);
}

void kvpool_prefix_forget(struct kvpool *p, blk_id b, bool evicted)
{
    struct blk *k = kvpool_blk(p, b);
    uint32_t n = k->node;
    struct node *d = kvpool_node(p, n);
    d->block[k->group] = BLK_NONE;
    k->node = NIL;
    d->evicted = d->evicted || evicted;
    d->n_resident--;
    kvpool_node_tidy(p, n);
}
