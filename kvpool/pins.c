/* pins.c: prefixes that eviction may not touch, for a time and within a budget.
 *
 * A pin is a sequence that never runs: it holds the blocks of a cached prefix in
 * a slot of its own, so that the ledger counts it like any other.  Engine thread
 * alone; O(1) a block. */
#include "kvpool/sequence.h"

enum err_code kvpool_pin(struct kvpool *p, const int32_t *tokens, uint32_t n_tokens,
                         const struct kvpool_key *key, uint64_t expires, uint32_t *out,
                         uint32_t *n_pinned, struct err *e)
{
    static const struct kvpool_key plain;
    struct prefix_hit hit;
    if (n_tokens > p->cfg.max_seq_tokens)
        return err_set(e, ERR_LIMIT, "prefix of %u tokens: at most %u", n_tokens,
                       p->cfg.max_seq_tokens);
    key = key != NULL ? key : &plain;
    /* One token more, so that a prefix of whole blocks is found whole. */
    kvpool_prefix_walk(p, tokens, n_tokens + 1, key, p->path, &hit);
    if (hit.n_blocks == 0)
        return err_set(e, ERR_NOT_FOUND, "no block of these %u tokens is cached", n_tokens);
    uint32_t n_blocks = 0, covered = hit.n_blocks << p->shift;
    for (uint32_t g = 0; g < p->n_groups; g++)
        n_blocks += hit.n_blocks - kvpool_window_first(p, g, covered);
    if (n_blocks > p->cfg.pin_budget - p->n_pinned)
        return err_set(e, ERR_BUSY, "%u KV blocks to pin and %u pinned: the budget is %u", n_blocks,
                       p->n_pinned, p->cfg.pin_budget);
    seq_id id = SEQ_NONE;
    enum err_code rc = kvpool_seq_take(p, &p->pin_free, covered, &id, e);
    if (rc != ERR_OK)
        return rc;
    struct seq *s = &p->seq[id];
    memcpy(s->tokens, tokens, (size_t)covered * sizeof *tokens);
    s->n_known = covered;
    s->salt = key->salt;
    s->domain = kvpool_prefix_domain(p, key->salt);
    s->expires = expires;
    kvpool_seq_hold(p, s, &hit);
    p->n_pinned += n_blocks;
    *out = id - p->cfg.max_seqs;
    *n_pinned = covered;
    return ERR_OK;
}

void kvpool_unpin(struct kvpool *p, uint32_t pin)
{
    seq_id id = pin + p->cfg.max_seqs;
    const struct seq *s = kvpool_seq(p, id);
    for (uint32_t g = 0; g < p->n_groups; g++)
        p->n_pinned -= s->n_published - s->first[g];
    kvpool_seq_release(p, id, &p->pin_free);
}

uint32_t kvpool_expire_pins(struct kvpool *p, uint64_t now)
{
    uint32_t n = 0;
    for (uint32_t pin = 0; p->n_pins > 0 && pin < p->cfg.max_pins; pin++) {
        const struct seq *s = &p->seq[pin + p->cfg.max_seqs];
        if (s->open && s->expires <= now) {
            kvpool_unpin(p, pin);
            n++;
        }
    }
    return n;
}
