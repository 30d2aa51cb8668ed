/* jinja_eval.c: walk a parsed template.
 *
 * Owns the scopes, in the render's arena.  One thread per render.  A for loop
 * opens a scope per iteration, a macro call one over the scope it was defined
 * in; if, with filters and set blocks write to the scope they stand in. */
#include <string.h>

#include "model/chat/jinja.h"

struct jinja_scope {
    struct jinja_scope *parent;
    struct jinja_map *vars;
    bool captured; /* a macro looks names up here: not to be emptied for reuse */
};

static const struct jinja_str loop_name = { .n = 4, .p = "loop" },
                              varargs_name = { .n = 7, .p = "varargs" },
                              kwargs_name = { .n = 6, .p = "kwargs" },
                              caller_name = { .n = 6, .p = "caller" };

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

static struct jinja_value eval(struct jinja *j, const struct jinja_node *n);
static enum flow exec_list(struct jinja *j, struct jinja_node *const *list, size_t n);

/* ---- scopes --------------------------------------------------------------------------- */

static struct jinja_scope *scope_over(struct jinja *j, struct jinja_scope *parent)
{
    struct jinja_scope *s = jinja_alloc(j, sizeof *s);
    s->parent = parent;
    s->vars = jinja_map_new(j).u.map;
    return s;
}

void jinja_scope_push(struct jinja *j)
{
    j->scope = scope_over(j, j->scope);
}

void jinja_scope_set(struct jinja *j, const struct jinja_str *name, struct jinja_value v)
{
    struct jinja_value key = { .kind = JV_STRING, .u.str = (struct jinja_str *)name };
    jinja_map_put(j, j->scope->vars, key, v);
}

static struct jinja_value lookup(struct jinja *j, const struct jinja_str *name)
{
    struct jinja_str key = *name;
    struct jinja_value k = { .kind = JV_STRING, .u.str = &key };
    for (const struct jinja_scope *s = j->scope; s != NULL; s = s->parent) {
        const struct jinja_value *v = jinja_map_get(j, s->vars, k);
        if (v != NULL)
            return *v;
    }
    jinja_function *f = jinja_find_global(name);
    if (f != NULL)
        return (struct jinja_value){ .kind = JV_FUNCTION, .u.function = f };
    return jinja_undefined(name);
}

/* ---- calls ------------------------------------------------------------------------------ */

/* Values of a node's arguments, `first` before them when not NULL. */
static struct jinja_args arguments(struct jinja *j, const struct jinja_node *n,
                                   const struct jinja_value *first, const char *callee)
{
    size_t extra = first != NULL;
    struct jinja_value *value = jinja_alloc(j, (n->n_list + extra + 1) * sizeof *value);
    struct jinja_value *named = jinja_alloc(j, (n->n_names + 1) * sizeof *named);
    if (first != NULL)
        value[0] = *first;
    for (size_t i = 0; i < n->n_list; i++)
        value[extra + i] = eval(j, n->list[i]);
    for (size_t i = 0; i < n->n_names; i++)
        named[i] = eval(j, n->named[i]);
    return (struct jinja_args){ .n = n->n_list + extra,
                                .n_keywords = n->n_names,
                                .value = value,
                                .keyword = n->names,
                                .keyword_value = named,
                                .callee = callee };
}

/* NUL-terminated copy for messages. */
static const char *c_name(struct jinja *j, const struct jinja_str *s)
{
    char *p = jinja_alloc(j, s->n + 1);
    memcpy(p, s->p, s->n);
    return p;
}

/* Run statements into a buffer of their own; their text. */
static struct jinja_value captured(struct jinja *j, struct jinja_node *const *list, size_t n)
{
    struct jinja_buf b, *outer = j->out;
    jinja_buf_init(&b, j);
    j->out = &b;
    exec_list(j, list, n);
    j->out = outer;
    return jinja_buf_value(&b);
}

