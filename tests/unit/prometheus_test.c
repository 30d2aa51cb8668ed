/* prometheus_test.c: the exposition's exact text, what a registry refuses,
 * vLLM's names, and updates from several threads while one renders. */
#include "proto/metrics/prometheus.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>

#include "proto/metrics/serving.h"
#include "support/test.h"

static char *rendered(const struct prom_registry *r, struct buf *o)
{
    buf_reset(o);
    prom_render(o, r);
    buf_put(o, "", 1);
    assert_false(o->failed);
    return o->p;
}

TEST(exposition_text)
{
    struct prom_registry *r;
    struct prom_counter *c1, *c2;
    struct prom_gauge *g;
    struct prom_histogram *h;
    struct err e;
    static const struct prom_label a[] = { { "model", "a\"b\\c\nd" } }, b[] = { { "model", "b" } };
    static const double bounds[] = { 0.5, 1, 10 };
    assert_ok(prom_create(&r, &e), e);
    assert_ok(prom_add_counter(&c1, r, "x:reqs_total", "Help \\ \"q\"\nmore", a, 1, &e), e);
    assert_ok(prom_add_gauge(&g, r, "temp", "T", NULL, 0, &e), e);
    assert_ok(prom_add_counter(&c2, r, "x:reqs_total", "", b, 1, &e), e);
    assert_ok(prom_add_histogram(&h, r, "lat_seconds", "L", bounds, 3, b, 1, &e), e);
    prom_inc(c1, 3);
    prom_inc(c1, 1);
    prom_counter_raise(c2, 10);
    prom_counter_raise(c2, 7);
    prom_set(g, -1.5);
    prom_observe(h, 0.5);
    prom_observe(h, 0.75);
    prom_observe_n(h, 10.25, 2);
    prom_observe(h, 1e9);
    struct buf o = { 0 };
    assert_string_equal(rendered(r, &o), "# HELP x:reqs_total Help \\\\ \"q\"\\nmore\n"
                                         "# TYPE x:reqs_total counter\n"
                                         "x:reqs_total{model=\"a\\\"b\\\\c\\nd\"} 4\n"
                                         "x:reqs_total{model=\"b\"} 10\n"
                                         "# HELP temp T\n"
                                         "# TYPE temp gauge\n"
                                         "temp -1.5\n"
                                         "# HELP lat_seconds L\n"
                                         "# TYPE lat_seconds histogram\n"
                                         "lat_seconds_bucket{model=\"b\",le=\"0.5\"} 1\n"
                                         "lat_seconds_bucket{model=\"b\",le=\"1.0\"} 2\n"
                                         "lat_seconds_bucket{model=\"b\",le=\"10.0\"} 2\n"
                                         "lat_seconds_bucket{model=\"b\",le=\"+Inf\"} 5\n"
                                         "lat_seconds_sum{model=\"b\"} 1000000021.75\n"
                                         "lat_seconds_count{model=\"b\"} 5\n");
    prom_set(g, NAN);
    assert_contains(rendered(r, &o), "\ntemp NaN\n");
    prom_set(g, -INFINITY);
    assert_contains(rendered(r, &o), "\ntemp -Inf\n");
    buf_fini(&o);
    prom_destroy(r);
}

TEST(refusals_change_nothing)
{
    struct prom_registry *r;
    struct prom_counter *c;
    struct prom_gauge *g;
    struct prom_histogram *h;
    struct err e;
    static const struct prom_label bad[] = { { "a-b", "x" } }, le[] = { { "le", "x" } },
                                   reserved[] = { { "__x", "x" } },
                                   twice[] = { { "a", "1" }, { "a", "2" } };
    static const double up[] = { 1, 2 }, down[] = { 2, 1 }, inf[] = { 1, INFINITY };
    assert_ok(prom_create(&r, &e), e);
    assert_ok(prom_add_counter(&c, r, "a_total", "A", NULL, 0, &e), e);
    assert_ok(prom_add_histogram(&h, r, "h", "H", up, 2, NULL, 0, &e), e);
    struct buf before = { 0 }, after = { 0 };
    rendered(r, &before);
    assert_int_equal(prom_add_counter(&c, r, "a_total", "A", NULL, 0, &e), ERR_INVALID);
    assert_int_equal(prom_add_gauge(&g, r, "a_total", "A", reserved, 0, &e), ERR_INVALID);
    assert_int_equal(prom_add_counter(&c, r, "1a", "A", NULL, 0, &e), ERR_INVALID);
    assert_int_equal(prom_add_counter(&c, r, "", "A", NULL, 0, &e), ERR_INVALID);
    assert_int_equal(prom_add_counter(&c, r, "a b", "A", NULL, 0, &e), ERR_INVALID);
    assert_int_equal(prom_add_counter(&c, r, "b", "A", bad, 1, &e), ERR_INVALID);
    assert_int_equal(prom_add_counter(&c, r, "b", "A", le, 1, &e), ERR_INVALID);
    assert_int_equal(prom_add_counter(&c, r, "b", "A", reserved, 1, &e), ERR_INVALID);
    assert_int_equal(prom_add_counter(&c, r, "b", "A", twice, 2, &e), ERR_INVALID);
    assert_int_equal(prom_add_histogram(&h, r, "b", "A", down, 2, NULL, 0, &e), ERR_INVALID);
    assert_int_equal(prom_add_histogram(&h, r, "b", "A", inf, 2, NULL, 0, &e), ERR_INVALID);
    assert_int_equal(prom_add_histogram(&h, r, "h", "A", up, 1, bad, 0, &e), ERR_INVALID);
    assert_string_equal(rendered(r, &after), before.p);
    buf_fini(&before);
    buf_fini(&after);
    prom_destroy(r);
}

