/* forward.c: see forward.h.  The residual stream x is float32; a sublayer reads
 * T, and its result is added to x by the last matrix multiplication itself, or through a norm
 * where the family has one there.
 *
 * On a device whose queue can be captured, steps of one token a row are padded
 * to a bucket and replayed: one graph a bucket, made before the first step. */
#include "model/step/internal.h"

#include <stdlib.h>
#include <string.h>

#include "model/load/families.h"
#include "proto/try.h"

/* Rows of the captured steps; the most rows that a step may have are one more,
 * unless they are beyond the list: such steps run eagerly. */
static const uint32_t bucket_rows[] = { 1,  2,  4,   8,   12,  16,  24,  32,  48,
                                        64, 96, 128, 192, 256, 384, 512, 768, 1024 };

_Static_assert(BUCKETS == sizeof bucket_rows / sizeof *bucket_rows + 1, "one more");

/* ---- one layer ---- */

/* The sublayer's last matrix: onto x, or onto delta when a norm follows. */
static void matmul_out(struct forward *f, const struct op_matrix *w, enum buffer in, size_t in_ld,
                       const float *norm, uint32_t n)
{
    uint32_t h = f->c->hidden;
    forward_matmul(f, w, in, in_ld, norm ? BUF_DELTA : BUF_X, h, norm ? OP_OUT_F32 : OP_OUT_ADD, n);
    if (norm != NULL)
        f->ops->norm_add(f->ops->self, f->buf[BUF_X], f->buf[BUF_DELTA], norm, f->c->norm_eps, n,
                         h);
}

/* BUF_IN to attention's result, which lies in *result. */
static enum err_code attend_heads(struct forward *f, uint32_t layer, uint32_t n,
                                  enum buffer *result, struct err *e)
{
    const struct ops *o = f->ops;
    const struct model_config *c = f->c;
    const struct layer_weights *y = &f->w->layer[layer];
    size_t nq = (size_t)c->n_heads * c->head_dim, nk = (size_t)c->n_kv_heads * c->head_dim;
    *result = c->mla.kv_rank > 0 ? BUF_OUT : BUF_ATTN;
    if (c->mla.kv_rank > 0)
        return model_mla_attention(f, layer, e);
    forward_matmul(f, y->qkv, BUF_IN, c->hidden, BUF_QKV, f->qkv_width, OP_OUT_T, n);
    if (y->q_norm != NULL) {
        o->norm_part(o->self, f->buf[BUF_QKV], f->qkv_width, 0, (uint32_t)nq, y->q_norm,
                     c->norm_eps, n);
        o->norm_part(o->self, f->buf[BUF_QKV], f->qkv_width, (uint32_t)nq, (uint32_t)nk, y->k_norm,
                     c->norm_eps, n);
    }
    return model_forward_attend(f, layer, e);
}

static enum err_code attention(struct forward *f, uint32_t layer, uint32_t n, struct err *e)
{
    const struct ops *o = f->ops;
    const struct model_config *c = f->c;
    const struct layer_weights *y = &f->w->layer[layer];
    enum buffer result;
    o->norm(o->self, f->buf[BUF_X], y->norm[NORM_PRE_ATTN], c->norm_eps, n, c->hidden,
            f->buf[BUF_IN]);
    TRY(attend_heads(f, layer, n, &result, e));
    size_t width = (size_t)c->n_heads * (c->mla.kv_rank ? c->mla.v : c->head_dim);
    matmul_out(f, y->o, result, width, y->norm[NORM_POST_ATTN], n);
    return ERR_OK;
}

