/* attend.c: attention over the cache, tile by tile.
 *
 * One unit of work is a q tile times the query heads that share one KV head: up
 * to TILE_ROWS rows.  For each tile of TILE positions, on absolute boundaries,
 * it forms scores, the tile's own softmax and its weighted V, and merges that
 * into the row's running state in order of position.  A long context may be
 * split: tiles are then computed by different workers into `partial` and merged
 * afterwards in the same order, hence to the same bits.
 *
 * Called on the pool's threads; each works in its own scratch. */
#include <math.h>
#include <string.h>

#include "attention/cpu/job.h"

/* Positions past a tile that are asked for while it is computed. */
enum { AHEAD = 2 * INNER_KEYS, SUBS = (TILE + AHEAD) / INNER_KEYS };

struct row {
    int64_t lo, hi; /* admitted positions, holes apart */
    int32_t token, head;
};

struct scratch {
    int32_t n_rows, kv_head;
    const struct attn_cpu_q_tile *q_tile;
    struct row row[TILE_ROWS];
    struct attn_state state[TILE_ROWS], tile_state[TILE_ROWS];
    float bias[TILE];
    /* Of the current tile and a little more; NULL: not read. */
    const void *k_row[TILE + AHEAD], *v_row[TILE + AHEAD];
    uint32_t mapped[SUBS]; /* bit i of a sub-tile: row i is there */
    int64_t lo, hi;        /* union of the rows' ranges           */
    const float *k_scale, *v_scale;
    float *q;                   /* [rows][k_width]                      */
    float *kt;                  /* [k_width][INNER_KEYS]                */
    float *v;                   /* [INNER_KEYS][v_stride]               */
    float *s;                   /* [rows][TILE]                         */
    float *tile_acc;            /* [rows][v_stride] of the current tile */
    float *acc;                 /* [rows][v_stride] of all tiles so far */
    float *k_scales, *v_scales; /* per tensor, spread over channels */
};

/* ---- scratch -------------------------------------------------------------------- */

static int64_t floats64(int64_t n)
{
    return (n + 15) / 16 * 16;
}

/* Lay the arrays out after the struct; returns the bytes used. */
static int64_t lay_out(const struct attn_cpu_job *j, struct scratch *sc, char *base)
{
    int64_t rows = (int64_t)j->tile_heads * j->tile_tokens;
    int64_t at = ((int64_t)sizeof(struct scratch) + 63) / 64 * 64;
    struct {
        float **to;
        int64_t n;
    } part[] = {
        { &sc->q, rows * j->k_width },
        { &sc->kt, (int64_t)j->k_width * INNER_KEYS },
        { &sc->v, (int64_t)j->v_stride * INNER_KEYS },
        { &sc->s, rows * TILE },
        { &sc->tile_acc, rows * j->v_stride },
        { &sc->acc, rows * j->v_stride },
        { &sc->k_scales, j->k_width },
        { &sc->v_scales, j->v_stride },
    };
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        *part[i].to = base != NULL ? (float *)(base + at) : NULL;
        at += floats64(part[i].n) * 4;
    }
    return at;
}

int64_t attn_cpu_job_scratch_bytes(const struct attn_cpu_job *j)
{
    struct scratch sizes;
    return lay_out(j, &sizes, NULL);
}

static struct scratch *scratch_of(const struct attn_cpu_job *j, uint32_t worker)
{
    char *base = j->scratch + worker * j->scratch_bytes;
    struct scratch *sc = (struct scratch *)base;
    lay_out(j, sc, base);
    return sc;
}

/* Scales of one KV head for its first n channels; NULL for types without. */
static const float *scales_of(const struct attn_cpu_source *s, int32_t kv_head, int32_t n,
                              float *spread)
{
    if (s->scale == NULL)
        return NULL;
    if (s->per_channel)
        return s->scale + (int64_t)kv_head * s->width;
    for (int32_t c = 0; c < n; c++)
        spread[c] = s->scale[0];
    return spread;
}

/* ---- opening a unit: its rows and their queries ----------------------------------- */

