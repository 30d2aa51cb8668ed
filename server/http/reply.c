/* reply.c: composing status lines, header fields and error bodies.  I/O thread. */
#include "server/http/reply.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "proto/openai/response.h"
#include "server/server.h"

void reply_header(struct exchange *x, const char *name, const char *fmt, ...)
{
    char line[EXTRA_HEADER_BYTES];
    int n = snprintf(line, sizeof line, "%s: ", name);
    va_list ap;

    va_start(ap, fmt);
    int v = vsnprintf(line + n, sizeof line - (size_t)n, fmt, ap);
    va_end(ap);
    if (v < 0 || (size_t)(n + v) + 2 >= sizeof line ||
        x->n_extra + (size_t)(n + v) + 2 > sizeof x->extra)
        return;
    memcpy(line + n + v, "\r\n", 2);
    memcpy(x->extra + x->n_extra, line, (size_t)(n + v) + 2);
    x->n_extra += (size_t)(n + v) + 2;
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
    char head[1024], date[64], length[64] = "";
    bool close;

    if (x->srv->phase == SRV_DRAINING || !x->http->body_phase || x->http->status)
        x->http->keep_alive = false;
    if (n_body < 0) {
        x->chunked = !x->http->is_http_1_0;
        if (!x->chunked)
            x->http->keep_alive = false;
        else
            strcpy(length, "Transfer-Encoding: chunked\r\n");
    } else if (status != 204) {
        snprintf(length, sizeof length, "Content-Length: %lld\r\n", n_body);
    }
    close = !x->http->keep_alive;
    date_line(date);
    int n =
        snprintf(head, sizeof head, "HTTP/1.1 %d %s\r\n%s%s%s%s%s%s%s", status, http_reason(status),
                 date, type ? "Content-Type: " : "", type ? type : "", type ? "\r\n" : "", length,
                 close                  ? "Connection: close\r\n"
                 : x->http->is_http_1_0 ? "Connection: keep-alive\r\n"
                                        : "",
                 n_body < 0 ? "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n" : "");
    conn_write(x->conn, head, (size_t)n);
    if (x->request_id[0] && x->srv->opt.request_id_headers) {
        n = snprintf(head, sizeof head, "x-request-id: %s\r\n", x->request_id);
        conn_write(x->conn, head, (size_t)n);
    }
    conn_write(x->conn, x->extra, x->n_extra);
    conn_write(x->conn, "\r\n", 2);
    x->replied = true;
    x->status = status;
}

void reply_body(struct exchange *x, int status, const char *type, const char *body, size_t n)
{
    write_head(x, status, n > 0 ? type : NULL, (long long)n);
    if (x->http->method != HTTP_M_HEAD)
        conn_write(x->conn, body, n);
    conn_exchange_done(x->conn, x->http->keep_alive);
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

    oai_write_error(&o, e);
    reply_refusal(x, status, &o);
}

void reply_error(struct exchange *x, int status, const char *code, const char *message)
{
    struct buf o = { 0 };

    oai_write_http_error(&o, status, code, message);
    reply_refusal(x, status, &o);
}

void reply_stream_begin(struct exchange *x, const char *type)
{
    write_head(x, 200, type, -1);
    x->streaming = true;
}

bool reply_stream_data(struct exchange *x, const char *data, size_t n)
{
    struct conn *c = x->conn;
    char size[24];

    if (n == 0)
        return true;
    if (conn_unsent(c) + n > x->srv->opt.stream_buffer_bytes) {
        conn_flush_dirty(x->srv);
        if (c->state == CONN_CLOSED)
            return false;
        if (conn_unsent(c) + n > x->srv->opt.stream_buffer_bytes) {
            srv_logf(&x->srv->log, SRV_INFO, "a stream's reader is %zu bytes behind: dropped",
                     conn_unsent(c));
            conn_drop(c);
            return false;
        }
    }
    if (x->chunked)
        conn_write(c, size, (size_t)snprintf(size, sizeof size, "%zx\r\n", n));
    conn_write(c, data, n);
    if (x->chunked)
        conn_write(c, "\r\n", 2);
    return true;
}

void reply_stream_end(struct exchange *x)
{
    x->streaming = false;
    if (x->chunked)
        conn_write(x->conn, "0\r\n\r\n", 5);
    conn_exchange_done(x->conn, x->http->keep_alive);
}
