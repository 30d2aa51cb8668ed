/* step_log_test.c: the debug line of steps: what it counts, and how seldom it comes. */
#include "support/test.h"

#include <unistd.h>

#include "server/engine/step_log.h"

static char text[4096];

/* What note logs, through a pipe. */
static const char *said(struct step_log *l, int level, uint64_t now_us, const struct sched_stats *s,
                        const struct kvpool_stats *p)
{
    struct srv_log log;
    int fd[2];
    ssize_t n;

    assert_int_equal(pipe(fd), 0);
    srv_log_init(&log, fd[1], level, SRV_LOG_TEXT);
    step_log_note(l, &log, now_us, s, p);
    close(fd[1]);
    n = read(fd[0], text, sizeof text - 1);
    close(fd[0]);
    text[n > 0 ? n : 0] = '\0';
    return text;
}

TEST(counts_what_came_since_the_last_line)
{
    struct step_log l = { 0 };
    struct sched_stats s = { .n_running = 2, .n_waiting = 1, .steps = 3, .tokens_prompt = 40 };
    struct kvpool_stats p = { .n_held = 5, .n_cached = 6, .n_free = 7, .query_tokens = 40 };

    assert_contains(said(&l, SRV_DEBUG, 5000000, &s, &p),
                    " debug steps: 3, 40 prompt tokens (0 of 40 looked up were cached), 0 output "
                    "tokens, 0 preemptions; 2 running, 1 waiting, KV blocks 5 held, 6 cached, 7 "
                    "free\n");
    s.steps = 10;
    s.tokens_output = 7;
    s.preemptions = 1;
    p.query_tokens = 60;
    p.hit_tokens = 16;
    assert_contains(said(&l, SRV_DEBUG, 6000000, &s, &p),
                    "steps: 7, 0 prompt tokens (16 of 20 looked up were cached), 7 output tokens, "
                    "1 preemptions;");
}

TEST(comes_at_most_once_a_second_and_only_for_steps)
{
    struct step_log l = { 0 };
    struct sched_stats s = { 0 };
    struct kvpool_stats p = { 0 };

    assert_string_equal(said(&l, SRV_DEBUG, 1000000, &s, &p), "");
    s.steps = 1;
    assert_contains(said(&l, SRV_DEBUG, 1000000, &s, &p), "steps: 1,");
    s.steps = 2;
    assert_string_equal(said(&l, SRV_DEBUG, 1999999, &s, &p), "");
    s.steps = 3;
    assert_contains(said(&l, SRV_DEBUG, 2000000, &s, &p), "steps: 2,");
    assert_string_equal(said(&l, SRV_DEBUG, 9000000, &s, &p), "");
}

TEST(says_nothing_at_other_levels)
{
    struct step_log l = { 0 };
    struct sched_stats s = { .steps = 1 };
    struct kvpool_stats p = { 0 };

    assert_string_equal(said(&l, SRV_INFO, 1000000, &s, &p), "");
    assert_int_equal(l.said_us, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(counts_what_came_since_the_last_line),
        RUN(comes_at_most_once_a_second_and_only_for_steps),
        RUN(says_nothing_at_other_levels),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
