/* served.c: the table from token ids to bytes.  The loading thread; reading: any. */
#include "server/served/served.h"

#include <stdlib.h>

enum { MAX_TOKEN_BYTES = 1024 };

enum err_code token_table_init(struct token_table *t, const struct tokenizer *tok, struct err *e)
{
    int32_t n = tokenizer_n_ids(tok);
    char text[MAX_TOKEN_BYTES];
    enum err_code rc = ERR_OK;

    *t = (struct token_table){ .n = (uint32_t)n, .at = malloc(((size_t)n + 1) * sizeof *t->at) };
    if (t->at == NULL)
        rc = err_nomem(e, "token table", ((size_t)n + 1) * sizeof *t->at);
    for (int32_t i = 0; rc == ERR_OK && i <= n; i++) {
        t->at[i] = (uint32_t)t->bytes.n;
        if (i < n)
            rc = buf_add(&t->bytes, text, tokenizer_token_bytes(tok, i, text, sizeof text), e);
    }
    if (rc != ERR_OK)
        token_table_fini(t);
    return rc;
}

void token_table_fini(struct token_table *t)
{
    free(t->at);
    buf_fini(&t->bytes);
    *t = (struct token_table){ 0 };
}

struct oai_text token_table_get(const struct token_table *t, int32_t id)
{
    if (id < 0 || (uint32_t)id >= t->n)
        return (struct oai_text){ "", 0 };
    return (struct oai_text){ t->bytes.p + t->at[id], t->at[id + 1] - t->at[id] };
}
