/* engine_fault_test.c: the engine thread over a model that fails, stalls or
 * returns numbers that are none: every mail is answered, every sequence ends,
 * the ledger is whole, and the next request is served.  The model is this file's
 * own; every test runs with steps one by one and overlapped, and under the thread
 * sanitizer as well. */
#include "support/test.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "server/engine/engine.h"

/* ------------------------------------------------- a model of one number */

enum { MAX_OUT = 256 };

struct model {
    struct model_info info;
    struct sampled out[2][MAX_OUT]; /* of the last two steps        */
    uint64_t collected;             /* step                                  */
    _Atomic int fail_in;            /* steps until one fails; < 0: none      */
    _Atomic int lose_in;            /* steps until one's results are lost    */
    _Atomic bool not_finite;
    _Atomic bool hold; /* a step waits while this is set        */
    _Atomic uint32_t n_steps;
};

const struct model_info *model_describe(const struct model *m)
{
    return &m->info;
}

enum err_code model_start(struct model *m, const struct model_limits *lim, struct err *e)
{
    (void)m;
    (void)lim;
    (void)e;
    return ERR_OK;
}

enum err_code model_forward(struct model *m, const struct step_plan *plan, struct err *e)
{
    while (atomic_load(&m->hold))
        usleep(1000);
    atomic_fetch_add(&m->n_steps, 1);
    if (atomic_load(&m->fail_in) >= 0 && atomic_fetch_sub(&m->fail_in, 1) == 0)
        return err_set(e, ERR_GPU, "the device fell over at step %llu",
                       (unsigned long long)plan->step);
    assert_true(plan->n_outputs <= MAX_OUT);
    for (uint32_t i = 0; i < plan->n_outputs; i++)
        m->out[plan->step % 2][i] =
            (struct sampled){ .token = (int32_t)(plan->output[i].n_history % 100),
                              .failed = atomic_load(&m->not_finite) };
    return ERR_OK;
}

enum err_code model_collect(struct model *m, uint64_t step, const struct sampled **out,
                            struct err *e)
{
    assert_true(step > m->collected); /* in order */
    m->collected = step;
    *out = m->out[step % 2];
    if (atomic_load(&m->lose_in) >= 0 && atomic_fetch_sub(&m->lose_in, 1) == 0)
        return err_set(e, ERR_GPU, "the device fell over at step %llu", (unsigned long long)step);
    return ERR_OK;
}

/* ------------------------------------------------------------- a client */

struct world {
    struct model model;
    struct serving_metrics metrics;
    struct srv_log log;
    struct engine *engine;
    sem_t events;
    uint32_t n_tokens, n_done[FINISH_ERROR + 1], n_answers;
    char message[ERR_MESSAGE_BYTES];
    enum err_code code;
    uint64_t sent_us;
};

static bool overlap;

static void on_wake(void *ctx)
{
    sem_post(ctx);
}

static void open_world(struct world *w)
{
    struct kv_layer_desc layer = { KV_FULL, 0, 1, 8, 8 };
    struct serving_metrics_config mc = { .model_name = "m", .max_model_len = 1024 };
    struct engine_config c = {
        .model = &w->model,
        .pool = { .n_blocks = 64,
                  .max_seqs = 8,
                  .max_seq_tokens = 512,
                  .max_chunk = 64,
                  .prefix_caching = true,
                  .max_pins = 2,
                  .pin_budget = 8 },
        .sched = { .max_num_seqs = 8,
                   .max_num_batched_tokens = 64,
                   .max_model_len = 512,
                   .max_queued = 32,
                   .max_partial_prefills = 1,
                   .max_outputs = MAX_OUT,
                   .overlap = overlap },
        .n_steps = 16,
        .metrics = &w->metrics,
        .log = &w->log,
        .wake = on_wake,
        .wake_ctx = &w->events,
    };
    struct err e = { 0 };

    memset(w, 0, sizeof *w);
    atomic_store(&w->model.fail_in, -1);
    atomic_store(&w->model.lose_in, -1);
    assert_ok(kv_layout_init(&w->model.info.layout, &layer, 1, 16, KV_F32, KV_F32, &e), e);
    assert_ok(serving_metrics_init(&w->metrics, &mc, &e), e);
    srv_log_init(&w->log, -1, SRV_ERROR + 1, 0);
    sem_init(&w->events, 0, 0);
    assert_ok(engine_create(&w->engine, &c, &e), e);
}

