/* parser.c: the parser's head scanner, llhttp callbacks and framing rules.
 *
 * The scanner finds the head's end by itself and hands llhttp exactly the head,
 * then the body: llhttp must agree, or the request is refused.  One thread. */
#include "server/http/parser.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { FRAMING_SLACK = 1 << 20, MAX_LEADING_CRLF = 4 };

const char *http_reason(int status)
{
    static const struct {
        int status;
        const char *reason;
    } reasons[] = {
        { 100, "Continue" },
        { 200, "OK" },
        { 204, "No Content" },
        { 400, "Bad Request" },
        { 401, "Unauthorized" },
        { 403, "Forbidden" },
        { 404, "Not Found" },
        { 405, "Method Not Allowed" },
        { 408, "Request Timeout" },
        { 409, "Conflict" },
        { 413, "Content Too Large" },
        { 414, "URI Too Long" },
        { 415, "Unsupported Media Type" },
        { 417, "Expectation Failed" },
        { 429, "Too Many Requests" },
        { 431, "Request Header Fields Too Large" },
        { 500, "Internal Server Error" },
        { 501, "Not Implemented" },
        { 503, "Service Unavailable" },
        { 505, "HTTP Version Not Supported" },
    };

    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].status == status)
            return reasons[i].reason;
    return "Error";
}

static enum parse_event bad(struct http_parser *p, int status, const char *problem)
{
    p->status = status;
    p->problem = problem;
    return PARSE_BAD;
}

/* From a callback: the same, as llhttp's error. */
static int refuse(llhttp_t *ll, int status, const char *problem)
{
    bad(ll->data, status, problem);
    llhttp_set_error_reason(ll, problem);
    return HPE_USER;
}

static int keep_text(llhttp_t *ll, const char *at, size_t n)
{
    struct http_parser *p = ll->data;

    if (buf_add(&p->text, at, n, NULL) != ERR_OK)
        return refuse(ll, 500, "out of memory");
    return 0;
}

static int on_url(llhttp_t *ll, const char *at, size_t n)
{
    struct http_parser *p = ll->data;
    int rc = keep_text(ll, at, n);

    p->n_url = (uint32_t)p->text.n;
    return rc;
}

static int on_field(llhttp_t *ll, const char *at, size_t n)
{
    struct http_parser *p = ll->data;

    if (p->head_done)
        return refuse(ll, 400, "trailer fields are not accepted");
    if (p->n_fields == 0 || p->in_value) {
        if (p->n_fields == HTTP_MAX_FIELDS)
            return refuse(ll, 431, "more than 100 header fields");
        p->in_value = false;
        p->field[p->n_fields++] = (struct http_field){ .name = (uint32_t)p->text.n };
    }
    p->field[p->n_fields - 1].n_name += (uint32_t)n;
    return keep_text(ll, at, n);
}

static int on_value(llhttp_t *ll, const char *at, size_t n)
{
    struct http_parser *p = ll->data;
    struct http_field *f = &p->field[p->n_fields - 1];

    if (p->head_done || p->n_fields == 0)
        return refuse(ll, 400, "trailer fields are not accepted");
    if (!p->in_value) {
        p->in_value = true;
        f->value = (uint32_t)p->text.n;
    }
    f->n_value += (uint32_t)n;
    return keep_text(ll, at, n);
}

static int on_headers_complete(llhttp_t *ll)
{
    struct http_parser *p = ll->data;

    p->head_done = true;
    ll->upgrade = 0; /* offers of another protocol are ignored */
    return 0;
}

static const char *const no_room =
    "the bodies of other requests fill the memory for bodies; try again";

/* Whether the shared memory for bodies has room for n more bytes. */
static bool has_room(const struct http_parser *p, uint64_t n)
{
    const struct http_budget *b = p->lim.bodies;

    return b == NULL || n <= b->max - b->used;
}

static void charge(struct http_parser *p, size_t n)
{
    if (p->lim.bodies == NULL)
        return;
    p->lim.bodies->used += n;
    p->n_charged += n;
}

static void discharge(struct http_parser *p)
{
    if (p->lim.bodies)
        p->lim.bodies->used -= p->n_charged;
    p->n_charged = 0;
}

