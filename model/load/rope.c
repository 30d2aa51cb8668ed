/* rope.c: see config_rope.h. */
#include "model/load/rope.h"

#include <math.h>
#include <string.h>

#include "model/load/families.h"
#include "proto/try.h"

static const double two_pi = 6.283185307179586476925286766559;

/* ---- reading ---- */

static enum err_code read_factors(const struct json_object *o, const char *key, uint32_t want,
                                  float out[ROPE_FACTORS], uint32_t *n, struct err *e)
{
    const cJSON *list = NULL;
    TRY(json_get_array(o, key, &list, e));
    if (list == NULL)
        return json_missing(o, key, "a list of factors", e);
    uint32_t got = (uint32_t)cJSON_GetArraySize(list), i = 0;
    if (got != want || want > ROPE_FACTORS)
        return err_set(e, ERR_INVALID, "%s: %s%s has %u entries, expected %u", o->file, o->in, key,
                       got, want);
    for (const cJSON *v = list->child; v != NULL; v = v->next, i++) {
        if (!cJSON_IsNumber(v) || !(v->valuedouble > 1e-6 && v->valuedouble < 1e6))
            return err_set(e, ERR_INVALID, "%s: %s%s[%u]: expected a positive number", o->file,
                           o->in, key, i);
        out[i] = (float)v->valuedouble;
    }
    *n = got;
    return ERR_OK;
}

static enum err_code read_kind(const struct json_object *o, enum rope_kind *out, struct err *e)
{
    static const struct {
        const char *name;
        enum rope_kind kind;
    } kinds[] = { { "default", ROPE_DEFAULT },   { "linear", ROPE_LINEAR },
                  { "llama3", ROPE_LLAMA3 },     { "yarn", ROPE_YARN },
                  { "longrope", ROPE_LONGROPE }, { "su", ROPE_LONGROPE } };
    const char *name = NULL;
    TRY(json_get_string(o, "type", &name, e));
    TRY(json_get_string(o, "rope_type", &name, e));
    if (name == NULL) {
        *out = ROPE_DEFAULT;
        return ERR_OK;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(kinds[i].name, name) == 0) {
            *out = kinds[i].kind;
            return ERR_OK;
        }
    }
    return err_set(e, ERR_INVALID,
                   "%s: %srope_type is \"%.32s\", expected default, linear, llama3, yarn or "
                   "longrope",
                   o->file, o->in, name);
}

static enum err_code need_factor(const struct json_object *o, struct rope_config *r, struct err *e)
{
    TRY(json_get_real(o, "factor", 1e-3, 1e6, &r->factor, e));
    return json_member(o, "factor") ? ERR_OK : json_missing(o, "factor", "a number", e);
}

/* The scaling's own keys, from rope_scaling or rope_parameters. */
static enum err_code read_scaling(const struct model_config *c, struct rope_config *r,
                                  const struct json_object *o, struct err *e)
{
    TRY(read_kind(o, &r->kind, e));
    TRY(json_get_real(o, "rope_theta", 1e-3, 1e12, &r->theta, e));
    TRY(json_get_real(o, "partial_rotary_factor", 1e-3, 1, &r->partial, e));
    TRY(json_get_uint(o, "original_max_position_embeddings", 1, 1 << 28, &r->original_positions,
                      e));
    if (r->kind == ROPE_LINEAR || r->kind == ROPE_LLAMA3 || r->kind == ROPE_YARN)
        TRY(need_factor(o, r, e));
    TRY(json_get_real(o, "low_freq_factor", 1e-6, 1e6, &r->low_freq_factor, e));
    TRY(json_get_real(o, "high_freq_factor", 1e-6, 1e6, &r->high_freq_factor, e));
    TRY(json_get_real(o, "beta_fast", 1e-6, 1e6, &r->beta_fast, e));
    TRY(json_get_real(o, "beta_slow", 1e-6, 1e6, &r->beta_slow, e));
    TRY(json_get_real(o, "mscale", 0, 1e6, &r->mscale, e));
    TRY(json_get_real(o, "mscale_all_dim", 0, 1e6, &r->mscale_all_dim, e));
    TRY(json_get_real(o, "attention_factor", 0, 1e6, &r->attention_factor, e));
    TRY(json_get_bool(o, "truncate", &r->truncate, e));
    if (r->kind == ROPE_LLAMA3 && !(r->high_freq_factor > r->low_freq_factor))
        return err_set(e, ERR_INVALID,
                       "%s: %shigh_freq_factor %g: expected more than low_freq_factor %g", o->file,
                       o->in, r->high_freq_factor, r->low_freq_factor);
    if (r->kind != ROPE_LONGROPE)
        return ERR_OK;
    TRY(read_factors(o, "short_factor", model_rope_dim(c, r) / 2, r->short_factor, &r->n_short, e));
    return read_factors(o, "long_factor", model_rope_dim(c, r) / 2, r->long_factor, &r->n_long, e);
}

