/* fields.c: what the readers of fields share: refusals, integers, text for a
 * template, and memory of the request's life.  Any thread; a parse belongs to
 * one. */
#include "proto/openai/fields.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum err_code oai_wrong(struct err *e, const char *path, const struct json *v, const char *expected,
                        ...)
{
    char shown[JSON_SHOW_BYTES], want[200];
    va_list ap;
    va_start(ap, expected);
    vsnprintf(want, sizeof want, expected, ap);
    va_end(ap);
    return err_set_param(e, ERR_INVALID, path, "%s: found %s, expected %s", path,
                         v == NULL ? "nothing" : json_show(v, shown), want);
}

enum err_code oai_check_text(const struct json *v, const char *path, struct err *e)
{
    const struct json *nul = json_find_nul(v);
    if (nul == NULL)
        return ERR_OK;
    char at[ERR_PARAM_BYTES];
    json_path(v, nul, path, at, sizeof at);
    return err_set_param(e, ERR_INVALID, at,
                         "%s: found U+0000 in a string, expected text that a template can carry",
                         at);
}

bool oai_integer(const struct json *v, int64_t *out)
{
    if (v->kind == JSON_INT) {
        *out = v->u.integer;
        return true;
    }
    if (v->kind != JSON_REAL || fabs(v->u.real) > 0x1p53 || v->u.real != floor(v->u.real))
        return false;
    *out = (int64_t)v->u.real;
    return true;
}

/* Header of one block of an array; blocks are chained from r->arrays. */
union block {
    union block *next;
    max_align_t align;
};

void *oai_array(struct oai_request *r, size_t n, size_t size, struct err *e)
{
    union block *b = NULL;
    if (n <= (SIZE_MAX - sizeof *b) / size)
        b = calloc(1, sizeof *b + n * size);
    if (b == NULL) {
        err_nomem(e, "request", n * size);
        return NULL;
    }
    b->next = r->arrays;
    r->arrays = b;
    return b + 1;
}

void oai_arrays_free(struct oai_request *r)
{
    for (union block *b = r->arrays, *next; b != NULL; b = next) {
        next = b->next;
        free(b);
    }
    r->arrays = NULL;
}