static void close_world(struct world *w)
{
    engine_destroy(w->engine);
    serving_metrics_fini(&w->metrics);
    sem_destroy(&w->events);
}

/* A mail came back. */
static void on_mail(struct engine_mail *m)
{
    ((struct world *)m->owner)->n_answers++;
}

#define MAIL(w, k) { .kind = (k), .done = on_mail, .owner = (w) }

static void on_event(void *ctx, const struct sched_event *ev, uint64_t sent_us)
{
    struct world *w = ctx;

    assert_true(sent_us >= w->sent_us);
    w->sent_us = sent_us;
    w->n_tokens += ev->kind == SCHED_TOKEN;
    if (ev->kind != SCHED_DONE)
        return;
    w->n_done[ev->finish]++;
    assert_int_equal(ev->why != NULL, ev->finish == FINISH_ERROR);
    if (ev->why) {
        w->code = ev->why->code;
        strcpy(w->message, ev->why->message);
    }
}

/* Take what the engine has sent so far. */
static void take_events(struct world *w)
{
    engine_dispatch(w->engine, &(struct engine_reader){ w, on_event });
}

static uint32_t all_done(const struct world *w)
{
    uint32_t n = 0;

    for (int i = 0; i <= FINISH_ERROR; i++)
        n += w->n_done[i];
    return n;
}

/* Wait for so many answers and ended sequences, at most 20 s. */
static void await(struct world *w, uint32_t n_answers, uint32_t n_done)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    for (take_events(w); w->n_answers < n_answers || all_done(w) < n_done; take_events(w))
        if (sem_timedwait(&w->events, &until) != 0)
            fail_msg("%u of %u answers, %u of %u ends", w->n_answers, n_answers, all_done(w),
                     n_done);
}

static const int32_t prompt[40] = { 1, 2, 3 };
static const struct sample_params params = { .n_logprobs = -1 };

static struct sched_request request(req_id id, uint32_t max_tokens)
{
    return (struct sched_request){ .id = id,
                                   .prompt = prompt,
                                   .n_prompt = 40,
                                   .max_tokens = max_tokens,
                                   .n = 1,
                                   .params = &params };
}

static void post(struct world *w, struct engine_submit *m, const struct sched_request *r,
                 uint32_t n)
{
    struct err e = { 0 };

    *m = (struct engine_submit){ .head = MAIL(w, ENGINE_SUBMIT), .request = r, .n = n };
    assert_ok(engine_post_submit(w->engine, m, &e), e);
}

/* The ledger is whole and nothing is held. */
static void expect_idle(struct world *w)
{
    struct engine_state q;

    for (int i = 0; i < 20; i++) { /* a step behind the last token ends by itself */
        q = (struct engine_state){ .head = MAIL(w, ENGINE_STATE) };
        engine_post(w->engine, &q.head);
        await(w, w->n_answers + 1, 0);
        if (q.pool.n_resting == 0)
            break;
        usleep(1000);
    }
    assert_int_equal(q.check, ERR_OK);
    assert_int_equal(q.pool.n_held + q.pool.n_resting, 0);
    assert_int_equal(q.sched.n_running + q.sched.n_waiting, 0);
}

/* ----------------------------------------------------------------- tests */

TEST(a_request_runs_to_its_limit)
{
    struct world w;
    struct engine_submit m;
    struct sched_request r = request(1, 30);

    open_world(&w);
    post(&w, &m, &r, 1);
    await(&w, 1, 1);
    assert_int_equal(m.rc, ERR_OK);
    assert_int_equal(w.n_tokens, 30);
    assert_int_equal(w.n_done[FINISH_LENGTH], 1);
    expect_idle(&w);
    close_world(&w);
}

