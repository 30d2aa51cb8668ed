/* json.c: the reader of json.h: one pass, an explicit stack of open
 * containers, values appended to one growing array.  Owns nothing beyond the
 * document it fills.  Any thread. */
#include "proto/text/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "proto/utf8.h"

/* A text has about one value in 16 bytes: what is reserved at first. */
enum { PAIRWISE_KEYS = 12, BYTES_A_VALUE = 16, FIRST_VALUES = 16 };

struct parser {
    const char *what; /* the text's name, for messages */
    const char *text, *p, *end;
    char *in_place; /* text, where strings may be written into it; else NULL */
    struct json_doc *doc;
    size_t n_values, cap, max_values;
    char *str;                     /* where the next decoded byte goes */
    uint32_t open[JSON_MAX_DEPTH]; /* indices of the open containers */
    unsigned depth;
    uint32_t top_key; /* key of the root's member being read; 0: none */
    struct err *e;
};

/* ERR_INVALID at byte `at`, naming the top-level member being read. */
static enum err_code fail(const struct parser *ps, const char *at, const char *what)
{
    const char *key = ps->top_key != 0 ? ps->doc->value[ps->top_key].u.string : "";
    return err_set_param(ps->e, ERR_INVALID, key, "%s%s%s is not valid JSON: byte %zu: %s", key,
                         *key ? ": " : "", ps->what, (size_t)(at - ps->text), what);
}

/* The same for a byte that cannot stand here. */
static enum err_code unexpected(const struct parser *ps, const char *expected)
{
    char what[96];
    if (ps->p == ps->end)
        snprintf(what, sizeof what, "found the end, expected %s", expected);
    else if ((unsigned char)*ps->p < 0x21 || (unsigned char)*ps->p > 0x7e)
        snprintf(what, sizeof what, "found byte 0x%02x, expected %s", (unsigned char)*ps->p,
                 expected);
    else
        snprintf(what, sizeof what, "found '%c', expected %s", *ps->p, expected);
    return fail(ps, ps->p, what);
}

static void skip_space(struct parser *ps)
{
    const char *p = ps->p, *end = ps->end;
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) {
        p++;
        while (end - p >= 8 && memcmp(p, "        ", 8) == 0) /* indentation */
            p += 8;
    }
    ps->p = p;
}

/* Append a value; the pointer holds until the next append. */
static enum err_code append(struct parser *ps, enum json_kind kind, struct json **out)
{
    if (ps->max_values != 0 && ps->n_values >= ps->max_values)
        return err_set(ps->e, ERR_LIMIT, "%s: more than %zu JSON values", ps->what, ps->max_values);
    if (ps->n_values == ps->cap) {
        size_t cap = ps->cap == 0 ? (size_t)(ps->end - ps->text) / BYTES_A_VALUE + FIRST_VALUES
                                  : ps->cap * 2;
        struct json *v = realloc(ps->doc->value, cap * sizeof *v);
        if (v == NULL)
            return err_nomem(ps->e, "JSON values", cap * sizeof *v);
        ps->doc->value = v;
        ps->cap = cap;
    }
    struct json *v = &ps->doc->value[ps->n_values++];
    *v = (struct json){ .kind = kind };
    *out = v;
    return ERR_OK;
}

/* ------------------------------------------------------------------ strings */

static int hex4(const char *s)
{
    int v = 0;
    for (int i = 0; i < 4; i++) {
        char c = s[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0)
            return -1;
        v = v << 4 | d;
    }
    return v;
}

/* \uXXXX at ps->p (on the backslash), surrogate pairs joined. */
static enum err_code read_unicode_escape(struct parser *ps)
{
    const char *s = ps->p;
    int hi = ps->end - s < 6 ? -1 : hex4(s + 2);
    if (hi < 0)
        return fail(ps, s, "\\u needs four hexadecimal digits");
    uint32_t c = (uint32_t)hi;
    ps->p = s + 6;
    if (hi >= 0xdc00 && hi <= 0xdfff)
        return fail(ps, s, "low surrogate without a high one before it");
    if (hi >= 0xd800 && hi <= 0xdbff) {
        int lo = -1;
        if (ps->end - ps->p >= 6 && ps->p[0] == '\\' && ps->p[1] == 'u')
            lo = hex4(ps->p + 2);
        if (lo < 0xdc00 || lo > 0xdfff)
            return fail(ps, s, "high surrogate without a low one after it");
        c = 0x10000u + ((uint32_t)(hi - 0xd800) << 10) + (uint32_t)(lo - 0xdc00);
        ps->p += 6;
    }
    ps->str += utf8_encode(c, ps->str);
    return ERR_OK;
}

