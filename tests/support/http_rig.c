/* http_rig.c: the echoing application, its clients and its loop. */
#include "support/http_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "support/test.h"

enum { TURNS = 12, WAITS = 4000, TICK_MS = 5 };

/* ----------------------------------------------------------- application */

static void on_gone(struct exchange *x, void *user)
{
    struct rig *r = user;

    r->n_gone++;
    for (uint32_t i = 0; i < RIG_HELD; i++)
        if (r->held[i] == x)
            r->held[i] = NULL;
}

static void reply_big(struct exchange *x)
{
    size_t n = strtoul(x->query, NULL, 10);
    char *body = malloc(n + 1);

    assert_non_null(body);
    for (size_t i = 0; i < n; i++)
        body[i] = (char)('a' + i % 26);
    reply_body(x, 200, CONTENT_TEXT, body, n);
    free(body);
}

static void reply_stream(struct exchange *x, const char *body, size_t n)
{
    reply_stream_begin(x, "text/event-stream");
    for (size_t i = 0; i < n; i++)
        if (!reply_stream_data(x, body + i, 1))
            return;
    reply_stream_end(x);
}

static bool on_head(void *app, struct exchange *x)
{
    struct rig *r = app;

    assert_ptr_equal(x->app, app);
    r->n_heads++;
    if (strcmp(x->path, "/refuse") != 0)
        return true;
    reply_error(x, 403, NULL, "refused at its head");
    return false;
}

static void on_request(void *app, struct exchange *x)
{
    struct rig *r = app;
    size_t n;
    char *body = http_take_body(x, &n);

    assert_ptr_equal(x->app, app);
    assert_int_equal(x->status, 0);
    r->n_requests++;
    r->began_us = x->began_us;
    r->peer = x->peer;
    strcpy(r->id, x->request_id);
    if (strcmp(x->path, "/echo") == 0) {
        reply_body(x, 200, CONTENT_TEXT, body ? body : "", n);
    } else if (strcmp(x->path, "/big") == 0) {
        reply_big(x);
    } else if (strcmp(x->path, "/stream") == 0) {
        reply_stream(x, body, n);
    } else if (strcmp(x->path, "/hold") == 0) {
        x->gone = on_gone;
        x->user = r;
        r->held[r->n_held++ % RIG_HELD] = x;
    } else if (strcmp(x->path, "/none") == 0) {
        reply_body(x, 204, NULL, NULL, 0);
    } else {
        reply_error(x, 404, NULL, "no such path");
    }
    free(body);
}

static void write_err(struct buf *o, const struct err *e)
{
    buf_put(o, e->message, strlen(e->message));
}

static void write_status(struct buf *o, int status, const char *code, const char *message)
{
    char text[256];

    snprintf(text, sizeof text, "%d %s %s", status, code ? code : "-", message);
    buf_put(o, text, strlen(text));
}

/* ------------------------------------------------------------------- rig */

static void on_tick(uv_timer_t *t)
{
    (void)t;
}

void rig_open(struct rig *r, const struct http_config *cfg)
{
    struct http_config c = cfg ? *cfg : (struct http_config){ 0 };
    struct err e = { 0 };

    memset(r, 0, sizeof *r);
    signal(SIGPIPE, SIG_IGN); /* as http_server.h asks */
    assert_int_equal(uv_loop_init(&r->loop), 0);
    uv_timer_init(&r->loop, &r->tick);
    r->log_fd = memfd_create("log", MFD_CLOEXEC);
    assert_true(r->log_fd >= 0);
    srv_log_init(&r->log, r->log_fd, SRV_DEBUG, SRV_LOG_TEXT);
    r->ids = (struct srv_ids){ .key = 1, .seed = 2 };
    c.loop = &r->loop;
    c.log = &r->log;
    c.ids = &r->ids;
    c.app = r;
    c.head = on_head;
    c.request = on_request;
    c.write_err = write_err;
    c.write_status = write_status;
    uint64_t *sizes[] = { &c.max_header_bytes, &c.max_body_bytes, &c.max_total_body_bytes,
                          &c.stream_buffer_bytes };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (*sizes[i] == 0)
            *sizes[i] = 1 << 22;
    double *times[] = { &c.header_timeout_s, &c.body_timeout_s, &c.idle_timeout_s,
                        &c.write_timeout_s };
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        if (*times[i] == 0)
            *times[i] = 600;
    if (c.max_connections == 0)
        c.max_connections = 100;
    assert_ok(http_server_create(&r->server, &c, &e), e);
}

void rig_close(struct rig *r)
{
    http_server_close(r->server);
    uv_close((uv_handle_t *)&r->tick, NULL);
    for (int i = 0; i < TURNS && uv_loop_alive(&r->loop); i++)
        uv_run(&r->loop, UV_RUN_NOWAIT);
    assert_int_equal(uv_loop_close(&r->loop), 0);
    close(r->log_fd);
}

void rig_turn(struct rig *r)
{
    for (int i = 0; i < TURNS; i++)
        uv_run(&r->loop, UV_RUN_NOWAIT);
}

void rig_wait(struct rig *r, bool (*done)(struct rig *r, void *ctx), void *ctx)
{
    int i = 0;

    uv_timer_start(&r->tick, on_tick, TICK_MS, TICK_MS);
    for (; !done(r, ctx); i++) {
        if (i == WAITS)
            fail_msg("nothing happened in %d turns of the loop", WAITS);
        uv_run(&r->loop, UV_RUN_ONCE);
    }
    uv_timer_stop(&r->tick);
}

const char *rig_log(struct rig *r, char *out, size_t n)
{
    ssize_t got = pread(r->log_fd, out, n - 1, 0);

    out[got > 0 ? got : 0] = '\0';
    return out;
}

/* --------------------------------------------------------------- clients */

void rig_connect(struct rig *r, struct client *c, enum http_peer peer)
{
    int fds[2];

    *c = (struct client){ .fd = -1 };
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    c->fd = fds[0];
    c->conn = conn_new(r->server);
    assert_non_null(c->conn);
    uv_pipe_init(&r->loop, &c->conn->u.pipe, 0);
    assert_int_equal(uv_pipe_open(&c->conn->u.pipe, fds[1]), 0);
    conn_start(c->conn, peer);
}

void client_close(struct client *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    buf_fini(&c->in);
}

const char *client_read(struct client *c)
{
    static char piece[65536];
    ssize_t n;

    while (c->fd >= 0 && (n = read(c->fd, piece, sizeof piece)) != 0) {
        if (n < 0 && errno != EINTR)
            break;
        buf_put(&c->in, piece, n > 0 ? (size_t)n : 0);
    }
    if (c->fd >= 0 && n == 0)
        c->eof = true;
    buf_grow(&c->in, 1);
    assert_false(c->in.failed);
    c->in.p[c->in.n] = '\0';
    return c->in.p;
}

const char *rig_say(struct rig *r, struct client *c, const char *bytes, size_t n)
{
    size_t at = 0;

    for (int i = 0; at < n; i++) {
        ssize_t sent = send(c->fd, bytes + at, n - at, MSG_NOSIGNAL);
        assert_true(i < WAITS);
        if (sent < 0) {
            if (errno != EAGAIN)
                break; /* the server has closed */
            sent = 0;
        }
        at += (size_t)sent;
        rig_turn(r);
    }
    return client_read(c);
}

const char *rig_tell(struct rig *r, struct client *c, const char *text)
{
    return rig_say(r, c, text, strlen(text));
}
