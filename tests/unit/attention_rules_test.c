/* attention_rules_test.c: every rule of the operator, broken once, by its message.
 *
 * A row takes a valid call, spoils one thing and names the rule that must catch
 * it and what the message must say: the name, what was found, what is expected.
 * The last test holds that no rule is without a row. */
#include <math.h>
#include <stdio.h>

#include "attention/attn.h"
#include "attention/rules/rules.h"
#include "support/test.h"

/* A valid call of 5 tokens in 2 sequences, 4 query heads over 2, width 16. */
struct call {
    struct attn_attrs attrs;
    struct attn_args args;
    enum attn_device device;
    uint64_t qk_limit;
    int32_t meta[2];
};

enum base { SEPARATE, PACKED, LATENT, INT8, EVERYTHING, BASES };

#define T ATTN_BF16

static void plain(struct call *c)
{
    struct attn_tensor *in = c->args.in;
    static char bytes[64];
    memset(c, 0, sizeof *c);
    c->attrs = attn_attrs_default(4, 2);
    c->qk_limit = 1 << 20;
    in[ATTN_QUERY] = attn_view(NULL, T, 2, 5, 64, 0, 0);
    in[ATTN_KEY] = attn_view(NULL, T, 2, 5, 32, 0, 0);
    in[ATTN_VALUE] = in[ATTN_KEY];
    in[ATTN_KEY_CACHE] = attn_view(bytes, T, 4, 9, 16, 2, 16);
    in[ATTN_VALUE_CACHE] = attn_view(bytes + 1, T, 4, 9, 16, 2, 16);
    in[ATTN_CU_SEQLENS] = attn_view(NULL, ATTN_I32, 1, 3, 0, 0, 0);
    in[ATTN_PAST_SEQLENS] = attn_view(NULL, ATTN_I32, 1, 2, 0, 0, 0);
    in[ATTN_BLOCK_TABLE] = attn_view(NULL, ATTN_I32, 2, 2, 3, 0, 0);
    c->args.out[ATTN_OUT] = attn_view(NULL, T, 2, 5, 64, 0, 0);
}

static void make(struct call *c, enum base base)
{
    struct attn_tensor *in = c->args.in;
    plain(c);
    if (base == PACKED) {
        in[ATTN_QUERY].shape[1] = 64 + 2 * 32;
        in[ATTN_KEY].rank = in[ATTN_VALUE].rank = 0;
    } else if (base == LATENT) {
        c->attrs.kv_num_heads = 1;
        c->attrs.kv_cache_layout = ATTN_LATENT;
        c->attrs.v_head_size = 8;
        c->attrs.scale = 0.5f;
        in[ATTN_KEY].shape[1] = 16;
        in[ATTN_VALUE].rank = in[ATTN_VALUE_CACHE].rank = 0;
        in[ATTN_KEY_CACHE].shape[2] = 1;
        c->args.out[ATTN_OUT].shape[1] = 32;
    } else if (base == INT8) {
        c->attrs.k_quant_type = ATTN_PER_CHANNEL;
        c->attrs.v_quant_type = ATTN_PER_TENSOR;
        in[ATTN_KEY_CACHE].dtype = in[ATTN_VALUE_CACHE].dtype = ATTN_INT8;
        in[ATTN_K_SCALE] = attn_view(NULL, ATTN_F32, 3, 2, 1, 16, 0);
        in[ATTN_V_SCALE] = attn_view(NULL, ATTN_F32, 1, 1, 0, 0, 0);
    } else if (base == EVERYTHING) {
        c->attrs.do_rotary = 1;
        c->attrs.qk_output = ATTN_QK_SCORES;
        in[ATTN_COS_CACHE] = attn_view(NULL, T, 2, 100, 8, 0, 0);
        in[ATTN_SIN_CACHE] = in[ATTN_COS_CACHE];
        in[ATTN_SLOT_MAPPING] = attn_view(NULL, ATTN_I32, 1, 5, 0, 0, 0);
        in[ATTN_QUERY_POSITIONS] = in[ATTN_SLOT_MAPPING];
        in[ATTN_HEAD_SINK] = attn_view(NULL, T, 1, 4, 0, 0, 0);
        in[ATTN_Q_NORM_WEIGHT] = attn_view(NULL, T, 1, 16, 0, 0, 0);
        in[ATTN_K_NORM_WEIGHT] = in[ATTN_Q_NORM_WEIGHT];
        in[ATTN_METADATA] = attn_view(c->meta, ATTN_I32, 1, 2, 0, 0, 0);
        in[ATTN_BIAS] = attn_view(NULL, T, 4, 2, 1, 4, 40);
        c->args.out[ATTN_KEY_CACHE_OUT] = in[ATTN_KEY_CACHE];
        c->args.out[ATTN_VALUE_CACHE_OUT] = in[ATTN_VALUE_CACHE];
        c->args.out[ATTN_QK] = attn_view(NULL, ATTN_F32, 3, 4, 5, 48, 0);
    }
}

