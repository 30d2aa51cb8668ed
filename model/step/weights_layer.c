/* weights_layer.c: the tensors of one layer, named and fused by family features.
 * See weights_load.h. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "model/load/convert.h"
#include "proto/try.h"
#include "model/step/weights_load.h"

enum { NAME_BYTES = 256 };

/* model.layers.<i>.<fmt...> */
static const char *layer_name(char buf[NAME_BYTES], uint32_t i, const char *fmt, ...)
    PRINTF_LIKE(3, 4);

static const char *layer_name(char buf[NAME_BYTES], uint32_t i, const char *fmt, ...)
{
    int n = snprintf(buf, NAME_BYTES, "model.layers.%u.", i);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(buf + n, NAME_BYTES - (size_t)n, fmt, ap);
    va_end(ap);
    return buf;
}

/* The piece [n_rows, n_cols] of module `stem` (stem.weight, stem.bias). */
static enum err_code piece(struct loader *l, const char *stem, uint32_t n_rows, uint32_t n_cols,
                           bool bias, struct op_piece *out, struct err *e)
{
    char name[NAME_BYTES + 64];
    uint64_t shape[2] = { n_rows, n_cols };
    const struct st_tensor *t;
    snprintf(name, sizeof name, "%s.weight", stem);
    TRY(model_checkpoint_need(l->ck, name, 2, shape, &t, e));
    l->w->n_parameters += t->n_elements;
    *out = (struct op_piece){ .data = t->data,
                              .dtype = t->dtype,
                              .row_stride = n_cols,
                              .col_stride = 1,
                              .n_rows = n_rows,
                              .bias_stride = 1 };
    if (!bias)
        return ERR_OK;
    snprintf(name, sizeof name, "%s.bias", stem);
    TRY(model_checkpoint_need(l->ck, name, 1, shape, &out->bias, e));
    l->w->n_parameters += n_rows;
    return ERR_OK;
}

static enum err_code single(struct loader *l, const char *stem, uint32_t n_rows, uint32_t n_cols,
                            bool bias, struct op_matrix **out, struct err *e)
{
    struct op_matrix_desc d = { .n_cols = n_cols, .n_pieces = 1 };
    TRY(piece(l, stem, n_rows, n_cols, bias, &d.piece[0], e));
    return model_loader_matrix(l, &d, out, e);
}

/* ---- attention ---- */

static enum err_code load_qkv(struct loader *l, uint32_t i, struct layer_weights *y, struct err *e)
{
    const struct model_config *c = l->c;
    char name[NAME_BYTES];
    uint32_t nq = c->n_heads * c->head_dim, nk = c->n_kv_heads * c->head_dim;
    if (c->family->features & FAMILY_PACKED_QKV)
        return single(l, layer_name(name, i, "self_attn.qkv_proj"), nq + 2 * nk, c->hidden,
                      c->bias_qkv, &y->qkv, e);
    struct op_matrix_desc d = { .n_cols = c->hidden, .n_pieces = 3 };
    TRY(piece(l, layer_name(name, i, "self_attn.q_proj"), nq, c->hidden, c->bias_qkv, &d.piece[0],
              e));
    TRY(piece(l, layer_name(name, i, "self_attn.k_proj"), nk, c->hidden, c->bias_qkv, &d.piece[1],
              e));
    TRY(piece(l, layer_name(name, i, "self_attn.v_proj"), nk, c->hidden, c->bias_qkv, &d.piece[2],
              e));
    return model_loader_matrix(l, &d, &y->qkv, e);
}

