/* mla.c: latent attention, in its two forms.
 *
 *   absorbed   q W_UK attends to the latent cache, W_UV carries the result out:
 *              what decode, chunks and prefix hits need, whose keys lie there
 *   expanded   keys c W_UK and values c W_UV per head, ordinary attention over a
 *              row's own tokens: for rows that begin in this step
 *
 * A token and head cost rank (nope + v) multiplications with W_UK and W_UV in either;
 * a pair of query and key costs 2 rank + rope absorbed, nope + rope + v
 * expanded (576 + 512 against 192 + 128 in DeepSeek V2 and V3).  Both write the
 * same latent rows.  A step has absorbed rows first, expanded ones behind
 * (order.h).  Called by forward.c. */
#include "model/load/rope.h"
#include "model/step/internal.h"
#include "proto/try.h"

/* Operations in the time that one more weight takes to arrive: 15 for a CPU core
 * (38 GB/s of bfloat16, 290 GFLOP/s), 70 for an H200 (4.8 TB/s, absorbed attention at
 * 170 TFLOP/s). */
enum { WEIGHT_READ = 32 };

/* The published code makes the norms of the latent rows with its norm's own default,
 * not with rms_norm_eps, whatever config.json says. */
static const float latent_norm_eps = 1e-6f;

/* Beside absorbed rows the expansion reads W_UK and W_UV once more; the pairs of
 * n tokens, n (n + 1) / 2, must save what that costs: 74 tokens in DeepSeek V2 and
 * V3.  So much alone decides: a row's form does not depend on the rows beside it. */
uint32_t model_mla_expand_from(const struct model_config *c)
{
    uint64_t rank = c->mla.kv_rank, wide = (uint64_t)c->mla.nope + c->mla.v;
    if (2 * rank <= wide)
        return UINT32_MAX;
    uint64_t saved = 2 * (2 * rank - wide), cost = WEIGHT_READ * rank * wide, n = 2;
    while (n * (n + 1) / 2 * saved < cost)
        n++;
    return (uint32_t)n;
}

bool model_mla_can_expand(const struct forward *f)
{
    const struct model_config *c = f->c;
    int64_t nq = (int64_t)c->n_heads * c->head_dim, nv = (int64_t)c->n_heads * c->mla.v;
    struct attn_dense d = { .num_heads = (int32_t)c->n_heads,
                            .kv_num_heads = (int32_t)c->n_heads,
                            .scale = c->softmax_scale,
                            .softcap = c->attn_softcap,
                            .local_window_size = -1 };
    struct attn_tensor *const all[] = { &d.query, &d.key, &d.value, &d.output, &d.cu_seqlens };
    uint64_t bytes;
    d.query = d.key = attn_view(NULL, forward_t(f), 2, 1, nq, 0, 0);
    d.value = d.output = attn_view(NULL, forward_t(f), 2, 1, nv, 0, 0);
    d.cu_seqlens = attn_view(NULL, ATTN_I32, 1, 2, 0, 0, 0);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        all[i]->device = f->ops->attention->device;
    return attn_dense_plan(f->attn, &d, &bytes, NULL) == ERR_OK;
}

size_t model_mla_latent_width(const struct model_config *c)
{
    size_t absorbed = c->mla.kv_rank + c->mla.rope, expanded = c->head_dim + c->mla.v;
    return c->n_heads * (absorbed > expanded ? absorbed : expanded);
}

/* ---- projections ---- */

/* Where q lies, [n, heads * head] in rows of ld. */
struct place {
    enum buffer buf;
    size_t ld;
};

/* q, and the latent key rows in BUF_KEY, not rotated yet. */
static struct place project(struct forward *f, const struct layer_weights *y)
{
    const struct ops *o = f->ops;
    const struct model_config *c = f->c;
    const struct mla_config *m = &c->mla;
    uint32_t n = f->step.n_tokens, wide = m->kv_rank + m->rope;
    size_t ld = f->qkv_width, nq = (size_t)c->n_heads * c->head_dim;
    size_t key = m->q_rank ? m->q_rank : nq;
    forward_matmul(f, y->qkv, BUF_IN, c->hidden, BUF_QKV, ld, OP_OUT_T, n);
    o->norm_part(o->self, f->buf[BUF_QKV], ld, (uint32_t)key, m->kv_rank, y->kv_a_norm,
                 latent_norm_eps, n);
    o->copy_parts(o->self, forward_at(f, BUF_QKV, key), ld, 0, f->buf[BUF_KEY], wide, 0, n, 1,
                  wide);
    if (m->q_rank == 0)
        return (struct place){ BUF_QKV, ld };
    o->norm_part(o->self, f->buf[BUF_QKV], ld, 0, m->q_rank, y->q_a_norm, latent_norm_eps, n);
    forward_matmul(f, y->q_b, BUF_QKV, ld, BUF_Q, nq, OP_OUT_T, n);
    return (struct place){ BUF_Q, nq };
}

