/* jobs_test.c: work on the pool reports once, is bounded, counted and can be
 * cancelled before and while it runs; run under the thread sanitizer as well. */
#include "support/test.h"

#include <semaphore.h>

#include "server/jobs/jobs.h"

enum { POOL_THREADS = 4, MANY = 200 };

struct task {
    struct job job;
    sem_t *begun, *gate; /* posted by run; waited for by run; or NULL */
    bool until_stopped;  /* run goes on until it is told to stop      */
    uint32_t n_runs, n_done, n_cancelled;
    struct jobs *again; /* submit once more when done, or NULL */
};

static void run(struct job *j)
{
    struct task *t = (struct task *)j;

    t->n_runs++;
    if (t->begun)
        sem_post(t->begun);
    if (t->gate)
        sem_wait(t->gate);
    while (t->until_stopped && !job_stopped(j))
        uv_sleep(1);
}

static void done(struct job *j, bool cancelled)
{
    struct task *t = (struct task *)j;
    struct jobs *again = t->again;

    t->n_done++;
    t->n_cancelled += cancelled;
    t->again = NULL;
    if (again)
        assert_int_equal(jobs_submit(again, j, run, done, NULL), ERR_OK);
}

struct world {
    uv_loop_t loop;
    struct work_count work;
    struct jobs jobs;
    uint32_t n_ended;
    sem_t begun, gate;
    struct task block[POOL_THREADS]; /* occupy every thread of the pool */
};

static void on_ended(void *ctx)
{
    ((struct world *)ctx)->n_ended++;
}

static void open_world(struct world *w, uint32_t max)
{
    memset(w, 0, sizeof *w);
    assert_int_equal(uv_loop_init(&w->loop), 0);
    w->work = (struct work_count){ .ended = on_ended, .ctx = w };
    jobs_init(&w->jobs, &w->loop, max, &w->work);
    sem_init(&w->begun, 0, 0);
    sem_init(&w->gate, 0, 0);
}

static void close_world(struct world *w)
{
    uv_run(&w->loop, UV_RUN_DEFAULT);
    assert_int_equal(w->jobs.n, 0);
    assert_int_equal(w->work.n, 0);
    assert_int_equal(uv_loop_close(&w->loop), 0);
    sem_destroy(&w->begun);
    sem_destroy(&w->gate);
}

static void submit(struct world *w, struct task *t)
{
    struct err e = { 0 };

    assert_ok(jobs_submit(&w->jobs, &t->job, run, done, &e), e);
}

/* Jobs behind these wait until let_go. */
static void occupy(struct world *w)
{
    for (int i = 0; i < POOL_THREADS; i++) {
        w->block[i] = (struct task){ .begun = &w->begun, .gate = &w->gate };
        submit(w, &w->block[i]);
    }
    for (int i = 0; i < POOL_THREADS; i++)
        sem_wait(&w->begun);
}

static void let_go(struct world *w)
{
    for (int i = 0; i < POOL_THREADS; i++)
        sem_post(&w->gate);
}

TEST(each_runs_and_reports_once)
{
    struct world w;
    static struct task t[MANY];

    memset(t, 0, sizeof t);
    open_world(&w, MANY);
    for (int i = 0; i < MANY; i++) {
        t[i].again = i % 2 ? &w.jobs : NULL;
        submit(&w, &t[i]);
    }
    assert_int_equal(w.work.n, MANY);
    uv_run(&w.loop, UV_RUN_DEFAULT);
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(t[i].n_runs, i % 2 ? 2 : 1);
        assert_int_equal(t[i].n_done, i % 2 ? 2 : 1);
        assert_int_equal(t[i].n_cancelled, 0);
    }
    assert_int_equal(w.n_ended, MANY + MANY / 2);
    close_world(&w);
}

TEST(beyond_the_bound_a_job_is_refused_and_nothing_runs)
{
    struct world w;
    struct task extra = { 0 };
    struct err e = { 0 };

    open_world(&w, POOL_THREADS);
    occupy(&w);
    assert_int_equal(jobs_submit(&w.jobs, &extra.job, run, done, &e), ERR_BUSY);
    assert_contains(e.message, "4 requests");
    assert_int_equal(w.work.n, POOL_THREADS);
    let_go(&w);
    uv_run(&w.loop, UV_RUN_DEFAULT);
    assert_int_equal(extra.n_runs + extra.n_done, 0);
    submit(&w, &extra); /* there is room again */
    close_world(&w);
    assert_int_equal(extra.n_runs, 1);
}

TEST(cancelled_before_it_begins_it_never_runs_and_reports_once)
{
    struct world w;
    struct task t = { 0 };

    open_world(&w, MANY);
    occupy(&w);
    submit(&w, &t);
    assert_int_equal(w.work.n, POOL_THREADS + 1);
    job_cancel(&t.job);
    assert_int_equal(w.work.n, POOL_THREADS); /* nobody waits for it from here on */
    assert_int_equal(w.n_ended, 1);
    job_cancel(&t.job); /* no effect */
    assert_int_equal(w.n_ended, 1);
    assert_int_equal(t.n_done, 0); /* reports on the loop, not here */
    let_go(&w);
    close_world(&w);
    assert_int_equal(t.n_runs, 0);
    assert_int_equal(t.n_done, 1);
    assert_int_equal(t.n_cancelled, 1);
}

TEST(cancelled_while_it_runs_it_is_told_to_stop)
{
    struct world w;
    struct task t = { .begun = &w.begun, .until_stopped = true };

    open_world(&w, MANY);
    submit(&w, &t);
    sem_wait(&w.begun);
    job_cancel(&t.job);
    assert_int_equal(w.work.n, 0);
    close_world(&w); /* ends only because the job does */
    assert_int_equal(t.n_runs, 1);
    assert_int_equal(t.n_done, 1);
    assert_int_equal(t.n_cancelled, 1);
}

TEST(cancels_race_beginnings)
{
    struct world w;
    static struct task t[MANY];
    uint32_t n_cancelled = 0;

    memset(t, 0, sizeof t);
    open_world(&w, MANY);
    for (int i = 0; i < MANY; i++) {
        submit(&w, &t[i]);
        if (i % 3 == 0)
            uv_run(&w.loop, UV_RUN_NOWAIT);
        if (i % 2)
            job_cancel(&t[i].job);
    }
    uv_run(&w.loop, UV_RUN_DEFAULT);
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(t[i].n_done, 1);
        assert_true(t[i].n_runs <= 1);
        assert_true(t[i].n_runs == 1 || t[i].n_cancelled == 1);
        n_cancelled += t[i].n_cancelled;
    }
    assert_true(n_cancelled <= MANY / 2);
    assert_int_equal(w.n_ended, MANY);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(each_runs_and_reports_once),
        RUN(beyond_the_bound_a_job_is_refused_and_nothing_runs),
        RUN(cancelled_before_it_begins_it_never_runs_and_reports_once),
        RUN(cancelled_while_it_runs_it_is_told_to_stop),
        RUN(cancels_race_beginnings),
    };

    uv_os_setenv("UV_THREADPOOL_SIZE", "4");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
