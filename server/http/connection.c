/* connection.c: the receiving half of a connection: bytes into the parser, the
 * deadline of each state, requests handed to the application one at a time.  The
 * thread of the loop. */
#include "server/http/connection.h"

#include <ctype.h>
#include <string.h>

#include "server/base/clock.h"

enum {
    EARLY_REFUSAL_BYTES = 64 * 1024,       /* bodies beyond are asked about at their head  */
    DISCARDED_BYTES_MAX = 64 * 1024 * 1024 /* sent by a client after its last request      */
};

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
        conn_drop(c);
        break;
    case CONN_BUSY:
    case CONN_DONE:
    case CONN_LINGER:
    case CONN_CLOSED:
        break;
    }
}

/* Enter a state and start its absolute deadline. */
static void set_state(struct conn *c, enum conn_state state)
{
    const struct http_config *cfg = &c->server->cfg;
    double s = state == CONN_IDLE   ? cfg->idle_timeout_s
               : state == CONN_HEAD ? cfg->header_timeout_s
               : state == CONN_BODY ? cfg->body_timeout_s
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
    x->app = c->server->cfg.app;
    x->conn = c;
    x->peer = c->peer;
    x->path = x->query = x->path_tail = "";
}

/* The reply has ended: ready for the next request. */
static void next_exchange(struct conn *c)
{
    http_parser_next(&c->http);
    begin_exchange(c);
    set_state(c, CONN_IDLE);
}

/* ----------------------------------------------------------------- input */

/* Keep bytes for later; false when memory is short. */
static bool stash(struct conn *c, const char *data, size_t n)
{
    buf_put(&c->in, data, n);
    return !c->in.failed;
}

/* Echo the client's request id where it is printable, else make one. */
static void name_request(struct exchange *x)
{
    size_t n;
    const char *v = http_field(x, "x-request-id", &n);
    bool ok = v && n > 0 && n <= REQUEST_ID_BYTES;

    for (size_t i = 0; ok && i < n; i++)
        ok = isgraph((unsigned char)v[i]);
    if (ok) {
        memcpy(x->request_id, v, n);
        x->request_id[n] = '\0';
    } else {
        srv_new_id(x->conn->server->cfg.ids, "req-", x->request_id, sizeof x->request_id);
    }
}

