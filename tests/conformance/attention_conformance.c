/* attention_conformance.c: run conformance cases of the attention operator.
 *
 *   attention_conformance [--backend cpu|cuda] [--plugin FILE] [--kernel NAME]
 *                         [--threads N] DIR...
 *
 * Every *.json of each DIR (or a single file) is one case.  It runs with
 * attention_metadata absent, tight and loose, which must agree to the bit, and
 * is held against the expected tensors; slots that nothing wrote must keep their
 * bytes.  One line a case with its error, then "N passed, M failed, K skipped";
 * exit code 0 when none failed and some passed.  float32 cases run on the CPU
 * alone. */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "attention/attn.h"
#include "attention/feature_math.h"
#include "proto/number/formats.h"
#include "attention/platform/workers.h"
#include "attention/platform/plugin.h"
#include "conformance/attn_case.h"
#include "support/plugin_path.h"

enum { BOUNDS_ABSENT, BOUNDS_TIGHT, BOUNDS_LOOSE, BOUNDS };

struct runner {
    struct attn *attn;
    int passed, failed, skipped;
};

/* Results of one run, on the host. */
struct result {
    void *out[EXPECTS]; /* output, key_cache, value_cache, output_qk: raw */
    size_t bytes[EXPECTS];
};

/* ---- memory of the backend ------------------------------------------------------ */

/* On the host plain heap, so that sanitizers see every bound. */
static void *device_new(struct runner *r, const void *host, size_t bytes)
{
    const struct attn_backend *b = attn_backend_of(r->attn);
    struct err e;
    void *p = NULL;
    if (b->device == ATTN_HOST) {
        p = malloc(bytes + (bytes == 0));
        if (p != NULL)
            memcpy(p, host, bytes);
        return p;
    }
    if (b->map(attn_backend_self(r->attn), bytes + 64, &p, &e) != ERR_OK ||
        b->copy_in(attn_backend_self(r->attn), p, host, bytes, &e) != ERR_OK) {
        fprintf(stderr, "device memory: %s\n", e.message);
        exit(2);
    }
    return p;
}

static void device_free(struct runner *r, void *p, size_t bytes)
{
    const struct attn_backend *b = attn_backend_of(r->attn);
    if (b->device == ATTN_HOST)
        free(p);
    else if (p != NULL)
        b->unmap(attn_backend_self(r->attn), p, bytes + 64);
}

static size_t tensor_bytes(const struct attn_tensor *t)
{
    return (size_t)attn_elements(t) * attn_dtype_bytes(t->dtype);
}

/* A tensor of the backend's device holding n bytes of `host`, or poison: bytes
 * 0xFF are NaN in every float type. */
static struct attn_tensor upload(struct runner *r, struct attn_tensor t, const void *host)
{
    size_t bytes = tensor_bytes(&t);
    void *poison = NULL;
    if (!attn_present(&t))
        return t;
    if (host == NULL) {
        poison = malloc(bytes + 1);
        memset(poison, 0xFF, bytes);
        host = poison;
    }
    t.device = attn_backend_of(r->attn)->device;
    t.data = device_new(r, host, bytes);
    free(poison);
    return t;
}

/* ---- running ---------------------------------------------------------------------- */

static void bounds_of(const struct attn_case *c, int32_t out[2])
{
    const int32_t *cu = c->in[ATTN_CU_SEQLENS].data, *past = c->in[ATTN_PAST_SEQLENS].data;
    out[0] = out[1] = 0;
    for (int64_t b = 0; b < c->in[ATTN_PAST_SEQLENS].shape[0]; b++) {
        int32_t n = cu[b + 1] - cu[b];
        out[0] = n > out[0] ? n : out[0];
        out[1] = past[b] + n > out[1] ? past[b] + n : out[1];
    }
}

static void shape_outputs(const struct attn_case *c, struct attn_args *a)
{
    int64_t tokens = c->in[ATTN_QUERY].shape[0];
    bool narrow = c->attrs.kv_cache_layout == ATTN_LATENT && c->attrs.v_head_size != 0;
    int64_t width = narrow ? c->attrs.v_head_size : c->head_size;
    a->out[ATTN_OUT] = attn_view(NULL, c->dtype, 2, tokens, c->attrs.num_heads * width, 0, 0);
    if (c->attrs.qk_output != ATTN_QK_NONE)
        a->out[ATTN_QK] = attn_view(NULL, ATTN_F32, 3, c->attrs.num_heads, tokens,
                                    c->want_shape[EXPECT_QK][2], 0);
}

