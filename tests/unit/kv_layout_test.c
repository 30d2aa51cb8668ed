/* kv_layout_test.c: grouping, bytes and block bounds of real model families. */
#include "proto/plan/kv_layout.h"
#include "support/test.h"

static struct kv_layer_desc full(void)
{
    return (struct kv_layer_desc){ .kind = KV_FULL, .kv_heads = 8, .k_width = 128, .v_width = 128 };
}

static struct kv_layer_desc windowed(uint32_t w)
{
    struct kv_layer_desc d = full();
    d.kind = KV_WINDOW;
    d.window = w;
    return d;
}

/* Every layer has its own (group, slab), of its own kind, in layer order. */
static void check_placement(const struct kv_layout *lay, const struct kv_layer_desc *d, uint32_t n)
{
    uint32_t used[KV_GROUPS] = { 0 };
    assert_int_equal(lay->n_layers, n);
    for (uint32_t l = 0; l < n; l++) {
        uint32_t g = lay->layer_group[l];
        assert_true(g < lay->n_groups);
        assert_int_equal(lay->group[g].kind, d[l].kind);
        assert_int_equal(lay->group[g].window, d[l].window);
        assert_true(lay->layer_slab[l] < lay->layers_per_group);
        assert_int_equal(lay->layer_slab[l], used[g]);
        used[g]++;
    }
    for (uint32_t g = 0; g < lay->n_groups; g++) {
        assert_int_equal(used[g], lay->group[g].n_layers);
        if (g > 0 && lay->group[g].kind != KV_WINDOW)
            assert_true(lay->group[g - 1].kind != KV_WINDOW);
    }
}

static struct kv_layout of(const struct kv_layer_desc *d, uint32_t n)
{
    struct kv_layout lay;
    struct err e;
    assert_ok(kv_layout_init(&lay, d, n, 16, KV_BF16, KV_BF16, &e), e);
    check_placement(&lay, d, n);
    return lay;
}

TEST(uniform_model_is_one_group)
{
    struct kv_layer_desc d[32];
    for (int i = 0; i < 32; i++)
        d[i] = full();
    struct kv_layout lay = of(d, 32);
    assert_int_equal(lay.n_groups, 1);
    assert_int_equal(lay.layers_per_group, 32);
    /* 32 layers x 2 x 8 heads x 128 channels x 16 tokens x 2 bytes */
    assert_int_equal(kv_layout_block_bytes(&lay), 32 * 2 * 8 * 128 * 16 * 2);
    assert_int_equal(kv_layout_k_slab_bytes(&lay, 1000), 1000 * 16 * 8 * 128 * 2);
}

TEST(alternating_model_is_two_equal_groups)
{
    struct kv_layer_desc d[36];
    for (int i = 0; i < 36; i++)
        d[i] = i % 2 == 0 ? windowed(128) : full();
    struct kv_layout lay = of(d, 36);
    assert_int_equal(lay.n_groups, 2);
    assert_int_equal(lay.layers_per_group, 18);
    assert_int_equal(lay.group[0].window, 0);
    assert_int_equal(lay.group[1].window, 128);
    assert_int_equal(lay.layer_group[0], 1);
    assert_int_equal(lay.layer_group[1], 0);
}

TEST(five_to_one_model_pads_little_and_groups_few)
{
    static const uint32_t counts[] = { 26, 34, 48, 62 };
    for (int c = 0; c < 4; c++) {
        struct kv_layer_desc d[62];
        uint32_t n = counts[c];
        for (uint32_t i = 0; i < n; i++)
            d[i] = i % 6 == 5 ? full() : windowed(1024);
        struct kv_layout lay = of(d, n);
        uint32_t padding = lay.n_groups * lay.layers_per_group - n;
        assert_true(padding * 8 <= n);
        assert_true(lay.n_groups <= 11);
    }
}

TEST(all_windowed_and_latent_models)
{
    struct kv_layer_desc d[61];
    for (int i = 0; i < 32; i++)
        d[i] = windowed(4096);
    struct kv_layout lay = of(d, 32);
    assert_int_equal(lay.n_groups, 1);
    assert_int_equal(lay.group[0].window, 4096);

    for (int i = 0; i < 61; i++)
        d[i] = (struct kv_layer_desc){ .kind = KV_LATENT, .kv_heads = 1, .k_width = 576 };
    lay = of(d, 61);
    assert_int_equal(lay.n_groups, 1);
    assert_int_equal(lay.group[0].kind, KV_LATENT);
    assert_int_equal(kv_layout_v_slab_bytes(&lay, 7), 0);
    assert_int_equal(kv_layout_block_bytes(&lay), 61 * 576 * 16 * 2);
}