static enum err_code read_escape(struct parser *ps)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = ps->end - ps->p < 2 ? '\0' : ps->p[1];
    if (c == 'u')
        return read_unicode_escape(ps);
    const char *at = c == '\0' ? NULL : strchr(from, c);
    if (at == NULL)
        return fail(ps, ps->p, "no such escape in a string");
    *ps->str++ = to[at - from];
    ps->p += 2;
    return ERR_OK;
}

/* The first byte from p on that ends a run of plain characters: a quote, a
 * backslash, a control character; or end. */
static const char *after_run(const char *p, const char *end)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), tops = ones << 7;
    for (; end - p >= 8; p += 8) { /* eight at a time while none of them ends it */
        uint64_t w;
        memcpy(&w, p, 8);
        uint64_t quote = w ^ ones * '"', slash = w ^ ones * '\\';
        uint64_t hit =
            ((w - ones * 0x20) & ~w) | ((quote - ones) & ~quote) | ((slash - ones) & ~slash);
        if ((hit & tops) == 0)
            continue;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        return p + __builtin_ctzll(hit & tops) / 8; /* exact in the lowest that hits */
#else
        break;
#endif
    }
    while (p < end && (unsigned char)*p >= 0x20 && *p != '"' && *p != '\\')
        p++;
    return p;
}

/* A string at ps->p (on the quote).  Decoded it is never longer than written,
 * and the closing quote pays for the NUL: doc->strings cannot overflow, and in
 * place nothing is overwritten that is still to be read. */
static enum err_code read_string(struct parser *ps)
{
    struct json *v;
    enum err_code rc = append(ps, JSON_STRING, &v);
    if (rc)
        return rc;
    const char *open = ps->p++;
    if (ps->in_place != NULL)
        ps->str = ps->in_place + (ps->p - ps->text);
    char *start = ps->str;
    for (;;) {
        const char *run = ps->p;
        ps->p = after_run(run, ps->end);
        size_t len = (size_t)(ps->p - run);
        if (ps->str != run)
            memmove(ps->str, run, len);
        ps->str += len;
        if (ps->p == ps->end)
            return fail(ps, open, "string without a closing quote");
        if (*ps->p == '"')
            break;
        if (*ps->p != '\\')
            return unexpected(ps, "control characters in strings escaped");
        rc = read_escape(ps);
        if (rc)
            return rc;
    }
    ps->p++;
    v->u.string = start;
    v->n = (uint32_t)(ps->str - start);
    *ps->str++ = '\0';
    return ERR_OK;
}

/* ------------------------------------------------------------------ numbers */

static const double power_of_ten[] = {
    1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
};

struct digits {
    uint64_t mantissa; /* all digits read, when n_digits <= 19 */
    unsigned n_digits; /* without leading zeros */
    int exponent;      /* of ten, by the fraction and the exponent part */
    bool integral;     /* no fraction, no exponent part */
};

static void take_digits(struct parser *ps, struct digits *d)
{
    for (; ps->p < ps->end && *ps->p >= '0' && *ps->p <= '9'; ps->p++) {
        if (d->n_digits == 0 && *ps->p == '0')
            continue;
        if (++d->n_digits <= 19)
            d->mantissa = d->mantissa * 10 + (uint64_t)(*ps->p - '0');
    }
}

/* Reads the number's grammar; ps->p ends after it. */
static enum err_code scan_number(struct parser *ps, struct digits *d)
{
    *d = (struct digits){ .integral = true };
    if (*ps->p == '-')
        ps->p++;
    if (ps->p == ps->end || *ps->p < '0' || *ps->p > '9')
        return unexpected(ps, "a digit");
    if (*ps->p == '0')
        ps->p++; /* a digit after it is refused as what follows a value */
    else
        take_digits(ps, d);
    if (ps->p < ps->end && *ps->p == '.') {
        const char *dot = ps->p++;
        take_digits(ps, d);
        if (ps->p == dot + 1)
            return unexpected(ps, "a digit");
        d->exponent -= (int)(ps->p - dot - 1 > 100000 ? 100000 : ps->p - dot - 1);
        d->integral = false;
    }
    if (ps->p < ps->end && (*ps->p == 'e' || *ps->p == 'E')) {
        ps->p++;
        bool neg = ps->p < ps->end && *ps->p == '-';
        if (ps->p < ps->end && (*ps->p == '-' || *ps->p == '+'))
            ps->p++;
        const char *first = ps->p;
        int x = 0;
        for (; ps->p < ps->end && *ps->p >= '0' && *ps->p <= '9'; ps->p++)
            x = x < 100000 ? x * 10 + (*ps->p - '0') : x;
        if (ps->p == first)
            return unexpected(ps, "a digit");
        d->exponent += neg ? -x : x;
        d->integral = false;
    }
    return ERR_OK;
}

