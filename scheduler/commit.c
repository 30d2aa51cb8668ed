/* commit.c: what a step's outcome means.
 *
 * Extends sequences by what was computed and sampled, applies the stop rules,
 * gives siblings their first token and their share of the blocks, and tells the
 * sink.  Owns nothing beyond struct sched.  Engine thread.  Promises: results of
 * sequences that ended while the step ran are dropped; events of one sequence
 * come in order of position, each position once. */
#include <assert.h>
#include <stddef.h>

#include "scheduler/check.h"
#include "scheduler/finish.h"

static bool stops(const struct sample_params *p, int32_t token, uint32_t n_before)
{
    if (n_before < p->min_tokens)
        return false;
    for (uint32_t i = 0; i < p->n_stop_ids; i++)
        if (p->stop_ids[i] == token)
            return true;
    return false;
}

/* Append a token and say so.  Why the sequence ends with it, or FINISH_NONE. */
static enum finish take_token(struct sched *s, struct seq *q, const struct sampled *out)
{
    struct req *r = q->req;
    if (out->failed)
        return FINISH_ERROR;
    assert(q->known < q->cap);
    uint32_t at = q->known++;
    q->hist[at] = out->token;
    q->n_output++;
    if (q->first_us == 0) {
        uint64_t now = s->now_us(s->clock_ctx);
        q->first_us = now > 0 ? now : 1;
    }
    s->stats.tokens_output++;
    sched_queue_charge(r, 1);
    bool stop = stops(r->r.params, out->token, q->n_output - 1);
    sched_emit(s, &(struct sched_event){ .kind = SCHED_TOKEN,
                                         .id = r->r.id,
                                         .choice = q->choice,
                                         .position = at,
                                         .out = out,
                                         .n_prompt = r->r.n_prompt,
                                         .n_output = q->n_output,
                                         .n_cached = r->n_cached,
                                         .n_preempted = q->n_preempted,
                                         .found = r->found });
    if (stop)
        return FINISH_STOP;
    return q->n_output >= r->limit ? FINISH_LENGTH : FINISH_NONE;
}

static const struct err not_finite = { .code = ERR_INTERNAL,
                                       .message = "the model's logits were not finite" };

/* A request counts once, however many of its sequences end so. */
static void count_corrupted(struct sched *s, struct req *r)
{
    s->stats.corrupted += !r->corrupted;
    r->corrupted = true;
}

static void end(struct sched *s, struct seq *q, enum finish why, int32_t token)
{
    if (why == FINISH_ERROR)
        count_corrupted(s, q->req);
    sched_seq_finish(s, q, why, why == FINISH_STOP ? token : -1,
                     why == FINISH_ERROR ? &not_finite : NULL);
}

/* A sibling's first token.  The parent's blocks hold the prompt; without a row
 * or a pool sequence for it, it waits and computes the prompt by itself. */
static void fork_sibling(struct sched *s, const struct seq *parent, struct seq *q,
                         const struct sampled *out)
{
    struct err e;
    q->state = SEQ_WAIT;
    q->known = q->req->r.n_prompt;
    if (!sched_seq_grow(q, q->known + 1)) {
        q->state = SEQ_UNFORKED; /* is in no list */
        err_nomem(&e, "a sibling sequence", (q->known + 1) * sizeof *q->hist);
        sched_seq_finish(s, q, FINISH_ERROR, -1, &e);
        return;
    }
    q->state = SEQ_UNFORKED;
    enum finish why = take_token(s, q, out);
    if (why != FINISH_NONE) {
        end(s, q, why, out->token);
        return;
    }
    if (s->n_run < s->cfg.max_num_seqs &&
        kvpool_fork(s->pool, parent->sid, &q->sid, &e) == ERR_OK) {
        q->computed = parent->computed;
        sched_run_add(s, q);
        return;
    }
    q->sid = SEQ_NONE;
    q->state = SEQ_WAIT;
    q->lost = q->req->r.n_prompt;
    sched_queue_resume_add(&s->queue, q);
}

/* Scores of prompt tokens among a row's outputs; false: one was not finite and
 * the request has ended. */
static bool take_prompt_scores(struct sched *s, struct seq *q, const struct plan_output *po,
                               const struct sampled *out, uint32_t n)
{
    struct req *r = q->req;
    for (uint32_t i = 0; i < n && po[i].target >= 0; i++) {
        if (out[i].failed) {
            count_corrupted(s, r);
            sched_req_finish(s, r, FINISH_ERROR, &not_finite);
            return false;
        }
        assert(r->lp_next == po[i].n_history);
        r->lp_next++;
        sched_emit(s, &(struct sched_event){ .kind = SCHED_PROMPT_TOKEN,
                                             .id = r->r.id,
                                             .choice = q->choice,
                                             .position = po[i].n_history,
                                             .out = &out[i],
                                             .n_prompt = r->r.n_prompt });
    }
    return true;
}

