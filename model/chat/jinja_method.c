/* jinja_method.c: methods of strings, maps and lists, as Python names them, and
 * what ".name" and "[key]" of a value give.
 *
 * Owns nothing: results live in the render's arena.  One thread per render. */
#include <string.h>
#include <utf8proc.h>

#include "model/chat/jinja.h"
#include "proto/utf8.h"

/* ---- methods of strings ------------------------------------------------------------------ */

typedef struct jinja_value method(struct jinja *j, struct jinja_value self,
                                  const struct jinja_args *a);

static const struct jinja_str *chars_arg(struct jinja *j, const struct jinja_args *a)
{
    struct jinja_value v = jinja_none();
    jinja_arg(a, 0, "chars", &v);
    return v.kind == JV_NONE ? NULL : jinja_arg_str(j, a, 0, "chars", NULL);
}

static struct jinja_value m_strip(struct jinja *j, struct jinja_value v, const struct jinja_args *a)
{
    return jinja_strip(j, v.u.str, 3, chars_arg(j, a));
}

static struct jinja_value m_lstrip(struct jinja *j, struct jinja_value v,
                                   const struct jinja_args *a)
{
    return jinja_strip(j, v.u.str, 1, chars_arg(j, a));
}

static struct jinja_value m_rstrip(struct jinja *j, struct jinja_value v,
                                   const struct jinja_args *a)
{
    return jinja_strip(j, v.u.str, 2, chars_arg(j, a));
}

static struct jinja_value m_upper(struct jinja *j, struct jinja_value v, const struct jinja_args *a)
{
    (void)a;
    return jinja_recase(j, v.u.str, JC_UPPER);
}

static struct jinja_value m_lower(struct jinja *j, struct jinja_value v, const struct jinja_args *a)
{
    (void)a;
    return jinja_recase(j, v.u.str, JC_LOWER);
}

static struct jinja_value m_title(struct jinja *j, struct jinja_value v, const struct jinja_args *a)
{
    (void)a;
    return jinja_recase(j, v.u.str, JC_TITLE);
}

static struct jinja_value m_capitalize(struct jinja *j, struct jinja_value v,
                                       const struct jinja_args *a)
{
    (void)a;
    return jinja_recase(j, v.u.str, JC_CAPITALIZE);
}

static struct jinja_value m_replace(struct jinja *j, struct jinja_value v,
                                    const struct jinja_args *a)
{
    return jinja_replace(j, v.u.str, jinja_arg_str(j, a, 0, "old", NULL),
                         jinja_arg_str(j, a, 1, "new", NULL), jinja_arg_int(j, a, 2, "count", -1));
}

/* split without separator: runs of white space. */
static struct jinja_value split_spaces(struct jinja *j, const struct jinja_str *s, int64_t most)
{
    struct jinja_value out = jinja_list_new(j, JV_LIST);
    size_t i = 0;
    for (;;) {
        size_t n;
        while (i < s->n && (n = jinja_space_at(s, i)) > 0)
            i += n;
        if (i == s->n)
            return out;
        if (most-- == 0) {
            struct jinja_value rest = jinja_substring(j, s, i, s->n);
            jinja_list_add(j, out.u.list, jinja_strip(j, rest.u.str, 2, NULL));
            return out;
        }
        size_t from = i;
        while (i < s->n && jinja_space_at(s, i) == 0)
            i++;
        jinja_list_add(j, out.u.list, jinja_substring(j, s, from, i));
    }
}

/* Last occurrence of sep in s[0..to), or NULL. */
static const char *find_last(const struct jinja_str *s, size_t to, const struct jinja_str *sep)
{
    for (size_t i = to + 1; i-- > 0;)
        if (to - i >= sep->n && memcmp(s->p + i, sep->p, sep->n) == 0)
            return s->p + i;
    return NULL;
}

static void reverse_list(struct jinja_list *l)
{
    for (size_t a = 0, b = l->n; a + 1 < b; a++, b--) {
        struct jinja_value t = l->item[a];
        l->item[a] = l->item[b - 1];
        l->item[b - 1] = t;
    }
}

