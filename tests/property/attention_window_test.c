/* attention_window_test.c: two relations between whole runs.
 *
 * A sequence that keeps only a ring of blocks equals one that keeps everything,
 * bit for bit at every step; and the non-absorbed form of latent attention
 * equals the absorbed one. */
#include <math.h>

#include "attention/attn.h"
#include "support/rng.h"
#include "support/test.h"

static struct attn *open_cpu(void)
{
    struct attn_options opt = { 0 };
    struct attn *a = NULL;
    struct err e = { 0 };
    assert_ok(attn_open(&a, &opt, &e), e);
    return a;
}

static void run(struct attn *a, const struct attn_attrs *attrs, const struct attn_args *args)
{
    struct attn_plan plan;
    struct err e = { 0 };
    void *workspace;
    assert_ok(attn_plan(a, attrs, args, &plan, &e), e);
    workspace = malloc(plan.workspace_bytes + 1);
    assert_ok(attn_run(a, &plan, args, workspace, NULL, &e), e);
    free(workspace);
}

static float small(struct rng *r)
{
    return (float)((int)rng_below(r, 256) - 128) / 128;
}

/* ---- the ring ------------------------------------------------------------------------- */

enum { BLOCK = 16, HEADS = 4, KV_HEADS = 2, WIDTH = 24, COLS = 40 };

/* One cache: all blocks of the sequence in a row, or n_ring of them. */
struct lane {
    int32_t n_ring; /* 0: everything is kept */
    int64_t n_blocks;
    char *k, *v;
    int32_t table[COLS];
};

static void lane_init(struct lane *l, int32_t n_ring, enum attn_dtype cache)
{
    size_t bytes;
    l->n_ring = n_ring;
    l->n_blocks = n_ring != 0 ? n_ring : COLS;
    bytes = (size_t)l->n_blocks * BLOCK * KV_HEADS * WIDTH * attn_dtype_bytes(cache);
    l->k = malloc(bytes);
    l->v = malloc(bytes);
    memset(l->k, 0xFF, bytes); /* NaN in every float type */
    memset(l->v, 0xFF, bytes);
}

static void lane_fini(struct lane *l)
{
    free(l->k);
    free(l->v);
}

/* The table of a step, entries below the window -1, and its explicit slots. */
static void lane_map(struct lane *l, int32_t past, int32_t n, int32_t window, int32_t *slots)
{
    int32_t lo = past - window + 1 > 0 ? (past - window + 1) / BLOCK : 0;
    int32_t hi = (past + n - 1) / BLOCK;
    for (int32_t i = 0; i < COLS; i++)
        l->table[i] = l->n_ring == 0 ? i : i >= lo && i <= hi ? i % l->n_ring : -1;
    if (l->n_ring != 0)
        assert_true(hi - lo + 1 <= l->n_ring);
    for (int32_t j = 0; j < n; j++)
        slots[j] = l->table[(past + j) / BLOCK] * BLOCK + (past + j) % BLOCK;
}

struct step {
    struct attn_attrs attrs;
    enum attn_dtype dtype, cache;
    float scale;
    uint16_t sink[HEADS];
};

static void attend_lane(struct attn *a, const struct step *s, struct lane *l, const void *packed,
                        int32_t past, int32_t n, int32_t *slots, void *out)
{
    struct attn_args args = { 0 };
    int32_t cu[2] = { 0, n };
    float scale = s->scale;
    uint16_t sink[HEADS];
    memcpy(sink, s->sink, sizeof sink);
    args.in[ATTN_QUERY] =
        attn_view((void *)(uintptr_t)packed, s->dtype, 2, n, (HEADS + 2 * KV_HEADS) * WIDTH, 0, 0);
    args.in[ATTN_KEY_CACHE] = attn_view(l->k, s->cache, 4, l->n_blocks, BLOCK, KV_HEADS, WIDTH);
    args.in[ATTN_VALUE_CACHE] = attn_view(l->v, s->cache, 4, l->n_blocks, BLOCK, KV_HEADS, WIDTH);
    args.in[ATTN_CU_SEQLENS] = attn_view(cu, ATTN_I32, 1, 2, 0, 0, 0);
    args.in[ATTN_PAST_SEQLENS] = attn_view(&past, ATTN_I32, 1, 1, 0, 0, 0);
    args.in[ATTN_BLOCK_TABLE] = attn_view(l->table, ATTN_I32, 2, 1, COLS, 0, 0);
    args.in[ATTN_SLOT_MAPPING] = attn_view(slots, ATTN_I32, 1, n, 0, 0, 0);
    args.in[ATTN_HEAD_SINK] = attn_view(sink, s->dtype, 1, HEADS, 0, 0, 0);
    if (s->attrs.k_quant_type != ATTN_QUANT_NONE)
        args.in[ATTN_K_SCALE] = args.in[ATTN_V_SCALE] = attn_view(&scale, ATTN_F32, 1, 1, 0, 0, 0);
    args.out[ATTN_OUT] = attn_view(out, s->dtype, 2, n, HEADS * WIDTH, 0, 0);
    run(a, &s->attrs, &args);
}

