/* ops_cuda.cu: the interface "model": model/step/ops.h on one GPU.  T is bfloat16.
 *
 * Owns the queue and everything that hangs on it.  See ops_cuda.h. */
#include "model/cuda/ops_cuda.h"

#include <stdlib.h>
#include <string.h>

namespace
{

struct cuda_ops *own(void *self)
{
    return (struct cuda_ops *)self;
}

enum err_code alloc(void *self, size_t bytes, const char *what, void **out, struct err *e)
{
    void *p = NULL;
    enum err_code rc = cuda_device.alloc(&p, bytes, e);
    if (rc == ERR_OK)
        rc = cuda_result(cudaMemsetAsync(p, 0, bytes, own(self)->stream), what, e);
    if (rc != ERR_OK) {
        cudaFree(p);
        return rc;
    }
    *out = p;
    return ERR_OK;
}

void release(void *, void *p, size_t)
{
    cudaFree(p);
}

enum err_code upload(void *self, void *to, const void *from, size_t bytes, struct err *e)
{
    return load_upload(own(self), to, from, bytes, e);
}

enum err_code matrix_create(void *self, const struct op_matrix_desc *d, struct op_matrix **out,
                            struct err *e)
{
    return load_matrix(own(self), d, out, e);
}

/* Its memory is an arena's. */
void matrix_destroy(void *, struct op_matrix *m)
{
    free(m);
}

uint64_t matrix_bytes(const struct op_matrix *m)
{
    return m->n_bytes;
}

/* ---- matmuls ---- */

void run_matmul(struct cuda_ops *o, const struct blas_call *c)
{
    struct err e;
    if (c->n > 0 && blas_run(o->blas, c, o->stream, &e) != ERR_OK && o->fault.code == ERR_OK)
        o->fault = e;
}

void linear(void *self, const struct op_linear *l, uint32_t n)
{
    struct cuda_ops *o = own(self);
    struct blas_call c = {};
    if (n > 0 && skinny_takes(l, n)) {
        skinny_run(o, l, n);
        return;
    }
    c.w = l->w;
    c.in = l->in;
    c.in_ld = l->in_ld;
    c.to = l->to;
    c.to_ld = l->to_ld;
    c.out = l->out;
    c.n = n;
    c.batch = 1;
    if (l->out == OP_OUT_GLU) {
        c.to = o->glu;
        c.to_ld = l->w->n_rows;
        c.out = OP_OUT_T;
    }
    run_matmul(o, &c);
    if (l->out == OP_OUT_GLU && n > 0)
        rows_glu(o, o->glu, l->w->n_rows / 2, l->act, l->limit, n, l->to, l->to_ld);
}

/* Matrices that lie at equal distances are one call. */
void heads(void *self, const struct op_heads *h, uint32_t n)
{
    struct cuda_ops *o = own(self);
    int64_t step = 0;
    bool even = true;
    for (uint32_t i = 1; i < h->n_heads; i++) {
        int64_t d = (const uint16_t *)h->w[i]->data - (const uint16_t *)h->w[i - 1]->data;
        even = even && (i == 1 || d == step);
        step = d;
    }
    uint32_t calls = even ? 1 : h->n_heads;
    for (uint32_t i = 0; i < calls; i++) {
        struct blas_call c = {};
        c.w = h->w[i];
        c.in = (const uint16_t *)h->in + i * h->in_head;
        c.in_ld = h->in_ld;
        c.to = (uint16_t *)h->to + i * h->to_head;
        c.to_ld = h->to_ld;
        c.out = OP_OUT_T;
        c.transposed = h->transposed;
        c.n = n;
        c.batch = even ? h->n_heads : 1;
        c.w_step = step;
        c.in_step = (int64_t)h->in_head;
        c.to_step = (int64_t)h->to_head;
        run_matmul(o, &c);
    }
}

/* ---- rows: the table's signatures ---- */

void embed(void *self, const void *table, enum st_dtype dtype, const int32_t *token, uint32_t n,
           uint32_t hidden, float scale, float *x)
{
    if (n > 0)
        rows_embed(own(self), table, dtype, token, n, hidden, scale, x);
}

void norm(void *self, const float *x, const float *w, float eps, uint32_t n, uint32_t width,
          void *out)
{
    if (n > 0)
        rows_norm(own(self), x, w, eps, n, width, out);
}

void norm_add(void *self, float *x, const float *y, const float *w, float eps, uint32_t n,
              uint32_t width)
{
    if (n > 0)
        rows_norm_add(own(self), x, y, w, eps, n, width);
}

void norm_part(void *self, void *y, size_t ld, uint32_t at, uint32_t width, const float *w,
               float eps, uint32_t n)
{
    if (n > 0)
        rows_norm_part(own(self), y, ld, at, width, w, eps, n);
}

void copy_parts(void *self, const void *from, size_t from_ld, size_t from_part, void *to,
                size_t to_ld, size_t to_part, uint32_t n, uint32_t n_parts, uint32_t width)
{
    if (n > 0)
        rows_copy_parts(own(self), from, from_ld, from_part, to, to_ld, to_part, n, n_parts, width);
}

void rope(void *self, const struct op_rope *r, uint32_t n)
{
    if (n > 0)
        rows_rope(own(self), r, n);
}

void moe(void *self, const struct op_moe *m, uint32_t n)
{
    moe_run(own(self), m, n);
}

void gather(void *self, const float *x, const uint32_t *row, uint32_t n, uint32_t width, float *out)
{
    if (n > 0)
        rows_gather(own(self), x, row, n, width, out);
}

void zero(void *self, void *p, size_t bytes)
{
    keep_fault(own(self), cudaMemsetAsync(p, 0, bytes, own(self)->stream), "clearing");
}

void softcap(void *self, float *x, float cap, size_t n)
{
    if (n > 0)
        rows_softcap(own(self), x, cap, n);
}

void sample(void *self, const float *logits, uint32_t n)
{
    struct cuda_ops *o = own(self);
    const struct sample_row *rows = (const struct sample_row *)(o->step_device + o->at.sample);
    if (n > 0)
        keep_fault(o, sample_launch(rows, logits, &o->sample, n, o->lim.vocab, o->stream),
                   "sampling");
}

/* ---- a step ---- */

/* Give back what steps took. */
void stop(struct cuda_ops *o)
{
    step_free(o);
    moe_free(o);
    cudaFree(o->glu);
    o->glu = NULL;
}

enum err_code start(void *self, const struct ops_limits *lim, struct err *e)
{
    struct cuda_ops *o = own(self);
    stop(o);
    o->lim = *lim;
    o->moe = *lim->moe;
    o->lim.moe = &o->moe;
    enum err_code rc = load_finish(o, e);
    if (rc == ERR_OK)
        rc = step_start(o, e);
    if (rc == ERR_OK)
        rc = moe_start(o, e);
    if (rc == ERR_OK)
        rc = cuda_result(cudaMalloc(&o->glu, (size_t)lim->max_tokens * o->widest_glu * 2 + 256),
                         "allocating scratch", e);
    if (rc == ERR_OK) /* what other queues still clear */
        rc = cuda_result(cudaDeviceSynchronize(), "clearing memory", e);
    return rc;
}

enum err_code begin(void *self, const struct step_plan *plan, uint32_t pad, struct op_plan *out,
                    struct err *e)
{
    return step_begin(own(self), plan, pad, out, e);
}

enum err_code finish(void *self, struct err *e)
{
    return step_finish(own(self), e);
}

enum err_code collect(void *self, const struct sampled **out, struct err *e)
{
    return step_collect(own(self), out, e);
}

enum err_code download(void *self, void *to, const void *from, size_t bytes, struct err *e)
{
    struct cuda_ops *o = own(self);
    enum err_code rc = cuda_result(cudaStreamSynchronize(o->stream), "waiting", e);
    if (rc != ERR_OK)
        return rc;
    return cuda_result(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "copying back", e);
}

struct workers *no_workers(void *)
{
    return NULL;
}

void *stream_of(void *self)
{
    return own(self)->stream;
}

/* ---- life ---- */

void close_ops(void *self)
{
    struct cuda_ops *o = own(self);
    if (o == NULL)
        return;
    cudaSetDevice(o->device);
    if (o->stream != NULL)
        cudaStreamSynchronize(o->stream);
    stop(o);
    load_free(o);
    blas_close(o->blas);
    if (o->stream != NULL)
        cudaStreamDestroy(o->stream);
    free(o);
}

void fill_table(struct ops *t, struct cuda_ops *o)
{
    memset(t, 0, sizeof *t);
    t->name = "cuda";
    t->type = OP_BF16;
    t->attention = &cuda_attention;
    t->device = &cuda_device;
    t->device_index = o->device;
    t->self = o;
    t->close = close_ops;
    t->workers = no_workers;
    t->stream = stream_of;
    t->alloc = alloc;
    t->release = release;
    t->upload = upload;
    t->matrix_create = matrix_create;
    t->matrix_destroy = matrix_destroy;
    t->matrix_bytes = matrix_bytes;
    t->start = start;
    t->begin = begin;
    t->embed = embed;
    t->norm = norm;
    t->norm_add = norm_add;
    t->norm_part = norm_part;
    t->linear = linear;
    t->heads = heads;
    t->copy_parts = copy_parts;
    t->rope = rope;
    t->moe = moe;
    t->gather = gather;
    t->zero = zero;
    t->softcap = softcap;
    t->sample = sample;
    t->finish = finish;
    t->collect = collect;
    t->download = download;
}

enum err_code open_ops(struct ops *out, int32_t index, struct err *e)
{
    struct device_info info;
    enum err_code rc = cuda_device.open(index, &info, e);
    if (rc != ERR_OK)
        return rc;
    if (info.major < 8)
        return err_set(e, ERR_GPU, "device %d, %s: compute capability %d.%d, expected 8.0 or newer",
                       (int)index, info.name, (int)info.major, (int)info.minor);
    struct cuda_ops *o = (struct cuda_ops *)calloc(1, sizeof *o);
    if (o == NULL)
        return err_nomem(e, "cuda backend", sizeof *o);
    o->device = index;
    o->n_sm = info.n_sm;
    rc = cuda_result(cudaStreamCreateWithFlags(&o->stream, cudaStreamNonBlocking),
                     "creating a stream", e);
    if (rc == ERR_OK)
        rc = blas_open(&o->blas, e);
    if (rc == ERR_OK)
        rc = skinny_open(o, info.major, e);
    if (rc == ERR_OK)
        rc = rows_open(e);
    if (rc != ERR_OK) {
        close_ops(o);
        return rc;
    }
    fill_table(out, o);
    return ERR_OK;
}

} // namespace

const struct model_plugin cuda_model = { MODEL_ABI, open_ops };
