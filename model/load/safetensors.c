/* safetensors.c: see safetensors.h.
 *
 * The header is a JSON document (proto/text/json.h) of exactly what the format
 * allows: an object of tensor objects and one object of strings.  It is read
 * from a copy of its own, in which the tensors' names stay. */
#include "model/load/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/text/json.h"
#include "proto/try.h"

/* The reference implementation's cap. */
enum { HEADER_MAX_BYTES = 100000000, NAME_MAX_BYTES = 1024 };
/* The densest header, of metadata with names and values of one letter, has a value in 4 bytes. */
enum { HEADER_BYTES_A_VALUE = 4, HEADER_MORE_VALUES = 64 };
/* Its name, an object of three keys, a dtype and two lists, one of two numbers. */
enum { VALUES_A_TENSOR = 10 };

struct st_file {
    const char *name; /* in messages; borrowed for bytes, owned for files */
    char *owned_name;
    const unsigned char *map;
    size_t n_map;
    bool mapped;
    char *header;             /* owned: the tensors' names lie in it */
    struct st_tensor *tensor; /* owned */
    size_t n;
};

static const struct {
    const char *name;
    uint32_t bytes;
} dtypes[ST_DTYPES] = {
    [ST_BF16] = { "BF16", 2 },       [ST_F16] = { "F16", 2 },
    [ST_F32] = { "F32", 4 },         [ST_F64] = { "F64", 8 },
    [ST_U8] = { "U8", 1 },           [ST_I8] = { "I8", 1 },
    [ST_BOOL] = { "BOOL", 1 },       [ST_I16] = { "I16", 2 },
    [ST_U16] = { "U16", 2 },         [ST_I32] = { "I32", 4 },
    [ST_U32] = { "U32", 4 },         [ST_I64] = { "I64", 8 },
    [ST_U64] = { "U64", 8 },         [ST_F8_E4M3] = { "F8_E4M3", 1 },
    [ST_F8_E5M2] = { "F8_E5M2", 1 }, [ST_F8_E8M0] = { "F8_E8M0", 1 },
};

const char *model_st_dtype_name(enum st_dtype d)
{
    return dtypes[d].name;
}

uint32_t model_st_dtype_bytes(enum st_dtype d)
{
    return dtypes[d].bytes;
}

/* ---- the header ---- */

/* What reading one header works with. */
struct reading {
    struct st_file *f;
    const unsigned char *data; /* behind the header */
    uint64_t n_data;
    struct err *e;
};

/* ERR_INVALID: what tensor t has at key is not what is expected. */
static enum err_code wrong(const struct reading *r, const struct st_tensor *t, const char *key,
                           const struct json *v, const char *expected)
{
    char shown[JSON_SHOW_BYTES];
    return err_set(r->e, ERR_INVALID, "%s: tensor %.*s: %s: found %s, expected %s", r->f->name,
                   (int)t->n_name, t->name, key, v ? json_show(v, shown) : "nothing", expected);
}

static bool as_uint(const struct json *v, uint64_t *out)
{
    *out = v->kind == JSON_INT ? (uint64_t)v->u.integer : 0;
    if (v->kind == JSON_INT)
        return v->u.integer >= 0;
    if (v->kind != JSON_BIGINT || v->u.digits[0] == '-')
        return false;
    for (uint32_t i = 0; i < v->n; i++) {
        unsigned d = (unsigned)(v->u.digits[i] - '0');
        if (*out > (UINT64_MAX - d) / 10)
            return false;
        *out = *out * 10 + d;
    }
    return true;
}

/* The list at key: at most max numbers. */
static enum err_code read_numbers(const struct reading *r, const struct st_tensor *t,
                                  const char *key, const struct json *list, uint32_t max,
                                  uint64_t *out, uint32_t *n)
{
    if (list == NULL || list->kind != JSON_ARRAY || list->n > max)
        return wrong(r, t, key, list, max == 2 ? "two integers" : "a list of at most 8 integers");
    const struct json *v = json_first(list);
    for (uint32_t i = 0; i < list->n; i++, v = json_next(v))
        if (!as_uint(v, &out[i]))
            return wrong(r, t, key, v, "a non-negative integer below 2^64");
    *n = list->n;
    return ERR_OK;
}