static enum err_code check(struct call *c, const struct attn_rule **failed, struct err *e)
{
    struct attn_plan plan;
    struct attn_call call = { &c->attrs, &c->args, c->device, c->qk_limit, &plan };
    memset(&plan, 0, sizeof plan);
    return attn_validate(&call, failed, e);
}

/* ---- spoiling ------------------------------------------------------------------------- */

#define IN(i)  c->args.in[i]
#define OUT(o) c->args.out[o]

/* Each row's spoiler is a function of its own line: SPOIL(line, statement). */
#define SPOILERS                                                                                   \
    S(heads_zero, c->attrs.num_heads = 0)                                                          \
    S(kv_zero, c->attrs.kv_num_heads = -3)                                                         \
    S(heads_odd, c->attrs.num_heads = 5)                                                           \
    S(scale_nan, c->attrs.scale = NAN)                                                             \
    S(cap_negative, c->attrs.softcap = -1)                                                         \
    S(window_zero, c->attrs.local_window_size = 0)                                                 \
    S(rotary_two, c->attrs.do_rotary = 2)                                                          \
    S(inter_two, c->attrs.rotary_interleaved = -1)                                                 \
    S(offset_four, c->attrs.rotary_offset = 4)                                                     \
    S(offset_negative, c->attrs.rotary_offset = -8)                                                \
    S(eps_zero, c->attrs.qk_norm_epsilon = 0)                                                      \
    S(kq_unknown, c->attrs.k_quant_type = 3)                                                       \
    S(vq_unknown, c->attrs.v_quant_type = -1)                                                      \
    S(layout_unknown, c->attrs.kv_cache_layout = 2)                                                \
    S(qk_unknown, c->attrs.qk_output = 3)                                                          \
    S(l_heads, c->attrs.kv_num_heads = 2)                                                          \
    S(l_vquant, c->attrs.v_quant_type = ATTN_PER_TENSOR)                                           \
    S(l_vdtype, c->attrs.v_cache_dtype = "bfloat16")                                               \
    S(rank_five, IN(ATTN_KEY).rank = 5)                                                            \
    S(dtype_unknown, IN(ATTN_KEY).dtype = (enum attn_dtype)99)                                     \
    S(dim_negative, IN(ATTN_KEY).shape[0] = -1)                                                    \
    S(too_many, IN(ATTN_BLOCK_TABLE).shape[0] = IN(ATTN_BLOCK_TABLE).shape[1] = 2147483647)        \
    S(on_gpu, IN(ATTN_BLOCK_TABLE).device = ATTN_CUDA)                                             \
    S(meta_on_gpu, IN(ATTN_METADATA).device = ATTN_CUDA)                                           \
    S(no_query, IN(ATTN_QUERY).rank = 0)                                                           \
    S(no_table, IN(ATTN_BLOCK_TABLE).rank = 0)                                                     \
    S(no_output, OUT(ATTN_OUT).rank = 0)                                                           \
    S(l_value, IN(ATTN_VALUE) = IN(ATTN_KEY))                                                      \
    S(l_vcache, IN(ATTN_VALUE_CACHE) = IN(ATTN_KEY_CACHE))                                         \
    S(l_vscale, IN(ATTN_V_SCALE) = attn_view(NULL, ATTN_F32, 1, 1, 0, 0, 0))                       \
    S(l_sink, IN(ATTN_HEAD_SINK) = attn_view(NULL, T, 1, 4, 0, 0, 0))                              \
    S(l_norm, IN(ATTN_Q_NORM_WEIGHT) = attn_view(NULL, T, 1, 16, 0, 0, 0))                         \
    S(l_nokey, IN(ATTN_KEY).rank = 0)                                                              \
    S(l_vout, OUT(ATTN_VALUE_CACHE_OUT) = IN(ATTN_KEY_CACHE))                                      \
    S(no_vcache, IN(ATTN_VALUE_CACHE).rank = 0)                                                    \
    S(no_value, IN(ATTN_VALUE).rank = 0)                                                           \
    S(no_key, IN(ATTN_KEY).rank = 0)                                                               \
    S(query_i32, IN(ATTN_QUERY).dtype = ATTN_I32)                                                  \
    S(key_f16, IN(ATTN_KEY).dtype = ATTN_F16)                                                      \
    S(slots_bf16, IN(ATTN_SLOT_MAPPING).dtype = T)                                                 \
    S(scale_bf16, IN(ATTN_K_SCALE).dtype = T)                                                      \
    S(out_f32, OUT(ATTN_OUT).dtype = ATTN_F32)                                                     \
    S(query_rank, IN(ATTN_QUERY).rank = 3)                                                         \
    S(query_width, IN(ATTN_QUERY).shape[1] = 66)                                                   \
    S(packed_width, IN(ATTN_QUERY).shape[1] = 100)                                                 \
    S(head_twelve, IN(ATTN_QUERY).shape[1] = 48)                                                   \
    S(v_head, c->attrs.v_head_size = 8)                                                            \
    S(v_head_big, c->attrs.v_head_size = 17)                                                       \
    S(no_scale, c->attrs.scale = 0)                                                                \
    S(key_tokens, IN(ATTN_KEY).shape[0] = 4)                                                       \
    S(value_width, IN(ATTN_VALUE).shape[1] = 16)                                                   \
    S(cache_rank, IN(ATTN_KEY_CACHE).rank = 3)                                                     \
    S(block_eight, IN(ATTN_KEY_CACHE).shape[1] = 8)                                                \
    S(block_48, IN(ATTN_KEY_CACHE).shape[1] = 48)                                                  \
    S(cache_heads, IN(ATTN_KEY_CACHE).shape[2] = 4)                                                \
    S(cache_width, IN(ATTN_KEY_CACHE).shape[3] = 24)                                               \
    S(caches_differ, IN(ATTN_VALUE_CACHE).shape[0] = 8)                                            \
    S(cu_short, IN(ATTN_CU_SEQLENS).shape[0] = 1)                                                  \
    S(past_short, IN(ATTN_PAST_SEQLENS).shape[0] = 3)                                              \
    S(table_rows, IN(ATTN_BLOCK_TABLE).shape[0] = 1)                                               \
    S(no_sin, IN(ATTN_SIN_CACHE).rank = 0)                                                         \
    S(no_cos_sin, c->attrs.do_rotary = 1)                                                          \
    S(no_rotary, c->attrs.do_rotary = 0)                                                           \
    S(cos_rank, IN(ATTN_COS_CACHE).rank = 1)                                                       \
    S(sin_shape, IN(ATTN_SIN_CACHE).shape[0] = 99)                                                 \
    S(rotary_wide, c->attrs.rotary_offset = 8)                                                     \
    S(slots_short, IN(ATTN_SLOT_MAPPING).shape[0] = 4)                                             \
    S(positions_short, IN(ATTN_QUERY_POSITIONS).shape[0] = 6)                                      \
    S(sink_kv, IN(ATTN_HEAD_SINK).shape[0] = 2)                                                    \
    S(no_k_norm, IN(ATTN_K_NORM_WEIGHT).rank = 0)                                                  \
    S(norm_wide, IN(ATTN_K_NORM_WEIGHT).shape[0] = 64)                                             \
    S(quant_one, c->attrs.v_quant_type = ATTN_QUANT_NONE)                                          \
    S(cache_f16, IN(ATTN_KEY_CACHE).dtype = ATTN_F16)                                              \
    S(cache_not_8bit, IN(ATTN_KEY_CACHE).dtype = T)                                                \
    S(caches_mixed, IN(ATTN_VALUE_CACHE).dtype = ATTN_E4M3)                                        \
    S(k_name_int4, c->attrs.k_cache_dtype = "int4")                                                \
    S(v_name_unsigned, c->attrs.v_cache_dtype = "uint8")                                           \
    S(k_name_other, c->attrs.k_cache_dtype = "float16")                                            \
    S(no_k_scale, IN(ATTN_K_SCALE).rank = 0)                                                       \
    S(k_scale_extra, IN(ATTN_K_SCALE) = attn_view(NULL, ATTN_F32, 1, 1, 0, 0, 0))                  \
    S(no_v_scale, IN(ATTN_V_SCALE).rank = 0)                                                       \
    S(k_scale_shape, IN(ATTN_K_SCALE).shape[1] = 2)                                                \
    S(v_scale_shape, IN(ATTN_V_SCALE).shape[0] = 2)                                                \
    S(meta_shape, IN(ATTN_METADATA).shape[0] = 3)                                                  \
    S(meta_negative, c->meta[1] = -7)                                                              \
    S(bias_batch, IN(ATTN_BIAS).shape[0] = 3)                                                      \
    S(bias_heads, IN(ATTN_BIAS).shape[1] = 2)                                                      \
    S(out_width, OUT(ATTN_OUT).shape[1] = 63)                                                      \
    S(out_one, OUT(ATTN_VALUE_CACHE_OUT).rank = 0)                                                 \
    S(out_other, OUT(ATTN_KEY_CACHE_OUT).data = &c->meta)                                          \
    S(qk_missing, OUT(ATTN_QK).rank = 0)                                                           \
    S(qk_extra, c->attrs.qk_output = 0)                                                            \
    S(qk_int, OUT(ATTN_QK).dtype = ATTN_INT8)                                                      \
    S(qk_heads, OUT(ATTN_QK).shape[0] = 2)                                                         \
    S(qk_big, c->qk_limit = 100)

