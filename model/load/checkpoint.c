/* checkpoint.c: see checkpoint.h. */
#include "model/load/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/text/json.h"

#define INDEX "model.safetensors.index.json"

enum { INDEX_MAX_BYTES = 64 << 20, INDEX_MAX_VALUES = 4 << 20, SHARDS_MAX = 4096 };
enum { NAME_SHOWN = 200 };

struct entry {
    const struct st_tensor *tensor;
    bool used;
};

struct shard {
    char *name; /* owned: the file's name inside the directory */
    struct st_file *file;
};

struct checkpoint {
    char *dir;
    struct shard *shard;
    size_t n_shards;
    struct entry *entry; /* sorted by name */
    size_t n;
};

static int order(const struct st_tensor *t, const char *name, size_t n)
{
    int d = memcmp(t->name, name, t->n_name < n ? t->n_name : n);
    return d != 0 ? d : (t->n_name > n) - (t->n_name < n);
}

static int by_name(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return order(x->tensor, y->tensor->name, y->tensor->n_name);
}

/* DIR/name, taken by the caller; NULL after err_nomem. */
static char *path_of(const struct checkpoint *c, const char *name, struct err *e)
{
    struct buf path = { 0 };
    size_t n;
    buf_printf(&path, "%s/%s", c->dir, name);
    char *p = buf_take(&path, &n);
    if (p == NULL)
        err_nomem(e, "path", strlen(c->dir) + strlen(name) + 2);
    return p;
}

static enum err_code open_shard(struct checkpoint *c, const char *name, struct st_file **out,
                                struct err *e)
{
    char *path = path_of(c, name, e);
    if (path == NULL)
        return ERR_NOMEM;
    enum err_code rc = model_st_open(out, path, e);
    free(path);
    return rc;
}

static enum err_code add_shard(struct checkpoint *c, const char *name, struct shard **out,
                               struct err *e)
{
    if (c->n_shards == SHARDS_MAX)
        return err_set(e, ERR_INVALID, INDEX ": more than %d shards", SHARDS_MAX);
    struct shard *grown = realloc(c->shard, (c->n_shards + 1) * sizeof *grown);
    if (grown == NULL)
        return err_nomem(e, "shard list", (c->n_shards + 1) * sizeof *grown);
    c->shard = grown;
    struct shard *s = &c->shard[c->n_shards];
    s->file = NULL;
    s->name = strdup(name);
    if (s->name == NULL)
        return err_nomem(e, "shard name", strlen(name) + 1);
    c->n_shards++;
    enum err_code rc = open_shard(c, name, &s->file, e);
    *out = s;
    return rc;
}

static enum err_code open_single(struct checkpoint *c, struct err *e)
{
    struct shard *s;
    enum err_code rc = add_shard(c, "model.safetensors", &s, e);
    if (rc)
        return rc;
    c->n = model_st_n_tensors(s->file);
    c->entry = calloc(c->n + 1, sizeof *c->entry);
    if (c->entry == NULL)
        return err_nomem(e, "tensor list", (c->n + 1) * sizeof *c->entry);
    for (size_t i = 0; i < c->n; i++)
        c->entry[i] = (struct entry){ .tensor = model_st_tensor_at(s->file, i) };
    return ERR_OK;
}

/* A plain file name: no separator, no way out of the directory. */
static bool is_plain(const char *name)
{
    return name[0] != '\0' && name[0] != '.' && strchr(name, '/') == NULL && strlen(name) < 256;
}

static enum err_code find_shard(struct checkpoint *c, const char *name, struct shard **out,
                                struct err *e)
{
    /* Tensors of a shard mostly follow each other in the index. */
    for (size_t i = c->n_shards; i-- > 0;) {
        if (strcmp(c->shard[i].name, name) == 0) {
            *out = &c->shard[i];
            return ERR_OK;
        }
    }
    return add_shard(c, name, out, e);
}

/* The member of weight_map that puts tensor `name` into a file. */
static enum err_code add_indexed(struct checkpoint *c, const struct json *name,
                                 const struct json *file, struct err *e)
{
    if (file->kind != JSON_STRING || strlen(file->u.string) != file->n || !is_plain(file->u.string))
        return err_set(e, ERR_INVALID,
                       INDEX ": weight_map.%.*s: expected the name of a file "
                             "in the model's directory",
                       NAME_SHOWN, name->u.string);
    struct shard *s;
    enum err_code rc = find_shard(c, file->u.string, &s, e);
    if (rc)
        return rc;
    const struct st_tensor *t = model_st_find(s->file, name->u.string);
    if (t == NULL)
        return err_set(e, ERR_INVALID,
                       INDEX ": tensor %.*s is said to be in %s, which does "
                             "not hold it",
                       NAME_SHOWN, name->u.string, s->name);
    c->entry[c->n++] = (struct entry){ .tensor = t };
    return ERR_OK;
}

