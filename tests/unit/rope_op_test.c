/* rope_op_test.c: ops' rotation gives the bits that attention stores.
 *
 * Latent rows rotated by ops->rope and stored as they are equal, to the bit, the
 * rows that the operator rotates and stores itself: what an expanded prompt leaves
 * in the cache is what an absorbed one leaves. */
#include "support/test.h"

#include "attention/feature_math.h"
#include "proto/number/formats.h"
#include "model/step/ops.h"
#include "support/rng.h"

enum { SEQS = 3, TOKENS = 45, BLOCK = 16, BLOCKS = 6, RANK = 24, ROPE = 16, WIDTH = RANK + ROPE };
enum { POSITIONS = 64, HEADS = 2 };

struct world {
    bool wide; /* float32, else bfloat16 */
    _Alignas(64) unsigned char key[TOKENS * WIDTH * 4];
    _Alignas(64) unsigned char query[TOKENS * HEADS * WIDTH * 4];
    _Alignas(64) unsigned char cache[BLOCKS * BLOCK * WIDTH * 4];
    _Alignas(64) unsigned char out[TOKENS * HEADS * RANK * 4];
    _Alignas(64) unsigned char cos[POSITIONS * ROPE * 2];
    _Alignas(64) unsigned char sin[POSITIONS * ROPE * 2];
};

static const int32_t cu[SEQS + 1] = { 0, 20, 21, TOKENS };
static const int32_t past[SEQS] = { 0 };
static const int32_t table[SEQS * 2] = { 3, 1, 5, -1, 0, 4 };

static size_t size_of(const struct world *w)
{
    return w->wide ? 4 : 2;
}

static void fill(const struct world *w, unsigned char *p, size_t n, struct rng *r)
{
    for (size_t i = 0; i < n; i++) {
        float v = (float)(rng_unit(r) * 2 - 1);
        uint16_t h = float_to_bf16(v);
        if (w->wide)
            memcpy(p + i * 4, &v, 4);
        else
            memcpy(p + i * 2, &h, 2);
    }
}

static void set(struct world *w, struct attn_args *a, enum attn_input i, void *data, int64_t d0,
                int64_t d1)
{
    a->in[i] = attn_view(data, w->wide ? ATTN_F32 : ATTN_BF16, 2, d0, d1, 0, 0);
}

/* The operator rotates and stores. */
static void store_by_attention(struct world *w, bool interleaved)
{
    struct attn_options opt = { 0 };
    struct attn_attrs attrs = attn_attrs_default(HEADS, 1);
    struct attn_args a;
    struct attn_plan plan;
    struct attn *at;
    struct err e = { 0 };
    enum attn_dtype type = w->wide ? ATTN_F32 : ATTN_BF16;
    attrs.kv_cache_layout = ATTN_LATENT;
    attrs.v_head_size = RANK;
    attrs.scale = 0.1f;
    attrs.do_rotary = 1;
    attrs.rotary_offset = RANK;
    attrs.rotary_interleaved = interleaved;
    memset(&a, 0, sizeof a);
    set(w, &a, ATTN_QUERY, w->query, TOKENS, HEADS * WIDTH);
    set(w, &a, ATTN_KEY, w->key, TOKENS, WIDTH);
    set(w, &a, ATTN_COS_CACHE, w->cos, POSITIONS, ROPE / 2);
    set(w, &a, ATTN_SIN_CACHE, w->sin, POSITIONS, ROPE / 2);
    a.in[ATTN_KEY_CACHE] = attn_view(w->cache, type, 4, BLOCKS, BLOCK, 1, WIDTH);
    a.in[ATTN_CU_SEQLENS] = attn_view((void *)cu, ATTN_I32, 1, SEQS + 1, 0, 0, 0);
    a.in[ATTN_PAST_SEQLENS] = attn_view((void *)past, ATTN_I32, 1, SEQS, 0, 0, 0);
    a.in[ATTN_BLOCK_TABLE] = attn_view((void *)table, ATTN_I32, 2, SEQS, 2, 0, 0);
    a.out[ATTN_OUT] = attn_view(w->out, type, 2, TOKENS, HEADS * RANK, 0, 0);
    assert_ok(attn_open(&at, &opt, &e), e);
    assert_ok(attn_plan(at, &attrs, &a, &plan, &e), e);
    void *workspace = malloc(plan.workspace_bytes + 1);
    assert_ok(attn_run(at, &plan, &a, workspace, NULL, &e), e);
    free(workspace);
    attn_close(at);
}

/* ops rotates the tokens from `first` sequences on, in place. */
static void rotate_by_ops(struct world *w, bool interleaved, uint32_t first)
{
    struct ops ops;
    struct err e = { 0 };
    uint32_t token = (uint32_t)cu[first];
    struct op_rope r = { .x = w->key + (token * WIDTH + RANK) * size_of(w),
                         .ld = WIDTH,
                         .n_parts = 1,
                         .dim = ROPE,
                         .first = token,
                         .n_rows = SEQS - first,
                         .table_rows = POSITIONS,
                         .interleaved = interleaved,
                         .cu_seqlens = cu + first,
                         .cos = w->cos,
                         .sin = w->sin };
    assert_ok(model_cpu_open(&ops, w->wide ? OP_F32 : OP_BF16, 2, &e), e);
    ops.rope(ops.self, &r, TOKENS - token);
    ops.close(ops.self);
}

static void compare(bool wide, bool interleaved, uint32_t first, uint64_t seed)
{
    static struct world w;
    struct rng r = { seed };
    memset(&w, 0, sizeof w);
    w.wide = wide;
    fill(&w, w.key, TOKENS * WIDTH, &r);
    fill(&w, w.query, TOKENS * HEADS * WIDTH, &r);
    fill(&w, w.cos, POSITIONS * ROPE / 2, &r);
    fill(&w, w.sin, POSITIONS * ROPE / 2, &r);
    store_by_attention(&w, interleaved);
    rotate_by_ops(&w, interleaved, first);
    for (uint32_t s = first; s < SEQS; s++)
        for (int32_t t = cu[s]; t < cu[s + 1]; t++) {
            int32_t p = t - cu[s], slot = table[s * 2 + (uint32_t)p / BLOCK] * BLOCK + p % BLOCK;
            size_t row = WIDTH * size_of(&w);
            assert_memory_equal(w.cache + (size_t)slot * row, w.key + (size_t)t * row, row);
        }
}

TEST(rotation_gives_the_bits_that_attention_stores)
{
    for (uint64_t seed = 1; seed <= 20; seed++)
        for (int i = 0; i < 8; i++)
            compare(i & 1, i & 2, i & 4 ? 1 : 0, seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(rotation_gives_the_bits_that_attention_stores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
