/* copies.c: blocks to be copied before they can be written.
 *
 * Owns the pool's list of copies and a reservation's sources, which stay held
 * until the copies have run.  Engine thread alone. */
#include "kvpool/copies.h"

#include <stdlib.h>

#include "kvpool/blocks.h"

enum err_code kvpool_copies_grow(struct kvpool *p, uint32_t n, struct err *e)
{
    if (p->n_copies + n <= p->cap_copies)
        return ERR_OK;
    uint32_t cap = (p->n_copies + n) * 2;
    size_t bytes = (size_t)cap * sizeof *p->copy;
    struct plan_copy *a = malloc(bytes), *b = malloc(bytes);
    if (a == NULL || b == NULL) {
        free(a);
        free(b);
        return err_nomem(e, "block copies", bytes);
    }
    memcpy(a, p->copy, p->n_copies * sizeof *a);
    free(p->copy);
    free(p->copy_out);
    p->copy = a;
    p->copy_out = b;
    p->cap_copies = cap;
    return ERR_OK;
}

void kvpool_copy_block(struct kvpool *p, struct seq *s, uint32_t g, blk_id from)
{
    blk_id *entry = kvpool_row(p, s, g) + (s->n_computed >> p->shift);
    kvpool_blk_take(p, g, entry, 1);
    s->source[g] = from; /* our reference moves from the table to here */
    s->n_sources++;
    struct blk *k = kvpool_blk(p, from);
    uint8_t offset = (uint8_t)(s->n_computed & (p->block_tokens - 1));
    k->copied = k->sources++ == 0 || k->copied < offset ? offset : k->copied;
    p->copy[p->n_copies++] = (struct plan_copy){ .from = from, .to = *entry };
    p->count.copies++;
}

/* The copy into `to` will not run, unless it was taken already. */
static void cancel_copy(struct kvpool *p, blk_id to)
{
    for (uint32_t i = p->n_copies; i-- > 0;)
        if (p->copy[i].to == to) {
            p->copy[i] = p->copy[--p->n_copies];
            return;
        }
}

void kvpool_copies_cancel(struct kvpool *p, struct seq *s)
{
    for (uint32_t g = 0; s->n_sources > 0 && g < p->n_groups; g++) {
        blk_id from = s->source[g];
        if (from == BLK_NONE)
            continue;
        cancel_copy(p, kvpool_row(p, s, g)[s->n_computed >> p->shift]);
        s->source[g] = BLK_NONE;
        s->n_sources--;
        kvpool_blk(p, from)->sources--;
        kvpool_blk_drop(p, from, false);
    }
}

void kvpool_copies_finish(struct kvpool *p, struct seq *s)
{
    for (uint32_t g = 0; s->n_sources > 0 && g < p->n_groups; g++) {
        blk_id from = s->source[g];
        if (from == BLK_NONE)
            continue;
        s->source[g] = BLK_NONE;
        s->n_sources--;
        kvpool_blk(p, from)->sources--;
        kvpool_blk_drop(p, from, false);
    }
}

void kvpool_copies_undo(struct kvpool *p, struct seq *s, bool unseen)
{
    for (uint32_t g = 0; s->n_sources > 0 && g < p->n_groups; g++) {
        blk_id from = s->source[g];
        if (from == BLK_NONE)
            continue;
        blk_id *entry = kvpool_row(p, s, g) + (s->n_computed >> p->shift), to = *entry;
        cancel_copy(p, to);
        *entry = from;
        s->source[g] = BLK_NONE;
        s->n_sources--;
        kvpool_blk(p, from)->sources--;
        kvpool_blk_drop(p, to, unseen);
    }
}

const struct plan_copy *kvpool_take_copies(struct kvpool *p, uint32_t *n)
{
    struct plan_copy *out = p->copy;
    p->copy = p->copy_out;
    p->copy_out = out;
    *n = p->n_copies;
    p->n_copies = 0;
    return out;
}