static struct jinja_value split(struct jinja *j, struct jinja_value v, const struct jinja_args *a,
                                bool from_right)
{
    const struct jinja_str *s = v.u.str;
    struct jinja_value sep_value = jinja_none();
    jinja_arg(a, 0, "sep", &sep_value);
    int64_t most = jinja_arg_int(j, a, 1, "maxsplit", -1);
    if (sep_value.kind == JV_NONE)
        return split_spaces(j, s, from_right ? -1 : most);
    const struct jinja_str *sep = jinja_arg_str(j, a, 0, "sep", NULL);
    if (sep->n == 0)
        jinja_fail(j, "split: empty separator");
    struct jinja_value out = jinja_list_new(j, JV_LIST);
    size_t from = 0, to = s->n;
    while (most-- != 0) {
        const char *hit =
            from_right ? find_last(s, to, sep) : memmem(s->p + from, s->n - from, sep->p, sep->n);
        if (hit == NULL)
            break;
        size_t at = (size_t)(hit - s->p);
        if (from_right) {
            jinja_list_add(j, out.u.list, jinja_substring(j, s, at + sep->n, to));
            to = at;
        } else {
            jinja_list_add(j, out.u.list, jinja_substring(j, s, from, at));
            from = at + sep->n;
        }
    }
    jinja_list_add(j, out.u.list, jinja_substring(j, s, from, to));
    if (from_right)
        reverse_list(out.u.list);
    return out;
}

static struct jinja_value m_split(struct jinja *j, struct jinja_value v, const struct jinja_args *a)
{
    return split(j, v, a, false);
}

static struct jinja_value m_rsplit(struct jinja *j, struct jinja_value v,
                                   const struct jinja_args *a)
{
    return split(j, v, a, true);
}

static struct jinja_value m_splitlines(struct jinja *j, struct jinja_value v,
                                       const struct jinja_args *a)
{
    const struct jinja_str *s = v.u.str;
    bool keep = jinja_arg_bool(a, 0, "keepends", false);
    struct jinja_value out = jinja_list_new(j, JV_LIST);
    for (size_t i = 0; i < s->n;) {
        size_t end = i;
        while (end < s->n && s->p[end] != '\n' && s->p[end] != '\r')
            end++;
        size_t next = end;
        if (next < s->n)
            next += s->p[next] == '\r' && next + 1 < s->n && s->p[next + 1] == '\n' ? 2 : 1;
        jinja_list_add(j, out.u.list, jinja_substring(j, s, i, keep ? next : end));
        i = next;
    }
    return out;
}

static bool has_affix(const struct jinja_str *s, const struct jinja_str *affix, bool at_end)
{
    return s->n >= affix->n &&
           memcmp(at_end ? s->p + s->n - affix->n : s->p, affix->p, affix->n) == 0;
}

static struct jinja_value affix_test(struct jinja *j, struct jinja_value v,
                                     const struct jinja_args *a, bool at_end)
{
    struct jinja_value want = jinja_none();
    jinja_arg(a, 0, "prefix", &want);
    if (want.kind == JV_TUPLE) {
        for (size_t i = 0; i < want.u.list->n; i++)
            if (want.u.list->item[i].kind == JV_STRING &&
                has_affix(v.u.str, want.u.list->item[i].u.str, at_end))
                return jinja_bool(true);
        return jinja_bool(false);
    }
    return jinja_bool(has_affix(v.u.str, jinja_arg_str(j, a, 0, "prefix", NULL), at_end));
}

static struct jinja_value m_startswith(struct jinja *j, struct jinja_value v,
                                       const struct jinja_args *a)
{
    return affix_test(j, v, a, false);
}

static struct jinja_value m_endswith(struct jinja *j, struct jinja_value v,
                                     const struct jinja_args *a)
{
    return affix_test(j, v, a, true);
}

