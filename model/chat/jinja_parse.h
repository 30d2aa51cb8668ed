/* jinja_parse.h: what the parser of expressions and the parser of statements
 * share; private to the template interpreter. */
#ifndef MODEL_CHAT_JINJA_PARSE_H
#define MODEL_CHAT_JINJA_PARSE_H

#include "model/chat/jinja_lex.h"

struct jinja_parser {
    struct jinja *j;
    const struct jinja_token *t; /* the next token */
    int loops;                   /* nesting, for break and continue */
    int soft;                    /* nesting of branches: there an unknown filter or test is an error
                                  * only when it is reached, as the reference has it */
};

/* A growing list of nodes. */
struct jinja_nodes {
    struct jinja_node **p;
    size_t n, cap;
};

void jinja_nodes_add(struct jinja_parser *s, struct jinja_nodes *v, struct jinja_node *node);
struct jinja_node *jinja_node_new(struct jinja_parser *s, enum jinja_node_type type);

/* Whether the next token is this operator or word; take: and step over it. */
bool jinja_is_op(const struct jinja_parser *s, const char *op);
bool jinja_is_word(const struct jinja_parser *s, const char *word);
bool jinja_take_op(struct jinja_parser *s, const char *op);
bool jinja_take_word(struct jinja_parser *s, const char *word);
/* Step over it, or fail naming what was found. */
void jinja_expect_op(struct jinja_parser *s, const char *op);
void jinja_expect_word(struct jinja_parser *s, const char *word);
const struct jinja_str *jinja_expect_name(struct jinja_parser *s);
_Noreturn void jinja_unexpected(struct jinja_parser *s, const char *expected);

struct jinja_node *jinja_parse_expression(struct jinja_parser *s);
/* One expression, or a tuple when commas follow; without conditions, "a if b"
 * ends before the if. */
struct jinja_node *jinja_parse_tuple(struct jinja_parser *s, bool parenthesised, bool conditions);
/* After "|": one filter applied to `of`. */
struct jinja_node *jinja_parse_filter(struct jinja_parser *s, struct jinja_node *of);

#endif
