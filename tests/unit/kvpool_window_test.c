/* kvpool_window_test.c: windows hold what a query can see and no more, and are
 * shared all the same. */
#include "kvpool/pool.h"
#include "support/kv_drive.h"
#include "support/rng.h"

/* Columns of group g that are mapped, as [*first, *end). */
static void mapped(const struct kvpool *p, seq_id s, uint32_t g, uint32_t *first, uint32_t *end)
{
    const blk_id *row = kvpool_table(p, s, g, end);
    for (*first = 0; *first < *end && row[*first] == BLK_NONE; ++*first)
        continue;
    for (uint32_t i = *first; i < *end; i++)
        assert_true(row[i] >= 0);
}

TEST(holds_only_blocks_a_query_can_see)
{
    struct kvpool *p = pool_of(.blocks = 64, .windows = { 32 });
    seq_id s = drive_open(p, 1, 10);
    for (uint32_t n = 1; n < 700; n++) {
        uint32_t first, end, seen = n + 1 > 32 ? (n + 1 - 32) / 16 : 0;
        drive_to(p, s, 1, n, 1);
        mapped(p, s, 0, &first, &end);
        assert_true(first <= seen && first + 1 >= seen);
        assert_true(kvpool_held(p, s) <= 32 / 16 + 1);
    }
    assert_int_equal(drive_stats(p).n_held, kvpool_held(p, s));
    kvpool_close(p, s);
    assert_pool_idle(p);
    kvpool_destroy(p);
}

TEST(chunks_keep_the_ring_bound)
{
    static const uint32_t windows[] = { 1, 2, 15, 16, 17, 31, 32, 33, 64, 100 };
    for (uint32_t i = 0; i < 10; i++)
        for (uint32_t chunk = 1; chunk <= 70; chunk += 3) {
            struct kvpool *p = pool_of(.blocks = 64, .windows = { windows[i] });
            struct err e;
            seq_id s = drive_open(p, 1, 600);
            uint32_t most = (windows[i] + chunk - 1 + 15) / 16 + 1, at;
            while ((at = kvpool_length(p, s)) + chunk <= 600) {
                assert_ok(kvpool_reserve(p, s, chunk, &e), e);
                assert_true(kvpool_held(p, s) <= most);
                kvpool_commit(p, s, drive.text + at, chunk);
            }
            assert_ledger(p);
            kvpool_destroy(p);
        }
}

/* A pool of exactly the bound serves a sequence of any length. */
TEST(the_bound_is_enough)
{
    for (uint32_t chunk = 1; chunk <= 40; chunk += 13) {
        struct pool_spec spec = { .n_groups = 2, .windows = { 48, 100 }, .chunk = chunk };
        struct kv_layout lay = layout_of(&spec);
        spec.blocks = (uint32_t)kv_layout_blocks_for(&lay, 4000, chunk);
        struct kvpool *p = pool_from(spec);
        uint64_t need, have;
        assert_true(kvpool_can_ever_fit(p, 4000, chunk, &need, &have));
        assert_int_equal(need, have);
        seq_id s = drive_open(p, 1, 4000);
        drive_to(p, s, 1, 4000, chunk);
        kvpool_close(p, s);
        assert_pool_idle(p);
        kvpool_destroy(p);
    }
}

TEST(lengths_around_the_window)
{
    const uint32_t w = 64, lengths[] = { w - 1, w, w + 1, 2 * w, 2 * w + 1 };
    for (int i = 0; i < 5; i++) {
        struct kvpool *p = pool_of(.blocks = 64, .n_groups = 2, .windows = { 0, w });
        uint32_t n = lengths[i], first, end;
        seq_id s = drive_open(p, 1, n);
        drive_to(p, s, 1, n, 4096);
        drive_to(p, s, 1, n + 3 * w, 1);
        mapped(p, s, 0, &first, &end);
        assert_int_equal(first, 0);
        assert_int_equal(end, (n + 3 * w + 15) / 16);
        mapped(p, s, 1, &first, &end);
        assert_true(end - first <= w / 16 + 1);
        kvpool_close(p, s);
        /* The same prompt again: all whole blocks but the last token's. */
        assert_int_equal(drive_request(p, 1, n, 1, 4096), (n - 1) / 16 * 16);
        assert_pool_idle(p);
        kvpool_destroy(p);
    }
}