/* The head is complete.  False: answered, and the body is not wanted. */
static bool take_head(struct conn *c)
{
    const struct http_config *cfg = &c->server->cfg;
    bool keep_alive = c->http.keep_alive;

    c->x.method = c->http.method;
    c->x.path = c->http.path;
    c->x.query = c->http.query;
    name_request(&c->x);
    if (c->http.expects_continue || c->http.body_length > EARLY_REFUSAL_BYTES) {
        c->http.keep_alive = false; /* of a refusal, as the body would follow it */
        if (!cfg->head(cfg->app, &c->x)) {
            if (c->state == CONN_BODY) /* its answer comes later */
                set_state(c, CONN_BUSY);
            return false;
        }
        c->http.keep_alive = keep_alive;
    } /* else it is cheaper to take the body and keep the connection */
    if (c->http.expects_continue)
        conn_write(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    return true;
}

/* The request's first byte was read. */
static void begin_request(struct conn *c)
{
    c->x.began_us = srv_now_us();
    set_state(c, CONN_HEAD);
}

/* One parser event; false when the rest must wait. */
static bool take_event(struct conn *c, enum parse_event ev)
{
    if (c->state == CONN_IDLE && (c->http.started || ev == PARSE_BAD))
        begin_request(c);
    switch (ev) {
    case PARSE_MORE:
        return false;
    case PARSE_HEAD:
        set_state(c, CONN_BODY);
        return take_head(c);
    case PARSE_MESSAGE:
        set_state(c, CONN_BUSY);
        c->server->cfg.request(c->server->cfg.app, &c->x);
        return true;
    case PARSE_BAD:
        set_state(c, CONN_BUSY);
        c->http.keep_alive = false;
        reply_error(&c->x, c->http.status, NULL, c->http.problem);
        return false;
    }
    return false;
}

/* Whether bytes may be parsed now; goes on to the next request where it may. */
static bool may_parse(struct conn *c)
{
    if (c->state == CONN_DONE && !c->close_when_sent && conn_unsent(c) <= UNSENT_BYTES)
        next_exchange(c);
    return c->state == CONN_IDLE || c->state == CONN_HEAD || c->state == CONN_BODY;
}

static void on_alloc(uv_handle_t *h, size_t hint, uv_buf_t *buf)
{
    struct conn *c = h->data;

    (void)hint; /* shared: libuv fills it and calls on_read before the next */
    *buf = uv_buf_init(c->server->read_buf, sizeof c->server->read_buf);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf);

static void resume_reading(struct conn *c)
{
    if (c->read_paused && c->in.n < STASH_BYTES && c->state != CONN_CLOSED) {
        c->read_paused = false;
        if (uv_read_start(&c->u.stream, on_alloc, on_read) != 0)
            conn_drop(c);
    }
}

static void pause_reading(struct conn *c)
{
    if (c->in.n >= STASH_BYTES && !c->read_paused) {
        c->read_paused = true;
        uv_read_stop(&c->u.stream);
    }
}

/* Drop the first n stashed bytes. */
static void unstash(struct conn *c, size_t n)
{
    memmove(c->in.p, c->in.p + n, c->in.n - n);
    c->in.n -= n;
    if (c->in.n == 0)
        buf_fini(&c->in);
}

/* Parse stashed bytes and data[0..n) behind them, until they are used up or a
 * request is being answered. */
static void advance(struct conn *c, const char *data, size_t n)
{
    bool from_stash = c->in.n > 0;
    size_t at = 0;

    if (from_stash) {
        if (!stash(c, data, n)) {
            conn_drop(c);
            return;
        }
        data = c->in.p;
        n = c->in.n;
    }
    while (may_parse(c)) {
        size_t used;
        enum parse_event ev = http_parser_feed(&c->http, data + at, n - at, &used);
        at += used;
        if (!take_event(c, ev))
            break;
    }
    if (c->state == CONN_CLOSED || c->close_when_sent)
        return; /* nothing more is read from this client */
    if (from_stash) {
        unstash(c, at);
    } else if (at < n && !stash(c, data + at, n - at)) {
        conn_drop(c);
        return;
    }
    resume_reading(c);
}

static void on_eof(struct conn *c)
{
    c->read_eof = true;
    if (c->state == CONN_LINGER || (c->state == CONN_IDLE && conn_unsent(c) == 0))
        conn_drop(c);
    else if (c->state == CONN_DONE || c->state == CONN_IDLE)
        conn_close_when_sent(c); /* let the complete reply go out */
    else
        conn_drop(c);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    struct conn *c = s->data;

    if (n == 0 || c->state == CONN_CLOSED)
        return;
    if (n == UV_EOF) {
        on_eof(c);
    } else if (n < 0) {
        conn_drop(c);
    } else if (c->state == CONN_LINGER || c->close_when_sent) {
        c->discarded += (uint64_t)n;
        if (c->discarded > DISCARDED_BYTES_MAX)
            conn_drop(c);
    } else if (c->state == CONN_BUSY || c->state == CONN_DONE) {
        if (!stash(c, buf->base, (size_t)n))
            conn_drop(c);
        else
            pause_reading(c);
    } else {
        advance(c, buf->base, (size_t)n);
    }
}

void conn_flush_all(struct http_server *s)
{
    while (s->dirty) {
        struct conn *c = s->dirty;
        s->dirty = c->next_dirty;
        c->dirty = false;
        conn_flush(c);
        if (c->state == CONN_DONE && may_parse(c))
            advance(c, NULL, 0);
    }
}

/* -------------------------------------------------------------- creation */

struct conn *conn_new(struct http_server *s)
{
    struct conn *c = calloc(1, sizeof *c);

    if (c == NULL)
        return NULL;
    c->server = s;
    s->n_users++;
    http_parser_init(&c->http, &(struct http_limits){ s->cfg.max_header_bytes,
                                                      s->cfg.max_body_bytes, &s->bodies });
    uv_timer_init(s->cfg.loop, &c->deadline);
    uv_timer_init(s->cfg.loop, &c->stall);
    c->u.handle.data = c->deadline.data = c->stall.data = c;
    c->n_handles = 3;
    c->next = s->conns;
    if (c->next)
        c->next->prev = c;
    s->conns = c;
    s->n_conns++;
    return c;
}

void conn_start(struct conn *c, enum http_peer peer)
{
    c->u.handle.data = c;
    c->peer = peer;
    c->number = ++c->server->n_opened;
    srv_logf(c->server->cfg.log, SRV_DEBUG, "connection %llu opened, %u open",
             (unsigned long long)c->number, c->server->n_conns);
    begin_exchange(c);
    set_state(c, CONN_IDLE);
    if (uv_read_start(&c->u.stream, on_alloc, on_read) != 0)
        conn_drop(c);
}
