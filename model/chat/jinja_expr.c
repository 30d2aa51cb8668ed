/* jinja_expr.c: tokens to expression trees, by Jinja's grammar and precedence.
 *
 * Owns nothing: nodes live in the template's arena.  One thread per parse.
 * Unknown filters and tests outside branches are refused here, before any
 * request. */
#include <string.h>

#include "model/chat/jinja_parse.h"

void jinja_nodes_add(struct jinja_parser *s, struct jinja_nodes *v, struct jinja_node *node)
{
    if (v->n == v->cap) {
        size_t cap = v->cap == 0 ? 4 : 2 * v->cap;
        struct jinja_node **p = jinja_alloc(s->j, cap * sizeof *p);
        if (v->n > 0)
            memcpy(p, v->p, v->n * sizeof *p);
        v->p = p;
        v->cap = cap;
    }
    v->p[v->n++] = node;
}

struct jinja_node *jinja_node_new(struct jinja_parser *s, enum jinja_node_type type)
{
    struct jinja_node *n = jinja_alloc(s->j, sizeof *n);
    n->type = type;
    n->line = s->t->line;
    return n;
}

static const struct jinja_str *token_str(struct jinja_parser *s, const struct jinja_token *t)
{
    return jinja_string(s->j, t->p, t->n).u.str;
}

bool jinja_is_op(const struct jinja_parser *s, const char *op)
{
    return s->t->type == JT_OP && s->t->n == strlen(op) && memcmp(s->t->p, op, s->t->n) == 0;
}

bool jinja_is_word(const struct jinja_parser *s, const char *word)
{
    return s->t->type == JT_NAME && s->t->n == strlen(word) && memcmp(s->t->p, word, s->t->n) == 0;
}

bool jinja_take_op(struct jinja_parser *s, const char *op)
{
    bool is = jinja_is_op(s, op);
    s->t += is;
    return is;
}

bool jinja_take_word(struct jinja_parser *s, const char *word)
{
    bool is = jinja_is_word(s, word);
    s->t += is;
    return is;
}

_Noreturn void jinja_unexpected(struct jinja_parser *s, const char *expected)
{
    static const char *const name[] = { "text", "{{", "}}", "{%", "%}" };
    s->j->line = s->t->line;
    if (s->t->type == JT_END)
        jinja_fail(s->j, "expected %s, found the end of the template", expected);
    if (s->t->type < JT_NAME)
        jinja_fail(s->j, "expected %s, found %s", expected, name[s->t->type]);
    jinja_fail(s->j, "expected %s, found '%.*s'", expected, (int)(s->t->n < 40 ? s->t->n : 40),
               s->t->p);
}

void jinja_expect_op(struct jinja_parser *s, const char *op)
{
    if (!jinja_take_op(s, op))
        jinja_unexpected(s, op);
}

void jinja_expect_word(struct jinja_parser *s, const char *word)
{
    if (!jinja_take_word(s, word))
        jinja_unexpected(s, word);
}

const struct jinja_str *jinja_expect_name(struct jinja_parser *s)
{
    if (s->t->type != JT_NAME)
        jinja_unexpected(s, "a name");
    return token_str(s, s->t++);
}

static struct jinja_node *parse_or(struct jinja_parser *s);
static struct jinja_node *parse_unary(struct jinja_parser *s, bool with_filter);

static bool is_reserved(const struct jinja_parser *s)
{
    static const char *const word[] = { "and", "or", "not", "in", "is", "if", "else" };
    for (size_t i = 0; i < sizeof word / sizeof word[0]; i++)
        if (jinja_is_word(s, word[i]))
            return true;
    return false;
}

/* "(a, b, k=c)" after its opening parenthesis. */
static void parse_arguments(struct jinja_parser *s, struct jinja_node *call)
{
    struct jinja_nodes positional = { 0 }, named = { 0 };
    const struct jinja_str **names = jinja_alloc(s->j, 64 * sizeof *names);
    while (!jinja_take_op(s, ")")) {
        if (positional.n + named.n > 0) {
            jinja_expect_op(s, ",");
            if (jinja_take_op(s, ")"))
                break;
        }
        bool keyword =
            s->t->type == JT_NAME && s->t[1].type == JT_OP && s->t[1].n == 1 && s->t[1].p[0] == '=';
        if (keyword) {
            if (named.n == 64)
                jinja_fail(s->j, "more than 64 keyword arguments");
            names[named.n] = jinja_expect_name(s);
            s->t++;
            jinja_nodes_add(s, &named, jinja_parse_expression(s));
        } else {
            if (named.n > 0)
                jinja_unexpected(s, "a keyword argument");
            jinja_nodes_add(s, &positional, jinja_parse_expression(s));
        }
    }
    call->list = positional.p;
    call->n_list = positional.n;
    call->names = names;
    call->named = named.p;
    call->n_names = named.n;
}