static struct serving_metrics made(void)
{
    struct serving_metrics m;
    struct err e;
    static const struct prom_label cache[] = { { "block_size", "16" },
                                               { "num_gpu_blocks", "100" } };
    const struct serving_metrics_config c = { "tales", 2048, cache, 2 };
    assert_ok(serving_metrics_init(&m, &c, &e), e);
    return m;
}

TEST(serving_names)
{
    struct serving_metrics m = made();
    struct buf o = { 0 };
    prom_inc(m.request_success[METRICS_LENGTH], 2);
    prom_observe(m.time_to_first_token, 0.03);
    prom_observe(m.request_prompt_tokens, 53);
    prom_set(m.num_requests_running, 4);
    const char *text = rendered(m.registry, &o);
#define L "model_name=\"tales\",engine=\"0\""
    static const char *const lines[] = {
        "vllm:num_requests_running{" L "} 4.0\n",
        "vllm:num_requests_waiting{" L "} 0.0\n",
        "vllm:num_requests_waiting_by_reason{" L ",reason=\"capacity\"} 0.0\n",
        "vllm:kv_cache_usage_perc{" L "} 0.0\n",
        "vllm:prefix_cache_queries_total{" L "} 0\n",
        "vllm:num_preemptions_total{" L "} 0\n",
        "vllm:prompt_tokens_total{" L "} 0\n",
        "vllm:generation_tokens_total{" L "} 0\n",
        "vllm:request_success_total{" L ",finished_reason=\"length\"} 2\n",
        "vllm:request_success_total{" L ",finished_reason=\"stop\"} 0\n",
        "vllm:time_to_first_token_seconds_bucket{" L ",le=\"0.02\"} 0\n",
        "vllm:time_to_first_token_seconds_bucket{" L ",le=\"0.04\"} 1\n",
        "vllm:time_to_first_token_seconds_bucket{" L ",le=\"2560.0\"} 1\n",
        "vllm:e2e_request_latency_seconds_bucket{" L ",le=\"7680.0\"} 0\n",
        "vllm:inter_token_latency_seconds_count{" L "} 0\n",
        "vllm:request_prompt_tokens_bucket{" L ",le=\"50.0\"} 0\n",
        "vllm:request_prompt_tokens_bucket{" L ",le=\"100.0\"} 1\n",
        "vllm:request_prompt_tokens_bucket{" L ",le=\"2000.0\"} 1\n"
        "vllm:request_prompt_tokens_bucket{" L ",le=\"+Inf\"} 1\n",
        "vllm:request_prompt_tokens_sum{" L "} 53.0\n",
        "# TYPE vllm:iteration_tokens_total histogram\n",
        "vllm:cache_config_info{" L ",block_size=\"16\",num_gpu_blocks=\"100\"} 1.0\n",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        assert_contains(text, lines[i]);
    const char *out = getenv("METRICS_OUT"); /* for promtool check metrics */
    if (out != NULL) {
        FILE *f = fopen(out, "w");
        assert_non_null(f);
        fputs(text, f);
        fclose(f);
    }
    buf_fini(&o);
    serving_metrics_fini(&m);
}

enum { WRITERS = 3, ROUNDS = 20000 };

static void *write_metrics(void *arg)
{
    struct serving_metrics *m = arg;
    for (int i = 0; i < ROUNDS; i++) {
        prom_inc(m->generation_tokens, 1);
        prom_observe(m->inter_token_latency, 0.5);
        prom_set(m->num_requests_running, i);
        prom_counter_raise(m->prompt_tokens, (uint64_t)i);
    }
    return NULL;
}

TEST(updates_from_threads_are_not_lost)
{
    struct serving_metrics m = made();
    pthread_t t[WRITERS];
    struct buf o = { 0 };
    for (int i = 0; i < WRITERS; i++)
        assert_int_equal(pthread_create(&t[i], NULL, write_metrics, &m), 0);
    for (int i = 0; i < 20; i++)
        rendered(m.registry, &o);
    for (int i = 0; i < WRITERS; i++)
        pthread_join(t[i], NULL);
    assert_int_equal(prom_counter_value(m.generation_tokens), WRITERS * ROUNDS);
    assert_int_equal(prom_counter_value(m.prompt_tokens), ROUNDS - 1);
    assert_true(prom_gauge_value(m.num_requests_running) == ROUNDS - 1);
    const char *text = rendered(m.registry, &o);
    assert_contains(text, "vllm:inter_token_latency_seconds_count{" L "} 60000\n");
    assert_contains(text, "vllm:inter_token_latency_seconds_sum{" L "} 30000.0\n");
    buf_fini(&o);
    serving_metrics_fini(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(exposition_text),
        RUN(refusals_change_nothing),
        RUN(serving_names),
        RUN(updates_from_threads_are_not_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