static enum err_code load_qk_norm(struct loader *l, uint32_t i, struct layer_weights *y,
                                  struct err *e)
{
    const struct model_config *c = l->c;
    unsigned f = c->family->features;
    char name[NAME_BYTES];
    void *p;
    if (f & FAMILY_QK_NORM_HEAD) {
        TRY(model_loader_vector(l, layer_name(name, i, "self_attn.q_norm.weight"), c->head_dim,
                                loader_plus_one(l), true, &y->q_norm_t, e));
        TRY(model_loader_vector(l, layer_name(name, i, "self_attn.k_norm.weight"), c->head_dim,
                                loader_plus_one(l), true, &y->k_norm_t, e));
    }
    if (f & FAMILY_QK_NORM_FULL) {
        TRY(model_loader_vector(l, layer_name(name, i, "self_attn.q_norm.weight"),
                                c->n_heads * c->head_dim, loader_plus_one(l), false, &p, e));
        y->q_norm = p;
        TRY(model_loader_vector(l, layer_name(name, i, "self_attn.k_norm.weight"),
                                c->n_kv_heads * c->head_dim, loader_plus_one(l), false, &p, e));
        y->k_norm = p;
    }
    if (f & FAMILY_SINKS)
        TRY(model_loader_vector(l, layer_name(name, i, "self_attn.sinks"), c->n_heads, 0, true,
                                &y->sink, e));
    return ERR_OK;
}

/* Per head, kv_b's K rows transposed (to carry q into the latent space; transposed,
 * to make keys of latent rows) and its V rows (to carry the result out of it, or
 * to make values of latent rows). */
static enum err_code load_absorbed(struct loader *l, uint32_t i, struct layer_weights *y,
                                   struct err *e)
{
    const struct model_config *c = l->c;
    const struct mla_config *m = &c->mla;
    char name[NAME_BYTES];
    uint64_t shape[2] = { (uint64_t)c->n_heads * (m->nope + m->v), m->kv_rank };
    const struct st_tensor *t;
    TRY(model_checkpoint_need(l->ck, layer_name(name, i, "self_attn.kv_b_proj.weight"), 2, shape,
                              &t, e));
    l->w->n_parameters += t->n_elements;
    y->absorb_k = calloc(c->n_heads, sizeof(struct op_matrix *));
    y->absorb_v = calloc(c->n_heads, sizeof(struct op_matrix *));
    if (y->absorb_k == NULL || y->absorb_v == NULL)
        return err_nomem(e, "MLA heads", c->n_heads * sizeof(struct op_matrix *));
    uint64_t size = model_st_dtype_bytes(t->dtype), row = (uint64_t)m->kv_rank * size;
    for (uint32_t h = 0; h < c->n_heads; h++) {
        const unsigned char *k = t->data + (uint64_t)h * (m->nope + m->v) * row;
        struct op_matrix_desc dk = { .n_cols = m->nope,
                                     .n_pieces = 1,
                                     .transposed = true,
                                     .piece = { { .data = k,
                                                  .dtype = t->dtype,
                                                  .row_stride = 1,
                                                  .col_stride = m->kv_rank,
                                                  .n_rows = m->kv_rank } } };
        struct op_matrix_desc dv = { .n_cols = m->kv_rank,
                                     .n_pieces = 1,
                                     .piece = { { .data = k + m->nope * row,
                                                  .dtype = t->dtype,
                                                  .row_stride = m->kv_rank,
                                                  .col_stride = 1,
                                                  .n_rows = m->v } } };
        TRY(model_loader_matrix(l, &dk, &y->absorb_k[h], e));
        TRY(model_loader_matrix(l, &dv, &y->absorb_v[h], e));
    }
    return ERR_OK;
}

static enum err_code load_mla(struct loader *l, uint32_t i, struct layer_weights *y, struct err *e)
{
    const struct model_config *c = l->c;
    const struct mla_config *m = &c->mla;
    char name[NAME_BYTES];
    void *p;
    uint32_t nq = c->n_heads * c->head_dim;
    struct op_matrix_desc d = { .n_cols = c->hidden, .n_pieces = 2 };
    if (m->q_rank > 0) {
        TRY(piece(l, layer_name(name, i, "self_attn.q_a_proj"), m->q_rank, c->hidden, c->bias_qkv,
                  &d.piece[0], e));
        TRY(model_loader_vector(l, layer_name(name, i, "self_attn.q_a_layernorm.weight"), m->q_rank,
                                0, false, &p, e));
        y->q_a_norm = p;
        TRY(single(l, layer_name(name, i, "self_attn.q_b_proj"), nq, m->q_rank, false, &y->q_b, e));
    } else {
        TRY(piece(l, layer_name(name, i, "self_attn.q_proj"), nq, c->hidden, false, &d.piece[0],
                  e));
    }
    TRY(piece(l, layer_name(name, i, "self_attn.kv_a_proj_with_mqa"), m->kv_rank + m->rope,
              c->hidden, c->bias_qkv, &d.piece[1], e));
    TRY(model_loader_vector(l, layer_name(name, i, "self_attn.kv_a_layernorm.weight"), m->kv_rank,
                            0, false, &p, e));
    y->kv_a_norm = p;
    TRY(model_loader_matrix(l, &d, &y->qkv, e));
    return load_absorbed(l, i, y, e);
}