static void moe_layer(struct forward *f, const struct layer_weights *y, uint32_t n)
{
    const struct ops *o = f->ops;
    const struct model_config *c = f->c;
    const float *norm = y->norm[NORM_POST_FFN];
    enum buffer to = norm ? BUF_DELTA : BUF_X;
    if (norm != NULL)
        o->zero(o->self, f->buf[to], (size_t)n * c->hidden * sizeof(float));
    struct op_moe m = { .config = &c->moe,
                        .router = y->router,
                        .choice_bias = y->choice_bias,
                        .gate_up = y->expert_up,
                        .down = y->expert_down,
                        .act = c->act,
                        .limit = c->swiglu_limit,
                        .in = f->buf[BUF_IN],
                        .to = f->buf[to],
                        .hidden = c->hidden };
    o->moe(o->self, &m, n);
    if (c->moe.shared_intermediate > 0) {
        uint32_t inter = c->moe.shared_intermediate;
        forward_matmul(f, y->gate_up, BUF_IN, c->hidden, BUF_MID, inter, OP_OUT_GLU, n);
        forward_matmul(f, y->down, BUF_MID, inter, to, c->hidden, OP_OUT_ADD, n);
    }
    if (norm != NULL)
        o->norm_add(o->self, f->buf[BUF_X], f->buf[BUF_DELTA], norm, c->norm_eps, n, c->hidden);
}

static void feed_forward(struct forward *f, uint32_t layer, uint32_t n)
{
    const struct model_config *c = f->c;
    const struct layer_weights *y = &f->w->layer[layer];
    f->ops->norm(f->ops->self, f->buf[BUF_X], y->norm[NORM_PRE_FFN], c->norm_eps, n, c->hidden,
                 f->buf[BUF_IN]);
    if (c->layer[layer].moe) {
        moe_layer(f, y, n);
        return;
    }
    forward_matmul(f, y->gate_up, BUF_IN, c->hidden, BUF_MID, c->intermediate, OP_OUT_GLU, n);
    matmul_out(f, y->down, BUF_MID, c->intermediate, y->norm[NORM_POST_FFN], n);
}

/* ---- a step ---- */

static enum err_code check_step(const struct forward *f, const struct step_plan *p, struct err *e)
{
    if (p->n_tokens > f->lim.max_tokens || p->n_rows > f->lim.max_rows ||
        p->n_outputs > f->lim.max_outputs)
        return err_set(e, ERR_LIMIT,
                       "step plan: %u tokens, %u rows, %u outputs, expected at most %u, %u, %u",
                       p->n_tokens, p->n_rows, p->n_outputs, f->lim.max_tokens, f->lim.max_rows,
                       f->lim.max_outputs);
    for (uint32_t i = 0; i < p->n_tokens; i++)
        if ((uint32_t)p->token[i] >= f->c->vocab &&
            (p->token_from == NULL || p->token_from[i] < 0 || p->token[i] != -1))
            return err_set(e, ERR_INVALID, "step plan: token[%u] is %d, expected 0 to %u", i,
                           p->token[i], f->c->vocab - 1);
    for (uint32_t i = 0; i < p->n_outputs; i++)
        if (p->output[i].token >= p->n_tokens)
            return err_set(e, ERR_INVALID, "step plan: output[%u].token is %u, expected below %u",
                           i, p->output[i].token, p->n_tokens);
    return ERR_OK;
}

static void compute_logits(struct forward *f)
{
    const struct ops *o = f->ops;
    uint32_t n = f->step.n_outputs, h = f->c->hidden;
    o->gather(o->self, f->buf[BUF_X], f->step.output_row, n, h, f->buf[BUF_LAST]);
    o->norm(o->self, f->buf[BUF_LAST], f->w->final_norm, f->c->norm_eps, n, h, f->buf[BUF_LAST_T]);
    forward_matmul(f, f->w->head, BUF_LAST_T, h, BUF_LOGITS, f->c->vocab, OP_OUT_F32, n);
    if (f->c->final_softcap > 0)
        o->softcap(o->self, f->buf[BUF_LOGITS], f->c->final_softcap, (size_t)n * f->c->vocab);
    if (o->sample != NULL)
        o->sample(o->self, f->buf[BUF_LOGITS], n);
}

