/* drain.c: signals and the way out.  I/O thread. */
#include "server/drain.h"

#include <unistd.h>

#include "server/generate/generate.h"
#include "server/server.h"

enum { FLUSH_LOOK_MS = 10, FLUSH_LIMIT_MS = 2000, STUCK_MS = 10000 };

static void stop(struct srv *srv)
{
    srv->stopping = true;
    uv_timer_stop(&srv->drain_timer);
    uv_stop(&srv->loop);
}

static void on_flush_look(uv_timer_t *t)
{
    struct srv *srv = t->data;

    if (http_server_all_sent(srv->http) || srv_now_us() > srv->flush_until_us)
        stop(srv);
}

void drain_check(struct srv *srv)
{
    if (srv->phase != SRV_DRAINING || srv->work.n > 0 || srv->flush_until_us)
        return;
    srv->flush_until_us = srv_now_us() + FLUSH_LIMIT_MS * 1000;
    uv_timer_start(&srv->drain_timer, on_flush_look, FLUSH_LOOK_MS, FLUSH_LOOK_MS);
}

static void on_stuck(uv_timer_t *t)
{
    struct srv *srv = t->data;

    srv_logf(&srv->log, SRV_ERROR, "%u requests did not end after being cancelled: exiting",
             srv->work.n);
    _exit(1);
}

/* Time is up: cancel what still runs. */
static void on_timeout(uv_timer_t *t)
{
    struct srv *srv = t->data;
    struct err e;

    srv_logf(&srv->log, SRV_WARNING, "%u requests still run after %g s: cancelled", srv->work.n,
             srv->opt.shutdown_timeout);
    err_set(&e, ERR_DRAINING, "the server is shutting down");
    uv_timer_start(t, on_stuck, STUCK_MS, 0);
    gen_cancel_all(srv->gen, &e);
}

void drain_begin(struct srv *srv)
{
    if (srv->phase == SRV_LOADING) {
        srv_logf(&srv->log, SRV_INFO, "stopped while loading");
        if (srv->opt.uds)
            unlink(srv->opt.uds);
        _exit(0); /* nothing is being served; the loader cannot be interrupted */
    }
    if (srv->phase == SRV_DRAINING) {
        srv_logf(&srv->log, SRV_WARNING, "second signal: exiting at once");
        _exit(1);
    }
    srv->phase = SRV_DRAINING;
    http_server_drain(srv->http);
    srv_logf(&srv->log, SRV_INFO, "draining: %u requests have %g s to finish", srv->work.n,
             srv->opt.shutdown_timeout);
    uv_timer_start(&srv->drain_timer, on_timeout, (uint64_t)(srv->opt.shutdown_timeout * 1e3), 0);
    drain_check(srv);
}

static void on_signal(uv_signal_t *s, int number)
{
    (void)number;
    drain_begin(s->data);
}

int drain_watch(struct srv *srv)
{
    int rc = uv_timer_init(&srv->loop, &srv->drain_timer);

    srv->drain_timer.data = srv->sigterm.data = srv->sigint.data = srv;
    rc = rc ? rc : uv_signal_init(&srv->loop, &srv->sigterm);
    rc = rc ? rc : uv_signal_init(&srv->loop, &srv->sigint);
    srv->drain_timer.data = srv->sigterm.data = srv->sigint.data = srv;
    rc = rc ? rc : uv_signal_start(&srv->sigterm, on_signal, SIGTERM);
    return rc ? rc : uv_signal_start(&srv->sigint, on_signal, SIGINT);
}

void drain_abort(struct srv *srv, int exit_code)
{
    srv->exit_code = exit_code;
    stop(srv);
}
