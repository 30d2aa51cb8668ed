/* kvpool_map_test.c: the block map says what is so: states, holders, pins, and the
 * order in which blocks will really be handed out. */
#include "kvpool/kvpool.h"
#include "support/kv_drive.h"

static struct kvpool_block map[64];

static uint32_t count(uint32_t n, enum kvpool_state state)
{
    uint32_t k = 0;
    for (uint32_t i = 0; i < n; i++)
        k += map[i].state == state;
    return k;
}

static struct kvpool *pool_with_a_pin(void)
{
    struct pool_spec spec = { .blocks = 40, .n_groups = 1 };
    struct kv_layout lay = layout_of(&spec);
    struct kvpool_config cfg = config_of(&spec);
    struct kvpool *p = NULL;
    struct err e;
    uint32_t pin, n;
    cfg.max_pins = 2;
    cfg.pin_budget = 10;
    assert_ok(kvpool_create(&p, &lay, &cfg, &e), e);
    drive_request(p, 1, 100, 1, 4096); /* 6 published, 1 not */
    fill_text(drive.text, 1, 100);
    assert_ok(kvpool_pin(p, drive.text, 48, NULL, 50, &pin, &n, &e), e);
    return p;
}

TEST(states_holders_and_pins)
{
    struct kvpool *p = pool_with_a_pin();
    seq_id s = drive_open(p, 1, 100);
    assert_int_equal(kvpool_map(p, 0, 64, map), 40);
    assert_int_equal(count(40, KVPOOL_HELD), 6);
    assert_int_equal(count(40, KVPOOL_FREE), 34);
    uint32_t n_pinned = 0, n_refs = 0, n;
    for (uint32_t i = 0; i < 40; i++) {
        n_pinned += map[i].n_pins;
        n_refs += map[i].n_refs;
        assert_int_equal(map[i].published, map[i].state == KVPOOL_HELD);
        assert_int_equal(map[i].evict_order == UINT32_MAX, map[i].state == KVPOOL_HELD);
        assert_true(map[i].published || map[i].prefix == 0);
    }
    assert_int_equal(n_pinned, 3);
    assert_int_equal(n_refs, 9); /* the sequence's 6 and the pin's 3 */
    const blk_id *row = kvpool_table(p, s, 0, &n);
    assert_int_equal(n, 6);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(map[row[i]].n_refs, i < 3 ? 2 : 1);
        for (uint32_t j = 0; j < i; j++)
            assert_true(map[row[i]].prefix != map[row[j]].prefix);
    }
    /* While a step is in flight, what is given up rests. */
    kvpool_launch(p, 5);
    kvpool_close(p, s);
    kvpool_map(p, 0, 64, map);
    assert_int_equal(count(40, KVPOOL_RESTING), 3);
    kvpool_retire(p, 5);
    kvpool_launch(p, 9);
    kvpool_retire(p, 9);
    kvpool_map(p, 0, 64, map);
    assert_int_equal(count(40, KVPOOL_CACHED), 3);
    for (uint32_t i = 0; i < 40; i++)
        if (map[i].state == KVPOOL_CACHED)
            assert_int_equal(map[i].age_steps, 4);
    kvpool_destroy(p);
}

TEST(pages_are_parts_of_the_whole)
{
    struct kvpool *p = pool_with_a_pin();
    struct kvpool_block page[7];
    kvpool_map(p, 0, 64, map);
    for (uint32_t first = 0; first < 40; first += 7) {
        uint32_t n = kvpool_map(p, first, 7, page);
        assert_int_equal(n, 40 - first < 7 ? 40 - first : 7);
        for (uint32_t i = 0; i < n; i++) {
            assert_int_equal(page[i].state, map[first + i].state);
            assert_int_equal(page[i].evict_order, map[first + i].evict_order);
            assert_int_equal(page[i].n_pins, map[first + i].n_pins);
        }
    }
    assert_int_equal(kvpool_map(p, 40, 7, page), 0);
    assert_int_equal(kvpool_map(p, UINT32_MAX, 7, page), 0);
    kvpool_destroy(p);
}

/* Hand out one block after another: each is the one that the map names next. */
TEST(evict_order_comes_true)
{
    struct kvpool *p = pool_with_a_pin();
    for (uint32_t i = 0; i < 3; i++) {
        fill_text(drive.text, 20 + i, 100);
        seq_id s = drive_open_text(p, 100, NULL);
        drive_text_to(p, s, 100, 4096);
        kvpool_close(p, s);
    }
    seq_id s = drive_open(p, 99, 16 * 37);
    for (uint32_t left = 37; left > 0; left--) {
        struct err e;
        uint32_t next = UINT32_MAX, n;
        kvpool_map(p, 0, 64, map);
        for (uint32_t b = 0; b < 40; b++) {
            if (map[b].evict_order == 0)
                next = b;
            assert_true(map[b].evict_order == UINT32_MAX || map[b].evict_order < left);
        }
        assert_ok(kvpool_reserve(p, s, 16, &e), e);
        const blk_id *row = kvpool_table(p, s, 0, &n);
        assert_int_equal(row[n - 1], next);
        kvpool_commit(p, s, drive.text + 16 * (n - 1), 16);
    }
    kvpool_close(p, s);
    kvpool_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(states_holders_and_pins),
        RUN(pages_are_parts_of_the_whole),
        RUN(evict_order_comes_true),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
