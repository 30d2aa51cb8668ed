/* checkpoint.c: see checkpoint.h. */
#include "model/load/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/load/json_file.h"

enum { INDEX_MAX_BYTES = 64 << 20, SHARDS_MAX = 4096, NAME_SHOWN = 200 };

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

static enum err_code open_shard(struct checkpoint *c, const char *name, struct st_file **out,
                                struct err *e)
{
    size_t n = strlen(c->dir) + strlen(name) + 2;
    char *path = malloc(n);
    if (path == NULL)
        return err_nomem(e, "path", n);
    snprintf(path, n, "%s/%s", c->dir, name);
    enum err_code rc = st_open(out, path, e);
    free(path);
    return rc;
}

static enum err_code add_shard(struct checkpoint *c, const char *name, struct shard **out,
                               struct err *e)
{
    if (c->n_shards == SHARDS_MAX)
        return err_set(e, ERR_INVALID, "model.safetensors.index.json: more than %d shards",
                       SHARDS_MAX);
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
    c->n = st_n_tensors(s->file);
    c->entry = calloc(c->n + 1, sizeof *c->entry);
    if (c->entry == NULL)
        return err_nomem(e, "tensor list", (c->n + 1) * sizeof *c->entry);
    for (size_t i = 0; i < c->n; i++)
        c->entry[i] = (struct entry){ .tensor = st_tensor_at(s->file, i) };
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

static enum err_code add_indexed(struct checkpoint *c, const cJSON *item, struct err *e)
{
    if (!cJSON_IsString(item) || !is_plain(item->valuestring))
        return err_set(e, ERR_INVALID,
                       "model.safetensors.index.json: weight_map.%.*s: expected the name of a file "
                       "in the model's directory",
                       NAME_SHOWN, item->string);
    struct shard *s;
    enum err_code rc = find_shard(c, item->valuestring, &s, e);
    if (rc)
        return rc;
    const struct st_tensor *t = st_find(s->file, item->string);
    if (t == NULL)
        return err_set(e, ERR_INVALID,
                       "model.safetensors.index.json: tensor %.*s is said to be in %s, which does "
                       "not hold it",
                       NAME_SHOWN, item->string, s->name);
    c->entry[c->n++] = (struct entry){ .tensor = t };
    return ERR_OK;
}

static enum err_code check_duplicates(const struct checkpoint *c, struct err *e)
{
    for (size_t i = 1; i < c->n; i++) {
        if (by_name(&c->entry[i - 1], &c->entry[i]) == 0)
            return err_set(e, ERR_INVALID,
                           "model.safetensors.index.json: tensor %.*s is named twice",
                           (int)c->entry[i].tensor->n_name, c->entry[i].tensor->name);
    }
    return ERR_OK;
}

static enum err_code open_indexed(struct checkpoint *c, const cJSON *root, struct err *e)
{
    struct json_object o = { root, "model.safetensors.index.json", "" };
    const cJSON *map = NULL;
    enum err_code rc = json_get_object(&o, "weight_map", &map, e);
    if (rc)
        return rc;
    if (map == NULL)
        return json_missing(&o, "weight_map", "an object from tensor name to file name", e);
    size_t n = (size_t)cJSON_GetArraySize(map);
    c->entry = calloc(n + 1, sizeof *c->entry);
    if (c->entry == NULL)
        return err_nomem(e, "tensor list", (n + 1) * sizeof *c->entry);
    for (const cJSON *item = map->child; item != NULL; item = item->next) {
        rc = add_indexed(c, item, e);
        if (rc)
            return rc;
    }
    qsort(c->entry, c->n, sizeof *c->entry, by_name);
    return check_duplicates(c, e);
}

static enum err_code open_files(struct checkpoint *c, struct err *e)
{
    size_t n = strlen(c->dir) + sizeof "/model.safetensors";
    char *path = malloc(n);
    if (path == NULL)
        return err_nomem(e, "path", n);
    snprintf(path, n, "%s/model.safetensors", c->dir);
    bool single = access(path, F_OK) == 0;
    free(path);
    if (single)
        return open_single(c, e);
    cJSON *root = NULL;
    enum err_code rc =
        json_file_read(&root, c->dir, "model.safetensors.index.json", INDEX_MAX_BYTES, e);
    if (rc)
        return rc;
    if (root == NULL)
        return err_set(e, ERR_IO,
                       "%s: holds neither model.safetensors nor model.safetensors.index.json",
                       c->dir);
    rc = open_indexed(c, root, e);
    cJSON_Delete(root);
    return rc;
}

enum err_code checkpoint_open(struct checkpoint **out, const char *dir, struct err *e)
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
    checkpoint_close(c);
    return rc;
}

void checkpoint_close(struct checkpoint *c)
{
    if (c == NULL)
        return;
    for (size_t i = 0; i < c->n_shards; i++) {
        st_close(c->shard[i].file);
        free(c->shard[i].name);
    }
    free(c->shard);
    free(c->entry);
    free(c->dir);
    free(c);
}

const struct st_tensor *checkpoint_find(struct checkpoint *c, const char *name)
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

enum err_code checkpoint_need(struct checkpoint *c, const char *name, uint32_t n_dims,
                              const uint64_t *shape, const struct st_tensor **out, struct err *e)
{
    char want[192], got[192];
    print_shape(want, sizeof want, n_dims, shape);
    const struct st_tensor *t = checkpoint_find(c, name);
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
                       name, st_dtype_name(t->dtype));
    *out = t;
    return ERR_OK;
}

size_t checkpoint_n_tensors(const struct checkpoint *c)
{
    return c->n;
}

const struct st_tensor *checkpoint_at(const struct checkpoint *c, size_t i, bool *used)
{
    *used = c->entry[i].used;
    return c->entry[i].tensor;
}
