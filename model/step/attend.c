/* attend.c: one layer's call of the attention operator: its arguments, its plan, and
 * the workspace that calls share.
 *
 * Layers whose calls differ in pointers alone share a plan (struct attn_class).  The
 * engine's thread. */
#include "model/step/internal.h"

#include <string.h>

#include "model/load/rope.h"
#include "proto/try.h"

static void set_input(struct attn_args *a, enum attn_input i, void *data, enum attn_dtype type,
                      int32_t rank, int64_t d0, int64_t d1)
{
    a->in[i] = attn_view(data, type, rank, d0, d1, 0, 0);
}

static void fill_rope(const struct forward *f, int8_t rope, struct attn_args *a,
                      enum attn_dtype type)
{
    if (rope < 0)
        return;
    int64_t half = model_rope_dim(f->c, &f->c->rope[rope]) / 2;
    set_input(a, ATTN_COS_CACHE, f->w->cos[rope], type, 2, f->rope_rows, half);
    set_input(a, ATTN_SIN_CACHE, f->w->sin[rope], type, 2, f->rope_rows, half);
}

static void fill_args(struct forward *f, uint32_t layer, struct attn_args *a)
{
    const struct model_config *c = f->c;
    const struct layer_weights *y = &f->w->layer[layer];
    const struct op_plan *p = &f->step;
    uint32_t g = f->lay->layer_group[layer];
    int64_t n = f->paged.n_tokens, r = f->paged.n_rows;
    enum attn_dtype type = forward_t(f);
    int64_t v_width = c->mla.kv_rank ? c->mla.kv_rank : c->head_dim;
    memset(a, 0, sizeof *a);
    if (c->mla.kv_rank > 0) {
        int64_t width = c->mla.kv_rank + c->mla.rope;
        set_input(a, ATTN_QUERY, f->buf[BUF_LATENT], type, 2, n, c->n_heads * width);
        set_input(a, ATTN_KEY, f->buf[BUF_KEY], type, 2, n, width);
    } else {
        set_input(a, ATTN_QUERY, f->buf[BUF_QKV], type, 2, n, f->qkv_width);
        a->in[ATTN_VALUE_CACHE] = attn_kv_value(f->kv, layer);
    }
    a->in[ATTN_KEY_CACHE] = attn_kv_key(f->kv, layer);
    set_input(a, ATTN_CU_SEQLENS, (void *)p->cu_seqlens, ATTN_I32, 1, r + 1, 0);
    set_input(a, ATTN_PAST_SEQLENS, (void *)p->past_seqlens, ATTN_I32, 1, r, 0);
    set_input(a, ATTN_BLOCK_TABLE, (void *)p->block_table[g], ATTN_I32, 2, r, p->table_cols[g]);
    set_input(a, ATTN_SLOT_MAPPING, (void *)p->slot_mapping[g], ATTN_I32, 1, n, 0);
    set_input(a, ATTN_METADATA, f->bounds, ATTN_I32, 1, 2, 0);
    fill_rope(f, c->layer[layer].rope, a, type);
    if (y->sink != NULL)
        set_input(a, ATTN_HEAD_SINK, y->sink, type, 1, c->n_heads, 0);
    if (y->q_norm_t != NULL) {
        set_input(a, ATTN_Q_NORM_WEIGHT, y->q_norm_t, type, 1, c->head_dim, 0);
        set_input(a, ATTN_K_NORM_WEIGHT, y->k_norm_t, type, 1, c->head_dim, 0);
    }
    a->out[ATTN_OUT] = attn_view(f->buf[BUF_ATTN], type, 2, n, c->n_heads * v_width, 0, 0);
    if (f->ops->attention->device != ATTN_HOST) {
        for (int i = 0; i < ATTN_INPUTS; i++)
            if (i != ATTN_METADATA)
                a->in[i].device = f->ops->attention->device;
        a->out[ATTN_OUT].device = f->ops->attention->device;
    }
}

static struct attn_attrs attrs_of(const struct forward *f, const struct attn_class *k)
{
    const struct model_config *c = f->c;
    struct attn_attrs a = attn_attrs_default((int32_t)c->n_heads, (int32_t)c->n_kv_heads);
    a.scale = c->softmax_scale;
    a.softcap = c->attn_softcap;
    a.local_window_size = k->window ? (int32_t)k->window : -1;
    a.do_rotary = k->rope >= 0;
    a.qk_norm_epsilon = c->norm_eps;
    if (c->mla.kv_rank > 0) {
        a.kv_num_heads = 1;
        a.kv_cache_layout = ATTN_LATENT;
        a.v_head_size = (int32_t)c->mla.kv_rank;
        a.rotary_offset = (int32_t)c->mla.kv_rank;
        a.rotary_interleaved = c->rope_interleaved;
    }
    return a;
}

static enum err_code grow(struct forward *f, struct workspace *w, size_t bytes, struct err *e)
{
    void *p;
    if (bytes <= w->bytes)
        return ERR_OK;
    TRY(f->ops->alloc(f->ops->self, bytes, "attention workspace", &p, e));
    if (w->p != NULL)
        f->ops->release(f->ops->self, w->p, w->bytes);
    *w = (struct workspace){ p, bytes };
    return ERR_OK;
}

enum err_code model_forward_workspace(struct forward *f, size_t bytes, struct err *e)
{
    return grow(f, &f->workspace[f->work], bytes, e);
}

/* Plan the class's calls in this step, the first of which is layer's. */
static enum err_code plan_class(struct forward *f, struct attn_class *k, uint32_t layer,
                                struct err *e)
{
    struct attn_attrs attrs = attrs_of(f, k);
    struct attn_args args;
    fill_args(f, layer, &args);
    TRY(attn_plan(f->attn, &attrs, &args, &k->plan, e));
    TRY(grow(f, &k->schedule[f->work], k->plan.schedule_bytes, e));
    return model_forward_workspace(f, k->plan.workspace_bytes, e);
}

enum err_code model_forward_attend(struct forward *f, uint32_t layer, struct err *e)
{
    struct attn_class *k = &f->classes[f->class_of[layer]];
    struct attn_args args;
    fill_args(f, layer, &args);
    void *stream = f->ops->stream(f->ops->self);
    if (!k->planned)
        TRY(plan_class(f, k, layer, e));
    args.schedule = k->schedule[f->work].p;
    if (!k->planned)
        TRY(attn_begin(f->attn, &k->plan, &args, stream, e));
    k->planned = true;
    return attn_run(f->attn, &k->plan, &args, f->workspace[f->work].p, stream, e);
}

enum err_code model_forward_plan_attention(struct forward *f, uint32_t layer, struct err *e)
{
    return plan_class(f, &f->classes[f->class_of[layer]], layer, e);
}
