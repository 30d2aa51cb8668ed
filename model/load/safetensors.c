/* safetensors.c: see safetensors.h.
 *
 * The header is read by a parser of exactly the JSON that the format allows:
 * an object of tensor objects and one object of strings.  It does not recurse,
 * and allocates one entry per tensor that it has read completely. */
#include "model/load/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/utf8.h"

/* The reference implementation's cap. */
enum { HEADER_MAX_BYTES = 100000000 };

struct st_file {
    const char *name; /* in messages; borrowed for bytes, owned for files */
    char *owned_name;
    const unsigned char *map;
    size_t n_map;
    bool mapped;
    struct st_tensor *tensor; /* owned */
    size_t n, cap;
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

const char *st_dtype_name(enum st_dtype d)
{
    return dtypes[d].name;
}

uint32_t st_dtype_bytes(enum st_dtype d)
{
    return dtypes[d].bytes;
}

/* ---- the header's grammar ---- */

struct cursor {
    const unsigned char *p, *end, *begin;
    const char *file;
    struct err *e;
};

struct text {
    const char *p;
    size_t n;
};

static enum err_code bad(struct cursor *c, const char *expected)
{
    return err_set(c->e, ERR_INVALID, "%s: header byte %zu: expected %s", c->file,
                   (size_t)(c->p - c->begin), expected);
}

static void skip_space(struct cursor *c)
{
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\t' || *c->p == '\n' || *c->p == '\r'))
        c->p++;
}

static bool take(struct cursor *c, char ch)
{
    skip_space(c);
    if (c->p == c->end || *c->p != (unsigned char)ch)
        return false;
    c->p++;
    return true;
}

/* A JSON string; *escaped tells whether it holds a backslash. */
static enum err_code read_string(struct cursor *c, struct text *out, bool *escaped)
{
    if (!take(c, '"'))
        return bad(c, "a string");
    out->p = (const char *)c->p;
    *escaped = false;
    while (c->p < c->end && *c->p != '"') {
        if (*c->p < 0x20)
            return bad(c, "no control character inside a string");
        if (*c->p == '\\') {
            *escaped = true;
            c->p++;
            if (c->p == c->end)
                break;
        }
        c->p++;
    }
    if (c->p >= c->end)
        return bad(c, "the end of the string");
    out->n = (size_t)((const char *)c->p - out->p);
    c->p++;
    return ERR_OK;
}

static enum err_code read_uint(struct cursor *c, uint64_t *out)
{
    skip_space(c);
    const unsigned char *start = c->p;
    uint64_t v = 0;
    while (c->p < c->end && *c->p >= '0' && *c->p <= '9') {
        unsigned d = *c->p - '0';
        if (v > (UINT64_MAX - d) / 10)
            return bad(c, "a number below 2^64");
        v = v * 10 + d;
        c->p++;
    }
    if (c->p == start || (c->p - start > 1 && *start == '0'))
        return bad(c, "a non-negative integer");
    *out = v;
    return ERR_OK;
}

/* [a, b, ...]: at most max numbers; the rest is an error. */
static enum err_code read_numbers(struct cursor *c, uint64_t *out, uint32_t max, uint32_t *n)
{
    *n = 0;
    if (!take(c, '['))
        return bad(c, "a list of integers");
    if (take(c, ']'))
        return ERR_OK;
    do {
        if (*n == max)
            return bad(c, "fewer numbers in this list");
        enum err_code rc = read_uint(c, &out[(*n)++]);
        if (rc)
            return rc;
    } while (take(c, ','));
    return take(c, ']') ? ERR_OK : bad(c, "',' or ']'");
}

static bool text_is(struct text t, const char *s)
{
    return t.n == strlen(s) && memcmp(t.p, s, t.n) == 0;
}

static enum err_code read_metadata(struct cursor *c)
{
    struct text t;
    bool escaped;
    if (!take(c, '{'))
        return bad(c, "an object of strings as __metadata__");
    if (take(c, '}'))
        return ERR_OK;
    do {
        enum err_code rc = read_string(c, &t, &escaped);
        if (rc)
            return rc;
        if (!take(c, ':'))
            return bad(c, "':'");
        rc = read_string(c, &t, &escaped);
        if (rc)
            return rc;
    } while (take(c, ','));
    return take(c, '}') ? ERR_OK : bad(c, "',' or '}'");
}

static enum err_code read_dtype(struct cursor *c, const struct st_tensor *t, enum st_dtype *out)
{
    struct text s;
    bool escaped;
    enum err_code rc = read_string(c, &s, &escaped);
    if (rc)
        return rc;
    for (int d = 0; d < ST_DTYPES; d++) {
        if (text_is(s, dtypes[d].name)) {
            *out = (enum st_dtype)d;
            return ERR_OK;
        }
    }
    return err_set(c->e, ERR_INVALID, "%s: tensor %.*s: dtype \"%.*s\" is not known", c->file,
                   (int)t->n_name, t->name, (int)(s.n < 32 ? s.n : 32), s.p);
}

/* {"dtype":..., "shape":[...], "data_offsets":[a, b]} in any order, each once. */
static enum err_code read_entry(struct cursor *c, struct st_tensor *t, uint64_t off[2])
{
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4 };
    unsigned seen = 0;
    if (!take(c, '{'))
        return bad(c, "'{'");
    do {
        struct text key;
        bool escaped;
        uint32_t n = 0;
        enum err_code rc = read_string(c, &key, &escaped);
        if (rc)
            return rc;
        if (!take(c, ':'))
            return bad(c, "':'");
        unsigned bit = text_is(key, "dtype")          ? DTYPE
                       : text_is(key, "shape")        ? SHAPE
                       : text_is(key, "data_offsets") ? OFFSETS
                                                      : 0;
        if (bit == 0 || (seen & bit) != 0)
            return bad(c, "dtype, shape and data_offsets, each once");
        seen |= bit;
        if (bit == DTYPE)
            rc = read_dtype(c, t, &t->dtype);
        else if (bit == SHAPE)
            rc = read_numbers(c, t->shape, ST_MAX_DIMS, &t->n_dims);
        else
            rc = read_numbers(c, off, 2, &n);
        if (rc)
            return rc;
        if (bit == OFFSETS && n != 2)
            return bad(c, "two data_offsets");
    } while (take(c, ','));
    if (!take(c, '}'))
        return bad(c, "',' or '}'");
    return seen == (DTYPE | SHAPE | OFFSETS) ? ERR_OK : bad(c, "dtype, shape and data_offsets");
}

