/* jinja_parse.c: tokens to the tree of a template: its statements.
 *
 * Owns nothing: nodes live in the template's arena.  One thread per parse.
 * Unknown tags are refused here, before any request. */
#include <string.h>

#include "model/chat/jinja_parse.h"

static void expect_block_end(struct jinja_parser *s)
{
    if (s->t->type != JT_BLOCK_END)
        jinja_unexpected(s, "%}");
    s->t++;
}

static void parse_body(struct jinja_parser *s, struct jinja_node ***list, size_t *n,
                       const char *const *ends);

static const char *const end_of_if[] = { "elif", "else", "endif", NULL };
static const char *const end_of_else[] = { "endif", NULL };

/* After "if" or "elif". */
static struct jinja_node *parse_if(struct jinja_parser *s)
{
    struct jinja_node *n = jinja_node_new(s, JN_IF);
    jinja_deeper(s->j);
    n->a = jinja_parse_tuple(s, false, true);
    expect_block_end(s);
    s->soft++;
    parse_body(s, &n->list, &n->n_list, end_of_if);
    if (jinja_take_word(s, "elif")) {
        struct jinja_nodes one = { 0 };
        jinja_nodes_add(s, &one, parse_if(s));
        n->other = one.p;
        n->n_other = 1;
        s->soft--;
        s->j->depth--;
        return n;
    }
    if (jinja_take_word(s, "else")) {
        expect_block_end(s);
        parse_body(s, &n->other, &n->n_other, end_of_else);
    }
    jinja_expect_word(s, "endif");
    expect_block_end(s);
    s->soft--;
    s->j->depth--;
    return n;
}

/* A name, a tuple of names, or namespace.attribute. */
static struct jinja_node *parse_target(struct jinja_parser *s, bool attribute)
{
    struct jinja_node *n = jinja_node_new(s, JN_NAME);
    struct jinja_nodes items = { 0 };
    bool parenthesised = jinja_take_op(s, "("), comma = false;
    do {
        if (items.n > 0 && s->t->type != JT_NAME)
            break;
        struct jinja_node *one = jinja_node_new(s, JN_NAME);
        one->name = jinja_expect_name(s);
        if (attribute && items.n == 0 && jinja_take_op(s, ".")) {
            n->type = JN_ATTR;
            n->a = one;
            n->name = jinja_expect_name(s);
            return n;
        }
        jinja_nodes_add(s, &items, one);
    } while (jinja_take_op(s, ",") && (comma = true));
    if (parenthesised)
        jinja_expect_op(s, ")");
    if (items.n == 1 && !comma)
        return items.p[0];
    n->type = JN_TUPLE;
    n->list = items.p;
    n->n_list = items.n;
    return n;
}

static struct jinja_node *parse_for(struct jinja_parser *s)
{
    static const char *const end_of_for[] = { "else", "endfor", NULL };
    static const char *const end_of_for_else[] = { "endfor", NULL };
    struct jinja_node *n = jinja_node_new(s, JN_FOR);
    n->a = parse_target(s, false);
    jinja_expect_word(s, "in");
    n->b = jinja_parse_tuple(s, false, false);
    if (jinja_take_word(s, "if"))
        n->c = jinja_parse_expression(s);
    n->op = jinja_take_word(s, "recursive") ? JO_ADD : JO_NONE;
    expect_block_end(s);
    s->loops++;
    parse_body(s, &n->list, &n->n_list, end_of_for);
    s->loops--;
    if (jinja_take_word(s, "else")) {
        expect_block_end(s);
        parse_body(s, &n->other, &n->n_other, end_of_for_else);
    }
    jinja_expect_word(s, "endfor");
    expect_block_end(s);
    return n;
}

static struct jinja_node *parse_filter_chain(struct jinja_parser *s)
{
    struct jinja_node *n = jinja_node_new(s, JN_LITERAL);
    n->literal = jinja_undefined(NULL);
    while (jinja_take_op(s, "|"))
        n = jinja_parse_filter(s, n);
    return n;
}

