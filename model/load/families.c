/* families.c: the table of families.h. */
#include "model/load/families.h"

#include <stdio.h>
#include <string.h>

#define PRE_NORMS { "input_layernorm", NULL, "post_attention_layernorm", NULL }
#define PRE_AND_POST_NORMS                                                                         \
    { "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",                  \
      "post_feedforward_layernorm" }
#define POST_NORMS { NULL, "post_attention_layernorm", NULL, "post_feedforward_layernorm" }

static const struct moe_names mixtral_moe = {
    "block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2", NULL
};
static const struct moe_names qwen_moe = { "mlp.gate", "mlp.experts", "gate_proj",
                                           "up_proj",  "down_proj",   NULL };
static const struct moe_names gpt_oss_moe = { "mlp.router",   "mlp.experts", NULL,
                                              "gate_up_proj", "down_proj",   NULL };
static const struct moe_names deepseek_moe = { "mlp.gate", "mlp.experts", "gate_proj",
                                               "up_proj",  "down_proj",   "mlp.shared_experts" };

static const struct family families[] = {
    { .architecture = "LlamaForCausalLM", .features = FAMILY_BIAS_KEYS, .norm = PRE_NORMS },
    { .architecture = "MistralForCausalLM", .features = FAMILY_WINDOW_ALL, .norm = PRE_NORMS },
    { .architecture = "MixtralForCausalLM",
      .features = FAMILY_WINDOW_ALL | FAMILY_MOE | FAMILY_NORM_TOPK,
      .norm = PRE_NORMS,
      .rope_theta = 1e6,
      .routing = ROUTE_SOFTMAX,
      .moe = &mixtral_moe },
    { .architecture = "Qwen2ForCausalLM",
      .features = FAMILY_QKV_BIAS | FAMILY_WINDOW_SWITCH,
      .norm = PRE_NORMS },
    { .architecture = "Qwen3ForCausalLM",
      .features = FAMILY_BIAS_KEYS | FAMILY_QK_NORM_HEAD | FAMILY_WINDOW_SWITCH,
      .norm = PRE_NORMS,
      .head_dim = 128 },
    { .architecture = "Qwen3MoeForCausalLM",
      .features = FAMILY_BIAS_KEYS | FAMILY_QK_NORM_HEAD | FAMILY_WINDOW_SWITCH | FAMILY_MOE,
      .norm = PRE_NORMS,
      .routing = ROUTE_SOFTMAX,
      .moe = &qwen_moe },
    { .architecture = "Gemma2ForCausalLM",
      .features = FAMILY_BIAS_KEYS | FAMILY_NORM_PLUS_ONE | FAMILY_SCALED_EMBED |
                  FAMILY_WINDOW_EVEN | FAMILY_QUERY_SCALAR | FAMILY_TIED,
      .norm = PRE_AND_POST_NORMS,
      .act = ACT_GELU_TANH,
      .head_dim = 256 },
    { .architecture = "Gemma3ForCausalLM",
      .features = FAMILY_BIAS_KEYS | FAMILY_NORM_PLUS_ONE | FAMILY_SCALED_EMBED |
                  FAMILY_QK_NORM_HEAD | FAMILY_WINDOW_PATTERN | FAMILY_LOCAL_ROPE |
                  FAMILY_QUERY_SCALAR | FAMILY_TIED,
      .norm = PRE_AND_POST_NORMS,
      .act = ACT_GELU_TANH,
      .head_dim = 256,
      .rope_theta = 1e6 },
    { .architecture = "Phi3ForCausalLM",
      .features = FAMILY_PACKED_QKV | FAMILY_PACKED_GATE_UP | FAMILY_WINDOW_ALL,
      .norm = PRE_NORMS },
    { .architecture = "GptOssForCausalLM",
      .features = FAMILY_BIAS_KEYS | FAMILY_SINKS | FAMILY_WINDOW_EVEN | FAMILY_MOE |
                  FAMILY_STACKED_EXPERTS,
      .norm = PRE_NORMS,
      .act = ACT_CLAMPED_SWIGLU,
      .head_dim = 64,
      .rope_theta = 150000,
      .routing = ROUTE_TOPK_SOFTMAX,
      .moe = &gpt_oss_moe },
    { .architecture = "DeepseekV2ForCausalLM",
      .features = FAMILY_BIAS_KEYS | FAMILY_MLA | FAMILY_MOE,
      .norm = PRE_NORMS,
      .routing = ROUTE_GROUP_MAX,
      .moe = &deepseek_moe },
    { .architecture = "DeepseekV3ForCausalLM",
      .features = FAMILY_BIAS_KEYS | FAMILY_MLA | FAMILY_MOE,
      .norm = PRE_NORMS,
      .routing = ROUTE_SIGMOID_BIAS,
      .moe = &deepseek_moe },
    { .architecture = "Olmo2ForCausalLM",
      .features = FAMILY_BIAS_KEYS | FAMILY_QK_NORM_FULL,
      .norm = POST_NORMS },
    { .architecture = "SmolLM3ForCausalLM",
      .features = FAMILY_BIAS_KEYS | FAMILY_WINDOW_SWITCH | FAMILY_NO_ROPE_LAYERS | FAMILY_TIED,
      .norm = PRE_NORMS,
      .rope_theta = 2e6 },
};

const struct family *model_family_find(const char *architecture)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i].architecture, architecture) == 0)
            return &families[i];
    return NULL;
}

void model_family_list(char *out, size_t size)
{
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; i < sizeof families / sizeof *families && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%s", i > 0 ? ", " : "",
                               families[i].architecture);
}