/* ---- meaning ---- */

static enum err_code check_entry(struct cursor *c, struct st_tensor *t, const uint64_t off[2],
                                 uint64_t n_data)
{
    t->n_elements = 1;
    for (uint32_t i = 0; i < t->n_dims; i++) {
        if (t->shape[i] != 0 && t->n_elements > (uint64_t)INT64_MAX / t->shape[i])
            return err_set(c->e, ERR_INVALID, "%s: tensor %.*s: its shape overflows 2^63", c->file,
                           (int)t->n_name, t->name);
        t->n_elements *= t->shape[i];
    }
    if (t->n_elements > (uint64_t)INT64_MAX / dtypes[t->dtype].bytes)
        return err_set(c->e, ERR_INVALID, "%s: tensor %.*s: its size overflows 2^63", c->file,
                       (int)t->n_name, t->name);
    t->n_bytes = t->n_elements * dtypes[t->dtype].bytes;
    if (off[0] > off[1] || off[1] > n_data)
        return err_set(c->e, ERR_INVALID,
                       "%s: tensor %.*s: data_offsets [%llu, %llu], expected ascending and at most "
                       "%llu (the data's size)",
                       c->file, (int)t->n_name, t->name, (unsigned long long)off[0],
                       (unsigned long long)off[1], (unsigned long long)n_data);
    if (off[1] - off[0] != t->n_bytes)
        return err_set(c->e, ERR_INVALID,
                       "%s: tensor %.*s: data_offsets span %llu bytes, its shape and dtype %s "
                       "need %llu",
                       c->file, (int)t->n_name, t->name, (unsigned long long)(off[1] - off[0]),
                       dtypes[t->dtype].name, (unsigned long long)t->n_bytes);
    return ERR_OK;
}

