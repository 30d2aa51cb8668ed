/* http_test.c: the request parser: any cut of the bytes gives the same requests,
 * limits, and mutated requests that must never be read in two ways. */
#include "support/test.h"

#include <stdio.h>

#include "server/http/parser.h"
#include "support/rng.h"

static const struct http_limits limits = { .head_bytes = 2048, .body_bytes = 4096 };

/* What a parser made of a whole connection, as text. */
struct story {
    char text[16384];
    size_t n;
};

static void tell(struct story *s, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void tell(struct story *s, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    s->n += (size_t)vsnprintf(s->text + s->n, sizeof s->text - s->n, fmt, ap);
    va_end(ap);
    if (s->n >= sizeof s->text)
        s->n = sizeof s->text - 1;
}

/* Feed one piece; false: the connection is over. */
static bool take(struct http_parser *p, struct story *s, const char *data, size_t n)
{
    size_t at = 0, used;

    for (;;) {
        enum parse_event ev = http_parser_feed(p, data + at, n - at, &used);
        assert_true(used <= n - at);
        at += used;
        switch (ev) {
        case PARSE_MORE:
            assert_int_equal(at, n);
            return true;
        case PARSE_HEAD:
            tell(s, "head %d %s?%s keep=%d continue=%d;", p->method, p->path, p->query,
                 p->keep_alive, p->expects_continue);
            break;
        case PARSE_MESSAGE:
            tell(s, "body %zu %.*s;", p->body.n, (int)p->body.n, p->body.p ? p->body.p : "");
            http_parser_next(p);
            break;
        case PARSE_BAD:
            tell(s, "bad %d;", p->status);
            assert_true(p->status >= 400 && p->problem);
            return false;
        }
    }
}

static void whole(struct story *s, const char *data, size_t n)
{
    struct http_parser p;

    s->n = 0;
    s->text[0] = '\0';
    http_parser_init(&p, &limits);
    take(&p, s, data, n);
    http_parser_fini(&p);
}

static void expect(const char *data, const char *want)
{
    struct story s;

    whole(&s, data, strlen(data));
    assert_string_equal(s.text, want);
}

#define HOST "Host: h\r\n"

TEST(requests)
{
    expect("GET /a%20b?q=%20 HTTP/1.1\r\n" HOST "\r\n",
           "head 1 /a b?q=%20 keep=1 continue=0;body 0 ;");
    expect("\r\nPOST http://h/x HTTP/1.1\r\n" HOST
           "Content-Length: 2\r\nExpect: 100-continue\r\n\r\nok",
           "head 4 /x? keep=1 continue=1;body 2 ok;");
    expect("POST / HTTP/1.1\r\n" HOST
           "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\n\r\n"
           "HEAD / HTTP/1.0\r\n\r\n",
           "head 4 /? keep=1 continue=0;body 3 abc;head 2 /? keep=0 continue=0;body 0 ;");
    expect("GET / HTTP/1.1\r\n" HOST "Connection: a, Close\r\n\r\n",
           "head 1 /? keep=0 continue=0;body 0 ;");
    expect("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
           "head 1 /? keep=1 continue=0;body 0 ;");
    expect("GET / HTTP/1.1\r\n" HOST
           "Upgrade: h2c\r\nConnection: Upgrade\r\n\r\nGET /2 HTTP/1.1\r\n" HOST "\r\n",
           "head 1 /? keep=1 continue=0;body 0 ;head 1 /2? keep=1 continue=0;body 0 ;");
}

TEST(refusals)
{
    expect("GET / HTTP/1.1\r\n\r\n", "bad 400;");
    expect("GET / HTTP/2.0\r\n" HOST "\r\n", "bad 505;");
    expect("GET /%zz HTTP/1.1\r\n" HOST "\r\n", "bad 400;");
    expect("GET /%00 HTTP/1.1\r\n" HOST "\r\n", "bad 400;");
    expect("\r\n\r\n\r\nGET / HTTP/1.1\r\n" HOST "\r\n", "bad 400;");
    expect("CONNECT h:80 HTTP/1.1\r\n" HOST "\r\n", "bad 405;");
    expect("POST / HTTP/1.1\r\n" HOST "Content-Length: 4097\r\n\r\n", "bad 413;");
    expect("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "bad 400;");
    expect("GET / HTTP/1.1\r\n" HOST "A: b\n\r\n", "bad 400;");
    expect("GET / HTTP/1.1\r\n" HOST "A: b\r\n c\r\n\r\n", "bad 400;");
    expect("GET / HTTP/1.1\r\n" HOST "A : b\r\n\r\n", "bad 400;");
    expect("\x16\x03\x01\x02", "bad 501;");
}

/* Feed all of a request; the status of its refusal, 0: complete, -1: more wanted. */
static int feed_all(struct http_parser *p, const char *data, size_t n)
{
    size_t used;

    for (size_t at = 0;; at += used) {
        enum parse_event ev = http_parser_feed(p, data + at, n - at, &used);
        if (ev == PARSE_BAD)
            return p->status;
        if (ev == PARSE_MESSAGE)
            return 0;
        if (ev == PARSE_MORE && at + used == n)
            return -1;
    }
}

TEST(bodies_share_their_memory)
{
    static const char length[] = "POST / HTTP/1.1\r\n" HOST "Content-Length: 6\r\n\r\n",
                      chunks[] = "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"
                                 "6\r\nabcdef\r\n0\r\n\r\n";
    struct http_budget all = { .max = 10 };
    struct http_limits lim = { .head_bytes = 2048, .body_bytes = 8, .bodies = &all };
    struct http_parser a, b;

    http_parser_init(&a, &lim);
    http_parser_init(&b, &lim);
    assert_int_equal(feed_all(&a, length, sizeof length - 1), -1);
    assert_int_equal(all.used, 0); /* a promise takes nothing */
    assert_int_equal(feed_all(&a, "abcdef", 6), 0);
    assert_int_equal(all.used, 6);
    assert_int_equal(feed_all(&b, length, sizeof length - 1), 503);
    http_parser_next(&b);
    assert_int_equal(feed_all(&b, chunks, sizeof chunks - 1), 503);
    assert_int_equal(all.used, 6);
    size_t n;
    free(http_parser_take_body(&a, &n)); /* still the connection's request */
    assert_int_equal(all.used, 6);
    http_parser_next(&a);
    assert_int_equal(all.used, 0);
    http_parser_next(&b);
    assert_int_equal(feed_all(&b, chunks, sizeof chunks - 1), 0);
    assert_int_equal(all.used, 6);
    http_parser_fini(&b);
    http_parser_fini(&a);
    assert_int_equal(all.used, 0);
}

TEST(head_limits)
{
    char data[8192];
    struct story s;
    int n = snprintf(data, sizeof data, "GET / HTTP/1.1\r\n" HOST "A: ");

    memset(data + n, 'x', 4000);
    whole(&s, data, (size_t)n + 4000);
    assert_string_equal(s.text, "bad 431;");
    n = snprintf(data, sizeof data, "GET / HTTP/1.1\r\n");
    for (int i = 0; i <= HTTP_MAX_FIELDS; i++)
        n += snprintf(data + n, sizeof data - (size_t)n, "A:b\r\n");
    whole(&s, data, (size_t)n);
    assert_string_equal(s.text, "bad 431;");
}

static const char *const seeds[] = {
    "POST /v1/completions HTTP/1.1\r\n" HOST
    "Content-Length: 5\r\nX: y z\r\n\r\nhelloGET /b HTTP/1.1\r\n" HOST "\r\n",
    "POST /x HTTP/1.1\r\n" HOST
    "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\na\r\n0123456789\r\n0\r\n\r\nGET /c "
    "HTTP/1.1\r\n" HOST "\r\n",
    ("GET /x?y HTTP/1.1\r\nHost: h\r\nConnection: keep-alive\r\nExpect: "
     "100-continue\r\nContent-Length: 1\r\n\r\nzHEAD / HTTP/1.0\r\n\r\n"),
};

/* Change a few bytes; returns the new length. */
static size_t mutate(struct rng *g, char *data, size_t n, size_t cap)
{
    static const char spice[] = "\r\n\t :;,0159+-xX\0\x80/%?";

    for (uint32_t k = rng_below(g, 4); k > 0; k--) {
        size_t at = rng_below(g, (uint32_t)n);
        char c = spice[rng_below(g, sizeof spice - 1)];
        if (rng_below(g, 3) == 0 && n + 1 < cap) {
            memmove(data + at + 1, data + at, n - at);
            data[at] = c;
            n++;
        } else if (rng_below(g, 2)) {
            data[at] = c;
        } else if (n > 1) {
            memmove(data + at, data + at + 1, n - at - 1);
            n--;
        }
    }
    return n;
}

TEST(how_bytes_are_cut_does_not_change_what_is_read)
{
    struct rng g = { 11 };

    for (int round = 0; round < 60000; round++) {
        char data[512];
        const char *seed = seeds[rng_below(&g, 3)];
        size_t n = strlen(seed), at = 0;
        struct story a, b = { .n = 0 };
        struct http_parser p;
        bool alive = true;

        memcpy(data, seed, n);
        n = mutate(&g, data, n, sizeof data);
        whole(&a, data, n);
        http_parser_init(&p, &limits);
        while (alive && at < n) {
            size_t part = 1 + rng_below(&g, rng_below(&g, 4) ? 3 : (uint32_t)(n - at));
            part = part > n - at ? n - at : part;
            /* exact copies, so that a read past the piece is seen */
            char *piece = malloc(part);
            memcpy(piece, data + at, part);
            alive = take(&p, &b, piece, part);
            free(piece);
            at += part;
        }
        http_parser_fini(&p);
        assert_string_equal(a.text, b.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(requests),
        RUN(refusals),
        RUN(bodies_share_their_memory),
        RUN(head_limits),
        RUN(how_bytes_are_cut_does_not_change_what_is_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
