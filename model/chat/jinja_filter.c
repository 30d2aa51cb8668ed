/* jinja_filter.c: filters and global functions of the template interpreter, and
 * where filters, tests and globals are looked up.
 *
 * Owns nothing: results live in the render's arena.  One thread per render.
 * A filter's args->value[0] is what it applies to, so argument i of the
 * template's call is args->value[i + 1]. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/chat/jinja.h"
#include "proto/utf8.h"

/* ---- shared --------------------------------------------------------------------------- */

static struct jinja_value list_copy(struct jinja *j, const struct jinja_list *l)
{
    struct jinja_value out = jinja_list_new(j, JV_LIST);
    for (size_t i = 0; i < l->n; i++)
        jinja_list_add(j, out.u.list, l->item[i]);
    return out;
}

/* "a.b.0" of v, as attribute= arguments are read. */
static struct jinja_value dotted(struct jinja *j, struct jinja_value v, struct jinja_value path)
{
    if (path.kind != JV_STRING)
        return jinja_get_item(j, v, path);
    const struct jinja_str *s = path.u.str;
    for (size_t from = 0; from <= s->n;) {
        const char *dot = memchr(s->p + from, '.', s->n - from);
        size_t to = dot == NULL ? s->n : (size_t)(dot - s->p);
        struct jinja_value key = jinja_substring(j, s, from, to);
        char *end;
        char text[24];
        snprintf(text, sizeof text, "%.*s", (int)(to - from), s->p + from);
        long long number = strtoll(text, &end, 10);
        if (to > from && *end == '\0')
            key = jinja_int(number);
        v = jinja_get_item(j, v, key);
        from = to + 1;
    }
    return v;
}

/* What attribute= picks of an item: the item itself when it is none. */
static struct jinja_value keyed(struct jinja *j, struct jinja_value v, struct jinja_value attribute)
{
    return attribute.kind == JV_NONE ? v : dotted(j, v, attribute);
}

/* The key= case-insensitive comparisons use: lower-case strings, others alone. */
static struct jinja_value folded(struct jinja *j, struct jinja_value v, bool case_sensitive)
{
    return v.kind == JV_STRING && !case_sensitive ? jinja_recase(j, v.u.str, JC_LOWER) : v;
}

/* ---- filters of text -------------------------------------------------------------------- */

static struct jinja_value f_trim(struct jinja *j, const struct jinja_args *a)
{
    struct jinja_value chars = jinja_none();
    jinja_arg(a, 1, "chars", &chars);
    return jinja_strip(j, jinja_to_str(j, a->value[0]), 3,
                       chars.kind == JV_STRING ? chars.u.str : NULL);
}

static struct jinja_value f_upper(struct jinja *j, const struct jinja_args *a)
{
    return jinja_recase(j, jinja_to_str(j, a->value[0]), JC_UPPER);
}

static struct jinja_value f_lower(struct jinja *j, const struct jinja_args *a)
{
    return jinja_recase(j, jinja_to_str(j, a->value[0]), JC_LOWER);
}

static struct jinja_value f_title(struct jinja *j, const struct jinja_args *a)
{
    return jinja_recase(j, jinja_to_str(j, a->value[0]), JC_TITLE);
}

static struct jinja_value f_capitalize(struct jinja *j, const struct jinja_args *a)
{
    return jinja_recase(j, jinja_to_str(j, a->value[0]), JC_CAPITALIZE);
}

static struct jinja_value f_string(struct jinja *j, const struct jinja_args *a)
{
    return (struct jinja_value){ .kind = JV_STRING, .u.str = jinja_to_str(j, a->value[0]) };
}

static struct jinja_value f_replace(struct jinja *j, const struct jinja_args *a)
{
    return jinja_replace(j, jinja_to_str(j, a->value[0]), jinja_arg_str(j, a, 1, "old", NULL),
                         jinja_arg_str(j, a, 2, "new", NULL), jinja_arg_int(j, a, 3, "count", -1));
}

