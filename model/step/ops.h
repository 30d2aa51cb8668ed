/* ops.h: what the layer loop needs from a device.
 *
 * forward.c is written once over this table; model/cpu implements it, and a
 * device backend can as well.  Activations of the residual stream are float32;
 * everything that enters a matrix or attention is T (enum op_dtype of the
 * backend).  Buffers are opaque device addresses.  Calls of one step are
 * ordered; a backend may return before they are done, `finish` waits.
 * One thread (the engine's) after open. */
#ifndef MODEL_STEP_OPS_H
#define MODEL_STEP_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attention/attn.h"
#include "attention/platform/device.h"
#include "model/load/config.h"
#include "model/load/safetensors.h"
#include "proto/err.h"
#include "proto/plan/step_plan.h"

enum op_dtype { OP_F32, OP_BF16 };

/* n_rows rows of a matrix in checkpoint memory: element (n, k) lies at
 * data + (n * row_stride + k * col_stride) elements of dtype (BF16, F16, F32),
 * at any alignment.  Borrowed for the call. */
struct op_piece {
    const unsigned char *data;
    enum st_dtype dtype;
    uint64_t row_stride, col_stride;
    uint32_t n_rows;
    const struct st_tensor *bias; /* [n_rows] from bias_at by bias_stride, or NULL */
    uint64_t bias_at, bias_stride;
};

enum { OP_PIECES = 3 };

/* The matrix [sum of n_rows, n_cols].  glu: two pieces of equal height, gate
 * and up, to be used with OP_OUT_GLU.  exact: multiplied in float32 whatever T is
 * (routers); its input is float32 too.  transposed: one piece, whose transpose is
 * multiplied by as well (op_heads); a backend may keep a second copy for it. */
struct op_matrix_desc {
    uint32_t n_cols, n_pieces;
    struct op_piece piece[OP_PIECES];
    bool glu, exact, transposed;
};

struct op_matrix;

enum op_out {
    OP_OUT_T,   /* T [n, N]                            */
    OP_OUT_F32, /* float32 [n, N]                      */
    OP_OUT_ADD, /* float32 [n, N] +=                   */
    OP_OUT_GLU  /* T [n, N/2]: act(gate) * up          */
};

/* y = x W^T + b for n rows; leading dimensions in elements. */
struct op_linear {
    const struct op_matrix *w;
    const void *in;
    size_t in_ld;
    void *to;
    size_t to_ld;
    enum op_out out;
    enum act_kind act;
    float limit;
};

/* The same for `n_heads` matrices side by side: head h reads in + h * in_head
 * and writes to + h * to_head (elements). OP_OUT_T only.  transposed: y = x W, by
 * matrices that were made for it. */
struct op_heads {
    struct op_matrix *const *w;
    uint32_t n_heads;
    bool transposed;
    const void *in;
    size_t in_ld, in_head;
    void *to;
    size_t to_ld, to_head;
};

/* Rotate n_parts parts of each row in place: `dim` channels of T at x + row * ld
 * + part * step.  Row i is token `first + i` of the step, in one of n_rows
 * sequences that begin in it: its position counts from the sequence's first
 * token.  cos and sin are T [table_rows, dim/2]. */
struct op_rope {
    void *x;
    size_t ld, step;
    uint32_t n_parts, dim, first, n_rows, table_rows;
    bool interleaved;
    const int32_t *cu_seqlens; /* [n_rows + 1], op_plan's */
    const void *cos, *sin;
};

/* One MoE layer over normalised rows x (T): to += scale * sum of chosen experts. */
struct op_moe {
    const struct moe_config *config;
    const struct op_matrix *router;                 /* exact */
    const float *choice_bias;                       /* host, [n_experts], or NULL */
    struct op_matrix *const *gate_up, *const *down; /* [n_experts] */
    enum act_kind act;
    float limit;
    const void *in; /* T [n, hidden] */
    float *to;      /* [n, hidden] */
    uint32_t hidden;
};

/* A step as it is computed: the plan's arrays where the device can read them,
 * and their shapes.  A padded step has more tokens, rows and outputs than the
 * plan: rows without tokens, tokens that are stored nowhere, outputs that
 * nobody samples. */
struct op_plan {
    const int32_t *token, *cu_seqlens, *past_seqlens;
    const int32_t *slot_mapping[KV_GROUPS], *block_table[KV_GROUPS];
    const uint32_t *output_row; /* [n_outputs] indices into token */
    uint32_t n_tokens, n_rows, n_outputs;
    uint32_t max_query_len, max_kv_len;
    uint32_t table_cols[KV_GROUPS];
};

