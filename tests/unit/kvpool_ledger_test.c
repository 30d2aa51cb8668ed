/* kvpool_ledger_test.c: each invariant, broken on purpose, is named by its
 * number, contained, and leaves a pool that serves on. */
#include "kvpool/blocks.h"
#include "kvpool/lists.h"
#include "kvpool/nodes.h"
#include "support/kv_drive.h"

/* Two open sequences (one reserved), a cached chain and free blocks. */
struct scene {
    struct kvpool *p;
    seq_id a, b;
};

static struct scene setup(void)
{
    struct err e;
    struct scene s = { .p = pool_of(.blocks = 64, .n_groups = 2, .windows = { 0, 32 }) };
    drive_request(s.p, 1, 100, 1, 4096);
    s.a = drive_open(s.p, 2, 60);
    drive_to(s.p, s.a, 2, 50, 4096);
    s.b = drive_open(s.p, 3, 60);
    drive_to(s.p, s.b, 3, 30, 4096);
    assert_ok(kvpool_reserve(s.p, s.b, 10, &e), e);
    assert_ledger(s.p);
    return s;
}

static blk_id entry(const struct scene *s, seq_id id, uint32_t g, uint32_t col)
{
    uint32_t n;
    return kvpool_table(s->p, id, g, &n)[col];
}

/* The violation is found once, under its number; the next check is clean; the
 * quarantined blocks never come out again, the others all do. */
static void expect_contained(struct scene *s, const char *number, uint32_t least_quarantined)
{
    struct err e;
    assert_int_equal(kvpool_check(s->p, &e), ERR_INVALID);
    assert_contains(e.message, number);
    assert_true(drive_stats(s->p).violations > 0);
    assert_ledger(s->p);
    fill_text(drive.text, 3, 60);
    kvpool_commit(s->p, s->b, drive.text + 30, 10);
    drive_to(s->p, s->a, 2, 60, 3);
    assert_ledger(s->p);
    kvpool_close(s->p, s->a);
    kvpool_close(s->p, s->b);
    assert_pool_idle(s->p);
    uint64_t q = drive_stats(s->p).quarantined;
    assert_true(q >= least_quarantined && q <= 8);
    uint64_t need, have;
    kvpool_can_ever_fit(s->p, 16, 16, &need, &have);
    assert_int_equal(have, 64 - q);
    /* All that is left can be handed out. */
    seq_id big[64];
    struct err busy;
    uint32_t n = 0;
    for (; n < 16; n++) {
        big[n] = drive_open(s->p, 100 + n, 32);
        if (kvpool_reserve(s->p, big[n], 32, &busy) != ERR_OK)
            break;
    }
    assert_int_equal(n, (64 - q) / 4 < 16 ? (64 - q) / 4 : 16);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t g = 0; g < 2; g++)
            for (uint32_t c = 0; c < 2; c++)
                assert_int_not_equal(kvpool_blk(s->p, entry(s, big[i], g, c))->state,
                                     BLK_QUARANTINED);
    assert_ledger(s->p);
    kvpool_destroy(s->p);
}

TEST(wrong_reference_count)
{
    struct scene s = setup();
    kvpool_blk(s.p, entry(&s, s.a, 0, 1))->ref++;
    assert_false(kvpool_damaged(s.p, s.a));
    expect_contained(&s, "(1)", 1);
    s = setup();
    kvpool_blk(s.p, entry(&s, s.a, 0, 1))->sources++;
    expect_contained(&s, "(1)", 1);
}

TEST(wrong_state)
{
    struct scene s = setup();
    kvpool_blk(s.p, entry(&s, s.b, 0, 0))->state = BLK_FREE;
    expect_contained(&s, "(2)", 1);
    s = setup();
    s.p->n_held++;
    expect_contained(&s, "(2)", 0);
}

TEST(free_with_a_hash)
{
    struct scene s = setup();
    kvpool_blk(s.p, s.p->free.head)->node = kvpool_blk(s.p, kvpool_oldest(s.p))->node;
    expect_contained(&s, "(3)", 1);
    s = setup();
    kvpool_blk(s.p, kvpool_oldest(s.p))->node = NIL;
    expect_contained(&s, "(3)", 1);
}

