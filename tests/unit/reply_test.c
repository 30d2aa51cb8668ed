/* reply_test.c: what is written for each way to answer: heads byte for byte, errors,
 * streams, header lines that cannot be sent. */
#include "support/test.h"

#include <stdio.h>

#include "support/http_rig.h"

/* A rig with one exchange that waits for its answer. */
struct scene {
    struct rig r;
    struct client c;
    struct exchange *x;
};

static void open_scene(struct scene *s, const struct http_config *cfg, const char *request)
{
    rig_open(&s->r, cfg);
    rig_connect(&s->r, &s->c, HTTP_PEER_UNIX);
    rig_tell(&s->r, &s->c, request);
    s->x = s->r.held[0];
    assert_non_null(s->x);
}

/* What the client got, without its Date. */
static const char *close_scene(struct scene *s)
{
    static char out[8192];
    const char *in, *date;

    rig_turn(&s->r);
    in = client_read(&s->c);
    assert_true(s->c.in.n < sizeof out);
    date = strstr(in, "Date: ");
    assert_non_null(date);
    snprintf(out, sizeof out, "%.*s%s", (int)(date - in), in, strstr(date, "\r\n") + 2);
    client_close(&s->c);
    rig_turn(&s->r);
    rig_close(&s->r);
    return out;
}

#define GET    "GET /hold HTTP/1.1\r\nHost: h\r\nx-request-id: my-id\r\n\r\n"
#define GET_10 "GET /hold HTTP/1.0\r\n\r\n"
#define HEAD   "HEAD /hold HTTP/1.1\r\nHost: h\r\n\r\n"

/* ----------------------------------------------------------- whole replies */

