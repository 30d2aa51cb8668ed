/* json_file.c: see json_file.h. */
#include "proto/text/json_file.h"

#include <math.h>

#include "proto/text/buf.h"
#include "proto/text/json.h"

/* By the strict reader first, so that what cJSON would take, cut or turn into
 * something else never reaches it. */
static enum err_code check_strictly(const char *name, const char *bytes, size_t n, struct err *e)
{
    struct json_doc doc;
    char at[ERR_PARAM_BYTES];
    enum err_code rc = json_parse_named(&doc, name, bytes, n, 0, e);
    if (rc)
        return rc;
    const struct json *nul = json_find_nul(doc.value);
    if (doc.value->kind != JSON_OBJECT) {
        rc = err_set(e, ERR_INVALID, "%s: found %s, expected a JSON object", name,
                     json_kind_name(doc.value));
    } else if (nul != NULL) {
        json_path(doc.value, nul, "", at, sizeof at);
        rc = err_set(e, ERR_INVALID, "%s: %s: found U+0000 in a string", name,
                     at[0] == '.' ? at + 1 : at);
    }
    json_doc_fini(&doc);
    return rc;
}

enum err_code json_bytes_read(cJSON **out, const char *name, const char *bytes, size_t n,
                              struct err *e)
{
    *out = NULL;
    enum err_code rc = check_strictly(name, bytes, n, e);
    if (rc)
        return rc;
    *out = cJSON_ParseWithLengthOpts(bytes, n, NULL, false);
    if (*out == NULL)
        return err_set(e, ERR_INVALID, "%s: no memory, or a number of more than 63 characters",
                       name);
    return ERR_OK;
}

enum err_code json_file_read(cJSON **out, const char *dir, const char *name, size_t max_bytes,
                             struct err *e)
{
    *out = NULL;
    struct buf path = { 0 }, bytes = { 0 };
    buf_printf(&path, "%s/%s", dir, name);
    buf_put(&path, "", 1);
    enum err_code rc = buf_check(&path, e);
    if (!rc)
        rc = buf_read_file(&bytes, path.p, max_bytes, e);
    if (!rc)
        rc = json_bytes_read(out, name, bytes.p, bytes.n, e);
    if (rc == ERR_NOT_FOUND)
        rc = ERR_OK;
    buf_fini(&path);
    buf_fini(&bytes);
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