static struct jinja_node *parse_set(struct jinja_parser *s)
{
    static const char *const end[] = { "endset", NULL };
    struct jinja_node *n = jinja_node_new(s, JN_SET);
    n->a = parse_target(s, true);
    if (jinja_take_op(s, "=")) {
        n->b = jinja_parse_tuple(s, false, true);
        expect_block_end(s);
        return n;
    }
    n->type = JN_SET_BLOCK;
    n->b = parse_filter_chain(s);
    expect_block_end(s);
    parse_body(s, &n->list, &n->n_list, end);
    s->t++;
    expect_block_end(s);
    return n;
}

/* "(a, b=1)": parameter names and defaults into n. */
static void parse_parameters(struct jinja_parser *s, struct jinja_node *n)
{
    enum { MOST = 64 };
    n->names = jinja_alloc(s->j, MOST * sizeof *n->names);
    n->named = jinja_alloc(s->j, MOST * sizeof *n->named);
    jinja_expect_op(s, "(");
    while (!jinja_take_op(s, ")")) {
        if (n->n_names > 0)
            jinja_expect_op(s, ",");
        if (n->n_names == MOST)
            jinja_fail(s->j, "more than %d parameters", MOST);
        n->names[n->n_names] = jinja_expect_name(s);
        if (jinja_take_op(s, "="))
            n->named[n->n_names] = jinja_parse_expression(s);
        n->n_names++;
    }
}

static struct jinja_node *parse_macro(struct jinja_parser *s)
{
    static const char *const end[] = { "endmacro", NULL };
    struct jinja_node *n = jinja_node_new(s, JN_MACRO);
    n->name = jinja_expect_name(s);
    parse_parameters(s, n);
    expect_block_end(s);
    int loops = s->loops;
    s->loops = 0;
    parse_body(s, &n->list, &n->n_list, end);
    s->loops = loops;
    s->t++;
    if (s->t->type == JT_NAME)
        s->t++;
    expect_block_end(s);
    return n;
}

static struct jinja_node *parse_call_block(struct jinja_parser *s)
{
    static const char *const end[] = { "endcall", NULL };
    struct jinja_node *n = jinja_node_new(s, JN_CALL_BLOCK);
    if (jinja_is_op(s, "("))
        parse_parameters(s, n);
    n->a = jinja_parse_expression(s);
    if (n->a->type != JN_CALL)
        jinja_fail(s->j, "a call block needs a call");
    expect_block_end(s);
    parse_body(s, &n->list, &n->n_list, end);
    s->t++;
    expect_block_end(s);
    return n;
}

static struct jinja_node *parse_filter_block(struct jinja_parser *s)
{
    static const char *const end[] = { "endfilter", NULL };
    struct jinja_node *n = jinja_node_new(s, JN_FILTER_BLOCK);
    struct jinja_node *chain = jinja_node_new(s, JN_LITERAL);
    chain->literal = jinja_undefined(NULL);
    do {
        chain = jinja_parse_filter(s, chain);
    } while (jinja_take_op(s, "|"));
    n->a = chain;
    expect_block_end(s);
    parse_body(s, &n->list, &n->n_list, end);
    s->t++;
    expect_block_end(s);
    return n;
}

static struct jinja_node *parse_with(struct jinja_parser *s)
{
    static const char *const end[] = { "endwith", NULL };
    enum { MOST = 64 };
    struct jinja_node *n = jinja_node_new(s, JN_WITH);
    n->names = jinja_alloc(s->j, MOST * sizeof *n->names);
    n->named = jinja_alloc(s->j, MOST * sizeof *n->named);
    while (s->t->type != JT_BLOCK_END) {
        if (n->n_names > 0)
            jinja_expect_op(s, ",");
        if (n->n_names == MOST)
            jinja_fail(s->j, "more than %d variables", MOST);
        n->names[n->n_names] = jinja_expect_name(s);
        jinja_expect_op(s, "=");
        n->named[n->n_names++] = jinja_parse_expression(s);
    }
    expect_block_end(s);
    parse_body(s, &n->list, &n->n_list, end);
    s->t++;
    expect_block_end(s);
    return n;
}

