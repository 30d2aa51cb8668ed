/* tokenizer_property.c: what must hold for any text and any ids.
 *
 *   tokenizer_property [ROUNDS]      (default 3000)
 *
 * Scanners against the regular expressions they stand for; merging against the
 * naive loop; streams against the whole; text through ids and back. */
#include <stdio.h>

#include "model/tokenizer/internal.h"
#include "model/tokenizer/scan.h"
#include "proto/utf8.h"
#include "support/rng.h"
#include "support/test.h"

static long rounds = 3000;

/* Characters of every class that a pattern tells apart. */
static const uint32_t special_chars[] = {
    ' ',     ' ',    '\n',   '\r',   '\t',  0xa0,    0x2003, 0x85,    0x0b,   '\'',
    '\'',    's',    'S',    0x17f,  't',   'T',     'l',    'L',     'r',    'e',
    'v',     'd',    'm',    '/',    '-',   '$',     '1',    '2',     0xbd,   0x2167,
    0x663,   0x301,  0x903,  0x1c5,  0x2b0, 0xaa,    0x4e2d, 0x3042,  0x30ab, 0xd55c,
    0x1f600, 0x200d, 0xfe0f, 0,      0x7f,  0x180e,  0xe000, 0x1d7d8, 0x130,  0xdf,
    '_',     '+',    0x203f, 0x20ac, 0x378, 0x10ffff
};

static size_t random_text(struct rng *r, char *s, size_t most)
{
    size_t n = 0;
    uint32_t style = rng_below(r, 4);
    while (n + 4 < most) {
        uint32_t c;
        if (style == 0 || rng_below(r, 3) == 0)
            c = special_chars[rng_below(r, sizeof(special_chars) / sizeof(*special_chars))];
        else if (style == 1)
            c = 'a' + rng_below(r, 4);
        else if (style == 2)
            c = 0x20 + rng_below(r, 0x5f);
        else /* any character that every library of today knows */
            c = rng_below(r, 0xd7ff);
        n += utf8_encode(c, s + n);
        if (rng_below(r, 40) == 0)
            break;
    }
    return n;
}

/* Whether the two libraries' tables may differ about a character of s. */
static bool newer_than_pcre(const char *s, size_t n, pcre2_match_data *md, pcre2_code *unassigned)
{
    return pcre2_match(unassigned, (PCRE2_SPTR)s, n, 0, 0, md, NULL) >= 0;
}

TEST(scanners_equal_their_patterns)
{
    struct err e;
    struct rng r = { 1 };
    char s[400];
    int code;
    PCRE2_SIZE off;
    pcre2_match_data *md = pcre2_match_data_create(1, NULL);
    pcre2_code *cn = pcre2_compile((PCRE2_SPTR) "[^\\x00-\\x{10ffff}]|\\p{Cn}",
                                   PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &off, NULL);
    assert_non_null(md);
    assert_non_null(cn);
    long compared = 0;
    for (int k = 0; tk_scan_pattern(k); k++) {
        struct tk_regex re;
        const char *pat = tk_scan_pattern(k);
        assert_ok(tk_regex_compile(&re, pat, strlen(pat), &e), e);
        assert_int_equal(re.scanner, k);
        re.scanner = TK_SCAN_NONE;
        for (long i = 0; i < rounds; i++) {
            size_t n = random_text(&r, s, 4 + rng_below(&r, sizeof(s) - 4)), from = 0;
            if (newer_than_pcre(s, n, md, cn))
                continue;
            while (from < n) {
                bool found;
                size_t at = 0, end = 0, at2 = 0, end2 = 0;
                assert_ok(tk_regex_next(&re, md, s, n, from, &found, &at, &end, &e), e);
                bool found2 = tk_scan(k, s, n, from, &at2, &end2);
                if (found != found2 || (found && (at != at2 || end != end2)))
                    fail_msg("pattern %d, text \"%.*s\" from %zu: [%zu, %zu) by the engine, "
                             "[%zu, %zu) by the scanner",
                             k, (int)n, s, from, at, end, at2, end2);
                compared++;
                if (!found)
                    break;
                from = end;
            }
        }
        tk_regex_fini(&re);
    }
    assert_true(compared > rounds);
    pcre2_match_data_free(md);
    pcre2_code_free(cn);
}

static struct tokenizer *open_file(const char *path)
{
    struct err e;
    struct tokenizer *t;
    assert_ok(tokenizer_open_file(&t, path, &e), e);
    return t;
}

static const struct tk_merge *merge_of(const struct tk_bpe *b, int32_t left, int32_t right)
{
    for (uint32_t i = 0; i <= b->merge_mask; i++)
        if (b->merge[i].left == left && b->merge[i].right == right)
            return &b->merge[i];
    return NULL;
}

