/* reply.c: the client's view of a generation: chunks of a stream or one
 * whole body.  Builds borrowed views for proto's writers and frees them at once.
 * I/O thread. */
#include "server/generate/gen.h"

#include <stdlib.h>
#include <string.h>

#include "proto/openai/response.h"
#include "proto/openai/sse.h"
#include "server/base/clock.h"
#include "server/http/http.h"

/* proto's view of a score list, in one allocation. */
struct score_view {
    struct oai_logprobs lp;
    void *memory;
};

/* The tokens of a and b in a row (either may be NULL), behind an unscored first
 * one where asked; at most `most` alternatives each.  False: memory is short. */
static bool view_scores(const struct served *served, struct score_view *view,
                        const struct score_list *a, const struct score_list *b, int32_t first_id,
                        bool with_first, uint32_t most)
{
    uint32_t n = with_first + (a ? a->n : 0) + (b ? b->n : 0);
    uint32_t n_top = (a ? a->n_top : 0) + (b ? b->n_top : 0), at = 0, top_at = 0;
    struct oai_token *tok =
        calloc(1, (n + 1) * sizeof *tok + n_top * sizeof(struct oai_alternative));
    struct oai_alternative *top = tok ? (struct oai_alternative *)(tok + n + 1) : NULL;

    memset(view, 0, sizeof *view);
    if (tok == NULL)
        return false;
    if (with_first)
        tok[at++] = (struct oai_token){
            .id = first_id,
            .token = token_table_get(&served->tokens, first_id),
            .silent = tokenizer_is_special(served->tokenizer, first_id),
        };
    for (int part = 0; part < 2; part++) {
        const struct score_list *l = part ? b : a;
        for (uint32_t i = 0; l && i < l->n; i++) {
            const struct score *s = &l->token[i];
            uint32_t k = s->n_top < most ? s->n_top : most;
            tok[at++] = (struct oai_token){ .id = s->id,
                                            .token = token_table_get(&served->tokens, s->id),
                                            .scored = s->scored,
                                            .silent = s->silent,
                                            .logprob = s->logprob,
                                            .n_top = k,
                                            .top = top + top_at };
            for (uint32_t j = 0; j < k; j++) {
                int32_t id = l->top_id[s->top + j];
                top[top_at++] = (struct oai_alternative){
                    .id = id,
                    .logprob = l->top_logprob[s->top + j],
                    .token = token_table_get(&served->tokens, id),
                };
            }
        }
    }
    view->memory = tok;
    view->lp.token = tok;
    view->lp.n = n;
    return true;
}

static struct oai_usage usage_of(const struct gen *g)
{
    struct oai_usage u = { 0 };

    for (uint32_t i = 0; i < g->prompts.n; i++) {
        u.prompt_tokens += g->prompts.prompt[i].ids.n;
        u.cached_tokens += g->prompt[i].found.hit_tokens;
    }
    for (uint32_t i = 0; i < g->n_choices; i++)
        u.completion_tokens += g->choice[i].c.n_tokens;
    return u;
}

static struct oai_identity identity_of(const struct gen *g)
{
    return (struct oai_identity){
        .kind = g->kind, .id = g->id, .model = g->gr->cfg.served->name[0], .created = g->created
    };
}

static const struct prompt *prompt_of(const struct gen *g, uint32_t choice)
{
    return &g->prompts.prompt[choice / g->prompts.req.n];
}

/* ---------------------------------------------------------------- stream */

/* The prompt as the first chunk of each of its choices. */
static void stream_echo(struct gen *g, struct buf *o, uint32_t i)
{
    const struct oai_request *r = &g->prompts.req;
    const struct prompt *p = prompt_of(g, i);
    struct gen_prompt *gp = &g->prompt[i / r->n];
    struct score_view view = { 0 };
    struct oai_delta d = { .index = i,
                           .text = { p->text, p->n_text },
                           .stop_reason = OAI_NO_STOP_REASON };

    if (r->params.n_logprobs >= 0) {
        if (!view_scores(g->gr->cfg.served, &view, &gp->scores, NULL, p->ids.id[0], true,
                         (uint32_t)r->params.n_logprobs))
            o->failed = true;
        d.logprobs = &view.lp;
        g->choice[i].c.text_offset = oai_text_offset_after(&view.lp);
    }
    oai_stream_delta(o, &g->stream, &d);
    free(view.memory);
}

