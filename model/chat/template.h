/* template.h: chat messages to prompt text, by the model's Jinja template.
 *
 * A parsed template is immutable; renders may run on any thread at once.
 * Bounded in steps, depth and output; a render that passes a bound, calls
 * raise_exception or uses an unknown feature is ERR_INVALID with the template's
 * line and the reason. */
#ifndef MODEL_CHAT_TEMPLATE_H
#define MODEL_CHAT_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <time.h>

#include "model/tokenizer/tokenizer.h"
#include "proto/err.h"

struct json;
struct chat_template;

/* text is copied.  name appears in messages ("chat template"). */
MUST_USE enum err_code chat_template_parse(struct chat_template **out, const char *name,
                                           const char *text, struct err *e);
void chat_template_free(struct chat_template *t);

struct chat_input {
    /* Borrowed for the render; strings without U+0000. */
    const struct json *messages;       /* array of objects; tool-call arguments objects */
    const struct json *tools;          /* array, or NULL: none                    */
    const struct json *documents;      /* array, or NULL: none                    */
    const struct json *kwargs;         /* object of further variables, or NULL    */
    const char *bos_token, *eos_token; /* "" when absent                      */
    bool add_generation_prompt;
    time_t now; /* strftime_now and date helpers, local    */
};

struct chat_rendered {
    char *text; /* NUL-terminated, n bytes */
    size_t n;
    struct text_span *user; /* spans that came from message content: control
                             * tokens must not be recognised inside           */
    size_t n_user;
};
void chat_rendered_fini(struct chat_rendered *r);

MUST_USE enum err_code chat_template_render(const struct chat_template *t,
                                            const struct chat_input *in, struct chat_rendered *out,
                                            struct err *e);

#endif
