/* load.cu: weights from checkpoint memory to the device.
 *
 * Bytes go through two pinned buffers in turn, so that reading the file (page
 * cache or disk) overlaps with the copy.  Rows that are bfloat16 already and
 * lie one after the other are copied to their place; others arrive as they are
 * and a kernel converts them.  Matrices live in arenas that are given back
 * together.  The thread that opens the model. */
#include "model/cuda/ops_cuda.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "model/load/convert.h"
}

namespace
{

const size_t stage_bytes = (size_t)64 << 20;
const size_t arena_bytes = (size_t)256 << 20;

/* ---- memory ---- */

enum err_code arena_take(struct cuda_ops *o, size_t bytes, void **out, struct err *e)
{
    size_t n = (bytes + 255) & ~(size_t)255;
    struct arena *a = o->arena;
    if (a == NULL || (size_t)(a->end - a->at) < n) {
        size_t capacity = n > arena_bytes / 4 ? n : arena_bytes;
        a = (struct arena *)calloc(1, sizeof *a);
        if (a == NULL)
            return err_nomem(e, "weights", sizeof *a);
        enum err_code rc = cuda_result(cudaMalloc(&a->base, capacity), "allocating weights", e);
        if (rc != ERR_OK) {
            free(a);
            return rc;
        }
        a->at = (char *)a->base;
        a->end = a->at + capacity;
        /* A large matrix does not end a chunk that is not full. */
        bool behind = o->arena != NULL && capacity != arena_bytes;
        struct arena **place = behind ? &o->arena->next : &o->arena;
        a->next = *place;
        *place = a;
    }
    *out = a->at;
    a->at += n;
    return ERR_OK;
}

enum err_code make_staging(struct cuda_ops *o, struct err *e)
{
    struct staging *s = &o->staging;
    enum err_code rc = ERR_OK;
    for (int i = 0; rc == ERR_OK && i < STAGES && s->host[i] == NULL; i++) {
        rc = cuda_result(cudaMallocHost(&s->host[i], stage_bytes), "allocating pinned memory", e);
        if (rc == ERR_OK)
            rc = cuda_result(cudaEventCreateWithFlags(&s->done[i], cudaEventDisableTiming),
                             "creating an event", e);
    }
    return rc;
}

void free_staging(struct staging *s)
{
    for (int i = 0; i < STAGES; i++) {
        if (s->done[i] != NULL)
            cudaEventDestroy(s->done[i]);
        if (s->host[i] != NULL)
            cudaFreeHost(s->host[i]);
    }
    cudaFree(s->raw);
    memset(s, 0, sizeof *s);
}

/* ---- reading with a few threads ---- */

enum { READERS = 4 };

struct span {
    char *to;
    const char *from;
    size_t bytes;
};

void *read_span(void *arg)
{
    const struct span *s = (const struct span *)arg;
    memcpy(s->to, s->from, s->bytes);
    return NULL;
}

void read_all(char *to, const char *from, size_t bytes)
{
    struct span span[READERS];
    pthread_t thread[READERS];
    bool started[READERS] = {};
    size_t each = bytes / READERS & ~(size_t)4095;
    if (bytes < (size_t)4 << 20) {
        memcpy(to, from, bytes);
        return;
    }
    for (int i = 0; i < READERS; i++) {
        size_t at = (size_t)i * each;
        span[i] = { to + at, from + at, i + 1 < READERS ? each : bytes - at };
        started[i] = i > 0 && pthread_create(&thread[i], NULL, read_span, &span[i]) == 0;
    }
    for (int i = 0; i < READERS; i++) {
        if (started[i])
            pthread_join(thread[i], NULL);
        else
            read_span(&span[i]);
    }
}

/* ---- conversion ---- */

uint64_t dtype_bytes(enum st_dtype type)
{
    return type == ST_F32 ? 4 : 2;
}

__device__ float read_one(const void *p, uint64_t i, enum st_dtype type)
{
    if (type == ST_F32)
        return ((const float *)p)[i];
    return type == ST_BF16 ? __bfloat162float(((const __nv_bfloat16 *)p)[i])
                           : __half2float(((const __half *)p)[i]);
}

__global__ void convert(const void *from, enum st_dtype type, uint64_t row_stride,
                        uint64_t col_stride, uint32_t n_rows, uint32_t n_cols, bool exact, void *to)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < (size_t)n_rows * n_cols; i += (size_t)gridDim.x * blockDim.x) {
        float v = read_one(from, i / n_cols * row_stride + i % n_cols * col_stride, type);
        if (exact)
            ((float *)to)[i] = v;
        else
            ((__nv_bfloat16 *)to)[i] = __float2bfloat16(v);
    }
}

enum err_code grow_raw(struct cuda_ops *o, size_t bytes, struct err *e)
{
    struct staging *s = &o->staging;
    if (bytes <= s->n_raw)
        return ERR_OK;
    cudaFree(s->raw); /* waits for its readers */
    s->raw = NULL;
    s->n_raw = 0;
    enum err_code rc = cuda_result(cudaMalloc(&s->raw, bytes), "allocating a staging buffer", e);
    if (rc == ERR_OK)
        s->n_raw = bytes;
    return rc;
}

/* n_rows rows of the piece from row `at` into place. */
enum err_code convert_rows(struct cuda_ops *o, const struct op_piece *p, uint32_t at, uint32_t n,
                           uint32_t n_cols, bool exact, void *to, struct err *e)
{
    uint64_t size = dtype_bytes(p->dtype);
    uint64_t span = (n - 1) * p->row_stride + (n_cols - 1) * p->col_stride + 1;
    enum err_code rc = grow_raw(o, span * size, e);
    if (rc == ERR_OK)
        rc = load_upload(o, o->staging.raw, p->data + at * p->row_stride * size, span * size, e);
    if (rc != ERR_OK)
        return rc;
    convert<<<1024, 256, 0, o->stream>>>(o->staging.raw, p->dtype, p->row_stride, p->col_stride, n,
                                         n_cols, exact, to);
    return cuda_result(cudaGetLastError(), "converting weights", e);
}

