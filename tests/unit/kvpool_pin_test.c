/* kvpool_pin_test.c: what eviction may not touch, and what it touches last. */
#include "kvpool/pool.h"
#include "support/kv_drive.h"

static struct kvpool *pool_with_pins(uint32_t blocks, uint32_t budget, uint32_t window)
{
    struct pool_spec spec = { .blocks = blocks,
                              .n_groups = window > 0 ? 2 : 1,
                              .windows = { 0, window } };
    struct kv_layout lay = layout_of(&spec);
    struct kvpool_config cfg = config_of(&spec);
    struct kvpool *p = NULL;
    struct err e;
    cfg.max_pins = 2;
    cfg.pin_budget = budget;
    assert_ok(kvpool_create(&p, &lay, &cfg, &e), e);
    return p;
}

static void pressure(struct kvpool *p, uint32_t seed)
{
    for (uint32_t i = 0; i < 10; i++)
        drive_request(p, seed + i, 15 * 16, 1, 4096);
}

TEST(pinned_prefix_outlives_pressure)
{
    struct kvpool *p = pool_with_pins(40, 10, 0);
    struct err e;
    uint32_t pin, n;
    drive_request(p, 1, 100, 1, 4096);
    fill_text(drive.text, 1, 100);
    assert_ok(kvpool_pin(p, drive.text, 96, NULL, 50, &pin, &n, &e), e);
    assert_int_equal(n, 96); /* whole blocks, the last one too */
    assert_int_equal(drive_stats(p).n_pinned, 6);
    assert_int_equal(drive_stats(p).n_seqs, 0);
    p->n_pinned++; /* broken on purpose: found, named, mended */
    assert_int_equal(kvpool_check(p, &e), ERR_INVALID);
    assert_contains(e.message, "(8): pins name 6 blocks: ledger has 7");
    assert_ledger(p);
    pressure(p, 100);
    assert_int_equal(drive_request(p, 1, 100, 1, 4096), 96);
    assert_int_equal(kvpool_expire_pins(p, 49), 0);
    assert_int_equal(kvpool_expire_pins(p, 50), 1);
    pressure(p, 200);
    assert_int_equal(drive_request(p, 1, 100, 1, 4096), 0);
    assert_pool_idle(p);
    kvpool_destroy(p);
}

TEST(pins_keep_to_their_budget)
{
    struct kvpool *p = pool_with_pins(40, 10, 0);
    struct err e;
    uint32_t a, b, c, n;
    uint64_t need, have;
    assert_false(kvpool_can_ever_fit(p, 31 * 16, 16, &need, &have));
    assert_int_equal(have, 30);
    drive_request(p, 1, 100, 1, 4096);
    drive_request(p, 2, 100, 1, 4096);
    fill_text(drive.text, 3, 100);
    assert_int_equal(kvpool_pin(p, drive.text, 100, NULL, 9, &a, &n, &e), ERR_NOT_FOUND);
    assert_int_equal(kvpool_pin(p, drive.text, 0, NULL, 9, &a, &n, &e), ERR_NOT_FOUND);
    assert_int_equal(kvpool_pin(p, drive.text, 8193, NULL, 9, &a, &n, &e), ERR_LIMIT);
    fill_text(drive.text, 1, 100);
    assert_ok(kvpool_pin(p, drive.text, 100, NULL, 9, &a, &n, &e), e);
    fill_text(drive.text, 2, 100);
    assert_int_equal(kvpool_pin(p, drive.text, 100, NULL, 9, &b, &n, &e), ERR_BUSY);
    assert_contains(e.message, "6 KV blocks to pin and 6 pinned: the budget is 10");
    assert_ok(kvpool_pin(p, drive.text, 64, NULL, 9, &b, &n, &e), e);
    assert_int_equal(kvpool_pin(p, drive.text, 0 + 16, NULL, 9, &c, &n, &e), ERR_BUSY);
    kvpool_unpin(p, a);
    assert_int_equal(drive_stats(p).n_pinned, 4);
    assert_ok(kvpool_pin(p, drive.text, 16, NULL, 9, &c, &n, &e), e);
    assert_int_equal(kvpool_pin(p, drive.text, 16, NULL, 9, &a, &n, &e), ERR_BUSY);
    assert_contains(e.message, "2 pins are set: at most 2");
    assert_ledger(p);
    assert_int_equal(kvpool_expire_pins(p, 9), 2);
    assert_pool_idle(p);
    kvpool_destroy(p);
}

TEST(pins_hold_window_tails)
{
    struct kvpool *p = pool_with_pins(60, 20, 48);
    struct err e;
    uint32_t pin, n;
    drive_request(p, 1, 161, 1, 4096);
    fill_text(drive.text, 1, 161);
    assert_ok(kvpool_pin(p, drive.text, 161, NULL, 1, &pin, &n, &e), e);
    assert_int_equal(n, 160);
    assert_int_equal(drive_stats(p).n_pinned, 10 + 3);
    pressure(p, 100);
    assert_int_equal(drive_request(p, 1, 161, 1, 4096), 160);
    kvpool_unpin(p, pin);
    assert_pool_idle(p);
    kvpool_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(pinned_prefix_outlives_pressure),
        RUN(pins_keep_to_their_budget),
        RUN(pins_hold_window_tails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
