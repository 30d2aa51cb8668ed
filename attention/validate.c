/* validate.c: every rule of the operator, one row each, in the order applied.
 *
 * A later rule may rely on what an earlier one established; together they fill
 * the derived fields of the plan.  Each message names the tensor or attribute,
 * what was found and what is expected.  Contents are read from the host's
 * attention_metadata only.  Pure functions; any thread. */
#include "attention/validate.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define A(c)       ((c)->attrs)
#define IN(c, i)   (&(c)->args->in[i])
#define OUT(c, o)  (&(c)->args->out[o])
#define HAS(c, i)  attn_present(IN(c, i))
#define INVALID(e, name, ...) err_set_param((e), ERR_INVALID, (name), __VA_ARGS__)

/* No dimension above this: products of two fit int64 with room. */
#define DIM_MAX 2147483647
/* And no tensor above this many elements: byte offsets fit int64. */
#define ELEMENTS_MAX ((int64_t)1 << 60)

static bool latent(const struct attn_call *c)
{
    return A(c)->kv_cache_layout == ATTN_LATENT;
}

/* "(25, 256)" */
static const char *shape_text(const struct attn_tensor *t, char buf[100])
{
    int n = snprintf(buf, 100, "(");
    for (int i = 0; i < t->rank && i < ATTN_RANK; i++)
        n += snprintf(buf + n, 100 - (size_t)n, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
    snprintf(buf + n, 100 - (size_t)n, ")");
    return buf;
}

static enum err_code want_shape(const char *name, const struct attn_tensor *t, int32_t rank,
                                int64_t d0, int64_t d1, int64_t d2, int64_t d3, struct err *e)
{
    struct attn_tensor w = { .rank = rank, .shape = { d0, d1, d2, d3 } };
    char found[100], expected[100];
    bool same = t->rank == rank;
    for (int i = 0; same && i < rank; i++)
        same = t->shape[i] == w.shape[i];
    if (same)
        return ERR_OK;
    return INVALID(e, name, "%s: shape %s, expected %s", name, shape_text(t, found),
                   shape_text(&w, expected));
}

static enum err_code want_rank(const char *name, const struct attn_tensor *t, int32_t rank,
                               struct err *e)
{
    char found[100];
    if (t->rank == rank)
        return ERR_OK;
    return INVALID(e, name, "%s: rank %d (shape %s), expected rank %d", name, t->rank,
                   shape_text(t, found), rank);
}

/* ---- attributes ----------------------------------------------------------- */

static enum err_code int_range(const char *name, int32_t v, int32_t lo, int32_t hi,
                               struct err *e)
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
    return INVALID(e, "rotary_offset",
                   "rotary_offset: %d, expected at least 0 and a multiple of 8", o);
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

/* ---- LATENT's own --------------------------------------------------------- */

static enum err_code latent_kv_heads(struct attn_call *c, struct err *e)
{
    if (!latent(c) || A(c)->kv_num_heads == 1)
        return ERR_OK;
    return INVALID(e, "kv_num_heads", "kv_num_heads: %d, expected 1 with kv_cache_layout LATENT",
                   A(c)->kv_num_heads);
}

static enum err_code latent_v_quant(struct attn_call *c, struct err *e)
{
    if (!latent(c) || A(c)->v_quant_type == ATTN_QUANT_NONE)
        return ERR_OK;
    return INVALID(e, "v_quant_type",
                   "v_quant_type: set, expected NONE with kv_cache_layout LATENT (k_quant_type "
                   "describes the one cache)");
}

static enum err_code latent_v_dtype(struct attn_call *c, struct err *e)
{
    const char *s = A(c)->v_cache_dtype;
    if (!latent(c) || s == NULL || *s == '\0')
        return ERR_OK;
    return INVALID(e, "v_cache_dtype",
                   "v_cache_dtype: \"%.32s\", expected none with kv_cache_layout LATENT", s);
}

static enum err_code latent_absent(struct attn_call *c, enum attn_input i, struct err *e)
{
    const char *name = attn_input_name(i);
    if (!latent(c) || !HAS(c, i))
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
    if (!latent(c) || HAS(c, ATTN_KEY))
        return ERR_OK;
    return INVALID(e, "key", "key: absent, required with kv_cache_layout LATENT");
}

static enum err_code latent_value_cache_out(struct attn_call *c, struct err *e)
{
    if (!latent(c) || !attn_present(OUT(c, ATTN_VALUE_CACHE_OUT)))
        return ERR_OK;
    return INVALID(e, "value_cache_out",
                   "value_cache_out: present, expected absent with kv_cache_layout LATENT");
}

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

static enum err_code on_device(const char *name, const struct attn_tensor *t,
                               enum attn_device want, struct err *e)
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
        rc = on_device(attn_input_name(i), IN(c, i), i == ATTN_METADATA ? ATTN_HOST : c->device,
                       e);
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
    if (latent(c) || HAS(c, ATTN_VALUE_CACHE))
        return ERR_OK;
    return INVALID(e, "value_cache",
                   "value_cache: absent, required with kv_cache_layout SEPARATE");
}

