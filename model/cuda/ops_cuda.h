/* ops_cuda.h: the CUDA backend's own state, shared by its files.
 *
 * One queue carries a step: upload, layers, sampling, results.  Every launch
 * that fails is kept in `fault` until finish reports it.  The engine's thread,
 * but for loading, which is the opener's.  Everything of T is bfloat16. */
#ifndef MODEL_CUDA_OPS_CUDA_H
#define MODEL_CUDA_OPS_CUDA_H

#include "attention/cuda/interfaces.h"

extern "C" {
#include "model/step/ops.h"
}

#include "model/cuda/sample_row.h"

extern const struct model_plugin cuda_model;

struct blas; /* blas.cu */

/* Rows of gate, then of up, where glu. */
struct op_matrix {
    uint32_t n_rows, n_cols;
    bool glu, exact;
    void *data;   /* bfloat16, exact: float32; [n_rows, n_cols] in an arena */
    float *bias;  /* [n_rows] or NULL */
    void *bias_t; /* the same, bfloat16 */
    uint64_t n_bytes;
};

/* What skinny.cu asks of the device: shared memory of a CTA, CTAs of a cluster. */
struct skinny_device {
    int smem, split;
};

/* A layer's experts as kernels find them; one a router, made when first used. */
struct expert_table {
    const struct op_matrix *router;
    const void **up, **down;            /* device [n_experts] */
    const float **up_bias, **down_bias; /* device, entries may be NULL */
    float *choice_bias;                 /* device or NULL */
    uint32_t inter;
    struct expert_table *next;
};

/* Weight memory, given back as a whole. */
struct arena {
    struct arena *next;
    char *at, *end;
    void *base;
};

enum { STAGES = 2 };

/* Pinned memory through which checkpoint bytes go; freed by start. */
struct staging {
    void *host[STAGES];
    cudaEvent_t done[STAGES];
    uint32_t turn;
    void *raw; /* device: elements before conversion */
    size_t n_raw;
};

/* A pair of buffers of equal size; grown, never shrunk. */
struct mirror {
    char *host, *device;
    size_t bytes;
};

/* The step's buffer: offsets of the parts that every step sends whole, and of
 * the block tables behind them. */
struct step_layout {
    size_t sample, patch, output_row, cu, past, token, slot[KV_GROUPS], table, total;
};

/* What one of the two steps that may be in flight has of its own. */
struct step_slot {
    char *host; /* pinned, step_layout's total */
    struct mirror lists, results;
    struct sampled *sampled; /* [max_outputs] */
    cudaEvent_t done;
    uint64_t step;
    uint32_t n_outputs;
    size_t n_result_bytes;
    bool begun;  /* the queue may still read host or results */
    bool queued; /* to the end: it can be collected          */
};

enum { STEP_SLOTS = 2 };

struct moe_scratch {
    float *logits;   /* [n, experts]         */
    int32_t *expert; /* [n, top_k]           */
    float *weight;   /* [n, top_k]           */
    int32_t *slot;   /* [n, top_k]           */
    int32_t *row;    /* [pairs] slot -> token */
    int32_t *begin;  /* [experts + 1]        */
    int32_t *tile;   /* [2, tiles]: expert, first slot; then their number */
    void *mid;       /* T [pairs, inter]     */
    float *result;   /* [pairs, hidden]      */
    uint32_t max_tiles;
};

struct cuda_ops {
    int device, n_sm;
    cudaStream_t stream;
    struct blas *blas;
    struct skinny_device skinny;
    struct err fault; /* of the step: code 0 or why */
    /* loading */
    struct arena *arena;
    struct staging staging;
    uint32_t widest_glu; /* rows of gate and up together */
    /* steps */
    struct ops_limits lim;
    struct moe_config moe;
    struct step_layout at;
    char *step_device; /* step_layout's total; captured graphs hold its address */
    struct step_slot slot[STEP_SLOTS];
    uint32_t turn;             /* the slot of the step begun last */
    int32_t *table[KV_GROUPS]; /* [max_rows, table_cols] */
    void *glu;                 /* T [max_tokens, widest_glu] */
    struct sample_scratch sample;
    struct moe_scratch experts;
    struct expert_table *tables;
};

/* Remember the first thing that went wrong in this step. */
static inline void keep_fault(struct cuda_ops *o, cudaError_t rc, const char *what)
{
    if (rc != cudaSuccess && o->fault.code == ERR_OK)
        (void)cuda_result(rc, what, &o->fault);
}

static inline void check_launch(struct cuda_ops *o, const char *what)
{
    keep_fault(o, cudaGetLastError(), what);
}

/* ---- load.cu: weights ---- */

