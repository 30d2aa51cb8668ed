/* table.c: the routes, and what is derived from them.  Any thread. */
#include "server/routes/table.h"

#include <stdio.h>
#include <string.h>

#include "server/routes/routes.h"

static const struct route routes[] = {
    { HTTP_M_POST, "/v1/completions", ROUTE_EXACT, GUARD_API, true, handle_completions },
    { HTTP_M_POST, "/v1/chat/completions", ROUTE_EXACT, GUARD_API, true, handle_chat },
    { HTTP_M_GET, "/v1/models", ROUTE_EXACT, GUARD_API, false, handle_models },
    { HTTP_M_GET, "/v1/models/", ROUTE_TAIL, GUARD_API, false, handle_model },
    { HTTP_M_POST, "/tokenize", ROUTE_EXACT, GUARD_API, true, handle_tokenize },
    { HTTP_M_POST, "/detokenize", ROUTE_EXACT, GUARD_API, true, handle_detokenize },
    { HTTP_M_POST, "/apply-template", ROUTE_EXACT, GUARD_API, true, handle_apply_template },
    { HTTP_M_GET, "/health", ROUTE_EXACT, GUARD_NONE, false, handle_health },
    { HTTP_M_GET, "/ready", ROUTE_EXACT, GUARD_NONE, false, handle_ready },
    { HTTP_M_GET, "/version", ROUTE_EXACT, GUARD_NONE, false, handle_version },
    { HTTP_M_GET, "/metrics", ROUTE_EXACT, GUARD_NONE, false, handle_metrics },
    { HTTP_M_GET, "/admin/cache", ROUTE_EXACT, GUARD_ADMIN, false, handle_cache },
    { HTTP_M_GET, "/admin/cache/blocks", ROUTE_EXACT, GUARD_ADMIN, false, handle_blocks },
    { HTTP_M_POST, "/admin/cache/pin", ROUTE_EXACT, GUARD_ADMIN, true, handle_pin },
    { HTTP_M_POST, "/admin/cache/unpin", ROUTE_EXACT, GUARD_ADMIN, true, handle_unpin },
    { HTTP_M_GET, "/admin/steps", ROUTE_EXACT, GUARD_ADMIN, false, handle_steps },
    { HTTP_M_POST, "/admin/cache/reset", ROUTE_EXACT, GUARD_ADMIN, true, handle_cache_reset },
    { HTTP_M_GET, "/admin/requests", ROUTE_EXACT, GUARD_ADMIN, false, handle_requests },
    { HTTP_M_DELETE, "/admin/requests/", ROUTE_TAIL, GUARD_ADMIN, false, handle_request_delete },
};

const struct route *route_table(size_t *n)
{
    *n = sizeof routes / sizeof *routes;
    return routes;
}

/* Whether path is the route's; *tail as route_find says. */
static bool matches(const struct route *r, const char *path, const char **tail)
{
    size_t n = strlen(r->path);

    *tail = "";
    if (r->match == ROUTE_EXACT)
        return strcmp(r->path, path) == 0;
    if (strncmp(r->path, path, n) != 0 || path[n] == '\0')
        return false;
    *tail = path + n;
    return true;
}

const struct route *route_find(unsigned method, const char *path, const char **tail,
                               unsigned *allowed)
{
    if (method == HTTP_M_HEAD)
        method = HTTP_M_GET;
    *allowed = 0;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (!matches(&routes[i], path, tail))
            continue;
        if (routes[i].methods & method)
            return &routes[i];
        *allowed |= routes[i].methods;
    }
    return NULL;
}

const char *route_methods(unsigned methods, char out[64])
{
    snprintf(out, 64, "%s%s%sOPTIONS", methods & HTTP_M_GET ? "GET, HEAD, " : "",
             methods & HTTP_M_POST ? "POST, " : "", methods & HTTP_M_DELETE ? "DELETE, " : "");
    return out;
}
