/* config.h: a model's config.json, normalised: every family, both dialects.
 *
 * Two spellings of config.json exist: with rope_theta and rope_scaling, and
 * with rope_parameters; both end in the same struct.  null means absent.
 * Plain data after loading; any thread. */
#ifndef MODEL_LOAD_CONFIG_H
#define MODEL_LOAD_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/model.h"
#include "proto/err.h"
#include "proto/plan/kv_layout.h"

struct family;

enum { CONFIG_EOS = 16, ROPE_FACTORS = 512 };

enum act_kind { ACT_SILU, ACT_GELU_TANH, ACT_GELU, ACT_CLAMPED_SWIGLU };

enum rope_kind { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_LONGROPE };

struct rope_config {
    enum rope_kind kind;
    double theta;
    double partial;                           /* share of the head that is rotated */
    double factor;                            /* 1 where unscaled */
    double low_freq_factor, high_freq_factor; /* llama3 */
    double beta_fast, beta_slow;              /* yarn */
    double mscale, mscale_all_dim;            /* yarn; 0: absent */
    double attention_factor;                  /* yarn, longrope; 0: derived */
    bool truncate;                            /* yarn: floor and ceil the bounds */
    uint32_t original_positions;              /* 0: max_position_embeddings */
    uint32_t n_short, n_long;                 /* longrope */
    float short_factor[ROPE_FACTORS], long_factor[ROPE_FACTORS];
};

/* How an MoE layer chooses its experts. */
enum routing_kind {
    ROUTE_SOFTMAX,      /* softmax over all, top-k, renormalised when norm_topk    */
    ROUTE_TOPK_SOFTMAX, /* top-k logits, softmax over those                        */
    ROUTE_GROUP_MAX,    /* softmax; best groups by their maximum, then top-k       */
    ROUTE_SIGMOID_BIAS  /* sigmoid; a bias for choosing; groups by their two best  */
};

struct moe_config {
    uint32_t n_experts;                                /* 0: a dense model */
    uint32_t top_k, intermediate, shared_intermediate; /* shared 0: none */
    enum routing_kind routing;
    bool norm_topk;
    uint32_t n_groups, top_groups; /* 1, 1: no grouping */
    float scale;                   /* routed_scaling_factor */
};

struct mla_config {
    uint32_t kv_rank;       /* 0: not latent attention */
    uint32_t q_rank;        /* 0: one projection       */
    uint32_t nope, rope, v; /* head widths */
};

struct layer_config {
    uint32_t window; /* 0: full */
    int8_t rope;     /* index into rope[], -1: none */
    bool moe;
};

struct model_config {
    const struct family *family;
    uint32_t hidden, intermediate, n_layers, n_heads, n_kv_heads, head_dim, vocab;
    uint32_t max_positions;
    float norm_eps, softmax_scale, attn_softcap, final_softcap, embed_scale, swiglu_limit;
    enum act_kind act;
    bool tie, bias_qkv, bias_o, bias_mlp;
    bool rope_interleaved;      /* pairs (2i, 2i+1) instead of (i, i + half) */
    struct rope_config rope[2]; /* 0: full layers (or all), 1: windowed ones where they differ */
    struct moe_config moe;
    struct mla_config mla;
    struct layer_config layer[KV_LAYERS];
    uint32_t n_eos;
    int32_t eos[CONFIG_EOS];
};

/* Read DIR/config.json.  ERR_INVALID names the key, what was found and what is
 * expected. */
MUST_USE enum err_code model_config_load(struct model_config *out, const char *dir, struct err *e);

/* The same from bytes. */
MUST_USE enum err_code model_config_parse(struct model_config *out, const char *bytes, size_t n,
                                          struct err *e);

/* Read DIR/generation_config.json when there is one: sampling defaults into
 * *gen, further EOS ids into *c. */
MUST_USE enum err_code model_generation_load(struct model_generation *gen, struct model_config *c,
                                             const char *dir, struct err *e);

/* Per layer, what the KV cache holds for contexts of max_model_len tokens. */
void model_config_kv_layers(const struct model_config *c, uint32_t max_model_len,
                            struct kv_layer_desc out[KV_LAYERS]);

#endif
