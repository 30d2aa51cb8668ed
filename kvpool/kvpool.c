/* kvpool.c: the pool's life, and its sequences' beginning and end.
 *
 * Owns everything in struct kvpool.  Engine thread alone. */
#include "kvpool/pool.h"

#include <stdlib.h>

#include "kvpool/blocks.h"
#include "kvpool/lists.h"
#include "kvpool/nodes.h"
#include "kvpool/sequence.h"
#include "proto/plan/kv_slot.h"

enum { MAX_SEQS = 65535, MAX_SEQ_TOKENS = 1 << 30 };

/* ---- create and destroy ------------------------------------------------------- */

static enum err_code check_config(const struct kv_layout *lay, const struct kvpool_config *c,
                                  struct err *e)
{
    if (lay->n_groups == 0 || lay->n_groups > KV_GROUPS)
        return err_set(e, ERR_INVALID, "layout with %u groups: expected 1..%d", lay->n_groups,
                       KV_GROUPS);
    if (c->max_seqs == 0 || c->max_seqs > MAX_SEQS)
        return err_set(e, ERR_INVALID, "max_seqs %u: expected 1..%d", c->max_seqs, MAX_SEQS);
    if (c->max_pins > MAX_SEQS - c->max_seqs)
        return err_set(e, ERR_INVALID, "max_pins %u: expected at most %u", c->max_pins,
                       MAX_SEQS - c->max_seqs);
    if (c->max_seq_tokens == 0 || c->max_seq_tokens > MAX_SEQ_TOKENS)
        return err_set(e, ERR_INVALID, "max_seq_tokens %u: expected 1..%d", c->max_seq_tokens,
                       MAX_SEQ_TOKENS);
    if (c->max_chunk == 0)
        return err_set(e, ERR_INVALID, "max_chunk 0: expected at least 1");
    if (c->n_blocks < lay->n_groups)
        return err_set(e, ERR_INVALID,
                       "%u KV blocks: one token needs %u, one for each of its layer groups",
                       c->n_blocks, lay->n_groups);
    if (c->pin_budget > c->n_blocks - lay->n_groups)
        return err_set(e, ERR_INVALID, "pin budget %u of %u KV blocks: expected at most %u",
                       c->pin_budget, c->n_blocks, c->n_blocks - lay->n_groups);
    if ((uint64_t)c->n_blocks * lay->block_tokens > INT32_MAX)
        return err_set(e, ERR_INVALID, "%u KV blocks of %u tokens: at most %d slots", c->n_blocks,
                       lay->block_tokens, INT32_MAX);
    return ERR_OK;
}

static void init_blocks(struct kvpool *p)
{
    kvpool_lists_init(p);
    for (uint32_t b = 0; b < p->cfg.n_blocks; b++) {
        uint32_t below = p->cfg.n_blocks - b > FREE_AHEAD ? b + FREE_AHEAD : NIL;
        *kvpool_blk(p, b) = (struct blk){ .node = NIL, .state = BLK_FREE, .at = below };
        kvpool_list_append(p, &p->free, b);
    }
    p->seq_free = p->pin_free = NIL;
    for (uint32_t s = p->n_slots; s-- > 0;) {
        uint32_t *list = s < p->cfg.max_seqs ? &p->seq_free : &p->pin_free;
        p->seq[s].next = *list;
        *list = s;
    }
}

static enum err_code alloc_arrays(struct kvpool *p, struct err *e)
{
    const struct kvpool_config *c = &p->cfg;
    p->cap_copies = c->max_seqs * p->n_groups;
    p->seq = calloc(p->n_slots, sizeof *p->seq);
    p->copy = malloc((size_t)p->cap_copies * sizeof *p->copy);
    p->copy_out = malloc((size_t)p->cap_copies * sizeof *p->copy_out);
    p->path = malloc((size_t)p->max_cols * sizeof *p->path);
    p->scratch = malloc((size_t)c->n_blocks * 3 * sizeof *p->scratch);
    if (p->seq == NULL || p->copy == NULL || p->copy_out == NULL || p->path == NULL ||
        p->scratch == NULL)
        return err_nomem(e, "KV block ledger",
                         (unsigned long long)c->n_blocks * sizeof *p->scratch);
    return kvpool_nodes_init(p, e);
}