static struct jinja_value call_macro(struct jinja *j, const struct jinja_macro *m,
                                     const struct jinja_args *args)
{
    const struct jinja_node *n = m->node;
    struct jinja_scope *outer = j->scope;
    j->scope = scope_over(j, m->scope);
    bool *given = jinja_alloc(j, args->n_keywords + 1);
    for (size_t i = 0; i < n->n_names; i++) {
        struct jinja_value v = jinja_undefined(n->names[i]);
        bool found = i < args->n;
        if (found)
            v = args->value[i];
        for (size_t k = 0; k < args->n_keywords; k++)
            if (jinja_str_equal(args->keyword[k], n->names[i])) {
                v = args->keyword_value[k];
                found = given[k] = true;
            }
        if (!found && n->named[i] != NULL)
            v = eval(j, n->named[i]);
        jinja_scope_set(j, n->names[i], v);
    }
    struct jinja_value rest = jinja_list_new(j, JV_TUPLE), keywords = jinja_map_new(j);
    for (size_t i = n->n_names; i < args->n; i++)
        jinja_list_add(j, rest.u.list, args->value[i]);
    for (size_t k = 0; k < args->n_keywords; k++)
        if (!given[k])
            jinja_map_put(j, keywords.u.map,
                          jinja_string(j, args->keyword[k]->p, args->keyword[k]->n),
                          args->keyword_value[k]);
    jinja_scope_set(j, &varargs_name, rest);
    jinja_scope_set(j, &kwargs_name, keywords);
    if (m->caller.kind == JV_MACRO)
        jinja_scope_set(j, &caller_name, m->caller);
    struct jinja_value text = captured(j, n->list, n->n_list);
    j->scope = outer;
    return text;
}

static void exec_for_over(struct jinja *j, const struct jinja_node *n, struct jinja_value items,
                          int depth);

struct jinja_value jinja_call(struct jinja *j, struct jinja_value f, const struct jinja_args *args)
{
    jinja_deeper(j);
    struct jinja_value v = jinja_none();
    switch (f.kind) {
    case JV_FUNCTION:
        v = f.u.function(j, args);
        break;
    case JV_METHOD:
        v = jinja_call_method(j, f.u.method, args);
        break;
    case JV_MACRO:
        v = call_macro(j, f.u.macro, args);
        break;
    case JV_LOOP: {
        struct jinja_buf b, *outer = j->out;
        struct jinja_scope *scope = j->scope;
        if (f.u.loop->node->op == JO_NONE || args->n != 1)
            jinja_fail(j, "loop() needs a recursive loop and one argument");
        jinja_buf_init(&b, j);
        j->out = &b;
        j->scope = f.u.loop->scope;
        exec_for_over(j, f.u.loop->node, args->value[0], f.u.loop->depth + 1);
        j->out = outer;
        j->scope = scope;
        v = jinja_buf_value(&b);
        break;
    }
    case JV_UNDEFINED:
        jinja_fail_undefined(j, f);
    default:
        jinja_fail(j, "a %s cannot be called", jinja_type_name(f));
    }
    j->depth--;
    return v;
}

/* ---- expressions --------------------------------------------------------------------------- */

static bool compare(struct jinja *j, enum jinja_op op, struct jinja_value a, struct jinja_value b)
{
    switch (op) {
    case JO_EQ:
        return jinja_equal(j, a, b);
    case JO_NE:
        return !jinja_equal(j, a, b);
    case JO_IN:
        return jinja_contains(j, b, a);
    case JO_NOT_IN:
        return !jinja_contains(j, b, a);
    case JO_LT:
        return jinja_compare(j, a, b) < 0;
    case JO_LE:
        return jinja_compare(j, a, b) <= 0;
    case JO_GT:
        return jinja_compare(j, a, b) > 0;
    default:
        return jinja_compare(j, a, b) >= 0;
    }
}

