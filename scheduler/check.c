/* check.c: the scheduler's invariants, executed.
 *
 * sched_check() recounts everything from the live requests and the steps in
 * flight and compares; sched.h numbers what must hold.  It changes nothing.
 * Engine thread; no allocation.  Costs the live requests times the tenants and
 * the running sequences squared: for debug builds and tests. */
#include "scheduler/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* The first violation, as an error. */
static enum err_code PRINTF_LIKE(3, 4) broken(struct err *e, int number, const char *fmt, ...)
{
    char text[ERR_MESSAGE_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(e, ERR_INVALID, "scheduler invariant (%d): %s", number, text);
}

static unsigned long long id_of(const struct req *r)
{
    return (unsigned long long)r->r.id;
}

/* ---- requests and their sequences ---------------------------------------------- */

static bool waits_in_flow(const struct seq *q)
{
    return q->req->flow != NULL && q->choice == q->req->lead;
}

static uint32_t times_in_run(const struct sched *s, const struct seq *q)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_run; i++)
        n += s->run[i] == q;
    return n;
}

static bool in_resume(const struct sched *s, const struct seq *q)
{
    const struct seq *x = s->queue.resume_first;
    while (x != NULL && x != q)
        x = x->next;
    return x == q;
}

/* (2): q is where its state says, and nowhere else. */
static enum err_code check_place(const struct sched *s, const struct seq *q, struct err *e)
{
    const struct req *r = q->req;
    uint32_t n_run = times_in_run(s, q);
    bool flow = waits_in_flow(q), resume = in_resume(s, q);
    if (n_run != (q->state == SEQ_RUN))
        return broken(e, 2, "request %llu choice %u in state %d is %u times among the running",
                      id_of(r), q->choice, (int)q->state, n_run);
    if (flow && q->state != SEQ_WAIT)
        return broken(e, 2, "request %llu waits for its start: its lead is in state %d", id_of(r),
                      (int)q->state);
    if (resume != (q->state == SEQ_WAIT && !flow))
        return broken(e, 2, "request %llu choice %u in state %d is %s the list to resume", id_of(r),
                      q->choice, (int)q->state, resume ? "in" : "not in");
    if (q->state == SEQ_UNFORKED &&
        (r->seq[r->lead].state == SEQ_DONE || r->seq[r->lead].n_output > 0))
        return broken(e, 2, "request %llu choice %u waits to fork: its lead %u is past the prompt",
                      id_of(r), q->choice, r->lead);
    return ERR_OK;
}

/* Tokens of q's rows in the steps in flight, and how many of these sample for it. */
static uint32_t tokens_in_flight(const struct sched *s, const struct seq *q, uint32_t *n_due)
{
    uint32_t n = 0;
    *n_due = 0;
    for (uint32_t k = 0; k < s->n_flight; k++) {
        const struct step *t = &s->steps[(s->step - k) % STEPS];
        for (uint32_t i = 0, out = 0; i < t->n_rows; out += t->row[i].n_outputs, i++) {
            if (t->row[i].seq != q)
                continue;
            n += t->row[i].n;
            for (uint32_t j = out; j < out + t->row[i].n_outputs; j++)
                *n_due += t->out_seq[j] == q && t->plan.output[j].target < 0;
        }
    }
    return n;
}