/* ---- absorbed ---- */

static void absorb(struct forward *f, const struct layer_weights *y, struct place q)
{
    const struct ops *o = f->ops;
    const struct model_config *c = f->c;
    const struct mla_config *m = &c->mla;
    uint32_t n = f->paged.n_tokens;
    size_t wide = m->kv_rank + m->rope;
    struct op_heads h = { .w = y->absorb_k,
                          .n_heads = c->n_heads,
                          .in = f->buf[q.buf],
                          .in_ld = q.ld,
                          .in_head = c->head_dim,
                          .to = f->buf[BUF_LATENT],
                          .to_ld = c->n_heads * wide,
                          .to_head = wide };
    o->heads(o->self, &h, n);
    o->copy_parts(o->self, forward_at(f, q.buf, m->nope), q.ld, c->head_dim,
                  forward_at(f, BUF_LATENT, m->kv_rank), c->n_heads * wide, wide, n, c->n_heads,
                  m->rope);
}

static void leave_latent(struct forward *f, const struct layer_weights *y)
{
    const struct model_config *c = f->c;
    size_t rank = c->mla.kv_rank;
    struct op_heads h = { .w = y->absorb_v,
                          .n_heads = c->n_heads,
                          .in = f->buf[BUF_ATTN],
                          .in_ld = c->n_heads * rank,
                          .in_head = rank,
                          .to = f->buf[BUF_OUT],
                          .to_ld = (size_t)c->n_heads * c->mla.v,
                          .to_head = c->mla.v };
    f->ops->heads(f->ops->self, &h, f->paged.n_tokens);
}

/* ---- expanded ---- */

/* The expanded rows of a step: its last n tokens, from token `first` on. */
struct expansion {
    uint32_t first, n;
    size_t nq, nv;              /* elements a token of q and k, of v */
    unsigned char *key, *value; /* T [n, nq], [n, nv], behind the absorbed queries */
};

static struct expansion expansion_of(const struct forward *f)
{
    const struct model_config *c = f->c;
    struct expansion x = { .first = f->paged.n_tokens,
                           .n = f->step.n_tokens - f->paged.n_tokens,
                           .nq = (size_t)c->n_heads * c->head_dim,
                           .nv = (size_t)c->n_heads * c->mla.v };
    x.key = forward_at(f, BUF_LATENT, x.first * model_mla_latent_width(c));
    x.value = x.key + x.n * x.nq * forward_t_bytes(f);
    return x;
}

/* Rotate channels at x of n_parts parts a row. */
static void rotate(struct forward *f, uint32_t layer, const struct expansion *x, void *at,
                   size_t ld, size_t step, uint32_t n_parts)
{
    int8_t rope = f->c->layer[layer].rope;
    if (rope < 0)
        return;
    struct op_rope r = { .x = at,
                         .ld = ld,
                         .step = step,
                         .n_parts = n_parts,
                         .dim = model_rope_dim(f->c, &f->c->rope[rope]),
                         .first = x->first,
                         .n_rows = f->step.n_rows - f->paged.n_rows,
                         .table_rows = f->rope_rows,
                         .interleaved = f->c->rope_interleaved,
                         .cu_seqlens = f->step.cu_seqlens + f->paged.n_rows,
                         .cos = f->w->cos[rope],
                         .sin = f->w->sin[rope] };
    f->ops->rope(f->ops->self, &r, x->n);
}