static enum err_code read_both(struct model_config *c, const struct json_object *o,
                               const cJSON *params, struct err *e)
{
    struct json_object all = { params, o->file, "rope_parameters." };
    const cJSON *full = NULL, *local = NULL;
    if (json_member(&all, "full_attention") == NULL &&
        json_member(&all, "sliding_attention") == NULL)
        return read_scaling(c, &c->rope[0], &all, e);
    TRY(json_get_object(&all, "full_attention", &full, e));
    TRY(json_get_object(&all, "sliding_attention", &local, e));
    struct json_object of = { full, o->file, "rope_parameters.full_attention." };
    struct json_object ol = { local, o->file, "rope_parameters.sliding_attention." };
    if (full != NULL)
        TRY(read_scaling(c, &c->rope[0], &of, e));
    if (local != NULL)
        TRY(read_scaling(c, &c->rope[1], &ol, e));
    return ERR_OK;
}

/* 0.1 m ln(factor) + 1, as YaRN scales attention. */
static double yarn_mscale(double factor, double m)
{
    return factor <= 1 ? 1 : 0.1 * m * log(factor) + 1;
}

static enum err_code check_rope(const struct model_config *c, const struct json_object *o,
                                struct err *e)
{
    for (int i = 0; i < 2; i++) {
        uint32_t dim = model_rope_dim(c, &c->rope[i]);
        if (dim == 0 || dim % 2 != 0)
            return err_set(e, ERR_INVALID,
                           "%s: %u channels of a head would be rotated, expected a positive even "
                           "number",
                           o->file, dim);
    }
    return ERR_OK;
}

enum err_code model_config_read_rope(struct model_config *c, const struct json_object *o,
                                     struct err *e)
{
    double theta = c->family->rope_theta ? c->family->rope_theta : 10000, local = 10000;
    double partial = c->family->partial ? c->family->partial : 1;
    uint32_t original = 0;
    const cJSON *params = NULL;
    TRY(json_get_real(o, "rope_theta", 1e-3, 1e12, &theta, e));
    TRY(json_get_real(o, "rope_local_base_freq", 1e-3, 1e12, &local, e));
    TRY(json_get_real(o, "partial_rotary_factor", 1e-3, 1, &partial, e));
    TRY(json_get_uint(o, "original_max_position_embeddings", 1, 1 << 28, &original, e));
    for (int i = 0; i < 2; i++)
        c->rope[i] = (struct rope_config){ .theta = i ? local : theta,
                                           .partial = partial,
                                           .factor = 1,
                                           .low_freq_factor = 1,
                                           .high_freq_factor = 4,
                                           .beta_fast = 32,
                                           .beta_slow = 1,
                                           .truncate = true };
    TRY(json_get_object(o, "rope_parameters", &params, e));
    if (params != NULL) {
        TRY(read_both(c, o, params, e));
    } else {
        struct json_object scaling = { NULL, o->file, "rope_scaling." };
        TRY(json_get_object(o, "rope_scaling", &scaling.node, e));
        if (scaling.node != NULL)
            TRY(read_scaling(c, &c->rope[0], &scaling, e));
    }
    struct rope_config *r = &c->rope[0];
    if (r->kind == ROPE_LONGROPE && original != 0)
        r->original_positions = original;
    if (r->kind == ROPE_LONGROPE && r->original_positions == 0)
        return json_missing(o, "original_max_position_embeddings", "an integer", e);
    if ((c->family->features & FAMILY_MLA) && r->kind == ROPE_YARN && r->mscale_all_dim > 0) {
        double m = yarn_mscale(r->factor, r->mscale_all_dim);
        c->softmax_scale = (float)(c->softmax_scale * m * m);
    }
    return check_rope(c, o, e);
}

