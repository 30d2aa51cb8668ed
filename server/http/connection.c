/* connection.c: one client's socket: reading into the parser, the deadlines of
 * each state, buffered output.  Owns its struct until the last handle closed.
 * I/O thread. */
#include "server/http/connection.h"

#include <stdlib.h>
#include <string.h>

#include "server/http/reply.h"
#include "server/http/router.h"
#include "server/server.h"

enum {
    STASH_BYTES = 64 * 1024,        /* pipelined bytes that wait for their turn */
    LINGER_MS = 2000,               /* for the client to read a last reply      */
    LINGER_BYTES = 64 * 1024 * 1024 /* sent by it meanwhile, thrown away        */
};

static void advance(struct conn *c, const char *data, size_t n);
static void set_state(struct conn *c, enum conn_state state);
static void resume_reading(struct conn *c);

/* --------------------------------------------------------------- closing */

static void on_handle_closed(uv_handle_t *h)
{
    struct conn *c = h->data;
    struct srv *srv = c->srv;

    if (--c->n_handles > 0)
        return;
    if (c->prev)
        c->prev->next = c->next;
    else
        srv->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    srv->n_conns--;
    http_parser_fini(&c->http);
    buf_fini(&c->pending);
    buf_fini(&c->in_flight);
    free(c->in);
    free(c);
}

static void tell_gone(struct conn *c)
{
    void (*gone)(struct exchange *, void *) = c->x.gone;

    c->x.gone = NULL;
    if (gone)
        gone(&c->x, c->x.user);
}

void conn_drop(struct conn *c)
{
    if (c->state == CONN_CLOSED)
        return;
    c->state = CONN_CLOSED;
    tell_gone(c);
    if (c->dirty) { /* leave the list of those with output */
        for (struct conn **p = &c->srv->dirty; *p; p = &(*p)->next_dirty)
            if (*p == c) {
                *p = c->next_dirty;
                break;
            }
        c->dirty = false;
    }
    uv_close(&c->u.handle, on_handle_closed);
    uv_close((uv_handle_t *)&c->deadline, on_handle_closed);
    uv_close((uv_handle_t *)&c->stall, on_handle_closed);
}

static void on_shutdown(uv_shutdown_t *req, int status)
{
    struct conn *c = req->handle->data;

    if (c->state != CONN_CLOSED && (status < 0 || c->read_eof))
        conn_drop(c);
}

/* Everything was sent and nothing more comes from us: say so, and give the
 * client time to read it; closing at once could destroy the reply on its way. */
static void linger(struct conn *c)
{
    set_state(c, CONN_LINGER);
    if (uv_shutdown(&c->shutdown, &c->u.stream, on_shutdown) != 0)
        conn_drop(c);
}

/* --------------------------------------------------------------- output */

size_t conn_unsent(const struct conn *c)
{
    return c->pending.n + (c->writing ? c->u.stream.write_queue_size : 0);
}

static void flush(struct conn *c);

static void on_written(uv_write_t *req, int status)
{
    struct conn *c = req->handle->data;

    c->writing = false;
    if (c->state == CONN_CLOSED)
        return;
    uv_timer_stop(&c->stall);
    buf_reset(&c->in_flight);
    if (status < 0)
        conn_drop(c);
    else
        flush(c);
}

static void on_stall(uv_timer_t *t)
{
    struct conn *c = t->data;
    size_t left = c->u.stream.write_queue_size;

    if (left < c->last_left) { /* slow, but reading */
        c->last_left = left;
        uv_timer_start(t, on_stall, (uint64_t)(c->srv->opt.write_timeout * 1e3), 0);
        return;
    }
    srv_logf(&c->srv->log, SRV_INFO, "a client read nothing for %g s: dropped (%zu bytes unsent)",
             c->srv->opt.write_timeout, conn_unsent(c));
    conn_drop(c);
}