static struct jinja_node *parse_list_literal(struct jinja_parser *s)
{
    struct jinja_node *n = jinja_node_new(s, JN_LIST);
    struct jinja_nodes items = { 0 };
    s->t++;
    while (!jinja_take_op(s, "]")) {
        if (items.n > 0) {
            jinja_expect_op(s, ",");
            if (jinja_take_op(s, "]"))
                break;
        }
        jinja_nodes_add(s, &items, jinja_parse_expression(s));
    }
    n->list = items.p;
    n->n_list = items.n;
    return n;
}

static struct jinja_node *parse_map_literal(struct jinja_parser *s)
{
    struct jinja_node *n = jinja_node_new(s, JN_MAP);
    struct jinja_nodes items = { 0 };
    s->t++;
    while (!jinja_take_op(s, "}")) {
        if (items.n > 0) {
            jinja_expect_op(s, ",");
            if (jinja_take_op(s, "}"))
                break;
        }
        jinja_nodes_add(s, &items, jinja_parse_expression(s));
        jinja_expect_op(s, ":");
        jinja_nodes_add(s, &items, jinja_parse_expression(s));
    }
    n->list = items.p;
    n->n_list = items.n;
    return n;
}

/* One expression, or a tuple when commas follow; ends before any token that
 * cannot begin an expression. */
struct jinja_node *jinja_parse_tuple(struct jinja_parser *s, bool parenthesised, bool conditions)
{
    struct jinja_node *first = NULL, *n = jinja_node_new(s, JN_TUPLE);
    struct jinja_nodes items = { 0 };
    bool comma = false;
    for (;;) {
        if (jinja_is_op(s, ")") || jinja_is_op(s, "=") || s->t->type == JT_BLOCK_END ||
            s->t->type == JT_PRINT_END || jinja_is_word(s, "in"))
            break;
        first = conditions ? jinja_parse_expression(s) : parse_or(s);
        jinja_nodes_add(s, &items, first);
        if (!jinja_take_op(s, ","))
            break;
        comma = true;
    }
    if (items.n == 0 && !parenthesised)
        jinja_unexpected(s, "an expression");
    if (items.n == 1 && !comma)
        return first;
    n->list = items.p;
    n->n_list = items.n;
    return n;
}

static struct jinja_node *parse_primary(struct jinja_parser *s)
{
    struct jinja_node *n = jinja_node_new(s, JN_LITERAL);
    const struct jinja_token *t = s->t;
    switch (t->type) {
    case JT_INT:
        n->literal = jinja_int(t->integer);
        s->t++;
        return n;
    case JT_FLOAT:
        n->literal = jinja_float(t->real);
        s->t++;
        return n;
    case JT_STRING: {
        struct jinja_buf b;
        jinja_buf_init(&b, s->j);
        for (; s->t->type == JT_STRING; s->t++)
            jinja_buf_add(&b, s->t->p, s->t->n);
        n->literal = jinja_buf_value(&b);
        return n;
    }
    case JT_NAME:
        if (jinja_is_word(s, "true") || jinja_is_word(s, "True") || jinja_is_word(s, "false") ||
            jinja_is_word(s, "False")) {
            n->literal = jinja_bool(t->p[0] == 't' || t->p[0] == 'T');
        } else if (jinja_is_word(s, "none") || jinja_is_word(s, "None")) {
            n->literal = jinja_none();
        } else {
            if (is_reserved(s))
                jinja_unexpected(s, "an expression");
            n->type = JN_NAME;
            n->name = token_str(s, t);
        }
        s->t++;
        return n;
    default:
        break;
    }
    if (jinja_is_op(s, "["))
        return parse_list_literal(s);
    if (jinja_is_op(s, "{"))
        return parse_map_literal(s);
    if (!jinja_take_op(s, "("))
        jinja_unexpected(s, "an expression");
    n = jinja_parse_tuple(s, true, true);
    jinja_expect_op(s, ")");
    return n;
}

