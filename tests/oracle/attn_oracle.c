/* attn_oracle.c: see attn_oracle.h. */
#include "oracle/attn_oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- number formats, from their definitions --------------------------------------- */

/* Sign, e exponent bits with this bias, m mantissa bits; no infinities. */
static double bits_value(unsigned u, int m, int e, int bias)
{
    double sign = u >> (m + e) & 1 ? -1 : 1;
    int exponent = (int)(u >> m & ((1u << e) - 1)), mantissa = (int)(u & ((1u << m) - 1));
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - bias - m);
    return sign * ldexp(mantissa + (1 << m), exponent - bias - m);
}

double oracle_value(enum attn_dtype d, const void *p, int64_t i)
{
    switch (d) {
    case ATTN_F32:
        return ((const float *)p)[i];
    case ATTN_F16: {
        unsigned u = ((const uint16_t *)p)[i];
        if ((u & 0x7C00) == 0x7C00)
            return u & 0x3FF ? NAN : u & 0x8000 ? -INFINITY : INFINITY;
        return bits_value(u, 10, 5, 15);
    }
    case ATTN_BF16: {
        unsigned u = ((const uint16_t *)p)[i];
        if ((u & 0x7F80) == 0x7F80)
            return u & 0x7F ? NAN : u & 0x8000 ? -INFINITY : INFINITY;
        return bits_value(u, 7, 8, 127);
    }
    case ATTN_INT8:
        return ((const int8_t *)p)[i];
    case ATTN_I32:
        return ((const int32_t *)p)[i];
    default: {
        unsigned u = ((const uint8_t *)p)[i];
        return (u & 0x7F) == 0x7F ? NAN : bits_value(u, 3, 4, 7);
    }
    }
}

/* x rounded to m bits after the leading one, ties to even, no smaller unit than
 * 2^lowest. */
static double rounded(double x, int m, int lowest)
{
    int e;
    double unit;
    if (x == 0 || !isfinite(x))
        return x;
    frexp(x, &e);
    unit = ldexp(1, e - 1 - m > lowest ? e - 1 - m : lowest);
    return rint(x / unit) * unit;
}

static double stored(enum attn_dtype d, double x, double scale)
{
    switch (d) {
    case ATTN_F32:
        return (float)x;
    case ATTN_F16:
        return rounded(x, 10, -24);
    case ATTN_BF16:
        return rounded(x, 7, -133);
    case ATTN_INT8:
        return scale * fmin(fmax(rint(x / scale), -128), 127);
    default:
        return scale * rounded(fmin(fmax(x / scale, -448), 448), 3, -9);
    }
}

/* ---- the call ------------------------------------------------------------------------ */

struct call {
    const struct attn_attrs *a;
    const struct attn_tensor *in;
    bool latent, packed;
    int64_t tokens, heads, kv_heads, d, dv, n_seqs, cols, block, blocks;
};

static double get(const struct call *c, int input, int64_t i)
{
    return oracle_value(c->in[input].dtype, c->in[input].data, i);
}

static int64_t integer(const struct call *c, int input, int64_t i)
{
    return ((const int32_t *)c->in[input].data)[i];
}

static bool has(const struct call *c, int input)
{
    return c->in[input].rank != 0;
}

static double scale_of(const struct call *c, int input, int32_t quant, int64_t head, int64_t ch)
{
    if (quant == ATTN_QUANT_NONE)
        return 1;
    return get(c, input, quant == ATTN_PER_TENSOR ? 0 : head * c->d + ch);
}

/* Norm and rotation of one head row at position p. */
static void prologue(const struct call *c, double *x, int norm, int64_t p)
{
    double mean = 0;
    if (has(c, norm)) {
        for (int64_t i = 0; i < c->d; i++)
            mean += x[i] * x[i] / (double)c->d;
        for (int64_t i = 0; i < c->d; i++)
            x[i] = x[i] * get(c, norm, i) / sqrt(mean + (double)c->a->qk_norm_epsilon);
    }
    if (c->a->do_rotary) {
        int64_t half = c->in[ATTN_COS_CACHE].shape[1];
        for (int64_t i = 0; i < half; i++) {
            int64_t ia = c->a->rotary_offset + (c->a->rotary_interleaved ? 2 * i : i);
            int64_t ib = c->a->rotary_offset + (c->a->rotary_interleaved ? 2 * i + 1 : i + half);
            double cs = get(c, ATTN_COS_CACHE, p * half + i);
            double sn = get(c, ATTN_SIN_CACHE, p * half + i), a = x[ia], b = x[ib];
            x[ia] = a * cs - b * sn;
            x[ib] = a * sn + b * cs;
        }
    }
}

