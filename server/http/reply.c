/* reply.c: composing status lines, header fields, error bodies and chunks.  The
 * thread of the loop. */
#include "server/http/http.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "server/http/connection.h"

const char *http_field(const struct exchange *x, const char *name, size_t *n)
{
    return http_parser_field(&x->conn->http, name, n);
}

char *http_take_body(struct exchange *x, size_t *n)
{
    return http_parser_take_body(&x->conn->http, n);
}

/* Whether a header line can be sent as it is: no control character but tabs. */
static bool is_clean(const char *line)
{
    for (; *line; line++)
        if ((unsigned char)*line < ' ' ? *line != '\t' : *line == 0x7f)
            return false;
    return true;
}

bool reply_header(struct exchange *x, const char *name, const char *fmt, ...)
{
    const struct srv_log *log = x->conn->server->cfg.log;
    char line[EXTRA_HEADER_BYTES];
    size_t room = sizeof x->extra - x->n_extra;
    int n = snprintf(line, sizeof line, "%s: ", name), v;
    va_list ap;

    assert(n > 0 && (size_t)n < sizeof line);
    va_start(ap, fmt);
    v = vsnprintf(line + n, sizeof line - (size_t)n, fmt, ap);
    va_end(ap);
    if (v < 0 || (size_t)(n + v) >= sizeof line || (size_t)(n + v) + 2 > room) {
        srv_logf(log, SRV_WARNING, "header %s left out: %d bytes, expected at most %zu", name,
                 n + v + 2, room);
        return false;
    }
    if (!is_clean(line)) {
        srv_logf(log, SRV_WARNING, "header %s left out: it holds a control character", name);
        return false;
    }
    memcpy(x->extra + x->n_extra, line, (size_t)(n + v));
    memcpy(x->extra + x->n_extra + n + v, "\r\n", 2);
    x->n_extra += (size_t)(n + v) + 2;
    return true;
}

static void date_line(char out[64])
{
    time_t now = time(NULL);
    struct tm tm;

    gmtime_r(&now, &tm);
    strftime(out, 64, "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", &tm);
}

/* Status line and fields; n_body < 0: chunked or until close. */
static void write_head(struct exchange *x, int status, const char *type, long long n_body)
{
    struct conn *c = x->conn;
    struct http_parser *http = &c->http;
    char head[1024], date[64], length[64] = "";
    int n;

    assert(x->status == 0); /* one reply an exchange */
    if (c->server->draining || !http->body_phase || http->status)
        http->keep_alive = false;
    if (n_body < 0) {
        x->chunked = !http->is_http_1_0;
        if (!x->chunked)
            http->keep_alive = false;
        else
            strcpy(length, "Transfer-Encoding: chunked\r\n");
    } else if (status != 204) {
        snprintf(length, sizeof length, "Content-Length: %lld\r\n", n_body);
    }
    date_line(date);
    n = snprintf(head, sizeof head, "HTTP/1.1 %d %s\r\n%s%s%s%s%s%s%s", status, http_reason(status),
                 date, type ? "Content-Type: " : "", type ? type : "", type ? "\r\n" : "", length,
                 !http->keep_alive   ? "Connection: close\r\n"
                 : http->is_http_1_0 ? "Connection: keep-alive\r\n"
                                     : "",
                 n_body < 0 ? "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n" : "");
    assert(n > 0 && (size_t)n < sizeof head);
    conn_write(c, head, (size_t)n);
    if (x->request_id[0] && c->server->cfg.request_id_headers) {
        n = snprintf(head, sizeof head, "x-request-id: %s\r\n", x->request_id);
        conn_write(c, head, (size_t)n);
    }
    conn_write(c, x->extra, x->n_extra);
    conn_write(c, "\r\n", 2);
    x->status = status;
}

void reply_body(struct exchange *x, int status, const char *type, const char *body, size_t n)
{
    write_head(x, status, n > 0 ? type : NULL, (long long)n);
    if (x->method != HTTP_M_HEAD)
        conn_write(x->conn, body, n);
    conn_end_exchange(x->conn, x->conn->http.keep_alive);
}

void reply_out(struct exchange *x, int status, const char *type, const struct buf *o)
{
    if (o->failed)
        reply_error(x, 500, NULL, "out of memory while the reply was written");
    else
        reply_body(x, status, type, o->p, o->n);
}

/* What a client may do about a refusal. */
static void retry_headers(struct exchange *x, int status)
{
    if (status == 429)
        reply_header(x, "Retry-After", "1");
    else if (status == 503)
        reply_header(x, "Retry-After", "5");
    if (status == 409)
        reply_header(x, "x-should-retry", "false");
}

/* An error's body, given; "{}" when there was no memory to write it. */
static void reply_refusal(struct exchange *x, int status, struct buf *o)
{
    retry_headers(x, status);
    if (o->failed)
        reply_body(x, status, CONTENT_JSON, "{}", 2);
    else
        reply_body(x, status, CONTENT_JSON, o->p, o->n);
    buf_fini(o);
}

void reply_err(struct exchange *x, const struct err *e)
{
    struct buf o = { 0 };
    int status = err_http_status(e->code);

    x->conn->server->cfg.write_err(&o, e);
    reply_refusal(x, status, &o);
}

void reply_error(struct exchange *x, int status, const char *code, const char *message)
{
    struct buf o = { 0 };

    x->conn->server->cfg.write_status(&o, status, code, message);
    reply_refusal(x, status, &o);
}

void reply_stream_begin(struct exchange *x, const char *type)
{
    write_head(x, 200, type, -1);
}

/* Whether the client is near enough to take n more bytes; else it is dropped. */
static bool has_room(struct conn *c, size_t n)
{
    const struct http_config *cfg = &c->server->cfg;

    if (conn_unsent(c) + n <= cfg->stream_buffer_bytes)
        return true;
    conn_flush(c);
    if (c->state == CONN_CLOSED)
        return false;
    if (conn_unsent(c) + n <= cfg->stream_buffer_bytes)
        return true;
    srv_logf(cfg->log, SRV_INFO, "a stream's reader is %zu bytes behind: dropped", conn_unsent(c));
    conn_drop(c);
    return false;
}

bool reply_stream_data(struct exchange *x, const char *data, size_t n)
{
    struct conn *c = x->conn;
    char size[24];

    if (n == 0 || x->method == HTTP_M_HEAD)
        return true;
    if (!has_room(c, n))
        return false;
    if (x->chunked)
        conn_write(c, size, (size_t)snprintf(size, sizeof size, "%zx\r\n", n));
    conn_write(c, data, n);
    if (x->chunked)
        conn_write(c, "\r\n", 2);
    return true;
}

void reply_stream_end(struct exchange *x)
{
    if (x->chunked && x->method != HTTP_M_HEAD)
        conn_write(x->conn, "0\r\n\r\n", 5);
    conn_end_exchange(x->conn, x->conn->http.keep_alive);
}
