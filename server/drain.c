/* drain.c: signals and the way out.  The thread of the loop. */
#include "server/drain.h"

#include <signal.h>
#include <unistd.h>

#include "server/base/clock.h"

enum { FLUSH_LOOK_MS = 10, FLUSH_LIMIT_MS = 2000 };

void drain_stop(struct drain *d)
{
    uv_timer_stop(&d->timer);
    uv_stop(d->cfg.loop);
}

static void on_flush_look(uv_timer_t *t)
{
    struct drain *d = t->data;

    if (d->cfg.all_sent(d->cfg.ctx) || srv_now_us() > d->flush_until_us)
        drain_stop(d);
}

void drain_check(struct drain *d)
{
    if (*d->cfg.phase != SRV_DRAINING || d->cfg.n_left(d->cfg.ctx) > 0 || d->flush_until_us)
        return;
    d->flush_until_us = srv_now_us() + (uint64_t)FLUSH_LIMIT_MS * 1000;
    uv_timer_start(&d->timer, on_flush_look, FLUSH_LOOK_MS, FLUSH_LOOK_MS);
}

static void on_stuck(uv_timer_t *t)
{
    struct drain *d = t->data;

    srv_logf(d->cfg.log, SRV_ERROR, "%u requests did not end after being cancelled: exiting",
             d->cfg.n_left(d->cfg.ctx));
    _exit(1);
}

static void on_timeout(uv_timer_t *t)
{
    struct drain *d = t->data;

    srv_logf(d->cfg.log, SRV_WARNING, "%u requests still run after %g s: cancelled",
             d->cfg.n_left(d->cfg.ctx), d->cfg.timeout_s);
    uv_timer_start(t, on_stuck, (uint64_t)(d->cfg.stuck_s * 1e3), 0);
    d->cfg.cancel_all(d->cfg.ctx);
}

void drain_begin(struct drain *d)
{
    if (*d->cfg.phase == SRV_LOADING) {
        srv_logf(d->cfg.log, SRV_INFO, "stopped while loading");
        if (d->cfg.uds)
            unlink(d->cfg.uds);
        _exit(0); /* nothing is being served; the loader cannot be interrupted */
    }
    if (*d->cfg.phase == SRV_DRAINING) {
        srv_logf(d->cfg.log, SRV_WARNING, "second signal: exiting at once");
        _exit(1);
    }
    *d->cfg.phase = SRV_DRAINING;
    d->cfg.on_begin(d->cfg.ctx);
    srv_logf(d->cfg.log, SRV_INFO, "draining: %u requests have %g s to finish",
             d->cfg.n_left(d->cfg.ctx), d->cfg.timeout_s);
    uv_timer_start(&d->timer, on_timeout, (uint64_t)(d->cfg.timeout_s * 1e3), 0);
    drain_check(d);
}

static void on_signal(uv_signal_t *s, int number)
{
    (void)number;
    drain_begin(s->data);
}

int drain_watch(struct drain *d, const struct drain_config *cfg)
{
    int rc;

    *d = (struct drain){ .cfg = *cfg };
    rc = uv_timer_init(cfg->loop, &d->timer);
    rc = rc ? rc : uv_signal_init(cfg->loop, &d->sigterm);
    rc = rc ? rc : uv_signal_init(cfg->loop, &d->sigint);
    d->timer.data = d->sigterm.data = d->sigint.data = d;
    rc = rc ? rc : uv_signal_start(&d->sigterm, on_signal, SIGTERM);
    return rc ? rc : uv_signal_start(&d->sigint, on_signal, SIGINT);
}
