/* cuda_room_test.c: what each kind of device runs; the numbers are the kernels' own,
 * so the host can hold them against devices that nobody has at hand. */
#include "attention/cuda/smem_budget.h"
#include "support/test.h"

enum { KB = 1024 };

static const int widths[] = { 64, 128, 256 }, rows[] = { 8, 16 };

/* Shared memory of a block and of a multiprocessor, by NVIDIA's table of compute
 * capabilities. */
static const struct device_limits a100 = { 8, 0, 108, 163 * KB, 164 * KB };
static const struct device_limits a10 = { 8, 6, 72, 99 * KB, 100 * KB };
static const struct device_limits l4 = { 8, 9, 58, 99 * KB, 100 * KB };
static const struct device_limits h200 = { 9, 0, 132, 227 * KB, 228 * KB };
static const struct device_limits b200 = { 10, 0, 148, 227 * KB, 228 * KB };
static const struct device_limits rtx5090 = { 12, 0, 170, 99 * KB, 100 * KB };
static const struct device_limits *const all[] = { &a100, &a10, &l4, &h200, &b200, &rtx5090 };

enum { DEVICES = sizeof all / sizeof *all };

TEST(every_device_runs_split_and_prefill_at_every_width)
{
    for (int i = 0; i < DEVICES; i++)
        for (int w = 0; w < 3; w++)
            for (int element = 1; element <= 2; element++) {
                for (int r = 0; r < 2; r++) {
                    int stages = split_stages(all[i], element, widths[w], rows[r]);
                    assert_true(stages >= 1);
                    assert_true(split_bytes(element, widths[w], rows[r], stages) <=
                                all[i]->block_bytes);
                }
                assert_true(prefill_bytes(element, widths[w]) <= all[i]->block_bytes);
            }
}

TEST(only_narrow_devices_run_the_widest_rows_without_a_stage_ahead)
{
    for (int i = 0; i < DEVICES; i++)
        for (int w = 0; w < 3; w++)
            for (int element = 1; element <= 2; element++)
                for (int r = 0; r < 2; r++) {
                    bool narrow = all[i]->block_bytes < 100 * KB;
                    int stages = split_stages(all[i], element, widths[w], rows[r]);
                    if (narrow && element == 2 && widths[w] == 256)
                        assert_int_equal(stages, 1);
                    else
                        assert_int_equal(stages, split_full_stages(element, widths[w], rows[r]));
                }
}

TEST(the_hopper_kernel_runs_on_9_0_alone_and_when_built)
{
    for (int i = 0; i < DEVICES; i++) {
        bool hopper = all[i] == &h200;
        assert_int_equal(hopper_runs(all[i], true, 2, 64), hopper);
        assert_int_equal(hopper_runs(all[i], true, 2, 128), hopper);
        assert_false(hopper_runs(all[i], true, 2, 256));
        assert_false(hopper_runs(all[i], true, 1, 128));
        assert_false(hopper_runs(all[i], false, 2, 128));
    }
}

TEST(the_latent_hopper_kernel_runs_on_9_0_alone_and_for_16_bit_caches)
{
    for (int i = 0; i < DEVICES; i++) {
        assert_int_equal(latent_hopper_runs(all[i], true, 2), all[i] == &h200);
        assert_false(latent_hopper_runs(all[i], true, 1));
        assert_false(latent_hopper_runs(all[i], false, 2));
    }
}

TEST(latent_takes_fewer_stages_before_it_is_left_out)
{
    assert_int_equal(latent_stages(&h200, 2), 3);
    assert_int_equal(latent_stages(&h200, 1), 4);
    assert_int_equal(latent_stages(&b200, 2), 3);
    assert_int_equal(latent_stages(&a100, 2), 2);
    assert_int_equal(latent_stages(&a100, 1), 4);
    assert_int_equal(latent_stages(&l4, 2), 0);
    assert_int_equal(latent_stages(&rtx5090, 1), 0);
}

TEST(a_grid_is_what_is_resident)
{
    for (int i = 0; i < DEVICES; i++)
        for (int w = 0; w < 3; w++)
            for (int element = 1; element <= 2; element++)
                for (int r = 0; r < 2; r++) {
                    int stages = split_stages(all[i], element, widths[w], rows[r]);
                    int bytes = split_bytes(element, widths[w], rows[r], stages);
                    int most = split_ctas(element, widths[w], rows[r]);
                    int ctas = resident_ctas(all[i], bytes, most);
                    assert_true(ctas >= 1 && ctas <= most);
                    assert_true(ctas * (bytes + RESERVED_BYTES) <= all[i]->sm_bytes);
                    if (all[i] == &h200)
                        assert_int_equal(ctas, most);
                }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(every_device_runs_split_and_prefill_at_every_width),
        RUN(only_narrow_devices_run_the_widest_rows_without_a_stage_ahead),
        RUN(the_hopper_kernel_runs_on_9_0_alone_and_when_built),
        RUN(latent_takes_fewer_stages_before_it_is_left_out),
        RUN(the_latent_hopper_kernel_runs_on_9_0_alone_and_for_16_bit_caches),
        RUN(a_grid_is_what_is_resident),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
