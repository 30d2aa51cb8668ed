/* json_write.c: the writer of json.h.  Number formatting relies on the C locale,
 * which the daemon never leaves.  Any thread, each its own buffer. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "proto/text/json.h"
#include "proto/utf8.h"

/* ------------------------------------------------------------------ strings */

/* 1: stands for itself. 0: below space, quote, backslash, or not ASCII. */
static const unsigned char plain[256] = {
    [0x20] = 1, [0x21] = 1, [0x23] = 1, [0x24] = 1, [0x25] = 1, [0x26] = 1, [0x27] = 1, [0x28] = 1,
    [0x29] = 1, [0x2a] = 1, [0x2b] = 1, [0x2c] = 1, [0x2d] = 1, [0x2e] = 1, [0x2f] = 1, ['0'] = 1,
    ['1'] = 1,  ['2'] = 1,  ['3'] = 1,  ['4'] = 1,  ['5'] = 1,  ['6'] = 1,  ['7'] = 1,  ['8'] = 1,
    ['9'] = 1,  [':'] = 1,  [';'] = 1,  ['<'] = 1,  ['='] = 1,  ['>'] = 1,  ['?'] = 1,  ['@'] = 1,
    ['A'] = 1,  ['B'] = 1,  ['C'] = 1,  ['D'] = 1,  ['E'] = 1,  ['F'] = 1,  ['G'] = 1,  ['H'] = 1,
    ['I'] = 1,  ['J'] = 1,  ['K'] = 1,  ['L'] = 1,  ['M'] = 1,  ['N'] = 1,  ['O'] = 1,  ['P'] = 1,
    ['Q'] = 1,  ['R'] = 1,  ['S'] = 1,  ['T'] = 1,  ['U'] = 1,  ['V'] = 1,  ['W'] = 1,  ['X'] = 1,
    ['Y'] = 1,  ['Z'] = 1,  ['['] = 1,  [']'] = 1,  ['^'] = 1,  ['_'] = 1,  ['`'] = 1,  ['a'] = 1,
    ['b'] = 1,  ['c'] = 1,  ['d'] = 1,  ['e'] = 1,  ['f'] = 1,  ['g'] = 1,  ['h'] = 1,  ['i'] = 1,
    ['j'] = 1,  ['k'] = 1,  ['l'] = 1,  ['m'] = 1,  ['n'] = 1,  ['o'] = 1,  ['p'] = 1,  ['q'] = 1,
    ['r'] = 1,  ['s'] = 1,  ['t'] = 1,  ['u'] = 1,  ['v'] = 1,  ['w'] = 1,  ['x'] = 1,  ['y'] = 1,
    ['z'] = 1,  ['{'] = 1,  ['|'] = 1,  ['}'] = 1,  ['~'] = 1,  [0x7f] = 1,
};

/* Whether any of 8 bytes is not plain. */
static bool needs_care(const char *s)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), tops = ones << 7;
    uint64_t w;
    memcpy(&w, s, 8);
    uint64_t quote = w ^ ones * '"', slash = w ^ ones * '\\';
    uint64_t hit = w | (w - ones * 0x20) | (quote - ones) | (slash - ones);
    return (hit & tops) != 0;
}

