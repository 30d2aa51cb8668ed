/* attn_scene.c: see attn_scene.h. */
#include "oracle/attn_scene.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/test.h"

size_t built_bytes(const struct attn_tensor *t)
{
    size_t n = t->rank > 0 ? attn_dtype_bytes(t->dtype) : 0;
    for (int i = 0; i < t->rank; i++)
        n *= (size_t)t->shape[i];
    return n;
}

static void *new_bytes(size_t n)
{
    void *p = calloc(1, n + 1);
    assert_non_null(p);
    return p;
}

int64_t scene_first_token(const struct scene *s, int32_t b)
{
    int64_t t = 0;
    for (int32_t i = 0; i < b; i++)
        t += s->q_len[i];
    return t;
}

static int32_t kv_len(const struct scene *s, int32_t b)
{
    return s->past[b] + s->q_len[b];
}

/* ---- random content -------------------------------------------------------------- */

/* Multiples of 1/64 in [-1, 1): exact in every T. */
static void fill_floats(struct rng *r, enum attn_dtype d, void *p, size_t n, double scale,
                        double offset)
{
    for (size_t i = 0; i < n; i++) {
        float x = (float)(offset + scale * ((int)rng_below(r, 128) - 64) / 64);
        uint32_t u;
        memcpy(&u, &x, 4);
        if (d == ATTN_F32)
            memcpy((char *)p + 4 * i, &x, 4);
        else if (d == ATTN_BF16)
            ((uint16_t *)p)[i] = (uint16_t)(u >> 16); /* short mantissas: exact */
        else if (x == 0)
            ((uint16_t *)p)[i] = 0;
        else
            ((uint16_t *)p)[i] = (uint16_t)((u >> 16 & 0x8000) | (((u >> 23 & 0xFF) - 112) << 10) |
                                            (u >> 13 & 0x3FF));
    }
}

static void fill_cache(struct rng *r, enum attn_dtype d, void *p, size_t n)
{
    if (d != ATTN_INT8 && d != ATTN_E4M3) {
        fill_floats(r, d, p, n, 1, 0);
        return;
    }
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)p)[i] =
            (uint8_t)(d == ATTN_INT8
                          ? rng_below(r, 256)
                          : rng_below(r, 2) << 7 | (5 + rng_below(r, 4)) << 3 | rng_below(r, 8));
}

static struct attn_tensor random_tensor(struct rng *r, enum attn_dtype d, int32_t rank, int64_t d0,
                                        int64_t d1, int64_t d2, int64_t d3, double scale,
                                        double offset)
{
    struct attn_tensor t = attn_view(NULL, d, rank, d0, d1, d2, d3);
    size_t bytes = built_bytes(&t);
    t.data = new_bytes(bytes);
    fill_floats(r, d, t.data, bytes / attn_dtype_bytes(d), scale, offset);
    return t;
}

static bool coin(struct rng *r, uint32_t one_in)
{
    return rng_below(r, one_in) == 0;
}

static void random_shape(struct rng *r, const struct scene_wish *w, struct scene *s)
{
    static const int32_t groups[] = { 1, 1, 2, 3, 4, 5, 8, 16 };
    static const int32_t widths[] = { 8, 16, 24, 40, 64, 72, 80, 128 };
    int32_t group = groups[rng_below(r, 8)];
    s->dtype = w->dtype;
    s->latent = !w->separate && coin(r, 4);
    s->packed = !s->latent && coin(r, 3);
    s->kv_heads = s->latent ? 1 : 1 + (int32_t)rng_below(r, 3);
    s->head_size = w->head_size != 0 ? w->head_size : widths[rng_below(r, 8)];
    s->v_head_size = s->head_size;
    s->attrs = attn_attrs_default(group * s->kv_heads, s->kv_heads);
    if (s->latent) {
        s->attrs.kv_cache_layout = ATTN_LATENT;
        if (coin(r, 2)) {
            s->attrs.v_head_size = 1 + (int32_t)rng_below(r, (uint32_t)s->head_size);
            s->v_head_size = s->attrs.v_head_size;
        }
        s->attrs.scale = 0.11f;
    }
    s->n_seqs = 1 + (int32_t)rng_below(r, (uint32_t)w->max_seqs);
    for (int32_t b = 0; b < s->n_seqs; b++) {
        s->past[b] = coin(r, 4) ? 0 : (int32_t)rng_below(r, (uint32_t)w->max_past + 1);
        s->q_len[b] = coin(r, 3) ? 1 : (int32_t)rng_below(r, (uint32_t)w->max_new + 1);
        s->n_tokens += s->q_len[b];
    }
    s->n_padding = coin(r, 3) ? (int32_t)rng_below(r, 4) : 0;
    s->n_tokens += s->n_padding;
}