static struct jinja_value eval_compare(struct jinja *j, const struct jinja_node *n)
{
    struct jinja_value left = eval(j, n->a);
    for (size_t i = 0; i < n->n_list; i++) {
        struct jinja_value right = eval(j, n->list[i]);
        if (!compare(j, n->ops[i], left, right))
            return jinja_bool(false);
        left = right;
    }
    return jinja_bool(true);
}

static struct jinja_value eval_negation(struct jinja *j, const struct jinja_node *n)
{
    struct jinja_value v = eval(j, n->a);
    if (!jinja_is_number(v))
        jinja_fail(j, "a %s has no sign", jinja_type_name(v));
    if (n->type == JN_POS)
        return v;
    return v.kind == JV_FLOAT ? jinja_float(-v.u.real) : jinja_binary(j, JO_SUB, jinja_int(0), v);
}

static struct jinja_value eval_list(struct jinja *j, const struct jinja_node *n)
{
    struct jinja_value v = jinja_list_new(j, n->type == JN_LIST ? JV_LIST : JV_TUPLE);
    for (size_t i = 0; i < n->n_list; i++)
        jinja_list_add(j, v.u.list, eval(j, n->list[i]));
    return v;
}

static struct jinja_value eval_map(struct jinja *j, const struct jinja_node *n)
{
    struct jinja_value v = jinja_map_new(j);
    for (size_t i = 0; i < n->n_list; i += 2) {
        struct jinja_value key = eval(j, n->list[i]);
        jinja_map_put(j, v.u.map, key, eval(j, n->list[i + 1]));
    }
    return v;
}

static struct jinja_value eval_slice(struct jinja *j, const struct jinja_node *n)
{
    struct jinja_value of = eval(j, n->a);
    struct jinja_value from = n->b != NULL ? eval(j, n->b) : jinja_none();
    struct jinja_value to = n->c != NULL ? eval(j, n->c) : jinja_none();
    struct jinja_value step = n->d != NULL ? eval(j, n->d) : jinja_none();
    return jinja_slice(j, of, from, to, step);
}

static struct jinja_value eval_call(struct jinja *j, const struct jinja_node *n)
{
    struct jinja_value f = eval(j, n->a);
    const char *callee = n->a->name != NULL ? c_name(j, n->a->name) : "call";
    struct jinja_args args = arguments(j, n, NULL, callee);
    return jinja_call(j, f, &args);
}

/* A chain of filters whose innermost operand is `input` when it is undefined. */
static struct jinja_value eval_filter(struct jinja *j, const struct jinja_node *n,
                                      const struct jinja_value *input)
{
    if (n->type != JN_FILTER)
        return input != NULL ? *input : eval(j, n);
    struct jinja_value v = input != NULL ? eval_filter(j, n->a, input) : eval(j, n->a);
    struct jinja_args args = arguments(j, n, &v, c_name(j, n->name));
    jinja_function *f = jinja_find_filter(n->name);
    if (f == NULL)
        jinja_fail(j, "no filter named '%s'", args.callee);
    return f(j, &args);
}

static struct jinja_value eval_test(struct jinja *j, const struct jinja_node *n)
{
    struct jinja_value v = eval(j, n->a);
    struct jinja_args args = arguments(j, n, &v, c_name(j, n->name));
    jinja_predicate *holds = jinja_find_test(n->name);
    if (holds == NULL)
        jinja_fail(j, "no test named '%s'", args.callee);
    return jinja_bool(holds(j, &args) != n->negated);
}

