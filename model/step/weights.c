/* weights.c: see weights.h: embedding, head, rotary tables, and freeing.  The
 * tensors of a layer are in weights_layer.c. */
#include "model/step/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/load/rope.h"
#include "proto/try.h"
#include "model/step/weights_load.h"

static enum err_code load_embedding(struct loader *l, const struct st_tensor **out, struct err *e)
{
    uint64_t shape[2] = { l->c->vocab, l->c->hidden };
    TRY(model_checkpoint_need(l->ck, "model.embed_tokens.weight", 2, shape, out, e));
    l->w->embed_dtype = (*out)->dtype;
    l->w->n_parameters += (*out)->n_elements;
    return model_loader_store(l, (*out)->data, (*out)->n_bytes, "token embedding", &l->w->embed, e);
}

/* The file decides: a head that is there is used; without one the embedding is
 * the head, unless config.json says that it is not. */
static enum err_code load_head(struct loader *l, const struct st_tensor *embed, struct err *e)
{
    const struct model_config *c = l->c;
    const struct st_tensor *t = embed;
    uint64_t shape[2] = { c->vocab, c->hidden };
    if (model_checkpoint_find(l->ck, "lm_head.weight") != NULL) {
        TRY(model_checkpoint_need(l->ck, "lm_head.weight", 2, shape, &t, e));
        l->w->n_parameters += t->n_elements;
    } else if (!c->tie) {
        return err_set(e, ERR_INVALID,
                       "checkpoint: tensor lm_head.weight is missing and config.json's "
                       "tie_word_embeddings is false");
    }
    l->w->tied = t == embed;
    struct op_matrix_desc d = { .n_cols = c->hidden,
                                .n_pieces = 1,
                                .piece = { { .data = t->data,
                                             .dtype = t->dtype,
                                             .row_stride = c->hidden,
                                             .col_stride = 1,
                                             .n_rows = c->vocab } } };
    return model_loader_matrix(l, &d, &l->w->head, e);
}

static enum err_code make_rope(struct loader *l, int which, struct err *e)
{
    const struct rope_config *r = &l->c->rope[which];
    size_t n = (size_t)l->max_model_len * model_rope_dim(l->c, r) / 2;
    float *table = malloc(2 * n * sizeof *table);
    if (table == NULL)
        return err_nomem(e, "rotary tables", 2 * n * sizeof *table);
    model_rope_fill(l->c, r, l->max_model_len, table, table + n);
    enum err_code rc =
        model_loader_values(l, table, n, true, "rotary tables", &l->w->cos[which], e);
    if (rc == ERR_OK)
        rc = model_loader_values(l, table + n, n, true, "rotary tables", &l->w->sin[which], e);
    free(table);
    return rc;
}

/* A tensor of ours that nothing used would be weights silently left out. */
static enum err_code check_unused(const struct loader *l, struct err *e)
{
    for (size_t i = 0; i < model_checkpoint_n_tensors(l->ck); i++) {
        bool used;
        const struct st_tensor *t = model_checkpoint_at(l->ck, i, &used);
        char name[192];
        unsigned layer;
        if (used || t->n_name >= sizeof name)
            continue;
        memcpy(name, t->name, t->n_name);
        name[t->n_name] = '\0';
        bool ours = strncmp(name, "lm_head.", 8) == 0 || strncmp(name, "model.norm.", 11) == 0 ||
                    strncmp(name, "model.embed_tokens.", 19) == 0 ||
                    (sscanf(name, "model.layers.%u.", &layer) == 1 && layer < l->c->n_layers);
        if (ours && strstr(name, "rotary_emb.inv_freq") == NULL)
            return err_set(e, ERR_INVALID,
                           "checkpoint: tensor %s is not used by %s with this config.json", name,
                           l->c->family->architecture);
    }
    return ERR_OK;
}

enum err_code model_weights_load(struct weights *w, const struct ops *ops,
                                 const struct model_config *c, struct checkpoint *ck,
                                 uint32_t max_model_len, struct err *e)
{
    memset(w, 0, sizeof *w);
    w->ops = ops;
    struct loader l = { w, c, ck, max_model_len };
    w->layer = calloc(c->n_layers, sizeof *w->layer);
    if (w->layer == NULL)
        return err_nomem(e, "layer list", c->n_layers * sizeof *w->layer);
    w->rope_rows = max_model_len;
    w->n_layers = c->n_layers;
    w->n_heads = c->n_heads;
    w->n_experts = c->moe.n_experts;
    const struct st_tensor *embed;
    void *norm;
    TRY(load_embedding(&l, &embed, e));
    TRY(model_loader_vector(&l, "model.norm.weight", c->hidden, loader_plus_one(&l), false, &norm,
                            e));
    w->final_norm = norm;
    TRY(load_head(&l, embed, e));
    TRY(make_rope(&l, 0, e));
    if (c->family->features & FAMILY_LOCAL_ROPE)
        TRY(make_rope(&l, 1, e));
    for (uint32_t i = 0; i < c->n_layers; i++)
        TRY(model_loader_layer(&l, i, e));
    return check_unused(&l, e);
}

static void free_list(const struct weights *w, struct op_matrix **list, uint32_t n)
{
    for (uint32_t i = 0; list != NULL && i < n; i++)
        w->ops->matrix_destroy(w->ops->self, list[i]);
    free(list);
}

void model_weights_fini(struct weights *w)
{
    const struct ops *o = w->ops;
    for (uint32_t i = 0; w->layer != NULL && i < w->n_layers; i++) {
        struct layer_weights *y = &w->layer[i];
        struct op_matrix *const one[] = { y->qkv, y->o, y->gate_up, y->down, y->q_b, y->router };
        for (size_t j = 0; j < sizeof one / sizeof *one; j++)
            o->matrix_destroy(o->self, one[j]);
        free_list(w, y->absorb_k, w->n_heads);
        free_list(w, y->absorb_v, w->n_heads);
        free_list(w, y->expert_up, w->n_experts);
        free_list(w, y->expert_down, w->n_experts);
        free(y->choice_bias);
    }
    if (o != NULL)
        o->matrix_destroy(o->self, w->head);
    for (size_t i = 0; i < w->n_allocations; i++)
        o->release(o->self, w->allocation[i].p, w->allocation[i].bytes);
    free(w->allocation);
    free(w->layer);
    memset(w, 0, sizeof *w);
}
