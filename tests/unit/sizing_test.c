/* sizing_test.c: the memory arithmetic on a made-up model: blocks from each
 * source of memory, what pins and context take of them, and the messages that
 * show the figures when they do not fit. */
#include "support/test.h"

#include <stdio.h>

#include "server/sizing.h"

enum { BLOCK_BYTES = 65536, KIB = 1024 };
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

/* Four layers of 2 heads, 64 wide, float32: 65,536 bytes a block of 16 tokens. */
static struct model_info model_of(uint32_t window)
{
    struct kv_layer_desc layers[4];
    struct model_info m = { .architecture = "MadeUp",
                            .backend = "cpu",
                            .dtype = "float32",
                            .max_model_len = 2048,
                            .weight_bytes = 1000,
                            .n_parameters = 250 };
    struct err e = { 0 };

    for (int i = 0; i < 4; i++)
        layers[i] = (struct kv_layer_desc){ .kind = window ? KV_WINDOW : KV_FULL,
                                            .window = window,
                                            .kv_heads = 2,
                                            .k_width = 64,
                                            .v_width = 64 };
    assert_ok(kv_layout_init(&m.layout, layers, 4, 16, KV_F32, KV_F32, &e), e);
    assert_int_equal(kv_layout_block_bytes(&m.layout), BLOCK_BYTES);
    return m;
}

/* The options of a command line, written as one text. */
static void options(struct srv_options *o, const char *words)
{
    char text[256], *argv[16] = { "quired", "made-up" };
    int argc = 2;
    struct err e = { 0 };

    snprintf(text, sizeof text, "%s", words);
    for (char *w = strtok(text, " "); w; w = strtok(NULL, " "))
        argv[argc++] = w;
    assert_ok(srv_options_read(o, argc, argv, NULL, &e), e);
}

static enum err_code compute(struct sizing *s, const char *words, const struct model_info *m,
                             const struct sizing_memory *free, struct err *e)
{
    struct srv_options o;
    enum err_code rc;

    options(&o, words);
    rc = sizing_compute(s, &o, m, free, e);
    srv_options_fini(&o);
    return rc;
}

static struct sizing sizes(const char *words, const struct model_info *m,
                           const struct sizing_memory *free)
{
    struct sizing s;
    struct err e = { 0 };

    assert_ok(compute(&s, words, m, free, &e), e);
    return s;
}

static const struct sizing_memory little = { .free_bytes = 1 << 30 };

TEST(bytes_given_are_cut_to_whole_blocks)
{
    struct model_info m = model_of(0);
    struct sizing s = sizes("--kv-cache-memory-bytes 655460", &m, &little);

    assert_int_equal(s.n_blocks, 10);
    assert_int_equal(s.kv_bytes, 10 * BLOCK_BYTES);
    assert_int_equal(s.block_bytes, BLOCK_BYTES);
    assert_int_equal(s.pool.n_blocks, 10);
}

TEST(a_number_of_blocks_given_is_exact)
{
    struct model_info m = model_of(0);
    struct sizing s = sizes("--num-gpu-blocks-override 77 --kv-cache-memory-bytes 1M", &m, &little);

    assert_int_equal(s.n_blocks, 77);
    assert_int_equal(s.kv_bytes, 77 * BLOCK_BYTES);
}

TEST(a_cpu_gives_a_quarter_of_what_is_free_up_to_4_gib)
{
    struct model_info m = model_of(0);
    struct sizing s = sizes("", &m, &little);

    assert_int_equal(s.kv_bytes, 256 * MIB);
    assert_int_equal(s.n_blocks, 4 * KIB);
    s = sizes("", &m, &(struct sizing_memory){ .free_bytes = 64 * GIB });
    assert_int_equal(s.kv_bytes, 4 * GIB);
    assert_int_equal(s.n_blocks, 64 * KIB);
}