static enum err_code open_indexed(struct checkpoint *c, const struct json *root, struct err *e)
{
    const struct json *map = json_get(root, "weight_map");
    if (map == NULL || map->kind != JSON_OBJECT)
        return err_set(e, ERR_INVALID,
                       INDEX ": weight_map is %s, expected an object from tensor name to file name",
                       map == NULL ? "missing" : json_kind_name(map));
    c->entry = calloc(map->n + 1u, sizeof *c->entry);
    if (c->entry == NULL)
        return err_nomem(e, "tensor list", (map->n + 1u) * sizeof *c->entry);
    const struct json *name = json_first(map);
    for (uint32_t i = 0; i < map->n; i++, name = json_next(name + 1)) {
        enum err_code rc = add_indexed(c, name, name + 1, e);
        if (rc)
            return rc;
    }
    qsort(c->entry, c->n, sizeof *c->entry, by_name);
    return ERR_OK;
}

/* The shards that the index at path names. */
static enum err_code read_index(struct checkpoint *c, const char *path, struct err *e)
{
    struct buf text = { 0 };
    struct json_doc doc = { 0 };
    enum err_code rc = buf_read_file(&text, path, INDEX_MAX_BYTES, e);
    if (rc == ERR_NOT_FOUND)
        rc = err_set(e, ERR_IO, "%s: holds neither model.safetensors nor " INDEX, c->dir);
    if (!rc)
        rc = json_parse_in_place(&doc, INDEX, text.p, text.n, INDEX_MAX_VALUES, e);
    if (!rc)
        rc = open_indexed(c, doc.value, e);
    json_doc_fini(&doc);
    buf_fini(&text);
    return rc;
}

static enum err_code open_files(struct checkpoint *c, struct err *e)
{
    char *single = path_of(c, "model.safetensors", e), *index = path_of(c, INDEX, e);
    enum err_code rc = single && index ? ERR_OK : ERR_NOMEM;
    if (!rc)
        rc = access(single, F_OK) == 0 ? open_single(c, e) : read_index(c, index, e);
    free(single);
    free(index);
    return rc;
}

enum err_code model_checkpoint_open(struct checkpoint **out, const char *dir, struct err *e)
{
    struct checkpoint *c = calloc(1, sizeof *c);
    if (c == NULL)
        return err_nomem(e, "checkpoint", sizeof *c);
    enum err_code rc;
    c->dir = strdup(dir);
    if (c->dir == NULL) {
        rc = err_nomem(e, "checkpoint path", strlen(dir) + 1);
        goto fail;
    }
    rc = open_files(c, e);
    if (rc)
        goto fail;
    *out = c;
    return ERR_OK;

fail:
    model_checkpoint_close(c);
    return rc;
}

void model_checkpoint_close(struct checkpoint *c)
{
    if (c == NULL)
        return;
    for (size_t i = 0; i < c->n_shards; i++) {
        model_st_close(c->shard[i].file);
        free(c->shard[i].name);
    }
    free(c->shard);
    free(c->entry);
    free(c->dir);
    free(c);
}

const struct st_tensor *model_checkpoint_find(struct checkpoint *c, const char *name)
{
    size_t lo = 0, hi = c->n, n = strlen(name);
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int d = order(c->entry[mid].tensor, name, n);
        if (d == 0) {
            c->entry[mid].used = true;
            return c->entry[mid].tensor;
        }
        if (d > 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

static void print_shape(char *out, size_t cap, uint32_t n, const uint64_t *shape)
{
    size_t at = (size_t)snprintf(out, cap, "[");
    for (uint32_t i = 0; i < n && at < cap; i++)
        at += (size_t)snprintf(out + at, cap - at, "%s%llu", i ? ", " : "",
                               (unsigned long long)shape[i]);
    if (at < cap)
        snprintf(out + at, cap - at, "]");
}

enum err_code model_checkpoint_need(struct checkpoint *c, const char *name, uint32_t n_dims,
                                    const uint64_t *shape, const struct st_tensor **out,
                                    struct err *e)
{
    char want[192], got[192];
    print_shape(want, sizeof want, n_dims, shape);
    const struct st_tensor *t = model_checkpoint_find(c, name);
    if (t == NULL)
        return err_set(e, ERR_INVALID, "checkpoint: tensor %s is missing, expected shape %s", name,
                       want);
    bool same = t->n_dims == n_dims;
    for (uint32_t i = 0; same && i < n_dims; i++)
        same = t->shape[i] == shape[i];
    if (!same) {
        print_shape(got, sizeof got, t->n_dims, t->shape);
        return err_set(e, ERR_INVALID,
                       "checkpoint: tensor %s has shape %s, config.json makes it %s", name, got,
                       want);
    }
    if (t->dtype != ST_BF16 && t->dtype != ST_F16 && t->dtype != ST_F32)
        return err_set(e, ERR_INVALID, "checkpoint: tensor %s is %s, expected BF16, F16 or F32",
                       name, model_st_dtype_name(t->dtype));
    *out = t;
    return ERR_OK;
}

size_t model_checkpoint_n_tensors(const struct checkpoint *c)
{
    return c->n;
}

const struct st_tensor *model_checkpoint_at(const struct checkpoint *c, size_t i, bool *used)
{
    *used = c->entry[i].used;
    return c->entry[i].tensor;
}
