/* drain_test.c: the way out, phase by phase, in a process of its own for each: what
 * signals do, what waits for what, and with which code the process ends. */
#include "support/test.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/drain.h"

enum { LEFT_BY_LOOP = 42, STUCK_FOREVER_S = 1000 };

/* A daemon with nothing in it but what drain asks of it. */
struct daemon {
    uv_loop_t loop;
    uv_timer_t clock; /* fires once the loop runs */
    struct srv_log log;
    enum srv_phase phase;
    struct drain drain;
    uint32_t left;       /* requests */
    uint32_t looks;      /* at replies that are not yet sent, to come */
    bool begun, cancels; /* cancel_all ends the requests */
    uint32_t n_cancelled;
};

static uint32_t n_left(void *ctx)
{
    const struct daemon *d = ctx;

    return d->left;
}

static bool all_sent(void *ctx)
{
    struct daemon *d = ctx;

    return d->looks == 0 || --d->looks == 0;
}

static void on_begin(void *ctx)
{
    struct daemon *d = ctx;

    d->begun = true;
}

static void cancel_all(void *ctx)
{
    struct daemon *d = ctx;

    d->n_cancelled += d->left;
    if (!d->cancels)
        return;
    d->left = 0;
    drain_check(&d->drain);
}

static char socket_path[64];

static void start(struct daemon *d, enum srv_phase phase, double timeout_s, double stuck_s)
{
    struct drain_config cfg = { .loop = &d->loop,
                                .log = &d->log,
                                .phase = &d->phase,
                                .timeout_s = timeout_s,
                                .stuck_s = stuck_s,
                                .uds = socket_path,
                                .ctx = d,
                                .n_left = n_left,
                                .all_sent = all_sent,
                                .on_begin = on_begin,
                                .cancel_all = cancel_all };

    d->phase = phase;
    srv_log_init(&d->log, STDERR_FILENO, SRV_INFO, SRV_LOG_TEXT);
    if (uv_loop_init(&d->loop) != 0 || drain_watch(&d->drain, &cfg) != 0)
        _exit(99);
    d->clock.data = d;
    uv_timer_init(&d->loop, &d->clock);
}

/* Run the loop; the process ends with LEFT_BY_LOOP where what was expected holds. */
static void run(struct daemon *d)
{
    uv_run(&d->loop, UV_RUN_DEFAULT);
}

static void leave(bool as_expected)
{
    _exit(as_expected ? LEFT_BY_LOOP : 98);
}