static enum err_code key_and_value(struct attn_call *c, struct err *e)
{
    bool k = HAS(c, ATTN_KEY), v = HAS(c, ATTN_VALUE);
    c->plan->mode = latent(c) ? ATTN_MODE_LATENT : k ? ATTN_MODE_SEPARATE : ATTN_MODE_PACKED;
    if (latent(c) || k == v)
        return ERR_OK;
    return INVALID(e, k ? "value" : "key",
                   "%s: absent while %s is present, expected both or neither (packed)",
                   k ? "value" : "key", k ? "key" : "value");
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
                       attn_dtype_name(OUT(c, ATTN_OUT)->dtype),
                       attn_dtype_name(c->plan->dtype));
    return ERR_OK;
}

/* ---- shapes --------------------------------------------------------------- */

static enum err_code query_rank(struct attn_call *c, struct err *e)
{
    enum err_code rc = want_rank("query", IN(c, ATTN_QUERY), 2, e);
    c->plan->token_count = IN(c, ATTN_QUERY)->shape[0];
    c->plan->query_stride = IN(c, ATTN_QUERY)->shape[1];
    return rc;
}

static enum err_code query_width(struct attn_call *c, struct err *e)
{
    struct attn_plan *p = c->plan;
    bool packed = p->mode == ATTN_MODE_PACKED;
    int64_t heads = packed ? p->num_heads + 2 * (int64_t)p->kv_num_heads : p->num_heads;
    int64_t w = p->query_stride;
    if (w == 0 || w % heads != 0)
        return INVALID(e, "query", "query: width %lld, expected a multiple of %s %lld",
                       (long long)w,
                       packed ? "num_heads + 2*kv_num_heads (packed)" : "num_heads",
                       (long long)heads);
    p->head_size = (int32_t)(w / heads);
    return ERR_OK;
}

static enum err_code head_size(struct attn_call *c, struct err *e)
{
    if (c->plan->head_size % 8 == 0)
        return ERR_OK;
    return INVALID(e, "query", "query: head_size %d, expected a multiple of 8",
                   c->plan->head_size);
}

static enum err_code v_head_size(struct attn_call *c, struct err *e)
{
    int32_t v = A(c)->v_head_size, d = c->plan->head_size;
    c->plan->v_head_size = latent(c) && v != 0 ? v : d;
    if (v == 0 || v == d)
        return ERR_OK;
    if (!latent(c))
        return INVALID(e, "v_head_size",
                       "v_head_size: %d, expected 0 or head_size %d with kv_cache_layout SEPARATE",
                       v, d);
    if (v < 0 || v > d)
        return INVALID(e, "v_head_size", "v_head_size: %d, expected 0 or 1 to head_size %d", v, d);
    return ERR_OK;
}

static enum err_code scale_given(struct attn_call *c, struct err *e)
{
    struct attn_plan *p = c->plan;
    if (p->v_head_size != p->head_size && A(c)->scale == 0)
        return INVALID(e, "scale",
                       "scale: 0, expected an explicit scale where v_head_size %d differs from "
                       "head_size %d",
                       p->v_head_size, p->head_size);
    p->scale = A(c)->scale != 0 ? A(c)->scale : 1.0f / sqrtf((float)p->head_size);
    return ERR_OK;
}

