/* config.c: see config.h.  Reads keys in the order: architecture, shape,
 * attention, rope, windows, experts, tokens; each reader checks its own range. */
#include "model/load/config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/load/rope.h"
#include "model/load/families.h"
#include "proto/text/json_file.h"
#include "proto/try.h"

enum { CONFIG_MAX_BYTES = 4 << 20, DIM_MAX = 1 << 20, VOCAB_MAX = 1 << 24 };

static enum err_code need_uint(const struct json_object *o, const char *key, uint32_t hi,
                               uint32_t *out, struct err *e)
{
    *out = 0;
    TRY(json_get_uint(o, key, 1, hi, out, e));
    return *out != 0 ? ERR_OK : json_missing(o, key, "a positive integer", e);
}

static enum err_code read_family(struct model_config *c, const struct json_object *o, struct err *e)
{
    const cJSON *list = NULL;
    TRY(json_get_array(o, "architectures", &list, e));
    const cJSON *first = list ? list->child : NULL;
    if (!cJSON_IsString(first))
        return json_missing(o, "architectures", "a list with the architecture's name", e);
    c->family = model_family_find(first->valuestring);
    if (c->family != NULL)
        return ERR_OK;
    char list_text[ERR_MESSAGE_BYTES];
    model_family_list(list_text, sizeof list_text);
    return err_set(e, ERR_INVALID, "%s: architectures is %.64s, expected one of %s", o->file,
                   first->valuestring, list_text);
}

static enum err_code read_act(struct model_config *c, const struct json_object *o, struct err *e)
{
    c->act = c->family->act;
    if (c->act == ACT_CLAMPED_SWIGLU) {
        double limit = 7.0;
        TRY(json_get_real(o, "swiglu_limit", 1e-6, 1e6, &limit, e));
        c->swiglu_limit = (float)limit;
        return ERR_OK;
    }
    const char *name = NULL;
    TRY(json_get_string(o, "hidden_act", &name, e));
    /* Gemma says hidden_activation; its hidden_act ("gelu") is not what it computes. */
    if (json_member(o, "hidden_activation") != NULL)
        TRY(json_get_string(o, "hidden_activation", &name, e));
    else if (c->family->act == ACT_GELU_TANH)
        name = NULL;
    if (name == NULL)
        return ERR_OK;
    if (strcmp(name, "silu") == 0 || strcmp(name, "swish") == 0)
        c->act = ACT_SILU;
    else if (strcmp(name, "gelu_pytorch_tanh") == 0 || strcmp(name, "gelu_new") == 0)
        c->act = ACT_GELU_TANH;
    else if (strcmp(name, "gelu") == 0)
        c->act = ACT_GELU;
    else
        return err_set(e, ERR_INVALID,
                       "%s: hidden_act is \"%.32s\", expected silu, gelu or gelu_pytorch_tanh",
                       o->file, name);
    return ERR_OK;
}

static enum err_code read_shape(struct model_config *c, const struct json_object *o, struct err *e)
{
    TRY(need_uint(o, "hidden_size", DIM_MAX, &c->hidden, e));
    TRY(need_uint(o, "intermediate_size", DIM_MAX, &c->intermediate, e));
    TRY(need_uint(o, "num_hidden_layers", KV_LAYERS, &c->n_layers, e));
    TRY(need_uint(o, "num_attention_heads", 4096, &c->n_heads, e));
    TRY(need_uint(o, "vocab_size", VOCAB_MAX, &c->vocab, e));
    TRY(need_uint(o, "max_position_embeddings", 1 << 28, &c->max_positions, e));
    c->n_kv_heads = c->n_heads;
    TRY(json_get_uint(o, "num_key_value_heads", 1, 4096, &c->n_kv_heads, e));
    if (c->n_heads % c->n_kv_heads != 0)
        return err_set(e, ERR_INVALID,
                       "%s: num_attention_heads %u: not a multiple of num_key_value_heads %u",
                       o->file, c->n_heads, c->n_kv_heads);
    c->head_dim = c->family->head_dim ? c->family->head_dim : c->hidden / c->n_heads;
    if (c->family->features & FAMILY_MLA)
        c->head_dim = 0; /* DeepSeek's head_dim is its rotary part; read_mla sets it */
    else
        TRY(json_get_uint(o, "head_dim", 1, 4096, &c->head_dim, e));
    double eps = 1e-6;
    TRY(json_get_real(o, "rms_norm_eps", 1e-12, 1, &eps, e));
    c->norm_eps = (float)eps;
    c->tie = (c->family->features & FAMILY_TIED) != 0;
    TRY(json_get_bool(o, "tie_word_embeddings", &c->tie, e));
    c->embed_scale = 1;
    if (c->family->features & FAMILY_SCALED_EMBED)
        c->embed_scale = (float)sqrt(c->hidden);
    return read_act(c, o, e);
}

