/* attn_case.c: reading a conformance case; see attn_case.h. */
#include "conformance/attn_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "attention/feature_math.h"
#include "proto/number/formats.h"

int64_t attn_elements(const struct attn_tensor *t)
{
    int64_t n = t->rank > 0;
    for (int i = 0; i < t->rank; i++)
        n *= t->shape[i];
    return n;
}

static bool complain(const char *path, const char *what)
{
    fprintf(stderr, "%s: %s\n", path, what);
    return false;
}

/* ---- small JSON helpers ----------------------------------------------------- */

static const cJSON *get(const cJSON *o, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(o, key);
}

static double number(const cJSON *o, const char *key, double absent)
{
    const cJSON *v = get(o, key);
    return cJSON_IsNumber(v) ? v->valuedouble : absent;
}

static const char *text(const cJSON *o, const char *key)
{
    const cJSON *v = get(o, key);
    return cJSON_IsString(v) ? v->valuestring : "";
}

static char *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *data;
    long size;
    if (f == NULL)
        return NULL;
    fseek(f, 0, SEEK_END);
    size = ftell(f);
    rewind(f);
    data = calloc(1, (size_t)size + 1);
    if (data != NULL && fread(data, 1, (size_t)size, f) != (size_t)size) {
        free(data);
        data = NULL;
    }
    fclose(f);
    *n = (size_t)size;
    return data;
}

/* ---- filling ------------------------------------------------------------------ */

static uint64_t key_hash(const char *key, const char *name)
{
    uint64_t h = 0xCBF29CE484222325u;
    char full[256];
    snprintf(full, sizeof full, "%s/%s", key, name);
    for (const char *p = full; *p != '\0'; p++)
        h = (h ^ (uint8_t)*p) * 0x100000001B3u;
    return h;
}