TEST(turns_of_a_chat_hit_at_their_ends)
{
    struct kvpool *p = pool_of(.blocks = 4 * 4 * 70, .n_groups = 3, .windows = { 0, 64, 128 });
    uint32_t length[4] = { 0 };
    for (uint32_t turn = 0; turn < 5; turn++)
        for (uint32_t chat = 0; chat < 4; chat++) {
            uint32_t before = length[chat], prompt = before + 90 + 7 * chat;
            uint32_t cached = drive_request(p, 10 + chat, prompt, 110, 4096);
            length[chat] = prompt + 110;
            if (turn > 0)
                assert_true(cached * 10 >= before * 9);
            assert_true(cached + 16 > before || turn == 0);
        }
    assert_pool_idle(p);
    kvpool_destroy(p);
}

TEST(edited_history_falls_back)
{
    struct kvpool *p = pool_of(.blocks = 256, .n_groups = 2, .windows = { 0, 64 });
    drive_request(p, 1, 300, 30, 4096);
    fill_text(drive.text, 1, 300);
    drive.text[100] ^= 1; /* block 6 differs; windows below are gone */
    assert_int_equal(kvpool_peek(p, drive.text, 300, NULL), 0);
    seq_id s = drive_open_text(p, 300, NULL);
    assert_int_equal(drive_stats(p).miss_window, 96);
    drive_text_to(p, s, 300, 4096);
    kvpool_close(p, s);
    /* That prompt was computed past the branch, so the branch is kept now. */
    fill_text(drive.text, 1, 300);
    drive.text[100] ^= 2;
    assert_int_equal(kvpool_peek(p, drive.text, 300, NULL), 96);
    /* Only the last three tokens edited: the prompt's end serves. */
    fill_text(drive.text, 1, 300);
    drive.text[298] ^= 1;
    assert_int_equal(kvpool_peek(p, drive.text, 300, NULL), 288);
    assert_pool_idle(p);
    kvpool_destroy(p);
}

TEST(periodic_boundaries)
{
    struct kvpool *p = pool_of(.blocks = 512, .n_groups = 2, .windows = { 0, 48 }, .boundary = 10);
    drive_request(p, 1, 1000, 1, 4096);
    for (uint32_t cut = 10; cut < 980; cut += 37) {
        fill_text(drive.text, 1, 1000);
        for (uint32_t i = cut; i < 1000; i++)
            drive.text[i] ^= 1;
        assert_int_equal(kvpool_peek(p, drive.text, 1000, NULL), cut / 160 * 160);
    }
    /* Cost: the full group's 62 blocks, and 3 for each of 6 boundaries and the
     * prompt's end, block 59 serving two. */
    assert_int_equal(drive_stats(p).n_cached, 62 + 6 * 3 + 3 - 1);
    assert_pool_idle(p);
    kvpool_destroy(p);
}

TEST(windows_alone_share_too)
{
    struct kvpool *p = pool_of(.blocks = 64, .windows = { 100 });
    assert_int_equal(drive_request(p, 1, 2000, 20, 256), 0);
    assert_int_equal(drive_request(p, 1, 2000, 20, 256), 1984);
    /* The tokens in the window agree, those before it do not. */
    fill_text(drive.text, 1, 2000);
    drive.text[5] ^= 1;
    assert_int_equal(kvpool_peek(p, drive.text, 2000, NULL), 0);
    assert_pool_idle(p);
    kvpool_destroy(p);
}

TEST(published_windows_are_not_written_again)
{
    struct kvpool *p = pool_of(.blocks = 64, .n_groups = 2, .windows = { 0, 32 });
    drive_request(p, 1, 65, 1, 4096);
    seq_id a = drive_open(p, 1, 65), b = drive_open(p, 1, 65);
    assert_int_equal(drive.cached, 64);
    uint32_t n;
    assert_int_equal(kvpool_table(p, a, 1, &n)[3], kvpool_table(p, b, 1, &n)[3]);
    drive_to(p, a, 1, 65, 1);
    fill_text(drive.text, 9, 200);
    fill_text(drive.text, 1, 65);
    drive_text_to(p, a, 200, 7);
    assert_ledger(p);
    assert_true(kvpool_table(p, b, 1, &n)[3] >= 0);
    drive_to(p, b, 1, 100, 1);
    kvpool_close(p, a);
    kvpool_close(p, b);
    assert_pool_idle(p);
    kvpool_destroy(p);
}

