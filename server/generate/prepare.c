/* prepare.c: from a body to what is submitted to the engine.  Runs on the
 * pool and touches only its own generation and what is const after loading. */
#include "server/generate/gen.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

enum { MAX_SCORES = 4 * 1024 * 1024 }; /* numbers reported in one reply */

/* Well-mixed bits of a and b. */
static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t in[2] = { a, b };

    return XXH3_64bits(in, sizeof in);
}

static enum err_code make_choices(struct gen *g)
{
    const struct oai_request *r = &g->prompts.req;

    g->n_choices = g->prompts.n * r->n;
    g->choice = calloc(g->n_choices, sizeof *g->choice);
    if (g->choice == NULL)
        return err_nomem(&g->err, "choices", g->n_choices * sizeof *g->choice);
    g->rules = (struct choice_rules){
        .tokenizer = g->gr->cfg.served->tokenizer,
        .req = r,
        .stops = &g->stops,
        .n_eos = r->ignore_eos ? 0 : g->gr->cfg.served->defaults.n_eos,
    };
    for (uint32_t i = 0; i < g->n_choices; i++) {
        enum err_code rc = choice_init(&g->choice[i].c, &g->rules, &g->err);
        if (rc != ERR_OK)
            return rc;
    }
    return ERR_OK;
}

/* Alternatives the engine must report for prompt i, -1: none. */
static int32_t engine_logprobs(const struct oai_request *r)
{
    int32_t k = r->params.n_logprobs;

    return r->prompt_logprobs > k ? r->prompt_logprobs : k;
}

static void fill_request(struct gen *g, uint32_t i)
{
    const struct oai_request *r = &g->prompts.req;
    const struct prompt *p = &g->prompts.prompt[i];
    struct gen_prompt *gp = &g->prompt[i];
    uint32_t room = g->gr->cfg.served->max_model_len - (uint32_t)p->ids.n;
    bool scores = r->prompt_logprobs >= 0 || (r->echo && r->params.n_logprobs >= 0);

    gp->params = r->params;
    gp->params.n_logprobs = engine_logprobs(r);
    if (!r->has_seed) {
        uint64_t key = g->gr->cfg.served->seed_key;
        gp->params.seed = mix(key, mix(g->arrival, i));
    }
    g->request[i] = (struct sched_request){
        .prompt = p->ids.id,
        .n_prompt = (uint32_t)p->ids.n,
        .max_tokens = r->max_tokens < room ? r->max_tokens : room,
        .n = r->n,
        .prompt_logprobs = scores || r->max_tokens == 0,
        .priority = r->priority,
        .tenant = g->tenant,
        .key = { .salt = prompt_salt(g->gr->cfg.served, &r->cache_salt),
                 .no_lookup = scores || r->max_tokens == 0 },
        .params = &gp->params,
    };
}

/* Scores are gathered until the reply is written: bound them. */
static enum err_code check_scores(struct gen *g)
{
    const struct oai_request *r = &g->prompts.req;
    uint64_t each = (uint64_t)(engine_logprobs(r) + 1), n = 0;

    for (uint32_t i = 0; i < g->prompts.n; i++) {
        uint64_t ids = g->prompts.prompt[i].ids.n, room = g->gr->cfg.served->max_model_len - ids;
        n += ids + r->n * (r->max_tokens < room ? r->max_tokens : room);
    }
    if (n * each <= MAX_SCORES)
        return ERR_OK;
    return err_set_param(&g->err, ERR_INVALID,
                         r->prompt_logprobs >= 0 ? "prompt_logprobs" : "logprobs",
                         "logprobs: %llu tokens with %llu alternatives each could be reported; at "
                         "most %d in one request",
                         (unsigned long long)n, (unsigned long long)each, MAX_SCORES);
}

static enum err_code prepare(struct gen *g)
{
    const struct oai_request *r = &g->prompts.req;
    enum err_code rc = prompt_set_read(&g->prompts, g->gr->cfg.served, g->kind, g->body, g->n_body,
                                       &g->job, &g->err);

    free(g->body);
    g->body = NULL;
    if (rc != ERR_OK)
        return rc;
    rc = check_scores(g);
    if (rc != ERR_OK)
        return rc;
    rc = stop_set_init(&g->stops, r->stop, r->n_stop, &g->err);
    if (rc != ERR_OK)
        return rc;
    g->request = calloc(g->prompts.n, sizeof *g->request);
    g->prompt = calloc(g->prompts.n, sizeof *g->prompt);
    if (g->request == NULL || g->prompt == NULL)
        return err_nomem(&g->err, "requests", g->prompts.n * sizeof *g->prompt);
    rc = make_choices(g);
    if (rc != ERR_OK)
        return rc;
    for (uint32_t i = 0; i < g->prompts.n; i++)
        fill_request(g, i);
    return ERR_OK;
}

void gen_prepare(struct gen *g)
{
    g->rc = prepare(g);
}

void gen_unprepare(struct gen *g)
{
    for (uint32_t i = 0; g->choice && i < g->n_choices; i++)
        choice_fini(&g->choice[i].c);
    for (uint32_t i = 0; g->prompt && i < g->prompts.n; i++)
        score_list_fini(&g->prompt[i].scores);
    free(g->choice);
    free(g->prompt);
    free(g->request);
    stop_set_fini(&g->stops);
    prompt_set_fini(&g->prompts);
    oai_stream_fini(&g->stream);
    free(g->body);
}
