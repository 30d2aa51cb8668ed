/* dispatch_test.c: from a request on a connection to its handler or its refusal: paths
 * and methods that do not exist, keys, bodies that nobody wants. */
#include "support/test.h"

#include <stdio.h>

#include "proto/openai/response.h"
#include "server/routes/dispatch.h"
#include "server/routes/table.h"
#include "server/routes/routes.h"
#include "support/http_rig.h"

struct keys {
    struct srv_list api_keys, admin_keys;
};

/* What the daemon answers to one request; borrowed until the next. */
static const char *ask(const struct keys *keys, enum http_peer peer, const char *text)
{
    static char out[8192];
    static const enum srv_phase phase = SRV_LOADING;
    static const struct served served;
    struct routes routes = { .served = &served,
                             .phase = &phase,
                             .api_keys = &keys->api_keys,
                             .admin_keys = &keys->admin_keys };
    struct rig r;
    struct client c;

    rig_open(&r, NULL);
    r.server->cfg.app = &routes;
    r.server->cfg.head = route_check_head;
    r.server->cfg.request = route_dispatch;
    r.server->cfg.write_err = oai_write_error;
    r.server->cfg.write_status = oai_write_http_error;
    rig_connect(&r, &c, peer);
    snprintf(out, sizeof out, "%s", rig_tell(&r, &c, text));
    client_close(&c);
    rig_turn(&r);
    rig_close(&r);
    return out;
}

static const struct keys open_to_all, keyed = {
    .api_keys = { { "user-key" }, 1 },
    .admin_keys = { { "admin-key" }, 1 },
};

static const char *send_line(const struct keys *keys, enum http_peer peer, const char *method,
                             const char *path, const char *fields)
{
    char text[512];

    snprintf(text, sizeof text, "%s %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", method, path,
             fields);
    return ask(keys, peer, text);
}

/* Every path of the table, by methods that it does not know: 405 with the list of those
 * that it knows, and the same list for OPTIONS. */
TEST(methods_that_a_path_does_not_know)
{
    size_t n;
    const struct route *table = route_table(&n);

    for (size_t i = 0; i < n; i++) {
        char path[128], list[64], allow[96];
        const char *tail;
        unsigned allowed;
        snprintf(path, sizeof path, "%s%s", table[i].path, table[i].match == ROUTE_TAIL ? "x" : "");
        assert_null(route_find(HTTP_M_OTHER, path, &tail, &allowed));
        snprintf(allow, sizeof allow, "\r\nAllow: %s\r\n", route_methods(allowed, list));
        const char *text = send_line(&keyed, HTTP_PEER_REMOTE, "PUT", path, "");
        assert_contains(text, "HTTP/1.1 405 Method Not Allowed\r\n");
        assert_contains(text, "\"method_not_allowed\"");
        assert_contains(text, allow);
        text = send_line(&keyed, HTTP_PEER_REMOTE, "OPTIONS", path, "");
        assert_contains(text, "HTTP/1.1 204 No Content\r\n");
        assert_contains(text, allow);
    }
    assert_contains(send_line(&keyed, HTTP_PEER_REMOTE, "OPTIONS", "*", ""),
                    "HTTP/1.1 204 No Content\r\n");
}

TEST(paths_that_do_not_exist)
{
    static const char *const paths[] = { "/",        "/v1",      "/v1/models/",
                                         "/health/", "//health", "/v1/completions/x",
                                         "/admin",   "/Health",  "*" };
    static const char *const methods[] = { "GET", "POST", "DELETE", "PUT" };
    const char *tail, *suggested;
    unsigned allowed;

    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        for (size_t m = 0; m < sizeof methods / sizeof *methods; m++) {
            const char *text = send_line(&keyed, HTTP_PEER_REMOTE, methods[m], paths[i], "");
            assert_contains(text, "HTTP/1.1 404 Not Found\r\n");
            assert_null(strstr(text, "Allow:"));
            suggested = strstr(text, "GET /v1/models is one");
            assert_non_null(suggested); /* and it is */
        }
    assert_non_null(route_find(HTTP_M_GET, "/v1/models", &tail, &allowed));
}

