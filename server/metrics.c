/* metrics.c: one table of series and one function that fills them. */
#include "server/metrics.h"

#include <string.h>
#include <time.h>

enum err_code srv_metrics_init(struct srv_metrics *m, const struct serving_metrics_config *c,
                               struct err *e)
{
    static const char blocks[] = "KV blocks by what they are.";
    struct gauge {
        struct prom_gauge **at;
        const char *name, *help, *state;
    } gauges[] = {
        { &m->blocks_free, "quire_kv_blocks", blocks, "free" },
        { &m->blocks_cached, "quire_kv_blocks", blocks, "cached" },
        { &m->blocks_held, "quire_kv_blocks", blocks, "held" },
        { &m->blocks_resting, "quire_kv_blocks", blocks, "resting" },
        { &m->tokens_wasted, "quire_kv_tokens_wasted", "Unused slots of part-filled blocks.",
          NULL },
        { &m->connections, "quire_connections", "Open client connections.", NULL },
        { &m->start_time, "quire_start_time_seconds", "When the model was ready.", NULL },
    };
    struct counter {
        struct prom_counter **at;
        const char *name, *help;
    } counters[] = {
        { &m->evictions, "quire_kv_evictions_total", "Cached blocks handed out anew." },
        { &m->block_copies, "quire_kv_block_copies_total", "Blocks copied before a write." },
        { &m->tokens_recomputed, "quire_tokens_recomputed_total",
          "Tokens computed again after a preemption." },
        { &m->steps, "quire_steps_total", "Steps planned." },
        { &m->step_faults, "quire_step_faults_total", "Steps whose computation failed." },
        { &m->ledger_violations, "quire_ledger_violations_total",
          "Failed checks of the KV ledger." },
    };
    struct prom_label labels[] = { { "model_name", c->model_name }, { "state", NULL } };
    enum err_code rc;

    memset(m, 0, sizeof *m);
    rc = serving_metrics_init(&m->serving, c, e);
    for (size_t i = 0; rc == ERR_OK && i < sizeof gauges / sizeof *gauges; i++) {
        labels[1].value = gauges[i].state;
        rc = prom_add_gauge(gauges[i].at, m->serving.registry, gauges[i].name, gauges[i].help,
                            labels, gauges[i].state ? 2 : 1, e);
    }
    for (size_t i = 0; rc == ERR_OK && i < sizeof counters / sizeof *counters; i++)
        rc = prom_add_counter(counters[i].at, m->serving.registry, counters[i].name,
                              counters[i].help, labels, 1, e);
    if (rc != ERR_OK)
        srv_metrics_fini(m);
    else
        prom_set(m->start_time, (double)time(NULL));
    return rc;
}

void srv_metrics_fini(struct srv_metrics *m)
{
    serving_metrics_fini(&m->serving);
    memset(m, 0, sizeof *m);
}

static void refresh_serving(struct serving_metrics *m, const struct engine_snapshot *s)
{
    uint64_t used = s->pool.n_held + s->pool.n_resting;

    prom_set(m->num_requests_running, s->sched.n_running);
    prom_set(m->num_requests_waiting, s->sched.n_waiting);
    prom_set(m->waiting_capacity, s->sched.n_waiting);
    prom_set(m->waiting_deferred, 0);
    prom_set(m->kv_cache_usage_perc,
             s->pool.n_blocks ? (double)used / (double)s->pool.n_blocks : 0);
    prom_counter_raise(m->prefix_cache_queries, s->pool.query_tokens);
    prom_counter_raise(m->prefix_cache_hits, s->pool.hit_tokens);
    prom_counter_raise(m->num_preemptions, s->sched.preemptions);
    prom_counter_raise(m->corrupted_requests, s->sched.corrupted);
    prom_counter_raise(m->prompt_tokens, s->sched.tokens_prompt);
    prom_counter_raise(m->prompt_tokens_computed,
                       s->sched.tokens_prompt - s->sched.tokens_prompt_cached);
    prom_counter_raise(m->prompt_tokens_cached, s->sched.tokens_prompt_cached);
    prom_counter_raise(m->prompt_tokens_hit, s->sched.tokens_prompt_cached);
    prom_counter_raise(m->generation_tokens, s->sched.tokens_output);
}

void srv_metrics_refresh(struct srv_metrics *m, const struct engine_snapshot *s,
                         uint32_t n_connections)
{
    refresh_serving(&m->serving, s);
    prom_set(m->blocks_free, (double)s->pool.n_free);
    prom_set(m->blocks_cached, (double)s->pool.n_cached);
    prom_set(m->blocks_held, (double)s->pool.n_held);
    prom_set(m->blocks_resting, (double)s->pool.n_resting);
    prom_set(m->tokens_wasted, (double)s->pool.tokens_wasted);
    prom_set(m->connections, n_connections);
    prom_counter_raise(m->evictions, s->pool.evictions);
    prom_counter_raise(m->block_copies, s->pool.copies);
    prom_counter_raise(m->tokens_recomputed, s->sched.tokens_recomputed);
    prom_counter_raise(m->steps, s->sched.steps);
    prom_counter_raise(m->step_faults, s->n_faults);
    prom_counter_raise(m->ledger_violations, s->sched.ledger_violations);
}
