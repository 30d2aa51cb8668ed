/* weights.h: a model's weights on its device, laid out by family features.
 *
 * Owns every matrix and vector; immutable after loading.  Loaded by the thread
 * that opens the model, read by the engine's. */
#ifndef MODEL_STEP_WEIGHTS_H
#define MODEL_STEP_WEIGHTS_H

#include "model/load/checkpoint.h"
#include "model/load/config.h"
#include "model/load/families.h"
#include "model/step/ops.h"

struct layer_weights {
    float *norm[NORM_KINDS]; /* NULL where the family has none */
    struct op_matrix *qkv;   /* MLA: first projections of q and kv side by side */
    struct op_matrix *o;
    float *q_norm, *k_norm;           /* over whole projections, float32 */
    void *q_norm_t, *k_norm_t;        /* per head, T                     */
    void *sink;                       /* T [n_heads]                     */
    struct op_matrix *gate_up, *down; /* dense MLP, or the shared experts */
    /* MLA */
    struct op_matrix *q_b;
    float *q_a_norm, *kv_a_norm;
    struct op_matrix **absorb_k, **absorb_v; /* [n_heads] */
    /* MoE */
    struct op_matrix *router;
    float *choice_bias;                          /* host */
    struct op_matrix **expert_up, **expert_down; /* [n_experts] */
};

struct weights {
    const struct ops *ops; /* borrowed */
    void *embed;           /* [vocab, hidden] in embed_dtype */
    enum st_dtype embed_dtype;
    float *final_norm;
    struct op_matrix *head;
    bool tied;             /* the head is the embedding */
    void *cos[2], *sin[2]; /* T [max_model_len, model_rope_dim/2]; [1] NULL where unused */
    uint32_t rope_rows;    /* max_model_len */
    struct layer_weights *layer;
    uint32_t n_layers, n_heads, n_experts;
    uint64_t n_parameters, n_bytes;
    struct allocation {
        void *p;
        size_t bytes;
    } *allocation;
    size_t n_allocations;
};

/* Load everything that config names from the checkpoint.  *w is zeroed first;
 * model_weights_fini in every case. */
MUST_USE enum err_code model_weights_load(struct weights *w, const struct ops *ops,
                                          const struct model_config *c, struct checkpoint *ck,
                                          uint32_t max_model_len, struct err *e);
void model_weights_fini(struct weights *w);

#endif
