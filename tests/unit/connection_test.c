/* connection_test.c: one connection in each of its states: requests cut anywhere,
 * pipelined, refused, late; clients that leave, read slowly or not at all. */
#include "support/test.h"

#include <stdio.h>
#include <sys/socket.h>

#include "server/base/clock.h"
#include "support/http_rig.h"

#define ECHO_OF(body, length)                                                                      \
    "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: " length "\r\n\r\n" body
#define HOLD "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n"

static size_t count(const char *text, const char *what)
{
    size_t n = 0;

    for (const char *p = text; (p = strstr(p, what)) != NULL; p += strlen(what))
        n++;
    return n;
}

static void assert_lacks(const char *text, const char *what)
{
    if (strstr(text, what))
        fail_msg("\"%s\" contains \"%s\"", text, what);
}

static bool all_closed(struct rig *r, void *ctx)
{
    (void)ctx;
    return http_server_n_connections(r->server) == 0;
}

/* Read on until the server has ended its output. */
static bool has_ended(struct rig *r, void *ctx)
{
    (void)r;
    client_read(ctx);
    return ((struct client *)ctx)->eof;
}

/* One request of a rig's own on one connection; what came back, to be freed. */
static char *answer_to(const struct http_config *cfg, const char *text, bool *closed)
{
    struct rig r;
    struct client c;
    char *copy;

    rig_open(&r, cfg);
    rig_connect(&r, &c, HTTP_PEER_UNIX);
    copy = strdup(rig_tell(&r, &c, text));
    assert_non_null(copy);
    *closed = c.eof;
    client_close(&c);
    rig_close(&r);
    return copy;
}

/* ------------------------------------------------------ requests and replies */

TEST(pipelined_requests_are_answered_in_order)
{
    struct rig r;
    struct client c;
    const char *a, *b, *d;

    rig_open(&r, NULL);
    rig_connect(&r, &c, HTTP_PEER_UNIX);
    const char *in = rig_tell(&r, &c, ECHO_OF("first", "5") HOLD ECHO_OF("third", "5"));
    assert_contains(in, "first");
    assert_lacks(in, "third"); /* one request at a time */
    assert_int_equal(r.n_requests, 2);
    reply_body(r.held[0], 200, CONTENT_TEXT, "second", 6);
    assert_int_equal(r.n_requests, 2); /* nobody else is served inside a reply */
    rig_turn(&r);
    in = client_read(&c);
    a = strstr(in, "first");
    b = strstr(in, "second");
    d = strstr(in, "third");
    assert_true(a && b && d && a < b && b < d);
    assert_int_equal(count(in, "HTTP/1.1 200 OK"), 3);
    assert_false(c.eof);
    client_close(&c);
    rig_close(&r);
}

TEST(requests_may_be_cut_anywhere)
{
    static const char text[] =
        ECHO_OF("hello", "5") "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
                              "3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n" ECHO_OF("", "0");
    struct rig r;
    struct client c;
    const char *in = "";

    rig_open(&r, NULL);
    rig_connect(&r, &c, HTTP_PEER_UNIX);
    for (size_t i = 0; i < sizeof text - 1; i++)
        in = rig_say(&r, &c, text + i, 1);
    assert_int_equal(count(in, "HTTP/1.1 200 OK"), 3);
    assert_contains(in, "Content-Length: 5\r\n\r\nhello");
    assert_contains(in, "Content-Length: 5\r\n\r\nabcde");
    assert_contains(in, "Content-Length: 0\r\n\r\n");
    assert_int_equal(r.n_heads, 1); /* for the body of unknown length; small ones are taken */
    client_close(&c);
    rig_close(&r);
}