static enum err_code read_mla(struct model_config *c, const struct json_object *o, struct err *e)
{
    struct mla_config *m = &c->mla;
    TRY(need_uint(o, "kv_lora_rank", 1 << 16, &m->kv_rank, e));
    TRY(json_get_uint(o, "q_lora_rank", 1, 1 << 16, &m->q_rank, e));
    TRY(need_uint(o, "qk_nope_head_dim", 4096, &m->nope, e));
    TRY(need_uint(o, "qk_rope_head_dim", 4096, &m->rope, e));
    TRY(need_uint(o, "v_head_dim", 4096, &m->v, e));
    c->head_dim = m->nope + m->rope;
    if (m->kv_rank % 8 != 0 || m->rope % 8 != 0)
        return err_set(e, ERR_INVALID,
                       "%s: kv_lora_rank %u and qk_rope_head_dim %u: expected multiples of 8",
                       o->file, m->kv_rank, m->rope);
    return ERR_OK;
}

static enum err_code read_attention(struct model_config *c, const struct json_object *o,
                                    struct err *e)
{
    if (c->family->features & FAMILY_MLA)
        TRY(read_mla(c, o, e));
    else if (c->head_dim % 8 != 0 || c->head_dim == 0)
        return err_set(e, ERR_INVALID, "%s: head size %u: expected a positive multiple of 8",
                       o->file, c->head_dim);
    c->bias_qkv = (c->family->features & (FAMILY_QKV_BIAS | FAMILY_SINKS)) != 0;
    c->rope_interleaved = (c->family->features & FAMILY_MLA) != 0;
    if (c->family->features & FAMILY_MLA)
        TRY(json_get_bool(o, "rope_interleave", &c->rope_interleaved, e));
    if (c->family->features & FAMILY_BIAS_KEYS) {
        TRY(json_get_bool(o, "attention_bias", &c->bias_qkv, e));
        c->bias_o = c->bias_qkv;
        TRY(json_get_bool(o, "mlp_bias", &c->bias_mlp, e));
    }
    double softcap = 0, final = 0, scalar = c->head_dim;
    TRY(json_get_real(o, "attn_logit_softcapping", 0, 1e6, &softcap, e));
    TRY(json_get_real(o, "final_logit_softcapping", 0, 1e6, &final, e));
    if (c->family->features & FAMILY_QUERY_SCALAR) {
        scalar = 256;
        TRY(json_get_real(o, "query_pre_attn_scalar", 1e-3, 1e6, &scalar, e));
    }
    c->attn_softcap = (float)softcap;
    c->final_softcap = (float) final;
    c->softmax_scale = (float)(1 / sqrt(scalar));
    return ERR_OK;
}

/* Layers that do not rotate. */
static enum err_code read_rope_layers(struct model_config *c, const struct json_object *o,
                                      struct err *e)
{
    const cJSON *on = NULL;
    if ((c->family->features & FAMILY_NO_ROPE_LAYERS) == 0)
        return ERR_OK;
    uint32_t interval = 4, i = 0;
    TRY(json_get_uint(o, "no_rope_layer_interval", 1, 1 << 20, &interval, e));
    TRY(json_get_array(o, "no_rope_layers", &on, e));
    if (on == NULL) {
        for (i = 0; i < c->n_layers; i++)
            if ((i + 1) % interval == 0)
                c->layer[i].rope = -1;
        return ERR_OK;
    }
    if ((uint32_t)cJSON_GetArraySize(on) != c->n_layers)
        return err_set(e, ERR_INVALID, "%s: no_rope_layers has %d entries, expected %u", o->file,
                       cJSON_GetArraySize(on), c->n_layers);
    for (const cJSON *v = on->child; v != NULL; v = v->next, i++) {
        if (!cJSON_IsNumber(v) || (v->valuedouble != 0 && v->valuedouble != 1))
            return err_set(e, ERR_INVALID, "%s: no_rope_layers[%u]: expected 0 or 1", o->file, i);
        if (v->valuedouble == 0)
            c->layer[i].rope = -1;
    }
    return ERR_OK;
}