#define S(name, statement)                                                                         \
    static void spoil_##name(struct call *c)                                                       \
    {                                                                                              \
        statement;                                                                                 \
    }
SPOILERS
#undef S

static const struct {
    enum base base;
    void (*spoil)(struct call *c);
    const char *rule, *message;
} rows[] = {
    { SEPARATE, spoil_heads_zero, "num_heads", "num_heads: 0, expected at least 1" },
    { SEPARATE, spoil_kv_zero, "kv_num_heads", "kv_num_heads: -3, expected at least 1" },
    { SEPARATE, spoil_heads_odd, "num_heads % kv_num_heads",
      "num_heads: 5, expected a multiple of kv_num_heads 2" },
    { SEPARATE, spoil_scale_nan, "scale is finite", "expected a finite number" },
    { SEPARATE, spoil_cap_negative, "softcap", "softcap: -1, expected" },
    { SEPARATE, spoil_window_zero, "local_window_size",
      "local_window_size: 0, expected -1 or at least 1" },
    { SEPARATE, spoil_rotary_two, "do_rotary", "do_rotary: 2, expected 0 to 1" },
    { SEPARATE, spoil_inter_two, "rotary_interleaved", "rotary_interleaved: -1, expected 0 to 1" },
    { SEPARATE, spoil_offset_four, "rotary_offset", "rotary_offset: 4, expected" },
    { SEPARATE, spoil_offset_negative, "rotary_offset", "rotary_offset: -8, expected at least 0" },
    { SEPARATE, spoil_eps_zero, "qk_norm_epsilon", "qk_norm_epsilon: 0, expected" },
    { SEPARATE, spoil_kq_unknown, "k_quant_type is known", "k_quant_type: unknown value 3" },
    { SEPARATE, spoil_vq_unknown, "v_quant_type is known", "v_quant_type: unknown value -1" },
    { SEPARATE, spoil_layout_unknown, "kv_cache_layout is known",
      "kv_cache_layout: unknown value 2, expected SEPARATE or LATENT" },
    { SEPARATE, spoil_qk_unknown, "qk_output is known", "qk_output: 3, expected 0 to 2" },
    { LATENT, spoil_l_heads, "LATENT: kv_num_heads 1", "kv_num_heads: 2, expected 1" },
    { LATENT, spoil_l_vquant, "LATENT: no v_quant_type", "v_quant_type: set, expected NONE" },
    { LATENT, spoil_l_vdtype, "LATENT: no v_cache_dtype",
      "v_cache_dtype: \"bfloat16\", expected none" },
    { SEPARATE, spoil_rank_five, "tensor form", "key: rank 5, expected 0 (absent) to 4" },
    { SEPARATE, spoil_dtype_unknown, "tensor form", "key: unknown element type 99" },
    { SEPARATE, spoil_dim_negative, "tensor form", "key: dimension 0 is -1, expected 0 to" },
    { SEPARATE, spoil_too_many, "tensor form", "block_table: over 2^60 elements" },
    { SEPARATE, spoil_on_gpu, "tensor device", "block_table: on cuda, expected on host" },
    { EVERYTHING, spoil_meta_on_gpu, "tensor device",
      "attention_metadata: on cuda, expected on host" },
    { SEPARATE, spoil_no_query, "required tensors", "query: absent, required" },
    { SEPARATE, spoil_no_table, "required tensors", "block_table: absent, required" },
    { SEPARATE, spoil_no_output, "required tensors", "output: absent, required" },
    { LATENT, spoil_l_value, "LATENT: no value", "value: present, expected absent" },
    { LATENT, spoil_l_vcache, "LATENT: no value_cache", "value_cache: present, expected absent" },
    { LATENT, spoil_l_vscale, "LATENT: no v_scale", "v_scale: present, expected absent" },
    { LATENT, spoil_l_sink, "LATENT: no head_sink", "head_sink: present, expected absent" },
    { LATENT, spoil_l_norm, "LATENT: no norm weights", "q_norm_weight: present, expected absent" },
    { LATENT, spoil_l_nokey, "LATENT: key required", "key: absent, required" },
    { LATENT, spoil_l_vout, "LATENT: no value_cache_out",
      "value_cache_out: present, expected absent" },
    { SEPARATE, spoil_no_vcache, "SEPARATE: value_cache required",
      "value_cache: absent, required" },
    { SEPARATE, spoil_no_value, "key and value both or neither",
      "value: absent while key is present, expected both or neither" },
    { SEPARATE, spoil_no_key, "key and value both or neither",
      "key: absent while value is present, expected both or neither" },
    { SEPARATE, spoil_query_i32, "query type", "query: int32, expected float16" },
    { SEPARATE, spoil_key_f16, "element types", "key: float16, expected bfloat16" },
    { EVERYTHING, spoil_slots_bf16, "element types", "slot_mapping: bfloat16, expected int32" },
    { INT8, spoil_scale_bf16, "element types", "k_scale: bfloat16, expected float32" },
    { SEPARATE, spoil_out_f32, "element types", "output: float32, expected bfloat16" },
    { SEPARATE, spoil_query_rank, "query rank", "query: rank 3" },
    { SEPARATE, spoil_query_width, "query width",
      "query: width 66, expected a multiple of num_heads 4" },
    { PACKED, spoil_packed_width, "query width",
      "query: width 100, expected a multiple of num_heads + 2*kv_num_heads (packed) 8" },
    { SEPARATE, spoil_head_twelve, "head_size", "head_size 12, expected a multiple of 8" },
    { SEPARATE, spoil_v_head, "v_head_size", "v_head_size: 8, expected 0 or head_size 16" },
    { LATENT, spoil_v_head_big, "v_head_size", "v_head_size: 17, expected 0 or 1 to" },
    { LATENT, spoil_no_scale, "scale given where mandatory",
      "scale: 0, expected an explicit scale where v_head_size 8 differs from head_size 16" },
    { SEPARATE, spoil_key_tokens, "key shape", "key: shape (4, 32), expected (5, 32)" },
    { SEPARATE, spoil_value_width, "value shape", "value: shape (5, 16), expected (5, 32)" },
    { SEPARATE, spoil_cache_rank, "key_cache rank", "key_cache: rank 3" },
    { SEPARATE, spoil_block_eight, "block_size",
      "key_cache: block_size 8, expected a power of two of at least 16" },
    { SEPARATE, spoil_block_48, "block_size", "key_cache: block_size 48" },
    { SEPARATE, spoil_cache_heads, "key_cache heads",
      "key_cache: dimension 2 is 4, expected kv_num_heads 2" },
    { SEPARATE, spoil_cache_width, "key_cache width",
      "key_cache: dimension 3 is 24, expected head_size 16" },
    { SEPARATE, spoil_caches_differ, "value_cache shape",
      "value_cache: shape (8, 16, 2, 16), expected (9, 16, 2, 16)" },
    { SEPARATE, spoil_cu_short, "cumulative_sequence_length shape",
      "cumulative_sequence_length: shape (1), expected (batch_size + 1)" },
    { SEPARATE, spoil_past_short, "past_seqlens shape", "past_seqlens: shape (3), expected (2)" },
    { SEPARATE, spoil_table_rows, "block_table shape",
      "block_table: shape (1, 3), expected (batch_size 2" },
    { EVERYTHING, spoil_no_sin, "cos and sin both or neither",
      "sin_cache: absent while cos_cache is present" },
    { SEPARATE, spoil_no_cos_sin, "do_rotary needs cos and sin",
      "cos_cache, sin_cache: absent, required by do_rotary 1" },
    { EVERYTHING, spoil_no_rotary, "cos and sin need do_rotary",
      "cos_cache, sin_cache: present, expected absent with do_rotary 0" },
    { EVERYTHING, spoil_cos_rank, "cos and sin shape", "cos_cache: shape (100), expected" },
    { EVERYTHING, spoil_sin_shape, "cos and sin shape",
      "sin_cache: shape (99, 8), expected (100, 8)" },
    { EVERYTHING, spoil_rotary_wide, "rotary_offset + rotary_dim",
      "rotary_offset: 8 with rotary_dim 16, expected a sum of at most head_size 16" },
    { EVERYTHING, spoil_slots_short, "slot_mapping shape",
      "slot_mapping: shape (4), expected (5)" },
    { EVERYTHING, spoil_positions_short, "query_positions shape",
      "query_positions: shape (6), expected (5)" },
    { EVERYTHING, spoil_sink_kv, "head_sink shape", "head_sink: shape (2), expected (4)" },
    { EVERYTHING, spoil_no_k_norm, "norm weights both or neither",
      "k_norm_weight: absent while q_norm_weight is present" },
    { EVERYTHING, spoil_norm_wide, "norm weights shape",
      "k_norm_weight: shape (64), expected (16)" },
    { INT8, spoil_quant_one, "quant types both or neither",
      "v_quant_type: NONE while k_quant_type is set" },
    { SEPARATE, spoil_cache_f16, "cache types",
      "key_cache: float16, expected bfloat16 (the type of query)" },
    { INT8, spoil_cache_not_8bit, "cache types",
      "key_cache: bfloat16, expected int8 or float8e4m3fn" },
    { INT8, spoil_caches_mixed, "cache types",
      "value_cache: float8e4m3fn, expected int8 (the type of key_cache)" },
    { SEPARATE, spoil_k_name_int4, "k_cache_dtype",
      "k_cache_dtype: \"int4\" is reserved and not supported" },
    { INT8, spoil_v_name_unsigned, "v_cache_dtype", "v_cache_dtype: \"uint8\" is unsigned" },
    { SEPARATE, spoil_k_name_other, "k_cache_dtype",
      "k_cache_dtype: \"float16\", expected \"\" or \"bfloat16\"" },
    { INT8, spoil_no_k_scale, "k_scale iff quantised",
      "k_scale: absent, expected present with k_quant_type set" },
    { SEPARATE, spoil_k_scale_extra, "k_scale iff quantised",
      "k_scale: present, expected absent with k_quant_type NONE" },
    { INT8, spoil_no_v_scale, "v_scale iff quantised", "v_scale: absent, expected present" },
    { INT8, spoil_k_scale_shape, "k_scale shape",
      "k_scale: shape (2, 2, 16), expected (2, 1, 16)" },
    { INT8, spoil_v_scale_shape, "v_scale shape", "v_scale: shape (2), expected (1)" },
    { EVERYTHING, spoil_meta_shape, "attention_metadata",
      "attention_metadata: shape (3), expected (2)" },
    { EVERYTHING, spoil_meta_negative, "attention_metadata",
      "attention_metadata: entry 1 is -7, expected at least 0" },
    { EVERYTHING, spoil_bias_batch, "attention_bias shape",
      "attention_bias: shape (3, 1, 4, 40), expected (1 or batch_size 2, 1 or num_heads 4" },
    { EVERYTHING, spoil_bias_heads, "attention_bias shape", "attention_bias: shape (2, 2, 4, 40)" },
    { SEPARATE, spoil_out_width, "output shape", "output: shape (5, 63), expected (5, 64)" },
    { EVERYTHING, spoil_out_one, "output caches both or neither",
      "value_cache_out: absent while key_cache_out is present" },
    { EVERYTHING, spoil_out_other, "output caches alias",
      "key_cache_out: another tensor, expected the buffer, type and shape of key_cache" },
    { EVERYTHING, spoil_qk_missing, "output_qk iff qk_output",
      "output_qk: absent with qk_output 1, expected present" },
    { EVERYTHING, spoil_qk_extra, "output_qk iff qk_output",
      "output_qk: present with qk_output 0, expected absent" },
    { EVERYTHING, spoil_qk_int, "output_qk type",
      "output_qk: int8, expected float32, float16 or bfloat16" },
    { EVERYTHING, spoil_qk_heads, "output_qk shape",
      "output_qk: shape (2, 5, 48), expected (num_heads 4, token_count 5" },
    { EVERYTHING, spoil_qk_big, "output_qk bytes",
      "output_qk: 3840 bytes, expected at most the limit of 100" },
};