/* The share of all, less what is taken already, less the reserve of 256 MiB. */
TEST(a_gpu_gives_what_its_share_leaves)
{
    struct model_info m = model_of(0);
    struct sizing_memory gpu = {
        .free_bytes = GIB,
        .device = { .total_bytes = 80 * GIB, .free_bytes = 50 * GIB, .step_bytes = 2 * GIB }
    };
    struct sizing s = sizes("--gpu-memory-utilization 0.5", &m, &gpu);

    assert_int_equal(s.kv_bytes, 10 * GIB - 256 * MIB);
    s = sizes("--gpu-memory-utilization 0.5 --kv-cache-memory-bytes 1G", &m, &gpu);
    assert_int_equal(s.n_blocks, 16 * KIB);
}

TEST(a_full_gpu_is_told_so)
{
    struct model_info m = model_of(0);
    struct sizing_memory gpu = { .free_bytes = 64 * GIB,
                                 .device = { .total_bytes = 80 * GIB, .free_bytes = 50 * GIB } };
    struct sizing s;
    struct err e = { 0 };

    assert_int_equal(compute(&s, "--gpu-memory-utilization 0.375", &m, &gpu, &e), ERR_LIMIT);
    assert_string_equal(e.param, "kv-cache-memory-bytes");
    assert_contains(e.message, "0 blocks of 65536 bytes");
    assert_contains(e.message, "not even a sequence of 2 tokens");
}

TEST(a_context_that_does_not_fit_is_refused_with_the_figures)
{
    struct model_info m = model_of(0);
    struct sizing s;
    struct err e = { 0 };

    assert_int_equal(
        compute(&s, "--num-gpu-blocks-override 10 --max-model-len 1000", &m, &little, &e),
        ERR_LIMIT);
    assert_string_equal(e.param, "max-model-len");
    assert_contains(e.message, "--max-model-len 1000 needs 63 KV blocks, the pool has 10 "
                               "(655360 bytes): at most 160 tokens fit");
    s = sizes("--num-gpu-blocks-override 10 --max-model-len 160", &m, &little);
    assert_int_equal(s.max_model_len, 160);
    assert_false(s.model_len_cut);
}

TEST(a_context_left_to_us_is_cut_to_the_pool)
{
    struct model_info m = model_of(0);
    struct sizing s = sizes("--num-gpu-blocks-override 10", &m, &little);

    assert_int_equal(s.max_model_len, 160);
    assert_true(s.model_len_cut);
    s = sizes("--num-gpu-blocks-override 128", &m, &little);
    assert_int_equal(s.max_model_len, 2048);
    assert_false(s.model_len_cut);
    assert_int_equal(s.sched.max_model_len, 2048);
    assert_int_equal(s.pool.max_seq_tokens, 2048);
}

/* A window holds at most ceil((32 + 16 - 1) / 16) + 1 = 4 blocks, however long. */
TEST(windows_need_no_more_blocks_for_a_longer_context)
{
    struct model_info m = model_of(32);
    struct sizing s = sizes("--num-gpu-blocks-override 4 --max-num-batched-tokens 16", &m, &little);

    assert_int_equal(s.max_model_len, 2048);
    s = sizes("--num-gpu-blocks-override 3 --max-num-batched-tokens 16", &m, &little);
    assert_int_equal(s.max_model_len, 48);
}

TEST(pins_take_their_share_from_the_context)
{
    struct model_info m = model_of(0);
    struct sizing s = sizes(
        "--num-gpu-blocks-override 10 --cache-pin-budget 0.45 --max-cache-pins 3", &m, &little);
    struct err e = { 0 };

    assert_int_equal(s.pin_budget, 4);
    assert_int_equal(s.pool.pin_budget, 4);
    assert_int_equal(s.pool.max_pins, 3);
    assert_int_equal(s.max_model_len, 6 * 16);
    s = sizes("--num-gpu-blocks-override 10", &m, &little);
    assert_int_equal(s.pool.max_pins, 0);
    assert_int_equal(compute(&s,
                             "--num-gpu-blocks-override 10 --cache-pin-budget 0.45 "
                             "--max-model-len 97",
                             &m, &little, &e),
                     ERR_LIMIT);
    assert_contains(e.message, "needs 7 KV blocks, the pool has 6");
}

