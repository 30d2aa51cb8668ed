/* err.h: errors as values.
 *
 * Every fallible function of the project returns an enum err_code, ERR_OK (0)
 * on success, and takes a struct err * as its last argument, which it fills
 * exactly when it returns anything else.  A caller may pass NULL when only the
 * code matters.  A function that fails has changed nothing unless it says so.
 * Any thread; a struct err is the caller's storage and holds no pointer. */
#ifndef PROTO_ERR_H
#define PROTO_ERR_H

#if defined(__GNUC__)
#define MUST_USE               __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define MUST_USE
#define PRINTF_LIKE(fmt, args)
#endif

/* Four kinds.  Refusal: not now, normal (BUSY).  Rejection: the client's
 * doing (INVALID .. TOO_LARGE).  Fault: ours or the machine's (IO .. INTERNAL).
 * Bugs are assertions, never codes. */
enum err_code {
    ERR_OK = 0,
    ERR_BUSY,      /* no room now; nothing changed; try later       HTTP 429 */
    ERR_DRAINING,  /* shutting down or loading                      HTTP 503 */
    ERR_INVALID,   /* malformed or out-of-range input               HTTP 400 */
    ERR_LIMIT,     /* well-formed but can never be served here      HTTP 400 */
    ERR_NOT_FOUND, /* no such model, request or path                HTTP 404 */
    ERR_CONFLICT,  /* state forbids it now                          HTTP 409 */
    ERR_TOO_LARGE, /* body over the configured cap                  HTTP 413 */
    ERR_IO,        /* file or socket                                HTTP 500 */
    ERR_GPU,       /* device runtime                                HTTP 500 */
    ERR_NOMEM,     /* allocation failed                             HTTP 500 */
    ERR_INTERNAL,  /* a result or state of ours cannot be used      HTTP 500 */
    ERR_CODES
};

enum { ERR_PARAM_BYTES = 64, ERR_MESSAGE_BYTES = 512 };

struct err {
    enum err_code code;
    char param[ERR_PARAM_BYTES];     /* request field at fault, "" if none   */
    char message[ERR_MESSAGE_BYTES]; /* names the field, found and expected;
                                      * valid UTF-8, no newline              */
};

/* Fill *e (when not NULL) and return code, so `return err_set(...)` works.
 * Bytes of the formatted text that are not printable UTF-8 become '?'. */
enum err_code err_set(struct err *e, enum err_code code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* The same, naming the request field (or tensor, or file) at fault. */
enum err_code err_set_param(struct err *e, enum err_code code, const char *param, const char *fmt,
                            ...) PRINTF_LIKE(4, 5);

/* ERR_NOMEM with the standard message: what was wanted, and its size. */
enum err_code err_nomem(struct err *e, const char *what, unsigned long long n_bytes);

/* HTTP status of a code, per the table above (ERR_OK: 200). */
int err_http_status(enum err_code code);

/* Short lower-case name of a code for logs: "invalid", "busy", ... */
const char *err_name(enum err_code code);

#endif
