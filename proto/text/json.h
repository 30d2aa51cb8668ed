/* json.h: a strict JSON reader with bounds, and a writer that cannot emit
 * anything invalid.
 *
 * The reader accepts RFC 8259 text and nothing else: UTF-8 is validated before
 * anything is looked at; no byte order mark, no trailing bytes; a lone
 * surrogate, a duplicate key (two readers could disagree which one counts), a
 * number outside double, nesting past JSON_MAX_DEPTH and more values than the
 * caller's bound are rejections.  Strings carry their length, so U+0000 is a
 * character like any other; integers keep all their digits.  No recursion; at
 * most two blocks of memory a document.
 *
 * A document is immutable after json_parse and may be read from any thread;
 * the writer appends to the caller's buffer. */
#ifndef PROTO_TEXT_JSON_H
#define PROTO_TEXT_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "proto/err.h"
#include "proto/text/buf.h"

enum { JSON_MAX_DEPTH = 128, JSON_MAX_NUMBER_BYTES = 255 };

enum json_kind {
    JSON_NULL,
    JSON_BOOL,
    JSON_INT,    /* written without fraction and exponent, and fits int64   */
    JSON_BIGINT, /* written so, and does not fit                            */
    JSON_REAL,   /* every other number; finite                              */
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT
};

/* One value, 16 bytes.  Values of a document lie in one array in document
 * order, each followed by its children; an object's children are key (a
 * JSON_STRING), value, key, value. */
struct json {
    enum json_kind kind;
    uint32_t n; /* string, bigint: bytes; array: elements; object: members */
    union {
        bool boolean;
        int64_t integer;
        double real;
        const char *string; /* n bytes and a NUL; may contain NULs           */
        const char *digits; /* bigint: n bytes as written; no NUL            */
        uint32_t span;      /* array, object: values of it, itself included  */
    } u;
};

struct json_doc {
    struct json *value; /* owned; value[0] is the root */
    char *strings;      /* owned; NULL where they lie in the caller's text */
};

/* Parse text[0..n) (borrowed for the call), a request's body.  max_values 0: no
 * bound but memory.  ERR_INVALID: the message gives the byte offset, found and
 * expected; param is the top-level key whose value is at fault, "" elsewhere.
 * ERR_LIMIT when max_values is passed.  On any error *doc needs no fini. */
MUST_USE enum err_code json_parse(struct json_doc *doc, const char *text, size_t n,
                                  size_t max_values, struct err *e);
/* The same for any text; `what` names it in messages. */
MUST_USE enum err_code json_parse_named(struct json_doc *doc, const char *what, const char *text,
                                        size_t n, size_t max_values, struct err *e);
/* The same without a copy: text[0..n) is overwritten, strings lie in it, and it
 * must outlive the document.  On an error it holds anything. */
MUST_USE enum err_code json_parse_in_place(struct json_doc *doc, const char *what, char *text,
                                           size_t n, size_t max_values, struct err *e);
void json_doc_fini(struct json_doc *doc);

/* Values of v's subtree, itself included. */
static inline uint32_t json_span(const struct json *v)
{
    return v->kind >= JSON_ARRAY ? v->u.span : 1;
}

/* First element of an array, or first key of an object (n > 0). */
static inline const struct json *json_first(const struct json *v)
{
    return v + 1;
}

/* The value after v and all its children: the next element, a key's value, or
 * (from a value) the next key. */
static inline const struct json *json_next(const struct json *v)
{
    return v + json_span(v);
}

/* Value of an object's member, or NULL.  Exact bytes; v may be any kind, or NULL. */
const struct json *json_get(const struct json *v, const char *key);
const struct json *json_get_bytes(const struct json *v, const char *key, size_t n);

/* Whether v (may be NULL) is the string s. */
static inline bool json_string_is(const struct json *v, const char *s)
{
    return v != NULL && v->kind == JSON_STRING && v->n == strlen(s) &&
           memcmp(v->u.string, s, v->n) == 0;
}

static inline bool json_is_number(const struct json *v)
{
    return v->kind >= JSON_INT && v->kind <= JSON_REAL;
}
/* A number as the nearest double. */
double json_number(const struct json *v);

/* "null", "true", "12", "\"text\"", "a list of 3", ...: what was found, for
 * messages; cut at ~40 bytes.  Returns buf. */
enum { JSON_SHOW_BYTES = 64 };
const char *json_show(const struct json *v, char buf[JSON_SHOW_BYTES]);
/* The same without the value: "a number", "a string", "an array", ...; "nothing"
 * for NULL. */
const char *json_kind_name(const struct json *v);

/* A value of a document, and what a copy has in its place. */
struct json_edit {
    const struct json *at, *with;
};
/* How many values the copy of v takes; and the copy itself, into out[that many].
 * Edits in document order, none inside another; the copy borrows all strings. */
uint32_t json_edited_span(const struct json *v, const struct json_edit *edit, size_t n);
void json_edited(struct json *out, const struct json *v, const struct json_edit *edit, size_t n);

/* The first string or key of v that holds a U+0000, or NULL. */
const struct json *json_find_nul(const struct json *v);
/* Where `at` stands inside v, which stands at path: "messages[0].content"; a key
 * has the path of its object.  Cut at cap bytes. */
void json_path(const struct json *v, const struct json *at, const char *path, char *out,
               size_t cap);

/* ------------------------------------------------------------------ writer */

/* The inside of a JSON string: s[0..n) escaped, without quotes.  What is not
 * valid UTF-8 becomes U+FFFD, one for each byte that starts no character.  U+0085, U+2028 and
 * U+2029 are escaped, because some clients split lines there. */
void json_put_escaped(struct buf *o, const char *s, size_t n);
/* The same with quotes; s NULL: null. */
void json_put_string(struct buf *o, const char *s, size_t n);
void json_put_cstring(struct buf *o, const char *s);
void json_put_int(struct buf *o, int64_t v);
void json_put_uint(struct buf *o, uint64_t v);
static inline void json_put_bool(struct buf *o, bool v)
{
    if (v)
        BUF_LIT(o, "true");
    else
        BUF_LIT(o, "false");
}
/* Shortest text that reads back as the same double (or float); always with a
 * '.' or an exponent, so its type is visible; not finite: null. */
void json_put_double(struct buf *o, double v);
void json_put_float(struct buf *o, float v);
/* The value v of a parsed document, whitespace removed. */
void json_put_value(struct buf *o, const struct json *v);

#endif
