/* connection.h: a client's connection and the one request it is answering; what the
 * files of this room share.
 *
 *   output.c       closing, buffered output          (below)
 *   reply.c        status lines, fields, bodies       -> output.c
 *   connection.c   reading, parsing, deadlines        -> reply.c, output.c
 *   listener.c     accepting                          -> connection.c
 *   http_server.c  begin and end of it all            -> listener.c
 *
 * Reading never stops while a request runs, so that a client that leaves is noticed
 * at once: end of input means the client is gone, and its work is cancelled (a
 * client that half-closes after sending is not served further; only replies already
 * complete are still delivered).  Bytes of pipelined requests wait; past STASH_BYTES
 * of them reading pauses until the running request ends, and past UNSENT_BYTES of
 * unsent replies the next request waits.  Unsent output of a stream is capped, and a
 * reader that takes nothing for the write timeout is dropped.
 *
 *   IDLE -first byte-> HEAD -head-> BODY -body-> BUSY -reply ended-> DONE -> IDLE
 *   HEAD, BODY -refused, or too late-> BUSY -reply ended-> DONE
 *   DONE -last reply, all sent-> LINGER -read by the client, or too late-> CLOSED
 *   any -dropped-> CLOSED
 *
 * DONE lasts until the loop comes round (conn_flush_all): a handler that ends its
 * reply never finds itself inside the next request.  The thread of the loop. */
#ifndef SERVER_HTTP_CONNECTION_H
#define SERVER_HTTP_CONNECTION_H

#include <stdlib.h>

#include <uv.h>

#include "server/http/http_server.h"
#include "server/http/parser.h"

struct listener;

enum {
    STASH_BYTES = 64 * 1024,  /* pipelined bytes that wait for their turn */
    UNSENT_BYTES = 64 * 1024, /* unsent output past which the next request waits */
};

struct http_server {
    struct http_config cfg;
    struct http_budget bodies;
    struct listener *listener; /* NULL: none */
    struct conn *conns, *dirty;
    uint32_t n_conns;
    uint64_t n_opened; /* connections ever, which numbers them for the log */
    uint32_t n_users;  /* listener, connections and the server itself, not yet closed */
    bool draining;
    uv_prepare_t prepare;
    char read_buf[65536];
};

/* One of its users has closed; the last one frees it. */
static inline void http_server_release(struct http_server *s)
{
    if (--s->n_users == 0)
        free(s);
}

enum conn_state { CONN_IDLE, CONN_HEAD, CONN_BODY, CONN_BUSY, CONN_DONE, CONN_LINGER, CONN_CLOSED };

/* A TCP or Unix socket, as the calls of libuv want to see it. */
union http_stream {
    uv_handle_t handle;
    uv_stream_t stream;
    uv_tcp_t tcp;
    uv_pipe_t pipe;
};

struct conn {
    struct http_server *server;
    union http_stream u;
    uv_timer_t deadline, stall;
    uint32_t n_handles; /* not yet closed */
    enum conn_state state;
    uint64_t number; /* from 1 */
    enum http_peer peer;
    struct http_parser http;
    struct exchange x;
    struct buf in; /* bytes not yet parsed */
    bool read_paused, read_eof;
    struct buf pending, in_flight; /* output waiting; output being written */
    size_t last_left;              /* in_flight bytes at the last stall look */
    uv_write_t write;
    uv_shutdown_t shutdown;
    bool writing, close_when_sent, dirty;
    uint64_t discarded; /* bytes thrown away while lingering */
    struct conn *prev, *next, *next_dirty;
};

/* --- output.c ---------------------------------------------------------- */

/* Queue output; sent when the loop comes round (conn_flush_all). */
void conn_write(struct conn *c, const char *data, size_t n);
/* Unsent bytes. */
size_t conn_unsent(const struct conn *c);
/* Hand the queued output to the socket now; the connection may be dropped. */
void conn_flush(struct conn *c);
/* The reply is complete: next request, or close, when the loop comes round. */
void conn_end_exchange(struct conn *c, bool keep_alive);
/* No more is read from this client; close once everything is sent. */
void conn_close_when_sent(struct conn *c);
/* Close now, dropping what is unsent; a running request is told. */
void conn_drop(struct conn *c);

/* --- connection.c ------------------------------------------------------ */

/* A connection whose c->u the caller initialises (uv_tcp_init, uv_pipe_init) before
 * anything else; NULL: out of memory.  Owned by the server's loop. */
struct conn *conn_new(struct http_server *s);
/* c->u is connected: read requests. */
void conn_start(struct conn *c, enum http_peer peer);
/* Send what was queued on every connection since the last call, and go on to the
 * next request of those that wait for it. */
void conn_flush_all(struct http_server *s);

/* --- listener.c -------------------------------------------------------- */

MUST_USE enum err_code listener_open(struct listener **out, struct http_server *s,
                                     const struct http_address *a, struct err *e);
void listener_close(struct listener *l);
const char *listener_url(const struct listener *l);
/* Whether a peer's address is this machine's loopback: 127/8, ::1, ::ffff:127/104. */
bool listener_is_loopback(const struct sockaddr *a);

#endif