/* "[i]" or "[a:b:c]" after the opening bracket. */
static struct jinja_node *parse_subscript(struct jinja_parser *s, struct jinja_node *of)
{
    struct jinja_node *n = jinja_node_new(s, JN_ITEM);
    n->a = of;
    if (!jinja_is_op(s, ":"))
        n->b = jinja_parse_expression(s);
    if (jinja_is_op(s, ":")) {
        n->type = JN_SLICE;
        s->t++;
        if (!jinja_is_op(s, "]") && !jinja_is_op(s, ":"))
            n->c = jinja_parse_expression(s);
        if (jinja_take_op(s, ":") && !jinja_is_op(s, "]"))
            n->d = jinja_parse_expression(s);
    }
    jinja_expect_op(s, "]");
    return n;
}

struct jinja_node *jinja_parse_filter(struct jinja_parser *s, struct jinja_node *of)
{
    struct jinja_node *n = jinja_node_new(s, JN_FILTER);
    n->a = of;
    n->name = jinja_expect_name(s);
    if (s->soft == 0 && jinja_find_filter(n->name) == NULL)
        jinja_fail(s->j, "no filter named '%.*s'", (int)n->name->n, n->name->p);
    if (jinja_take_op(s, "("))
        parse_arguments(s, n);
    return n;
}

/* A test may take one argument without parentheses: "is divisibleby 3". */
static bool begins_bare_argument(const struct jinja_parser *s)
{
    if (s->t->type == JT_STRING || s->t->type == JT_INT || s->t->type == JT_FLOAT)
        return true;
    if (s->t->type == JT_NAME)
        return !is_reserved(s);
    return jinja_is_op(s, "[") || jinja_is_op(s, "{");
}

static struct jinja_node *parse_postfix(struct jinja_parser *s, struct jinja_node *n);

static struct jinja_node *parse_test(struct jinja_parser *s, struct jinja_node *of)
{
    struct jinja_node *n = jinja_node_new(s, JN_TEST);
    n->a = of;
    n->negated = jinja_take_word(s, "not");
    n->name = jinja_expect_name(s);
    if (s->soft == 0 && jinja_find_test(n->name) == NULL)
        jinja_fail(s->j, "no test named '%.*s'", (int)n->name->n, n->name->p);
    if (jinja_take_op(s, "(")) {
        parse_arguments(s, n);
    } else if (begins_bare_argument(s)) {
        struct jinja_nodes one = { 0 };
        jinja_nodes_add(s, &one, parse_postfix(s, parse_primary(s)));
        n->list = one.p;
        n->n_list = 1;
    }
    return n;
}

static struct jinja_node *parse_call(struct jinja_parser *s, struct jinja_node *of)
{
    struct jinja_node *n = jinja_node_new(s, JN_CALL);
    n->a = of;
    parse_arguments(s, n);
    return n;
}

/* .name, [item], (call) */
static struct jinja_node *parse_postfix(struct jinja_parser *s, struct jinja_node *n)
{
    for (;;) {
        if (jinja_take_op(s, ".")) {
            struct jinja_node *a = jinja_node_new(s, JN_ATTR);
            a->a = n;
            if (s->t->type == JT_INT) {
                a->type = JN_ITEM;
                a->b = parse_primary(s);
            } else {
                a->name = jinja_expect_name(s);
            }
            n = a;
        } else if (jinja_take_op(s, "[")) {
            n = parse_subscript(s, n);
        } else if (jinja_take_op(s, "(")) {
            n = parse_call(s, n);
        } else {
            return n;
        }
    }
}

/* |filter, is test, and calls of their results */
static struct jinja_node *parse_filters(struct jinja_parser *s, struct jinja_node *n)
{
    for (;;) {
        if (jinja_take_op(s, "|"))
            n = jinja_parse_filter(s, n);
        else if (jinja_take_word(s, "is"))
            n = parse_test(s, n);
        else if (jinja_take_op(s, "("))
            n = parse_call(s, n);
        else
            return n;
    }
}

static struct jinja_node *parse_unary(struct jinja_parser *s, bool with_filter)
{
    struct jinja_node *n;
    jinja_deeper(s->j);
    if (jinja_is_op(s, "-") || jinja_is_op(s, "+")) {
        n = jinja_node_new(s, jinja_is_op(s, "-") ? JN_NEG : JN_POS);
        s->t++;
        n->a = parse_unary(s, false);
    } else {
        n = parse_primary(s);
    }
    n = parse_postfix(s, n);
    if (with_filter)
        n = parse_filters(s, n);
    s->j->depth--;
    return n;
}

static struct jinja_node *binary(struct jinja_parser *s, enum jinja_op op, struct jinja_node *a,
                                 struct jinja_node *b)
{
    struct jinja_node *n = jinja_node_new(s, JN_BINARY);
    n->op = op;
    n->a = a;
    n->b = b;
    return n;
}

