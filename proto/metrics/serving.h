/* serving.h: the metrics of a serving engine under the names, labels
 * and buckets that dashboards and gateways for vLLM read.
 *
 * One struct of series handles, filled from one table.  Creation before threads
 * start; updates and rendering from any thread (prometheus.h). */
#ifndef PROTO_METRICS_SERVING_H
#define PROTO_METRICS_SERVING_H

#include <stdint.h>

#include "proto/err.h"
#include "proto/metrics/prometheus.h"

enum metrics_finish {
    METRICS_STOP,
    METRICS_LENGTH,
    METRICS_ABORT,
    METRICS_ERROR,
    METRICS_FINISHES
};

struct serving_metrics {
    struct prom_registry *registry; /* owned; further series may be added */

    /* Gauges. */
    struct prom_gauge *num_requests_running, *num_requests_waiting;
    struct prom_gauge *waiting_capacity, *waiting_deferred; /* by_reason */
    struct prom_gauge *kv_cache_usage_perc;                 /* 0..1 */
    struct prom_gauge *cache_config_info;                   /* always 1 */
    struct prom_gauge *engine_sleep_awake;                  /* always 1 */

    /* Counters. */
    struct prom_counter *prefix_cache_queries, *prefix_cache_hits; /* tokens */
    struct prom_counter *num_preemptions;
    struct prom_counter *prompt_tokens, *generation_tokens;
    struct prom_counter *prompt_tokens_cached;
    struct prom_counter *prompt_tokens_computed; /* by_source local_compute   */
    struct prom_counter *prompt_tokens_hit;      /* by_source local_cache_hit */
    struct prom_counter *request_success[METRICS_FINISHES];
    struct prom_counter *corrupted_requests;

    /* Histograms. */
    struct prom_histogram *time_to_first_token, *inter_token_latency;
    struct prom_histogram *request_time_per_output_token;
    struct prom_histogram *e2e_request_latency, *request_queue_time;
    struct prom_histogram *request_inference_time, *request_prefill_time;
    struct prom_histogram *request_decode_time;
    struct prom_histogram *request_prompt_tokens, *request_generation_tokens;
    struct prom_histogram *request_max_num_generation_tokens;
    struct prom_histogram *request_params_n, *request_params_max_tokens;
    struct prom_histogram *request_prefill_kv_computed_tokens;
    struct prom_histogram *iteration_tokens;
};

struct serving_metrics_config {
    const char *model_name; /* label of every series, with engine="0"     */
    uint32_t max_model_len; /* last token bucket                          */
    /* Labels of vllm:cache_config_info; borrowed for the call. */
    const struct prom_label *cache_config;
    uint32_t n_cache_config;
};

MUST_USE enum err_code serving_metrics_init(struct serving_metrics *m,
                                            const struct serving_metrics_config *c, struct err *e);
void serving_metrics_fini(struct serving_metrics *m);

#endif
