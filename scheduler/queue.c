/* queue.c: who waits, and whose turn it is.
 *
 * Owns the levels (one a priority), the flows (one a tenant and level), the
 * tenants' deficits, the id table and the list of requests to resume; requests
 * themselves are the scheduler's.  Engine thread.  Promises: a request's place
 * depends on its tenant's use and its own arrival alone; every operation takes
 * constant time but for a walk over distinct priorities, or over one level's
 * tenants when all their deficits are used up. */
#include "scheduler/queue.h"

#include <stdlib.h>

#include "scheduler/policy.h"

static uint32_t slot_of(const struct queue *q, uint64_t key)
{
    key *= 0x9E3779B97F4A7C15u;
    return (uint32_t)(key >> 32) & q->mask;
}

enum err_code sched_queue_init(struct queue *q, uint32_t max_reqs, bool by_priority, struct err *e)
{
    uint32_t n = 64;
    while (n < max_reqs && n < 1u << 20)
        n *= 2;
    *q = (struct queue){ .by_priority = by_priority, .mask = n - 1 };
    q->tenant = calloc(n, sizeof *q->tenant);
    q->id = calloc(n, sizeof *q->id);
    if (q->tenant == NULL || q->id == NULL) {
        sched_queue_fini(q);
        return err_nomem(e, "scheduler queue", (unsigned long long)n * 2 * sizeof(void *));
    }
    return ERR_OK;
}

void sched_queue_fini(struct queue *q)
{
    free(q->tenant);
    free(q->id);
    q->tenant = NULL;
    q->id = NULL;
}

int32_t sched_queue_priority(const struct queue *q, const struct req *r)
{
    return q->by_priority ? r->r.priority : 0;
}

struct req *sched_queue_find(const struct queue *q, req_id id)
{
    struct req *r = q->id[slot_of(q, id)];
    while (r != NULL && r->r.id != id)
        r = r->id_next;
    return r;
}

/* --- tenants, levels, flows: made when first needed, gone when empty ------ */

static struct tenant *tenant_get(struct queue *q, uint64_t key)
{
    struct tenant **at = &q->tenant[slot_of(q, key)];
    for (struct tenant *t = *at; t != NULL; t = t->next)
        if (t->key == key)
            return t;
    struct tenant *t = calloc(1, sizeof *t);
    if (t == NULL)
        return NULL;
    t->key = key;
    t->next = *at;
    *at = t;
    q->n_tenants++;
    return t;
}

static void tenant_drop_if_idle(struct queue *q, struct tenant *t)
{
    if (t->n_reqs != 0)
        return;
    struct tenant **at = &q->tenant[slot_of(q, t->key)];
    while (*at != t)
        at = &(*at)->next;
    *at = t->next;
    q->n_tenants--;
    free(t);
}

/* The level of a priority, or NULL; *before: where a new one belongs. */
static struct level *level_find(const struct queue *q, int32_t priority, struct level **before)
{
    struct level *l = q->first, *prev = NULL;
    while (l != NULL && l->priority < priority) {
        prev = l;
        l = l->next;
    }
    *before = prev;
    return l != NULL && l->priority == priority ? l : NULL;
}

static struct level *level_insert(struct queue *q, int32_t priority, struct level *before)
{
    struct level *l = calloc(1, sizeof *l);
    if (l == NULL)
        return NULL;
    l->priority = priority;
    l->prev = before;
    l->next = before != NULL ? before->next : q->first;
    if (l->next != NULL)
        l->next->prev = l;
    if (before != NULL)
        before->next = l;
    else
        q->first = l;
    return l;
}

static void level_drop(struct queue *q, struct level *l)
{
    if (l->prev != NULL)
        l->prev->next = l->next;
    else
        q->first = l->next;
    if (l->next != NULL)
        l->next->prev = l->prev;
    free(l);
}

/* A new flow goes where it is served last in the round. */
static void ring_insert(struct level *l, struct flow *f)
{
    f->level = l;
    if (l->turn == NULL) {
        f->prev = f->next = f;
        l->turn = f;
        return;
    }
    f->next = l->turn;
    f->prev = l->turn->prev;
    f->prev->next = f;
    f->next->prev = f;
}

static struct flow *flow_get(struct queue *q, struct tenant *t, int32_t priority)
{
    struct level *before, *l = level_find(q, priority, &before);
    for (struct flow *f = t->flows; l != NULL && f != NULL; f = f->other)
        if (f->level == l)
            return f;
    struct flow *f = calloc(1, sizeof *f);
    if (f == NULL)
        return NULL;
    if (l == NULL && (l = level_insert(q, priority, before)) == NULL) {
        free(f);
        return NULL;
    }
    f->tenant = t;
    f->other = t->flows;
    t->flows = f;
    ring_insert(l, f);
    return f;
}

static void flow_drop_if_empty(struct queue *q, struct flow *f)
{
    if (f->head != NULL)
        return;
    struct level *l = f->level;
    if (f->next == f) {
        level_drop(q, l);
    } else {
        f->prev->next = f->next;
        f->next->prev = f->prev;
        if (l->turn == f)
            l->turn = f->next;
    }
    struct flow **at = &f->tenant->flows;
    while (*at != f)
        at = &(*at)->other;
    *at = f->other;
    free(f);
}

