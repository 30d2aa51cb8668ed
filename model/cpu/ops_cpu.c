/* ops_cpu.c: ops.h on the CPU.
 *
 * Owns the thread pool and the scratch of packed activations.  Called by the
 * engine's thread.  Every call has finished on return. */
#include "model/cpu/ops_cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention/feature_math.h"
#include "model/load/convert.h"
#include "model/cpu/cores.h"
#include "model/cpu/vmath.h"
#include "proto/number/formats.h"

enum { ROW_WORK = 1 << 15 }; /* elements below which a fork costs more */

/* ---- rows in parallel ---- */

struct row_task {
    const struct cpu_ops *o;
    const void *x, *w;
    const int32_t *index;
    void *to;
    float eps;
    enum st_dtype dtype;
    size_t ld;
    uint32_t n, width, per_task, at;
    void (*one)(const struct row_task *r, uint32_t i);
};

static void rows_task(void *ctx, uint32_t task, uint32_t worker)
{
    const struct row_task *r = ctx;
    uint32_t begin = task * r->per_task, end = begin + r->per_task;
    (void)worker;
    if (end > r->n)
        end = r->n;
    for (uint32_t i = begin; i < end; i++)
        r->one(r, i);
}

static void rows_run(struct row_task *r)
{
    uint32_t n_workers = workers_count(r->o->pool);
    if (n_workers == 1 || (uint64_t)r->n * r->width < ROW_WORK) {
        for (uint32_t i = 0; i < r->n; i++)
            r->one(r, i);
        return;
    }
    r->per_task = (r->n + n_workers * 4 - 1) / (n_workers * 4);
    workers_run(r->o->pool, rows_task, r, (r->n + r->per_task - 1) / r->per_task);
}

static void embed_row(const struct row_task *r, uint32_t i)
{
    float *x = (float *)r->to + (size_t)i * r->width;
    uint64_t at = (uint64_t)(uint32_t)r->index[i] * r->width;
    if (r->dtype == ST_BF16) {
        r->o->k->widen((const uint16_t *)r->x + at, OP_BF16, r->width, r->eps, x);
        return;
    }
    model_convert_strided(r->x, r->dtype, at, 1, r->width, x);
    for (uint32_t j = 0; j < r->width; j++)
        x[j] *= r->eps;
}

static void embed(void *self, const void *table, enum st_dtype dtype, const int32_t *token,
                  uint32_t n, uint32_t hidden, float scale, float *x)
{
    struct row_task r = { .o = self,
                          .x = table,
                          .index = token,
                          .to = x,
                          .eps = scale,
                          .dtype = dtype,
                          .n = n,
                          .width = hidden,
                          .one = embed_row };
    rows_run(&r);
}

static void norm_row(const struct row_task *r, uint32_t i)
{
    const struct cpu_ops *o = r->o;
    size_t at = (size_t)i * r->width;
    o->k->norm((const float *)r->x + at, r->w, r->eps, r->width, o->type,
               (unsigned char *)r->to + at * op_size(o->type));
}

static void norm(void *self, const float *x, const float *w, float eps, uint32_t n, uint32_t width,
                 void *out)
{
    struct row_task r = {
        .o = self, .x = x, .w = w, .to = out, .eps = eps, .n = n, .width = width, .one = norm_row
    };
    rows_run(&r);
}

/* Widths of a model's rows are bounded by config.h's DIM_MAX; a row is normed
 * in pieces of the stack, never on the heap. */
enum { PIECE = 1024 };

static float row_scale(const struct cpu_ops *o, const void *y, enum op_dtype type, uint32_t width,
                       float eps)
{
    float piece[PIECE], sum = 0;
    for (uint32_t at = 0; at < width; at += PIECE) {
        uint32_t n = width - at < PIECE ? width - at : PIECE;
        o->k->widen((const unsigned char *)y + at * op_size(type), type, n, 1, piece);
        sum += o->k->sum_of_squares(piece, n);
    }
    return 1.0f / sqrtf(sum / (float)width + eps);
}

static void norm_add_row(const struct row_task *r, uint32_t i)
{
    float *x = (float *)r->to + (size_t)i * r->width;
    const float *y = (const float *)r->x + (size_t)i * r->width, *w = r->w;
    float scale = row_scale(r->o, y, OP_F32, r->width, r->eps);
    for (uint32_t j = 0; j < r->width; j++)
        x[j] += y[j] * scale * w[j];
}