TEST(expect_100_continue)
{
    struct rig r;
    struct client c;
    const char *in;
    bool closed;

    rig_open(&r, NULL);
    rig_connect(&r, &c, HTTP_PEER_UNIX);
    in = rig_tell(&r, &c,
                  "POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n"
                  "Content-Length: 5\r\n\r\n");
    assert_string_equal(in, "HTTP/1.1 100 Continue\r\n\r\n");
    assert_int_equal(r.n_heads, 1);
    in = rig_tell(&r, &c, "hello");
    assert_contains(in, "Continue\r\n\r\nHTTP/1.1 200 OK\r\n");
    assert_contains(in, "\r\n\r\nhello");
    assert_lacks(in, "Connection: close");
    client_close(&c);
    rig_close(&r);

    char *refused = answer_to(NULL,
                              "POST /refuse HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n"
                              "Content-Length: 5\r\n\r\n",
                              &closed);
    assert_contains(refused, "HTTP/1.1 403 Forbidden\r\n");
    assert_contains(refused, "Connection: close\r\n");
    assert_lacks(refused, "Continue");
    assert_true(closed);
    free(refused);
}

/* Whether a connection outlives its request is the request's choice, however large
 * its body is. */
TEST(keep_alive_and_close)
{
    static const struct {
        const char *head;
        bool closes;
        const char *says;
    } rows[] = {
        { "HTTP/1.1\r\nHost: h\r\n", false, NULL },
        { "HTTP/1.1\r\nHost: h\r\nConnection: close\r\n", true, "Connection: close" },
        { "HTTP/1.1\r\nHost: h\r\nConnection: TE, Close\r\n", true, "Connection: close" },
        { "HTTP/1.0\r\n", true, "Connection: close" },
        { "HTTP/1.0\r\nConnection: keep-alive\r\n", false, "Connection: keep-alive" },
    };
    static const size_t bodies[] = { 0, 10, 64 * 1024, 64 * 1024 + 1, 200000 };
    static char text[300000];

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t k = 0; k < sizeof bodies / sizeof *bodies; k++) {
            bool closed;
            int n = snprintf(text, sizeof text, "POST /echo %sContent-Length: %zu\r\n\r\n",
                             rows[i].head, bodies[k]);
            memset(text + n, 'x', bodies[k]);
            text[(size_t)n + bodies[k]] = '\0';
            char *in = answer_to(NULL, text, &closed);
            assert_contains(in, "200 OK");
            assert_int_equal(closed, rows[i].closes);
            if (rows[i].says)
                assert_contains(in, rows[i].says);
            else
                assert_lacks(in, "Connection:");
            free(in);
        }
}

TEST(refused_input_is_answered_and_ends_the_connection)
{
    static const struct {
        const char *text, *status;
    } rows[] = {
        { "nonsense\r\n\r\n", "501" },
        { "GET / HTTP/1.1\n\n", "400" },
        { "GET / HTTP/1.1\r\n\r\n", "400" },
        { "GET / HTTP/2.0\r\nHost: h\r\n\r\n", "505" },
        { "GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n", "400" },
        { "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx", "400" },
        { "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n", "400" },
        { "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "400" },
        { "POST / HTTP/1.1\r\nHost: h\r\nExpect: tea\r\nContent-Length: 1\r\n\r\n", "417" },
        { "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 65\r\n\r\n", "413" },
        { "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n41\r\n"
          "00000000000000000000000000000000000000000000000000000000000000000\r\n",
          "413" },
        { "GET / HTTP/1.1\r\nHost: h\r\nX: 0000000000000000000000000000000000000000000000000"
          "00000000000000000000000000000000000000000000000000000000000000000000\r\n\r\n",
          "431" },
    };
    struct http_config cfg = { .max_header_bytes = 128, .max_body_bytes = 64 };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[1024], want[32];
        bool closed;
        snprintf(text, sizeof text, "%sGET /echo HTTP/1.1\r\nHost: h\r\n\r\n", rows[i].text);
        snprintf(want, sizeof want, "HTTP/1.1 %s ", rows[i].status);
        char *in = answer_to(&cfg, text, &closed);
        assert_memory_equal(in, want, strlen(want));
        assert_contains(in, "Connection: close\r\n");
        assert_int_equal(count(in, "Date: "), 1); /* what follows is not read */
        assert_true(closed);
        free(in);
    }
}

