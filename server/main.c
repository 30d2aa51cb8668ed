/* main.c: the daemon from its first to its last instruction: options, sockets,
 * loading in the background, the event loop, and an orderly end.  Main thread,
 * which becomes the I/O thread. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "proto/openai/response.h"
#include "server/generate/generate.h"
#include "server/routes/dispatch.h"
#include "server/routes/routes.h"
#include "server/loader.h"
#include "server/server.h"

enum { PING_LOOK_MS = 5000, STUCK_S = 10 };

/* As many open files as the system allows. */
static void raise_file_limit(void)
{
    struct rlimit r;

    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
        r.rlim_cur = r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r);
    }
}

/* ------------------------------------------------------------------ loop */

static void on_events(uv_async_t *a)
{
    struct srv *srv = a->data;

    if (srv->engine == NULL)
        return;
    engine_dispatch(srv->engine, &(struct engine_reader){ srv->gen, gen_event });
}

static void on_ping(uv_timer_t *t)
{
    struct srv *srv = t->data;

    gen_ping(srv->gen);
    admin_tick(&srv->routes);
}

static struct srv *srv_of(struct job *load)
{
    return (struct srv *)((char *)load - offsetof(struct srv, load));
}

static void on_load(struct job *j)
{
    struct srv *srv = srv_of(j);

    srv->load_rc = loader_load(srv, &srv->load_err);
}

static void say_ready(const struct srv *srv)
{
    const struct model_info *m = model_describe(srv->model);

    if (m->device_note[0])
        srv_logf(&srv->log, SRV_INFO, "%s", m->device_note);
    printf("ready: %s serves %s (%s, %s, %u KV blocks of %u tokens, context %u) after %.2f s\n",
           http_server_url(srv->http), srv->served.name[0], m->backend, m->dtype, srv->n_kv_blocks,
           m->layout.block_tokens, srv->served.max_model_len,
           (double)(srv_now_us() - srv->started_us) / 1e6);
    fflush(stdout);
}

static void on_loaded(struct job *j, bool cancelled)
{
    struct srv *srv = srv_of(j);
    struct engine_snapshot s;

    (void)cancelled; /* nobody does */
    if (srv->load_rc != ERR_OK) {
        fprintf(stderr, "quired: %s\n", srv->load_err.message);
        srv->exit_code = 1;
        drain_stop(&srv->drain);
        return;
    }
    srv->engine = srv->loaded_engine;
    generator_set_engine(srv->gen, srv->engine);
    srv->routes.engine = srv->engine;
    srv->routes.pin_budget = srv->pin_budget;
    engine_snapshot(srv->engine, &s);
    srv->n_kv_blocks = (uint32_t)s.pool.n_blocks;
    srv->phase = SRV_SERVING;
    say_ready(srv);
}

/* --------------------------------------------------------------- the end */

static void close_handle(uv_handle_t *h, void *ctx)
{
    (void)ctx;
    if (!uv_is_closing(h))
        uv_close(h, NULL);
}

static void shut(struct srv *srv)
{
    http_server_close(srv->http);
    srv->http = NULL;
    uv_run(&srv->loop, UV_RUN_NOWAIT);
    uv_walk(&srv->loop, close_handle, NULL);
    uv_run(&srv->loop, UV_RUN_DEFAULT);
    engine_destroy(srv->loaded_engine); /* gives back the mails that it has */
    srv->engine = srv->loaded_engine = NULL;
    generator_destroy(srv->gen);
    loader_unload(srv);
    uv_loop_close(&srv->loop);
}

static int fail(const char *what)
{
    fprintf(stderr, "quired: %s\n", what);
    return 1;
}

static enum err_code open_http(struct srv *srv, struct err *e)
{
    const struct srv_options *o = &srv->opt;
    struct http_config cfg = {
        .loop = &srv->loop,
        .log = &srv->log,
        .ids = &srv->ids,
        .max_header_bytes = o->max_header_bytes,
        .max_body_bytes = o->max_body_bytes,
        .max_total_body_bytes = o->max_total_body_bytes,
        .stream_buffer_bytes = o->stream_buffer_bytes,
        .max_connections = (uint32_t)o->max_connections,
        .header_timeout_s = o->header_timeout,
        .body_timeout_s = o->body_timeout,
        .idle_timeout_s = o->idle_timeout,
        .write_timeout_s = o->write_timeout,
        .request_id_headers = o->request_id_headers,
        .app = &srv->routes,
        .head = route_check_head,
        .request = route_dispatch,
        .write_err = oai_write_error,
        .write_status = oai_write_http_error,
    };
    struct http_address at = { o->uds, o->host, (uint16_t)o->port };
    enum err_code rc = http_server_create(&srv->http, &cfg, e);

    return rc ? rc : http_server_listen(srv->http, &at, e);
}

static void on_work_ended(void *ctx)
{
    struct srv *srv = ctx;

    drain_check(&srv->drain);
}

static uint32_t n_left(void *ctx)
{
    const struct srv *srv = ctx;

    return srv->work.n;
}

static bool all_sent(void *ctx)
{
    const struct srv *srv = ctx;

    return http_server_all_sent(srv->http);
}

static void on_drain(void *ctx)
{
    const struct srv *srv = ctx;

    http_server_drain(srv->http);
}

static void cancel_all(void *ctx)
{
    const struct srv *srv = ctx;
    struct err e;

    err_set(&e, ERR_DRAINING, "the server is shutting down");
    gen_cancel(srv->gen, NULL, &e);
}

