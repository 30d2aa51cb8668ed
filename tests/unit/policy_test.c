/* policy_test.c: the scheduler's decisions, each on a view made by hand. */
#include "scheduler/policy.h"

#include "support/test.h"

TEST(shorter_prompts_go_first)
{
    struct sched_policy_prompt a = { .left = 10, .arrival = 5 }, b = { .left = 500, .arrival = 1 };
    assert_true(sched_policy_prompt_before(&a, &b));
    assert_false(sched_policy_prompt_before(&b, &a));
    b.left = 10;
    assert_true(sched_policy_prompt_before(&b, &a)); /* a tie: by arrival */
}

TEST(a_passed_over_prompt_is_not_passed_for_ever)
{
    struct sched_policy_prompt longer = { .left = 1000, .arrival = 0 };
    uint32_t steps = 0;
    /* A fresh prompt of 100 tokens arrives each step and takes 100 tokens. */
    for (;; steps++) {
        struct sched_policy_prompt fresh = { .left = 100, .arrival = 1 + steps };
        if (sched_policy_prompt_before(&longer, &fresh))
            break;
        longer.passed += 100;
        assert_true(steps < 100);
    }
    assert_int_equal(steps, 9);
}

TEST(a_lower_priority_number_goes_first_whatever_its_length)
{
    struct sched_policy_prompt a = { .left = 900, .priority = -1 }, b = { .left = 1 };
    assert_true(sched_policy_prompt_before(&a, &b));
}

TEST(a_chunk_obeys_cap_and_budget)
{
    assert_int_equal(sched_policy_chunk(100, 0, 64), 64);
    assert_int_equal(sched_policy_chunk(100, 32, 64), 32);
    assert_int_equal(sched_policy_chunk(20, 32, 64), 20);
    assert_int_equal(sched_policy_chunk(UINT64_MAX, 0, UINT32_MAX), UINT32_MAX);
    assert_int_equal(sched_policy_chunk(5, 0, 0), 0);
}

TEST(the_victim_costs_least_per_useful_block)
{
    struct sched_policy_victim c[] = {
        { .gain = 4, .recompute = 64 },   /* 16 a block */
        { .gain = 40, .recompute = 640 }, /* only 8 useful: 80 a block */
        { .gain = 8, .recompute = 100 },  /* 12.5 a block */
    };
    assert_int_equal(sched_policy_pick_victim(c, 3, 8), 2);
    c[2].n_preempted = 1; /* counts double now */
    assert_int_equal(sched_policy_pick_victim(c, 3, 8), 0);
}

TEST(a_victim_without_blocks_of_its_own_is_none)
{
    struct sched_policy_victim c[] = { { .gain = 0, .recompute = 1 },
                                       { .gain = 0, .recompute = 1 } };
    assert_int_equal(sched_policy_pick_victim(c, 2, 1), -1);
    assert_int_equal(sched_policy_pick_victim(c, 0, 1), -1);
    c[0].gain = 1;
    assert_int_equal(sched_policy_pick_victim(c, 2, 0), 0);
}

TEST(priority_protection_and_age_choose_the_victim)
{
    struct sched_policy_victim c[] = {
        { .gain = 1, .recompute = 16, .priority = 0, .arrival = 1 },
        { .gain = 1, .recompute = 16, .priority = 0, .arrival = 2 },
    };
    assert_int_equal(sched_policy_pick_victim(c, 2, 1), 1); /* the later one */
    c[0].priority = 1;
    assert_int_equal(sched_policy_pick_victim(c, 2, 1), 0); /* the less important one */
    c[0].n_preempted = POLICY_PROTECT_AFTER;
    assert_int_equal(sched_policy_pick_victim(c, 2, 1), 1); /* protected beats all */
    c[1].n_preempted = POLICY_PROTECT_AFTER + 2;
    assert_int_equal(sched_policy_pick_victim(c, 2, 1), 0);
}

TEST(admission_leaves_what_the_running_are_owed)
{
    struct sched_policy_room r = {
        .idle = 10, .promised = 3, .growth = 2, .need = 5, .n_running = 1
    };
    assert_true(sched_policy_fits(&r));
    r.need = 6;
    assert_false(sched_policy_fits(&r));
    r.n_running = 0;
    assert_true(sched_policy_fits(&r));
    r.need = 11;
    assert_false(sched_policy_fits(&r));
}