TEST(bodies_share_a_bound)
{
    struct http_config cfg = { .max_total_body_bytes = 12 };
    struct rig r;
    struct client c[3];

    rig_open(&r, &cfg);
    for (int i = 0; i < 3; i++)
        rig_connect(&r, &c[i], HTTP_PEER_UNIX);
    rig_tell(&r, &c[0], "POST /hold HTTP/1.1\r\nHost: h\r\nContent-Length: 8\r\n\r\n12345678");
    const char *in = rig_tell(&r, &c[1], ECHO_OF("hello", "5"));
    assert_contains(in, "HTTP/1.1 503 ");
    assert_contains(in, "Retry-After: 5\r\n");
    reply_body(r.held[0], 200, NULL, NULL, 0); /* its body's share is free again */
    rig_turn(&r);
    assert_contains(rig_tell(&r, &c[2], ECHO_OF("hello", "5")), "hello");
    /* And with the reply, not only once its client has closed. */
    rig_tell(&r, &c[2],
             "POST /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
             "Content-Length: 8\r\n\r\n12345678");
    assert_int_equal(c[2].conn->state, CONN_LINGER);
    assert_int_equal(r.server->bodies.used, 0);
    for (int i = 0; i < 3; i++)
        client_close(&c[i]);
    rig_turn(&r);
    rig_close(&r);
}

/* A request begins at its first byte, not when the connection fell idle. */
TEST(a_request_begins_at_its_first_byte)
{
    struct rig r;
    struct client c;

    rig_open(&r, NULL);
    rig_connect(&r, &c, HTTP_PEER_UNIX);
    for (int i = 0; i < 3; i++) {
        uint64_t before = srv_now_us();
        rig_tell(&r, &c, ECHO_OF("x", "1"));
        assert_int_equal(r.n_requests, i + 1);
        assert_true(r.began_us >= before && r.began_us <= srv_now_us());
    }
    client_close(&c);
    rig_close(&r);
}

TEST(peers_are_told)
{
    struct rig r;

    rig_open(&r, NULL);
    for (enum http_peer peer = HTTP_PEER_REMOTE; peer <= HTTP_PEER_UNIX; peer++) {
        struct client c;
        rig_connect(&r, &c, peer);
        rig_tell(&r, &c, ECHO_OF("x", "1") ECHO_OF("x", "1"));
        assert_int_equal(r.peer, peer);
        client_close(&c);
    }
    rig_close(&r);
}

/* ------------------------------------------------------ clients that leave */

/* What a client sent before it left, and what is known of it then. */
static const struct leaving {
    const char *sent;
    enum conn_state state;
    uint32_t n_gone;
} leavings[] = {
    { "", CONN_IDLE, 0 },
    { "GET /echo HT", CONN_HEAD, 0 },
    { "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhe", CONN_BODY, 0 },
    { HOLD, CONN_BUSY, 1 },
    { HOLD ECHO_OF("waits", "5"), CONN_BUSY, 1 },
    { ECHO_OF("hello", "5"), CONN_IDLE, 0 },
    { "GET /echo HTTP/1.0\r\n\r\n", CONN_LINGER, 0 },
};

TEST(clients_may_leave_in_every_state)
{
    for (size_t i = 0; i < sizeof leavings / sizeof *leavings; i++) {
        const struct leaving *l = &leavings[i];
        struct rig r;
        struct client c;
        rig_open(&r, NULL);
        rig_connect(&r, &c, HTTP_PEER_UNIX);
        rig_tell(&r, &c, l->sent);
        assert_int_equal(c.conn->state, l->state);
        assert_int_equal(http_server_n_connections(r.server), 1);
        client_close(&c);
        rig_turn(&r);
        assert_int_equal(http_server_n_connections(r.server), 0);
        assert_int_equal(r.n_gone, l->n_gone);
        rig_close(&r);
        assert_int_equal(r.n_gone, l->n_gone); /* once */
    }
}

/* And so may the server. */
TEST(the_server_may_close_in_every_state)
{
    for (size_t i = 0; i < sizeof leavings / sizeof *leavings; i++) {
        struct rig r;
        struct client c;
        rig_open(&r, NULL);
        rig_connect(&r, &c, HTTP_PEER_UNIX);
        rig_tell(&r, &c, leavings[i].sent);
        rig_close(&r);
        assert_int_equal(r.n_gone, leavings[i].n_gone);
        client_read(&c);
        assert_true(c.eof);
        client_close(&c);
    }
}