TEST(valid_calls_pass)
{
    for (int b = 0; b < BASES; b++) {
        struct call c;
        struct err e = { 0 };
        make(&c, b);
        assert_ok(check(&c, NULL, &e), e);
    }
}

TEST(each_rule_says_what_is_wrong)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct attn_rule *failed = NULL;
        struct call c;
        struct err e = { 0 };
        make(&c, rows[i].base);
        rows[i].spoil(&c);
        if (check(&c, &failed, &e) != ERR_INVALID)
            fail_msg("row %zu (%s): accepted", i, rows[i].rule);
        if (strcmp(failed->name, rows[i].rule) != 0)
            fail_msg("row %zu: caught by \"%s\" (%s), expected \"%s\"", i, failed->name, e.message,
                     rows[i].rule);
        assert_contains(e.message, rows[i].message);
    }
}

TEST(no_rule_is_without_a_row)
{
    for (size_t k = 0; k < attn_rule_count(); k++) {
        bool found = false;
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            found = found || strcmp(rows[i].rule, attn_rule_at(k)->name) == 0;
        if (!found)
            fail_msg("rule \"%s\" has no row", attn_rule_at(k)->name);
    }
    assert_null(attn_rule_at(attn_rule_count()));
}

/* Combinations that no kernel serves are refused by name. */
static enum err_code never_open(void **self, const struct attn_options *o, struct err *e)
{
    (void)o;
    (void)e;
    *self = NULL;
    return ERR_OK;
}