static int on_body(llhttp_t *ll, const char *at, size_t n)
{
    struct http_parser *p = ll->data;

    if (p->body.n + n > p->lim.body_bytes)
        return refuse(ll, 413, "the body is larger than this server accepts");
    if (!has_room(p, n))
        return refuse(ll, 503, no_room);
    if (buf_add(&p->body, at, n, NULL) != ERR_OK)
        return refuse(ll, 500, "out of memory");
    charge(p, n);
    return 0;
}

static int on_message_complete(llhttp_t *ll)
{
    struct http_parser *p = ll->data;

    p->message_done = true;
    return HPE_PAUSED; /* bytes that follow belong to the next request */
}

static const llhttp_settings_t settings = {
    .on_url = on_url,
    .on_header_field = on_field,
    .on_header_value = on_value,
    .on_headers_complete = on_headers_complete,
    .on_body = on_body,
    .on_message_complete = on_message_complete,
};

void http_parser_init(struct http_parser *p, const struct http_limits *lim)
{
    memset(p, 0, sizeof *p);
    p->lim = *lim;
    http_parser_next(p);
}

void http_parser_fini(struct http_parser *p)
{
    buf_fini(&p->text);
    buf_fini(&p->body);
    free(p->path);
    p->path = NULL;
    discharge(p);
}

void http_parser_next(struct http_parser *p)
{
    struct http_limits lim = p->lim;
    struct buf text = p->text;

    buf_fini(&p->body);
    free(p->path);
    discharge(p);
    buf_reset(&text);
    if (text.cap > 4096) /* an idle connection keeps little */
        buf_fini(&text);
    memset(p, 0, sizeof *p);
    p->lim = lim;
    p->text = text;
    p->query = (char *)"";
    llhttp_init(&p->ll, HTTP_REQUEST, &settings);
    p->ll.data = p;
}

const char *http_parser_field(const struct http_parser *p, const char *name, size_t *n)
{
    size_t len = strlen(name);

    for (uint32_t i = 0; i < p->n_fields; i++) {
        const struct http_field *f = &p->field[i];
        if (f->n_name == len && strncasecmp(p->text.p + f->name, name, len) == 0) {
            *n = f->n_value;
            return p->text.p + f->value;
        }
    }
    *n = 0;
    return NULL;
}

bool http_parser_field_is(const struct http_parser *p, const char *name, const char *value)
{
    size_t n;
    const char *v = http_parser_field(p, name, &n);

    return v && n == strlen(value) && strncasecmp(v, value, n) == 0;
}

static uint32_t count_fields(const struct http_parser *p, const char *name)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->n_fields; i++)
        n += p->field[i].n_name == strlen(name) &&
             strncasecmp(p->text.p + p->field[i].name, name, strlen(name)) == 0;
    return n;
}