static enum err_code key_shape(struct attn_call *c, struct err *e)
{
    struct attn_plan *p = c->plan;
    if (!HAS(c, ATTN_KEY))
        return ERR_OK;
    return want_shape("key", IN(c, ATTN_KEY), 2, p->token_count,
                      (int64_t)p->kv_num_heads * p->head_size, 0, 0, e);
}

static enum err_code value_shape(struct attn_call *c, struct err *e)
{
    struct attn_plan *p = c->plan;
    if (!HAS(c, ATTN_VALUE))
        return ERR_OK;
    return want_shape("value", IN(c, ATTN_VALUE), 2, p->token_count,
                      (int64_t)p->kv_num_heads * p->head_size, 0, 0, e);
}

static enum err_code cache_rank(struct attn_call *c, struct err *e)
{
    return want_rank("key_cache", IN(c, ATTN_KEY_CACHE), 4, e);
}

static enum err_code block_size(struct attn_call *c, struct err *e)
{
    struct attn_plan *p = c->plan;
    int64_t b = IN(c, ATTN_KEY_CACHE)->shape[1];
    if (b < 16 || (b & (b - 1)) != 0)
        return INVALID(e, "key_cache",
                       "key_cache: block_size %lld, expected a power of two of at least 16",
                       (long long)b);
    p->block_size = (int32_t)b;
    for (p->block_shift = 0; (1 << p->block_shift) < b; p->block_shift++)
        ;
    p->num_blocks = IN(c, ATTN_KEY_CACHE)->shape[0];
    return ERR_OK;
}

static enum err_code cache_heads(struct attn_call *c, struct err *e)
{
    int64_t h = IN(c, ATTN_KEY_CACHE)->shape[2];
    if (h == c->plan->kv_num_heads)
        return ERR_OK;
    return INVALID(e, "key_cache", "key_cache: dimension 2 is %lld, expected kv_num_heads %d",
                   (long long)h, c->plan->kv_num_heads);
}

static enum err_code cache_width(struct attn_call *c, struct err *e)
{
    int64_t d = IN(c, ATTN_KEY_CACHE)->shape[3];
    if (d == c->plan->head_size)
        return ERR_OK;
    return INVALID(e, "key_cache", "key_cache: dimension 3 is %lld, expected head_size %d",
                   (long long)d, c->plan->head_size);
}

static enum err_code value_cache_shape(struct attn_call *c, struct err *e)
{
    const int64_t *s = IN(c, ATTN_KEY_CACHE)->shape;
    if (latent(c))
        return ERR_OK;
    return want_shape("value_cache", IN(c, ATTN_VALUE_CACHE), 4, s[0], s[1], s[2], s[3], e);
}

static enum err_code cu_seqlens(struct attn_call *c, struct err *e)
{
    const struct attn_tensor *t = IN(c, ATTN_CU_SEQLENS);
    char found[100];
    if (t->rank != 1 || t->shape[0] < 2)
        return INVALID(e, "cumulative_sequence_length",
                       "cumulative_sequence_length: shape %s, expected (batch_size + 1) with "
                       "batch_size at least 1",
                       shape_text(t, found));
    c->plan->batch_size = t->shape[0] - 1;
    return ERR_OK;
}

static enum err_code past_seqlens(struct attn_call *c, struct err *e)
{
    return want_shape("past_seqlens", IN(c, ATTN_PAST_SEQLENS), 1, c->plan->batch_size, 0, 0, 0,
                      e);
}

static enum err_code block_table(struct attn_call *c, struct err *e)
{
    const struct attn_tensor *t = IN(c, ATTN_BLOCK_TABLE);
    char found[100];
    if (t->rank != 2 || t->shape[0] != c->plan->batch_size)
        return INVALID(e, "block_table",
                       "block_table: shape %s, expected (batch_size %lld, "
                       "max_num_blocks_per_seq)",
                       shape_text(t, found), (long long)c->plan->batch_size);
    c->plan->table_cols = t->shape[1];
    return ERR_OK;
}

