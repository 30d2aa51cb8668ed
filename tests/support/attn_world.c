/* attn_world.c: see attn_world.h. */
#include "support/attn_world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/feature_math.h"
#include "proto/number/formats.h"

static void *must(void *p)
{
    if (p == NULL) {
        fprintf(stderr, "attn_world: out of memory\n");
        abort();
    }
    return p;
}

int64_t world_elements(const struct attn_tensor *t)
{
    int64_t n = t->rank > 0;
    for (int i = 0; i < t->rank; i++)
        n *= t->shape[i];
    return n;
}

size_t world_bytes(const struct attn_tensor *t)
{
    return (size_t)world_elements(t) * attn_dtype_bytes(t->dtype);
}

float world_value(const struct attn_tensor *t, int64_t i)
{
    switch (t->dtype) {
    case ATTN_F16:
        return f16_to_float(((const uint16_t *)t->data)[i]);
    case ATTN_BF16:
        return bf16_to_float(((const uint16_t *)t->data)[i]);
    case ATTN_E4M3:
        return e4m3_to_float(((const uint8_t *)t->data)[i]);
    case ATTN_INT8:
        return (float)((const int8_t *)t->data)[i];
    case ATTN_I32:
        return (float)((const int32_t *)t->data)[i];
    default:
        return ((const float *)t->data)[i];
    }
}

static void put(struct attn_tensor *t, int64_t i, float x)
{
    switch (t->dtype) {
    case ATTN_F16:
        ((uint16_t *)t->data)[i] = float_to_f16(x);
        break;
    case ATTN_BF16:
        ((uint16_t *)t->data)[i] = float_to_bf16(x);
        break;
    case ATTN_E4M3:
        ((uint8_t *)t->data)[i] = float_to_e4m3(x * 8.0f);
        break;
    case ATTN_INT8:
        ((int8_t *)t->data)[i] = quantize_int8(x, 1.0f / 64.0f);
        break;
    default:
        ((float *)t->data)[i] = x;
        break;
    }
}

/* ---- shapes --------------------------------------------------------------- */

static bool chance(struct attn_world *w, uint32_t percent)
{
    return rng_below(&w->rng, 100) < percent;
}

static int32_t pick(struct attn_world *w, const int32_t *from, uint32_t n)
{
    return from[rng_below(&w->rng, n)];
}
#define PICK(w, ...)                                                                               \
    pick(w, (const int32_t[]){ __VA_ARGS__ }, sizeof((const int32_t[]){ __VA_ARGS__ }) / 4)

static void make(struct attn_tensor *t, enum attn_dtype d, int32_t rank, int64_t d0, int64_t d1,
                 int64_t d2, int64_t d3)
{
    *t = attn_view(NULL, d, rank, d0, d1, d2, d3);
    size_t bytes = (world_bytes(t) + 64) & ~(size_t)63;
    t->data = must(aligned_alloc(64, bytes));
    memset(t->data, 0, bytes);
}

static void make_caches(struct attn_world *w, enum attn_dtype dtype)
{
    struct attn_tensor *in = w->args.in;
    int32_t kvh = w->attrs.kv_num_heads;
    bool latent = w->attrs.kv_cache_layout == ATTN_LATENT;
    enum attn_dtype cache = dtype;
    if (chance(w, 50)) {
        cache = chance(w, 50) ? ATTN_E4M3 : ATTN_INT8;
        w->attrs.k_quant_type = chance(w, 50) ? ATTN_PER_TENSOR : ATTN_PER_CHANNEL;
        w->attrs.v_quant_type = latent          ? ATTN_QUANT_NONE
                                : chance(w, 50) ? ATTN_PER_TENSOR
                                                : ATTN_PER_CHANNEL;
    }
    make(&in[ATTN_KEY_CACHE], cache, 4, w->num_blocks, w->block_size, kvh, w->head_size);
    if (!latent)
        make(&in[ATTN_VALUE_CACHE], cache, 4, w->num_blocks, w->block_size, kvh, w->head_size);
    if (w->attrs.k_quant_type == ATTN_PER_TENSOR)
        make(&in[ATTN_K_SCALE], ATTN_F32, 1, 1, 0, 0, 0);
    if (w->attrs.k_quant_type == ATTN_PER_CHANNEL)
        make(&in[ATTN_K_SCALE], ATTN_F32, 3, kvh, 1, w->head_size, 0);
    if (w->attrs.v_quant_type == ATTN_PER_TENSOR)
        make(&in[ATTN_V_SCALE], ATTN_F32, 1, 1, 0, 0, 0);
    if (w->attrs.v_quant_type == ATTN_PER_CHANNEL)
        make(&in[ATTN_V_SCALE], ATTN_F32, 3, kvh, 1, w->head_size, 0);
}

