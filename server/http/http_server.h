/* http_server.h: an HTTP/1 server on a libuv loop: what the program that embeds it
 * gives it, and how it begins and ends.
 *
 * Owns its sockets, connections and the memory for bodies.  It knows nothing of the
 * application but the callbacks below.  The program must ignore SIGPIPE.  One
 * thread: the loop's. */
#ifndef SERVER_HTTP_HTTP_SERVER_H
#define SERVER_HTTP_HTTP_SERVER_H

#include <uv.h>

#include "proto/err.h"
#include "server/base/ids.h"
#include "server/base/log.h"
#include "server/http/http.h"

struct http_server;

/* Everything pointed at is borrowed for the server's life. */
struct http_config {
    uv_loop_t *loop;
    const struct srv_log *log;
    struct srv_ids *ids; /* for requests that bring no x-request-id */

    uint64_t max_header_bytes, max_body_bytes; /* of one request                          */
    uint64_t max_total_body_bytes;             /* of all requests received or answered    */
    uint64_t stream_buffer_bytes;              /* a stream's reader may be behind by      */
    uint32_t max_connections;                  /* more are told 503                       */
    double header_timeout_s, body_timeout_s;   /* for a head, for a body, from its begin  */
    double idle_timeout_s, write_timeout_s;    /* between requests; nothing taken         */
    bool request_id_headers;                   /* replies carry x-request-id              */

    void *app;
    /* The head of a request with a large or awaited body has arrived: false when it
     * was answered at once, and the body is not wanted. */
    bool (*head)(void *app, struct exchange *x);
    /* A request has arrived: answer it, now or later. */
    void (*request)(void *app, struct exchange *x);
    /* The body of an error reply, appended to o. */
    void (*write_err)(struct buf *o, const struct err *e);
    void (*write_status)(struct buf *o, int status, const char *code, const char *message);
};

struct http_address {
    const char *uds;  /* path of a Unix socket, or NULL                  */
    const char *host; /* numeric or "localhost"; NULL: all addresses     */
    uint16_t port;    /* 0: any that is free                             */
};

/* A server that listens nowhere yet. */
MUST_USE enum err_code http_server_create(struct http_server **out, const struct http_config *cfg,
                                          struct err *e);
/* Accept connections at an address; once.  ERR_IO and ERR_INVALID name the address
 * and why. */
MUST_USE enum err_code http_server_listen(struct http_server *s, const struct http_address *a,
                                          struct err *e);
/* "http://127.0.0.1:8000" or "unix:/run/quired.sock"; borrowed; "" before listening. */
const char *http_server_url(const struct http_server *s);

/* Replies from now on close their connections. */
void http_server_drain(struct http_server *s);
/* Whether every reply was handed to the kernel. */
bool http_server_all_sent(const struct http_server *s);
/* Open connections. */
uint32_t http_server_n_connections(const struct http_server *s);

/* Stop listening, drop every connection (`gone` is called for requests in flight),
 * and free when the loop has closed the handles.  s may be NULL. */
void http_server_close(struct http_server *s);

#endif
