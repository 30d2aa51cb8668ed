/* jinja_is.c: the tests of "is": predicates over values.
 *
 * Pure functions; args->value[0] is what the test applies to. */
#include <string.h>

#include "model/chat/jinja.h"

static bool t_defined(struct jinja *j, const struct jinja_args *a)
{
    (void)j;
    return a->value[0].kind != JV_UNDEFINED;
}

static bool t_undefined(struct jinja *j, const struct jinja_args *a)
{
    (void)j;
    return a->value[0].kind == JV_UNDEFINED;
}

static bool t_none(struct jinja *j, const struct jinja_args *a)
{
    (void)j;
    return a->value[0].kind == JV_NONE;
}

static bool t_string(struct jinja *j, const struct jinja_args *a)
{
    (void)j;
    return a->value[0].kind == JV_STRING;
}

static bool t_mapping(struct jinja *j, const struct jinja_args *a)
{
    (void)j;
    return a->value[0].kind == JV_MAP;
}

static bool t_iterable(struct jinja *j, const struct jinja_args *a)
{
    (void)j;
    enum jinja_kind k = a->value[0].kind;
    return k == JV_STRING || k == JV_LIST || k == JV_TUPLE || k == JV_MAP || k == JV_UNDEFINED ||
           k == JV_LOOP;
}

static bool t_sequence(struct jinja *j, const struct jinja_args *a)
{
    return t_iterable(j, a) && a->value[0].kind != JV_LOOP;
}

static bool t_number(struct jinja *j, const struct jinja_args *a)
{
    (void)j;
    return jinja_is_number(a->value[0]);
}

static bool t_integer(struct jinja *j, const struct jinja_args *a)
{
    (void)j;
    return a->value[0].kind == JV_INT || a->value[0].kind == JV_BIGINT;
}

static bool t_float(struct jinja *j, const struct jinja_args *a)
{
    (void)j;
    return a->value[0].kind == JV_FLOAT;
}

static bool t_boolean(struct jinja *j, const struct jinja_args *a)
{
    (void)j;
    return a->value[0].kind == JV_BOOL;
}

static bool t_true(struct jinja *j, const struct jinja_args *a)
{
    (void)j;
    return a->value[0].kind == JV_BOOL && a->value[0].u.boolean;
}

static bool t_false(struct jinja *j, const struct jinja_args *a)
{
    (void)j;
    return a->value[0].kind == JV_BOOL && !a->value[0].u.boolean;
}

static bool t_callable(struct jinja *j, const struct jinja_args *a)
{
    (void)j;
    enum jinja_kind k = a->value[0].kind;
    return k == JV_FUNCTION || k == JV_MACRO || k == JV_METHOD;
}

/* The one argument that a comparing test takes. */
static struct jinja_value other(struct jinja *j, const struct jinja_args *a)
{
    if (a->n != 2)
        jinja_fail(j, "test %s: expected one argument, found %zu", a->callee, a->n - 1);
    return a->value[1];
}

static bool t_eq(struct jinja *j, const struct jinja_args *a)
{
    return jinja_equal(j, a->value[0], other(j, a));
}

static bool t_ne(struct jinja *j, const struct jinja_args *a)
{
    return !jinja_equal(j, a->value[0], other(j, a));
}

static bool t_lt(struct jinja *j, const struct jinja_args *a)
{
    return jinja_compare(j, a->value[0], other(j, a)) < 0;
}

static bool t_le(struct jinja *j, const struct jinja_args *a)
{
    return jinja_compare(j, a->value[0], other(j, a)) <= 0;
}

static bool t_gt(struct jinja *j, const struct jinja_args *a)
{
    return jinja_compare(j, a->value[0], other(j, a)) > 0;
}

static bool t_ge(struct jinja *j, const struct jinja_args *a)
{
    return jinja_compare(j, a->value[0], other(j, a)) >= 0;
}

static bool t_in(struct jinja *j, const struct jinja_args *a)
{
    return jinja_contains(j, other(j, a), a->value[0]);
}

static bool t_sameas(struct jinja *j, const struct jinja_args *a)
{
    struct jinja_value x = a->value[0], y = other(j, a);
    if (x.kind != y.kind)
        return false;
    if (x.kind < JV_STRING)
        return jinja_equal(j, x, y);
    return jinja_same_object(x, y);
}

static bool t_divisibleby(struct jinja *j, const struct jinja_args *a)
{
    return !jinja_truth(jinja_binary(j, JO_MOD, a->value[0], other(j, a)));
}

static bool t_odd(struct jinja *j, const struct jinja_args *a)
{
    return jinja_truth(jinja_binary(j, JO_MOD, a->value[0], jinja_int(2)));
}

static bool t_even(struct jinja *j, const struct jinja_args *a)
{
    return !t_odd(j, a);
}

static bool t_lower(struct jinja *j, const struct jinja_args *a)
{
    const struct jinja_str *s = jinja_to_str(j, a->value[0]);
    return jinja_str_equal(s, jinja_recase(j, s, JC_LOWER).u.str) &&
           !jinja_str_equal(s, jinja_recase(j, s, JC_UPPER).u.str);
}

static bool t_upper(struct jinja *j, const struct jinja_args *a)
{
    const struct jinja_str *s = jinja_to_str(j, a->value[0]);
    return jinja_str_equal(s, jinja_recase(j, s, JC_UPPER).u.str) &&
           !jinja_str_equal(s, jinja_recase(j, s, JC_LOWER).u.str);
}

static const struct {
    const char *name;
    jinja_predicate *holds;
} tests[] = {
    { "defined", t_defined },
    { "undefined", t_undefined },
    { "none", t_none },
    { "string", t_string },
    { "mapping", t_mapping },
    { "iterable", t_iterable },
    { "sequence", t_sequence },
    { "number", t_number },
    { "integer", t_integer },
    { "float", t_float },
    { "boolean", t_boolean },
    { "true", t_true },
    { "false", t_false },
    { "callable", t_callable },
    { "eq", t_eq },
    { "equalto", t_eq },
    { "ne", t_ne },
    { "lt", t_lt },
    { "lessthan", t_lt },
    { "le", t_le },
    { "gt", t_gt },
    { "greaterthan", t_gt },
    { "ge", t_ge },
    { "in", t_in },
    { "sameas", t_sameas },
    { "divisibleby", t_divisibleby },
    { "odd", t_odd },
    { "even", t_even },
    { "lower", t_lower },
    { "upper", t_upper },
};

jinja_predicate *jinja_find_predicate(const struct jinja_str *name)
{
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
        if (jinja_str_is(name, tests[i].name))
            return tests[i].holds;
    return NULL;
}
