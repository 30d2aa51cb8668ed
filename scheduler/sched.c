/* sched.c: create, destroy, submit, cancel, figures.
 *
 * Owns struct sched and all it points to but the pool.  Engine thread.
 * Promises: a request is refused whole or queued whole; destroy leaves the pool
 * without a sequence of ours. */
#include "scheduler/finish.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/plan/kv_slot.h"

static enum err_code check_config(struct sched_config *c, const struct kv_layout *lay,
                                  struct err *e)
{
    if (c->max_num_seqs == 0)
        return err_set(e, ERR_INVALID, "max_num_seqs 0: expected at least 1");
    if (c->max_num_batched_tokens == 0)
        return err_set(e, ERR_INVALID, "max_num_batched_tokens 0: expected at least 1");
    if (c->max_model_len == 0 || c->max_model_len > INT32_MAX)
        return err_set(e, ERR_INVALID, "max_model_len %u: expected 1..%d", c->max_model_len,
                       INT32_MAX);
    if (c->max_queued == 0)
        return err_set(e, ERR_INVALID, "max_queued 0: expected at least 1");
    if (c->max_partial_prefills == 0)
        return err_set(e, ERR_INVALID, "max_partial_prefills 0: expected at least 1");
    if (lay->block_tokens == 0 || (lay->block_tokens & (lay->block_tokens - 1)) != 0)
        return err_set(e, ERR_INVALID, "block_tokens %u: expected a power of two",
                       lay->block_tokens);
    if (c->max_outputs == 0)
        c->max_outputs = c->max_num_seqs > 128 ? 2 * c->max_num_seqs : 256;
    if (c->max_outputs < c->max_num_seqs)
        return err_set(e, ERR_INVALID, "max_outputs %u: expected at least max_num_seqs = %u",
                       c->max_outputs, c->max_num_seqs);
    if (c->look_ahead_tokens == 0)
        c->look_ahead_tokens = POLICY_LOOK_AHEAD_TOKENS;
    if (c->check_every == 0) {
#ifdef QUIRE_DEBUG
        c->check_every = 1;
#else
        c->check_every = 4096;
#endif
    }
    return ERR_OK;
}

static enum err_code alloc_arrays(struct sched *s, struct err *e)
{
    size_t rows = s->cfg.max_num_seqs;
    s->run = calloc(rows, sizeof *s->run);
    s->cand = calloc(rows, sizeof *s->cand);
    s->victim = calloc(rows, sizeof *s->victim);
    s->part = calloc(rows, sizeof *s->part);
    s->sid = calloc(rows, sizeof *s->sid);
    if (!s->run || !s->cand || !s->victim || !s->part || !s->sid)
        return err_nomem(e, "scheduler rows", rows * 128);
    return ERR_OK;
}

static enum err_code alloc_steps(struct sched *s, struct err *e)
{
    const struct sched_config *c = &s->cfg;
    enum err_code rc = ERR_OK;
    for (uint32_t i = 0; i < STEPS && rc == ERR_OK; i++) {
        struct step *t = &s->steps[i];
        t->row = calloc(c->max_num_seqs, sizeof *t->row);
        t->out_seq = calloc(c->max_outputs, sizeof *t->out_seq);
        if (!t->row || !t->out_seq)
            return err_nomem(e, "scheduler steps", (c->max_num_seqs + c->max_outputs) * 16ull);
        rc = sched_plan_init(&t->plan, &s->lay, c->max_num_batched_tokens, c->max_num_seqs,
                             c->max_outputs, c->max_model_len, e);
    }
    return rc;
}

static void free_arrays(struct sched *s)
{
    free(s->run);
    free(s->cand);
    free(s->victim);
    free(s->part);
    free(s->sid);
    for (uint32_t i = 0; i < STEPS; i++) {
        free(s->steps[i].row);
        free(s->steps[i].out_seq);
        sched_plan_fini(&s->steps[i].plan);
    }
}