TEST(a_complete_reply_reaches_a_client_that_half_closed)
{
    struct rig r;
    struct client c;
    const char *in;

    rig_open(&r, NULL);
    rig_connect(&r, &c, HTTP_PEER_UNIX);
    assert_true(send(c.fd, ECHO_OF("hello", "5"), strlen(ECHO_OF("hello", "5")), 0) > 0);
    shutdown(c.fd, SHUT_WR);
    rig_turn(&r);
    in = client_read(&c);
    assert_contains(in, "hello");
    assert_true(c.eof);
    assert_int_equal(http_server_n_connections(r.server), 0);
    client_close(&c);

    rig_connect(&r, &c, HTTP_PEER_UNIX); /* a large one, which the socket takes in parts */
    assert_true(send(c.fd, "GET /big?3000000 HTTP/1.1\r\nHost: h\r\n\r\n", 38, 0) == 38);
    shutdown(c.fd, SHUT_WR);
    rig_wait(&r, has_ended, &c);
    assert_true(c.in.n > 3000000);
    client_close(&c);
    rig_close(&r);
}

/* The reply's end still waits in memory, and the connection for its next request. */
TEST(a_reply_on_its_way_reaches_a_client_that_half_closed)
{
    bool found = false;

    for (size_t n = 100000; n < 1000000 && !found; n += 20000) {
        struct rig r;
        struct client c;
        char text[64];
        snprintf(text, sizeof text, "GET /big?%zu HTTP/1.1\r\nHost: h\r\n\r\n", n);
        rig_open(&r, NULL);
        rig_connect(&r, &c, HTTP_PEER_UNIX);
        assert_true(send(c.fd, text, strlen(text), 0) > 0);
        rig_turn(&r);
        found = c.conn->state == CONN_IDLE && conn_unsent(c.conn) > 0;
        shutdown(c.fd, SHUT_WR);
        rig_turn(&r);
        rig_wait(&r, has_ended, &c);
        assert_true(c.in.n > n);
        client_close(&c);
        rig_close(&r);
    }
    assert_true(found);
}

TEST(a_half_close_cancels_what_is_not_answered)
{
    struct rig r;
    struct client c;

    rig_open(&r, NULL);
    rig_connect(&r, &c, HTTP_PEER_UNIX);
    rig_tell(&r, &c, HOLD);
    shutdown(c.fd, SHUT_WR);
    rig_turn(&r);
    assert_int_equal(r.n_gone, 1);
    client_read(&c);
    assert_true(c.eof);
    client_close(&c);
    rig_close(&r);
}

/* ------------------------------------------------------- bounds on memory */

TEST(a_stream_to_a_reader_that_stays_behind_is_dropped)
{
    struct http_config cfg = { .stream_buffer_bytes = 100000 };
    static const char piece[1000];
    struct rig r;
    struct client c;
    char log[4096];
    int n = 0;

    rig_open(&r, &cfg);
    rig_connect(&r, &c, HTTP_PEER_UNIX);
    rig_tell(&r, &c, HOLD);
    reply_stream_begin(r.held[0], CONTENT_TEXT);
    for (; r.held[0] && reply_stream_data(r.held[0], piece, sizeof piece); n++) {
        assert_true(conn_unsent(c.conn) <= 100000 + 2 * 1024);
        assert_true(n < 10000);
    }
    assert_int_equal(r.n_gone, 1);
    assert_true(n >= 100); /* what is allowed, at least, was taken */
    assert_contains(rig_log(&r, log, sizeof log), "behind: dropped");
    rig_turn(&r);
    assert_int_equal(http_server_n_connections(r.server), 0);
    client_close(&c);
    rig_close(&r);
}