static struct jinja_value eval_node(struct jinja *j, const struct jinja_node *n)
{
    struct jinja_value v;
    switch (n->type) {
    case JN_LITERAL:
        return n->literal;
    case JN_NAME:
        return lookup(j, n->name);
    case JN_LIST:
    case JN_TUPLE:
        return eval_list(j, n);
    case JN_MAP:
        return eval_map(j, n);
    case JN_ATTR:
        return jinja_get_attr(j, eval(j, n->a), n->name);
    case JN_ITEM:
        v = eval(j, n->a);
        return jinja_get_item(j, v, eval(j, n->b));
    case JN_SLICE:
        return eval_slice(j, n);
    case JN_CALL:
        return eval_call(j, n);
    case JN_FILTER:
        return eval_filter(j, n, NULL);
    case JN_TEST:
        return eval_test(j, n);
    case JN_NOT:
        return jinja_bool(!jinja_truth(eval(j, n->a)));
    case JN_NEG:
    case JN_POS:
        return eval_negation(j, n);
    case JN_BINARY:
        v = eval(j, n->a);
        return jinja_binary(j, n->op, v, eval(j, n->b));
    case JN_COMPARE:
        return eval_compare(j, n);
    case JN_AND:
        v = eval(j, n->a);
        return jinja_truth(v) ? eval(j, n->b) : v;
    case JN_OR:
        v = eval(j, n->a);
        return jinja_truth(v) ? v : eval(j, n->b);
    default: /* JN_COND */
        if (jinja_truth(eval(j, n->b)))
            return eval(j, n->a);
        return n->c != NULL ? eval(j, n->c) : jinja_undefined(NULL);
    }
}

static struct jinja_value eval(struct jinja *j, const struct jinja_node *n)
{
    int line = j->line;
    j->line = n->line;
    jinja_step(j, 1);
    jinja_deeper(j);
    struct jinja_value v = eval_node(j, n);
    j->depth--;
    j->line = line;
    return v;
}

/* ---- statements ------------------------------------------------------------------------------ */

static void assign(struct jinja *j, const struct jinja_node *target, struct jinja_value v)
{
    if (target->type == JN_NAME) {
        jinja_scope_set(j, target->name, v);
        return;
    }
    if (target->type == JN_ATTR) {
        struct jinja_value ns = lookup(j, target->a->name);
        if (ns.kind != JV_NAMESPACE)
            jinja_fail(j, "cannot set an attribute of a %s, expected a namespace",
                       jinja_type_name(ns));
        jinja_map_put(j, ns.u.map, jinja_string(j, target->name->p, target->name->n), v);
        return;
    }
    const struct jinja_list *l = jinja_iterate(j, v);
    if (l->n != target->n_list)
        jinja_fail(j, "%zu values for %zu names", l->n, target->n_list);
    for (size_t i = 0; i < l->n; i++)
        assign(j, target->list[i], l->item[i]);
}

/* A scope for the next iteration: the last one's when nothing else needs it. */
static void next_iteration(struct jinja *j, struct jinja_scope *outer, struct jinja_scope **own)
{
    if (*own == NULL || (*own)->captured)
        *own = scope_over(j, outer);
    else
        jinja_map_clear((*own)->vars);
    j->scope = *own;
}

static void exec_for_over(struct jinja *j, const struct jinja_node *n, struct jinja_value items,
                          int depth)
{
    struct jinja_scope *outer = j->scope, *own = NULL;
    const struct jinja_list *all = jinja_iterate(j, items);
    if (n->c != NULL) {
        struct jinja_list *kept = jinja_list_new(j, JV_LIST).u.list;
        for (size_t i = 0; i < all->n; i++) {
            next_iteration(j, outer, &own);
            assign(j, n->a, all->item[i]);
            if (jinja_truth(eval(j, n->c)))
                jinja_list_add(j, kept, all->item[i]);
        }
        j->scope = outer;
        all = kept;
    }
    struct jinja_loop *loop = jinja_alloc(j, sizeof *loop);
    *loop = (struct jinja_loop){ .list = all, .depth = depth, .node = n, .scope = outer };
    for (; loop->at < all->n; loop->at++) {
        next_iteration(j, outer, &own);
        jinja_scope_set(j, &loop_name, (struct jinja_value){ .kind = JV_LOOP, .u.loop = loop });
        assign(j, n->a, all->item[loop->at]);
        if (exec_list(j, n->list, n->n_list) == FLOW_BREAK)
            break;
    }
    j->scope = outer;
    if (all->n == 0)
        exec_list(j, n->other, n->n_other);
}

