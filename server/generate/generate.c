/* generate.c: the life of a generation: body, pool, engine, events, answer,
 * end.  Owns the live list and the table from engine ids to generations.
 * I/O thread. */
#include "server/generate/generate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "proto/openai/sse.h"
#include "server/drain.h"
#include "server/routes/routes.h"
#include "server/http/http.h"

enum { SLOT_BITS = 24, FIRST_SLOTS = 256, PING_AFTER_US = 10 * 1000 * 1000 };

static void maybe_free(struct gen *g);

/* ----------------------------------------------------------------- slots */

static bool grow_slots(struct srv *srv)
{
    uint32_t n = srv->n_slots ? srv->n_slots * 2 : FIRST_SLOTS;
    struct gen_slot *p = n > 1u << SLOT_BITS ? NULL : realloc(srv->slots, n * sizeof *p);

    if (p == NULL)
        return false;
    for (uint32_t i = srv->n_slots; i < n; i++)
        p[i] = (struct gen_slot){ .next_free = i + 1 < n ? i + 1 : UINT32_MAX };
    srv->free_slot = srv->n_slots;
    srv->slots = p;
    srv->n_slots = n;
    return true;
}

/* A slot for each prompt; false: memory is short, none taken. */
static bool take_slots(struct gen *g)
{
    struct srv *srv = g->srv;

    for (uint32_t i = 0; i < g->prompts.n; i++) {
        if ((srv->n_slots == 0 || srv->free_slot == UINT32_MAX) && !grow_slots(srv)) {
            while (i-- > 0) {
                uint32_t at = (uint32_t)g->request[i].id & ((1u << SLOT_BITS) - 1);
                srv->slots[at] = (struct gen_slot){ .next_free = srv->free_slot };
                srv->free_slot = at;
            }
            return false;
        }
        uint32_t at = srv->free_slot;
        struct gen_slot *s = &srv->slots[at];
        srv->free_slot = s->next_free;
        *s = (struct gen_slot){ .g = g, .prompt = i, .id = ++srv->n_generations << SLOT_BITS | at };
        g->request[i].id = s->id;
    }
    return true;
}

static void free_slots(struct gen *g)
{
    struct srv *srv = g->srv;

    for (uint32_t i = 0; g->request && i < g->prompts.n; i++) {
        uint32_t at = (uint32_t)g->request[i].id & ((1u << SLOT_BITS) - 1);
        if (g->request[i].id == 0 || srv->slots[at].id != g->request[i].id)
            continue;
        srv->slots[at] = (struct gen_slot){ .next_free = srv->free_slot };
        srv->free_slot = at;
    }
}

struct gen *gen_find(const struct srv *srv, req_id id, uint32_t *prompt)
{
    uint32_t at = (uint32_t)id & ((1u << SLOT_BITS) - 1);

    if (at >= srv->n_slots || srv->slots[at].g == NULL || srv->slots[at].id != id)
        return NULL;
    *prompt = srv->slots[at].prompt;
    return srv->slots[at].g;
}

/* ------------------------------------------------------------------- end */

static const char *finish_name(const struct gen *g)
{
    const struct choice *c = g->choice ? &g->choice[0].c : NULL;

    if (g->end)
        return g->end;
    return c && c->finish == OAI_FINISH_LENGTH ? "length"
           : c && c->finish == OAI_FINISH_STOP ? "stop"
                                               : "none";
}

static void log_end(struct gen *g)
{
    uint64_t now = srv_now_us();
    struct srv_request_line l = {
        .id = g->id,
        .request_id = g->request_id,
        .path = g->kind == OAI_CHAT ? "/v1/chat/completions" : "/v1/completions",
        .status = g->status,
        .finish = finish_name(g),
        .n_choices = g->n_choices,
        .n_preempted = g->n_preempted,
        .queued_us = g->queued_us,
        .prefill_us = g->prefill_us,
        .decode_us = g->decode_us,
        .first_token_us = g->first_us ? g->first_us - g->began_us : 0,
        .total_us = now - g->began_us,
    };

    for (uint32_t i = 0; g->prompt && i < g->prompts.n; i++) {
        l.n_prompt += g->prompts.prompt[i].ids.n;
        l.n_cached += g->prompt[i].found.hit_tokens;
    }
    for (uint32_t i = 0; g->choice && i < g->n_choices; i++)
        l.n_output += g->choice[i].c.n_tokens;
    if (g->srv->opt.log_requests)
        srv_log_request(&g->srv->log, &l);
}

