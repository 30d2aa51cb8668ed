/* attention_cpu_test.c: the parts under the CPU backend: the thread pool, the
 * inner loops of each instruction set, the shared functions, the KV slabs. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>

#include "attention/attn.h"
#include "attention/cpu/inner.h"
#include "attention/feature_math.h"
#include "attention/kv_slabs.h"
#include "attention/platform/workers.h"
#include "attention/platform/plugin.h"
#include "proto/number/formats.h"
#include "oracle/attn_oracle.h"
#include "support/rng.h"
#include "support/test.h"

/* ---- the pool ----------------------------------------------------------------------- */

struct tally {
    atomic_uint ran[200];
    atomic_uint worker_seen[8];
};

static void tick(void *ctx, uint32_t task, uint32_t worker)
{
    struct tally *t = ctx;
    atomic_fetch_add(&t->ran[task], 1);
    atomic_fetch_add(&t->worker_seen[worker], 1);
}

TEST(each_task_runs_once)
{
    for (uint32_t n = 1; n <= 5; n++) {
        struct workers *w = NULL;
        struct err e = { 0 };
        assert_ok(workers_create(&w, n, &e), e);
        assert_int_equal(workers_count(w), n);
        for (int round = 0; round < 300; round++) {
            struct tally t = { 0 };
            uint32_t tasks = (uint32_t)round % 200;
            workers_run(w, tick, &t, tasks);
            for (uint32_t i = 0; i < 200; i++)
                assert_int_equal(atomic_load(&t.ran[i]), i < tasks);
        }
        workers_destroy(w);
    }
}

TEST(pool_without_threads_and_limits)
{
    struct workers *w = NULL;
    struct err e = { 0 };
    struct tally t = { 0 };
    workers_run(NULL, tick, &t, 3);
    assert_int_equal(atomic_load(&t.ran[2]), 1);
    assert_int_equal(workers_count(NULL), 1);
    assert_int_equal(workers_create(&w, WORKERS_MAX + 1, &e), ERR_LIMIT);
    assert_contains(e.message, "1025");
    assert_null(w);
    assert_ok(workers_create(&w, 0, &e), e);
    assert_true(workers_count(w) >= 1);
    workers_destroy(w);
    workers_destroy(NULL);
}

/* ---- inner loops ----------------------------------------------------------------------- */

static const struct attn_cpu_inner *const *variants(int *n)
{
    static const struct attn_cpu_inner *all[3];
    int k = 0;
    all[k++] = &attn_cpu_inner_base;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        all[k++] = &attn_cpu_inner_avx2;
    if (attn_cpu_inner_choose() == &attn_cpu_inner_avx512)
        all[k++] = &attn_cpu_inner_avx512;
#endif
    *n = k;
    return all;
}

/* Bytes of any content, NaN patterns apart, through every loader. */
TEST(loaders_convert_exactly)
{
    enum { W = 72, STRIDE = 96 };
    static const enum attn_dtype types[] = { ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_INT8, ATTN_E4M3 };
    int n;
    const struct attn_cpu_inner *const *all = variants(&n);
    for (int v = 0; v < n; v++)
        for (int k = 0; k < 5; k++) {
            enum attn_dtype d = types[k];
            size_t row_bytes = W * attn_dtype_bytes(d);
            struct rng r = { (uint64_t)k + 1 };
            const void *row[INNER_KEYS];
            float scale[W], kt[W * INNER_KEYS], vt[STRIDE * INNER_KEYS];
            char *bytes = malloc(INNER_KEYS * row_bytes);
            for (size_t i = 0; i < INNER_KEYS * row_bytes; i++)
                bytes[i] = (char)rng_next(&r);
            for (int i = 0; i < W; i++)
                scale[i] = d == ATTN_INT8 || d == ATTN_E4M3 ? 0.5f + (float)i : 1;
            for (int i = 0; i < INNER_KEYS; i++)
                row[i] = i % 7 == 3 ? NULL : bytes + (size_t)i * row_bytes;
            all[v]->load_keys(d, row, scale, W, kt);
            all[v]->load_values(d, row, scale, W, STRIDE, vt);
            for (int i = 0; i < INNER_KEYS; i++)
                for (int c = 0; c < STRIDE; c++) {
                    double want = row[i] == NULL || c >= W ? 0 : oracle_value(d, row[i], c);
                    float expect = (float)want * (c < W ? scale[c] : 1);
                    float a = c < W ? kt[c * INNER_KEYS + i] : 0, b = vt[i * STRIDE + c];
                    if (!isnan(expect) && ((c < W && a != expect) || b != expect))
                        fail_msg("%s %s row %d channel %d: %g and %g, expected %g", all[v]->name,
                                 attn_dtype_name(d), i, c, (double)a, (double)b, (double)expect);
                    if (isnan(expect) && (!isnan(a) || !isnan(b)))
                        fail_msg("%s: NaN was lost", all[v]->name);
                }
            free(bytes);
        }
}

