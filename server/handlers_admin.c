/* handlers_admin.c: /admin: the exact ledger, live requests, reset, cancel.
 * Each asks the engine by mail, so that what it reports is the state between
 * two steps.  I/O thread. */
#include "server/handlers.h"

#include <stdlib.h>
#include <string.h>

#include "server/drain.h"
#include "server/generate.h"
#include "server/reply.h"

/* A question on its way to the engine and back. */
struct inquiry {
    struct srv *srv;
    struct exchange *x; /* NULL: the client is gone */
    void (*answer)(struct inquiry *q);
    union {
        struct engine_mail head;
        struct engine_query query;
        struct engine_reset reset;
    } m;
};

static void on_gone(struct exchange *x, void *user)
{
    (void)x;
    ((struct inquiry *)user)->x = NULL;
}

static void ask(struct srv *srv, struct exchange *x, enum engine_mail_kind kind, bool live,
                void (*answer)(struct inquiry *))
{
    struct inquiry *q = srv->engine ? calloc(1, sizeof *q) : NULL;

    if (srv->engine == NULL) {
        reply_error(x, 503, NULL, "the model is still loading");
        return;
    }
    if (q == NULL) {
        reply_error(x, 500, NULL, "out of memory");
        return;
    }
    q->srv = srv;
    q->x = x;
    q->answer = answer;
    q->m.head.kind = kind;
    q->m.head.owner = q;
    if (kind == ENGINE_QUERY)
        q->m.query.want_live = live;
    x->gone = on_gone;
    x->user = q;
    srv->n_jobs++;
    engine_post(srv->engine, &q->m.head);
}

void admin_answer(struct engine_mail *mail)
{
    struct inquiry *q = mail->owner;
    struct srv *srv = q->srv;

    if (q->x)
        q->answer(q);
    if (mail->kind == ENGINE_QUERY)
        free(q->m.query.live);
    free(q);
    srv->n_jobs--;
    drain_check(srv);
}

/* ------------------------------------------------------------ JSON pieces */

/* ,"key":v  (no comma behind an opening brace) */
static void put(struct json_out *o, const char *key, uint64_t v)
{
    if (o->n > 0 && o->p[o->n - 1] != '{')
        JSON_LIT(o, ",");
    json_out_cstring(o, key);
    JSON_LIT(o, ":");
    json_out_uint(o, v);
}

static void open_object(struct json_out *o, const char *key)
{
    JSON_LIT(o, ",");
    json_out_cstring(o, key);
    JSON_LIT(o, ":{");
}

static void put_blocks(struct json_out *o, const struct srv *srv, const struct kvpool_stats *p)
{
    const struct kv_layout *lay = &model_describe(srv->model)->layout;
    static const char *const kinds[] = { "full", "window", "latent" };

    JSON_LIT(o, "\"blocks\":{");
    put(o, "total", p->n_blocks);
    put(o, "free", p->n_free);
    put(o, "cached", p->n_cached);
    put(o, "held", p->n_held);
    put(o, "resting", p->n_resting);
    put(o, "quarantined", p->quarantined);
    JSON_LIT(o, "}");
    put(o, "block_tokens", lay->block_tokens);
    put(o, "block_bytes", kv_layout_block_bytes(lay));
    JSON_LIT(o, ",\"groups\":[");
    for (uint32_t i = 0; i < lay->n_groups; i++) {
        if (i > 0)
            JSON_LIT(o, ",");
        JSON_LIT(o, "{\"kind\":");
        json_out_cstring(o, kinds[lay->group[i].kind]);
        put(o, "window", lay->group[i].window);
        put(o, "layers", lay->group[i].n_layers);
        put(o, "held", p->group_held[i]);
        JSON_LIT(o, "}");
    }
    JSON_LIT(o, "]");
}

static void put_prefix(struct json_out *o, const struct kvpool_stats *p)
{
    open_object(o, "tokens");
    put(o, "held", p->tokens_held);
    put(o, "wasted", p->tokens_wasted);
    JSON_LIT(o, "}");
    open_object(o, "prefix");
    put(o, "query_tokens", p->query_tokens);
    put(o, "hit_tokens", p->hit_tokens);
    open_object(o, "miss_tokens");
    put(o, "never_seen", p->miss_never);
    put(o, "evicted", p->miss_evicted);
    put(o, "salt", p->miss_salt);
    put(o, "granularity", p->miss_granularity);
    put(o, "window", p->miss_window);
    JSON_LIT(o, "}");
    put(o, "evictions", p->evictions);
    put(o, "copies", p->copies);
    put(o, "published", p->published);
    put(o, "oldest_cached_step", p->oldest_cached_step);
    JSON_LIT(o, "}");
}

static void put_requests(struct json_out *o, const struct sched_stats *s)
{
    open_object(o, "requests");
    put(o, "running", s->n_running);
    put(o, "waiting", s->n_waiting);
    put(o, "waiting_tokens", s->n_waiting_tokens);
    JSON_LIT(o, "}");
    put(o, "preemptions", s->preemptions);
    put(o, "recomputed_tokens", s->tokens_recomputed);
    put(o, "steps", s->steps);
}