/* One event of choice i with what it has gathered; with_finish ends it. */
static void stream_delta(struct gen *g, struct buf *o, uint32_t i, bool with_finish)
{
    const struct oai_request *r = &g->prompts.req;
    struct choice *c = &g->choice[i].c;
    const struct prompt *p = prompt_of(g, i);
    struct score_view view = { 0 };
    struct oai_usage usage;
    struct oai_delta d = { .index = i, .stop_reason = OAI_NO_STOP_REASON };

    if (c->text.n > 0 || g->kind == OAI_COMPLETION || c->scores.n > 0)
        d.text = (struct oai_text){ c->text.p ? c->text.p : "", c->text.n };
    if (r->params.n_logprobs >= 0 && c->scores.n > 0) {
        if (!view_scores(g->gr->cfg.served, &view, &c->scores, NULL, 0, false,
                         (uint32_t)r->params.n_logprobs))
            o->failed = true;
        view.lp.text_offset = c->text_offset;
        c->text_offset = oai_text_offset_after(&view.lp);
        d.logprobs = &view.lp;
    }
    if (r->return_token_ids) {
        d.token_ids = c->ids ? c->ids : p->ids.id;
        d.n_token_ids = c->n_ids;
    }
    if (r->return_token_ids && !g->choice[i].opened && g->kind == OAI_COMPLETION) {
        d.prompt_token_ids = p->ids.id;
        d.n_prompt_token_ids = (uint32_t)p->ids.n;
    }
    if (with_finish) {
        d.finish = c->finish;
        d.stop_reason = c->reason;
    }
    if (r->continuous_usage) {
        usage = usage_of(g);
        d.usage = &usage;
    }
    oai_stream_delta(o, &g->stream, &d);
    g->choice[i].opened = true;
    free(view.memory);
    choice_sent(c);
}

/* Send what was written. */
static enum err_code send_events(struct gen *g, struct err *e)
{
    struct buf *o = &g->gr->out;

    if (buf_check(o, e) != ERR_OK) {
        buf_fini(o);
        return ERR_NOMEM;
    }
    g->sent_us = srv_now_us();
    reply_stream_data(g->x, o->p, o->n);
    buf_reset(o);
    return ERR_OK;
}

/* What the cache answered, over all prompts; their first starts count. */
static struct oai_cache_report report_of(const struct gen *g)
{
    struct oai_cache_report c = { 0 };

    for (uint32_t i = 0; i < g->prompts.n; i++) {
        const struct kvpool_lookup *l = &g->prompt[i].found;
        c.query_tokens += l->query_tokens;
        c.hit_tokens += l->hit_tokens;
        c.miss_never += l->miss_never;
        c.miss_evicted += l->miss_evicted;
        c.miss_salt += l->miss_salt;
        c.miss_granularity += l->miss_granularity;
        c.miss_window += l->miss_window;
    }
    return c;
}

/* The report as headers of a whole reply.  A stream's headers leave before the
 * cache is asked: there the report is the last event's `cache` object. */
static void cache_headers(struct gen *g)
{
    struct oai_cache_report c = report_of(g);

    reply_header(g->x, "x-cache-query-tokens", "%llu", (unsigned long long)c.query_tokens);
    reply_header(g->x, "x-cache-hit-tokens", "%llu", (unsigned long long)c.hit_tokens);
    reply_header(g->x, "x-cache-miss-tokens",
                 "never_seen=%llu, evicted=%llu, salt=%llu, granularity=%llu, window=%llu",
                 (unsigned long long)c.miss_never, (unsigned long long)c.miss_evicted,
                 (unsigned long long)c.miss_salt, (unsigned long long)c.miss_granularity,
                 (unsigned long long)c.miss_window);
}

enum err_code gen_reply_open(struct gen *g, struct err *e)
{
    struct oai_identity id = identity_of(g);
    bool usage = g->prompts.req.include_usage || g->gr->cfg.served->force_include_usage;

    return oai_stream_init(&g->stream, &id, usage, e);
}

enum err_code gen_reply_begin(struct gen *g, struct err *e)
{
    bool with_ids = g->prompts.req.return_token_ids;

    g->status = 200;
    reply_stream_begin(g->x, SSE_CONTENT_TYPE);
    struct buf *o = &g->gr->out;
    for (uint32_t i = 0; g->kind == OAI_CHAT && i < g->n_choices; i++) {
        const struct token_list *ids = &prompt_of(g, i)->ids;
        oai_stream_role(o, &g->stream, i, with_ids ? ids->id : NULL, (uint32_t)ids->n);
    }
    return send_events(g, e);
}

enum err_code gen_reply_choice(struct gen *g, uint32_t i, struct err *e)
{
    struct gen_choice *gc = &g->choice[i];
    struct choice *c = &gc->c;
    bool ended = c->finish != OAI_FINISH_NONE;

    if (g->state != GEN_STREAM)
        return ERR_OK;
    const struct oai_request *r = &g->prompts.req;
    bool shows = c->text.n > 0 || r->return_token_ids || r->params.n_logprobs >= 0;
    bool due = ended || (shows && c->n_gathered >= g->gr->cfg.served->stream_interval);
    bool echo = !gc->opened && r->echo && (c->n_tokens > 0 || ended);
    if (!due && !echo)
        return ERR_OK;
    struct buf *o = &g->gr->out;
    if (echo) {
        stream_echo(g, o, i);
        gc->opened = g->kind == OAI_CHAT || !r->return_token_ids;
    }
    /* A chat's finish is an event of its own. */
    if (ended && g->kind == OAI_CHAT && (c->text.n > 0 || c->scores.n > 0 || c->n_ids > 0))
        stream_delta(g, o, i, false);
    if (due)
        stream_delta(g, o, i, ended);
    return send_events(g, e);
}