/* Rows together or one by one: the same bits; near the naive sum. */
TEST(products_do_not_depend_on_their_company)
{
    enum { ROWS = 11, W = 40, S = 64 };
    int n;
    const struct attn_cpu_inner *const *all = variants(&n);
    for (int v = 0; v < n; v++) {
        static float q[ROWS * W], kt[W * INNER_KEYS], s[2][ROWS * S], vt[INNER_KEYS * S],
            acc[2][ROWS * S];
        struct rng r = { 9 };
        for (int i = 0; i < ROWS * W; i++)
            q[i] = (float)rng_unit(&r) - 0.5f;
        for (int i = 0; i < W * INNER_KEYS; i++)
            kt[i] = (float)rng_unit(&r) - 0.5f;
        for (int i = 0; i < INNER_KEYS * S; i++)
            vt[i] = (float)rng_unit(&r) - 0.5f;
        memset(acc, 0, sizeof acc);
        all[v]->scores(q, ROWS, W, kt, s[0], S);
        all[v]->weigh(s[0], S, ROWS, vt, S, 5, 29, acc[0]);
        for (int k = 0; k < ROWS; k++) {
            all[v]->scores(q + k * W, 1, W, kt, s[1] + k * S, S);
            all[v]->weigh(s[1] + k * S, S, 1, vt, S, 5, 29, acc[1] + k * S);
            assert_memory_equal(s[0] + k * S, s[1] + k * S, INNER_KEYS * sizeof(float));
            assert_memory_equal(acc[0] + k * S, acc[1] + k * S, S * sizeof(float));
            for (int i = 0; i < INNER_KEYS; i++) {
                double want = 0;
                for (int c = 0; c < W; c++)
                    want += (double)q[k * W + c] * (double)kt[c * INNER_KEYS + i];
                assert_true(fabs(want - (double)s[0][k * S + i]) < 1e-5);
            }
            for (int c = 0; c < S; c++) {
                double want = 0;
                for (int i = 5; i < 29; i++)
                    want += (double)s[0][k * S + i] * (double)vt[i * S + c];
                assert_true(fabs(want - (double)acc[0][k * S + c]) < 1e-5);
            }
        }
    }
}

TEST(softmax_of_masked_rows)
{
    int n;
    const struct attn_cpu_inner *const *all = variants(&n);
    for (int v = 0; v < n; v++) {
        float s[64];
        struct attn_state st;
        for (int i = 0; i < 64; i++)
            s[i] = -INFINITY;
        st = all[v]->softmax(s, 64);
        assert_true(st.sum == 0 && s[0] == 0 && s[63] == 0);
        for (int i = 0; i < 64; i++)
            s[i] = i % 3 == 0 ? -INFINITY : -3e38f + (float)i;
        st = all[v]->softmax(s, 64);
        assert_true(fabsf(st.sum - 42) < 1e-4f); /* all equal at that magnitude */
        for (int i = 0; i < 64; i++)
            s[i] = (float)i;
        s[7] = NAN;
        st = all[v]->softmax(s, 64);
        assert_true(isnan(st.sum));
    }
}

/* ---- functions ------------------------------------------------------------------------------ */

TEST(hyperbolic_tangent)
{
    for (float x = -12; x <= 12; x += 0.0037f)
        assert_true(fabs((double)attn_tanh(x) - tanh((double)x)) < 2e-7);
}

/* Merging in any grouping is near the whole; an empty side changes no bit. */
TEST(states_merge)
{
    struct attn_state a = { 3, 2 }, empty = { ATTN_NO_MAX, 0 };
    float ca, cb;
    attn_state_merge(&a, empty, &ca, &cb);
    assert_true(a.max == 3 && a.sum == 2 && ca == 1 && cb == 0);
    attn_state_merge(&empty, a, &ca, &cb);
    assert_true(empty.max == 3 && empty.sum == 2 && ca == 0 && cb == 1);
    attn_state_merge(&a, (struct attn_state){ 4, 1 }, &ca, &cb);
    assert_true(fabsf(a.sum - (1 + 2 * expf(-1))) < 1e-6f && a.max == 4);
    assert_true(fabsf(attn_state_finish((struct attn_state){ 1, 2 }, 1, 5) - 1 / (2 + expf(4))) <
                1e-7f);
    assert_true(attn_state_finish((struct attn_state){ ATTN_NO_MAX, 0 }, 1, 5) == 0);
}

