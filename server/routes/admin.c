/* admin.c: /admin: the exact ledger, live requests, reset, cancel.
 * Each asks the engine by mail, so that what it reports is the state between
 * two steps.  I/O thread. */
#include "server/routes/ask.h"

#include <stdlib.h>
#include <string.h>

#include "server/base/clock.h"
#include "server/generate/generate.h"
#include "server/routes/routes.h"
#include "server/http/query.h"
#include "server/http/http.h"

/* ------------------------------------------------------------------ cache */

static void put_blocks(struct buf *o, const struct routes *rt, const struct kvpool_stats *p)
{
    const struct kv_layout *lay = &rt->served->model->layout;
    static const char *const kinds[] = { "full", "window", "latent" };

    BUF_LIT(o, "\"blocks\":{");
    admin_put(o, "total", p->n_blocks);
    admin_put(o, "free", p->n_free);
    admin_put(o, "cached", p->n_cached);
    admin_put(o, "held", p->n_held);
    admin_put(o, "resting", p->n_resting);
    admin_put(o, "quarantined", p->quarantined);
    BUF_LIT(o, "}");
    admin_put(o, "block_tokens", lay->block_tokens);
    admin_put(o, "block_bytes", kv_layout_block_bytes(lay));
    BUF_LIT(o, ",\"groups\":[");
    for (uint32_t i = 0; i < lay->n_groups; i++) {
        if (i > 0)
            BUF_LIT(o, ",");
        BUF_LIT(o, "{\"kind\":");
        json_put_cstring(o, kinds[lay->group[i].kind]);
        admin_put(o, "window", lay->group[i].window);
        admin_put(o, "layers", lay->group[i].n_layers);
        admin_put(o, "held", p->group_held[i]);
        BUF_LIT(o, "}");
    }
    BUF_LIT(o, "]");
}

static void put_prefix(struct buf *o, const struct kvpool_stats *p)
{
    admin_open(o, "tokens");
    admin_put(o, "held", p->tokens_held);
    admin_put(o, "wasted", p->tokens_wasted);
    BUF_LIT(o, "}");
    admin_open(o, "prefix");
    admin_put(o, "query_tokens", p->query_tokens);
    admin_put(o, "hit_tokens", p->hit_tokens);
    admin_open(o, "miss_tokens");
    admin_put(o, "never_seen", p->miss_never);
    admin_put(o, "evicted", p->miss_evicted);
    admin_put(o, "salt", p->miss_salt);
    admin_put(o, "granularity", p->miss_granularity);
    admin_put(o, "window", p->miss_window);
    BUF_LIT(o, "}");
    admin_put(o, "evictions", p->evictions);
    admin_put(o, "copies", p->copies);
    admin_put(o, "published", p->published);
    admin_put(o, "oldest_cached_step", p->oldest_cached_step);
    BUF_LIT(o, "}");
}

static void put_requests(struct buf *o, const struct sched_stats *s)
{
    admin_open(o, "requests");
    admin_put(o, "running", s->n_running);
    admin_put(o, "waiting", s->n_waiting);
    admin_put(o, "waiting_tokens", s->n_waiting_tokens);
    BUF_LIT(o, "}");
    admin_put(o, "preemptions", s->preemptions);
    admin_put(o, "recomputed_tokens", s->tokens_recomputed);
    admin_put(o, "steps", s->steps);
}

static void put_pins(struct buf *o, const struct admin_ask *q)
{
    const struct engine_state *a = &q->m.state;

    admin_open(o, "pins");
    admin_put(o, "blocks", a->pool.n_pinned);
    admin_put(o, "budget_blocks", q->rt->pin_budget);
    admin_put_key(o, "list");
    BUF_LIT(o, "[");
    for (uint32_t i = 0; i < a->n_pins; i++) {
        if (i > 0)
            BUF_LIT(o, ",");
        admin_put_pin(o, &a->pins[i]);
    }
    BUF_LIT(o, "]}");
}

static void answer_cache(struct admin_ask *q)
{
    const struct engine_state *a = &q->m.state;
    struct buf o = { 0 };

    BUF_LIT(&o, "{");
    put_blocks(&o, q->rt, &a->pool);
    put_prefix(&o, &a->pool);
    put_requests(&o, &a->sched);
    admin_open(&o, "ledger");
    admin_put(&o, "checked_step", a->pool.checked_step);
    admin_put(&o, "violations", a->pool.violations);
    BUF_LIT(&o, ",\"check\":");
    json_put_cstring(&o, a->check == ERR_OK ? "ok" : a->err.message);
    BUF_LIT(&o, "}");
    put_pins(&o, q);
    admin_put_key(&o, "reset_waits");
    json_put_bool(&o, a->reset_waits);
    BUF_LIT(&o, "}");
    admin_reply(q, &o);
}

static void release_state(struct admin_ask *q)
{
    free(q->m.state.live);
    free(q->m.state.pins);
}