static void norm_add(void *self, float *x, const float *y, const float *w, float eps, uint32_t n,
                     uint32_t width)
{
    struct row_task r = {
        .o = self, .x = y, .w = w, .to = x, .eps = eps, .n = n, .width = width, .one = norm_add_row
    };
    rows_run(&r);
}

static void norm_part_row(const struct row_task *r, uint32_t i)
{
    const struct cpu_ops *o = r->o;
    const float *w = r->w;
    size_t size = op_size(o->type);
    unsigned char *y = (unsigned char *)r->to + ((size_t)i * r->ld + r->at) * size;
    float scale = row_scale(o, y, o->type, r->width, r->eps), piece[PIECE];
    for (uint32_t at = 0; at < r->width; at += PIECE) {
        uint32_t n = r->width - at < PIECE ? r->width - at : PIECE;
        o->k->widen(y + at * size, o->type, n, scale, piece);
        for (uint32_t j = 0; j < n; j++)
            piece[j] *= w[at + j];
        o->k->narrow(piece, n, o->type, y + at * size);
    }
}

static void norm_part(void *self, void *y, size_t ld, uint32_t at, uint32_t width, const float *w,
                      float eps, uint32_t n)
{
    struct row_task r = { .o = self,
                          .w = w,
                          .to = y,
                          .eps = eps,
                          .ld = ld,
                          .n = n,
                          .width = width,
                          .at = at,
                          .one = norm_part_row };
    rows_run(&r);
}

static void copy_parts(void *self, const void *from, size_t from_ld, size_t from_part, void *to,
                       size_t to_ld, size_t to_part, uint32_t n, uint32_t n_parts, uint32_t width)
{
    const struct cpu_ops *o = self;
    size_t size = op_size(o->type);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t p = 0; p < n_parts; p++)
            memcpy((unsigned char *)to + (i * to_ld + p * to_part) * size,
                   (const unsigned char *)from + (i * from_ld + p * from_part) * size,
                   width * size);
}

static float t_float(enum op_dtype type, const void *p, size_t i)
{
    return type == OP_F32 ? ((const float *)p)[i] : bf16_to_float(((const uint16_t *)p)[i]);
}

static void put_t(enum op_dtype type, void *p, size_t i, double v)
{
    if (type == OP_F32)
        ((float *)p)[i] = (float)v;
    else
        ((uint16_t *)p)[i] = float_to_bf16((float)v);
}

struct turning {
    enum op_dtype type;
    const struct op_rope *r;
    uint32_t n, per_task;
};

/* Where token t lies in its sequence. */
static uint32_t place_of(const struct op_rope *r, uint32_t t)
{
    uint32_t lo = 0, hi = r->n_rows; /* cu[lo] <= t */
    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;
        if ((uint32_t)r->cu_seqlens[mid] <= t)
            lo = mid;
        else
            hi = mid;
    }
    return t - (uint32_t)r->cu_seqlens[lo];
}

static void rope_row(const struct turning *g, uint32_t i)
{
    const struct op_rope *r = g->r;
    enum op_dtype type = g->type;
    uint32_t p = place_of(r, r->first + i), half = r->dim / 2;
    size_t table = (size_t)(p < r->table_rows ? p : r->table_rows - 1) * half;
    for (uint32_t part = 0; part < r->n_parts; part++) {
        unsigned char *x = (unsigned char *)r->x + (i * r->ld + part * r->step) * op_size(type);
        for (uint32_t k = 0; k < half; k++) {
            int32_t at[2];
            attn_rope_channels((int32_t)k, (int32_t)r->dim, r->interleaved, &at[0], &at[1]);
            double a = (double)t_float(type, x, (size_t)at[0]);
            double b = (double)t_float(type, x, (size_t)at[1]);
            attn_rope_pair_exact(&a, &b, (double)t_float(type, r->cos, table + k),
                                 (double)t_float(type, r->sin, table + k));
            put_t(type, x, (size_t)at[0], a);
            put_t(type, x, (size_t)at[1], b);
        }
    }
}

static void rope_task(void *ctx, uint32_t task, uint32_t worker)
{
    const struct turning *g = ctx;
    uint32_t begin = task * g->per_task, end = begin + g->per_task;
    (void)worker;
    for (uint32_t i = begin; i < end && i < g->n; i++)
        rope_row(g, i);
}