/* Hand the pending output to the socket. */
static void flush(struct conn *c)
{
    if (c->writing || c->state == CONN_CLOSED)
        return;
    if (c->pending.failed) {
        conn_drop(c);
        return;
    }
    if (c->pending.n > 0) {
        uv_buf_t buf = uv_buf_init(c->pending.p, (unsigned)c->pending.n);
        int sent = uv_try_write(&c->u.stream, &buf, 1);
        if (sent < 0 && sent != UV_EAGAIN) {
            conn_drop(c);
            return;
        }
        if (sent < (int)c->pending.n) {
            struct buf spare = c->in_flight;
            size_t from = sent > 0 ? (size_t)sent : 0;
            c->in_flight = c->pending;
            c->pending = spare;
            buf = uv_buf_init(c->in_flight.p + from, (unsigned)(c->in_flight.n - from));
            c->writing = true;
            c->last_left = c->in_flight.n - from;
            uv_timer_start(&c->stall, on_stall, (uint64_t)(c->srv->opt.write_timeout * 1e3), 0);
            if (uv_write(&c->write, &c->u.stream, &buf, 1, on_written) != 0) {
                c->writing = false;
                conn_drop(c);
            }
            return;
        }
        buf_reset(&c->pending);
        if (c->pending.cap > STASH_BYTES) /* a large reply went out */
            buf_fini(&c->pending);
    }
    if (c->close_when_sent && c->state != CONN_LINGER)
        linger(c);
}

static void mark_dirty(struct conn *c)
{
    if (c->dirty || c->state == CONN_CLOSED)
        return;
    c->dirty = true;
    c->next_dirty = c->srv->dirty;
    c->srv->dirty = c;
}

void conn_write(struct conn *c, const char *data, size_t n)
{
    buf_put(&c->pending, data, n);
    mark_dirty(c);
}

void conn_flush_dirty(struct srv *srv)
{
    while (srv->dirty) {
        struct conn *c = srv->dirty;
        srv->dirty = c->next_dirty;
        c->dirty = false;
        flush(c);
    }
}

/* ---------------------------------------------------------------- states */

static void on_deadline(uv_timer_t *t)
{
    struct conn *c = t->data;

    switch (c->state) {
    case CONN_HEAD:
    case CONN_BODY:
        c->state = CONN_BUSY;
        c->http.keep_alive = false;
        reply_error(&c->x, 408, "request_timeout",
                    "the request did not arrive within the time this server waits");
        break;
    case CONN_IDLE:
    case CONN_LINGER:
        conn_drop(c);
        break;
    case CONN_BUSY:
    case CONN_CLOSED:
        break;
    }
}

/* Enter a state and start its absolute deadline. */
static void set_state(struct conn *c, enum conn_state state)
{
    const struct srv_options *o = &c->srv->opt;
    double s = state == CONN_IDLE     ? o->idle_timeout
               : state == CONN_HEAD   ? o->header_timeout
               : state == CONN_BODY   ? o->body_timeout
               : state == CONN_LINGER ? LINGER_MS / 1e3
                                      : 0;

    c->state = state;
    if (s > 0)
        uv_timer_start(&c->deadline, on_deadline, (uint64_t)(s * 1e3), 0);
    else
        uv_timer_stop(&c->deadline);
}

static void begin_exchange(struct conn *c)
{
    struct exchange *x = &c->x;

    memset(x, 0, sizeof *x);
    x->srv = c->srv;
    x->conn = c;
    x->http = &c->http;
    x->began_us = srv_now_us();
}

void conn_exchange_done(struct conn *c, bool keep_alive)
{
    if (c->state == CONN_CLOSED)
        return;
    c->x.gone = NULL;
    if (!keep_alive || c->srv->phase == SRV_DRAINING || c->close_when_sent || c->read_eof) {
        c->close_when_sent = true;
        c->n_in = 0;
        mark_dirty(c);
        return;
    }
    http_parser_next(&c->http);
    begin_exchange(c);
    set_state(c, CONN_IDLE);
    if (!c->advancing)
        advance(c, NULL, 0);
}

/* ----------------------------------------------------------------- input */

/* Keep bytes for later; false when memory is short. */
static bool stash(struct conn *c, const char *data, size_t n)
{
    if (c->cap_in - c->n_in < n) {
        char *p = realloc(c->in, c->n_in + n);
        if (p == NULL)
            return false;
        c->in = p;
        c->cap_in = c->n_in + n;
    }
    if (n > 0)
        memcpy(c->in + c->n_in, data, n);
    c->n_in += n;
    return true;
}

static void refuse_input(struct conn *c)
{
    c->state = CONN_BUSY;
    c->http.keep_alive = false;
    reply_error(&c->x, c->http.status, NULL, c->http.problem);
}