TEST(a_failed_step_ends_its_requests_in_an_error_and_the_next_is_served)
{
    struct world w;
    struct engine_submit m[3];
    struct sched_request r[3] = { request(1, 30), request(2, 30), request(3, 5) };
    struct engine_snapshot s;

    open_world(&w);
    atomic_store(&w.model.fail_in, 5);
    post(&w, &m[0], &r[0], 2);
    await(&w, 1, 2);
    assert_int_equal(w.n_done[FINISH_ERROR], 2);
    assert_contains(w.message, "the device fell over");
    assert_int_equal(w.code, ERR_GPU);
    expect_idle(&w);
    engine_snapshot(w.engine, &s);
    assert_contains(s.fault, "the device fell over");
    assert_int_equal(s.n_faults, 1);
    post(&w, &m[2], &r[2], 1);
    await(&w, 2, 3);
    assert_int_equal(w.n_done[FINISH_LENGTH], 1);
    expect_idle(&w);
    engine_snapshot(w.engine, &s);
    assert_string_equal(s.fault, "");
    close_world(&w);
}

TEST(lost_results_end_their_requests_in_an_error_and_the_next_is_served)
{
    struct world w;
    struct engine_submit m[2];
    struct sched_request r[3] = { request(1, 30), request(2, 30), request(3, 5) };

    open_world(&w);
    atomic_store(&w.model.lose_in, 5);
    post(&w, &m[0], &r[0], 2);
    await(&w, 1, 2);
    assert_int_equal(w.n_done[FINISH_ERROR], 2);
    assert_contains(w.message, "the device fell over");
    assert_int_equal(w.code, ERR_GPU);
    expect_idle(&w);
    post(&w, &m[1], &r[2], 1);
    await(&w, 2, 3);
    assert_int_equal(w.n_done[FINISH_LENGTH], 1);
    expect_idle(&w);
    close_world(&w);
}

TEST(logits_that_are_no_numbers_end_in_an_error_never_a_token)
{
    struct world w;
    struct engine_submit m[2];
    struct sched_request r[2] = { request(1, 30), request(2, 30) };
    struct engine_snapshot s;

    open_world(&w);
    atomic_store(&w.model.not_finite, true);
    r[1].n = 3; /* three sequences of one request: it counts once */
    post(&w, &m[0], &r[0], 1);
    await(&w, 1, 1);
    assert_int_equal(w.n_tokens, 0);
    assert_int_equal(w.n_done[FINISH_ERROR], 1);
    assert_int_equal(w.code, ERR_INTERNAL);
    post(&w, &m[1], &r[1], 1);
    await(&w, 2, 4);
    assert_int_equal(w.n_done[FINISH_ERROR], 4);
    expect_idle(&w);
    engine_snapshot(w.engine, &s);
    assert_int_equal(s.sched.corrupted, 2);
    close_world(&w);
}

TEST(a_submission_is_all_or_nothing)
{
    struct world w;
    struct engine_submit m;
    struct sched_request r[2] = { request(1, 5), request(2, 5) };

    open_world(&w);
    r[1].n_prompt = 0; /* refused */
    post(&w, &m, r, 2);
    await(&w, 1, 0);
    assert_int_equal(m.rc, ERR_INVALID);
    assert_int_equal(w.n_tokens, 0);
    expect_idle(&w);
    close_world(&w);
}

TEST(a_stuck_step_shows_and_a_cancel_comes_through_after_it)
{
    struct world w;
    struct engine_submit m;
    struct sched_request r = request(1, 400);
    struct engine_cancel c = { .head = MAIL(&w, ENGINE_CANCEL), .id = 1, .choice = -1 };
    struct engine_snapshot s;

    open_world(&w);
    atomic_store(&w.model.hold, true);
    post(&w, &m, &r, 1);
    usleep(100000);
    engine_snapshot(w.engine, &s);
    assert_true(s.busy);
    assert_true(srv_now_us() - s.progress_us > 50000);
    engine_post(w.engine, &c.head);
    atomic_store(&w.model.hold, false);
    await(&w, 2, 1);
    assert_int_equal(w.n_done[FINISH_CANCELLED], 1);
    expect_idle(&w);
    close_world(&w);
}

