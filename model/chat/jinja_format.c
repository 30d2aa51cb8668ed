/* jinja_format.c: str.format(), % and strftime, as Python has them.
 *
 * Owns nothing: results live in the render's arena.  One thread per render. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/chat/jinja.h"
#include "proto/utf8.h"

/* [[fill]align][sign][0][width][,][.precision][type], Python's mini-language. */
struct spec {
    char fill, align, sign, type;
    bool comma;
    int64_t width, precision; /* precision -1: none */
};

static int64_t digits(const char *p, size_t n, size_t *at)
{
    int64_t v = 0;
    while (*at < n && p[*at] >= '0' && p[*at] <= '9' && v < 100000)
        v = 10 * v + (p[(*at)++] - '0');
    return v;
}

static struct spec parse_spec(struct jinja *j, const char *p, size_t n)
{
    struct spec s = { .fill = ' ', .precision = -1 };
    size_t i = 0;
    if (n > 1 && strchr("<>^=", p[1]) != NULL) {
        s.fill = p[0];
        s.align = p[1];
        i = 2;
    } else if (n > 0 && strchr("<>^=", p[0]) != NULL) {
        s.align = p[0];
        i = 1;
    }
    if (i < n && strchr("+- ", p[i]) != NULL)
        s.sign = p[i++];
    if (i < n && p[i] == '0' && s.align == 0) {
        s.fill = '0';
        s.align = '=';
        i++;
    }
    s.width = digits(p, n, &i);
    if (i < n && p[i] == ',') {
        s.comma = true;
        i++;
    }
    if (i < n && p[i] == '.') {
        i++;
        s.precision = digits(p, n, &i);
    }
    if (i < n)
        s.type = p[i++];
    if (i != n || (s.type != 0 && strchr("sdfFeEgGxXob%", s.type) == NULL))
        jinja_fail(j, "format: specification '%.*s' is not supported", (int)(n < 40 ? n : 40), p);
    return s;
}

/* Decimal digits of |v|, a JV_BIGINT. */
static void bigint_text(struct jinja *j, char *out, size_t cap, struct jinja_value v,
                        const struct spec *s)
{
    const char *p = v.u.str->p;
    size_t n = v.u.str->n, k = 0;
    if (*p == '-') {
        p++;
        n--;
    }
    if ((s->type != 0 && s->type != 'd') || n + n / 3 >= cap)
        jinja_fail(j, "format: '%c' cannot show an int of %zu digits", s->type, n);
    for (size_t i = 0; i < n; i++) {
        if (s->comma && i > 0 && (n - i) % 3 == 0)
            out[k++] = ',';
        out[k++] = p[i];
    }
    out[k] = '\0';
}

