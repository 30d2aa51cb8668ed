/* served.h: what is served: model, tokenizer, chat template, names and limits.
 *
 * Filled while loading, const afterwards: any thread.  Owns its tables; what else
 * it points at is borrowed from whoever loaded it. */
#ifndef SERVER_SERVED_SERVED_H
#define SERVER_SERVED_SERVED_H

#include <stdbool.h>
#include <stdint.h>

#include "model/chat/template.h"
#include "model/model.h"
#include "model/tokenizer/tokenizer.h"
#include "proto/openai/request.h"
#include "proto/text/buf.h"

/* The bytes each token id stands for, for logprobs. */
struct token_table {
    uint32_t n;
    uint32_t *at; /* [n+1] offsets into bytes; owned */
    struct buf bytes;
};
MUST_USE enum err_code token_table_init(struct token_table *t, const struct tokenizer *tok,
                                        struct err *e);
void token_table_fini(struct token_table *t);
/* The bytes of an id; none for an id that is not in the table. */
struct oai_text token_table_get(const struct token_table *t, int32_t id);

struct served {
    const char *const *name; /* [n_names] of the model; replies carry the first */
    uint32_t n_names;
    const char *root; /* directory that it was loaded from */
    int64_t created;  /* Unix seconds */
    const struct model_info *model;
    const struct tokenizer *tokenizer;
    const struct chat_template *chat; /* NULL: the model has none */
    struct token_table tokens;
    struct oai_defaults defaults;
    uint32_t max_model_len;

    uint64_t salt_key;        /* of this process: hashes of salts cannot be guessed */
    uint64_t seed_key;        /* seeds of requests that bring none derive from it */
    uint32_t stream_interval; /* tokens gathered before a stream sends them */
    bool force_include_usage, log_requests;
};

#endif