TEST(reservation_over_something_shared)
{
    struct scene s = setup();
    struct err e;
    /* Sequence a's table now reads the block that b has reserved. */
    blk_id shared = entry(&s, s.b, 0, 1);
    kvpool_blk_drop(s.p, entry(&s, s.a, 0, 3), false);
    kvpool_row(s.p, &s.p->seq[s.a], 0)[3] = shared;
    kvpool_blk_hold(s.p, shared);
    assert_int_equal(kvpool_check(s.p, &e), ERR_INVALID);
    assert_contains(e.message, "(4)");
    assert_ledger(s.p); /* reported once */
    kvpool_close(s.p, s.a);
    kvpool_rollback(s.p, s.b);
    kvpool_close(s.p, s.b);
    assert_pool_idle(s.p);
    kvpool_destroy(s.p);
}

TEST(two_reservations_for_one_block)
{
    struct scene s = setup();
    struct err e;
    assert_ok(kvpool_reserve(s.p, s.a, 5, &e), e); /* tokens 50..54, in column 3 */
    blk_id mine = entry(&s, s.b, 0, 2);            /* b's 30..39 reach column 2 */
    kvpool_blk_drop(s.p, entry(&s, s.a, 0, 3), false);
    kvpool_row(s.p, &s.p->seq[s.a], 0)[3] = mine;
    kvpool_blk_hold(s.p, mine);
    assert_int_equal(kvpool_check(s.p, &e), ERR_INVALID);
    assert_contains(e.message, "(4): sequences 0 and 1 will write to block");
    assert_true(kvpool_damaged(s.p, s.a) && kvpool_damaged(s.p, s.b));
    assert_ledger(s.p);
    kvpool_destroy(s.p);
    s = setup();
    /* b's reserved block is published under a node that has none. */
    uint32_t node = s.p->seq[s.a].node;
    blk_id was = kvpool_node_blocks(s.p, node)[1], target = entry(&s, s.b, 1, 2);
    if (was != BLK_NONE)
        kvpool_blk(s.p, was)->node = NIL;
    else
        kvpool_node(s.p, node)->n_resident++;
    kvpool_node_blocks(s.p, node)[1] = target;
    kvpool_blk(s.p, target)->node = node;
    assert_int_equal(kvpool_check(s.p, &e), ERR_INVALID);
    assert_contains(e.message, "it is published");
    assert_ledger(s.p);
    kvpool_destroy(s.p);
}

TEST(published_text_differs)
{
    struct scene s = setup();
    struct err e;
    s.p->seq[s.a].tokens[20] ^= 1;
    assert_int_equal(kvpool_check(s.p, &e), ERR_INVALID);
    assert_contains(e.message, "(5)");
    s.p->seq[s.a].tokens[20] ^= 1;
    assert_ledger(s.p);
    s.p->seq[s.a].n_published++;
    assert_int_equal(kvpool_check(s.p, &e), ERR_INVALID);
    assert_contains(e.message, "(5)");
    kvpool_destroy(s.p);
}

TEST(index_disagrees)
{
    struct scene s = setup();
    uint32_t n = kvpool_blk(s.p, kvpool_oldest(s.p))->node;
    kvpool_node(s.p, n)->n_resident++;
    expect_contained(&s, "(6)", 0);
    s = setup();
    blk_id b = entry(&s, s.a, 0, 0);
    kvpool_node_blocks(s.p, kvpool_blk(s.p, b)->node)[0] = (blk_id)s.p->free.head;
    expect_contained(&s, "(6)", 1);
    s = setup();
    kvpool_node(s.p, s.p->seq[s.a].node)->refs++;
    expect_contained(&s, "(6)", 0);
    s = setup();
    s.p->bucket[kvpool_node(s.p, n)->bucket].used = 0;
    expect_contained(&s, "(6)", 0);
    s = setup();
    s.p->bucket[kvpool_node(s.p, n)->bucket].n_elsewhere++;
    expect_contained(&s, "(6)", 0);
    s = setup();
    kvpool_node(s.p, s.p->n_nodes - 2)->stacked = false;
    expect_contained(&s, "(6)", 0);
}