static void random_quant(struct rng *r, const struct scene_wish *w, struct scene *s)
{
    int64_t d = s->head_size;
    s->cache = s->dtype;
    if (w->plain || w->float_cache || coin(r, 2))
        return;
    s->cache = coin(r, 2) ? ATTN_INT8 : ATTN_E4M3;
    s->attrs.k_quant_type = coin(r, 2) ? ATTN_PER_TENSOR : ATTN_PER_CHANNEL;
    s->k_scale = s->attrs.k_quant_type == ATTN_PER_TENSOR
                     ? random_tensor(r, ATTN_F32, 1, 1, 0, 0, 0, 0.002, 0.01)
                     : random_tensor(r, ATTN_F32, 3, s->kv_heads, 1, d, 0, 0.002, 0.01);
    if (s->latent)
        return;
    s->attrs.v_quant_type = coin(r, 2) ? ATTN_PER_TENSOR : ATTN_PER_CHANNEL;
    s->v_scale = s->attrs.v_quant_type == ATTN_PER_TENSOR
                     ? random_tensor(r, ATTN_F32, 1, 1, 0, 0, 0, 0.002, 0.01)
                     : random_tensor(r, ATTN_F32, 3, s->kv_heads, 1, d, 0, 0.002, 0.01);
}

static void random_features(struct rng *r, const struct scene_wish *w, struct scene *s)
{
    int32_t longest = 1, most = 1, heads = s->attrs.num_heads;
    for (int32_t b = 0; b < s->n_seqs; b++) {
        longest = kv_len(s, b) > longest ? kv_len(s, b) : longest;
        most = s->q_len[b] > most ? s->q_len[b] : most;
    }
    if (w->plain)
        return;
    if (coin(r, 2)) {
        int32_t pairs = 4 * (1 + (int32_t)rng_below(r, (uint32_t)s->head_size / 8));
        s->attrs.do_rotary = 1;
        s->attrs.rotary_interleaved = coin(r, 2);
        s->attrs.rotary_offset =
            8 * (int32_t)rng_below(r, (uint32_t)(s->head_size - 2 * pairs) / 8 + 1);
        s->cos_ = random_tensor(r, s->dtype, 2, longest + 8, pairs, 0, 0, 1, 0);
        s->sin_ = random_tensor(r, s->dtype, 2, longest + 8, pairs, 0, 0, 1, 0);
    }
    if (!s->latent && coin(r, 3)) {
        s->q_norm = random_tensor(r, s->dtype, 1, s->head_size, 0, 0, 0, 0.5, 1);
        s->k_norm = random_tensor(r, s->dtype, 1, s->head_size, 0, 0, 0, 0.5, 1);
    }
    if (!s->latent && coin(r, 3))
        s->sink = random_tensor(r, s->dtype, 1, heads, 0, 0, 0, 2, 0);
    if (coin(r, 3))
        s->attrs.local_window_size = 1 + (int32_t)rng_below(r, (uint32_t)longest + 20);
    if (coin(r, 4))
        s->attrs.softcap = 2.5f;
    if (coin(r, 5))
        s->attrs.scale = 0.25f;
    if (!w->no_bias && coin(r, 4))
        s->bias = random_tensor(r, s->dtype, 4, coin(r, 2) ? 1 : s->n_seqs, coin(r, 2) ? 1 : heads,
                                most + rng_below(r, 3), longest + rng_below(r, 9), 1, 0);
    if (!w->no_qk && coin(r, 4)) {
        s->attrs.qk_output = 1 + (int32_t)rng_below(r, 2);
        s->qk_dtype = (enum attn_dtype)rng_below(r, 3);
    }
    if (!w->no_holes && coin(r, 4) && kv_len(s, 0) > 256) {
        s->hole_from = 256 * (int32_t)rng_below(r, (uint32_t)kv_len(s, 0) / 256);
        s->hole_to = s->hole_from + 256;
    }
}

