/* generate.c: the states of a generation (gen.h has their diagram): what moves it
 * from one to the next, and its references.  Owns the generator and every
 * generation.  I/O thread.  Promises: an exchange is ended exactly once; whatever
 * the engine still does for a generation in END is cancelled. */
#include "server/generate/gen.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "proto/openai/sse.h"
#include "server/base/clock.h"
#include "server/http/http.h"

enum { PING_AFTER_US = 10 * 1000 * 1000, KEPT_OUT_BYTES = 256 * 1024 };

static const bool may_go[GEN_STATES][GEN_STATES] = {
    [GEN_PREPARE] = { [GEN_SUBMIT] = true, [GEN_END] = true },
    [GEN_SUBMIT] = { [GEN_GATHER] = true, [GEN_STREAM] = true, [GEN_END] = true },
    [GEN_GATHER] = { [GEN_END] = true },
    [GEN_STREAM] = { [GEN_END] = true },
};

static void enter(struct gen *g, enum gen_state state)
{
    bool may = may_go[g->state][state];

    assert(may);
    (void)may;
    g->state = state;
}

/* ------------------------------------------------------------- references */

static void unref(struct gen *g)
{
    struct work_count *work = gen_live_has_slots(g) ? g->gr->cfg.work : NULL;

    assert(g->n_refs > 0);
    if (--g->n_refs > 0)
        return;
    assert(g->state == GEN_END);
    gen_account(g);
    gen_live_remove(g);
    gen_unprepare(g);
    free(g);
    if (work)
        work_end(work);
}

static void on_cancelled(struct engine_mail *m)
{
    unref(m->owner);
}

static void post_cancel(struct gen *g, struct engine_cancel *m, req_id id, int32_t choice)
{
    *m = (struct engine_cancel){
        .head = { .kind = ENGINE_CANCEL, .done = on_cancelled, .owner = g },
        .id = id,
        .choice = choice,
    };
    g->n_refs++;
    engine_post(g->gr->engine, &m->head);
}

/* ------------------------------------------------------------------- end */

/* Whether the engine works on this prompt, or is about to. */
static bool is_working(const struct gen *g, uint32_t prompt)
{
    uint32_t n = g->prompts.req.n;

    for (uint32_t i = prompt * n; i < (prompt + 1) * n; i++)
        if (g->choice[i].seq == GEN_SEQ_ASKED || g->choice[i].seq == GEN_SEQ_RUNS)
            return true;
    return false;
}

static void set_sequences(struct gen *g, enum gen_seq seq)
{
    for (uint32_t i = 0; i < g->n_choices; i++)
        g->choice[i].seq = seq;
}

/* The client has its reply, or is gone; what the engine still does for it is
 * cancelled.  g may be freed on return. */
static void end(struct gen *g, enum gen_outcome outcome)
{
    enum gen_state from = g->state;

    enter(g, GEN_END);
    g->x = NULL;
    g->outcome = outcome;
    if (from == GEN_PREPARE)
        job_cancel(&g->job);
    for (uint32_t i = 0; gen_live_has_slots(g) && i < g->prompts.n; i++)
        if (is_working(g, i))
            post_cancel(g, &g->prompt[i].cancel, g->request[i].id, -1);
    unref(g); /* the exchange's */
}

/* The exchange's client left. */
static void on_gone(struct exchange *x, void *user)
{
    struct gen *g = user;

    (void)x;
    if (g->status == 0)
        g->status = 499; /* no reply was sent; the customary number for it */
    end(g, GEN_CANCELLED);
}

/* Tell the client (mid-stream: as an event), and end. */
static void fail(struct gen *g, const struct err *e, enum gen_outcome outcome)
{
    gen_reply_error(g, e);
    end(g, outcome);
}

/* A reply's next part was sent, or (rc) could not be.  False: g is in END. */
static bool settle(struct gen *g, enum err_code rc, const struct err *e)
{
    if (rc != ERR_OK)
        fail(g, e, GEN_FAILED);
    return g->state != GEN_END;
}