static enum err_code read_number(struct parser *ps)
{
    const char *start = ps->p;
    bool neg = *start == '-';
    struct digits d;
    enum err_code rc = scan_number(ps, &d);
    if (rc)
        return rc;
    size_t len = (size_t)(ps->p - start);
    if (len > JSON_MAX_NUMBER_BYTES)
        return fail(ps, start, "number longer than 255 characters");
    struct json *v;
    rc = append(ps, JSON_INT, &v);
    if (rc)
        return rc;
    uint64_t limit = (uint64_t)INT64_MAX + neg;
    if (d.integral && d.n_digits <= 19 && d.mantissa <= limit) {
        v->u.integer = neg ? (int64_t)(0 - d.mantissa) : (int64_t)d.mantissa;
        return ERR_OK;
    }
    if (d.integral) {
        *v = (struct json){ .kind = JSON_BIGINT, .n = (uint32_t)len, .u.digits = start };
        if (ps->in_place == NULL) {
            v->u.digits = memcpy(ps->str, start, len);
            ps->str += len;
        }
        return ERR_OK;
    }
    v->kind = JSON_REAL;
    if (d.n_digits <= 19 && d.mantissa <= UINT64_C(1) << 53 && d.exponent >= -22 &&
        d.exponent <= 22) { /* both exact in double: one rounding, the right one */
        double m = (double)d.mantissa;
        m = d.exponent < 0 ? m / power_of_ten[-d.exponent] : m * power_of_ten[d.exponent];
        v->u.real = neg ? -m : m;
        return ERR_OK;
    }
    char copy[JSON_MAX_NUMBER_BYTES + 1];
    memcpy(copy, start, len);
    copy[len] = '\0';
    v->u.real = strtod(copy, NULL);
    if (!isfinite(v->u.real))
        return fail(ps, start, "number beyond what a double holds");
    return ERR_OK;
}

static enum err_code read_literal(struct parser *ps)
{
    static const struct {
        const char *text;
        size_t n;
        enum json_kind kind;
        bool boolean;
    } literals[] = {
        { "true", 4, JSON_BOOL, true },
        { "false", 5, JSON_BOOL, false },
        { "null", 4, JSON_NULL, false },
    };
    for (size_t i = 0; i < sizeof literals / sizeof *literals; i++)
        if ((size_t)(ps->end - ps->p) >= literals[i].n &&
            memcmp(ps->p, literals[i].text, literals[i].n) == 0) {
            struct json *v;
            enum err_code rc = append(ps, literals[i].kind, &v);
            if (rc)
                return rc;
            v->u.boolean = literals[i].boolean;
            ps->p += literals[i].n;
            return ERR_OK;
        }
    return unexpected(ps, "a value");
}

/* --------------------------------------------------------------- containers */

static int compare_keys(const void *a, const void *b)
{
    const struct json *x = *(const struct json *const *)a;
    const struct json *y = *(const struct json *const *)b;
    if (x->n != y->n)
        return x->n < y->n ? -1 : 1;
    return memcmp(x->u.string, y->u.string, x->n);
}

static bool same_key(const struct json *x, const struct json *y)
{
    return x->n == y->n && memcmp(x->u.string, y->u.string, x->n) == 0;
}

static enum err_code duplicate(const struct parser *ps, const struct json *key)
{
    char shown[JSON_SHOW_BYTES], what[JSON_SHOW_BYTES + 32];
    snprintf(what, sizeof what, "key %s twice in one object", json_show(key, shown));
    if (ps->depth > 1)
        return fail(ps, ps->p, what);
    return err_set_param(ps->e, ERR_INVALID, key->u.string, "%.60s: %s is not valid: %s",
                         key->u.string, ps->what, what);
}

/* s[0..n), n in 1..7, as a word; different texts of one length give different words. */
static uint64_t short_word(const char *s, uint32_t n)
{
    uint32_t first, last;
    if (n < 4)
        return (uint64_t)(unsigned char)s[0] | (uint64_t)(unsigned char)s[n / 2] << 8 |
               (uint64_t)(unsigned char)s[n - 1] << 16;
    memcpy(&first, s, 4);
    memcpy(&last, s + n - 4, 4);
    return first | (uint64_t)last << 32;
}