enum err_code sched_create(struct sched **out, struct kvpool *pool, const struct kv_layout *lay,
                           const struct sched_config *cfg, uint64_t (*now_us)(void *),
                           void *clock_ctx, const struct sched_sink *sink, struct err *e)
{
    *out = NULL;
    struct sched_config c = *cfg;
    enum err_code rc = check_config(&c, lay, e);
    if (rc != ERR_OK)
        return rc;
    struct sched *s = calloc(1, sizeof *s);
    if (s == NULL)
        return err_nomem(e, "scheduler", sizeof *s);
    s->pool = pool;
    s->lay = *lay;
    s->cfg = c;
    s->now_us = now_us;
    s->clock_ctx = clock_ctx;
    s->sink = *sink;
    for (uint32_t g = 0; g < lay->n_groups; g++)
        s->windowed = s->windowed || lay->group[g].window > 0;
    struct kvpool_stats st;
    kvpool_stats(pool, &st);
    s->n_blocks = st.n_blocks;
    s->block_shift = (uint32_t)kv_block_shift(lay->block_tokens);
    s->now = &s->steps[0];
    uint64_t reqs = (uint64_t)c.max_queued + c.max_num_seqs;
    rc = sched_queue_init(&s->queue, reqs < UINT32_MAX ? (uint32_t)reqs : UINT32_MAX,
                          c.policy == SCHED_PRIORITY, e);
    if (rc != ERR_OK)
        goto fail_queue;
    rc = alloc_arrays(s, e);
    if (rc == ERR_OK)
        rc = alloc_steps(s, e);
    if (rc != ERR_OK)
        goto fail_arrays;
    *out = s;
    return ERR_OK;

fail_arrays:
    free_arrays(s);
    sched_queue_fini(&s->queue);
fail_queue:
    free(s);
    return rc;
}

static void no_event(void *ctx, const struct sched_event *ev)
{
    (void)ctx;
    (void)ev;
}

void sched_destroy(struct sched *s)
{
    if (s == NULL)
        return;
    assert(!s->in_callback);
    s->sink.event = no_event;
    if (s->n_flight > 0)
        kvpool_retire(s->pool, s->step);
    s->n_flight = 0;
    while (s->queue.oldest != NULL)
        sched_req_finish(s, s->queue.oldest, FINISH_CANCELLED, NULL);
    sched_free_deferred(s);
    free_arrays(s);
    sched_queue_fini(&s->queue);
    free(s);
}

/* --- submit and cancel ------------------------------------------------------------------ */

static enum err_code check_request(const struct sched *s, const struct sched_request *r,
                                   uint32_t *limit, struct err *e)
{
    const struct sched_config *c = &s->cfg;
    if (r->n_prompt == 0)
        return err_set_param(e, ERR_INVALID, "prompt", "prompt: empty; expected a token or more");
    if (r->n == 0)
        return err_set_param(e, ERR_INVALID, "n", "n: 0; expected at least 1");
    if (r->max_tokens == 0 && !r->prompt_logprobs)
        return err_set_param(e, ERR_INVALID, "max_tokens",
                             "max_tokens: 0; expected at least 1 unless prompt logprobs are asked");
    /* Their first tokens come in one step, beside all other rows' outputs. */
    uint32_t most_n = c->max_outputs - c->max_num_seqs + 1;
    if (r->n > most_n)
        return err_set_param(e, ERR_LIMIT, "n", "n: %u; at most %u sequences a request", r->n,
                             most_n);
    uint32_t most = r->max_tokens == 0 ? c->max_model_len : c->max_model_len - 1;
    if (r->n_prompt > most)
        return err_set_param(e, ERR_LIMIT, "prompt",
                             "prompt: %u tokens; at most %u of the %u tokens of context",
                             r->n_prompt, most, c->max_model_len);
    uint32_t rest = c->max_model_len - r->n_prompt;
    *limit = r->max_tokens < rest ? r->max_tokens : rest;
    uint64_t longest = (uint64_t)r->n_prompt + (*limit > 0 ? *limit - 1 : 0);
    uint64_t need, have;
    if (!kvpool_can_ever_fit(s->pool, longest, c->max_num_batched_tokens, &need, &have))
        return err_set_param(e, ERR_LIMIT, "max_tokens",
                             "prompt of %u and max_tokens of %u need %llu KV blocks; the pool has "
                             "%llu",
                             r->n_prompt, *limit, (unsigned long long)need,
                             (unsigned long long)have);
    return ERR_OK;
}