static struct jinja_value macro_value(struct jinja *j, const struct jinja_node *n,
                                      struct jinja_value caller)
{
    struct jinja_value v = { .kind = JV_MACRO };
    v.u.macro = jinja_alloc(j, sizeof *v.u.macro);
    *v.u.macro = (struct jinja_macro){ .node = n, .scope = j->scope, .caller = caller };
    for (struct jinja_scope *s = j->scope; s != NULL && !s->captured; s = s->parent)
        s->captured = true;
    return v;
}

/* "{% call(x) f(y) %}...{% endcall %}": f sees the body as caller(x). */
static void exec_call_block(struct jinja *j, const struct jinja_node *n)
{
    struct jinja_value f = eval(j, n->a->a);
    if (f.kind != JV_MACRO)
        jinja_fail(j, "a call block calls a %s, expected a macro", jinja_type_name(f));
    struct jinja_args args = arguments(j, n->a, NULL, "call");
    struct jinja_macro with_caller = *f.u.macro;
    with_caller.caller = macro_value(j, n, jinja_none());
    struct jinja_value m = { .kind = JV_MACRO, .u.macro = &with_caller };
    jinja_text(j->out, jinja_call(j, m, &args));
}

static void exec_with(struct jinja *j, const struct jinja_node *n)
{
    struct jinja_scope *outer = j->scope;
    struct jinja_value *v = jinja_alloc(j, (n->n_names + 1) * sizeof *v);
    for (size_t i = 0; i < n->n_names; i++)
        v[i] = eval(j, n->named[i]);
    j->scope = scope_over(j, outer);
    for (size_t i = 0; i < n->n_names; i++)
        jinja_scope_set(j, n->names[i], v[i]);
    exec_list(j, n->list, n->n_list);
    j->scope = outer;
}

static enum flow exec(struct jinja *j, const struct jinja_node *n)
{
    struct jinja_value v;
    j->line = n->line;
    jinja_step(j, 1);
    switch (n->type) {
    case JN_TEXT:
        jinja_buf_str(j->out, n->literal.u.str);
        break;
    case JN_PRINT:
        jinja_text(j->out, eval(j, n->a));
        break;
    case JN_IF:
        if (jinja_truth(eval(j, n->a)))
            return exec_list(j, n->list, n->n_list);
        return exec_list(j, n->other, n->n_other);
    case JN_FOR:
        exec_for_over(j, n, eval(j, n->b), 1);
        break;
    case JN_SET:
        assign(j, n->a, eval(j, n->b));
        break;
    case JN_SET_BLOCK:
        v = captured(j, n->list, n->n_list);
        assign(j, n->a, eval_filter(j, n->b, &v));
        break;
    case JN_MACRO:
        jinja_scope_set(j, n->name, macro_value(j, n, jinja_undefined(NULL)));
        break;
    case JN_CALL_BLOCK:
        exec_call_block(j, n);
        break;
    case JN_FILTER_BLOCK:
        v = captured(j, n->list, n->n_list);
        jinja_text(j->out, eval_filter(j, n->a, &v));
        break;
    case JN_WITH:
        exec_with(j, n);
        break;
    case JN_BREAK:
        return FLOW_BREAK;
    case JN_CONTINUE:
        return FLOW_CONTINUE;
    default: /* JN_BLOCK */
        return exec_list(j, n->list, n->n_list);
    }
    if (j->out->n > JINJA_MAX_OUTPUT)
        jinja_fail(j, "the text passes %d MiB", JINJA_MAX_OUTPUT >> 20);
    return FLOW_ON;
}

static enum flow exec_list(struct jinja *j, struct jinja_node *const *list, size_t n)
{
    jinja_deeper(j);
    enum flow flow = FLOW_ON;
    for (size_t i = 0; i < n && flow == FLOW_ON; i++)
        flow = exec(j, list[i]);
    j->depth--;
    return flow;
}

void jinja_render(struct jinja *j, const struct jinja_node *root)
{
    exec(j, root);
}