static void make_options(struct attn_world *w, enum attn_dtype dtype)
{
    struct attn_tensor *in = w->args.in;
    struct attn_attrs *a = &w->attrs;
    bool latent = a->kv_cache_layout == ATTN_LATENT;
    int32_t d = w->head_size;
    if (chance(w, 40))
        a->local_window_size = PICK(w, 1, 5, 16, 33, 100, 256, 300, 5000);
    if (chance(w, 25))
        a->softcap = 2.0f;
    if (chance(w, 50)) {
        int32_t offset = d >= 32 && chance(w, 30) ? 16 : 0;
        int32_t dim = chance(w, 50) ? d - offset : 8;
        a->do_rotary = 1;
        a->rotary_offset = offset;
        a->rotary_interleaved = chance(w, 50);
        make(&in[ATTN_COS_CACHE], dtype, 2, (int64_t)w->cols * w->block_size + 7, dim / 2, 0, 0);
        make(&in[ATTN_SIN_CACHE], dtype, 2, (int64_t)w->cols * w->block_size + 7, dim / 2, 0, 0);
    }
    if (chance(w, 50))
        make(&in[ATTN_SLOT_MAPPING], ATTN_I32, 1, w->tokens, 0, 0, 0);
    if (chance(w, 25))
        make(&in[ATTN_QUERY_POSITIONS], ATTN_I32, 1, w->tokens, 0, 0, 0);
    if (!latent && chance(w, 40))
        make(&in[ATTN_HEAD_SINK], dtype, 1, a->num_heads, 0, 0, 0);
    if (!latent && chance(w, 30)) {
        make(&in[ATTN_Q_NORM_WEIGHT], dtype, 1, d, 0, 0, 0);
        make(&in[ATTN_K_NORM_WEIGHT], dtype, 1, d, 0, 0, 0);
    }
    if (!w->wish.plain && chance(w, 15))
        make(&in[ATTN_BIAS], dtype, 4, chance(w, 50) ? 1 : w->batch,
             chance(w, 50) ? 1 : a->num_heads, w->tokens, (int64_t)w->cols * w->block_size);
    if (!w->wish.plain && chance(w, 15)) {
        a->qk_output = chance(w, 50) ? ATTN_QK_SCORES : ATTN_QK_PROBABILITIES;
        make(&w->args.out[ATTN_QK], ATTN_F32, 3, a->num_heads, w->tokens,
             (int64_t)w->cols * w->block_size, 0);
    }
}

