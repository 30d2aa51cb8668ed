/* connection.h: a client's connection and the one request it is answering.
 *
 * Reading never stops while a request runs, so that a client that leaves is
 * noticed at once: end of input means the client is gone, and its work is
 * cancelled (a client that half-closes after sending is not served further;
 * only replies already complete are still delivered).  Bytes of pipelined
 * requests wait; past STASH_BYTES of them reading pauses until the running
 * request ends.  Unsent output of a stream is capped, and a reader that takes
 * nothing for the write timeout is dropped.  Everything here: the I/O thread. */
#ifndef SERVER_HTTP_CONNECTION_H
#define SERVER_HTTP_CONNECTION_H

#include <uv.h>

#include "proto/text/json.h"
#include "server/http/http.h"

struct srv;
struct conn;
struct route;

enum { REQUEST_ID_BYTES = 128, EXTRA_HEADER_BYTES = 512 };

/* The request in flight on a connection; lives inside it. */
struct exchange {
    struct srv *srv;
    struct conn *conn;
    struct http_parser *http;
    const struct route *route;
    const char *path_tail; /* what a prefix route matched beyond its prefix   */
    char request_id[REQUEST_ID_BYTES + 1];
    char extra[EXTRA_HEADER_BYTES]; /* further header lines of the reply      */
    size_t n_extra;
    uint64_t began_us;
    bool replied;   /* a status line was written                              */
    bool streaming; /* between reply_stream_begin and _end                    */
    bool chunked;
    int status;
    /* Set by a handler that answers later; called once when the client left
     * or was dropped before the reply ended.  The exchange is dead then.     */
    void (*gone)(struct exchange *x, void *user);
    void *user;
};

enum conn_state { CONN_IDLE, CONN_HEAD, CONN_BODY, CONN_BUSY, CONN_LINGER, CONN_CLOSED };

/* A TCP or Unix socket, as the calls of libuv want to see it. */
union srv_stream {
    uv_handle_t handle;
    uv_stream_t stream;
    uv_tcp_t tcp;
    uv_pipe_t pipe;
};

struct conn {
    struct srv *srv;
    union srv_stream u;
    uv_timer_t deadline, stall;
    uint32_t n_handles; /* not yet closed */
    enum conn_state state;
    struct http_parser http;
    struct exchange x;
    char *in; /* bytes not yet parsed, owned */
    size_t n_in, cap_in;
    bool read_paused, advancing, read_eof;
    bool local, is_pipe;           /* the peer is this machine; by a Unix socket */
    struct buf pending, in_flight; /* output waiting; output being written */
    size_t last_left;              /* in_flight bytes at the last stall look */
    uv_write_t write;
    uv_shutdown_t shutdown;
    bool writing, close_when_sent, dirty;
    uint64_t discarded; /* bytes thrown away while lingering */
    struct conn *prev, *next, *next_dirty;
};

/* A stream handle that a listener just accepted into c->u; c is given. */
struct conn *conn_new(struct srv *srv);
void conn_start(struct conn *c, bool local, bool is_pipe);

/* Queue output; sent when the loop comes round (conn_flush_dirty). */
void conn_write(struct conn *c, const char *data, size_t n);
/* The reply is complete: next request, or close. */
void conn_exchange_done(struct conn *c, bool keep_alive);
/* Close now, dropping what is unsent; a running request is told. */
void conn_drop(struct conn *c);
/* Unsent bytes. */
size_t conn_unsent(const struct conn *c);

/* Send what was queued on every connection since the last call. */
void conn_flush_dirty(struct srv *srv);

#endif
