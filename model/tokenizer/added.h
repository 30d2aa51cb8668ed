/* added.h: the search for added tokens in one text.  Private to
 * model/; any thread, each with its own search. */
#ifndef MODEL_TOKENIZER_ADDED_H
#define MODEL_TOKENIZER_ADDED_H

#include "model/tokenizer/internal.h"

enum tk_control { TK_CONTROL_NONE, TK_CONTROL_OUTSIDE, TK_CONTROL_ALL };

struct tk_search {
    const struct tokenizer *t;
    const struct tk_trie *trie;
    enum tk_control control;      /* which control tokens are recognised */
    const struct text_span *span; /* for OUTSIDE: ascending, in the whole input */
    size_t n_spans;
    size_t offset;   /* of the searched text in the whole input */
    size_t at, done; /* search goes on at; text up to done is dealt with */
};

struct tk_found {
    size_t gap_from, gap_to; /* text before the token (or the rest) */
    int32_t id;              /* -1: no further token */
};

/* Step to the next token; false, with the rest as gap, when there is none. */
bool tk_search_next(struct tk_search *q, const char *s, size_t n, struct tk_found *f);

#endif