/* Everything between the plan's upload and the results, queued in order. */
static enum err_code compute(struct forward *f, int work, struct err *e)
{
    const struct ops *o = f->ops;
    uint32_t n = f->step.n_tokens;
    f->work = work;
    f->bounds[0] = (int32_t)f->paged.max_query_len;
    f->bounds[1] = (int32_t)f->paged.max_kv_len;
    for (uint32_t i = 0; i < f->n_classes; i++)
        f->classes[i].planned = false;
    if (n == 0)
        return ERR_OK;
    o->embed(o->self, f->w->embed, f->w->embed_dtype, f->step.token, n, f->c->hidden,
             f->c->embed_scale, f->buf[BUF_X]);
    for (uint32_t i = 0; i < f->c->n_layers; i++) {
        TRY(attention(f, i, n, e));
        feed_forward(f, i, n);
    }
    if (f->step.n_outputs > 0)
        compute_logits(f);
    return ERR_OK;
}

/* The captured step that this plan fits, or NULL. */
static const struct bucket *bucket_of(const struct forward *f, const struct step_plan *p)
{
    uint32_t n = p->n_rows > p->n_outputs ? p->n_rows : p->n_outputs;
    if (p->n_tokens == 0 || p->n_tokens != p->n_rows || p->max_query_len != 1)
        return NULL;
    for (uint32_t i = 0; i < f->n_buckets; i++)
        if (f->bucket[i].rows >= n)
            return &f->bucket[i];
    return NULL;
}

enum err_code model_forward_step(struct forward *f, const struct step_plan *p, struct err *e)
{
    const struct ops *o = f->ops;
    TRY(check_step(f, p, e));
    const struct bucket *b = bucket_of(f, p);
    f->paged = (struct step_part){ p->n_rows, p->n_tokens, p->max_query_len, p->max_kv_len };
    if (b == NULL && f->order != NULL)
        TRY(model_step_order_apply(f->order, p, f->expand_from, &p, &f->paged, e));
    TRY(o->begin(o->self, p, b ? b->rows : 0, &f->step, e));
    if (f->lim.poison)
        TRY(attn_kv_poison(f->kv, p, o->stream(o->self), e));
    TRY(attn_kv_copy(f->kv, p->copy, p->n_copies, o->stream(o->self), e));
    if (b != NULL)
        TRY(o->device->graph_launch(b->graph, o->stream(o->self), e));
    else
        TRY(compute(f, WORK_EAGER, e));
    return o->finish(o->self, e);
}

/* ---- captured steps ---- */

/* One step of n rows without tokens, first as it is (libraries load and choose,
 * the workspace grows), then into a graph.  Lengths are bounded by the longest
 * sequence: whatever a later step holds, the graph fits. */
static enum err_code capture(struct forward *f, uint32_t n, void **graph, struct err *e)
{
    const struct ops *o = f->ops;
    struct step_plan empty = { .n_groups = f->lay->n_groups };
    void *stream = o->stream(o->self);
    TRY(o->begin(o->self, &empty, n, &f->step, e));
    f->paged = (struct step_part){ n, n, 1, f->lim.max_seq_tokens };
    TRY(compute(f, WORK_CAPTURED, e));
    TRY(o->finish(o->self, e));
    TRY(o->collect(o->self, NULL, e));
    TRY(o->device->capture_begin(stream, e));
    enum err_code rc = compute(f, WORK_CAPTURED, e);
    struct err ended;
    enum err_code end = o->device->capture_end(stream, graph, &ended);
    if (rc == ERR_OK && end != ERR_OK && e != NULL)
        *e = ended;
    return rc ? rc : end;
}

/* The largest first: its workspace serves the smaller ones. */
static enum err_code capture_all(struct forward *f, struct err *e)
{
    uint32_t most = f->lim.max_rows, n = 0;
    most = f->lim.max_tokens < most ? f->lim.max_tokens : most;
    most = f->lim.max_outputs < most ? f->lim.max_outputs : most;
    while (n < BUCKETS - 1 && bucket_rows[n] < most) {
        f->bucket[n].rows = bucket_rows[n];
        n++;
    }
    if (most > 0 && most <= bucket_rows[BUCKETS - 2])
        f->bucket[n++].rows = most;
    for (uint32_t i = n; i-- > 0;)
        TRY(capture(f, f->bucket[i].rows, &f->bucket[i].graph, e));
    f->n_buckets = n;
    return ERR_OK;
}

