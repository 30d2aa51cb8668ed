/* prompt.h: from a request's body to the token ids of its prompts.
 *
 * Runs on the pool: reads only what of struct srv is const after loading. */
#ifndef SERVER_GENERATE_PROMPT_H
#define SERVER_GENERATE_PROMPT_H

#include "server/server.h"

struct prompt {
    struct token_list ids;
    char *text; /* what echo repeats; NULL unless asked; owned */
    size_t n_text;
};

struct prompt_set {
    struct oai_request req;
    bool have_req;
    struct prompt *prompt; /* [n] */
    uint32_t n;
};

/* Parse, check the model's name, render, tokenise, check lengths.  On error
 * *out needs no fini. */
MUST_USE enum err_code prompt_set_read(struct prompt_set *out, const struct srv *srv,
                                       enum oai_kind kind, const char *body, size_t n,
                                       struct err *e);
void prompt_set_fini(struct prompt_set *s);

/* The chat of a request as text; for /apply-template and the above. */
MUST_USE enum err_code prompt_render(struct chat_rendered *out, const struct srv *srv,
                                     const struct oai_request *r, struct err *e);

/* Whether name is absent or one of those served; else ERR_NOT_FOUND. */
MUST_USE enum err_code prompt_check_model(const struct srv *srv, const struct oai_text *name,
                                          struct err *e);

#endif
