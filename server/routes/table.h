/* table.h: which handler answers a method and path, and who may call it.
 *
 * One const table, from which all else is derived: any thread. */
#ifndef SERVER_ROUTES_TABLE_H
#define SERVER_ROUTES_TABLE_H

#include "server/http/http.h"
#include "server/routes/guard.h"

struct routes;

/* What of a request's path must match. */
enum route_match {
    ROUTE_EXACT, /* all of it                                         */
    ROUTE_TAIL,  /* its beginning; a non-empty rest follows, the tail */
};

struct route {
    unsigned methods; /* enum http_method bits; HEAD goes where GET goes */
    const char *path;
    enum route_match match;
    enum guard guard;
    bool has_body; /* others refuse a body that is large or awaited with 413 */
    void (*handler)(struct routes *rt, struct exchange *x);
};

/* All of them. */
const struct route *route_table(size_t *n);

/* The route of a method and path; *tail points at what follows a ROUTE_TAIL, ""
 * else.  NULL: *allowed holds the methods that the path knows, 0 when there is no
 * such path. */
const struct route *route_find(unsigned method, const char *path, const char **tail,
                               unsigned *allowed);

/* "GET, HEAD, POST, OPTIONS" of a set, as Allow lists it. */
const char *route_methods(unsigned methods, char out[64]);

#endif