TEST(whole_replies)
{
    static const struct {
        const char *request;
        int status;
        const char *type, *body, *text;
    } rows[] = {
        { GET, 200, CONTENT_JSON, "{}",
          "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}" },
        { GET, 200, CONTENT_JSON, "", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" },
        { GET, 204, NULL, "", "HTTP/1.1 204 No Content\r\n\r\n" },
        { GET, 299, CONTENT_TEXT, "x",
          "HTTP/1.1 299 Error\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 1\r\n"
          "\r\nx" },
        { HEAD, 200, CONTENT_JSON, "{}",
          "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n" },
        { GET_10, 200, CONTENT_JSON, "{}",
          "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
          "Connection: close\r\n\r\n{}" },
        { "GET /hold HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", 200, NULL, "",
          "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n" },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct scene s;
        open_scene(&s, NULL, rows[i].request);
        reply_body(s.x, rows[i].status, rows[i].type, rows[i].body, strlen(rows[i].body));
        assert_int_equal(s.x->status, rows[i].status);
        assert_string_equal(close_scene(&s), rows[i].text);
    }
}

TEST(a_body_that_could_not_be_built_is_a_500)
{
    struct buf good = { 0 }, bad = { .max = 3 };
    struct scene s;

    BUF_LIT(&good, "{\"a\":1}");
    BUF_LIT(&bad, "{\"a\":1}");
    assert_true(bad.failed);
    open_scene(&s, NULL, GET);
    reply_out(s.x, 200, CONTENT_JSON, &good);
    assert_contains(close_scene(&s), "HTTP/1.1 200 OK\r\n");
    open_scene(&s, NULL, GET);
    reply_out(s.x, 200, CONTENT_JSON, &bad);
    const char *text = close_scene(&s);
    assert_contains(text, "HTTP/1.1 500 Internal Server Error\r\n");
    assert_contains(text, "out of memory");
    buf_fini(&good);
    buf_fini(&bad);
}

TEST(errors)
{
    static const struct {
        enum err_code code;
        const char *status, *header; /* of the reply; NULL: none that tells of retries */
    } rows[] = {
        { ERR_BUSY, "429 Too Many Requests", "Retry-After: 1\r\n" },
        { ERR_DRAINING, "503 Service Unavailable", "Retry-After: 5\r\n" },
        { ERR_INVALID, "400 Bad Request", NULL },
        { ERR_LIMIT, "400 Bad Request", NULL },
        { ERR_NOT_FOUND, "404 Not Found", NULL },
        { ERR_CONFLICT, "409 Conflict", "x-should-retry: false\r\n" },
        { ERR_TOO_LARGE, "413 Content Too Large", NULL },
        { ERR_IO, "500 Internal Server Error", NULL },
        { ERR_GPU, "500 Internal Server Error", NULL },
        { ERR_NOMEM, "500 Internal Server Error", NULL },
        { ERR_INTERNAL, "500 Internal Server Error", NULL },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct scene s;
        struct err e;
        char head[64];
        open_scene(&s, NULL, GET);
        err_set(&e, rows[i].code, "field: found x, expected y");
        reply_err(s.x, &e);
        const char *text = close_scene(&s);
        snprintf(head, sizeof head, "HTTP/1.1 %s\r\n", rows[i].status);
        assert_contains(text, head);
        assert_contains(text, "\r\n\r\nfield: found x, expected y");
        if (rows[i].header)
            assert_contains(text, rows[i].header);
        else
            assert_null(strstr(text, "etry"));
    }
}

/* An error's own body may fail, too: its status still arrives. */
static void write_nothing(struct buf *o, int status, const char *code, const char *message)
{
    (void)status;
    (void)code;
    (void)message;
    o->failed = true;
}

TEST(an_error_whose_body_fails)
{
    struct scene s;

    open_scene(&s, NULL, GET);
    s.r.server->cfg.write_status = write_nothing;
    reply_error(s.x, 401, NULL, "no");
    const char *text = close_scene(&s);
    assert_contains(text, "HTTP/1.1 401 Unauthorized\r\n");
    assert_contains(text, "\r\n\r\n{}");
}

/* ------------------------------------------------------------- header lines */

TEST(header_lines)
{
    struct scene s;

    open_scene(&s, NULL, GET);
    assert_true(reply_header(s.x, "Allow", "%s, %d", "GET", 7));
    assert_true(reply_header(s.x, "X-Tab", "a\tb"));
    assert_true(reply_header(s.x, "X-Utf8", "é"));
    reply_body(s.x, 200, NULL, NULL, 0);
    assert_string_equal(close_scene(&s), "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n"
                                         "Allow: GET, 7\r\nX-Tab: a\tb\r\nX-Utf8: é\r\n\r\n");
}

TEST(a_line_with_a_control_character_is_left_out)
{
    static const char *const values[] = { "a\r\nEvil: 1", "a\nb", "a\rb", "\x01", "\x7f", "a\x1b" };

    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        struct scene s;
        char log[1024];
        open_scene(&s, NULL, GET);
        assert_false(reply_header(s.x, "X-Bad", "%s", values[i]));
        assert_contains(rig_log(&s.r, log, sizeof log),
                        "header X-Bad left out: it holds a control");
        assert_true(reply_header(s.x, "X-Good", "1"));
        reply_body(s.x, 200, NULL, NULL, 0);
        assert_string_equal(close_scene(&s),
                            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Good: 1\r\n\r\n");
    }
}

/* A line is sent whole or not at all: of every length around what fits. */
TEST(a_line_that_does_not_fit_is_left_out_whole)
{
    static char value[EXTRA_HEADER_BYTES + 9];

    for (size_t n = EXTRA_HEADER_BYTES - 12; n < EXTRA_HEADER_BYTES + 8; n++) {
        bool fits = n + strlen("X: \r\n") <= EXTRA_HEADER_BYTES;
        struct scene s;
        char log[1024];
        open_scene(&s, NULL, GET);
        memset(value, 'v', n);
        value[n] = '\0';
        assert_int_equal(reply_header(s.x, "X", "%s", value), fits);
        assert_int_equal(strstr(rig_log(&s.r, log, sizeof log), "header X left out: ") == NULL,
                         fits);
        assert_int_equal(reply_header(s.x, "Y", "1"),
                         !fits || n + strlen("X: \r\nY: 1\r\n") <= EXTRA_HEADER_BYTES);
        reply_body(s.x, 200, NULL, NULL, 0);
        const char *text = close_scene(&s);
        assert_int_equal(strstr(text, value) != NULL, fits);
        assert_int_equal(strstr(text, "v") != NULL, fits);
        assert_contains(text, "\r\n\r\n");
    }
}

TEST(request_ids)
{
    static const struct {
        const char *field, *id; /* id NULL: one is made */
    } rows[] = {
        { "x-request-id: abc-1.2/3\r\n", "abc-1.2/3" },
        { "X-Request-ID: abc\r\n", "abc" },
        { "x-request-id: a b\r\n", NULL },
        { "x-request-id: \xc3\xa9\r\n", NULL },
        { "x-request-id:\r\n", NULL },
        { "", NULL },
    };
    struct http_config with = { .request_id_headers = true };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct scene s;
        char request[256], line[256];
        snprintf(request, sizeof request, "GET /hold HTTP/1.1\r\nHost: h\r\n%s\r\n", rows[i].field);
        open_scene(&s, &with, request);
        if (rows[i].id)
            assert_string_equal(s.x->request_id, rows[i].id);
        else
            assert_memory_equal(s.x->request_id, "req-", 4);
        snprintf(line, sizeof line, "\r\nx-request-id: %s\r\n", s.x->request_id);
        reply_body(s.x, 200, NULL, NULL, 0);
        assert_contains(close_scene(&s), line);
    }
    for (size_t n = REQUEST_ID_BYTES - 1; n <= REQUEST_ID_BYTES + 1; n++) {
        struct scene s;
        char request[512];
        snprintf(request, sizeof request,
                 "GET /hold HTTP/1.1\r\nHost: h\r\nx-request-id: %0*d\r\n\r\n", (int)n, 7);
        open_scene(&s, NULL, request);
        if (n <= REQUEST_ID_BYTES)
            assert_int_equal(strlen(s.x->request_id), n);
        else
            assert_memory_equal(s.x->request_id, "req-", 4);
        reply_body(s.x, 200, NULL, NULL, 0);
        assert_null(strstr(close_scene(&s), "x-request-id"));
    }
}