/* What is counted once a generation. */
static void count_end(struct gen *g)
{
    struct serving_metrics *m = &g->srv->metrics.serving;
    const struct oai_request *r = &g->prompts.req;
    uint32_t most = 0, total = 0;

    if (!g->accepted)
        return;
    for (uint32_t i = 0; i < g->n_choices; i++) {
        uint32_t n = g->choice[i].c.n_tokens;
        total += n;
        most = n > most ? n : most;
        prom_inc(m->request_success[g->end == NULL ? (g->choice[i].c.finish == OAI_FINISH_LENGTH
                                                          ? METRICS_LENGTH
                                                          : METRICS_STOP)
                                    : strcmp(g->end, "error") == 0 ? METRICS_ERROR
                                                                   : METRICS_ABORT],
                 1);
    }
    for (uint32_t i = 0; i < g->prompts.n; i++) {
        prom_observe(m->request_prompt_tokens, (double)g->prompts.prompt[i].ids.n);
        prom_observe(m->request_prefill_kv_computed_tokens,
                     (double)(g->prompts.prompt[i].ids.n - g->prompt[i].found.hit_tokens));
    }
    prom_observe(m->request_generation_tokens, total);
    prom_observe(m->request_max_num_generation_tokens, most);
    prom_observe(m->request_params_n, r->n);
    prom_observe(m->request_params_max_tokens, g->request[0].max_tokens);
    prom_observe(m->e2e_request_latency, (double)(srv_now_us() - g->began_us) / 1e6);
    prom_observe(m->request_queue_time, (double)g->queued_us / 1e6);
    prom_observe(m->request_prefill_time, (double)g->prefill_us / 1e6);
    prom_observe(m->request_decode_time, (double)g->decode_us / 1e6);
    prom_observe(m->request_inference_time, (double)(g->prefill_us + g->decode_us) / 1e6);
    if (most > 1)
        prom_observe(m->request_time_per_output_token,
                     (double)g->decode_us / 1e6 / (double)(most - 1));
}

static void maybe_free(struct gen *g)
{
    struct srv *srv = g->srv;

    if (g->x || g->working || g->n_running > 0 || g->n_mail > 0)
        return;
    count_end(g);
    log_end(g);
    free_slots(g);
    if (g->prev)
        g->prev->next = g->next;
    else
        srv->gens = g->next;
    if (g->next)
        g->next->prev = g->prev;
    gen_unprepare(g);
    free(g);
    srv->n_jobs--;
    drain_check(srv);
}

/* ---------------------------------------------------------------- cancel */

static void post_cancel(struct gen *g, struct engine_cancel *m, req_id id, int32_t choice)
{
    *m = (struct engine_cancel){ .head = { .kind = ENGINE_CANCEL, .owner = g },
                                 .id = id,
                                 .choice = choice };
    g->n_mail++;
    engine_post(g->srv->engine, &m->head);
}

/* End everything the engine still does for g. */
static void cancel_all(struct gen *g)
{
    if (!g->submitted)
        return;
    for (uint32_t i = 0; i < g->prompts.n; i++) {
        struct gen_prompt *p = &g->prompt[i];
        if (p->n_running > 0 && !p->cancel_out) {
            p->cancel_out = true;
            post_cancel(g, &p->cancel, g->request[i].id, -1);
        }
    }
}

/* The exchange's client left. */
static void on_gone(struct exchange *x, void *user)
{
    struct gen *g = user;

    (void)x;
    g->x = NULL;
    if (g->end == NULL)
        g->end = "cancelled";
    if (g->status == 0)
        g->status = 499; /* no reply was sent; the customary number for it */
    cancel_all(g);
    maybe_free(g);
}

void gen_fail(struct gen *g, const struct err *e, const char *end)
{
    struct exchange *x = g->x;
    struct buf o = { 0 };

    g->end = end;
    if (x) {
        g->x = NULL;
        x->gone = NULL;
        if (g->streaming) {
            oai_stream_error(&o, e);
            if (!o.failed && reply_stream_data(x, o.p, o.n))
                reply_stream_end(x);
            buf_fini(&o);
        } else {
            g->status = err_http_status(e->code);
            reply_err(x, e);
        }
    }
    cancel_all(g);
    maybe_free(g);
}

/* ---------------------------------------------------------------- events */

/* Choice i has its finish: end the reply with the last one. */
static void close_choice(struct gen *g, uint32_t i)
{
    if (g->choice[i].finished)
        return;
    g->choice[i].finished = true;
    if (--g->n_open == 0 && g->x)
        gen_reply_end(g);
}

