/* attn.c: the handle, dispatch and the run-time check of the operator.
 *
 * Owns the backend's state.  Threads as attn.h says.  Promises that a kernel is
 * chosen from static facts only, and that a call which reaches a backend has
 * passed every rule. */
#include "attention/attn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/rules/rules.h"

struct attn {
    const struct attn_backend *backend;
    void *self; /* the backend's */
    uint64_t qk_bytes_limit;
    const char *only_kernel; /* borrowed name inside the backend's table, or NULL */
};

/* ---- create and destroy ------------------------------------------------------------------- */

static enum err_code find_kernel(const struct attn_backend *b, const char *name, const char **found,
                                 struct err *e)
{
    *found = NULL;
    if (name == NULL)
        return ERR_OK;
    for (uint32_t i = 0; i < b->n_kernels; i++)
        if (strcmp(b->kernel[i].name, name) == 0)
            *found = b->kernel[i].name;
    if (*found == NULL)
        return err_set(e, ERR_INVALID, "attention kernel: \"%.40s\", not one of backend %s", name,
                       b->name);
    return ERR_OK;
}

enum err_code attn_open(struct attn **out, const struct attn_options *opt, struct err *e)
{
    const struct attn_backend *b = opt->backend != NULL ? opt->backend : attn_cpu_backend();
    struct attn *a;
    enum err_code rc;
    if (b->abi != ATTN_ABI)
        return err_set(e, ERR_INVALID, "attention backend %s: ABI %u, expected %d", b->name, b->abi,
                       ATTN_ABI);
    a = calloc(1, sizeof *a);
    if (a == NULL)
        return err_nomem(e, "attention handle", sizeof *a);
    a->backend = b;
    a->qk_bytes_limit = opt->qk_bytes_limit != 0 ? opt->qk_bytes_limit : (uint64_t)1 << 30;
    rc = find_kernel(b, opt->only_kernel, &a->only_kernel, e);
    if (rc == ERR_OK)
        rc = b->open(&a->self, opt, e);
    if (rc != ERR_OK) {
        free(a);
        return rc;
    }
    *out = a;
    return ERR_OK;
}

void attn_close(struct attn *a)
{
    if (a == NULL)
        return;
    a->backend->close(a->self);
    free(a);
}

const struct attn_backend *attn_backend_of(const struct attn *a)
{
    return a->backend;
}

void *attn_backend_self(const struct attn *a)
{
    return a->self;
}

/* ---- dispatch ----------------------------------------------------------------- */

static uint32_t quant_feature(enum attn_dtype d, int32_t quant)
{
    if (quant == ATTN_QUANT_NONE)
        return 0;
    if (d == ATTN_INT8)
        return ATTN_BIT(quant == ATTN_PER_TENSOR ? ATTN_HAS_INT8_TENSOR : ATTN_HAS_INT8_CHANNEL);
    return ATTN_BIT(quant == ATTN_PER_TENSOR ? ATTN_HAS_E4M3_TENSOR : ATTN_HAS_E4M3_CHANNEL);
}

static uint32_t collect_features(const struct attn_plan *p, const struct attn_args *args)
{
    const struct attn_attrs *a = &p->attrs;
    uint32_t f = quant_feature(p->k_cache_dtype, a->k_quant_type) |
                 quant_feature(p->v_cache_dtype, a->v_quant_type);
#define FEATURE_IF(cond, bit)                                                                      \
    if (cond)                                                                                      \
    f |= ATTN_BIT(bit)
    FEATURE_IF(p->mode == ATTN_MODE_PACKED, ATTN_HAS_PACKED);
    FEATURE_IF(p->mode == ATTN_MODE_LATENT, ATTN_HAS_LATENT);
    FEATURE_IF(a->local_window_size > 0, ATTN_HAS_WINDOW);
    FEATURE_IF(a->softcap > 0, ATTN_HAS_SOFTCAP);
    FEATURE_IF(attn_present(&args->in[ATTN_HEAD_SINK]), ATTN_HAS_SINK);
    FEATURE_IF(attn_present(&args->in[ATTN_Q_NORM_WEIGHT]), ATTN_HAS_QK_NORM);
    FEATURE_IF(a->do_rotary, ATTN_HAS_ROTARY);
    FEATURE_IF(attn_present(&args->in[ATTN_SLOT_MAPPING]), ATTN_HAS_SLOTS);
    FEATURE_IF(attn_present(&args->in[ATTN_QUERY_POSITIONS]), ATTN_HAS_POSITIONS);
    FEATURE_IF(attn_present(&args->in[ATTN_BIAS]), ATTN_HAS_BIAS);
    FEATURE_IF(a->qk_output != ATTN_QK_NONE, ATTN_HAS_QK_OUTPUT);
#undef FEATURE_IF
    return f;
}

