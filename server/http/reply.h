/* reply.h: answering an exchange: whole bodies, errors and streams.
 *
 * Each exchange gets exactly one reply; after it (reply_stream_end for a
 * stream) the exchange may already be serving another request and must not be
 * touched.  The I/O thread. */
#ifndef SERVER_HTTP_REPLY_H
#define SERVER_HTTP_REPLY_H

#include "server/http/connection.h"

#define CONTENT_JSON "application/json"
#define CONTENT_TEXT "text/plain; charset=utf-8"

/* Add a header line to the reply to come; cut short when there is no room. */
void reply_header(struct exchange *x, const char *name, const char *fmt, ...) PRINTF_LIKE(3, 4);

void reply_body(struct exchange *x, int status, const char *type, const char *body, size_t n);
/* A body built in o; a failed o becomes a 500. o is left to the caller. */
void reply_out(struct exchange *x, int status, const char *type, const struct buf *o);

/* OpenAI-style error of an err; adds Retry-After where it belongs. */
void reply_err(struct exchange *x, const struct err *e);
/* The same for a status of HTTP's own. */
void reply_error(struct exchange *x, int status, const char *code, const char *message);

void reply_stream_begin(struct exchange *x, const char *type);
/* False: the client was dropped (its buffer was full) and x is dead. */
bool reply_stream_data(struct exchange *x, const char *data, size_t n);
void reply_stream_end(struct exchange *x);

#endif
