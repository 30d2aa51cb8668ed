/* model_alloc_test.c: every allocation of opening, starting and stepping a model
 * fails once: the call says so, nothing leaks, and the next try succeeds. */
#include "support/test.h"

#include <stdio.h>

#include "model/model.h"
#include "support/alloc_fail.h"
#include "support/fixture.h"

static char dir[256];

static void make_model(const char *family)
{
    struct fixture f;
    char from[512], to[512];
    struct err e;
    snprintf(from, sizeof from, "tests/conformance/models/%s", family);
    assert_ok(fixture_temp_dir(dir, sizeof dir, &e), e);
    assert_ok(fixture_read(&f, from, &e), e);
    assert_ok(fixture_write_weights(&f, dir, &e), e);
    snprintf(from, sizeof from, "tests/conformance/models/%s/config.json", family);
    snprintf(to, sizeof to, "%s/config.json", dir);
    assert_ok(fixture_copy(from, to, &e), e);
    fixture_fini(&f);
}

/* One token of one sequence, sampled with alternatives. */
static enum err_code step(struct model *m, struct err *e)
{
    static const int32_t token[1] = { 5 }, position[1] = { 0 }, cu[2] = { 0, 1 }, past[1] = { 0 };
    static const int32_t slot[1] = { 16 }, table[1] = { 1 };
    static const struct sample_params p = {
        .temperature = 1, .top_p = 0.9f, .repetition_penalty = 1, .n_logprobs = 3
    };
    struct plan_output out = {
        .target = -1, .params = &p, .history = token, .n_history = 1, .n_prompt = 1
    };
    struct step_plan plan = { .step = 1,
                              .n_tokens = 1,
                              .n_rows = 1,
                              .n_groups = model_describe(m)->layout.n_groups,
                              .max_query_len = 1,
                              .max_kv_len = 1,
                              .token = token,
                              .position = position,
                              .cu_seqlens = cu,
                              .past_seqlens = past,
                              .n_outputs = 1,
                              .output = &out };
    int32_t slots[KV_GROUPS], tables[KV_GROUPS];
    for (uint32_t g = 0; g < plan.n_groups; g++) {
        slots[g] = slot[0] + (int32_t)g * 16;
        tables[g] = table[0] + (int32_t)g;
        plan.slot_mapping[g] = &slots[g];
        plan.block_table[g] = &tables[g];
        plan.table_cols[g] = 1;
    }
    enum err_code rc = model_forward(m, &plan, e);
    const struct sampled *s;
    return rc ? rc : model_collect(m, 1, &s, e);
}

static enum err_code life(struct err *e)
{
    struct model_options o = { .path = dir,
                               .dtype = MODEL_FLOAT32,
                               .device = MODEL_DEVICE_CPU,
                               .block_tokens = 16,
                               .max_model_len = 32,
                               .n_threads = 1 };
    struct model_limits lim = { .n_blocks = 8, .max_tokens = 4, .max_rows = 2, .max_outputs = 2 };
    struct model *m = NULL;
    enum err_code rc = model_open(&m, &o, e);
    if (rc) {
        assert_null(m);
        return rc;
    }
    rc = model_start(m, &lim, e);
    if (rc == ERR_OK)
        rc = step(m, e);
    model_close(m);
    return rc;
}

static void every_allocation(const char *family)
{
    struct err e;
    make_model(family);
    alloc_fail_at(-1, false);
    assert_ok(life(&e), e);
    int64_t n = alloc_fail_count();
    assert_true(n > 20);
    /* Beyond the first, the many alike ones are sampled. */
    int64_t stride = n > 100 ? n / 100 : 1;
    for (int64_t i = 0; i < n; i += i < 50 ? 1 : stride) {
        alloc_fail_at(i, i % 2 == 0);
        enum err_code rc = life(&e);
        bool fired = alloc_fail_fired();
        alloc_fail_at(-1, false);
        if (fired && rc != ERR_NOMEM)
            fail_msg("allocation %d of %d: %s: %s", (int)i, (int)n, err_name(rc), e.message);
    }
    assert_ok(life(&e), e);
    fixture_remove(dir);
}

TEST(llama_survives)
{
    every_allocation("llama");
}

TEST(latent_experts_survive)
{
    every_allocation("deepseek_v3");
}

TEST(stacked_experts_survive)
{
    every_allocation("gpt_oss_mxfp4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(llama_survives),
        RUN(latent_experts_survive),
        RUN(stacked_experts_survive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
