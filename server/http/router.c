/* router.c: the table of routes and the checks before a handler runs: method,
 * key, request id, readiness.  I/O thread. */
#include "server/http/router.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "server/routes/routes.h"
#include "server/http/reply.h"
#include "server/server.h"

static const struct route routes[] = {
    { HTTP_M_POST, "/v1/completions", handle_completions, GUARD_API, true },
    { HTTP_M_POST, "/v1/chat/completions", handle_chat, GUARD_API, true },
    { HTTP_M_GET, "/v1/models", handle_models, GUARD_API, false },
    { HTTP_M_GET, "/v1/models/*", handle_model, GUARD_API, false },
    { HTTP_M_POST, "/tokenize", handle_tokenize, GUARD_API, true },
    { HTTP_M_POST, "/detokenize", handle_detokenize, GUARD_API, true },
    { HTTP_M_POST, "/apply-template", handle_apply_template, GUARD_API, true },
    { HTTP_M_GET, "/health", handle_health, GUARD_NONE, false },
    { HTTP_M_GET, "/ready", handle_ready, GUARD_NONE, false },
    { HTTP_M_GET, "/version", handle_version, GUARD_NONE, false },
    { HTTP_M_GET, "/metrics", handle_metrics, GUARD_NONE, false },
    { HTTP_M_GET, "/admin/cache", handle_cache, GUARD_ADMIN, false },
    { HTTP_M_GET, "/admin/cache/blocks", handle_blocks, GUARD_ADMIN, false },
    { HTTP_M_POST, "/admin/cache/pin", handle_pin, GUARD_ADMIN, true },
    { HTTP_M_POST, "/admin/cache/unpin", handle_unpin, GUARD_ADMIN, true },
    { HTTP_M_GET, "/admin/steps", handle_steps, GUARD_ADMIN, false },
    { HTTP_M_POST, "/admin/cache/reset", handle_cache_reset, GUARD_ADMIN, true },
    { HTTP_M_GET, "/admin/requests", handle_requests, GUARD_ADMIN, false },
    { HTTP_M_DELETE, "/admin/requests/*", handle_request_delete, GUARD_ADMIN, false },
};

enum { EARLY_REFUSAL_BYTES = 64 * 1024 };

/* Whether path is the route's; *tail as router_find says. */
static bool matches(const struct route *r, const char *path, const char **tail)
{
    size_t n = strlen(r->path);

    *tail = "";
    if (r->path[n - 1] != '*')
        return strcmp(r->path, path) == 0;
    if (strncmp(r->path, path, n - 1) != 0 || path[n - 1] == '\0')
        return false;
    *tail = path + n - 1;
    return true;
}

const struct route *router_find(unsigned method, const char *path, const char **tail,
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

const char *router_methods(unsigned methods, char out[64])
{
    snprintf(out, 64, "%s%s%sOPTIONS", methods & HTTP_M_GET ? "GET, HEAD, " : "",
             methods & HTTP_M_POST ? "POST, " : "", methods & HTTP_M_DELETE ? "DELETE, " : "");
    return out;
}

/* Equal, in time that does not tell how far. */
static bool same_key(const char *key, const char *given, size_t n)
{
    size_t len = strlen(key);
    unsigned char diff = len != n;

    for (size_t i = 0; i < n; i++)
        diff |= (unsigned char)(given[i] ^ key[len ? i % len : 0]);
    return diff == 0;
}

/* The request carries one of these keys. */
static bool has_key(const struct exchange *x, const struct srv_list *keys)
{
    size_t n;
    const char *v = http_field(x->http, "authorization", &n);
    bool ok = false;

    if (v && n > 7 && strncasecmp(v, "Bearer ", 7) == 0) {
        v += 7;
        n -= 7;
    } else {
        v = http_field(x->http, "x-api-key", &n);
    }
    for (uint32_t i = 0; v && i < keys->n; i++)
        ok |= same_key(keys->item[i], v, n);
    return ok;
}

/* A program on this machine itself: not a browser page of another origin, not a
 * name that was made to point here, not somebody behind a local proxy. */
static bool is_local_program(const struct exchange *x)
{
    static const char *const relayed[] = { "origin", "forwarded", "x-forwarded-for", "x-real-ip" };
    static const char *const names[] = { "localhost", "127.", "[::1]" };
    size_t n;
    const char *host;

    if (!x->conn->local)
        return false;
    for (size_t i = 0; i < sizeof relayed / sizeof *relayed; i++)
        if (http_field(x->http, relayed[i], &n))
            return false;
    host = http_field(x->http, "host", &n);
    if (host == NULL || x->conn->is_pipe)
        return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (n >= strlen(names[i]) && strncasecmp(host, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

/* May this client call the route?  False: answered. */
static bool pass_guard(struct srv *srv, struct exchange *x)
{
    const struct srv_list *keys = x->route->guard == GUARD_API     ? &srv->opt.api_keys
                                  : x->route->guard == GUARD_ADMIN ? &srv->opt.admin_keys
                                                                   : NULL;

    if (keys && keys->n > 0) {
        if (has_key(x, keys))
            return true;
        reply_header(x, "WWW-Authenticate", "Bearer");
        reply_error(x, 401, "invalid_api_key",
                    "this endpoint needs a key: Authorization: Bearer KEY");
        return false;
    }
    if (x->route->guard == GUARD_ADMIN && !is_local_program(x)) {
        reply_error(x, 403, NULL,
                    "without --admin-key, /admin answers programs on this machine only");
        return false;
    }
    return true;
}

/* Echo the client's request id where it is printable, else make one. */
static void name_request(struct srv *srv, struct exchange *x)
{
    size_t n;
    const char *v = http_field(x->http, "x-request-id", &n);
    bool ok = v && n > 0 && n <= REQUEST_ID_BYTES;

    for (size_t i = 0; ok && i < n; i++)
        ok = isgraph((unsigned char)v[i]);
    if (ok) {
        memcpy(x->request_id, v, n);
        x->request_id[n] = '\0';
    } else {
        srv_new_id(&srv->ids, "req-", x->request_id, sizeof x->request_id);
    }
}

static bool find_route(struct exchange *x)
{
    unsigned allowed;
    char list[64];
    const struct http_parser *h = x->http;

    x->route = router_find(h->method, h->path, &x->path_tail, &allowed);
    if (x->route)
        return true;
    if (h->method == HTTP_M_OPTIONS && (allowed || strcmp(h->path, "*") == 0)) {
        reply_header(x, "Allow", "%s", router_methods(allowed, list));
        reply_body(x, 204, NULL, NULL, 0);
    } else if (allowed) {
        reply_header(x, "Allow", "%s", router_methods(allowed, list));
        reply_error(x, 405, "method_not_allowed", "this path does not know this method");
    } else {
        reply_error(x, 404, "not_found", "there is no such path; GET /v1/models is one");
    }
    return false;
}

bool router_check_head(struct srv *srv, struct exchange *x)
{
    const struct http_parser *h = x->http;

    name_request(srv, x);
    if (!h->expects_continue && h->body_length <= EARLY_REFUSAL_BYTES)
        return true; /* cheaper to take the body and keep the connection */
    x->http->keep_alive = false;
    if (!find_route(x) || !pass_guard(srv, x))
        return false;
    if (!x->route->has_body) {
        reply_error(x, 413, NULL, "this endpoint takes no body");
        return false;
    }
    x->http->keep_alive = true;
    return true;
}

void router_dispatch(struct srv *srv, struct exchange *x)
{
    if (find_route(x) && pass_guard(srv, x))
        x->route->handler(srv, x);
}