TEST(nobody_taking_events_stops_the_engine_not_the_memory)
{
    struct world w;
    struct engine_submit m;
    struct sched_request r = request(1, 400);

    open_world(&w);
    post(&w, &m, &r, 1);
    usleep(300000);
    uint32_t steps = atomic_load(&w.model.n_steps);
    assert_true(steps > 0 && steps < 50); /* as many as there are batches */
    usleep(50000);
    assert_int_equal(atomic_load(&w.model.n_steps), steps);
    await(&w, 1, 1);
    assert_int_equal(w.n_tokens, 400);
    expect_idle(&w);
    close_world(&w);
}

TEST(cancels_race_finishes)
{
    enum { N = 2000 };
    struct world w;
    static struct engine_submit m[N];
    static struct engine_cancel c[N];
    static struct sched_request r[N];
    uint32_t posted = 0;

    open_world(&w);
    for (uint32_t i = 0; i < N; i++) {
        r[i] = request(i + 1, 1 + i % 4);
        post(&w, &m[i], &r[i], 1);
        for (uint32_t k = 0; k < i % 3; k++)
            take_events(&w);
        c[i] = (struct engine_cancel){ .head = MAIL(&w, ENGINE_CANCEL),
                                       .id = i + 1,
                                       .choice = i % 2 ? -1 : 0 };
        engine_post(w.engine, &c[i].head);
        posted += 2;
        if (posted - w.n_answers > 40)
            await(&w, posted - 10, 0);
    }
    await(&w, 2 * N, 0);
    expect_idle(&w);
    uint32_t refused = 0;
    for (uint32_t i = 0; i < N; i++)
        refused += m[i].rc != ERR_OK;
    assert_int_equal(all_done(&w), N - refused);
    close_world(&w);
}

/* Ask everything an operator can, once; the answers are whole. */
static void ask_all(struct world *w, uint32_t round)
{
    struct kvpool_block block[64];
    struct engine_holders holders[64] = { 0 };
    struct engine_state q = { .head = MAIL(w, ENGINE_STATE), .want_live = true, .want_pins = true };
    struct engine_blocks b = {
        .head = MAIL(w, ENGINE_BLOCKS), .n = 64, .block = block, .holders = holders
    };
    struct engine_steps s = { .head = MAIL(w, ENGINE_STEPS), .n = 10, .with_rows = true };
    struct engine_pin add = { .head = MAIL(w, ENGINE_PIN),
                              .verb = ENGINE_PIN_ADD,
                              .tokens = prompt,
                              .n_tokens = 40,
                              .ttl_us = round % 2 ? 1 : 60000000 };
    struct engine_pin drop = { .head = MAIL(w, ENGINE_PIN), .verb = ENGINE_PIN_REMOVE };
    struct engine_reset r = { .head = MAIL(w, ENGINE_RESET), .when_idle = round % 3 == 0 };

    engine_post(w->engine, &add.head);
    engine_post(w->engine, &q.head);
    engine_post(w->engine, &b.head);
    engine_post(w->engine, &s.head);
    engine_post(w->engine, &r.head);
    if (round % 4 == 3)
        engine_post(w->engine, &drop.head);
    await(w, w->n_answers + 5 + (round % 4 == 3), 0);
    assert_int_equal(q.check, ERR_OK);
    assert_true(q.n_pins <= 2 && q.pool.n_pinned <= 8);
    assert_true(add.rc == ERR_OK || add.rc == ERR_NOT_FOUND || add.rc == ERR_CONFLICT);
    assert_int_equal(b.n, 64);
    for (uint32_t i = 0; i < b.n; i++) {
        assert_int_equal(block[i].n_refs == 0, block[i].state != KVPOOL_HELD);
        assert_true(holders[i].n + block[i].n_pins >= 1 || block[i].n_refs == 0);
    }
    assert_ok(s.rc, s.err);
    assert_true(s.steps.n_steps <= 10);
    for (uint32_t i = 1; i < s.steps.n_steps; i++)
        assert_int_equal(s.steps.step[i].step, s.steps.step[0].step + i);
    srv_steps_copy_fini(&s.steps);
    free(q.live);
    free(q.pins);
}