static enum err_code end_stream(struct gen *g, struct err *e)
{
    struct buf *o = &g->gr->out;

    if (g->stream.include_usage || g->prompts.req.cache_report) {
        struct oai_usage u = usage_of(g);
        struct oai_cache_report c = report_of(g);
        oai_stream_usage(o, &g->stream, g->stream.include_usage ? &u : NULL,
                         g->prompts.req.cache_report ? &c : NULL);
    }
    sse_done(o);
    enum err_code rc = send_events(g, e);
    if (rc == ERR_OK && g->state != GEN_END)
        reply_stream_end(g->x);
    return rc;
}

/* ----------------------------------------------------------- whole reply */

/* What one choice's view needs while the reply is written. */
struct reply_part {
    struct score_view scores, prompt_scores;
    struct buf text;
};

static bool fill_choice(struct gen *g, uint32_t i, struct oai_choice *out, struct reply_part *part)
{
    const struct oai_request *r = &g->prompts.req;
    struct choice *c = &g->choice[i].c;
    struct gen_prompt *gp = &g->prompt[i / r->n];
    const struct prompt *p = prompt_of(g, i);
    bool ok = true;

    *out = (struct oai_choice){ .index = i, .finish = c->finish, .stop_reason = c->reason };
    out->text = (struct oai_text){ c->text.p ? c->text.p : "", c->text.n };
    if (r->echo && p->text) {
        buf_put(&part->text, p->text, p->n_text);
        buf_put(&part->text, c->text.p, c->text.n);
        ok = !part->text.failed;
        out->text = (struct oai_text){ part->text.p ? part->text.p : "", part->text.n };
    }
    if (ok && r->params.n_logprobs >= 0) {
        bool echo = r->echo && p->text;
        ok = view_scores(g->gr->cfg.served, &part->scores, echo ? &gp->scores : NULL, &c->scores,
                         p->ids.id[0], echo, (uint32_t)r->params.n_logprobs);
        out->logprobs = &part->scores.lp;
    }
    if (ok && r->prompt_logprobs >= 0) {
        ok = view_scores(g->gr->cfg.served, &part->prompt_scores, &gp->scores, NULL, p->ids.id[0],
                         true, (uint32_t)r->prompt_logprobs);
        out->prompt_logprobs = &part->prompt_scores.lp;
    }
    if (r->return_token_ids) {
        out->token_ids = c->ids ? c->ids : p->ids.id;
        out->n_token_ids = c->n_ids;
        out->prompt_token_ids = p->ids.id;
        out->n_prompt_token_ids = (uint32_t)p->ids.n;
    }
    return ok;
}

static enum err_code send_whole(struct gen *g, struct err *e)
{
    struct oai_choice *choice = calloc(g->n_choices, sizeof *choice);
    struct reply_part *part = calloc(g->n_choices, sizeof *part);
    struct oai_identity id = identity_of(g);
    struct oai_usage usage = usage_of(g);
    struct oai_cache_report report = report_of(g);
    struct buf *o = &g->gr->out;
    bool ok = choice && part;

    for (uint32_t i = 0; ok && i < g->n_choices; i++)
        ok = fill_choice(g, i, &choice[i], &part[i]);
    if (ok)
        oai_write_reply(o, &id, choice, g->n_choices, &usage,
                        g->prompts.req.cache_report ? &report : NULL);
    for (uint32_t i = 0; part && i < g->n_choices; i++) {
        free(part[i].scores.memory);
        free(part[i].prompt_scores.memory);
        buf_fini(&part[i].text);
    }
    free(part);
    free(choice);
    o->failed |= !ok;
    if (buf_check(o, e) != ERR_OK) {
        buf_fini(o);
        return ERR_NOMEM;
    }
    g->status = 200;
    cache_headers(g);
    reply_out(g->x, 200, CONTENT_JSON, o);
    buf_reset(o);
    return ERR_OK;
}

enum err_code gen_reply_end(struct gen *g, struct err *e)
{
    return g->state == GEN_STREAM ? end_stream(g, e) : send_whole(g, e);
}

/* ------------------------------------------------------------------ error */

/* What a stream ends with where there is no memory to write its own error. */
static const char no_memory[] =
    SSE_DATA "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\",\"param\":null,"
             "\"code\":null}}" SSE_END SSE_DONE;

void gen_reply_error(struct gen *g, const struct err *e)
{
    struct exchange *x = g->x;

    x->gone = NULL; /* the exchange is ended here, however the client takes it */
    if (g->state != GEN_STREAM) {
        g->status = err_http_status(e->code);
        reply_err(x, e);
        return;
    }
    struct buf *o = &g->gr->out;
    oai_stream_error(o, e);
    bool sent = o->failed ? reply_stream_data(x, no_memory, sizeof no_memory - 1)
                          : reply_stream_data(x, o->p, o->n);
    buf_reset(o);
    if (sent)
        reply_stream_end(x);
}
