/* kvpool_prefix_test.c: what a prompt finds, what it must never find, and why
 * it missed. */
#include "kvpool/lists.h"
#include "kvpool/nodes.h"
#include "kvpool/prefix.h"
#include "support/kv_drive.h"
#include "support/rng.h"

TEST(repeats_hit_whole_blocks)
{
    struct kvpool *p = pool_of(.blocks = 64);
    assert_int_equal(drive_request(p, 1, 53, 64, 4096), 0);
    assert_int_equal(drive_request(p, 1, 53, 64, 4096), 48);
    assert_int_equal(drive_request(p, 1, 53, 64, 4096), 48);
    fill_text(drive.text, 2, 60); /* shares 40 tokens */
    fill_text(drive.text, 1, 40);
    seq_id s = drive_open_text(p, 60, NULL);
    assert_int_equal(drive.cached, 32);
    kvpool_close(p, s);
    assert_pool_idle(p);
    kvpool_destroy(p);
}

TEST(one_token_is_always_recomputed)
{
    static const uint32_t lengths[] = { 16, 64, 1024 };
    for (int i = 0; i < 3; i++) {
        struct kvpool *p = pool_of(.blocks = 128);
        uint32_t n = lengths[i];
        assert_int_equal(drive_request(p, 1, n, 5, 4096), 0);
        assert_int_equal(drive_request(p, 1, n, 5, 4096), n - 16);
        assert_int_equal(kvpool_peek(p, drive.text, n, NULL), n - 16);
        assert_pool_idle(p);
        kvpool_destroy(p);
    }
}

TEST(identical_prompts_in_one_step_end_up_sharing)
{
    struct kvpool *p = pool_of(.blocks = 64);
    struct err e;
    seq_id a = drive_open(p, 1, 70), b = drive_open(p, 1, 70);
    assert_int_equal(drive.cached, 0);
    assert_ok(kvpool_reserve(p, a, 70, &e), e);
    assert_ok(kvpool_reserve(p, b, 70, &e), e);
    assert_int_equal(drive_stats(p).n_held, 10);
    kvpool_commit(p, a, drive.text, 70);
    kvpool_commit(p, b, drive.text, 70);
    assert_int_equal(drive_stats(p).n_held, 6); /* 4 shared, a part-filled one each */
    assert_ledger(p);
    kvpool_close(p, a);
    kvpool_close(p, b);
    assert_int_equal(drive_stats(p).n_cached, 4);
    assert_pool_idle(p);
    kvpool_destroy(p);
}

TEST(evicted_prefix_never_hits)
{
    struct kvpool *p = pool_of(.blocks = 40);
    uint32_t seed = 100;
    for (int pass = 0; pass < 5; pass++) {
        assert_int_equal(drive_request(p, 1, 24 * 16, 1, 4096), 0);
        for (int i = 0; i < 16; i++)
            assert_int_equal(drive_request(p, seed++, 10 * 16, 1, 4096), 0);
        assert_pool_idle(p);
    }
    assert_true(drive_stats(p).evictions > 5 * 160 - 80);
    assert_true(drive_stats(p).miss_evicted >= 3 * 23 * 16); /* resends are known as evicted */
    kvpool_destroy(p);
}

/* Withdraw the cached block at position col of the text, as pressure would. */
static void evict_column(struct kvpool *p, uint32_t n, uint32_t col)
{
    struct prefix_hit hit;
    struct kvpool_key plain = { 0 };
    kvpool_prefix_walk(p, drive.text, n, &plain, p->path, &hit);
    assert_true(hit.n_walked > col);
    blk_id b = kvpool_node_blocks(p, p->path[col])[0];
    assert_int_equal(kvpool_blk(p, b)->state, BLK_CACHED);
    kvpool_uncache(p, (uint32_t)b);
    kvpool_node_withdraw(p, b, true);
    kvpool_blk_make_idle(p, b);
}

TEST(hole_in_the_chain_hides_what_follows)
{
    struct kvpool *p = pool_of(.blocks = 32);
    drive_request(p, 1, 81, 1, 4096);
    evict_column(p, 81, 1);
    assert_ledger(p);
    assert_int_equal(kvpool_peek(p, drive.text, 81, NULL), 16);
    assert_int_equal(drive_request(p, 1, 81, 1, 4096), 16);
    assert_int_equal(drive_request(p, 1, 81, 1, 4096), 80); /* mended */
    assert_pool_idle(p);
    kvpool_destroy(p);
}

