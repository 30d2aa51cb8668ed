/* buf.c: see buf.h. */
#include "proto/text/buf.h"

#include <stdint.h>
#include <stdlib.h>

void buf_fini(struct buf *o)
{
    free(o->p);
    *o = (struct buf){ .max = o->max };
}

enum err_code buf_check(const struct buf *o, struct err *e)
{
    return o->failed ? err_nomem(e, "reply", o->n) : ERR_OK;
}

bool buf_grow(struct buf *o, size_t n)
{
    if (o->failed)
        return false;
    if (o->cap - o->n >= n)
        return true;
    size_t need = o->n + n, cap = o->cap == 0 ? 256 : o->cap;
    if (need < n || (o->max != 0 && need > o->max)) {
        o->failed = true;
        return false;
    }
    while (cap < need)
        cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    if (o->max != 0 && cap > o->max)
        cap = o->max;
    char *p = realloc(o->p, cap);
    if (p == NULL) {
        o->failed = true;
        return false;
    }
    o->p = p;
    o->cap = cap;
    return true;
}