static void rope(void *self, const struct op_rope *r, uint32_t n)
{
    struct cpu_ops *o = self;
    uint32_t n_workers = workers_count(o->pool), tasks = n_workers * 4;
    bool small = (uint64_t)n * r->n_parts * r->dim < ROW_WORK;
    struct turning g = { o->type, r, n, small || n_workers == 1 ? n : (n + tasks - 1) / tasks };
    if (n > 0)
        workers_run(small ? NULL : o->pool, rope_task, &g, (n + g.per_task - 1) / g.per_task);
}

static void gather(void *self, const float *x, const uint32_t *row, uint32_t n, uint32_t width,
                   float *out)
{
    (void)self;
    for (uint32_t i = 0; i < n; i++)
        memcpy(out + (size_t)i * width, x + (size_t)row[i] * width, width * sizeof *x);
}

static void zero(void *self, void *p, size_t bytes)
{
    (void)self;
    memset(p, 0, bytes);
}

static void softcap_row(const struct row_task *r, uint32_t i)
{
    float *x = (float *)r->to + (size_t)i * r->width;
    for (uint32_t j = 0; j < r->width; j++)
        x[j] = r->eps * tanhf(x[j] / r->eps);
}

static void softcap(void *self, float *x, float cap, size_t n)
{
    enum { SPAN = 1024 };
    struct row_task r = {
        .o = self, .to = x, .eps = cap, .n = (uint32_t)(n / SPAN), .width = SPAN, .one = softcap_row
    };
    rows_run(&r);
    r.to = x + n / SPAN * SPAN;
    r.n = 1;
    r.width = (uint32_t)(n % SPAN);
    softcap_row(&r, 0);
}

/* ---- matrix multiplication ---- */

static void linear(void *self, const struct op_linear *l, uint32_t n)
{
    struct cpu_ops *o = self;
    model_cpu_linear(o->pool, o->k, l->w->exact ? OP_F32 : o->type, l, n, o->scratch);
}

static void heads(void *self, const struct op_heads *h, uint32_t n)
{
    struct cpu_ops *o = self;
    size_t size = op_size(o->type);
    for (uint32_t i = 0; i < h->n_heads; i++) {
        struct op_linear l = { .w = h->transposed ? h->w[i]->transposed : h->w[i],
                               .in = (const unsigned char *)h->in + i * h->in_head * size,
                               .in_ld = h->in_ld,
                               .to = (unsigned char *)h->to + i * h->to_head * size,
                               .to_ld = h->to_ld,
                               .out = OP_OUT_T };
        model_cpu_linear(o->pool, o->k, o->type, &l, n, o->scratch);
    }
}

static void moe(void *self, const struct op_moe *m, uint32_t n)
{
    model_cpu_moe(self, m, n);
}

/* ---- create and destroy ---- */

static enum err_code alloc(void *self, size_t bytes, const char *what, void **out, struct err *e)
{
    (void)self;
    return model_cpu_map(bytes, what, out, e);
}

static void release(void *self, void *p, size_t bytes)
{
    (void)self;
    model_cpu_unmap(p, bytes);
}

static enum err_code upload(void *self, void *to, const void *from, size_t bytes, struct err *e)
{
    (void)self;
    (void)e;
    memcpy(to, from, bytes);
    return ERR_OK;
}

static enum err_code matrix_create(void *self, const struct op_matrix_desc *d,
                                   struct op_matrix **out, struct err *e)
{
    struct cpu_ops *o = self;
    enum err_code rc = model_cpu_matrix_create(o->pool, o->k, o->type, d, out, e);
    if (rc == ERR_OK && d->n_cols > o->widest)
        o->widest = d->n_cols;
    if (rc == ERR_OK && d->transposed && d->piece[0].n_rows > o->widest)
        o->widest = d->piece[0].n_rows;
    return rc;
}

static void matrix_destroy(void *self, struct op_matrix *m)
{
    (void)self;
    model_cpu_matrix_destroy(m);
}

static uint64_t matrix_bytes(const struct op_matrix *m)
{
    return m->n_bytes + (m->transposed != NULL ? m->transposed->n_bytes : 0);
}

static uint32_t most_rows(const struct ops_limits *lim)
{
    return lim->max_tokens > lim->max_outputs ? lim->max_tokens : lim->max_outputs;
}