static void choose_shape(struct attn_world *w)
{
    bool latent = chance(w, 20);
    int32_t kvh = latent ? 1 : PICK(w, 1, 2, 3, 8), group = PICK(w, 1, 2, 3, 4, 7, 8, 16);
    int32_t capacity = w->wish.max_kv > 0 ? w->wish.max_kv : PICK(w, 64, 300, 700, 3000);
    w->head_size = chance(w, 70) ? PICK(w, 64, 128, 256) : PICK(w, 8, 40, 80, 96, 112, 192);
    if (latent && chance(w, 50)) {
        w->head_size = 576;
        group = PICK(w, 4, 16, 40, 128);
    }
    w->attrs = attn_attrs_default(kvh * group, kvh);
    w->batch =
        w->wish.decode ? (int32_t)rng_below(&w->rng, 20) + 1 : (int32_t)rng_below(&w->rng, 6) + 1;
    w->tokens =
        w->wish.decode || w->wish.one_each ? w->batch : w->batch + (int32_t)rng_below(&w->rng, 200);
    w->block_size = PICK(w, 16, 16, 32, 64, 128, 256);
    w->cols = (capacity + w->block_size - 1) / w->block_size;
    w->num_blocks = w->batch * w->cols + w->tokens / w->block_size + 8;
    if (latent) {
        w->attrs.kv_cache_layout = ATTN_LATENT;
        w->attrs.v_head_size = w->head_size == 576 ? 512 : PICK(w, 0, 8, 0);
        w->attrs.scale = 1.0f / sqrtf((float)w->head_size);
    }
}

void world_create(struct attn_world *w, uint64_t seed, struct world_wish wish)
{
    memset(w, 0, sizeof *w);
    w->rng.state = seed;
    w->wish = wish;
    choose_shape(w);
    enum attn_dtype dtype = chance(w, 50) ? ATTN_BF16 : ATTN_F16;
    struct attn_tensor *in = w->args.in;
    int32_t h = w->attrs.num_heads, kvh = w->attrs.kv_num_heads, d = w->head_size;
    bool latent = w->attrs.kv_cache_layout == ATTN_LATENT;
    int32_t dv = w->attrs.v_head_size != 0 ? w->attrs.v_head_size : d;
    if (!latent && chance(w, 30)) {
        make(&in[ATTN_QUERY], dtype, 2, w->tokens, (int64_t)(h + 2 * kvh) * d, 0, 0);
    } else {
        make(&in[ATTN_QUERY], dtype, 2, w->tokens, (int64_t)h * d, 0, 0);
        make(&in[ATTN_KEY], dtype, 2, w->tokens, (int64_t)kvh * d, 0, 0);
        if (!latent)
            make(&in[ATTN_VALUE], dtype, 2, w->tokens, (int64_t)kvh * d, 0, 0);
    }
    make_caches(w, dtype);
    make(&in[ATTN_CU_SEQLENS], ATTN_I32, 1, w->batch + 1, 0, 0, 0);
    make(&in[ATTN_PAST_SEQLENS], ATTN_I32, 1, w->batch, 0, 0, 0);
    make(&in[ATTN_BLOCK_TABLE], ATTN_I32, 2, w->batch, w->cols, 0, 0);
    make(&w->args.out[ATTN_OUT], dtype, 2, w->tokens, (int64_t)h * dv, 0, 0);
    make_options(w, dtype);
    w->new_tokens = must(calloc((size_t)w->batch, sizeof *w->new_tokens));
}

void world_destroy(struct attn_world *w)
{
    for (int i = 0; i < ATTN_INPUTS; i++)
        free(w->args.in[i].data);
    free(w->args.out[ATTN_OUT].data);
    free(w->args.out[ATTN_QK].data);
    free(w->new_tokens);
    memset(w, 0, sizeof *w);
}

/* ---- steps ------------------------------------------------------------------ */

static void choose_lengths(struct attn_world *w, enum world_lengths how)
{
    int32_t *past = w->args.in[ATTN_PAST_SEQLENS].data;
    int32_t capacity = w->cols * w->block_size, left = w->tokens;
    if (how == WORLD_PERMUTED) {
        for (int32_t i = w->batch - 1; i > 0; i--) {
            int32_t j = (int32_t)rng_below(&w->rng, (uint32_t)i + 1);
            int32_t p = past[i], n = w->new_tokens[i];
            past[i] = past[j];
            w->new_tokens[i] = w->new_tokens[j];
            past[j] = p;
            w->new_tokens[j] = n;
        }
        return;
    }
    for (int32_t i = 0; i < w->batch; i++) {
        int32_t n = w->wish.one_each || chance(w, 70) ? 1 : (int32_t)rng_below(&w->rng, 120);
        n = how == WORLD_ZERO ? 0 : n < left ? n : left;
        n = chance(w, 8) ? 0 : n;
        n = n < capacity ? n : capacity;
        int32_t room = capacity - n;
        left -= n;
        w->new_tokens[i] = n;
        if (how == WORLD_GROWN)
            past[i] = room - (int32_t)rng_below(&w->rng, (uint32_t)(room < 20 ? room + 1 : 20));
        else if (how == WORLD_SHRUNK)
            past[i] = (int32_t)rng_below(&w->rng, (uint32_t)(room < 20 ? room + 1 : 20));
        else
            past[i] = (int32_t)rng_below(&w->rng, (uint32_t)room + 1);
    }
}

