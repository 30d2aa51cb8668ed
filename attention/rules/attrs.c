/* attrs.c: the rules of attributes, and what LATENT excludes.
 *
 * Each message names the tensor or attribute, what was found and what is
 * expected.  Pure functions; any thread. */
#include <math.h>

#include "attention/rules/internal.h"

/* ---- attributes ----------------------------------------------------------- */

static enum err_code int_range(const char *name, int32_t v, int32_t lo, int32_t hi, struct err *e)
{
    if (v >= lo && v <= hi)
        return ERR_OK;
    if (hi == INT32_MAX)
        return INVALID(e, name, "%s: %d, expected at least %d", name, v, lo);
    return INVALID(e, name, "%s: %d, expected %d to %d", name, v, lo, hi);
}

static enum err_code num_heads(struct attn_call *c, struct err *e)
{
    return int_range("num_heads", A(c)->num_heads, 1, INT32_MAX, e);
}

static enum err_code kv_num_heads(struct attn_call *c, struct err *e)
{
    return int_range("kv_num_heads", A(c)->kv_num_heads, 1, INT32_MAX, e);
}

static enum err_code heads_divide(struct attn_call *c, struct err *e)
{
    struct attn_plan *p = c->plan;
    if (A(c)->num_heads % A(c)->kv_num_heads != 0)
        return INVALID(e, "num_heads", "num_heads: %d, expected a multiple of kv_num_heads %d",
                       A(c)->num_heads, A(c)->kv_num_heads);
    p->num_heads = A(c)->num_heads;
    p->kv_num_heads = A(c)->kv_num_heads;
    p->group = p->num_heads / p->kv_num_heads;
    return ERR_OK;
}

static enum err_code scale_finite(struct attn_call *c, struct err *e)
{
    if (isfinite(A(c)->scale))
        return ERR_OK;
    return INVALID(e, "scale", "scale: %g, expected a finite number", (double)A(c)->scale);
}

static enum err_code softcap(struct attn_call *c, struct err *e)
{
    if (isfinite(A(c)->softcap) && A(c)->softcap >= 0)
        return ERR_OK;
    return INVALID(e, "softcap", "softcap: %g, expected a finite number of at least 0",
                   (double)A(c)->softcap);
}

static enum err_code window(struct attn_call *c, struct err *e)
{
    int32_t w = A(c)->local_window_size;
    if (w == -1 || w >= 1)
        return ERR_OK;
    return INVALID(e, "local_window_size", "local_window_size: %d, expected -1 or at least 1", w);
}

static enum err_code do_rotary(struct attn_call *c, struct err *e)
{
    return int_range("do_rotary", A(c)->do_rotary, 0, 1, e);
}

static enum err_code rotary_interleaved(struct attn_call *c, struct err *e)
{
    return int_range("rotary_interleaved", A(c)->rotary_interleaved, 0, 1, e);
}

static enum err_code rotary_offset(struct attn_call *c, struct err *e)
{
    int32_t o = A(c)->rotary_offset;
    if (o >= 0 && o % 8 == 0)
        return ERR_OK;
    return INVALID(e, "rotary_offset", "rotary_offset: %d, expected at least 0 and a multiple of 8",
                   o);
}

static enum err_code epsilon(struct attn_call *c, struct err *e)
{
    float v = A(c)->qk_norm_epsilon;
    if (isfinite(v) && v > 0)
        return ERR_OK;
    return INVALID(e, "qk_norm_epsilon", "qk_norm_epsilon: %g, expected a finite number above 0",
                   (double)v);
}

static enum err_code quant_enum(const char *name, int32_t v, struct err *e)
{
    if (v >= 0 && v < ATTN_QUANTS)
        return ERR_OK;
    return INVALID(e, name, "%s: unknown value %d, expected NONE, PER_TENSOR or PER_CHANNEL", name,
                   v);
}

static enum err_code k_quant_enum(struct attn_call *c, struct err *e)
{
    return quant_enum("k_quant_type", A(c)->k_quant_type, e);
}

static enum err_code v_quant_enum(struct attn_call *c, struct err *e)
{
    return quant_enum("v_quant_type", A(c)->v_quant_type, e);
}

static enum err_code layout_enum(struct attn_call *c, struct err *e)
{
    int32_t v = A(c)->kv_cache_layout;
    if (v >= 0 && v < ATTN_LAYOUTS)
        return ERR_OK;
    return INVALID(e, "kv_cache_layout",
                   "kv_cache_layout: unknown value %d, expected SEPARATE or LATENT", v);
}

static enum err_code qk_enum(struct attn_call *c, struct err *e)
{
    return int_range("qk_output", A(c)->qk_output, 0, ATTN_QK_MODES - 1, e);
}

/* ---- what LATENT asks of them --------------------------------------------------- */

static enum err_code latent_kv_heads(struct attn_call *c, struct err *e)
{
    if (!LATENT(c) || A(c)->kv_num_heads == 1)
        return ERR_OK;
    return INVALID(e, "kv_num_heads", "kv_num_heads: %d, expected 1 with kv_cache_layout LATENT",
                   A(c)->kv_num_heads);
}

static enum err_code latent_v_quant(struct attn_call *c, struct err *e)
{
    if (!LATENT(c) || A(c)->v_quant_type == ATTN_QUANT_NONE)
        return ERR_OK;
    return INVALID(e, "v_quant_type",
                   "v_quant_type: set, expected NONE with kv_cache_layout LATENT (k_quant_type "
                   "describes the one cache)");
}

static enum err_code latent_v_dtype(struct attn_call *c, struct err *e)
{
    const char *s = A(c)->v_cache_dtype;
    if (!LATENT(c) || s == NULL || *s == '\0')
        return ERR_OK;
    return INVALID(e, "v_cache_dtype",
                   "v_cache_dtype: \"%.32s\", expected none with kv_cache_layout LATENT", s);
}

/* ---- the rows ------------------------------------------------------------- */

static const struct attn_rule rules[] = {
    { "num_heads", num_heads },
    { "kv_num_heads", kv_num_heads },
    { "num_heads % kv_num_heads", heads_divide },
    { "scale is finite", scale_finite },
    { "softcap", softcap },
    { "local_window_size", window },
    { "do_rotary", do_rotary },
    { "rotary_interleaved", rotary_interleaved },
    { "rotary_offset", rotary_offset },
    { "qk_norm_epsilon", epsilon },
    { "k_quant_type is known", k_quant_enum },
    { "v_quant_type is known", v_quant_enum },
    { "kv_cache_layout is known", layout_enum },
    { "qk_output is known", qk_enum },
    { "LATENT: kv_num_heads 1", latent_kv_heads },
    { "LATENT: no v_quant_type", latent_v_quant },
    { "LATENT: no v_cache_dtype", latent_v_dtype },
};

const struct attn_rule_set attn_attr_rules = { rules, sizeof rules / sizeof *rules };