static enum err_code load_attention(struct loader *l, uint32_t i, struct layer_weights *y,
                                    struct err *e)
{
    const struct model_config *c = l->c;
    char name[NAME_BYTES];
    uint32_t n_out = c->n_heads * (c->mla.kv_rank ? c->mla.v : c->head_dim);
    TRY(c->mla.kv_rank ? load_mla(l, i, y, e) : load_qkv(l, i, y, e));
    TRY(load_qk_norm(l, i, y, e));
    return single(l, layer_name(name, i, "self_attn.o_proj"), c->hidden, n_out, c->bias_o, &y->o,
                  e);
}

/* ---- MLP and experts ---- */

/* gate, up and down of one gated MLP under `stem`. */
static enum err_code load_mlp(struct loader *l, const char *stem, const char *gate, const char *up,
                              const char *down, uint32_t inter, bool bias,
                              struct op_matrix **gate_up, struct op_matrix **out, struct err *e)
{
    char name[NAME_BYTES + 32];
    uint32_t hidden = l->c->hidden;
    struct op_matrix_desc d = { .n_cols = hidden, .n_pieces = 2, .glu = true };
    snprintf(name, sizeof name, "%s.%s", stem, gate);
    TRY(piece(l, name, inter, hidden, bias, &d.piece[0], e));
    snprintf(name, sizeof name, "%s.%s", stem, up);
    TRY(piece(l, name, inter, hidden, bias, &d.piece[1], e));
    TRY(model_loader_matrix(l, &d, gate_up, e));
    snprintf(name, sizeof name, "%s.%s", stem, down);
    return single(l, name, hidden, inter, bias, out, e);
}

static enum err_code load_dense(struct loader *l, uint32_t i, struct layer_weights *y,
                                struct err *e)
{
    const struct model_config *c = l->c;
    char name[NAME_BYTES];
    if ((c->family->features & FAMILY_PACKED_GATE_UP) == 0)
        return load_mlp(l, layer_name(name, i, "mlp"), "gate_proj", "up_proj", "down_proj",
                        c->intermediate, c->bias_mlp, &y->gate_up, &y->down, e);
    struct op_piece both;
    TRY(piece(l, layer_name(name, i, "mlp.gate_up_proj"), 2 * c->intermediate, c->hidden, false,
              &both, e));
    struct op_matrix_desc d = {
        .n_cols = c->hidden, .n_pieces = 2, .glu = true, .piece = { both, both }
    };
    d.piece[0].n_rows = d.piece[1].n_rows = c->intermediate;
    d.piece[1].data += (uint64_t)c->intermediate * c->hidden * model_st_dtype_bytes(both.dtype);
    TRY(model_loader_matrix(l, &d, &y->gate_up, e));
    return single(l, layer_name(name, i, "mlp.down_proj"), c->hidden, c->intermediate, false,
                  &y->down, e);
}

/* One stacked tensor of all experts, plain (in, out) or MXFP4 (out, in). */
struct stack {
    const struct st_tensor *plain, *blocks, *scales, *bias;
    uint32_t n_in, n_out; /* of one expert */
    uint16_t *expanded;   /* MXFP4: one expert, [n_out, n_in] */
};