static void open_unit(const struct attn_cpu_job *j, struct scratch *sc, uint32_t unit)
{
    int32_t part = (int32_t)(unit % (uint32_t)j->head_parts);
    int32_t kv_head = (int32_t)(unit / (uint32_t)j->head_parts % (uint32_t)j->kv_heads);
    /* Later tiles of a sequence see more keys: they start first. */
    int64_t tile = j->n_q_tiles - 1 - unit / (uint32_t)j->head_parts / (uint32_t)j->kv_heads;
    const struct attn_cpu_q_tile *q = &j->q_tile[tile];
    int32_t first = part * j->tile_heads;
    int32_t n_heads = j->group - first < j->tile_heads ? j->group - first : j->tile_heads;
    size_t element = attn_dtype_bytes(j->dtype);

    sc->q_tile = q;
    sc->kv_head = kv_head;
    sc->n_rows = 0;
    sc->lo = INT64_MAX;
    sc->hi = 0;
    sc->k_scale = scales_of(&j->k, kv_head, j->k_width, sc->k_scales);
    sc->v_scale = scales_of(&j->v, kv_head, (j->v_width + 7) / 8 * 8, sc->v_scales);
    for (int32_t i = 0; i < q->n; i++) {
        int32_t t = q->first + i;
        int64_t p = attn_cpu_job_position(j, q, t);
        int64_t lo = attn_first_key(p, j->window), hi = attn_end_key(p, q->kv_len);
        for (int32_t h = 0; h < n_heads; h++) {
            int32_t head = kv_head * j->group + first + h;
            float *x = sc->q + (int64_t)sc->n_rows * j->k_width;
            sc->row[sc->n_rows++] = (struct row){ lo, hi, t, head };
            attn_cpu_row_load(j->dtype,
                              j->query.base + (t * j->query.stride + (int64_t)head * j->k_width) *
                                                  (int64_t)element,
                              j->k_width, x);
            attn_cpu_prologue_row(j, x, j->q_norm, p);
        }
        if (lo < hi) {
            sc->lo = lo < sc->lo ? lo : sc->lo;
            sc->hi = hi > sc->hi ? hi : sc->hi;
        }
    }
}

static void reset_sums(const struct attn_cpu_job *j, struct scratch *sc)
{
    memset(sc->acc, 0, (size_t)sc->n_rows * (size_t)j->v_stride * sizeof *sc->acc);
    for (int32_t r = 0; r < sc->n_rows; r++)
        sc->state[r] = (struct attn_state){ ATTN_NO_MAX, 0.0f };
}

/* ---- one tile ----------------------------------------------------------------------- */

/* Rows i, i + 1, ... of n positions that follow one another in storage. */
static void put_rows(const struct attn_cpu_job *j, struct scratch *sc, int64_t i, int64_t n,
                     int64_t slot)
{
    const char *k = j->k.base + slot * j->k.token_bytes + sc->kv_head * j->k.head_bytes;
    const char *v = j->v.base + slot * j->v.token_bytes + sc->kv_head * j->v.head_bytes;
    for (int64_t end = i + n; i < end; i++, k += j->k.token_bytes, v += j->v.token_bytes) {
        sc->k_row[i] = k;
        sc->v_row[i] = v;
        sc->mapped[i / INNER_KEYS] |= 1u << i % INNER_KEYS;
    }
}

/* Where positions [from, to) of a tile lie: one look at the table for each
 * block.  Positions outside [lo, hi) and unmapped ones have NULL rows and are
 * never read. */
static void find_rows(const struct attn_cpu_job *j, struct scratch *sc, int64_t from, int64_t to)
{
    const struct attn_cpu_q_tile *q = sc->q_tile;
    const int32_t *table = j->table != NULL ? j->table + q->seq * j->table_cols : NULL;
    int64_t end = sc->hi < to ? sc->hi : to, n;
    memset(sc->k_row, 0, (size_t)(to - from) * sizeof *sc->k_row);
    memset(sc->v_row, 0, (size_t)(to - from) * sizeof *sc->v_row);
    memset(sc->mapped, 0, sizeof sc->mapped);
    for (int64_t pos = sc->lo > from ? sc->lo : from; pos < end; pos += n) {
        int64_t slot = q->seq_first + pos;
        n = end - pos;
        if (table != NULL) {
            int64_t block_size = (int64_t)1 << j->block_shift;
            int64_t left = block_size - (pos & (block_size - 1));
            n = n < left ? n : left;
            slot = attn_slot(table, j->table_cols, pos, j->block_shift, j->num_blocks);
        }
        if (slot >= 0)
            put_rows(j, sc, pos - from, n, slot);
    }
}