static enum err_code push(struct st_file *f, const struct st_tensor *t, struct err *e)
{
    if (f->n == f->cap) {
        size_t cap = f->cap ? f->cap * 2 : 64;
        struct st_tensor *grown = realloc(f->tensor, cap * sizeof *grown);
        if (grown == NULL)
            return err_nomem(e, "safetensors tensor list", cap * sizeof *grown);
        f->tensor = grown;
        f->cap = cap;
    }
    f->tensor[f->n++] = *t;
    return ERR_OK;
}

static enum err_code read_tensor(struct st_file *f, struct cursor *c, struct text name,
                                 const unsigned char *data, uint64_t n_data)
{
    struct st_tensor t = { .name = name.p, .n_name = (uint32_t)name.n };
    uint64_t off[2] = { 0, 0 };
    enum err_code rc = read_entry(c, &t, off);
    if (rc)
        return rc;
    rc = check_entry(c, &t, off, n_data);
    if (rc)
        return rc;
    t.data = data + off[0];
    return push(f, &t, c->e);
}

static enum err_code read_header(struct st_file *f, struct cursor *c, const unsigned char *data,
                                 uint64_t n_data)
{
    bool metadata = false;
    if (!take(c, '{'))
        return bad(c, "'{'");
    if (take(c, '}'))
        goto end;
    do {
        struct text name;
        bool escaped;
        enum err_code rc = read_string(c, &name, &escaped);
        if (rc)
            return rc;
        if (escaped || name.n == 0 || name.n > 1024)
            return bad(c, "a tensor name of 1 to 1024 bytes without escapes");
        if (!take(c, ':'))
            return bad(c, "':'");
        if (text_is(name, "__metadata__")) {
            if (metadata)
                return bad(c, "__metadata__ once");
            metadata = true;
            rc = read_metadata(c);
        } else {
            rc = read_tensor(f, c, name, data, n_data);
        }
        if (rc)
            return rc;
    } while (take(c, ','));
    if (!take(c, '}'))
        return bad(c, "',' or '}'");
end:
    skip_space(c);
    return c->p == c->end ? ERR_OK : bad(c, "nothing after the header's object");
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
    for (size_t i = 1; i < f->n; i++) {
        const struct st_tensor *t = &f->tensor[i];
        if (by_name(t - 1, t) == 0)
            return err_set(e, ERR_INVALID, "%s: tensor %.*s: named twice", f->name, (int)t->n_name,
                           t->name);
    }
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
    struct cursor c = {
        .p = f->map + 8, .end = f->map + 8 + n_header, .begin = f->map + 8, .file = f->name, .e = e
    };
    const unsigned char *data = c.end;
    uint64_t n_data = f->n_map - 8 - n_header;
    if (!utf8_is_valid((const char *)c.p, n_header))
        return err_set(e, ERR_INVALID, "%s: the header is not valid UTF-8", f->name);
    enum err_code rc = read_header(f, &c, data, n_data);
    if (rc)
        return rc;
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

enum err_code st_open(struct st_file **out, const char *path, struct err *e)
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
    st_close(f);
    return rc;
}

enum err_code st_open_bytes(struct st_file **out, const char *name, const void *bytes,
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
        st_close(f);
        return rc;
    }
    *out = f;
    return ERR_OK;
}

void st_close(struct st_file *f)
{
    if (f == NULL)
        return;
    if (f->mapped)
        munmap((void *)f->map, f->n_map);
    free(f->tensor);
    free(f->owned_name);
    free(f);
}

size_t st_n_tensors(const struct st_file *f)
{
    return f->n;
}

const struct st_tensor *st_tensor_at(const struct st_file *f, size_t i)
{
    return &f->tensor[i];
}

const struct st_tensor *st_find(const struct st_file *f, const char *name)
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