static void ask_state(struct routes *rt, struct exchange *x, bool live,
                      void (*answer)(struct admin_ask *))
{
    struct admin_ask *q = admin_ask_new(rt, x, ENGINE_STATE, answer);

    if (q == NULL)
        return;
    q->release = release_state;
    q->m.state.want_live = live;
    q->m.state.want_pins = !live;
    admin_ask_post(q);
}

void handle_cache(struct routes *rt, struct exchange *x)
{
    ask_state(rt, x, false, answer_cache);
}

static void answer_reset(struct admin_ask *q)
{
    const struct engine_reset *a = &q->m.reset;
    struct buf o = { 0 };
    struct err e;

    if (!a->done && !a->when_idle) {
        err_set(&e, ERR_CONFLICT,
                "%u sequences run, %u requests wait and hold %llu blocks; nothing was reset "
                "(?when=idle resets once they have ended)",
                a->sched.n_running, a->sched.n_waiting, (unsigned long long)a->pool.n_held);
        reply_err(q->x, &e);
        return;
    }
    BUF_LIT(&o, "{\"done\":");
    json_put_bool(&o, a->done);
    if (a->done) {
        admin_put(&o, "freed_blocks", a->n_freed);
        admin_put(&o, "kept_blocks", a->pool.n_held);
        admin_put(&o, "free_blocks", a->pool.n_free);
    } else {
        admin_put(&o, "running", a->sched.n_running);
        admin_put(&o, "waiting", a->sched.n_waiting);
        admin_put(&o, "held_blocks", a->pool.n_held);
    }
    BUF_LIT(&o, "}");
    reply_out(q->x, a->done ? 200 : 202, CONTENT_JSON, &o);
    buf_fini(&o);
}

void handle_cache_reset(struct routes *rt, struct exchange *x)
{
    uint64_t when = 0;
    const struct query_rule rules[] = { { "when", 0, 0, "now|idle", &when } };
    struct admin_ask *q;
    struct err e;

    if (query_read(x->query, rules, 1, &e) != ERR_OK) {
        reply_err(x, &e);
        return;
    }
    q = admin_ask_new(rt, x, ENGINE_RESET, answer_reset);
    if (q == NULL)
        return;
    q->m.reset.when_idle = when == 1;
    admin_ask_post(q);
}

/* --------------------------------------------------------------- requests */

static void put_live(struct buf *o, const struct routes *rt, const struct sched_live *l)
{
    struct gen_view g = { 0 };
    bool live = gen_find(rt->gen, l->id, &g);

    BUF_LIT(o, "{\"id\":");
    json_put_cstring(o, g.id);
    BUF_LIT(o, ",\"request_id\":");
    json_put_cstring(o, g.request_id);
    BUF_LIT(o, ",\"phase\":");
    json_put_cstring(o,
                     l->running ? l->n_computed < l->n_prompt ? "prefill" : "decode" : "waiting");
    admin_put(o, "prompt", g.prompt);
    admin_put(o, "prompt_tokens", l->n_prompt);
    admin_put(o, "computed_tokens", l->n_computed);
    admin_put(o, "output_tokens", l->n_output);
    admin_put(o, "blocks", l->n_blocks);
    admin_put(o, "preemptions", l->n_preempted);
    BUF_LIT(o, ",\"priority\":");
    json_put_int(o, l->priority);
    BUF_LIT(o, ",\"waited_seconds\":");
    json_put_double(o, (double)l->waited_us / 1e6);
    BUF_LIT(o, ",\"age_seconds\":");
    json_put_double(o, live ? (double)(srv_now_us() - g.began_us) / 1e6 : 0);
    BUF_LIT(o, "}");
}

static void answer_requests(struct admin_ask *q)
{
    const struct engine_state *a = &q->m.state;
    struct buf o = { 0 };

    BUF_LIT(&o, "{\"requests\":[");
    for (uint32_t i = 0; i < a->n_live; i++) {
        if (i > 0)
            BUF_LIT(&o, ",");
        put_live(&o, q->rt, &a->live[i]);
    }
    BUF_LIT(&o, "]");
    admin_put(&o, "running", a->sched.n_running);
    admin_put(&o, "waiting", a->sched.n_waiting);
    BUF_LIT(&o, "}");
    admin_reply(q, &o);
}

void handle_requests(struct routes *rt, struct exchange *x)
{
    ask_state(rt, x, true, answer_requests);
}

/* By our id, or by x-request-id (which clients may use twice: all of them). */
void handle_request_delete(struct routes *rt, struct exchange *x)
{
    struct buf o = { 0 };
    struct err e;

    err_set(&e, ERR_CONFLICT, "the request was cancelled by an operator");
    uint32_t n = gen_cancel(rt->gen, x->path_tail, &e);
    if (n == 0) {
        err_set(&e, ERR_NOT_FOUND, "no live request has the id `%.150s`", x->path_tail);
        reply_err(x, &e);
        return;
    }
    BUF_LIT(&o, "{");
    admin_put(&o, "cancelled", n);
    BUF_LIT(&o, "}");
    reply_out(x, 200, CONTENT_JSON, &o);
    buf_fini(&o);
}