/* Keys, values and rotated queries, in BUF_Q; BUF_KEY's rows as the cache holds them. */
static void expand(struct forward *f, uint32_t layer, const struct expansion *x, struct place q)
{
    const struct ops *o = f->ops;
    const struct model_config *c = f->c;
    const struct layer_weights *y = &f->w->layer[layer];
    const struct mla_config *m = &c->mla;
    size_t wide = m->kv_rank + m->rope, head = c->head_dim;
    void *row = forward_at(f, BUF_KEY, x->first * wide);
    unsigned char *rope_row = forward_at(f, BUF_KEY, x->first * wide + m->kv_rank);
    struct op_heads k = { .w = y->absorb_k,
                          .n_heads = c->n_heads,
                          .transposed = true,
                          .in = row,
                          .in_ld = wide,
                          .to = x->key,
                          .to_ld = x->nq,
                          .to_head = head };
    struct op_heads v = { .w = y->absorb_v,
                          .n_heads = c->n_heads,
                          .in = row,
                          .in_ld = wide,
                          .to = x->value,
                          .to_ld = x->nv,
                          .to_head = m->v };
    o->heads(o->self, &k, x->n);
    o->heads(o->self, &v, x->n);
    if (q.buf != BUF_Q)
        o->copy_parts(o->self, forward_at(f, q.buf, x->first * q.ld), q.ld, head,
                      forward_at(f, BUF_Q, x->first * x->nq), x->nq, head, x->n, c->n_heads,
                      (uint32_t)head);
    rotate(f, layer, x, rope_row, wide, 0, 1);
    rotate(f, layer, x, forward_at(f, BUF_Q, x->first * x->nq + m->nope), x->nq, head, c->n_heads);
    o->copy_parts(o->self, rope_row, wide, 0, x->key + m->nope * forward_t_bytes(f), x->nq, head,
                  x->n, c->n_heads, m->rope);
}

/* A tensor of the step's tokens whose expanded rows begin at `rows`: attention
 * reads no others. */
static struct attn_tensor tokens_of(const struct forward *f, const struct expansion *x,
                                    unsigned char *rows, size_t width)
{
    struct attn_tensor t = attn_view(rows - x->first * width * forward_t_bytes(f), forward_t(f), 2,
                                     f->step.n_tokens, (int64_t)width, 0, 0);
    t.device = f->ops->attention->device;
    return t;
}

static enum err_code attend_expanded(struct forward *f, uint32_t layer, const struct expansion *x,
                                     struct err *e)
{
    const struct model_config *c = f->c;
    const struct op_plan *p = &f->step;
    uint32_t g = f->lay->layer_group[layer], window = f->lay->group[g].window;
    enum attn_device device = f->ops->attention->device;
    size_t wide = c->mla.kv_rank + c->mla.rope;
    uint64_t bytes;
    struct attn_dense d = { .num_heads = (int32_t)c->n_heads,
                            .kv_num_heads = (int32_t)c->n_heads,
                            .scale = c->softmax_scale,
                            .softcap = c->attn_softcap,
                            .local_window_size = window ? (int32_t)window : -1 };
    d.query = tokens_of(f, x, forward_at(f, BUF_Q, x->first * x->nq), x->nq);
    d.key = tokens_of(f, x, x->key, x->nq);
    d.value = tokens_of(f, x, x->value, x->nv);
    d.output = tokens_of(f, x, forward_at(f, BUF_OUT, x->first * x->nv), x->nv);
    d.latent = tokens_of(f, x, forward_at(f, BUF_KEY, x->first * wide), wide);
    d.latent_cache = attn_kv_key(f->kv, layer);
    d.latent_cache.device = device;
    d.cu_seqlens = attn_view((void *)(p->cu_seqlens + f->paged.n_rows), ATTN_I32, 1,
                             p->n_rows - f->paged.n_rows + 1, 0, 0, 0);
    d.slot_mapping = attn_view((void *)p->slot_mapping[g], ATTN_I32, 1, p->n_tokens, 0, 0, 0);
    d.cu_seqlens.device = d.slot_mapping.device = device;
    TRY(attn_dense_plan(f->attn, &d, &bytes, e));
    TRY(model_forward_workspace(f, bytes, e));
    return attn_dense_run(f->attn, &d, f->workspace[f->work].p, f->ops->stream(f->ops->self), e);
}

enum err_code model_mla_attention(struct forward *f, uint32_t layer, struct err *e)
{
    const struct layer_weights *y = &f->w->layer[layer];
    struct expansion x = expansion_of(f);
    struct place q = project(f, y);
    if (x.n > 0) {
        expand(f, layer, &x, q);
        TRY(attend_expanded(f, layer, &x, e));
    }
    if (f->paged.n_tokens > 0) {
        absorb(f, y, q);
        TRY(model_forward_attend(f, layer, e));
        leave_latent(f, y);
    }
    return ERR_OK;
}
