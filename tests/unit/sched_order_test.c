/* sched_order_test.c: whose turn it is: priorities, tenants, short and long
 * prompts, and who is preempted, with the real pool and the hash model. */
#include "property/sched_world.h"

#include "support/test.h"

static void submit(struct world *w, req_id id, uint64_t seed, uint32_t n_prompt, uint32_t out)
{
    assert_int_equal(world_submit_simple(w, id, seed, n_prompt, out), ERR_OK);
}

static struct sched_stats stats_of(const struct world *w)
{
    struct sched_stats st;
    sched_stats(w->sched, &st);
    return st;
}

TEST(priority_goes_first_when_asked)
{
    struct world w;
    struct err e;
    for (int policy = 0; policy < 2; policy++) {
        world_open(&w, &(struct world_config){
                           .n_blocks = 32,
                           .sched = { .max_num_seqs = 1,
                                      .policy = policy ? SCHED_PRIORITY : SCHED_FCFS } });
        struct sched_request r = { .n_prompt = 10, .n = 1, .max_tokens = 2 };
        for (r.id = 0; r.id < 4; r.id++) {
            r.priority = r.id == 2 ? -1 : 4 - (int32_t)r.id;
            assert_int_equal(world_submit_like(&w, r, r.id, NULL, &e), ERR_OK);
        }
        const req_id order[2][4] = { { 0, 1, 2, 3 }, { 2, 3, 1, 0 } };
        for (int i = 0; i < 4; i++) {
            assert_true(world_step(&w));
            assert_int_equal(w.req[order[policy][i]].seq[0].n_output, 1);
            assert_true(world_step(&w));
        }
        world_expect_idle(&w);
        world_close(&w);
    }
}

TEST(a_flood_of_one_tenant_does_not_delay_another)
{
    struct world w;
    struct err e;
    world_open(&w, &(struct world_config){ .n_blocks = 64, .sched = { .max_num_seqs = 2 } });
    struct sched_request r = { .n_prompt = 100, .n = 1, .max_tokens = 20, .tenant = 1 };
    for (r.id = 0; r.id < 200; r.id++)
        assert_int_equal(world_submit_like(&w, r, r.id, NULL, &e), ERR_OK);
    for (int i = 0; i < 50; i++)
        assert_true(world_step(&w));
    r.tenant = 2;
    for (r.id = 200; r.id < 205; r.id++)
        assert_int_equal(world_submit_like(&w, r, r.id, NULL, &e), ERR_OK);
    uint32_t before = 0;
    while (w.req[204].n_live > 0)
        assert_true(world_step(&w));
    for (uint32_t i = 0; i < 200; i++)
        before += w.req[i].n_live == 0;
    /* By arrival all 200 would be served first. */
    assert_in_range(before, 1, 40);
    world_drain(&w, 5000);
    world_expect_idle(&w);
    world_close(&w);
}

TEST(tenants_share_tokens_not_requests)
{
    struct world w;
    struct err e;
    world_open(&w, &(struct world_config){ .n_blocks = 128,
                                           .no_prefix_caching = true,
                                           .sched = { .max_num_seqs = 4 } });
    /* One tenant sends few long requests, two send many short ones. */
    struct sched_request r = { .n = 1, .max_tokens = 4 };
    for (r.id = 0; r.id < 900; r.id++) {
        r.tenant = 1 + r.id % 3;
        r.n_prompt = r.tenant == 1 ? 500 : 40;
        assert_int_equal(world_submit_like(&w, r, r.id, NULL, &e), ERR_OK);
    }
    uint64_t served[4] = { 0 };
    for (int i = 0; i < 600; i++)
        assert_true(world_step(&w));
    for (req_id i = 0; i < 900; i++)
        if (w.req[i].seq[0].n_output > 0)
            served[w.req[i].r.tenant] += w.req[i].r.n_prompt + w.req[i].seq[0].n_output;
    for (int t = 1; t <= 3; t++)
        assert_in_range(served[t], 8000, 16000);
    world_cancel(&w, 5, -1);
    for (req_id i = 899; i > 5; i--) /* from the queue's middle and end */
        if (w.req[i].n_live > 0)
            world_cancel(&w, i, -1);
    world_drain(&w, 500);
    world_expect_idle(&w);
    world_close(&w);
}

