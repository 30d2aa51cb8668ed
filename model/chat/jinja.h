/* jinja.h: the inside of the chat-template interpreter; private to model/.
 *
 * A template is parsed once into a tree and rendered by walking it over values
 * with Python's semantics.  In layers, each calling only those above it here:
 *
 *   jinja_value.c                    arena, errors, values, text under construction
 *   jinja_args.c jinja_lex.c         arguments of calls; tokens
 *   jinja_text.c jinja_string.c      str(), repr(), JSON; operations on strings
 *   jinja_format.c                   str.format(), %, strftime
 *   jinja_operator.c jinja_method.c  arithmetic; methods, attributes, items
 *   jinja_is.c                       predicates over values
 *   jinja_filter.c                   filters and globals; look-up of names
 *   jinja_expr.c jinja_parse.c       from tokens to the tree
 *   jinja_eval.c                     the walk
 *   template.c                       from a chat request to the text
 *
 * Memory: everything lives in a struct jinja_arena and dies with it; nothing is
 * freed singly.  Errors: jinja_fail() formats a message with the template line
 * and longjmps to the one setjmp of chat_template_parse or _render; no function
 * here holds anything that an arena does not own, so nothing leaks.  Bounds:
 * steps, depth, arena bytes and output bytes each end a render with a message.
 *
 * A parsed tree is immutable; a struct jinja belongs to one render, one thread. */
#ifndef MODEL_CHAT_JINJA_H
#define MODEL_CHAT_JINJA_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "proto/err.h"

enum {
    JINJA_MAX_DEPTH = 200,
    JINJA_MAX_STEPS = 20000000,
    JINJA_MAX_OUTPUT = 64 << 20,
    JINJA_MAX_ARENA = 256 << 20,
    JINJA_MAX_TEMPLATE = 4 << 20
};

struct jinja_arena {
    struct jinja_chunk *chunk; /* owned list */
    size_t used, limit;
};

void jinja_arena_free(struct jinja_arena *a);

/* ---- values ---------------------------------------------------------------- */

enum jinja_kind {
    JV_UNDEFINED, /* u.name: what was looked up, for messages */
    JV_NONE,
    JV_BOOL,
    JV_INT,
    JV_BIGINT, /* an int of more than 64 bits: u.str, its digits */
    JV_FLOAT,
    JV_STRING,
    JV_LIST,
    JV_TUPLE,
    JV_MAP,
    JV_NAMESPACE, /* a map whose members `set ns.x` may change */
    JV_MACRO,
    JV_FUNCTION, /* a global: u.function */
    JV_METHOD,   /* a bound method of u.method->self */
    JV_LOOP
};

/* Immutable UTF-8 (any bytes).  user, when not NULL, marks with 1 each byte that
 * came from message content: control tokens must not be recognised there. */
struct jinja_str {
    size_t n;
    const char *p;
    const uint8_t *user;
};

struct jinja;
struct jinja_args;
struct jinja_value;
typedef struct jinja_value jinja_function(struct jinja *j, const struct jinja_args *args);

struct jinja_value {
    enum jinja_kind kind;
    union {
        bool boolean;
        int64_t integer;
        double real;
        struct jinja_str *str;
        struct jinja_list *list;
        struct jinja_map *map;
        struct jinja_macro *macro;
        jinja_function *function;
        struct jinja_method *method;
        struct jinja_loop *loop;
        const struct jinja_str *name; /* may be NULL */
    } u;
};

struct jinja_list {
    size_t n, cap;
    struct jinja_value *item;
};

struct jinja_member {
    struct jinja_value key, value;
};

/* Insertion-ordered; looked up through an open-addressing index past 8 members. */
struct jinja_map {
    size_t n, cap;
    struct jinja_member *member;
    uint32_t *index; /* member number + 1; NULL while small */
    size_t index_size;
};

struct jinja_macro {
    const struct jinja_node *node;
    struct jinja_scope *scope; /* where it was defined */
    struct jinja_value caller; /* of a call block; else undefined */
};

struct jinja_method {
    struct jinja_value self;
    const struct jinja_str *name;
};

struct jinja_loop {
    const struct jinja_list *list;
    size_t at;
    int depth;
    const struct jinja_node *node; /* for loop(...) of recursive loops */
    struct jinja_scope *scope;
};

/* Arguments of a call; keyword k belongs to keyword_value k. */
struct jinja_args {
    size_t n, n_keywords;
    const struct jinja_value *value;
    const struct jinja_str *const *keyword;
    const struct jinja_value *keyword_value;
    const char *callee; /* for messages */
};

