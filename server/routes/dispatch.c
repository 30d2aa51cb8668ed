/* dispatch.c: the checks before a handler runs, and their answers: 404, 405, 401,
 * 403, 413, OPTIONS.  I/O thread. */
#include "server/routes/dispatch.h"

#include <string.h>

#include "server/routes/routes.h"
#include "server/routes/table.h"

/* The route of a request; NULL: answered. */
static const struct route *find_route(struct exchange *x)
{
    unsigned allowed;
    char list[64];
    const struct route *r = route_find(x->method, x->path, &x->path_tail, &allowed);

    if (r)
        return r;
    if (x->method == HTTP_M_OPTIONS && (allowed || strcmp(x->path, "*") == 0)) {
        reply_header(x, "Allow", "%s", route_methods(allowed, list));
        reply_body(x, 204, NULL, NULL, 0);
    } else if (allowed) {
        reply_header(x, "Allow", "%s", route_methods(allowed, list));
        reply_error(x, 405, "method_not_allowed", "this path does not know this method");
    } else {
        reply_error(x, 404, "not_found", "there is no such path; GET /v1/models is one");
    }
    return NULL;
}

static const char *field_of(const void *request, const char *name, size_t *n)
{
    return http_field(request, name, n);
}

/* May this client call the route?  False: answered. */
static bool pass_guard(const struct routes *rt, const struct route *r, struct exchange *x)
{
    const struct srv_list *keys = r->guard == GUARD_ADMIN ? rt->admin_keys : rt->api_keys;
    struct guard_request request = { .peer = x->peer, .field = field_of, .request = x };

    switch (guard_check(r->guard, keys, &request)) {
    case GUARD_PASS:
        return true;
    case GUARD_WANTS_KEY:
        reply_header(x, "WWW-Authenticate", "Bearer");
        reply_error(x, 401, "invalid_api_key",
                    "this endpoint needs a key: Authorization: Bearer KEY");
        break;
    case GUARD_LOCAL_ONLY:
        reply_error(x, 403, NULL,
                    "without --admin-key, /admin answers programs on this machine only");
        break;
    }
    return false;
}

bool route_check_head(void *app, struct exchange *x)
{
    const struct route *r = find_route(x);

    if (r == NULL || !pass_guard(app, r, x))
        return false;
    if (!r->has_body)
        reply_error(x, 413, NULL, "this endpoint takes no body");
    return r->has_body;
}

void route_dispatch(void *app, struct exchange *x)
{
    const struct route *r = find_route(x);

    if (r && pass_guard(app, r, x))
        r->handler(app, x);
}
