/* info.c: what the daemon says about itself: models, health,
 * readiness, version, metrics.  I/O thread. */
#include "server/routes/routes.h"

#include <stdio.h>
#include <string.h>

#include "proto/openai/response.h"
#include "server/base/clock.h"
#include "server/http/http.h"

static struct oai_model describe(const struct routes *rt, const char *name)
{
    return (struct oai_model){ .id = name,
                               .owned_by = "quire",
                               .root = rt->served->root,
                               .created = (int64_t)rt->served->created,
                               .max_model_len = rt->served->max_model_len };
}

void handle_models(struct routes *rt, struct exchange *x)
{
    const struct served *s = rt->served;
    struct oai_model m[SRV_LIST_MAX];
    struct buf o = { 0 };

    for (uint32_t i = 0; i < s->n_names; i++)
        m[i] = describe(rt, s->name[i]);
    oai_write_models(&o, m, *rt->phase == SRV_LOADING ? 0 : s->n_names);
    reply_out(x, 200, CONTENT_JSON, &o);
    buf_fini(&o);
}

void handle_model(struct routes *rt, struct exchange *x)
{
    const struct served *s = rt->served;
    struct buf o = { 0 };
    struct err e;

    for (uint32_t i = 0; i < s->n_names && *rt->phase != SRV_LOADING; i++) {
        if (strcmp(s->name[i], x->path_tail) != 0)
            continue;
        struct oai_model m = describe(rt, s->name[i]);
        oai_write_model(&o, &m);
        reply_out(x, 200, CONTENT_JSON, &o);
        buf_fini(&o);
        return;
    }
    err_set_param(&e, ERR_NOT_FOUND, "model", "the model `%.200s` does not exist", x->path_tail);
    reply_err(x, &e);
}

/* {"status":word} or, with why, {"status":word,"reason":why}. */
static void reply_status(struct exchange *x, int status, const char *word, const char *why)
{
    struct buf o = { 0 };

    BUF_LIT(&o, "{\"status\":");
    json_put_cstring(&o, word);
    if (why) {
        BUF_LIT(&o, ",\"reason\":");
        json_put_cstring(&o, why);
    }
    BUF_LIT(&o, "}");
    if (status == 503)
        reply_header(x, "Retry-After", "5");
    reply_out(x, status, CONTENT_JSON, &o);
    buf_fini(&o);
}

/* Healthy: where the model computes, and why there. */
static void reply_healthy(const struct routes *rt, struct exchange *x)
{
    const struct model_info *m = rt->served->model;
    struct buf o = { 0 };

    BUF_LIT(&o, "{\"status\":\"ok\",\"backend\":");
    json_put_cstring(&o, m->backend);
    if (m->device_note[0]) {
        BUF_LIT(&o, ",\"note\":");
        json_put_cstring(&o, m->device_note);
    }
    BUF_LIT(&o, "}");
    reply_out(x, 200, CONTENT_JSON, &o);
    buf_fini(&o);
}

void handle_health(struct routes *rt, struct exchange *x)
{
    struct engine_snapshot s;
    char why[ERR_MESSAGE_BYTES + 128];
    double stuck;

    if (rt->engine == NULL) {
        reply_status(x, 200, "loading", NULL);
        return;
    }
    engine_snapshot(rt->engine, &s);
    stuck = (double)(srv_now_us() - s.progress_us) / 1e6;
    if (s.fault[0]) {
        snprintf(why, sizeof why, "the last step failed: %s", s.fault);
        reply_status(x, 503, "failing", why);
    } else if (s.busy && stuck > rt->health_timeout_s) {
        snprintf(why, sizeof why,
                 "%u sequences run, %u requests wait, and no step has ended for %.0f s (limit "
                 "%.0f s)",
                 s.sched.n_running, s.sched.n_waiting, stuck, rt->health_timeout_s);
        reply_status(x, 503, "stuck", why);
    } else {
        reply_healthy(rt, x);
    }
}

void handle_ready(struct routes *rt, struct exchange *x)
{
    if (*rt->phase == SRV_LOADING)
        reply_status(x, 503, "loading", "the model is still loading");
    else if (*rt->phase == SRV_DRAINING)
        reply_status(x, 503, "draining", "the server is shutting down");
    else
        reply_status(x, 200, "ready", NULL);
}

void handle_version(struct routes *rt, struct exchange *x)
{
    static const char body[] = "{\"version\":\"" QUIRE_VERSION "\"}";

    (void)rt;
    reply_body(x, 200, CONTENT_JSON, body, sizeof body - 1);
}

void handle_metrics(struct routes *rt, struct exchange *x)
{
    struct buf o = { 0 };

    if (rt->engine == NULL) {
        reply_error(x, 503, NULL, "the model is still loading");
        return;
    }
    rt->metrics(rt->metrics_ctx, &o);
    reply_out(x, 200, PROM_CONTENT_TYPE, &o);
    buf_fini(&o);
}