enum err_code kvpool_create(struct kvpool **out, const struct kv_layout *lay,
                            const struct kvpool_config *cfg, struct err *e)
{
    enum err_code rc = check_config(lay, cfg, e);
    if (rc != ERR_OK)
        return rc;
    struct kvpool *p = calloc(1, sizeof *p);
    if (p == NULL)
        return err_nomem(e, "KV pool", sizeof *p);
    p->lay = *lay;
    p->cfg = *cfg;
    p->block_tokens = lay->block_tokens;
    p->n_groups = lay->n_groups;
    p->shift = (uint32_t)kv_block_shift(p->block_tokens);
    p->n_slots = cfg->max_seqs + cfg->max_pins;
    p->max_cols = kvpool_cols(p, cfg->max_seq_tokens);
    for (uint32_t g = 0; g < p->n_groups; g++)
        p->n_unlimited += lay->group[g].window == 0;
    p->boundary_every = cfg->boundary_blocks != 0 ? cfg->boundary_blocks : kvpool_window_every(lay);
    rc = alloc_arrays(p, e);
    if (rc != ERR_OK) {
        kvpool_destroy(p);
        return rc;
    }
    init_blocks(p);
    *out = p;
    return ERR_OK;
}

void kvpool_destroy(struct kvpool *p)
{
    if (p == NULL)
        return;
    for (uint32_t s = 0; p->seq != NULL && s < p->n_slots; s++) {
        free(p->seq[s].tokens);
        free(p->seq[s].table);
    }
    kvpool_nodes_fini(p);
    free(p->seq);
    free(p->copy);
    free(p->copy_out);
    free(p->path);
    free(p->scratch);
    free(p);
}

/* ---- open, fork, close --------------------------------------------------------------- */

enum err_code kvpool_open(struct kvpool *p, const int32_t *tokens, uint32_t n_tokens,
                          const struct kvpool_key *key, seq_id *out, uint32_t *n_cached,
                          struct err *e)
{
    static const struct kvpool_key plain;
    if (n_tokens == 0)
        return err_set(e, ERR_INVALID, "a sequence of no tokens");
    if (n_tokens > p->cfg.max_seq_tokens)
        return err_set(e, ERR_LIMIT, "sequence of %u tokens: at most %u", n_tokens,
                       p->cfg.max_seq_tokens);
    enum err_code rc = kvpool_seq_take(p, &p->seq_free, n_tokens, out, e);
    if (rc != ERR_OK)
        return rc;
    key = key != NULL ? key : &plain;
    struct seq *s = &p->seq[*out];
    memcpy(s->tokens, tokens, (size_t)n_tokens * sizeof *tokens);
    s->n_known = n_tokens;
    s->salt = key->salt;
    s->domain = kvpool_prefix_domain(p, key->salt);
    s->publish = p->cfg.prefix_caching;
    s->keep[0] = n_tokens >> p->shift;
    s->keep[1] = (n_tokens - 1) >> p->shift;
    kvpool_prefix_note_salt(p, key->salt);

    struct prefix_hit hit = { .node = NIL };
    if (!key->no_lookup && p->cfg.prefix_caching) {
        kvpool_prefix_walk(p, tokens, n_tokens, key, p->path, &hit);
        s->found = kvpool_prefix_divide(p, key, &hit, n_tokens);
        if (!key->again)
            kvpool_prefix_count(p, &s->found);
        s->keep[2] = hit.n_walked > hit.n_blocks ? hit.n_walked : 0;
    }
    kvpool_seq_hold(p, s, &hit);
    *n_cached = s->n_computed;
    return ERR_OK;
}

struct kvpool_lookup kvpool_lookup(const struct kvpool *p, seq_id s)
{
    return kvpool_seq(p, s)->found;
}

uint32_t kvpool_peek(const struct kvpool *p, const int32_t *tokens, uint32_t n_tokens,
                     const struct kvpool_key *key)
{
    static const struct kvpool_key plain;
    struct prefix_hit hit;
    key = key != NULL ? key : &plain;
    if (key->no_lookup)
        return 0;
    kvpool_prefix_walk(p, tokens, n_tokens, key, NULL, &hit);
    return hit.n_blocks << p->shift;
}

