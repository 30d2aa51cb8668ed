/* http_alloc_test.c: every allocation of a connection fails once: the client gets whole
 * replies, an error or a closed connection, nothing leaks, and the next client is
 * served. */
#include "support/test.h"

#include <stdio.h>
#include <sys/socket.h>

#include "support/alloc_fail.h"
#include "support/http_rig.h"

/* Requests of each kind, the last one cut so that some of it waits. */
static const char text[] =
    "POST /echo?a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"
    "POST /stream HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n"
    "GET /nowhere HTTP/1.1\r\nHost: h\r\n\r\n";

static void answer_held(struct rig *r)
{
    struct exchange *x = r->held[0];

    r->held[0] = NULL;
    if (x)
        reply_body(x, 200, CONTENT_TEXT, "held", 4);
}

/* Whether a reply that was begun has the end that its head promises; p behind it. */
static bool skip_reply(const char **p)
{
    const char *body = strstr(*p, "\r\n\r\n"), *length = strstr(*p, "Content-Length: ");

    if (strncmp(*p, "HTTP/1.1 ", 9) != 0 || body == NULL)
        return false;
    body += 4;
    if (length && length < body) {
        size_t n = strtoul(length + 16, NULL, 10);
        *p = body + n;
        return strlen(body) >= n;
    }
    *p = strstr(body, "0\r\n\r\n");
    if (*p == NULL)
        return false;
    *p += 5;
    return true;
}

/* With the n-th allocation failing; false: there was none. */
static bool run(int64_t n)
{
    struct rig r;
    struct client c;
    bool fired;

    rig_open(&r, NULL);
    rig_connect(&r, &c, HTTP_PEER_UNIX);
    assert_int_equal(send(c.fd, text, sizeof text - 1, 0), sizeof text - 1);
    alloc_fail_at(n, false);
    rig_turn(&r);
    answer_held(&r);
    rig_turn(&r);
    fired = alloc_fail_fired();
    alloc_fail_at(-1, false);
    client_read(&c);
    for (const char *p = c.in.p; *p;)
        if (!skip_reply(&p))
            fail_msg("allocation %lld failed, and a reply is not whole: %s", (long long)n, c.in.p);
    if (!fired)
        assert_false(c.eof);
    else if (http_server_n_connections(r.server) == 0)
        assert_true(c.eof);
    client_close(&c);

    rig_connect(&r, &c, HTTP_PEER_UNIX);
    assert_contains(rig_tell(&r, &c, "GET /nowhere HTTP/1.1\r\nHost: h\r\n\r\n"), "404 Not Found");
    client_close(&c);
    rig_turn(&r);
    assert_int_equal(http_server_n_connections(r.server), 0);
    rig_close(&r);
    return fired;
}

TEST(connections)
{
    int64_t n = 0;

    while (run(n))
        n++;
    assert_true(n > 5);
}

/* A server, a listener and a connection that cannot be made. */
TEST(beginnings)
{
    struct http_address a = { .host = "127.0.0.1" };
    struct http_config cfg = { 0 };
    struct http_server *s = NULL;
    struct rig r;
    struct err e;

    alloc_fail_at(0, false);
    assert_int_equal(http_server_create(&s, &cfg, &e), ERR_NOMEM);
    assert_null(s);
    alloc_fail_at(-1, false);
    rig_open(&r, NULL);
    alloc_fail_at(0, false);
    assert_int_equal(http_server_listen(r.server, &a, &e), ERR_NOMEM);
    alloc_fail_at(0, false);
    assert_null(conn_new(r.server));
    alloc_fail_at(-1, false);
    assert_ok(http_server_listen(r.server, &a, &e), e);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(connections),
        RUN(beginnings),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
