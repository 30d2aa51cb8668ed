/* request.c: a request's memory.
 *
 * Owns requests, sequences and their histories.  Engine thread. */
#include "scheduler/request.h"

#include <stdlib.h>
#include <string.h>

struct req *sched_req_create(const struct sched_request *r, uint32_t limit)
{
    struct req *q = calloc(1, sizeof *q + (size_t)r->n * sizeof q->seq[0]);
    if (q == NULL)
        return NULL;
    q->r = *r;
    q->limit = limit;
    q->n_live = r->n;
    q->lp_next = r->prompt_logprobs ? 1 : r->n_prompt;
    for (uint32_t i = 0; i < r->n; i++) {
        q->seq[i].req = q;
        q->seq[i].choice = i;
        q->seq[i].sid = SEQ_NONE;
        q->seq[i].state = i == 0 ? SEQ_WAIT : SEQ_UNFORKED;
        q->seq[i].known = r->n_prompt;
    }
    return q;
}

void sched_req_free(struct req *r)
{
    for (uint32_t i = 0; i < r->r.n; i++)
        free(r->seq[i].hist);
    free(r);
}

const int32_t *sched_seq_tokens(const struct seq *q)
{
    return q->hist != NULL ? q->hist : q->req->r.prompt;
}

bool sched_seq_grow(struct seq *q, uint32_t want)
{
    if (q->hist != NULL && q->cap >= want)
        return true;
    uint64_t most = (uint64_t)q->req->r.n_prompt + q->req->limit;
    uint64_t cap = q->hist == NULL ? (uint64_t)want + 64 : (uint64_t)want + want / 2;
    if (cap > most)
        cap = most;
    if (cap < want)
        cap = want;
    int32_t *h = realloc(q->hist, (size_t)cap * sizeof *h);
    if (h == NULL)
        return false;
    if (q->hist == NULL)
        memcpy(h, q->req->r.prompt, (size_t)q->req->r.n_prompt * sizeof *h);
    q->hist = h;
    q->cap = (uint32_t)cap;
    return true;
}