/* The first feature of the call that no kernel serves alone, else that the most
 * capable kernel lacks: what the refusal names. */
static enum err_code refuse(const struct attn *a, const struct attn_plan *p, struct err *e)
{
    const struct attn_backend *b = a->backend;
    uint32_t missing = p->features;
    for (uint32_t k = 0; k < b->n_kernels; k++) {
        uint32_t lacks = p->features & ~b->kernel[k].features;
        bool better = __builtin_popcount(lacks) < __builtin_popcount(missing);
        if (a->only_kernel != NULL && a->only_kernel != b->kernel[k].name)
            continue;
        if (better || k == 0)
            missing = lacks;
    }
    for (unsigned f = 0; f < ATTN_FEATURES; f++)
        if (missing & ATTN_BIT(f))
            return err_set_param(e, ERR_INVALID, attn_feature_name(f),
                                 "%s: not served by backend %s%s%s in this combination",
                                 attn_feature_name(f), b->name, a->only_kernel ? "/" : "",
                                 a->only_kernel ? a->only_kernel : "");
    return err_set_param(
        e, ERR_INVALID, "query", "query: head_size %d of %s%s is not served by backend %s%s%s",
        p->head_size, attn_dtype_name(p->dtype), p->mode == ATTN_MODE_LATENT ? ", LATENT," : "",
        b->name, a->only_kernel ? "/" : "", a->only_kernel ? a->only_kernel : "");
}

static enum err_code choose_kernel(const struct attn *a, struct attn_plan *p, struct err *e)
{
    const struct attn_backend *b = a->backend;
    for (uint32_t k = 0; k < b->n_kernels; k++) {
        const struct attn_kernel *row = &b->kernel[k];
        bool covers = (p->features & ~row->features) == 0 &&
                      (row->dtypes & ATTN_BIT(p->dtype)) != 0 &&
                      (row->max_head_size == 0 || p->head_size <= row->max_head_size) &&
                      (!row->latent_only || p->mode == ATTN_MODE_LATENT);
        if (a->only_kernel != NULL && a->only_kernel != row->name)
            continue;
        if (!covers || !b->fits(a->self, k, p))
            continue;
        p->kernel = k;
        return ERR_OK;
    }
    return refuse(a, p, e);
}

enum err_code attn_plan(const struct attn *a, const struct attn_attrs *attrs,
                        const struct attn_args *args, struct attn_plan *out, struct err *e)
{
    struct attn_plan p;
    struct attn_call c = { .attrs = attrs,
                           .args = args,
                           .device = a->backend->device,
                           .qk_bytes_limit = a->qk_bytes_limit,
                           .plan = &p };
    enum err_code rc;
    memset(&p, 0, sizeof p);
    rc = attn_validate(&c, NULL, e);
    if (rc)
        return rc;
    p.backend = a->backend;
    p.attrs = *attrs;
    p.attrs.k_cache_dtype = p.attrs.v_cache_dtype = NULL;
    p.features = collect_features(&p, args);
    memcpy(p.in, args->in, sizeof p.in);
    memcpy(p.out, args->out, sizeof p.out);
    for (int i = 0; i < ATTN_INPUTS; i++)
        p.in[i].data = NULL;
    for (int o = 0; o < ATTN_OUTPUTS; o++)
        p.out[o].data = NULL;
    rc = choose_kernel(a, &p, e);
    if (rc == ERR_OK)
        rc = a->backend->size(a->self, &p, e);
    if (rc == ERR_OK)
        *out = p;
    return rc;
}

const char *attn_plan_name(const struct attn_plan *plan, char *buf, size_t n)
{
    snprintf(buf, n, "%s/%s", plan->backend->name, plan->backend->kernel[plan->kernel].name);
    return buf;
}

/* ---- run -------------------------------------------------------------------- */

/* The call's tensor t stands where the plan saw p, and has memory. */
static enum err_code same_tensor(const char *name, const struct attn_tensor *p,
                                 const struct attn_tensor *t, struct err *e)
{
    bool same = p->rank == t->rank;
    int64_t n = 1;
    if (same && p->rank == 0)
        return ERR_OK;
    same = same && p->dtype == t->dtype && p->device == t->device;
    for (int i = 0; same && i < p->rank; i++) {
        same = p->shape[i] == t->shape[i];
        n *= t->shape[i];
    }
    if (!same)
        return err_set_param(e, ERR_INVALID, name,
                             "%s: not of the presence, type, device and shape that was planned",
                             name);
    if (t->data == NULL && n > 0)
        return err_set_param(e, ERR_INVALID, name, "%s: no data", name);
    return ERR_OK;
}