TEST(a_long_prompt_lets_short_ones_by_and_is_not_starved)
{
    struct world w;
    world_open(&w, &(struct world_config){ .n_blocks = 256,
                                           .sched = { .max_num_batched_tokens = 64,
                                                      .long_prefill_threshold = 32,
                                                      .max_partial_prefills = 2 } });
    submit(&w, 1, 1, 1500, 1);
    for (req_id i = 10; i < 60; i++)
        submit(&w, i, i, 50, 1);
    uint32_t done = 0;
    while (w.req[1].n_live > 0)
        assert_true(world_step(&w));
    for (req_id i = 10; i < 60; i++)
        done += w.req[i].n_live == 0;
    assert_in_range(done, 20, 49);
    world_drain(&w, 100);
    world_expect_idle(&w);
    world_close(&w);
}

TEST(a_short_prompt_goes_before_the_rest_of_a_long_one)
{
    struct world w;
    world_open(&w, &(struct world_config){
                       .n_blocks = 256,
                       .sched = { .max_num_batched_tokens = 64, .max_partial_prefills = 1 } });
    submit(&w, 1, 1, 1500, 1);
    assert_true(world_step(&w));
    submit(&w, 2, 2, 50, 1);
    assert_true(world_plan(&w));
    assert_int_equal(w.in_flight->n_rows, 2);
    assert_int_equal(w.in_flight->n_tokens, 64); /* the long one takes the rest */
    world_finish(&w);
    assert_int_equal(w.req[2].n_live, 0);
    /* Any number of short ones delay it by about its own length, not more. */
    uint64_t before = w.n_steps;
    for (req_id i = 10; w.req[1].n_live > 0; i++) {
        submit(&w, i, i, 60, 1);
        assert_true(world_step(&w));
    }
    assert_in_range(w.n_steps - before, 1400 / 64, 2 * 1500 / 60 + 2);
    world_drain(&w, 100);
    world_expect_idle(&w);
    world_close(&w);
}

TEST(preempted_requests_say_every_token_once)
{
    struct world w;
    const uint32_t budgets[] = { 1, 7, 16, 17, 4096 };
    for (uint32_t b = 0; b < 5; b++) {
        world_open(&w, &(struct world_config){ .n_blocks = 24,
                                               .sched = { .max_num_batched_tokens = budgets[b] } });
        for (req_id i = 0; i < 4; i++)
            submit(&w, i, i, 14, 146); /* 10 blocks each */
        world_drain(&w, 4000);
        for (req_id i = 0; i < 4; i++)
            assert_int_equal(w.req[i].seq[0].n_output, 146);
        /* One token a step serves one request after the other. */
        if ((stats_of(&w).preemptions == 0) != (budgets[b] == 1))
            fail_msg("budget %u: %llu preemptions", budgets[b],
                     (unsigned long long)stats_of(&w).preemptions);
        world_expect_idle(&w);
        world_close(&w);
    }
}

TEST(nobody_is_preempted_more_than_three_times)
{
    struct world w;
    world_open(&w, &(struct world_config){ .n_blocks = 64, .no_prefix_caching = true });
    for (req_id i = 0; i < 3; i++)
        submit(&w, i, i, 16, 900); /* three streams that grow */
    for (int i = 0; i < 5; i++)
        assert_true(world_step(&w));
    submit(&w, 9, 9, 60 * 16 - 8, 8);
    world_drain(&w, 20000);
    for (req_id i = 0; i < 10; i++)
        if (w.req[i].used) {
            assert_int_equal(w.req[i].seq[0].finish, FINISH_LENGTH);
            assert_true(w.req[i].seq[0].n_preempted <= 3);
        }
    world_expect_idle(&w);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(priority_goes_first_when_asked),
        RUN(a_flood_of_one_tenant_does_not_delay_another),
        RUN(tenants_share_tokens_not_requests),
        RUN(a_long_prompt_lets_short_ones_by_and_is_not_starved),
        RUN(a_short_prompt_goes_before_the_rest_of_a_long_one),
        RUN(preempted_requests_say_every_token_once),
        RUN(nobody_is_preempted_more_than_three_times),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
