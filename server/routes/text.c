/* text.c: /tokenize, /detokenize, /apply-template: text in, ids out
 * and back, without the engine.  The work is done on the pool; a job outlives a
 * client that leaves.  I/O thread except work(). */
#include "server/routes/routes.h"

#include <stdlib.h>
#include <string.h>

#include "proto/openai/response.h"
#include "server/drain.h"
#include "server/generate/prompt.h"
#include "server/http/http.h"

struct job {
    struct srv *srv;
    struct exchange *x; /* NULL: the client is gone */
    uv_work_t work;
    enum oai_kind kind;
    char *body;
    size_t n_body;
    enum err_code rc;
    struct err err;
    struct buf out;
};

/* {count, max_model_len, tokens, token_strs}, strings as the vocabulary spells
 * them. */
static enum err_code write_tokens(struct job *j, const struct prompt_set *s)
{
    const struct token_list *ids = &s->prompt[0].ids;
    struct oai_text *strs = NULL;

    if (s->req.return_token_strs) {
        strs = calloc(ids->n + 1, sizeof *strs);
        if (strs == NULL)
            return err_nomem(&j->err, "token strings", ids->n * sizeof *strs);
        for (size_t i = 0; i < ids->n; i++) {
            strs[i].s = tokenizer_spelling(j->srv->tokenizer, ids->id[i], &strs[i].n);
            if (strs[i].s == NULL)
                strs[i] = (struct oai_text){ "", 0 };
        }
    }
    oai_write_tokenized(&j->out, ids->id, (uint32_t)ids->n, strs, j->srv->max_model_len);
    free(strs);
    return buf_check(&j->out, &j->err);
}

static enum err_code write_text(struct job *j, const struct oai_request *r)
{
    char *text;
    size_t n;
    enum err_code rc =
        tokenizer_decode(j->srv->tokenizer, r->tokens, r->n_tokens, false, &text, &n, &j->err);

    if (rc != ERR_OK)
        return rc;
    oai_write_prompt(&j->out, text, n);
    free(text);
    return buf_check(&j->out, &j->err);
}

static enum err_code write_chat(struct job *j, const struct oai_request *r)
{
    struct chat_rendered text = { 0 };
    enum err_code rc = prompt_render(&text, j->srv, r, &j->err);

    if (rc != ERR_OK)
        return rc;
    oai_write_prompt(&j->out, text.text, text.n);
    chat_rendered_fini(&text);
    return buf_check(&j->out, &j->err);
}

static void work(uv_work_t *w)
{
    struct job *j = w->data;
    struct prompt_set s;

    j->rc = prompt_set_read(&s, j->srv, j->kind, j->body, j->n_body, &j->err);
    if (j->rc != ERR_OK)
        return;
    j->rc = j->kind == OAI_TOKENIZE     ? write_tokens(j, &s)
            : j->kind == OAI_DETOKENIZE ? write_text(j, &s.req)
                                        : write_chat(j, &s.req);
    prompt_set_fini(&s);
}

static void on_done(uv_work_t *w, int status)
{
    struct job *j = w->data;
    struct srv *srv = j->srv;

    (void)status;
    if (j->x && j->rc != ERR_OK)
        reply_err(j->x, &j->err);
    else if (j->x)
        reply_out(j->x, 200, CONTENT_JSON, &j->out);
    buf_fini(&j->out);
    free(j->body);
    free(j);
    srv->n_jobs--;
    drain_check(srv);
}

static void on_gone(struct exchange *x, void *user)
{
    (void)x;
    ((struct job *)user)->x = NULL;
}

static void start(struct srv *srv, struct exchange *x, enum oai_kind kind)
{
    struct job *j = srv->phase == SRV_SERVING ? calloc(1, sizeof *j) : NULL;

    if (srv->phase != SRV_SERVING) {
        reply_error(x, 503, NULL,
                    srv->phase == SRV_LOADING ? "the model is still loading"
                                              : "the server is shutting down");
        return;
    }
    if (j == NULL) {
        reply_error(x, 500, NULL, "out of memory");
        return;
    }
    j->srv = srv;
    j->x = x;
    j->kind = kind;
    j->body = http_take_body(x, &j->n_body);
    j->work.data = j;
    x->gone = on_gone;
    x->user = j;
    srv->n_jobs++;
    if (uv_queue_work(&srv->loop, &j->work, work, on_done) != 0) {
        j->rc = err_set(&j->err, ERR_NOMEM, "no thread takes the request");
        on_done(&j->work, 0);
    }
}

void handle_tokenize(struct srv *srv, struct exchange *x)
{
    start(srv, x, OAI_TOKENIZE);
}

void handle_detokenize(struct srv *srv, struct exchange *x)
{
    start(srv, x, OAI_DETOKENIZE);
}

void handle_apply_template(struct srv *srv, struct exchange *x)
{
    start(srv, x, OAI_TEMPLATE);
}