static struct jinja_value f_escape(struct jinja *j, const struct jinja_args *a)
{
    const struct jinja_str *s = jinja_to_str(j, a->value[0]);
    static const char from[] = "&<>'\"";
    static const char *const to[] = { "&amp;", "&lt;", "&gt;", "&#39;", "&#34;" };
    struct jinja_buf b;
    jinja_buf_init(&b, j);
    for (size_t i = 0; i < s->n; i++) {
        const char *at = s->p[i] == '\0' ? NULL : strchr(from, s->p[i]);
        if (at == NULL)
            jinja_buf_part(&b, s, i, i + 1);
        else
            jinja_buf_marked(&b, to[at - from], strlen(to[at - from]),
                             s->user != NULL && s->user[i]);
    }
    return jinja_buf_value(&b);
}

static struct jinja_value f_indent(struct jinja *j, const struct jinja_args *a)
{
    const struct jinja_str *s = jinja_to_str(j, a->value[0]);
    struct jinja_value width = jinja_int(4);
    jinja_arg(a, 1, "width", &width);
    bool first = jinja_arg_bool(a, 2, "first", false), blank = jinja_arg_bool(a, 3, "blank", false);
    const struct jinja_str *by = width.kind == JV_STRING ? width.u.str : NULL;
    if (by == NULL)
        by = jinja_binary(j, JO_MUL, jinja_cstring(j, " "), width).u.str;
    struct jinja_buf b;
    jinja_buf_init(&b, j);
    for (size_t i = 0, line = 0; i <= s->n; line++) {
        const char *nl = memchr(s->p + i, '\n', s->n - i);
        size_t end = nl == NULL ? s->n : (size_t)(nl - s->p);
        if (line > 0 && nl == NULL && i == s->n && blank)
            break;
        if (line == 0 ? first : end > i || blank)
            jinja_buf_str(&b, by);
        jinja_buf_part(&b, s, i, nl == NULL ? end : end + 1);
        i = end + 1;
    }
    return jinja_buf_value(&b);
}

static struct jinja_value f_format(struct jinja *j, const struct jinja_args *a)
{
    struct jinja_value args = jinja_list_new(j, JV_TUPLE);
    for (size_t i = 1; i < a->n; i++)
        jinja_list_add(j, args.u.list, a->value[i]);
    return jinja_format_percent(j, jinja_to_str(j, a->value[0]), args);
}

static struct jinja_value f_truncate(struct jinja *j, const struct jinja_args *a)
{
    struct jinja_value v = f_string(j, a);
    int64_t length = jinja_arg_int(j, a, 1, "length", 255),
            leeway = jinja_arg_int(j, a, 4, "leeway", 5);
    struct jinja_str dots = { .n = 3, .p = "..." };
    const struct jinja_str *end = jinja_arg_str(j, a, 3, "end", &dots);
    if (jinja_length(j, v) <= length + leeway)
        return v;
    int64_t keep =
        length - jinja_length(j, (struct jinja_value){ .kind = JV_STRING,
                                                       .u.str = (struct jinja_str *)end });
    struct jinja_value cut =
        jinja_slice(j, v, jinja_none(), jinja_int(keep > 0 ? keep : 0), jinja_none());
    if (!jinja_arg_bool(a, 2, "killwords", false)) {
        const char *space = memrchr(cut.u.str->p, ' ', cut.u.str->n);
        if (space != NULL)
            cut = jinja_substring(j, cut.u.str, 0, (size_t)(space - cut.u.str->p));
    }
    struct jinja_buf b;
    jinja_buf_init(&b, j);
    jinja_buf_str(&b, cut.u.str);
    jinja_buf_str(&b, end);
    return jinja_buf_value(&b);
}