TEST(operators_ask_beside_traffic)
{
    enum { N = 24 };
    struct world w;
    struct engine_submit m[N];
    struct sched_request r[N];
    struct engine_reset reset = { .head = MAIL(&w, ENGINE_RESET) };
    struct engine_pin drop = { .head = MAIL(&w, ENGINE_PIN), .verb = ENGINE_PIN_REMOVE };

    open_world(&w);
    for (uint32_t i = 0; i < N; i++) {
        r[i] = request(i + 1, 20 + i);
        post(&w, &m[i], &r[i], 1);
        ask_all(&w, i);
    }
    await(&w, w.n_answers, N);
    assert_int_equal(w.n_done[FINISH_LENGTH], N);
    engine_post(w.engine, &drop.head);
    await(&w, w.n_answers + 1, 0);
    expect_idle(&w);
    engine_post(w.engine, &reset.head);
    await(&w, w.n_answers + 1, 0);
    assert_true(reset.done);
    assert_int_equal(reset.pool.n_free, 64);
    close_world(&w);
}

/* A failed step is on record as such, and a reset that waits comes after it. */
TEST(a_deferred_reset_outlives_a_failed_step)
{
    struct world w;
    struct engine_submit m;
    struct sched_request r = request(1, 30);
    struct engine_reset reset = { .head = MAIL(&w, ENGINE_RESET), .when_idle = true };
    struct engine_steps s = { .head = MAIL(&w, ENGINE_STEPS), .n = 16 };
    uint32_t failed = 0;

    open_world(&w);
    atomic_store(&w.model.hold, true);
    atomic_store(&w.model.fail_in, 5);
    post(&w, &m, &r, 1);
    engine_post(w.engine, &reset.head);
    atomic_store(&w.model.hold, false);
    await(&w, 2, 1);
    assert_int_equal(w.n_done[FINISH_ERROR], 1);
    expect_idle(&w);
    engine_post(w.engine, &s.head);
    await(&w, w.n_answers + 1, 0);
    for (uint32_t i = 0; i < s.steps.n_steps; i++)
        failed += s.steps.step[i].state == STEP_FAILED;
    assert_int_equal(failed, 1);
    srv_steps_copy_fini(&s.steps);
    struct engine_state q = { .head = MAIL(&w, ENGINE_STATE) };
    engine_post(w.engine, &q.head);
    await(&w, w.n_answers + 1, 0);
    assert_false(q.reset_waits);
    assert_int_equal(q.pool.n_cached, 0);
    close_world(&w);
}

TEST(destroyed_while_busy)
{
    struct world w;
    struct engine_submit m;
    struct sched_request r[8];

    for (uint32_t i = 0; i < 8; i++)
        r[i] = request(i + 1, 400);
    open_world(&w);
    post(&w, &m, r, 8);
    usleep(20000);
    close_world(&w);
}

/* Whatever the engine had when it was told to end. */
TEST(mails_are_given_back_at_the_end)
{
    struct world w;
    struct engine_submit m;
    struct sched_request r = request(1, 400);
    struct engine_state ask[3];
    struct engine_cancel c = { .head = MAIL(&w, ENGINE_CANCEL), .id = 1, .choice = -1 };

    open_world(&w);
    post(&w, &m, &r, 1);
    for (int i = 0; i < 3; i++) {
        ask[i] = (struct engine_state){ .head = MAIL(&w, ENGINE_STATE) };
        engine_post(w.engine, &ask[i].head);
    }
    engine_post(w.engine, &c.head);
    close_world(&w);
    assert_int_equal(w.n_answers, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(a_request_runs_to_its_limit),
        RUN(a_failed_step_ends_its_requests_in_an_error_and_the_next_is_served),
        RUN(lost_results_end_their_requests_in_an_error_and_the_next_is_served),
        RUN(logits_that_are_no_numbers_end_in_an_error_never_a_token),
        RUN(a_submission_is_all_or_nothing),
        RUN(a_stuck_step_shows_and_a_cancel_comes_through_after_it),
        RUN(nobody_taking_events_stops_the_engine_not_the_memory),
        RUN(cancels_race_finishes),
        RUN(operators_ask_beside_traffic),
        RUN(a_deferred_reset_outlives_a_failed_step),
        RUN(destroyed_while_busy),
        RUN(mails_are_given_back_at_the_end),
    };

    int failed = cmocka_run_group_tests_name("one by one", tests, NULL, NULL);

    overlap = true;
    return failed + cmocka_run_group_tests_name("overlapped", tests, NULL, NULL);
}
