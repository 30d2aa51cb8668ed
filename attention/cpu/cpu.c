/* cpu.c: the CPU backend's table: the operator, the dense entry point, memory.
 *
 * Complete: one kernel serves every feature and every shape.  Owns nothing but
 * its handle; borrows the pool of threads.  The thread that owns the pool runs
 * it; size and fits may be called on any thread. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "attention/cpu/job.h"

struct cpu {
    const struct attn_cpu_inner *inner;
    struct workers *workers; /* borrowed; NULL: alone */
};

static const struct attn_kernel kernels[] = {
    { .name = "reference",
      .features = ATTN_BIT(ATTN_FEATURES) - 1,
      .dtypes = ATTN_BIT(ATTN_F32) | ATTN_BIT(ATTN_F16) | ATTN_BIT(ATTN_BF16),
      .max_head_size = 1 << 20,
      .note = "every shape" },
};

static enum err_code cpu_open(void **self, const struct attn_options *opt, struct err *e)
{
    struct cpu *c = calloc(1, sizeof *c);
    if (c == NULL)
        return err_nomem(e, "CPU attention backend", sizeof *c);
    c->inner = attn_cpu_inner_choose();
    c->workers = opt->workers;
    *self = c;
    return ERR_OK;
}

static void cpu_close(void *self)
{
    free(self);
}

static bool cpu_fits(const void *self, uint32_t k, const struct attn_plan *p)
{
    (void)self;
    (void)k;
    (void)p;
    return true;
}

/* ---- the operator as a job --------------------------------------------------------- */

static const void *data(const struct attn_args *a, enum attn_input i)
{
    return attn_present(&a->in[i]) ? a->in[i].data : NULL;
}

static void fill_shape(struct attn_cpu_job *j, const struct cpu *c, const struct attn_plan *p)
{
    memset(j, 0, sizeof *j);
    j->inner = c->inner;
    j->dtype = p->dtype;
    j->num_heads = p->num_heads;
    j->kv_heads = p->kv_num_heads;
    j->k_width = p->head_size;
    j->v_width = p->v_head_size;
    j->scale = p->scale;
    j->softcap = p->attrs.softcap;
    j->window = p->attrs.local_window_size;
    j->n_tokens = p->token_count;
    j->n_seqs = p->batch_size;
    j->qk_mode = p->attrs.qk_output;
    j->qk_dtype = p->qk_dtype;
    j->qk_cols = p->qk_cols;
    attn_cpu_job_shape(j);
}

/* New rows: packed rows lie in query beside one another, Q heads first. */
static void fill_rows(struct attn_cpu_job *j, const struct attn_plan *p, const struct attn_args *a)
{
    int64_t element = (int64_t)attn_dtype_bytes(p->dtype);
    int64_t q_width = (int64_t)p->num_heads * p->head_size;
    int64_t kv_width = (int64_t)p->kv_num_heads * p->head_size;
    j->query = (struct attn_cpu_rows){ data(a, ATTN_QUERY), p->query_stride };
    j->key = (struct attn_cpu_rows){ data(a, ATTN_KEY), kv_width };
    j->value = (struct attn_cpu_rows){ data(a, ATTN_VALUE), kv_width };
    if (p->mode == ATTN_MODE_PACKED && j->query.base != NULL) {
        j->key = (struct attn_cpu_rows){ j->query.base + q_width * element, p->query_stride };
        j->value = (struct attn_cpu_rows){ j->key.base + kv_width * element, p->query_stride };
    }
}

static void fill_caches(struct attn_cpu_job *j, const struct attn_plan *p,
                        const struct attn_args *a)
{
    static const int32_t empty_table = -1;
    bool latent = p->mode == ATTN_MODE_LATENT;
    j->num_blocks = p->num_blocks;
    j->block_shift = p->block_shift;
    j->n_slots = p->num_blocks << p->block_shift;
    j->table = p->table_cols > 0 ? data(a, ATTN_BLOCK_TABLE) : &empty_table;
    j->table_cols = p->table_cols;
    j->slots = data(a, ATTN_SLOT_MAPPING);
    j->k_store = (struct attn_cpu_store){ .base = a->in[ATTN_KEY_CACHE].data,
                                          .dtype = p->k_cache_dtype,
                                          .width = p->head_size,
                                          .kv_heads = p->kv_num_heads,
                                          .scale = data(a, ATTN_K_SCALE),
                                          .quant = p->attrs.k_quant_type };
    j->k = attn_cpu_job_source(j->k_store.base, p->k_cache_dtype, p->head_size, p->kv_num_heads);
    j->k.scale = j->k_store.scale;
    j->k.per_channel = p->attrs.k_quant_type == ATTN_PER_CHANNEL;
    j->v = j->k; /* LATENT: V is the leading channels of K */
    if (latent)
        return;
    j->v_store = j->k_store;
    j->v_store.base = a->in[ATTN_VALUE_CACHE].data;
    j->v_store.scale = data(a, ATTN_V_SCALE);
    j->v_store.quant = p->attrs.v_quant_type;
    j->v.base = j->v_store.base;
    j->v.scale = j->v_store.scale;
    j->v.per_channel = p->attrs.v_quant_type == ATTN_PER_CHANNEL;
}