static int64_t block_of(const struct call *c, int64_t seq, int64_t pos)
{
    int64_t i = pos / c->block,
            b = i < c->cols ? integer(c, ATTN_BLOCK_TABLE, seq * c->cols + i) : -1;
    return b >= 0 && b < c->blocks ? b : -1;
}

static int64_t sequence_of(const struct call *c, int64_t t)
{
    for (int64_t b = 0; b < c->n_seqs; b++)
        if (t >= integer(c, ATTN_CU_SEQLENS, b) && t < integer(c, ATTN_CU_SEQLENS, b + 1))
            return b;
    return -1;
}

static int64_t position_of(const struct call *c, int64_t seq, int64_t t)
{
    return has(c, ATTN_QUERY_POSITIONS)
               ? integer(c, ATTN_QUERY_POSITIONS, t)
               : integer(c, ATTN_PAST_SEQLENS, seq) + t - integer(c, ATTN_CU_SEQLENS, seq);
}

/* Element of new row t: part 0 query, 1 key, 2 value. */
static double row_element(const struct call *c, int part, int64_t t, int64_t i)
{
    static const int input[] = { ATTN_QUERY, ATTN_KEY, ATTN_VALUE };
    int64_t q = c->heads * c->d, kv = c->kv_heads * c->d;
    if (!c->packed)
        return get(c, input[part], t * (part == 0 ? q : kv) + i);
    return get(c, ATTN_QUERY, t * (q + 2 * kv) + (part > 0) * q + (part > 1) * kv + i);
}

static void store_token(const struct call *c, struct oracle_result *r, int64_t t)
{
    int64_t seq = sequence_of(c, t), legacy, slot;
    double x[1024];
    if (seq < 0)
        return;
    legacy = integer(c, ATTN_PAST_SEQLENS, seq) + t - integer(c, ATTN_CU_SEQLENS, seq);
    if (has(c, ATTN_SLOT_MAPPING))
        slot = integer(c, ATTN_SLOT_MAPPING, t);
    else
        slot = block_of(c, seq, legacy) < 0
                   ? -1
                   : block_of(c, seq, legacy) * c->block + legacy % c->block;
    if (slot < 0)
        return;
    for (int64_t h = 0; h < c->kv_heads; h++) {
        int64_t at = (slot * c->kv_heads + h) * c->d;
        for (int64_t i = 0; i < c->d; i++)
            x[i] = row_element(c, 1, t, h * c->d + i);
        prologue(c, x, ATTN_K_NORM_WEIGHT, position_of(c, seq, t));
        for (int64_t i = 0; i < c->d; i++)
            r->k[at + i] = stored(c->in[ATTN_KEY_CACHE].dtype, x[i],
                                  scale_of(c, ATTN_K_SCALE, c->a->k_quant_type, h, i));
        for (int64_t i = 0; r->v != NULL && i < c->d; i++)
            r->v[at + i] = stored(c->in[ATTN_VALUE_CACHE].dtype, row_element(c, 2, t, h * c->d + i),
                                  scale_of(c, ATTN_V_SCALE, c->a->v_quant_type, h, i));
    }
}

static double bias_of(const struct call *c, int64_t seq, int64_t h, int64_t j, int64_t k)
{
    const int64_t *n = c->in[ATTN_BIAS].shape;
    if (!has(c, ATTN_BIAS) || j >= n[2] || k >= n[3])
        return 0;
    return get(c, ATTN_BIAS,
               (((n[0] == 1 ? 0 : seq) * n[1] + (n[1] == 1 ? 0 : h)) * n[2] + j) * n[3] + k);
}