static void take(struct runner *r, struct result *res, int i, const struct attn_tensor *t)
{
    struct err e;
    if (!attn_present(t))
        return;
    res->bytes[i] = tensor_bytes(t);
    res->out[i] = malloc(res->bytes[i] + 1);
    if (attn_backend_of(r->attn)->copy_out(attn_backend_self(r->attn), res->out[i], t->data,
                                           res->bytes[i], &e) != ERR_OK) {
        fprintf(stderr, "reading results: %s\n", e.message);
        exit(2);
    }
}

static bool run_case(struct runner *r, const struct attn_case *c, int bounds, struct result *res,
                     char *name, struct err *e)
{
    struct attn_args a = { 0 };
    struct attn_plan plan;
    int32_t meta[2];
    void *workspace = NULL;
    enum err_code rc;
    shape_outputs(c, &a);
    for (int i = 0; i < ATTN_INPUTS; i++)
        a.in[i] = upload(r, c->in[i], c->in[i].data);
    for (int o = 0; o < ATTN_OUTPUTS; o++)
        a.out[o] = upload(r, a.out[o], NULL);
    bounds_of(c, meta);
    if (bounds == BOUNDS_LOOSE) {
        meta[0] = 2 * meta[0] + 7;
        meta[1] = 2 * meta[1] + 300;
    }
    if (bounds != BOUNDS_ABSENT)
        a.in[ATTN_METADATA] = attn_view(meta, ATTN_I32, 1, 2, 0, 0, 0);
    rc = attn_plan(r->attn, &c->attrs, &a, &plan, e);
    if (rc == ERR_OK) {
        struct attn_tensor ws =
            attn_view(NULL, ATTN_INT8, 1, (int64_t)plan.workspace_bytes, 0, 0, 0);
        attn_plan_name(&plan, name, 64);
        workspace = upload(r, ws, NULL).data;
        rc = attn_run(r->attn, &plan, &a, workspace, NULL, e);
        take(r, res, EXPECT_OUTPUT, &a.out[ATTN_OUT]);
        take(r, res, EXPECT_KEY_CACHE, &a.in[ATTN_KEY_CACHE]);
        take(r, res, EXPECT_VALUE_CACHE, &a.in[ATTN_VALUE_CACHE]);
        take(r, res, EXPECT_QK, &a.out[ATTN_QK]);
        device_free(r, workspace, plan.workspace_bytes);
    }
    a.in[ATTN_METADATA].rank = 0;
    for (int i = 0; i < ATTN_INPUTS; i++)
        if (attn_present(&a.in[i]))
            device_free(r, a.in[i].data, tensor_bytes(&a.in[i]));
    for (int o = 0; o < ATTN_OUTPUTS; o++)
        if (attn_present(&a.out[o]))
            device_free(r, a.out[o].data, tensor_bytes(&a.out[o]));
    return rc == ERR_OK;
}

static void result_free(struct result *res)
{
    for (int i = 0; i < EXPECTS; i++)
        free(res->out[i]);
    memset(res, 0, sizeof *res);
}

/* ---- comparing -------------------------------------------------------------------- */

static double value_of(enum attn_dtype d, const void *p, int64_t i)
{
    switch (d) {
    case ATTN_F32:
        return ((const float *)p)[i];
    case ATTN_F16:
        return f16_to_float(((const uint16_t *)p)[i]);
    case ATTN_BF16:
        return bf16_to_float(((const uint16_t *)p)[i]);
    case ATTN_INT8:
        return ((const int8_t *)p)[i];
    default:
        return ((const uint8_t *)p)[i];
    }
}

static double tolerance(const struct attn_case *c, int which)
{
    double t = c->dtype == ATTN_F32 ? 2e-5 : c->dtype == ATTN_F16 ? 3e-3 : 2.5e-2;
    return which == EXPECT_QK && c->attrs.qk_output == ATTN_QK_SCORES ? 4 * t : t;
}

/* Distance between got and want in units of the tolerance. */
static double distance(double got, double want, double tol)
{
    if (isinf(want) || isinf(got))
        return got == want ? 0 : INFINITY;
    return isnan(got) ? INFINITY : fabs(got - want) / tol;
}

/* An e4m3 byte as a rank on the line of representable values; NaN far away. */
static int e4m3_rank(int q)
{
    int mag = q & 0x7F;
    return mag == 0x7F ? 1 << 20 : q & 0x80 ? -mag : mag;
}