TEST(slots_and_blocks_out_of_range_count_as_unmapped)
{
    int32_t row[3] = { 2, -1, 9 };
    assert_int_equal(attn_slot(row, 3, 5, 4, 8), 37);
    assert_int_equal(attn_slot(row, 3, 16, 4, 8), -1);
    assert_int_equal(attn_slot(row, 3, 40, 4, 8), -1);
    assert_int_equal(attn_slot(row, 3, 40, 4, 10), 9 * 16 + 8);
    assert_int_equal(attn_slot(row, 3, 48, 4, 10), -1);
    assert_int_equal(attn_slot(row, 3, -1, 4, 10), -1);
    assert_int_equal(attn_checked_slot(127, 128), 127);
    assert_int_equal(attn_checked_slot(128, 128), -1);
    assert_int_equal(attn_checked_slot(-5, 128), -1);
}

/* ---- slabs ------------------------------------------------------------------------------------
 */

TEST(slabs_are_lazy_and_copy_blocks)
{
    struct kv_layer_desc layers[3] = { { KV_FULL, 0, 2, 16, 16 },
                                       { KV_WINDOW, 64, 2, 16, 16 },
                                       { KV_FULL, 0, 2, 16, 16 } };
    struct attn_options opt = { 0 };
    struct attn *a = NULL;
    struct attn_kv *kv = NULL;
    struct kv_layout lay;
    struct err e = { 0 };
    struct plan_copy copy[2] = { { 3, 100000 }, { 100000, 7 } };
    struct attn_tensor k, v;
    size_t block;
    assert_ok(kv_layout_init(&lay, layers, 3, 16, KV_BF16, KV_BF16, &e), e);
    assert_ok(attn_open(&a, &opt, &e), e);
    /* 4 GB of address space a slab: nothing is committed until it is written */
    assert_ok(attn_kv_create(&kv, a, &lay, 4000000, &e), e);
    assert_int_equal(attn_kv_n_blocks(kv), 4000000);
    assert_int_equal(attn_kv_bytes(kv), kv_layout_block_bytes(&lay) * 4000000);
    for (uint32_t layer = 0; layer < 3; layer++) {
        k = attn_kv_key(kv, layer);
        v = attn_kv_value(kv, layer);
        assert_int_equal(k.rank, 4);
        assert_int_equal(k.shape[0], 4000000);
        assert_int_equal(k.shape[3], 16);
        assert_int_equal(v.dtype, ATTN_BF16);
        block = 16 * 2 * 16 * 2;
        memset((char *)k.data + 3 * block, 0x11 + (int)layer, block);
        memset((char *)v.data + 3 * block, 0x21 + (int)layer, block);
    }
    assert_ok(attn_kv_copy(kv, copy, 2, NULL, &e), e);
    for (uint32_t layer = 0; layer < 3; layer++) {
        k = attn_kv_key(kv, layer);
        v = attn_kv_value(kv, layer);
        assert_memory_equal((char *)k.data + 3 * block, (char *)k.data + 7 * block, block);
        assert_memory_equal((char *)v.data + 3 * block, (char *)v.data + 100000 * block, block);
    }
    copy[1].to = 4000000;
    assert_int_equal(attn_kv_copy(kv, copy, 2, NULL, &e), ERR_INVALID);
    assert_contains(e.message, "block copy 1: 100000 to 4000000, expected ids below 4000000");
    attn_kv_destroy(kv);
    attn_close(a);
}

/* One sequence of 40 tokens whose blocks lie from `first` on; output into out. */
static void attend_at(struct attn *a, struct attn_kv *kv, int32_t first, uint16_t *out)
{
    enum { HEADS = 8, KV = 8, D = 128, N = 40 };
    static uint16_t packed[N * (HEADS + 2 * KV) * D];
    int32_t cu[2] = { 0, N }, past = 0, table[3] = { first + 2, first, first + 1 };
    struct attn_attrs attrs = attn_attrs_default(HEADS, KV);
    struct attn_args args = { 0 };
    struct attn_plan plan;
    struct err e = { 0 };
    struct rng r = { 4 };
    void *workspace;
    for (size_t i = 0; i < sizeof packed / sizeof *packed; i++)
        packed[i] = float_to_bf16((float)rng_unit(&r) - 0.5f);
    args.in[ATTN_QUERY] = attn_view(packed, ATTN_BF16, 2, N, (HEADS + 2 * KV) * D, 0, 0);
    args.in[ATTN_KEY_CACHE] = attn_kv_key(kv, 0);
    args.in[ATTN_VALUE_CACHE] = attn_kv_value(kv, 0);
    args.in[ATTN_CU_SEQLENS] = attn_view(cu, ATTN_I32, 1, 2, 0, 0, 0);
    args.in[ATTN_PAST_SEQLENS] = attn_view(&past, ATTN_I32, 1, 1, 0, 0, 0);
    args.in[ATTN_BLOCK_TABLE] = attn_view(table, ATTN_I32, 2, 1, 3, 0, 0);
    args.out[ATTN_OUT] = attn_view(out, ATTN_BF16, 2, N, HEADS * D, 0, 0);
    assert_ok(attn_plan(a, &attrs, &args, &plan, &e), e);
    workspace = malloc(plan.workspace_bytes);
    assert_ok(attn_run(a, &plan, &args, workspace, NULL, &e), e);
    free(workspace);
}

