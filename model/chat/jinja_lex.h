/* jinja_lex.h: template text to tokens; private to the template interpreter. */
#ifndef MODEL_CHAT_JINJA_LEX_H
#define MODEL_CHAT_JINJA_LEX_H

#include "model/chat/jinja.h"

enum jinja_token_type {
    JT_TEXT, /* literal output, white space already controlled */
    JT_PRINT_BEGIN,
    JT_PRINT_END,
    JT_BLOCK_BEGIN,
    JT_BLOCK_END,
    JT_NAME,
    JT_STRING,
    JT_INT,
    JT_FLOAT,
    JT_OP, /* p[0..n): the operator's characters */
    JT_END
};

struct jinja_token {
    enum jinja_token_type type;
    int line;
    const char *p; /* TEXT, NAME, OP: bytes of the template; STRING: unescaped */
    size_t n;
    int64_t integer;
    double real;
};

/* All tokens, JT_END last; trim_blocks and lstrip_blocks are on, as the
 * reference renders chat templates. */
struct jinja_token *jinja_lex(struct jinja *j, const char *text, size_t n);

#endif
