/* account.c: what one generation did, for the log and the metrics, once at its
 * end.  I/O thread. */
#include "server/generate/gen.h"

static bool accepted(const struct gen *g)
{
    return g->choice != NULL && g->choice[0].seq > GEN_SEQ_ASKED;
}

static const char *finish_name(const struct gen *g)
{
    static const char *const names[] = {
        [GEN_REJECTED] = "rejected", [GEN_CANCELLED] = "cancelled", [GEN_FAILED] = "error"
    };

    if (g->outcome != GEN_FINISHED)
        return names[g->outcome];
    return g->choice[0].c.finish == OAI_FINISH_LENGTH ? "length" : "stop";
}

static void log_end(const struct gen *g)
{
    struct srv_request_line l = {
        .id = g->id,
        .request_id = g->request_id,
        .path = g->kind == OAI_CHAT ? "/v1/chat/completions" : "/v1/completions",
        .status = g->status,
        .finish = finish_name(g),
        .n_choices = g->n_choices,
        .n_preempted = g->n_preempted,
        .queued_us = g->queued_us,
        .prefill_us = g->prefill_us,
        .decode_us = g->decode_us,
        .first_token_us = g->first_us ? g->first_us - g->began_us : 0,
        .total_us = srv_now_us() - g->began_us,
    };

    for (uint32_t i = 0; g->prompt && i < g->prompts.n; i++) {
        l.n_prompt += g->prompts.prompt[i].ids.n;
        l.n_cached += g->prompt[i].found.hit_tokens;
    }
    for (uint32_t i = 0; g->choice && i < g->n_choices; i++)
        l.n_output += g->choice[i].c.n_tokens;
    srv_log_request(g->gr->cfg.log, &l);
}

static int success_label(const struct gen *g, const struct choice *c)
{
    if (g->outcome == GEN_FINISHED)
        return c->finish == OAI_FINISH_LENGTH ? METRICS_LENGTH : METRICS_STOP;
    return g->outcome == GEN_FAILED ? METRICS_ERROR : METRICS_ABORT;
}

static void count_end(const struct gen *g)
{
    struct serving_metrics *m = g->gr->cfg.metrics;
    uint32_t most = 0, total = 0;

    for (uint32_t i = 0; i < g->n_choices; i++) {
        uint32_t n = g->choice[i].c.n_tokens;
        total += n;
        most = n > most ? n : most;
        prom_inc(m->request_success[success_label(g, &g->choice[i].c)], 1);
    }
    for (uint32_t i = 0; i < g->prompts.n; i++) {
        double n = (double)g->prompts.prompt[i].ids.n;
        prom_observe(m->request_prompt_tokens, n);
        prom_observe(m->request_prefill_kv_computed_tokens, n - g->prompt[i].found.hit_tokens);
    }
    prom_observe(m->request_generation_tokens, total);
    prom_observe(m->request_max_num_generation_tokens, most);
    prom_observe(m->request_params_n, g->prompts.req.n);
    prom_observe(m->request_params_max_tokens, g->request[0].max_tokens);
    prom_observe(m->e2e_request_latency, (double)(srv_now_us() - g->began_us) / 1e6);
    prom_observe(m->request_queue_time, (double)g->queued_us / 1e6);
    prom_observe(m->request_prefill_time, (double)g->prefill_us / 1e6);
    prom_observe(m->request_decode_time, (double)g->decode_us / 1e6);
    prom_observe(m->request_inference_time, (double)(g->prefill_us + g->decode_us) / 1e6);
    if (most > 1)
        prom_observe(m->request_time_per_output_token,
                     (double)g->decode_us / 1e6 / (double)(most - 1));
}

void gen_account(const struct gen *g)
{
    if (accepted(g))
        count_end(g);
    if (g->gr->cfg.served->log_requests)
        log_end(g);
}