float *model_forward_logits(const struct forward *f)
{
    return f->buf[BUF_LOGITS];
}

/* ---- create and destroy ---- */

static uint32_t first_width(const struct model_config *c)
{
    if (c->mla.kv_rank > 0)
        return (c->mla.q_rank ? c->mla.q_rank : c->n_heads * c->head_dim) + c->mla.kv_rank +
               c->mla.rope;
    return (c->n_heads + 2 * c->n_kv_heads) * c->head_dim;
}

static void size_buffers(const struct model_config *c, enum op_dtype type,
                         const struct forward_limits *lim, size_t bytes[BUFFERS])
{
    const struct mla_config *m = &c->mla;
    size_t n = lim->max_tokens, outs = lim->max_outputs, t = type == OP_F32 ? 4 : 2;
    size_t heads = c->n_heads, mid = c->intermediate;
    if (c->moe.shared_intermediate > mid)
        mid = c->moe.shared_intermediate;
    memset(bytes, 0, BUFFERS * sizeof *bytes);
    bytes[BUF_X] = bytes[BUF_DELTA] = n * c->hidden * 4;
    bytes[BUF_IN] = n * c->hidden * t;
    bytes[BUF_QKV] = n * first_width(c) * t;
    bytes[BUF_ATTN] = n * heads * (m->kv_rank ? m->kv_rank : c->head_dim) * t;
    if (m->kv_rank > 0) {
        bytes[BUF_Q] = n * heads * c->head_dim * t;
        bytes[BUF_LATENT] = n * model_mla_latent_width(c) * t;
        bytes[BUF_KEY] = n * (m->kv_rank + m->rope) * t;
        bytes[BUF_OUT] = n * heads * m->v * t;
    }
    bytes[BUF_MID] = n * mid * t;
    bytes[BUF_LAST] = outs * c->hidden * 4;
    bytes[BUF_LAST_T] = outs * c->hidden * t;
    bytes[BUF_LOGITS] = outs * c->vocab * 4;
}

static enum err_code make_classes(struct forward *f, struct err *e)
{
    f->classes = calloc(f->c->n_layers, sizeof *f->classes);
    if (f->classes == NULL)
        return err_nomem(e, "attention plans", f->c->n_layers * sizeof *f->classes);
    for (uint32_t i = 0; i < f->c->n_layers; i++) {
        uint32_t g = f->lay->layer_group[i], k = 0;
        int8_t rope = f->c->layer[i].rope;
        while (k < f->n_classes && (f->classes[k].group != g || f->classes[k].rope != rope))
            k++;
        if (k == f->n_classes)
            f->classes[f->n_classes++] =
                (struct attn_class){ .group = g, .window = f->lay->group[g].window, .rope = rope };
        f->class_of[i] = (uint16_t)k;
    }
    return ERR_OK;
}

static struct ops_limits ops_limits_of(const struct model_config *c, const struct kv_layout *lay,
                                       const struct forward_limits *lim)
{
    return (struct ops_limits){ .max_tokens = lim->max_tokens,
                                .max_rows = lim->max_rows,
                                .max_outputs = lim->max_outputs,
                                .n_groups = lay->n_groups,
                                .table_cols = (lim->max_seq_tokens + lay->block_tokens - 1) /
                                              lay->block_tokens,
                                .vocab = c->vocab,
                                .hidden = c->hidden,
                                .moe = &c->moe };
}