enum err_code load_piece(struct cuda_ops *o, const struct op_piece *p, uint32_t n_cols, bool exact,
                         char *to, struct err *e)
{
    size_t row = (size_t)n_cols * (exact ? 4 : 2);
    enum err_code rc = ERR_OK;
    if (p->dtype == ST_BF16 && !exact && p->col_stride == 1 && p->row_stride == n_cols)
        return load_upload(o, to, p->data, p->n_rows * row, e);
    /* Rows that lie apart are converted some at a time, columns all at once. */
    uint64_t each = stage_bytes / (p->row_stride * dtype_bytes(p->dtype) + 1) + 1;
    uint32_t step = p->col_stride == 1 && each < p->n_rows ? (uint32_t)each : p->n_rows;
    for (uint32_t at = 0; rc == ERR_OK && at < p->n_rows; at += step) {
        uint32_t n = p->n_rows - at < step ? p->n_rows - at : step;
        rc = convert_rows(o, p, at, n, n_cols, exact, to + at * row, e);
    }
    return rc;
}

enum err_code load_bias(struct cuda_ops *o, const struct op_matrix_desc *d, struct op_matrix *m,
                        struct err *e)
{
    float *v = (float *)calloc(m->n_rows, sizeof *v);
    void *device = NULL;
    if (v == NULL)
        return err_nomem(e, "bias", m->n_rows * sizeof *v);
    for (uint32_t i = 0, at = 0; i < d->n_pieces; at += d->piece[i++].n_rows) {
        const struct op_piece *p = &d->piece[i];
        if (p->bias != NULL)
            model_convert_strided(p->bias->data, p->bias->dtype, p->bias_at, p->bias_stride,
                                  p->n_rows, v + at);
    }
    enum err_code rc = arena_take(o, m->n_rows * 4ul, &device, e);
    m->bias = (float *)device;
    if (rc == ERR_OK)
        rc = load_upload(o, m->bias, v, m->n_rows * 4ul, e);
    if (rc == ERR_OK)
        rc = arena_take(o, m->n_rows * 2ul, &m->bias_t, e);
    if (rc == ERR_OK) {
        model_convert_to_bf16(v, m->n_rows, (uint16_t *)v);
        rc = load_upload(o, m->bias_t, v, m->n_rows * 2ul, e);
    }
    free(v);
    return rc;
}

} // namespace

enum err_code load_upload(struct cuda_ops *o, void *to, const void *from, size_t bytes,
                          struct err *e)
{
    struct staging *s = &o->staging;
    enum err_code rc = make_staging(o, e);
    for (size_t at = 0; rc == ERR_OK && at < bytes;) {
        size_t n = bytes - at < stage_bytes ? bytes - at : stage_bytes;
        uint32_t i = s->turn++ % STAGES;
        rc = cuda_result(cudaEventSynchronize(s->done[i]), "uploading", e);
        if (rc != ERR_OK)
            break;
        read_all((char *)s->host[i], (const char *)from + at, n);
        rc = cuda_result(
            cudaMemcpyAsync((char *)to + at, s->host[i], n, cudaMemcpyHostToDevice, o->stream),
            "uploading", e);
        if (rc == ERR_OK)
            rc = cuda_result(cudaEventRecord(s->done[i], o->stream), "uploading", e);
        at += n;
    }
    return rc;
}

enum err_code load_matrix(struct cuda_ops *o, const struct op_matrix_desc *d,
                          struct op_matrix **out, struct err *e)
{
    struct op_matrix *m = (struct op_matrix *)calloc(1, sizeof *m);
    bool bias = false;
    if (m == NULL)
        return err_nomem(e, "matrix", sizeof *m);
    for (uint32_t i = 0; i < d->n_pieces; i++) {
        m->n_rows += d->piece[i].n_rows;
        bias = bias || d->piece[i].bias != NULL;
    }
    m->n_cols = d->n_cols;
    m->glu = d->glu;
    m->exact = d->exact;
    size_t row = (size_t)d->n_cols * (d->exact ? 4 : 2);
    m->n_bytes = m->n_rows * row;
    enum err_code rc = arena_take(o, m->n_bytes, &m->data, e);
    char *to = (char *)m->data;
    for (uint32_t i = 0; rc == ERR_OK && i < d->n_pieces; i++) {
        rc = load_piece(o, &d->piece[i], d->n_cols, d->exact, to, e);
        to += d->piece[i].n_rows * row;
    }
    if (rc == ERR_OK && bias)
        rc = load_bias(o, d, m, e);
    if (rc != ERR_OK) {
        free(m);
        return rc;
    }
    if (d->glu && m->n_rows > o->widest_glu)
        o->widest_glu = m->n_rows;
    *out = m;
    return ERR_OK;
}

enum err_code load_finish(struct cuda_ops *o, struct err *e)
{
    enum err_code rc = cuda_result(cudaStreamSynchronize(o->stream), "loading", e);
    free_staging(&o->staging);
    return rc;
}

void load_free(struct cuda_ops *o)
{
    free_staging(&o->staging);
    while (o->arena != NULL) {
        struct arena *next = o->arena->next;
        cudaFree(o->arena->base);
        free(o->arena);
        o->arena = next;
    }
}