static uint64_t word_of(uint64_t h, int64_t i)
{
    uint64_t z = h + (uint64_t)(i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static void put(struct attn_tensor *t, int64_t i, double x)
{
    switch (t->dtype) {
    case ATTN_F32:
        ((float *)t->data)[i] = (float)x;
        break;
    case ATTN_F16:
        ((uint16_t *)t->data)[i] = float_to_f16((float)x);
        break;
    case ATTN_BF16:
        ((uint16_t *)t->data)[i] = float_to_bf16((float)x);
        break;
    case ATTN_INT8:
        ((int8_t *)t->data)[i] = (int8_t)x;
        break;
    case ATTN_I32:
        ((int32_t *)t->data)[i] = (int32_t)x;
        break;
    default:
        ((uint8_t *)t->data)[i] = (uint8_t)x;
        break;
    }
}

/* Arithmetic shift and power of two, as the format defines "real". */
static double real_value(uint64_t word, int shift, int exp, double offset)
{
    int v = (int8_t)(word >> 56), q = v >= 0 ? v >> shift : ~(~v >> shift);
    double scale = 1;
    for (int i = 0; i < (exp < 0 ? -exp : exp); i++)
        scale *= exp < 0 ? 0.5 : 2;
    return offset + q * scale;
}

static bool fill(struct attn_tensor *t, const cJSON *entry, uint64_t hash)
{
    const char *kind = text(entry, "fill");
    int64_t n = attn_elements(t);
    if (strcmp(kind, "values") == 0) {
        int64_t i = 0;
        const cJSON *v;
        cJSON_ArrayForEach(v, get(entry, "values"))
        {
            if (i < n)
                put(t, i, v->valuedouble);
            i++;
        }
        return i == n;
    }
    for (int64_t i = 0; i < n; i++) {
        uint64_t w = word_of(hash, i);
        if (strcmp(kind, "e4m3") == 0)
            ((uint8_t *)t->data)[i] =
                (uint8_t)(w >> 63 << 7 | (5 + (w >> 61 & 3)) << 3 | (w >> 58 & 7));
        else
            put(t, i,
                real_value(w, (int)number(entry, "shift", 0), (int)number(entry, "exp", 0),
                           number(entry, "offset", 0)));
    }
    return strcmp(kind, "e4m3") == 0 || strcmp(kind, "real") == 0 || *kind == '\0';
}

/* ---- the parts of a case --------------------------------------------------------- */

static bool dtype_of(const char *name, enum attn_dtype *out)
{
    for (int d = 0; d < ATTN_DTYPES; d++)
        if (strcmp(name, attn_dtype_name(d)) == 0) {
            *out = d;
            return true;
        }
    return false;
}

static int32_t quant_of(const char *s)
{
    return strcmp(s, "PER_TENSOR") == 0           ? ATTN_PER_TENSOR
           : strcmp(s, "PER_CHANNEL") == 0        ? ATTN_PER_CHANNEL
           : strcmp(s, "NONE") == 0 || *s == '\0' ? ATTN_QUANT_NONE
                                                  : -1;
}

static void load_attrs(struct attn_case *c, const cJSON *a)
{
    c->attrs = attn_attrs_default((int32_t)number(a, "num_heads", 0),
                                  (int32_t)number(a, "kv_num_heads", 0));
    c->attrs.scale = (float)number(a, "scale", 0);
    c->attrs.softcap = (float)number(a, "softcap", 0);
    c->attrs.local_window_size = (int32_t)number(a, "local_window_size", -1);
    c->attrs.do_rotary = (int32_t)number(a, "do_rotary", 0);
    c->attrs.rotary_interleaved = (int32_t)number(a, "rotary_interleaved", 0);
    c->attrs.rotary_offset = (int32_t)number(a, "rotary_offset", 0);
    c->attrs.qk_norm_epsilon = (float)number(a, "qk_norm_epsilon", 1e-6);
    c->attrs.k_quant_type = quant_of(text(a, "k_quant_type"));
    c->attrs.v_quant_type = quant_of(text(a, "v_quant_type"));
    c->attrs.kv_cache_layout =
        strcmp(text(a, "kv_cache_layout"), "LATENT") == 0 ? ATTN_LATENT : ATTN_SEPARATE;
    c->attrs.v_head_size = (int32_t)number(a, "v_head_size", 0);
    c->attrs.qk_output = (int32_t)number(a, "qk_output", 0);
    /* Cache dtype names would outlive the document as pointers to constants. */
    enum attn_dtype d;
    if (dtype_of(text(a, "k_cache_dtype"), &d))
        c->attrs.k_cache_dtype = attn_dtype_name(d);
    if (dtype_of(text(a, "v_cache_dtype"), &d))
        c->attrs.v_cache_dtype = attn_dtype_name(d);
}

static enum attn_dtype input_dtype(const struct attn_case *c, int i)
{
    switch (i) {
    case ATTN_KEY_CACHE:
    case ATTN_VALUE_CACHE:
        return c->cache_dtype;
    case ATTN_K_SCALE:
    case ATTN_V_SCALE:
        return ATTN_F32;
    case ATTN_CU_SEQLENS:
    case ATTN_PAST_SEQLENS:
    case ATTN_BLOCK_TABLE:
    case ATTN_SLOT_MAPPING:
    case ATTN_METADATA:
    case ATTN_QUERY_POSITIONS:
        return ATTN_I32;
    default:
        return c->dtype;
    }
}

static int32_t load_shape(const cJSON *entry, int64_t shape[ATTN_RANK])
{
    int32_t rank = 0;
    const cJSON *v;
    cJSON_ArrayForEach(v, get(entry, "shape"))
    {
        if (rank < ATTN_RANK)
            shape[rank] = (int64_t)v->valuedouble;
        rank++;
    }
    return rank <= ATTN_RANK ? rank : 0;
}

static bool load_inputs(struct attn_case *c, const cJSON *doc, const char *path)
{
    const cJSON *entry;
    cJSON_ArrayForEach(entry, get(doc, "inputs"))
    {
        int i = 0;
        struct attn_tensor *t;
        while (i < ATTN_INPUTS && strcmp(entry->string, attn_input_name(i)) != 0)
            i++;
        if (i == ATTN_INPUTS)
            return complain(path, "an input of unknown name");
        t = &c->in[i];
        t->dtype = input_dtype(c, i);
        t->rank = load_shape(entry, t->shape);
        /* One element more, so that empty tensors have an address too. */
        t->data = calloc((size_t)attn_elements(t) + 1, attn_dtype_bytes(t->dtype));
        if (t->rank == 0 || t->data == NULL ||
            !fill(t, entry, key_hash(text(doc, "key"), entry->string)))
            return complain(path, "an input cannot be filled");
    }
    return true;
}

/* Copy query row [token, head] over row `at` of key or key_cache. */
static bool plant(struct attn_case *c, const cJSON *p)
{
    int32_t into = strcmp(text(p, "into"), "key") == 0 ? ATTN_KEY : ATTN_KEY_CACHE;
    struct attn_tensor *t = &c->in[into];
    const struct attn_tensor *q = &c->in[ATTN_QUERY];
    size_t row = (size_t)c->head_size * attn_dtype_bytes(q->dtype);
    const cJSON *at = get(p, "at"), *from = get(p, "query"), *v;
    int64_t index = 0, source, d = 0;
    if (!attn_present(t) || t->dtype != q->dtype)
        return false;
    cJSON_ArrayForEach(v, at)
    {
        int64_t n = into == ATTN_KEY ? (d == 0 ? 1 : c->attrs.kv_num_heads) : t->shape[d];
        index = index * (d == 0 ? 1 : n) + (int64_t)v->valuedouble;
        d++;
    }
    source = (int64_t)cJSON_GetArrayItem(from, 0)->valuedouble * q->shape[1] +
             (int64_t)cJSON_GetArrayItem(from, 1)->valuedouble * c->head_size;
    memcpy((char *)t->data + (size_t)index * row,
           (const char *)q->data + (size_t)source * attn_dtype_bytes(q->dtype), row);
    return true;
}

static bool load_expect(struct attn_case *c, const cJSON *doc, const char *path)
{
    static const char *const names[EXPECTS] = { "output", "key_cache", "value_cache", "output_qk" };
    for (int i = 0; i < EXPECTS; i++) {
        const cJSON *entry = get(get(doc, "expect"), names[i]);
        char file[1024];
        const char *slash = strrchr(path, '/');
        size_t bytes = 0;
        int32_t rank;
        if (entry == NULL)
            continue;
        snprintf(file, sizeof file, "%.*s%s", slash ? (int)(slash - path + 1) : 0, path,
                 text(entry, "file"));
        c->want[i] = (float *)read_file(file, &bytes);
        rank = load_shape(entry, c->want_shape[i]);
        c->n_want[i] = 1;
        for (int d = 0; d < rank; d++)
            c->n_want[i] *= c->want_shape[i][d];
        if (c->want[i] == NULL || bytes != (size_t)c->n_want[i] * sizeof(float))
            return complain(path, "an expected file is missing or has another size");
    }
    return true;
}

bool attn_case_load(struct attn_case *c, const char *path)
{
    size_t n = 0;
    char *bytes = read_file(path, &n);
    cJSON *doc = bytes != NULL ? cJSON_ParseWithLength(bytes, n) : NULL;
    const cJSON *p;
    bool ok;
    memset(c, 0, sizeof *c);
    free(bytes);
    if (doc == NULL)
        return complain(path, "not readable as JSON");
    snprintf(c->id, sizeof c->id, "%s", text(doc, "id"));
    c->head_size = (int32_t)number(doc, "head_size", 0);
    load_attrs(c, get(doc, "attrs"));
    ok = dtype_of(text(doc, "dtype"), &c->dtype) &&
         dtype_of(text(doc, "cache_dtype"), &c->cache_dtype);
    if (!ok)
        complain(path, "unknown dtype");
    ok = ok && load_inputs(c, doc, path) && load_expect(c, doc, path);
    cJSON_ArrayForEach(p, get(doc, "plants")) ok = ok && plant(c, p);
    cJSON_Delete(doc);
    if (!ok)
        attn_case_free(c);
    return ok;
}

void attn_case_free(struct attn_case *c)
{
    for (int i = 0; i < ATTN_INPUTS; i++)
        free(c->in[i].data);
    for (int i = 0; i < EXPECTS; i++)
        free(c->want[i]);
    memset(c, 0, sizeof *c);
}