/* --- requests ------------------------------------------------------------ */

enum err_code sched_queue_add(struct queue *q, struct req *r, struct err *e)
{
    struct tenant *t = tenant_get(q, r->r.tenant);
    struct flow *f = t != NULL ? flow_get(q, t, sched_queue_priority(q, r)) : NULL;
    if (f == NULL) {
        if (t != NULL)
            tenant_drop_if_idle(q, t);
        return err_nomem(e, "request queue entry", sizeof *f);
    }
    t->n_reqs++;
    r->tenant = t;
    r->flow = f;
    r->wait_prev = f->tail;
    r->wait_next = NULL;
    if (f->tail != NULL)
        f->tail->wait_next = r;
    else
        f->head = r;
    f->tail = r;
    q->n_waiting++;
    q->n_waiting_tokens += r->r.n_prompt;

    struct req **at = &q->id[slot_of(q, r->r.id)];
    r->id_next = *at;
    *at = r;
    r->prev = q->newest;
    r->next = NULL;
    if (q->newest != NULL)
        q->newest->next = r;
    else
        q->oldest = r;
    q->newest = r;
    return ERR_OK;
}

void sched_queue_take(struct queue *q, struct req *r)
{
    struct flow *f = r->flow;
    if (r->wait_prev != NULL)
        r->wait_prev->wait_next = r->wait_next;
    else
        f->head = r->wait_next;
    if (r->wait_next != NULL)
        r->wait_next->wait_prev = r->wait_prev;
    else
        f->tail = r->wait_prev;
    r->wait_prev = r->wait_next = NULL;
    r->flow = NULL;
    q->n_waiting--;
    q->n_waiting_tokens -= r->r.n_prompt;
    flow_drop_if_empty(q, f);
}

void sched_queue_remove(struct queue *q, struct req *r)
{
    if (r->flow != NULL)
        sched_queue_take(q, r);
    struct req **at = &q->id[slot_of(q, r->r.id)];
    while (*at != r)
        at = &(*at)->id_next;
    *at = r->id_next;
    if (r->prev != NULL)
        r->prev->next = r->next;
    else
        q->oldest = r->next;
    if (r->next != NULL)
        r->next->prev = r->prev;
    else
        q->newest = r->prev;
    r->prev = r->next = NULL;
    r->tenant->n_reqs--;
    tenant_drop_if_idle(q, r->tenant);
    r->tenant = NULL;
}

struct req *sched_queue_peek(struct queue *q)
{
    struct level *l = q->first;
    if (l == NULL)
        return NULL;
    struct flow *f = l->turn;
    int64_t best = INT64_MIN;
    do {
        if (f->tenant->deficit > 0) {
            l->turn = f;
            return f->head;
        }
        if (f->tenant->deficit > best)
            best = f->tenant->deficit;
        f = f->next;
    } while (f != l->turn);
    /* Every share is used up: next round(s), the turn stays where it is. */
    int64_t rounds = sched_policy_rounds(best);
    struct flow *chosen = NULL;
    do {
        f->tenant->deficit = sched_policy_credit(f->tenant->deficit, rounds);
        if (chosen == NULL && f->tenant->deficit > 0)
            chosen = f;
        f = f->next;
    } while (f != l->turn);
    l->turn = chosen;
    return chosen->head;
}

void sched_queue_charge(struct req *r, uint64_t n_tokens)
{
    r->tenant->deficit = sched_policy_charge(r->tenant->deficit, n_tokens);
}

/* --- sequences to resume --------------------------------------------------- */

bool sched_queue_resumes_before(const struct queue *q, const struct seq *a, const struct seq *b)
{
    int32_t pa = sched_queue_priority(q, a->req), pb = sched_queue_priority(q, b->req);
    if (pa != pb)
        return pa < pb;
    if (a->req->arrival != b->req->arrival)
        return a->req->arrival < b->req->arrival;
    return a->choice < b->choice;
}

void sched_queue_resume_add(struct queue *q, struct seq *s)
{
    struct seq *after = q->resume_last;
    while (after != NULL && sched_queue_resumes_before(q, s, after))
        after = after->prev;
    s->prev = after;
    s->next = after != NULL ? after->next : q->resume_first;
    if (s->next != NULL)
        s->next->prev = s;
    else
        q->resume_last = s;
    if (after != NULL)
        after->next = s;
    else
        q->resume_first = s;
    q->n_resume++;
    q->n_resume_tokens += s->known;
}

void sched_queue_resume_take(struct queue *q, struct seq *s)
{
    if (s->prev != NULL)
        s->prev->next = s->next;
    else
        q->resume_first = s->next;
    if (s->next != NULL)
        s->next->prev = s->prev;
    else
        q->resume_last = s->prev;
    s->prev = s->next = NULL;
    q->n_resume--;
    q->n_resume_tokens -= s->known;
}
