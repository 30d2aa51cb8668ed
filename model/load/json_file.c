/* json_file.c: see json_file.h. */
#include "model/load/json_file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/utf8.h"

static enum err_code slurp(FILE *f, const char *path, size_t max_bytes, char **out, size_t *n,
                           struct err *e)
{
    size_t cap = 4096, used = 0;
    char *buf = malloc(cap);
    if (buf == NULL)
        return err_nomem(e, path, cap);
    for (;;) {
        used += fread(buf + used, 1, cap - used, f);
        if (used < cap)
            break;
        char *grown = cap <= max_bytes ? realloc(buf, cap * 2) : NULL;
        if (grown == NULL) {
            free(buf);
            if (cap > max_bytes)
                return err_set(e, ERR_INVALID, "%s: larger than %zu bytes", path, max_bytes);
            return err_nomem(e, path, cap * 2);
        }
        buf = grown;
        cap *= 2;
    }
    if (ferror(f)) {
        free(buf);
        return err_set(e, ERR_IO, "%s: cannot be read: %s", path, strerror(errno));
    }
    *out = buf;
    *n = used;
    return ERR_OK;
}

enum err_code json_bytes_read(cJSON **out, const char *name, const char *bytes, size_t n,
                              struct err *e)
{
    if (!utf8_is_valid(bytes, n))
        return err_set(e, ERR_INVALID, "%s: byte %zu is not valid UTF-8", name,
                       utf8_valid_prefix(bytes, n));
    const char *end = bytes;
    cJSON *root = cJSON_ParseWithLengthOpts(bytes, n, &end, false);
    if (root == NULL)
        return err_set(e, ERR_INVALID, "%s: not valid JSON near byte %zu", name,
                       (size_t)(end - bytes));
    size_t at = (size_t)(end - bytes);
    while (at < n &&
           (bytes[at] == ' ' || bytes[at] == '\n' || bytes[at] == '\r' || bytes[at] == '\t'))
        at++;
    if (at != n || !cJSON_IsObject(root)) {
        cJSON_Delete(root);
        return err_set(e, ERR_INVALID, "%s: expected one JSON object and nothing after it", name);
    }
    *out = root;
    return ERR_OK;
}

enum err_code json_file_read(cJSON **out, const char *dir, const char *name, size_t max_bytes,
                             struct err *e)
{
    *out = NULL;
    size_t n_path = strlen(dir) + strlen(name) + 2;
    char *path = malloc(n_path);
    if (path == NULL)
        return err_nomem(e, "path", n_path);
    snprintf(path, n_path, "%s/%s", dir, name);
    enum err_code rc = ERR_OK;
    FILE *f = fopen(path, "rbe");
    if (f == NULL) {
        if (errno != ENOENT)
            rc = err_set(e, ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
        free(path);
        return rc;
    }
    char *bytes = NULL;
    size_t n = 0;
    rc = slurp(f, path, max_bytes, &bytes, &n, e);
    fclose(f);
    if (rc == ERR_OK)
        rc = json_bytes_read(out, name, bytes, n, e);
    free(bytes);
    free(path);
    return rc;
}

const cJSON *json_member(const struct json_object *o, const char *key)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o->node, key);
    return v == NULL || cJSON_IsNull(v) ? NULL : v;
}

static const char *kind_of(const cJSON *v)
{
    return cJSON_IsBool(v)     ? "a boolean"
           : cJSON_IsString(v) ? "a string"
           : cJSON_IsArray(v)  ? "a list"
           : cJSON_IsObject(v) ? "an object"
                               : "a number";
}

static enum err_code wrong_kind(const struct json_object *o, const char *key, const cJSON *v,
                                const char *expected, struct err *e)
{
    return err_set(e, ERR_INVALID, "%s: %s%s is %s, expected %s", o->file, o->in, key, kind_of(v),
                   expected);
}

enum err_code json_get_uint(const struct json_object *o, const char *key, uint64_t lo, uint64_t hi,
                            uint32_t *out, struct err *e)
{
    const cJSON *v = json_member(o, key);
    if (v == NULL)
        return ERR_OK;
    if (!cJSON_IsNumber(v))
        return wrong_kind(o, key, v, "an integer", e);
    double d = v->valuedouble;
    if (!(d >= (double)lo && d <= (double)hi) || d != floor(d))
        return err_set(e, ERR_INVALID, "%s: %s%s is %g, expected an integer from %llu to %llu",
                       o->file, o->in, key, d, (unsigned long long)lo, (unsigned long long)hi);
    *out = (uint32_t)d;
    return ERR_OK;
}

enum err_code json_get_real(const struct json_object *o, const char *key, double lo, double hi,
                            double *out, struct err *e)
{
    const cJSON *v = json_member(o, key);
    if (v == NULL)
        return ERR_OK;
    if (!cJSON_IsNumber(v))
        return wrong_kind(o, key, v, "a number", e);
    if (!(v->valuedouble >= lo && v->valuedouble <= hi))
        return err_set(e, ERR_INVALID, "%s: %s%s is %g, expected %g to %g", o->file, o->in, key,
                       v->valuedouble, lo, hi);
    *out = v->valuedouble;
    return ERR_OK;
}

enum err_code json_get_bool(const struct json_object *o, const char *key, bool *out, struct err *e)
{
    const cJSON *v = json_member(o, key);
    if (v == NULL)
        return ERR_OK;
    if (!cJSON_IsBool(v))
        return wrong_kind(o, key, v, "true or false", e);
    *out = cJSON_IsTrue(v);
    return ERR_OK;
}

enum err_code json_get_string(const struct json_object *o, const char *key, const char **out,
                              struct err *e)
{
    const cJSON *v = json_member(o, key);
    if (v == NULL)
        return ERR_OK;
    if (!cJSON_IsString(v))
        return wrong_kind(o, key, v, "a string", e);
    *out = v->valuestring;
    return ERR_OK;
}

enum err_code json_get_object(const struct json_object *o, const char *key, const cJSON **out,
                              struct err *e)
{
    const cJSON *v = json_member(o, key);
    if (v == NULL)
        return ERR_OK;
    if (!cJSON_IsObject(v))
        return wrong_kind(o, key, v, "an object", e);
    *out = v;
    return ERR_OK;
}

enum err_code json_get_array(const struct json_object *o, const char *key, const cJSON **out,
                             struct err *e)
{
    const cJSON *v = json_member(o, key);
    if (v == NULL)
        return ERR_OK;
    if (!cJSON_IsArray(v))
        return wrong_kind(o, key, v, "a list", e);
    *out = v;
    return ERR_OK;
}

enum err_code json_missing(const struct json_object *o, const char *key, const char *expected,
                           struct err *e)
{
    return err_set(e, ERR_INVALID, "%s: %s%s is missing, expected %s", o->file, o->in, key,
                   expected);
}
