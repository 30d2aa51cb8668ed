/* rest.c: the rules of quantised caches, bounds, bias and outputs.
 *
 * Each message names the tensor or attribute, what was found and what is
 * expected.  Pure functions; any thread. */
#include <string.h>

#include "attention/rules/internal.h"

/* ---- quantised caches ------------------------------------------------------ */

static enum err_code quant_both(struct attn_call *c, struct err *e)
{
    bool k = A(c)->k_quant_type != ATTN_QUANT_NONE, v = A(c)->v_quant_type != ATTN_QUANT_NONE;
    if (LATENT(c) || k == v)
        return ERR_OK;
    return INVALID(e, k ? "v_quant_type" : "k_quant_type",
                   "%s: NONE while %s is set, expected both set or both NONE",
                   k ? "v_quant_type" : "k_quant_type", k ? "k_quant_type" : "v_quant_type");
}

static enum err_code cache_dtype(struct attn_call *c, enum attn_input i, struct err *e)
{
    enum attn_dtype d = IN(c, i)->dtype, t = c->plan->dtype;
    const char *name = attn_input_name(i);
    bool quantised = A(c)->k_quant_type != ATTN_QUANT_NONE;
    if (quantised && d != ATTN_INT8 && d != ATTN_E4M3)
        return INVALID(e, name, "%s: %s, expected int8 or float8e4m3fn with a quant type set", name,
                       attn_dtype_name(d));
    if (!quantised && d != t)
        return INVALID(e, name, "%s: %s, expected %s (the type of query) with quant type NONE",
                       name, attn_dtype_name(d), attn_dtype_name(t));
    return ERR_OK;
}

static enum err_code cache_dtypes(struct attn_call *c, struct err *e)
{
    struct attn_plan *p = c->plan;
    enum err_code rc = cache_dtype(c, ATTN_KEY_CACHE, e);
    p->k_cache_dtype = p->v_cache_dtype = IN(c, ATTN_KEY_CACHE)->dtype;
    if (rc || LATENT(c))
        return rc;
    rc = cache_dtype(c, ATTN_VALUE_CACHE, e);
    if (rc == ERR_OK && IN(c, ATTN_VALUE_CACHE)->dtype != p->k_cache_dtype)
        return INVALID(e, "value_cache", "value_cache: %s, expected %s (the type of key_cache)",
                       attn_dtype_name(IN(c, ATTN_VALUE_CACHE)->dtype),
                       attn_dtype_name(p->k_cache_dtype));
    return rc;
}

static enum err_code cache_dtype_name(const char *attr, const char *s, enum attn_dtype own,
                                      struct err *e)
{
    if (s == NULL || *s == '\0' || strcmp(s, attn_dtype_name(own)) == 0)
        return ERR_OK;
    if (strcmp(s, "int4") == 0 || strcmp(s, "float4e2m1") == 0)
        return INVALID(e, attr, "%s: \"%s\" is reserved and not supported, expected \"\" or \"%s\"",
                       attr, s, attn_dtype_name(own));
    if (strncmp(s, "uint", 4) == 0)
        return INVALID(e, attr,
                       "%s: \"%.32s\" is unsigned and the cache has no zero point, expected \"\" "
                       "or \"%s\"",
                       attr, s, attn_dtype_name(own));
    return INVALID(e, attr, "%s: \"%.32s\", expected \"\" or \"%s\" (the type of the cache)", attr,
                   s, attn_dtype_name(own));
}

static enum err_code k_dtype_name(struct attn_call *c, struct err *e)
{
    return cache_dtype_name("k_cache_dtype", A(c)->k_cache_dtype, c->plan->k_cache_dtype, e);
}

static enum err_code v_dtype_name(struct attn_call *c, struct err *e)
{
    return cache_dtype_name("v_cache_dtype", A(c)->v_cache_dtype, c->plan->v_cache_dtype, e);
}

static enum err_code scale_presence(struct attn_call *c, enum attn_input i, const char *attr,
                                    int32_t quant, struct err *e)
{
    const char *name = attn_input_name(i);
    if (HAS(c, i) == (quant != ATTN_QUANT_NONE))
        return ERR_OK;
    return INVALID(e, name, "%s: %s, expected %s with %s %s", name,
                   HAS(c, i) ? "present" : "absent", HAS(c, i) ? "absent" : "present", attr,
                   HAS(c, i) ? "NONE" : "set");
}

