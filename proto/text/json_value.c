/* json_value.c: questions about parsed values (json.h).  Pure functions; any
 * thread. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "proto/text/json.h"

const struct json *json_get_bytes(const struct json *v, const char *key, size_t n)
{
    if (v == NULL || v->kind != JSON_OBJECT)
        return NULL;
    const struct json *k = json_first(v);
    for (uint32_t i = 0; i < v->n; i++, k = json_next(k + 1))
        if (k->n == n && memcmp(k->u.string, key, n) == 0)
            return k + 1;
    return NULL;
}

const struct json *json_get(const struct json *v, const char *key)
{
    return json_get_bytes(v, key, strlen(key));
}

static const char *show_string(const struct json *v, char buf[JSON_SHOW_BYTES])
{
    size_t n = v->n < 40 ? v->n : 40;
    while (n < v->n && n > 0 && ((unsigned char)v->u.string[n] & 0xc0) == 0x80)
        n--;
    size_t k = 0;
    buf[k++] = '"';
    memcpy(buf + k, v->u.string, n);
    for (size_t i = 0; i < n; i++)
        if (buf[k + i] == '\0')
            buf[k + i] = '?';
    k += n;
    snprintf(buf + k, JSON_SHOW_BYTES - k, "%s", n < v->n ? "...\"" : "\"");
    return buf;
}

const char *json_show(const struct json *v, char buf[JSON_SHOW_BYTES])
{
    switch (v->kind) {
    case JSON_NULL:
        return memcpy(buf, "null", sizeof "null");
    case JSON_BOOL:
        snprintf(buf, JSON_SHOW_BYTES, "%s", v->u.boolean ? "true" : "false");
        return buf;
    case JSON_INT:
        snprintf(buf, JSON_SHOW_BYTES, "%lld", (long long)v->u.integer);
        return buf;
    case JSON_BIGINT:
        snprintf(buf, JSON_SHOW_BYTES, "%.*s%s", v->n < 40 ? (int)v->n : 40, v->u.digits,
                 v->n > 40 ? "..." : "");
        return buf;
    case JSON_REAL:
        snprintf(buf, JSON_SHOW_BYTES, "%.10g", v->u.real);
        return buf;
    case JSON_STRING:
        return show_string(v, buf);
    case JSON_ARRAY:
        snprintf(buf, JSON_SHOW_BYTES, "a list of %u", v->n);
        return buf;
    case JSON_OBJECT:
        break;
    }
    snprintf(buf, JSON_SHOW_BYTES, "an object of %u", v->n);
    return buf;
}

const char *json_kind_name(const struct json *v)
{
    static const char *const names[] = {
        [JSON_NULL] = "null",        [JSON_INT] = "a number",    [JSON_BIGINT] = "a number",
        [JSON_REAL] = "a number",    [JSON_STRING] = "a string", [JSON_ARRAY] = "an array",
        [JSON_OBJECT] = "an object",
    };
    if (v == NULL)
        return "nothing";
    if (v->kind == JSON_BOOL)
        return v->u.boolean ? "true" : "false";
    return names[v->kind];
}

double json_number(const struct json *v)
{
    assert(json_is_number(v));
    if (v->kind == JSON_REAL)
        return v->u.real;
    if (v->kind == JSON_INT)
        return (double)v->u.integer;
    char text[JSON_MAX_NUMBER_BYTES + 1];
    memcpy(text, v->u.digits, v->n);
    text[v->n] = '\0';
    return strtod(text, NULL);
}
