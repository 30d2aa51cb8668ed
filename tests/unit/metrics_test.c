/* metrics_test.c: the daemon's metrics page: every family and series once, each
 * value that of the engine's snapshot, and counters that never go back. */
#include "support/test.h"

#include <stdio.h>

#include "proto/text/buf.h"
#include "server/metrics.h"

static struct srv_metrics metrics;

static int create(void **state)
{
    static const struct prom_label labels[] = { { "block_size", "16" }, { "device", "cpu" } };
    const struct serving_metrics_config c = {
        .model_name = "tales", .max_model_len = 2048, .cache_config = labels, .n_cache_config = 2
    };
    struct err e = { 0 };

    (void)state;
    assert_ok(srv_metrics_init(&metrics, &c, &e), e);
    return 0;
}

static int destroy(void **state)
{
    (void)state;
    srv_metrics_fini(&metrics);
    return 0;
}

/* The page as a string; free() it. */
static char *page(void)
{
    struct buf o = { 0 };
    char *text;

    prom_render(&o, metrics.serving.registry);
    assert_false(o.failed);
    text = malloc(o.n + 1);
    memcpy(text, o.p, o.n);
    text[o.n] = '\0';
    buf_fini(&o);
    return text;
}

/* How many lines begin with this and are followed by a space. */
static int lines_of(const char *text, const char *start, size_t n)
{
    int found = 0;

    for (const char *line = text; *line; line = strchr(line, '\n') + 1)
        found += strncmp(line, start, n) == 0 && line[n] == ' ';
    return found;
}

/* The value of the series that begins with this. */
static double value(const char *series)
{
    char *text = page();
    size_t n = strlen(series);
    double v = -1;

    assert_int_equal(lines_of(text, series, n), 1);
    for (const char *line = text; *line; line = strchr(line, '\n') + 1)
        if (strncmp(line, series, n) == 0 && line[n] == ' ')
            v = strtod(line + n, NULL);
    free(text);
    return v;
}

TEST(every_name_stands_once)
{
    char *text = page();
    int families = 0, series = 0;

    for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
        size_t n = strcspn(line, "\n");
        if (strncmp(line, "# ", 2) == 0) { /* # HELP name ..., # TYPE name ... */
            n = 7 + strcspn(line + 7, " ");
            families++;
        } else { /* the value is behind the last space */
            while (line[n] != ' ')
                n--;
            series++;
        }
        if (lines_of(text, line, n) != 1)
            fail_msg("\"%.*s\" stands %d times", (int)n, line, lines_of(text, line, n));
    }
    assert_true(families >= 2 * 35);
    assert_true(series > families);
    free(text);
}

TEST(every_series_names_the_model)
{
    char *text = page();

    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if (line[0] != '#')
            assert_contains(line, "model_name=\"tales\"");
    free(text);
}

static const struct engine_snapshot shot = {
    .pool = { .n_blocks = 100,
              .n_free = 50,
              .n_cached = 25,
              .n_held = 20,
              .n_resting = 5,
              .tokens_wasted = 7,
              .query_tokens = 300,
              .hit_tokens = 200,
              .evictions = 11,
              .copies = 12 },
    .sched = { .n_running = 3,
               .n_waiting = 4,
               .steps = 21,
               .tokens_prompt = 500,
               .tokens_prompt_cached = 200,
               .tokens_output = 60,
               .preemptions = 2,
               .tokens_recomputed = 9,
               .ledger_violations = 1,
               .corrupted = 6 },
    .n_faults = 8,
};

TEST(values_are_the_snapshot)
{
    srv_metrics_refresh(&metrics, &shot, 13);
#define M "{model_name=\"tales\""
    assert_true(value("quire_kv_blocks" M ",state=\"free\"}") == 50);
    assert_true(value("quire_kv_blocks" M ",state=\"cached\"}") == 25);
    assert_true(value("quire_kv_blocks" M ",state=\"held\"}") == 20);
    assert_true(value("quire_kv_blocks" M ",state=\"resting\"}") == 5);
    assert_true(value("quire_kv_tokens_wasted" M "}") == 7);
    assert_true(value("quire_connections" M "}") == 13);
    assert_true(value("quire_kv_evictions_total" M "}") == 11);
    assert_true(value("quire_kv_block_copies_total" M "}") == 12);
    assert_true(value("quire_tokens_recomputed_total" M "}") == 9);
    assert_true(value("quire_steps_total" M "}") == 21);
    assert_true(value("quire_step_faults_total" M "}") == 8);
    assert_true(value("quire_ledger_violations_total" M "}") == 1);
    assert_true(value("quire_start_time_seconds" M "}") > 1e9);
#undef M
    assert_true(prom_gauge_value(metrics.serving.num_requests_running) == 3);
    assert_true(prom_gauge_value(metrics.serving.num_requests_waiting) == 4);
    assert_true(prom_gauge_value(metrics.serving.kv_cache_usage_perc) == 0.25);
    assert_int_equal(prom_counter_value(metrics.serving.prefix_cache_queries), 300);
    assert_int_equal(prom_counter_value(metrics.serving.prefix_cache_hits), 200);
    assert_int_equal(prom_counter_value(metrics.serving.num_preemptions), 2);
    assert_int_equal(prom_counter_value(metrics.serving.prompt_tokens), 500);
    assert_int_equal(prom_counter_value(metrics.serving.prompt_tokens_computed), 300);
    assert_int_equal(prom_counter_value(metrics.serving.prompt_tokens_cached), 200);
    assert_int_equal(prom_counter_value(metrics.serving.generation_tokens), 60);
    assert_int_equal(prom_counter_value(metrics.serving.corrupted_requests), 6);
}

TEST(gauges_fall_and_counters_do_not)
{
    struct engine_snapshot less = shot;

    srv_metrics_refresh(&metrics, &shot, 13);
    less.pool.n_held = 0;
    less.pool.n_resting = 0;
    less.pool.evictions = less.pool.hit_tokens = 1;
    less.sched.steps = less.sched.tokens_output = less.sched.preemptions = 1;
    less.n_faults = 0;
    srv_metrics_refresh(&metrics, &less, 2);
    assert_true(value("quire_connections{model_name=\"tales\"}") == 2);
    assert_true(prom_gauge_value(metrics.serving.kv_cache_usage_perc) == 0);
    assert_int_equal(prom_counter_value(metrics.evictions), 11);
    assert_int_equal(prom_counter_value(metrics.steps), 21);
    assert_int_equal(prom_counter_value(metrics.step_faults), 8);
    assert_int_equal(prom_counter_value(metrics.serving.prefix_cache_hits), 200);
    assert_int_equal(prom_counter_value(metrics.serving.generation_tokens), 60);
    less.sched.steps = 22;
    srv_metrics_refresh(&metrics, &less, 2);
    assert_int_equal(prom_counter_value(metrics.steps), 22);
}

TEST(an_empty_pool_is_not_divided_by)
{
    const struct engine_snapshot nothing = { 0 };

    srv_metrics_refresh(&metrics, &nothing, 0);
    assert_true(prom_gauge_value(metrics.serving.kv_cache_usage_perc) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_name_stands_once, create, destroy),
        cmocka_unit_test_setup_teardown(every_series_names_the_model, create, destroy),
        cmocka_unit_test_setup_teardown(values_are_the_snapshot, create, destroy),
        cmocka_unit_test_setup_teardown(gauges_fall_and_counters_do_not, create, destroy),
        cmocka_unit_test_setup_teardown(an_empty_pool_is_not_divided_by, create, destroy),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