/* ---- the tree --------------------------------------------------------------- */

enum jinja_node_type {
    /* expressions */
    JN_LITERAL,
    JN_NAME,
    JN_LIST,
    JN_TUPLE,
    JN_MAP,
    JN_ATTR,
    JN_ITEM,
    JN_SLICE,
    JN_CALL,
    JN_FILTER,
    JN_TEST,
    JN_NOT,
    JN_NEG,
    JN_POS,
    JN_BINARY,
    JN_COMPARE,
    JN_AND,
    JN_OR,
    JN_COND,
    /* statements */
    JN_TEXT,
    JN_PRINT,
    JN_IF,
    JN_FOR,
    JN_SET,
    JN_SET_BLOCK,
    JN_MACRO,
    JN_CALL_BLOCK,
    JN_FILTER_BLOCK,
    JN_WITH,
    JN_BLOCK,
    JN_BREAK,
    JN_CONTINUE
};

enum jinja_op {
    JO_NONE,
    JO_ADD,
    JO_SUB,
    JO_MUL,
    JO_DIV,
    JO_FLOORDIV,
    JO_MOD,
    JO_POW,
    JO_CONCAT,
    JO_EQ,
    JO_NE,
    JO_LT,
    JO_LE,
    JO_GT,
    JO_GE,
    JO_IN,
    JO_NOT_IN
};

/* What a, b, c, list and names hold, by type:
 *   ATTR a.name      ITEM a[b]        SLICE a[b:c:d]     NOT NEG POS a
 *   BINARY a op b    AND OR a b       COND a if b else c (c may be NULL)
 *   COMPARE a, then list[i] each with ops[i]
 *   CALL a(list, names=named)         FILTER a|name(...)  TEST a is name(...)
 *   LIST TUPLE list                   MAP list: key, value, ...
 *   TEXT literal     PRINT a          IF a: list else: other
 *   FOR target a in b if c: list else: other; op: 1 when recursive
 *   SET target a = b                  SET_BLOCK a (filters in b): list
 *   MACRO name(names=named[i] or NULL): list
 *   CALL_BLOCK a is the CALL, names its parameters: list
 *   FILTER_BLOCK a is the filter chain over JN_LITERAL "": list
 *   WITH names[i] = named[i]: list    BLOCK list */
struct jinja_node {
    enum jinja_node_type type;
    int line;
    enum jinja_op op;
    bool negated; /* TEST */
    struct jinja_node *a, *b, *c, *d;
    struct jinja_node **list;
    size_t n_list;
    struct jinja_node **other;
    size_t n_other;
    const struct jinja_str *name;
    const struct jinja_str **names;
    struct jinja_node **named;
    size_t n_names;
    enum jinja_op *ops;
    struct jinja_value literal;
};

/* ---- one parse or render ---------------------------------------------------- */

struct jinja {
    struct jinja_arena *arena;
    struct err *err;
    jmp_buf escape; /* where jinja_fail lands */
    enum err_code rc;
    const char *name; /* of the template, for messages */
    int line;         /* being executed */
    int depth;
    uint64_t steps;
    struct jinja_scope *scope;
    struct jinja_buf *out;
    time_t now;
};

/* End the parse or render: "NAME, line N: ...". */
_Noreturn void jinja_fail(struct jinja *j, const char *fmt, ...) PRINTF_LIKE(2, 3);
_Noreturn void jinja_nomem(struct jinja *j, size_t n);

/* Zeroed bytes of the arena; never NULL (fails instead). */
void *jinja_alloc(struct jinja *j, size_t n);

/* One level deeper; fails past the bound.  Leave by j->depth--. */
void jinja_deeper(struct jinja *j);

/* Count one unit of work, or n; fails past the bound. */
void jinja_step(struct jinja *j, uint64_t n);

/* ---- text under construction -------------------------------------------------- */

struct jinja_buf {
    struct jinja *j;
    char *p;
    uint8_t *user; /* NULL until the first user byte */
    size_t n, cap;
};

void jinja_buf_init(struct jinja_buf *b, struct jinja *j);
void jinja_buf_add(struct jinja_buf *b, const char *p, size_t n);
void jinja_buf_cstr(struct jinja_buf *b, const char *s);
/* Bytes [from, to) of s, marks included. */
void jinja_buf_part(struct jinja_buf *b, const struct jinja_str *s, size_t from, size_t to);
void jinja_buf_str(struct jinja_buf *b, const struct jinja_str *s);
/* Bytes that are all user text or all not. */
void jinja_buf_marked(struct jinja_buf *b, const char *p, size_t n, bool user);
struct jinja_value jinja_buf_value(struct jinja_buf *b);