static enum err_code read_dtype(const struct reading *r, struct st_tensor *t, const struct json *v)
{
    for (int d = 0; d < ST_DTYPES; d++) {
        if (json_string_is(v, dtypes[d].name)) {
            t->dtype = (enum st_dtype)d;
            return ERR_OK;
        }
    }
    if (v == NULL || v->kind != JSON_STRING)
        return wrong(r, t, "dtype", v, "a string");
    return err_set(r->e, ERR_INVALID, "%s: tensor %.*s: dtype \"%.*s\" is not known", r->f->name,
                   (int)t->n_name, t->name, (int)(v->n < 32 ? v->n : 32), v->u.string);
}

static enum err_code check_size(const struct reading *r, struct st_tensor *t)
{
    const char *what = NULL;
    t->n_elements = 1;
    for (uint32_t i = 0; i < t->n_dims && what == NULL; i++) {
        if (t->shape[i] != 0 && t->n_elements > (uint64_t)INT64_MAX / t->shape[i])
            what = "shape";
        else
            t->n_elements *= t->shape[i];
    }
    if (what == NULL && t->n_elements > (uint64_t)INT64_MAX / dtypes[t->dtype].bytes)
        what = "size";
    if (what != NULL)
        return err_set(r->e, ERR_INVALID, "%s: tensor %.*s: its %s overflows 2^63", r->f->name,
                       (int)t->n_name, t->name, what);
    t->n_bytes = t->n_elements * dtypes[t->dtype].bytes;
    return ERR_OK;
}

static enum err_code check_offsets(const struct reading *r, const struct st_tensor *t,
                                   const uint64_t off[2])
{
    if (off[0] > off[1] || off[1] > r->n_data)
        return err_set(r->e, ERR_INVALID,
                       "%s: tensor %.*s: data_offsets [%llu, %llu], expected ascending and at most "
                       "%llu (the data's size)",
                       r->f->name, (int)t->n_name, t->name, (unsigned long long)off[0],
                       (unsigned long long)off[1], (unsigned long long)r->n_data);
    if (off[1] - off[0] != t->n_bytes)
        return err_set(r->e, ERR_INVALID,
                       "%s: tensor %.*s: data_offsets span %llu bytes, its shape and dtype %s "
                       "need %llu",
                       r->f->name, (int)t->n_name, t->name, (unsigned long long)(off[1] - off[0]),
                       dtypes[t->dtype].name, (unsigned long long)t->n_bytes);
    return ERR_OK;
}

/* {"dtype":..., "shape":[...], "data_offsets":[a, b]} in any order. */
static enum err_code read_tensor(const struct reading *r, const struct json *name,
                                 const struct json *v)
{
    struct st_tensor *t = &r->f->tensor[r->f->n];
    uint64_t off[2] = { 0, 0 };
    uint32_t n = 0;
    *t = (struct st_tensor){ .name = name->u.string, .n_name = name->n };
    if (v->kind != JSON_OBJECT)
        return wrong(r, t, "entry", v, "an object");
    const struct json *dtype = json_get(v, "dtype"), *shape = json_get(v, "shape");
    const struct json *offsets = json_get(v, "data_offsets");
    if (v->n != 3 || !dtype || !shape || !offsets)
        return wrong(r, t, "entry", v, "dtype, shape and data_offsets");
    TRY(read_dtype(r, t, dtype));
    TRY(read_numbers(r, t, "shape", shape, ST_MAX_DIMS, t->shape, &t->n_dims));
    TRY(read_numbers(r, t, "data_offsets", offsets, 2, off, &n));
    if (n != 2)
        return wrong(r, t, "data_offsets", offsets, "two integers");
    TRY(check_size(r, t));
    TRY(check_offsets(r, t, off));
    t->data = r->data + off[0];
    r->f->n++;
    return ERR_OK;
}