static void random_rows(struct rng *r, const struct scene_wish *w, struct scene *s)
{
    size_t t = attn_dtype_bytes(s->dtype), n = (size_t)s->n_tokens;
    size_t q = (size_t)s->attrs.num_heads * (size_t)s->head_size;
    size_t kv = (size_t)s->kv_heads * (size_t)s->head_size;
    s->query = new_bytes(n * q * t);
    s->key = new_bytes(n * kv * t);
    s->value = new_bytes(n * kv * t);
    fill_floats(r, s->dtype, s->query, n * q, 1, 0);
    fill_floats(r, s->dtype, s->key, n * kv, 1, 0);
    fill_floats(r, s->dtype, s->value, n * kv, 1, 0);
    s->k_row = kv * attn_dtype_bytes(s->cache);
    s->v_row = s->latent ? 0 : s->k_row;
    for (int32_t b = 0; b < s->n_seqs; b++) {
        size_t rows = (size_t)kv_len(s, b);
        s->k_hist[b] = new_bytes(rows * s->k_row);
        s->v_hist[b] = new_bytes(rows * s->v_row);
        fill_cache(r, s->cache, s->k_hist[b], rows * kv);
        if (s->v_row > 0)
            fill_cache(r, s->cache, s->v_hist[b], rows * kv);
    }
    if (!w->plain && !w->no_suppress && coin(r, 4)) {
        s->suppress = new_bytes(n * sizeof *s->suppress);
        for (size_t i = 0; i < n; i++)
            s->suppress[i] = coin(r, 3);
    }
    if (!w->plain && !w->no_positions && coin(r, 5)) {
        s->positions = new_bytes(n * sizeof *s->positions);
        for (int32_t b = 0, i = 0; b < s->n_seqs; b++)
            for (int32_t j = 0; j < s->q_len[b]; j++, i++)
                s->positions[i] = (int32_t)rng_below(r, (uint32_t)kv_len(s, b) + 4);
    }
}

struct scene *scene_random(struct rng *r, const struct scene_wish *wish)
{
    struct scene *s = new_bytes(sizeof *s);
    random_shape(r, wish, s);
    random_quant(r, wish, s);
    random_features(r, wish, s);
    random_rows(r, wish, s);
    return s;
}

void scene_free(struct scene *s)
{
    if (s == NULL)
        return;
    for (int32_t b = 0; b < s->n_seqs; b++) {
        free(s->k_hist[b]);
        free(s->v_hist[b]);
    }
    free(s->query);
    free(s->key);
    free(s->value);
    free(s->suppress);
    free(s->positions);
    free(s->cos_.data);
    free(s->sin_.data);
    free(s->sink.data);
    free(s->q_norm.data);
    free(s->k_norm.data);
    free(s->k_scale.data);
    free(s->v_scale.data);
    free(s->bias.data);
    free(s);
}

/* ---- cutting ------------------------------------------------------------------------ */

static void *copy_bytes(const void *p, size_t n)
{
    void *to = new_bytes(n);
    if (p != NULL && n > 0)
        memcpy(to, p, n);
    return to;
}