static void nothing(void *self)
{
    (void)self;
}

static bool always(const void *self, uint32_t k, const struct attn_plan *p)
{
    (void)self;
    (void)k;
    (void)p;
    return true;
}

static enum err_code no_workspace(const void *self, struct attn_plan *p, struct err *e)
{
    (void)self;
    (void)p;
    (void)e;
    return ERR_OK;
}

static const struct attn_kernel few[] = {
    { .name = "fast", .dtypes = ATTN_BIT(T), .max_head_size = 64 },
    { .name = "wide",
      .dtypes = ATTN_BIT(T),
      .features = ATTN_BIT(ATTN_HAS_WINDOW) | ATTN_BIT(ATTN_HAS_PACKED) },
};

static const struct attn_backend limited = { .abi = ATTN_ABI,
                                             .name = "limited",
                                             .kernel = few,
                                             .n_kernels = 2,
                                             .open = never_open,
                                             .close = nothing,
                                             .fits = always,
                                             .size = no_workspace };

TEST(dispatch_names_feature_and_backend)
{
    struct attn_options opt = { .backend = &limited };
    struct attn *a = NULL;
    struct attn_plan plan;
    struct err e = { 0 };
    struct call c;
    char name[64];
    assert_ok(attn_open(&a, &opt, &e), e);
    make(&c, SEPARATE);
    assert_ok(attn_plan(a, &c.attrs, &c.args, &plan, &e), e);
    assert_string_equal(attn_plan_name(&plan, name, sizeof name), "limited/fast");
    c.attrs.local_window_size = 9;
    assert_ok(attn_plan(a, &c.attrs, &c.args, &plan, &e), e);
    assert_string_equal(attn_plan_name(&plan, name, sizeof name), "limited/wide");
    c.attrs.softcap = 3;
    assert_int_equal(attn_plan(a, &c.attrs, &c.args, &plan, &e), ERR_INVALID);
    assert_contains(e.message, "softcap: not served by backend limited");
    attn_close(a);
}