TEST(keys)
{
    static const struct {
        const char *path, *fields, *answer;
        enum http_peer peer;
        bool keyed;
    } rows[] = {
        { "/version", "", "200", HTTP_PEER_REMOTE, true },
        { "/v1/models", "", "401", HTTP_PEER_REMOTE, true },
        { "/v1/models", "", "401", HTTP_PEER_UNIX, true },
        { "/v1/models", "Authorization: Bearer wrong\r\n", "401", HTTP_PEER_REMOTE, true },
        { "/v1/models", "Authorization: Bearer admin-key\r\n", "401", HTTP_PEER_REMOTE, true },
        { "/v1/models", "Authorization: Bearer user-key\r\n", "200", HTTP_PEER_REMOTE, true },
        { "/v1/models", "X-Api-Key: user-key\r\n", "200", HTTP_PEER_REMOTE, true },
        { "/v1/models", "", "200", HTTP_PEER_REMOTE, false },
        { "/admin/requests", "Authorization: Bearer user-key\r\n", "401", HTTP_PEER_UNIX, true },
        { "/admin/requests", "Authorization: Bearer admin-key\r\n", "503", HTTP_PEER_REMOTE, true },
        { "/admin/requests", "", "403", HTTP_PEER_REMOTE, false },
        { "/admin/requests", "", "503", HTTP_PEER_LOOPBACK, false },
        { "/admin/requests", "", "503", HTTP_PEER_UNIX, false },
        { "/admin/requests", "Origin: http://example.com\r\n", "403", HTTP_PEER_UNIX, false },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char status[32];
        const char *text = send_line(rows[i].keyed ? &keyed : &open_to_all, rows[i].peer, "GET",
                                     rows[i].path, rows[i].fields);
        snprintf(status, sizeof status, "HTTP/1.1 %s ", rows[i].answer);
        assert_contains(text, status); /* 503: it got as far as the engine, which is loading */
        assert_int_equal(strstr(text, "\r\nWWW-Authenticate: Bearer\r\n") != NULL,
                         strcmp(rows[i].answer, "401") == 0);
    }
}

/* A large or awaited body is refused before it is sent, for the same reasons, and the
 * connection closes; a small one is taken first, and the connection stays. */
TEST(bodies_that_are_not_wanted)
{
    static const struct {
        const char *method, *path, *status;
        bool if_small; /* the same status when the body is small */
    } rows[] = {
        { "POST", "/nowhere", "404", true },
        { "PUT", "/v1/completions", "405", true },
        { "POST", "/v1/completions", "401", true },
        { "GET", "/version", "413", false },
    };
    static const char *const bodies[] = { "Expect: 100-continue\r\nContent-Length: 2\r\n",
                                          "Content-Length: 100000\r\n",
                                          "Transfer-Encoding: chunked\r\n" };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[512], status[32];
        snprintf(status, sizeof status, "HTTP/1.1 %s ", rows[i].status);
        for (size_t k = 0; k < sizeof bodies / sizeof *bodies; k++) {
            const char *got =
                send_line(&keyed, HTTP_PEER_REMOTE, rows[i].method, rows[i].path, bodies[k]);
            assert_contains(got, status);
            assert_contains(got, "\r\nConnection: close\r\n");
            assert_null(strstr(got, "100 Continue"));
        }
        snprintf(text, sizeof text, "%s %s HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}",
                 rows[i].method, rows[i].path);
        const char *got = ask(&keyed, HTTP_PEER_REMOTE, text);
        assert_contains(got, rows[i].if_small ? status : "HTTP/1.1 200 ");
        assert_null(strstr(got, "Connection: close"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(methods_that_a_path_does_not_know),
        RUN(paths_that_do_not_exist),
        RUN(keys),
        RUN(bodies_that_are_not_wanted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