static void fill_data(struct attn_world *w)
{
    for (int i = 0; i < ATTN_INPUTS; i++) {
        struct attn_tensor *t = &w->args.in[i];
        bool ours = i == ATTN_KEY_CACHE || i == ATTN_VALUE_CACHE || i == ATTN_METADATA;
        if (!attn_present(t) || t->dtype == ATTN_I32 || ours)
            continue;
        int64_t n = world_elements(t);
        for (int64_t k = 0; k < n; k++) {
            float x = (float)(rng_unit(&w->rng) * 2.0 - 1.0);
            if (i == ATTN_K_SCALE || i == ATTN_V_SCALE)
                x = w->args.in[ATTN_KEY_CACHE].dtype == ATTN_INT8 ? (x + 2.0f) / 120.0f
                                                                  : (x + 2.0f) / 16.0f;
            put(t, k, x);
        }
    }
    memset(w->args.in[ATTN_KEY_CACHE].data, 0xFF, world_bytes(&w->args.in[ATTN_KEY_CACHE]));
    if (attn_present(&w->args.in[ATTN_VALUE_CACHE]))
        memset(w->args.in[ATTN_VALUE_CACHE].data, 0xFF, world_bytes(&w->args.in[ATTN_VALUE_CACHE]));
}

static void fill_slot(struct attn_world *w, int64_t slot)
{
    for (int c = ATTN_KEY_CACHE; c <= ATTN_VALUE_CACHE; c++) {
        struct attn_tensor *t = &w->args.in[c];
        int64_t row = (int64_t)w->attrs.kv_num_heads * w->head_size;
        for (int64_t i = 0; attn_present(t) && i < row; i++)
            put(t, slot * row + i, (float)(rng_unit(&w->rng) * 2.0 - 1.0));
    }
}

/* Blocks in shuffled order for what may be read; stale ids elsewhere. */
static void map_blocks(struct attn_world *w, int32_t *order)
{
    int32_t *table = w->args.in[ATTN_BLOCK_TABLE].data;
    const int32_t *past = w->args.in[ATTN_PAST_SEQLENS].data;
    bool positions = attn_present(&w->args.in[ATTN_QUERY_POSITIONS]);
    int32_t next = 0, bs = w->block_size, window = w->attrs.local_window_size;
    for (int32_t b = 0; b < w->batch; b++) {
        int32_t kv = past[b] + w->new_tokens[b];
        int64_t lowest = positions ? 0 : attn_first_key(past[b], window);
        for (int32_t i = 0; i < w->cols; i++) {
            int32_t *entry = &table[b * w->cols + i];
            bool read =
                w->new_tokens[b] > 0 && (int64_t)i * bs < kv && (int64_t)(i + 1) * bs > lowest;
            if (!read) { /* unmapped, somebody else's, or nonsense */
                *entry = PICK(w, -1, 0, 1, INT32_MAX, -7);
                continue;
            }
            if (chance(w, 4)) {
                *entry = -1;
                continue;
            }
            *entry = order[next++];
            for (int32_t p = i * bs; p < (i + 1) * bs && p < kv; p++)
                if (p >= lowest)
                    fill_slot(w, (int64_t)*entry * bs + p % bs);
        }
    }
    /* What is left of the pool, for slots elsewhere. */
    for (int32_t i = 0; next + i < w->num_blocks; i++)
        order[i] = order[next + i];
}

