/* http.h: what a handler needs of HTTP: the request it was given and the ways to
 * answer it.
 *
 * An exchange is one request of a client and its reply; it lives in the client's
 * connection.  The application's callbacks (http_server.h) get it once the request
 * has arrived whole, and answer it exactly once, then or later:
 *
 *   reply_body | reply_out | reply_err | reply_error
 *   reply_stream_begin, reply_stream_data..., reply_stream_end
 *
 * After its answer, or after `gone` was called, the exchange must not be touched.
 * The thread of the server's loop. */
#ifndef SERVER_HTTP_HTTP_H
#define SERVER_HTTP_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"
#include "proto/text/buf.h"

enum { REQUEST_ID_BYTES = 128, EXTRA_HEADER_BYTES = 512 };

/* Bits, so that a set of them is a number. */
enum http_method {
    HTTP_M_GET = 1,
    HTTP_M_HEAD = 2,
    HTTP_M_POST = 4,
    HTTP_M_DELETE = 8,
    HTTP_M_OPTIONS = 16,
    HTTP_M_OTHER = 32
};

/* Where the other end of a connection is. */
enum http_peer { HTTP_PEER_REMOTE, HTTP_PEER_LOOPBACK, HTTP_PEER_UNIX };

struct conn;

struct exchange {
    void *app; /* the application's context, from struct http_config */

    /* The request. */
    enum http_method method;
    enum http_peer peer;
    const char *path;                      /* decoded                                     */
    const char *query;                     /* after '?', undecoded; "" when there is none */
    const char *path_tail;                 /* "", or what the application sets it to      */
    char request_id[REQUEST_ID_BYTES + 1]; /* the client's x-request-id, or made here     */
    uint64_t began_us;                     /* when its first byte was read (clock.h)      */

    int status; /* of the reply, 0 before its status line was written */
    /* Set by a handler that answers later: called once when the client left or was
     * dropped before the reply ended.  It must not answer.                       */
    void (*gone)(struct exchange *x, void *user);
    void *user;

    /* Private to the room. */
    struct conn *conn;
    char extra[EXTRA_HEADER_BYTES]; /* further header lines of the reply */
    size_t n_extra;
    bool chunked;
};

/* Value of a request's header field (name in lower case), *n bytes; NULL: absent. */
const char *http_field(const struct exchange *x, const char *name, size_t *n);
/* The body, NUL-terminated, taken by the caller (free).  NULL with *n 0: none. */
char *http_take_body(struct exchange *x, size_t *n);

#define CONTENT_JSON "application/json"
#define CONTENT_TEXT "text/plain; charset=utf-8"

/* Add a header line to the reply to come.  False: the line does not fit or holds a
 * control character; it is left out whole and the log says so. */
bool reply_header(struct exchange *x, const char *name, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* A whole reply; n 0: no body, and type is not sent. */
void reply_body(struct exchange *x, int status, const char *type, const char *body, size_t n);
/* A body built in o; a failed o becomes a 500.  o stays the caller's. */
void reply_out(struct exchange *x, int status, const char *type, const struct buf *o);

/* The error as a body, in the form that struct http_config gives errors; the status
 * that belongs to its code, and Retry-After where a client may try again. */
void reply_err(struct exchange *x, const struct err *e);
/* The same for a status of HTTP's own; code may be NULL. */
void reply_error(struct exchange *x, int status, const char *code, const char *message);

/* A reply of status 200 whose length is not known yet. */
void reply_stream_begin(struct exchange *x, const char *type);
/* False: the client was dropped, as it is too far behind; `gone` was called. */
bool reply_stream_data(struct exchange *x, const char *data, size_t n);
void reply_stream_end(struct exchange *x);

#endif
