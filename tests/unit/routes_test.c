/* routes_test.c: the table of routes, what is derived from it, and who may call
 * them: every combination of keys, peers and header fields. */
#include "support/test.h"

#include <stdio.h>
#include <strings.h>

#include "server/routes/guard.h"
#include "server/routes/table.h"

TEST(routes)
{
    unsigned allowed;
    const char *tail;

    assert_non_null(route_find(HTTP_M_POST, "/v1/completions", &tail, &allowed));
    assert_non_null(route_find(HTTP_M_HEAD, "/health", &tail, &allowed));
    assert_null(route_find(HTTP_M_GET, "/v1/completions", &tail, &allowed));
    assert_int_equal(allowed, HTTP_M_POST);
    assert_null(route_find(HTTP_M_GET, "/v1/completions/", &tail, &allowed));
    assert_int_equal(allowed, 0);
    assert_null(route_find(HTTP_M_GET, "/v1/models/", &tail, &allowed));
    const struct route *r = route_find(HTTP_M_GET, "/v1/models/a/b", &tail, &allowed);
    assert_non_null(r);
    assert_string_equal(tail, "a/b");
    assert_int_equal(r->guard, GUARD_API);
    r = route_find(HTTP_M_DELETE, "/admin/requests/x", &tail, &allowed);
    assert_int_equal(r->guard, GUARD_ADMIN);
    r = route_find(HTTP_M_GET, "/metrics", &tail, &allowed);
    assert_int_equal(r->guard, GUARD_NONE);
}

/* Every route is found by its own method and path, and by no other method. */
TEST(every_route)
{
    static const unsigned methods[] = { HTTP_M_GET,    HTTP_M_HEAD,    HTTP_M_POST,
                                        HTTP_M_DELETE, HTTP_M_OPTIONS, HTTP_M_OTHER };
    size_t n;
    const struct route *table = route_table(&n);

    assert_true(n > 0);
    for (size_t i = 0; i < n; i++) {
        char path[128], list[64];
        snprintf(path, sizeof path, "%s%s", table[i].path,
                 table[i].match == ROUTE_TAIL ? "some/rest" : "");
        for (size_t m = 0; m < sizeof methods / sizeof *methods; m++) {
            unsigned method = methods[m] == HTTP_M_HEAD ? HTTP_M_GET : methods[m], allowed;
            const char *tail;
            const struct route *r = route_find(methods[m], path, &tail, &allowed);
            if (table[i].methods & method) {
                assert_ptr_equal(r, &table[i]);
                assert_string_equal(tail, table[i].match == ROUTE_TAIL ? "some/rest" : "");
            } else if (r == NULL) {
                assert_true(allowed & table[i].methods);
                assert_contains(route_methods(allowed, list), "OPTIONS");
            }
        }
        assert_true(table[i].handler != NULL);
        /* An operator's path is an operator's; a route with a body changes something. */
        assert_int_equal(table[i].guard == GUARD_ADMIN, strncmp(table[i].path, "/admin", 6) == 0);
        assert_int_equal(table[i].has_body, table[i].methods == HTTP_M_POST);
    }
}

TEST(allow_lists)
{
    char list[64];

    assert_string_equal(route_methods(HTTP_M_GET, list), "GET, HEAD, OPTIONS");
    assert_string_equal(route_methods(HTTP_M_POST, list), "POST, OPTIONS");
    assert_string_equal(route_methods(HTTP_M_DELETE, list), "DELETE, OPTIONS");
    assert_string_equal(route_methods(HTTP_M_GET | HTTP_M_POST | HTTP_M_DELETE, list),
                        "GET, HEAD, POST, DELETE, OPTIONS");
    assert_string_equal(route_methods(0, list), "OPTIONS");
}

/* ----------------------------------------------------------------- guard */

struct fields {
    const char *authorization, *x_api_key, *host, *relay; /* relay: "name" of such a field */
};

static const char *field_of(const void *request, const char *name, size_t *n)
{
    const struct fields *f = request;
    const char *v = strcmp(name, "authorization") == 0        ? f->authorization
                    : strcmp(name, "x-api-key") == 0          ? f->x_api_key
                    : strcmp(name, "host") == 0               ? f->host
                    : f->relay && strcmp(name, f->relay) == 0 ? "x"
                                                              : NULL;

    *n = v ? strlen(v) : 0;
    return v;
}