/* Ask for INNER_KEYS rows early: they lie too far apart for the hardware to
 * fetch them by itself. */
static void prefetch_rows(const void *const *row, int64_t bytes)
{
    for (int i = 0; i < INNER_KEYS; i++)
        for (int64_t at = 0; row[i] != NULL && at < bytes; at += 64)
            __builtin_prefetch((const char *)row[i] + at);
}

/* Bias of row r for positions [from, to), 0 beyond its capacities. */
static const float *bias_of(const struct attn_cpu_job *j, struct scratch *sc, const struct row *r,
                            int64_t from, int64_t to)
{
    const int64_t *n = j->bias_shape;
    int64_t b = n[0] == 1 ? 0 : sc->q_tile->seq, h = n[1] == 1 ? 0 : r->head;
    int64_t i = r->token - sc->q_tile->seq_first;
    int64_t stop = to < n[3] ? to : n[3];
    if (j->bias == NULL)
        return NULL;
    memset(sc->bias, 0, sizeof sc->bias);
    if (i < n[2] && from < stop)
        attn_cpu_row_load(j->dtype,
                          (const char *)j->bias + (((b * n[1] + h) * n[2] + i) * n[3] + from) *
                                                      (int64_t)attn_dtype_bytes(j->dtype),
                          stop - from, sc->bias);
    return sc->bias;
}

/* Positions of tile t that some row of the unit admits, on sub-tile boundaries. */
static void tile_range(const struct scratch *sc, int64_t tile, int64_t *from, int64_t *to)
{
    int64_t lo = tile * TILE, hi = lo + TILE;
    *from = (sc->lo > lo ? sc->lo : lo) & ~(int64_t)(INNER_KEYS - 1);
    *to = ((sc->hi < hi ? sc->hi : hi) + INNER_KEYS - 1) & ~(int64_t)(INNER_KEYS - 1);
}

/* x = scale, bias, softcap of raw scores; -inf where row r does not admit. */
static void mask_row(const struct attn_cpu_job *j, struct scratch *sc, int32_t r, int64_t from,
                     int64_t to)
{
    const struct row *row = &sc->row[r];
    float *s = sc->s + (int64_t)r * TILE;
    j->inner->finish(s, (int32_t)(to - from), j->scale, bias_of(j, sc, row, from, to), j->softcap);
    for (int64_t k = from; k < to && k < row->lo; k++)
        s[k - from] = -INFINITY;
    for (int64_t k = row->hi > from ? row->hi : from; k < to; k++)
        s[k - from] = -INFINITY;
    for (int64_t k = 0; k < to - from; k += INNER_KEYS)
        for (uint32_t hole = ~sc->mapped[k / INNER_KEYS]; hole != 0; hole &= hole - 1)
            s[k + __builtin_ctz(hole)] = -INFINITY;
}

/* Masked scores of every row for positions [from, to) of a tile, s[r][k - from].
 * Meanwhile keys that come next, the next tile's first among them, and the
 * tile's values are on their way. */
static void score_tile(const struct attn_cpu_job *j, struct scratch *sc, int64_t from, int64_t to)
{
    int64_t v_bytes = j->v_width * (int64_t)attn_dtype_bytes(j->v.dtype);
    find_rows(j, sc, from, to + AHEAD);
    for (int64_t i = 0; i < to - from; i += INNER_KEYS) {
        prefetch_rows(sc->k_row + i + AHEAD, j->k.head_bytes);
        prefetch_rows(sc->v_row + i, v_bytes);
        j->inner->load_keys(j->k.dtype, sc->k_row + i, sc->k_scale, j->k_width, sc->kt);
        j->inner->scores(sc->q, sc->n_rows, j->k_width, sc->kt, sc->s + i, TILE);
    }
    for (int32_t r = 0; r < sc->n_rows; r++)
        mask_row(j, sc, r, from, to);
}