static struct jinja_value m_removeprefix(struct jinja *j, struct jinja_value v,
                                         const struct jinja_args *a)
{
    const struct jinja_str *x = jinja_arg_str(j, a, 0, "prefix", NULL);
    return has_affix(v.u.str, x, false) ? jinja_substring(j, v.u.str, x->n, v.u.str->n) : v;
}

static struct jinja_value m_removesuffix(struct jinja *j, struct jinja_value v,
                                         const struct jinja_args *a)
{
    const struct jinja_str *x = jinja_arg_str(j, a, 0, "suffix", NULL);
    return has_affix(v.u.str, x, true) ? jinja_substring(j, v.u.str, 0, v.u.str->n - x->n) : v;
}

/* Character index of a byte offset. */
static int64_t character_index(const struct jinja_str *s, size_t byte)
{
    int64_t n = 0;
    for (size_t i = 0; i < byte; i++)
        n += ((unsigned char)s->p[i] & 0xc0) != 0x80;
    return n;
}

static struct jinja_value find(struct jinja *j, struct jinja_value v, const struct jinja_args *a,
                               bool last)
{
    const struct jinja_str *s = v.u.str, *x = jinja_arg_str(j, a, 0, "sub", NULL);
    const char *hit = last        ? find_last(s, s->n, x)
                      : x->n == 0 ? s->p
                                  : memmem(s->p, s->n, x->p, x->n);
    return jinja_int(hit == NULL ? -1 : character_index(s, (size_t)(hit - s->p)));
}

static struct jinja_value m_find(struct jinja *j, struct jinja_value v, const struct jinja_args *a)
{
    return find(j, v, a, false);
}

static struct jinja_value m_rfind(struct jinja *j, struct jinja_value v, const struct jinja_args *a)
{
    return find(j, v, a, true);
}

static struct jinja_value m_index(struct jinja *j, struct jinja_value v, const struct jinja_args *a)
{
    struct jinja_value at = find(j, v, a, false);
    if (at.u.integer < 0)
        jinja_fail(j, "index: substring not found");
    return at;
}

static struct jinja_value m_count(struct jinja *j, struct jinja_value v, const struct jinja_args *a)
{
    const struct jinja_str *s = v.u.str, *x = jinja_arg_str(j, a, 0, "sub", NULL);
    if (x->n == 0)
        return jinja_int(jinja_length(j, v) + 1);
    int64_t n = 0;
    for (const char *p = s->p; (p = memmem(p, s->n - (size_t)(p - s->p), x->p, x->n)) != NULL;
         p += x->n)
        n++;
    return jinja_int(n);
}

static struct jinja_value m_join(struct jinja *j, struct jinja_value v, const struct jinja_args *a)
{
    struct jinja_value items = jinja_none();
    jinja_arg(a, 0, "iterable", &items);
    const struct jinja_list *l = jinja_iterate(j, items);
    struct jinja_buf b;
    jinja_buf_init(&b, j);
    for (size_t i = 0; i < l->n; i++) {
        if (l->item[i].kind != JV_STRING)
            jinja_fail(j, "join: item %zu is a %s, expected a str", i, jinja_type_name(l->item[i]));
        if (i > 0)
            jinja_buf_str(&b, v.u.str);
        jinja_buf_str(&b, l->item[i].u.str);
    }
    return jinja_buf_value(&b);
}

/* What ".name" or "[key]" of a replacement field gives. */
static struct jinja_value field(struct jinja *j, struct jinja_value v, struct jinja_value key,
                                bool item)
{
    return item ? jinja_get_item(j, v, key) : jinja_get_attr(j, v, key.u.str);
}

static struct jinja_value m_format(struct jinja *j, struct jinja_value v,
                                   const struct jinja_args *a)
{
    return jinja_format_braces(j, v.u.str, a, field);
}

