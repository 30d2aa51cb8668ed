/* buf.h: the growable byte buffer that everything is written into: replies,
 * JSON, metrics, normalised and rendered text, files read whole.
 *
 * Owns its bytes.  A buffer belongs to one thread at a time.
 *
 * Two styles.  Writers of many small things call buf_put, whose failure is
 * sticky: after one allocation failed (or the ceiling was passed) every put is
 * a no-op, and buf_check at the end tells.  Where each step can fail anyhow,
 * buf_reserve and buf_add return the error at once and change nothing. */
#ifndef PROTO_TEXT_BUF_H
#define PROTO_TEXT_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "proto/err.h"

/* Zero-initialise; bytes [0, n), not NUL-terminated. */
struct buf {
    char *p; /* owned; NULL while nothing was put */
    size_t n, cap;
    size_t max;  /* ceiling of n; 0: none */
    bool failed; /* a put was dropped */
};
void buf_fini(struct buf *o);
/* Empty it and clear a failure; keeps the memory. */
static inline void buf_reset(struct buf *o)
{
    o->n = 0;
    o->failed = false;
}
/* ERR_OK or, after a failed put, ERR_NOMEM. */
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
/* Formatted text; all of it or, on a failure, none. */
void buf_printf(struct buf *o, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Room for n more bytes and a NUL, so that p is not NULL; else ERR_NOMEM. */
MUST_USE enum err_code buf_reserve(struct buf *o, size_t n, struct err *e);
/* Append s[0..n); on ERR_NOMEM nothing has changed. */
MUST_USE enum err_code buf_add(struct buf *o, const char *s, size_t n, struct err *e);

/* The bytes with a NUL behind them (not counted), taken by the caller: free().
 * NULL when the buffer has failed or the NUL does not fit.  o is empty after. */
char *buf_take(struct buf *o, size_t *n);

/* The whole regular file at path, appended; a NUL follows, not counted.
 * ERR_NOT_FOUND when there is none, ERR_LIMIT beyond max_bytes, ERR_IO. */
MUST_USE enum err_code buf_read_file(struct buf *o, const char *path, size_t max_bytes,
                                     struct err *e);

#endif