static void answer_cache(struct inquiry *q)
{
    const struct engine_query *a = &q->m.query;
    struct json_out o = { 0 };

    JSON_LIT(&o, "{");
    put_blocks(&o, q->srv, &a->pool);
    put_prefix(&o, &a->pool);
    put_requests(&o, &a->sched);
    open_object(&o, "ledger");
    put(&o, "checked_step", a->pool.checked_step);
    put(&o, "violations", a->pool.violations);
    JSON_LIT(&o, ",\"check\":");
    json_out_cstring(&o, a->check == ERR_OK ? "ok" : a->err.message);
    JSON_LIT(&o, "}}");
    reply_out(q->x, 200, CONTENT_JSON, &o);
    json_out_fini(&o);
}

void handle_cache(struct srv *srv, struct exchange *x)
{
    ask(srv, x, ENGINE_QUERY, false, answer_cache);
}

static void answer_reset(struct inquiry *q)
{
    const struct engine_reset *a = &q->m.reset;
    struct json_out o = { 0 };
    struct err e;

    if (!a->done) {
        err_set(&e, ERR_CONFLICT,
                "%u sequences run, %u requests wait and hold %llu blocks; nothing was reset",
                a->sched.n_running, a->sched.n_waiting, (unsigned long long)a->pool.n_held);
        reply_err(q->x, &e);
        return;
    }
    JSON_LIT(&o, "{");
    put(&o, "freed_blocks", a->n_freed);
    put(&o, "kept_blocks", a->pool.n_cached);
    put(&o, "free_blocks", a->pool.n_free);
    JSON_LIT(&o, "}");
    reply_out(q->x, 200, CONTENT_JSON, &o);
    json_out_fini(&o);
}

void handle_cache_reset(struct srv *srv, struct exchange *x)
{
    ask(srv, x, ENGINE_RESET, false, answer_reset);
}

static void put_live(struct json_out *o, const struct srv *srv, const struct sched_live *l)
{
    uint32_t prompt = 0;
    const struct gen *g = gen_find(srv, l->id, &prompt);

    JSON_LIT(o, "{\"id\":");
    json_out_cstring(o, g ? g->id : NULL);
    JSON_LIT(o, ",\"request_id\":");
    json_out_cstring(o, g ? g->request_id : NULL);
    JSON_LIT(o, ",\"phase\":");
    json_out_cstring(o, l->running ? l->n_computed < l->n_prompt ? "prefill" : "decode"
                                   : "waiting");
    put(o, "prompt", prompt);
    put(o, "prompt_tokens", l->n_prompt);
    put(o, "computed_tokens", l->n_computed);
    put(o, "output_tokens", l->n_output);
    put(o, "blocks", l->n_blocks);
    put(o, "preemptions", l->n_preempted);
    JSON_LIT(o, ",\"priority\":");
    json_out_int(o, l->priority);
    JSON_LIT(o, ",\"waited_seconds\":");
    json_out_double(o, (double)l->waited_us / 1e6);
    JSON_LIT(o, ",\"age_seconds\":");
    json_out_double(o, g ? (double)(srv_now_us() - g->began_us) / 1e6 : 0);
    JSON_LIT(o, "}");
}

static void answer_requests(struct inquiry *q)
{
    const struct engine_query *a = &q->m.query;
    struct json_out o = { 0 };

    JSON_LIT(&o, "{\"requests\":[");
    for (uint32_t i = 0; i < a->n_live; i++) {
        if (i > 0)
            JSON_LIT(&o, ",");
        put_live(&o, q->srv, &a->live[i]);
    }
    JSON_LIT(&o, "]");
    put(&o, "running", a->sched.n_running);
    put(&o, "waiting", a->sched.n_waiting);
    JSON_LIT(&o, "}");
    reply_out(q->x, 200, CONTENT_JSON, &o);
    json_out_fini(&o);
}

void handle_requests(struct srv *srv, struct exchange *x)
{
    ask(srv, x, ENGINE_QUERY, true, answer_requests);
}

/* By our id, or by x-request-id (which clients may use twice: all of them). */
void handle_request_delete(struct srv *srv, struct exchange *x)
{
    struct json_out o = { 0 };
    struct err e;
    uint32_t n = 0;

    err_set(&e, ERR_CONFLICT, "the request was cancelled by an operator");
    for (struct gen *g = srv->gens, *next; g; g = next) {
        next = g->next;
        if (g->x == NULL || (strcmp(g->id, x->path_tail) != 0 &&
                             strcmp(g->request_id, x->path_tail) != 0))
            continue;
        n++;
        gen_fail(g, &e, "cancelled");
    }
    if (n == 0) {
        err_set(&e, ERR_NOT_FOUND, "no live request has the id `%.150s`", x->path_tail);
        reply_err(x, &e);
        return;
    }
    JSON_LIT(&o, "{");
    put(&o, "cancelled", n);
    JSON_LIT(&o, "}");
    reply_out(x, 200, CONTENT_JSON, &o);
    json_out_fini(&o);
}