TEST(a_stream_to_a_client_that_left)
{
    struct rig r;
    struct client c;

    rig_open(&r, NULL);
    rig_connect(&r, &c, HTTP_PEER_UNIX);
    rig_tell(&r, &c, HOLD);
    reply_stream_begin(r.held[0], CONTENT_TEXT);
    assert_true(reply_stream_data(r.held[0], "abc", 3));
    client_close(&c);
    rig_turn(&r); /* the write fails, or the end of input is seen: once */
    assert_null(r.held[0]);
    assert_int_equal(r.n_gone, 1);
    rig_close(&r);
}

TEST(a_reader_that_takes_nothing_is_dropped)
{
    struct http_config cfg = { .write_timeout_s = 0.02 };
    struct rig r;
    struct client c;
    char log[4096];

    rig_open(&r, &cfg);
    rig_connect(&r, &c, HTTP_PEER_UNIX);
    assert_true(send(c.fd, "GET /big?3000000 HTTP/1.1\r\nHost: h\r\n\r\n", 38, 0) == 38);
    rig_wait(&r, all_closed, NULL);
    assert_contains(rig_log(&r, log, sizeof log), "a client read nothing for 0.02 s: dropped");
    client_close(&c);
    rig_close(&r);
}

/* Replies that nobody reads hold back the next requests, so that they do not pile up;
 * none is lost. */
TEST(unread_replies_hold_back_pipelined_requests)
{
    enum { N = 1500, BODY = 4096 };
    static const char request[] = "GET /big?4096 HTTP/1.1\r\nHost: h\r\n\r\n";
    struct rig r;
    struct client c;
    size_t sent = 0, n = sizeof request - 1, total = N * n;
    int turns = 0;

    rig_open(&r, NULL);
    rig_connect(&r, &c, HTTP_PEER_UNIX);
    for (int full = 0; sent < total && full < 3; rig_turn(&r)) { /* as much as is taken */
        ssize_t got = send(c.fd, request + sent % n, n - sent % n, MSG_NOSIGNAL);
        sent += got > 0 ? (size_t)got : 0;
        full = got > 0 ? 0 : full + 1;
        assert_true(conn_unsent(c.conn) <= UNSENT_BYTES + BODY + 1024);
        assert_true(c.conn->in.n <= 2 * STASH_BYTES);
    }
    assert_true(r.n_requests < N);
    while (r.n_requests < N || conn_unsent(c.conn) > 0) {
        client_read(&c);
        if (sent < total) {
            ssize_t got = send(c.fd, request + sent % n, n - sent % n, MSG_NOSIGNAL);
            sent += got > 0 ? (size_t)got : 0;
        }
        rig_turn(&r);
        assert_true(++turns < 100000);
    }
    assert_int_equal(count(client_read(&c), "HTTP/1.1 200 OK"), N);
    assert_int_equal(c.conn->state, CONN_IDLE);
    client_close(&c);
    rig_close(&r);
}

/* Behind a request that is being answered, reading pauses once enough waits. */
TEST(waiting_input_is_bounded)
{
    struct rig r;
    struct client c;
    static char junk[65536];
    size_t sent = 0;

    rig_open(&r, NULL);
    rig_connect(&r, &c, HTTP_PEER_UNIX);
    rig_tell(&r, &c, HOLD);
    for (int full = 0; full < 3; rig_turn(&r)) {
        ssize_t got = send(c.fd, junk, sizeof junk, MSG_NOSIGNAL);
        sent += got > 0 ? (size_t)got : 0;
        full = got > 0 ? 0 : full + 1;
        assert_true(c.conn->in.n < 2 * STASH_BYTES + 1);
        assert_true(sent < 1 << 26);
    }
    assert_true(c.conn->read_paused);
    reply_body(r.held[0], 200, NULL, NULL, 0);
    rig_turn(&r);
    assert_contains(client_read(&c), "HTTP/1.1 501 "); /* what waited was no request */
    client_close(&c);
    rig_close(&r);
}

/* ------------------------------------------------------------- deadlines */