/* One row's outputs [first, first + row->n_outputs). */
static void take_outputs(struct sched *s, const struct step *t, const struct step_row *row,
                         const struct sampled *out, uint32_t first)
{
    struct seq *q = row->seq;
    const struct plan_output *po = t->plan.output + first;
    if (!take_prompt_scores(s, q, po, out + first, row->n_outputs))
        return;
    enum finish why = FINISH_NONE;
    int32_t token = -1;
    for (uint32_t i = 0; i < row->n_outputs; i++) {
        struct seq *to = t->out_seq[first + i];
        if (po[i].target >= 0 || to->state == SEQ_DONE)
            continue;
        if (to != q) {
            fork_sibling(s, q, to, &out[first + i]);
            continue;
        }
        q->due--;
        why = take_token(s, q, &out[first + i]);
        token = out[first + i].token;
    }
    /* Last, because the siblings took their share from it. */
    if (why != FINISH_NONE)
        end(s, q, why, token);
    else if (q->req->limit == 0 && q->computed == q->known)
        sched_req_finish(s, q->req, FINISH_LENGTH, NULL);
}

static const struct err damaged = { .code = ERR_INTERNAL,
                                    .message = "a KV block of it failed the ledger's check" };

static void check_ledger(struct sched *s)
{
    if (s->cfg.check_every == 0 || s->step % s->cfg.check_every != 0)
        return;
    struct err e;
    if (kvpool_check(s->pool, &e) == ERR_OK)
        return;
    s->stats.ledger_violations++;
    s->last_violation = e;
    for (uint32_t i = 0; i < s->n_run;) {
        struct seq *q = s->run[i];
        if (!kvpool_damaged(s->pool, q->sid)) {
            i++;
            continue;
        }
        sched_seq_finish(s, q, FINISH_ERROR, -1, &damaged);
        i = 0; /* the list may have moved */
    }
}

/* The oldest step in flight has ended; the next one has begun at the latest now. */
static void close_step(struct sched *s, struct step *t, uint64_t now)
{
    t->n_rows = t->n_outputs = 0;
    s->n_flight--;
    if (s->n_flight > 0)
        sched_step_oldest(s)->start_us = now;
    sched_free_deferred(s);
    check_ledger(s);
    sched_assert(s);
}

void sched_commit(struct sched *s, const struct step_plan *plan, const struct sampled *out)
{
    struct step *t = sched_step_oldest(s);
    assert(s->n_flight > 0 && !s->in_callback && plan == &t->plan.view);
    uint64_t now = s->now_us(s->clock_ctx);
    if (s->cfg.itl_target_us != 0 && t->n_decodes > 0)
        sched_policy_pace_add(&s->pace, t->n_prompt_tokens, now - t->start_us);
    kvpool_retire(s->pool, plan->step);
    for (uint32_t i = 0; i < t->n_rows; i++) {
        struct seq *q = t->row[i].seq;
        if (q->state != SEQ_RUN)
            continue;
        kvpool_commit(s->pool, q->sid, q->hist + q->computed, t->row[i].n);
        q->computed += t->row[i].n;
        q->flight -= t->row[i].n;
    }
    uint32_t first = 0;
    for (uint32_t i = 0; i < t->n_rows; i++) {
        const struct step_row row = t->row[i];
        if (row.seq->state == SEQ_RUN)
            take_outputs(s, t, &row, out, first);
        first += row.n_outputs;
    }
    close_step(s, t, now);
}

static const struct err step_failed = { .code = ERR_INTERNAL, .message = "the step failed" };

void sched_abort(struct sched *s, const struct step_plan *plan, const struct err *why)
{
    struct step *t = sched_step_oldest(s);
    assert(s->n_flight > 0 && !s->in_callback && plan == &t->plan.view);
    kvpool_retire(s->pool, plan->step);
    for (uint32_t i = 0; i < t->n_rows; i++) {
        struct seq *q = t->row[i].seq;
        if (q->state != SEQ_DONE)
            sched_req_finish(s, q->req, FINISH_ERROR, why != NULL ? why : &step_failed);
    }
    close_step(s, t, s->now_us(s->clock_ctx));
}