/* (4), (5): q's tokens. */
static enum err_code check_tokens(const struct sched *s, const struct seq *q, struct err *e)
{
    const struct req *r = q->req;
    if (q->state != SEQ_DONE && q->known != r->r.n_prompt + q->n_output)
        return broken(e, 5, "request %llu choice %u: %u tokens known, prompt %u and output %u",
                      id_of(r), q->choice, q->known, r->r.n_prompt, q->n_output);
    if (q->n_output > r->limit || (q->hist != NULL && q->known > q->cap) ||
        r->lp_next > r->r.n_prompt)
        return broken(e, 5, "request %llu choice %u: %u of %u output tokens, %u known of room %u",
                      id_of(r), q->choice, q->n_output, r->limit, q->known, q->cap);
    if (q->state != SEQ_RUN) {
        if (q->sid != SEQ_NONE || q->computed + q->planned + q->flight + q->due > 0)
            return broken(e, 3, "request %llu choice %u does not run: it holds pool sequence %u",
                          id_of(r), q->choice, q->sid);
        return ERR_OK;
    }
    if (!kvpool_is_open(s->pool, q->sid))
        return broken(e, 3, "request %llu choice %u runs: pool sequence %u is not open", id_of(r),
                      q->choice, q->sid);
    uint32_t n_due, flight = tokens_in_flight(s, q, &n_due);
    if (q->computed != kvpool_length(s->pool, q->sid))
        return broken(e, 4, "request %llu choice %u: %u tokens computed, the pool has %u", id_of(r),
                      q->choice, q->computed, kvpool_length(s->pool, q->sid));
    if (q->planned != 0 || q->flight != flight || q->flight != kvpool_reserved(s->pool, q->sid))
        return broken(e, 4,
                      "request %llu choice %u: %u tokens planned and %u in flight, its rows have "
                      "%u, the pool reserved %u",
                      id_of(r), q->choice, q->planned, q->flight, flight,
                      kvpool_reserved(s->pool, q->sid));
    if (q->due != n_due || q->due > s->n_flight)
        return broken(e, 5, "request %llu choice %u: %u tokens due, steps in flight sample %u",
                      id_of(r), q->choice, q->due, n_due);
    if (q->computed > q->known || q->computed + q->flight > q->known + q->due)
        return broken(e, 5, "request %llu choice %u: %u computed and %u in flight of %u known",
                      id_of(r), q->choice, q->computed, q->flight, q->known);
    return ERR_OK;
}

/* (1): every live request; *n_live_run: their RUN sequences. */
static enum err_code check_requests(const struct sched *s, uint32_t *n_live_run, struct err *e)
{
    const struct req *before = NULL;
    *n_live_run = 0;
    for (const struct req *r = s->queue.oldest; r != NULL; before = r, r = r->next) {
        if (r->prev != before || (before != NULL && before->arrival >= r->arrival))
            return broken(e, 1, "request %llu is not behind the one that came before it", id_of(r));
        if (sched_queue_find(&s->queue, r->r.id) != r)
            return broken(e, 1, "request %llu is not found by its id", id_of(r));
        uint32_t n_live = 0;
        for (uint32_t i = 0; i < r->r.n; i++) {
            const struct seq *q = &r->seq[i];
            if (q->req != r || q->choice != i)
                return broken(e, 1, "request %llu choice %u says it is choice %u", id_of(r), i,
                              q->choice);
            n_live += q->state != SEQ_DONE;
            *n_live_run += q->state == SEQ_RUN;
            enum err_code rc = check_place(s, q, e);
            if (rc == ERR_OK)
                rc = check_tokens(s, q, e);
            if (rc != ERR_OK)
                return rc;
        }
        if (n_live == 0 || n_live != r->n_live)
            return broken(e, 1, "request %llu has %u live sequences: it says %u", id_of(r), n_live,
                          r->n_live);
    }
    if (s->queue.newest != before)
        return broken(e, 1, "the list of requests does not end in the newest");
    return ERR_OK;
}

/* (3): the pool's sequences are those of run[]. */
static enum err_code check_running(const struct sched *s, uint32_t n_live_run, struct err *e)
{
    struct kvpool_stats st;
    kvpool_stats(s->pool, &st);
    if (s->n_run > s->cfg.max_num_seqs || s->n_run != n_live_run || st.n_seqs < s->n_run)
        return broken(e, 3, "%u sequences run of at most %u: %u say so, the pool has %llu open",
                      s->n_run, s->cfg.max_num_seqs, n_live_run, (unsigned long long)st.n_seqs);
    for (uint32_t i = 0; i < s->n_run; i++)
        for (uint32_t j = i + 1; j < s->n_run; j++)
            if (s->run[i]->sid == s->run[j]->sid)
                return broken(e, 3, "requests %llu and %llu share pool sequence %u",
                              id_of(s->run[i]->req), id_of(s->run[j]->req), s->run[i]->sid);
    return ERR_OK;
}