static void fill_rest(struct attn_cpu_job *j, const struct attn_plan *p, const struct attn_args *a)
{
    j->cu = data(a, ATTN_CU_SEQLENS);
    j->past = data(a, ATTN_PAST_SEQLENS);
    j->positions = data(a, ATTN_QUERY_POSITIONS);
    j->q_norm = data(a, ATTN_Q_NORM_WEIGHT);
    j->k_norm = data(a, ATTN_K_NORM_WEIGHT);
    j->epsilon = p->attrs.qk_norm_epsilon;
    if (p->attrs.do_rotary)
        j->rotary = (struct attn_cpu_rotary){ .cos_ = data(a, ATTN_COS_CACHE),
                                              .sin_ = data(a, ATTN_SIN_CACHE),
                                              .n_rows = p->rotary_rows,
                                              .dim = p->rotary_dim,
                                              .offset = p->attrs.rotary_offset,
                                              .interleaved = p->attrs.rotary_interleaved };
    j->head_sink = data(a, ATTN_HEAD_SINK);
    j->bias = data(a, ATTN_BIAS);
    memcpy(j->bias_shape, p->bias_shape, sizeof j->bias_shape);
    j->out = a->out[ATTN_OUT].data;
    j->qk = p->attrs.qk_output != ATTN_QK_NONE ? a->out[ATTN_QK].data : NULL;
}

static enum err_code cpu_size(const void *self, struct attn_plan *p, struct err *e)
{
    const struct cpu *c = self;
    struct attn_cpu_job j;
    fill_shape(&j, c, p);
    return attn_cpu_job_workspace(&j, workers_count(c->workers), p->max_kv_len, NULL,
                                  &p->workspace_bytes, e);
}

static enum err_code cpu_run(void *self, const struct attn_plan *p, const struct attn_args *a,
                             void *workspace, void *stream, struct err *e)
{
    struct cpu *c = self;
    struct attn_cpu_job j;
    uint64_t bytes;
    enum err_code rc;
    (void)stream;
    fill_shape(&j, c, p);
    fill_rows(&j, p, a);
    fill_caches(&j, p, a);
    fill_rest(&j, p, a);
    rc = attn_cpu_job_workspace(&j, workers_count(c->workers), p->max_kv_len, workspace, &bytes, e);
    if (rc)
        return rc;
    attn_cpu_job_cut(&j);
    attn_cpu_prologue_store(&j, c->workers);
    attn_cpu_attend(&j, c->workers);
    return ERR_OK;
}

/* ---- dense --------------------------------------------------------------------------- */

static enum err_code dense_job(struct attn_cpu_job *j, const struct cpu *c,
                               const struct attn_dense *d, struct err *e)
{
    int64_t k_width = d->query.shape[1] / d->num_heads;
    int64_t v_width = d->value.shape[1] / d->kv_num_heads;
    memset(j, 0, sizeof *j);
    if (k_width > kernels[0].max_head_size || v_width > kernels[0].max_head_size)
        return err_set_param(e, ERR_INVALID, "query",
                             "query: widths %lld and %lld, backend cpu serves up to %d",
                             (long long)k_width, (long long)v_width, kernels[0].max_head_size);
    j->inner = c->inner;
    j->dtype = d->query.dtype;
    j->num_heads = d->num_heads;
    j->kv_heads = d->kv_num_heads;
    j->k_width = (int32_t)k_width;
    j->v_width = (int32_t)v_width;
    j->scale = d->scale;
    j->softcap = d->softcap;
    j->window = d->local_window_size;
    j->n_tokens = d->query.shape[0];
    j->n_seqs = d->cu_seqlens.shape[0] - 1;
    j->cu = d->cu_seqlens.data;
    j->query = (struct attn_cpu_rows){ d->query.data, d->query.shape[1] };
    j->k = attn_cpu_job_source(d->key.data, j->dtype, j->k_width, j->kv_heads);
    j->v = attn_cpu_job_source(d->value.data, j->dtype, j->v_width, j->kv_heads);
    j->out = d->output.data;
    if (attn_present(&d->latent))
        j->store_width = (int32_t)d->latent.shape[1];
    attn_cpu_job_shape(j);
    return ERR_OK;
}

