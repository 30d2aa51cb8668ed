/* blas.cu: y = x W^T + b through cuBLASLt.
 *
 * The library is opened when the backend is, so that the plugin loads where it
 * is absent.  Descriptors and the algorithm of a shape are chosen once and kept
 * in a table of fixed size: a shape that falls on another's place replaces it.
 * Accumulates in float32; the algorithm depends on the number of rows.
 *
 * Owns the handle, a workspace and the kept choices.  The engine's thread. */
#include "model/cuda/ops_cuda.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

namespace
{

enum { KEPT = 4096 };

const size_t workspace_bytes = (size_t)64 << 20;

/* What decides on an algorithm. */
struct shape {
    uint64_t in_ld, to_ld, w_step, in_step, to_step;
    uint32_t n_rows, n_cols, n, batch;
    uint32_t transposed, out, bias, align; /* align: lowest set bits of the addresses */
};

struct choice {
    struct shape shape;
    bool made;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t w, in, to;
    cublasLtMatmulAlgo_t algo;
    size_t workspace;
};

} // namespace

struct blas {
    void *library;
    cublasLtHandle_t handle;
    void *workspace;
    struct choice *kept; /* [KEPT] */

    decltype(&cublasLtCreate) create;
    decltype(&cublasLtDestroy) destroy;
    decltype(&cublasLtMatmul) matmul;
    decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
    decltype(&cublasLtMatmulDescCreate) op_create;
    decltype(&cublasLtMatmulDescDestroy) op_destroy;
    decltype(&cublasLtMatmulDescSetAttribute) op_set;
    decltype(&cublasLtMatrixLayoutCreate) layout_create;
    decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
    decltype(&cublasLtMatrixLayoutSetAttribute) layout_set;
    decltype(&cublasLtMatmulPreferenceCreate) pref_create;
    decltype(&cublasLtMatmulPreferenceDestroy) pref_destroy;
    decltype(&cublasLtMatmulPreferenceSetAttribute) pref_set;
};

namespace
{

enum err_code result(cublasStatus_t rc, const char *what, struct err *e)
{
    if (rc == CUBLAS_STATUS_SUCCESS)
        return ERR_OK;
    return err_set(e, rc == CUBLAS_STATUS_ALLOC_FAILED ? ERR_NOMEM : ERR_GPU,
                   "cuBLASLt: %s: status %d", what, (int)rc);
}

enum err_code open_library(struct blas *b, struct err *e)
{
    static const char *const names[] = { "libcublasLt.so.13", "libcublasLt.so.12",
                                         "/usr/local/cuda/lib64/libcublasLt.so.13",
                                         "/usr/local/cuda/lib64/libcublasLt.so.12" };
    for (const char *name : names) {
        b->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (b->library != NULL)
            break;
    }
    if (b->library == NULL)
        return err_set(e, ERR_IO, "cuBLASLt: %s", dlerror());
    const struct {
        const char *name;
        void **to;
    } symbols[] = {
        { "cublasLtCreate", (void **)&b->create },
        { "cublasLtDestroy", (void **)&b->destroy },
        { "cublasLtMatmul", (void **)&b->matmul },
        { "cublasLtMatmulAlgoGetHeuristic", (void **)&b->heuristic },
        { "cublasLtMatmulDescCreate", (void **)&b->op_create },
        { "cublasLtMatmulDescDestroy", (void **)&b->op_destroy },
        { "cublasLtMatmulDescSetAttribute", (void **)&b->op_set },
        { "cublasLtMatrixLayoutCreate", (void **)&b->layout_create },
        { "cublasLtMatrixLayoutDestroy", (void **)&b->layout_destroy },
        { "cublasLtMatrixLayoutSetAttribute", (void **)&b->layout_set },
        { "cublasLtMatmulPreferenceCreate", (void **)&b->pref_create },
        { "cublasLtMatmulPreferenceDestroy", (void **)&b->pref_destroy },
        { "cublasLtMatmulPreferenceSetAttribute", (void **)&b->pref_set },
    };
    for (const auto &s : symbols) {
        *s.to = dlsym(b->library, s.name);
        if (*s.to == NULL)
            return err_set(e, ERR_IO, "cuBLASLt: no symbol %s", s.name);
    }
    return ERR_OK;
}

/* ---- choices ---- */

/* Of every matrix of a batch whose addresses lie step elements apart. */
uint32_t alignment(const void *p, int64_t step, uint32_t element)
{
    uintptr_t low = ((uintptr_t)p | (uintptr_t)step * element) & (256 - 1);
    return low == 0 ? 256 : (uint32_t)(low & (~low + 1));
}

struct shape shape_of(const struct blas_call *c)
{
    struct shape s;
    memset(&s, 0, sizeof s); /* compared as bytes */
    s.in_ld = c->in_ld;
    s.to_ld = c->to_ld;
    s.w_step = (uint64_t)c->w_step;
    s.in_step = (uint64_t)c->in_step;
    s.to_step = (uint64_t)c->to_step;
    s.n_rows = c->w->n_rows;
    s.n_cols = c->w->n_cols;
    s.n = c->n;
    s.batch = c->batch;
    s.transposed = c->transposed;
    s.out = c->out;
    s.bias = c->w->bias != NULL;
    s.align = alignment(c->w->data, c->w_step, 2) << 20 | alignment(c->in, c->in_step, 2) << 10 |
              alignment(c->to, c->to_step, c->out == OP_OUT_T ? 2 : 4);
    return s;
}

uint32_t place_of(const struct shape *s)
{
    const unsigned char *p = (const unsigned char *)s;
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < sizeof *s; i++)
        h = (h ^ p[i]) * 16777619u;
    return (h ^ h >> 15) % KEPT;
}

