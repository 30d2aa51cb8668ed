/* parser.h: bytes of a connection to HTTP/1 requests.
 *
 * A push parser over llhttp that adds what an embedding program must: limits on
 * head, fields and body, and refusal of everything that two readers could cut
 * differently (request smuggling): bare line feeds, folded lines, both or
 * repeated framings, trailers, codings other than one `chunked`.  No socket, no
 * clock; one parser a connection, one thread. */
#ifndef SERVER_HTTP_PARSER_H
#define SERVER_HTTP_PARSER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <llhttp.h>

#include "server/http/http.h"

enum { HTTP_MAX_FIELDS = 100 };

/* Memory for bodies that all parsers share; one thread's. */
struct http_budget {
    uint64_t used, max;
};

struct http_limits {
    size_t head_bytes, body_bytes;
    struct http_budget *bodies; /* borrowed; NULL: no common bound */
};

struct http_field {
    uint32_t name, n_name, value, n_value; /* offsets into the head's text */
};

struct http_parser {
    llhttp_t ll;
    struct http_limits lim;
    /* The request; valid from PARSE_HEAD until http_parser_next. */
    enum http_method method;
    bool is_http_1_0, keep_alive, expects_continue, has_body;
    uint64_t body_length; /* UINT64_MAX: chunked */
    char *path;           /* decoded, NUL-terminated; "" until the head is complete */
    char *query;          /* after '?', undecoded, "" when none */
    struct buf body;      /* http_parser_take_body moves it out */
    /* Private. */
    size_t n_charged; /* to lim.bodies, from a body's first byte to http_parser_next */
    struct buf text;  /* url and fields */
    uint32_t n_url, n_fields;
    struct http_field field[HTTP_MAX_FIELDS];
    bool in_value, head_done, message_done, body_phase;
    uint8_t seen; /* scanner: how much of CR LF CR LF */
    bool started; /* a byte of the request came */
    size_t n_head, n_raw_body;
    int status;          /* HTTP status of an error */
    const char *problem; /* its message; a literal */
};

void http_parser_init(struct http_parser *p, const struct http_limits *lim);
void http_parser_fini(struct http_parser *p);

enum parse_event {
    PARSE_MORE,    /* everything was used; feed more                            */
    PARSE_HEAD,    /* the head is complete; feed on (the rest of) the bytes     */
    PARSE_MESSAGE, /* the request is complete; http_parser_next before feeding  */
    PARSE_BAD      /* p->status, p->problem; the connection must close          */
};

/* Take data[0..n); *used says how much was consumed. */
enum parse_event http_parser_feed(struct http_parser *p, const char *data, size_t n, size_t *used);

/* Forget the request; ready for the next one on the connection. */
void http_parser_next(struct http_parser *p);

/* Value of a field (name in lower case), *n bytes, NULL when absent. */
const char *http_parser_field(const struct http_parser *p, const char *name, size_t *n);
/* Whether the field's value is exactly this, letters of any case. */
bool http_parser_field_is(const struct http_parser *p, const char *name, const char *value);

/* The body, NUL-terminated, taken by the caller (free). NULL with *n 0: none. */
char *http_parser_take_body(struct http_parser *p, size_t *n);

/* Reason phrase of a status. */
const char *http_reason(int status);

#endif
