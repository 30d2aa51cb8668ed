/* kvpool_test.c: blocks and sequences: reserve, commit, roll back, fork, rest. */
#include "kvpool/kvpool.h"
#include "support/kv_fixture.h"
#include "support/rng.h"

static int32_t text[8192];

static seq_id open_seq(struct kvpool *p, uint32_t seed, uint32_t n, uint32_t *cached)
{
    seq_id s;
    uint32_t c;
    struct err e;
    fill_text(text, seed, n);
    assert_ok(kvpool_open(p, text, n, NULL, &s, &c, &e), e);
    if (cached != NULL)
        *cached = c;
    return s;
}

/* Compute n more tokens of text `seed` in one step. */
static void advance(struct kvpool *p, seq_id s, uint32_t seed, uint32_t n)
{
    struct err e;
    uint32_t at = kvpool_length(p, s);
    assert_ok(kvpool_reserve(p, s, n, &e), e);
    fill_text(text, seed, at + n);
    kvpool_commit(p, s, text + at, n);
}

static struct kvpool_stats stats_of(const struct kvpool *p)
{
    struct kvpool_stats st;
    kvpool_stats(p, &st);
    return st;
}

static void assert_idle(struct kvpool *p)
{
    struct kvpool_stats st = stats_of(p);
    assert_int_equal(st.n_held + st.n_resting + st.n_seqs, 0);
    assert_int_equal(st.n_free + st.n_cached, st.n_blocks);
    assert_ledger(p);
}

TEST(create_rejects_what_cannot_work)
{
    struct pool_spec spec = { .blocks = 8, .n_groups = 2, .windows = { 0, 32 } };
    struct kv_layout lay = layout_of(&spec);
    struct kvpool *p = NULL;
    struct err e;
#define REJECTED(field, value, text_)                                                              \
    do {                                                                                           \
        struct kvpool_config c = config_of(&spec);                                                 \
        c.field = value;                                                                           \
        assert_int_equal(kvpool_create(&p, &lay, &c, &e), ERR_INVALID);                            \
        assert_contains(e.message, text_);                                                         \
        assert_null(p);                                                                            \
    } while (0)
    REJECTED(n_blocks, 1, "1 KV blocks: one token needs 2");
    REJECTED(n_blocks, 1u << 30, "at most 2147483647 slots");
    REJECTED(max_seqs, 0, "max_seqs 0");
    REJECTED(max_seqs, 65536, "max_seqs 65536");
    REJECTED(max_seq_tokens, 0, "max_seq_tokens 0");
    REJECTED(max_chunk, 0, "max_chunk 0");
    REJECTED(max_pins, 65535, "max_pins 65535: expected at most 65519");
    REJECTED(pin_budget, 7, "pin budget 7 of 8 KV blocks: expected at most 6");
    lay.n_groups = 0;
    REJECTED(max_pins, 0, "layout with 0 groups");
    kvpool_destroy(NULL);
}

