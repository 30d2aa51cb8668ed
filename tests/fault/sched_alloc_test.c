/* sched_alloc_test.c: every allocation of the scheduler fails once.
 *
 * Whatever fails, a request says what it says alone or ends with an error, and
 * the ledger is exact afterwards. */
#include "property/sched_world.h"

#include "support/alloc_fail.h"
#include "support/test.h"

static int64_t left; /* allocations inside the scheduler until one fails; < 0: never */
static bool fired;

/* Only what is allocated inside the scheduler's calls counts. */
static void arm(bool inside)
{
    if (inside) {
        alloc_fail_at(left, false);
        return;
    }
    fired = fired || alloc_fail_fired();
    if (left >= 0)
        left -= alloc_fail_count();
    alloc_fail_at(-1, false);
}

static enum err_code submit(struct world *w, req_id id, uint32_t n_prompt, uint32_t out, uint32_t n,
                            bool scores)
{
    int32_t prompt[512];
    for (uint32_t i = 0; i < n_prompt; i++)
        prompt[i] = world_prompt_token(id % 3, i);
    struct sample_params p = { .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1 };
    struct err e;
    return world_submit(w,
                        &(struct sched_request){ .id = id,
                                                 .prompt = prompt,
                                                 .n_prompt = n_prompt,
                                                 .max_tokens = out,
                                                 .n = n,
                                                 .tenant = id % 4,
                                                 .priority = (int32_t)(id % 2),
                                                 .prompt_logprobs = scores },
                        &p, &e);
}

/* One scenario: siblings, scores, preemption, histories that grow. */
static uint32_t live_through(struct world *w, uint32_t *n_refused)
{
    uint32_t n_errors = 0;
    for (req_id id = 0; id < 10; id++) {
        enum err_code rc = submit(w, id, 20 + 9 * (uint32_t)id, id % 3 == 0 ? 150 : 20,
                                  id % 4 == 0 ? 3 : 1, id % 5 == 1);
        assert_true(rc == ERR_OK || rc == ERR_NOMEM);
        *n_refused += rc == ERR_NOMEM;
        world_step(w);
    }
    world_drain(w, 5000);
    world_expect_idle(w);
    for (req_id id = 0; id < 10; id++)
        for (uint32_t k = 0; w->req[id].used && k < w->req[id].r.n; k++) {
            const struct world_seq *q = &w->req[id].seq[k];
            assert_true(q->finish == FINISH_LENGTH || q->finish == FINISH_ERROR);
            if (q->finish == FINISH_ERROR)
                assert_contains(q->message, "memory");
            n_errors += q->finish == FINISH_ERROR;
        }
    return n_errors;
}

TEST(every_allocation_of_a_run_fails_once)
{
    uint32_t n_refused = 0, n_errors = 0;
    for (int64_t n = 0;; n++) {
        struct world w;
        world_open(&w, &(struct world_config){ .n_blocks = 30,
                                               .sched = { .max_num_seqs = 5,
                                                          .look_ahead_tokens = 1,
                                                          .policy = SCHED_PRIORITY } });
        w.may_fail = true;
        w.guard = arm;
        left = n;
        fired = false;
        n_errors += live_through(&w, &n_refused);
        bool done = !fired;
        if (done) {
            struct sched_stats st;
            sched_stats(w.sched, &st);
            assert_true(st.preemptions > 0);
            assert_true(n > 50);
        }
        left = -1;
        world_close(&w);
        if (done)
            break;
    }
    assert_true(n_refused > 10 && n_errors > 10);
}

static uint64_t no_clock(void *ctx)
{
    (void)ctx;
    return 0;
}

static void no_event(void *ctx, const struct sched_event *ev)
{
    (void)ctx;
    (void)ev;
}

TEST(every_allocation_of_create_fails_once)
{
    struct world w;
    world_open(
        &w, &(struct world_config){ .n_blocks = 30, .n_full = 1, .n_windowed = 1, .window = 20 });
    struct sched_config c = { .max_num_seqs = 4,
                              .max_num_batched_tokens = 64,
                              .max_model_len = 128,
                              .max_queued = 4,
                              .max_partial_prefills = 1 };
    for (int64_t n = 0;; n++) {
        struct sched *s;
        struct err e;
        alloc_fail_at(n, false);
        enum err_code rc = sched_create(&s, w.pool, &w.lay, &c, no_clock, NULL,
                                        &(struct sched_sink){ NULL, no_event }, &e);
        alloc_fail_at(-1, false);
        if (rc == ERR_OK) {
            sched_destroy(s);
            assert_true(n > 10);
            break;
        }
        assert_int_equal(rc, ERR_NOMEM);
        assert_null(s);
    }
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(every_allocation_of_a_run_fails_once),
        RUN(every_allocation_of_create_fails_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