TEST(window_beyond_the_longest_sequence)
{
    struct kvpool *p = pool_of(.blocks = 64, .seq_tokens = 512, .windows = { 32768 });
    uint64_t need, have;
    assert_true(kvpool_can_ever_fit(p, 512, 4096, &need, &have));
    assert_int_equal(need, 32);
    assert_int_equal(drive_request(p, 1, 500, 12, 4096), 0);
    assert_int_equal(drive_request(p, 1, 500, 12, 4096), 496);
    assert_pool_idle(p);
    kvpool_destroy(p);
}

TEST(many_long_requests_and_cancels)
{
    struct kvpool *p = pool_of(.blocks = 120, .n_groups = 3, .windows = { 0, 32, 64 });
    struct rng r = { 3 };
    struct err e;
    for (int i = 0; i < 500; i++) {
        uint32_t seed = rng_below(&r, 6), n = 64 * (3 + rng_below(&r, 4)), at;
        seq_id s = drive_open(p, seed, n);
        while ((at = kvpool_length(p, s)) < n && rng_below(&r, 6) != 0) {
            uint32_t c = 1 + rng_below(&r, n - at);
            if (kvpool_reserve(p, s, c, &e) != ERR_OK)
                break;
            kvpool_commit(p, s, drive.text + at, c);
            struct kvpool_stats st = drive_stats(p);
            assert_int_equal(st.group_held[0] + st.group_held[1] + st.group_held[2], st.n_held);
        }
        kvpool_close(p, s);
        assert_pool_idle(p);
    }
    kvpool_destroy(p);
}

/* More chains than there are nodes: publishing stops, serving does not. */
TEST(index_exhaustion_is_harmless)
{
    enum { N = 12 };
    struct kvpool *p = pool_of(.blocks = 40, .seqs = N, .seq_tokens = 2000, .windows = { 16 });
    seq_id s[N];
    uint32_t n_silent = 0;
    drive_request(p, 99, 200, 1, 64); /* something cached, to be given up for nodes */
    for (uint32_t i = 0; i < N; i++)
        s[i] = drive_open(p, i, 10);
    for (uint32_t round = 0; round < 10; round++)
        for (uint32_t i = 0; i < N; i++)
            drive_to(p, s[i], i, 190 * (round + 1), 1);
    assert_ledger(p);
    assert_int_equal(p->n_nodes_unused, 0);
    fill_text(drive.text, 99, 200);
    assert_int_equal(kvpool_peek(p, drive.text, 200, NULL), 0);
    for (uint32_t i = 0; i < N; i++)
        n_silent += !p->seq[s[i]].publish;
    assert_in_range(n_silent, 1, N);
    uint32_t cached;
    struct err e;
    kvpool_close(p, s[0]);
    /* A new key domain finds no node for its root either. */
    while (p->n_nodes_unused > 0)
        p->n_nodes_unused--; /* leaked on purpose: this pool is not used further */
    struct kvpool_key other = { .salt = 5 };
    assert_ok(kvpool_open(p, drive.text, 100, &other, &s[0], &cached, &e), e);
    drive_text_to(p, s[0], 100, 64);
    assert_int_equal(kvpool_length(p, s[0]), 100);
    kvpool_destroy(p);
}

/* Arrays past a few megabytes come from another allocator. */
TEST(a_large_pool)
{
    struct kvpool *p = pool_of(.blocks = 400000, .n_groups = 2, .windows = { 0, 64 });
    assert_int_equal(drive_request(p, 1, 3000, 10, 512), 0);
    assert_int_equal(drive_request(p, 1, 3000, 10, 512), 2992);
    assert_pool_idle(p);
    kvpool_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(holds_only_blocks_a_query_can_see),
        RUN(chunks_keep_the_ring_bound),
        RUN(the_bound_is_enough),
        RUN(lengths_around_the_window),
        RUN(turns_of_a_chat_hit_at_their_ends),
        RUN(edited_history_falls_back),
        RUN(periodic_boundaries),
        RUN(windows_alone_share_too),
        RUN(published_windows_are_not_written_again),
        RUN(window_beyond_the_longest_sequence),
        RUN(many_long_requests_and_cancels),
        RUN(index_exhaustion_is_harmless),
        RUN(a_large_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
