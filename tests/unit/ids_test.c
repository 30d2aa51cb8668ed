/* ids_test.c: names of requests (ids.c) and the clock that times them (clock.c). */
#include "support/test.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/base/clock.h"
#include "server/base/ids.h"

enum { N_NAMES = 10000, NAME_BYTES = 4 + SRV_ID_DIGITS + 1 };

TEST(a_name_is_its_prefix_and_hexadecimal_digits)
{
    struct srv_ids ids = { .key = 1, .seed = 2 };
    char name[64];

    srv_new_id(&ids, "chatcmpl-", name, sizeof name);
    assert_int_equal(strncmp(name, "chatcmpl-", 9), 0);
    assert_int_equal(strlen(name), 9 + SRV_ID_DIGITS);
    assert_int_equal(strspn(name + 9, "0123456789abcdef"), SRV_ID_DIGITS);
    assert_int_equal(ids.n, 1);
}

static int by_text(const void *a, const void *b)
{
    return memcmp(a, b, NAME_BYTES);
}

TEST(no_name_is_given_twice)
{
    static char name[2 * N_NAMES][NAME_BYTES];
    struct srv_ids one = { .key = 1, .seed = 2 }, other = { .key = 3, .seed = 2 };

    for (int i = 0; i < N_NAMES; i++) {
        srv_new_id(&one, "req-", name[2 * i], NAME_BYTES);
        srv_new_id(&other, "req-", name[2 * i + 1], NAME_BYTES);
    }
    qsort(name, 2 * N_NAMES, NAME_BYTES, by_text);
    for (int i = 1; i < 2 * N_NAMES; i++)
        assert_string_not_equal(name[i - 1], name[i]);
}

/* Who sees names cannot compute the next one without both random numbers. */
TEST(key_and_seed_both_decide)
{
    static const struct srv_ids start[] = { { .key = 1, .seed = 2 },
                                            { .key = 1, .seed = 3 },
                                            { .key = 2, .seed = 2 } };
    char name[4][NAME_BYTES];

    for (int i = 0; i < 4; i++) {
        struct srv_ids ids = start[i % 3];
        srv_new_id(&ids, "req-", name[i], NAME_BYTES);
    }
    assert_string_not_equal(name[0], name[1]);
    assert_string_not_equal(name[0], name[2]);
    assert_string_not_equal(name[1], name[2]);
    assert_string_equal(name[0], name[3]);
}

TEST(a_name_is_cut_to_its_room)
{
    struct srv_ids whole = { .key = 1, .seed = 2 }, cut = whole;
    char all[NAME_BYTES], some[12];

    memset(some, 'x', sizeof some);
    srv_new_id(&whole, "req-", all, sizeof all);
    srv_new_id(&cut, "req-", some, 10);
    assert_int_equal(strlen(some), 9);
    assert_int_equal(strncmp(some, all, 9), 0);
    assert_int_equal(some[10], 'x');
}

TEST(the_clock_is_monotonic_microseconds)
{
    struct timespec t;
    uint64_t before, last, after;

    clock_gettime(CLOCK_MONOTONIC, &t);
    before = (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
    last = srv_now_us();
    assert_true(last >= before);
    for (int i = 0; i < 10000; i++) {
        uint64_t now = srv_now_us();
        assert_true(now >= last);
        last = now;
    }
    clock_gettime(CLOCK_MONOTONIC, &t);
    after = (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
    assert_true(last <= after);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(a_name_is_its_prefix_and_hexadecimal_digits),
        RUN(no_name_is_given_twice),
        RUN(key_and_seed_both_decide),
        RUN(a_name_is_cut_to_its_room),
        RUN(the_clock_is_monotonic_microseconds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