/* Element 2^31 of a slab lies in block 131072: beyond, the same bytes come out. */
TEST(offsets_pass_two_to_the_31)
{
    struct kv_layer_desc layer = { KV_FULL, 0, 8, 128, 128 };
    static uint16_t low[40 * 8 * 128], high[40 * 8 * 128];
    struct attn_options opt = { 0 };
    struct attn *a = NULL;
    struct attn_kv *kv = NULL;
    struct kv_layout lay;
    struct err e = { 0 };
    assert_ok(kv_layout_init(&lay, &layer, 1, 16, KV_BF16, KV_BF16, &e), e);
    assert_ok(attn_open(&a, &opt, &e), e);
    assert_ok(attn_kv_create(&kv, a, &lay, 300000, &e), e);
    attend_at(a, kv, 1, low);
    attend_at(a, kv, 299997, high);
    assert_memory_equal(low, high, sizeof low);
    assert_true(low[0] != 0);
    attn_kv_destroy(kv);
    attn_close(a);
}

TEST(latent_slabs_have_no_value)
{
    struct kv_layer_desc layer = { KV_LATENT, 0, 1, 40, 0 };
    struct attn_options opt = { 0 };
    struct attn *a = NULL;
    struct attn_kv *kv = NULL;
    struct kv_layout lay;
    struct err e = { 0 };
    assert_ok(kv_layout_init(&lay, &layer, 1, 16, KV_E4M3, KV_E4M3, &e), e);
    assert_ok(attn_open(&a, &opt, &e), e);
    assert_ok(attn_kv_create(&kv, a, &lay, 10, &e), e);
    assert_int_equal(attn_kv_key(kv, 0).dtype, ATTN_E4M3);
    assert_int_equal(attn_kv_value(kv, 0).rank, 0);
    attn_kv_destroy(kv);
    attn_close(a);
}

/* Blocks whose first slot a step stores turn NaN as a whole; the others stay. */
TEST(fresh_blocks_are_poisoned)
{
    struct kv_layer_desc layer = { KV_FULL, 0, 2, 8, 8 };
    struct attn_options opt = { 0 };
    struct attn *a = NULL;
    struct attn_kv *kv = NULL;
    struct kv_layout lay;
    struct err e = { 0 };
    enum { BLOCKS = 5, FLOATS = 16 * 2 * 8 };
    int32_t slot[] = { 16 + 7, 3 * 16, 3 * 16 + 1, -1, 0 };
    struct step_plan plan = { .n_tokens = 5, .n_groups = 1, .slot_mapping = { slot } };
    assert_ok(kv_layout_init(&lay, &layer, 1, 16, KV_F32, KV_F32, &e), e);
    assert_ok(attn_open(&a, &opt, &e), e);
    assert_ok(attn_kv_create(&kv, a, &lay, BLOCKS, &e), e);
    assert_ok(attn_kv_poison_init(kv, &e), e);
    assert_ok(attn_kv_poison(kv, &plan, NULL, &e), e);
    for (int part = 0; part < 2; part++) {
        const float *f = part ? attn_kv_value(kv, 0).data : attn_kv_key(kv, 0).data;
        for (int i = 0; i < BLOCKS * FLOATS; i++) {
            int b = i / FLOATS;
            assert_int_equal(isnan(f[i]) != 0, b == 0 || b == 3 || b == BLOCKS - 1);
        }
    }
    attn_kv_destroy(kv);
    attn_close(a);
}

TEST(missing_plugin_is_named)
{
    struct plugin *p = NULL;
    struct err e = { 0 };
    assert_int_equal(plugin_open(&p, "/nonexistent/quire_cuda.so", &e), ERR_NOT_FOUND);
    assert_contains(e.message, "/nonexistent/quire_cuda.so does not exist");
    assert_int_equal(plugin_open(&p, "CMakeLists.txt", &e), ERR_IO);
    assert_null(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(each_task_runs_once),
        RUN(pool_without_threads_and_limits),
        RUN(loaders_convert_exactly),
        RUN(products_do_not_depend_on_their_company),
        RUN(softmax_of_masked_rows),
        RUN(hyperbolic_tangent),
        RUN(states_merge),
        RUN(slots_and_blocks_out_of_range_count_as_unmapped),
        RUN(slabs_are_lazy_and_copy_blocks),
        RUN(offsets_pass_two_to_the_31),
        RUN(latent_slabs_have_no_value),
        RUN(fresh_blocks_are_poisoned),
        RUN(missing_plugin_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
