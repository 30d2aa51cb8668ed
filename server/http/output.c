/* output.c: the sending half of a connection: output gathered until the loop comes
 * round, the write timeout, the last reply's way out, closing.  The thread of the
 * loop. */
#include "server/http/connection.h"

enum { LINGER_MS = 2000 }; /* for the client to read a last reply */

static uint64_t ms(double seconds)
{
    return (uint64_t)(seconds * 1e3);
}

/* --------------------------------------------------------------- closing */

static void on_handle_closed(uv_handle_t *h)
{
    struct conn *c = h->data;
    struct http_server *s = c->server;

    if (--c->n_handles > 0)
        return;
    if (c->prev)
        c->prev->next = c->next;
    else
        s->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    s->n_conns--;
    if (c->number > 0)
        srv_logf(s->cfg.log, SRV_DEBUG, "connection %llu closed, %u open",
                 (unsigned long long)c->number, s->n_conns);
    http_parser_fini(&c->http);
    buf_fini(&c->pending);
    buf_fini(&c->in_flight);
    buf_fini(&c->in);
    free(c);
    http_server_release(s);
}

static void tell_gone(struct conn *c)
{
    void (*gone)(struct exchange *, void *) = c->x.gone;

    c->x.gone = NULL;
    if (gone)
        gone(&c->x, c->x.user);
}

static void mark_dirty(struct conn *c)
{
    if (c->dirty || c->state == CONN_CLOSED)
        return;
    c->dirty = true;
    c->next_dirty = c->server->dirty;
    c->server->dirty = c;
}

static void unmark_dirty(struct conn *c)
{
    struct conn **p = &c->server->dirty;

    if (!c->dirty)
        return;
    while (*p != c)
        p = &(*p)->next_dirty;
    *p = c->next_dirty;
    c->dirty = false;
}

void conn_drop(struct conn *c)
{
    if (c->state == CONN_CLOSED)
        return;
    c->state = CONN_CLOSED;
    tell_gone(c);
    unmark_dirty(c);
    uv_close(&c->u.handle, on_handle_closed);
    uv_close((uv_handle_t *)&c->deadline, on_handle_closed);
    uv_close((uv_handle_t *)&c->stall, on_handle_closed);
}

static void on_linger_end(uv_timer_t *t)
{
    conn_drop(t->data);
}

static void on_shutdown(uv_shutdown_t *req, int status)
{
    struct conn *c = req->handle->data;

    if (c->state != CONN_CLOSED && (status < 0 || c->read_eof))
        conn_drop(c);
}

/* Everything was sent and nothing more comes from us: say so, and give the client
 * time to read it; closing at once could destroy the reply on its way. */
static void linger(struct conn *c)
{
    c->state = CONN_LINGER;
    uv_timer_start(&c->deadline, on_linger_end, LINGER_MS, 0);
    if (uv_shutdown(&c->shutdown, &c->u.stream, on_shutdown) != 0)
        conn_drop(c);
}

/* --------------------------------------------------------------- sending */

size_t conn_unsent(const struct conn *c)
{
    return c->pending.n + (c->writing ? c->u.stream.write_queue_size : 0);
}

static void on_written(uv_write_t *req, int status)
{
    struct conn *c = req->handle->data;

    c->writing = false;
    if (c->state == CONN_CLOSED)
        return;
    uv_timer_stop(&c->stall);
    buf_reset(&c->in_flight);
    if (status < 0) {
        conn_drop(c);
        return;
    }
    conn_flush(c);
    if (c->state == CONN_DONE) /* its next request may have waited for this */
        mark_dirty(c);
}

static void on_stall(uv_timer_t *t)
{
    struct conn *c = t->data;
    const struct http_config *cfg = &c->server->cfg;
    size_t left = c->u.stream.write_queue_size;

    if (left < c->last_left) { /* slow, but reading */
        c->last_left = left;
        uv_timer_start(t, on_stall, ms(cfg->write_timeout_s), 0);
        return;
    }
    srv_logf(cfg->log, SRV_INFO, "a client read nothing for %g s: dropped (%zu bytes unsent)",
             cfg->write_timeout_s, conn_unsent(c));
    conn_drop(c);
}

/* Write what the socket did not take at once, from a byte of it on. */
static void write_rest(struct conn *c, size_t from)
{
    struct buf spare = c->in_flight;
    uv_buf_t rest;

    c->in_flight = c->pending;
    c->pending = spare;
    rest = uv_buf_init(c->in_flight.p + from, (unsigned)(c->in_flight.n - from));
    c->writing = true;
    c->last_left = c->in_flight.n - from;
    uv_timer_start(&c->stall, on_stall, ms(c->server->cfg.write_timeout_s), 0);
    if (uv_write(&c->write, &c->u.stream, &rest, 1, on_written) != 0) {
        c->writing = false;
        conn_drop(c);
    }
}

void conn_flush(struct conn *c)
{
    if (c->writing || c->state == CONN_CLOSED)
        return;
    if (c->pending.failed) {
        conn_drop(c);
        return;
    }
    if (c->pending.n > 0) {
        uv_buf_t all = uv_buf_init(c->pending.p, (unsigned)c->pending.n);
        int sent = uv_try_write(&c->u.stream, &all, 1);
        if (sent < 0 && sent != UV_EAGAIN) {
            conn_drop(c);
            return;
        }
        if (sent < (int)c->pending.n) {
            write_rest(c, sent > 0 ? (size_t)sent : 0);
            return;
        }
        buf_reset(&c->pending);
        if (c->pending.cap > UNSENT_BYTES) /* a large reply went out */
            buf_fini(&c->pending);
    }
    if (c->close_when_sent && c->state != CONN_LINGER)
        linger(c);
}

void conn_write(struct conn *c, const char *data, size_t n)
{
    buf_put(&c->pending, data, n);
    mark_dirty(c);
}

void conn_close_when_sent(struct conn *c)
{
    c->close_when_sent = true;
    buf_reset(&c->in);
    mark_dirty(c);
}

void conn_end_exchange(struct conn *c, bool keep_alive)
{
    if (c->state == CONN_CLOSED)
        return;
    c->x.gone = NULL;
    c->state = CONN_DONE;
    uv_timer_stop(&c->deadline);
    if (!keep_alive || c->server->draining || c->read_eof) {
        http_parser_next(&c->http); /* no request follows, but its body's memory is free */
        conn_close_when_sent(c);
    } else {
        mark_dirty(c);
    }
}