static struct jinja_value partition(struct jinja *j, struct jinja_value v,
                                    const struct jinja_args *a, bool last)
{
    const struct jinja_str *s = v.u.str, *sep = jinja_arg_str(j, a, 0, "sep", NULL);
    if (sep->n == 0)
        jinja_fail(j, "partition: empty separator");
    const char *hit = last ? find_last(s, s->n, sep) : memmem(s->p, s->n, sep->p, sep->n);
    struct jinja_value out = jinja_list_new(j, JV_TUPLE), none = jinja_string(j, "", 0);
    size_t at = hit == NULL ? (last ? 0 : s->n) : (size_t)(hit - s->p);
    size_t end = hit == NULL ? at : at + sep->n;
    jinja_list_add(j, out.u.list, hit == NULL && last ? none : jinja_substring(j, s, 0, at));
    jinja_list_add(j, out.u.list, jinja_substring(j, s, at, end));
    jinja_list_add(j, out.u.list, jinja_substring(j, s, end, s->n));
    return out;
}

static struct jinja_value m_partition(struct jinja *j, struct jinja_value v,
                                      const struct jinja_args *a)
{
    return partition(j, v, a, false);
}

static struct jinja_value m_rpartition(struct jinja *j, struct jinja_value v,
                                       const struct jinja_args *a)
{
    return partition(j, v, a, true);
}

/* Whether s is not empty and every character's category is in [lo, hi]. */
static struct jinja_value all_of(const struct jinja_str *s, int lo, int hi, int lo2, int hi2)
{
    for (size_t i = 0; i < s->n;) {
        size_t n = utf8_sequence_bytes(s->p + i, s->n - i);
        if (n == 0)
            return jinja_bool(false);
        int k = (int)utf8proc_category((int32_t)utf8_decode(s->p + i, n));
        if (!((k >= lo && k <= hi) || (k >= lo2 && k <= hi2)))
            return jinja_bool(false);
        i += n;
    }
    return jinja_bool(s->n > 0);
}

static struct jinja_value m_isdigit(struct jinja *j, struct jinja_value v,
                                    const struct jinja_args *a)
{
    (void)j, (void)a;
    return all_of(v.u.str, UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_ND, 1, 0);
}

static struct jinja_value m_isalpha(struct jinja *j, struct jinja_value v,
                                    const struct jinja_args *a)
{
    (void)j, (void)a;
    return all_of(v.u.str, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO, 1, 0);
}

static struct jinja_value m_isalnum(struct jinja *j, struct jinja_value v,
                                    const struct jinja_args *a)
{
    (void)j, (void)a;
    return all_of(v.u.str, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO, UTF8PROC_CATEGORY_ND,
                  UTF8PROC_CATEGORY_NO);
}

static struct jinja_value m_isspace(struct jinja *j, struct jinja_value v,
                                    const struct jinja_args *a)
{
    (void)j, (void)a;
    for (size_t i = 0, n; i < v.u.str->n; i += n)
        if ((n = jinja_space_at(v.u.str, i)) == 0)
            return jinja_bool(false);
    return jinja_bool(v.u.str->n > 0);
}

/* ---- methods of maps and lists -------------------------------------------------------------- */

static struct jinja_value m_get(struct jinja *j, struct jinja_value v, const struct jinja_args *a)
{
    struct jinja_value key = jinja_none(), otherwise = jinja_none();
    jinja_arg(a, 0, "key", &key);
    jinja_arg(a, 1, "default", &otherwise);
    const struct jinja_value *found = jinja_map_get(j, v.u.map, key);
    return found != NULL ? *found : otherwise;
}

static struct jinja_value m_items(struct jinja *j, struct jinja_value v, const struct jinja_args *a)
{
    (void)a;
    struct jinja_value out = jinja_list_new(j, JV_LIST);
    for (size_t i = 0; i < v.u.map->n; i++) {
        struct jinja_value pair = jinja_list_new(j, JV_TUPLE);
        jinja_list_add(j, pair.u.list, v.u.map->member[i].key);
        jinja_list_add(j, pair.u.list, v.u.map->member[i].value);
        jinja_list_add(j, out.u.list, pair);
    }
    return out;
}

static struct jinja_value m_keys(struct jinja *j, struct jinja_value v, const struct jinja_args *a)
{
    (void)a;
    struct jinja_value out = jinja_list_new(j, JV_LIST);
    out.u.list = (struct jinja_list *)jinja_iterate(j, v);
    return out;
}

