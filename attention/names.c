/* names.c: the contract's names for dtypes, devices, inputs, outputs and
 * features, and the small constructors of attn.h.  Pure data; any thread. */
#include "attention/attn.h"

static const struct {
    const char *name;
    size_t bytes;
} dtypes[ATTN_DTYPES] = {
    [ATTN_F32] = { "float32", 4 },       [ATTN_F16] = { "float16", 2 },
    [ATTN_BF16] = { "bfloat16", 2 },     [ATTN_INT8] = { "int8", 1 },
    [ATTN_E4M3] = { "float8e4m3fn", 1 }, [ATTN_I32] = { "int32", 4 },
};

static const char *const inputs[ATTN_INPUTS] = {
    [ATTN_QUERY] = "query",
    [ATTN_KEY] = "key",
    [ATTN_VALUE] = "value",
    [ATTN_KEY_CACHE] = "key_cache",
    [ATTN_VALUE_CACHE] = "value_cache",
    [ATTN_CU_SEQLENS] = "cumulative_sequence_length",
    [ATTN_PAST_SEQLENS] = "past_seqlens",
    [ATTN_BLOCK_TABLE] = "block_table",
    [ATTN_COS_CACHE] = "cos_cache",
    [ATTN_SIN_CACHE] = "sin_cache",
    [ATTN_SLOT_MAPPING] = "slot_mapping",
    [ATTN_HEAD_SINK] = "head_sink",
    [ATTN_Q_NORM_WEIGHT] = "q_norm_weight",
    [ATTN_K_NORM_WEIGHT] = "k_norm_weight",
    [ATTN_K_SCALE] = "k_scale",
    [ATTN_V_SCALE] = "v_scale",
    [ATTN_METADATA] = "attention_metadata",
    [ATTN_QUERY_POSITIONS] = "query_positions",
    [ATTN_BIAS] = "attention_bias",
};

static const char *const outputs[ATTN_OUTPUTS] = {
    [ATTN_OUT] = "output",
    [ATTN_KEY_CACHE_OUT] = "key_cache_out",
    [ATTN_VALUE_CACHE_OUT] = "value_cache_out",
    [ATTN_QK] = "output_qk",
};

static const char *const features[ATTN_FEATURES] = {
    [ATTN_HAS_PACKED] = "packed query",
    [ATTN_HAS_LATENT] = "kv_cache_layout LATENT",
    [ATTN_HAS_WINDOW] = "local_window_size",
    [ATTN_HAS_SOFTCAP] = "softcap",
    [ATTN_HAS_SINK] = "head_sink",
    [ATTN_HAS_QK_NORM] = "q_norm_weight, k_norm_weight",
    [ATTN_HAS_ROTARY] = "do_rotary",
    [ATTN_HAS_SLOTS] = "slot_mapping",
    [ATTN_HAS_POSITIONS] = "query_positions",
    [ATTN_HAS_INT8_TENSOR] = "int8 cache, PER_TENSOR",
    [ATTN_HAS_INT8_CHANNEL] = "int8 cache, PER_CHANNEL",
    [ATTN_HAS_E4M3_TENSOR] = "float8e4m3fn cache, PER_TENSOR",
    [ATTN_HAS_E4M3_CHANNEL] = "float8e4m3fn cache, PER_CHANNEL",
    [ATTN_HAS_BIAS] = "attention_bias",
    [ATTN_HAS_QK_OUTPUT] = "output_qk",
};

static bool known(unsigned i, unsigned n)
{
    return i < n;
}

const char *attn_dtype_name(enum attn_dtype d)
{
    return known(d, ATTN_DTYPES) ? dtypes[d].name : "?";
}

size_t attn_dtype_bytes(enum attn_dtype d)
{
    return known(d, ATTN_DTYPES) ? dtypes[d].bytes : 0;
}

const char *attn_device_name(enum attn_device d)
{
    return d == ATTN_HOST ? "host" : d == ATTN_CUDA ? "cuda" : "?";
}

const char *attn_input_name(enum attn_input i)
{
    return known(i, ATTN_INPUTS) ? inputs[i] : "?";
}

const char *attn_output_name(enum attn_output o)
{
    return known(o, ATTN_OUTPUTS) ? outputs[o] : "?";
}

const char *attn_feature_name(enum attn_feature f)
{
    return known(f, ATTN_FEATURES) ? features[f] : "?";
}

struct attn_tensor attn_view(void *data, enum attn_dtype dtype, int32_t rank, int64_t d0,
                             int64_t d1, int64_t d2, int64_t d3)
{
    return (struct attn_tensor){
        .data = data, .dtype = dtype, .device = ATTN_HOST, .rank = rank, .shape = { d0, d1, d2, d3 }
    };
}

struct attn_attrs attn_attrs_default(int32_t num_heads, int32_t kv_num_heads)
{
    return (struct attn_attrs){ .num_heads = num_heads,
                                .kv_num_heads = kv_num_heads,
                                .local_window_size = -1,
                                .qk_norm_epsilon = 1e-6f, /* the contract's default */
                                .k_cache_dtype = "",
                                .v_cache_dtype = "" };
}
