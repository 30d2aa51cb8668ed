/* serving.c: the table of names, help texts, labels and buckets of
 * serving_metrics.h.  Created before threads start. */
#include "proto/metrics/serving.h"

#include <stdio.h>

#define BOUNDS(name, ...) static const double name[] = { __VA_ARGS__ }

BOUNDS(first_token_seconds, 0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1,
       2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560);
BOUNDS(token_seconds, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5,
       10, 20, 40, 80);
BOUNDS(request_seconds, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480,
       960, 1920, 7680);
BOUNDS(choices, 1, 2, 5, 10, 20);
BOUNDS(iteration, 1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384);

enum { MAX_TOKEN_BOUNDS = 32, MAX_LABELS = 32 };

/* 1, 2, 5, 10, ... up to max_model_len. */
static uint32_t token_bounds(uint32_t max_model_len, double bounds[MAX_TOKEN_BOUNDS])
{
    static const unsigned steps[] = { 1, 2, 5 };
    uint32_t n = 0;
    for (uint64_t ten = 1; n < MAX_TOKEN_BOUNDS; ten *= 10)
        for (unsigned i = 0; i < 3 && n < MAX_TOKEN_BOUNDS; i++) {
            if (steps[i] * ten > max_model_len)
                return n;
            bounds[n++] = (double)(steps[i] * ten);
        }
    return n;
}

enum row_kind { COUNTER, GAUGE, HISTOGRAM };

struct row {
    enum row_kind kind;
    const char *name, *help;
    size_t at;            /* of the handle in struct serving_metrics */
    const double *bounds; /* NULL with a histogram: token_bounds */
    uint32_t n_bounds;
    const char *label, *value; /* a third label, or NULL */
};

#define AT(field)            offsetof(struct serving_metrics, field)
#define C(name, help, field) { COUNTER, "vllm:" name, help, AT(field), NULL, 0, NULL, NULL }
#define CL(name, help, field, label, value)                                                        \
    { COUNTER, "vllm:" name, help, AT(field), NULL, 0, label, value }
#define G(name, help, field) { GAUGE, "vllm:" name, help, AT(field), NULL, 0, NULL, NULL }
#define GL(name, help, field, label, value)                                                        \
    { GAUGE, "vllm:" name, help, AT(field), NULL, 0, label, value }
#define H(name, help, field, bounds)                                                               \
    { HISTOGRAM, "vllm:" name, help, AT(field), bounds, sizeof bounds / sizeof *bounds, NULL, NULL }
#define HT(name, help, field) { HISTOGRAM, "vllm:" name, help, AT(field), NULL, 0, NULL, NULL }

#define SUCCESS "Count of successfully processed requests."
#define WAITING "Number of requests waiting to be processed, by reason."
#define SOURCE  "Number of prompt tokens by source."

static const struct row rows[] = {
    G("num_requests_running", "Number of requests in model execution batches.",
      num_requests_running),
    G("num_requests_waiting", "Number of requests waiting to be processed.", num_requests_waiting),
    GL("num_requests_waiting_by_reason", WAITING, waiting_capacity, "reason", "capacity"),
    GL("num_requests_waiting_by_reason", WAITING, waiting_deferred, "reason", "deferred"),
    GL("engine_sleep_state", "Engine sleep state; awake = 1 while the engine serves.",
       engine_sleep_awake, "sleep_state", "awake"),
    G("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", kv_cache_usage_perc),

    C("prefix_cache_queries_total", "Prefix cache queries, in terms of number of queried tokens.",
      prefix_cache_queries),
    C("prefix_cache_hits_total", "Prefix cache hits, in terms of number of cached tokens.",
      prefix_cache_hits),
    C("num_preemptions_total", "Cumulative number of preemptions from the engine.",
      num_preemptions),
    C("prompt_tokens_total", "Number of prefill tokens processed.", prompt_tokens),
    CL("prompt_tokens_by_source_total", SOURCE, prompt_tokens_computed, "source", "local_compute"),
    CL("prompt_tokens_by_source_total", SOURCE, prompt_tokens_hit, "source", "local_cache_hit"),
    C("prompt_tokens_cached_total", "Number of cached prompt tokens.", prompt_tokens_cached),
    C("generation_tokens_total", "Number of generation tokens processed.", generation_tokens),
    CL("request_success_total", SUCCESS, request_success[METRICS_STOP], "finished_reason", "stop"),
    CL("request_success_total", SUCCESS, request_success[METRICS_LENGTH], "finished_reason",
       "length"),
    CL("request_success_total", SUCCESS, request_success[METRICS_ABORT], "finished_reason",
       "abort"),
    CL("request_success_total", SUCCESS, request_success[METRICS_ERROR], "finished_reason",
       "error"),
    C("corrupted_requests_total", "Corrupted requests, with NaNs in their logits.",
      corrupted_requests),

    HT("request_prompt_tokens", "Number of prefill tokens processed, by request.",
       request_prompt_tokens),
    HT("request_generation_tokens", "Number of generation tokens processed, by request.",
       request_generation_tokens),
    H("iteration_tokens_total", "Histogram of number of tokens per engine step.", iteration_tokens,
      iteration),
    HT("request_max_num_generation_tokens",
       "Histogram of maximum number of requested generation tokens.",
       request_max_num_generation_tokens),
    H("request_params_n", "Histogram of the n request parameter.", request_params_n, choices),
    HT("request_params_max_tokens", "Histogram of the max_tokens request parameter.",
       request_params_max_tokens),
    H("time_to_first_token_seconds", "Histogram of time to first token in seconds.",
      time_to_first_token, first_token_seconds),
    H("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.",
      inter_token_latency, token_seconds),
    H("request_time_per_output_token_seconds",
      "Histogram of time per output token in seconds, by request.", request_time_per_output_token,
      token_seconds),
    H("e2e_request_latency_seconds", "Histogram of end to end request latency in seconds.",
      e2e_request_latency, request_seconds),
    H("request_queue_time_seconds", "Histogram of time spent in the waiting phase.",
      request_queue_time, request_seconds),
    H("request_inference_time_seconds", "Histogram of time spent in the running phase.",
      request_inference_time, request_seconds),
    H("request_prefill_time_seconds", "Histogram of time spent in the prefill phase.",
      request_prefill_time, request_seconds),
    H("request_decode_time_seconds", "Histogram of time spent in the decode phase.",
      request_decode_time, request_seconds),
    HT("request_prefill_kv_computed_tokens",
       "Histogram of new KV tokens computed during prefill, cached tokens excluded.",
       request_prefill_kv_computed_tokens),
};

