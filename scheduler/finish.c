/* finish.c: how sequences and requests end, and what the outside is told.
 *
 * Owns the list of ended requests whose memory waits for steps in flight.  Engine
 * thread.  Promises: a sequence ends exactly once, with one SCHED_DONE; nothing
 * that a step in flight names is freed before that step has ended. */
#include "scheduler/finish.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/rows.h"

void sched_run_add(struct sched *s, struct seq *q)
{
    assert(s->n_run < s->cfg.max_num_seqs && q->sid != SEQ_NONE);
    q->state = SEQ_RUN;
    s->run[s->n_run++] = q;
}

void sched_run_remove(struct sched *s, struct seq *q)
{
    uint32_t i = 0;
    while (s->run[i] != q)
        i++;
    s->n_run--;
    memmove(&s->run[i], &s->run[i + 1], (size_t)(s->n_run - i) * sizeof s->run[0]);
}

void sched_seq_release(struct sched *s, struct seq *q)
{
    if (q->sid == SEQ_NONE)
        return;
    kvpool_close(s->pool, q->sid);
    q->sid = SEQ_NONE;
    q->computed = q->planned = q->flight = q->due = 0;
}

void sched_emit(struct sched *s, const struct sched_event *ev)
{
    assert(!s->in_callback);
    s->in_callback = true;
    s->sink.event(s->sink.ctx, ev);
    s->in_callback = false;
}

static void emit_done(struct sched *s, const struct seq *q, enum finish why, int32_t stop_id,
                      const struct err *why_failed)
{
    const struct req *r = q->req;
    uint64_t now = s->now_us(s->clock_ctx);
    uint64_t start = r->start_us != 0 ? r->start_us : now;
    uint64_t first = q->first_us != 0 ? q->first_us : now;
    sched_emit(s, &(struct sched_event){
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

/* The sequence that computes its request's prompt goes before the siblings have
 * forked: the next of them takes its place, its blocks and its row. */
static bool promote_sibling(struct sched *s, struct seq *q)
{
    struct req *r = q->req;
    struct seq *successor = NULL;
    for (uint32_t i = 0; i < r->r.n && successor == NULL; i++)
        if (r->seq[i].state == SEQ_UNFORKED)
            successor = &r->seq[i];
    if (successor == NULL)
        return false;
    bool resumes = q->state == SEQ_WAIT && r->flow == NULL;
    if (resumes)
        sched_queue_resume_take(&s->queue, q);
    uint32_t choice = successor->choice;
    *successor = *q;
    successor->choice = choice;
    r->lead = choice;
    q->sid = SEQ_NONE;
    q->hist = NULL;
    q->computed = q->planned = q->flight = q->due = 0;
    for (uint32_t i = 0; i < s->n_run; i++)
        if (s->run[i] == q)
            s->run[i] = successor;
    for (uint32_t i = 0; i < STEPS; i++)
        step_rename(&s->steps[i], q, successor);
    if (successor->due > 0)
        successor->due_output = output_of(&s->steps[s->step % STEPS], successor);
    if (resumes)
        sched_queue_resume_add(&s->queue, successor);
    return true;
}

/* Take q out of wherever it is; it holds nothing afterwards. */
static void seq_withdraw(struct sched *s, struct seq *q)
{
    struct req *r = q->req;
    if (q->choice == r->lead && q->state != SEQ_DONE && promote_sibling(s, q))
        return;
    if (q->state == SEQ_RUN) {
        sched_run_remove(s, q);
        sched_row_drop(s, q);
        sched_seq_release(s, q);
    } else if (q->state == SEQ_WAIT && r->flow == NULL) {
        sched_queue_resume_take(&s->queue, q);
    }
}

void sched_seq_finish(struct sched *s, struct seq *q, enum finish why, int32_t stop_id,
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
    sched_queue_remove(&s->queue, r);
    r->last_step = s->step;
    r->next = s->deferred;
    s->deferred = r;
    sched_free_deferred(s);
}

void sched_req_finish(struct sched *s, struct req *r, enum finish why, const struct err *why_failed)
{
    uint32_t n = r->r.n, live = r->n_live;
    /* Unforked ones first, so that none takes the lead's place. */
    for (uint32_t i = 0; i < n && live > 1; i++) {
        if (r->seq[i].state == SEQ_UNFORKED) {
            live--;
            sched_seq_finish(s, &r->seq[i], why, -1, why_failed);
        }
    }
    for (uint32_t i = 0; live > 0; i++) {
        if (r->seq[i].state != SEQ_DONE) {
            live--;
            sched_seq_finish(s, &r->seq[i], why, -1, why_failed);
        }
    }
}

void sched_free_deferred(struct sched *s)
{
    uint64_t ended = s->step - s->n_flight;
    struct req **at = &s->deferred;
    while (*at != NULL && (*at)->last_step > ended)
        at = &(*at)->next;
    while (*at != NULL) {
        struct req *r = *at;
        *at = r->next;
        sched_req_free(r);
    }
}
