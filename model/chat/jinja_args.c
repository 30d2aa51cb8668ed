/* jinja_args.c: the arguments of a call, by place or keyword, and typed.
 *
 * Owns nothing.  One thread per render. */
#include "model/chat/jinja.h"

bool jinja_arg(const struct jinja_args *args, size_t at, const char *keyword,
               struct jinja_value *out)
{
    if (at < args->n) {
        *out = args->value[at];
        return true;
    }
    for (size_t i = 0; i < args->n_keywords; i++)
        if (jinja_str_is(args->keyword[i], keyword)) {
            *out = args->keyword_value[i];
            return true;
        }
    return false;
}

const struct jinja_str *jinja_arg_str(struct jinja *j, const struct jinja_args *args, size_t at,
                                      const char *keyword, const struct jinja_str *otherwise)
{
    struct jinja_value v;
    if (!jinja_arg(args, at, keyword, &v)) {
        if (otherwise == NULL)
            jinja_fail(j, "%s: argument '%s' is missing", args->callee, keyword);
        return otherwise;
    }
    if (v.kind != JV_STRING)
        jinja_fail(j, "%s: '%s' is a %s, expected a str", args->callee, keyword,
                   jinja_type_name(v));
    return v.u.str;
}

int64_t jinja_arg_int(struct jinja *j, const struct jinja_args *args, size_t at,
                      const char *keyword, int64_t otherwise)
{
    struct jinja_value v;
    if (!jinja_arg(args, at, keyword, &v) || v.kind == JV_NONE)
        return otherwise;
    if (v.kind != JV_INT && v.kind != JV_BOOL)
        jinja_fail(j, "%s: '%s' is a %s, expected an int", args->callee, keyword,
                   jinja_type_name(v));
    return v.kind == JV_INT ? v.u.integer : v.u.boolean;
}

bool jinja_arg_bool(const struct jinja_args *args, size_t at, const char *keyword, bool otherwise)
{
    struct jinja_value v;
    return jinja_arg(args, at, keyword, &v) ? jinja_truth(v) : otherwise;
}