static void copy_tensor(struct attn_tensor *t)
{
    if (attn_present(t))
        t->data = copy_bytes(t->data, built_bytes(t));
}

/* Rows [from, from + n) of the queries' bias of sequence b. */
static struct attn_tensor cut_bias(const struct attn_tensor *t, int32_t b, int64_t from)
{
    struct attn_tensor c = *t;
    size_t e = attn_dtype_bytes(t->dtype), row = (size_t)t->shape[3] * e;
    int64_t seq = t->shape[0] == 1 ? 0 : b;
    if (!attn_present(t))
        return c;
    c.shape[0] = 1;
    c.shape[2] = t->shape[2] - from;
    c.data = new_bytes(built_bytes(&c));
    for (int64_t h = 0; h < t->shape[1]; h++)
        memcpy((char *)c.data + (size_t)(h * c.shape[2]) * row,
               (const char *)t->data + (size_t)((seq * t->shape[1] + h) * t->shape[2] + from) * row,
               (size_t)c.shape[2] * row);
    return c;
}

struct scene *scene_cut(const struct scene *s, int32_t b, int32_t from, int32_t n)
{
    struct scene *c = copy_bytes(s, sizeof *s);
    size_t t = attn_dtype_bytes(s->dtype), first = (size_t)(scene_first_token(s, b) + from);
    size_t q = (size_t)s->attrs.num_heads * (size_t)s->head_size * t;
    size_t kv = (size_t)s->kv_heads * (size_t)s->head_size * t, rows;
    memset(c->k_hist, 0, sizeof c->k_hist);
    memset(c->v_hist, 0, sizeof c->v_hist);
    c->n_seqs = 1;
    c->n_tokens = c->q_len[0] = n;
    c->n_padding = 0;
    c->past[0] = s->past[b] + from;
    if (b != 0)
        c->hole_from = c->hole_to = 0;
    rows = (size_t)kv_len(c, 0);
    c->k_hist[0] = copy_bytes(s->k_hist[b], rows * s->k_row);
    c->v_hist[0] = copy_bytes(s->v_hist[b], rows * s->v_row);
    c->query = copy_bytes(s->query + first * q, (size_t)n * q);
    c->key = copy_bytes(s->key + first * kv, (size_t)n * kv);
    c->value = copy_bytes(s->value + first * kv, (size_t)n * kv);
    if (s->suppress != NULL)
        c->suppress = copy_bytes(s->suppress + first, (size_t)n * sizeof *s->suppress);
    if (s->positions != NULL)
        c->positions = copy_bytes(s->positions + first, (size_t)n * sizeof *s->positions);
    copy_tensor(&c->cos_);
    copy_tensor(&c->sin_);
    copy_tensor(&c->sink);
    copy_tensor(&c->q_norm);
    copy_tensor(&c->k_norm);
    copy_tensor(&c->k_scale);
    copy_tensor(&c->v_scale);
    c->bias = cut_bias(&s->bias, b, from);
    return c;
}

/* ---- layout ---------------------------------------------------------------------------- */

static int64_t blocks_of(const struct scene *s, int32_t b, int32_t block_size)
{
    return (kv_len(s, b) + block_size - 1) / block_size;
}

static bool in_hole(const struct scene *s, int32_t b, int64_t pos)
{
    return b == 0 && pos >= s->hole_from && pos < s->hole_to;
}

static struct attn_tensor own(struct built *out, int slot, struct attn_tensor t, const void *from)
{
    if (!attn_present(&t))
        return t;
    t.data = out->owned[slot] =
        from != NULL ? copy_bytes(from, built_bytes(&t)) : new_bytes(built_bytes(&t));
    return t;
}