enum err_code kvpool_fork(struct kvpool *p, seq_id parent, seq_id *out, struct err *e)
{
    uint32_t n_known = kvpool_seq(p, parent)->n_known;
    if (kvpool_seq(p, parent)->n_reserved > 0)
        return err_set(e, ERR_CONFLICT, "sequence %u has %u tokens reserved: cannot fork", parent,
                       kvpool_seq(p, parent)->n_reserved);
    seq_id id = SEQ_NONE;
    enum err_code rc = kvpool_seq_take(p, &p->seq_free, n_known, &id, e);
    if (rc != ERR_OK)
        return rc;
    const struct seq *from = kvpool_seq(p, parent);
    struct seq *s = &p->seq[id], own = *s;
    *s = *from;
    s->tokens = own.tokens;
    s->table = own.table;
    s->cap_tokens = own.cap_tokens;
    s->cap_cols = own.cap_cols;
    memcpy(s->tokens, from->tokens, (size_t)n_known * sizeof *s->tokens);
    uint32_t n_cols = kvpool_cols(p, s->n_computed);
    for (uint32_t g = 0; g < p->n_groups; g++) {
        blk_id *row = kvpool_row(p, s, g);
        memcpy(row, kvpool_row(p, from, g), n_cols * sizeof *row);
        for (uint32_t i = s->first[g]; i < n_cols; i++)
            if (row[i] != BLK_NONE)
                kvpool_blk_hold(p, row[i]);
    }
    if (s->node != NIL)
        kvpool_node(p, s->node)->refs++;
    *out = id;
    return ERR_OK;
}

void kvpool_close(struct kvpool *p, seq_id id)
{
    kvpool_prefix_publish_end(p, id);
    kvpool_seq_release(p, id, &p->seq_free);
}

/* ---- what a sequence holds ---------------------------------------------------------- */

bool kvpool_is_open(const struct kvpool *p, seq_id s)
{
    return s < p->cfg.max_seqs && p->seq[s].open;
}

uint32_t kvpool_length(const struct kvpool *p, seq_id s)
{
    return kvpool_seq(p, s)->n_computed;
}

uint32_t kvpool_reserved(const struct kvpool *p, seq_id s)
{
    return kvpool_seq(p, s)->n_reserved;
}

uint32_t kvpool_idle(const struct kvpool *p)
{
    return kvpool_n_idle(p);
}

uint32_t kvpool_held(const struct kvpool *p, seq_id id)
{
    const struct seq *s = kvpool_seq(p, id);
    uint32_t n_cols = kvpool_cols(p, s->n_computed + s->n_reserved), n = 0;
    for (uint32_t g = 0; g < p->n_groups; g++)
        n += n_cols - s->first[g];
    return n;
}

uint32_t kvpool_gain(const struct kvpool *p, seq_id id)
{
    const struct seq *s = kvpool_seq(p, id);
    uint32_t n_cols = kvpool_cols(p, s->n_computed + s->n_reserved), n = 0;
    for (uint32_t g = 0; g < p->n_groups; g++) {
        const blk_id *row = kvpool_row(p, s, g);
        for (uint32_t i = s->first[g]; i < n_cols; i++)
            n += row[i] != BLK_NONE && kvpool_blk(p, row[i])->ref == 1;
        if (s->source[g] != BLK_NONE)
            n += kvpool_blk(p, s->source[g])->ref == 1;
    }
    return n;
}

bool kvpool_damaged(const struct kvpool *p, seq_id s)
{
    return kvpool_seq(p, s)->damaged;
}

const blk_id *kvpool_table(const struct kvpool *p, seq_id id, uint32_t g, uint32_t *n)
{
    const struct seq *s = kvpool_seq(p, id);
    assert(g < p->n_groups);
    *n = kvpool_cols(p, s->n_computed + s->n_reserved);
    return kvpool_row(p, s, g);
}

bool kvpool_can_ever_fit(const struct kvpool *p, uint64_t n_tokens, uint32_t chunk, uint64_t *need,
                         uint64_t *have)
{
    if (chunk > p->cfg.max_chunk)
        chunk = p->cfg.max_chunk;
    *need = kv_layout_blocks_for(&p->lay, n_tokens, chunk);
    *have = p->cfg.n_blocks - p->cfg.pin_budget;
    *have -= p->n_quarantined < *have ? p->n_quarantined : *have;
    return n_tokens <= p->cfg.max_seq_tokens && *need <= *have;
}