enum err_code sched_submit(struct sched *s, const struct sched_request *r, struct err *e)
{
    assert(!s->in_callback);
    uint32_t limit = 0;
    enum err_code rc = check_request(s, r, &limit, e);
    if (rc != ERR_OK)
        return rc;
    if (sched_queue_find(&s->queue, r->id) != NULL)
        return err_set(e, ERR_CONFLICT, "request id %llu is in use", (unsigned long long)r->id);
    const struct queue *q = &s->queue;
    if (q->n_waiting >= s->cfg.max_queued)
        return err_set(e, ERR_BUSY, "queue full: %u requests wait, at most %u may", q->n_waiting,
                       s->cfg.max_queued);
    if (s->cfg.max_queued_tokens != 0 && q->n_waiting > 0 &&
        q->n_waiting_tokens + r->n_prompt > s->cfg.max_queued_tokens)
        return err_set(e, ERR_BUSY,
                       "queue full: %llu prompt tokens wait and %u more would, at most %llu may",
                       (unsigned long long)q->n_waiting_tokens, r->n_prompt,
                       (unsigned long long)s->cfg.max_queued_tokens);
    struct req *x = sched_req_create(r, limit);
    if (x == NULL)
        return err_nomem(e, "request", sizeof *x + (unsigned long long)r->n * sizeof(struct seq));
    x->arrival = s->arrivals;
    x->submit_us = s->now_us(s->clock_ctx);
    rc = sched_queue_add(&s->queue, x, e);
    if (rc != ERR_OK) {
        sched_req_free(x);
        return rc;
    }
    s->arrivals++;
    return ERR_OK;
}

bool sched_cancel(struct sched *s, req_id id, int32_t choice)
{
    assert(!s->in_callback);
    struct req *r = sched_queue_find(&s->queue, id);
    if (r == NULL)
        return false;
    if (choice < 0) {
        sched_req_finish(s, r, FINISH_CANCELLED, NULL);
        return true;
    }
    if ((uint32_t)choice >= r->r.n || r->seq[choice].state == SEQ_DONE)
        return false;
    sched_seq_finish(s, &r->seq[choice], FINISH_CANCELLED, -1, NULL);
    return true;
}

/* --- figures --------------------------------------------------------------------- */

void sched_stats(const struct sched *s, struct sched_stats *out)
{
    *out = s->stats;
    out->n_running = s->n_run;
    out->n_waiting = s->queue.n_waiting + s->queue.n_resume;
    out->n_waiting_tokens = s->queue.n_waiting_tokens + s->queue.n_resume_tokens;
}

const struct err *sched_last_violation(const struct sched *s)
{
    return s->stats.ledger_violations > 0 ? &s->last_violation : NULL;
}

void sched_each(const struct sched *s, void (*fn)(void *ctx, const struct sched_live *r), void *ctx)
{
    uint64_t now = s->now_us(s->clock_ctx);
    for (const struct req *r = s->queue.oldest; r != NULL; r = r->next) {
        struct sched_live live = { .id = r->r.id,
                                   .n_prompt = r->r.n_prompt,
                                   .priority = r->r.priority,
                                   .waited_us =
                                       (r->start_us != 0 ? r->start_us : now) - r->submit_us };
        for (uint32_t i = 0; i < r->r.n; i++) {
            const struct seq *q = &r->seq[i];
            live.running = live.running || q->state == SEQ_RUN;
            live.n_computed += q->computed;
            live.n_output += q->n_output;
            live.n_preempted += q->n_preempted;
            if (q->state == SEQ_RUN)
                live.n_blocks += kvpool_held(s->pool, q->sid);
        }
        fn(ctx, &live);
    }
}

void sched_each_holder(const struct sched *s,
                       void (*fn)(void *ctx, req_id id, uint32_t choice, seq_id sid), void *ctx)
{
    for (uint32_t i = 0; i < s->n_run; i++)
        fn(ctx, s->run[i]->req->r.id, s->run[i]->choice, s->run[i]->sid);
}

struct sched_row sched_plan_row(const struct sched *s, const struct step_plan *plan, uint32_t row)
{
    assert(plan == &s->now->plan.view && row < s->now->n_rows);
    const struct step_row *r = &s->now->row[row];
    const struct seq *q = r->seq;
    return (struct sched_row){
        .id = q->req->r.id,
        .choice = q->choice,
        .left = q->due > 0 ? 0 : sched_seq_left(q), /* due: it gives a token */
        .decodes = r->n == 1 && (uint32_t)plan->past_seqlens[row] >= q->req->r.n_prompt,
    };
}