/* ---- attn_begin -------------------------------------------------------------- */

static enum err_code plan_schedule(const void *self, struct attn_plan *p, struct err *e)
{
    (void)self;
    (void)e;
    p->schedule_bytes = 64;
    return ERR_OK;
}

static enum err_code fill_schedule(void *self, const struct attn_plan *p,
                                   const struct attn_args *args, void *stream, struct err *e)
{
    (void)self;
    (void)stream;
    (void)e;
    memset(args->schedule, 7, p->schedule_bytes);
    return ERR_OK;
}

TEST(begin_fills_the_schedule_of_the_plan)
{
    struct attn_backend listing = limited;
    struct attn_options opt = { .backend = &listing };
    struct attn *a = NULL, *cpu = NULL;
    struct attn_plan plan, other;
    struct err e = { 0 };
    struct call c;
    int32_t lengths[8] = { 0 };
    unsigned char schedule[64] = { 0 };
    listing.size = plan_schedule;
    listing.begin = fill_schedule;
    assert_ok(attn_open(&a, &opt, &e), e);
    assert_ok(attn_open(&cpu, &(struct attn_options){ 0 }, &e), e);
    make(&c, SEPARATE);
    assert_ok(attn_plan(a, &c.attrs, &c.args, &plan, &e), e);
    assert_ok(attn_plan(cpu, &c.attrs, &c.args, &other, &e), e);
    c.args.in[ATTN_CU_SEQLENS].data = c.args.in[ATTN_PAST_SEQLENS].data = lengths;
    assert_int_equal(attn_begin(a, &plan, &c.args, NULL, &e), ERR_INVALID);
    assert_contains(e.message, "schedule: absent, 64 bytes were planned");
    c.args.schedule = schedule;
    assert_ok(attn_begin(a, &plan, &c.args, NULL, &e), e);
    assert_int_equal(schedule[63], 7);
    assert_int_equal(attn_begin(a, &other, &c.args, NULL, &e), ERR_INVALID);
    assert_contains(e.message, "made by another backend");
    c.args.in[ATTN_PAST_SEQLENS].shape[0]++;
    assert_int_equal(attn_begin(a, &plan, &c.args, NULL, &e), ERR_INVALID);
    assert_contains(e.message, "past_seqlens: not of the presence");
    attn_close(cpu);
    attn_close(a);
}