/* The reference's marker of assistant text: no effect on the text. */
static struct jinja_node *parse_generation(struct jinja_parser *s)
{
    static const char *const end[] = { "endgeneration", NULL };
    struct jinja_node *n = jinja_node_new(s, JN_BLOCK);
    expect_block_end(s);
    parse_body(s, &n->list, &n->n_list, end);
    s->t++;
    expect_block_end(s);
    return n;
}

static struct jinja_node *parse_leave(struct jinja_parser *s, enum jinja_node_type type)
{
    struct jinja_node *n = jinja_node_new(s, type);
    if (s->loops == 0)
        jinja_fail(s->j, "break or continue outside a loop");
    expect_block_end(s);
    return n;
}

static struct jinja_node *parse_break(struct jinja_parser *s)
{
    return parse_leave(s, JN_BREAK);
}

static struct jinja_node *parse_continue(struct jinja_parser *s)
{
    return parse_leave(s, JN_CONTINUE);
}

static const struct {
    const char *word;
    struct jinja_node *(*parse)(struct jinja_parser *);
} statements[] = {
    { "if", parse_if },           { "for", parse_for },
    { "set", parse_set },         { "macro", parse_macro },
    { "call", parse_call_block }, { "filter", parse_filter_block },
    { "with", parse_with },       { "generation", parse_generation },
    { "break", parse_break },     { "continue", parse_continue },
};

static struct jinja_node *parse_statement(struct jinja_parser *s)
{
    for (size_t i = 0; i < sizeof statements / sizeof statements[0]; i++)
        if (jinja_take_word(s, statements[i].word))
            return statements[i].parse(s);
    jinja_unexpected(s, "a known tag");
}

/* Nodes up to a block that begins with one of `ends` (whose word is then the
 * next token); ends NULL: up to the template's end. */
static void parse_body(struct jinja_parser *s, struct jinja_node ***list, size_t *n,
                       const char *const *ends)
{
    struct jinja_nodes body = { 0 };
    jinja_deeper(s->j);
    for (;;) {
        const struct jinja_token *t = s->t;
        s->j->line = t->line;
        if (t->type == JT_END) {
            if (ends != NULL)
                jinja_unexpected(s, ends[0]);
            break;
        }
        if (t->type == JT_TEXT) {
            struct jinja_node *text = jinja_node_new(s, JN_TEXT);
            text->literal = jinja_string(s->j, t->p, t->n);
            s->t++;
            jinja_nodes_add(s, &body, text);
        } else if (t->type == JT_PRINT_BEGIN) {
            s->t++;
            struct jinja_node *print = jinja_node_new(s, JN_PRINT);
            print->a = jinja_parse_tuple(s, false, true);
            if (s->t->type != JT_PRINT_END)
                jinja_unexpected(s, "}}");
            s->t++;
            jinja_nodes_add(s, &body, print);
        } else {
            s->t++;
            for (const char *const *e = ends; e != NULL && *e != NULL; e++)
                if (jinja_is_word(s, *e))
                    goto ended;
            jinja_nodes_add(s, &body, parse_statement(s));
        }
    }
ended:
    s->j->depth--;
    *list = body.p;
    *n = body.n;
}

struct jinja_node *jinja_parse(struct jinja *j, const char *text, size_t n)
{
    struct jinja_parser s = { .j = j, .t = jinja_lex(j, text, n) };
    struct jinja_node *root = jinja_node_new(&s, JN_BLOCK);
    parse_body(&s, &root->list, &root->n_list, NULL);
    return root;
}