static enum err_code check_metadata(const struct reading *r, const struct json *v)
{
    bool good = v->kind == JSON_OBJECT;
    const struct json *key = json_first(v);
    for (uint32_t i = 0; good && i < v->n; i++, key = json_next(key + 1))
        good = key[1].kind == JSON_STRING;
    if (good)
        return ERR_OK;
    return err_set(r->e, ERR_INVALID, "%s: __metadata__: expected an object of strings",
                   r->f->name);
}

static enum err_code read_entries(const struct reading *r, const struct json *root)
{
    char shown[JSON_SHOW_BYTES];
    if (root->kind != JSON_OBJECT)
        return err_set(r->e, ERR_INVALID, "%s: header: found %s, expected an object", r->f->name,
                       json_show(root, shown));
    size_t most = json_span(root) / VALUES_A_TENSOR + 1;
    r->f->tensor = malloc(most * sizeof *r->f->tensor);
    if (r->f->tensor == NULL)
        return err_nomem(r->e, "safetensors tensor list", most * sizeof *r->f->tensor);
    const struct json *name = json_first(root);
    for (uint32_t i = 0; i < root->n; i++, name = json_next(name + 1)) {
        if (name->n == 0 || name->n > NAME_MAX_BYTES || memchr(name->u.string, 0, name->n))
            return err_set(r->e, ERR_INVALID,
                           "%s: header: found %s, expected a tensor name of 1 to %d bytes "
                           "without NUL",
                           r->f->name, json_show(name, shown), NAME_MAX_BYTES);
        TRY(json_string_is(name, "__metadata__") ? check_metadata(r, name + 1)
                                                 : read_tensor(r, name, name + 1));
    }
    return ERR_OK;
}

static enum err_code read_header(const struct reading *r, size_t n)
{
    struct json_doc doc;
    char what[ERR_MESSAGE_BYTES];
    snprintf(what, sizeof what, "%s: header", r->f->name);
    r->f->header = malloc(n + 1);
    if (r->f->header == NULL)
        return err_nomem(r->e, what, n + 1);
    memcpy(r->f->header, r->f->map + 8, n);
    enum err_code rc = json_parse_in_place(&doc, what, r->f->header, n,
                                           n / HEADER_BYTES_A_VALUE + HEADER_MORE_VALUES, r->e);
    if (rc == ERR_LIMIT)
        return err_set(r->e, ERR_INVALID, "%s: more JSON values than tensors need in %zu bytes",
                       what, n);
    if (rc)
        return rc;
    rc = read_entries(r, doc.value);
    json_doc_fini(&doc);
    return rc;
}

static int compare_names(const char *a, size_t na, const char *b, size_t nb)
{
    int d = memcmp(a, b, na < nb ? na : nb);
    return d != 0 ? d : (na > nb) - (na < nb);
}

static int by_name(const void *a, const void *b)
{
    const struct st_tensor *x = a, *y = b;
    return compare_names(x->name, x->n_name, y->name, y->n_name);
}

/* Empty tensors first at an offset, so that they neither gap nor overlap. */
static int by_offset(const void *a, const void *b)
{
    const struct st_tensor *x = a, *y = b;
    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return (x->n_bytes > y->n_bytes) - (x->n_bytes < y->n_bytes);
}

static enum err_code check_tiling(struct st_file *f, const unsigned char *data, uint64_t n_data,
                                  struct err *e)
{
    if (f->n > 1)
        qsort(f->tensor, f->n, sizeof *f->tensor, by_offset);
    uint64_t at = 0;
    for (size_t i = 0; i < f->n; i++) {
        const struct st_tensor *t = &f->tensor[i];
        uint64_t begin = (uint64_t)(t->data - data);
        if (begin != at)
            return err_set(e, ERR_INVALID,
                           "%s: tensor %.*s: begins at data byte %llu, expected %llu (tensors must "
                           "follow each other without gap or overlap)",
                           f->name, (int)t->n_name, t->name, (unsigned long long)begin,
                           (unsigned long long)at);
        at += t->n_bytes;
    }
    if (at != n_data)
        return err_set(e, ERR_INVALID, "%s: tensors cover %llu data bytes, the file holds %llu",
                       f->name, (unsigned long long)at, (unsigned long long)n_data);
    if (f->n > 1)
        qsort(f->tensor, f->n, sizeof *f->tensor, by_name);
    return ERR_OK;
}