enum err_code load_upload(struct cuda_ops *o, void *to, const void *from, size_t bytes,
                          struct err *e);
enum err_code load_matrix(struct cuda_ops *o, const struct op_matrix_desc *d,
                          struct op_matrix **out, struct err *e);
/* Wait for every copy and give the staging memory back. */
enum err_code load_finish(struct cuda_ops *o, struct err *e);
void load_free(struct cuda_ops *o);

/* ---- blas.cu: matmuls through cuBLASLt, opened at run time ---- */

enum err_code blas_open(struct blas **out, struct err *e);
void blas_close(struct blas *b);

/* to[n, rows of w] = in w^T + bias, T or float32, added to `to` where out is
 * OP_OUT_ADD; transposed: to[n, columns of w] = in w, without bias.  batch > 1:
 * matrices, inputs and results that lie apart by the given steps (elements). */
struct blas_call {
    const struct op_matrix *w;
    const void *in;
    void *to;
    size_t in_ld, to_ld;
    enum op_out out;
    bool transposed;
    uint32_t n, batch;
    int64_t w_step, in_step, to_step;
};
enum err_code blas_run(struct blas *b, const struct blas_call *c, cudaStream_t s, struct err *e);

/* ---- skinny.cu: matmuls of few rows ---- */

enum { SKINNY_ROWS = 16 };

enum err_code skinny_open(struct cuda_ops *o, int major, struct err *e);
/* Whether these rows are skinny_run's; else they are blas_run's. */
bool skinny_takes(const struct op_linear *l, uint32_t n);
void skinny_run(struct cuda_ops *o, const struct op_linear *l, uint32_t n);

/* ---- rows.cu: kernels over rows ---- */

enum err_code rows_open(struct err *e);

void rows_embed(struct cuda_ops *o, const void *table, enum st_dtype dtype, const int32_t *token,
                uint32_t n, uint32_t hidden, float scale, float *x);
void rows_norm(struct cuda_ops *o, const float *x, const float *w, float eps, uint32_t n,
               uint32_t width, void *out);
void rows_norm_add(struct cuda_ops *o, float *x, const float *y, const float *w, float eps,
                   uint32_t n, uint32_t width);
void rows_norm_part(struct cuda_ops *o, void *y, size_t ld, uint32_t at, uint32_t width,
                    const float *w, float eps, uint32_t n);
void rows_glu(struct cuda_ops *o, const void *both, uint32_t width, enum act_kind act, float limit,
              uint32_t n, void *to, size_t to_ld);
void rows_copy_parts(struct cuda_ops *o, const void *from, size_t from_ld, size_t from_part,
                     void *to, size_t to_ld, size_t to_part, uint32_t n, uint32_t n_parts,
                     uint32_t width);
void rows_rope(struct cuda_ops *o, const struct op_rope *r, uint32_t n);
void rows_gather(struct cuda_ops *o, const float *x, const uint32_t *row, uint32_t n,
                 uint32_t width, float *out);
void rows_softcap(struct cuda_ops *o, float *x, float cap, size_t n);
/* A step's arrays from where they were sent to where kernels read them. */
struct step_arrival {
    const struct token_patch *patch; /* tokens of results go where these say */
    const struct sample_out *results;
    const int32_t *table[KV_GROUPS]; /* [rows, cols] each, to [rows, to_cols] */
    int32_t *to[KV_GROUPS];
    uint32_t cols[KV_GROUPS], to_cols;
    uint32_t n_patches, n_rows, n_groups;
};
void rows_arrive(struct cuda_ops *o, const struct step_arrival *a);

/* ---- moe.cu ---- */

enum err_code moe_start(struct cuda_ops *o, struct err *e);
void moe_run(struct cuda_ops *o, const struct op_moe *m, uint32_t n);
void moe_free(struct cuda_ops *o);

/* ---- sample.cu ---- */

/* Slices that a row of logits is scanned in. */
uint32_t sample_slices(uint32_t vocab);

/* Rows rows[0..n) of logits [n, vocab]; rows without `out` are skipped. */
cudaError_t sample_launch(const struct sample_row *rows, const float *logits,
                          const struct sample_scratch *s, uint32_t n, uint32_t vocab,
                          cudaStream_t stream);

/* ---- step.cu: a step's arrays, there and back ---- */

enum err_code step_start(struct cuda_ops *o, struct err *e);
enum err_code step_begin(struct cuda_ops *o, const struct step_plan *p, uint32_t pad,
                         struct op_plan *out, struct err *e);
enum err_code step_finish(struct cuda_ops *o, struct err *e);
enum err_code step_collect(struct cuda_ops *o, const struct sampled **out, struct err *e);
void step_free(struct cuda_ops *o);

#endif
