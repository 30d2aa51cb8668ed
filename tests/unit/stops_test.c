/* stops_test.c: stop strings in text that arrives in pieces, against a naive
 * search of the whole text. */
#include "support/test.h"

#include "server/generate/stops.h"
#include "support/rng.h"

/* Run pieces through a matcher; what went out, and which stop ended it. */
struct run {
    struct stop_set set;
    struct stop_match match;
    struct buf out;
    int32_t found;
};

static struct oai_text text_of(const char *s)
{
    return (struct oai_text){ s, strlen(s) };
}

static void begin(struct run *r, const struct oai_text *stop, uint32_t n)
{
    struct err e = { 0 };

    memset(r, 0, sizeof *r);
    r->found = -1;
    assert_ok(stop_set_init(&r->set, stop, n, &e), e);
    assert_ok(stop_match_init(&r->match, &r->set, &e), e);
}

static void feed(struct run *r, const char *s, size_t n, bool include)
{
    if (r->found < 0)
        r->found = stop_match_feed(&r->match, s, n, include, &r->out);
}

static void end(struct run *r)
{
    if (r->found < 0)
        stop_match_flush(&r->match, &r->out);
}

static void finish(struct run *r)
{
    stop_match_fini(&r->match);
    stop_set_fini(&r->set);
    buf_fini(&r->out);
}

static void expect(struct run *r, const char *want)
{
    if (r->out.n != strlen(want) || (r->out.n && memcmp(r->out.p, want, r->out.n) != 0))
        fail_msg("\"%.*s\" went out, \"%s\" expected", (int)r->out.n, r->out.p, want);
}

TEST(split_over_tokens)
{
    static const char *const pieces[] = { "red", " gr", "een", " yel", "low", " blue" };
    struct oai_text stop = text_of("een yel");
    struct run r;

    begin(&r, &stop, 1);
    for (size_t i = 0; i < 6; i++)
        feed(&r, pieces[i], strlen(pieces[i]), false);
    assert_int_equal(r.found, 0);
    expect(&r, "red gr");
    finish(&r);
}

TEST(inside_one_token_and_over_three)
{
    struct oai_text stop = text_of("Thu");
    struct run r;

    begin(&r, &stop, 1);
    feed(&r, "Mon, Tue, Wed, Thu, Fri", 23, false);
    expect(&r, "Mon, Tue, Wed, ");
    finish(&r);
    begin(&r, &stop, 1);
    feed(&r, "Wed, T", 6, true);
    expect(&r, "Wed, ");
    feed(&r, "h", 1, true);
    expect(&r, "Wed, ");
    feed(&r, "u, Fri", 6, true);
    expect(&r, "Wed, Thu");
    finish(&r);
}

TEST(held_text_is_released_as_soon_as_it_cannot_match)
{
    struct oai_text stop = text_of("aab");
    struct run r;

    begin(&r, &stop, 1);
    feed(&r, "xa", 2, false);
    expect(&r, "x");
    feed(&r, "a", 1, false);
    expect(&r, "x");
    feed(&r, "a", 1, false); /* one a of three can no longer begin it */
    expect(&r, "xa");
    feed(&r, "c", 1, false);
    expect(&r, "xaaac");
    finish(&r);
}

TEST(a_proper_prefix_at_the_end_comes_out)
{
    struct oai_text stop = text_of("</end>");
    struct run r;

    begin(&r, &stop, 1);
    feed(&r, "text </en", 9, false);
    expect(&r, "text ");
    end(&r);
    expect(&r, "text </en");
    finish(&r);
}

TEST(a_long_stop_that_never_matches_delays_nothing)
{
    char longest[201];
    struct oai_text stop = { longest, 200 };
    struct run r;

    memset(longest, 'z', 200);
    longest[200] = '\0';
    begin(&r, &stop, 1);
    for (size_t i = 1; i <= 50; i++) {
        feed(&r, "ab", 2, false);
        assert_int_equal(r.out.n, 2 * i);
    }
    finish(&r);
}

TEST(nul_is_a_character)
{
    struct oai_text stop = { "\0", 1 };
    struct run r;

    begin(&r, &stop, 1);
    feed(&r, "ab", 2, false);
    assert_int_equal(r.found, -1);
    feed(&r, "c\0d", 3, false);
    assert_int_equal(r.found, 0);
    expect(&r, "abc");
    finish(&r);
}

/* First end of any stop in text, the longest of those that end there. */
static int32_t naive(const struct oai_text *stop, uint32_t n, const char *text, size_t len,
                     size_t *cut)
{
    for (size_t e = 1; e <= len; e++) {
        int32_t best = -1;
        for (uint32_t i = 0; i < n; i++)
            if (stop[i].n <= e && memcmp(text + e - stop[i].n, stop[i].s, stop[i].n) == 0 &&
                (best < 0 || stop[i].n > stop[best].n))
                best = (int32_t)i;
        if (best >= 0) {
            *cut = e - stop[best].n;
            return best;
        }
    }
    *cut = len;
    return -1;
}

/* Longest suffix of text that is a proper prefix of a stop. */
static size_t naive_hold(const struct oai_text *stop, uint32_t n, const char *text, size_t len)
{
    size_t best = 0;

    for (uint32_t i = 0; i < n; i++)
        for (size_t k = 1; k < stop[i].n && k <= len; k++)
            if (memcmp(text + len - k, stop[i].s, k) == 0 && k > best)
                best = k;
    return best;
}

TEST(any_cut_gives_what_a_naive_search_of_the_whole_gives)
{
    struct rng g = { 7 };

    for (int round = 0; round < 20000; round++) {
        char text[64], words[3][8];
        struct oai_text stop[3];
        uint32_t n = 1 + rng_below(&g, 3);
        size_t len = rng_below(&g, 60), at = 0, cut;
        struct run r;

        for (size_t i = 0; i < len; i++)
            text[i] = (char)('a' + rng_below(&g, 2));
        for (uint32_t i = 0; i < n; i++) {
            stop[i] = (struct oai_text){ words[i], 1 + rng_below(&g, 7) };
            for (size_t k = 0; k < stop[i].n; k++)
                words[i][k] = (char)('a' + rng_below(&g, 2));
        }
        int32_t want = naive(stop, n, text, len, &cut);
        begin(&r, stop, n);
        while (at < len && r.found < 0) {
            size_t part = 1 + rng_below(&g, (uint32_t)(len - at));
            feed(&r, text + at, part, false);
            at += part;
            if (r.found < 0)
                assert_int_equal(r.out.n, at - naive_hold(stop, n, text, at));
        }
        end(&r);
        if (want >= 0) { /* equal words may share an end: compare the words */
            assert_true(r.found >= 0);
            assert_int_equal(stop[r.found].n, stop[want].n);
        } else {
            assert_int_equal(r.found, -1);
        }
        assert_int_equal(r.out.n, cut);
        assert_true(cut == 0 || memcmp(r.out.p, text, cut) == 0);
        finish(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(split_over_tokens),
        RUN(inside_one_token_and_over_three),
        RUN(held_text_is_released_as_soon_as_it_cannot_match),
        RUN(a_proper_prefix_at_the_end_comes_out),
        RUN(a_long_stop_that_never_matches_delays_nothing),
        RUN(nul_is_a_character),
        RUN(any_cut_gives_what_a_naive_search_of_the_whole_gives),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