static enum err_code need_u8(struct loader *l, const char *name, uint32_t n_dims,
                             const uint64_t *shape, const struct st_tensor **out, struct err *e)
{
    const struct st_tensor *t = model_checkpoint_find(l->ck, name);
    bool same = t != NULL && t->n_dims == n_dims && t->dtype == ST_U8;
    for (uint32_t i = 0; same && i < n_dims; i++)
        same = t->shape[i] == shape[i];
    if (!same)
        return err_set(e, ERR_INVALID,
                       "checkpoint: tensor %s: expected U8 of shape [%llu, %llu, %llu%s]", name,
                       (unsigned long long)shape[0], (unsigned long long)shape[1],
                       (unsigned long long)shape[2], n_dims == 4 ? ", 16" : "");
    *out = t;
    return ERR_OK;
}

static enum err_code open_stack(struct loader *l, const char *stem, uint32_t n_in, uint32_t n_out,
                                struct stack *s, struct err *e)
{
    char name[NAME_BYTES + 16];
    uint64_t n = l->c->moe.n_experts, shape[4] = { n, n_in, n_out, 0 }, bias[2] = { n, n_out };
    *s = (struct stack){ .n_in = n_in, .n_out = n_out };
    snprintf(name, sizeof name, "%s_bias", stem);
    TRY(model_checkpoint_need(l->ck, name, 2, bias, &s->bias, e));
    l->w->n_parameters += n * n_out * ((uint64_t)n_in + 1);
    snprintf(name, sizeof name, "%s_blocks", stem);
    if (model_checkpoint_find(l->ck, name) == NULL)
        return model_checkpoint_need(l->ck, stem, 3, shape, &s->plain, e);
    if (n_in % 32 != 0)
        return err_set(e, ERR_INVALID,
                       "checkpoint: tensor %s: %u inputs, expected a multiple of 32", name, n_in);
    uint64_t blocks[4] = { n, n_out, n_in / 32, 16 };
    TRY(need_u8(l, name, 4, blocks, &s->blocks, e));
    snprintf(name, sizeof name, "%s_scales", stem);
    TRY(need_u8(l, name, 3, blocks, &s->scales, e));
    s->expanded = malloc((size_t)n_in * n_out * sizeof *s->expanded);
    return s->expanded ? ERR_OK : err_nomem(e, name, (size_t)n_in * n_out * 2);
}

/* Expert x's outputs from, from + step, ...: n_rows of them. */
static struct op_piece stack_piece(struct stack *s, uint32_t x, uint32_t from, uint32_t step,
                                   uint32_t n_rows)
{
    struct op_piece p = { .n_rows = n_rows,
                          .bias = s->bias,
                          .bias_at = (uint64_t)x * s->n_out + from,
                          .bias_stride = step };
    if (s->plain != NULL) {
        uint64_t at = (uint64_t)x * s->n_in * s->n_out + from;
        p.data = s->plain->data + at * model_st_dtype_bytes(s->plain->dtype);
        p.dtype = s->plain->dtype;
        p.row_stride = step;
        p.col_stride = s->n_out;
        return p;
    }
    p.data = (const unsigned char *)(s->expanded + (size_t)from * s->n_in);
    p.dtype = ST_BF16;
    p.row_stride = (uint64_t)step * s->n_in;
    p.col_stride = 1;
    return p;
}

static void expand(struct stack *s, uint32_t x)
{
    uint64_t n = (uint64_t)s->n_in * s->n_out;
    if (s->blocks != NULL)
        model_convert_mxfp4(s->blocks->data + x * n / 2, s->scales->data + x * n / 32, n,
                            s->expanded);
}

static enum err_code load_stacked_from(struct loader *l, struct stack *up, struct stack *down,
                                       struct layer_weights *y, struct err *e)
{
    uint32_t inter = l->c->moe.intermediate, hidden = l->c->hidden;
    for (uint32_t x = 0; x < l->c->moe.n_experts; x++) {
        expand(up, x);
        expand(down, x);
        struct op_matrix_desc du = { .n_cols = hidden,
                                     .n_pieces = 2,
                                     .glu = true,
                                     .piece = { stack_piece(up, x, 0, 2, inter),
                                                stack_piece(up, x, 1, 2, inter) } };
        struct op_matrix_desc dd = { .n_cols = inter,
                                     .n_pieces = 1,
                                     .piece = { stack_piece(down, x, 0, 1, hidden) } };
        TRY(model_loader_matrix(l, &du, &y->expert_up[x], e));
        TRY(model_loader_matrix(l, &dd, &y->expert_down[x], e));
    }
    return ERR_OK;
}

