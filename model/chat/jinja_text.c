/* jinja_text.c: the text of values, as Python writes it: str(), repr(),
 * json.dumps(), str.format(), % and strftime.
 *
 * Owns nothing: results live in the render's arena.  One thread per render. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "model/chat/jinja.h"
#include "proto/utf8.h"

/* repr of a float: the fewest digits that read back the same. */
static void float_text(struct jinja_buf *b, double v, const char *const special[3])
{
    if (isnan(v) || isinf(v)) {
        jinja_buf_cstr(b, special[isnan(v) ? 0 : v < 0 ? 2 : 1]);
        return;
    }
    char digits[40];
    int precision = 0;
    do {
        snprintf(digits, sizeof digits, "%.*e", precision, v);
    } while (strtod(digits, NULL) != v && ++precision < 17);
    int exponent = atoi(strchr(digits, 'e') + 1);
    char out[64];
    if (exponent >= -4 && exponent < 16) {
        int places = precision - exponent;
        snprintf(out, sizeof out, "%.*f", places > 1 ? places : 1, v);
    } else {
        snprintf(out, sizeof out, "%.*e", precision, v);
    }
    jinja_buf_cstr(b, out);
}

static const char *const python_special[3] = { "nan", "inf", "-inf" };
static const char *const json_special[3] = { "NaN", "Infinity", "-Infinity" };

void jinja_text(struct jinja_buf *b, struct jinja_value v)
{
    if (v.kind == JV_STRING)
        jinja_buf_str(b, v.u.str);
    else if (v.kind != JV_UNDEFINED)
        jinja_repr(b, v);
}

struct jinja_str *jinja_to_str(struct jinja *j, struct jinja_value v)
{
    if (v.kind == JV_STRING)
        return v.u.str;
    struct jinja_buf b;
    jinja_buf_init(&b, j);
    jinja_text(&b, v);
    return jinja_buf_value(&b).u.str;
}

/* Python's str.isprintable for one character, ASCII apart. */
static bool printable(int32_t c)
{
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
        return false;
    default:
        return true;
    }
}

static void string_repr(struct jinja_buf *b, const struct jinja_str *s)
{
    bool single = memchr(s->p, '\'', s->n) != NULL, twice = memchr(s->p, '"', s->n) != NULL;
    char quote = single && !twice ? '"' : '\'';
    jinja_buf_add(b, &quote, 1);
    for (size_t i = 0; i < s->n;) {
        size_t n = utf8_sequence_bytes(s->p + i, s->n - i);
        char c = s->p[i], out[16];
        bool user = s->user != NULL && s->user[i];
        uint32_t u = n == 0 ? (unsigned char)c : utf8_decode(s->p + i, n);
        if (c == quote || c == '\\')
            snprintf(out, sizeof out, "\\%c", c);
        else if (c == '\n' || c == '\r' || c == '\t')
            snprintf(out, sizeof out, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (n > 0 && (u == ' ' || printable((int32_t)u)))
            out[0] = '\0';
        else
            snprintf(out, sizeof out,
                     u < 0x100     ? "\\x%02x"
                     : u < 0x10000 ? "\\u%04x"
                                   : "\\U%08x",
                     u);
        n = n == 0 ? 1 : n;
        if (out[0] == '\0')
            jinja_buf_part(b, s, i, i + n);
        else
            jinja_buf_marked(b, out, strlen(out), user);
        i += n;
    }
    jinja_buf_add(b, &quote, 1);
}

static void list_repr(struct jinja_buf *b, const struct jinja_list *l, bool tuple)
{
    jinja_buf_cstr(b, tuple ? "(" : "[");
    for (size_t i = 0; i < l->n; i++) {
        if (i > 0)
            jinja_buf_cstr(b, ", ");
        jinja_repr(b, l->item[i]);
    }
    jinja_buf_cstr(b, !tuple ? "]" : l->n == 1 ? ",)" : ")");
}

void jinja_repr(struct jinja_buf *b, struct jinja_value v)
{
    char number[32];
    jinja_deeper(b->j);
    switch (v.kind) {
    case JV_UNDEFINED:
        jinja_buf_cstr(b, "Undefined");
        break;
    case JV_NONE:
        jinja_buf_cstr(b, "None");
        break;
    case JV_BOOL:
        jinja_buf_cstr(b, v.u.boolean ? "True" : "False");
        break;
    case JV_INT:
        snprintf(number, sizeof number, "%lld", (long long)v.u.integer);
        jinja_buf_cstr(b, number);
        break;
    case JV_BIGINT:
        jinja_buf_str(b, v.u.str);
        break;
    case JV_FLOAT:
        float_text(b, v.u.real, python_special);
        break;
    case JV_STRING:
        string_repr(b, v.u.str);
        break;
    case JV_LIST:
    case JV_TUPLE:
        list_repr(b, v.u.list, v.kind == JV_TUPLE);
        break;
    case JV_MAP:
        jinja_buf_cstr(b, "{");
        for (size_t i = 0; i < v.u.map->n; i++) {
            if (i > 0)
                jinja_buf_cstr(b, ", ");
            jinja_repr(b, v.u.map->member[i].key);
            jinja_buf_cstr(b, ": ");
            jinja_repr(b, v.u.map->member[i].value);
        }
        jinja_buf_cstr(b, "}");
        break;
    default:
        jinja_buf_cstr(b, "<");
        jinja_buf_cstr(b, jinja_type_name(v));
        jinja_buf_cstr(b, ">");
    }
    b->j->depth--;
}

/* ---- JSON ---------------------------------------------------------------------------- */

static void json_string(struct jinja_buf *b, const struct jinja_str *s, bool ascii)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    jinja_buf_cstr(b, "\"");
    for (size_t i = 0; i < s->n;) {
        size_t n = utf8_sequence_bytes(s->p + i, s->n - i);
        n = n == 0 ? 1 : n;
        unsigned char c = (unsigned char)s->p[i];
        const char *at = memchr(from, c, sizeof from - 1);
        bool user = s->user != NULL && s->user[i];
        char out[16] = "";
        if (at != NULL) {
            snprintf(out, sizeof out, "\\%c", to[at - from]);
        } else if (c < 0x20) {
            snprintf(out, sizeof out, "\\u%04x", c);
        } else if (ascii && n > 1) {
            uint32_t u = utf8_decode(s->p + i, n);
            if (u >= 0x10000)
                snprintf(out, sizeof out, "\\u%04x\\u%04x", 0xd7c0 + (u >> 10),
                         0xdc00 + (u & 0x3ff));
            else
                snprintf(out, sizeof out, "\\u%04x", u);
        }
        if (out[0] == '\0')
            jinja_buf_part(b, s, i, i + n);
        else
            jinja_buf_marked(b, out, strlen(out), user);
        i += n;
    }
    jinja_buf_cstr(b, "\"");
}

