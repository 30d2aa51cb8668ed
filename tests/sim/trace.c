/* trace.c: synthetic clients.
 *
 * chat    one of 32 system prompts (200-1500 tokens), several turns that repeat
 *         the transcript, pauses of seconds
 * rag     a system prompt and a few of 2,000 documents, popular ones more often
 * agent   a tool description of 3,000 tokens, many short turns, hardly a pause
 * long    a document of its own of 4,000-24,000 tokens, one short answer
 *
 * Owns sessions until session_free.  One thread. */
#include "sim/sim.h"

#include <math.h>
#include <stdlib.h>

enum { SYSTEM_PROMPTS = 32, DOCUMENTS = 2000, MAX_OUTPUT = 2048 };

static double normal(struct rng *r)
{
    double u = rng_unit(r) + 1e-12, v = rng_unit(r);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* A length around `median`, with a long tail. */
static uint32_t length(struct rng *r, double median, double spread, uint32_t lo, uint32_t hi)
{
    double x = median * exp(spread * normal(r));
    return x < lo ? lo : x > hi ? hi : (uint32_t)x;
}

static uint32_t draw_zipf(struct rng *r, const double *cdf, uint32_t n)
{
    double u = rng_unit(r) * cdf[n - 1];
    uint32_t lo = 0, hi = n - 1;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (cdf[mid] < u)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

bool trace_open(struct trace *t, const struct trace_config *cfg, uint64_t seed)
{
    *t = (struct trace){ .cfg = *cfg, .rng = { seed } };
    t->tenant_cdf = malloc(cfg->n_tenants * sizeof *t->tenant_cdf);
    if (t->tenant_cdf == NULL)
        return false;
    double sum = 0;
    for (uint32_t i = 0; i < cfg->n_tenants; i++)
        t->tenant_cdf[i] = sum += pow(i + 1, -cfg->zipf);
    return true;
}

void trace_close(struct trace *t)
{
    free(t->tenant_cdf);
}

uint64_t trace_next_us(const struct trace *t)
{
    return (uint64_t)(t->next_s * 1e6);
}

/* Exponential gaps; thinned from the burst rate, so that bursts have sharp
 * edges. */
static void next_arrival(struct trace *t)
{
    const struct trace_config *c = &t->cfg;
    double most = c->rate * (c->burst > 1 ? c->burst : 1);
    for (;;) {
        t->next_s += -log(rng_unit(&t->rng) + 1e-12) / most;
        bool in_burst = c->burst > 1 && fmod(t->next_s, c->burst_every_s) < c->burst_for_s;
        if (in_burst || rng_unit(&t->rng) * most < c->rate)
            return;
    }
}

static bool hold(struct session *s, uint32_t more)
{
    if (s->n_text + more <= s->cap_text)
        return true;
    uint32_t cap = (s->n_text + more) * 3 / 2;
    int32_t *text = realloc(s->text, cap * sizeof *text);
    if (text == NULL)
        return false;
    s->text = text;
    s->cap_text = cap;
    return true;
}

/* n tokens that depend on what they are, not on who says them. */
static bool say(struct session *s, uint64_t what, uint32_t n)
{
    if (!hold(s, n))
        return false;
    struct rng r = { what * 0x9E3779B97F4A7C15u };
    for (uint32_t i = 0; i < n; i++)
        s->text[s->n_text++] = 1 + (int32_t)(rng_next(&r) >> 48);
    return true;
}

static bool say_system(struct session *s)
{
    uint32_t which = rng_below(&s->rng, SYSTEM_PROMPTS);
    struct rng r = { which };
    return say(s, 100 + which, 200 + rng_below(&r, 1300));
}

static bool say_documents(struct session *s)
{
    uint32_t n = 3 + rng_below(&s->rng, 3);
    for (uint32_t i = 0; i < n; i++) {
        double u = rng_unit(&s->rng);
        uint32_t which = (uint32_t)(DOCUMENTS * u * u * u);
        struct rng r = { which };
        if (!say(s, 10000 + which, 300 + rng_below(&r, 500)))
            return false;
    }
    return true;
}

static bool first_words(struct session *s)
{
    struct rng *r = &s->rng;
    switch (s->kind) {
    case SIM_CHAT:
        s->turns_left = 1 + rng_below(r, 6);
        return say_system(s);
    case SIM_RAG:
        s->turns_left = 1;
        return say(s, 7, 150) && say_documents(s);
    case SIM_AGENT:
        s->turns_left = 4 + rng_below(r, 12);
        return say(s, 50 + rng_below(r, 4), 3000);
    default:
        s->turns_left = 1;
        return say(s, s->salt, length(r, 9000, 0.5, 4000, 24000));
    }
}

struct session *trace_new(struct trace *t)
{
    struct rng *r = &t->rng;
    struct session *s = calloc(1, sizeof *s);
    if (s == NULL)
        return NULL;
    uint32_t u = rng_below(r, 100), kind = 0;
    while (kind + 1 < SIM_KINDS && u >= t->cfg.share[kind])
        u -= t->cfg.share[kind++];
    s->kind = (enum sim_kind)kind;
    s->tenant = draw_zipf(r, t->tenant_cdf, t->cfg.n_tenants);
    s->salt = rng_next(r);
    s->rng.state = rng_next(r);
    next_arrival(t);
    if (!first_words(s) || !trace_turn(t, s)) {
        session_free(s);
        return NULL;
    }
    return s;
}

bool trace_turn(const struct trace *t, struct session *s)
{
    static const struct {
        double said, answered, spread;
    } by_kind[SIM_KINDS] = {
        [SIM_CHAT] = { 60, 220, 0.8 },
        [SIM_RAG] = { 40, 120, 0.6 },
        [SIM_AGENT] = { 250, 60, 0.7 },
        [SIM_LONG] = { 40, 200, 0.5 },
    };
    if (s->turns_left == 0)
        return false;
    s->turns_left--;
    uint32_t n = length(&s->rng, by_kind[s->kind].said, by_kind[s->kind].spread, 4, 3000);
    s->n_output =
        length(&s->rng, by_kind[s->kind].answered, by_kind[s->kind].spread, 1, MAX_OUTPUT - 1);
    if (s->n_text + n + MAX_OUTPUT >= t->cfg.max_model_len)
        return false;
    if (!say(s, s->salt + s->n_text, n) || !hold(s, MAX_OUTPUT))
        return false;
    s->n_prompt = s->n_text;
    s->heard = 0;
    return true;
}

uint64_t trace_think_us(struct session *s)
{
    double mean_s = s->kind == SIM_AGENT ? 0.5 : 12;
    return (uint64_t)(-log(rng_unit(&s->rng) + 1e-12) * mean_s * 1e6);
}

void session_free(struct session *s)
{
    free(s->text);
    free(s);
}