static enum err_code k_scale_there(struct attn_call *c, struct err *e)
{
    return scale_presence(c, ATTN_K_SCALE, "k_quant_type", A(c)->k_quant_type, e);
}

static enum err_code v_scale_there(struct attn_call *c, struct err *e)
{
    return scale_presence(c, ATTN_V_SCALE, "v_quant_type", A(c)->v_quant_type, e);
}

static enum err_code scale_shape(struct attn_call *c, enum attn_input i, int32_t quant,
                                 struct err *e)
{
    struct attn_plan *p = c->plan;
    if (quant == ATTN_PER_TENSOR)
        return attn_rule_want_shape(attn_input_name(i), IN(c, i), 1, 1, 0, 0, 0, e);
    if (quant == ATTN_PER_CHANNEL)
        return attn_rule_want_shape(attn_input_name(i), IN(c, i), 3, p->kv_num_heads, 1,
                                    p->head_size, 0, e);
    return ERR_OK;
}

static enum err_code k_scale_shape(struct attn_call *c, struct err *e)
{
    return scale_shape(c, ATTN_K_SCALE, A(c)->k_quant_type, e);
}

static enum err_code v_scale_shape(struct attn_call *c, struct err *e)
{
    return scale_shape(c, ATTN_V_SCALE, A(c)->v_quant_type, e);
}

/* ---- bounds, bias, outputs --------------------------------------------------- */

static enum err_code metadata(struct attn_call *c, struct err *e)
{
    struct attn_plan *p = c->plan;
    const struct attn_tensor *t = IN(c, ATTN_METADATA);
    int64_t capacity = p->table_cols * p->block_size;
    const int32_t *v;
    enum err_code rc;
    p->max_query_len = p->token_count;
    p->max_kv_len = capacity;
    if (!HAS(c, ATTN_METADATA))
        return ERR_OK;
    rc = attn_rule_want_shape("attention_metadata", t, 1, 2, 0, 0, 0, e);
    if (rc)
        return rc;
    v = t->data;
    if (v == NULL)
        return INVALID(e, "attention_metadata", "attention_metadata: no data, expected 2 entries");
    for (int i = 0; i < 2; i++)
        if (v[i] < 0)
            return INVALID(e, "attention_metadata",
                           "attention_metadata: entry %d is %d, expected at least 0", i, v[i]);
    if (v[0] > 0 && v[0] < p->max_query_len)
        p->max_query_len = v[0];
    if (v[1] > 0 && v[1] < p->max_kv_len)
        p->max_kv_len = v[1];
    return ERR_OK;
}

static enum err_code bias_shape(struct attn_call *c, struct err *e)
{
    struct attn_plan *p = c->plan;
    const struct attn_tensor *t = IN(c, ATTN_BIAS);
    char found[100];
    if (!HAS(c, ATTN_BIAS))
        return ERR_OK;
    if (t->rank != 4 || (t->shape[0] != 1 && t->shape[0] != p->batch_size) ||
        (t->shape[1] != 1 && t->shape[1] != p->num_heads))
        return INVALID(e, "attention_bias",
                       "attention_bias: shape %s, expected (1 or batch_size %lld, 1 or num_heads "
                       "%d, query capacity, context capacity)",
                       attn_rule_shape_text(t, found), (long long)p->batch_size, p->num_heads);
    memcpy(p->bias_shape, t->shape, sizeof p->bias_shape);
    return ERR_OK;
}

static enum err_code output_shape(struct attn_call *c, struct err *e)
{
    return attn_rule_want_shape("output", OUT(c, ATTN_OUT), 2, c->plan->token_count,
                                (int64_t)c->plan->num_heads * c->plan->v_head_size, 0, 0, e);
}

static enum err_code caches_out_both(struct attn_call *c, struct err *e)
{
    bool k = attn_present(OUT(c, ATTN_KEY_CACHE_OUT)),
         v = attn_present(OUT(c, ATTN_VALUE_CACHE_OUT));
    if (LATENT(c) || k == v)
        return ERR_OK;
    return INVALID(e, k ? "value_cache_out" : "key_cache_out",
                   "%s: absent while %s is present, expected both or neither",
                   k ? "value_cache_out" : "key_cache_out",
                   k ? "key_cache_out" : "value_cache_out");
}

