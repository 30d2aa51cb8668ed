/* router.h: which handler answers a method and path, and who may call it.
 *
 * The table is const: any thread. */
#ifndef SERVER_HTTP_ROUTER_H
#define SERVER_HTTP_ROUTER_H

#include "server/http/connection.h"

enum guard { GUARD_NONE, GUARD_API, GUARD_ADMIN };

struct route {
    unsigned methods; /* enum http_method bits; HEAD goes where GET goes */
    const char *path; /* exact; a trailing * matches any non-empty rest  */
    void (*handler)(struct srv *srv, struct exchange *x);
    enum guard guard;
    bool has_body; /* others are refused with 413 when they bring one  */
};

/* The route of a method and path; *tail points at what `*` matched.  NULL:
 * *allowed holds the methods that the path knows, 0 when there is no such
 * path. */
const struct route *router_find(unsigned method, const char *path, const char **tail,
                                unsigned *allowed);

/* The head has arrived: find the route and, where a large body is still to
 * come, refuse what would be refused anyway.  False: answered. */
bool router_check_head(struct srv *srv, struct exchange *x);

/* The request has arrived: check and run its handler. */
void router_dispatch(struct srv *srv, struct exchange *x);

/* "GET, HEAD, POST" of a set. */
const char *router_methods(unsigned methods, char out[64]);

#endif
