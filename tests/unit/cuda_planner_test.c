/* cuda_planner_test.c: how the CUDA kernels cut a sequence; the planner is shared
 * code, so the host can check it for all lengths. */
#include "attention/cuda/planner.h"
#include "support/rng.h"
#include "support/test.h"

enum { CAPACITY = 1 << 20 };

static struct plan_seq cut(int32_t past, int32_t fresh, int32_t window, int32_t capacity,
                           int32_t max_chunks)
{
    return plan_sequence(past, fresh, window, 0, capacity, max_chunks, 4, 16);
}

/* Chunks follow one another from lo to hi, none empty, each within a multiple of
 * the chunk size. */
static void expect_partition(const struct plan_seq *s)
{
    int32_t at = s->lo;
    for (int32_t i = 0; i < s->n_chunks; i++) {
        int32_t begin, end;
        plan_chunk_range(s, i, &begin, &end);
        assert_int_equal(begin, at);
        assert_true(s->lo == s->hi || end > begin);
        assert_true(s->lo == s->hi || begin / s->chunk == (end - 1) / s->chunk);
        at = end;
    }
    assert_int_equal(at, s->hi);
}

TEST(chunks_partition_the_range)
{
    struct rng r = { 1 };
    for (int i = 0; i < 20000; i++) {
        int32_t past = (int32_t)rng_below(&r, i % 2 ? 300000 : 3000);
        int32_t fresh = (int32_t)rng_below(&r, 200) + 1;
        int32_t window = i % 3 ? 0 : (int32_t)rng_below(&r, 5000) + 1;
        struct plan_seq s = cut(past, fresh, window, CAPACITY, INT32_MAX);
        assert_int_equal(s.hi, past + fresh);
        assert_int_equal(s.lo, window > 0 && past >= window ? past - window + 1 : 0);
        expect_partition(&s);
    }
}

TEST(a_true_bound_never_loses_chunks)
{
    struct rng r = { 2 };
    for (int i = 0; i < 20000; i++) {
        int32_t past = (int32_t)rng_below(&r, 400000);
        int32_t window = i % 2 ? 0 : (int32_t)rng_below(&r, 9000) + 1;
        struct plan_seq all = cut(past, 1, window, CAPACITY, INT32_MAX);
        struct plan_seq tight = cut(past, 1, window, CAPACITY, plan_max_chunks(past + 1));
        struct plan_seq loose = cut(past, 1, window, CAPACITY, plan_max_chunks(CAPACITY));
        assert_memory_equal(&all, &tight, sizeof all);
        assert_memory_equal(&all, &loose, sizeof all);
    }
}

TEST(a_bound_too_small_stays_within_it)
{
    for (int32_t past = 0; past < 100000; past += 377) {
        int32_t most = plan_max_chunks(100);
        assert_true(cut(past, 1, 0, CAPACITY, most).n_chunks <= most);
    }
}

TEST(nothing_is_planned_for_nothing)
{
    assert_int_equal(cut(100, 0, 0, CAPACITY, 99).n_tiles, 0);
    assert_int_equal(cut(100, -3, 0, CAPACITY, 99).n_tiles, 0);
    assert_int_equal(cut(-5, 2, 0, CAPACITY, 99).n_tiles, 0);
}

TEST(every_query_has_a_tile_even_without_keys)
{
    struct plan_seq s = cut(500, 3, 0, 0, 99); /* a table of no columns */
    assert_int_equal(s.lo, s.hi);
    assert_int_equal(s.n_chunks, 1);
    assert_int_equal(s.n_tiles, 1);
    assert_int_equal(cut(0, 1000, 0, CAPACITY, 99).n_tiles, 250);
}

TEST(lengths_that_overflow_are_clipped_to_the_table)
{
    struct plan_seq s = cut(INT32_MAX - 1, 1000, 0, 4096, 99);
    assert_int_equal(s.hi, 4096);
    s = cut(INT32_MAX - 1, 1000, 16, 4096, 99);
    assert_true(s.lo <= s.hi && s.hi == 4096);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(chunks_partition_the_range),
        RUN(a_true_bound_never_loses_chunks),
        RUN(a_bound_too_small_stays_within_it),
        RUN(nothing_is_planned_for_nothing),
        RUN(every_query_has_a_tile_even_without_keys),
        RUN(lengths_that_overflow_are_clipped_to_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