TEST(three_kinds_keep_full_first)
{
    struct kv_layer_desc d[12];
    for (int i = 0; i < 12; i++)
        d[i] = i % 3 == 0 ? windowed(64) : i % 3 == 1 ? windowed(256) : full();
    struct kv_layout lay = of(d, 12);
    assert_int_equal(lay.n_groups, 3);
    assert_int_equal(lay.group[0].window, 0);
    assert_int_equal(lay.group[1].window, 64);
    assert_int_equal(lay.group[2].window, 256);
}

TEST(blocks_for_a_sequence)
{
    struct kv_layer_desc d[2] = { full(), windowed(64) };
    struct kv_layout lay = of(d, 2);
    assert_int_equal(kv_layout_blocks_for(&lay, 0, 1), 0);
    assert_int_equal(kv_layout_blocks_for(&lay, 1, 1), 2);
    assert_int_equal(kv_layout_blocks_for(&lay, 64, 1), 4 + 4);
    assert_int_equal(kv_layout_blocks_for(&lay, 1600, 1), 100 + 5);  /* 64/16 + 1 */
    assert_int_equal(kv_layout_blocks_for(&lay, 1600, 32), 100 + 7); /* ceil(95/16) + 1 */
    assert_int_equal(kv_layout_blocks_for(&lay, 1600, 1600), 100 + 100);
    assert_int_equal(kv_layout_blocks_for(&lay, UINT64_MAX, 1), UINT64_MAX / 16 + 1 + 5);
}

#define REJECT(d, n, b, kd, text)                                                                  \
    do {                                                                                           \
        struct kv_layout lay_;                                                                     \
        struct err e_;                                                                             \
        assert_int_equal(kv_layout_init(&lay_, d, n, b, kd, KV_F16, &e_), ERR_INVALID);            \
        assert_contains(e_.message, text);                                                         \
    } while (0)

TEST(rejections_name_what_is_wrong)
{
    static struct kv_layer_desc d[KV_LAYERS + 1];
    for (uint32_t i = 0; i < KV_LAYERS; i++)
        d[i] = full();
    REJECT(d, 0, 16, KV_F16, "0 layers");
    REJECT(d, KV_LAYERS + 1, 16, KV_F16, "513 layers");
    REJECT(d, 4, 8, KV_F16, "block size 8");
    REJECT(d, 4, 24, KV_F16, "block size 24");
    REJECT(d, 4, 512, KV_F16, "block size 512");
    REJECT(d, 4, 16, (enum kv_dtype)9, "unknown cache type");
    d[2].kv_heads = 4;
    REJECT(d, 4, 16, KV_F16, "layer 2: kv_heads 4");
    d[2] = full();
    d[3].k_width = 64;
    REJECT(d, 4, 16, KV_F16, "layer 3");
    d[3] = windowed(0);
    REJECT(d, 4, 16, KV_F16, "layer 3: window 0");
    d[3] = full();
    d[3].window = 5;
    REJECT(d, 4, 16, KV_F16, "window 5 on a full layer");
    d[3] = full();
    d[3].v_width = 0;
    REJECT(d, 4, 16, KV_F16, "V width 0 on a full layer");
    d[3] = (struct kv_layer_desc){ .kind = KV_LATENT, .kv_heads = 2, .k_width = 8 };
    REJECT(d, 4, 16, KV_F16, "latent with kv_heads 2");
    d[3] = full();
    d[3].kind = (enum kv_kind)7;
    REJECT(d, 4, 16, KV_F16, "unknown attention kind 7");
    d[0].kv_heads = 0;
    REJECT(d, 4, 16, KV_F16, "kv_heads 0");
    for (uint32_t i = 0; i < KV_GROUPS + 1; i++)
        d[i] = windowed(i + 1);
    REJECT(d, KV_GROUPS + 1, 16, KV_F16, "window 33 is attention kind number 33");
}

TEST(dtype_widths)
{
    assert_int_equal(kv_dtype_bytes(KV_F32), 4);
    assert_int_equal(kv_dtype_bytes(KV_F16), 2);
    assert_int_equal(kv_dtype_bytes(KV_BF16), 2);
    assert_int_equal(kv_dtype_bytes(KV_INT8), 1);
    assert_int_equal(kv_dtype_bytes(KV_E4M3), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(uniform_model_is_one_group),
        RUN(alternating_model_is_two_equal_groups),
        RUN(five_to_one_model_pads_little_and_groups_few),
        RUN(all_windowed_and_latent_models),
        RUN(three_kinds_keep_full_first),
        RUN(blocks_for_a_sequence),
        RUN(rejections_name_what_is_wrong),
        RUN(dtype_widths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