/* On a device, the workspace of the largest eager step is there before the first. */
static enum err_code reserve_eager(struct forward *f, struct err *e)
{
    const struct ops *o = f->ops;
    const struct forward_limits *lim = &f->lim;
    struct step_plan empty = { .n_groups = f->lay->n_groups };
    TRY(o->begin(o->self, &empty, 0, &f->step, e));
    TRY(o->finish(o->self, e));
    TRY(o->collect(o->self, NULL, e));
    f->step.n_tokens = lim->max_tokens;
    f->step.n_rows = lim->max_rows;
    f->paged =
        (struct step_part){ lim->max_rows, lim->max_tokens, lim->max_tokens, lim->max_seq_tokens };
    f->bounds[0] = (int32_t)f->paged.max_query_len;
    f->bounds[1] = (int32_t)f->paged.max_kv_len;
    f->work = WORK_EAGER;
    for (uint32_t i = f->c->n_layers; i-- > 0;)
        TRY(model_forward_plan_attention(f, i, e));
    return ERR_OK;
}

static enum err_code make_all(struct forward *f, uint32_t n_blocks, struct err *e)
{
    const struct ops *o = f->ops;
    size_t bytes[BUFFERS];
    struct attn_options opt = { .backend = o->attention,
                                .workers = o->workers(o->self),
                                .device_index = o->device_index };
    TRY(make_classes(f, e));
    TRY(attn_open(&f->attn, &opt, e));
    TRY(attn_kv_create(&f->kv, f->attn, f->lay, n_blocks + f->lim.poison, e));
    if (f->lim.poison)
        TRY(attn_kv_poison_init(f->kv, e));
    size_buffers(f->c, o->type, &f->lim, bytes);
    for (int i = 0; i < BUFFERS; i++) {
        if (bytes[i] == 0)
            continue;
        TRY(o->alloc(o->self, bytes[i], "activations", &f->buf[i], e));
        f->n_bytes[i] = bytes[i];
    }
    struct ops_limits lim = ops_limits_of(f->c, f->lay, &f->lim);
    if (f->expand_from < UINT32_MAX && model_mla_can_expand(f))
        TRY(model_step_order_create(&f->order, &lim, e));
    TRY(o->start(o->self, &lim, e));
    if (o->device == NULL)
        return ERR_OK;
    TRY(reserve_eager(f, e));
    return f->lim.eager ? ERR_OK : capture_all(f, e);
}

enum err_code model_forward_create(struct forward **out, const struct ops *ops,
                                   const struct model_config *c, const struct weights *w,
                                   const struct kv_layout *lay, const struct forward_limits *lim,
                                   struct err *e)
{
    struct forward *f = calloc(1, sizeof *f);
    if (f == NULL)
        return err_nomem(e, "forward pass", sizeof *f);
    f->ops = ops;
    f->c = c;
    f->w = w;
    f->lay = lay;
    f->lim = *lim;
    f->rope_rows = w->rope_rows;
    f->qkv_width = first_width(c);
    f->expand_from = lim->expand_from ? lim->expand_from : model_mla_expand_from(c);
    enum err_code rc = make_all(f, lim->n_blocks, e);
    if (rc) {
        model_forward_destroy(f);
        return rc;
    }
    *out = f;
    return ERR_OK;
}

void model_forward_destroy(struct forward *f)
{
    if (f == NULL)
        return;
    for (uint32_t i = 0; i < BUCKETS; i++)
        if (f->bucket[i].graph != NULL)
            f->ops->device->graph_destroy(f->bucket[i].graph);
    attn_kv_destroy(f->kv);
    attn_close(f->attn);
    for (int i = 0; i < BUFFERS; i++)
        if (f->buf[i] != NULL)
            f->ops->release(f->ops->self, f->buf[i], f->n_bytes[i]);
    for (int i = 0; i < WORKSPACES; i++)
        if (f->workspace[i].p != NULL)
            f->ops->release(f->ops->self, f->workspace[i].p, f->workspace[i].bytes);
    for (uint32_t i = 0; i < f->n_classes; i++)
        for (int j = 0; j < WORKSPACES; j++)
            if (f->classes[i].schedule[j].p != NULL)
                f->ops->release(f->ops->self, f->classes[i].schedule[j].p,
                                f->classes[i].schedule[j].bytes);
    model_step_order_destroy(f->order);
    free(f->classes);
    free(f);
}
