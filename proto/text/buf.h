/* buf.h: the growable byte buffer that everything is written into: replies,
 * JSON, metrics, rendered text.
 *
 * Owns its bytes.  A buffer belongs to one thread at a time. */
#ifndef PROTO_TEXT_BUF_H
#define PROTO_TEXT_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "proto/err.h"

/* Zero-initialise; failure is sticky: after one allocation
 * failed (or the cap was passed) every call is a no-op, so callers check once
 * at the end.  bytes [0, n); not NUL-terminated. */
struct buf {
    char *p; /* owned */
    size_t n, cap;
    size_t max; /* 0: no cap */
    bool failed;
};
void buf_fini(struct buf *o);
/* Empty it and clear a failure; keeps the memory. */
static inline void buf_reset(struct buf *o)
{
    o->n = 0;
    o->failed = false;
}
/* ERR_OK or, after a failure, ERR_NOMEM. */
MUST_USE enum err_code buf_check(const struct buf *o, struct err *e);
/* Room for n more bytes; false (and failed) when there is none. */
bool buf_grow(struct buf *o, size_t n);

/* Bytes as they are. */
static inline void buf_put(struct buf *o, const char *s, size_t n)
{
    if (o->cap - o->n < n && !buf_grow(o, n))
        return;
    if (n > 0 && !o->failed) {
        memcpy(o->p + o->n, s, n);
        o->n += n;
    }
}
/* A string literal, as it is. */
#define BUF_LIT(o, literal) buf_put((o), "" literal, sizeof(literal) - 1)

#endif