TEST(limits_refuse_and_change_nothing)
{
    struct kvpool *p = pool_of(.blocks = 4, .seqs = 2, .seq_tokens = 100, .chunk = 50);
    struct err e;
    seq_id s, t, u;
    uint32_t cached;
    fill_text(text, 1, 200);
    assert_int_equal(kvpool_open(p, text, 0, NULL, &s, &cached, &e), ERR_INVALID);
    assert_int_equal(kvpool_open(p, text, 101, NULL, &s, &cached, &e), ERR_LIMIT);
    assert_contains(e.message, "101 tokens: at most 100");
    s = open_seq(p, 1, 100, NULL);
    t = open_seq(p, 2, 10, NULL);
    assert_int_equal(kvpool_open(p, text, 5, NULL, &u, &cached, &e), ERR_BUSY);
    assert_int_equal(kvpool_reserve(p, s, 51, &e), ERR_LIMIT);
    advance(p, s, 1, 50); /* 4 blocks */
    assert_int_equal(kvpool_reserve_cost(p, s, 14), 0);
    assert_int_equal(kvpool_reserve_cost(p, s, 15), 1);
    assert_int_equal(kvpool_reserve(p, s, 15, &e), ERR_BUSY);
    assert_contains(e.message, "1 KV blocks wanted: 0 idle of 4");
    assert_ok(kvpool_reserve(p, s, 14, &e), e);
    assert_int_equal(kvpool_reserve(p, s, 37, &e), ERR_LIMIT);
    assert_int_equal(kvpool_reserve(p, t, 1, &e), ERR_BUSY);
    assert_int_equal(kvpool_fork(p, s, &u, &e), ERR_CONFLICT);
    assert_ledger(p);
    kvpool_close(p, s);
    kvpool_close(p, t);
    assert_idle(p);
    uint64_t need, have;
    assert_true(kvpool_can_ever_fit(p, 64, 16, &need, &have));
    assert_int_equal(need, 4);
    assert_int_equal(have, 4);
    assert_false(kvpool_can_ever_fit(p, 65, 16, &need, &have));
    assert_int_equal(need, 5);
    kvpool_destroy(p);
}

TEST(block_edges)
{
    for (uint32_t prompt = 1; prompt <= 65; prompt++)
        for (uint32_t extra = 0; extra <= 17; extra++) {
            struct kvpool *p = pool_of(.blocks = 16, .no_caching = prompt % 2 == 0);
            seq_id s = open_seq(p, 3, prompt, NULL);
            advance(p, s, 3, prompt);
            for (uint32_t i = 0; i < extra; i++) {
                advance(p, s, 3, 1);
                assert_int_equal(kvpool_held(p, s), (prompt + i + 1 + 15) / 16);
            }
            assert_int_equal(kvpool_length(p, s), prompt + extra);
            assert_int_equal(stats_of(p).n_held, (prompt + extra + 15) / 16);
            assert_int_equal(stats_of(p).tokens_held, prompt + extra);
            assert_int_equal(stats_of(p).tokens_wasted, (16 - (prompt + extra) % 16) % 16);
            assert_ledger(p);
            kvpool_close(p, s);
            assert_idle(p);
            kvpool_destroy(p);
        }
}

TEST(table_rows_are_distinct_blocks_by_position)
{
    struct kvpool *p = pool_of(.blocks = 32, .n_groups = 2);
    seq_id s = open_seq(p, 1, 100, NULL);
    advance(p, s, 1, 100);
    bool seen[32] = { false };
    for (uint32_t g = 0; g < 2; g++) {
        uint32_t n;
        const blk_id *row = kvpool_table(p, s, g, &n);
        assert_int_equal(n, 7);
        for (uint32_t i = 0; i < n; i++) {
            assert_in_range(row[i], 0, 31);
            assert_false(seen[row[i]]);
            seen[row[i]] = true;
        }
    }
    kvpool_destroy(p);
}

TEST(rollback_undoes)
{
    struct kvpool *p = pool_of(.blocks = 8, .seqs = 4);
    struct err e;
    seq_id s = open_seq(p, 1, 60, NULL);
    advance(p, s, 1, 20);
    assert_ok(kvpool_reserve(p, s, 40, &e), e);
    assert_int_equal(kvpool_held(p, s), 4);
    kvpool_rollback(p, s);
    assert_int_equal(kvpool_held(p, s), 2);
    assert_int_equal(stats_of(p).n_free, 6);
    kvpool_rollback(p, s); /* nothing left: harmless */
    assert_int_equal(kvpool_held(p, s), 2);
    assert_ledger(p);
    /* Two reservations, undone one by one. */
    assert_ok(kvpool_reserve(p, s, 12, &e), e);
    assert_ok(kvpool_reserve(p, s, 1, &e), e);
    assert_int_equal(kvpool_held(p, s), 3);
    kvpool_rollback(p, s);
    assert_int_equal(kvpool_held(p, s), 2);
    fill_text(text, 1, 40);
    kvpool_commit(p, s, text + 20, 12);
    assert_int_equal(kvpool_length(p, s), 32);
    /* A part of a reservation is committed, the rest given back. */
    assert_ok(kvpool_reserve(p, s, 28, &e), e);
    fill_text(text, 1, 60);
    kvpool_commit(p, s, text + 32, 5);
    assert_int_equal(kvpool_held(p, s), 4);
    kvpool_rollback(p, s);
    assert_int_equal(kvpool_held(p, s), 3);
    assert_int_equal(kvpool_length(p, s), 37);
    assert_ledger(p);
    kvpool_close(p, s);
    assert_idle(p);
    kvpool_destroy(p);
}