/* Give back what steps took. */
static void stop(struct cpu_ops *o)
{
    model_cpu_unmap(o->scratch, o->n_scratch);
    free(o->output_row);
    o->scratch = NULL;
    o->n_scratch = 0;
    o->output_row = NULL;
}

static enum err_code start(void *self, const struct ops_limits *lim, struct err *e)
{
    struct cpu_ops *o = self;
    stop(o);
    o->output_row = calloc(lim->max_outputs + 1ul, sizeof *o->output_row);
    if (o->output_row == NULL)
        return err_nomem(e, "output rows", lim->max_outputs * sizeof *o->output_row);
    o->max_tokens = most_rows(lim);
    o->n_scratch = model_cpu_linear_scratch(o->max_tokens, o->widest);
    return model_cpu_map(o->n_scratch, "activation scratch", &o->scratch, e);
}

static enum err_code begin(void *self, const struct step_plan *plan, uint32_t pad,
                           struct op_plan *out, struct err *e)
{
    struct cpu_ops *o = self;
    (void)e;
    (void)pad;
    o->fault.code = ERR_OK;
    *out = (struct op_plan){
        .token = plan->token,
        .cu_seqlens = plan->cu_seqlens,
        .past_seqlens = plan->past_seqlens,
        .output_row = o->output_row,
        .n_tokens = plan->n_tokens,
        .n_rows = plan->n_rows,
        .n_outputs = plan->n_outputs,
        .max_query_len = plan->max_query_len,
        .max_kv_len = plan->max_kv_len,
    };
    for (uint32_t g = 0; g < plan->n_groups; g++) {
        out->slot_mapping[g] = plan->slot_mapping[g];
        out->block_table[g] = plan->block_table[g];
        out->table_cols[g] = plan->table_cols[g];
    }
    for (uint32_t i = 0; i < plan->n_outputs; i++)
        o->output_row[i] = plan->output[i].token;
    return ERR_OK;
}

static enum err_code finish(void *self, struct err *e)
{
    const struct cpu_ops *o = self;
    if (o->fault.code != ERR_OK && e != NULL)
        *e = o->fault;
    return o->fault.code;
}

static enum err_code collect(void *self, const struct sampled **out, struct err *e)
{
    (void)self;
    (void)out;
    (void)e;
    return ERR_OK;
}

static enum err_code download(void *self, void *to, const void *from, size_t bytes, struct err *e)
{
    return upload(self, to, from, bytes, e);
}

static struct workers *workers_of(void *self)
{
    return ((struct cpu_ops *)self)->pool;
}

static void *stream_of(void *self)
{
    (void)self;
    return NULL;
}

static void close_ops(void *self)
{
    struct cpu_ops *o = self;
    if (o == NULL)
        return;
    model_cpu_moe_scratch_free(o->moe);
    stop(o);
    workers_destroy(o->pool);
    free(o);
}

enum err_code model_cpu_open(struct ops *out, enum op_dtype type, uint32_t n_threads, struct err *e)
{
    struct cpu_ops *o = calloc(1, sizeof *o);
    if (o == NULL)
        return err_nomem(e, "cpu backend", sizeof *o);
    enum err_code rc =
        workers_create(&o->pool, n_threads ? n_threads : model_cpu_physical_cores(), e);
    if (rc) {
        free(o);
        return rc;
    }
    o->k = model_cpu_kernels_best();
    o->type = type;
    *out = (struct ops){
        .name = "cpu",
        .type = type,
        .attention = attn_cpu_backend(),
        .self = o,
        .close = close_ops,
        .workers = workers_of,
        .stream = stream_of,
        .alloc = alloc,
        .release = release,
        .upload = upload,
        .matrix_create = matrix_create,
        .matrix_destroy = matrix_destroy,
        .matrix_bytes = matrix_bytes,
        .start = start,
        .begin = begin,
        .embed = embed,
        .norm = norm,
        .norm_add = norm_add,
        .norm_part = norm_part,
        .linear = linear,
        .heads = heads,
        .copy_parts = copy_parts,
        .rope = rope,
        .moe = moe,
        .gather = gather,
        .zero = zero,
        .softcap = softcap,
        .finish = finish,
        .collect = collect,
        .download = download,
    };
    return ERR_OK;
}