/* Rows [r, r + n) add the weighted V of sub-tile `at`.  Each row takes exactly
 * the keys of its own range; where the ranges agree the rows go together. */
static void weigh_rows(const struct attn_cpu_job *j, struct scratch *sc, int32_t r, int32_t n,
                       int64_t from, int64_t at)
{
    const float *p = sc->s + (int64_t)r * TILE + (at - from);
    float *acc = sc->tile_acc + (int64_t)r * j->v_stride;
    int64_t lo = at, hi = at + INNER_KEYS, a[INNER_ROWS], b[INNER_ROWS];
    for (int32_t i = 0; i < n; i++) {
        const struct row *row = &sc->row[r + i];
        a[i] = row->lo > at ? row->lo : at;
        b[i] = row->hi < at + INNER_KEYS ? row->hi : at + INNER_KEYS;
        lo = a[i] > lo ? a[i] : lo;
        hi = b[i] < hi ? b[i] : hi;
    }
    hi = hi > lo ? hi : lo; /* nothing in common: all of it is edges */
    for (int32_t i = 0; i < n; i++)
        if (a[i] < b[i] && a[i] < lo)
            j->inner->weigh(p + (int64_t)i * TILE, TILE, 1, sc->v, j->v_stride,
                            (int32_t)(a[i] - at), (int32_t)((lo < b[i] ? lo : b[i]) - at),
                            acc + (int64_t)i * j->v_stride);
    if (lo < hi)
        j->inner->weigh(p, TILE, n, sc->v, j->v_stride, (int32_t)(lo - at), (int32_t)(hi - at),
                        acc);
    for (int32_t i = 0; i < n; i++)
        if (a[i] < b[i] && b[i] > hi)
            j->inner->weigh(p + (int64_t)i * TILE, TILE, 1, sc->v, j->v_stride,
                            (int32_t)((hi > a[i] ? hi : a[i]) - at), (int32_t)(b[i] - at),
                            acc + (int64_t)i * j->v_stride);
}

static void write_qk(const struct attn_cpu_job *j, const struct row *row, const float *s,
                     int64_t from, int64_t to)
{
    int64_t stop = to < j->qk_cols ? to : j->qk_cols;
    int64_t at = (row->head * j->n_tokens + row->token) * j->qk_cols + from;
    if (from < stop)
        attn_cpu_row_store(j->qk_dtype, s, stop - from,
                           j->qk + at * (int64_t)attn_dtype_bytes(j->qk_dtype));
}

/* The tile's own softmax and weighted V of every row: tile_state, tile_acc. */
static void attend_tile(const struct attn_cpu_job *j, struct scratch *sc, int64_t tile)
{
    int64_t from, to;
    tile_range(sc, tile, &from, &to);
    score_tile(j, sc, from, to);
    for (int32_t r = 0; r < sc->n_rows; r++) {
        float *s = sc->s + (int64_t)r * TILE;
        if (j->qk_mode == ATTN_QK_SCORES)
            write_qk(j, &sc->row[r], s, from, to);
        sc->tile_state[r] = j->inner->softmax(s, (int32_t)(to - from));
    }
    memset(sc->tile_acc, 0, (size_t)sc->n_rows * (size_t)j->v_stride * sizeof *sc->tile_acc);
    for (int64_t i = 0; i < to - from; i += INNER_KEYS) {
        if (sc->mapped[i / INNER_KEYS] == 0)
            continue;
        j->inner->load_values(j->v.dtype, sc->v_row + i, sc->v_scale, j->v_width, j->v_stride,
                              sc->v);
        for (int32_t r = 0; r < sc->n_rows; r += INNER_ROWS)
            weigh_rows(j, sc, r, sc->n_rows - r < INNER_ROWS ? sc->n_rows - r : INNER_ROWS, from,
                       from + i);
    }
}

