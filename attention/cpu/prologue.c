/* prologue.c: norm, rotation, quantisation and the store into the cache.
 *
 * Works on the job's memory; the pool's threads, one token each at a time.  All
 * in float or better: K is rounded once, at the store. */
#include <math.h>

#include "attention/cpu/job.h"

/* Batches of at most this many tokens are stored by the caller alone: sooner
 * done than threads start. */
enum { STORE_ALONE = 8 };

static float element(enum attn_dtype d, const void *p, int64_t i)
{
    if (d == ATTN_F32)
        return ((const float *)p)[i];
    return d == ATTN_BF16 ? bf16_to_float(((const uint16_t *)p)[i])
                          : f16_to_float(((const uint16_t *)p)[i]);
}

/* 1 / sqrt(mean(x^2) + epsilon) */
static double norm_factor(const struct attn_cpu_job *j, const float *x)
{
    double lane[8] = { 0 }, sum = 0;
    for (int32_t i = 0; i < j->k_width; i += 8)
        for (int l = 0; l < 8; l++)
            lane[l] += (double)x[i + l] * x[i + l];
    for (int l = 0; l < 8; l++)
        sum += lane[l];
    return 1 / sqrt(sum / j->k_width + (double)j->epsilon);
}

static double normed(const struct attn_cpu_job *j, const float *x, const void *weight,
                     double factor, int32_t i)
{
    return weight == NULL ? (double)x[i] : x[i] * factor * (double)element(j->dtype, weight, i);
}

/* Row p of cos and sin; p outside the table reads its nearest row. */
static void rotate(const struct attn_cpu_job *j, float *x, const void *weight, double factor,
                   int64_t p)
{
    const struct attn_cpu_rotary *r = &j->rotary;
    int64_t at = (p < 0 ? 0 : p >= r->n_rows ? r->n_rows - 1 : p) * (r->dim / 2);
    for (int32_t i = 0; i < r->dim / 2; i++) {
        int32_t ia, ib;
        double a, b;
        attn_rope_channels(i, r->dim, r->interleaved, &ia, &ib);
        a = normed(j, x, weight, factor, r->offset + ia);
        b = normed(j, x, weight, factor, r->offset + ib);
        attn_rope_pair_exact(&a, &b, (double)element(j->dtype, r->cos_, at + i),
                             (double)element(j->dtype, r->sin_, at + i));
        x[r->offset + ia] = (float)a;
        x[r->offset + ib] = (float)b;
    }
}

/* Norm and rotation in one pass, so that each channel is rounded once. */
void attn_cpu_prologue_row(const struct attn_cpu_job *j, float *x, const void *norm, int64_t p)
{
    const struct attn_cpu_rotary *r = &j->rotary;
    double factor = norm != NULL ? norm_factor(j, x) : 1;
    int32_t first = r->cos_ != NULL ? r->offset : j->k_width;
    int32_t end = r->cos_ != NULL ? r->offset + r->dim : j->k_width;
    if (norm != NULL) {
        for (int32_t i = 0; i < first; i++)
            x[i] = (float)normed(j, x, norm, factor, i);
        for (int32_t i = end; i < j->k_width; i++)
            x[i] = (float)normed(j, x, norm, factor, i);
    }
    if (r->cos_ != NULL)
        rotate(j, x, norm, factor, p);
}

/* ---- the store ---------------------------------------------------------------- */

static void store_row(const struct attn_cpu_store *c, const float *x, int32_t head, int64_t slot)
{
    int64_t at = (slot * c->kv_heads + head) * c->width;
    const float *scale =
        c->quant == ATTN_PER_CHANNEL ? c->scale + (int64_t)head * c->width : c->scale;
    int32_t step = c->quant == ATTN_PER_CHANNEL;
    if (c->dtype == ATTN_INT8) {
        int8_t *to = (int8_t *)c->base + at;
        for (int32_t i = 0; i < c->width; i++)
            to[i] = quantize_int8(x[i], scale[step * i]);
    } else if (c->dtype == ATTN_E4M3) {
        uint8_t *to = (uint8_t *)c->base + at;
        for (int32_t i = 0; i < c->width; i++)
            to[i] = quantize_e4m3(x[i], scale[step * i]);
    } else {
        attn_cpu_row_store(c->dtype, x, c->width,
                           c->base + at * (int64_t)attn_dtype_bytes(c->dtype));
    }
}

static const char *row_at(const struct attn_cpu_job *j, const struct attn_cpu_rows *r, int64_t t,
                          int32_t head, int32_t width)
{
    return r->base + (t * r->stride + (int64_t)head * width) * (int64_t)attn_dtype_bytes(j->dtype);
}

/* The slot of token t, or -1. */
static int64_t slot_of(const struct attn_cpu_job *j, const struct attn_cpu_q_tile *q, int64_t t)
{
    if (j->slots != NULL)
        return attn_checked_slot(j->slots[t], j->n_slots);
    return attn_slot(j->table + q->seq * j->table_cols, j->table_cols, q->past + (t - q->seq_first),
                     j->block_shift, j->num_blocks);
}

static void store_token(const struct attn_cpu_job *j, const struct attn_cpu_q_tile *q, int64_t t,
                        float *x)
{
    int64_t slot = slot_of(j, q, t), p = attn_cpu_job_position(j, q, t);
    if (slot < 0)
        return;
    for (int32_t h = 0; j->k_store.base != NULL && h < j->k_store.kv_heads; h++) {
        attn_cpu_row_load(j->dtype, row_at(j, &j->key, t, h, j->k_store.width), j->k_store.width,
                          x);
        attn_cpu_prologue_row(j, x, j->k_norm, p);
        store_row(&j->k_store, x, h, slot);
    }
    for (int32_t h = 0; j->v_store.base != NULL && h < j->v_store.kv_heads; h++) {
        attn_cpu_row_load(j->dtype, row_at(j, &j->value, t, h, j->v_store.width), j->v_store.width,
                          x);
        store_row(&j->v_store, x, h, slot);
    }
}

static void store_tile(void *ctx, uint32_t task, uint32_t worker)
{
    const struct attn_cpu_job *j = ctx;
    const struct attn_cpu_q_tile *q = &j->q_tile[task];
    float *x = (float *)(j->scratch + worker * j->scratch_bytes);
    for (int32_t i = 0; i < q->n; i++)
        store_token(j, q, q->first + i, x);
}

void attn_cpu_prologue_store(const struct attn_cpu_job *j, struct workers *w)
{
    if (j->n_tokens <= STORE_ALONE)
        w = NULL;
    workers_run(w, store_tile, (void *)(uintptr_t)j, (uint32_t)j->n_q_tiles);
}