/* ---- the queue ------------------------------------------------------------------- */

static enum err_code check_resume(const struct queue *q, struct err *e)
{
    const struct seq *before = NULL;
    uint32_t n = 0;
    uint64_t n_tokens = 0;
    for (const struct seq *x = q->resume_first; x != NULL; before = x, x = x->next, n++) {
        n_tokens += x->known;
        if (x->prev != before || (before != NULL && !sched_queue_resumes_before(q, before, x)))
            return broken(e, 6, "request %llu choice %u is out of order in the list to resume",
                          id_of(x->req), x->choice);
    }
    if (n != q->n_resume || n_tokens != q->n_resume_tokens || q->resume_last != before)
        return broken(e, 6, "%u sequences with %llu tokens resume: counted are %u and %llu", n,
                      (unsigned long long)n_tokens, q->n_resume,
                      (unsigned long long)q->n_resume_tokens);
    return ERR_OK;
}

/* One flow's requests, added to the sums. */
static enum err_code check_flow(const struct queue *q, const struct flow *f, uint32_t *n,
                                uint64_t *n_tokens, struct err *e)
{
    const struct req *before = NULL;
    const struct flow *own = f->tenant->flows;
    while (own != NULL && own != f)
        own = own->other;
    if (f->head == NULL || own == NULL)
        return broken(e, 7, "a flow of priority %d is %s", f->level->priority,
                      f->head == NULL ? "empty" : "not among its tenant's");
    for (const struct req *r = f->head; r != NULL; before = r, r = r->wait_next, ++*n) {
        *n_tokens += r->r.n_prompt;
        if (r->wait_prev != before || (before != NULL && before->arrival >= r->arrival) ||
            r->flow != f || r->tenant != f->tenant || r->start_us != 0 ||
            sched_queue_priority(q, r) != f->level->priority)
            return broken(e, 7, "request %llu is in a flow that is not its own, or out of order",
                          id_of(r));
    }
    if (f->tail != before)
        return broken(e, 7, "a flow of priority %d ends elsewhere", f->level->priority);
    return ERR_OK;
}

/* (6), (7): levels, their rings of flows, and the sums over all. */
static enum err_code check_levels(const struct queue *q, struct err *e)
{
    const struct level *before = NULL;
    uint32_t n = 0;
    uint64_t n_tokens = 0;
    for (const struct level *l = q->first; l != NULL; before = l, l = l->next) {
        if (l->turn == NULL || l->prev != before ||
            (before != NULL && before->priority >= l->priority))
            return broken(e, 7, "the level of priority %d is empty or out of order", l->priority);
        const struct flow *f = l->turn;
        do {
            if (f->level != l || f->next->prev != f)
                return broken(e, 7, "the ring of priority %d is broken", l->priority);
            enum err_code rc = check_flow(q, f, &n, &n_tokens, e);
            if (rc != ERR_OK)
                return rc;
            f = f->next;
        } while (f != l->turn);
    }
    if (n != q->n_waiting || n_tokens != q->n_waiting_tokens)
        return broken(e, 6, "%u requests with %llu tokens wait: counted are %u and %llu", n,
                      (unsigned long long)n_tokens, q->n_waiting,
                      (unsigned long long)q->n_waiting_tokens);
    return ERR_OK;
}