/* ---- tables ---- */

uint32_t model_rope_dim(const struct model_config *c, const struct rope_config *r)
{
    if (c->mla.kv_rank > 0)
        return c->mla.rope;
    return (uint32_t)(c->head_dim * r->partial);
}

/* Where a wave turns `turns` times within the original context, as a channel. */
static double yarn_channel(const struct rope_config *r, uint32_t dim, double turns, double context)
{
    return dim * log(context / (turns * two_pi)) / (2 * log(r->theta));
}

static double llama3_frequency(const struct rope_config *r, double f, double context)
{
    double wave = two_pi / f;
    double low = context / r->low_freq_factor, high = context / r->high_freq_factor;
    if (wave < high)
        return f;
    if (wave > low)
        return f / r->factor;
    double smooth =
        (context / wave - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
    return (1 - smooth) * f / r->factor + smooth * f;
}

static double yarn_frequency(const struct rope_config *r, uint32_t dim, uint32_t i, double f,
                             double context)
{
    double low = yarn_channel(r, dim, r->beta_fast, context);
    double high = yarn_channel(r, dim, r->beta_slow, context);
    if (r->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, dim - 1);
    if (low == high)
        high += 0.001;
    double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
    return f / r->factor * ramp + f * (1 - ramp);
}

static double attention_factor(const struct model_config *c, const struct rope_config *r,
                               double context)
{
    if (r->kind != ROPE_YARN && r->kind != ROPE_LONGROPE)
        return 1;
    if (r->attention_factor > 0)
        return r->attention_factor;
    if (r->kind == ROPE_LONGROPE) {
        double factor = c->max_positions / context;
        return factor <= 1 ? 1 : sqrt(1 + log(factor) / log(context));
    }
    if (r->mscale > 0 && r->mscale_all_dim > 0)
        return yarn_mscale(r->factor, r->mscale) / yarn_mscale(r->factor, r->mscale_all_dim);
    return yarn_mscale(r->factor, 1);
}

static float frequency(const struct rope_config *r, uint32_t dim, uint32_t i, double context,
                       bool use_long)
{
    double f = pow(r->theta, -2.0 * i / dim);
    switch (r->kind) {
    case ROPE_LINEAR:
        return (float)(f / r->factor);
    case ROPE_LLAMA3:
        return (float)llama3_frequency(r, f, context);
    case ROPE_YARN:
        return (float)yarn_frequency(r, dim, i, f, context);
    case ROPE_LONGROPE:
        return (float)(f / (use_long ? r->long_factor[i] : r->short_factor[i]));
    case ROPE_DEFAULT:
        break;
    }
    return (float)f;
}

void model_rope_fill(const struct model_config *c, const struct rope_config *r,
                     uint32_t max_model_len, float *cos_out, float *sin_out)
{
    uint32_t dim = model_rope_dim(c, r), half = dim / 2;
    double context = r->original_positions ? r->original_positions : c->max_positions;
    float scale = (float)attention_factor(c, r, context);
    bool use_long = max_model_len > r->original_positions;
    for (uint32_t i = 0; i < half; i++) {
        /* The angle is rounded like the reference's: a float32 product. */
        float f = frequency(r, dim, i, context, use_long);
        for (uint32_t p = 0; p < max_model_len; p++) {
            float angle = (float)p * f;
            cos_out[(size_t)p * half + i] = (float)cos(angle) * scale;
            sin_out[(size_t)p * half + i] = (float)sin(angle) * scale;
        }
    }
}