static void choose_slots(struct attn_world *w, const int32_t *spare)
{
    const int32_t *cu = w->args.in[ATTN_CU_SEQLENS].data,
                  *past = w->args.in[ATTN_PAST_SEQLENS].data;
    const int32_t *table = w->args.in[ATTN_BLOCK_TABLE].data;
    int32_t *slots = w->args.in[ATTN_SLOT_MAPPING].data, n_spare = 0;
    if (slots == NULL)
        return;
    for (int32_t t = 0; t < w->tokens; t++)
        slots[t] = -1;
    for (int32_t b = 0; b < w->batch; b++) {
        for (int32_t t = cu[b]; t < cu[b + 1]; t++) {
            int32_t pos = past[b] + t - cu[b];
            int64_t slot = attn_slot(table + b * w->cols, w->cols, pos,
                                     __builtin_ctz((unsigned)w->block_size), w->num_blocks);
            if (chance(w, 5))
                slot = (int64_t)spare[n_spare / w->block_size] * w->block_size +
                       n_spare % w->block_size,
                n_spare++;
            slots[t] = chance(w, 5) ? -1 : (int32_t)slot;
        }
    }
}

void world_step(struct attn_world *w, enum world_lengths how)
{
    int32_t *cu = w->args.in[ATTN_CU_SEQLENS].data;
    const int32_t *past = w->args.in[ATTN_PAST_SEQLENS].data;
    int32_t *positions = w->args.in[ATTN_QUERY_POSITIONS].data;
    int32_t *order = must(calloc((size_t)w->num_blocks, sizeof *order));
    for (int32_t i = 0; i < w->num_blocks; i++) {
        int32_t j = (int32_t)rng_below(&w->rng, (uint32_t)i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    choose_lengths(w, how);
    w->longest_kv = w->longest_query = 0;
    for (int32_t b = 0; b < w->batch; b++) {
        int64_t kv = past[b] + w->new_tokens[b];
        cu[b + 1] = cu[b] + w->new_tokens[b];
        w->longest_kv = kv > w->longest_kv ? kv : w->longest_kv;
        if (w->new_tokens[b] > w->longest_query)
            w->longest_query = w->new_tokens[b];
    }
    fill_data(w);
    map_blocks(w, order);
    choose_slots(w, order);
    for (int32_t t = 0; positions != NULL && t < w->tokens; t++)
        positions[t] = (int32_t)rng_below(&w->rng, (uint32_t)(w->cols * w->block_size));
    free(order);
}

void world_describe(const struct attn_world *w, char *buf, size_t n)
{
    const struct attn_tensor *in = w->args.in;
    const struct attn_attrs *a = &w->attrs;
    snprintf(buf, n,
             "B %d T %d heads %d/%d x %d (v %d) %s cache %s quant %d/%d block %d cols %d window %d "
             "softcap %g rotary %d@%d%s%s%s%s%s%s%s qk %d%s",
             w->batch, w->tokens, a->num_heads, a->kv_num_heads, w->head_size, a->v_head_size,
             attn_dtype_name(in[ATTN_QUERY].dtype), attn_dtype_name(in[ATTN_KEY_CACHE].dtype),
             a->k_quant_type, a->v_quant_type, w->block_size, w->cols, a->local_window_size,
             (double)a->softcap, a->do_rotary, a->rotary_offset,
             a->rotary_interleaved ? " interleaved" : "",
             attn_present(&in[ATTN_KEY]) ? "" : " packed",
             attn_present(&in[ATTN_SLOT_MAPPING]) ? " slots" : "",
             attn_present(&in[ATTN_QUERY_POSITIONS]) ? " positions" : "",
             attn_present(&in[ATTN_HEAD_SINK]) ? " sink" : "",
             attn_present(&in[ATTN_Q_NORM_WEIGHT]) ? " norm" : "",
             attn_present(&in[ATTN_BIAS]) ? " bias" : "", a->qk_output,
             a->kv_cache_layout == ATTN_LATENT ? " latent" : "");
}
