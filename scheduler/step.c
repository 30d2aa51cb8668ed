/* step.c: plan one step.
 *
 * Decode rows first, then part-done prompts, then admissions, under one token
 * budget; rows that no block is left for are made room for by preemption.
 * Owns nothing beyond struct sched.  Engine thread.  Promises: every planned
 * row has its blocks reserved, or is not in the plan; when work is left, either
 * a row is planned or a request that can never run has ended in an error. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "scheduler/admit.h"
#include "scheduler/check.h"
#include "scheduler/finish.h"
#include "scheduler/rows.h"

/* --- preemption -------------------------------------------------------------- */

/* Back to waiting; what it computed is dropped, what it said stays known. */
static void preempt(struct sched *s, struct seq *q)
{
    q->lost = q->computed;
    sched_row_drop(s, q);
    sched_run_remove(s, q);
    sched_seq_release(s, q);
    q->state = SEQ_WAIT;
    q->n_preempted++;
    q->passed = 0;
    q->failed = ERR_OK;
    s->stats.preemptions++;
    s->now->n_preempted++;
    sched_queue_resume_add(&s->queue, q);
}

static struct seq *pick_victim(struct sched *s, uint32_t want)
{
    for (uint32_t i = 0; i < s->n_run; i++) {
        const struct seq *q = s->run[i];
        s->victim[i] = (struct sched_policy_victim){
            .gain = kvpool_gain(s->pool, q->sid),
            .recompute = q->computed,
            .n_preempted = q->n_preempted,
            .priority = sched_queue_priority(&s->queue, q->req),
            .arrival = q->req->arrival,
        };
    }
    int32_t i = sched_policy_pick_victim(s->victim, s->n_run, want);
    return i < 0 ? NULL : s->run[i];
}

/* A row of n tokens for q, preempting for it.  False: q is not in this step;
 * it was preempted itself, or failed, or must wait for resting blocks.  Beside a
 * step in flight nobody is preempted: what that frees would rest, and what the
 * step samples for the victim would be lost. */
static bool secure(struct sched *s, struct seq *q, uint32_t n)
{
    for (;;) {
        struct err e;
        enum err_code rc = sched_row_add(s, q, n, &e);
        if (rc == ERR_OK)
            return true;
        if (rc == ERR_BUSY && s->n_flight > 0) {
            s->now->starved = true;
            return false;
        }
        if (rc != ERR_BUSY || s->n_run == 1) {
            struct kvpool_stats st;
            kvpool_stats(s->pool, &st);
            if (rc != ERR_BUSY)
                q->failed = rc;
            else if (st.n_resting == 0) /* alone, and the pool has no more */
                q->failed = ERR_LIMIT;
            return false;
        }
        uint32_t want = kvpool_reserve_cost(s->pool, q->sid, n);
        uint32_t ahead = (s->cfg.look_ahead_tokens >> s->block_shift) + 1;
        struct seq *v = pick_victim(s, want + ahead);
        if (v == NULL)
            v = q; /* everything is shared: give up its own shares */
        preempt(s, v);
        if (v == q)
            return false;
    }
}

/* --- the running ------------------------------------------------------------ */

/* Whether a row of q may be planned now: not when the token that is due ends it,
 * nor before the siblings that share its first logits have forked. */
static bool may_go_on(const struct seq *q)
{
    const struct req *r = q->req;
    if (q->due == 0)
        return true;
    if (q->n_output + q->due >= r->limit)
        return false;
    for (uint32_t i = 0; r->r.n > 1 && i < r->r.n; i++)
        if (r->seq[i].state == SEQ_UNFORKED)
            return false;
    return true;
}

static void plan_decodes(struct sched *s, uint32_t *budget)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_run; i++)
        if (sched_seq_left(s->run[i]) == 1 && may_go_on(s->run[i]))
            s->cand[n++] = s->run[i];
    if (n == 0)
        return;
    /* More rows than tokens: another one starts each step. */
    uint32_t start = n > *budget ? s->turn++ % n : 0;
    for (uint32_t i = 0; i < n && *budget > 0; i++) {
        struct seq *q = s->cand[start + i < n ? start + i : start + i - n];
        if (q->state != SEQ_RUN || sched_row_fit(s, q, 1) == 0)
            continue;
        if (!sched_seq_grow(q, q->known + q->due + 1)) {
            q->failed = ERR_NOMEM;
            continue;
        }
        if (secure(s, q, 1))
            --*budget;
    }
}