static void on_token(struct gen *g, uint32_t prompt, const struct engine_batch *b,
                     const struct engine_event *ev)
{
    uint32_t i = prompt * g->prompts.req.n + ev->choice;
    struct gen_choice *gc = &g->choice[i];
    struct serving_metrics *m = &g->srv->metrics.serving;
    struct choice_token t = { .id = ev->token,
                              .logprob = ev->logprob,
                              .n_top = ev->n_top,
                              .top_id = b->top_token + ev->top,
                              .top_logprob = b->top_logprob + ev->top };
    struct err e;

    g->prompt[prompt].found = ev->found;
    if (g->first_us == 0) {
        g->first_us = b->now_us;
        prom_observe(m->time_to_first_token, (double)(b->now_us - g->began_us) / 1e6);
    }
    if (gc->last_us)
        prom_observe(m->inter_token_latency, (double)(b->now_us - gc->last_us) / 1e6);
    gc->last_us = b->now_us;
    if (g->x == NULL || gc->finished)
        return;
    if (choice_push(&gc->c, &t, &e) != ERR_OK) {
        gen_fail(g, &e, "error");
        return;
    }
    if (gc->c.finish != OAI_FINISH_NONE && !gc->done && !gc->cancelled) {
        gc->cancelled = true;
        post_cancel(g, &gc->cancel, ev->id, (int32_t)ev->choice);
    }
    if (gen_reply_choice(g, i, false) && gc->c.finish != OAI_FINISH_NONE)
        close_choice(g, i);
}

static void on_prompt_token(struct gen *g, uint32_t prompt, const struct engine_batch *b,
                            const struct engine_event *ev)
{
    struct choice_token t = { .id = ev->token,
                              .logprob = ev->logprob,
                              .n_top = ev->n_top,
                              .top_id = b->top_token + ev->top,
                              .top_logprob = b->top_logprob + ev->top };
    const struct oai_request *r = &g->prompts.req;
    bool silent = r->skip_special_tokens && tokenizer_is_special(g->srv->tokenizer, ev->token);
    struct err e;

    if (g->x == NULL || (r->prompt_logprobs < 0 && r->params.n_logprobs < 0))
        return;
    if (!score_list_add(&g->prompt[prompt].scores, &t, ev->n_top, true, silent)) {
        err_nomem(&e, "prompt logprobs", g->prompts.prompt[prompt].ids.n);
        gen_fail(g, &e, "error");
    }
}

/* The engine ended a sequence that the client still waits for. */
static void finish_choice(struct gen *g, uint32_t i, const struct engine_batch *b,
                          const struct engine_event *ev)
{
    struct err e = { 0 };
    enum err_code rc;

    if (ev->finish == FINISH_ERROR || ev->finish == FINISH_CANCELLED) {
        if (ev->finish == FINISH_ERROR)
            err_set(&e, ev->code, "generation failed: %s", b->text + ev->message);
        else
            err_set(&e, ERR_CONFLICT, "the sequence was cancelled");
        gen_fail(g, &e, "error");
        return;
    }
    rc = choice_end(&g->choice[i].c, ev->finish == FINISH_LENGTH, ev->stop_id, &e);
    if (rc != ERR_OK)
        gen_fail(g, &e, "error");
    else if (gen_reply_choice(g, i, true))
        close_choice(g, i);
}

static void on_done(struct gen *g, uint32_t prompt, const struct engine_batch *b,
                    const struct engine_event *ev)
{
    uint32_t i = prompt * g->prompts.req.n + ev->choice;
    struct gen_choice *gc = &g->choice[i];

    if (gc->done)
        return;
    gc->done = true;
    g->n_running--;
    g->prompt[prompt].n_running--;
    if (ev->n_output > 0 || g->prompts.req.max_tokens == 0)
        g->prompt[prompt].found = ev->found;
    g->n_preempted += ev->n_preempted;
    g->queued_us = ev->queued_us > g->queued_us ? ev->queued_us : g->queued_us;
    g->prefill_us = ev->prefill_us > g->prefill_us ? ev->prefill_us : g->prefill_us;
    g->decode_us = ev->decode_us > g->decode_us ? ev->decode_us : g->decode_us;
    g->n_mail++; /* keeps g alive through what follows */
    if (g->x && !gc->finished)
        finish_choice(g, i, b, ev);
    g->n_mail--;
    maybe_free(g);
}

/* The engine has taken the submission, or refused it. */
static void on_submitted(struct gen *g)
{
    if (g->submit.rc != ERR_OK) {
        g->n_running = 0;
        for (uint32_t i = 0; i < g->prompts.n; i++)
            g->prompt[i].n_running = 0;
        if (g->x)
            gen_fail(g, &g->submit.err, "rejected");
        return;
    }
    g->accepted = true;
    if (g->x)
        gen_reply_begin(g);
}