static void json_break(struct jinja_buf *b, int64_t indent, int level)
{
    if (indent < 0)
        return;
    jinja_buf_cstr(b, "\n");
    for (int64_t i = 0; i < indent * level; i++)
        jinja_buf_cstr(b, " ");
}

static void json_value(struct jinja_buf *b, struct jinja_value v,
                       const struct jinja_json_options *o, int level);

static void json_separator(struct jinja_buf *b, const struct jinja_json_options *o)
{
    if (o->item_separator != NULL)
        jinja_buf_str(b, o->item_separator);
    else
        jinja_buf_cstr(b, o->indent >= 0 ? "," : ", ");
}

static void json_key(struct jinja_buf *b, struct jinja_value key,
                     const struct jinja_json_options *o)
{
    if (key.kind == JV_STRING) {
        json_string(b, key.u.str, o->ascii);
        return;
    }
    if (key.kind != JV_NONE && !jinja_is_number(key))
        jinja_fail(b->j, "tojson: a key is a %s, expected a str", jinja_type_name(key));
    jinja_buf_cstr(b, "\"");
    json_value(b, key, o, 0);
    jinja_buf_cstr(b, "\"");
}

static void json_map(struct jinja_buf *b, const struct jinja_map *m,
                     const struct jinja_json_options *o, int level)
{
    struct jinja *j = b->j;
    struct jinja_list *keys = jinja_list_new(j, JV_LIST).u.list;
    for (size_t i = 0; i < m->n; i++)
        jinja_list_add(j, keys, m->member[i].key);
    if (o->sort_keys)
        jinja_sort(j, keys, keys->item, false);
    jinja_buf_cstr(b, "{");
    for (size_t i = 0; i < keys->n; i++) {
        if (i > 0)
            json_separator(b, o);
        json_break(b, o->indent, level + 1);
        json_key(b, keys->item[i], o);
        if (o->key_separator != NULL)
            jinja_buf_str(b, o->key_separator);
        else
            jinja_buf_cstr(b, ": ");
        json_value(b, *jinja_map_get(j, m, keys->item[i]), o, level + 1);
    }
    if (m->n > 0)
        json_break(b, o->indent, level);
    jinja_buf_cstr(b, "}");
}

static void json_value(struct jinja_buf *b, struct jinja_value v,
                       const struct jinja_json_options *o, int level)
{
    jinja_deeper(b->j);
    switch (v.kind) {
    case JV_NONE:
        jinja_buf_cstr(b, "null");
        break;
    case JV_BOOL:
        jinja_buf_cstr(b, v.u.boolean ? "true" : "false");
        break;
    case JV_INT:
    case JV_BIGINT:
        jinja_repr(b, v);
        break;
    case JV_FLOAT:
        float_text(b, v.u.real, json_special);
        break;
    case JV_STRING:
        json_string(b, v.u.str, o->ascii);
        break;
    case JV_LIST:
    case JV_TUPLE:
        jinja_buf_cstr(b, "[");
        for (size_t i = 0; i < v.u.list->n; i++) {
            if (i > 0)
                json_separator(b, o);
            json_break(b, o->indent, level + 1);
            json_value(b, v.u.list->item[i], o, level + 1);
        }
        if (v.u.list->n > 0)
            json_break(b, o->indent, level);
        jinja_buf_cstr(b, "]");
        break;
    case JV_MAP:
        json_map(b, v.u.map, o, level);
        break;
    default:
        jinja_fail(b->j, "tojson: a value is %s", jinja_type_name(v));
    }
    b->j->depth--;
}

void jinja_json(struct jinja_buf *b, struct jinja_value v, const struct jinja_json_options *o)
{
    json_value(b, v, o, 0);
}

/* ---- format() and % --------------------------------------------------------------------- */

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
            float_text(&plain, fabs(v.u.real), python_special);
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
                                      const struct jinja_args *a, size_t *next)
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
        v = item ? jinja_get_item(j, v, key) : jinja_get_attr(j, v, key.u.str);
        i += item;
    }
    return v;
}

struct jinja_value jinja_format_braces(struct jinja *j, const struct jinja_str *s,
                                       const struct jinja_args *args)
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
            struct jinja_value v = field_value(j, field, conv ? n_name - 2 : n_name, args, &next);
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