void forget(struct blas *b, struct choice *k)
{
    if (k->op != NULL)
        b->op_destroy(k->op);
    if (k->w != NULL)
        b->layout_destroy(k->w);
    if (k->in != NULL)
        b->layout_destroy(k->in);
    if (k->to != NULL)
        b->layout_destroy(k->to);
    memset(k, 0, sizeof *k);
}

/* Column-major, as the library sees it: to^T [N, n] = W^T' [K, N]' in^T [K, n]; transposed,
 * to^T [K, n] = W^T [K, N] in^T [N, n]. */
enum err_code describe(struct blas *b, struct choice *k, cudaDataType to_type, struct err *e)
{
    const struct shape *s = &k->shape;
    cublasOperation_t op = s->transposed ? CUBLAS_OP_N : CUBLAS_OP_T;
    uint32_t n_in = s->transposed ? s->n_rows : s->n_cols,
             n_to = s->transposed ? s->n_cols : s->n_rows;
    cublasLtEpilogue_t bias = CUBLASLT_EPILOGUE_BIAS;
    cublasStatus_t rc = b->op_create(&k->op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = b->op_set(k->op, CUBLASLT_MATMUL_DESC_TRANSA, &op, sizeof op);
    if (rc == CUBLAS_STATUS_SUCCESS && s->bias) {
        rc = b->op_set(k->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &bias, sizeof bias);
        if (rc == CUBLAS_STATUS_SUCCESS)
            rc = b->op_set(k->op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &to_type, sizeof to_type);
    }
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = b->layout_create(&k->w, CUDA_R_16BF, s->n_cols, s->n_rows, s->n_cols);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = b->layout_create(&k->in, CUDA_R_16BF, n_in, s->n, (int64_t)s->in_ld);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = b->layout_create(&k->to, to_type, n_to, s->n, (int64_t)s->to_ld);
    if (rc != CUBLAS_STATUS_SUCCESS || s->batch <= 1)
        return result(rc, "describing a matmul", e);
    const cublasLtMatrixLayout_t layout[] = { k->w, k->in, k->to };
    const int64_t step[] = { (int64_t)s->w_step, (int64_t)s->in_step, (int64_t)s->to_step };
    int32_t batch = (int32_t)s->batch;
    for (int i = 0; i < 3 && rc == CUBLAS_STATUS_SUCCESS; i++) {
        rc = b->layout_set(layout[i], CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch);
        if (rc == CUBLAS_STATUS_SUCCESS)
            rc = b->layout_set(layout[i], CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step[i],
                               sizeof step[i]);
    }
    return result(rc, "describing a batch of matmuls", e);
}

enum err_code choose(struct blas *b, struct choice *k, struct err *e)
{
    static const cublasLtMatmulPreferenceAttributes_t attributes[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
    };
    uint32_t a = k->shape.align;
    const uint32_t align[] = { a >> 20, a >> 10 & 1023, a & 1023, a & 1023 };
    cublasLtMatmulPreference_t pref = NULL;
    cublasLtMatmulHeuristicResult_t best;
    int found = 0;
    cublasStatus_t rc = b->pref_create(&pref);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = b->pref_set(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                         sizeof workspace_bytes);
    for (int i = 0; i < 4 && rc == CUBLAS_STATUS_SUCCESS; i++)
        rc = b->pref_set(pref, attributes[i], &align[i], sizeof align[i]);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = b->heuristic(b->handle, k->op, k->w, k->in, k->to, k->to, pref, 1, &best, &found);
    if (pref != NULL)
        b->pref_destroy(pref);
    if (rc == CUBLAS_STATUS_SUCCESS && found == 0)
        rc = CUBLAS_STATUS_NOT_SUPPORTED;
    if (rc != CUBLAS_STATUS_SUCCESS)
        return err_set(e, ERR_GPU, "cuBLASLt: no algorithm for %u x %u by %u rows: status %d",
                       k->shape.n_rows, k->shape.n_cols, k->shape.n, (int)rc);
    k->algo = best.algo;
    k->workspace = best.workspaceSize;
    return ERR_OK;
}

enum err_code find_choice(struct blas *b, const struct blas_call *c, cudaDataType to_type,
                          struct choice **out, struct err *e)
{
    struct shape s = shape_of(c);
    struct choice *k = &b->kept[place_of(&s)];
    *out = k;
    if (k->made && memcmp(&k->shape, &s, sizeof s) == 0)
        return ERR_OK;
    forget(b, k);
    k->shape = s;
    enum err_code rc = describe(b, k, to_type, e);
    if (rc == ERR_OK)
        rc = choose(b, k, e);
    k->made = rc == ERR_OK;
    return rc;
}

} // namespace