static void write_escape(struct buf *o, unsigned char c)
{
    static const char hex[] = "0123456789abcdef";
    static const char shorts[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    for (const char *s = shorts; *s; s += 2)
        if ((unsigned char)*s == c) {
            char two[2] = { '\\', s[1] };
            buf_put(o, two, 2);
            return;
        }
    char six[6] = { '\\', 'u', '0', '0', hex[c >> 4], hex[c & 15] };
    buf_put(o, six, 6);
}

/* A byte of 0x80 and up at s[0..n): bytes that may go out as they are (0:
 * none), else *skip bytes are replaced by what is written here. */
static size_t write_wide(struct buf *o, const char *s, size_t n, size_t run, size_t *skip)
{
    size_t len = utf8_sequence_bytes(s, n);
    const char *instead = NULL;
    if (len == 0)
        instead = "\xef\xbf\xbd";
    else if (len == 2 && memcmp(s, "\xc2\x85", 2) == 0)
        instead = "\\u0085";
    else if (len == 3 && memcmp(s, "\xe2\x80\xa8", 3) == 0)
        instead = "\\u2028";
    else if (len == 3 && memcmp(s, "\xe2\x80\xa9", 3) == 0)
        instead = "\\u2029";
    if (instead == NULL)
        return len;
    buf_put(o, s - run, run);
    buf_put(o, instead, strlen(instead));
    *skip = len == 0 ? 1 : len;
    return 0;
}

void json_put_escaped(struct buf *o, const char *s, size_t n)
{
    size_t i = 0, from = 0; /* s[from..i) is written as it is, later */
    if (n == 0 || (o->cap - o->n < n && !buf_grow(o, n)))
        return;
    while (i < n) {
        while (n - i >= 8 && !needs_care(s + i))
            i += 8;
        while (i < n && plain[(unsigned char)s[i]])
            i++;
        if (i == n)
            break;
        if ((unsigned char)s[i] >= 0x80) {
            size_t skip = 0, len = write_wide(o, s + i, n - i, i - from, &skip);
            i += len + skip;
            if (skip > 0)
                from = i;
            continue;
        }
        buf_put(o, s + from, i - from);
        write_escape(o, (unsigned char)s[i]);
        from = ++i;
    }
    buf_put(o, s + from, i - from);
}

void json_put_string(struct buf *o, const char *s, size_t n)
{
    if (s == NULL) {
        BUF_LIT(o, "null");
        return;
    }
    BUF_LIT(o, "\"");
    json_put_escaped(o, s, n);
    BUF_LIT(o, "\"");
}

void json_put_cstring(struct buf *o, const char *s)
{
    json_put_string(o, s, s == NULL ? 0 : strlen(s));
}

/* ------------------------------------------------------------------ numbers */

/* Decimal digits of v into the end of buf[0..20); returns their start. */
static char *digits_of(uint64_t v, char buf[20])
{
    char *p = buf + 20;
    do
        *--p = (char)('0' + v % 10);
    while ((v /= 10) != 0);
    return p;
}

void json_put_uint(struct buf *o, uint64_t v)
{
    char buf[20], *p = digits_of(v, buf);
    buf_put(o, p, (size_t)(buf + 20 - p));
}

void json_put_int(struct buf *o, int64_t v)
{
    if (v < 0)
        BUF_LIT(o, "-");
    json_put_uint(o, v < 0 ? 0 - (uint64_t)v : (uint64_t)v);
}

static const double power_of_ten[] = {
    1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
};

/* units / 10^decimals without trailing zeros, at least one decimal. */
static void write_fixed(struct buf *o, bool neg, uint64_t units, unsigned decimals)
{
    while (decimals > 1 && units % 10 == 0) {
        units /= 10;
        decimals--;
    }
    if (decimals == 0) {
        units *= 10;
        decimals = 1;
    }
    char buf[20], *p = digits_of(units, buf), text[48];
    size_t n = (size_t)(buf + 20 - p), k = 0;
    if (neg)
        text[k++] = '-';
    size_t whole = n > decimals ? n - decimals : 0;
    if (whole == 0)
        text[k++] = '0';
    memcpy(text + k, p, whole);
    k += whole;
    text[k++] = '.';
    for (size_t i = n; i < decimals; i++)
        text[k++] = '0';
    memcpy(text + k, p + whole, n - whole);
    buf_put(o, text, k + n - whole);
}

/* The number with `least` significant digits or a few more, in fixed notation,
 * if that reads back as v.  units and the power are exact in double, so their
 * quotient is what a reader gets. */
static bool write_short(struct buf *o, double v, bool single, int least, int most)
{
    double mag = fabs(v);
    if (!(mag >= 1e-5 && mag < 1e9))
        return false;
    int lead = 0; /* 10^(lead-1) <= mag < 10^lead, at mag >= 1 */
    while (mag >= power_of_ten[lead])
        lead++;
    for (int z = 1; lead == 0 && mag * power_of_ten[z] < 1; z++)
        least++, most++;
    for (int digits = least; digits <= most; digits++) {
        int decimals = digits - lead < 0 ? 0 : digits - lead;
        if (decimals > 22)
            return false;
        double scaled = mag * power_of_ten[decimals];
        if (scaled >= 9e15)
            return false;
        uint64_t units = (uint64_t)(scaled + 0.5);
        double back = (double)units / power_of_ten[decimals];
        if (single ? (float)back == (float)mag : back == mag) {
            write_fixed(o, v < 0, units, (unsigned)decimals);
            return true;
        }
    }
    return false;
}

/* By the C library: the fewest of least..most digits that read back.  Normal
 * numbers hold 15 (float: 6) digits, so fewer show as zeros cut by %g;
 * subnormal ones hold less, so the search starts at 1 there. */
static void write_general(struct buf *o, double v, bool single, int least, int most)
{
    char buf[40];
    for (int digits = least; digits <= most; digits++) {
        snprintf(buf, sizeof buf, "%.*g", digits, v);
        double back = strtod(buf, NULL);
        if (single ? (float)back == (float)v : back == v)
            break;
    }
    if (strpbrk(buf, ".e") == NULL)
        strcat(buf, ".0");
    buf_put(o, buf, strlen(buf));
}

void json_put_double(struct buf *o, double v)
{
    if (!isfinite(v)) {
        BUF_LIT(o, "null");
        return;
    }
    if (!write_short(o, v, false, 15, 15))
        write_general(o, v, false, fabs(v) < DBL_MIN ? 1 : 15, 17);
}

void json_put_float(struct buf *o, float v)
{
    if (!isfinite(v)) {
        BUF_LIT(o, "null");
        return;
    }
    if (!write_short(o, (double)v, true, 6, 9))
        write_general(o, (double)v, true, fabsf(v) < FLT_MIN ? 1 : 6, 9);
}

/* ------------------------------------------------------------------- values */

static const struct json *write_value(struct buf *o, const struct json *v);

static void write_children(struct buf *o, const struct json *v)
{
    bool object = v->kind == JSON_OBJECT;
    const struct json *c = json_first(v);
    buf_put(o, object ? "{" : "[", 1);
    for (uint32_t i = 0; i < v->n; i++) {
        if (i > 0)
            BUF_LIT(o, ",");
        if (object) {
            json_put_string(o, c->u.string, c->n);
            BUF_LIT(o, ":");
            c++;
        }
        c = write_value(o, c);
    }
    buf_put(o, object ? "}" : "]", 1);
}

/* Recursion bounded by JSON_MAX_DEPTH; returns the value after v. */
static const struct json *write_value(struct buf *o, const struct json *v)
{
    switch (v->kind) {
    case JSON_NULL:
        BUF_LIT(o, "null");
        break;
    case JSON_BOOL:
        json_put_bool(o, v->u.boolean);
        break;
    case JSON_INT:
        json_put_int(o, v->u.integer);
        break;
    case JSON_BIGINT:
        buf_put(o, v->u.digits, v->n);
        break;
    case JSON_REAL:
        json_put_double(o, v->u.real);
        break;
    case JSON_STRING:
        json_put_string(o, v->u.string, v->n);
        break;
    case JSON_ARRAY:
    case JSON_OBJECT:
        write_children(o, v);
        break;
    }
    return json_next(v);
}

void json_put_value(struct buf *o, const struct json *v)
{
    write_value(o, v);
}
