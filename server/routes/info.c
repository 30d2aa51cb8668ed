/* info.c: what the daemon says about itself: models, health,
 * readiness, version, metrics.  I/O thread. */
#include "server/routes/routes.h"

#include <stdio.h>
#include <string.h>

#include "proto/openai/response.h"
#include "server/base/clock.h"
#include "server/http/http.h"
#include "server/server.h"

static struct oai_model describe(const struct srv *srv, const char *name)
{
    return (struct oai_model){ .id = name,
                               .owned_by = "quire",
                               .root = srv->opt.model,
                               .created = (int64_t)srv->created,
                               .max_model_len = srv->served.max_model_len };
}

void handle_models(struct srv *srv, struct exchange *x)
{
    const struct srv_list *names = &srv->opt.served_names;
    struct oai_model m[SRV_LIST_MAX];
    struct buf o = { 0 };

    for (uint32_t i = 0; i < names->n; i++)
        m[i] = describe(srv, names->item[i]);
    oai_write_models(&o, m, srv->phase == SRV_LOADING ? 0 : names->n);
    reply_out(x, 200, CONTENT_JSON, &o);
    buf_fini(&o);
}

void handle_model(struct srv *srv, struct exchange *x)
{
    const struct srv_list *names = &srv->opt.served_names;
    struct buf o = { 0 };
    struct err e;

    for (uint32_t i = 0; i < names->n && srv->phase != SRV_LOADING; i++) {
        if (strcmp(names->item[i], x->path_tail) != 0)
            continue;
        struct oai_model m = describe(srv, names->item[i]);
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
static void reply_healthy(const struct srv *srv, struct exchange *x)
{
    const struct model_info *m = srv->served.model;
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

void handle_health(struct srv *srv, struct exchange *x)
{
    struct engine_snapshot s;
    char why[ERR_MESSAGE_BYTES + 128];
    double stuck;

    if (srv->engine == NULL) {
        reply_status(x, 200, "loading", NULL);
        return;
    }
    engine_snapshot(srv->engine, &s);
    stuck = (double)(srv_now_us() - s.progress_us) / 1e6;
    if (s.fault[0]) {
        snprintf(why, sizeof why, "the last step failed: %s", s.fault);
        reply_status(x, 503, "failing", why);
    } else if (s.busy && stuck > srv->opt.health_timeout) {
        snprintf(why, sizeof why,
                 "%u sequences run, %u requests wait, and no step has ended for %.0f s (limit "
                 "%.0f s)",
                 s.sched.n_running, s.sched.n_waiting, stuck, srv->opt.health_timeout);
        reply_status(x, 503, "stuck", why);
    } else {
        reply_healthy(srv, x);
    }
}

void handle_ready(struct srv *srv, struct exchange *x)
{
    if (srv->phase == SRV_LOADING)
        reply_status(x, 503, "loading", "the model is still loading");
    else if (srv->phase == SRV_DRAINING)
        reply_status(x, 503, "draining", "the server is shutting down");
    else
        reply_status(x, 200, "ready", NULL);
}

void handle_version(struct srv *srv, struct exchange *x)
{
    static const char body[] = "{\"version\":\"" QUIRE_VERSION "\"}";

    (void)srv;
    reply_body(x, 200, CONTENT_JSON, body, sizeof body - 1);
}

void handle_metrics(struct srv *srv, struct exchange *x)
{
    struct buf o = { 0 };
    struct engine_snapshot s;

    if (srv->engine == NULL) {
        reply_error(x, 503, NULL, "the model is still loading");
        return;
    }
    engine_snapshot(srv->engine, &s);
    srv_metrics_refresh(&srv->metrics, &s, http_server_n_connections(srv->http));
    prom_render(&o, srv->metrics.serving.registry);
    reply_out(x, 200, PROM_CONTENT_TYPE, &o);
    buf_fini(&o);
}