/* The latent rows go to their slots as they are. */
static void dense_latent(struct attn_cpu_job *j, const struct attn_dense *d)
{
    if (!attn_present(&d->latent))
        return;
    j->key = (struct attn_cpu_rows){ d->latent.data, d->latent.shape[1] };
    j->slots = d->slot_mapping.data;
    j->n_slots = d->latent_cache.shape[0] * d->latent_cache.shape[1];
    j->k_store =
        (struct attn_cpu_store){ .base = d->latent_cache.data,
                                 .dtype = d->latent_cache.dtype,
                                 .width = (int32_t)d->latent.shape[1],
                                 .kv_heads = 1,
                                 .scale = attn_present(&d->k_scale) ? d->k_scale.data : NULL,
                                 .quant = d->k_quant_type };
}

static enum err_code dense_size(const void *self, const struct attn_dense *d, uint64_t *bytes,
                                struct err *e)
{
    const struct cpu *c = self;
    struct attn_cpu_job j;
    enum err_code rc = dense_job(&j, c, d, e);
    if (rc)
        return rc;
    return attn_cpu_job_workspace(&j, workers_count(c->workers), j.n_tokens, NULL, bytes, e);
}

static enum err_code dense_run(void *self, const struct attn_dense *d, void *workspace,
                               void *stream, struct err *e)
{
    struct cpu *c = self;
    struct attn_cpu_job j;
    uint64_t bytes;
    enum err_code rc = dense_job(&j, c, d, e);
    (void)stream;
    if (rc == ERR_OK)
        rc =
            attn_cpu_job_workspace(&j, workers_count(c->workers), j.n_tokens, workspace, &bytes, e);
    if (rc)
        return rc;
    attn_cpu_job_cut(&j);
    dense_latent(&j, d);
    attn_cpu_prologue_store(&j, c->workers);
    attn_cpu_attend(&j, c->workers);
    return ERR_OK;
}

/* ---- memory ---------------------------------------------------------------------------- */

static enum err_code model_cpu_map(void *self, size_t bytes, void **out, struct err *e)
{
    void *p;
    (void)self;
    if (bytes == 0)
        bytes = 1;
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
             0);
    if (p == MAP_FAILED)
        return err_nomem(e, "KV slab", bytes);
    *out = p;
    return ERR_OK;
}

static void model_cpu_unmap(void *self, void *p, size_t bytes)
{
    (void)self;
    munmap(p, bytes == 0 ? 1 : bytes);
}

static enum err_code cpu_copy(void *self, void *to, const void *from, size_t bytes, struct err *e)
{
    (void)self;
    (void)e;
    if (bytes > 0)
        memcpy(to, from, bytes);
    return ERR_OK;
}

static enum err_code cpu_copy_blocks(void *self, void *slab, size_t bytes, const int32_t *from_to,
                                     uint32_t n, void *stream, struct err *e)
{
    char *base = slab;
    (void)self;
    (void)stream;
    (void)e;
    for (uint32_t i = 0; i < n; i++)
        memmove(base + (size_t)from_to[2 * i + 1] * bytes, base + (size_t)from_to[2 * i] * bytes,
                bytes);
    return ERR_OK;
}

const struct attn_backend *attn_cpu_backend(void)
{
    static const struct attn_backend backend = {
        .abi = ATTN_ABI,
        .name = "cpu",
        .device = ATTN_HOST,
        .kernel = kernels,
        .n_kernels = sizeof kernels / sizeof *kernels,
        .open = cpu_open,
        .close = cpu_close,
        .fits = cpu_fits,
        .size = cpu_size,
        .run = cpu_run,
        .dense_size = dense_size,
        .dense_run = dense_run,
        .map = model_cpu_map,
        .unmap = model_cpu_unmap,
        .copy_in = cpu_copy,
        .copy_out = cpu_copy,
        .copy_blocks = cpu_copy_blocks,
    };
    return &backend;
}