/* Digits of |v| in the spec's type. */
static void number_text(struct jinja *j, char *out, size_t cap, struct jinja_value v,
                        const struct spec *s)
{
    if (v.kind == JV_BIGINT && (s->type == 0 || strchr("dxXob", s->type) != NULL)) {
        bigint_text(j, out, cap, v, s);
        return;
    }
    if (v.kind != JV_FLOAT && (s->type == 0 || strchr("dxXob", s->type) != NULL)) {
        int64_t i = v.kind == JV_INT ? v.u.integer : v.u.boolean;
        uint64_t u = i < 0 ? -(uint64_t)i : (uint64_t)i;
        unsigned base = s->type == 'x' || s->type == 'X' ? 16
                        : s->type == 'o'                 ? 8
                        : s->type == 'b'                 ? 2
                                                         : 10;
        char tmp[72];
        size_t n = 0;
        do {
            tmp[n++] = (s->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[u % base];
            u /= base;
            if (s->comma && u > 0 && (n + 1) % 4 == 0)
                tmp[n++] = ',';
        } while (u > 0);
        for (size_t k = 0; k < n; k++)
            out[k] = tmp[n - 1 - k];
        out[n] = '\0';
        return;
    }
    if (s->type != 0 && strchr("fFeEgG%", s->type) == NULL)
        jinja_fail(j, "format: '%c' cannot show a float", s->type);
    double d = fabs(jinja_number(v)) * (s->type == '%' ? 100 : 1);
    int precision = s->precision < 0 ? 6 : (int)(s->precision < 300 ? s->precision : 300);
    char type = s->type == 0 ? 'g' : s->type;
    if (type == 'e' || type == 'E')
        snprintf(out, cap, "%.*e", precision, d);
    else if (type == 'g' || type == 'G')
        snprintf(out, cap, "%.*g", precision, d);
    else
        snprintf(out, cap, "%.*f%s", precision, d, type == '%' ? "%" : "");
}

static void pad(struct jinja_buf *b, char fill, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        jinja_buf_add(b, &fill, 1);
}

static void format_value(struct jinja_buf *b, struct jinja_value v, const char *p, size_t n)
{
    struct jinja *j = b->j;
    if (n == 0) {
        jinja_text(b, v);
        return;
    }
    struct spec s = parse_spec(j, p, n);
    bool number = jinja_is_number(v) && (v.kind != JV_BOOL || s.type != 0) && s.type != 's';
    char text[700], sign[2] = "";
    struct jinja_str *str = NULL;
    if (number) {
        struct jinja_buf plain;
        jinja_buf_init(&plain, j);
        if (v.kind == JV_FLOAT && s.type == 0 && s.precision < 0) {
            jinja_repr(&plain, jinja_float(fabs(v.u.real)));
            str = jinja_buf_value(&plain).u.str;
        } else {
            number_text(j, text, sizeof text, v, &s);
            str = jinja_cstring(j, text).u.str;
        }
        sign[0] = signbit(jinja_number(v)) ? '-' : s.sign == '-' ? '\0' : s.sign;
    } else {
        if (s.type != 0 && s.type != 's')
            jinja_fail(j, "format: '%c' cannot show a %s", s.type, jinja_type_name(v));
        str = jinja_to_str(j, v);
        if (s.precision >= 0) {
            struct jinja_value cut =
                jinja_slice(j, (struct jinja_value){ .kind = JV_STRING, .u.str = str },
                            jinja_none(), jinja_int(s.precision), jinja_none());
            str = cut.u.str;
        }
    }
    int64_t length = jinja_length(j, (struct jinja_value){ .kind = JV_STRING, .u.str = str }) +
                     (int64_t)strlen(sign);
    int64_t room = s.width > length ? s.width - length : 0;
    char align = s.align != 0 ? s.align : number ? '>' : '<';
    int64_t left = align == '>' ? room : align == '^' ? room / 2 : 0;
    pad(b, s.fill, left);
    jinja_buf_cstr(b, sign);
    if (align == '=')
        pad(b, s.fill, room);
    jinja_buf_str(b, str);
    if (align == '<' || align == '^')
        pad(b, s.fill, room - left);
}

/* The value a replacement field "{name.attr[key]}" names. */
static struct jinja_value field_value(struct jinja *j, const char *p, size_t n,
                                      const struct jinja_args *a, size_t *next, jinja_field *field)
{
    size_t i = 0;
    while (i < n && p[i] != '.' && p[i] != '[')
        i++;
    struct jinja_value v = jinja_undefined(NULL);
    size_t at = 0, consumed = 0;
    if (i == 0)
        at = (*next)++;
    else
        at = (size_t)digits(p, i, &consumed);
    if (consumed == i) {
        if (at >= a->n)
            jinja_fail(j, "format: argument %zu is missing", at);
        v = a->value[at];
    } else {
        size_t k = 0;
        struct jinja_str name = { .n = i, .p = p };
        while (k < a->n_keywords && !jinja_str_equal(a->keyword[k], &name))
            k++;
        if (k == a->n_keywords)
            jinja_fail(j, "format: argument '%.*s' is missing", (int)i, p);
        v = a->keyword_value[k];
    }
    while (i < n) {
        bool item = p[i] == '[';
        size_t from = ++i;
        while (i < n && (item ? p[i] != ']' : p[i] != '.' && p[i] != '['))
            i++;
        struct jinja_value key = jinja_string(j, p + from, i - from);
        size_t used = 0;
        int64_t number = digits(p + from, i - from, &used);
        if (item && used == i - from && used > 0)
            key = jinja_int(number);
        v = field(j, v, key, item);
        i += item;
    }
    return v;
}

struct jinja_value jinja_format_braces(struct jinja *j, const struct jinja_str *s,
                                       const struct jinja_args *args, jinja_field *of)
{
    struct jinja_buf b;
    jinja_buf_init(&b, j);
    size_t next = 0;
    for (size_t i = 0; i < s->n; i++) {
        char c = s->p[i];
        if ((c == '{' || c == '}') && i + 1 < s->n && s->p[i + 1] == c) {
            jinja_buf_part(&b, s, i, i + 1);
            i++;
        } else if (c == '{') {
            const char *end = memchr(s->p + i, '}', s->n - i);
            if (end == NULL)
                jinja_fail(j, "format: '{' without '}'");
            size_t n = (size_t)(end - s->p) - i - 1;
            const char *field = s->p + i + 1, *colon = memchr(field, ':', n);
            size_t n_name = colon == NULL ? n : (size_t)(colon - field);
            bool repr = n_name >= 2 && field[n_name - 2] == '!' && field[n_name - 1] == 'r';
            bool conv = n_name >= 2 && field[n_name - 2] == '!';
            struct jinja_value v =
                field_value(j, field, conv ? n_name - 2 : n_name, args, &next, of);
            if (repr)
                jinja_repr(&b, v);
            else
                format_value(&b, v, colon == NULL ? field : colon + 1,
                             colon == NULL ? 0 : n - n_name - 1);
            i += n + 1;
        } else if (c == '}') {
            jinja_fail(j, "format: '}' without '{'");
        } else {
            jinja_buf_part(&b, s, i, i + 1);
        }
    }
    return jinja_buf_value(&b);
}

struct jinja_value jinja_format_percent(struct jinja *j, const struct jinja_str *s,
                                        struct jinja_value args)
{
    const struct jinja_value *item = args.kind == JV_TUPLE ? args.u.list->item : &args;
    size_t n = args.kind == JV_TUPLE ? args.u.list->n : 1, next = 0;
    struct jinja_buf b;
    jinja_buf_init(&b, j);
    for (size_t i = 0; i < s->n; i++) {
        if (s->p[i] != '%') {
            jinja_buf_part(&b, s, i, i + 1);
            continue;
        }
        size_t from = ++i;
        while (i < s->n && strchr("0123456789.-+ ", s->p[i]) != NULL)
            i++;
        if (i >= s->n)
            jinja_fail(j, "incomplete format after %%");
        char type = s->p[i];
        if (type == '%') {
            jinja_buf_cstr(&b, "%");
            continue;
        }
        struct jinja_value v = jinja_none();
        if (args.kind == JV_MAP || next >= n)
            jinja_fail(j, "not enough arguments for %%%c", type);
        v = item[next++];
        char spec[40];
        bool left = s->p[from] == '-';
        from += left;
        if (i - from > 20 || strchr("sdifFeEgGxXor", type) == NULL)
            jinja_fail(j, "%%%c is not supported", type);
        if (type == 'r') {
            jinja_repr(&b, v);
            continue;
        }
        bool number = strchr("sr", type) == NULL;
        if (number && !jinja_is_number(v))
            jinja_fail(j, "%%%c needs a number, found %s", type, jinja_type_name(v));
        if (number && strchr("di", type) != NULL && v.kind == JV_FLOAT)
            v = jinja_int((int64_t)v.u.real);
        snprintf(spec, sizeof spec, "%s%.*s%c",
                 left     ? "<"
                 : number ? ""
                          : ">",
                 (int)(i - from), s->p + from, type == 'i' ? 'd' : type);
        format_value(&b, v, spec, strlen(spec));
    }
    if (args.kind == JV_TUPLE && next < n)
        jinja_fail(j, "not all arguments of %% were used");
    return jinja_buf_value(&b);
}

struct jinja_value jinja_strftime(struct jinja *j, const struct jinja_str *format, time_t t)
{
    struct tm tm;
    char fmt[256], out[1024];
    if (format->n >= sizeof fmt || localtime_r(&t, &tm) == NULL)
        jinja_fail(j, "strftime_now: format of %zu bytes, at most %zu expected", format->n,
                   sizeof fmt - 1);
    memcpy(fmt, format->p, format->n);
    fmt[format->n] = '\0';
    size_t n = fmt[0] == '\0' ? 0 : strftime(out, sizeof out, fmt, &tm);
    struct jinja_buf b;
    jinja_buf_init(&b, j);
    jinja_buf_add(&b, out, n);
    return jinja_buf_value(&b);
}
