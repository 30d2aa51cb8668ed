/* fixture.c: see fixture.h. */
#include "support/fixture.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/number/formats.h"

static enum err_code slurp(const char *path, char **out, size_t *n, struct err *e)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    char *p = malloc((size_t)size + 1);
    if (p == NULL || fread(p, 1, (size_t)size, f) != (size_t)size) {
        fclose(f);
        free(p);
        return err_set(e, ERR_IO, "%s: cannot be read", path);
    }
    fclose(f);
    p[size] = '\0';
    *out = p;
    *n = (size_t)size;
    return ERR_OK;
}

enum err_code fixture_copy(const char *from, const char *to, struct err *e)
{
    char *bytes;
    size_t n;
    enum err_code rc = slurp(from, &bytes, &n, e);
    if (rc)
        return rc;
    FILE *f = fopen(to, "wb");
    if (f == NULL || fwrite(bytes, 1, n, f) != n || fclose(f) != 0)
        rc = err_set(e, ERR_IO, "%s: cannot be written", to);
    free(bytes);
    return rc;
}

enum err_code fixture_temp_dir(char *out, size_t cap, struct err *e)
{
    const char *base = getenv("TMPDIR");
    snprintf(out, cap, "%s/quire-fixture-XXXXXX", base && *base ? base : "/tmp");
    return mkdtemp(out) ? ERR_OK : err_set(e, ERR_IO, "%s: %s", out, strerror(errno));
}

void fixture_remove(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *entry;
    while (d != NULL && (entry = readdir(d)) != NULL)
        if (entry->d_name[0] != '.')
            unlinkat(dirfd(d), entry->d_name, 0);
    if (d != NULL)
        closedir(d);
    rmdir(dir);
}

/* ---- reading ---- */

static const cJSON *member(const cJSON *o, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(o, key);
}

static uint32_t length(const cJSON *list)
{
    return list ? (uint32_t)cJSON_GetArraySize(list) : 0;
}

static enum err_code read_logits(struct fixture_prompt *p, const char *dir, const cJSON *o,
                                 struct err *e)
{
    char path[4096], *bytes;
    size_t n;
    const cJSON *name = member(o, "logits"), *shape = member(o, "shape");
    if (!cJSON_IsString(name) || length(shape) != 2 || (uint32_t)shape->child->valuedouble != p->n)
        return err_set(e, ERR_INVALID, "%s/fixture.json: a prompt's logits do not fit it", dir);
    p->vocab = (uint32_t)shape->child->next->valuedouble;
    snprintf(path, sizeof path, "%s/%s", dir, name->valuestring);
    enum err_code rc = slurp(path, &bytes, &n, e);
    if (rc)
        return rc;
    p->logits = (float *)(void *)bytes;
    if (n != (size_t)p->n * p->vocab * sizeof(float))
        return err_set(e, ERR_INVALID, "%s: %zu bytes, expected %zu", path, n,
                       (size_t)p->n * p->vocab * sizeof(float));
    return ERR_OK;
}

static enum err_code read_prompt(struct fixture_prompt *p, const char *dir, const cJSON *o,
                                 struct err *e)
{
    const cJSON *ids = member(o, "ids"), *greedy = member(o, "greedy");
    const cJSON *margins = member(o, "margins");
    uint32_t i = 0, j = 0;
    p->n_prompt = length(ids);
    p->n = p->n_prompt + length(greedy);
    p->token = calloc(p->n + 1, sizeof *p->token);
    p->margin = calloc(length(margins) + 1, sizeof *p->margin);
    if (p->token == NULL || p->margin == NULL)
        return err_nomem(e, "fixture prompt", p->n * 12ull);
    if (p->n_prompt == 0 || length(margins) != length(greedy))
        return err_set(e, ERR_INVALID, "%s/fixture.json: a prompt is incomplete", dir);
    for (const cJSON *v = ids->child; v != NULL; v = v->next)
        p->token[i++] = (int32_t)v->valuedouble;
    for (const cJSON *v = greedy->child; v != NULL; v = v->next)
        p->token[i++] = (int32_t)v->valuedouble;
    for (const cJSON *v = margins->child; v != NULL; v = v->next)
        p->margin[j++] = v->valuedouble;
    return read_logits(p, dir, o, e);
}

