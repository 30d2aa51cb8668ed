/* err.c: see err.h. */
#include "proto/err.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "proto/utf8.h"

/* Messages echo client bytes, and are themselves sent to clients. */
static void make_printable(char *s)
{
    size_t n = strlen(s);
    for (size_t i = 0; i < n;) {
        size_t len = utf8_sequence_bytes(s + i, n - i);
        bool control = len == 1 && ((unsigned char)s[i] < 0x20 || s[i] == 0x7f);
        if (len == 0 || control) {
            s[i] = '?';
            len = 1;
        }
        i += len;
    }
}

static void fill(struct err *e, enum err_code code, const char *param, const char *fmt, va_list ap)
{
    e->code = code;
    snprintf(e->param, sizeof e->param, "%s", param);
    vsnprintf(e->message, sizeof e->message, fmt, ap);
    make_printable(e->param);
    make_printable(e->message);
}

enum err_code err_set(struct err *e, enum err_code code, const char *fmt, ...)
{
    if (e != NULL) {
        va_list ap;
        va_start(ap, fmt);
        fill(e, code, "", fmt, ap);
        va_end(ap);
    }
    return code;
}

enum err_code err_set_param(struct err *e, enum err_code code, const char *param, const char *fmt,
                            ...)
{
    if (e != NULL) {
        va_list ap;
        va_start(ap, fmt);
        fill(e, code, param, fmt, ap);
        va_end(ap);
    }
    return code;
}

enum err_code err_nomem(struct err *e, const char *what, unsigned long long n_bytes)
{
    return err_set(e, ERR_NOMEM, "out of memory: %s, %llu bytes", what, n_bytes);
}

static const struct code_row {
    const char *name;
    int http;
} codes[ERR_CODES] = {
    [ERR_OK] = { "ok", 200 },
    [ERR_BUSY] = { "busy", 429 },
    [ERR_DRAINING] = { "draining", 503 },
    [ERR_INVALID] = { "invalid", 400 },
    [ERR_LIMIT] = { "limit", 400 },
    [ERR_NOT_FOUND] = { "not_found", 404 },
    [ERR_CONFLICT] = { "conflict", 409 },
    [ERR_TOO_LARGE] = { "too_large", 413 },
    [ERR_IO] = { "io", 500 },
    [ERR_GPU] = { "gpu", 500 },
    [ERR_NOMEM] = { "nomem", 500 },
    [ERR_INTERNAL] = { "internal", 500 },
};

int err_http_status(enum err_code code)
{
    return codes[code].http;
}

const char *err_name(enum err_code code)
{
    return codes[code].name;
}