TEST(deadlines)
{
    static const struct {
        const char *sent, *answer;
        double header, body, idle;
    } rows[] = {
        { "", "", 600, 600, 0.02 },
        { "GET /ec", "HTTP/1.1 408 ", 0.02, 600, 600 },
        { "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhe", "HTTP/1.1 408 ", 600,
          0.02, 600 },
        { ECHO_OF("hello", "5"), "HTTP/1.1 200 ", 600, 600, 0.02 },
        { ECHO_OF("hello", "5") "GET /ec", "HTTP/1.1 200 ", 0.02, 600, 600 },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct http_config cfg = { .header_timeout_s = rows[i].header,
                                   .body_timeout_s = rows[i].body,
                                   .idle_timeout_s = rows[i].idle };
        struct rig r;
        struct client c;
        rig_open(&r, &cfg);
        rig_connect(&r, &c, HTTP_PEER_UNIX);
        rig_tell(&r, &c, rows[i].sent);
        rig_wait(&r, has_ended, &c);
        assert_memory_equal(c.in.p ? c.in.p : "", rows[i].answer, strlen(rows[i].answer));
        client_close(&c);
        rig_close(&r);
    }
}

/* A request that is being answered has no deadline of ours. */
TEST(a_running_request_outlives_the_deadlines)
{
    struct http_config cfg = { .header_timeout_s = 0.01,
                               .body_timeout_s = 0.01,
                               .idle_timeout_s = 0.02 };
    struct rig r;
    struct client held, idle;

    rig_open(&r, &cfg);
    rig_connect(&r, &held, HTTP_PEER_UNIX);
    rig_tell(&r, &held, "POST /hold HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx");
    rig_connect(&r, &idle, HTTP_PEER_UNIX); /* later, with a longer deadline */
    rig_wait(&r, has_ended, &idle);
    rig_turn(&r);
    assert_int_equal(http_server_n_connections(r.server), 1);
    reply_body(r.held[0], 200, CONTENT_TEXT, "late", 4);
    rig_turn(&r);
    assert_contains(client_read(&held), "late");
    client_close(&held);
    client_close(&idle);
    rig_close(&r);
}

TEST(a_draining_server_closes_after_the_reply)
{
    struct rig r;
    struct client c, d;

    rig_open(&r, NULL);
    rig_connect(&r, &c, HTTP_PEER_UNIX);
    rig_connect(&r, &d, HTTP_PEER_UNIX);
    rig_tell(&r, &c, HOLD ECHO_OF("never", "5"));
    rig_tell(&r, &d, HOLD);
    reply_stream_begin(r.held[1], CONTENT_TEXT); /* promised to keep the connection */
    http_server_drain(r.server);
    reply_body(r.held[0], 200, CONTENT_TEXT, "last", 4);
    reply_stream_end(r.held[1]);
    assert_false(http_server_all_sent(r.server));
    rig_turn(&r);
    assert_true(http_server_all_sent(r.server));
    assert_contains(client_read(&c), "Connection: close\r\n");
    assert_contains(c.in.p, "last");
    assert_lacks(c.in.p, "never");
    assert_contains(client_read(&d), "\r\n0\r\n\r\n");
    assert_true(c.eof && d.eof);
    client_close(&c);
    client_close(&d);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(pipelined_requests_are_answered_in_order),
        RUN(requests_may_be_cut_anywhere),
        RUN(expect_100_continue),
        RUN(keep_alive_and_close),
        RUN(refused_input_is_answered_and_ends_the_connection),
        RUN(bodies_share_a_bound),
        RUN(a_request_begins_at_its_first_byte),
        RUN(peers_are_told),
        RUN(clients_may_leave_in_every_state),
        RUN(the_server_may_close_in_every_state),
        RUN(a_complete_reply_reaches_a_client_that_half_closed),
        RUN(a_reply_on_its_way_reaches_a_client_that_half_closed),
        RUN(a_half_close_cancels_what_is_not_answered),
        RUN(a_stream_to_a_reader_that_stays_behind_is_dropped),
        RUN(a_stream_to_a_client_that_left),
        RUN(a_reader_that_takes_nothing_is_dropped),
        RUN(unread_replies_hold_back_pipelined_requests),
        RUN(waiting_input_is_bounded),
        RUN(deadlines),
        RUN(a_running_request_outlives_the_deadlines),
        RUN(a_draining_server_closes_after_the_reply),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
