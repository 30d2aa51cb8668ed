/* rows.c: the rows of the step that is being planned.
 *
 * Owns the step's row list while it is planned.  Engine thread.  Promises: a row
 * in the list has its blocks reserved. */
#include "scheduler/rows.h"

#include <assert.h>
#include <stddef.h>

/* Sequences that the logits after q's last known token give a token to. */
static uint32_t n_samples(const struct seq *q)
{
    const struct req *r = q->req;
    if (r->limit == 0)
        return 0;
    uint32_t n = 1;
    if (q->known + q->due == r->r.n_prompt && q->choice == r->lead)
        for (uint32_t i = 0; i < r->r.n; i++)
            n += r->seq[i].state == SEQ_UNFORKED;
    return n;
}

uint32_t sched_row_targets(const struct seq *q, uint32_t n)
{
    const struct req *r = q->req;
    if (q->choice != r->lead || r->lp_next >= r->r.n_prompt)
        return 0;
    uint32_t start = sched_seq_start(q);
    uint32_t from = start > r->lp_next - 1 ? start : r->lp_next - 1;
    uint32_t to = start + n < r->r.n_prompt - 1 ? start + n : r->r.n_prompt - 1;
    return to > from ? to - from : 0;
}

static uint32_t n_outputs(const struct seq *q, uint32_t n)
{
    return sched_row_targets(q, n) + (n == sched_seq_left(q) ? n_samples(q) : 0);
}

uint32_t sched_row_fit(const struct sched *s, const struct seq *q, uint32_t n)
{
    uint32_t room = s->cfg.max_outputs - s->now->n_outputs, start = sched_seq_start(q);
    if (n_outputs(q, n) <= room)
        return n;
    const struct req *r = q->req;
    if (n == sched_seq_left(q))
        n--; /* its samples wait */
    if (sched_row_targets(q, n) > room) {
        uint32_t skip = r->lp_next - 1 > start ? r->lp_next - 1 - start : 0;
        n = skip + room;
    }
    return n;
}

enum err_code sched_row_add(struct sched *s, struct seq *q, uint32_t n, struct err *e)
{
    struct step *t = s->now;
    assert(n > 0 && q->planned == 0 && t->n_rows < s->cfg.max_num_seqs);
    enum err_code rc = kvpool_reserve(s->pool, q->sid, n, e);
    if (rc != ERR_OK)
        return rc;
    uint32_t outs = n_outputs(q, n);
    t->row[t->n_rows++] = (struct step_row){ .seq = q, .n = n, .n_outputs = outs };
    t->n_outputs += outs;
    t->n_live_rows++;
    q->planned = n;
    return ERR_OK;
}

void sched_row_drop(struct sched *s, struct seq *q)
{
    struct step *t = s->now;
    if (q->planned == 0)
        return;
    for (uint32_t i = 0; i < t->n_rows; i++) {
        if (t->row[i].seq == q) {
            t->n_outputs -= t->row[i].n_outputs;
            t->n_live_rows--;
            t->row[i].seq = NULL;
        }
    }
    kvpool_rollback(s->pool, q->sid);
    q->planned = 0;
}