static void ring_run(struct attn *a, uint64_t seed)
{
    struct rng r = { seed };
    int32_t window = 1 + (int32_t)rng_below(&r, 70), chunk = 1 + (int32_t)rng_below(&r, 40);
    struct step s = { .attrs = attn_attrs_default(HEADS, KV_HEADS),
                      .dtype = ATTN_BF16,
                      .cache = ATTN_BF16,
                      .scale = 0.01f };
    struct lane full, ring;
    uint16_t packed[40 * (HEADS + 2 * KV_HEADS) * WIDTH], out[2][40 * HEADS * WIDTH];
    int32_t slots[40];
    if (rng_below(&r, 2) == 0) {
        s.cache = rng_below(&r, 2) == 0 ? ATTN_INT8 : ATTN_E4M3;
        s.attrs.k_quant_type = s.attrs.v_quant_type = ATTN_PER_TENSOR;
    }
    s.attrs.local_window_size = window;
    lane_init(&full, 0, s.cache);
    lane_init(&ring, (window + chunk - 1 + BLOCK - 1) / BLOCK + 1, s.cache);
    for (int32_t past = 0; past + chunk <= COLS * BLOCK;) {
        int32_t n = 1 + (int32_t)rng_below(&r, (uint32_t)chunk);
        for (size_t i = 0; i < sizeof packed / sizeof *packed; i++)
            packed[i] = (uint16_t)(0x3F00 + (rng_below(&r, 2) << 15) + rng_below(&r, 0x100));
        for (int h = 0; h < HEADS; h++)
            s.sink[h] = (uint16_t)(0x3F80 + rng_below(&r, 64));
        lane_map(&full, past, n, window, slots);
        attend_lane(a, &s, &full, packed, past, n, slots, out[0]);
        lane_map(&ring, past, n, window, slots);
        attend_lane(a, &s, &ring, packed, past, n, slots, out[1]);
        if (memcmp(out[0], out[1], (size_t)n * HEADS * WIDTH * 2) != 0)
            fail_msg("seed %llu: window %d, step of %d tokens at %d: the ring differs",
                     (unsigned long long)seed, window, n, past);
        past += n;
    }
    lane_fini(&full);
    lane_fini(&ring);
}

TEST(ring_equals_full_cache_at_every_step)
{
    struct attn *a = open_cpu();
    for (uint64_t seed = 1; seed <= 25; seed++)
        ring_run(a, seed);
    attn_close(a);
}

/* ---- absorbed and not -------------------------------------------------------------------- */

enum { H = 3, NOPE = 16, ROPE = 8, RANK = 32, V = 16, N = 45, QK = NOPE + ROPE, LAT = RANK + ROPE };

static float q[N][H][QK], latent[N][LAT], w_uk[H][NOPE][RANK], w_uv[H][V][RANK];

static void fill_model(struct rng *r)
{
    for (int t = 0; t < N; t++) {
        for (int i = 0; i < LAT; i++)
            latent[t][i] = small(r);
        for (int h = 0; h < H; h++)
            for (int i = 0; i < QK; i++)
                q[t][h][i] = small(r);
    }
    for (int h = 0; h < H; h++)
        for (int k = 0; k < RANK; k++) {
            for (int i = 0; i < NOPE; i++)
                w_uk[h][i][k] = small(r) / 4;
            for (int i = 0; i < V; i++)
                w_uv[h][i][k] = small(r) / 4;
        }
}

