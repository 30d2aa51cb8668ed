/* json_file.h: small JSON files (config.json and its kind) as cJSON trees, and
 * typed reads of their keys.
 *
 * The one place where cJSON parses: text goes through the strict reader
 * (json.h) first, so that both agree on what is accepted.
 *
 * Every getter leaves *out untouched when the key is absent or null, and fails
 * with a message naming file, key, what was found and what is expected.
 * Any thread. */
#ifndef PROTO_TEXT_JSON_FILE_H
#define PROTO_TEXT_JSON_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "proto/err.h"

/* One object of a file: `file` names it in messages ("config.json"), `in` the
 * object inside ("" or "rope_scaling."). */
struct json_object {
    const cJSON *node;
    const char *file, *in;
};

/* Read and parse DIR/NAME, at most max_bytes; *out is NULL (and ERR_OK) when
 * the file does not exist.  The root must be an object.  Taken by the caller:
 * cJSON_Delete. */
MUST_USE enum err_code json_file_read(cJSON **out, const char *dir, const char *name,
                                      size_t max_bytes, struct err *e);

/* The same over bytes in memory. */
MUST_USE enum err_code json_bytes_read(cJSON **out, const char *name, const char *bytes, size_t n,
                                       struct err *e);

/* Member, or NULL when absent or null. */
const cJSON *json_member(const struct json_object *o, const char *key);

MUST_USE enum err_code json_get_uint(const struct json_object *o, const char *key, uint64_t lo,
                                     uint64_t hi, uint32_t *out, struct err *e);
MUST_USE enum err_code json_get_real(const struct json_object *o, const char *key, double lo,
                                     double hi, double *out, struct err *e);
MUST_USE enum err_code json_get_bool(const struct json_object *o, const char *key, bool *out,
                                     struct err *e);
/* Borrowed from the tree. */
MUST_USE enum err_code json_get_string(const struct json_object *o, const char *key,
                                       const char **out, struct err *e);
/* A member that is an object; *out untouched when absent. */
MUST_USE enum err_code json_get_object(const struct json_object *o, const char *key,
                                       const cJSON **out, struct err *e);
/* A member that is an array; *out untouched when absent. */
MUST_USE enum err_code json_get_array(const struct json_object *o, const char *key,
                                      const cJSON **out, struct err *e);

/* ERR_INVALID: the key is absent; says what is expected. */
enum err_code json_missing(const struct json_object *o, const char *key, const char *expected,
                           struct err *e);

#endif