/* Run scene in a child; how it ended, and what it logged in text. */
static int code_of(void (*scene)(struct daemon *d), char *text, size_t n)
{
    static struct daemon d;
    int fd[2], status;
    size_t got = 0;
    ssize_t r;

    assert_int_equal(pipe(fd), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(fd[1], STDERR_FILENO);
        close(fd[0]);
        close(fd[1]);
        alarm(30);
        scene(&d);
        _exit(97);
    }
    close(fd[1]);
    while (got + 1 < n && (r = read(fd[0], text + got, n - 1 - got)) > 0)
        got += (size_t)r;
    text[got] = '\0';
    close(fd[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void signal_once(struct daemon *d)
{
    d->looks = 2;
    start(d, SRV_SERVING, 1000, STUCK_FOREVER_S);
    raise(SIGTERM);
    run(d);
    leave(d->phase == SRV_DRAINING && d->begun && d->looks == 0 && d->n_cancelled == 0);
}

TEST(an_idle_daemon_stops_once_replies_are_sent)
{
    char text[512];

    assert_int_equal(code_of(signal_once, text, sizeof text), LEFT_BY_LOOP);
    assert_contains(text, "draining: 0 requests have 1000 s to finish");
}

static void request_ends(uv_timer_t *t)
{
    struct daemon *d = t->data;

    if (--d->left == 0)
        uv_timer_stop(t);
    drain_check(&d->drain);
}

static void requests_finish(struct daemon *d)
{
    d->left = 3;
    start(d, SRV_SERVING, 1000, STUCK_FOREVER_S);
    raise(SIGINT);
    uv_timer_start(&d->clock, request_ends, 5, 5);
    run(d);
    leave(d->left == 0 && d->n_cancelled == 0);
}

TEST(running_requests_finish_first)
{
    char text[512];

    assert_int_equal(code_of(requests_finish, text, sizeof text), LEFT_BY_LOOP);
    assert_contains(text, "draining: 3 requests");
}

static void time_is_up(struct daemon *d)
{
    d->left = 2;
    d->cancels = true;
    start(d, SRV_SERVING, 0.01, STUCK_FOREVER_S);
    raise(SIGTERM);
    run(d);
    leave(d->n_cancelled == 2);
}

TEST(what_still_runs_is_cancelled)
{
    char text[512];

    assert_int_equal(code_of(time_is_up, text, sizeof text), LEFT_BY_LOOP);
    assert_contains(text, "2 requests still run after 0.01 s: cancelled");
}

static void stuck(struct daemon *d)
{
    d->left = 2;
    start(d, SRV_SERVING, 0.01, 0.01);
    raise(SIGTERM);
    run(d);
    leave(false);
}

TEST(what_cannot_be_cancelled_ends_with_the_process)
{
    char text[512];

    assert_int_equal(code_of(stuck, text, sizeof text), 1);
    assert_contains(text, "2 requests did not end after being cancelled: exiting");
}

static void again(uv_timer_t *t)
{
    (void)t;
    raise(SIGINT);
}

static void second_signal(struct daemon *d)
{
    d->left = 1;
    start(d, SRV_SERVING, 1000, STUCK_FOREVER_S);
    raise(SIGTERM);
    uv_timer_start(&d->clock, again, 10, 0);
    run(d);
    leave(false);
}

TEST(a_second_signal_exits_at_once)
{
    char text[512];

    assert_int_equal(code_of(second_signal, text, sizeof text), 1);
    assert_contains(text, "second signal: exiting at once");
}

static void while_loading(struct daemon *d)
{
    start(d, SRV_LOADING, 1000, STUCK_FOREVER_S);
    raise(SIGTERM);
    run(d);
    leave(false);
}

TEST(a_signal_while_loading_exits_and_takes_the_socket_along)
{
    char text[512];
    FILE *f;

    snprintf(socket_path, sizeof socket_path, "/tmp/quire-drain-test.%d", (int)getpid());
    f = fopen(socket_path, "w");
    assert_non_null(f);
    fclose(f);
    assert_int_equal(code_of(while_loading, text, sizeof text), 0);
    assert_contains(text, "stopped while loading");
    assert_int_equal(access(socket_path, F_OK), -1);
}

static void failed_load(uv_timer_t *t)
{
    struct daemon *d = t->data;

    drain_stop(&d->drain);
}

static void stops_by_itself(struct daemon *d)
{
    start(d, SRV_LOADING, 1000, STUCK_FOREVER_S);
    drain_check(&d->drain); /* nothing is left, but nobody asked to leave */
    uv_timer_start(&d->clock, failed_load, 10, 0);
    run(d);
    leave(d->phase == SRV_LOADING && !d->begun);
}

TEST(work_that_ends_stops_nobody_who_is_not_leaving)
{
    char text[512];

    assert_int_equal(code_of(stops_by_itself, text, sizeof text), LEFT_BY_LOOP);
    assert_string_equal(text, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(an_idle_daemon_stops_once_replies_are_sent),
        RUN(running_requests_finish_first),
        RUN(what_still_runs_is_cancelled),
        RUN(what_cannot_be_cancelled_ends_with_the_process),
        RUN(a_second_signal_exits_at_once),
        RUN(a_signal_while_loading_exits_and_takes_the_socket_along),
        RUN(work_that_ends_stops_nobody_who_is_not_leaving),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
