/* json_tape.c: see json_tape.h. */
#include "model/tokenizer/json_tape.h"

#include <stdlib.h>
#include <string.h>

#include "proto/utf8.h"

struct parser {
    struct json_tape *t;
    char *s;
    size_t n, i;
    const char *what;
    struct err *e;
};

static enum err_code bad(struct parser *p, const char *why)
{
    return err_set(p->e, ERR_INVALID, "%s: byte %zu: %s", p->what, p->i, why);
}

static enum err_code add(struct parser *p, enum tape_kind kind, size_t at, size_t n)
{
    struct json_tape *t = p->t;
    if (t->n == t->cap) {
        uint32_t cap = t->cap ? t->cap * 2 : 64;
        struct json_node *more =
            cap > t->cap ? realloc(t->node, (size_t)cap * sizeof(*more)) : NULL;
        if (more == NULL)
            return err_nomem(p->e, "JSON nodes", (unsigned long long)cap * sizeof(*more));
        t->node = more;
        t->cap = cap;
    }
    t->node[t->n] = (struct json_node){
        .at = (uint32_t)at, .n = (uint32_t)n, .next = t->n + 1, .kind = (uint32_t)kind
    };
    t->n++;
    return ERR_OK;
}

static void skip_space(struct parser *p)
{
    while (p->i < p->n &&
           (p->s[p->i] == ' ' || p->s[p->i] == '\n' || p->s[p->i] == '\t' || p->s[p->i] == '\r'))
        p->i++;
}

static int hex4(const char *s, size_t n, uint32_t *out)
{
    uint32_t v = 0;
    if (n < 4)
        return 0;
    for (int k = 0; k < 4; k++) {
        char c = s[k];
        uint32_t d = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                     : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                     : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                            : 16;
        if (d == 16)
            return 0;
        v = v << 4 | d;
    }
    *out = v;
    return 1;
}

/* One escape at p->i (after the backslash), written at *w. */
static enum err_code escape(struct parser *p, size_t *w)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = p->i < p->n ? p->s[p->i] : '\0';
    const char *k = c ? strchr(from, c) : NULL;
    if (k) {
        p->s[(*w)++] = to[k - from];
        p->i++;
        return ERR_OK;
    }
    uint32_t u, lo;
    if (c != 'u' || !hex4(p->s + p->i + 1, p->n - p->i - 1, &u))
        return bad(p, "unknown escape in a string");
    p->i += 5;
    if (u >= 0xd800 && u < 0xdc00) {
        if (p->n - p->i < 6 || p->s[p->i] != '\\' || p->s[p->i + 1] != 'u' ||
            !hex4(p->s + p->i + 2, 4, &lo) || lo < 0xdc00 || lo > 0xdfff)
            return bad(p, "half of a surrogate pair in a string");
        u = 0x10000 + ((u - 0xd800) << 10) + (lo - 0xdc00);
        p->i += 6;
    } else if (u >= 0xdc00 && u < 0xe000) {
        return bad(p, "half of a surrogate pair in a string");
    }
    *w += utf8_encode(u, p->s + *w);
    return ERR_OK;
}

static enum err_code string(struct parser *p)
{
    size_t start = ++p->i, w = start;
    while (p->i < p->n) {
        unsigned char c = (unsigned char)p->s[p->i];
        if (c == '"') {
            p->i++;
            return add(p, TAPE_STRING, start, w - start);
        }
        if (c < 0x20)
            return bad(p, "control character in a string");
        if (c == '\\') {
            p->i++;
            enum err_code rc = escape(p, &w);
            if (rc)
                return rc;
            continue;
        }
        size_t k = c < 0x80 ? 1 : utf8_sequence_bytes(p->s + p->i, p->n - p->i);
        if (k == 0)
            return bad(p, "invalid UTF-8 in a string");
        for (; k > 0; k--)
            p->s[w++] = p->s[p->i++];
    }
    return bad(p, "string without end");
}

static bool digits(struct parser *p)
{
    size_t from = p->i;
    while (p->i < p->n && p->s[p->i] >= '0' && p->s[p->i] <= '9')
        p->i++;
    return p->i > from;
}

static enum err_code number(struct parser *p)
{
    size_t from = p->i;
    if (p->s[p->i] == '-')
        p->i++;
    if (!digits(p))
        return bad(p, "value expected");
    if (p->i < p->n && p->s[p->i] == '.') {
        p->i++;
        if (!digits(p))
            return bad(p, "digits expected");
    }
    if (p->i < p->n && (p->s[p->i] | 0x20) == 'e') {
        p->i++;
        if (p->i < p->n && (p->s[p->i] == '+' || p->s[p->i] == '-'))
            p->i++;
        if (!digits(p))
            return bad(p, "digits expected");
    }
    return add(p, TAPE_NUMBER, from, p->i - from);
}

static enum err_code literal(struct parser *p, const char *word, enum tape_kind kind)
{
    size_t k = strlen(word);
    if (p->n - p->i < k || memcmp(p->s + p->i, word, k) != 0)
        return bad(p, "value expected");
    p->i += k;
    return add(p, kind, p->i - k, k);
}

