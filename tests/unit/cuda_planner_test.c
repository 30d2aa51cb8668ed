/* cuda_planner_test.c: how the CUDA kernels cut a sequence and list what was cut; the
 * planner is shared code, so the host can check it for all lengths. */
#include <stdlib.h>
#include <string.h>

#include "attention/cuda/planner.h"
#include "support/rng.h"
#include "support/test.h"

enum { CAPACITY = 1 << 20 };

static const struct plan_rule rule = { PLAN_CHUNK_MIN, PLAN_CHUNKS };
static const struct plan_rule rules[] = { { 256, 16 }, { 1024, 16 }, { 512, 16 }, { 256, 8 } };

static struct plan_seq cut(int32_t past, int32_t fresh, int32_t window, int32_t capacity,
                           int32_t max_chunks)
{
    return plan_sequence(past, fresh, window, 0, capacity, max_chunks, 4, 16, rule);
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
        struct plan_seq tight = cut(past, 1, window, CAPACITY, plan_max_chunks(past + 1, rule));
        struct plan_seq loose = cut(past, 1, window, CAPACITY, plan_max_chunks(CAPACITY, rule));
        assert_memory_equal(&all, &tight, sizeof all);
        assert_memory_equal(&all, &loose, sizeof all);
    }
}

TEST(a_bound_too_small_stays_within_it)
{
    for (int32_t past = 0; past < 100000; past += 377) {
        int32_t most = plan_max_chunks(100, rule);
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

/* ---- lists ------------------------------------------------------------------- */

enum { SEQS = 24, MOST = 1 << 20 };

struct batch {
    struct plan_seq cut[SEQS];
    struct plan_tally own[SEQS];
    int32_t past[SEQS], fresh[SEQS], window, group, tile_rows;
};

/* Random sequences, cut like the split kernel's (in chunks) or the prefill
 * kernel's (all keys at once). */
static void make_batch(struct batch *b, struct rng *r)
{
    static const int32_t tiles[] = { 8, 16, 64, 128 }, groups[] = { 1, 3, 4, 8, 16 };
    bool whole = rng_below(r, 2);
    b->window = rng_below(r, 2) ? (int32_t)rng_below(r, 5000) + 1 : 0;
    b->group = groups[rng_below(r, 5)];
    b->tile_rows = tiles[rng_below(r, 4)];
    struct plan_rule drawn = rules[rng_below(r, 4)];
    for (int i = 0; i < SEQS; i++) {
        b->past[i] = rng_below(r, 8) ? (int32_t)rng_below(r, i % 3 ? 2000 : 100000) : 0;
        b->fresh[i] = rng_below(r, 6) ? (int32_t)rng_below(r, i % 4 ? 5 : 3000) : 0;
        b->cut[i] = plan_sequence(b->past[i], b->fresh[i], b->window, 0, CAPACITY, INT32_MAX,
                                  b->group, b->tile_rows, drawn);
        if (whole) {
            b->cut[i].n_chunks = b->cut[i].n_chunks > 0;
            b->cut[i].chunk = INT32_MAX;
        }
        b->own[i] = plan_count(&b->cut[i], b->past[i], b->window, b->group, b->tile_rows);
    }
}

static int64_t units_of(const struct plan_seq *s)
{
    return (int64_t)s->n_tiles * s->n_chunks;
}

TEST(a_tally_counts_every_unit_once)
{
    struct rng r = { 3 };
    for (int i = 0; i < 3000; i++) {
        struct batch b;
        make_batch(&b, &r);
        for (int k = 0; k < SEQS; k++) {
            int64_t sum = 0;
            for (int j = 0; j < PLAN_CLASSES; j++)
                sum += b.own[k].n[j];
            assert_int_equal(sum, units_of(&b.cut[k]));
        }
    }
}

TEST(every_tile_and_chunk_has_one_place)
{
    struct rng r = { 4 };
    for (int i = 0; i < 300; i++) {
        struct batch b;
        make_batch(&b, &r);
        for (int k = 0; k < SEQS; k++) {
            const struct plan_seq *s = &b.cut[k];
            int64_t n = units_of(s);
            unsigned char *seen = calloc((size_t)n + 1, 1);
            assert_non_null(seen);
            for (int64_t u = 0; u < n; u++) {
                int32_t tile, chunk;
                plan_place(s, (int32_t)u, &tile, &chunk);
                assert_true(tile >= 0 && tile < s->n_tiles && chunk >= 0 && chunk < s->n_chunks);
                assert_int_equal(seen[(int64_t)tile * s->n_chunks + chunk]++, 0);
            }
            free(seen);
        }
    }
}

/* Keys that a unit's last row can see, the window's width at most. */
static int32_t unit_keys(const struct batch *b, int k, int32_t tile, int32_t chunk)
{
    const struct plan_seq *s = &b->cut[k];
    if (s->n_chunks > 1)
        return plan_chunk_keys(s, chunk);
    int64_t last = ((int64_t)(tile + 1) * b->tile_rows - 1) / b->group;
    last = last < b->fresh[k] ? last : b->fresh[k] - 1;
    int64_t end = (int64_t)b->past[k] + last + 1;
    return (int32_t)((end < s->hi ? end : s->hi) - s->lo);
}

/* As the kernel does it: classes one after another, sequences within a class. */
TEST(a_list_has_no_gaps_and_falls_in_size)
{
    struct rng r = { 5 };
    static int32_t keys[MOST];
    for (int i = 0; i < 300; i++) {
        struct batch b;
        struct plan_tally start = { { 0 }, 0 };
        uint32_t total = 0;
        make_batch(&b, &r);
        for (int j = 0; j < PLAN_CLASSES; j++) {
            start.n[j] = total;
            for (int k = 0; k < SEQS; k++)
                total = plan_sum(total, b.own[k].n[j]);
        }
        assert_true(total < MOST);
        memset(keys, 0xFF, total * sizeof *keys);
        for (int k = 0; k < SEQS; k++) {
            for (int64_t u = 0; u < units_of(&b.cut[k]); u++) {
                int32_t tile, chunk;
                uint32_t at = plan_slot(&b.own[k], &start, (uint32_t)u);
                plan_place(&b.cut[k], (int32_t)u, &tile, &chunk);
                assert_true(at < total && keys[at] == -1);
                keys[at] = unit_keys(&b, k, tile, chunk);
            }
            for (int j = 0; j < PLAN_CLASSES; j++)
                start.n[j] += b.own[k].n[j];
        }
        for (uint32_t u = 1; u < total && b.window == 0; u++)
            assert_true(plan_class(keys[u - 1]) <= plan_class(keys[u]));
    }
}

TEST(true_lengths_fit_their_bound)
{
    struct rng r = { 6 };
    for (int i = 0; i < 3000; i++) {
        struct batch b;
        int64_t tokens = 0, units = 0;
        int32_t most = 1;
        make_batch(&b, &r);
        for (int k = 0; k < SEQS; k++) {
            tokens += b.fresh[k];
            units += units_of(&b.cut[k]);
            most = b.cut[k].n_chunks > most ? b.cut[k].n_chunks : most;
        }
        assert_true(units <= plan_most_units(tokens, SEQS, b.group, b.tile_rows, most));
    }
}

TEST(sums_stop_before_they_overflow)
{
    struct plan_seq s = { 0, INT32_MAX, PLAN_CHUNK_MIN, INT32_MAX / PLAN_CHUNK_MIN + 1, 1 << 26 };
    struct plan_tally t = plan_count(&s, 0, 0, 1, 8), start = { { 0 }, 0 };
    int k = plan_class(PLAN_CHUNK_MIN);
    assert_int_equal(t.n[k], PLAN_MOST);
    assert_int_equal(plan_sum(t.n[k], t.n[k]), PLAN_MOST);
    start.n[k] = PLAN_MOST - 5;
    assert_int_equal(plan_slot(&t, &start, 4), PLAN_MOST - 1);
    assert_int_equal(plan_slot(&t, &start, 900), PLAN_MOST);
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
        RUN(a_tally_counts_every_unit_once),
        RUN(every_tile_and_chunk_has_one_place),
        RUN(a_list_has_no_gaps_and_falls_in_size),
        RUN(true_lengths_fit_their_bound),
        RUN(sums_stop_before_they_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