TEST(tail_of_the_oldest_chain_goes_first)
{
    struct kvpool *p = pool_of(.blocks = 12);
    drive_request(p, 1, 81, 0, 4096); /* 5 cached, 1 free */
    drive_request(p, 2, 81, 0, 4096); /* 5 cached, 2 free in all */
    drive_request(p, 3, 64, 0, 4096); /* 4 blocks: 2 evicted */
    fill_text(drive.text, 1, 81);
    assert_int_equal(kvpool_peek(p, drive.text, 81, NULL), 48);
    fill_text(drive.text, 2, 81);
    assert_int_equal(kvpool_peek(p, drive.text, 81, NULL), 80);
    /* A hit renews the whole chain. */
    drive_request(p, 1, 49, 0, 4096); /* evicts 1, frees 1 */
    drive_request(p, 4, 64, 0, 4096); /* evicts 3 */
    fill_text(drive.text, 1, 81);
    assert_int_equal(kvpool_peek(p, drive.text, 81, NULL), 48);
    fill_text(drive.text, 2, 81);
    assert_int_equal(kvpool_peek(p, drive.text, 81, NULL), 16);
    assert_pool_idle(p);
    kvpool_destroy(p);
}

/* Prompts of a block and a token, used at random: the order of eviction is that
 * of a plain array in which what is used moves to the end. */
TEST(the_one_used_longest_ago_goes_first)
{
    enum { N = 100 };
    struct kvpool *p = pool_of(.blocks = N + 1); /* one for the last token */
    struct kvpool_key plain = { 0 };
    struct prefix_hit hit;
    struct rng r = { 11 };
    uint32_t order[N], next = 0;
    for (; next < N; next++)
        assert_int_equal(drive_request(p, order[next] = next, 17, 0, 4096), 0);
    for (uint32_t i = 0; i < 3000; i++) {
        bool fresh = rng_below(&r, 3) == 0;
        uint32_t at = fresh ? 0 : rng_below(&r, N), text = fresh ? next++ : order[at];
        assert_int_equal(drive_request(p, text, 17, 0, 4096), fresh ? 0 : 16);
        memmove(order + at, order + at + 1, (N - 1 - at) * sizeof *order);
        order[N - 1] = text;
        fill_text(drive.text, order[0], 17);
        kvpool_prefix_walk(p, drive.text, 17, &plain, p->path, &hit);
        assert_int_equal(hit.n_blocks, 1);
        assert_int_equal(kvpool_oldest(p), kvpool_node_blocks(p, hit.node)[0]);
    }
    assert_pool_idle(p);
    kvpool_destroy(p);
}

/* One shared block and 300 that follow it: far more than the line of the index
 * that the first four columns share can hold. */
TEST(many_ways_on_from_one_block)
{
    enum { N = 300 };
    struct kvpool *p = pool_of(.blocks = 2 * N);
    for (int round = 0; round < 2; round++)
        for (uint32_t i = 0; i < N; i++) {
            fill_text(drive.text, 50 + i, 33);
            fill_text(drive.text, 1, 16);
            uint32_t found = kvpool_peek(p, drive.text, 33, NULL);
            assert_int_equal(found, round == 0 ? (i == 0 ? 0 : 16) : 32);
            seq_id s = drive_open_text(p, 33, NULL);
            drive_text_to(p, s, 33, 4096);
            kvpool_close(p, s);
            assert_ledger(p);
        }
    uint32_t n = 0;
    for (uint32_t i = 0; i <= p->bucket_mask; i++)
        n += p->bucket[i].n_elsewhere;
    assert_true(n > N - 20);
    assert_int_equal(kvpool_reset_cache(p), N + 1);
    assert_pool_idle(p);
    assert_int_equal(p->n_nodes_unused, p->n_nodes);
    kvpool_destroy(p);
}

/* 2,000 distinct prompts with the hash cut to 8 bits: how many tokens of
 * prompts never seen before were "found". */
static uint64_t foreign_tokens(bool trust)
{
    struct kvpool *p = pool_of(.blocks = 20000, .hash_bits = 8);
    uint64_t foreign = 0;
    p->trust_hash = trust;
    for (uint32_t i = 0; i < 2000; i++) {
        fill_text(drive.text, 1000 + i, 50);
        foreign += kvpool_peek(p, drive.text, 50, NULL);
        seq_id s = drive_open_text(p, 50, NULL);
        drive_text_to(p, s, 50, 4096);
        kvpool_close(p, s);
    }
    for (uint32_t i = 0; i < 2000 && !trust; i++) {
        fill_text(drive.text, 1000 + i, 50);
        assert_int_equal(kvpool_peek(p, drive.text, 50, NULL), 48);
    }
    if (!trust)
        assert_pool_idle(p);
    kvpool_destroy(p);
    return foreign;
}

TEST(colliding_hashes_share_nothing)
{
    assert_int_equal(foreign_tokens(false), 0);
    assert_true(foreign_tokens(true) > 2000 * 16); /* the cut does bite */
}