struct ops_limits {
    uint32_t max_tokens, max_rows, max_outputs;
    uint32_t n_groups, table_cols; /* block table of the longest sequence */
    uint32_t vocab, hidden;
    const struct moe_config *moe;
};

struct ops {
    const char *name;
    enum op_dtype type; /* T */
    const struct attn_backend *attention;
    const struct device_ops *device; /* queues and graphs; NULL on the CPU */
    int32_t device_index;
    void *self;

    void (*close)(void *self);
    struct workers *(*workers)(void *self); /* NULL on a device */
    void *(*stream)(void *self);            /* attn_run's, NULL on the CPU */

    enum err_code (*alloc)(void *self, size_t bytes, const char *what, void **out, struct err *e);
    void (*release)(void *self, void *p, size_t bytes);
    enum err_code (*upload)(void *self, void *to, const void *from, size_t bytes, struct err *e);

    enum err_code (*matrix_create)(void *self, const struct op_matrix_desc *d,
                                   struct op_matrix **out, struct err *e);
    void (*matrix_destroy)(void *self, struct op_matrix *m);
    uint64_t (*matrix_bytes)(const struct op_matrix *m);

    /* After all matrices: scratch for steps of these sizes; what an earlier start
     * took is given back. */
    enum err_code (*start)(void *self, const struct ops_limits *lim, struct err *e);

    /* ---- a step, in order ---- */

    /* pad: how many tokens, rows and outputs to compute, none fewer than the
     * plan's; 0: the plan's own (the CPU knows no other). */
    enum err_code (*begin)(void *self, const struct step_plan *plan, uint32_t pad,
                           struct op_plan *out, struct err *e);
    /* x[i] = scale * table[token[i]]; table rows are T or, for exactness, as packed. */
    void (*embed)(void *self, const void *table, enum st_dtype dtype, const int32_t *token,
                  uint32_t n, uint32_t hidden, float scale, float *x);
    /* T out[n, width] = x * w / rms(x); w float32 or NULL: a cast. */
    void (*norm)(void *self, const float *x, const float *w, float eps, uint32_t n, uint32_t width,
                 void *out);
    /* x += w * y / rms(y), float32: a norm after a sublayer. */
    void (*norm_add)(void *self, float *x, const float *y, const float *w, float eps, uint32_t n,
                     uint32_t width);
    /* In place on T [n, ld], `width` channels from `at`. */
    void (*norm_part)(void *self, void *y, size_t ld, uint32_t at, uint32_t width, const float *w,
                      float eps, uint32_t n);
    void (*linear)(void *self, const struct op_linear *l, uint32_t n);
    void (*heads)(void *self, const struct op_heads *h, uint32_t n);
    /* T: for each of n rows and n_parts parts, copy width channels. */
    void (*copy_parts)(void *self, const void *from, size_t from_ld, size_t from_part, void *to,
                       size_t to_ld, size_t to_part, uint32_t n, uint32_t n_parts, uint32_t width);
    /* Like attention's own rotation: the same bits. */
    void (*rope)(void *self, const struct op_rope *r, uint32_t n);
    void (*moe)(void *self, const struct op_moe *m, uint32_t n);
    /* out[i] = x[row[i]], float32; row: op_plan's output_row. */
    void (*gather)(void *self, const float *x, const uint32_t *row, uint32_t n, uint32_t width,
                   float *out);
    void (*zero)(void *self, void *p, size_t bytes);
    /* x = cap * tanh(x / cap), float32. */
    void (*softcap)(void *self, float *x, float cap, size_t n);
    /* Choose the tokens of n outputs from logits [n, vocab], by the rules of
     * sampling.h.  NULL: the host does it after finish. */
    void (*sample)(void *self, const float *logits, uint32_t n);
    /* All is queued (on the CPU: done); report what went wrong since begin. */
    enum err_code (*finish)(void *self, struct err *e);
    /* Wait for the step; with `sample`, what came of it, [plan->n_outputs]. */
    enum err_code (*collect)(void *self, const struct sampled **out, struct err *e);
    /* Wait, and copy from the device. */
    enum err_code (*download)(void *self, void *to, const void *from, size_t bytes, struct err *e);
};

/* The interface "model" of a plugin (attention/platform/plugin.h). */
enum { MODEL_ABI = 2 };

struct model_plugin {
    uint32_t abi; /* MODEL_ABI */
    /* Open device `index`: T is bfloat16.  *out is the caller's to close. */
    enum err_code (*open)(struct ops *out, int32_t index, struct err *e);
};

/* The CPU: T is float32 or, where the machine multiplies it, bfloat16. */
MUST_USE enum err_code model_cpu_open(struct ops *out, enum op_dtype type, uint32_t n_threads,
                                      struct err *e);

#endif