/* Merge one tile's result into the running one. */
static void merge_tile(const struct attn_cpu_job *j, struct scratch *sc,
                       const struct attn_state *state, const float *acc)
{
    for (int32_t r = 0; r < sc->n_rows; r++) {
        float ca, cb;
        if (state[r].sum == 0.0f)
            continue;
        attn_state_merge(&sc->state[r], state[r], &ca, &cb);
        j->inner->merge(sc->acc + (int64_t)r * j->v_stride, ca, acc + (int64_t)r * j->v_stride, cb,
                        j->v_stride);
    }
}

/* ---- closing a unit: sinks, outputs ---------------------------------------------------- */

static float sink_of(const struct attn_cpu_job *j, int32_t head)
{
    float x = 0.0f;
    if (j->head_sink != NULL)
        attn_cpu_row_load(j->dtype,
                          (const char *)j->head_sink + head * (int64_t)attn_dtype_bytes(j->dtype),
                          1, &x);
    return x;
}

static int64_t first_tile(const struct scratch *sc)
{
    return sc->lo < sc->hi ? sc->lo >> TILE_SHIFT : 0;
}

static int64_t end_tile(const struct scratch *sc)
{
    return sc->lo < sc->hi ? (sc->hi + TILE - 1) >> TILE_SHIFT : 0;
}

/* Probabilities need the final sums: the scores are formed a second time. */
static void write_probabilities(const struct attn_cpu_job *j, struct scratch *sc)
{
    for (int64_t tile = first_tile(sc); tile < end_tile(sc); tile++) {
        int64_t from, to;
        tile_range(sc, tile, &from, &to);
        score_tile(j, sc, from, to);
        for (int32_t r = 0; r < sc->n_rows; r++) {
            struct attn_state st = sc->state[r];
            float f = attn_state_finish(st, j->head_sink != NULL, sink_of(j, sc->row[r].head));
            float *s = sc->s + (int64_t)r * TILE;
            for (int64_t k = 0; k < to - from; k++)
                s[k] = st.sum == 0.0f ? 0.0f : exp_nonpositive(s[k] - st.max) * f;
            write_qk(j, &sc->row[r], s, from, to);
        }
    }
}

static void close_unit(const struct attn_cpu_job *j, struct scratch *sc)
{
    if (j->qk_mode == ATTN_QK_PROBABILITIES)
        write_probabilities(j, sc);
    for (int32_t r = 0; r < sc->n_rows; r++) {
        const struct row *row = &sc->row[r];
        float *acc = sc->acc + (int64_t)r * j->v_stride;
        float f = attn_state_finish(sc->state[r], j->head_sink != NULL, sink_of(j, row->head));
        int64_t at = ((int64_t)row->token * j->num_heads + row->head) * j->v_width;
        for (int32_t c = 0; c < j->v_width; c++)
            acc[c] *= f;
        attn_cpu_row_store(j->dtype, acc, j->v_width,
                           j->out + at * (int64_t)attn_dtype_bytes(j->dtype));
    }
}

/* ---- the phases ---------------------------------------------------------------------- */

static void attend_unit(void *ctx, uint32_t unit, uint32_t worker)
{
    const struct attn_cpu_job *j = ctx;
    struct scratch *sc = scratch_of(j, worker);
    open_unit(j, sc, unit);
    reset_sums(j, sc);
    for (int64_t tile = first_tile(sc); tile < end_tile(sc); tile++) {
        attend_tile(j, sc, tile);
        merge_tile(j, sc, sc->tile_state, sc->tile_acc);
    }
    close_unit(j, sc);
}

/* Partial result of split i of a unit: states, then weighted V. */
static float *partial_at(const struct attn_cpu_job *j, uint32_t unit, int64_t i)
{
    return j->partial + ((int64_t)unit * j->n_splits + i) * j->partial_floats;
}

static float *partial_acc(const struct attn_cpu_job *j, float *partial)
{
    return partial + floats64(2 * (int64_t)j->tile_heads * j->tile_tokens);
}

