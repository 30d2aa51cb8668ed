/* internal.h: the forward pass's own state, shared by its files.  The
 * engine's thread. */
#ifndef MODEL_STEP_INTERNAL_H
#define MODEL_STEP_INTERNAL_H

#include "attention/kv_slabs.h"
#include "model/step/forward.h"
#include "model/step/order.h"

/* Eager steps and captured ones do not share a workspace: a graph holds its
 * address for good. */
enum { WORK_EAGER, WORK_CAPTURED, WORKSPACES };

struct workspace {
    void *p;
    size_t bytes;
};

/* Layers whose attention calls differ in pointers only share a plan, and what
 * attn_begin makes of a step's lengths. */
struct attn_class {
    uint32_t group, window;
    int8_t rope;
    bool planned; /* in this step */
    struct attn_plan plan;
    struct workspace schedule[WORKSPACES];
};

enum { BUCKETS = 19 }; /* captured steps */

struct bucket {
    uint32_t rows;
    void *graph;
};

enum buffer {
    BUF_X,      /* float32 [n, hidden]: the residual stream                  */
    BUF_DELTA,  /* float32 [n, hidden]: a sublayer's result before its norm  */
    BUF_IN,     /* T [n, hidden]: a sublayer's input                         */
    BUF_QKV,    /* T [n, first projection]                                   */
    BUF_Q,      /* T [n, heads * head]: MLA's q where it has one of its own  */
    BUF_LATENT, /* MLA, T: absorbed q [tokens, heads * (rank + rope)], then
                 * the keys [tokens, heads * head] and the values
                 * [tokens, heads * v] of expanded rows                      */
    BUF_KEY,    /* T [n, rank + rope]: MLA's key row                         */
    BUF_ATTN,   /* T [n, heads * v]: attention's result (MLA: latent)        */
    BUF_OUT,    /* T [n, heads * v]: MLA's result per head                   */
    BUF_MID,    /* T [n, intermediate]                                       */
    BUF_LAST,   /* float32 [outputs, hidden]                                 */
    BUF_LAST_T, /* T [outputs, hidden]                                       */
    BUF_LOGITS, /* float32 [outputs, vocab]                                  */
    BUFFERS
};

struct forward {
    const struct ops *ops;
    const struct model_config *c;
    const struct weights *w;
    const struct kv_layout *lay;
    struct forward_limits lim;
    struct attn *attn;
    struct attn_kv *kv;
    void *buf[BUFFERS];
    size_t n_bytes[BUFFERS];
    struct workspace workspace[WORKSPACES];
    int work;                      /* which of them this step uses */
    struct bucket bucket[BUCKETS]; /* ascending */
    uint32_t n_buckets;
    struct attn_class *classes; /* [n_classes] */
    uint32_t n_classes;
    uint16_t class_of[KV_LAYERS];
    uint32_t qkv_width, rope_rows;
    /* MLA: rows that begin with so many tokens are expanded */
    uint32_t expand_from;
    struct step_order *order; /* NULL: rows stay where they are */
    /* of the step */
    struct op_plan step;
    struct step_part paged; /* what the operator attends; what follows is expanded */
    int32_t bounds[2];
};

static inline size_t forward_t_bytes(const struct forward *f)
{
    return f->ops->type == OP_F32 ? 4 : 2;
}

/* Attention's name for T. */
static inline enum attn_dtype forward_t(const struct forward *f)
{
    return f->ops->type == OP_F32 ? ATTN_F32 : ATTN_BF16;
}

/* Element i of a buffer of T. */
static inline void *forward_at(const struct forward *f, enum buffer b, size_t i)
{
    return (unsigned char *)f->buf[b] + i * forward_t_bytes(f);
}

/* buf[to] = buf[in] w^T for n rows, as `out` says. */
static inline void forward_matmul(struct forward *f, const struct op_matrix *w, enum buffer in,
                                  size_t in_ld, enum buffer to, size_t to_ld, enum op_out out,
                                  uint32_t n)
{
    struct op_linear l = { .w = w,
                           .in = f->buf[in],
                           .in_ld = in_ld,
                           .to = f->buf[to],
                           .to_ld = to_ld,
                           .out = out,
                           .act = f->c->act,
                           .limit = f->c->swiglu_limit };
    f->ops->linear(f->ops->self, &l, n);
}

/* ---- attend.c ---- */

/* The operator over the rows that it attends. */
MUST_USE enum err_code model_forward_attend(struct forward *f, uint32_t layer, struct err *e);

/* At least `bytes` of workspace for this step's calls. */
MUST_USE enum err_code model_forward_workspace(struct forward *f, size_t bytes, struct err *e);

/* Plan the layer's calls for the step in f: its workspace is then large enough. */
MUST_USE enum err_code model_forward_plan_attention(struct forward *f, uint32_t layer,
                                                    struct err *e);

/* ---- mla.c ---- */

/* From how many tokens on a row that begins in a step is expanded: what
 * operation counts say, UINT32_MAX for never. */
uint32_t model_mla_expand_from(const struct model_config *c);

/* Whether the backend attends to expanded rows of this model. */
bool model_mla_can_expand(const struct forward *f);

/* Elements a token that BUF_LATENT needs. */
size_t model_mla_latent_width(const struct model_config *c);

/* BUF_IN to BUF_OUT, everything between the two projections of layer. */
MUST_USE enum err_code model_mla_attention(struct forward *f, uint32_t layer, struct err *e);

#endif
