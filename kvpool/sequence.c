/* sequence.c: slots of sequences and pins, and the blocks they hold.
 *
 * Owns the slots' tables and token copies, which grow and are kept when a slot is
 * reused, so that a warm pool allocates nothing.  Engine thread alone. */
#include "kvpool/sequence.h"

#include <stdlib.h>

#include "kvpool/blocks.h"
#include "kvpool/copies.h"
#include "kvpool/nodes.h"

enum {
    MIN_TOKENS = 256,
    PREFETCH_BLOCKS = 16 /* blocks whose memory is fetched at once */
};

static uint32_t grown(uint32_t have, uint32_t need, uint32_t most)
{
    uint64_t n = (uint64_t)have * 2;
    n = n > need ? n : need;
    return n < most ? (uint32_t)n : most;
}

static enum err_code grow_table(struct kvpool *p, struct seq *s, uint32_t n_cols, struct err *e)
{
    uint32_t cap = grown(s->cap_cols, n_cols, p->max_cols);
    size_t bytes = (size_t)cap * p->n_groups * sizeof *s->table;
    blk_id *t = malloc(bytes);
    if (t == NULL)
        return err_nomem(e, "block table", bytes);
    for (uint32_t g = 0; s->cap_cols > 0 && g < p->n_groups; g++)
        memcpy(t + (size_t)g * cap, kvpool_row(p, s, g), s->cap_cols * sizeof *t);
    free(s->table);
    s->table = t;
    s->cap_cols = cap;
    return ERR_OK;
}

enum err_code kvpool_seq_grow(struct kvpool *p, struct seq *s, uint32_t n_cols, uint32_t n_tokens,
                              struct err *e)
{
    if (n_tokens > s->cap_tokens) {
        uint32_t cap = grown(s->cap_tokens, n_tokens > MIN_TOKENS ? n_tokens : MIN_TOKENS,
                             p->cfg.max_seq_tokens);
        int32_t *t = realloc(s->tokens, (size_t)cap * sizeof *t);
        if (t == NULL)
            return err_nomem(e, "token history", (unsigned long long)cap * sizeof *t);
        s->tokens = t;
        s->cap_tokens = cap;
    }
    if (n_cols > s->cap_cols)
        return grow_table(p, s, n_cols, e);
    return ERR_OK;
}

/* The slot's own arrays survive; everything else starts over. */
static void reset_seq(struct seq *s)
{
    struct seq fresh = { .open = true,
                         .node = NIL,
                         .tokens = s->tokens,
                         .table = s->table,
                         .cap_tokens = s->cap_tokens,
                         .cap_cols = s->cap_cols };
    for (uint32_t g = 0; g < KV_GROUPS; g++)
        fresh.source[g] = BLK_NONE;
    *s = fresh;
}

enum err_code kvpool_seq_take(struct kvpool *p, uint32_t *from, uint32_t n_tokens, seq_id *out,
                              struct err *e)
{
    uint32_t id = *from;
    if (id == NIL)
        return from == &p->seq_free ? err_set(e, ERR_BUSY, "%u sequences are open: at most %u",
                                              p->n_seqs, p->cfg.max_seqs)
                                    : err_set(e, ERR_BUSY, "%u pins are set: at most %u", p->n_pins,
                                              p->cfg.max_pins);
    struct seq *s = &p->seq[id];
    enum err_code rc = kvpool_seq_grow(p, s, kvpool_cols(p, n_tokens), n_tokens, e);
    if (rc != ERR_OK)
        return rc;
    *from = s->next;
    *(from == &p->seq_free ? &p->n_seqs : &p->n_pins) += 1;
    reset_seq(s);
    *out = id;
    return ERR_OK;
}

void kvpool_seq_hold(struct kvpool *p, struct seq *s, const struct prefix_hit *hit)
{
    uint32_t k = hit->n_blocks;
    s->n_computed = k << p->shift;
    s->n_published = k;
    s->node = hit->node;
    s->bucket = hit->bucket;
    s->chain = hit->chain;
    if (k > 0)
        kvpool_node(p, hit->node)->refs++;
    for (uint32_t g = 0; g < p->n_groups; g++) {
        blk_id *row = kvpool_row(p, s, g);
        s->first[g] = kvpool_window_first(p, g, s->n_computed);
        for (uint32_t i = 0; i < s->first[g]; i++)
            row[i] = BLK_NONE;
        for (uint32_t i = s->first[g]; i < k; i++) {
            row[i] = kvpool_node_blocks(p, p->path[i])[g];
            kvpool_blk_hold(p, row[i]);
        }
    }
}

/* The blocks of columns from..end - 1 are about to be dropped. */
static void fetch_columns(const struct kvpool *p, const struct seq *s, uint32_t from, uint32_t end)
{
    for (uint32_t g = 0; g < p->n_groups; g++)
        for (uint32_t i = from; i < end; i++)
            if (i >= s->first[g] && kvpool_row(p, s, g)[i] != BLK_NONE)
                kvpool_fetch(kvpool_blk(p, kvpool_row(p, s, g)[i]));
}

void kvpool_seq_release(struct kvpool *p, seq_id id, uint32_t *to)
{
    struct seq *s = kvpool_seq(p, id);
    kvpool_copies_cancel(p, s);
    uint32_t end = kvpool_cols(p, s->n_computed + s->n_reserved);
    for (uint32_t i = end; i-- > 0;) {
        if ((end - 1 - i) % PREFETCH_BLOCKS == 0)
            fetch_columns(p, s, i + 1 > PREFETCH_BLOCKS ? i + 1 - PREFETCH_BLOCKS : 0, i + 1);
        for (uint32_t g = 0; g < p->n_groups; g++)
            if (i >= s->first[g] && kvpool_row(p, s, g)[i] != BLK_NONE)
                kvpool_blk_drop(p, kvpool_row(p, s, g)[i], false);
    }
    if (s->node != NIL)
        kvpool_node_unref(p, s->node);
    s->open = false;
    s->next = *to;
    *to = id;
    *(to == &p->seq_free ? &p->n_seqs : &p->n_pins) -= 1;
}