/* One parser event; false when the rest must wait. */
static bool take_event(struct conn *c, enum parse_event ev)
{
    switch (ev) {
    case PARSE_MORE:
        if (c->state == CONN_IDLE && c->http.started)
            set_state(c, CONN_HEAD);
        return false;
    case PARSE_HEAD:
        set_state(c, CONN_BODY);
        if (!router_check_head(c->srv, &c->x)) { /* answered: the body is not wanted */
            if (c->state == CONN_BODY)
                c->state = CONN_BUSY;
            return false;
        }
        if (c->http.expects_continue)
            conn_write(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
        return true;
    case PARSE_MESSAGE:
        set_state(c, CONN_BUSY);
        router_dispatch(c->srv, &c->x);
        return true;
    case PARSE_BAD:
        refuse_input(c);
        return false;
    }
    return false;
}

/* Parse stashed bytes, or data[0..n) when nothing is stashed, until they are
 * used up or a request is being answered. */
static void advance(struct conn *c, const char *data, size_t n)
{
    bool from_stash = c->n_in > 0;
    size_t at = 0;

    if (from_stash) {
        if (!stash(c, data, n)) {
            conn_drop(c);
            return;
        }
        data = c->in;
        n = c->n_in;
    }
    c->advancing = true;
    while (c->state == CONN_IDLE || c->state == CONN_HEAD || c->state == CONN_BODY) {
        size_t used;
        enum parse_event ev = http_parser_feed(&c->http, data + at, n - at, &used);
        at += used;
        if (!take_event(c, ev))
            break;
    }
    c->advancing = false;
    if (c->state == CONN_CLOSED)
        return;
    if (c->close_when_sent)
        at = n; /* nothing more is read from this client */
    if (from_stash) {
        memmove(c->in, c->in + at, n - at);
        c->n_in = n - at;
        if (c->n_in == 0) {
            free(c->in);
            c->in = NULL;
            c->cap_in = 0;
        }
    } else if (at < n && !stash(c, data + at, n - at)) {
        conn_drop(c);
        return;
    }
    resume_reading(c);
}

static void on_alloc(uv_handle_t *h, size_t hint, uv_buf_t *buf)
{
    struct conn *c = h->data;

    (void)hint; /* shared: libuv fills it and calls on_read before the next */
    *buf = uv_buf_init(c->srv->read_buf, sizeof c->srv->read_buf);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf);

static void resume_reading(struct conn *c)
{
    if (c->read_paused && c->n_in < STASH_BYTES && c->state != CONN_CLOSED) {
        c->read_paused = false;
        if (uv_read_start(&c->u.stream, on_alloc, on_read) != 0)
            conn_drop(c);
    }
}

static void on_eof(struct conn *c)
{
    c->read_eof = true;
    if (c->state == CONN_BUSY && c->close_when_sent)
        return; /* the reply is complete; let it go out */
    if (c->state == CONN_IDLE && (c->pending.n > 0 || c->writing)) {
        c->close_when_sent = true;
        mark_dirty(c);
        return;
    }
    conn_drop(c);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    struct conn *c = s->data;

    if (n == 0 || c->state == CONN_CLOSED)
        return;
    if (n == UV_EOF) {
        on_eof(c);
        return;
    }
    if (n < 0) {
        conn_drop(c);
        return;
    }
    if (c->state == CONN_LINGER || c->close_when_sent) {
        c->discarded += (uint64_t)n;
        if (c->discarded > LINGER_BYTES)
            conn_drop(c);
        return;
    }
    if (c->state == CONN_BUSY) {
        if (!stash(c, buf->base, (size_t)n))
            conn_drop(c);
        else if (c->n_in >= STASH_BYTES) {
            c->read_paused = true;
            uv_read_stop(s);
        }
        return;
    }
    advance(c, buf->base, (size_t)n);
}

/* -------------------------------------------------------------- creation */

struct conn *conn_new(struct srv *srv)
{
    struct conn *c = calloc(1, sizeof *c);

    if (c == NULL)
        return NULL;
    c->srv = srv;
    http_parser_init(&c->http, &(struct http_limits){ srv->opt.max_header_bytes,
                                                      srv->opt.max_body_bytes, &srv->bodies });
    uv_timer_init(&srv->loop, &c->deadline);
    uv_timer_init(&srv->loop, &c->stall);
    c->deadline.data = c->stall.data = c;
    c->n_handles = 3;
    c->next = srv->conns;
    if (c->next)
        c->next->prev = c;
    srv->conns = c;
    srv->n_conns++;
    return c;
}

void conn_start(struct conn *c, bool local, bool is_pipe)
{
    c->u.handle.data = c;
    c->local = local;
    c->is_pipe = is_pipe;
    begin_exchange(c);
    set_state(c, CONN_IDLE);
    if (uv_read_start(&c->u.stream, on_alloc, on_read) != 0)
        conn_drop(c);
}