enum err_code blas_run(struct blas *b, const struct blas_call *c, cudaStream_t s, struct err *e)
{
    bool wide = c->out == OP_OUT_F32 || c->out == OP_OUT_ADD;
    const float one = 1.0f, beta = c->out == OP_OUT_ADD ? 1.0f : 0.0f;
    const void *bias = wide ? (const void *)c->w->bias : c->w->bias_t;
    struct choice *k;
    enum err_code rc = find_choice(b, c, wide ? CUDA_R_32F : CUDA_R_16BF, &k, e);
    if (rc != ERR_OK)
        return rc;
    if (c->w->bias != NULL) {
        rc = result(b->op_set(k->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias),
                    "setting a bias", e);
        if (rc != ERR_OK)
            return rc;
    }
    return result(b->matmul(b->handle, k->op, &one, c->w->data, k->w, c->in, k->in, &beta, c->to,
                            k->to, c->to, k->to, &k->algo, b->workspace, k->workspace, s),
                  "multiplying", e);
}

enum err_code blas_open(struct blas **out, struct err *e)
{
    struct blas *b = (struct blas *)calloc(1, sizeof *b);
    if (b == NULL)
        return err_nomem(e, "cuBLASLt", sizeof *b);
    enum err_code rc = open_library(b, e);
    b->kept = (struct choice *)calloc(KEPT, sizeof *b->kept);
    if (rc == ERR_OK && b->kept == NULL)
        rc = err_nomem(e, "matmuls", KEPT * sizeof *b->kept);
    if (rc == ERR_OK)
        rc = result(b->create(&b->handle), "creating a handle", e);
    if (rc == ERR_OK)
        rc = cuda_result(cudaMalloc(&b->workspace, workspace_bytes), "cuBLASLt workspace", e);
    if (rc != ERR_OK) {
        blas_close(b);
        return rc;
    }
    *out = b;
    return ERR_OK;
}

void blas_close(struct blas *b)
{
    if (b == NULL)
        return;
    for (int i = 0; b->kept != NULL && i < KEPT; i++)
        forget(b, &b->kept[i]);
    if (b->handle != NULL)
        b->destroy(b->handle);
    cudaFree(b->workspace);
    free(b->kept);
    if (b->library != NULL)
        dlclose(b->library);
    free(b);
}