static struct jinja_value m_values(struct jinja *j, struct jinja_value v,
                                   const struct jinja_args *a)
{
    (void)a;
    struct jinja_value out = jinja_list_new(j, JV_LIST);
    for (size_t i = 0; i < v.u.map->n; i++)
        jinja_list_add(j, out.u.list, v.u.map->member[i].value);
    return out;
}

static struct jinja_value m_same(struct jinja *j, struct jinja_value v, const struct jinja_args *a)
{
    (void)j, (void)a; /* copy(): values are immutable */
    return v;
}

static struct jinja_value m_list_index(struct jinja *j, struct jinja_value v,
                                       const struct jinja_args *a)
{
    struct jinja_value want = jinja_none();
    jinja_arg(a, 0, "value", &want);
    for (size_t i = 0; i < v.u.list->n; i++)
        if (jinja_equal(j, v.u.list->item[i], want))
            return jinja_int((int64_t)i);
    jinja_fail(j, "index: value is not in the list");
}

static struct jinja_value m_list_count(struct jinja *j, struct jinja_value v,
                                       const struct jinja_args *a)
{
    struct jinja_value want = jinja_none();
    jinja_arg(a, 0, "value", &want);
    int64_t n = 0;
    for (size_t i = 0; i < v.u.list->n; i++)
        n += jinja_equal(j, v.u.list->item[i], want);
    return jinja_int(n);
}

/* The reference renders in an immutable sandbox, where these raise. */
static struct jinja_value m_refused(struct jinja *j, struct jinja_value v,
                                    const struct jinja_args *a)
{
    jinja_fail(j, "%s() would change a %s, which templates may not", a->callee, jinja_type_name(v));
}

enum { ON_STRING = 1, ON_MAP = 2, ON_LIST = 4 };

static const struct {
    const char *name;
    int on;
    method *call;
} methods[] = {
    { "strip", ON_STRING, m_strip },
    { "lstrip", ON_STRING, m_lstrip },
    { "rstrip", ON_STRING, m_rstrip },
    { "split", ON_STRING, m_split },
    { "rsplit", ON_STRING, m_rsplit },
    { "splitlines", ON_STRING, m_splitlines },
    { "startswith", ON_STRING, m_startswith },
    { "endswith", ON_STRING, m_endswith },
    { "removeprefix", ON_STRING, m_removeprefix },
    { "removesuffix", ON_STRING, m_removesuffix },
    { "replace", ON_STRING, m_replace },
    { "upper", ON_STRING, m_upper },
    { "lower", ON_STRING, m_lower },
    { "title", ON_STRING, m_title },
    { "capitalize", ON_STRING, m_capitalize },
    { "find", ON_STRING, m_find },
    { "rfind", ON_STRING, m_rfind },
    { "index", ON_STRING, m_index },
    { "count", ON_STRING, m_count },
    { "join", ON_STRING, m_join },
    { "format", ON_STRING, m_format },
    { "partition", ON_STRING, m_partition },
    { "rpartition", ON_STRING, m_rpartition },
    { "isdigit", ON_STRING, m_isdigit },
    { "isalpha", ON_STRING, m_isalpha },
    { "isalnum", ON_STRING, m_isalnum },
    { "isspace", ON_STRING, m_isspace },
    { "get", ON_MAP, m_get },
    { "items", ON_MAP, m_items },
    { "keys", ON_MAP, m_keys },
    { "values", ON_MAP, m_values },
    { "copy", ON_MAP | ON_LIST, m_same },
    { "index", ON_LIST, m_list_index },
    { "count", ON_LIST, m_list_count },
    { "pop", ON_MAP | ON_LIST, m_refused },
    { "clear", ON_MAP | ON_LIST, m_refused },
    { "update", ON_MAP, m_refused },
    { "setdefault", ON_MAP, m_refused },
    { "popitem", ON_MAP, m_refused },
    { "append", ON_LIST, m_refused },
    { "extend", ON_LIST, m_refused },
    { "insert", ON_LIST, m_refused },
    { "remove", ON_LIST, m_refused },
    { "reverse", ON_LIST, m_refused },
    { "sort", ON_LIST, m_refused },
};

