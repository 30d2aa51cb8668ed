/* tensors.c: the rules of form, device, presence and type.
 *
 * Each message names the tensor or attribute, what was found and what is
 * expected.  Pure functions; any thread. */
#include "attention/rules/internal.h"

/* No dimension above this: products of two fit int64 with room. */
#define DIM_MAX 2147483647
/* And no tensor above this many elements: byte offsets fit int64. */
#define ELEMENTS_MAX ((int64_t)1 << 60)

/* ---- form and presence ---------------------------------------------------- */

static enum err_code tensor_form(const char *name, const struct attn_tensor *t, struct err *e)
{
    int64_t n = 1;
    if (t->rank < 0 || t->rank > ATTN_RANK)
        return INVALID(e, name, "%s: rank %d, expected 0 (absent) to %d", name, t->rank, ATTN_RANK);
    if (t->rank > 0 && attn_dtype_bytes(t->dtype) == 0)
        return INVALID(e, name, "%s: unknown element type %d", name, (int)t->dtype);
    for (int i = 0; i < t->rank; i++) {
        if (t->shape[i] < 0 || t->shape[i] > DIM_MAX)
            return INVALID(e, name, "%s: dimension %d is %lld, expected 0 to %d", name, i,
                           (long long)t->shape[i], DIM_MAX);
        if (t->shape[i] > 0 && n > ELEMENTS_MAX / t->shape[i])
            return INVALID(e, name, "%s: over 2^60 elements, expected at most that", name);
        n *= t->shape[i];
    }
    return ERR_OK;
}

static enum err_code forms(struct attn_call *c, struct err *e)
{
    enum err_code rc = ERR_OK;
    for (int i = 0; rc == ERR_OK && i < ATTN_INPUTS; i++)
        rc = tensor_form(attn_input_name(i), IN(c, i), e);
    for (int i = 0; rc == ERR_OK && i < ATTN_OUTPUTS; i++)
        rc = tensor_form(attn_output_name(i), OUT(c, i), e);
    return rc;
}

static enum err_code on_device(const char *name, const struct attn_tensor *t, enum attn_device want,
                               struct err *e)
{
    if (!attn_present(t) || t->device == want)
        return ERR_OK;
    return INVALID(e, name, "%s: on %s, expected on %s", name, attn_device_name(t->device),
                   attn_device_name(want));
}

static enum err_code devices(struct attn_call *c, struct err *e)
{
    enum err_code rc = ERR_OK;
    for (int i = 0; rc == ERR_OK && i < ATTN_INPUTS; i++)
        rc = on_device(attn_input_name(i), IN(c, i), i == ATTN_METADATA ? ATTN_HOST : c->device, e);
    for (int i = 0; rc == ERR_OK && i < ATTN_OUTPUTS; i++)
        rc = on_device(attn_output_name(i), OUT(c, i), c->device, e);
    return rc;
}

static enum err_code required(struct attn_call *c, struct err *e)
{
    static const enum attn_input need[] = { ATTN_QUERY, ATTN_KEY_CACHE, ATTN_CU_SEQLENS,
                                            ATTN_PAST_SEQLENS, ATTN_BLOCK_TABLE };
    for (size_t i = 0; i < sizeof need / sizeof *need; i++)
        if (!HAS(c, need[i]))
            return INVALID(e, attn_input_name(need[i]), "%s: absent, required",
                           attn_input_name(need[i]));
    if (!attn_present(OUT(c, ATTN_OUT)))
        return INVALID(e, "output", "output: absent, required");
    return ERR_OK;
}

static enum err_code value_cache_there(struct attn_call *c, struct err *e)
{
    if (LATENT(c) || HAS(c, ATTN_VALUE_CACHE))
        return ERR_OK;
    return INVALID(e, "value_cache", "value_cache: absent, required with kv_cache_layout SEPARATE");
}

static enum err_code key_and_value(struct attn_call *c, struct err *e)
{
    bool k = HAS(c, ATTN_KEY), v = HAS(c, ATTN_VALUE);
    c->plan->mode = LATENT(c) ? ATTN_MODE_LATENT : k ? ATTN_MODE_SEPARATE : ATTN_MODE_PACKED;
    if (LATENT(c) || k == v)
        return ERR_OK;
    return INVALID(e, k ? "value" : "key",
                   "%s: absent while %s is present, expected both or neither (packed)",
                   k ? "value" : "key", k ? "key" : "value");
}

/* ---- LATENT --------------------------------------------------------------------- */

