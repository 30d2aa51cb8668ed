/* buf_test.c: the growable buffer: growth, ceiling, failed allocations, both of
 * its styles, and files read into it. */
#include "proto/text/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/alloc_fail.h"
#include "support/test.h"

static void has(const struct buf *o, const char *text)
{
    assert_int_equal(o->n, strlen(text));
    assert_memory_equal(o->p, text, o->n);
}

TEST(grows_as_it_is_filled)
{
    struct buf o = { 0 };
    for (int i = 0; i < 10000; i++)
        buf_put(&o, "0123456789", 10);
    assert_int_equal(o.n, 100000);
    assert_true(o.cap >= o.n && o.cap < 2 * o.n);
    for (size_t i = 0; i < o.n; i++)
        assert_int_equal(o.p[i], '0' + i % 10);
    char *before = o.p;
    buf_reset(&o);
    BUF_LIT(&o, "again");
    has(&o, "again");
    assert_ptr_equal(o.p, before);
    buf_put(&o, NULL, 0);
    has(&o, "again");
    buf_fini(&o);
    assert_null(o.p);
}

TEST(a_reserve_of_much_takes_no_more)
{
    struct buf o = { 0 };
    struct err e;
    assert_ok(buf_reserve(&o, 1000000, &e), e);
    assert_int_equal(o.cap, 1000001); /* and the NUL */
    buf_fini(&o);
    assert_ok(buf_reserve(&o, 0, &e), e);
    assert_non_null(o.p);
    buf_fini(&o);
}

TEST(the_ceiling_drops_whole_puts)
{
    struct buf o = { .max = 300 };
    struct err e;
    for (int i = 0; i < 100; i++)
        buf_put(&o, "1234567", 7);
    assert_true(o.failed);
    assert_int_equal(o.n, 294); /* the last that fits */
    assert_true(o.cap <= 300);
    BUF_LIT(&o, "x");
    assert_int_equal(o.n, 294); /* a failure stays */
    assert_int_equal(buf_check(&o, &e), ERR_NOMEM);
    buf_reset(&o);
    buf_put(&o, "1234567", 7);
    assert_ok(buf_check(&o, &e), e);
    assert_int_equal(buf_add(&o, "1234567", 293, &e), ERR_NOMEM);
    assert_int_equal(buf_reserve(&o, SIZE_MAX, &e), ERR_NOMEM);
    assert_int_equal(buf_reserve(&o, SIZE_MAX - 4, &e), ERR_NOMEM);
    assert_false(o.failed); /* told at once, and nothing changed */
    has(&o, "1234567");
    assert_false(buf_grow(&o, SIZE_MAX));
    buf_fini(&o);
    assert_int_equal(o.max, 300);
}

TEST(formats_at_any_length)
{
    struct buf o = { 0 };
    char want[5000];
    for (int n = 1; n < 2000; n += 97) {
        buf_reset(&o);
        buf_printf(&o, "%*d|%s", n, n, "end");
        snprintf(want, sizeof want, "%*d|%s", n, n, "end");
        has(&o, want);
        buf_printf(&o, "%s", "");
        has(&o, want);
    }
    buf_fini(&o);
    o.max = 10;
    buf_printf(&o, "%s", "0123456789"); /* the NUL of vsnprintf has no room */
    assert_true(o.failed);
    assert_int_equal(o.n, 0);
    buf_fini(&o);
}

TEST(bytes_are_taken_with_a_nul)
{
    struct buf o = { .max = 4 };
    size_t n;
    BUF_LIT(&o, "abc");
    char *p = buf_take(&o, &n);
    assert_string_equal(p, "abc");
    assert_int_equal(n, 3);
    free(p);
    assert_true(o.p == NULL && o.n == 0 && o.max == 4);
    p = buf_take(&o, &n);
    assert_string_equal(p, "");
    free(p);
    BUF_LIT(&o, "abcd");
    assert_null(buf_take(&o, &n));
    assert_int_equal(n, 0);
    assert_null(o.p);
    BUF_LIT(&o, "abcde");
    assert_null(buf_take(&o, &n));
}

/* A buffer filled in every way; each allocation that fails is told. */
static enum err_code fill(struct err *e)
{
    struct buf o = { 0 }, added = { 0 };
    size_t n;
    for (int i = 0; i < 200; i++)
        buf_printf(&o, "%d,", i);
    enum err_code rc = buf_check(&o, e);
    for (int i = 0; i < 200 && !rc; i++) {
        size_t had = added.n;
        rc = buf_add(&added, "0123456789", 10, e);
        assert_int_equal(added.n, had + (rc ? 0 : 10));
        assert_false(added.failed);
    }
    char *p = rc ? NULL : buf_take(&o, &n);
    if (!rc && p == NULL)
        rc = err_nomem(e, "text", 1);
    free(p);
    buf_fini(&o);
    buf_fini(&added);
    return rc;
}

TEST(every_allocation_fails_once)
{
    for (int64_t n = 0;; n++) {
        struct err e;
        alloc_fail_at(n, false);
        enum err_code rc = fill(&e);
        bool fired = alloc_fail_fired();
        alloc_fail_at(-1, false);
        if (!fired) {
            assert_ok(rc, e);
            assert_true(n > 5);
            return;
        }
        assert_int_equal(rc, ERR_NOMEM);
        assert_int_equal(e.code, ERR_NOMEM);
    }
}

TEST(files_are_read_whole)
{
    char path[] = "/tmp/buf_test.XXXXXX";
    struct buf o = { 0 };
    struct err e;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_ok(buf_read_file(&o, path, 10, &e), e);
    assert_string_equal(o.p, "");
    assert_int_equal(write(fd, "ab\0cd", 5), 5);
    close(fd);
    BUF_LIT(&o, "-");
    assert_ok(buf_read_file(&o, path, 5, &e), e);
    assert_int_equal(o.n, 6);
    assert_memory_equal(o.p, "-ab\0cd", 7);
    assert_int_equal(buf_read_file(&o, path, 4, &e), ERR_LIMIT);
    assert_contains(e.message, "5 bytes: at most 4");
    assert_int_equal(o.n, 6);
    alloc_fail_at(0, true);
    struct buf none = { 0 };
    enum err_code rc = buf_read_file(&none, path, 5, &e);
    alloc_fail_at(-1, false);
    assert_int_equal(rc, ERR_NOMEM);
    assert_int_equal(buf_read_file(&o, "/nowhere/at/all", 5, &e), ERR_NOT_FOUND);
    assert_contains(e.message, "/nowhere/at/all");
    assert_int_equal(buf_read_file(&o, "/tmp", 1 << 20, &e), ERR_INVALID);
    assert_contains(e.message, "not a regular file");
    unlink(path);
    buf_fini(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(grows_as_it_is_filled),        RUN(a_reserve_of_much_takes_no_more),
        RUN(the_ceiling_drops_whole_puts), RUN(formats_at_any_length),
        RUN(bytes_are_taken_with_a_nul),   RUN(every_allocation_fails_once),
        RUN(files_are_read_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
