/* listener_test.c: addresses that are listened on, told and refused; who is at the
 * other end; more connections than are allowed. */
#include "support/test.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "support/http_rig.h"

static char dir[] = "/tmp/quire-listener-XXXXXX", path[64];

static int make_dir(void **state)
{
    (void)state;
    if (mkdtemp(dir) == NULL)
        return -1;
    snprintf(path, sizeof path, "%s/socket", dir);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    return rmdir(dir);
}

static void listen_at(struct rig *r, const char *uds, const char *host)
{
    struct http_address a = { uds, host, 0 };
    struct err e = { 0 };

    assert_string_equal(http_server_url(r->server), "");
    assert_ok(http_server_listen(r->server, &a, &e), e);
}

/* A client through the listener: the Unix socket, or the port of an "http://" URL. */
static void dial(struct rig *r, struct client *c, const char *uds)
{
    struct sockaddr_un un = { .sun_family = AF_UNIX };
    struct sockaddr_in in = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    const char *colon = strrchr(http_server_url(r->server), ':');

    *c = (struct client){ .fd = socket(uds ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) };
    assert_true(c->fd >= 0);
    if (uds) {
        strcpy(un.sun_path, uds);
        assert_int_equal(connect(c->fd, (struct sockaddr *)&un, sizeof un), 0);
    } else {
        in.sin_port = htons((uint16_t)atoi(colon + 1));
        assert_int_equal(connect(c->fd, (struct sockaddr *)&in, sizeof in), 0);
    }
}

/* Whether the server has ended its output; data may still be on its way. */
static bool has_reply(struct rig *r, void *ctx)
{
    struct client *c = ctx;
    char piece[4096];
    ssize_t n = recv(c->fd, piece, sizeof piece, MSG_DONTWAIT);

    (void)r;
    if (n > 0)
        buf_put(&c->in, piece, (size_t)n);
    buf_grow(&c->in, 1);
    c->in.p[c->in.n] = '\0';
    c->eof = n == 0;
    return c->eof || strstr(c->in.p, "\r\n\r\n") != NULL;
}

static const char *ask(struct rig *r, struct client *c)
{
    static const char text[] = "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n";

    assert_int_equal(send(c->fd, text, sizeof text - 1, MSG_NOSIGNAL), sizeof text - 1);
    rig_wait(r, has_reply, c);
    return c->in.p;
}

TEST(a_tcp_address)
{
    struct rig r;
    struct client c;

    rig_open(&r, NULL);
    listen_at(&r, NULL, "127.0.0.1");
    assert_memory_equal(http_server_url(r.server), "http://127.0.0.1:", 17);
    assert_true(atoi(http_server_url(r.server) + 17) > 0); /* the port that was free */
    dial(&r, &c, NULL);
    assert_contains(ask(&r, &c), "HTTP/1.1 200 OK");
    assert_int_equal(r.peer, HTTP_PEER_LOOPBACK);
    client_close(&c);
    rig_close(&r);
}

TEST(all_addresses)
{
    struct rig r;
    struct client c;

    rig_open(&r, NULL);
    listen_at(&r, NULL, NULL);
    assert_memory_equal(http_server_url(r.server), "http://0.0.0.0:", 15);
    dial(&r, &c, NULL); /* by IPv4, which an IPv6 socket shows as ::ffff:127.0.0.1 */
    assert_contains(ask(&r, &c), "HTTP/1.1 200 OK");
    assert_int_equal(r.peer, HTTP_PEER_LOOPBACK);
    client_close(&c);
    rig_close(&r);
}

TEST(a_unix_socket)
{
    struct rig r;
    struct client c;
    char url[128];

    for (int round = 0; round < 2; round++) {
        rig_open(&r, NULL);
        listen_at(&r, path, NULL);
        snprintf(url, sizeof url, "unix:%s", path);
        assert_string_equal(http_server_url(r.server), url);
        dial(&r, &c, path);
        assert_contains(ask(&r, &c), "HTTP/1.1 200 OK");
        assert_int_equal(r.peer, HTTP_PEER_UNIX);
        client_close(&c);
        rig_close(&r);
        assert_int_not_equal(access(path, F_OK), 0); /* the file goes with the listener */
    }
}

/* A socket file whose program died is no obstacle; a file of another kind is. */
TEST(a_stale_socket_file)
{
    struct sockaddr_un un = { .sun_family = AF_UNIX };
    struct http_address a = { .uds = path };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct rig r;
    struct err e;

    strcpy(un.sun_path, path);
    assert_int_equal(bind(fd, (struct sockaddr *)&un, sizeof un), 0);
    close(fd);
    assert_int_equal(access(path, F_OK), 0);
    rig_open(&r, NULL);
    listen_at(&r, path, NULL);
    rig_close(&r);

    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
    rig_open(&r, NULL);
    assert_int_equal(http_server_listen(r.server, &a, &e), ERR_IO);
    assert_string_equal(e.param, "uds");
    assert_contains(e.message, path);
    rig_close(&r);
    assert_int_equal(unlink(path), 0); /* it was not ours to remove */
}