TEST(domains_are_separate)
{
    struct kvpool *p = pool_of(.blocks = 400);
    struct kvpool_key a = { .salt = 0xa }, probes[] = { { .salt = 0 },
                                                        { .salt = 0xb },
                                                        { .salt = 1 },
                                                        { .salt = ~(uint64_t)0xa },
                                                        { .salt = (uint64_t)0xa << 32 } };
    fill_text(drive.text, 1, 1024);
    seq_id s = drive_open_text(p, 1024, &a);
    drive_text_to(p, s, 1024, 4096);
    kvpool_close(p, s);
    for (int i = 0; i < 5; i++)
        assert_int_equal(kvpool_peek(p, drive.text, 1024, &probes[i]), 0);
    assert_int_equal(kvpool_peek(p, drive.text, 1024, &a), 1008);
    s = drive_open_text(p, 1024, &probes[1]);
    assert_int_equal(drive_stats(p).miss_salt, 1008);
    kvpool_close(p, s);
    assert_pool_idle(p);
    kvpool_destroy(p);
}

TEST(plain_chains_count_as_salt_misses_after_the_first_salt)
{
    struct kvpool *p = pool_of(.blocks = 100);
    drive_request(p, 1, 100, 1, 4096);
    struct kvpool_key salted = { .salt = 9 };
    fill_text(drive.text, 1, 100);
    seq_id s = drive_open_text(p, 100, &salted);
    assert_int_equal(drive.cached, 0);
    assert_int_equal(drive_stats(p).miss_salt, 96);
    kvpool_close(p, s);
    kvpool_destroy(p);
}

/* What one sequence's own look-up found, exactly; query is the sum of the rest. */
static void found_is(const struct kvpool *p, seq_id s, struct kvpool_lookup want)
{
    struct kvpool_lookup l = kvpool_lookup(p, s);
    want.query_tokens = want.hit_tokens + want.miss_never + want.miss_evicted + want.miss_salt +
                        want.miss_granularity + want.miss_window;
    assert_memory_equal(&l, &want, sizeof l);
}
#define assert_found(p, s, ...) found_is(p, s, (struct kvpool_lookup){ __VA_ARGS__ })

TEST(a_sequence_knows_why_it_missed)
{
    struct kvpool *p = pool_of(.blocks = 40);
    struct kvpool_key salted = { .salt = 9 };
    seq_id s = drive_open(p, 1, 100);
    assert_found(p, s, .miss_never = 96, .miss_granularity = 4);
    drive_text_to(p, s, 100, 4096);
    struct err e;
    seq_id child;
    assert_ok(kvpool_fork(p, s, &child, &e), e);
    assert_found(p, child, .miss_never = 96, .miss_granularity = 4); /* its parent's */
    kvpool_close(p, child);
    kvpool_close(p, s);
    s = drive_open_text(p, 100, &salted);
    assert_found(p, s, .miss_salt = 96, .miss_granularity = 4);
    kvpool_close(p, s);
    s = drive_open_text(p, 64, NULL);
    assert_found(p, s, .hit_tokens = 48, .miss_granularity = 16); /* one is recomputed */
    kvpool_close(p, s);
    for (uint32_t i = 0; i < 10; i++)
        drive_request(p, 50 + i, 20 * 16, 1, 4096);
    s = drive_open(p, 1, 100);
    assert_found(p, s, .miss_evicted = 96, .miss_granularity = 4);
    kvpool_close(p, s);
    kvpool_destroy(p);
    /* A window keeps few boundaries: known text between them is a miss of its own. */
    p = pool_of(.blocks = 400, .n_groups = 2, .windows = { 0, 32 });
    drive_request(p, 1, 320, 1, 4096);
    s = drive_open(p, 1, 200);
    assert_found(p, s, .miss_window = 192, .miss_granularity = 8);
    kvpool_close(p, s);
    kvpool_destroy(p);
}

TEST(counters_add_up_and_name_the_reason)
{
    struct kvpool *p = pool_of(.blocks = 64);
    drive_request(p, 1, 100, 1, 4096); /* never seen: 96 + 4 below a block */
    struct kvpool_stats st = drive_stats(p);
    assert_int_equal(st.query_tokens, 100);
    assert_int_equal(st.miss_never, 96);
    assert_int_equal(st.miss_granularity, 4);
    assert_int_equal(st.published, 6);
    drive_request(p, 1, 100, 1, 4096);
    st = drive_stats(p);
    assert_int_equal(st.query_tokens, 200);
    assert_int_equal(st.hit_tokens, 96);
    assert_int_equal(st.miss_granularity, 8);
    /* A preempted request's return and an uncached one count nothing. */
    struct kvpool_key again = { .again = true }, blind = { .no_lookup = true };
    seq_id s = drive_open_text(p, 100, &again);
    assert_int_equal(drive.cached, 96);
    assert_found(p, s, .hit_tokens = 96, .miss_granularity = 4); /* known all the same */
    kvpool_close(p, s);
    s = drive_open_text(p, 100, &blind);
    assert_int_equal(drive.cached, 0);
    assert_found(p, s, .query_tokens = 0);
    kvpool_close(p, s);
    assert_int_equal(drive_stats(p).query_tokens, 200);
    /* Peeking changes nothing at all. */
    kvpool_peek(p, drive.text, 100, NULL);
    struct kvpool_stats now = drive_stats(p);
    assert_memory_equal(&now, &st, sizeof st);
    kvpool_destroy(p);
}

