/* json_cjson.c: a parsed value as a cJSON tree (json_to_cjson of json.h).
 * Recursion is bounded by JSON_MAX_DEPTH.  Any thread. */
#include <cjson/cJSON.h>
#include <stdio.h>

#include "proto/text/json.h"

/* Where we are, for the param of an error; one frame a level. */
struct place {
    const struct place *up;
    const char *key; /* NULL: element `index` */
    uint32_t index;
};

static size_t write_place(const struct place *at, char *buf, size_t cap)
{
    if (at == NULL)
        return 0;
    size_t n = write_place(at->up, buf, cap);
    if (n >= cap)
        return n;
    int k = at->key == NULL ? snprintf(buf + n, cap - n, "[%u]", at->index)
                            : snprintf(buf + n, cap - n, n > 0 ? ".%s" : "%s", at->key);
    return n + (size_t)(k < 0 ? 0 : k);
}

static enum err_code refuse_nul(const struct place *at, struct err *e)
{
    char path[ERR_PARAM_BYTES] = "";
    write_place(at, path, sizeof path);
    return err_set_param(e, ERR_INVALID, path,
                         "%s: found U+0000 in a string, expected text that a template can carry",
                         path);
}

static enum err_code no_memory(struct err *e)
{
    return err_nomem(e, "JSON tree", sizeof(cJSON));
}

static bool has_nul(const struct json *v)
{
    return memchr(v->u.string, '\0', v->n) != NULL;
}

static enum err_code convert(cJSON **out, const struct json *v, const struct place *at,
                             struct err *e);

static enum err_code convert_children(cJSON *into, const struct json *v, const struct place *at,
                                      struct err *e)
{
    bool object = v->kind == JSON_OBJECT;
    const struct json *c = json_first(v);
    for (uint32_t i = 0; i < v->n; i++) {
        struct place here = { at, NULL, i };
        const struct json *key = NULL;
        if (object) {
            key = c++;
            here.key = key->u.string;
            if (has_nul(key))
                return refuse_nul(at, e);
        }
        cJSON *item = NULL;
        enum err_code rc = convert(&item, c, &here, e);
        if (rc)
            return rc;
        bool added = object ? cJSON_AddItemToObject(into, key->u.string, item)
                            : cJSON_AddItemToArray(into, item);
        if (!added) {
            cJSON_Delete(item);
            return no_memory(e);
        }
        c = json_next(c);
    }
    return ERR_OK;
}

/* A number node, with its kind where a double alone would hide it: valuestring
 * is "real" on reals and the digits on integers that a double cannot hold. */
static cJSON *number(const struct json *v)
{
    bool integer = v->kind == JSON_INT;
    cJSON *c = cJSON_CreateNumber(json_number(v));
    if (c == NULL || (integer && v->u.integer <= 1ll << 53 && v->u.integer >= -(1ll << 53)))
        return c;
    char text[32] = "real";
    if (integer)
        snprintf(text, sizeof text, "%lld", (long long)v->u.integer);
    c->valuestring = cJSON_malloc(strlen(text) + 1);
    if (c->valuestring == NULL) {
        cJSON_Delete(c);
        return NULL;
    }
    memcpy(c->valuestring, text, strlen(text) + 1);
    return c;
}

static enum err_code convert(cJSON **out, const struct json *v, const struct place *at,
                             struct err *e)
{
    cJSON *c = NULL;
    switch (v->kind) {
    case JSON_NULL:
        c = cJSON_CreateNull();
        break;
    case JSON_BOOL:
        c = cJSON_CreateBool(v->u.boolean);
        break;
    case JSON_INT:
    case JSON_BIGINT:
    case JSON_REAL:
        c = number(v);
        break;
    case JSON_STRING:
        if (has_nul(v))
            return refuse_nul(at, e);
        c = cJSON_CreateString(v->u.string);
        break;
    case JSON_ARRAY:
        c = cJSON_CreateArray();
        break;
    case JSON_OBJECT:
        c = cJSON_CreateObject();
        break;
    }
    if (c == NULL)
        return no_memory(e);
    if (v->kind == JSON_ARRAY || v->kind == JSON_OBJECT) {
        enum err_code rc = convert_children(c, v, at, e);
        if (rc) {
            cJSON_Delete(c);
            return rc;
        }
    }
    *out = c;
    return ERR_OK;
}

enum err_code json_to_cjson(struct cJSON **out, const struct json *v, const char *path,
                            struct err *e)
{
    struct place root = { NULL, path, 0 };
    return convert(out, v, &root, e);
}