enum err_code attn_begin(struct attn *a, const struct attn_plan *plan, const struct attn_args *args,
                         void *stream, struct err *e)
{
    static const enum attn_input read[] = { ATTN_CU_SEQLENS, ATTN_PAST_SEQLENS,
                                            ATTN_QUERY_POSITIONS };
    enum err_code rc = ERR_OK;
    if (plan->backend != a->backend)
        return err_set(e, ERR_INVALID, "attention plan: made by another backend");
    for (size_t i = 0; rc == ERR_OK && i < sizeof read / sizeof *read; i++)
        rc = same_tensor(attn_input_name(read[i]), &plan->in[read[i]], &args->in[read[i]], e);
    if (rc || plan->schedule_bytes == 0)
        return rc;
    if (args->schedule == NULL)
        return err_set_param(e, ERR_INVALID, "schedule",
                             "schedule: absent, %llu bytes were planned",
                             (unsigned long long)plan->schedule_bytes);
    return a->backend->begin(a->self, plan, args, stream, e);
}

enum err_code attn_run(struct attn *a, const struct attn_plan *plan, const struct attn_args *args,
                       void *workspace, void *stream, struct err *e)
{
    const struct attn_tensor *in = args->in, *out = args->out;
    enum err_code rc = ERR_OK;
    if (plan->backend != a->backend)
        return err_set(e, ERR_INVALID, "attention plan: made by another backend");
    for (int i = 0; rc == ERR_OK && i < ATTN_INPUTS; i++)
        rc = same_tensor(attn_input_name(i), &plan->in[i], &in[i], e);
    for (int o = 0; rc == ERR_OK && o < ATTN_OUTPUTS; o++)
        rc = same_tensor(attn_output_name(o), &plan->out[o], &out[o], e);
    if (rc)
        return rc;
    if ((attn_present(&out[ATTN_KEY_CACHE_OUT]) &&
         out[ATTN_KEY_CACHE_OUT].data != in[ATTN_KEY_CACHE].data) ||
        (attn_present(&out[ATTN_VALUE_CACHE_OUT]) &&
         out[ATTN_VALUE_CACHE_OUT].data != in[ATTN_VALUE_CACHE].data))
        return err_set_param(e, ERR_INVALID, "key_cache_out",
                             "key_cache_out, value_cache_out: expected the input caches' buffers");
    if (workspace == NULL && plan->workspace_bytes > 0)
        return err_set(e, ERR_INVALID, "attention workspace: absent, %llu bytes were planned",
                       (unsigned long long)plan->workspace_bytes);
    return a->backend->run(a->self, plan, args, workspace, stream, e);
}

/* ---- dense -------------------------------------------------------------------- */

enum err_code attn_dense_plan(const struct attn *a, const struct attn_dense *d,
                              uint64_t *workspace_bytes, struct err *e)
{
    enum err_code rc = attn_dense_validate(d, a->backend->device, e);
    if (rc)
        return rc;
    if (a->backend->dense_size == NULL)
        return err_set(e, ERR_INVALID, "dense attention: not served by backend %s",
                       a->backend->name);
    return a->backend->dense_size(a->self, d, workspace_bytes, e);
}

static enum err_code dense_has_data(const struct attn_dense *d, struct err *e)
{
    const struct {
        const char *name;
        const struct attn_tensor *t;
    } all[] = { { "query", &d->query },
                { "key", &d->key },
                { "value", &d->value },
                { "cumulative_sequence_length", &d->cu_seqlens },
                { "output", &d->output },
                { "latent", &d->latent },
                { "latent_cache", &d->latent_cache },
                { "slot_mapping", &d->slot_mapping },
                { "k_scale", &d->k_scale } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        enum err_code rc = same_tensor(all[i].name, all[i].t, all[i].t, e);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

enum err_code attn_dense_run(struct attn *a, const struct attn_dense *d, void *workspace,
                             void *stream, struct err *e)
{
    enum err_code rc = attn_dense_validate(d, a->backend->device, e);
    if (rc == ERR_OK)
        rc = dense_has_data(d, e);
    if (rc)
        return rc;
    if (a->backend->dense_run == NULL)
        return err_set(e, ERR_INVALID, "dense attention: not served by backend %s",
                       a->backend->name);
    return a->backend->dense_run(a->self, d, workspace, stream, e);
}
