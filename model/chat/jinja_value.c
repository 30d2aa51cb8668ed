/* jinja_value.c: values of the template interpreter, with Python's semantics
 * for truth, equality, order, membership, items and slices; text under
 * construction; the arena that all of it lives in.
 *
 * Owns nothing: values live in the render's arena.  One thread per render. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/chat/jinja.h"
#include "proto/utf8.h"

/* ---- arena, errors, bounds ------------------------------------------------------ */

struct jinja_chunk {
    struct jinja_chunk *next;
    size_t n, cap;
    max_align_t data[];
};

void jinja_arena_free(struct jinja_arena *a)
{
    while (a->chunk != NULL) {
        struct jinja_chunk *c = a->chunk;
        a->chunk = c->next;
        free(c);
    }
    a->used = 0;
}

_Noreturn void jinja_fail(struct jinja *j, const char *fmt, ...)
{
    char text[ERR_MESSAGE_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    j->rc =
        err_set_param(j->err, ERR_INVALID, "messages", "%s, line %d: %s", j->name, j->line, text);
    longjmp(j->escape, 1);
}

_Noreturn void jinja_nomem(struct jinja *j, size_t n)
{
    j->rc = err_nomem(j->err, j->name, n);
    longjmp(j->escape, 1);
}

void *jinja_alloc(struct jinja *j, size_t n)
{
    struct jinja_arena *a = j->arena;
    size_t need = (n + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
    if (need < n || need > a->limit - a->used)
        jinja_fail(j, "the template needs more than %zu MiB", a->limit >> 20);
    if (a->chunk == NULL || a->chunk->cap - a->chunk->n < need) {
        size_t cap = need > (64 << 10) ? need : 64 << 10;
        struct jinja_chunk *c = malloc(sizeof *c + cap);
        if (c == NULL)
            jinja_nomem(j, cap);
        c->next = a->chunk;
        c->n = 0;
        c->cap = cap;
        a->chunk = c;
    }
    void *p = (char *)a->chunk->data + a->chunk->n;
    a->chunk->n += need;
    a->used += need;
    return memset(p, 0, need);
}

void jinja_deeper(struct jinja *j)
{
    if (++j->depth > JINJA_MAX_DEPTH)
        jinja_fail(j, "nested deeper than %d levels", JINJA_MAX_DEPTH);
}

void jinja_step(struct jinja *j, uint64_t n)
{
    j->steps += n;
    if (j->steps > JINJA_MAX_STEPS)
        jinja_fail(j, "the template takes more than %d steps", JINJA_MAX_STEPS);
}

/* ---- making ---------------------------------------------------------------------- */

struct jinja_value jinja_undefined(const struct jinja_str *name)
{
    return (struct jinja_value){ .kind = JV_UNDEFINED, .u.name = name };
}

struct jinja_value jinja_none(void)
{
    return (struct jinja_value){ .kind = JV_NONE };
}

struct jinja_value jinja_bool(bool v)
{
    return (struct jinja_value){ .kind = JV_BOOL, .u.boolean = v };
}

struct jinja_value jinja_int(int64_t v)
{
    return (struct jinja_value){ .kind = JV_INT, .u.integer = v };
}

struct jinja_value jinja_float(double v)
{
    return (struct jinja_value){ .kind = JV_FLOAT, .u.real = v };
}

struct jinja_value jinja_string(struct jinja *j, const char *p, size_t n)
{
    struct jinja_str *s = jinja_alloc(j, sizeof *s);
    *s = (struct jinja_str){ .n = n, .p = p };
    return (struct jinja_value){ .kind = JV_STRING, .u.str = s };
}

struct jinja_value jinja_bigint(struct jinja *j, const char *digits, size_t n)
{
    struct jinja_value v = jinja_string(j, digits, n);
    v.kind = JV_BIGINT;
    return v;
}

struct jinja_value jinja_cstring(struct jinja *j, const char *s)
{
    return jinja_string(j, s, strlen(s));
}

struct jinja_value jinja_substring(struct jinja *j, const struct jinja_str *s, size_t from,
                                   size_t to)
{
    struct jinja_value v = jinja_string(j, s->p + from, to - from);
    v.u.str->user = s->user == NULL ? NULL : s->user + from;
    return v;
}

struct jinja_value jinja_list_new(struct jinja *j, enum jinja_kind kind)
{
    struct jinja_value v = { .kind = kind };
    v.u.list = jinja_alloc(j, sizeof *v.u.list);
    return v;
}

void jinja_list_add(struct jinja *j, struct jinja_list *l, struct jinja_value v)
{
    jinja_step(j, 1);
    if (l->n == l->cap) {
        size_t cap = l->cap == 0 ? 4 : 2 * l->cap;
        struct jinja_value *item = jinja_alloc(j, cap * sizeof *item);
        if (l->n > 0)
            memcpy(item, l->item, l->n * sizeof *item);
        l->item = item;
        l->cap = cap;
    }
    l->item[l->n++] = v;
}

/* ---- buffers ------------------------------------------------------------------------ */

void jinja_buf_init(struct jinja_buf *b, struct jinja *j)
{
    *b = (struct jinja_buf){ .j = j };
}

static void reserve(struct jinja_buf *b, size_t n)
{
    if (b->cap - b->n >= n)
        return;
    size_t cap = b->cap == 0 ? 64 : 2 * b->cap;
    while (cap < b->n + n)
        cap *= 2;
    char *p = jinja_alloc(b->j, cap);
    if (b->n > 0)
        memcpy(p, b->p, b->n);
    b->p = p;
    if (b->user != NULL) {
        uint8_t *user = jinja_alloc(b->j, cap);
        memcpy(user, b->user, b->n);
        b->user = user;
    }
    b->cap = cap;
}

void jinja_buf_marked(struct jinja_buf *b, const char *p, size_t n, bool user)
{
    if (n == 0)
        return;
    jinja_step(b->j, 1 + n / 64);
    reserve(b, n);
    if (user && b->user == NULL)
        b->user = jinja_alloc(b->j, b->cap);
    memcpy(b->p + b->n, p, n);
    if (b->user != NULL)
        memset(b->user + b->n, user, n);
    b->n += n;
}

void jinja_buf_add(struct jinja_buf *b, const char *p, size_t n)
{
    jinja_buf_marked(b, p, n, false);
}

void jinja_buf_cstr(struct jinja_buf *b, const char *s)
{
    jinja_buf_add(b, s, strlen(s));
}

void jinja_buf_part(struct jinja_buf *b, const struct jinja_str *s, size_t from, size_t to)
{
    if (to <= from)
        return;
    jinja_buf_add(b, s->p + from, to - from);
    if (s->user == NULL)
        return;
    if (b->user == NULL)
        b->user = jinja_alloc(b->j, b->cap);
    memcpy(b->user + b->n - (to - from), s->user + from, to - from);
}

void jinja_buf_str(struct jinja_buf *b, const struct jinja_str *s)
{
    jinja_buf_part(b, s, 0, s->n);
}

struct jinja_value jinja_buf_value(struct jinja_buf *b)
{
    struct jinja_value v = jinja_string(b->j, b->n == 0 ? "" : b->p, b->n);
    v.u.str->user = b->n == 0 ? NULL : b->user;
    return v;
}

/* ---- maps ------------------------------------------------------------------------- */

struct jinja_value jinja_map_new(struct jinja *j)
{
    struct jinja_value v = { .kind = JV_MAP };
    v.u.map = jinja_alloc(j, sizeof *v.u.map);
    return v;
}

static uint64_t hash_value(struct jinja *j, struct jinja_value v)
{
    uint64_t h = 0xCBF29CE484222325u;
    switch (v.kind) {
    case JV_STRING:
        for (size_t i = 0; i < v.u.str->n; i++)
            h = (h ^ (unsigned char)v.u.str->p[i]) * 0x100000001B3u;
        return h;
    case JV_BOOL:
    case JV_INT:
    case JV_BIGINT:
    case JV_FLOAT: {
        double d = jinja_number(v) + 0.0;
        uint64_t bits;
        memcpy(&bits, &d, sizeof bits);
        return bits * 0x9E3779B97F4A7C15u;
    }
    case JV_NONE:
        return 1;
    case JV_TUPLE:
        for (size_t i = 0; i < v.u.list->n; i++)
            h = h * 31 + hash_value(j, v.u.list->item[i]);
        return h;
    default:
        jinja_fail(j, "a %s cannot be a key", jinja_type_name(v));
    }
}

/* Enter member i into the index, which has room. */
static void index_member(struct jinja *j, struct jinja_map *m, size_t i)
{
    size_t at = hash_value(j, m->member[i].key) % m->index_size;
    while (m->index[at] != 0)
        at = (at + 1) % m->index_size;
    m->index[at] = (uint32_t)i + 1;
}

static void index_rebuild(struct jinja *j, struct jinja_map *m)
{
    m->index_size = 4 * m->cap;
    m->index = jinja_alloc(j, m->index_size * sizeof *m->index);
    for (size_t i = 0; i < m->n; i++)
        index_member(j, m, i);
}

struct jinja_value *jinja_map_get(struct jinja *j, const struct jinja_map *m,
                                  struct jinja_value key)
{
    jinja_step(j, 1);
    if (m->index == NULL) {
        (void)hash_value(j, key);
        for (size_t i = 0; i < m->n; i++)
            if (jinja_equal(j, m->member[i].key, key))
                return &m->member[i].value;
        return NULL;
    }
    for (size_t at = hash_value(j, key) % m->index_size; m->index[at] != 0;
         at = (at + 1) % m->index_size) {
        struct jinja_member *e = &m->member[m->index[at] - 1];
        if (jinja_equal(j, e->key, key))
            return &e->value;
    }
    return NULL;
}

struct jinja_value *jinja_map_find(struct jinja *j, const struct jinja_map *m, const char *key)
{
    struct jinja_str s = { .n = strlen(key), .p = key };
    return jinja_map_get(j, m, (struct jinja_value){ .kind = JV_STRING, .u.str = &s });
}

void jinja_map_put(struct jinja *j, struct jinja_map *m, struct jinja_value key,
                   struct jinja_value v)
{
    struct jinja_value *old = jinja_map_get(j, m, key);
    if (old != NULL) {
        *old = v;
        return;
    }
    if (m->n == m->cap) {
        size_t cap = m->cap == 0 ? 8 : 2 * m->cap;
        struct jinja_member *e = jinja_alloc(j, cap * sizeof *e);
        if (m->n > 0)
            memcpy(e, m->member, m->n * sizeof *e);
        m->member = e;
        m->cap = cap;
        m->member[m->n++] = (struct jinja_member){ key, v };
        if (cap > 8)
            index_rebuild(j, m);
        return;
    }
    m->member[m->n++] = (struct jinja_member){ key, v };
    if (m->index != NULL)
        index_member(j, m, m->n - 1);
}

void jinja_map_clear(struct jinja_map *m)
{
    m->n = 0;
    if (m->index != NULL)
        memset(m->index, 0, m->index_size * sizeof *m->index);
}

/* ---- comparing ---------------------------------------------------------------------- */

bool jinja_str_is(const struct jinja_str *s, const char *text)
{
    size_t n = strlen(text);
    return s->n == n && memcmp(s->p, text, n) == 0;
}

bool jinja_str_equal(const struct jinja_str *a, const struct jinja_str *b)
{
    return a->n == b->n && (a->n == 0 || memcmp(a->p, b->p, a->n) == 0);
}

bool jinja_truth(struct jinja_value v)
{
    switch (v.kind) {
    case JV_UNDEFINED:
    case JV_NONE:
        return false;
    case JV_BOOL:
        return v.u.boolean;
    case JV_INT:
        return v.u.integer != 0;
    case JV_FLOAT:
        return v.u.real != 0;
    case JV_STRING:
        return v.u.str->n > 0;
    case JV_LIST:
    case JV_TUPLE:
        return v.u.list->n > 0;
    case JV_MAP:
        return v.u.map->n > 0;
    default:
        return true;
    }
}

double jinja_number(struct jinja_value v)
{
    char text[512]; /* more digits than a double's range has */
    switch (v.kind) {
    case JV_FLOAT:
        return v.u.real;
    case JV_INT:
        return (double)v.u.integer;
    case JV_BIGINT:
        snprintf(text, sizeof text, "%.*s", (int)v.u.str->n, v.u.str->p);
        return strtod(text, NULL);
    default:
        return v.u.boolean;
    }
}

int64_t jinja_as_int(struct jinja_value v)
{
    return v.kind == JV_INT ? v.u.integer : v.u.boolean;
}

/* Order of two ints of which one, or both, is a JV_BIGINT. */
static int compare_bigints(struct jinja_value a, struct jinja_value b)
{
    bool big_a = a.kind == JV_BIGINT, big_b = b.kind == JV_BIGINT;
    int sign_a = !big_a ? 0 : a.u.str->p[0] == '-' ? -1 : 1;
    int sign_b = !big_b ? 0 : b.u.str->p[0] == '-' ? -1 : 1;
    if (sign_a != sign_b)
        return sign_a < sign_b ? -1 : 1;
    if (a.u.str->n != b.u.str->n)
        return a.u.str->n < b.u.str->n ? -sign_a : sign_a;
    int order = memcmp(a.u.str->p, b.u.str->p, a.u.str->n);
    return order < 0 ? -sign_a : order > 0 ? sign_a : 0;
}

/* Order of two numbers. */
static int compare_numbers(struct jinja_value a, struct jinja_value b)
{
    if (a.kind == JV_FLOAT || b.kind == JV_FLOAT) {
        double x = jinja_number(a), y = jinja_number(b);
        return (x > y) - (x < y);
    }
    if (a.kind == JV_BIGINT || b.kind == JV_BIGINT)
        return compare_bigints(a, b);
    int64_t x = jinja_as_int(a), y = jinja_as_int(b);
    return (x > y) - (x < y);
}

bool jinja_equal(struct jinja *j, struct jinja_value a, struct jinja_value b)
{
    jinja_step(j, 1);
    if (jinja_is_number(a) && jinja_is_number(b)) {
        if (a.kind == JV_FLOAT || b.kind == JV_FLOAT)
            return jinja_number(a) == jinja_number(b);
        return compare_numbers(a, b) == 0;
    }
    if (a.kind != b.kind)
        return false;
    bool same = true;
    switch (a.kind) {
    case JV_UNDEFINED:
    case JV_NONE:
        return true;
    case JV_STRING:
        jinja_step(j, a.u.str->n / 64);
        return jinja_str_equal(a.u.str, b.u.str);
    case JV_LIST:
    case JV_TUPLE:
        jinja_deeper(j);
        same = a.u.list->n == b.u.list->n;
        for (size_t i = 0; same && i < a.u.list->n; i++)
            same = jinja_equal(j, a.u.list->item[i], b.u.list->item[i]);
        j->depth--;
        return same;
    case JV_MAP:
        jinja_deeper(j);
        same = a.u.map->n == b.u.map->n;
        for (size_t i = 0; same && i < a.u.map->n; i++) {
            const struct jinja_value *v = jinja_map_get(j, b.u.map, a.u.map->member[i].key);
            same = v != NULL && jinja_equal(j, a.u.map->member[i].value, *v);
        }
        j->depth--;
        return same;
    default:
        return jinja_same_object(a, b);
    }
}

int jinja_compare(struct jinja *j, struct jinja_value a, struct jinja_value b)
{
    jinja_step(j, 1);
    if (jinja_is_number(a) && jinja_is_number(b))
        return compare_numbers(a, b);
    if (a.kind == JV_STRING && b.kind == JV_STRING) {
        size_t n = a.u.str->n < b.u.str->n ? a.u.str->n : b.u.str->n;
        int c = n == 0 ? 0 : memcmp(a.u.str->p, b.u.str->p, n);
        return c != 0 ? c : (a.u.str->n > b.u.str->n) - (a.u.str->n < b.u.str->n);
    }
    if (a.kind == b.kind && (a.kind == JV_LIST || a.kind == JV_TUPLE)) {
        jinja_deeper(j);
        int c = 0;
        for (size_t i = 0; c == 0 && i < a.u.list->n && i < b.u.list->n; i++)
            if (!jinja_equal(j, a.u.list->item[i], b.u.list->item[i]))
                c = jinja_compare(j, a.u.list->item[i], b.u.list->item[i]);
        j->depth--;
        return c != 0 ? c : (a.u.list->n > b.u.list->n) - (a.u.list->n < b.u.list->n);
    }
    jinja_fail(j, "cannot order %s and %s", jinja_type_name(a), jinja_type_name(b));
}

bool jinja_contains(struct jinja *j, struct jinja_value container, struct jinja_value v)
{
    switch (container.kind) {
    case JV_UNDEFINED:
        return false;
    case JV_STRING:
        if (v.kind != JV_STRING)
            jinja_fail(j, "'in' of a str needs a str, found %s", jinja_type_name(v));
        jinja_step(j, container.u.str->n / 64);
        return v.u.str->n == 0 ||
               memmem(container.u.str->p, container.u.str->n, v.u.str->p, v.u.str->n) != NULL;
    case JV_LIST:
    case JV_TUPLE:
        for (size_t i = 0; i < container.u.list->n; i++)
            if (jinja_equal(j, container.u.list->item[i], v))
                return true;
        return false;
    case JV_MAP:
        return jinja_map_get(j, container.u.map, v) != NULL;
    default:
        jinja_fail(j, "'in' of a %s is not possible", jinja_type_name(container));
    }
}

const char *jinja_type_name(struct jinja_value v)
{
    static const char *const name[] = {
        [JV_UNDEFINED] = "undefined", [JV_NONE] = "NoneType",
        [JV_BOOL] = "bool",           [JV_INT] = "int",
        [JV_BIGINT] = "int",          [JV_FLOAT] = "float",
        [JV_STRING] = "str",          [JV_LIST] = "list",
        [JV_TUPLE] = "tuple",         [JV_MAP] = "dict",
        [JV_NAMESPACE] = "Namespace", [JV_MACRO] = "Macro",
        [JV_FUNCTION] = "function",   [JV_METHOD] = "method",
        [JV_LOOP] = "LoopContext",
    };
    return name[v.kind];
}

static void merge(struct jinja *j, struct jinja_value *item, struct jinja_value *key,
                  struct jinja_value *spare, size_t n, bool reverse)
{
    if (n < 2)
        return;
    size_t half = n / 2;
    merge(j, item, key, spare, half, reverse);
    merge(j, item + half, key + half, spare, n - half, reverse);
    size_t a = 0, b = half;
    for (size_t i = 0; i < n; i++) {
        int c = a == half ? 1 : b == n ? -1 : jinja_compare(j, key[a], key[b]);
        bool left = a < half && (b == n || (reverse ? c >= 0 : c <= 0));
        size_t from = left ? a++ : b++;
        spare[2 * i] = item[from];
        spare[2 * i + 1] = key[from];
    }
    for (size_t i = 0; i < n; i++) {
        item[i] = spare[2 * i];
        key[i] = spare[2 * i + 1];
    }
}

void jinja_sort(struct jinja *j, struct jinja_list *l, const struct jinja_value *key, bool reverse)
{
    if (l->n < 2)
        return;
    struct jinja_value *keys = jinja_alloc(j, l->n * sizeof *keys);
    memcpy(keys, key, l->n * sizeof *keys);
    merge(j, l->item, keys, jinja_alloc(j, 2 * l->n * sizeof *keys), l->n, reverse);
}

/* ---- containers ----------------------------------------------------------------------- */

_Noreturn void jinja_fail_undefined(struct jinja *j, struct jinja_value v)
{
    const struct jinja_str *name = v.u.name;
    if (name == NULL)
        jinja_fail(j, "a value is undefined");
    jinja_fail(j, "'%.*s' is undefined", (int)(name->n < 80 ? name->n : 80), name->p);
}

const struct jinja_list *jinja_iterate(struct jinja *j, struct jinja_value v)
{
    if (v.kind == JV_LIST || v.kind == JV_TUPLE)
        return v.u.list;
    struct jinja_list *l = jinja_list_new(j, JV_LIST).u.list;
    switch (v.kind) {
    case JV_UNDEFINED:
        return l;
    case JV_MAP:
        for (size_t i = 0; i < v.u.map->n; i++)
            jinja_list_add(j, l, v.u.map->member[i].key);
        return l;
    case JV_STRING:
        for (size_t i = 0; i < v.u.str->n;) {
            size_t n = utf8_sequence_bytes(v.u.str->p + i, v.u.str->n - i);
            n = n == 0 ? 1 : n;
            jinja_list_add(j, l, jinja_substring(j, v.u.str, i, i + n));
            i += n;
        }
        return l;
    default:
        jinja_fail(j, "a %s cannot be iterated", jinja_type_name(v));
    }
}

static int64_t characters(const struct jinja_str *s)
{
    int64_t n = 0;
    for (size_t i = 0; i < s->n; i++)
        n += ((unsigned char)s->p[i] & 0xc0) != 0x80;
    return n;
}

/* Byte offset of character c, 0 <= c <= characters(s). */
static size_t byte_of(const struct jinja_str *s, int64_t c)
{
    size_t i = 0;
    for (; i < s->n; i++)
        if (((unsigned char)s->p[i] & 0xc0) != 0x80 && c-- == 0)
            break;
    return i;
}

int64_t jinja_length(struct jinja *j, struct jinja_value v)
{
    switch (v.kind) {
    case JV_UNDEFINED:
        return 0;
    case JV_STRING:
        jinja_step(j, v.u.str->n / 64);
        return characters(v.u.str);
    case JV_LIST:
    case JV_TUPLE:
        return (int64_t)v.u.list->n;
    case JV_MAP:
        return (int64_t)v.u.map->n;
    default:
        jinja_fail(j, "a %s has no length", jinja_type_name(v));
    }
}

bool jinja_find_item(struct jinja *j, struct jinja_value v, struct jinja_value key,
                     struct jinja_value *out)
{
    if (v.kind == JV_MAP) {
        const struct jinja_value *found = jinja_map_get(j, v.u.map, key);
        if (found != NULL)
            *out = *found;
        return found != NULL;
    }
    bool indexed = v.kind == JV_LIST || v.kind == JV_TUPLE || v.kind == JV_STRING;
    if (!indexed || (key.kind != JV_INT && key.kind != JV_BOOL))
        return false;
    int64_t n = jinja_length(j, v), i = jinja_as_int(key);
    i += i < 0 ? n : 0;
    if (i < 0 || i >= n) {
        *out = jinja_undefined(NULL);
    } else if (v.kind != JV_STRING) {
        *out = v.u.list->item[i];
    } else {
        jinja_step(j, v.u.str->n / 64);
        *out = jinja_substring(j, v.u.str, byte_of(v.u.str, i), byte_of(v.u.str, i + 1));
    }
    return true;
}

/* One bound of a slice, clamped as Python does. */
static int64_t slice_bound(struct jinja *j, struct jinja_value v, int64_t n, int64_t step,
                           int64_t otherwise)
{
    if (v.kind == JV_NONE)
        return otherwise;
    if (v.kind != JV_INT && v.kind != JV_BOOL)
        jinja_fail(j, "a slice needs ints, found %s", jinja_type_name(v));
    int64_t i = jinja_as_int(v);
    if (i < 0)
        i = i < -n ? -1 : i + n;
    else if (i > n)
        i = n;
    if (i < 0)
        return step < 0 ? -1 : 0;
    return step < 0 && i >= n ? n - 1 : i;
}

struct jinja_value jinja_slice(struct jinja *j, struct jinja_value v, struct jinja_value from,
                               struct jinja_value to, struct jinja_value step_value)
{
    if (v.kind == JV_UNDEFINED)
        jinja_fail_undefined(j, v);
    if (v.kind != JV_STRING && v.kind != JV_LIST && v.kind != JV_TUPLE)
        jinja_fail(j, "a %s cannot be sliced", jinja_type_name(v));
    int64_t n = jinja_length(j, v);
    int64_t step = step_value.kind == JV_NONE ? 1 : 0;
    if (step == 0 && (step_value.kind != JV_INT || (step = step_value.u.integer) == 0))
        jinja_fail(j, "a slice's step must be an int other than 0");
    int64_t a = slice_bound(j, from, n, step, step < 0 ? n - 1 : 0);
    int64_t b = slice_bound(j, to, n, step, step < 0 ? -1 : n);
    if (v.kind == JV_STRING && step == 1) {
        jinja_step(j, v.u.str->n / 64);
        size_t first = byte_of(v.u.str, a);
        return jinja_substring(j, v.u.str, first, b <= a ? first : byte_of(v.u.str, b));
    }
    const struct jinja_list *l = jinja_iterate(j, v);
    struct jinja_value out = jinja_list_new(j, v.kind == JV_TUPLE ? JV_TUPLE : JV_LIST);
    for (int64_t i = a; step > 0 ? i < b : i > b; i += step)
        jinja_list_add(j, out.u.list, l->item[i]);
    if (v.kind != JV_STRING)
        return out;
    struct jinja_buf buf;
    jinja_buf_init(&buf, j);
    for (size_t i = 0; i < out.u.list->n; i++)
        jinja_buf_str(&buf, out.u.list->item[i].u.str);
    return jinja_buf_value(&buf);
}
