/* prompt.h: from a request's body to the token ids of its prompts.
 *
 * Pure functions of what is served: any thread. */
#ifndef SERVER_GENERATE_PROMPT_H
#define SERVER_GENERATE_PROMPT_H

#include "server/jobs/jobs.h"
#include "server/served/served.h"

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

/* Parse, check the model's name, render, tokenise, check lengths.  Between two
 * prompts it looks whether the job that it runs in (or NULL) should stop:
 * ERR_CONFLICT.  On error *out needs no fini. */
MUST_USE enum err_code prompt_set_read(struct prompt_set *out, const struct served *served,
                                       enum oai_kind kind, const char *body, size_t n,
                                       const struct job *job, struct err *e);
void prompt_set_fini(struct prompt_set *s);

/* The chat of a request as text; for /apply-template and the above. */
MUST_USE enum err_code prompt_render(struct chat_rendered *out, const struct served *served,
                                     const struct oai_request *r, struct err *e);

/* The key domain of a request's prefixes; 0: it has no salt of its own. */
uint64_t prompt_salt(const struct served *served, const struct oai_text *cache_salt);

/* Whether name is absent or one of those served; else ERR_NOT_FOUND. */
MUST_USE enum err_code prompt_check_model(const struct served *served, const struct oai_text *name,
                                          struct err *e);

#endif