/* Sort cand[0..n) by sched_policy_prompt_before; part[] goes along. */
static void sort_prompts(struct sched *s, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        struct seq *q = s->cand[i];
        struct sched_policy_prompt p = s->part[i];
        uint32_t j = i;
        for (; j > 0 && sched_policy_prompt_before(&p, &s->part[j - 1]); j--) {
            s->cand[j] = s->cand[j - 1];
            s->part[j] = s->part[j - 1];
        }
        s->cand[j] = q;
        s->part[j] = p;
    }
}

static void plan_prompts(struct sched *s, uint32_t *budget)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_run; i++) {
        struct seq *q = s->run[i];
        if (sched_seq_left(q) <= 1 || q->planned > 0)
            continue;
        s->part[n] =
            (struct sched_policy_prompt){ .left = sched_seq_left(q),
                                          .passed = q->passed,
                                          .arrival = q->req->arrival,
                                          .priority = sched_queue_priority(&s->queue, q->req) };
        s->cand[n++] = q;
    }
    sort_prompts(s, n);
    for (uint32_t i = 0; i < n && *budget > 0; i++) {
        struct seq *q = s->cand[i];
        if (q->state != SEQ_RUN)
            continue;
        uint32_t m = sched_policy_chunk(s->part[i].left, s->cfg.long_prefill_threshold, *budget);
        m = sched_row_fit(s, q, m);
        if (m == 0)
            continue;
        if (!sched_seq_grow(q, q->known + 1)) {
            q->failed = ERR_NOMEM;
            continue;
        }
        /* Others move and will free blocks: wait for them.  Nobody moves:
         * someone must go. */
        struct err e;
        bool ok;
        if (s->now->n_live_rows > 0) {
            enum err_code rc = sched_row_add(s, q, m, &e);
            ok = rc == ERR_OK;
            if (!ok && rc != ERR_BUSY)
                q->failed = rc;
        } else {
            ok = secure(s, q, m);
        }
        if (ok)
            *budget -= m;
    }
}

/* Count for each prompt that got less of the step's budget than it could have
 * taken what others got. */
static void note_passed(struct sched *s, uint32_t budget)
{
    struct step *t = s->now;
    uint32_t given = 0;
    for (uint32_t i = 0; i < t->n_rows; i++)
        if (t->row[i].seq != NULL && sched_seq_left(t->row[i].seq) > 1)
            given += t->row[i].n;
    t->n_prompt_tokens = given;
    for (uint32_t i = 0; i < s->n_run; i++) {
        struct seq *q = s->run[i];
        uint32_t left = sched_seq_left(q);
        if (left > 1 &&
            q->planned < sched_policy_chunk(left, s->cfg.long_prefill_threshold, budget))
            q->passed += given - q->planned;
    }
}

/* Whether there was one. */
static bool finish_failed(struct sched *s)
{
    bool any = false;
    struct err e;
    for (uint32_t i = 0; i < s->n_run;) {
        struct seq *q = s->run[i];
        if (q->failed == ERR_OK) {
            i++;
            continue;
        }
        err_set(&e, q->failed, "out of %s while planning a step of %u tokens",
                q->failed == ERR_LIMIT ? "KV blocks" : "memory", q->known);
        sched_seq_finish(s, q, FINISH_ERROR, -1, &e);
        i = 0; /* the list may have moved */
        any = true;
    }
    return any;
}

/* --- the plan ----------------------------------------------------------------- */

static void add_outputs(struct sched *s, struct step_row *row, uint32_t row_first)
{
    struct seq *q = row->seq;
    struct req *r = q->req;
    struct step *t = s->now;
    uint32_t targets = sched_row_targets(q, row->n), first = 0, start = sched_seq_start(q);
    if (targets > 0)
        first = start > r->lp_next - 1 ? start : r->lp_next - 1;
    for (uint32_t i = 0; i < row->n_outputs; i++) {
        struct plan_output *o = sched_plan_add_output(&t->plan);
        t->out_seq[t->n_outputs++] = q;
        uint32_t at = i < targets ? first + i : q->known + q->due - 1;
        o->token = row_first + (at - start);
        o->target = i < targets ? q->hist[at + 1] : -1;
        o->params = r->r.params;
        o->seed = r->r.params->seed + q->choice;
        o->history = q->hist;
        o->n_history = at + 1;
        o->n_prompt = r->r.n_prompt;
    }
    if (row->n_outputs <= targets + 1)
        return;
    /* n > 1: the same logits give every unforked sibling its first token. */
    uint32_t out = t->plan.view.n_outputs - (row->n_outputs - targets) + 1;
    for (uint32_t i = 0; i < r->r.n; i++) {
        if (r->seq[i].state != SEQ_UNFORKED)
            continue;
        t->out_seq[out] = &r->seq[i];
        t->plan.output[out++].seed = r->r.params->seed + i;
    }
}

