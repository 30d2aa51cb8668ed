/* http_fuzz.c: the parser against itself on other cuts, and a server against itself
 * on other cuts, turns of the loop and moments of answering. */
#include "fuzz/http_fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "support/http_rig.h"
#include "support/rng.h"

static void require(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        abort();
    }
}

/* A hash of everything a parser reports for bytes fed in pieces of `piece`. */
static uint64_t story(const char *data, size_t n, size_t piece)
{
    struct http_limits lim = { .head_bytes = 1024, .body_bytes = 2048 };
    struct http_parser p;
    uint64_t h = 14695981039346656037u;
    size_t at = 0;

    http_parser_init(&p, &lim);
    while (at < n) {
        size_t end = at + piece < n ? at + piece : n, used;
        enum parse_event ev;
        do {
            ev = http_parser_feed(&p, data + at, end - at, &used);
            at += used;
            if (ev != PARSE_MORE) /* pieces do not count */
                h = (h ^ (uint64_t)ev) * 1099511628211u;
            if (ev == PARSE_HEAD)
                h = (h ^ p.method ^ strlen(p.path) << 8) * 1099511628211u;
            if (ev == PARSE_MESSAGE) {
                h = (h ^ p.body.n) * 1099511628211u;
                http_parser_next(&p);
            }
        } while (ev != PARSE_MORE && ev != PARSE_BAD);
        if (ev == PARSE_BAD) {
            h ^= (uint64_t)p.status;
            break;
        }
    }
    http_parser_fini(&p);
    return h;
}

void http_fuzz_parser(const uint8_t *data, size_t n)
{
    if (n < 2)
        return;
    const char *text = (const char *)data + 1;
    require(story(text, n - 1, n) == story(text, n - 1, 1 + data[0] % 16),
            "pieces of bytes are read differently");
}

/* ------------------------------------------------------------ connections */

enum { MOST_TURNS = 400, HEAD_BYTES = 512, BODY_BYTES = 1 << 17 };

static void open_small_rig(struct rig *r)
{
    struct http_config cfg = { .max_header_bytes = HEAD_BYTES, .max_body_bytes = BODY_BYTES };

    rig_open(r, &cfg);
}

/* Answer what waits, as a whole or as a stream, by the order of its arrival. */
static void answer_held(struct rig *r)
{
    for (uint32_t i = 0; i < RIG_HELD; i++) {
        struct exchange *x = r->held[i];
        r->held[i] = NULL;
        if (x && x->query[0] == 's') {
            reply_stream_begin(x, CONTENT_TEXT);
            if (reply_stream_data(x, x->path, strlen(x->path)))
                reply_stream_end(x);
        } else if (x) {
            reply_body(x, 200, CONTENT_TEXT, x->query, strlen(x->query));
        }
    }
}

static uint32_t n_waiting(const struct rig *r)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < RIG_HELD; i++)
        n += r->held[i] != NULL;
    return n;
}

/* What one client gets for these bytes, sent in pieces that rng cuts (NULL: at once),
 * without the lines that tell the time; taken by the caller. */
static struct buf replies(const char *data, size_t n, struct rng *rng)
{
    struct rig r;
    struct client c;
    struct buf out = { 0 };
    size_t at = 0;

    open_small_rig(&r);
    rig_connect(&r, &c, HTTP_PEER_UNIX);
    for (int quiet = 0, turns = 0; quiet < 4 || at < n; turns++) {
        require(turns < MOST_TURNS + (int)n, "a connection does not come to rest");
        size_t had = c.in.n, piece = n - at;
        if (rng && piece > 0)
            piece = 1 + rng_below(rng, piece < 48 ? (uint32_t)piece : 48);
        ssize_t sent = piece ? send(c.fd, data + at, piece, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;
        at = sent < 0 && c.eof ? n : at + (sent > 0 ? (size_t)sent : 0);
        if (rng == NULL || at == n || rng_below(rng, 3) > 0)
            uv_run(&r.loop, UV_RUN_NOWAIT);
        if (rng == NULL || at == n || rng_below(rng, 4) == 0)
            answer_held(&r);
        client_read(&c);
        quiet = c.in.n == had && at == n && n_waiting(&r) == 0 ? quiet + 1 : 0;
    }
    require(r.n_gone == 0, "a client that stayed is taken for gone");
    for (const char *p = c.in.p, *end = p + c.in.n; p < end;) {
        const char *line = memchr(p, '\n', (size_t)(end - p));
        size_t len = line ? (size_t)(line + 1 - p) : (size_t)(end - p);
        if (len < 6 || memcmp(p, "Date: ", 6) != 0)
            buf_put(&out, p, len);
        p += len;
    }
    client_close(&c);
    rig_turn(&r);
    require(http_server_n_connections(r.server) == 0, "a connection outlives its client");
    rig_close(&r);
    return out;
}

/* Several clients with these bytes, each of which leaves at some moment. */
static void leave(const char *data, size_t n, struct rng *rng)
{
    struct rig r;
    struct client c[3];

    open_small_rig(&r);
    for (int i = 0; i < 3; i++) {
        size_t stop = rng_below(rng, (uint32_t)n + 1), at = 0;
        rig_connect(&r, &c[i], HTTP_PEER_UNIX);
        while (at < stop) {
            size_t piece = 1 + rng_below(rng, (uint32_t)(stop - at));
            if (send(c[i].fd, data + at, piece, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
                break;
            at += piece;
            uv_run(&r.loop, UV_RUN_NOWAIT);
            if (rng_below(rng, 3) == 0)
                answer_held(&r);
        }
        if (rng_below(rng, 2) == 0) /* the others stay until the server closes */
            client_close(&c[i]);
    }
    uint32_t waiting = n_waiting(&r), gone = r.n_gone;
    http_server_drain(r.server);
    rig_close(&r);
    require(r.n_gone == gone + waiting, "a request in flight was not told of its end, once");
    for (int i = 0; i < 3; i++)
        client_close(&c[i]);
}

void http_fuzz_connections(const uint8_t *data, size_t n)
{
    if (n < 2)
        return;
    const char *text = (const char *)data + 1;
    struct rng rng = { data[0] };
    struct buf whole = replies(text, n - 1, NULL), cut = replies(text, n - 1, &rng);

    require(whole.n == cut.n && (whole.n == 0 || memcmp(whole.p, cut.p, whole.n) == 0),
            "cut otherwise, the same bytes get other replies");
    require(whole.n == 0 || (whole.n > 9 && memcmp(whole.p, "HTTP/1.1 ", 9) == 0),
            "a reply does not begin with a status line");
    buf_fini(&whole);
    buf_fini(&cut);
    leave(text, n - 1, &rng);
}
