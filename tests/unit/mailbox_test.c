/* mailbox_test.c: order, bound, sleep and wake; run under the thread sanitizer
 * as well. */
#include "support/test.h"

#include <stdatomic.h>
#include <time.h>

#include "server/engine/mailbox.h"

struct note {
    struct mail mail; /* first */
    int from, number;
};

static void make(struct mailbox *b, uint32_t cap, void (*wake)(void *), void *ctx)
{
    struct err e = { 0 };

    assert_ok(mailbox_init(b, cap, wake, ctx, &e), e);
}

TEST(first_in_first_out)
{
    struct mailbox b;
    struct note n[5];

    make(&b, 8, NULL, NULL);
    assert_null(mailbox_take(&b));
    for (int i = 0; i < 5; i++) {
        n[i].number = i;
        mailbox_post(&b, &n[i].mail);
    }
    assert_int_equal(((struct note *)mailbox_wait_one(&b))->number, 0);
    int want = 1;
    for (struct mail *m = mailbox_wait(&b); m; m = m->next)
        assert_int_equal(((struct note *)m)->number, want++);
    assert_int_equal(want, 5);
    assert_null(mailbox_take(&b));
    mailbox_fini(&b);
}

TEST(an_offer_is_bounded_a_post_is_not)
{
    struct mailbox b;
    struct note n[4];

    make(&b, 2, NULL, NULL);
    assert_true(mailbox_offer(&b, &n[0].mail));
    assert_true(mailbox_offer(&b, &n[1].mail));
    assert_false(mailbox_offer(&b, &n[2].mail));
    mailbox_post(&b, &n[3].mail);
    assert_int_equal(b.n, 3);
    mailbox_take(&b);
    assert_true(mailbox_offer(&b, &n[2].mail));
    mailbox_fini(&b);
}

static void count_wake(void *ctx)
{
    ++*(int *)ctx;
}

TEST(wakes_only_when_it_was_empty)
{
    struct mailbox b;
    struct note n[3];
    int wakes = 0;

    make(&b, 8, count_wake, &wakes);
    mailbox_post(&b, &n[0].mail);
    mailbox_post(&b, &n[1].mail);
    assert_int_equal(wakes, 1);
    mailbox_take(&b);
    mailbox_post(&b, &n[2].mail);
    assert_int_equal(wakes, 2);
    mailbox_fini(&b);
}

enum { POSTERS = 4, NOTES = 20000 };

struct poster {
    struct mailbox *box;
    struct note *note; /* [NOTES] */
    int id;
};

static void *post_all(void *arg)
{
    struct poster *p = arg;

    for (int i = 0; i < NOTES; i++) {
        p->note[i].from = p->id;
        p->note[i].number = i;
        mailbox_post(p->box, &p->note[i].mail);
    }
    return NULL;
}

TEST(many_posters_each_in_order_nothing_lost)
{
    struct mailbox b;
    struct poster p[POSTERS];
    pthread_t t[POSTERS];
    int next[POSTERS] = { 0 }, got = 0;

    make(&b, 8, NULL, NULL);
    for (int i = 0; i < POSTERS; i++) {
        p[i] = (struct poster){ &b, calloc(NOTES, sizeof(struct note)), i };
        assert_int_equal(pthread_create(&t[i], NULL, post_all, &p[i]), 0);
    }
    while (got < POSTERS * NOTES) {
        for (struct mail *m = mailbox_wait(&b), *after; m; m = after) {
            struct note *n = (struct note *)m;
            after = m->next;
            assert_int_equal(n->number, next[n->from]++);
            got++;
        }
    }
    for (int i = 0; i < POSTERS; i++) {
        pthread_join(t[i], NULL);
        free(p[i].note);
    }
    assert_null(mailbox_take(&b));
    mailbox_fini(&b);
}

struct sleeper {
    struct mailbox box;
    _Atomic double cpu_seconds;
};

static void *sleep_on(void *arg)
{
    struct sleeper *s = arg;
    struct timespec t;

    mailbox_wait(&s->box);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    atomic_store(&s->cpu_seconds, (double)t.tv_sec + (double)t.tv_nsec / 1e9);
    return NULL;
}

TEST(waiting_uses_no_processor)
{
    struct sleeper s;
    struct note n;
    pthread_t t;

    make(&s.box, 1, NULL, NULL);
    assert_int_equal(pthread_create(&t, NULL, sleep_on, &s), 0);
    nanosleep(&(struct timespec){ .tv_nsec = 200000000 }, NULL);
    mailbox_post(&s.box, &n.mail);
    pthread_join(t, NULL);
    assert_true(atomic_load(&s.cpu_seconds) < 0.05);
    mailbox_fini(&s.box);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(first_in_first_out),           RUN(an_offer_is_bounded_a_post_is_not),
        RUN(wakes_only_when_it_was_empty), RUN(many_posters_each_in_order_nothing_lost),
        RUN(waiting_uses_no_processor),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