static const struct step_plan *build(struct sched *s)
{
    struct step *t = s->now;
    sched_plan_begin(&t->plan, s->step);
    t->n_decodes = 0;
    t->n_outputs = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n_rows; i++) {
        struct step_row row = t->row[i];
        struct seq *q = row.seq;
        if (q == NULL)
            continue;
        uint32_t first = t->plan.view.n_tokens, start = sched_seq_start(q);
        bool due = q->due > 0 && row.n == sched_seq_left(q);
        if (due)
            q->hist[q->known] = -1;
        sched_plan_add_row(&t->plan, q->hist + start, row.n, start,
                           due ? (int32_t)q->due_output : -1);
        add_outputs(s, &row, first);
        t->n_decodes += sched_seq_left(q) == 1;
        s->sid[n] = q->sid;
        t->row[n++] = row;
    }
    t->n_rows = n;
    return sched_plan_end(&t->plan, s->pool, s->sid);
}

/* The planned step is in flight from here on. */
static void launch(struct sched *s)
{
    struct step *t = s->now;
    uint32_t out = 0;
    for (uint32_t i = 0; i < t->n_rows; i++) {
        struct seq *q = t->row[i].seq;
        if (q->planned == sched_seq_left(q) && q->req->limit > 0) {
            q->due++;
            q->due_output = out;
            while (t->plan.output[q->due_output].target >= 0)
                q->due_output++;
        }
        q->flight += q->planned;
        q->planned = 0;
        out += t->row[i].n_outputs;
    }
    kvpool_launch(s->pool, s->step);
    s->n_flight++;
    s->stats.steps++;
    t->start_us = s->now_us(s->clock_ctx);
}

static void check_plan(const struct sched *s, const struct step_plan *plan)
{
#ifdef QUIRE_DEBUG
    struct err e;
    if (step_plan_check(plan, &s->lay, (uint32_t)s->n_blocks, &e) == ERR_INVALID) {
        fprintf(stderr, "step %llu: the plan breaks its contract: %s\n",
                (unsigned long long)plan->step, e.message);
        abort();
    }
#else
    (void)s;
    (void)plan;
#endif
}

/* Nothing runs and yet the first in line cannot start: it never will. */
static bool fail_stuck(struct sched *s)
{
    struct seq *q = sched_admit_next(s);
    struct kvpool_stats st;
    kvpool_stats(s->pool, &st);
    if (q == NULL || s->n_run > 0 || s->n_flight > 0 || st.n_resting > 0)
        return false;
    struct err e;
    err_set(&e, ERR_LIMIT, "%u tokens need more KV blocks than the %llu of %llu that are usable",
            q->known, (unsigned long long)(st.n_free + st.n_cached),
            (unsigned long long)st.n_blocks);
    sched_seq_finish(s, q, FINISH_ERROR, -1, &e);
    return true;
}

static void step_reset(struct sched *s)
{
    struct step *t = s->now = &s->steps[(s->step + 1) % STEPS];
    t->n_rows = t->n_live_rows = t->n_outputs = t->n_preempted = 0;
    t->starved = false;
}

/* Rows for the next step; false: nothing can run now. */
static bool fill_step(struct sched *s)
{
    struct step *t = s->now;
    uint32_t budget = s->cfg.max_num_batched_tokens;
    plan_decodes(s, &budget);
    if (t->starved) {
        for (uint32_t i = 0; i < s->n_run; i++)
            sched_row_drop(s, s->run[i]);
        return false;
    }
    uint32_t prompts = budget;
    if (s->cfg.itl_target_us != 0 && t->n_live_rows > 0)
        prompts = sched_policy_pace_tokens(&s->pace, s->cfg.itl_target_us, budget);
    uint32_t most = prompts;
    if (t->n_preempted == 0)
        sched_admit_shorter(s, &prompts);
    plan_prompts(s, &prompts);
    if (t->n_preempted == 0 && !t->starved)
        sched_admit(s, &prompts);
    note_passed(s, most);
    return true;
}

/* Rows for the next step, until there are some; false: nothing can run now. */
static bool plan_step(struct sched *s)
{
    for (;;) {
        step_reset(s);
        if (!fill_step(s))
            return false;
        bool again = finish_failed(s) || s->now->n_preempted > 0;
        if (s->now->n_live_rows > 0)
            return true;
        if (!again && !fail_stuck(s))
            return false;
    }
}

const struct step_plan *sched_next(struct sched *s)
{
    assert(s->n_flight <= (uint32_t)s->cfg.overlap && !s->in_callback);
    const struct step_plan *plan = NULL;
    if (plan_step(s)) {
        s->step++;
        plan = build(s);
        check_plan(s, plan);
        launch(s);
    }
    sched_assert(s);
    return plan;
}