static size_t hash_key(const struct json *key)
{
    const uint64_t factor = UINT64_C(0x9e3779b97f4a7c15);
    uint64_t h = key->n, w;
    const char *s = key->u.string;
    uint32_t n = key->n;
    for (; n >= 8; s += 8, n -= 8) {
        memcpy(&w, s, 8);
        h = (h ^ w) * factor;
        h ^= h >> 32;
    }
    if (n > 0) {
        h = (h ^ short_word(s, n)) * factor;
        h ^= h >> 32;
    }
    return (size_t)h;
}

/* In a small object: each key against those before it. */
static const struct json *pairwise_twice(const struct json *object)
{
    const struct json *k = json_first(object);
    for (uint32_t i = 0; i < object->n; i++, k = json_next(k + 1)) {
        const struct json *other = json_first(object);
        for (; other != k; other = json_next(other + 1))
            if (same_key(other, k))
                return k;
    }
    return NULL;
}

/* By sorting: slower than hashing, but no choice of keys makes it slow. */
static enum err_code sorted_twice(const struct parser *ps, const struct json *object,
                                  const struct json **twice)
{
    uint32_t n = object->n;
    const struct json **keys = malloc(n * sizeof *keys);
    if (keys == NULL)
        return err_nomem(ps->e, "JSON keys", n * sizeof *keys);
    const struct json *k = json_first(object);
    for (uint32_t i = 0; i < n; i++, k = json_next(k + 1))
        keys[i] = k;
    qsort(keys, n, sizeof *keys, compare_keys);
    for (uint32_t i = 1; i < n && *twice == NULL; i++)
        if (same_key(keys[i - 1], keys[i]))
            *twice = keys[i];
    free(keys);
    return ERR_OK;
}

/* By a hash table with open addressing; keys that were chosen to collide are
 * left to the sort. */
static enum err_code hashed_twice(const struct parser *ps, const struct json *object,
                                  const struct json **twice)
{
    size_t cap = 32, spare = 4 * (size_t)object->n;
    while (cap / 2 < object->n)
        cap *= 2;
    uint32_t *slot = calloc(cap, sizeof *slot); /* a key's distance from the object; 0: empty */
    if (slot == NULL)
        return err_nomem(ps->e, "JSON keys", cap * sizeof *slot);
    const struct json *k = json_first(object);
    for (uint32_t i = 0; i < object->n && *twice == NULL && spare > 0; i++) {
        size_t at = hash_key(k) & (cap - 1);
        for (; slot[at] != 0 && spare > 0; at = (at + 1) & (cap - 1), spare--)
            if (same_key(object + slot[at], k)) {
                *twice = k;
                break;
            }
        slot[at] = (uint32_t)(k - object);
        k = json_next(k + 1);
    }
    free(slot);
    return spare > 0 ? ERR_OK : sorted_twice(ps, object, twice);
}

/* Refuse two equal keys. */
static enum err_code check_keys(const struct parser *ps, const struct json *object)
{
    const struct json *twice = NULL;
    enum err_code rc = ERR_OK;
    if (object->n <= PAIRWISE_KEYS)
        twice = pairwise_twice(object);
    else
        rc = hashed_twice(ps, object, &twice);
    if (rc)
        return rc;
    return twice == NULL ? ERR_OK : duplicate(ps, twice);
}

static enum err_code open_container(struct parser *ps)
{
    if (ps->depth == JSON_MAX_DEPTH)
        return fail(ps, ps->p, "nested deeper than 128");
    struct json *v;
    enum err_code rc = append(ps, *ps->p == '{' ? JSON_OBJECT : JSON_ARRAY, &v);
    if (rc)
        return rc;
    ps->open[ps->depth++] = (uint32_t)(ps->n_values - 1);
    ps->p++;
    return ERR_OK;
}

static enum err_code close_container(struct parser *ps)
{
    uint32_t at = ps->open[ps->depth - 1];
    struct json *v = &ps->doc->value[at];
    v->u.span = (uint32_t)(ps->n_values - at);
    if (v->kind == JSON_OBJECT) {
        enum err_code rc = check_keys(ps, v);
        if (rc)
            return rc;
    }
    ps->depth--;
    ps->p++;
    return ERR_OK;
}