/* ---------------------------------------------------------------- events */

/* A choice has its finish, which a stream has sent. */
static void close_choice(struct gen *g)
{
    struct err e;

    if (--g->n_open == 0 && settle(g, gen_reply_end(g, &e), &e))
        end(g, GEN_FINISHED);
}

static void on_token(struct gen *g, uint32_t i, const struct sched_event *ev, uint64_t sent_us)
{
    struct gen_choice *gc = &g->choice[i];
    struct serving_metrics *m = g->gr->cfg.metrics;
    struct err e;

    if (g->first_us == 0) {
        g->first_us = sent_us;
        prom_observe(m->time_to_first_token, (double)(sent_us - g->began_us) / 1e6);
        if (srv_log_shows(g->gr->cfg.log, SRV_DEBUG))
            srv_logf(g->gr->cfg.log, SRV_DEBUG,
                     "%s: first token after %.1f ms; %llu tokens of its prompt were cached", g->id,
                     (double)(sent_us - g->began_us) / 1e3,
                     (unsigned long long)ev->found.hit_tokens);
    }
    if (gc->last_us)
        prom_observe(m->inter_token_latency, (double)(sent_us - gc->last_us) / 1e6);
    gc->last_us = sent_us;
    if (gc->c.finish != OAI_FINISH_NONE)
        return; /* behind a stop string: its cancel is on its way */
    if (choice_push(&gc->c, ev->out, &e) != ERR_OK) {
        fail(g, &e, GEN_FAILED);
        return;
    }
    bool ended = gc->c.finish != OAI_FINISH_NONE;
    if (ended && gc->seq == GEN_SEQ_RUNS) {
        gc->seq = GEN_SEQ_CANCELLED;
        post_cancel(g, &gc->cancel, ev->id, (int32_t)ev->choice);
    }
    if (settle(g, gen_reply_choice(g, i, &e), &e) && ended)
        close_choice(g);
}

static void on_prompt_token(struct gen *g, uint32_t prompt, const struct sched_event *ev)
{
    const struct oai_request *r = &g->prompts.req;
    const struct tokenizer *tok = g->gr->cfg.served->tokenizer;
    bool silent = r->skip_special_tokens && tokenizer_is_special(tok, ev->out->token);
    struct err e;

    if (r->prompt_logprobs < 0 && r->params.n_logprobs < 0)
        return;
    if (!score_list_add(&g->prompt[prompt].scores, ev->out, ev->out->n_top, true, silent)) {
        err_nomem(&e, "prompt logprobs", g->prompts.prompt[prompt].ids.n);
        fail(g, &e, GEN_FAILED);
    }
}