static double cache_distance(enum attn_dtype d, double got, double want)
{
    static const int mantissa[] = { [ATTN_F32] = 23, [ATTN_F16] = 10, [ATTN_BF16] = 7 };
    int e;
    if (d == ATTN_INT8)
        return fabs(got - want);
    if (d == ATTN_E4M3)
        return abs(e4m3_rank((int)got) - e4m3_rank((int)want));
    frexp(fabs(want) > 1 ? want : 1, &e);
    return distance(got, want, ldexp(1, e - 1 - mantissa[d]));
}

/* Bytes of slots that no token was to write are as before. */
static bool untouched(const struct attn_case *c, int input, const void *got)
{
    const struct attn_tensor *t = &c->in[input];
    const int32_t *cu = c->in[ATTN_CU_SEQLENS].data, *past = c->in[ATTN_PAST_SEQLENS].data;
    const int32_t *table = c->in[ATTN_BLOCK_TABLE].data, *slots = c->in[ATTN_SLOT_MAPPING].data;
    int64_t cols = c->in[ATTN_BLOCK_TABLE].shape[1], bs = t->shape[1];
    int64_t n = t->shape[0] * bs, n_seqs = c->in[ATTN_PAST_SEQLENS].shape[0];
    size_t row = (size_t)(t->shape[2] * t->shape[3]) * attn_dtype_bytes(t->dtype);
    bool *written = calloc((size_t)n + 1, 1), same = true;
    for (int64_t b = 0; b < n_seqs; b++)
        for (int64_t i = cu[b]; i < cu[b + 1]; i++) {
            int64_t pos = past[b] + i - cu[b], slot = -1;
            if (attn_present(&c->in[ATTN_SLOT_MAPPING]))
                slot = slots[i];
            else if (pos / bs < cols && table[b * cols + pos / bs] >= 0)
                slot = table[b * cols + pos / bs] * bs + pos % bs;
            if (slot >= 0 && slot < n)
                written[slot] = true;
        }
    for (int64_t i = 0; i < n; i++)
        if (!written[i] && memcmp((const char *)t->data + (size_t)i * row,
                                  (const char *)got + (size_t)i * row, row) != 0)
            same = false;
    free(written);
    return same;
}

/* Worst distance over all expectations, in tolerances; what[] names where. */
static double compare(const struct attn_case *c, const struct result *res, const char **what)
{
    static const char *const names[EXPECTS] = { "output", "key_cache", "value_cache", "output_qk" };
    double worst = 0;
    *what = "output";
    for (int i = 0; i < EXPECTS; i++) {
        bool cache = i == EXPECT_KEY_CACHE || i == EXPECT_VALUE_CACHE;
        enum attn_dtype d = cache ? c->cache_dtype : i == EXPECT_QK ? ATTN_F32 : c->dtype;
        int64_t n = (int64_t)(res->bytes[i] / attn_dtype_bytes(d));
        if (cache && res->out[i] != NULL &&
            !untouched(c, i == EXPECT_KEY_CACHE ? ATTN_KEY_CACHE : ATTN_VALUE_CACHE, res->out[i])) {
            *what = i == EXPECT_KEY_CACHE ? "key_cache (an unwritten slot changed)"
                                          : "value_cache (an unwritten slot changed)";
            return INFINITY;
        }
        if (c->want[i] == NULL)
            continue;
        if (res->out[i] == NULL || n != c->n_want[i]) {
            *what = "shape of an output";
            return INFINITY;
        }
        for (int64_t k = 0; k < n; k++) {
            double got = value_of(d, res->out[i], k), want = c->want[i][k];
            double x = cache ? cache_distance(d, got, want) : distance(got, want, tolerance(c, i));
            if (x > worst) {
                worst = x;
                *what = names[i];
            }
        }
    }
    return worst;
}

/* ---- cases --------------------------------------------------------------------------- */

