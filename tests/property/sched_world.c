/* sched_world.c: see sched_world.h. */
#include "property/sched_world.h"

#include <stdio.h>

#include "support/test.h"

static const uint64_t chain_start = 0x51D7348C2F1B9E3Du;

uint64_t world_chain(uint64_t chain, int32_t token)
{
    uint64_t z = (chain ^ (uint32_t)token) + 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

int32_t world_next_token(uint64_t chain, uint64_t seed)
{
    return (int32_t)(world_chain(chain ^ seed * 0xD6E8FEB86659FD93u, 7) % WORLD_VOCAB);
}

int32_t world_prompt_token(uint64_t seed, uint32_t i)
{
    return (int32_t)(world_chain(seed * 31 + i, 11) % WORLD_VOCAB);
}

static float score_of(uint64_t chain, int32_t target)
{
    return (float)(world_chain(chain, target) % 1000) * -0.001f;
}

static uint64_t clock_of(void *ctx)
{
    return ((struct world *)ctx)->clock_us;
}

static void guard(struct world *w, bool inside)
{
    if (w->guard != NULL)
        w->guard(inside);
}

/* What holds between the scheduler's calls, in release builds too. */
static void check(const struct world *w)
{
    struct err e;
    assert_ok(sched_check(w->sched, &e), e);
}

/* --- what the outside hears ----------------------------------------------------- */

static void hear_token(struct world *w, struct world_req *q, const struct sched_event *ev)
{
    struct world_seq *s = &q->seq[ev->choice];
    assert_false(s->done);
    assert_int_equal(ev->position, q->r.n_prompt + s->n_output);
    assert_int_equal(q->lp_next, q->r.n_prompt); /* every prompt score came before */
    int32_t want = world_next_token(s->chain, q->params.seed + ev->choice);
    if (ev->out->token != want)
        fail_msg("request %llu choice %u position %u: token %d, alone it is %d",
                 (unsigned long long)ev->id, ev->choice, ev->position, ev->out->token, want);
    s->chain = world_chain(s->chain, want);
    s->n_output++;
    assert_int_equal(ev->n_output, s->n_output);
    q->n_cached = ev->n_cached;
    w->n_tokens++;
}

static void hear_done(struct world *w, struct world_req *q, const struct sched_event *ev)
{
    struct world_seq *s = &q->seq[ev->choice];
    assert_false(s->done);
    assert_null(ev->out);
    assert_int_equal(ev->n_output, s->n_output);
    assert_int_equal(ev->n_prompt, q->r.n_prompt);
    s->done = true;
    s->finish = ev->finish;
    s->stop_id = ev->stop_id;
    s->n_preempted = ev->n_preempted;
    s->code = ev->why != NULL ? ev->why->code : ERR_OK;
    assert_int_equal(s->code != ERR_OK, ev->finish == FINISH_ERROR);
    snprintf(s->message, sizeof s->message, "%s", ev->why != NULL ? ev->why->message : "");
    q->n_live--;
    if (ev->finish == FINISH_ERROR)
        assert_true(w->may_fail);
    if (ev->finish == FINISH_LENGTH)
        assert_int_equal(s->n_output, q->limit);
    else
        assert_true(s->n_output <= q->limit);
    if (ev->finish == FINISH_CANCELLED)
        q->cancelled = true;
}

static void hear(void *ctx, const struct sched_event *ev)
{
    struct world *w = ctx;
    assert_true(ev->id < WORLD_REQS);
    struct world_req *q = &w->req[ev->id];
    assert_true(q->used && ev->choice < q->r.n);
    if (ev->kind == SCHED_TOKEN) {
        hear_token(w, q, ev);
    } else if (ev->kind == SCHED_DONE) {
        hear_done(w, q, ev);
    } else {
        assert_true(q->r.prompt_logprobs);
        assert_int_equal(ev->position, q->lp_next);
        assert_int_equal(ev->out->token, q->prompt[ev->position]);
        uint64_t chain = chain_start;
        for (uint32_t i = 0; i < ev->position; i++)
            chain = world_chain(chain, q->prompt[i]);
        assert_true(ev->out->logprob == score_of(chain, q->prompt[ev->position]));
        q->lp_next++;
    }
}

/* --- life ----------------------------------------------------------------------- */

void world_open(struct world *w, const struct world_config *cfg)
{
    *w = (struct world){ .n_blocks = cfg->n_blocks, .us_a_token = 10, .next_fail = UINT64_MAX };
    struct kv_layer_desc layer[64];
    uint32_t n = 0, n_full = cfg->n_full + cfg->n_windowed == 0 ? 1 : cfg->n_full;
    for (uint32_t i = 0; i < n_full; i++)
        layer[n++] = (struct kv_layer_desc){ KV_FULL, 0, 1, 8, 8 };
    for (uint32_t i = 0; i < cfg->n_windowed; i++)
        layer[n++] = (struct kv_layer_desc){ KV_WINDOW, cfg->window, 1, 8, 8 };
    struct err e;
    uint32_t b = cfg->block_tokens != 0 ? cfg->block_tokens : 16;
    assert_ok(kv_layout_init(&w->lay, layer, n, b, KV_F32, KV_F32, &e), e);

    struct sched_config sc = cfg->sched;
    sc.max_num_seqs = sc.max_num_seqs != 0 ? sc.max_num_seqs : 8;
    sc.max_num_batched_tokens = sc.max_num_batched_tokens != 0 ? sc.max_num_batched_tokens : 64;
    sc.max_model_len = sc.max_model_len != 0 ? sc.max_model_len : 2048;
    sc.max_queued = sc.max_queued != 0 ? sc.max_queued : WORLD_REQS;
    sc.max_partial_prefills = sc.max_partial_prefills != 0 ? sc.max_partial_prefills : 2;
    sc.check_every = sc.check_every != 0 ? sc.check_every : 1;
    if (sc.max_outputs == 0)
        sc.max_outputs = sc.max_num_seqs > 256 ? sc.max_num_seqs : 256;
    w->max_model_len = sc.max_model_len;
    w->max_num_seqs = sc.max_num_seqs;
    w->budget = sc.max_num_batched_tokens;
    struct kvpool_config pc = { .n_blocks = cfg->n_blocks,
                                .max_seqs = cfg->max_seqs != 0 ? cfg->max_seqs : sc.max_num_seqs,
                                .max_seq_tokens = sc.max_model_len,
                                .max_chunk = sc.max_num_batched_tokens,
                                .prefix_caching = !cfg->no_prefix_caching };
    assert_ok(kvpool_create(&w->pool, &w->lay, &pc, &e), e);
    w->cell = calloc((size_t)cfg->n_blocks * b, sizeof *w->cell);
    w->chain_scratch = calloc((size_t)sc.max_model_len + 1, sizeof *w->chain_scratch);
    w->req = calloc(WORLD_REQS, sizeof *w->req);
    w->overlap = sc.overlap;
    assert_true(w->cell && w->chain_scratch && w->req);
    assert_ok(sched_create(&w->sched, w->pool, &w->lay, &sc, clock_of, w,
                           &(struct sched_sink){ w, hear }, &e),
              e);
}

void world_expect_idle(struct world *w)
{
    struct kvpool_stats st;
    struct sched_stats ss;
    struct err e;
    assert_ok(kvpool_check(w->pool, &e), e);
    kvpool_stats(w->pool, &st);
    sched_stats(w->sched, &ss);
    assert_int_equal(ss.n_running + ss.n_waiting, 0);
    assert_int_equal(ss.n_waiting_tokens, 0);
    assert_int_equal(ss.ledger_violations, 0);
    assert_int_equal(st.n_seqs, 0);
    assert_int_equal(st.n_held + st.n_resting, 0);
    assert_int_equal(st.n_free + st.n_cached, w->n_blocks);
    for (uint32_t i = 0; i < WORLD_REQS; i++)
        if (w->req[i].used)
            assert_int_equal(w->req[i].n_live, 0);
}

/* The oldest has ended. */
static void flight_drop(struct world *w)
{
    struct world_flight *f = &w->flight[0];
    for (uint32_t i = 0; i < f->n_outputs; i++)
        free(f->history[i]);
    free(f->history);
    free(f->copy);
    free(w->last);
    w->last = f->out;
    w->last_step++;
    w->flight[0] = w->flight[1];
    if (--w->n_flight == 0)
        w->in_flight = NULL;
}

void world_forget(struct world *w, req_id id)
{
    struct world_req *q = &w->req[id];
    free(q->prompt);
    free(q->seq);
    *q = (struct world_req){ 0 };
}

void world_close(struct world *w)
{
    sched_destroy(w->sched);
    kvpool_destroy(w->pool);
    for (uint32_t i = 0; i < WORLD_REQS; i++)
        world_forget(w, i);
    free(w->cell);
    free(w->chain_scratch);
    while (w->n_flight > 0)
        flight_drop(w);
    free(w->last);
    free(w->req);
}

enum err_code world_submit(struct world *w, const struct sched_request *like,
                           const struct sample_params *p, struct err *e)
{
    assert_true(like->id < WORLD_REQS && !w->req[like->id].used);
    struct world_req *q = &w->req[like->id];
    q->params = *p;
    assert_true(p->n_stop_ids <= 4);
    if (p->n_stop_ids > 0)
        memcpy(q->stop_ids, p->stop_ids, p->n_stop_ids * sizeof *p->stop_ids);
    q->params.stop_ids = q->stop_ids;
    q->prompt = malloc((like->n_prompt + 1) * sizeof *q->prompt);
    q->seq = calloc(like->n + 1, sizeof *q->seq);
    assert_true(q->prompt && q->seq);
    if (like->n_prompt > 0)
        memcpy(q->prompt, like->prompt, like->n_prompt * sizeof *q->prompt);
    q->r = *like;
    q->r.prompt = q->prompt;
    q->r.params = &q->params;
    q->n_live = like->n;
    q->lp_next = like->prompt_logprobs ? 1 : like->n_prompt;
    uint32_t rest = w->max_model_len > like->n_prompt ? w->max_model_len - like->n_prompt : 0;
    q->limit = like->max_tokens < rest ? like->max_tokens : rest;
    uint64_t chain = chain_start;
    for (uint32_t i = 0; i < like->n_prompt; i++)
        chain = world_chain(chain, q->prompt[i]);
    for (uint32_t i = 0; i < like->n; i++)
        q->seq[i].chain = chain;
    q->used = true;
    guard(w, true);
    enum err_code rc = sched_submit(w->sched, &q->r, e);
    guard(w, false);
    check(w);
    if (rc != ERR_OK)
        world_forget(w, like->id);
    return rc;
}

enum err_code world_submit_simple(struct world *w, req_id id, uint64_t seed, uint32_t n_prompt,
                                  uint32_t max_tokens)
{
    int32_t *prompt = malloc((n_prompt + 1) * sizeof *prompt);
    assert_non_null(prompt);
    for (uint32_t i = 0; i < n_prompt; i++)
        prompt[i] = world_prompt_token(seed, i);
    struct sample_params p = { .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1 };
    struct err e;
    enum err_code rc = world_submit(
        w,
        &(struct sched_request){
            .id = id, .prompt = prompt, .n_prompt = n_prompt, .max_tokens = max_tokens, .n = 1 },
        &p, &e);
    free(prompt);
    return rc;
}

enum err_code world_submit_like(struct world *w, struct sched_request r, uint64_t seed,
                                const struct sample_params *p, struct err *e)
{
    static const struct sample_params greedy = { .top_p = 1,
                                                 .repetition_penalty = 1,
                                                 .n_logprobs = -1 };
    int32_t prompt[4096];
    assert_true(r.n_prompt <= 4096);
    for (uint32_t i = 0; i < r.n_prompt; i++)
        prompt[i] = world_prompt_token(seed, i);
    r.prompt = prompt;
    return world_submit(w, &r, p != NULL ? p : &greedy, e);
}

void world_cancel(struct world *w, req_id id, int32_t choice)
{
    bool live = w->req[id].used && w->req[id].n_live > 0 &&
                (choice < 0 || ((uint32_t)choice < w->req[id].r.n && !w->req[id].seq[choice].done));
    assert_int_equal(sched_cancel(w->sched, id, choice), live);
    check(w);
    if (live && choice < 0)
        assert_int_equal(w->req[id].n_live, 0);
    if (live && choice >= 0)
        assert_true(w->req[id].seq[choice].done);
}

/* --- the model ------------------------------------------------------------------- */

static uint64_t *cell_at(struct world *w, const struct step_plan *p, uint32_t g, uint32_t row,
                         uint32_t pos)
{
    uint32_t b = w->lay.block_tokens;
    assert_true(pos / b < p->table_cols[g]);
    blk_id blk = p->block_table[g][(size_t)row * p->table_cols[g] + pos / b];
    assert_true(blk >= 0 && (uint32_t)blk < w->n_blocks);
    return &w->cell[(size_t)blk * b + pos % b];
}

/* What the plan names, or what the step before sampled. */
static int32_t token_of(const struct world *w, const struct step_plan *p, uint32_t t)
{
    int32_t from = p->token_from != NULL ? p->token_from[t] : -1;
    if (from < 0)
        return p->token[t];
    assert_true(w->overlap && w->last_step == p->step - 1);
    return w->last[from].token;
}

static void compute_row(struct world *w, const struct step_plan *p, uint32_t row)
{
    for (int32_t t = p->cu_seqlens[row]; t < p->cu_seqlens[row + 1]; t++) {
        uint32_t pos = (uint32_t)p->position[t];
        for (uint32_t g = 0; g < p->n_groups; g++) {
            uint64_t before = pos == 0 ? chain_start : *cell_at(w, p, g, row, pos - 1);
            assert_true(p->slot_mapping[g][t] >= 0);
            w->cell[p->slot_mapping[g][t]] = world_chain(before, token_of(w, p, (uint32_t)t));
        }
    }
}

/* Every cell that the output's query sees is that of its own sequence. */
static void compute_output(struct world *w, const struct world_flight *f, uint32_t i)
{
    const struct step_plan *p = f->plan;
    const struct plan_output *o = &p->output[i];
    uint64_t *chain = w->chain_scratch;
    int32_t *history = f->history[i], wrong = 0;
    if (history[o->n_history - 1] < 0)
        history[o->n_history - 1] = token_of(w, p, o->token);
    chain[0] = chain_start;
    for (uint32_t k = 0; k < o->n_history; k++)
        chain[k + 1] = world_chain(chain[k], history[k]);
    for (uint32_t g = 0; g < p->n_groups; g++) {
        uint32_t window = w->lay.group[g].window;
        uint32_t from = window > 0 && o->n_history > window ? o->n_history - window : 0;
        for (uint32_t k = from; k < o->n_history; k++)
            if (*cell_at(w, p, g, o->row, k) == chain[k + 1])
                continue;
            else if (p->step == w->after_abort)
                wrong = 1; /* which nobody may hear of */
            else
                fail_msg("step %llu row %u group %u: position %u holds another sequence's KV",
                         (unsigned long long)p->step, o->row, g, k);
    }
    uint64_t at = chain[o->n_history];
    int32_t token = (o->target >= 0 ? o->target : world_next_token(at, o->seed)) + wrong;
    f->out[i] = (struct sampled){ .token = token,
                                  .logprob = score_of(at, token),
                                  .failed = w->n_outputs++ == w->next_fail };
}

static void flight_add(struct world *w, const struct step_plan *p)
{
    assert_true(w->n_flight < 2);
    struct world_flight *f = &w->flight[w->n_flight++];
    *f = (struct world_flight){ .plan = p,
                                .n_outputs = p->n_outputs,
                                .history = calloc(p->n_outputs + 1ul, sizeof *f->history),
                                .copy = calloc(p->n_copies + 1ul, sizeof *f->copy),
                                .out = calloc(p->n_outputs + 1ul, sizeof *f->out) };
    assert_true(f->history && f->copy && f->out);
    if (p->n_copies > 0)
        memcpy(f->copy, p->copy, p->n_copies * sizeof *f->copy);
    for (uint32_t i = 0; i < p->n_outputs; i++) {
        size_t bytes = p->output[i].n_history * sizeof(int32_t);
        f->history[i] = malloc(bytes);
        assert_non_null(f->history[i]);
        memcpy(f->history[i], p->output[i].history, bytes);
    }
    w->in_flight = p;
}

bool world_plan(struct world *w)
{
    guard(w, true);
    const struct step_plan *p = sched_next(w->sched);
    guard(w, false);
    check(w);
    if (p == NULL)
        return false;
    flight_add(w, p);
    assert_true(p->n_rows > 0 && p->n_rows <= w->max_num_seqs);
    assert_true(p->n_tokens >= p->n_rows && p->n_tokens <= w->budget);
    struct err e;
    assert_ok(step_plan_check(p, &w->lay, w->n_blocks, &e), e);
    w->n_steps++;
    w->most_rows = p->n_rows > w->most_rows ? p->n_rows : w->most_rows;
    w->most_tokens = p->n_tokens > w->most_tokens ? p->n_tokens : w->most_tokens;
    return true;
}

void world_finish(struct world *w)
{
    struct world_flight *f = &w->flight[0];
    const struct step_plan *p = f->plan;
    uint32_t b = w->lay.block_tokens;
    for (uint32_t i = 0; i < p->n_copies; i++)
        memcpy(&w->cell[(size_t)f->copy[i].to * b], &w->cell[(size_t)f->copy[i].from * b],
               b * sizeof *w->cell);
    for (uint32_t r = 0; r < p->n_rows; r++)
        compute_row(w, p, r);
    for (uint32_t i = 0; i < p->n_outputs; i++)
        compute_output(w, f, i);
    w->clock_us += 100 + p->n_tokens * w->us_a_token;
    guard(w, true);
    sched_commit(w->sched, p, f->out);
    guard(w, false);
    check(w);
    flight_drop(w);
    struct sched_stats st;
    sched_stats(w->sched, &st);
    if (st.ledger_violations > 0 && !w->may_break)
        fail_msg("ledger: %s", sched_last_violation(w->sched)->message);
}

void world_abort(struct world *w, const char *message)
{
    struct err why;
    err_set(&why, ERR_GPU, "%s", message);
    w->after_abort = w->flight[0].plan->step + 1;
    sched_abort(w->sched, w->flight[0].plan, &why);
    check(w);
    flight_drop(w);
}

bool world_step(struct world *w)
{
    bool planned = world_plan(w);
    if (w->n_flight == 0)
        return false;
    if (!planned || w->n_flight == 2 || !w->overlap)
        world_finish(w);
    return true;
}

void world_drain(struct world *w, uint64_t most)
{
    while (world_step(w))
        if (most-- == 0)
            fail_msg("work is left after the steps that should be enough");
}