/* ---- values: jinja_value.c ----------------------------------------------------- */

struct jinja_value jinja_undefined(const struct jinja_str *name);
struct jinja_value jinja_none(void);
struct jinja_value jinja_bool(bool v);
struct jinja_value jinja_int(int64_t v);
/* An int beyond 64 bits by its decimal digits (borrowed for the render), without leading zeros. */
struct jinja_value jinja_bigint(struct jinja *j, const char *digits, size_t n);
struct jinja_value jinja_float(double v);
struct jinja_value jinja_string(struct jinja *j, const char *p, size_t n);
struct jinja_value jinja_cstring(struct jinja *j, const char *s);
/* Bytes [from, to) of s, marks included; shares s's storage. */
struct jinja_value jinja_substring(struct jinja *j, const struct jinja_str *s, size_t from,
                                   size_t to);
struct jinja_value jinja_list_new(struct jinja *j, enum jinja_kind kind);
void jinja_list_add(struct jinja *j, struct jinja_list *l, struct jinja_value v);
struct jinja_value jinja_map_new(struct jinja *j);
void jinja_map_put(struct jinja *j, struct jinja_map *m, struct jinja_value key,
                   struct jinja_value v);
/* NULL when absent. */
struct jinja_value *jinja_map_get(struct jinja *j, const struct jinja_map *m,
                                  struct jinja_value key);
struct jinja_value *jinja_map_find(struct jinja *j, const struct jinja_map *m, const char *key);

void jinja_map_clear(struct jinja_map *m);

bool jinja_str_is(const struct jinja_str *s, const char *text);
bool jinja_str_equal(const struct jinja_str *a, const struct jinja_str *b);
bool jinja_truth(struct jinja_value v);
/* Of two values of kinds from JV_STRING on: whether they are one object. */
static inline bool jinja_same_object(struct jinja_value a, struct jinja_value b)
{
    if (a.kind != b.kind)
        return false;
    return a.kind == JV_FUNCTION ? a.u.function == b.u.function : a.u.map == b.u.map;
}
bool jinja_equal(struct jinja *j, struct jinja_value a, struct jinja_value b);
/* <0, 0, >0; fails where Python raises TypeError. */
int jinja_compare(struct jinja *j, struct jinja_value a, struct jinja_value b);
bool jinja_contains(struct jinja *j, struct jinja_value container, struct jinja_value v);
/* "dict", "str", ... as Python's type names. */
const char *jinja_type_name(struct jinja_value v);
static inline bool jinja_is_number(struct jinja_value v)
{
    return v.kind == JV_BOOL || v.kind == JV_INT || v.kind == JV_BIGINT || v.kind == JV_FLOAT;
}
double jinja_number(struct jinja_value v);
/* Of an int or bool. */
int64_t jinja_as_int(struct jinja_value v);
/* Merge sort of l by key[i] (stable). */
void jinja_sort(struct jinja *j, struct jinja_list *l, const struct jinja_value *key, bool reverse);
/* "'x' is undefined", as the reference words it. */
_Noreturn void jinja_fail_undefined(struct jinja *j, struct jinja_value v);
/* What a for loop walks: lists and tuples themselves, keys of maps, characters of
 * strings; nothing for undefined.  Fails for the rest. */
const struct jinja_list *jinja_iterate(struct jinja *j, struct jinja_value v);
/* len(); fails where Python raises. */
int64_t jinja_length(struct jinja *j, struct jinja_value v);
/* v's member of that key, or element of that number: true, with *out undefined for
 * a number out of range.  False: v has no such. */
bool jinja_find_item(struct jinja *j, struct jinja_value v, struct jinja_value key,
                     struct jinja_value *out);
/* v[from:to:step]; any may be none. */
struct jinja_value jinja_slice(struct jinja *j, struct jinja_value v, struct jinja_value from,
                               struct jinja_value to, struct jinja_value step);

/* ---- arguments: jinja_args.c ---------------------------------------------------- */

/* Argument `at` (0-based) or keyword; *out untouched when absent. */
bool jinja_arg(const struct jinja_args *args, size_t at, const char *keyword,
               struct jinja_value *out);
/* The same, typed; fails with the callee's name on another type. */
const struct jinja_str *jinja_arg_str(struct jinja *j, const struct jinja_args *args, size_t at,
                                      const char *keyword, const struct jinja_str *otherwise);
