/* kvpool_alloc_test.c: every allocation of the pool fails once; nothing leaks,
 * nothing half happens, the ledger stays exact. */
#include "kvpool/pool.h"
#include "support/alloc_fail.h"
#include "support/kv_drive.h"

TEST(create_fails_cleanly)
{
    struct pool_spec spec = { .blocks = 32, .n_groups = 2, .windows = { 0, 64 } };
    struct kv_layout lay = layout_of(&spec);
    struct kvpool_config cfg = config_of(&spec);
    int n = 0;
    for (;; n++) {
        struct kvpool *p = NULL;
        struct err e = { 0 };
        alloc_fail_at(n, false);
        enum err_code rc = kvpool_create(&p, &lay, &cfg, &e);
        bool fired = alloc_fail_fired();
        alloc_fail_at(-1, false);
        if (!fired) {
            assert_ok(rc, e);
            kvpool_destroy(p);
            break;
        }
        assert_int_equal(rc, ERR_NOMEM);
        assert_null(p);
        assert_contains(e.message, "");
    }
    assert_true(n > 8);
}

/* One fixed life of a few sequences, in which the n-th allocation fails.  A
 * call that fails is tried once more, so that the life goes on.  Returns
 * whether anything failed. */
static bool live(int n)
{
    struct kvpool *p = pool_of(.blocks = 300, .seqs = 6, .n_groups = 2, .windows = { 0, 64 });
    struct kvpool_stats before, after;
    struct err e;
    seq_id s[6];
    uint32_t n_failed = 0, cached;
    fill_text(drive.text, 1, 1400);
    alloc_fail_at(n, false);

#define TWICE(call)                                                                                \
    do {                                                                                           \
        kvpool_stats(p, &before);                                                                  \
        enum err_code rc_ = (call);                                                                \
        if (rc_ != ERR_OK) {                                                                       \
            assert_int_equal(rc_, ERR_NOMEM);                                                      \
            assert_true(alloc_fail_fired());                                                       \
            kvpool_stats(p, &after);                                                               \
            assert_memory_equal(&before, &after, sizeof before);                                   \
            assert_ledger(p);                                                                      \
            n_failed++;                                                                            \
            assert_ok((call), e);                                                                  \
        }                                                                                          \
    } while (0)

    TWICE(kvpool_open(p, drive.text, 20, NULL, &s[0], &cached, &e));
    for (uint32_t at = 0; at < 1400;) {
        uint32_t c = at < 100 ? 7 : 130;
        c = c < 1400 - at ? c : 1400 - at;
        TWICE(kvpool_reserve(p, s[0], c, &e));
        kvpool_commit(p, s[0], drive.text + at, c);
        at += c;
    }
    for (int i = 1; i < 5; i++)
        TWICE(kvpool_fork(p, s[0], &s[i], &e));
    /* Copies pile up past what was set aside for them. */
    for (int round = 0; round < 8; round++) {
        for (int i = 0; i < 5; i++) {
            int32_t t = 5 + i + round;
            TWICE(kvpool_reserve(p, s[i], 1, &e));
            kvpool_commit(p, s[i], &t, 1);
        }
        kvpool_close(p, s[4]);
        TWICE(kvpool_fork(p, s[0], &s[4], &e));
        assert_ledger(p);
    }
    TWICE(kvpool_open(p, drive.text, 900, NULL, &s[5], &cached, &e));
    for (int i = 0; i < 6; i++)
        kvpool_close(p, s[i]);
    bool fired = alloc_fail_fired();
    alloc_fail_at(-1, false);
    assert_true(n_failed > 0 || !fired);
    assert_pool_idle(p);
    kvpool_destroy(p);
    return fired;
}

TEST(every_call_fails_cleanly)
{
    int n = 0;
    while (live(n))
        n++;
    assert_true(n > 10);
}

/* A warm pool allocates nothing. */
TEST(steady_state_allocates_nothing)
{
    struct kvpool *p = pool_of(.blocks = 200, .seqs = 2, .n_groups = 2, .windows = { 0, 64 });
    drive_request(p, 1, 1000, 100, 64);
    alloc_fail_at(-1, false);
    for (uint32_t i = 0; i < 20; i++)
        drive_request(p, i, 900, 100, 64);
    assert_int_equal(alloc_fail_count(), 0);
    kvpool_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(create_fails_cleanly),
        RUN(every_call_fails_cleanly),
        RUN(steady_state_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