TEST(table_entry_out_of_range)
{
    struct scene s = setup();
    kvpool_row(s.p, &s.p->seq[s.a], 0)[0] = 64;
    struct err e;
    assert_int_equal(kvpool_check(s.p, &e), ERR_INVALID);
    assert_contains(e.message, "(7)");
    assert_contains(e.message, "64: expected 0..63");
    assert_true(kvpool_damaged(s.p, s.a));
    assert_false(kvpool_damaged(s.p, s.b));
    assert_ledger(s.p);
    kvpool_close(s.p, s.a);
    kvpool_close(s.p, s.b);
    assert_pool_idle(s.p);
    kvpool_destroy(s.p);
    s = setup();
    kvpool_row(s.p, &s.p->seq[s.a], 1)[0] = 5; /* below the window */
    expect_contained(&s, "(7)", 0);
}

TEST(window_left_too_early)
{
    struct scene s = setup();
    struct err e;
    s.p->seq[s.a].first[0] = 1;
    assert_int_equal(kvpool_check(s.p, &e), ERR_INVALID);
    assert_contains(e.message, "(7): sequence 0 group 0: mapped from column 1, window needs 0");
    kvpool_destroy(s.p);
}

TEST(cached_count_disagrees)
{
    struct scene s = setup();
    s.p->cached.n++;
    expect_contained(&s, "(", 0);
}

TEST(a_violation_while_blocks_rest)
{
    struct scene s = setup();
    kvpool_launch(s.p, 5);
    seq_id c = drive_open(s.p, 4, 40);
    drive_to(s.p, c, 4, 40, 4096);
    kvpool_close(s.p, c);
    uint64_t resting = drive_stats(s.p).n_resting;
    assert_true(resting > 0);
    s.p->n_held++;
    assert_int_equal(kvpool_check(s.p, NULL), ERR_INVALID);
    assert_int_equal(drive_stats(s.p).n_resting, resting);
    assert_ledger(s.p);
    kvpool_retire(s.p, 5);
    assert_int_equal(drive_stats(s.p).n_resting, 0);
    assert_ledger(s.p);
    kvpool_destroy(s.p);
}

TEST(group_sums)
{
    struct scene s = setup();
    s.p->group_held[1]--;
    expect_contained(&s, "(8)", 0);
    s = setup();
    kvpool_blk(s.p, entry(&s, s.b, 1, 0))->group = 0;
    expect_contained(&s, "(8)", 1);
}

TEST(lists_that_lead_astray)
{
    struct scene s = setup();
    uint32_t h = s.p->free.head;
    kvpool_blk(s.p, kvpool_blk(s.p, h)->next)->next = h; /* a cycle */
    struct err e;
    assert_int_equal(kvpool_check(s.p, &e), ERR_INVALID);
    assert_contains(e.message, "(9)");
    assert_ledger(s.p);
    assert_true(drive_stats(s.p).quarantined > 0); /* what the list lost */
    kvpool_destroy(s.p);
    s = setup();
    kvpool_blk(s.p, kvpool_oldest(s.p))->step = 9; /* the others: 0 */
    expect_contained(&s, "(9)", 1);
    s = setup();
    s.p->cached.tail[0] = h;
    expect_contained(&s, "(9)", 0);
    s = setup();
    kvpool_blk(s.p, kvpool_oldest(s.p))->stripe ^= 1;
    expect_contained(&s, "(9)", 1);
    s = setup();
    s.p->cached.first[s.p->cached.put] = 1000; /* of 12 cached */
    expect_contained(&s, "(9)", 1);
    s = setup();
    s.p->free.n--;
    expect_contained(&s, "(2)", 0);
    s = setup();
    kvpool_blk(s.p, h)->prev = 3;
    expect_contained(&s, "(9)", 1);
}

TEST(check_is_dated)
{
    struct scene s = setup();
    kvpool_launch(s.p, 17);
    kvpool_retire(s.p, 17);
    assert_ledger(s.p);
    assert_int_equal(drive_stats(s.p).checked_step, 17);
    assert_int_equal(drive_stats(s.p).violations, 0);
    kvpool_destroy(s.p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(wrong_reference_count),
        RUN(wrong_state),
        RUN(free_with_a_hash),
        RUN(reservation_over_something_shared),
        RUN(two_reservations_for_one_block),
        RUN(published_text_differs),
        RUN(index_disagrees),
        RUN(table_entry_out_of_range),
        RUN(window_left_too_early),
        RUN(cached_count_disagrees),
        RUN(a_violation_while_blocks_rest),
        RUN(group_sums),
        RUN(lists_that_lead_astray),
        RUN(check_is_dated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