static enum err_code parse(struct st_file *f, struct err *e)
{
    if (f->n_map < 8)
        return err_set(e, ERR_INVALID, "%s: %zu bytes, expected at least 8 (the header's length)",
                       f->name, f->n_map);
    uint64_t n_header = 0;
    for (int i = 7; i >= 0; i--)
        n_header = n_header << 8 | f->map[i];
    if (n_header > HEADER_MAX_BYTES)
        return err_set(e, ERR_INVALID, "%s: header of %llu bytes, expected at most %d", f->name,
                       (unsigned long long)n_header, HEADER_MAX_BYTES);
    if (n_header > f->n_map - 8)
        return err_set(e, ERR_INVALID, "%s: header of %llu bytes in a file of %zu", f->name,
                       (unsigned long long)n_header, f->n_map);
    const unsigned char *data = f->map + 8 + n_header;
    uint64_t n_data = f->n_map - 8 - n_header;
    const struct reading r = { .f = f, .data = data, .n_data = n_data, .e = e };
    TRY(read_header(&r, n_header));
    return check_tiling(f, data, n_data, e);
}

static enum err_code map_file(struct st_file *f, struct err *e)
{
    int fd = open(f->name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set(e, ERR_IO, "%s: cannot be opened: %s", f->name, strerror(errno));
    struct stat st;
    enum err_code rc = ERR_OK;
    if (fstat(fd, &st) != 0) {
        rc = err_set(e, ERR_IO, "%s: %s", f->name, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        rc = err_set(e, ERR_INVALID, "%s: not a regular file", f->name);
    } else if (st.st_size < 8) {
        rc = err_set(e, ERR_INVALID, "%s: %lld bytes, expected at least 8 (the header's length)",
                     f->name, (long long)st.st_size);
    } else {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            rc = err_set(e, ERR_IO, "%s: cannot be mapped: %s", f->name, strerror(errno));
        } else {
            f->map = p;
            f->n_map = (size_t)st.st_size;
            f->mapped = true;
        }
    }
    close(fd);
    return rc;
}

enum err_code model_st_open(struct st_file **out, const char *path, struct err *e)
{
    struct st_file *f = calloc(1, sizeof *f);
    if (f == NULL)
        return err_nomem(e, "safetensors file", sizeof *f);
    enum err_code rc;
    f->owned_name = strdup(path);
    if (f->owned_name == NULL) {
        rc = err_nomem(e, "safetensors file name", strlen(path) + 1);
        goto fail;
    }
    f->name = f->owned_name;
    rc = map_file(f, e);
    if (rc)
        goto fail;
    rc = parse(f, e);
    if (rc)
        goto fail;
    *out = f;
    return ERR_OK;

fail:
    model_st_close(f);
    return rc;
}

enum err_code model_st_open_bytes(struct st_file **out, const char *name, const void *bytes,
                                  size_t n_bytes, struct err *e)
{
    struct st_file *f = calloc(1, sizeof *f);
    if (f == NULL)
        return err_nomem(e, "safetensors file", sizeof *f);
    f->name = name;
    f->map = bytes;
    f->n_map = n_bytes;
    enum err_code rc = parse(f, e);
    if (rc) {
        model_st_close(f);
        return rc;
    }
    *out = f;
    return ERR_OK;
}

void model_st_close(struct st_file *f)
{
    if (f == NULL)
        return;
    if (f->mapped)
        munmap((void *)f->map, f->n_map);
    free(f->tensor);
    free(f->header);
    free(f->owned_name);
    free(f);
}

size_t model_st_n_tensors(const struct st_file *f)
{
    return f->n;
}

const struct st_tensor *model_st_tensor_at(const struct st_file *f, size_t i)
{
    return &f->tensor[i];
}

const struct st_tensor *model_st_find(const struct st_file *f, const char *name)
{
    size_t lo = 0, hi = f->n, n = strlen(name);
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const struct st_tensor *t = &f->tensor[mid];
        int d = compare_names(name, n, t->name, t->n_name);
        if (d == 0)
            return t;
        if (d < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}