static int watch_signals(struct srv *srv)
{
    return drain_watch(&srv->drain, &(struct drain_config){ .loop = &srv->loop,
                                                            .log = &srv->log,
                                                            .phase = &srv->phase,
                                                            .timeout_s = srv->opt.shutdown_timeout,
                                                            .stuck_s = STUCK_S,
                                                            .uds = srv->opt.uds,
                                                            .ctx = srv,
                                                            .n_left = n_left,
                                                            .all_sent = all_sent,
                                                            .on_begin = on_drain,
                                                            .cancel_all = cancel_all });
}

static void write_metrics(void *ctx, struct buf *o)
{
    struct srv *srv = ctx;
    struct engine_snapshot s;

    engine_snapshot(srv->engine, &s);
    srv_metrics_refresh(&srv->metrics, &s, http_server_n_connections(srv->http));
    prom_render(o, srv->metrics.serving.registry);
}

static void fill_routes(struct srv *srv)
{
    srv->routes = (struct routes){ .served = &srv->served,
                                   .phase = &srv->phase,
                                   .api_keys = &srv->opt.api_keys,
                                   .admin_keys = &srv->opt.admin_keys,
                                   .gen = srv->gen,
                                   .jobs = &srv->jobs,
                                   .work = &srv->work,
                                   .health_timeout_s = srv->opt.health_timeout,
                                   .step_history = srv->opt.step_history,
                                   .metrics = write_metrics,
                                   .metrics_ctx = srv };
}

/* What requests are worked on with; an exit code. */
static int create_work(struct srv *srv)
{
    struct generator_config c = { .served = &srv->served,
                                  .phase = &srv->phase,
                                  .log = &srv->log,
                                  .metrics = &srv->metrics.serving,
                                  .ids = &srv->ids,
                                  .jobs = &srv->jobs,
                                  .work = &srv->work };
    struct err e;

    srv->work = (struct work_count){ .ended = on_work_ended, .ctx = srv };
    jobs_init(&srv->jobs, &srv->loop, SRV_MAX_JOBS, &srv->work);
    if (generator_create(&srv->gen, &c, &e) != ERR_OK)
        return fail(e.message);
    fill_routes(srv);
    return 0;
}

/* Everything the I/O thread needs; an exit code, 0 when it may run. */
static int set_up(struct srv *srv)
{
    struct err e = { 0 };
    uint64_t key[4];
    int rc;

    if (getrandom(key, sizeof key, 0) != sizeof key)
        return fail("no random numbers");
    srv->served.salt_key = key[0];
    srv->served.seed_key = srv->opt.seed_given ? srv->opt.seed : key[1];
    srv->ids = (struct srv_ids){ .key = key[1], .seed = key[2] };
    srv->hash_seed = key[3];
    rc = create_work(srv);
    if (rc != 0)
        return rc;
    raise_file_limit();
    signal(SIGPIPE, SIG_IGN);
    uv_async_init(&srv->loop, &srv->events, on_events);
    srv->events.data = srv;
    uv_timer_init(&srv->loop, &srv->ping_timer);
    srv->ping_timer.data = srv;
    uv_timer_start(&srv->ping_timer, on_ping, PING_LOOK_MS, PING_LOOK_MS);
    rc = watch_signals(srv);
    if (rc != 0)
        return fail(uv_strerror(rc));
    if (open_http(srv, &e) != ERR_OK)
        return fail(e.message);
    return jobs_submit(&srv->jobs, &srv->load, on_load, on_loaded, &e) ? fail(e.message) : 0;
}

static int serve(struct srv *srv)
{
    int rc = uv_loop_init(&srv->loop);

    if (rc != 0)
        return fail(uv_strerror(rc));
    srv->exit_code = set_up(srv);
    if (srv->exit_code == 0)
        uv_run(&srv->loop, UV_RUN_DEFAULT);
    shut(srv);
    return srv->exit_code;
}

static int plan(struct srv *srv)
{
    struct err e = { 0 };

    return loader_plan(srv, &e) == ERR_OK ? 0 : fail(e.message);
}

int main(int argc, char *argv[])
{
    static struct srv srv;
    struct err e = { 0 };
    int rc;

    srv.started_us = srv_now_us();
    srv.served.created = (int64_t)time(NULL);
    if (srv_options_read(&srv.opt, argc, argv, environ, &e) != ERR_OK) {
        srv_options_fini(&srv.opt);
        fail(e.message);
        return 2;
    }
    srv_log_init(&srv.log, STDERR_FILENO, srv.opt.log_level, srv.opt.log_format);
    for (uint32_t i = 0; i < srv.opt.n_ignored; i++)
        srv_logf(&srv.log, SRV_WARNING, "%s changes nothing here", srv.opt.ignored[i]);
    if (srv.opt.served_names.n == 0 && srv.opt.model)
        srv.opt.served_names.item[srv.opt.served_names.n++] = srv.opt.model;
    srv.served.name = srv.opt.served_names.item;
    srv.served.n_names = srv.opt.served_names.n;
    srv.served.root = srv.opt.model;
    srv.served.stream_interval = (uint32_t)srv.opt.stream_interval;
    srv.served.force_include_usage = srv.opt.force_include_usage;
    srv.served.log_requests = srv.opt.log_requests;
    if (srv.opt.help) {
        srv_options_help(stdout);
        rc = 0;
    } else if (srv.opt.version) {
        puts("quired " QUIRE_VERSION);
        rc = 0;
    } else {
        rc = srv.opt.plan ? plan(&srv) : serve(&srv);
    }
    srv_options_fini(&srv.opt);
    return rc;
}