/* --------------------------------------------------------------- streams */

static const char *stream(const char *request)
{
    struct scene s;

    open_scene(&s, NULL, request);
    reply_stream_begin(s.x, "text/event-stream");
    assert_int_equal(s.x->status, 200);
    assert_true(reply_stream_data(s.x, "abc", 3));
    assert_true(reply_stream_data(s.x, "", 0)); /* no chunk of no bytes: it would end the body */
    assert_true(reply_stream_data(s.x, "0123456789abcdef", 16));
    reply_stream_end(s.x);
    return close_scene(&s);
}

#define STREAM_FIELDS "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n\r\n"

TEST(streams)
{
    assert_string_equal(stream(GET), "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                                     "Transfer-Encoding: chunked\r\n" STREAM_FIELDS
                                     "3\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n");
    assert_string_equal(stream(GET_10),
                        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                        "Connection: close\r\n" STREAM_FIELDS "abc0123456789abcdef");
    assert_string_equal(stream(HEAD), "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                                      "Transfer-Encoding: chunked\r\n" STREAM_FIELDS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(whole_replies),
        RUN(a_body_that_could_not_be_built_is_a_500),
        RUN(errors),
        RUN(an_error_whose_body_fails),
        RUN(header_lines),
        RUN(a_line_with_a_control_character_is_left_out),
        RUN(a_line_that_does_not_fit_is_left_out_whole),
        RUN(request_ids),
        RUN(streams),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