static enum err_code load_stacked(struct loader *l, uint32_t i, struct layer_weights *y,
                                  struct err *e)
{
    const struct moe_names *n = l->c->family->moe;
    uint32_t inter = l->c->moe.intermediate;
    struct stack up = { 0 }, down = { 0 };
    char name[NAME_BYTES];
    enum err_code rc = open_stack(l, layer_name(name, i, "%s.%s", n->experts, n->up), l->c->hidden,
                                  2 * inter, &up, e);
    if (rc == ERR_OK)
        rc = open_stack(l, layer_name(name, i, "%s.%s", n->experts, n->down), inter, l->c->hidden,
                        &down, e);
    if (rc == ERR_OK)
        rc = load_stacked_from(l, &up, &down, y, e);
    free(up.expanded);
    free(down.expanded);
    return rc;
}

static enum err_code load_router(struct loader *l, uint32_t i, struct layer_weights *y,
                                 struct err *e)
{
    const struct model_config *c = l->c;
    const struct moe_names *n = c->family->moe;
    char name[NAME_BYTES];
    struct op_matrix_desc d = { .n_cols = c->hidden, .n_pieces = 1, .exact = true };
    TRY(piece(l, layer_name(name, i, "%s", n->router), c->moe.n_experts, c->hidden,
              (c->family->features & FAMILY_STACKED_EXPERTS) != 0, &d.piece[0], e));
    TRY(model_loader_matrix(l, &d, &y->router, e));
    if (c->moe.routing != ROUTE_SIGMOID_BIAS)
        return ERR_OK;
    return model_loader_read(l, layer_name(name, i, "%s.e_score_correction_bias", n->router),
                             c->moe.n_experts, &y->choice_bias, e);
}

static enum err_code load_experts(struct loader *l, uint32_t i, struct layer_weights *y,
                                  struct err *e)
{
    const struct model_config *c = l->c;
    const struct moe_names *n = c->family->moe;
    char name[NAME_BYTES];
    TRY(load_router(l, i, y, e));
    y->expert_up = calloc(c->moe.n_experts, sizeof(struct op_matrix *));
    y->expert_down = calloc(c->moe.n_experts, sizeof(struct op_matrix *));
    if (y->expert_up == NULL || y->expert_down == NULL)
        return err_nomem(e, "experts", c->moe.n_experts * sizeof(struct op_matrix *));
    if (c->family->features & FAMILY_STACKED_EXPERTS)
        return load_stacked(l, i, y, e);
    for (uint32_t x = 0; x < c->moe.n_experts; x++)
        TRY(load_mlp(l, layer_name(name, i, "%s.%u", n->experts, x), n->gate, n->up, n->down,
                     c->moe.intermediate, false, &y->expert_up[x], &y->expert_down[x], e));
    if (c->moe.shared_intermediate == 0)
        return ERR_OK;
    return load_mlp(l, layer_name(name, i, "%s", n->shared), n->gate, n->up, n->down,
                    c->moe.shared_intermediate, false, &y->gate_up, &y->down, e);
}

enum err_code model_loader_layer(struct loader *l, uint32_t i, struct err *e)
{
    const struct family *f = l->c->family;
    struct layer_weights *y = &l->w->layer[i];
    char name[NAME_BYTES];
    for (int k = 0; k < NORM_KINDS; k++) {
        void *p = NULL;
        if (f->norm[k] != NULL)
            TRY(model_loader_vector(l, layer_name(name, i, "%s.weight", f->norm[k]), l->c->hidden,
                                    loader_plus_one(l), false, &p, e));
        y->norm[k] = p;
    }
    TRY(load_attention(l, i, y, e));
    return l->c->layer[i].moe ? load_experts(l, i, y, e) : load_dense(l, i, y, e);
}
