/* text.c: /tokenize, /detokenize, /apply-template: text in, ids out and back,
 * without the engine.  The work is a job on the pool, cancelled when its client
 * leaves.  I/O thread, but on_run and what it calls. */
#include "server/routes/routes.h"

#include <stdlib.h>
#include <string.h>

#include "proto/openai/response.h"
#include "server/generate/prompt.h"
#include "server/http/http.h"

struct text_job {
    struct job job;
    const struct served *served;
    struct exchange *x; /* until the job is cancelled */
    enum oai_kind kind;
    char *body;
    size_t n_body;
    enum err_code rc;
    struct err err;
    struct buf out;
};

/* {count, max_model_len, tokens, token_strs}, strings as the vocabulary spells
 * them. */
static enum err_code write_tokens(struct text_job *j, const struct prompt_set *s)
{
    const struct token_list *ids = &s->prompt[0].ids;
    struct oai_text *strs = NULL;

    if (s->req.return_token_strs) {
        strs = calloc(ids->n + 1, sizeof *strs);
        if (strs == NULL)
            return err_nomem(&j->err, "token strings", ids->n * sizeof *strs);
        for (size_t i = 0; i < ids->n; i++) {
            strs[i].s = tokenizer_spelling(j->served->tokenizer, ids->id[i], &strs[i].n);
            if (strs[i].s == NULL)
                strs[i] = (struct oai_text){ "", 0 };
        }
    }
    oai_write_tokenized(&j->out, ids->id, (uint32_t)ids->n, strs, j->served->max_model_len);
    free(strs);
    return buf_check(&j->out, &j->err);
}

static enum err_code write_text(struct text_job *j, const struct oai_request *r)
{
    char *text;
    size_t n;
    enum err_code rc =
        tokenizer_decode(j->served->tokenizer, r->tokens, r->n_tokens, false, &text, &n, &j->err);

    if (rc != ERR_OK)
        return rc;
    oai_write_prompt(&j->out, text, n);
    free(text);
    return buf_check(&j->out, &j->err);
}

static enum err_code write_chat(struct text_job *j, const struct oai_request *r)
{
    struct chat_rendered text = { 0 };
    enum err_code rc = prompt_render(&text, j->served, r, &j->err);

    if (rc != ERR_OK)
        return rc;
    oai_write_prompt(&j->out, text.text, text.n);
    chat_rendered_fini(&text);
    return buf_check(&j->out, &j->err);
}

static struct text_job *job_of(struct job *j)
{
    return (struct text_job *)((char *)j - offsetof(struct text_job, job));
}

static void on_run(struct job *job)
{
    struct text_job *j = job_of(job);
    struct prompt_set s;

    j->rc = prompt_set_read(&s, j->served, j->kind, j->body, j->n_body, job, &j->err);
    if (j->rc != ERR_OK)
        return;
    j->rc = j->kind == OAI_TOKENIZE     ? write_tokens(j, &s)
            : j->kind == OAI_DETOKENIZE ? write_text(j, &s.req)
                                        : write_chat(j, &s.req);
    prompt_set_fini(&s);
}

static void destroy(struct text_job *j)
{
    buf_fini(&j->out);
    free(j->body);
    free(j);
}

static void on_done(struct job *job, bool cancelled)
{
    struct text_job *j = job_of(job);

    if (!cancelled && j->rc != ERR_OK)
        reply_err(j->x, &j->err);
    else if (!cancelled)
        reply_out(j->x, 200, CONTENT_JSON, &j->out);
    destroy(j);
}

static void on_gone(struct exchange *x, void *user)
{
    (void)x;
    job_cancel(&((struct text_job *)user)->job);
}

static void start(struct routes *rt, struct exchange *x, enum oai_kind kind)
{
    const char *refusal = srv_phase_refusal(*rt->phase);
    struct text_job *j = refusal ? NULL : calloc(1, sizeof *j);

    if (refusal) {
        reply_error(x, 503, NULL, refusal);
        return;
    }
    if (j == NULL) {
        reply_error(x, 500, NULL, "out of memory");
        return;
    }
    j->served = rt->served;
    j->x = x;
    j->kind = kind;
    j->body = http_take_body(x, &j->n_body);
    if (jobs_submit(rt->jobs, &j->job, on_run, on_done, &j->err) != ERR_OK) {
        reply_err(x, &j->err);
        destroy(j);
        return;
    }
    x->gone = on_gone;
    x->user = j;
}

void handle_tokenize(struct routes *rt, struct exchange *x)
{
    start(rt, x, OAI_TOKENIZE);
}

void handle_detokenize(struct routes *rt, struct exchange *x)
{
    start(rt, x, OAI_DETOKENIZE);
}

void handle_apply_template(struct routes *rt, struct exchange *x)
{
    start(rt, x, OAI_TEMPLATE);
}
