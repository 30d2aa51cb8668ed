/* query_test.c: what a URL's query may say, and what is said about the rest. */
#include "support/test.h"

#include "server/http/query.h"

static uint64_t limit, which;
static const struct query_rule rules[] = {
    { "limit", 1, 100, NULL, &limit },
    { "state", 0, 0, "all|free|held", &which },
};

static enum err_code read_query(const char *query, struct err *e)
{
    limit = 7;
    which = 9;
    memset(e, 0, sizeof *e);
    return query_read(query, rules, 2, e);
}

TEST(names_and_values)
{
    static const struct {
        const char *query;
        uint64_t limit, which;
    } rows[] = {
        { "", 7, 9 },
        { "limit=1", 1, 9 },
        { "limit=100&state=all", 100, 0 },
        { "state=held&&limit=007&", 7, 2 },
        { "&state=free", 7, 1 },
    };
    struct err e;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_ok(read_query(rows[i].query, &e), e);
        assert_int_equal(limit, rows[i].limit);
        assert_int_equal(which, rows[i].which);
    }
    assert_ok(query_read("", NULL, 0, &e), e);
}

TEST(refusals_name_the_field)
{
    static const struct {
        const char *query, *param, *message;
    } rows[] = {
        { "limit=0", "limit", "limit: found `0`, expected a whole number from 1 to 100" },
        { "limit=101", "limit", "found `101`" },
        { "limit=", "limit", "found ``" },
        { "limit", "limit", "found ``" },
        { "limit=+1", "limit", "found `+1`" },
        { "limit=1.5", "limit", "found `1.5`" },
        { "limit=%31", "limit", "found `%31`" },
        { "limit=99999999999999999999", "limit", "expected a whole number" },
        { "limit=1&limit=1", "limit", "limit: given twice" },
        { "state=", "state", "expected one of all|free|held" },
        { "state=fre", "state", "found `fre`" },
        { "state=all|free", "state", "found `all|free`" },
        { "lim=1", "lim", "`lim` is unknown; expected limit, state" },
        { "limits=1", "limits", "unknown" },
        { "\xff\x01=1", "??", "`??` is unknown" },
        { "=1", "", "`` is unknown" },
        { "limit=5&state=all&x=1", "x", "`x` is unknown" },
        { "LIMIT=1", "LIMIT", "unknown" },
    };
    struct err e;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(read_query(rows[i].query, &e), ERR_INVALID);
        assert_string_equal(e.param, rows[i].param);
        assert_contains(e.message, rows[i].message);
        assert_int_equal(limit, 7); /* nothing is changed */
        assert_int_equal(which, 9);
    }
    assert_int_equal(query_read("a=1", NULL, 0, &e), ERR_INVALID);
    assert_contains(e.message, "expected none");
    /* A long or binary name is cut and made printable. */
    char big[600];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    big[3] = '\x80';
    assert_int_equal(read_query(big, &e), ERR_INVALID);
    assert_true(strlen(e.param) <= 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(names_and_values),
        RUN(refusals_name_the_field),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