static void build_table(const struct scene *s, const struct layout *l, struct built *out)
{
    struct rng r = { l->seed };
    int64_t n = l->spare, cols = 1;
    int32_t *order, *table;
    for (int32_t b = 0; b < s->n_seqs; b++) {
        int64_t k = blocks_of(s, b, l->block_size);
        n += k;
        cols = k > cols ? k : cols;
    }
    cols += (int64_t)(l->seed % 3);
    out->args.in[ATTN_KEY_CACHE] =
        attn_view(NULL, s->cache, 4, n, l->block_size, s->kv_heads, s->head_size);
    order = new_bytes((size_t)n * sizeof *order);
    for (int32_t i = 0; i < n; i++) {
        int32_t j = (int32_t)rng_below(&r, (uint32_t)i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    out->args.in[ATTN_BLOCK_TABLE] =
        own(out, ATTN_BLOCK_TABLE, attn_view(NULL, ATTN_I32, 2, s->n_seqs, cols, 0, 0), NULL);
    table = out->args.in[ATTN_BLOCK_TABLE].data;
    for (int64_t i = 0; i < s->n_seqs * cols; i++)
        table[i] = -1;
    n = 0;
    for (int32_t b = 0; b < s->n_seqs; b++)
        for (int64_t i = 0; i < blocks_of(s, b, l->block_size); i++, n++)
            table[b * cols + i] = in_hole(s, b, i * l->block_size) ? -1 : order[n];
    free(order);
}

int64_t built_slot(const struct built *b, int32_t seq, int64_t pos)
{
    const struct attn_tensor *t = &b->args.in[ATTN_BLOCK_TABLE];
    int64_t bs = b->args.in[ATTN_KEY_CACHE].shape[1];
    int32_t block = ((const int32_t *)t->data)[seq * t->shape[1] + pos / bs];
    return block < 0 ? -1 : block * bs + pos % bs;
}

/* History below past, and rows that a suppressed token leaves as they are; all
 * else is poison. */
static void build_caches(const struct scene *s, const struct layout *l, struct built *out)
{
    struct attn_tensor *k = &out->args.in[ATTN_KEY_CACHE], *v = &out->args.in[ATTN_VALUE_CACHE];
    size_t bytes = built_bytes(k);
    *k = own(out, ATTN_KEY_CACHE, *k, NULL);
    memset(k->data, l->poison, bytes);
    if (!s->latent) {
        *v = own(out, ATTN_VALUE_CACHE, *k, NULL);
        memset(v->data, l->poison, bytes);
    }
    for (int32_t b = 0; b < s->n_seqs; b++)
        for (int32_t pos = 0; pos < kv_len(s, b); pos++) {
            int64_t slot = built_slot(out, b, pos), t = scene_first_token(s, b) + pos - s->past[b];
            bool kept = pos < s->past[b] || (s->suppress != NULL && s->suppress[t]);
            if (slot < 0 || !kept)
                continue;
            memcpy((char *)k->data + (size_t)slot * s->k_row, s->k_hist[b] + (size_t)pos * s->k_row,
                   s->k_row);
            if (s->v_row > 0)
                memcpy((char *)v->data + (size_t)slot * s->v_row,
                       s->v_hist[b] + (size_t)pos * s->v_row, s->v_row);
        }
}

static void build_rows(const struct scene *s, struct built *out)
{
    struct attn_tensor *in = out->args.in;
    int64_t n = s->n_tokens, kv = (int64_t)s->kv_heads * s->head_size;
    int64_t q = (int64_t)s->attrs.num_heads * s->head_size;
    size_t t = attn_dtype_bytes(s->dtype);
    if (!s->packed) {
        in[ATTN_QUERY] = own(out, ATTN_QUERY, attn_view(NULL, s->dtype, 2, n, q, 0, 0), s->query);
        in[ATTN_KEY] = own(out, ATTN_KEY, attn_view(NULL, s->dtype, 2, n, kv, 0, 0), s->key);
        if (!s->latent)
            in[ATTN_VALUE] =
                own(out, ATTN_VALUE, attn_view(NULL, s->dtype, 2, n, kv, 0, 0), s->value);
        return;
    }
    in[ATTN_QUERY] = own(out, ATTN_QUERY, attn_view(NULL, s->dtype, 2, n, q + 2 * kv, 0, 0), NULL);
    for (int64_t i = 0; i < n; i++) {
        char *row = (char *)in[ATTN_QUERY].data + (size_t)(i * (q + 2 * kv)) * t;
        memcpy(row, s->query + (size_t)(i * q) * t, (size_t)q * t);
        memcpy(row + (size_t)q * t, s->key + (size_t)(i * kv) * t, (size_t)kv * t);
        memcpy(row + (size_t)(q + kv) * t, s->value + (size_t)(i * kv) * t, (size_t)kv * t);
    }
}

static void build_lengths(const struct scene *s, const struct layout *l, struct built *out)
{
    struct attn_tensor *in = out->args.in;
    int32_t *cu, *past, *slots, most = 0, longest = 0;
    in[ATTN_CU_SEQLENS] =
        own(out, ATTN_CU_SEQLENS, attn_view(NULL, ATTN_I32, 1, s->n_seqs + 1, 0, 0, 0), NULL);
    in[ATTN_PAST_SEQLENS] =
        own(out, ATTN_PAST_SEQLENS, attn_view(NULL, ATTN_I32, 1, s->n_seqs, 0, 0, 0), NULL);
    cu = in[ATTN_CU_SEQLENS].data;
    past = in[ATTN_PAST_SEQLENS].data;
    for (int32_t b = 0; b < s->n_seqs; b++) {
        cu[b + 1] = cu[b] + s->q_len[b];
        past[b] = s->past[b];
        most = s->q_len[b] > most ? s->q_len[b] : most;
        longest = kv_len(s, b) > longest ? kv_len(s, b) : longest;
    }
    out->meta[0] = l->bounds == 2 ? 3 * most + 5 : most;
    out->meta[1] = l->bounds == 2 ? 2 * longest + 777 : longest;
    if (l->bounds != 0)
        in[ATTN_METADATA] = attn_view(out->meta, ATTN_I32, 1, 2, 0, 0, 0);
    if (!l->explicit_slots && s->suppress == NULL)
        return;
    in[ATTN_SLOT_MAPPING] =
        own(out, ATTN_SLOT_MAPPING, attn_view(NULL, ATTN_I32, 1, s->n_tokens, 0, 0, 0), NULL);
    slots = in[ATTN_SLOT_MAPPING].data;
    for (int32_t i = 0; i < s->n_tokens; i++)
        slots[i] = -1;
    for (int32_t b = 0, i = 0; b < s->n_seqs; b++)
        for (int32_t j = 0; j < s->q_len[b]; j++, i++)
            if (s->suppress == NULL || !s->suppress[i])
                slots[i] = (int32_t)built_slot(out, b, s->past[b] + j);
}

void scene_build(const struct scene *s, const struct layout *l, struct built *out)
{
    struct attn_tensor *in = out->args.in;
    int64_t longest = 0;
    memset(out, 0, sizeof *out);
    out->attrs = s->attrs;
    build_table(s, l, out);
    build_caches(s, l, out);
    build_rows(s, out);
    build_lengths(s, l, out);
    in[ATTN_COS_CACHE] = own(out, ATTN_COS_CACHE, s->cos_, s->cos_.data);
    in[ATTN_SIN_CACHE] = own(out, ATTN_SIN_CACHE, s->sin_, s->sin_.data);
    in[ATTN_HEAD_SINK] = own(out, ATTN_HEAD_SINK, s->sink, s->sink.data);
    in[ATTN_Q_NORM_WEIGHT] = own(out, ATTN_Q_NORM_WEIGHT, s->q_norm, s->q_norm.data);
    in[ATTN_K_NORM_WEIGHT] = own(out, ATTN_K_NORM_WEIGHT, s->k_norm, s->k_norm.data);
    in[ATTN_K_SCALE] = own(out, ATTN_K_SCALE, s->k_scale, s->k_scale.data);
    in[ATTN_V_SCALE] = own(out, ATTN_V_SCALE, s->v_scale, s->v_scale.data);
    in[ATTN_BIAS] = own(out, ATTN_BIAS, s->bias, s->bias.data);
    if (s->positions != NULL)
        in[ATTN_QUERY_POSITIONS] =
            own(out, ATTN_QUERY_POSITIONS, attn_view(NULL, ATTN_I32, 1, s->n_tokens, 0, 0, 0),
                s->positions);
    out->args.out[ATTN_OUT] = own(out, ATTN_INPUTS + ATTN_OUT,
                                  attn_view(NULL, s->dtype, 2, s->n_tokens,
                                            (int64_t)s->attrs.num_heads * s->v_head_size, 0, 0),
                                  NULL);
    memset(out->args.out[ATTN_OUT].data, 0xFF, built_bytes(&out->args.out[ATTN_OUT]));
    for (int32_t b = 0; b < s->n_seqs; b++)
        longest = kv_len(s, b) > longest ? kv_len(s, b) : longest;
    if (s->attrs.qk_output != 0)
        out->args.out[ATTN_QK] = own(
            out, ATTN_INPUTS + ATTN_QK,
            attn_view(NULL, s->qk_dtype, 3, s->attrs.num_heads, s->n_tokens, longest + 3, 0), NULL);
}

void built_free(struct built *b)
{
    for (size_t i = 0; i < sizeof b->owned / sizeof *b->owned; i++)
        free(b->owned[i]);
    memset(b, 0, sizeof *b);
}

void built_run(struct attn *a, struct built *b)
{
    struct attn_plan plan;
    struct err e = { 0 };
    void *workspace;
    assert_ok(attn_plan(a, &b->attrs, &b->args, &plan, &e), e);
    workspace = malloc(plan.workspace_bytes + 1);
    memset(workspace, 0xFF, plan.workspace_bytes);
    assert_ok(attn_run(a, &plan, &b->args, workspace, NULL, &e), e);
    free(workspace);
}

/* ---- reading back ----------------------------------------------------------------------- */

void scene_absorb(struct scene *s, const struct built *built, int32_t b)
{
    for (int32_t pos = 0; pos < kv_len(s, b); pos++) {
        int64_t slot = built_slot(built, b, pos);
        if (slot < 0)
            continue;
        memcpy(s->k_hist[b] + (size_t)pos * s->k_row,
               (const char *)built->args.in[ATTN_KEY_CACHE].data + (size_t)slot * s->k_row,
               s->k_row);
        if (s->v_row > 0)
            memcpy(s->v_hist[b] + (size_t)pos * s->v_row,
                   (const char *)built->args.in[ATTN_VALUE_CACHE].data + (size_t)slot * s->v_row,
                   s->v_row);
    }
}

bool built_same_rows(const struct scene *s, const struct built *x, const struct built *y)
{
    for (int32_t b = 0; b < s->n_seqs; b++)
        for (int32_t pos = 0; pos < kv_len(s, b); pos++) {
            int64_t i = built_slot(x, b, pos), j = built_slot(y, b, pos);
            if ((i < 0) != (j < 0))
                return false;
            if (i < 0)
                continue;
            if (memcmp((const char *)x->args.in[ATTN_KEY_CACHE].data + (size_t)i * s->k_row,
                       (const char *)y->args.in[ATTN_KEY_CACHE].data + (size_t)j * s->k_row,
                       s->k_row) != 0)
                return false;
            if (s->v_row > 0 &&
                memcmp((const char *)x->args.in[ATTN_VALUE_CACHE].data + (size_t)i * s->v_row,
                       (const char *)y->args.in[ATTN_VALUE_CACHE].data + (size_t)j * s->v_row,
                       s->v_row) != 0)
                return false;
        }
    return true;
}