/* layer_types, where present, decides; else the family's features. */
static enum err_code read_layer_types(struct model_config *c, const struct json_object *o,
                                      const cJSON *types, uint32_t window, struct err *e)
{
    if ((uint32_t)cJSON_GetArraySize(types) != c->n_layers)
        return err_set(e, ERR_INVALID, "%s: layer_types has %d entries, expected %u", o->file,
                       cJSON_GetArraySize(types), c->n_layers);
    uint32_t i = 0;
    for (const cJSON *t = types->child; t != NULL; t = t->next, i++) {
        bool slides = cJSON_IsString(t) && strcmp(t->valuestring, "sliding_attention") == 0;
        if (!slides && !(cJSON_IsString(t) && strcmp(t->valuestring, "full_attention") == 0))
            return err_set(e, ERR_INVALID,
                           "%s: layer_types[%u] is %.40s, expected full_attention or "
                           "sliding_attention",
                           o->file, i, cJSON_IsString(t) ? t->valuestring : "not a string");
        if (slides && window == 0)
            return err_set(e, ERR_INVALID,
                           "%s: layer_types[%u] is sliding_attention and sliding_window is missing",
                           o->file, i);
        c->layer[i].window = slides ? window : 0;
    }
    return ERR_OK;
}

static enum err_code read_windows(struct model_config *c, const struct json_object *o,
                                  struct err *e)
{
    unsigned f = c->family->features;
    /* From which layer on use_sliding_window applies; MoE models ignore the key. */
    uint32_t window = 0, pattern = 6, from = f & FAMILY_MOE ? 0 : 28;
    bool use = (f & FAMILY_WINDOW_SWITCH) == 0;
    const cJSON *types = NULL;
    TRY(json_get_uint(o, "sliding_window", 1, 1u << 31, &window, e));
    TRY(json_get_array(o, "layer_types", &types, e));
    if (types != NULL)
        return read_layer_types(c, o, types, window, e);
    TRY(json_get_bool(o, "use_sliding_window", &use, e));
    if ((f & FAMILY_MOE) == 0)
        TRY(json_get_uint(o, "max_window_layers", 0, 1 << 20, &from, e));
    TRY(json_get_uint(o, "_sliding_window_pattern", 1, 1 << 20, &pattern, e));
    TRY(json_get_uint(o, "sliding_window_pattern", 1, 1 << 20, &pattern, e));
    for (uint32_t i = 0; i < c->n_layers; i++) {
        bool slides = (f & FAMILY_WINDOW_ALL) || ((f & FAMILY_WINDOW_EVEN) && i % 2 == 0) ||
                      ((f & FAMILY_WINDOW_PATTERN) && (i + 1) % pattern != 0) ||
                      ((f & FAMILY_WINDOW_SWITCH) && use &&
                       (f & FAMILY_NO_ROPE_LAYERS ? c->layer[i].rope < 0 : i >= from));
        c->layer[i].window = slides ? window : 0;
    }
    return ERR_OK;
}

static enum err_code read_moe_groups(struct model_config *c, const struct json_object *o,
                                     struct err *e)
{
    struct moe_config *m = &c->moe;
    double scale = 1;
    const char *method = NULL;
    TRY(json_get_real(o, "routed_scaling_factor", 1e-6, 1e6, &scale, e));
    TRY(json_get_uint(o, "n_group", 1, 4096, &m->n_groups, e));
    TRY(json_get_uint(o, "topk_group", 1, 4096, &m->top_groups, e));
    TRY(json_get_string(o, "topk_method", &method, e));
    m->scale = (float)scale;
    if (method != NULL && strcmp(method, "greedy") == 0) {
        m->n_groups = m->top_groups = 1;
    } else if (method != NULL && strcmp(method, "group_limited_greedy") != 0 &&
               strcmp(method, "noaux_tc") != 0) {
        return err_set(e, ERR_INVALID,
                       "%s: topk_method is \"%.32s\", expected greedy, group_limited_greedy or "
                       "noaux_tc",
                       o->file, method);
    }
    uint32_t per_group = m->n_groups ? m->n_experts / m->n_groups : 0;
    if (m->n_experts % m->n_groups != 0 || m->top_groups > m->n_groups ||
        m->top_k > m->top_groups * per_group || (m->routing == ROUTE_SIGMOID_BIAS && per_group < 2))
        return err_set(e, ERR_INVALID,
                       "%s: n_group %u and topk_group %u do not fit %u experts, %u a token",
                       o->file, m->n_groups, m->top_groups, m->n_experts, m->top_k);
    return ERR_OK;
}

