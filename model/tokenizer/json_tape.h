/* json_tape.h: a JSON document as a flat array of nodes over its own text.
 *
 * Made for tokenizer files: hundreds of thousands of short strings are read in
 * one pass without an allocation each, strings keep their NUL bytes, and depth
 * is bounded.  The text is unescaped in place, so every string is a view into
 * the caller's buffer.  Private to model/.  Any thread; no shared state. */
#ifndef MODEL_TOKENIZER_JSON_TAPE_H
#define MODEL_TOKENIZER_JSON_TAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"

enum tape_kind {
    TAPE_NULL,
    TAPE_FALSE,
    TAPE_TRUE,
    TAPE_NUMBER,
    TAPE_STRING,
    TAPE_ARRAY,
    TAPE_OBJECT
};

/* Nodes lie in document order.  A member of an object is two nodes, its name
 * (a string) and its value. */
struct json_node {
    uint32_t at;   /* string or number: offset of its first byte           */
    uint32_t n;    /* string: bytes; number: digits; array, object: items  */
    uint32_t next; /* index of the node after this one and all it contains */
    uint32_t kind; /* enum tape_kind                                       */
};

struct json_tape {
    char *text; /* borrowed from the caller of parse */
    struct json_node *node;
    uint32_t n, cap;
};

enum { TAPE_MAX_DEPTH = 64 };

/* Parse text[0..n), which is overwritten (strings are unescaped in place) and
 * must outlive the tape.  text[n] must be readable.  what names the document
 * in messages.  ERR_INVALID gives the byte offset and the reason. */
MUST_USE enum err_code json_tape_parse(struct json_tape *t, char *text, size_t n, const char *what,
                                       struct err *e);
void json_tape_fini(struct json_tape *t);

/* Value of the last member called key, or NULL; NULL when o is no object. */
const struct json_node *json_tape_get(const struct json_tape *t, const struct json_node *o,
                                      const char *key);
/* First item of an array or first name of an object; NULL when empty.  Step
 * with json_tape_after while items remain. */
const struct json_node *json_tape_first(const struct json_tape *t, const struct json_node *c);
static inline const struct json_node *json_tape_after(const struct json_tape *t,
                                                      const struct json_node *v)
{
    return t->node + v->next;
}

static inline const char *json_tape_str(const struct json_tape *t, const struct json_node *v)
{
    return t->text + v->at;
}
/* Whether v is the string s. */
bool json_tape_is(const struct json_tape *t, const struct json_node *v, const char *s);
/* Number as a double; 0 when v is no number. */
double json_tape_number(const struct json_tape *t, const struct json_node *v);
/* Non-negative integer below 2^31, or -1. */
int32_t json_tape_id(const struct json_tape *t, const struct json_node *v);
/* Whether v is true; absent and null give the default. */
bool json_tape_bool(const struct json_node *v, bool absent);
/* "null", "string", ... for messages; "nothing" for NULL. */
const char *json_tape_kind_name(const struct json_node *v);

#endif