/* A key and its colon; ps->p ends where the value starts. */
static enum err_code read_key(struct parser *ps)
{
    if (ps->p == ps->end || *ps->p != '"')
        return unexpected(ps, "a key in double quotes");
    enum err_code rc = read_string(ps);
    if (rc)
        return rc;
    if (ps->depth == 1)
        ps->top_key = (uint32_t)(ps->n_values - 1);
    skip_space(ps);
    if (ps->p == ps->end || *ps->p != ':')
        return unexpected(ps, "':'");
    ps->p++;
    return ERR_OK;
}

/* One value, or the opening of a container whose first element (or key) stands
 * at ps->p; *whole tells which. */
static enum err_code read_value(struct parser *ps, bool *whole)
{
    skip_space(ps);
    *whole = true;
    if (ps->p == ps->end)
        return unexpected(ps, "a value");
    char c = *ps->p;
    if (c == '"')
        return read_string(ps);
    if (c == '-' || (c >= '0' && c <= '9'))
        return read_number(ps);
    if (c != '{' && c != '[')
        return read_literal(ps);
    enum err_code rc = open_container(ps);
    if (rc)
        return rc;
    skip_space(ps);
    if (ps->p < ps->end && *ps->p == (c == '{' ? '}' : ']'))
        return close_container(ps);
    *whole = false;
    return c == '{' ? read_key(ps) : ERR_OK;
}

/* After a whole value: commas and closings until the next value starts or the
 * root is complete (*done). */
static enum err_code after_value(struct parser *ps, bool *done)
{
    *done = false;
    while (ps->depth > 0) {
        struct json *in = &ps->doc->value[ps->open[ps->depth - 1]];
        bool object = in->kind == JSON_OBJECT;
        in->n++;
        if (ps->depth == 1)
            ps->top_key = 0;
        skip_space(ps);
        if (ps->p < ps->end && *ps->p == ',') {
            ps->p++;
            skip_space(ps);
            return object ? read_key(ps) : ERR_OK;
        }
        if (ps->p == ps->end || *ps->p != (object ? '}' : ']'))
            return unexpected(ps, object ? "',' or '}'" : "',' or ']'");
        enum err_code rc = close_container(ps);
        if (rc)
            return rc;
    }
    *done = true;
    skip_space(ps);
    return ps->p == ps->end ? ERR_OK : unexpected(ps, "nothing after the value");
}

static enum err_code parse_all(struct parser *ps)
{
    for (;;) {
        bool whole, done;
        enum err_code rc = read_value(ps, &whole);
        if (rc)
            return rc;
        if (!whole)
            continue;
        rc = after_value(ps, &done);
        if (rc || done)
            return rc;
    }
}

static enum err_code parse(struct parser *ps, size_t n, struct err *e)
{
    struct json_doc *doc = ps->doc;
    *doc = (struct json_doc){ 0 };
    if (n >= UINT32_MAX)
        return err_set(e, ERR_TOO_LARGE, "%s: %zu bytes of JSON, at most %u", ps->what, n,
                       UINT32_MAX - 1);
    size_t valid = utf8_valid_prefix(ps->text, n);
    if (valid != n)
        return err_set(e, ERR_INVALID, "%s is not valid UTF-8: byte %zu is 0x%02x", ps->what, valid,
                       (unsigned char)ps->text[valid]);
    if (ps->in_place == NULL) {
        doc->strings = malloc(n + 1);
        if (doc->strings == NULL)
            return err_nomem(e, "JSON strings", n + 1);
    }
    ps->p = ps->text;
    ps->end = ps->text + n;
    ps->str = doc->strings;
    ps->e = e;
    enum err_code rc = parse_all(ps);
    if (rc)
        json_doc_fini(doc);
    return rc;
}

enum err_code json_parse(struct json_doc *doc, const char *text, size_t n, size_t max_values,
                         struct err *e)
{
    return json_parse_named(doc, "body", text, n, max_values, e);
}

enum err_code json_parse_named(struct json_doc *doc, const char *what, const char *text, size_t n,
                               size_t max_values, struct err *e)
{
    struct parser ps = { .what = what, .text = text, .doc = doc, .max_values = max_values };
    return parse(&ps, n, e);
}

enum err_code json_parse_in_place(struct json_doc *doc, const char *what, char *text, size_t n,
                                  size_t max_values, struct err *e)
{
    struct parser ps = {
        .what = what, .text = text, .in_place = text, .doc = doc, .max_values = max_values
    };
    return parse(&ps, n, e);
}

void json_doc_fini(struct json_doc *doc)
{
    free(doc->value);
    free(doc->strings);
    *doc = (struct json_doc){ 0 };
}