TEST(steps_are_short_on_a_cpu)
{
    struct model_info m = model_of(0);

    assert_int_equal(sizes("", &m, &little).sched.max_num_batched_tokens, 512);
    m.backend = "cuda";
    assert_int_equal(sizes("", &m, &little).sched.max_num_batched_tokens, 2048);
    struct sizing s = sizes("--max-num-batched-tokens 100", &m, &little);
    assert_int_equal(s.sched.max_num_batched_tokens, 100);
    assert_int_equal(s.pool.max_chunk, 100);
}

TEST(overlap_follows_the_backend_unless_told)
{
    struct model_info m = model_of(0);

    assert_false(sizes("", &m, &little).sched.overlap);
    assert_true(sizes("--overlap on", &m, &little).sched.overlap);
    m.async = true;
    assert_true(sizes("", &m, &little).sched.overlap);
    assert_false(sizes("--overlap off", &m, &little).sched.overlap);
}

TEST(options_reach_scheduler_and_pool)
{
    struct model_info m = model_of(0);
    struct sizing s = sizes("--max-num-seqs 200 --itl-target-ms 30 --max-num-queued-reqs 9 "
                            "--scheduling-policy priority --no-enable-prefix-caching",
                            &m, &little);

    assert_int_equal(s.sched.max_num_seqs, 200);
    assert_int_equal(s.pool.max_seqs, 200);
    assert_int_equal(s.sched.max_outputs, 400);
    assert_int_equal(s.sched.itl_target_us, 30000);
    assert_int_equal(s.sched.max_queued, 9);
    assert_int_equal(s.sched.policy, SCHED_PRIORITY);
    assert_false(s.pool.prefix_caching);
    assert_int_equal(sizes("--max-num-seqs 2", &m, &little).sched.max_outputs, 256);
}

TEST(plan_prints_every_figure_once)
{
    struct model_info m = model_of(0);
    struct sizing_memory gpu = {
        .free_bytes = 1234567,
        .device = { .total_bytes = 8 * GIB, .free_bytes = 5 * GIB, .step_bytes = 3 * MIB }
    };
    struct sizing s;
    struct srv_options o;
    struct err e = { 0 };
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);

    options(&o, "--num-gpu-blocks-override 10 --cache-pin-budget 0.2");
    assert_ok(sizing_compute(&s, &o, &m, &gpu, &e), e);
    sizing_print(f, &s, &o, &m);
    fclose(f);
    srv_options_fini(&o);
    assert_contains(text, "model            made-up\n");
    assert_contains(text, "memory free      1234567 bytes\n");
    assert_contains(text, "device           8589934592 bytes, 5368709120 free, 3145728 for steps, "
                          "268435456 reserved\n");
    assert_contains(text, "KV cache         655360 bytes: 10 blocks of 65536 bytes, 16 tokens");
    assert_contains(text, "group 0        full, window 0, 4 layers\n");
    assert_contains(text, "pins             at most 2 blocks\n");
    assert_contains(text, "context          128 tokens (cut to what the pool holds)\n");
    assert_contains(text, "of     128 tokens  1\n");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(bytes_given_are_cut_to_whole_blocks),
        RUN(a_number_of_blocks_given_is_exact),
        RUN(a_cpu_gives_a_quarter_of_what_is_free_up_to_4_gib),
        RUN(a_gpu_gives_what_its_share_leaves),
        RUN(a_full_gpu_is_told_so),
        RUN(a_context_that_does_not_fit_is_refused_with_the_figures),
        RUN(a_context_left_to_us_is_cut_to_the_pool),
        RUN(windows_need_no_more_blocks_for_a_longer_context),
        RUN(pins_take_their_share_from_the_context),
        RUN(steps_are_short_on_a_cpu),
        RUN(overlap_follows_the_backend_unless_told),
        RUN(options_reach_scheduler_and_pool),
        RUN(plan_prints_every_figure_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
