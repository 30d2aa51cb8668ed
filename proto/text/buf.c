/* buf.c: see buf.h. */
#include "proto/text/buf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { FIRST_BYTES = 256 };

void buf_fini(struct buf *o)
{
    free(o->p);
    *o = (struct buf){ .max = o->max };
}

enum err_code buf_check(const struct buf *o, struct err *e)
{
    return o->failed ? err_nomem(e, "text", o->n) : ERR_OK;
}

/* Room for n more bytes; false, and nothing has changed, when there is none. */
static bool has_room(struct buf *o, size_t n)
{
    if (o->cap - o->n >= n)
        return true;
    size_t need = o->n + n;
    if (need < n || (o->max != 0 && need > o->max))
        return false;
    size_t cap = o->cap > SIZE_MAX / 2 ? SIZE_MAX : 2 * o->cap;
    if (cap < FIRST_BYTES)
        cap = FIRST_BYTES;
    if (o->max != 0 && cap > o->max)
        cap = o->max;
    if (cap < need)
        cap = need;
    char *p = realloc(o->p, cap);
    if (p == NULL)
        return false;
    o->p = p;
    o->cap = cap;
    return true;
}

bool buf_grow(struct buf *o, size_t n)
{
    if (!o->failed && !has_room(o, n))
        o->failed = true;
    return !o->failed;
}

void buf_printf(struct buf *o, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        o->failed = true;
    else if (buf_grow(o, (size_t)n + 1)) { /* vsnprintf wants room for its NUL */
        vsnprintf(o->p + o->n, (size_t)n + 1, fmt, again);
        o->n += (size_t)n;
    }
    va_end(again);
}

enum err_code buf_reserve(struct buf *o, size_t n, struct err *e)
{
    if (n < SIZE_MAX && has_room(o, n + 1))
        return ERR_OK;
    return err_nomem(e, "text", n);
}

enum err_code buf_add(struct buf *o, const char *s, size_t n, struct err *e)
{
    enum err_code rc = buf_reserve(o, n, e);
    if (rc == ERR_OK && n > 0) {
        memcpy(o->p + o->n, s, n);
        o->n += n;
    }
    return rc;
}

char *buf_take(struct buf *o, size_t *n)
{
    char *p = buf_grow(o, 1) ? o->p : NULL;
    *n = 0;
    if (p == NULL) {
        buf_fini(o);
        return NULL;
    }
    p[o->n] = '\0';
    *n = o->n;
    *o = (struct buf){ .max = o->max };
    return p;
}