static enum err_code mark_moe_layers(struct model_config *c, const struct json_object *o,
                                     struct err *e)
{
    uint32_t first = 0, freq = 1, step = 1;
    const cJSON *dense = NULL;
    TRY(json_get_uint(o, "first_k_dense_replace", 0, KV_LAYERS, &first, e));
    TRY(json_get_uint(o, "moe_layer_freq", 1, KV_LAYERS, &freq, e));
    TRY(json_get_uint(o, "decoder_sparse_step", 1, KV_LAYERS, &step, e));
    TRY(json_get_array(o, "mlp_only_layers", &dense, e));
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layer[i].moe = i >= first && i % freq == 0 && (i + 1) % step == 0;
    for (const cJSON *v = dense ? dense->child : NULL; v != NULL; v = v->next) {
        if (!cJSON_IsNumber(v) || !(v->valuedouble >= 0 && v->valuedouble < c->n_layers))
            return err_set(e, ERR_INVALID, "%s: mlp_only_layers: expected layers below %u", o->file,
                           c->n_layers);
        c->layer[(uint32_t)v->valuedouble].moe = false;
    }
    return ERR_OK;
}

static enum err_code read_moe(struct model_config *c, const struct json_object *o, struct err *e)
{
    struct moe_config *m = &c->moe;
    uint32_t shared = 0;
    m->n_groups = m->top_groups = 1;
    m->scale = 1;
    if ((c->family->features & FAMILY_MOE) == 0)
        return ERR_OK;
    static const char *const count_keys[] = { "num_local_experts", "num_experts",
                                              "n_routed_experts" };
    for (size_t i = 0; i < 3; i++)
        TRY(json_get_uint(o, count_keys[i], 1, 4096, &m->n_experts, e));
    if (m->n_experts == 0)
        return json_missing(o, c->mla.kv_rank ? "n_routed_experts" : "num_local_experts",
                            "the number of experts", e);
    TRY(json_get_uint(o, "experts_per_token", 1, 4096, &m->top_k, e));
    TRY(json_get_uint(o, "num_experts_per_tok", 1, 4096, &m->top_k, e));
    if (m->top_k == 0 || m->top_k > m->n_experts || m->top_k > 64)
        return err_set(e, ERR_INVALID, "%s: num_experts_per_tok %u: expected 1 to %u", o->file,
                       m->top_k, m->n_experts < 64 ? m->n_experts : 64);
    m->intermediate = c->intermediate;
    TRY(json_get_uint(o, "moe_intermediate_size", 1, DIM_MAX, &m->intermediate, e));
    TRY(json_get_uint(o, "n_shared_experts", 0, 64, &shared, e));
    m->shared_intermediate = c->family->moe->shared ? shared * m->intermediate : 0;
    m->routing = c->family->routing;
    m->norm_topk = (c->family->features & FAMILY_NORM_TOPK) != 0;
    if (m->routing != ROUTE_GROUP_MAX)
        TRY(json_get_bool(o, "norm_topk_prob", &m->norm_topk, e));
    if (m->routing == ROUTE_GROUP_MAX || m->routing == ROUTE_SIGMOID_BIAS)
        TRY(read_moe_groups(c, o, e));
    return mark_moe_layers(c, o, e);
}

static enum err_code add_eos(struct model_config *c, const struct json_object *o, const cJSON *v,
                             struct err *e)
{
    if (!cJSON_IsNumber(v) || !(v->valuedouble >= 0 && v->valuedouble < 2147483647.0))
        return err_set(e, ERR_INVALID, "%s: eos_token_id: expected token ids", o->file);
    int32_t id = (int32_t)v->valuedouble;
    for (uint32_t i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id)
            return ERR_OK;
    if (c->n_eos == CONFIG_EOS)
        return err_set(e, ERR_INVALID, "%s: eos_token_id: more than %d ids", o->file, CONFIG_EOS);
    c->eos[c->n_eos++] = id;
    return ERR_OK;
}

static enum err_code read_eos(struct model_config *c, const struct json_object *o, struct err *e)
{
    const cJSON *v = json_member(o, "eos_token_id");
    if (v == NULL)
        return ERR_OK;
    if (!cJSON_IsArray(v))
        return add_eos(c, o, v, e);
    for (const cJSON *i = v->child; i != NULL; i = i->next)
        TRY(add_eos(c, o, i, e));
    return ERR_OK;
}

