/* choice.c: tokens to text, one sequence.  Owns what struct choice owns. */
#include "server/generate/choice.h"

#include <stdlib.h>
#include <string.h>

/* Room for one more (n more) in a growing array; false: memory is short. */
static bool grow(void **p, uint32_t *cap, uint32_t need, size_t size)
{
    uint32_t want = *cap ? *cap : 16;

    if (need <= *cap)
        return true;
    while (want < need)
        want *= 2;
    void *q = realloc(*p, want * size);
    if (q == NULL)
        return false;
    *p = q;
    *cap = want;
    return true;
}

bool score_list_add(struct score_list *l, const struct sampled *t, uint32_t n_top, bool scored,
                    bool silent)
{
    void *token = l->token, *ids = l->top_id, *lps = l->top_logprob;
    uint32_t cap_ids = l->cap_top, cap_lps = l->cap_top;
    bool ok;

    if (n_top > t->n_top)
        n_top = t->n_top;
    ok = grow(&token, &l->cap, l->n + 1, sizeof *l->token);
    l->token = token;
    ok = ok && grow(&ids, &cap_ids, l->n_top + n_top, sizeof *l->top_id);
    l->top_id = ids;
    ok = ok && grow(&lps, &cap_lps, l->n_top + n_top, sizeof *l->top_logprob);
    l->top_logprob = lps;
    if (!ok)
        return false;
    l->cap_top = cap_lps;
    l->token[l->n++] = (struct score){ .id = t->token,
                                       .logprob = t->logprob,
                                       .n_top = n_top,
                                       .top = l->n_top,
                                       .scored = scored,
                                       .silent = silent };
    if (n_top > 0) {
        memcpy(l->top_id + l->n_top, t->top_token, n_top * sizeof *t->top_token);
        memcpy(l->top_logprob + l->n_top, t->top_logprob, n_top * sizeof *t->top_logprob);
    }
    l->n_top += n_top;
    return true;
}

void score_list_fini(struct score_list *l)
{
    free(l->token);
    free(l->top_id);
    free(l->top_logprob);
    memset(l, 0, sizeof *l);
}

enum err_code choice_init(struct choice *c, const struct choice_rules *rules, struct err *e)
{
    enum err_code rc;

    memset(c, 0, sizeof *c);
    c->rules = rules;
    c->reason = OAI_NO_STOP_REASON;
    rc = detok_create(&c->detok, rules->tokenizer, rules->req->skip_special_tokens, e);
    if (rc != ERR_OK)
        return rc;
    rc = stop_match_init(&c->match, rules->stops, e);
    if (rc != ERR_OK) {
        detok_destroy(c->detok);
        c->detok = NULL;
    }
    return rc;
}

void choice_fini(struct choice *c)
{
    if (c->detok)
        detok_destroy(c->detok);
    c->detok = NULL;
    stop_match_fini(&c->match);
    buf_fini(&c->text);
    score_list_fini(&c->scores);
    free(c->ids);
    c->ids = NULL;
}

/* Whether the engine ends the sequence with this token. */
static bool is_stop_id(const struct choice *c, int32_t id)
{
    const struct sample_params *p = &c->rules->req->params;

    if (c->n_tokens <= p->min_tokens)
        return false;
    for (uint32_t i = 0; i < p->n_stop_ids; i++)
        if (p->stop_ids[i] == id)
            return true;
    return false;
}

static void take_text(struct choice *c, const char *text, size_t n)
{
    const struct oai_request *r = c->rules->req;
    int32_t found;

    if (c->n_tokens <= r->params.min_tokens) { /* too early to stop */
        buf_put(&c->text, text, n);
        return;
    }
    found = stop_match_feed(&c->match, text, n, r->include_stop_str_in_output, &c->text);
    if (found >= 0) {
        c->finish = OAI_FINISH_STOP;
        c->reason.text = c->rules->stops->stop[found];
    }
}

static bool keep_id(struct choice *c, int32_t id)
{
    void *p = c->ids;
    bool ok = grow(&p, &c->cap_ids, c->n_ids + 1, sizeof *c->ids);

    c->ids = p;
    if (ok)
        c->ids[c->n_ids++] = id;
    return ok;
}

enum err_code choice_push(struct choice *c, const struct sampled *t, struct err *e)
{
    const struct oai_request *r = c->rules->req;
    const char *text;
    size_t n;
    bool stop, silent;

    c->n_tokens++;
    c->n_gathered++;
    stop = is_stop_id(c, t->token) && !r->include_stop_str_in_output;
    silent =
        stop || (r->skip_special_tokens && tokenizer_is_special(c->rules->tokenizer, t->token));
    if (r->return_token_ids && !keep_id(c, t->token))
        return err_nomem(e, "token ids", c->n_ids);
    if (r->params.n_logprobs >= 0 &&
        !score_list_add(&c->scores, t, (uint32_t)r->params.n_logprobs, true, silent))
        return err_nomem(e, "logprobs", c->scores.n);
    if (stop)
        return ERR_OK;
    enum err_code rc = detok_push(c->detok, t->token, &text, &n, e);
    if (rc != ERR_OK)
        return rc;
    take_text(c, text, n);
    return buf_check(&c->text, e);
}

enum err_code choice_end(struct choice *c, bool by_length, int32_t stop_id, struct err *e)
{
    const struct sample_params *p = &c->rules->req->params;
    const char *text;
    size_t n;
    enum err_code rc;

    if (c->finish != OAI_FINISH_NONE)
        return ERR_OK;
    rc = detok_flush(c->detok, &text, &n, e);
    if (rc != ERR_OK)
        return rc;
    take_text(c, text, n);
    if (c->finish != OAI_FINISH_NONE)
        return buf_check(&c->text, e);
    stop_match_flush(&c->match, &c->text);
    c->finish = by_length ? OAI_FINISH_LENGTH : OAI_FINISH_STOP;
    for (uint32_t i = c->rules->n_eos; stop_id >= 0 && i < p->n_stop_ids; i++)
        if (p->stop_ids[i] == stop_id)
            c->reason.token = stop_id;
    return buf_check(&c->text, e);
}

void choice_sent(struct choice *c)
{
    buf_reset(&c->text);
    c->scores.n = c->scores.n_top = 0;
    c->n_ids = 0;
    c->n_gathered = 0;
}
