/* resolve.c: see resolve.h. */
#include "model/step/resolve.h"

#include <stdlib.h>
#include <string.h>

#include "proto/try.h"

void model_step_resolve_fini(struct step_resolve *r)
{
    free(r->token);
    free(r->history);
    free(r->output);
    *r = (struct step_resolve){ 0 };
}

/* p with room for n elements; what was there is lost. */
static void *hold(void *p, size_t *cap, size_t n, size_t size, enum err_code *rc, struct err *e)
{
    if (n <= *cap || *rc != ERR_OK)
        return p;
    void *q = malloc(n * size);
    if (q == NULL) {
        *rc = err_nomem(e, "step tokens", n * size);
        return p;
    }
    free(p);
    *cap = n;
    return q;
}

/* The token that is due at o and whose history a penalty reads. */
static bool reads_due(const struct step_plan *p, const struct plan_output *o)
{
    return o->target < 0 && p->token_from[o->token] >= 0 && sample_penalised(o->params);
}

static enum err_code resolve_tokens(struct step_resolve *r, const struct step_plan *p,
                                    const struct sampled *before, uint32_t n_before, struct err *e)
{
    for (uint32_t i = 0; i < p->n_tokens; i++) {
        int32_t from = p->token_from[i];
        if (from >= 0 && (before == NULL || (uint32_t)from >= n_before))
            return err_set(e, ERR_INVALID,
                           "step plan: token_from[%u] is %d, expected an output of the step "
                           "before, which had %u",
                           i, from, before == NULL ? 0 : n_before);
        r->token[i] = p->token[i];
        if (from >= 0)
            r->token[i] = before[from].token < 0 ? 0 : before[from].token;
    }
    return ERR_OK;
}

enum err_code model_step_resolve_apply(struct step_resolve *r, const struct step_plan *p,
                                       const struct sampled *before, uint32_t n_before,
                                       const struct step_plan **out, struct err *e)
{
    size_t n = 0;
    *out = p;
    if (p->token_from == NULL)
        return ERR_OK;
    for (uint32_t i = 0; i < p->n_outputs; i++)
        if (p->output[i].token < p->n_tokens && reads_due(p, &p->output[i]))
            n += p->output[i].n_history;
    enum err_code rc = ERR_OK;
    r->token = hold(r->token, &r->cap_token, p->n_tokens, sizeof *r->token, &rc, e);
    r->output = hold(r->output, &r->cap_output, p->n_outputs, sizeof *r->output, &rc, e);
    r->history = hold(r->history, &r->cap_history, n, sizeof *r->history, &rc, e);
    TRY(rc);
    TRY(resolve_tokens(r, p, before, n_before, e));
    n = 0;
    for (uint32_t i = 0; i < p->n_outputs; i++) {
        struct plan_output *o = &r->output[i];
        *o = p->output[i];
        if (o->token >= p->n_tokens || !reads_due(p, o))
            continue;
        memcpy(r->history + n, o->history, (o->n_history - 1) * sizeof *o->history);
        o->history = r->history + n;
        n += o->n_history;
        r->history[n - 1] = r->token[o->token];
    }
    r->plan = *p;
    r->plan.token = r->token;
    r->plan.token_from = NULL;
    r->plan.output = r->output;
    *out = &r->plan;
    return ERR_OK;
}