static enum err_code latent_absent(struct attn_call *c, enum attn_input i, struct err *e)
{
    const char *name = attn_input_name(i);
    if (!LATENT(c) || !HAS(c, i))
        return ERR_OK;
    return INVALID(e, name, "%s: present, expected absent with kv_cache_layout LATENT", name);
}

static enum err_code latent_value(struct attn_call *c, struct err *e)
{
    return latent_absent(c, ATTN_VALUE, e);
}

static enum err_code latent_value_cache(struct attn_call *c, struct err *e)
{
    return latent_absent(c, ATTN_VALUE_CACHE, e);
}

static enum err_code latent_v_scale(struct attn_call *c, struct err *e)
{
    return latent_absent(c, ATTN_V_SCALE, e);
}

static enum err_code latent_sink(struct attn_call *c, struct err *e)
{
    return latent_absent(c, ATTN_HEAD_SINK, e);
}

static enum err_code latent_norms(struct attn_call *c, struct err *e)
{
    enum err_code rc = latent_absent(c, ATTN_Q_NORM_WEIGHT, e);
    return rc ? rc : latent_absent(c, ATTN_K_NORM_WEIGHT, e);
}

static enum err_code latent_key(struct attn_call *c, struct err *e)
{
    if (!LATENT(c) || HAS(c, ATTN_KEY))
        return ERR_OK;
    return INVALID(e, "key", "key: absent, required with kv_cache_layout LATENT");
}

static enum err_code latent_value_cache_out(struct attn_call *c, struct err *e)
{
    if (!LATENT(c) || !attn_present(OUT(c, ATTN_VALUE_CACHE_OUT)))
        return ERR_OK;
    return INVALID(e, "value_cache_out",
                   "value_cache_out: present, expected absent with kv_cache_layout LATENT");
}

/* ---- element types -------------------------------------------------------- */

static enum err_code t_dtype(struct attn_call *c, struct err *e)
{
    enum attn_dtype t = IN(c, ATTN_QUERY)->dtype;
    c->plan->dtype = t;
    if (t == ATTN_F16 || t == ATTN_BF16 || (t == ATTN_F32 && c->device == ATTN_HOST))
        return ERR_OK;
    return INVALID(e, "query", "query: %s, expected float16%s bfloat16%s", attn_dtype_name(t),
                   c->device == ATTN_HOST ? "," : " or",
                   c->device == ATTN_HOST ? " or float32" : "");
}

static enum err_code dtypes(struct attn_call *c, struct err *e)
{
    for (int i = 0; i < ATTN_INPUTS; i++) {
        enum attn_dtype want = c->plan->dtype;
        if (i == ATTN_KEY_CACHE || i == ATTN_VALUE_CACHE || !HAS(c, i))
            continue;
        if (i == ATTN_K_SCALE || i == ATTN_V_SCALE)
            want = ATTN_F32;
        if (i == ATTN_CU_SEQLENS || i == ATTN_PAST_SEQLENS || i == ATTN_BLOCK_TABLE ||
            i == ATTN_SLOT_MAPPING || i == ATTN_METADATA || i == ATTN_QUERY_POSITIONS)
            want = ATTN_I32;
        if (IN(c, i)->dtype != want)
            return INVALID(e, attn_input_name(i), "%s: %s, expected %s", attn_input_name(i),
                           attn_dtype_name(IN(c, i)->dtype), attn_dtype_name(want));
    }
    if (OUT(c, ATTN_OUT)->dtype != c->plan->dtype)
        return INVALID(e, "output", "output: %s, expected %s",
                       attn_dtype_name(OUT(c, ATTN_OUT)->dtype), attn_dtype_name(c->plan->dtype));
    return ERR_OK;
}

/* ---- the rows ------------------------------------------------------------- */

static const struct attn_rule rules[] = {
    { "tensor form", forms },
    { "tensor device", devices },
    { "required tensors", required },
    { "LATENT: no value", latent_value },
    { "LATENT: no value_cache", latent_value_cache },
    { "LATENT: no v_scale", latent_v_scale },
    { "LATENT: no head_sink", latent_sink },
    { "LATENT: no norm weights", latent_norms },
    { "LATENT: key required", latent_key },
    { "LATENT: no value_cache_out", latent_value_cache_out },
    { "SEPARATE: value_cache required", value_cache_there },
    { "key and value both or neither", key_and_value },
    { "query type", t_dtype },
    { "element types", dtypes },
};

const struct attn_rule_set attn_tensor_rules = { rules, sizeof rules / sizeof *rules };