/* Weights are stored as plain floats, or as MXFP4 experts. */
static enum err_code check_quantisation(const struct model_config *c, const struct json_object *o,
                                        struct err *e)
{
    struct json_object q = { NULL, o->file, "quantization_config." };
    const char *method = NULL;
    TRY(json_get_object(o, "quantization_config", &q.node, e));
    if (q.node == NULL)
        return ERR_OK;
    TRY(json_get_string(&q, "quant_method", &method, e));
    if (method != NULL && strcmp(method, "mxfp4") == 0 &&
        (c->family->features & FAMILY_STACKED_EXPERTS))
        return ERR_OK;
    return err_set(e, ERR_INVALID,
                   "%s: quantization_config.quant_method is \"%.32s\", which is not supported for "
                   "%s",
                   o->file, method ? method : "", c->family->architecture);
}

static enum err_code parse_root(struct model_config *c, const cJSON *root, struct err *e)
{
    struct json_object o = { root, "config.json", "" };
    TRY(read_family(c, &o, e));
    TRY(check_quantisation(c, &o, e));
    TRY(read_shape(c, &o, e));
    TRY(read_attention(c, &o, e));
    TRY(read_rope_layers(c, &o, e));
    TRY(read_windows(c, &o, e));
    for (uint32_t i = 0; i < c->n_layers; i++)
        if ((c->family->features & FAMILY_LOCAL_ROPE) && c->layer[i].window > 0)
            c->layer[i].rope = 1;
    TRY(model_config_read_rope(c, &o, e));
    TRY(read_moe(c, &o, e));
    return read_eos(c, &o, e);
}

enum err_code model_config_parse(struct model_config *out, const char *bytes, size_t n,
                                 struct err *e)
{
    cJSON *root = NULL;
    memset(out, 0, sizeof *out);
    TRY(json_bytes_read(&root, "config.json", bytes, n, e));
    enum err_code rc = parse_root(out, root, e);
    cJSON_Delete(root);
    return rc;
}

enum err_code model_config_load(struct model_config *out, const char *dir, struct err *e)
{
    cJSON *root = NULL;
    memset(out, 0, sizeof *out);
    TRY(json_file_read(&root, dir, "config.json", CONFIG_MAX_BYTES, e));
    if (root == NULL)
        return err_set(e, ERR_IO, "%s: holds no config.json", dir);
    enum err_code rc = parse_root(out, root, e);
    cJSON_Delete(root);
    return rc;
}

static enum err_code read_generation(struct model_generation *gen, struct model_config *c,
                                     const cJSON *root, struct err *e)
{
    struct json_object o = { root, "generation_config.json", "" };
    static const struct {
        const char *key;
        double lo, hi;
        size_t at;
    } reals[] = {
        { "temperature", 0, 100, offsetof(struct model_generation, temperature) },
        { "top_p", 0, 1, offsetof(struct model_generation, top_p) },
        { "min_p", 0, 1, offsetof(struct model_generation, min_p) },
        { "repetition_penalty", 1e-3, 100, offsetof(struct model_generation, repetition_penalty) },
    };
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        double v = NAN;
        TRY(json_get_real(&o, reals[i].key, reals[i].lo, reals[i].hi, &v, e));
        float f = (float)v;
        memcpy((char *)gen + reals[i].at, &f, sizeof f);
    }
    uint32_t top_k = UINT32_MAX;
    TRY(json_get_uint(&o, "top_k", 0, VOCAB_MAX, &top_k, e));
    gen->top_k = top_k == UINT32_MAX ? -1 : (int32_t)top_k;
    return read_eos(c, &o, e);
}

enum err_code model_generation_load(struct model_generation *gen, struct model_config *c,
                                    const char *dir, struct err *e)
{
    cJSON *root = NULL;
    *gen = (struct model_generation){ NAN, NAN, NAN, NAN, -1 };
    TRY(json_file_read(&root, dir, "generation_config.json", CONFIG_MAX_BYTES, e));
    if (root == NULL)
        return ERR_OK;
    enum err_code rc = read_generation(gen, c, root, e);
    cJSON_Delete(root);
    return rc;
}

void model_config_kv_layers(const struct model_config *c, uint32_t max_model_len,
                            struct kv_layer_desc out[KV_LAYERS])
{
    for (uint32_t i = 0; i < c->n_layers; i++) {
        struct kv_layer_desc *d = &out[i];
        if (c->mla.kv_rank > 0) {
            *d = (struct kv_layer_desc){ KV_LATENT, 0, 1, c->mla.kv_rank + c->mla.rope, 0 };
            continue;
        }
        /* A window that no context reaches is full attention. */
        uint32_t w = c->layer[i].window;
        bool slides = w > 0 && w < max_model_len;
        *d = (struct kv_layer_desc){ slides ? KV_WINDOW : KV_FULL, slides ? w : 0, c->n_kv_heads,
                                     c->head_dim, c->head_dim };
    }
}