/* The engine ended a sequence that the client still waits for. */
static void finish_choice(struct gen *g, uint32_t i, const struct sched_event *ev)
{
    struct err e;

    if (ev->finish == FINISH_ERROR || ev->finish == FINISH_CANCELLED) {
        if (ev->why)
            err_set(&e, ev->why->code, "generation failed: %s", ev->why->message);
        else
            err_set(&e, ERR_CONFLICT, "the sequence was cancelled");
        fail(g, &e, GEN_FAILED);
    } else if (choice_end(&g->choice[i].c, ev->finish == FINISH_LENGTH, ev->stop_id, &e) !=
               ERR_OK) {
        fail(g, &e, GEN_FAILED);
    } else if (settle(g, gen_reply_choice(g, i, &e), &e)) {
        close_choice(g);
    }
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void on_done(struct gen *g, uint32_t i, const struct sched_event *ev)
{
    struct gen_choice *gc = &g->choice[i];

    if (gc->seq != GEN_SEQ_RUNS && gc->seq != GEN_SEQ_CANCELLED)
        return; /* of a submission that is being refused as a whole */
    gc->seq = GEN_SEQ_DONE;
    g->n_preempted += ev->n_preempted;
    g->queued_us = later(ev->queued_us, g->queued_us);
    g->prefill_us = later(ev->prefill_us, g->prefill_us);
    g->decode_us = later(ev->decode_us, g->decode_us);
    if (g->state != GEN_END && gc->c.finish == OAI_FINISH_NONE)
        finish_choice(g, i, ev);
    unref(g); /* the sequence's */
}

void gen_event(void *ctx, const struct sched_event *ev, uint64_t sent_us)
{
    const struct gen_slot *s = gen_live_slot(ctx, ev->id);
    struct gen *g = s ? s->g : NULL;

    if (g == NULL || ev->choice >= g->prompts.req.n)
        return;
    uint32_t prompt = s->prompt, i = prompt * g->prompts.req.n + ev->choice;
    /* A prompt that was never looked up ends without a token. */
    if (ev->kind != SCHED_PROMPT_TOKEN && (ev->n_output > 0 || g->prompts.req.max_tokens == 0))
        g->prompt[prompt].found = ev->found;
    if (ev->kind == SCHED_DONE)
        on_done(g, i, ev);
    else if (g->state == GEN_END)
        return; /* its cancel is on its way */
    else if (ev->kind == SCHED_TOKEN)
        on_token(g, i, ev, sent_us);
    else
        on_prompt_token(g, prompt, ev);
}

/* ----------------------------------------------------------------- begin */

/* The engine runs it: the reply begins. */
static void begin_reply(struct gen *g)
{
    struct err e;

    if (!g->prompts.req.stream) {
        enter(g, GEN_GATHER);
    } else if (settle(g, gen_reply_open(g, &e), &e)) {
        enter(g, GEN_STREAM);
        settle(g, gen_reply_begin(g, &e), &e);
    }
}

/* The engine has taken the submission, or refused it. */
static void on_submitted(struct engine_mail *m)
{
    struct gen *g = m->owner;
    bool waited_for = g->state == GEN_SUBMIT;

    if (g->submit.rc == ERR_OK) {
        g->n_refs += g->n_choices;
        set_sequences(g, waited_for ? GEN_SEQ_RUNS : GEN_SEQ_CANCELLED);
        if (waited_for)
            begin_reply(g);
    } else {
        set_sequences(g, GEN_SEQ_NONE);
        if (waited_for)
            fail(g, &g->submit.err, GEN_REJECTED);
    }
    unref(g);
}

static void submit(struct gen *g)
{
    struct err e;

    if (gen_live_take_slots(g, &e) != ERR_OK) {
        fail(g, &e, GEN_FAILED);
        return;
    }
    work_begin(g->gr->cfg.work);
    g->n_open = g->n_choices;
    g->submit = (struct engine_submit){ .head = { .done = on_submitted, .owner = g },
                                        .request = g->request,
                                        .n = g->prompts.n };
    if (engine_post_submit(g->gr->engine, &g->submit, &e) != ERR_OK) {
        fail(g, &e, GEN_REJECTED);
        return;
    }
    g->n_refs++;
    set_sequences(g, GEN_SEQ_ASKED);
    enter(g, GEN_SUBMIT);
}

static void on_run(struct job *j)
{
    gen_prepare((struct gen *)((char *)j - offsetof(struct gen, job)));
}

static void log_prepared(const struct gen *g)
{
    const struct srv_log *log = g->gr->cfg.log;
    size_t n_tokens = 0;

    if (!srv_log_shows(log, SRV_DEBUG))
        return;
    for (uint32_t i = 0; i < g->prompts.n; i++)
        n_tokens += g->prompts.prompt[i].ids.n;
    srv_logf(log, SRV_DEBUG,
             "%s (%s): body of %zu bytes, %u prompts of %zu tokens, %u choices, "
             "prepared %.1f ms after its first byte",
             g->id, g->request_id, g->n_body, g->prompts.n, n_tokens, g->n_choices,
             (double)(srv_now_us() - g->began_us) / 1e3);
}

static void on_prepared(struct job *j, bool cancelled)
{
    struct gen *g = (struct gen *)((char *)j - offsetof(struct gen, job));

    (void)cancelled; /* then g is in END */
    if (g->state == GEN_PREPARE && g->rc != ERR_OK)
        fail(g, &g->err, GEN_REJECTED);
    else if (g->state == GEN_PREPARE) {
        log_prepared(g);
        submit(g);
    }
    unref(g);
}

static struct gen *create(struct generator *gr, struct exchange *x, enum oai_kind kind)
{
    size_t n;
    const char *key = http_field(x, "authorization", &n);
    struct gen *g = calloc(1, sizeof *g);

    if (g == NULL)
        return NULL;
    g->gr = gr;
    g->x = x;
    g->n_refs = 1; /* the exchange's */
    g->kind = kind;
    g->body = http_take_body(x, &g->n_body);
    g->created = (int64_t)time(NULL);
    g->began_us = x->began_us;
    g->arrival = ++gr->n_arrivals;
    g->tenant = key ? XXH3_64bits_withSeed(key, n, gr->cfg.served->salt_key) : 0;
    srv_new_id(gr->cfg.ids, kind == OAI_CHAT ? "chatcmpl-" : "cmpl-", g->id, sizeof g->id);
    strcpy(g->request_id, x->request_id);
    gen_live_add(g);
    x->gone = on_gone;
    x->user = g;
    return g;
}

void gen_start(struct generator *gr, struct exchange *x, enum oai_kind kind)
{
    const char *refusal = srv_phase_refusal(*gr->cfg.phase);
    struct gen *g = refusal ? NULL : create(gr, x, kind);
    struct err e;

    if (refusal) {
        reply_error(x, 503, NULL, refusal);
        return;
    }
    if (g == NULL) {
        reply_error(x, 500, NULL, "out of memory");
        return;
    }
    if (jobs_submit(gr->cfg.jobs, &g->job, on_run, on_prepared, &e) == ERR_OK)
        g->n_refs++;
    else
        fail(g, &e, GEN_REJECTED);
}

/* ---------------------------------------------------------------- cancel */

uint32_t gen_cancel(struct generator *gr, const char *id, const struct err *e)
{
    uint32_t n = 0;

    /* Whoever has a client has another reference too, so that one which ends here
     * frees no other. */
    for (struct gen *g = gr->live, *next; g; g = next) {
        next = g->next;
        if (g->state == GEN_END || (id != NULL && !gen_live_is_named(g, id)))
            continue;
        fail(g, e, GEN_CANCELLED);
        n++;
    }
    return n;
}

/* -------------------------------------------------------- the generator */

void gen_ping(struct generator *gr)
{
    uint64_t now = srv_now_us();

    /* As in gen_cancel: a client that is dropped here frees no generation. */
    for (struct gen *g = gr->live; g; g = g->next) {
        if (g->state != GEN_STREAM || now - g->sent_us < PING_AFTER_US)
            continue;
        g->sent_us = now;
        reply_stream_data(g->x, SSE_PING, sizeof SSE_PING - 1);
    }
    if (gr->out.cap > KEPT_OUT_BYTES)
        buf_fini(&gr->out);
}

enum err_code generator_create(struct generator **out, const struct generator_config *cfg,
                               struct err *e)
{
    struct generator *gr = calloc(1, sizeof *gr);

    if (gr == NULL)
        return err_nomem(e, "generator", sizeof *gr);
    gr->cfg = *cfg;
    *out = gr;
    return ERR_OK;
}

void generator_set_engine(struct generator *gr, struct engine *engine)
{
    gr->engine = engine;
}

void generator_destroy(struct generator *gr)
{
    if (gr == NULL)
        return;
    while (gr->live) { /* sequences that the engine did not come to end */
        struct gen *g = gr->live;
        assert(g->state == GEN_END && g->job.state == JOB_IDLE);
        g->n_refs = 1;
        unref(g);
    }
    buf_fini(&gr->out);
    free(gr->slots);
    free(gr);
}