TEST(look_ahead_grows_to_the_whole_rest)
{
    assert_int_equal(sched_policy_look_ahead(64, 10000, 0), 64);
    assert_int_equal(sched_policy_look_ahead(64, 10000, 1), 256);
    assert_int_equal(sched_policy_look_ahead(64, 10000, 2), 1024);
    assert_int_equal(sched_policy_look_ahead(64, 10000, 3), 10000);
    assert_int_equal(sched_policy_look_ahead(64, 10, 0), 10);
    assert_int_equal(sched_policy_look_ahead(64, UINT64_MAX, 99), UINT64_MAX);
}

TEST(rounds_lift_the_best_tenant_above_zero_and_no_further_than_needed)
{
    assert_int_equal(sched_policy_rounds(1), 0);
    for (int64_t d = 0; d > -5000; d--) {
        int64_t n = sched_policy_rounds(d);
        assert_true(sched_policy_credit(d, n) > 0);
        assert_true(sched_policy_credit(d, n - 1) <= 0);
        assert_true(sched_policy_credit(d, n) <= POLICY_QUANTUM_TOKENS);
    }
}

TEST(debt_is_bounded)
{
    assert_int_equal(sched_policy_charge(100, 30), 70);
    assert_int_equal(sched_policy_charge(100, 130), -30);
    assert_int_equal(sched_policy_charge(0, UINT64_MAX), -POLICY_MAX_DEBT_TOKENS);
    assert_int_equal(sched_policy_charge(-POLICY_MAX_DEBT_TOKENS, 5), -POLICY_MAX_DEBT_TOKENS);
}

TEST(pace_finds_base_and_slope)
{
    struct sched_policy_pace p = { 0 };
    assert_int_equal(sched_policy_pace_tokens(&p, 1, 512), 512); /* nothing seen yet */
    for (int i = 0; i < 50; i++) {
        uint32_t n = i % 3 == 0 ? 0 : (uint32_t)i * 7 % 400;
        sched_policy_pace_add(&p, n, 5000 + 20 * n); /* 5 ms and 20 us a token */
    }
    assert_in_range(sched_policy_pace_tokens(&p, 15000, 4096), 495, 505);
    assert_int_equal(sched_policy_pace_tokens(&p, 15000, 100), 100);
    assert_int_equal(sched_policy_pace_tokens(&p, 1000, 4096), POLICY_MIN_CHUNK_TOKENS);
}

TEST(pace_follows_a_machine_that_slows_down)
{
    struct sched_policy_pace p = { 0 };
    for (int i = 0; i < 200; i++)
        sched_policy_pace_add(&p, (uint32_t)(i % 2) * 256, 5000 + 20 * (uint64_t)(i % 2) * 256);
    for (int i = 0; i < 400; i++)
        sched_policy_pace_add(&p, (uint32_t)(i % 2) * 256, 10000 + 40 * (uint64_t)(i % 2) * 256);
    assert_in_range(sched_policy_pace_tokens(&p, 15000, 4096), 115, 135);
}

TEST(pace_makes_counts_differ_when_they_never_did)
{
    struct sched_policy_pace p = { 0 };
    for (int i = 0; i < 10; i++)
        sched_policy_pace_add(&p, 512, 20000);
    assert_int_equal(sched_policy_pace_tokens(&p, 10000, 512), 256);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(shorter_prompts_go_first),
        RUN(a_passed_over_prompt_is_not_passed_for_ever),
        RUN(a_lower_priority_number_goes_first_whatever_its_length),
        RUN(a_chunk_obeys_cap_and_budget),
        RUN(the_victim_costs_least_per_useful_block),
        RUN(a_victim_without_blocks_of_its_own_is_none),
        RUN(priority_protection_and_age_choose_the_victim),
        RUN(admission_leaves_what_the_running_are_owed),
        RUN(look_ahead_grows_to_the_whole_rest),
        RUN(rounds_lift_the_best_tenant_above_zero_and_no_further_than_needed),
        RUN(debt_is_bounded),
        RUN(pace_finds_base_and_slope),
        RUN(pace_follows_a_machine_that_slows_down),
        RUN(pace_makes_counts_differ_when_they_never_did),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