static void on_answer(struct engine_mail *mail)
{
    struct gen *g = mail->owner;

    if (mail->kind != ENGINE_SUBMIT && mail->kind != ENGINE_CANCEL) {
        admin_answer(mail);
        return;
    }
    if (mail->kind == ENGINE_SUBMIT)
        on_submitted(g);
    g->n_mail--;
    maybe_free(g);
}

void gen_event(struct srv *srv, const struct engine_batch *b, const struct engine_event *ev)
{
    uint32_t prompt;
    struct gen *g;

    if (ev->kind == ENGINE_ANSWER) {
        on_answer(ev->mail);
        return;
    }
    g = gen_find(srv, ev->id, &prompt);
    if (g == NULL || ev->choice >= g->prompts.req.n)
        return;
    g->n_mail++; /* keeps g alive through the event */
    switch (ev->kind) {
    case ENGINE_PROMPT_TOKEN:
        on_prompt_token(g, prompt, b, ev);
        break;
    case ENGINE_TOKEN:
        on_token(g, prompt, b, ev);
        break;
    case ENGINE_DONE:
        on_done(g, prompt, b, ev);
        break;
    case ENGINE_ANSWER:
        break;
    }
    g->n_mail--;
    maybe_free(g);
}

/* ----------------------------------------------------------------- begin */

static void submit(struct gen *g)
{
    struct err e = { 0 };

    if (!take_slots(g)) {
        err_nomem(&e, "request table", g->prompts.n);
        gen_fail(g, &e, "error");
        return;
    }
    g->n_open = g->n_running = g->n_choices;
    for (uint32_t i = 0; i < g->prompts.n; i++)
        g->prompt[i].n_running = g->prompts.req.n;
    g->submit =
        (struct engine_submit){ .head = { .owner = g }, .request = g->request, .n = g->prompts.n };
    g->n_mail++;
    if (engine_post_submit(g->srv->engine, &g->submit, &e) != ERR_OK) {
        g->n_mail--;
        g->n_running = 0;
        gen_fail(g, &e, "rejected");
        return;
    }
    g->submitted = true;
}

static void on_work(uv_work_t *w)
{
    gen_prepare(w->data);
}

static void on_prepared(uv_work_t *w, int status)
{
    struct gen *g = w->data;

    (void)status;
    g->working = false;
    if (g->x == NULL)
        maybe_free(g);
    else if (g->rc != ERR_OK)
        gen_fail(g, &g->err, "rejected");
    else
        submit(g);
}

static void start(struct srv *srv, struct exchange *x, enum oai_kind kind)
{
    size_t n;
    const char *key = http_field(x, "authorization", &n);
    struct gen *g;

    if (srv->phase != SRV_SERVING) {
        reply_error(x, 503, NULL,
                    srv->phase == SRV_LOADING ? "the model is still loading"
                                              : "the server is shutting down");
        return;
    }
    g = calloc(1, sizeof *g);
    if (g == NULL) {
        reply_error(x, 500, NULL, "out of memory");
        return;
    }
    g->srv = srv;
    g->x = x;
    g->kind = kind;
    g->body = http_take_body(x, &g->n_body);
    g->created = (int64_t)time(NULL);
    g->began_us = x->began_us;
    g->number = ++srv->n_generations;
    g->tenant = key ? XXH3_64bits_withSeed(key, n, srv->salt_key) : 0;
    srv_new_id(&srv->ids, kind == OAI_CHAT ? "chatcmpl-" : "cmpl-", g->id, sizeof g->id);
    strcpy(g->request_id, x->request_id);
    g->next = srv->gens;
    if (g->next)
        g->next->prev = g;
    srv->gens = g;
    srv->n_jobs++;
    x->gone = on_gone;
    x->user = g;
    g->work.data = g;
    g->working = true;
    if (uv_queue_work(&srv->loop, &g->work, on_work, on_prepared) != 0) {
        struct err e;
        g->working = false;
        err_set(&e, ERR_NOMEM, "no thread takes the request");
        gen_fail(g, &e, "error");
    }
}

void gen_ping(struct srv *srv)
{
    uint64_t now = srv_now_us();

    for (struct gen *g = srv->gens, *next; g; g = next) {
        next = g->next;
        if (g->x == NULL || !g->streaming || now - g->sent_us < PING_AFTER_US)
            continue;
        g->sent_us = now;
        g->n_mail++; /* a client dropped here must not free the next one's link */
        reply_stream_data(g->x, SSE_PING, sizeof SSE_PING - 1);
        next = g->next;
        g->n_mail--;
        maybe_free(g);
    }
}

void handle_completions(struct srv *srv, struct exchange *x)
{
    start(srv, x, OAI_COMPLETION);
}

void handle_chat(struct srv *srv, struct exchange *x)
{
    start(srv, x, OAI_CHAT);
}