TEST(rollback_before_launch_frees_at_once)
{
    struct kvpool *p = pool_of(.blocks = 4);
    struct err e;
    seq_id s = open_seq(p, 1, 64, NULL);
    kvpool_launch(p, 1);
    assert_ok(kvpool_reserve(p, s, 64, &e), e);
    kvpool_rollback(p, s); /* step 1 never saw these blocks */
    assert_int_equal(stats_of(p).n_free, 4);
    assert_ok(kvpool_reserve(p, s, 64, &e), e);
    kvpool_launch(p, 2);
    kvpool_rollback(p, s); /* step 2 may write to them */
    assert_int_equal(stats_of(p).n_resting, 4);
    kvpool_retire(p, 1);
    assert_int_equal(stats_of(p).n_resting, 4);
    kvpool_retire(p, 2);
    assert_int_equal(stats_of(p).n_free, 4);
    assert_ledger(p);
    kvpool_destroy(p);
}

TEST(freed_blocks_rest_while_a_step_runs)
{
    struct kvpool *p = pool_of(.blocks = 8, .seqs = 4);
    struct err e;
    seq_id s = open_seq(p, 1, 64, NULL), t = open_seq(p, 2, 64, NULL);
    advance(p, s, 1, 64);
    kvpool_launch(p, 7);
    kvpool_close(p, s);
    assert_int_equal(stats_of(p).n_resting, 4);
    advance(p, t, 2, 64);
    assert_int_equal(stats_of(p).n_held, 4);
    assert_int_equal(kvpool_reserve(p, t, 1, &e), ERR_BUSY);
    /* A resting published block is still a hit. */
    uint32_t cached;
    s = open_seq(p, 1, 64, &cached);
    assert_int_equal(cached, 48);
    assert_int_equal(stats_of(p).n_resting, 1);
    kvpool_close(p, s);
    assert_int_equal(stats_of(p).n_resting, 4);
    assert_ledger(p);
    kvpool_retire(p, 7);
    assert_int_equal(stats_of(p).n_resting, 0);
    assert_int_equal(stats_of(p).n_cached, 4);
    assert_int_equal(stats_of(p).oldest_cached_step, 7);
    assert_ok(kvpool_reserve(p, t, 1, &e), e);
    kvpool_close(p, t);
    assert_idle(p);
    kvpool_destroy(p);
}

