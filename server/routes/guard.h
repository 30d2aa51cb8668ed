/* guard.h: who may call a route.
 *
 *   GUARD_NONE   everybody
 *   GUARD_API    who has one of the API keys; everybody where there is none
 *   GUARD_ADMIN  who has one of the admin keys; where there is none, programs on
 *                this machine
 *
 * A key comes as `Authorization: Bearer KEY`, else as `X-Api-Key: KEY`.  A program
 * on this machine comes by a Unix socket, or by loopback under a local name (Host),
 * and was neither relayed by a proxy nor sent by a browser's page.
 * Pure functions; any thread. */
#ifndef SERVER_ROUTES_GUARD_H
#define SERVER_ROUTES_GUARD_H

#include "server/http/http.h"
#include "server/base/list.h"

enum guard { GUARD_NONE, GUARD_API, GUARD_ADMIN };

enum guard_verdict {
    GUARD_PASS,
    GUARD_WANTS_KEY,  /* 401 */
    GUARD_LOCAL_ONLY, /* 403 */
};

/* What a guard looks at in a request. */
struct guard_request {
    enum http_peer peer;
    /* The value of a header field (name in lower case), *n bytes; NULL: absent. */
    const char *(*field)(const void *request, const char *name, size_t *n);
    const void *request;
};

/* keys: those of the guard's kind; not looked at for GUARD_NONE. */
enum guard_verdict guard_check(enum guard guard, const struct srv_list *keys,
                               const struct guard_request *r);

#endif
