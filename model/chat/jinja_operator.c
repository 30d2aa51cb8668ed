/* jinja_operator.c: arithmetic, concatenation and % between values.
 *
 * Owns nothing: results live in the render's arena.  One thread per render. */
#include <math.h>

#include "model/chat/jinja.h"

static const char *op_text(enum jinja_op op)
{
    static const char *const text[] = {
        [JO_ADD] = "+",       [JO_SUB] = "-", [JO_MUL] = "*",  [JO_DIV] = "/",
        [JO_FLOORDIV] = "//", [JO_MOD] = "%", [JO_POW] = "**", [JO_CONCAT] = "~"
    };
    return text[op];
}

static struct jinja_value integers(struct jinja *j, enum jinja_op op, int64_t a, int64_t b)
{
    int64_t r = 0;
    bool over = false;
    switch (op) {
    case JO_ADD:
        over = __builtin_add_overflow(a, b, &r);
        break;
    case JO_SUB:
        over = __builtin_sub_overflow(a, b, &r);
        break;
    case JO_MUL:
        over = __builtin_mul_overflow(a, b, &r);
        break;
    case JO_POW:
        if (b < 0)
            return jinja_float(pow((double)a, (double)b));
        r = 1;
        for (int64_t i = 0; i < b && !over && (a > 1 || a < -1 || i < 2); i++)
            over = __builtin_mul_overflow(r, a, &r);
        if (a == -1)
            r = b % 2 == 0 ? 1 : -1;
        break;
    default: /* // and %: toward minus infinity */
        if (b == 0)
            jinja_fail(j, "division by zero");
        over = a == INT64_MIN && b == -1;
        if (!over) {
            int64_t q = a / b, m = a % b;
            if (m != 0 && (m < 0) != (b < 0)) {
                q--;
                m += b;
            }
            r = op == JO_MOD ? m : q;
        }
    }
    if (over)
        jinja_fail(j, "int result of '%s' is out of range", op_text(op));
    return jinja_int(r);
}

static struct jinja_value reals(struct jinja *j, enum jinja_op op, double a, double b)
{
    if (b == 0 && (op == JO_DIV || op == JO_FLOORDIV || op == JO_MOD))
        jinja_fail(j, "division by zero");
    switch (op) {
    case JO_ADD:
        return jinja_float(a + b);
    case JO_SUB:
        return jinja_float(a - b);
    case JO_MUL:
        return jinja_float(a * b);
    case JO_DIV:
        return jinja_float(a / b);
    case JO_FLOORDIV:
        return jinja_float(floor(a / b));
    case JO_POW:
        return jinja_float(pow(a, b));
    default: {
        double m = fmod(a, b);
        return jinja_float(m != 0 && (m < 0) != (b < 0) ? m + b : m);
    }
    }
}

/* str * int, list * int */
static struct jinja_value repeated(struct jinja *j, struct jinja_value v, int64_t times)
{
    if (v.kind == JV_STRING) {
        struct jinja_buf b;
        jinja_buf_init(&b, j);
        for (int64_t i = 0; i < times; i++) {
            jinja_step(j, 1);
            jinja_buf_str(&b, v.u.str);
        }
        return jinja_buf_value(&b);
    }
    struct jinja_value out = jinja_list_new(j, v.kind);
    for (int64_t i = 0; i < times; i++) {
        jinja_step(j, 1);
        for (size_t k = 0; k < v.u.list->n; k++)
            jinja_list_add(j, out.u.list, v.u.list->item[k]);
    }
    return out;
}

static bool is_sequence(struct jinja_value v)
{
    return v.kind == JV_STRING || v.kind == JV_LIST || v.kind == JV_TUPLE;
}

struct jinja_value jinja_binary(struct jinja *j, enum jinja_op op, struct jinja_value a,
                                struct jinja_value b)
{
    if (op == JO_CONCAT || (op == JO_ADD && a.kind == JV_STRING && b.kind == JV_STRING)) {
        struct jinja_buf buf;
        jinja_buf_init(&buf, j);
        jinja_text(&buf, a);
        jinja_text(&buf, b);
        return jinja_buf_value(&buf);
    }
    if (a.kind == JV_UNDEFINED)
        jinja_fail_undefined(j, a);
    if (b.kind == JV_UNDEFINED)
        jinja_fail_undefined(j, b);
    if (jinja_is_number(a) && jinja_is_number(b)) {
        if (op == JO_DIV || a.kind == JV_FLOAT || b.kind == JV_FLOAT)
            return reals(j, op, jinja_number(a), jinja_number(b));
        if (a.kind == JV_BIGINT || b.kind == JV_BIGINT)
            jinja_fail(j, "int operand of '%s' is out of range", op_text(op));
        return integers(j, op, jinja_as_int(a), jinja_as_int(b));
    }
    if (op == JO_ADD && a.kind == b.kind && (a.kind == JV_LIST || a.kind == JV_TUPLE)) {
        struct jinja_value out = jinja_list_new(j, a.kind);
        for (size_t i = 0; i < a.u.list->n; i++)
            jinja_list_add(j, out.u.list, a.u.list->item[i]);
        for (size_t i = 0; i < b.u.list->n; i++)
            jinja_list_add(j, out.u.list, b.u.list->item[i]);
        return out;
    }
    if (op == JO_MUL && is_sequence(a) && (b.kind == JV_INT || b.kind == JV_BOOL))
        return repeated(j, a, jinja_as_int(b));
    if (op == JO_MUL && is_sequence(b) && (a.kind == JV_INT || a.kind == JV_BOOL))
        return repeated(j, b, jinja_as_int(a));
    if (op == JO_MOD && a.kind == JV_STRING)
        return jinja_format_percent(j, a.u.str, b);
    jinja_fail(j, "cannot compute %s %s %s", jinja_type_name(a), op_text(op), jinja_type_name(b));
}