TEST(forks_share_and_copy_on_write)
{
    struct kvpool *p = pool_of(.blocks = 16, .seqs = 8);
    struct err e;
    seq_id s[4];
    s[0] = open_seq(p, 1, 35, NULL);
    advance(p, s[0], 1, 35);
    for (int i = 1; i < 4; i++)
        assert_ok(kvpool_fork(p, s[0], &s[i], &e), e);
    assert_int_equal(stats_of(p).n_held, 3); /* the prompt once */
    assert_int_equal(kvpool_gain(p, s[0]), 0);
    assert_int_equal(kvpool_reserve_cost(p, s[1], 1), 1);
    for (int i = 0; i < 4; i++)
        assert_ok(kvpool_reserve(p, s[i], 1, &e), e);
    uint32_t n;
    const struct plan_copy *c = kvpool_take_copies(p, &n);
    assert_int_equal(n, 3); /* the last writes in place */
    uint32_t cols;
    blk_id original = kvpool_table(p, s[3], 0, &cols)[2];
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(c[i].from, original);
        assert_int_equal(c[i].to, kvpool_table(p, s[i], 0, &cols)[2]);
    }
    assert_ledger(p);
    for (int i = 0; i < 4; i++) {
        int32_t tok = 100 + i;
        kvpool_commit(p, s[i], &tok, 1);
    }
    assert_int_equal(stats_of(p).n_held, 2 + 4);
    assert_int_equal(kvpool_gain(p, s[2]), 1);
    for (int i = 0; i < 4; i++)
        assert_int_equal(kvpool_reserve_cost(p, s[i], 1), 0);
    assert_ledger(p);
    for (int i = 0; i < 4; i++)
        kvpool_close(p, s[i]);
    assert_idle(p);
    assert_int_equal(stats_of(p).copies, 3);
    kvpool_destroy(p);
}

TEST(rollback_of_a_copy_restores_the_source)
{
    struct kvpool *p = pool_of(.blocks = 16, .seqs = 8);
    struct err e;
    uint32_t n;
    seq_id a = open_seq(p, 1, 20, NULL), b;
    advance(p, a, 1, 20);
    assert_ok(kvpool_fork(p, a, &b, &e), e);
    blk_id before = kvpool_table(p, a, 0, &n)[1];
    assert_ok(kvpool_reserve(p, a, 1, &e), e);
    assert_int_not_equal(kvpool_table(p, a, 0, &n)[1], before);
    kvpool_rollback(p, a);
    assert_int_equal(kvpool_table(p, a, 0, &n)[1], before);
    kvpool_take_copies(p, &n);
    assert_int_equal(n, 0);
    /* The source outlives the sibling that held it, until the copy has run. */
    assert_ok(kvpool_reserve(p, a, 1, &e), e);
    kvpool_close(p, b);
    assert_ledger(p);
    assert_int_equal(stats_of(p).n_held, 3);
    kvpool_rollback(p, a);
    assert_int_equal(kvpool_table(p, a, 0, &n)[1], before);
    assert_ledger(p);
    /* Sole owner again: no copy. */
    assert_int_equal(kvpool_reserve_cost(p, a, 1), 0);
    /* A sibling writes in place while we hold only the copy; then we roll back. */
    assert_ok(kvpool_fork(p, a, &b, &e), e);
    assert_ok(kvpool_reserve(p, a, 1, &e), e);
    assert_ok(kvpool_reserve(p, b, 1, &e), e);
    assert_int_equal(kvpool_table(p, b, 0, &n)[1], before);
    kvpool_rollback(p, a);
    assert_ledger(p);
    int32_t tok = 5;
    kvpool_commit(p, b, &tok, 1);
    assert_ledger(p);
    assert_int_equal(kvpool_reserve_cost(p, b, 1), 1); /* we read it: now b copies */
    /* Close with an open reservation and a pending copy. */
    assert_ok(kvpool_reserve(p, b, 1, &e), e);
    kvpool_close(p, b);
    kvpool_take_copies(p, &n);
    assert_int_equal(n, 0);
    kvpool_close(p, a);
    assert_idle(p);
    kvpool_destroy(p);
}

/* A copy that was rolled back must find its source as it was, even when the
 * source's other reader is behind and would write where the copy reads. */
