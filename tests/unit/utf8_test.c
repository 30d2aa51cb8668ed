/* utf8_test.c: validation against the table of Unicode 15 itself, by brute
 * force over every code point and every short byte sequence; and that error
 * messages stay printable whatever is echoed. */
#include "proto/utf8.h"

#include "proto/err.h"
#include "support/test.h"

/* Independent of the code under test: decode by arithmetic, then demand the
 * shortest form and a scalar value. */
static size_t oracle(const unsigned char *s, size_t n)
{
    if (n == 0)
        return 0;
    if (s[0] < 0x80)
        return 1;
    size_t len = s[0] >> 5 == 6 ? 2 : s[0] >> 4 == 14 ? 3 : s[0] >> 3 == 30 ? 4 : 0;
    if (len == 0 || n < len)
        return 0;
    uint32_t c = s[0] & (0xffu >> (len + 1));
    for (size_t i = 1; i < len; i++) {
        if (s[i] >> 6 != 2)
            return 0;
        c = c << 6 | (s[i] & 0x3f);
    }
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    return c >= least[len] && c <= 0x10ffff && !(c >= 0xd800 && c <= 0xdfff) ? len : 0;
}

TEST(every_code_point_goes_round)
{
    for (uint32_t c = 0; c <= 0x10ffff; c++) {
        if (c >= 0xd800 && c <= 0xdfff)
            continue;
        char s[4];
        size_t n = utf8_encode(c, s);
        assert_int_equal(utf8_sequence_bytes(s, n), n);
        assert_int_equal(utf8_decode(s, n), c);
        assert_int_equal(oracle((const unsigned char *)s, n), n);
        for (size_t k = 1; k < n; k++) {
            assert_int_equal(utf8_sequence_bytes(s, k), 0);
            assert_int_equal(utf8_incomplete_tail(s, k), k);
        }
        assert_int_equal(utf8_incomplete_tail(s, n), 0);
    }
}

TEST(every_three_bytes_agree_with_the_table)
{
    unsigned char s[4];
    for (uint32_t v = 0; v < 1u << 24; v++) {
        s[0] = (unsigned char)(v >> 16);
        s[1] = (unsigned char)(v >> 8);
        s[2] = (unsigned char)v;
        if (utf8_sequence_bytes((char *)s, 3) != oracle(s, 3))
            fail_msg("%02x %02x %02x", s[0], s[1], s[2]);
    }
    /* Four: every lead of that length, every second byte, edges of the rest. */
    enum { N_EDGES = 10 };
    static const unsigned char edges[N_EDGES] = { 0x00, 0x7f, 0x80, 0x8f, 0x90,
                                                  0x9f, 0xa0, 0xbf, 0xc0, 0xff };
    for (unsigned a = 0xf0; a <= 0xff; a++)
        for (unsigned b = 0; b <= 0xff; b++)
            for (size_t i = 0; i < (size_t)N_EDGES * N_EDGES; i++) {
                s[0] = (unsigned char)a;
                s[1] = (unsigned char)b;
                s[2] = edges[i / N_EDGES];
                s[3] = edges[i % N_EDGES];
                assert_int_equal(utf8_sequence_bytes((char *)s, 4), oracle(s, 4));
            }
}

TEST(valid_prefix_stops_at_the_first_bad_byte)
{
    assert_int_equal(utf8_valid_prefix("", 0), 0);
    assert_int_equal(utf8_valid_prefix("abc\xc3\xa9", 5), 5);
    assert_int_equal(utf8_valid_prefix("abc\xc3", 4), 3);
    assert_int_equal(utf8_valid_prefix("abc\xff\x64", 5), 3);
    assert_int_equal(utf8_valid_prefix("a\0b", 3), 3);
    assert_int_equal(utf8_valid_prefix("\xed\xa0\x80", 3), 0);
    assert_true(utf8_is_valid("\xf0\x9f\x98\x80", 4));
}

TEST(incomplete_tail_counts_only_what_may_be_completed)
{
    static const struct {
        const char *s;
        size_t n, tail;
    } rows[] = {
        { "", 0, 0 },
        { "abc", 3, 0 },
        { "a\xf0", 2, 1 },
        { "a\xf0\x9f", 3, 2 },
        { "\xf0\x9f\x98", 3, 3 },
        { "\xf0\x9f\x98\x80", 4, 0 },
        { "a\xff", 2, 0 },
        { "\x80", 1, 0 },
        { "\xe0\x80", 2, 0 },
        { "\xed\xa0", 2, 0 },
        { "\xf4\x90", 2, 0 },
        { "\xc3\xa9\xc3", 3, 1 },
        { "\xc0", 1, 0 },
        { "\xe2\x82\x80\xe2", 4, 1 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(utf8_incomplete_tail(rows[i].s, rows[i].n), rows[i].tail);
}

TEST(messages_are_printable)
{
    struct err e;
    err_set_param(&e, ERR_INVALID, "p\xff\n", "a%sb\x7f", "\xc0\x80\r\xc3\xa9\xf0\x9f");
    assert_string_equal(e.message, "a??\?\xc3\xa9??b?");
    assert_string_equal(e.param, "p??");
    char big[2000];
    for (size_t i = 0; i + 1 < sizeof big; i += 2)
        memcpy(big + i, "\xc3\xa9", 2);
    big[sizeof big - 1] = '\0';
    err_set(&e, ERR_IO, "x%s", big); /* cut inside a character */
    assert_true(utf8_is_valid(e.message, strlen(e.message)));
    assert_int_equal(err_set(NULL, ERR_BUSY, "unused"), ERR_BUSY);
    for (enum err_code c = ERR_OK; c < ERR_CODES; c++) {
        assert_non_null(err_name(c));
        assert_in_range(err_http_status(c), 200, 503);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(every_code_point_goes_round),
        RUN(every_three_bytes_agree_with_the_table),
        RUN(valid_prefix_stops_at_the_first_bad_byte),
        RUN(incomplete_tail_counts_only_what_may_be_completed),
        RUN(messages_are_printable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