/* ---- rotation, norms, sink, explicit slots and positions -------------------- */

static enum err_code cos_and_sin(struct attn_call *c, struct err *e)
{
    bool cos_ = HAS(c, ATTN_COS_CACHE), sin_ = HAS(c, ATTN_SIN_CACHE);
    if (cos_ == sin_)
        return ERR_OK;
    return INVALID(e, cos_ ? "sin_cache" : "cos_cache",
                   "%s: absent while %s is present, expected both or neither",
                   cos_ ? "sin_cache" : "cos_cache", cos_ ? "cos_cache" : "sin_cache");
}

static enum err_code rotary_needs_cos(struct attn_call *c, struct err *e)
{
    if (A(c)->do_rotary == 0 || HAS(c, ATTN_COS_CACHE))
        return ERR_OK;
    return INVALID(e, "cos_cache", "cos_cache, sin_cache: absent, required by do_rotary 1");
}

static enum err_code cos_needs_rotary(struct attn_call *c, struct err *e)
{
    if (A(c)->do_rotary == 1 || !HAS(c, ATTN_COS_CACHE))
        return ERR_OK;
    return INVALID(e, "cos_cache", "cos_cache, sin_cache: present, expected absent with do_rotary 0");
}

static enum err_code cos_shape(struct attn_call *c, struct err *e)
{
    const struct attn_tensor *t = IN(c, ATTN_COS_CACHE);
    char found[100];
    if (A(c)->do_rotary == 0)
        return ERR_OK;
    if (t->rank != 2 || t->shape[0] < 1 || t->shape[1] < 1)
        return INVALID(e, "cos_cache",
                       "cos_cache: shape %s, expected (max_seq_len, rotary_dim/2), both at least 1",
                       shape_text(t, found));
    return want_shape("sin_cache", IN(c, ATTN_SIN_CACHE), 2, t->shape[0], t->shape[1], 0, 0, e);
}

static enum err_code rotary_fits(struct attn_call *c, struct err *e)
{
    struct attn_plan *p = c->plan;
    int64_t dim = A(c)->do_rotary ? 2 * IN(c, ATTN_COS_CACHE)->shape[1] : 0;
    if (A(c)->rotary_offset + dim > p->head_size)
        return INVALID(e, "rotary_offset",
                       "rotary_offset: %d with rotary_dim %lld, expected a sum of at most "
                       "head_size %d",
                       A(c)->rotary_offset, (long long)dim, p->head_size);
    p->rotary_dim = (int32_t)dim;
    p->rotary_rows = dim ? IN(c, ATTN_COS_CACHE)->shape[0] : 0;
    return ERR_OK;
}

static enum err_code slot_mapping(struct attn_call *c, struct err *e)
{
    if (!HAS(c, ATTN_SLOT_MAPPING))
        return ERR_OK;
    return want_shape("slot_mapping", IN(c, ATTN_SLOT_MAPPING), 1, c->plan->token_count, 0, 0, 0,
                      e);
}

static enum err_code query_positions(struct attn_call *c, struct err *e)
{
    if (!HAS(c, ATTN_QUERY_POSITIONS))
        return ERR_OK;
    return want_shape("query_positions", IN(c, ATTN_QUERY_POSITIONS), 1, c->plan->token_count, 0,
                      0, 0, e);
}

static enum err_code head_sink(struct attn_call *c, struct err *e)
{
    if (!HAS(c, ATTN_HEAD_SINK))
        return ERR_OK;
    return want_shape("head_sink", IN(c, ATTN_HEAD_SINK), 1, c->plan->num_heads, 0, 0, 0, e);
}

static enum err_code norms_both(struct attn_call *c, struct err *e)
{
    bool q = HAS(c, ATTN_Q_NORM_WEIGHT), k = HAS(c, ATTN_K_NORM_WEIGHT);
    if (q == k)
        return ERR_OK;
    return INVALID(e, q ? "k_norm_weight" : "q_norm_weight",
                   "%s: absent while %s is present, expected both or neither",
                   q ? "k_norm_weight" : "q_norm_weight", q ? "q_norm_weight" : "k_norm_weight");
}

