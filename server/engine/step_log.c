/* step_log.c: differences of the scheduler's and the pool's counters.  Engine thread. */
#include "server/engine/step_log.h"

enum { EVERY_US = 1000000 };

static unsigned long long since(uint64_t now, uint64_t then)
{
    return (unsigned long long)(now - then);
}

void step_log_note(struct step_log *l, const struct srv_log *log, uint64_t now_us,
                   const struct sched_stats *s, const struct kvpool_stats *p)
{
    if (!srv_log_shows(log, SRV_DEBUG) || s->steps == l->then.steps ||
        (l->said_us > 0 && now_us - l->said_us < EVERY_US))
        return;
    srv_logf(log, SRV_DEBUG,
             "steps: %llu, %llu prompt tokens (%llu of %llu looked up were cached), %llu output "
             "tokens, %llu preemptions; %u running, %u waiting, KV blocks %llu held, %llu cached, "
             "%llu free",
             since(s->steps, l->then.steps), since(s->tokens_prompt, l->then.tokens_prompt),
             since(p->hit_tokens, l->hits_then), since(p->query_tokens, l->queries_then),
             since(s->tokens_output, l->then.tokens_output),
             since(s->preemptions, l->then.preemptions), s->n_running, s->n_waiting,
             (unsigned long long)p->n_held, (unsigned long long)p->n_cached,
             (unsigned long long)p->n_free);
    l->said_us = now_us;
    l->then = *s;
    l->hits_then = p->hit_tokens;
    l->queries_then = p->query_tokens;
}