TEST(begin_has_nothing_to_do_on_the_cpu)
{
    struct attn *cpu = NULL;
    struct attn_plan plan;
    struct err e = { 0 };
    struct call c;
    int32_t lengths[8] = { 0 };
    assert_ok(attn_open(&cpu, &(struct attn_options){ 0 }, &e), e);
    make(&c, SEPARATE);
    assert_ok(attn_plan(cpu, &c.attrs, &c.args, &plan, &e), e);
    c.args.in[ATTN_CU_SEQLENS].data = c.args.in[ATTN_PAST_SEQLENS].data = lengths;
    assert_int_equal(plan.schedule_bytes, 0);
    assert_ok(attn_begin(cpu, &plan, &c.args, NULL, &e), e);
    attn_close(cpu);
}

TEST(foreign_abi_is_refused)
{
    struct attn_backend old = limited;
    struct attn_options opt = { .backend = &old };
    struct attn *a = NULL;
    struct err e = { 0 };
    old.abi = ATTN_ABI + 1;
    assert_int_equal(attn_open(&a, &opt, &e), ERR_INVALID);
    assert_contains(e.message, "ABI");
    assert_null(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(valid_calls_pass),
        RUN(each_rule_says_what_is_wrong),
        RUN(no_rule_is_without_a_row),
        RUN(dispatch_names_feature_and_backend),
        RUN(begin_fills_the_schedule_of_the_plan),
        RUN(begin_has_nothing_to_do_on_the_cpu),
        RUN(foreign_abi_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
