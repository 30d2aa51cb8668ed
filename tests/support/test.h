/* test.h: what every cmocka program of ours includes.
 *
 * TEST(name) defines a test; RUN(name) lists it in main's array. */
#ifndef TESTS_SUPPORT_TEST_H
#define TESTS_SUPPORT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TEST(name) static void name(void **state __attribute__((unused)))
#define RUN(name)  cmocka_unit_test(name)

/* Assert that `haystack` contains `needle`; prints both when it does not. */
#define assert_contains(haystack, needle)                                                          \
    do {                                                                                           \
        const char *h_ = (haystack), *n_ = (needle);                                               \
        if (strstr(h_, n_) == NULL)                                                                \
            fail_msg("\"%s\" does not contain \"%s\"", h_, n_);                                    \
    } while (0)

/* Assert that a call succeeded; prints the message when it did not. */
#define assert_ok(rc, e)                                                                           \
    do {                                                                                           \
        if ((rc) != ERR_OK)                                                                        \
            fail_msg("%s: %s", #rc, (e).message);                                                  \
    } while (0)

#endif