/* A path that the system would cut is refused, whole. */
TEST(a_path_that_is_too_long)
{
    enum { MOST = sizeof((struct sockaddr_un *)0)->sun_path - 1 };

    for (size_t n = MOST; n <= MOST + 2; n++) {
        char name[MOST + 3];
        struct http_address a = { .uds = name };
        struct rig r;
        struct err e = { 0 };
        int base = snprintf(name, sizeof name, "%s/", dir);
        memset(name + base, 'n', n - (size_t)base);
        name[n] = '\0';
        rig_open(&r, NULL);
        if (n <= MOST) {
            assert_ok(http_server_listen(r.server, &a, &e), e);
            assert_int_equal(access(name, F_OK), 0);
        } else {
            assert_int_equal(http_server_listen(r.server, &a, &e), ERR_INVALID);
            assert_string_equal(e.param, "uds");
            assert_contains(e.message, "expected at most 107");
        }
        rig_close(&r);
    }
}

TEST(addresses_that_cannot_be_had)
{
    struct rig first, second;
    struct http_address taken = { .host = "127.0.0.1" }, nowhere = { .host = "not-an-address" },
                        foreign = { .host = "192.0.2.1" };
    struct err e;

    rig_open(&first, NULL);
    listen_at(&first, NULL, "127.0.0.1");
    taken.port = (uint16_t)atoi(http_server_url(first.server) + 17);
    rig_open(&second, NULL);
    assert_int_equal(http_server_listen(second.server, &taken, &e), ERR_IO);
    assert_string_equal(e.param, "port");
    assert_contains(e.message, "cannot listen on 127.0.0.1 port");
    assert_int_equal(http_server_listen(second.server, &nowhere, &e), ERR_IO);
    assert_contains(e.message, "not-an-address");
    assert_int_equal(http_server_listen(second.server, &foreign, &e), ERR_IO);
    assert_string_equal(http_server_url(second.server), "");
    rig_close(&second);
    rig_close(&first);
}

TEST(more_connections_than_allowed)
{
    struct http_config cfg = { .max_connections = 2 };
    struct rig r;
    struct client c[3];

    rig_open(&r, &cfg);
    listen_at(&r, path, NULL);
    for (int i = 0; i < 2; i++) {
        dial(&r, &c[i], path);
        assert_contains(ask(&r, &c[i]), "HTTP/1.1 200 OK");
    }
    dial(&r, &c[2], path);
    rig_wait(&r, has_reply, &c[2]);
    assert_contains(c[2].in.p, "HTTP/1.1 503 Service Unavailable");
    assert_contains(c[2].in.p, "Retry-After: 5\r\n");
    rig_turn(&r);
    assert_int_equal(http_server_n_connections(r.server), 2);
    for (int i = 0; i < 3; i++)
        client_close(&c[i]);
    rig_close(&r);
}

TEST(loopback)
{
    static const struct {
        const char *address;
        bool loopback;
    } rows[] = {
        { "127.0.0.1", true },
        { "127.255.255.255", true },
        { "126.255.255.255", false },
        { "128.0.0.1", false },
        { "0.0.0.0", false },
        { "10.0.0.127", false },
        { "::1", true },
        { "::", false },
        { "::2", false },
        { "::ffff:127.0.0.1", true },
        { "::ffff:127.9.9.9", true },
        { "::ffff:10.0.0.1", false },
        { "::127.0.0.1", false },
        { "fe80::1", false },
        { "2001:db8::1", false },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sockaddr_storage a = { 0 };
        if (uv_ip4_addr(rows[i].address, 1, (struct sockaddr_in *)&a) != 0)
            assert_int_equal(uv_ip6_addr(rows[i].address, 1, (struct sockaddr_in6 *)&a), 0);
        if (listener_is_loopback((struct sockaddr *)&a) != rows[i].loopback)
            fail_msg("%s", rows[i].address);
    }
    assert_false(listener_is_loopback(&(struct sockaddr){ .sa_family = AF_UNIX }));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(a_tcp_address),
        RUN(all_addresses),
        RUN(a_unix_socket),
        RUN(a_stale_socket_file),
        RUN(a_path_that_is_too_long),
        RUN(addresses_that_cannot_be_had),
        RUN(more_connections_than_allowed),
        RUN(loopback),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