static enum guard_verdict check(enum guard guard, const struct srv_list *keys, enum http_peer peer,
                                const struct fields *f)
{
    struct guard_request r = { peer, field_of, f };

    return guard_check(guard, keys, &r);
}

/* One column of the product below: a value, and whether it satisfies its rule. */
struct column {
    const char *value;
    bool good;
};

static const struct column credentials[] = {
    { NULL, false },
    { "", false },
    { "Bearer ", false },
    { "Bearer key-1", true },
    { "bEARER key-2", true },
    { "Bearer key-", false },
    { "Bearer key-11", false },
    { "Bearer  key-1", false },
    { "Bearer key-1key-1", false },
    { "Basic key-1", false },
    { "key-1", false },
};
static const struct column api_keys[] = {
    { NULL, false }, { "", false }, { "key-1", true }, { "key-2", true }, { "KEY-1", false },
};
static const struct column hosts[] = {
    { NULL, true },
    { "localhost", true },
    { "LOCALHOST:8000", true },
    { "127.0.0.1:8000", true },
    { "127.8.8.8", true },
    { "[::1]:8000", true },
    { "example.com", false },
    { "10.127.0.0", false },
    { "[::2]", false },
    { "", false },
};
static const struct column relays[] = {
    { NULL, true },         { "origin", false },
    { "forwarded", false }, { "x-forwarded-for", false },
    { "x-real-ip", false }, { "x-forwarded-host", true },
};

/* A Bearer credential hides an X-Api-Key; anything else in Authorization does not. */
static bool has_key(const struct column *credential, const struct column *key)
{
    bool bearer = credential->value && strlen(credential->value) > 7 &&
                  strncasecmp(credential->value, "Bearer ", 7) == 0;

    return bearer ? credential->good : key->good;
}

/* Every guard, with and without keys, for one request. */
static void check_all(enum http_peer peer, const struct fields *f, bool key, bool local)
{
    static const struct srv_list none = { .n = 0 }, two = { { "key-1", "key-2" }, 2 };
    enum guard_verdict keyed = key ? GUARD_PASS : GUARD_WANTS_KEY;

    assert_int_equal(check(GUARD_NONE, &two, peer, f), GUARD_PASS);
    assert_int_equal(check(GUARD_NONE, &none, peer, f), GUARD_PASS);
    assert_int_equal(check(GUARD_API, &none, peer, f), GUARD_PASS);
    assert_int_equal(check(GUARD_API, &two, peer, f), keyed);
    assert_int_equal(check(GUARD_ADMIN, &two, peer, f), keyed);
    assert_int_equal(check(GUARD_ADMIN, &none, peer, f), local ? GUARD_PASS : GUARD_LOCAL_ONLY);
}

TEST(every_combination)
{
    enum {
        N_CREDENTIALS = sizeof credentials / sizeof *credentials,
        N_KEYS = sizeof api_keys / sizeof *api_keys,
        N_HOSTS = sizeof hosts / sizeof *hosts,
        N_RELAYS = sizeof relays / sizeof *relays,
        N_PEERS = HTTP_PEER_UNIX + 1,
    };

    for (size_t i = 0; i < (size_t)N_CREDENTIALS * N_KEYS * N_HOSTS * N_RELAYS * N_PEERS; i++) {
        size_t rest = i;
        enum http_peer peer = (enum http_peer)(rest % N_PEERS);
        const struct column *relay = &relays[(rest /= N_PEERS) % N_RELAYS];
        const struct column *host = &hosts[(rest /= N_RELAYS) % N_HOSTS];
        const struct column *key = &api_keys[(rest /= N_HOSTS) % N_KEYS];
        const struct column *credential = &credentials[rest / N_KEYS];
        struct fields f = { credential->value, key->value, host->value, relay->value };
        bool local =
            relay->good && (peer == HTTP_PEER_UNIX || (peer == HTTP_PEER_LOOPBACK && host->good));
        check_all(peer, &f, has_key(credential, key), local);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(routes),
        RUN(every_route),
        RUN(allow_lists),
        RUN(every_combination),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