static void non_absorbed(struct attn *a, int32_t *cu, int32_t *slots, float *cache, float *out)
{
    static float key[N][H][QK], value[N][H][V];
    struct attn_dense d = {
        .num_heads = H, .kv_num_heads = H, .scale = 0.2f, .local_window_size = -1
    };
    struct err e = { 0 };
    uint64_t bytes;
    void *workspace;
    memset(key, 0, sizeof key);
    memset(value, 0, sizeof value);
    for (int t = 0; t < N; t++)
        for (int h = 0; h < H; h++) {
            for (int i = 0; i < NOPE; i++)
                for (int k = 0; k < RANK; k++)
                    key[t][h][i] += w_uk[h][i][k] * latent[t][k];
            memcpy(&key[t][h][NOPE], &latent[t][RANK], ROPE * sizeof(float));
            for (int i = 0; i < V; i++)
                for (int k = 0; k < RANK; k++)
                    value[t][h][i] += w_uv[h][i][k] * latent[t][k];
        }
    d.query = attn_view(q, ATTN_F32, 2, N, H * QK, 0, 0);
    d.key = attn_view(key, ATTN_F32, 2, N, H * QK, 0, 0);
    d.value = attn_view(value, ATTN_F32, 2, N, H * V, 0, 0);
    d.cu_seqlens = attn_view(cu, ATTN_I32, 1, 3, 0, 0, 0);
    d.output = attn_view(out, ATTN_F32, 2, N, H * V, 0, 0);
    d.latent = attn_view(latent, ATTN_F32, 2, N, LAT, 0, 0);
    d.latent_cache = attn_view(cache, ATTN_F32, 4, 8, 16, 1, LAT);
    d.slot_mapping = attn_view(slots, ATTN_I32, 1, N, 0, 0, 0);
    assert_ok(attn_dense_plan(a, &d, &bytes, &e), e);
    workspace = malloc(bytes + 1);
    assert_ok(attn_dense_run(a, &d, workspace, NULL, &e), e);
    free(workspace);
}

static void absorbed(struct attn *a, int32_t *cu, int32_t *table, int32_t *slots, float *cache,
                     float *out)
{
    static float qa[N][H][LAT], mid[N][H][RANK];
    struct attn_attrs attrs = attn_attrs_default(H, 1);
    struct attn_args args = { 0 };
    int32_t past[2] = { 0, 0 };
    memset(qa, 0, sizeof qa);
    for (int t = 0; t < N; t++)
        for (int h = 0; h < H; h++) {
            for (int k = 0; k < RANK; k++)
                for (int i = 0; i < NOPE; i++)
                    qa[t][h][k] += w_uk[h][i][k] * q[t][h][i];
            memcpy(&qa[t][h][RANK], &q[t][h][NOPE], ROPE * sizeof(float));
        }
    attrs.kv_cache_layout = ATTN_LATENT;
    attrs.v_head_size = RANK;
    attrs.scale = 0.2f;
    args.in[ATTN_QUERY] = attn_view(qa, ATTN_F32, 2, N, H * LAT, 0, 0);
    args.in[ATTN_KEY] = attn_view(latent, ATTN_F32, 2, N, LAT, 0, 0);
    args.in[ATTN_KEY_CACHE] = attn_view(cache, ATTN_F32, 4, 8, 16, 1, LAT);
    args.in[ATTN_CU_SEQLENS] = attn_view(cu, ATTN_I32, 1, 3, 0, 0, 0);
    args.in[ATTN_PAST_SEQLENS] = attn_view(past, ATTN_I32, 1, 2, 0, 0, 0);
    args.in[ATTN_BLOCK_TABLE] = attn_view(table, ATTN_I32, 2, 2, 2, 0, 0);
    args.in[ATTN_SLOT_MAPPING] = attn_view(slots, ATTN_I32, 1, N, 0, 0, 0);
    args.out[ATTN_OUT] = attn_view(mid, ATTN_F32, 2, N, H * RANK, 0, 0);
    run(a, &attrs, &args);
    for (int t = 0; t < N; t++)
        for (int h = 0; h < H; h++)
            for (int i = 0; i < V; i++) {
                float x = 0;
                for (int k = 0; k < RANK; k++)
                    x += w_uv[h][i][k] * mid[t][h][k];
                out[(t * H + h) * V + i] = x;
            }
}

TEST(absorbed_equals_non_absorbed)
{
    static float cache[2][8 * 16 * LAT], out[2][N * H * V];
    int32_t cu[3] = { 0, 17, N }, table[4] = { 5, 2, 7, 0 }, slots[N];
    struct attn *a = open_cpu();
    for (int t = 0; t < N; t++) {
        int row = t >= 17, pos = t - cu[row];
        slots[t] = table[2 * row + pos / 16] * 16 + pos % 16;
    }
    for (uint64_t seed = 1; seed <= 5; seed++) {
        struct rng r = { seed };
        fill_model(&r);
        memset(cache, 0, sizeof cache);
        non_absorbed(a, cu, slots, cache[0], out[0]);
        absorbed(a, cu, table, slots, cache[1], out[1]);
        assert_memory_equal(cache[0], cache[1], sizeof cache[0]);
        for (int i = 0; i < N * H * V; i++)
            if (!(fabsf(out[0][i] - out[1][i]) < 2e-5f))
                fail_msg("seed %llu: element %d: %g non-absorbed, %g absorbed",
                         (unsigned long long)seed, i, (double)out[0][i], (double)out[1][i]);
    }
    attn_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(ring_equals_full_cache_at_every_step),
        RUN(absorbed_equals_non_absorbed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