static void one_case(struct runner *r, const char *path)
{
    static const char *const bound_names[BOUNDS] = { "absent", "tight", "loose" };
    struct attn_case c;
    struct result res[BOUNDS] = { 0 };
    struct err e = { 0 };
    char name[64] = "?";
    const char *what = "";
    bool ok = true;
    if (!attn_case_load(&c, path)) {
        r->failed++;
        printf("FAIL %s: cannot be read\n", path);
        return;
    }
    if (c.dtype == ATTN_F32 && attn_backend_of(r->attn)->device != ATTN_HOST) {
        printf("skip %s: float32 is for the CPU\n", c.id);
        r->skipped++;
        attn_case_free(&c);
        return;
    }
    for (int b = 0; ok && b < BOUNDS; b++) {
        ok = run_case(r, &c, b, &res[b], name, &e);
        if (!ok)
            printf("FAIL %s: bounds %s: %s\n", c.id, bound_names[b], e.message);
        for (int i = 0; ok && i < EXPECTS; i++)
            if (res[b].bytes[i] != res[0].bytes[i] ||
                (res[b].bytes[i] > 0 &&
                 memcmp(res[b].out[i], res[0].out[i], res[b].bytes[i]) != 0)) {
                printf("FAIL %s: %s: bounds %s differ from absent\n", c.id, name, bound_names[b]);
                ok = false;
            }
    }
    if (ok) {
        double x = compare(&c, &res[0], &what);
        ok = x <= 1;
        printf("%s %s: %s: worst error %.4g of the tolerance, in %s\n", ok ? "ok  " : "FAIL", c.id,
               name, x, what);
    }
    ok ? r->passed++ : r->failed++;
    for (int b = 0; b < BOUNDS; b++)
        result_free(&res[b]);
    attn_case_free(&c);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void one_path(struct runner *r, const char *path)
{
    struct dirent **list;
    struct stat st;
    int n;
    if (stat(path, &st) == 0 && !S_ISDIR(st.st_mode)) {
        one_case(r, path);
        return;
    }
    n = scandir(path, &list, NULL, by_name);
    if (n < 0) {
        printf("FAIL %s: cannot be read\n", path);
        r->failed++;
        return;
    }
    for (int i = 0; i < n; i++) {
        size_t len = strlen(list[i]->d_name);
        char file[4096];
        if (len > 5 && strcmp(list[i]->d_name + len - 5, ".json") == 0) {
            snprintf(file, sizeof file, "%s/%s", path, list[i]->d_name);
            one_case(r, file);
        }
        free(list[i]);
    }
    free(list);
}

static int usage(void)
{
    fprintf(stderr, "usage: attention_conformance [--backend cpu|cuda] [--plugin FILE] "
                    "[--kernel NAME] [--threads N] DIR...\n");
    return 2;
}

int main(int argc, char **argv)
{
    struct attn_options opt = { 0 };
    struct plugin *plugin = NULL;
    struct runner r = { 0 };
    struct err e = { 0 };
    char plugin_path[4096] = "";
    const char *backend = "cpu";
    uint32_t threads = 2;
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i += 2) {
        if (i + 1 >= argc)
            return usage();
        if (strcmp(argv[i], "--backend") == 0)
            backend = argv[i + 1];
        else if (strcmp(argv[i], "--plugin") == 0)
            snprintf(plugin_path, sizeof plugin_path, "%s", argv[i + 1]);
        else if (strcmp(argv[i], "--kernel") == 0)
            opt.only_kernel = argv[i + 1];
        else if (strcmp(argv[i], "--threads") == 0)
            threads = (uint32_t)atoi(argv[i + 1]);
        else
            return usage();
    }
    if (i >= argc || (strcmp(backend, "cpu") != 0 && strcmp(backend, "cuda") != 0))
        return usage();
    if (strcmp(backend, "cuda") == 0) {
        if (plugin_path[0] == '\0')
            default_plugin(plugin_path, sizeof plugin_path);
        if (plugin_open(&plugin, plugin_path, &e) == ERR_OK)
            opt.backend = plugin_find(plugin, ATTN_ABI, "attention");
        if (opt.backend == NULL) {
            fprintf(stderr, "no CUDA backend: %s\n", e.message);
            return 2;
        }
    } else if (workers_create(&opt.workers, threads, &e) != ERR_OK) {
        fprintf(stderr, "%s\n", e.message);
        return 2;
    }
    if (attn_open(&r.attn, &opt, &e) != ERR_OK) {
        fprintf(stderr, "%s\n", e.message);
        return 2;
    }
    for (; i < argc; i++)
        one_path(&r, argv[i]);
    attn_close(r.attn);
    workers_destroy(opt.workers);
    plugin_close(plugin);
    if (r.skipped > 0)
        printf("%d skipped\n", r.skipped);
    printf("%d passed, %d failed\n", r.passed, r.failed);
    return r.failed == 0 && r.passed > 0 ? 0 : 1;
}