static enum err_code norms_shape(struct attn_call *c, struct err *e)
{
    enum err_code rc;
    if (!HAS(c, ATTN_Q_NORM_WEIGHT))
        return ERR_OK;
    rc = want_shape("q_norm_weight", IN(c, ATTN_Q_NORM_WEIGHT), 1, c->plan->head_size, 0, 0, 0, e);
    if (rc)
        return rc;
    return want_shape("k_norm_weight", IN(c, ATTN_K_NORM_WEIGHT), 1, c->plan->head_size, 0, 0, 0,
                      e);
}

/* ---- quantised caches ------------------------------------------------------ */

static enum err_code quant_both(struct attn_call *c, struct err *e)
{
    bool k = A(c)->k_quant_type != ATTN_QUANT_NONE, v = A(c)->v_quant_type != ATTN_QUANT_NONE;
    if (latent(c) || k == v)
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
        return INVALID(e, name, "%s: %s, expected int8 or float8e4m3fn with a quant type set",
                       name, attn_dtype_name(d));
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
    if (rc || latent(c))
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
        return want_shape(attn_input_name(i), IN(c, i), 1, 1, 0, 0, 0, e);
    if (quant == ATTN_PER_CHANNEL)
        return want_shape(attn_input_name(i), IN(c, i), 3, p->kv_num_heads, 1, p->head_size, 0, e);
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
    rc = want_shape("attention_metadata", t, 1, 2, 0, 0, 0, e);
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
                       shape_text(t, found), (long long)p->batch_size, p->num_heads);
    memcpy(p->bias_shape, t->shape, sizeof p->bias_shape);
    return ERR_OK;
}

static enum err_code output_shape(struct attn_call *c, struct err *e)
{
    return want_shape("output", OUT(c, ATTN_OUT), 2, c->plan->token_count,
                      (int64_t)c->plan->num_heads * c->plan->v_head_size, 0, 0, e);
}

static enum err_code caches_out_both(struct attn_call *c, struct err *e)
{
    bool k = attn_present(OUT(c, ATTN_KEY_CACHE_OUT)), v = attn_present(OUT(c, ATTN_VALUE_CACHE_OUT));
    if (latent(c) || k == v)
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
    return INVALID(e, attn_output_name(o), "%s: another tensor, expected the buffer, type and shape of %s",
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
                       shape_text(t, found), p->num_heads, (long long)p->token_count);
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

/* ---- the table ---------------------------------------------------------------- */

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
    { "query rank", query_rank },
    { "query width", query_width },
    { "head_size", head_size },
    { "v_head_size", v_head_size },
    { "scale given where mandatory", scale_given },
    { "key shape", key_shape },
    { "value shape", value_shape },
    { "key_cache rank", cache_rank },
    { "block_size", block_size },
    { "key_cache heads", cache_heads },
    { "key_cache width", cache_width },
    { "value_cache shape", value_cache_shape },
    { "cumulative_sequence_length shape", cu_seqlens },
    { "past_seqlens shape", past_seqlens },
    { "block_table shape", block_table },
    { "cos and sin both or neither", cos_and_sin },
    { "do_rotary needs cos and sin", rotary_needs_cos },
    { "cos and sin need do_rotary", cos_needs_rotary },
    { "cos and sin shape", cos_shape },
    { "rotary_offset + rotary_dim", rotary_fits },
    { "slot_mapping shape", slot_mapping },
    { "query_positions shape", query_positions },
    { "head_sink shape", head_sink },
    { "norm weights both or neither", norms_both },
    { "norm weights shape", norms_shape },
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

const struct attn_rule *attn_rules(size_t *n)
{
    *n = sizeof rules / sizeof *rules;
    return rules;
}

enum err_code attn_validate(struct attn_call *c, const struct attn_rule **failed, struct err *e)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        enum err_code rc = rules[i].check(c, e);
        if (rc == ERR_OK)
            continue;
        if (failed != NULL)
            *failed = &rules[i];
        return rc;
    }
    return ERR_OK;
}