static enum err_code aliases(struct attn_call *c, enum attn_output o, enum attn_input i,
                             struct err *e)
{
    const struct attn_tensor *out = OUT(c, o), *in = IN(c, i);
    bool same = out->data == in->data && out->dtype == in->dtype && out->rank == in->rank;
    if (!attn_present(out))
        return ERR_OK;
    for (int d = 0; same && d < in->rank; d++)
        same = out->shape[d] == in->shape[d];
    if (same)
        return ERR_OK;
    return INVALID(e, attn_output_name(o),
                   "%s: another tensor, expected the buffer, type and shape of %s",
                   attn_output_name(o), attn_input_name(i));
}

static enum err_code caches_out_alias(struct attn_call *c, struct err *e)
{
    enum err_code rc = aliases(c, ATTN_KEY_CACHE_OUT, ATTN_KEY_CACHE, e);
    return rc ? rc : aliases(c, ATTN_VALUE_CACHE_OUT, ATTN_VALUE_CACHE, e);
}

static enum err_code qk_asked(struct attn_call *c, struct err *e)
{
    bool there = attn_present(OUT(c, ATTN_QK));
    if (there == (A(c)->qk_output != ATTN_QK_NONE))
        return ERR_OK;
    return INVALID(e, "output_qk", "output_qk: %s with qk_output %d, expected %s",
                   there ? "present" : "absent", A(c)->qk_output, there ? "absent" : "present");
}

static enum err_code qk_dtype(struct attn_call *c, struct err *e)
{
    const struct attn_tensor *t = OUT(c, ATTN_QK);
    c->plan->qk_dtype = t->dtype;
    if (!attn_present(t) || t->dtype == ATTN_F32 || t->dtype == ATTN_F16 || t->dtype == ATTN_BF16)
        return ERR_OK;
    return INVALID(e, "output_qk", "output_qk: %s, expected float32, float16 or bfloat16",
                   attn_dtype_name(t->dtype));
}

static enum err_code qk_shape(struct attn_call *c, struct err *e)
{
    struct attn_plan *p = c->plan;
    const struct attn_tensor *t = OUT(c, ATTN_QK);
    char found[100];
    if (!attn_present(t))
        return ERR_OK;
    if (t->rank != 3 || t->shape[0] != p->num_heads || t->shape[1] != p->token_count)
        return INVALID(e, "output_qk",
                       "output_qk: shape %s, expected (num_heads %d, token_count %lld, "
                       "max_context_len)",
                       attn_rule_shape_text(t, found), p->num_heads, (long long)p->token_count);
    p->qk_cols = t->shape[2];
    return ERR_OK;
}

static enum err_code qk_bytes(struct attn_call *c, struct err *e)
{
    const struct attn_tensor *t = OUT(c, ATTN_QK);
    double bytes;
    if (!attn_present(t))
        return ERR_OK;
    bytes = (double)t->shape[0] * (double)t->shape[1] * (double)t->shape[2] *
            (double)attn_dtype_bytes(t->dtype);
    if (bytes <= (double)c->qk_bytes_limit)
        return ERR_OK;
    return INVALID(e, "output_qk", "output_qk: %.0f bytes, expected at most the limit of %llu",
                   bytes, (unsigned long long)c->qk_bytes_limit);
}

/* ---- the rows ------------------------------------------------------------- */

static const struct attn_rule rules[] = {
    { "quant types both or neither", quant_both },
    { "cache types", cache_dtypes },
    { "k_cache_dtype", k_dtype_name },
    { "v_cache_dtype", v_dtype_name },
    { "k_scale iff quantised", k_scale_there },
    { "v_scale iff quantised", v_scale_there },
    { "k_scale shape", k_scale_shape },
    { "v_scale shape", v_scale_shape },
    { "attention_metadata", metadata },
    { "attention_bias shape", bias_shape },
    { "output shape", output_shape },
    { "output caches both or neither", caches_out_both },
    { "output caches alias", caches_out_alias },
    { "output_qk iff qk_output", qk_asked },
    { "output_qk type", qk_dtype },
    { "output_qk shape", qk_shape },
    { "output_qk bytes", qk_bytes },
};

const struct attn_rule_set attn_rest_rules = { rules, sizeof rules / sizeof *rules };
