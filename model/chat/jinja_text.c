/* jinja_text.c: the text of values, as Python writes it: str(), repr() and
 * json.dumps().
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