/* A value that contains no other, or the opening of one that does. */
static enum err_code atom(struct parser *p)
{
    switch (p->i < p->n ? p->s[p->i] : '\0') {
    case '"':
        return string(p);
    case '{':
        p->i++;
        return add(p, TAPE_OBJECT, p->i, 0);
    case '[':
        p->i++;
        return add(p, TAPE_ARRAY, p->i, 0);
    case 't':
        return literal(p, "true", TAPE_TRUE);
    case 'f':
        return literal(p, "false", TAPE_FALSE);
    case 'n':
        return literal(p, "null", TAPE_NULL);
    default:
        return p->i < p->n ? number(p) : bad(p, "value expected");
    }
}

/* Before the next item of the container: its name when it is an object. */
static enum err_code name(struct parser *p)
{
    skip_space(p);
    if (p->i >= p->n || p->s[p->i] != '"')
        return bad(p, "name expected");
    enum err_code rc = string(p);
    if (rc)
        return rc;
    skip_space(p);
    if (p->i >= p->n || p->s[p->i] != ':')
        return bad(p, "':' expected");
    p->i++;
    return ERR_OK;
}

static enum err_code document(struct parser *p)
{
    uint32_t open[TAPE_MAX_DEPTH];
    int depth = 0;
    enum err_code rc;
    for (;;) {
        skip_space(p);
        rc = atom(p);
        if (rc)
            return rc;
        struct json_node *v = p->t->node + p->t->n - 1;
        if (v->kind >= TAPE_ARRAY) {
            if (depth == TAPE_MAX_DEPTH)
                return bad(p, "nested too deep");
            open[depth++] = p->t->n - 1;
        }
        bool fresh = v->kind >= TAPE_ARRAY;
        for (;;) { /* what follows a complete value, or an opening bracket */
            if (depth == 0)
                return ERR_OK;
            struct json_node *c = p->t->node + open[depth - 1];
            skip_space(p);
            char ch = p->i < p->n ? p->s[p->i] : '\0';
            if (!fresh)
                c->n++;
            if (ch == (c->kind == TAPE_ARRAY ? ']' : '}')) {
                p->i++;
                c->next = p->t->n;
                depth--;
                fresh = false;
                continue;
            }
            if (!fresh) {
                if (ch != ',')
                    return bad(p, "',' or a closing bracket expected");
                p->i++;
            }
            if (c->kind == TAPE_OBJECT && (rc = name(p)))
                return rc;
            break;
        }
    }
}

enum err_code json_tape_parse(struct json_tape *t, char *text, size_t n, const char *what,
                              struct err *e)
{
    *t = (struct json_tape){ .text = text };
    struct parser p = { .t = t, .s = text, .n = n, .what = what, .e = e };
    if (n >= UINT32_MAX)
        return err_set(e, ERR_LIMIT, "%s: %zu bytes: at most 4 GiB are read", what, n);
    if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        p.i = 3;
    t->cap = (uint32_t)(n / 16 + 16); /* what vocabularies need; pages come on use */
    t->node = malloc((size_t)t->cap * sizeof(*t->node));
    if (t->node == NULL)
        return err_nomem(e, "JSON nodes", (unsigned long long)t->cap * sizeof(*t->node));
    enum err_code rc = document(&p);
    if (rc == ERR_OK) {
        skip_space(&p);
        if (p.i < n)
            rc = bad(&p, "text after the document");
    }
    if (rc)
        json_tape_fini(t);
    return rc;
}

void json_tape_fini(struct json_tape *t)
{
    free(t->node);
    *t = (struct json_tape){ 0 };
}

const struct json_node *json_tape_first(const struct json_tape *t, const struct json_node *c)
{
    (void)t;
    return c && c->kind >= TAPE_ARRAY && c->n > 0 ? c + 1 : NULL;
}

const struct json_node *json_tape_get(const struct json_tape *t, const struct json_node *o,
                                      const char *key)
{
    if (o == NULL || o->kind != TAPE_OBJECT)
        return NULL;
    const struct json_node *found = NULL, *k = json_tape_first(t, o);
    for (uint32_t i = 0; i < o->n; i++) {
        const struct json_node *v = k + 1;
        if (json_tape_is(t, k, key))
            found = v;
        k = json_tape_after(t, v);
    }
    return found;
}

bool json_tape_is(const struct json_tape *t, const struct json_node *v, const char *s)
{
    return v && v->kind == TAPE_STRING && v->n == strlen(s) &&
           memcmp(json_tape_str(t, v), s, v->n) == 0;
}

double json_tape_number(const struct json_tape *t, const struct json_node *v)
{
    char buf[64];
    if (v == NULL || v->kind != TAPE_NUMBER || v->n >= sizeof(buf))
        return 0;
    memcpy(buf, json_tape_str(t, v), v->n);
    buf[v->n] = '\0';
    return strtod(buf, NULL);
}

int32_t json_tape_id(const struct json_tape *t, const struct json_node *v)
{
    if (v == NULL || v->kind != TAPE_NUMBER || v->n > 10)
        return -1;
    int64_t x = 0;
    const char *s = json_tape_str(t, v);
    for (uint32_t i = 0; i < v->n; i++) {
        if (s[i] < '0' || s[i] > '9')
            return -1;
        x = x * 10 + (s[i] - '0');
    }
    return x <= INT32_MAX ? (int32_t)x : -1;
}

bool json_tape_bool(const struct json_node *v, bool absent)
{
    return v == NULL || v->kind == TAPE_NULL ? absent : v->kind == TAPE_TRUE;
}

const char *json_tape_kind_name(const struct json_node *v)
{
    static const char *const names[] = { "null",     "false",    "true",     "a number",
                                         "a string", "an array", "an object" };
    return v ? names[v->kind] : "nothing";
}