/* The definition: again and again the lowest rank, leftmost first. */
static size_t naive(const struct tk_bpe *b, const char *s, size_t n, int32_t *id)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        id[k++] = b->byte_id[(unsigned char)s[i]];
    for (;;) {
        const struct tk_merge *best = NULL;
        size_t at = 0;
        for (size_t i = 0; i + 1 < k; i++) {
            const struct tk_merge *m = merge_of(b, id[i], id[i + 1]);
            if (m && (!best || m->rank < best->rank)) {
                best = m;
                at = i;
            }
        }
        if (!best)
            return k;
        id[at] = best->id;
        memmove(id + at + 1, id + at + 2, (k - at - 2) * sizeof(*id));
        k--;
    }
}

TEST(merging_equals_the_naive_loop)
{
    struct tokenizer *t = open_file("tests/conformance/tokenizers/small/gpt2.json");
    struct rng r = { 2 };
    struct err e;
    size_t n_steps = t->pretokenizer.n;
    t->pretokenizer.n = 0; /* the text is one piece */
    assert_true(t->bpe.raw);
    for (long i = 0; i < rounds / 50 + 1; i++) {
        char s[200];
        int32_t want[200];
        size_t n = random_text(&r, s, 8 + rng_below(&r, sizeof(s) - 8));
        if (i % 3 == 0) /* long runs of what merges */
            for (n = 0; n < sizeof(s); n++)
                s[n] = "the an"[rng_below(&r, 6)];
        size_t k = naive(&t->bpe, s, n, want);
        for (int cut = 0; cut < 2; cut++) { /* in parts, and as a whole */
            struct token_list got = { 0 };
            bool keep = t->bpe.cut;
            t->bpe.cut = cut && keep;
            assert_ok(tokenizer_encode(t, s, n, 0, 0, &got, &e), e);
            t->bpe.cut = keep;
            assert_int_equal(got.n, k);
            assert_memory_equal(got.id, want, k * sizeof(*want));
            token_list_fini(&got);
        }
    }
    t->pretokenizer.n = n_steps;
    tokenizer_close(t);
}

/* Joined stream, each delta checked to be whole characters. */
static void stream(const struct tokenizer *t, const int32_t *ids, size_t n_ids, bool skip)
{
    struct err e;
    char *whole;
    size_t n, k, at = 0;
    const char *s;
    struct detok *d;
    assert_ok(tokenizer_decode(t, ids, n_ids, skip, &whole, &n, &e), e);
    assert_ok(detok_create(&d, t, skip, &e), e);
    for (size_t i = 0; i <= n_ids; i++) {
        if (i < n_ids)
            assert_ok(detok_push(d, ids[i], &s, &k, &e), e);
        else
            assert_ok(detok_flush(d, &s, &k, &e), e);
        assert_true(utf8_is_valid(s, k));
        assert_true(k <= n - at);
        assert_memory_equal(whole + at, s, k);
        at += k;
    }
    assert_int_equal(at, n);
    detok_destroy(d);
    free(whole);
}

TEST(streams_equal_the_whole)
{
    static const char *const files[] = { "deploy/models/tales-7m/tokenizer.json",
                                         "tests/conformance/tokenizers/small/llama2.json",
                                         "tests/conformance/tokenizers/small/metaspace.json",
                                         "tests/conformance/tokenizers/small/continuing.json",
                                         "tests/conformance/tokenizers/small/end_of_word.json",
                                         "tests/conformance/tokenizers/small/no_unknown.json",
                                         "tests/conformance/tokenizers/small/strip_both.json",
                                         "tests/conformance/tokenizers/small/ctc.json" };
    struct rng r = { 3 };
    for (size_t f = 0; f < sizeof(files) / sizeof(*files); f++) {
        struct tokenizer *t = open_file(files[f]);
        uint32_t n_ids = (uint32_t)tokenizer_n_ids(t);
        for (long i = 0; i < rounds / 3; i++) {
            int32_t ids[64];
            size_t n = rng_below(&r, 64);
            for (size_t k = 0; k < n; k++) /* bytes of characters, and beyond the end */
                ids[k] = (int32_t)rng_below(&r, rng_below(&r, 2) ? n_ids + 2 : 300);
            stream(t, ids, n, i & 1);
        }
        tokenizer_close(t);
    }
}

TEST(text_comes_back)
{
    struct tokenizer *t = open_file("deploy/models/tales-7m/tokenizer.json");
    struct rng r = { 4 };
    struct err e;
    for (long i = 0; i < rounds; i++) {
        char s[500], *back;
        size_t n = random_text(&r, s, 4 + rng_below(&r, sizeof(s) - 4)), k;
        struct token_list ids = { 0 };
        assert_ok(tokenizer_encode(t, s, n, 0, 0, &ids, &e), e);
        assert_ok(tokenizer_decode(t, ids.id, ids.n, true, &back, &k, &e), e);
        assert_int_equal(k, n);
        assert_memory_equal(back, s, n);
        free(back);
        token_list_fini(&ids);
    }
    tokenizer_close(t);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        rounds = atol(argv[1]);
    const struct CMUnitTest tests[] = {
        RUN(scanners_equal_their_patterns),
        RUN(merging_equals_the_naive_loop),
        RUN(streams_equal_the_whole),
        RUN(text_comes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
