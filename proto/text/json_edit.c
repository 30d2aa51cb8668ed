/* json_edit.c: copies of values with some of them replaced, and where in a
 * document a value stands (json.h).  Pure functions; any thread. */
#include <stdio.h>

#include "proto/text/json.h"

uint32_t json_edited_span(const struct json *v, const struct json_edit *edit, size_t n)
{
    uint32_t span = json_span(v);
    for (size_t i = 0; i < n; i++)
        span += json_span(edit[i].with) - json_span(edit[i].at);
    return span;
}

/* The edits that are still to be made. */
struct edits {
    const struct json_edit *next;
    size_t n;
};

static struct json *copy_span(struct json *out, const struct json *v)
{
    memcpy(out, v, json_span(v) * sizeof *v);
    return out + json_span(v);
}

/* Copies v; returns the place after the copy.  Recursion bounded by JSON_MAX_DEPTH. */
static struct json *copy_edited(struct json *out, const struct json *v, struct edits *e)
{
    const struct json *end = json_next(v);
    if (e->n == 0 || e->next->at >= end)
        return copy_span(out, v);
    if (e->next->at == v) {
        e->n--;
        return copy_span(out, (e->next++)->with);
    }
    struct json *start = out++;
    *start = *v;
    for (const struct json *c = json_first(v); c < end; c = json_next(c))
        out = copy_edited(out, c, e);
    start->u.span = (uint32_t)(out - start);
    return out;
}

void json_edited(struct json *out, const struct json *v, const struct json_edit *edit, size_t n)
{
    struct edits e = { edit, n };
    copy_edited(out, v, &e);
}

const struct json *json_find_nul(const struct json *v)
{
    for (const struct json *end = json_next(v); v < end; v++)
        if (v->kind == JSON_STRING && memchr(v->u.string, '\0', v->n) != NULL)
            return v;
    return NULL;
}

void json_path(const struct json *v, const struct json *at, const char *path, char *out, size_t cap)
{
    size_t used = (size_t)snprintf(out, cap, "%s", path);
    while (v != at && used < cap) {
        bool object = v->kind == JSON_OBJECT;
        const struct json *c = json_first(v), *key = NULL;
        uint32_t i = 0;
        for (;; i++, c = json_next(c)) {
            if (object)
                key = c++;
            if (key == at) /* named by the object that it is in */
                return;
            if (at < json_next(c))
                break;
        }
        if (object)
            used += (size_t)snprintf(out + used, cap - used, ".%s", key->u.string);
        else
            used += (size_t)snprintf(out + used, cap - used, "[%u]", i);
        v = c;
    }
}