static void attend_head(const struct call *c, struct oracle_result *r, int64_t t, int64_t h)
{
    int64_t seq = sequence_of(c, t), g = h / (c->heads / c->kv_heads), p, kv_len, w;
    double scale = c->a->scale != 0 ? (double)c->a->scale : 1 / sqrt((double)c->d);
    double q[1024], max = -INFINITY, sum = 0, *s, *out = r->out + (t * c->heads + h) * c->dv;
    double *qk = r->qk != NULL ? r->qk + (h * c->tokens + t) * r->qk_cols : NULL;
    for (int64_t k = 0; qk != NULL && k < r->qk_cols; k++)
        qk[k] = c->a->qk_output == ATTN_QK_SCORES ? -INFINITY : 0;
    if (seq < 0)
        return;
    p = position_of(c, seq, t);
    w = c->a->local_window_size;
    kv_len = integer(c, ATTN_PAST_SEQLENS, seq) + integer(c, ATTN_CU_SEQLENS, seq + 1) -
             integer(c, ATTN_CU_SEQLENS, seq);
    for (int64_t i = 0; i < c->d; i++)
        q[i] = row_element(c, 0, t, h * c->d + i);
    prologue(c, q, ATTN_Q_NORM_WEIGHT, p);
    s = calloc((size_t)kv_len + 1, sizeof *s);
    for (int64_t k = 0; k < kv_len; k++) {
        int64_t block = block_of(c, seq, k), at;
        double x = 0;
        s[k] = -INFINITY;
        if (k > p || (w > 0 && k <= p - w) || block < 0)
            continue;
        at = ((block * c->block + k % c->block) * c->kv_heads + g) * c->d;
        for (int64_t i = 0; i < c->d; i++)
            x += q[i] * r->k[at + i];
        x = x * scale + bias_of(c, seq, h, t - integer(c, ATTN_CU_SEQLENS, seq), k);
        s[k] = c->a->softcap > 0 ? (double)c->a->softcap * tanh(x / (double)c->a->softcap) : x;
        max = fmax(max, s[k]);
    }
    for (int64_t k = 0; k < kv_len; k++)
        sum += max > -INFINITY ? exp(s[k] - max) : 0;
    if (has(c, ATTN_HEAD_SINK) && sum > 0)
        sum += exp(get(c, ATTN_HEAD_SINK, h) - max);
    for (int64_t k = 0; k < kv_len; k++) {
        double prob = sum > 0 ? exp(s[k] - max) / sum : 0;
        int64_t at = ((block_of(c, seq, k) * c->block + k % c->block) * c->kv_heads + g) * c->d;
        for (int64_t i = 0; prob > 0 && i < c->dv; i++)
            out[i] += prob * (c->latent ? r->k : r->v)[at + i];
        if (qk != NULL && k < r->qk_cols)
            qk[k] = c->a->qk_output == ATTN_QK_SCORES ? s[k] : prob;
    }
    free(s);
}

static double *load_cache(const struct call *c, int input, int scale, int32_t quant)
{
    const struct attn_tensor *t = &c->in[input];
    int64_t n = t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3];
    double *x = calloc((size_t)n + 1, sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = get(c, input, i) * scale_of(c, scale, quant, i / c->d % c->kv_heads, i % c->d);
    return x;
}

static struct call call_of(const struct attn_attrs *attrs, const struct attn_args *args)
{
    const struct attn_tensor *in = args->in;
    struct call c = { .a = attrs, .in = in };
    c.latent = attrs->kv_cache_layout == ATTN_LATENT;
    c.packed = !c.latent && in[ATTN_KEY].rank == 0;
    c.tokens = in[ATTN_QUERY].shape[0];
    c.heads = attrs->num_heads;
    c.kv_heads = attrs->kv_num_heads;
    c.d = in[ATTN_KEY_CACHE].shape[3];
    c.dv = c.latent && attrs->v_head_size != 0 ? attrs->v_head_size : c.d;
    c.n_seqs = in[ATTN_PAST_SEQLENS].shape[0];
    c.cols = in[ATTN_BLOCK_TABLE].shape[1];
    c.blocks = in[ATTN_KEY_CACHE].shape[0];
    c.block = in[ATTN_KEY_CACHE].shape[1];
    return c;
}

static void load_caches(const struct call *c, struct oracle_result *r)
{
    *r = (struct oracle_result){ .tokens = c->tokens, .heads = c->heads, .v_width = c->dv };
    r->k = load_cache(c, ATTN_KEY_CACHE, ATTN_K_SCALE, c->a->k_quant_type);
    if (!c->latent)
        r->v = load_cache(c, ATTN_VALUE_CACHE, ATTN_V_SCALE, c->a->v_quant_type);
}

void oracle_store(const struct attn_attrs *attrs, const struct attn_args *args,
                  struct oracle_result *r)
{
    struct call c = call_of(attrs, args);
    load_caches(&c, r);
    for (int64_t t = 0; t < c.tokens; t++)
        store_token(&c, r, t);
}

void oracle_attend(const struct attn_attrs *attrs, const struct attn_args *args,
                   struct oracle_result *r)
{
    struct call c = call_of(attrs, args);
    load_caches(&c, r);
    r->out = calloc((size_t)(c.tokens * c.heads * c.dv) + 1, sizeof *r->out);
    if (attrs->qk_output != ATTN_QK_NONE) {
        r->qk_cols = args->out[ATTN_QK].shape[2];
        r->qk = calloc((size_t)(c.tokens * c.heads * r->qk_cols) + 1, sizeof *r->qk);
    }
    for (int64_t t = 0; t < c.tokens; t++)
        for (int64_t h = 0; h < c.heads; h++)
            attend_head(&c, r, t, h);
}

void oracle_free(struct oracle_result *r)
{
    free(r->out);
    free(r->qk);
    free(r->k);
    free(r->v);
    memset(r, 0, sizeof *r);
}