static enum err_code add_row(struct serving_metrics *m, const struct row *row,
                             const struct serving_metrics_config *c, struct err *e)
{
    const struct prom_label labels[3] = {
        { "model_name", c->model_name },
        { "engine", "0" },
        { row->label, row->value },
    };
    uint32_t n = row->label != NULL ? 3 : 2, n_bounds = row->n_bounds;
    const double *bounds = row->bounds;
    double tokens[MAX_TOKEN_BOUNDS];
    if (row->kind == HISTOGRAM && bounds == NULL) {
        n_bounds = token_bounds(c->max_model_len, tokens);
        bounds = tokens;
    }
    char *at = (char *)m + row->at;
    enum err_code rc;
    if (row->kind == COUNTER) {
        struct prom_counter *counter = NULL;
        rc = prom_add_counter(&counter, m->registry, row->name, row->help, labels, n, e);
        memcpy(at, &counter, sizeof counter);
    } else if (row->kind == GAUGE) {
        struct prom_gauge *gauge = NULL;
        rc = prom_add_gauge(&gauge, m->registry, row->name, row->help, labels, n, e);
        memcpy(at, &gauge, sizeof gauge);
    } else {
        struct prom_histogram *histogram = NULL;
        rc = prom_add_histogram(&histogram, m->registry, row->name, row->help, bounds, n_bounds,
                                labels, n, e);
        memcpy(at, &histogram, sizeof histogram);
    }
    return rc;
}

static enum err_code add_cache_config(struct serving_metrics *m,
                                      const struct serving_metrics_config *c, struct err *e)
{
    struct prom_label labels[MAX_LABELS] = { { "model_name", c->model_name }, { "engine", "0" } };
    if (c->n_cache_config > MAX_LABELS - 2)
        return err_set(e, ERR_INVALID, "cache_config_info: %u labels, at most %d",
                       c->n_cache_config, MAX_LABELS - 2);
    for (uint32_t i = 0; i < c->n_cache_config; i++)
        labels[2 + i] = c->cache_config[i];
    enum err_code rc = prom_add_gauge(&m->cache_config_info, m->registry, "vllm:cache_config_info",
                                      "Information of the LLMEngine CacheConfig", labels,
                                      2 + c->n_cache_config, e);
    if (!rc)
        prom_set(m->cache_config_info, 1);
    return rc;
}

enum err_code serving_metrics_init(struct serving_metrics *m,
                                   const struct serving_metrics_config *c, struct err *e)
{
    *m = (struct serving_metrics){ 0 };
    enum err_code rc = prom_create(&m->registry, e);
    for (size_t i = 0; !rc && i < sizeof rows / sizeof *rows; i++)
        rc = add_row(m, &rows[i], c, e);
    if (!rc)
        rc = add_cache_config(m, c, e);
    if (rc) {
        serving_metrics_fini(m);
        return rc;
    }
    prom_set(m->engine_sleep_awake, 1);
    return ERR_OK;
}

void serving_metrics_fini(struct serving_metrics *m)
{
    prom_destroy(m->registry);
    *m = (struct serving_metrics){ 0 };
}
