/* listener.h: the sockets that clients connect to.  I/O thread. */
#ifndef SERVER_HTTP_LISTENER_H
#define SERVER_HTTP_LISTENER_H

#include "proto/err.h"

struct srv;
struct listener;

/* Bind --uds, or --host (all addresses without) and --port.  ERR_IO names the
 * address and why. */
MUST_USE enum err_code listener_open(struct listener **out, struct srv *srv, struct err *e);
/* Stop listening; frees when the loop has closed the handle. */
void listener_close(struct listener *l);

/* "http://127.0.0.1:8000" or "unix:/run/quired.sock"; borrowed. */
const char *listener_url(const struct listener *l);

#endif