/* Whether a comma list (Connection) holds a token. */
static bool has_token(const struct http_parser *p, const char *name, const char *token)
{
    size_t len = strlen(token);

    for (uint32_t i = 0; i < p->n_fields; i++) {
        const struct http_field *f = &p->field[i];
        if (f->n_name != strlen(name) || strncasecmp(p->text.p + f->name, name, f->n_name) != 0)
            continue;
        const char *s = p->text.p + f->value, *end = s + f->n_value;
        while (s < end) {
            const char *comma = memchr(s, ',', (size_t)(end - s));
            const char *stop = comma ? comma : end;
            while (s < stop && (*s == ' ' || *s == '\t'))
                s++;
            const char *last = stop;
            while (last > s && (last[-1] == ' ' || last[-1] == '\t'))
                last--;
            if ((size_t)(last - s) == len && strncasecmp(s, token, len) == 0)
                return true;
            s = comma ? comma + 1 : end;
        }
    }
    return false;
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Split the target into decoded path and query. */
static enum parse_event split_target(struct http_parser *p)
{
    const char *s = p->text.p ? p->text.p : "", *end = s + p->n_url;

    if (strncasecmp(s, "http://", 7) == 0 && p->n_url >= 7) { /* absolute form */
        s += 7;
        while (s < end && *s != '/' && *s != '?')
            s++;
    }
    p->path = malloc((size_t)(end - s) + 3);
    if (p->path == NULL)
        return bad(p, 500, "out of memory");
    char *o = p->path;
    if (s == end || (*s != '/' && *s != '*'))
        *o++ = '/';
    for (; s < end && *s != '?'; s++) {
        int c = (unsigned char)*s;
        if (c == '%') {
            int h = end - s > 2 ? hex(s[1]) : -1, l = h >= 0 ? hex(s[2]) : -1;
            if (l < 0 || h * 16 + l == 0)
                return bad(p, 400, "the path holds a bad %-escape");
            c = h * 16 + l;
            s += 2;
        }
        *o++ = (char)c;
    }
    *o++ = '\0';
    p->query = o;
    if (s < end)
        s++;
    memcpy(o, s, (size_t)(end - s));
    o[end - s] = '\0';
    return PARSE_HEAD;
}

/* Content-Length as the only framing: digits alone. */
static enum parse_event check_length(struct http_parser *p)
{
    size_t n;
    const char *v = http_parser_field(p, "content-length", &n);
    uint64_t length = 0;

    if (n == 0)
        return bad(p, 400, "Content-Length is empty");
    for (size_t i = 0; i < n; i++) {
        if (v[i] < '0' || v[i] > '9')
            return bad(p, 400, "Content-Length is not a plain number");
        if (length > UINT64_MAX / 10 - 1)
            return bad(p, 413, "the body is larger than this server accepts");
        length = length * 10 + (uint64_t)(v[i] - '0');
    }
    if (length > p->lim.body_bytes)
        return bad(p, 413, "the body is larger than this server accepts");
    if (!has_room(p, length))
        return bad(p, 503, no_room);
    p->has_body = length > 0;
    p->body_length = length;
    return PARSE_HEAD;
}

/* What both llhttp and any other reader of the same bytes must agree on. */
static enum parse_event check_framing(struct http_parser *p)
{
    uint32_t n_length = count_fields(p, "content-length");
    uint32_t n_coding = count_fields(p, "transfer-encoding");

    if (count_fields(p, "host") > 1 || (!p->is_http_1_0 && count_fields(p, "host") == 0))
        return bad(p, 400, "exactly one Host field is expected");
    if (n_length && n_coding)
        return bad(p, 400, "Content-Length and Transfer-Encoding in one request");
    if (n_length > 1)
        return bad(p, 400, "Content-Length more than once");
    if (n_coding > 1 || (n_coding == 1 && !http_parser_field_is(p, "transfer-encoding", "chunked")))
        return bad(p, 400, "Transfer-Encoding other than one `chunked`");
    if (n_coding && p->is_http_1_0)
        return bad(p, 400, "Transfer-Encoding in an HTTP/1.0 request");
    if (n_coding) {
        p->has_body = true;
        p->body_length = UINT64_MAX;
    }
    return n_length ? check_length(p) : PARSE_HEAD;
}

static enum parse_event finish_head(struct http_parser *p)
{
    static const struct {
        int llhttp;
        enum http_method method;
    } methods[] = {
        { HTTP_GET, HTTP_M_GET },         { HTTP_HEAD, HTTP_M_HEAD },
        { HTTP_POST, HTTP_M_POST },       { HTTP_DELETE, HTTP_M_DELETE },
        { HTTP_OPTIONS, HTTP_M_OPTIONS },
    };
    int major = p->ll.http_major, minor = p->ll.http_minor;

    if (major != 1 || minor > 1)
        return bad(p, 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
    p->is_http_1_0 = minor == 0;
    p->method = HTTP_M_OTHER;
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (methods[i].llhttp == p->ll.method)
            p->method = methods[i].method;
    if (p->ll.method == HTTP_CONNECT)
        return bad(p, 405, "CONNECT is not served here");
    enum parse_event ev = check_framing(p);
    if (ev != PARSE_HEAD)
        return ev;
    if (http_parser_field_is(p, "expect", "100-continue"))
        p->expects_continue = p->has_body && !p->is_http_1_0;
    else if (count_fields(p, "expect"))
        return bad(p, 417, "only Expect: 100-continue is understood");
    p->keep_alive = p->is_http_1_0 ? has_token(p, "connection", "keep-alive")
                                   : !has_token(p, "connection", "close");
    return split_target(p);
}

/* What the scanner found in a piece of the head. */
struct scan {
    size_t n;      /* bytes of the piece that may be parsed           */
    bool complete; /* they end the head                               */
    int status;    /* why nothing behind them is read, or 0           */
    const char *problem;
};

/* Find the head's end; refuse bare line feeds, lone carriage returns, folded
 * lines and a head past its limit. */
static struct scan scan_head(struct http_parser *p, const char *data, size_t n)
{
    size_t room = p->lim.head_bytes - p->n_head;

    for (size_t i = 0; i < n; i++) {
        char c = data[i];
        if (i == room)
            return (struct scan){ i, false, 431,
                                  "the request's head is larger than this server accepts" };
        if (p->seen == 1 || p->seen == 3) {
            if (c != '\n')
                return (struct scan){ i, false, 400, "a carriage return without line feed" };
            if (++p->seen == 4)
                return (struct scan){ i + 1, true, 0, NULL };
        } else {
            if (c == '\n')
                return (struct scan){ i, false, 400, "a line ends without carriage return" };
            if (p->seen == 2 && (c == ' ' || c == '\t'))
                return (struct scan){ i, false, 400, "a folded header line" };
            p->seen = c == '\r' ? p->seen + 1 : 0;
        }
    }
    return (struct scan){ n, false, 0, NULL };
}

static enum parse_event feed_head(struct http_parser *p, const char *data, size_t n, size_t *used)
{
    size_t skip = 0;

    while (!p->started && skip < n && (data[skip] == '\r' || data[skip] == '\n')) {
        if (++p->n_head > MAX_LEADING_CRLF)
            return bad(p, 400, "empty lines before a request");
        skip++;
    }
    data += skip;
    n -= skip;
    if (n == 0) {
        *used = skip;
        return PARSE_MORE;
    }
    p->started = true;
    struct scan scan = scan_head(p, data, n);
    p->n_head += scan.n;
    llhttp_errno_t err = scan.n > 0 ? llhttp_execute(&p->ll, data, scan.n) : HPE_OK;
    if (p->problem)
        return PARSE_BAD;
    if (err != HPE_OK &&
        !(err == HPE_PAUSED && p->message_done && llhttp_get_error_pos(&p->ll) == data + scan.n))
        return bad(p, err == HPE_INVALID_METHOD ? 501 : 400,
                   err == HPE_PAUSED ? "unclear end of the head" : llhttp_get_error_reason(&p->ll));
    if (scan.problem)
        return bad(p, scan.status, scan.problem);
    if (scan.complete != p->head_done)
        return bad(p, 400, "unclear end of the head");
    *used = skip + scan.n;
    if (!scan.complete)
        return PARSE_MORE;
    p->body_phase = true;
    return finish_head(p);
}

enum parse_event http_parser_feed(struct http_parser *p, const char *data, size_t n, size_t *used)
{
    *used = 0;
    if (p->problem)
        return PARSE_BAD;
    if (!p->body_phase)
        return n ? feed_head(p, data, n, used) : PARSE_MORE;
    if (p->message_done)
        return PARSE_MESSAGE;
    if (n == 0)
        return PARSE_MORE;
    llhttp_errno_t err = llhttp_execute(&p->ll, data, n);
    if (p->problem)
        return PARSE_BAD;
    if (err == HPE_PAUSED && p->message_done) {
        *used = (size_t)(llhttp_get_error_pos(&p->ll) - data);
        return PARSE_MESSAGE;
    }
    if (err != HPE_OK)
        return bad(p, 400, llhttp_get_error_reason(&p->ll));
    *used = n;
    p->n_raw_body += n;
    if (p->n_raw_body > 8 * p->lim.body_bytes + FRAMING_SLACK)
        return bad(p, 413, "the body's chunks are mostly framing");
    return PARSE_MORE;
}

char *http_parser_take_body(struct http_parser *p, size_t *n)
{
    *n = 0;
    return p->body.p ? buf_take(&p->body, n) : NULL; /* buf_add left room for its NUL */
}