TEST(a_copy_that_reads_further_keeps_its_source)
{
    struct kvpool *p = pool_of(.blocks = 16, .seqs = 8);
    struct err e;
    seq_id a = open_seq(p, 1, 20, NULL), c;
    uint32_t n;
    int32_t tok = 5;
    advance(p, a, 1, 20);
    assert_ok(kvpool_fork(p, a, &c, &e), e);
    blk_id x = kvpool_table(p, a, 0, &n)[1];
    assert_ok(kvpool_reserve(p, a, 1, &e), e); /* a copies */
    assert_ok(kvpool_reserve(p, c, 1, &e), e); /* c writes x at 20 */
    kvpool_rollback(p, a);
    kvpool_commit(p, c, &tok, 1);              /* c reads x up to 21, a up to 20 */
    assert_ok(kvpool_reserve(p, c, 1, &e), e); /* c copies x up to 21 */
    assert_int_equal(kvpool_reserve_cost(p, a, 1), 1);
    assert_ok(kvpool_reserve(p, a, 1, &e), e); /* a may not write x at 20 */
    assert_int_not_equal(kvpool_table(p, a, 0, &n)[1], x);
    assert_ledger(p);
    kvpool_rollback(p, c);
    assert_int_equal(kvpool_table(p, c, 0, &n)[1], x);
    assert_ledger(p);
    kvpool_commit(p, a, &tok, 1);
    assert_int_equal(kvpool_reserve_cost(p, c, 1), 0); /* x is c's alone now */
    kvpool_close(p, a);
    kvpool_close(p, c);
    assert_idle(p);
    kvpool_destroy(p);
}

TEST(filled_by_a_sibling_is_copied_before_written)
{
    struct kvpool *p = pool_of(.blocks = 16, .seqs = 8);
    struct err e;
    seq_id a = open_seq(p, 1, 20, NULL), b;
    uint32_t n;
    advance(p, a, 1, 20);
    assert_ok(kvpool_fork(p, a, &b, &e), e);
    assert_ok(kvpool_reserve(p, a, 1, &e), e);  /* a copies */
    assert_ok(kvpool_reserve(p, b, 12, &e), e); /* b in place */
    kvpool_rollback(p, a);
    fill_text(text, 1, 32);
    kvpool_commit(p, b, text + 20, 12); /* b's block is full and published */
    kvpool_close(p, b);
    assert_ledger(p);
    assert_int_equal(kvpool_reserve_cost(p, a, 1), 1);
    assert_ok(kvpool_reserve(p, a, 1, &e), e);
    kvpool_take_copies(p, &n);
    assert_int_equal(n, 1);
    int32_t tok = 77;
    kvpool_commit(p, a, &tok, 1);
    assert_ledger(p);
    kvpool_close(p, a);
    assert_idle(p);
    kvpool_destroy(p);
}

TEST(no_block_is_lost_over_traffic)
{
    struct kvpool *p = pool_of(.blocks = 64, .seqs = 8, .n_groups = 2, .windows = { 0, 48 });
    struct rng r = { 42 };
    struct err e;
    for (int i = 0; i < 2000; i++) {
        uint32_t seed = rng_below(&r, 12), n = 1 + rng_below(&r, 120);
        seq_id s = open_seq(p, seed, n, NULL);
        while (kvpool_length(p, s) < n && rng_below(&r, 8) != 0) {
            uint32_t c = 1 + rng_below(&r, n - kvpool_length(p, s));
            if (kvpool_reserve(p, s, c, &e) != ERR_OK)
                break;
            fill_text(text, seed, n);
            if (rng_below(&r, 4) != 0)
                kvpool_commit(p, s, text + kvpool_length(p, s), c);
        }
        kvpool_close(p, s);
        struct kvpool_stats st = stats_of(p);
        assert_int_equal(st.n_free + st.n_cached + st.n_held, 64);
    }
    assert_idle(p);
    kvpool_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(create_rejects_what_cannot_work),
        RUN(limits_refuse_and_change_nothing),
        RUN(block_edges),
        RUN(table_rows_are_distinct_blocks_by_position),
        RUN(rollback_undoes),
        RUN(rollback_before_launch_frees_at_once),
        RUN(freed_blocks_rest_while_a_step_runs),
        RUN(forks_share_and_copy_on_write),
        RUN(rollback_of_a_copy_restores_the_source),
        RUN(a_copy_that_reads_further_keeps_its_source),
        RUN(filled_by_a_sibling_is_copied_before_written),
        RUN(no_block_is_lost_over_traffic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