static method *find_method(struct jinja_value v, const struct jinja_str *name)
{
    int on = v.kind == JV_STRING                       ? ON_STRING
             : v.kind == JV_MAP                        ? ON_MAP
             : v.kind == JV_LIST || v.kind == JV_TUPLE ? ON_LIST
                                                       : 0;
    for (size_t i = 0; on != 0 && i < sizeof methods / sizeof methods[0]; i++)
        if ((methods[i].on & on) != 0 && jinja_str_is(name, methods[i].name))
            return methods[i].call;
    return NULL;
}

struct jinja_value jinja_call_method(struct jinja *j, const struct jinja_method *m,
                                     const struct jinja_args *args)
{
    return find_method(m->self, m->name)(j, m->self, args);
}

/* ---- attributes and items ------------------------------------------------------------------ */

static struct jinja_value loop_attr(const struct jinja_loop *l, const struct jinja_str *name)
{
    size_t n = l->list->n;
    if (jinja_str_is(name, "index"))
        return jinja_int((int64_t)l->at + 1);
    if (jinja_str_is(name, "index0"))
        return jinja_int((int64_t)l->at);
    if (jinja_str_is(name, "revindex"))
        return jinja_int((int64_t)(n - l->at));
    if (jinja_str_is(name, "revindex0"))
        return jinja_int((int64_t)(n - l->at) - 1);
    if (jinja_str_is(name, "first"))
        return jinja_bool(l->at == 0);
    if (jinja_str_is(name, "last"))
        return jinja_bool(l->at + 1 == n);
    if (jinja_str_is(name, "length"))
        return jinja_int((int64_t)n);
    if (jinja_str_is(name, "depth"))
        return jinja_int(l->depth);
    if (jinja_str_is(name, "depth0"))
        return jinja_int(l->depth - 1);
    if (jinja_str_is(name, "previtem"))
        return l->at > 0 ? l->list->item[l->at - 1] : jinja_undefined(name);
    if (jinja_str_is(name, "nextitem"))
        return l->at + 1 < n ? l->list->item[l->at + 1] : jinja_undefined(name);
    return jinja_undefined(name);
}

struct jinja_value jinja_get_attr(struct jinja *j, struct jinja_value v,
                                  const struct jinja_str *name)
{
    if (v.kind == JV_UNDEFINED)
        jinja_fail_undefined(j, v);
    if (v.kind == JV_LOOP) {
        struct jinja_value got = loop_attr(v.u.loop, name);
        if (got.kind != JV_UNDEFINED)
            return got;
    }
    if (find_method(v, name) != NULL) {
        struct jinja_value m = { .kind = JV_METHOD };
        m.u.method = jinja_alloc(j, sizeof *m.u.method);
        *m.u.method = (struct jinja_method){ v, name };
        return m;
    }
    if (v.kind == JV_MAP || v.kind == JV_NAMESPACE) {
        struct jinja_str key = *name;
        const struct jinja_value *found =
            jinja_map_get(j, v.u.map, (struct jinja_value){ .kind = JV_STRING, .u.str = &key });
        if (found != NULL)
            return *found;
    }
    if (v.kind == JV_MACRO && jinja_str_is(name, "name"))
        return jinja_string(j, v.u.macro->node->name->p, v.u.macro->node->name->n);
    return jinja_undefined(name);
}

struct jinja_value jinja_get_item(struct jinja *j, struct jinja_value v, struct jinja_value key)
{
    const struct jinja_str *name = key.kind == JV_STRING ? key.u.str : NULL;
    struct jinja_value found;
    if (v.kind == JV_UNDEFINED)
        jinja_fail_undefined(j, v);
    if (jinja_find_item(j, v, key, &found))
        return found;
    if (name != NULL && (v.kind != JV_MAP || find_method(v, name) != NULL))
        return jinja_get_attr(j, v, name);
    return jinja_undefined(name);
}