/* (7): tenants' live requests and deficits. */
static enum err_code check_tenants(const struct queue *q, struct err *e)
{
    uint32_t n_tenants = 0, n_live = 0, sum = 0;
    for (const struct req *r = q->oldest; r != NULL; r = r->next)
        n_live++;
    for (uint32_t i = 0; i <= q->mask; i++)
        for (const struct tenant *t = q->tenant[i]; t != NULL; t = t->next, n_tenants++) {
            uint32_t n = 0;
            for (const struct req *r = q->oldest; r != NULL; r = r->next)
                n += r->tenant == t;
            if (n == 0 || n != t->n_reqs)
                return broken(e, 7, "tenant %llx has %u live requests: it says %u",
                              (unsigned long long)t->key, n, t->n_reqs);
            if (t->deficit > POLICY_QUANTUM_TOKENS || t->deficit < -POLICY_MAX_DEBT_TOKENS)
                return broken(e, 7, "tenant %llx has a deficit of %lld: expected %d..%d",
                              (unsigned long long)t->key, (long long)t->deficit,
                              -POLICY_MAX_DEBT_TOKENS, POLICY_QUANTUM_TOKENS);
            sum += n;
        }
    if (n_tenants != q->n_tenants || sum != n_live)
        return broken(e, 7, "%u tenants with %u requests: counted are %u and %u", n_tenants, sum,
                      q->n_tenants, n_live);
    return ERR_OK;
}

/* ---- steps ------------------------------------------------------------------------- */

/* (8): what is in flight keeps to the budgets. */
static enum err_code check_steps(const struct sched *s, struct err *e)
{
    if (s->n_flight > 1u + s->cfg.overlap || s->n_flight > s->step)
        return broken(e, 8, "%u of %llu steps are in flight: expected at most %u", s->n_flight,
                      (unsigned long long)s->step, 1u + s->cfg.overlap);
    for (uint32_t k = 0; k < s->n_flight; k++) {
        const struct step *t = &s->steps[(s->step - k) % STEPS];
        uint64_t n_tokens = 0, n_outputs = 0;
        for (uint32_t i = 0; i < t->n_rows; i++) {
            n_tokens += t->row[i].n;
            n_outputs += t->row[i].n_outputs;
        }
        if (t->plan.view.step != s->step - k || t->n_rows == 0 || t->n_rows > s->cfg.max_num_seqs ||
            n_tokens > s->cfg.max_num_batched_tokens || n_tokens != t->plan.view.n_tokens ||
            n_outputs > s->cfg.max_outputs || n_outputs != t->n_outputs ||
            n_outputs != t->plan.view.n_outputs)
            return broken(e, 8, "step %llu: %u rows, %llu tokens of at most %u, %llu outputs",
                          (unsigned long long)t->plan.view.step, t->n_rows,
                          (unsigned long long)n_tokens, s->cfg.max_num_batched_tokens,
                          (unsigned long long)n_outputs);
    }
    return ERR_OK;
}

/* (9): ended requests wait for a step in flight, latest first. */
static enum err_code check_deferred(const struct sched *s, struct err *e)
{
    uint64_t latest = s->step, ended = s->step - s->n_flight;
    for (const struct req *r = s->deferred; r != NULL; r = r->next) {
        if (r->n_live != 0 || r->tenant != NULL || r->flow != NULL)
            return broken(e, 9, "request %llu waits to be freed: %u of its sequences live",
                          id_of(r), r->n_live);
        if (r->last_step > latest || r->last_step <= ended)
            return broken(e, 9, "request %llu waits for step %llu: %llu..%llu are in flight",
                          id_of(r), (unsigned long long)r->last_step, (unsigned long long)ended + 1,
                          (unsigned long long)latest);
        latest = r->last_step;
    }
    return ERR_OK;
}

enum err_code sched_check(const struct sched *s, struct err *e)
{
    uint32_t n_live_run;
    enum err_code rc = check_steps(s, e);
    if (rc == ERR_OK)
        rc = check_resume(&s->queue, e);
    if (rc == ERR_OK)
        rc = check_requests(s, &n_live_run, e);
    if (rc == ERR_OK)
        rc = check_running(s, n_live_run, e);
    if (rc == ERR_OK)
        rc = check_levels(&s->queue, e);
    if (rc == ERR_OK)
        rc = check_tenants(&s->queue, e);
    if (rc == ERR_OK)
        rc = check_deferred(s, e);
    return rc;
}

void sched_assert(const struct sched *s)
{
#ifdef QUIRE_DEBUG
    struct err e;
    if (sched_check(s, &e) == ERR_OK)
        return;
    fprintf(stderr, "step %llu: %s\n", (unsigned long long)s->step, e.message);
    abort();
#else
    (void)s;
#endif
}
