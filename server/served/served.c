/* served.c: the table from token ids to bytes.  The loading thread; reading: any. */
#include "server/served/served.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_TOKEN_BYTES = 1024 };

enum err_code token_table_init(struct token_table *t, const struct tokenizer *tok, struct err *e)
{
    int32_t n = tokenizer_n_ids(tok);
    size_t used = 0, cap = 1 << 16;
    char buf[MAX_TOKEN_BYTES];

    *t =
        (struct token_table){ .at = malloc(((size_t)n + 1) * sizeof *t->at), .bytes = malloc(cap) };
    if (t->at == NULL || t->bytes == NULL) {
        token_table_fini(t);
        return err_nomem(e, "token table", (size_t)n * sizeof *t->at);
    }
    for (int32_t i = 0; i < n; i++) {
        size_t len = tokenizer_token_bytes(tok, i, buf, sizeof buf);
        while (used + len > cap) {
            char *p = realloc(t->bytes, cap *= 2);
            if (p == NULL) {
                token_table_fini(t);
                return err_nomem(e, "token table", cap);
            }
            t->bytes = p;
        }
        t->at[i] = (uint32_t)used;
        memcpy(t->bytes + used, buf, len);
        used += len;
    }
    t->at[n] = (uint32_t)used;
    t->n = (uint32_t)n;
    return ERR_OK;
}

void token_table_fini(struct token_table *t)
{
    free(t->at);
    free(t->bytes);
    *t = (struct token_table){ 0 };
}

struct oai_text token_table_get(const struct token_table *t, int32_t id)
{
    if (id < 0 || (uint32_t)id >= t->n)
        return (struct oai_text){ "", 0 };
    return (struct oai_text){ t->bytes + t->at[id], t->at[id + 1] - t->at[id] };
}