enum err_code fixture_read(struct fixture *f, const char *dir, struct err *e)
{
    char path[4096], *text;
    size_t n;
    memset(f, 0, sizeof *f);
    snprintf(path, sizeof path, "%s/fixture.json", dir);
    enum err_code rc = slurp(path, &text, &n, e);
    if (rc)
        return rc;
    f->root = cJSON_ParseWithLength(text, n);
    free(text);
    const cJSON *family = member(f->root, "family"), *prompts = member(f->root, "prompts");
    if (!cJSON_IsString(family) || !cJSON_IsObject(member(f->root, "tensors")) ||
        length(prompts) == 0 || length(prompts) > FIXTURE_PROMPTS)
        return err_set(e, ERR_INVALID, "%s: not a fixture", path);
    f->family = family->valuestring;
    for (const cJSON *p = prompts->child; p != NULL && rc == ERR_OK; p = p->next)
        rc = read_prompt(&f->prompt[f->n_prompts++], dir, p, e);
    return rc;
}

void fixture_fini(struct fixture *f)
{
    for (uint32_t i = 0; i < f->n_prompts; i++) {
        free(f->prompt[i].token);
        free(f->prompt[i].margin);
        free(f->prompt[i].logits);
    }
    cJSON_Delete(f->root);
}

/* ---- filling ---- */

static uint64_t fnv1a(const char *s, uint64_t h)
{
    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 0x100000001B3u;
    return h;
}

static uint64_t word_at(uint64_t h, uint64_t i)
{
    uint64_t z = h + (i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static double number(const cJSON *o, const char *key, double absent)
{
    const cJSON *v = member(o, key);
    return cJSON_IsNumber(v) ? v->valuedouble : absent;
}

static bool is_bytes(const cJSON *t)
{
    const cJSON *fill = member(t, "fill");
    return cJSON_IsString(fill) && strcmp(fill->valuestring, "bytes") == 0;
}

static uint64_t elements(const cJSON *t)
{
    uint64_t n = 1;
    const cJSON *shape = member(t, "shape");
    for (const cJSON *v = shape ? shape->child : NULL; v != NULL; v = v->next)
        n *= (uint64_t)v->valuedouble;
    return n;
}

static void write_tensor(FILE *f, const char *family, const cJSON *t)
{
    uint64_t h = fnv1a(t->string, fnv1a("/", fnv1a(family, 0xCBF29CE484222325u)));
    uint64_t n = elements(t);
    int shift = (int)number(t, "shift", 0);
    double offset = number(t, "offset", 0), unit = ldexp(1, (int)number(t, "exp", 0));
    unsigned base = (unsigned)number(t, "base", 0), mask = (unsigned)number(t, "mask", 255);
    bool bytes = is_bytes(t);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t word = word_at(h, i);
        if (bytes) {
            fputc((int)((base + ((unsigned)(word >> 56) & mask)) & 255), f);
            continue;
        }
        float v = (float)(offset + ((int8_t)(word >> 56) >> shift) * unit);
        uint16_t code = float_to_bf16(v);
        fputc(code & 255, f);
        fputc(code >> 8, f);
    }
}

static char *make_header(const cJSON *tensors)
{
    cJSON *header = cJSON_CreateObject();
    double at = 0;
    for (const cJSON *t = tensors->child; t != NULL; t = t->next) {
        cJSON *entry = cJSON_AddObjectToObject(header, t->string);
        double size = (double)elements(t) * (is_bytes(t) ? 1 : 2);
        cJSON_AddStringToObject(entry, "dtype", is_bytes(t) ? "U8" : "BF16");
        cJSON_AddItemToObject(entry, "shape", cJSON_Duplicate(member(t, "shape"), true));
        cJSON *offsets = cJSON_AddArrayToObject(entry, "data_offsets");
        cJSON_AddItemToArray(offsets, cJSON_CreateNumber(at));
        cJSON_AddItemToArray(offsets, cJSON_CreateNumber(at + size));
        at += size;
    }
    char *text = cJSON_PrintUnformatted(header);
    cJSON_Delete(header);
    return text;
}

enum err_code fixture_write_weights(const struct fixture *f, const char *to, struct err *e)
{
    char path[4096];
    const cJSON *tensors = member(f->root, "tensors");
    snprintf(path, sizeof path, "%s/model.safetensors", to);
    FILE *out = fopen(path, "wb");
    char *header = make_header(tensors);
    if (out == NULL || header == NULL) {
        if (out)
            fclose(out);
        free(header);
        return err_set(e, ERR_IO, "%s: cannot be written", path);
    }
    uint64_t n = strlen(header);
    for (int i = 0; i < 8; i++)
        fputc((int)(n >> 8 * i & 255), out);
    fwrite(header, 1, n, out);
    for (const cJSON *t = tensors->child; t != NULL; t = t->next)
        write_tensor(out, f->family, t);
    free(header);
    bool bad = ferror(out) != 0;
    if (fclose(out) != 0 || bad)
        return err_set(e, ERR_IO, "%s: cannot be written", path);
    return ERR_OK;
}
