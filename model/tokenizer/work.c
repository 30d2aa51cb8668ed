/* work.c: the growing arrays of one encode call: ids, pieces, scratch.
 *
 * Owns nothing beyond what it is given.  Any thread, each its own work. */
#include <stdlib.h>

#include "model/tokenizer/internal.h"

void token_list_fini(struct token_list *l)
{
    free(l->id);
    *l = (struct token_list){ 0 };
}

enum err_code token_list_add(struct token_list *l, int32_t id, struct err *e)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 64;
        int32_t *p = realloc(l->id, cap * sizeof(*p));
        if (p == NULL)
            return err_nomem(e, "token ids", cap * sizeof(*p));
        l->id = p;
        l->cap = cap;
    }
    l->id[l->n++] = id;
    return ERR_OK;
}

enum err_code tk_emit(struct tk_work *w, int32_t id)
{
    if (w->out->n >= w->max)
        return err_set(w->e, ERR_LIMIT, "text: more than %zu tokens", w->max);
    return token_list_add(w->out, id, w->e);
}

enum err_code tk_work_mem(struct tk_work *w, size_t n)
{
    if (n <= w->mem_n)
        return ERR_OK;
    free(w->mem); /* scratch: nothing to keep */
    w->mem_n = 0;
    w->mem = malloc(n);
    if (w->mem == NULL)
        return err_nomem(w->e, "tokenizer scratch", n);
    w->mem_n = n;
    return ERR_OK;
}

enum err_code tk_pieces_add(struct tk_pieces *l, size_t at, size_t n, bool origin, struct err *e)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 64;
        struct tk_piece *p = realloc(l->p, cap * sizeof(*p));
        if (p == NULL)
            return err_nomem(e, "pieces", cap * sizeof(*p));
        l->p = p;
        l->cap = cap;
    }
    l->p[l->n++] = (struct tk_piece){ .at = (uint32_t)at, .n = (uint32_t)n, .origin = origin };
    return ERR_OK;
}
