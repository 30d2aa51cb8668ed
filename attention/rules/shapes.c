/* shapes.c: the rules of shapes; the plan's numbers come from here.
 *
 * Each message names the tensor or attribute, what was found and what is
 * expected.  Pure functions; any thread. */
#include <math.h>

#include "attention/rules/internal.h"
#include "proto/plan/kv_slot.h"

/* ---- shapes --------------------------------------------------------------- */

static enum err_code query_rank(struct attn_call *c, struct err *e)
{
    enum err_code rc = attn_rule_want_rank("query", IN(c, ATTN_QUERY), 2, e);
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
                       (long long)w, packed ? "num_heads + 2*kv_num_heads (packed)" : "num_heads",
                       (long long)heads);
    p->head_size = (int32_t)(w / heads);
    return ERR_OK;
}

static enum err_code head_size(struct attn_call *c, struct err *e)
{
    if (c->plan->head_size % 8 == 0)
        return ERR_OK;
    return INVALID(e, "query", "query: head_size %d, expected a multiple of 8", c->plan->head_size);
}

static enum err_code v_head_size(struct attn_call *c, struct err *e)
{
    int32_t v = A(c)->v_head_size, d = c->plan->head_size;
    c->plan->v_head_size = LATENT(c) && v != 0 ? v : d;
    if (v == 0 || v == d)
        return ERR_OK;
    if (!LATENT(c))
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
    return attn_rule_want_shape("key", IN(c, ATTN_KEY), 2, p->token_count,
                                (int64_t)p->kv_num_heads * p->head_size, 0, 0, e);
}

static enum err_code value_shape(struct attn_call *c, struct err *e)
{
    struct attn_plan *p = c->plan;
    if (!HAS(c, ATTN_VALUE))
        return ERR_OK;
    return attn_rule_want_shape("value", IN(c, ATTN_VALUE), 2, p->token_count,
                                (int64_t)p->kv_num_heads * p->head_size, 0, 0, e);
}

static enum err_code cache_rank(struct attn_call *c, struct err *e)
{
    return attn_rule_want_rank("key_cache", IN(c, ATTN_KEY_CACHE), 4, e);
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
    p->block_shift = kv_block_shift((uint64_t)b);
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
    if (LATENT(c))
        return ERR_OK;
    return attn_rule_want_shape("value_cache", IN(c, ATTN_VALUE_CACHE), 4, s[0], s[1], s[2], s[3],
                                e);
}

static enum err_code cu_seqlens(struct attn_call *c, struct err *e)
{
    const struct attn_tensor *t = IN(c, ATTN_CU_SEQLENS);
    char found[100];
    if (t->rank != 1 || t->shape[0] < 2)
        return INVALID(e, "cumulative_sequence_length",
                       "cumulative_sequence_length: shape %s, expected (batch_size + 1) with "
                       "batch_size at least 1",
                       attn_rule_shape_text(t, found));
    c->plan->batch_size = t->shape[0] - 1;
    return ERR_OK;
}

static enum err_code past_seqlens(struct attn_call *c, struct err *e)
{
    return attn_rule_want_shape("past_seqlens", IN(c, ATTN_PAST_SEQLENS), 1, c->plan->batch_size, 0,
                                0, 0, e);
}

static enum err_code block_table(struct attn_call *c, struct err *e)
{
    const struct attn_tensor *t = IN(c, ATTN_BLOCK_TABLE);
    char found[100];
    if (t->rank != 2 || t->shape[0] != c->plan->batch_size)
        return INVALID(e, "block_table",
                       "block_table: shape %s, expected (batch_size %lld, "
                       "max_num_blocks_per_seq)",
                       attn_rule_shape_text(t, found), (long long)c->plan->batch_size);
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
    return INVALID(e, "cos_cache",
                   "cos_cache, sin_cache: present, expected absent with do_rotary 0");
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
                       attn_rule_shape_text(t, found));
    return attn_rule_want_shape("sin_cache", IN(c, ATTN_SIN_CACHE), 2, t->shape[0], t->shape[1], 0,
                                0, e);
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
    return attn_rule_want_shape("slot_mapping", IN(c, ATTN_SLOT_MAPPING), 1, c->plan->token_count,
                                0, 0, 0, e);
}

static enum err_code query_positions(struct attn_call *c, struct err *e)
{
    if (!HAS(c, ATTN_QUERY_POSITIONS))
        return ERR_OK;
    return attn_rule_want_shape("query_positions", IN(c, ATTN_QUERY_POSITIONS), 1,
                                c->plan->token_count, 0, 0, 0, e);
}

static enum err_code head_sink(struct attn_call *c, struct err *e)
{
    if (!HAS(c, ATTN_HEAD_SINK))
        return ERR_OK;
    return attn_rule_want_shape("head_sink", IN(c, ATTN_HEAD_SINK), 1, c->plan->num_heads, 0, 0, 0,
                                e);
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
    rc = attn_rule_want_shape("q_norm_weight", IN(c, ATTN_Q_NORM_WEIGHT), 1, c->plan->head_size, 0,
                              0, 0, e);
    if (rc)
        return rc;
    return attn_rule_want_shape("k_norm_weight", IN(c, ATTN_K_NORM_WEIGHT), 1, c->plan->head_size,
                                0, 0, 0, e);
}

/* ---- the rows ------------------------------------------------------------- */

static const struct attn_rule rules[] = {
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
};

const struct attn_rule_set attn_shape_rules = { rules, sizeof rules / sizeof *rules };