static struct jinja_node *parse_power(struct jinja_parser *s)
{
    struct jinja_node *n = parse_unary(s, true);
    while (jinja_take_op(s, "**"))
        n = binary(s, JO_POW, n, parse_unary(s, true));
    return n;
}

static struct jinja_node *parse_product(struct jinja_parser *s)
{
    struct jinja_node *n = parse_power(s);
    for (;;) {
        if (jinja_take_op(s, "*"))
            n = binary(s, JO_MUL, n, parse_power(s));
        else if (jinja_take_op(s, "/"))
            n = binary(s, JO_DIV, n, parse_power(s));
        else if (jinja_take_op(s, "//"))
            n = binary(s, JO_FLOORDIV, n, parse_power(s));
        else if (jinja_take_op(s, "%"))
            n = binary(s, JO_MOD, n, parse_power(s));
        else
            return n;
    }
}

static struct jinja_node *parse_concat(struct jinja_parser *s)
{
    struct jinja_node *n = parse_product(s);
    while (jinja_take_op(s, "~"))
        n = binary(s, JO_CONCAT, n, parse_product(s));
    return n;
}

static struct jinja_node *parse_sum(struct jinja_parser *s)
{
    struct jinja_node *n = parse_concat(s);
    for (;;) {
        if (jinja_take_op(s, "+"))
            n = binary(s, JO_ADD, n, parse_concat(s));
        else if (jinja_take_op(s, "-"))
            n = binary(s, JO_SUB, n, parse_concat(s));
        else
            return n;
    }
}

static enum jinja_op take_comparison(struct jinja_parser *s)
{
    static const struct {
        const char *text;
        enum jinja_op op;
    } ops[] = { { "==", JO_EQ }, { "!=", JO_NE }, { "<", JO_LT },
                { "<=", JO_LE }, { ">", JO_GT },  { ">=", JO_GE } };
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        if (jinja_take_op(s, ops[i].text))
            return ops[i].op;
    if (jinja_take_word(s, "in"))
        return JO_IN;
    if (jinja_is_word(s, "not") && s->t[1].type == JT_NAME && s->t[1].n == 2 &&
        memcmp(s->t[1].p, "in", 2) == 0) {
        s->t += 2;
        return JO_NOT_IN;
    }
    return JO_NONE;
}

static struct jinja_node *parse_comparison(struct jinja_parser *s)
{
    struct jinja_node *first = parse_sum(s);
    struct jinja_nodes right = { 0 };
    enum jinja_op ops[16], op;
    while ((op = take_comparison(s)) != JO_NONE) {
        if (right.n == 16)
            jinja_fail(s->j, "more than 16 comparisons in a chain");
        ops[right.n] = op;
        jinja_nodes_add(s, &right, parse_sum(s));
    }
    if (right.n == 0)
        return first;
    struct jinja_node *n = jinja_node_new(s, JN_COMPARE);
    n->a = first;
    n->list = right.p;
    n->n_list = right.n;
    n->ops = jinja_alloc(s->j, right.n * sizeof *n->ops);
    memcpy(n->ops, ops, right.n * sizeof *n->ops);
    return n;
}

static struct jinja_node *parse_not(struct jinja_parser *s)
{
    if (!jinja_is_word(s, "not"))
        return parse_comparison(s);
    struct jinja_node *n = jinja_node_new(s, JN_NOT);
    s->t++;
    jinja_deeper(s->j);
    n->a = parse_not(s);
    s->j->depth--;
    return n;
}

static struct jinja_node *parse_and(struct jinja_parser *s)
{
    struct jinja_node *n = parse_not(s);
    while (jinja_take_word(s, "and")) {
        struct jinja_node *both = jinja_node_new(s, JN_AND);
        both->a = n;
        both->b = parse_not(s);
        n = both;
    }
    return n;
}

static struct jinja_node *parse_or(struct jinja_parser *s)
{
    struct jinja_node *n = parse_and(s);
    while (jinja_take_word(s, "or")) {
        struct jinja_node *either = jinja_node_new(s, JN_OR);
        either->a = n;
        either->b = parse_and(s);
        n = either;
    }
    return n;
}

struct jinja_node *jinja_parse_expression(struct jinja_parser *s)
{
    jinja_deeper(s->j);
    struct jinja_node *n = parse_or(s);
    while (jinja_is_word(s, "if")) {
        struct jinja_node *c = jinja_node_new(s, JN_COND);
        s->t++;
        c->a = n;
        c->b = parse_or(s);
        s->soft++;
        if (jinja_take_word(s, "else"))
            c->c = jinja_parse_expression(s);
        s->soft--;
        n = c;
    }
    s->j->depth--;
    return n;
}
