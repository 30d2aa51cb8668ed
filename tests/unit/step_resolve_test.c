/* step_resolve_test.c: tokens that a plan leaves to the step before it. */
#include "model/step/resolve.h"

#include "support/test.h"

static const struct sample_params plain = { .top_p = 1, .repetition_penalty = 1 };
static const struct sample_params penal = { .top_p = 1, .repetition_penalty = 1.5f };

/* Rows of 2 and 1 tokens; the last of each is due. */
struct fixture {
    int32_t token[3], from[3], history[2][4];
    struct plan_output out[2];
    struct step_plan p;
    struct sampled before[2];
};

static void init(struct fixture *f)
{
    *f = (struct fixture){ .token = { 4, -1, -1 },
                           .from = { -1, 1, 0 },
                           .history = { { 9, 4, -1 }, { 8, 7, 6, -1 } },
                           .before = { { .token = 50 }, { .token = 60 } } };
    f->out[0] = (struct plan_output){ .row = 0,
                                      .token = 1,
                                      .target = -1,
                                      .params = &penal,
                                      .history = f->history[0],
                                      .n_history = 3 };
    f->out[1] = (struct plan_output){ .row = 1,
                                      .token = 2,
                                      .target = -1,
                                      .params = &plain,
                                      .history = f->history[1],
                                      .n_history = 4 };
    f->p = (struct step_plan){ .step = 2,
                               .n_tokens = 3,
                               .n_rows = 2,
                               .token = f->token,
                               .token_from = f->from,
                               .n_outputs = 2,
                               .output = f->out };
}

TEST(a_plan_that_names_every_token_is_itself)
{
    struct step_resolve r = { 0 };
    struct fixture f;
    const struct step_plan *p;
    struct err e;
    init(&f);
    f.p.token_from = NULL;
    assert_ok(model_step_resolve_apply(&r, &f.p, NULL, 0, &p, &e), e);
    assert_ptr_equal(p, &f.p);
    model_step_resolve_fini(&r);
}

TEST(tokens_and_histories_are_filled)
{
    struct step_resolve r = { 0 };
    struct fixture f;
    const struct step_plan *p;
    struct err e;
    init(&f);
    assert_ok(model_step_resolve_apply(&r, &f.p, f.before, 2, &p, &e), e);
    assert_int_equal(p->token[0], 4);
    assert_int_equal(p->token[1], 60);
    assert_int_equal(p->token[2], 50);
    assert_null(p->token_from);
    assert_int_equal(p->output[0].history[1], 4);
    assert_int_equal(p->output[0].history[2], 60);
    assert_int_equal(f.history[0][2], -1);                /* the scheduler's own is left alone */
    assert_ptr_equal(p->output[1].history, f.history[1]); /* nobody reads it */
    assert_int_equal(p->output[1].n_history, 4);
    model_step_resolve_fini(&r);
}

TEST(a_result_without_a_token_counts_as_zero)
{
    struct step_resolve r = { 0 };
    struct fixture f;
    const struct step_plan *p;
    struct err e;
    init(&f);
    f.before[1] = (struct sampled){ .token = -1, .failed = true };
    assert_ok(model_step_resolve_apply(&r, &f.p, f.before, 2, &p, &e), e);
    assert_int_equal(p->token[1], 0);
    model_step_resolve_fini(&r);
}

TEST(an_output_that_is_not_there_is_named)
{
    struct step_resolve r = { 0 };
    struct fixture f;
    const struct step_plan *p;
    struct err e;
    init(&f);
    assert_int_equal(model_step_resolve_apply(&r, &f.p, f.before, 1, &p, &e), ERR_INVALID);
    assert_contains(e.message, "token_from[1] is 1");
    assert_int_equal(model_step_resolve_apply(&r, &f.p, NULL, 0, &p, &e), ERR_INVALID);
    model_step_resolve_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = { RUN(a_plan_that_names_every_token_is_itself),
                                        RUN(tokens_and_histories_are_filled),
                                        RUN(a_result_without_a_token_counts_as_zero),
                                        RUN(an_output_that_is_not_there_is_named) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