TEST(caching_off_shares_nothing)
{
    struct kvpool *p = pool_of(.blocks = 64, .no_caching = true);
    assert_int_equal(drive_request(p, 1, 100, 20, 4096), 0);
    assert_int_equal(drive_request(p, 1, 100, 20, 4096), 0);
    assert_int_equal(drive_stats(p).n_free, 64);
    assert_int_equal(drive_stats(p).query_tokens, 0);
    assert_pool_idle(p);
    kvpool_destroy(p);
}

TEST(reset_forgets_idle_blocks)
{
    struct kvpool *p = pool_of(.blocks = 64);
    drive_request(p, 1, 100, 1, 4096);
    seq_id s = drive_open(p, 2, 100);
    drive_to(p, s, 2, 100, 4096);
    assert_int_equal(kvpool_reset_cache(p), 6);
    assert_int_equal(drive_stats(p).n_cached, 0);
    fill_text(drive.text, 1, 100);
    assert_int_equal(kvpool_peek(p, drive.text, 100, NULL), 0);
    kvpool_launch(p, 1);
    kvpool_close(p, s);
    assert_int_equal(kvpool_reset_cache(p), 6); /* resting ones too */
    kvpool_retire(p, 1);
    assert_int_equal(drive_stats(p).n_free, 64);
    assert_pool_idle(p);
    kvpool_destroy(p);
}

TEST(shared_blocks_count_once)
{
    struct kvpool *p = pool_of(.blocks = 128);
    struct rng r = { 7 };
    drive_request(p, 1, 640, 0, 4096);
    seq_id s[8];
    for (uint32_t i = 0; i < 8; i++) {
        fill_text(drive.text, 50 + i, 700);
        fill_text(drive.text, 1, 648); /* diverge inside block 41 */
        s[i] = drive_open_text(p, 700, NULL);
        assert_int_equal(drive.cached, 640);
        drive_text_to(p, s[i], 700, 4096);
        assert_int_equal(drive_stats(p).n_held, 40 + 4 * (i + 1));
        assert_ledger(p);
    }
    for (uint32_t n = 8; n > 0; n--) {
        uint32_t i = rng_below(&r, n);
        assert_int_equal(kvpool_gain(p, s[i]), n > 1 ? 4 : 44);
        kvpool_close(p, s[i]);
        s[i] = s[n - 1];
        struct kvpool_stats st = drive_stats(p);
        assert_int_equal(st.n_free + st.n_cached + st.n_held, 128);
    }
    assert_pool_idle(p);
    kvpool_destroy(p);
}

/* Two at a time, pool for three: what is found is always one's own. */
TEST(many_tenants_in_a_small_pool)
{
    struct kvpool *p = pool_of(.blocks = 15);
    struct err e;
    for (uint32_t i = 0; i + 1 < 40; i += 2) {
        seq_id a = drive_open(p, i, 60), b = drive_open(p, i + 1, 60);
        assert_int_equal(drive.cached, 0);
        assert_ok(kvpool_reserve(p, a, 60, &e), e);
        assert_ok(kvpool_reserve(p, b, 60, &e), e);
        kvpool_commit(p, b, drive.text, 60);
        fill_text(drive.text, i, 60);
        kvpool_commit(p, a, drive.text, 60);
        kvpool_close(p, a);
        kvpool_close(p, b);
        assert_ledger(p);
    }
    assert_pool_idle(p);
    kvpool_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(repeats_hit_whole_blocks),
        RUN(one_token_is_always_recomputed),
        RUN(identical_prompts_in_one_step_end_up_sharing),
        RUN(evicted_prefix_never_hits),
        RUN(hole_in_the_chain_hides_what_follows),
        RUN(tail_of_the_oldest_chain_goes_first),
        RUN(the_one_used_longest_ago_goes_first),
        RUN(many_ways_on_from_one_block),
        RUN(colliding_hashes_share_nothing),
        RUN(domains_are_separate),
        RUN(plain_chains_count_as_salt_misses_after_the_first_salt),
        RUN(a_sequence_knows_why_it_missed),
        RUN(counters_add_up_and_name_the_reason),
        RUN(caching_off_shares_nothing),
        RUN(reset_forgets_idle_blocks),
        RUN(shared_blocks_count_once),
        RUN(many_tenants_in_a_small_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
