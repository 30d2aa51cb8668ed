/* dispatch.h: from a request to its handler: route, method, guard.
 *
 * The callbacks of struct http_config; app is the struct routes.  I/O thread. */
#ifndef SERVER_ROUTES_DISPATCH_H
#define SERVER_ROUTES_DISPATCH_H

#include "server/http/http.h"

/* The head of a request with a large or awaited body: refuse now what would be
 * refused anyway.  False: answered. */
bool route_check_head(void *app, struct exchange *x);

/* The request has arrived: check it and run its handler. */
void route_dispatch(void *app, struct exchange *x);

#endif