static struct jinja_value f_wordcount(struct jinja *j, const struct jinja_args *a)
{
    struct jinja_method m = { f_string(j, a), &(struct jinja_str){ .n = 5, .p = "split" } };
    struct jinja_value words = jinja_call_method(j, &m, &(struct jinja_args){ .callee = "split" });
    return jinja_int((int64_t)words.u.list->n);
}

static struct jinja_value f_urlencode(struct jinja *j, const struct jinja_args *a)
{
    const struct jinja_str *s = jinja_to_str(j, a->value[0]);
    struct jinja_buf b;
    jinja_buf_init(&b, j);
    for (size_t i = 0; i < s->n; i++) {
        unsigned char c = (unsigned char)s->p[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     (c != 0 && strchr("_.-~/", c) != NULL);
        char out[4];
        snprintf(out, sizeof out, "%%%02X", c);
        if (plain)
            jinja_buf_part(&b, s, i, i + 1);
        else
            jinja_buf_marked(&b, out, 3, s->user != NULL && s->user[i]);
    }
    return jinja_buf_value(&b);
}

static struct jinja_value f_tojson(struct jinja *j, const struct jinja_args *a)
{
    struct jinja_json_options o = { .ascii = jinja_arg_bool(a, 1, "ensure_ascii", false),
                                    .indent = jinja_arg_int(j, a, 2, "indent", -1),
                                    .sort_keys = jinja_arg_bool(a, 4, "sort_keys", false) };
    struct jinja_value separators = jinja_none();
    jinja_arg(a, 3, "separators", &separators);
    if (separators.kind == JV_TUPLE || separators.kind == JV_LIST) {
        const struct jinja_list *l = separators.u.list;
        if (l->n != 2 || l->item[0].kind != JV_STRING || l->item[1].kind != JV_STRING)
            jinja_fail(j, "tojson: separators must be two strs");
        o.item_separator = l->item[0].u.str;
        o.key_separator = l->item[1].u.str;
    }
    struct jinja_buf b;
    jinja_buf_init(&b, j);
    jinja_json(&b, a->value[0], &o);
    return jinja_buf_value(&b);
}

/* ---- filters of numbers --------------------------------------------------------------------- */

/* The whole part of d; otherwise, when it has none. */
static struct jinja_value int_of(struct jinja *j, double d, struct jinja_value otherwise)
{
    if (d >= -0x1p63 && d < 0x1p63)
        return jinja_int((int64_t)d);
    if (!isfinite(d))
        return otherwise;
    char text[400];
    int n = snprintf(text, sizeof text, "%.0f", d);
    char *digits = jinja_alloc(j, (size_t)n);
    return jinja_bigint(j, memcpy(digits, text, (size_t)n), (size_t)n);
}

static struct jinja_value f_int(struct jinja *j, const struct jinja_args *a)
{
    struct jinja_value v = a->value[0], otherwise = jinja_int(0);
    jinja_arg(a, 1, "default", &otherwise);
    int64_t base = jinja_arg_int(j, a, 2, "base", 10);
    if (v.kind == JV_FLOAT)
        return int_of(j, v.u.real, otherwise);
    if (v.kind == JV_BIGINT)
        return v;
    if (v.kind == JV_INT || v.kind == JV_BOOL)
        return jinja_int(v.kind == JV_INT ? v.u.integer : v.u.boolean);
    if (v.kind != JV_STRING || v.u.str->n > 60)
        return otherwise;
    char text[64], *end;
    const struct jinja_str *s = jinja_strip(j, v.u.str, 3, NULL).u.str;
    snprintf(text, sizeof text, "%.*s", (int)s->n, s->p);
    errno = 0;
    long long i = strtoll(text, &end, (int)base);
    if (text[0] != '\0' && *end == '\0' && errno == 0)
        return jinja_int(i);
    double d = strtod(text, &end);
    return text[0] != '\0' && *end == '\0' && fabs(d) < 9e18 ? jinja_int((int64_t)d) : otherwise;
}

static struct jinja_value f_float(struct jinja *j, const struct jinja_args *a)
{
    struct jinja_value v = a->value[0], otherwise = jinja_float(0);
    jinja_arg(a, 1, "default", &otherwise);
    if (jinja_is_number(v))
        return jinja_float(jinja_number(v));
    if (v.kind != JV_STRING || v.u.str->n > 60)
        return otherwise;
    char text[64], *end;
    const struct jinja_str *s = jinja_strip(j, v.u.str, 3, NULL).u.str;
    snprintf(text, sizeof text, "%.*s", (int)s->n, s->p);
    double d = strtod(text, &end);
    return text[0] != '\0' && *end == '\0' ? jinja_float(d) : otherwise;
}

static struct jinja_value f_abs(struct jinja *j, const struct jinja_args *a)
{
    struct jinja_value v = a->value[0];
    if (!jinja_is_number(v))
        jinja_fail(j, "abs: found a %s, expected a number", jinja_type_name(v));
    if (jinja_compare(j, v, jinja_int(0)) < 0)
        return jinja_binary(j, JO_SUB, jinja_int(0), v);
    return v;
}

static struct jinja_value f_round(struct jinja *j, const struct jinja_args *a)
{
    if (!jinja_is_number(a->value[0]))
        jinja_fail(j, "round: found a %s, expected a number", jinja_type_name(a->value[0]));
    struct jinja_str common = { .n = 6, .p = "common" };
    int64_t precision = jinja_arg_int(j, a, 1, "precision", 0);
    const struct jinja_str *how = jinja_arg_str(j, a, 2, "method", &common);
    double d = jinja_number(a->value[0]), unit = pow(10, (double)precision);
    if (jinja_str_is(how, "ceil"))
        return jinja_float(ceil(d * unit) / unit);
    if (jinja_str_is(how, "floor"))
        return jinja_float(floor(d * unit) / unit);
    char text[400];
    if (precision < 0 || precision > 17)
        return jinja_float(nearbyint(d * unit) / unit);
    snprintf(text, sizeof text, "%.*f", (int)precision, d);
    return jinja_float(strtod(text, NULL));
}

/* ---- filters of sequences ----------------------------------------------------------------------
 */

static struct jinja_value f_length(struct jinja *j, const struct jinja_args *a)
{
    return jinja_int(jinja_length(j, a->value[0]));
}

static struct jinja_value f_default(struct jinja *j, const struct jinja_args *a)
{
    struct jinja_value v = a->value[0], otherwise = jinja_string(j, "", 0);
    jinja_arg(a, 1, "default_value", &otherwise);
    bool also_false = jinja_arg_bool(a, 2, "boolean", false);
    return v.kind == JV_UNDEFINED || (also_false && !jinja_truth(v)) ? otherwise : v;
}

static struct jinja_value f_list(struct jinja *j, const struct jinja_args *a)
{
    return list_copy(j, jinja_iterate(j, a->value[0]));
}

static struct jinja_value f_first(struct jinja *j, const struct jinja_args *a)
{
    const struct jinja_list *l = jinja_iterate(j, a->value[0]);
    return l->n == 0 ? jinja_undefined(NULL) : l->item[0];
}

static struct jinja_value f_last(struct jinja *j, const struct jinja_args *a)
{
    const struct jinja_list *l = jinja_iterate(j, a->value[0]);
    return l->n == 0 ? jinja_undefined(NULL) : l->item[l->n - 1];
}

static struct jinja_value f_join(struct jinja *j, const struct jinja_args *a)
{
    struct jinja_str nothing = { .n = 0, .p = "" };
    struct jinja_value attribute = jinja_none(), d = jinja_none();
    jinja_arg(a, 1, "d", &d);
    const struct jinja_str *by = d.kind == JV_NONE ? &nothing : jinja_to_str(j, d);
    jinja_arg(a, 2, "attribute", &attribute);
    const struct jinja_list *l = jinja_iterate(j, a->value[0]);
    struct jinja_buf b;
    jinja_buf_init(&b, j);
    for (size_t i = 0; i < l->n; i++) {
        if (i > 0)
            jinja_buf_str(&b, by);
        jinja_text(&b, keyed(j, l->item[i], attribute));
    }
    return jinja_buf_value(&b);
}

static struct jinja_value f_items(struct jinja *j, const struct jinja_args *a)
{
    if (a->value[0].kind == JV_UNDEFINED)
        return jinja_list_new(j, JV_LIST);
    if (a->value[0].kind != JV_MAP)
        jinja_fail(j, "items: found a %s, expected a dict", jinja_type_name(a->value[0]));
    struct jinja_method m = { a->value[0], &(struct jinja_str){ .n = 5, .p = "items" } };
    return jinja_call_method(j, &m, a);
}

static struct jinja_value f_dictsort(struct jinja *j, const struct jinja_args *a)
{
    struct jinja_str by_key = { .n = 3, .p = "key" };
    struct jinja_value pairs = f_items(j, a);
    bool case_sensitive = jinja_arg_bool(a, 1, "case_sensitive", false);
    bool by_value = jinja_str_is(jinja_arg_str(j, a, 2, "by", &by_key), "value");
    struct jinja_list *l = pairs.u.list;
    struct jinja_value *key = jinja_alloc(j, (l->n + 1) * sizeof *key);
    for (size_t i = 0; i < l->n; i++)
        key[i] = folded(j, l->item[i].u.list->item[by_value], case_sensitive);
    jinja_sort(j, l, key, jinja_arg_bool(a, 3, "reverse", false));
    return pairs;
}

static struct jinja_value f_sort(struct jinja *j, const struct jinja_args *a)
{
    struct jinja_value out = f_list(j, a), attribute = jinja_none();
    bool case_sensitive = jinja_arg_bool(a, 2, "case_sensitive", false);
    jinja_arg(a, 3, "attribute", &attribute);
    struct jinja_list *l = out.u.list;
    struct jinja_value *key = jinja_alloc(j, (l->n + 1) * sizeof *key);
    for (size_t i = 0; i < l->n; i++)
        key[i] = folded(j, keyed(j, l->item[i], attribute), case_sensitive);
    jinja_sort(j, l, key, jinja_arg_bool(a, 1, "reverse", false));
    return out;
}

static struct jinja_value f_unique(struct jinja *j, const struct jinja_args *a)
{
    const struct jinja_list *l = jinja_iterate(j, a->value[0]);
    struct jinja_value out = jinja_list_new(j, JV_LIST), seen = jinja_list_new(j, JV_LIST);
    struct jinja_value attribute = jinja_none();
    bool case_sensitive = jinja_arg_bool(a, 1, "case_sensitive", false);
    jinja_arg(a, 2, "attribute", &attribute);
    for (size_t i = 0; i < l->n; i++) {
        struct jinja_value key = folded(j, keyed(j, l->item[i], attribute), case_sensitive);
        if (jinja_contains(j, seen, key))
            continue;
        jinja_list_add(j, seen.u.list, key);
        jinja_list_add(j, out.u.list, l->item[i]);
    }
    return out;
}

static struct jinja_value f_reverse(struct jinja *j, const struct jinja_args *a)
{
    struct jinja_value v = a->value[0];
    if (v.kind == JV_STRING)
        return jinja_slice(j, v, jinja_none(), jinja_none(), jinja_int(-1));
    const struct jinja_list *l = jinja_iterate(j, v);
    struct jinja_value out = jinja_list_new(j, JV_LIST);
    for (size_t i = l->n; i-- > 0;)
        jinja_list_add(j, out.u.list, l->item[i]);
    return out;
}

static struct jinja_value extreme(struct jinja *j, const struct jinja_args *a, int sign)
{
    const struct jinja_list *l = jinja_iterate(j, a->value[0]);
    struct jinja_value attribute = jinja_none(), best = jinja_undefined(NULL), best_key = best;
    bool case_sensitive = jinja_arg_bool(a, 1, "case_sensitive", false);
    jinja_arg(a, 2, "attribute", &attribute);
    for (size_t i = 0; i < l->n; i++) {
        struct jinja_value key = folded(j, keyed(j, l->item[i], attribute), case_sensitive);
        if (i == 0 || sign * jinja_compare(j, key, best_key) > 0) {
            best = l->item[i];
            best_key = key;
        }
    }
    return best;
}

static struct jinja_value f_max(struct jinja *j, const struct jinja_args *a)
{
    return extreme(j, a, 1);
}

static struct jinja_value f_min(struct jinja *j, const struct jinja_args *a)
{
    return extreme(j, a, -1);
}

static struct jinja_value f_sum(struct jinja *j, const struct jinja_args *a)
{
    const struct jinja_list *l = jinja_iterate(j, a->value[0]);
    struct jinja_value attribute = jinja_none(), sum = jinja_int(0);
    jinja_arg(a, 1, "attribute", &attribute);
    jinja_arg(a, 2, "start", &sum);
    for (size_t i = 0; i < l->n; i++)
        sum = jinja_binary(j, JO_ADD, sum, keyed(j, l->item[i], attribute));
    return sum;
}

static struct jinja_value f_attr(struct jinja *j, const struct jinja_args *a)
{
    return jinja_get_attr(j, a->value[0], jinja_arg_str(j, a, 1, "name", NULL));
}

static struct jinja_value f_map(struct jinja *j, const struct jinja_args *a)
{
    const struct jinja_list *l = jinja_iterate(j, a->value[0]);
    struct jinja_value out = jinja_list_new(j, JV_LIST), attribute = jinja_none();
    struct jinja_value otherwise = jinja_undefined(NULL);
    bool by_attribute = a->n == 1 && jinja_arg(a, 1, "attribute", &attribute);
    bool has_default = by_attribute && jinja_arg(a, 2, "default", &otherwise);
    jinja_function *f = NULL;
    const struct jinja_str *name = NULL;
    if (!by_attribute) {
        name = jinja_arg_str(j, a, 1, "filter", NULL);
        f = jinja_find_filter(name);
        if (f == NULL)
            jinja_fail(j, "map: no filter named '%.*s'", (int)name->n, name->p);
    }
    for (size_t i = 0; i < l->n; i++) {
        struct jinja_value v;
        if (by_attribute) {
            v = dotted(j, l->item[i], attribute);
            if (v.kind == JV_UNDEFINED && has_default)
                v = otherwise;
        } else {
            struct jinja_value *value = jinja_alloc(j, a->n * sizeof *value);
            memcpy(value, a->value, a->n * sizeof *value);
            if (a->n > 2)
                memmove(value + 1, value + 2, (a->n - 2) * sizeof *value);
            value[0] = l->item[i];
            struct jinja_args one = { .n = a->n - 1,
                                      .n_keywords = a->n_keywords,
                                      .value = value,
                                      .keyword = a->keyword,
                                      .keyword_value = a->keyword_value,
                                      .callee = "map" };
            v = f(j, &one);
        }
        jinja_list_add(j, out.u.list, v);
    }
    return out;
}

/* select, reject, selectattr, rejectattr: items for which a test holds (or, with
 * none given, that are true). */
static struct jinja_value chosen(struct jinja *j, const struct jinja_args *a, bool by_attribute,
                                 bool keep)
{
    const struct jinja_list *l = jinja_iterate(j, a->value[0]);
    struct jinja_value out = jinja_list_new(j, JV_LIST), attribute = jinja_none();
    size_t at = 1;
    if (by_attribute && !jinja_arg(a, at++, "attribute", &attribute))
        jinja_fail(j, "%s: the attribute is missing", a->callee);
    jinja_predicate *test = NULL;
    if (at < a->n) {
        const struct jinja_str *name = jinja_arg_str(j, a, at++, "test", NULL);
        test = jinja_find_test(name);
        if (test == NULL)
            jinja_fail(j, "%s: no test named '%.*s'", a->callee, (int)name->n, name->p);
    }
    size_t n = a->n > at ? a->n - at : 0;
    struct jinja_value *value = jinja_alloc(j, (n + 1) * sizeof *value);
    for (size_t i = 0; i < n; i++)
        value[i + 1] = a->value[at + i];
    for (size_t i = 0; i < l->n; i++) {
        value[0] = by_attribute ? dotted(j, l->item[i], attribute) : l->item[i];
        struct jinja_args one = { .n = n + 1, .value = value, .callee = a->callee };
        bool holds = test == NULL ? jinja_truth(value[0]) : test(j, &one);
        if (holds == keep)
            jinja_list_add(j, out.u.list, l->item[i]);
    }
    return out;
}

static struct jinja_value f_select(struct jinja *j, const struct jinja_args *a)
{
    return chosen(j, a, false, true);
}

static struct jinja_value f_reject(struct jinja *j, const struct jinja_args *a)
{
    return chosen(j, a, false, false);
}

static struct jinja_value f_selectattr(struct jinja *j, const struct jinja_args *a)
{
    return chosen(j, a, true, true);
}

static struct jinja_value f_rejectattr(struct jinja *j, const struct jinja_args *a)
{
    return chosen(j, a, true, false);
}

static struct jinja_value f_batch(struct jinja *j, const struct jinja_args *a)
{
    const struct jinja_list *l = jinja_iterate(j, a->value[0]);
    int64_t n = jinja_arg_int(j, a, 1, "linecount", 0);
    struct jinja_value out = jinja_list_new(j, JV_LIST), fill, group = jinja_none();
    if (n < 1)
        jinja_fail(j, "batch: linecount must be at least 1");
    for (size_t i = 0; i < l->n; i++) {
        if (i % (size_t)n == 0) {
            group = jinja_list_new(j, JV_LIST);
            jinja_list_add(j, out.u.list, group);
        }
        jinja_list_add(j, group.u.list, l->item[i]);
    }
    if (l->n > 0 && jinja_arg(a, 2, "fill_with", &fill) && fill.kind != JV_NONE)
        while (group.u.list->n < (size_t)n)
            jinja_list_add(j, group.u.list, fill);
    return out;
}

/* ---- globals -----------------------------------------------------------------------------------
 */

static struct jinja_value g_range(struct jinja *j, const struct jinja_args *a)
{
    int64_t first = jinja_arg_int(j, a, 0, "start", 0), end = jinja_arg_int(j, a, 1, "stop", 0);
    int64_t step = jinja_arg_int(j, a, 2, "step", 1);
    if (a->n == 1) {
        end = first;
        first = 0;
    }
    if (a->n == 0 || step == 0)
        jinja_fail(j, a->n == 0 ? "range: expected 1 to 3 ints" : "range: step is 0");
    struct jinja_value out = jinja_list_new(j, JV_LIST);
    for (int64_t i = first; step > 0 ? i < end : i > end;) {
        jinja_list_add(j, out.u.list, jinja_int(i));
        if (__builtin_add_overflow(i, step, &i))
            break;
    }
    return out;
}

static struct jinja_value g_dict(struct jinja *j, const struct jinja_args *a)
{
    struct jinja_value out = jinja_map_new(j);
    if (a->n > 0 && a->value[0].kind == JV_MAP)
        for (size_t i = 0; i < a->value[0].u.map->n; i++)
            jinja_map_put(j, out.u.map, a->value[0].u.map->member[i].key,
                          a->value[0].u.map->member[i].value);
    for (size_t i = 0; i < a->n_keywords; i++)
        jinja_map_put(j, out.u.map, jinja_string(j, a->keyword[i]->p, a->keyword[i]->n),
                      a->keyword_value[i]);
    return out;
}

static struct jinja_value g_namespace(struct jinja *j, const struct jinja_args *a)
{
    struct jinja_value out = g_dict(j, a);
    out.kind = JV_NAMESPACE;
    return out;
}

static struct jinja_value g_raise(struct jinja *j, const struct jinja_args *a)
{
    const struct jinja_str *s = a->n > 0 ? jinja_to_str(j, a->value[0]) : NULL;
    jinja_fail(j, "%.*s", s == NULL ? 0 : (int)(s->n < 400 ? s->n : 400), s == NULL ? "" : s->p);
}

static struct jinja_value g_strftime_now(struct jinja *j, const struct jinja_args *a)
{
    return jinja_strftime(j, jinja_arg_str(j, a, 0, "format", NULL), j->now);
}

/* ---- tables
 * -------------------------------------------------------------------------------------- */

struct row {
    const char *name;
    jinja_function *call;
};

static const struct row filters[] = {
    { "abs", f_abs },
    { "attr", f_attr },
    { "batch", f_batch },
    { "capitalize", f_capitalize },
    { "count", f_length },
    { "d", f_default },
    { "default", f_default },
    { "dictsort", f_dictsort },
    { "e", f_escape },
    { "escape", f_escape },
    { "first", f_first },
    { "float", f_float },
    { "format", f_format },
    { "indent", f_indent },
    { "int", f_int },
    { "items", f_items },
    { "join", f_join },
    { "last", f_last },
    { "length", f_length },
    { "list", f_list },
    { "lower", f_lower },
    { "map", f_map },
    { "max", f_max },
    { "min", f_min },
    { "reject", f_reject },
    { "rejectattr", f_rejectattr },
    { "replace", f_replace },
    { "reverse", f_reverse },
    { "round", f_round },
    { "safe", f_string },
    { "select", f_select },
    { "selectattr", f_selectattr },
    { "sort", f_sort },
    { "string", f_string },
    { "sum", f_sum },
    { "title", f_title },
    { "tojson", f_tojson },
    { "trim", f_trim },
    { "truncate", f_truncate },
    { "unique", f_unique },
    { "upper", f_upper },
    { "urlencode", f_urlencode },
    { "wordcount", f_wordcount },
};

static const struct row globals[] = {
    { "range", g_range },
    { "dict", g_dict },
    { "namespace", g_namespace },
    { "raise_exception", g_raise },
    { "strftime_now", g_strftime_now },
};

static jinja_function *find_row(const struct row *row, size_t n, const struct jinja_str *name)
{
    for (size_t i = 0; i < n; i++)
        if (jinja_str_is(name, row[i].name))
            return row[i].call;
    return NULL;
}

jinja_function *jinja_find_filter(const struct jinja_str *name)
{
    return find_row(filters, sizeof filters / sizeof filters[0], name);
}

jinja_function *jinja_find_global(const struct jinja_str *name)
{
    return find_row(globals, sizeof globals / sizeof globals[0], name);
}

/* ---- tests that look names up ------------------------------------------------------------- */

static bool t_filter(struct jinja *j, const struct jinja_args *a)
{
    return a->value[0].kind == JV_STRING && jinja_find_filter(jinja_to_str(j, a->value[0])) != NULL;
}

static bool t_test(struct jinja *j, const struct jinja_args *a)
{
    return a->value[0].kind == JV_STRING && jinja_find_test(jinja_to_str(j, a->value[0])) != NULL;
}

jinja_predicate *jinja_find_test(const struct jinja_str *name)
{
    if (jinja_str_is(name, "filter"))
        return t_filter;
    return jinja_str_is(name, "test") ? t_test : jinja_find_predicate(name);
}