static void attend_split(void *ctx, uint32_t task, uint32_t worker)
{
    const struct attn_cpu_job *j = ctx;
    struct scratch *sc = scratch_of(j, worker);
    uint32_t unit = task / (uint32_t)j->n_splits;
    int64_t i = task % (uint32_t)j->n_splits, tile;
    float *to = partial_at(j, unit, i);
    open_unit(j, sc, unit);
    tile = first_tile(sc) + i;
    if (tile >= end_tile(sc))
        return;
    attend_tile(j, sc, tile);
    memcpy(to, sc->tile_state, (size_t)sc->n_rows * sizeof *sc->tile_state);
    memcpy(partial_acc(j, to), sc->tile_acc,
           (size_t)sc->n_rows * (size_t)j->v_stride * sizeof *sc->tile_acc);
}

/* In order of position: the splits, then whatever lies past their number. */
static void merge_unit(void *ctx, uint32_t unit, uint32_t worker)
{
    const struct attn_cpu_job *j = ctx;
    struct scratch *sc = scratch_of(j, worker);
    open_unit(j, sc, unit);
    reset_sums(j, sc);
    for (int64_t tile = first_tile(sc); tile < end_tile(sc); tile++) {
        int64_t i = tile - first_tile(sc);
        float *from = partial_at(j, unit, i < j->n_splits ? i : 0);
        if (i < j->n_splits) {
            merge_tile(j, sc, (const struct attn_state *)from, partial_acc(j, from));
        } else {
            attend_tile(j, sc, tile);
            merge_tile(j, sc, sc->tile_state, sc->tile_acc);
        }
    }
    close_unit(j, sc);
}

int64_t attn_cpu_job_partial_floats(const struct attn_cpu_job *j)
{
    int64_t rows = (int64_t)j->tile_heads * j->tile_tokens;
    return floats64(2 * rows) + rows * j->v_stride;
}

/* Most tiles that any q tile walks: no use splitting further. */
static int64_t most_tiles(const struct attn_cpu_job *j)
{
    int64_t most = 0;
    for (int64_t i = 0; i < j->n_q_tiles; i++) {
        const struct attn_cpu_q_tile *q = &j->q_tile[i];
        int64_t lo =
            j->positions == NULL ? attn_first_key(q->past + q->first - q->seq_first, j->window) : 0;
        int64_t n = q->kv_len > lo ? ((q->kv_len - 1) >> TILE_SHIFT) - (lo >> TILE_SHIFT) + 1 : 0;
        most = n > most ? n : most;
    }
    return most;
}

/* Zeros, and output_qk's "not admitted", everywhere: padding tokens and
 * positions that no tile visits keep them. */
static void clear_outputs(const struct attn_cpu_job *j)
{
    float none = j->qk_mode == ATTN_QK_SCORES ? -INFINITY : 0.0f, row[64];
    int64_t n = (int64_t)j->num_heads * j->n_tokens * j->qk_cols;
    int64_t width = (int64_t)j->num_heads * j->v_width * (int64_t)attn_dtype_bytes(j->dtype);
    int64_t end = 0;
    for (int64_t i = 0; i < j->n_q_tiles; i++) {
        const struct attn_cpu_q_tile *q = &j->q_tile[i];
        memset(j->out + end * width, 0, (size_t)((q->first - end) * width));
        end = q->first + q->n;
    }
    memset(j->out + end * width, 0, (size_t)((j->n_tokens - end) * width));
    if (j->qk_mode == ATTN_QK_NONE)
        return;
    for (int i = 0; i < 64; i++)
        row[i] = none;
    for (int64_t i = 0; i < n; i += 64)
        attn_cpu_row_store(j->qk_dtype, row, n - i < 64 ? n - i : 64,
                           j->qk + i * (int64_t)attn_dtype_bytes(j->qk_dtype));
}

void attn_cpu_attend(struct attn_cpu_job *j, struct workers *w)
{
    uint32_t units = (uint32_t)(j->n_q_tiles * j->kv_heads * j->head_parts);
    int64_t splits = j->partial != NULL ? most_tiles(j) : 0;
    if (j->n_tokens > 0)
        clear_outputs(j);
    j->n_splits = splits < j->n_splits ? splits : j->n_splits;
    if (j->n_splits <= 1) {
        workers_run(w, attend_unit, j, units);
        return;
    }
    workers_run(w, attend_split, j, units * (uint32_t)j->n_splits);
    workers_run(w, merge_unit, j, units);
}