int64_t jinja_arg_int(struct jinja *j, const struct jinja_args *args, size_t at,
                      const char *keyword, int64_t otherwise);
bool jinja_arg_bool(const struct jinja_args *args, size_t at, const char *keyword, bool otherwise);

/* ---- text of values: jinja_text.c ----------------------------------------------- */

/* str(v), repr(v), json.dumps(v): appended. */
void jinja_text(struct jinja_buf *b, struct jinja_value v);
void jinja_repr(struct jinja_buf *b, struct jinja_value v);
struct jinja_json_options {
    int64_t indent; /* -1: one line */
    bool sort_keys, ascii;
    const struct jinja_str *item_separator, *key_separator; /* NULL: Python's */
};
void jinja_json(struct jinja_buf *b, struct jinja_value v, const struct jinja_json_options *o);
/* str(v) as a value; strings themselves. */
struct jinja_str *jinja_to_str(struct jinja *j, struct jinja_value v);

/* ---- strings: jinja_string.c ---------------------------------------------------- */

/* strip: sides 1 left, 2 right, 3 both; chars NULL: white space. */
struct jinja_value jinja_strip(struct jinja *j, const struct jinja_str *s, int sides,
                               const struct jinja_str *chars);
struct jinja_value jinja_replace(struct jinja *j, const struct jinja_str *s,
                                 const struct jinja_str *old, const struct jinja_str *to,
                                 int64_t count);
enum jinja_case { JC_UPPER, JC_LOWER, JC_TITLE, JC_CAPITALIZE };
struct jinja_value jinja_recase(struct jinja *j, const struct jinja_str *s, enum jinja_case c);
/* Bytes of the white-space character at s[at], 0 when it is none. */
size_t jinja_space_at(const struct jinja_str *s, size_t at);

/* ---- formatting: jinja_format.c --------------------------------------------------- */

/* What ".key" (or, item, "[key]") of a value gives. */
typedef struct jinja_value jinja_field(struct jinja *j, struct jinja_value v,
                                       struct jinja_value key, bool item);
/* "...".format(args), whose fields are read by `of`, and "..." % args. */
struct jinja_value jinja_format_braces(struct jinja *j, const struct jinja_str *s,
                                       const struct jinja_args *args, jinja_field *of);
struct jinja_value jinja_format_percent(struct jinja *j, const struct jinja_str *s,
                                        struct jinja_value args);
struct jinja_value jinja_strftime(struct jinja *j, const struct jinja_str *format, time_t t);

/* ---- operators: jinja_operator.c -------------------------------------------------- */

struct jinja_value jinja_binary(struct jinja *j, enum jinja_op op, struct jinja_value a,
                                struct jinja_value b);

/* ---- methods, attributes, items: jinja_method.c ------------------------------------ */

struct jinja_value jinja_call_method(struct jinja *j, const struct jinja_method *m,
                                     const struct jinja_args *args);
/* v[key] and v.name; undefined where there is none. */
struct jinja_value jinja_get_item(struct jinja *j, struct jinja_value v, struct jinja_value key);
struct jinja_value jinja_get_attr(struct jinja *j, struct jinja_value v,
                                  const struct jinja_str *name);

/* ---- filters, tests, globals: jinja_filter.c, jinja_is.c ---------------------------- */

/* The filter or test of that name, or NULL. args->value[0] is what it applies to. */
jinja_function *jinja_find_filter(const struct jinja_str *name);
typedef bool jinja_predicate(struct jinja *j, const struct jinja_args *args);
jinja_predicate *jinja_find_test(const struct jinja_str *name);
/* The same without the tests that look names up. */
jinja_predicate *jinja_find_predicate(const struct jinja_str *name);
/* A global function of that name, or NULL. */
jinja_function *jinja_find_global(const struct jinja_str *name);

/* ---- parse and walk ------------------------------------------------------------------ */

/* text must outlive the tree. */
struct jinja_node *jinja_parse(struct jinja *j, const char *text, size_t n);

/* name must live as long as the render. */
void jinja_scope_set(struct jinja *j, const struct jinja_str *name, struct jinja_value v);
/* Enter a scope over the current one. */
void jinja_scope_push(struct jinja *j);
/* Walk the tree; text goes to j->out. */
void jinja_render(struct jinja *j, const struct jinja_node *root);
/* Call any callable. */
struct jinja_value jinja_call(struct jinja *j, struct jinja_value f, const struct jinja_args *args);

#endif
