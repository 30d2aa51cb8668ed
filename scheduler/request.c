/* request.c: a request's memory, its endings and what the outside is told.
 *
 * Owns requests, sequences and their histories.  Engine thread.  Promises: a
 * sequence ends exactly once, with one SCHED_DONE; nothing that a step in
 * flight names is freed before that step has ended. */
#include "scheduler/internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct req *req_create(const struct sched_request *r, uint32_t limit)
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
        q->seq[i].state = i == 0 ? SEQ_WAIT : SEQ_UNBORN;
        q->seq[i].known = r->n_prompt;
    }
    return q;
}

void req_free(struct req *r)
{
    for (uint32_t i = 0; i < r->r.n; i++)
        free(r->seq[i].hist);
    free(r);
}

const int32_t *seq_known(const struct seq *q)
{
    return q->hist != NULL ? q->hist : q->req->r.prompt;
}

bool seq_hold(struct seq *q, uint32_t want)
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

void run_add(struct sched *s, struct seq *q)
{
    assert(s->n_run < s->cfg.max_num_seqs && q->sid != SEQ_NONE);
    q->state = SEQ_RUN;
    s->run[s->n_run++] = q;
}

void run_remove(struct sched *s, struct seq *q)
{
    uint32_t i = 0;
    while (s->run[i] != q)
        i++;
    s->n_run--;
    memmove(&s->run[i], &s->run[i + 1], (size_t)(s->n_run - i) * sizeof s->run[0]);
}

void seq_release(struct sched *s, struct seq *q)
{
    if (q->sid == SEQ_NONE)
        return;
    kvpool_close(s->pool, q->sid);
    q->sid = SEQ_NONE;
    q->computed = q->planned = q->flight = q->due = 0;
}

void emit(struct sched *s, const struct sched_event *ev)
{
    assert(!s->busy);
    s->busy = true;
    s->sink.event(s->sink.ctx, ev);
    s->busy = false;
}

static void emit_done(struct sched *s, const struct seq *q, enum finish why, int32_t stop_id,
                      const struct err *why_failed)
{
    const struct req *r = q->req;
    uint64_t now = s->now_us(s->clock_ctx);
    uint64_t start = r->start_us != 0 ? r->start_us : now;
    uint64_t first = q->first_us != 0 ? q->first_us : now;
    emit(s, &(struct sched_event){
                .kind = SCHED_DONE,
                .id = r->r.id,
                .choice = q->choice,
                .position = q->known,
                .finish = why,
                .stop_id = stop_id,
                .n_prompt = r->r.n_prompt,
                .n_output = q->n_output,
                .n_cached = r->n_cached,
                .n_preempted = q->n_preempted,
                .found = r->found,
                .queued_us = start - r->submit_us,
                .prefill_us = first - start,
                .decode_us = now - first,
                .why = why_failed,
            });
}

static void step_rename(struct step *t, const struct seq *from, struct seq *to)
{
    for (uint32_t i = 0; i < t->n_rows; i++)
        if (t->row[i].seq == from)
            t->row[i].seq = to;
}

/* The output of the step that samples for q, if one does. */
static uint32_t output_of(const struct step *t, const struct seq *q)
{
    uint32_t i = 0;
    while (i + 1 < t->n_outputs && t->out_seq[i] != q)
        i++;
    return i;
}

/* The request whose first token is due loses the sequence that computes its
 * prompt: the next unborn one takes over where it was. */
static bool hand_over(struct sched *s, struct seq *q)
{
    struct req *r = q->req;
    struct seq *heir = NULL;
    for (uint32_t i = 0; i < r->r.n && heir == NULL; i++)
        if (r->seq[i].state == SEQ_UNBORN)
            heir = &r->seq[i];
    if (heir == NULL)
        return false;
    bool resumes = q->state == SEQ_WAIT && r->flow == NULL;
    if (resumes)
        queue_resume_take(&s->queue, q);
    uint32_t choice = heir->choice;
    *heir = *q;
    heir->choice = choice;
    r->lead = choice;
    q->sid = SEQ_NONE;
    q->hist = NULL;
    q->computed = q->planned = q->flight = q->due = 0;
    for (uint32_t i = 0; i < s->n_run; i++)
        if (s->run[i] == q)
            s->run[i] = heir;
    for (uint32_t i = 0; i < STEPS; i++)
        step_rename(&s->steps[i], q, heir);
    if (heir->due > 0)
        heir->due_output = output_of(&s->steps[s->step % STEPS], heir);
    if (resumes)
        queue_resume_add(&s->queue, heir);
    return true;
}

/* Take q out of wherever it is; it holds nothing afterwards. */
static void seq_withdraw(struct sched *s, struct seq *q)
{
    struct req *r = q->req;
    if (q->choice == r->lead && q->state != SEQ_DONE && hand_over(s, q))
        return;
    if (q->state == SEQ_RUN) {
        run_remove(s, q);
        row_drop(s, q);
        seq_release(s, q);
    } else if (q->state == SEQ_WAIT && r->flow == NULL) {
        queue_resume_take(&s->queue, q);
    }
}

void seq_finish(struct sched *s, struct seq *q, enum finish why, int32_t stop_id,
                const struct err *why_failed)
{
    struct req *r = q->req;
    assert(q->state != SEQ_DONE);
    seq_withdraw(s, q);
    q->state = SEQ_DONE;
    if (s->n_flight == 0) {
        free(q->hist);
        q->hist = NULL;
    }
    s->stats.finished[why]++;
    r->n_live--;
    bool last = r->n_live == 0;
    emit_done(s, q, why, stop_id, why_failed);
    if (!last)
        return;
    queue_remove(&s->queue, r);
    r->last_step = s->step;
    r->next = s->zombies;
    s->zombies = r;
    zombies_free(s);
}

void req_finish(struct sched *s, struct req *r, enum finish why, const struct err *why_failed)
{
    uint32_t n = r->r.n, live = r->n_live;
    /* Unborn ones first, so that nothing is handed over. */
    for (uint32_t i = 0; i < n && live > 1; i++) {
        if (r->seq[i].state == SEQ_UNBORN) {
            live--;
            seq_finish(s, &r->seq[i], why, -1, why_failed);
        }
    }
    for (uint32_t i = 0; live > 0; i++) {
        if (r->seq[i].state != SEQ_DONE) {
            live--;
            seq_finish(s, &r->seq[i], why, -1, why_failed);
        }
    }
}

void zombies_free(struct sched *s)
{
    uint64_t ended = s->step - s->n_flight;
    struct req **at = &s->zombies;
    while (*at != NULL && (*at)->last_step > ended)
        at = &(*at)->next;
    while (*at != NULL) {
        struct req *r = *at;
        *at = r->next;
        req_free(r);
    }
}
