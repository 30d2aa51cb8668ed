/* prompt.c: parsing, templates and tokenising for every endpoint that takes a
 * prompt.  Owns what struct prompt_set owns.  Any thread of the pool. */
#include "server/generate/prompt.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

enum { TOKENS_PER_CONTEXT = 16 }; /* an overlong prompt is counted up to so many contexts */

/* 0 means none, and is never the hash of one. */
uint64_t prompt_salt(const struct served *served, const struct oai_text *cache_salt)
{
    uint64_t h;

    if (cache_salt->s == NULL)
        return 0;
    h = XXH3_64bits_withSeed(cache_salt->s, cache_salt->n, served->salt_key);
    return h ? h : 1;
}

enum err_code prompt_check_model(const struct served *served, const struct oai_text *name,
                                 struct err *e)
{
    if (name->s == NULL)
        return ERR_OK;
    for (uint32_t i = 0; i < served->n_names; i++)
        if (strlen(served->name[i]) == name->n && memcmp(served->name[i], name->s, name->n) == 0)
            return ERR_OK;
    return err_set_param(e, ERR_NOT_FOUND, "model",
                         "the model `%.*s` does not exist; `%s` is served here",
                         name->n > 200 ? 200 : (int)name->n, name->s, served->name[0]);
}

/* Content of the last message, when it is text; else NULL. */
static const struct json *last_content(const struct oai_request *r)
{
    const struct json *last = json_first(r->messages);

    for (uint32_t i = 1; i < r->messages->n; i++)
        last = json_next(last);
    const struct json *content = json_get(last, "content");
    return content != NULL && content->kind == JSON_STRING ? content : NULL;
}

/* Last place of what[0..n_what) in text[0..n), or NULL. */
static char *find_last(char *text, size_t n, const char *what, size_t n_what)
{
    for (size_t at = n >= n_what ? n - n_what + 1 : 0; at-- > 0;)
        if (memcmp(text + at, what, n_what) == 0)
            return text + at;
    return NULL;
}

/* Cut the rendered text behind the last message, so that the model goes on with
 * it instead of answering it. */
static enum err_code cut_for_continuation(struct chat_rendered *out, const struct oai_request *r,
                                          struct err *e)
{
    const struct json *content = last_content(r);
    size_t n = content ? content->n : 0;

    while (n > 0 && strchr(" \t\r\n", content->u.string[n - 1]))
        n--;
    char *at = n > 0 ? find_last(out->text, out->n, content->u.string, n) : NULL;
    if (at == NULL)
        return err_set_param(e, ERR_INVALID, "continue_final_message",
                             "continue_final_message: the rendered chat does not contain the last "
                             "message's text");
    out->n = (size_t)(at - out->text) + n;
    out->text[out->n] = '\0';
    while (out->n_user > 0 && out->user[out->n_user - 1].start >= out->n)
        out->n_user--;
    if (out->n_user > 0 && out->user[out->n_user - 1].end > out->n)
        out->user[out->n_user - 1].end = out->n;
    return ERR_OK;
}

enum err_code prompt_render(struct chat_rendered *out, const struct served *served,
                            const struct oai_request *r, struct err *e)
{
    const char *bos = tokenizer_bos(served->tokenizer), *eos = tokenizer_eos(served->tokenizer);
    struct chat_input in = {
        .messages = r->messages,
        .tools = r->tool_choice == OAI_TOOL_NONE ? NULL : r->tools,
        .documents = r->documents,
        .kwargs = r->chat_template_kwargs,
        .bos_token = bos ? bos : "",
        .eos_token = eos ? eos : "",
        .add_generation_prompt = r->add_generation_prompt,
        .now = time(NULL),
    };
    enum err_code rc;

    if (served->chat == NULL)
        return err_set_param(e, ERR_INVALID, "messages",
                             "messages: this model has no chat template; give one with "
                             "--chat-template, or use /v1/completions");
    if (r->tool_choice == OAI_TOOL_REQUIRED || r->tool_choice == OAI_TOOL_NAMED)
        return err_set_param(e, ERR_INVALID, "tool_choice",
                             "tool_choice: a tool call cannot be enforced here; expected \"auto\" "
                             "or \"none\"");
    rc = chat_template_render(served->chat, &in, out, e);
    if (rc != ERR_OK)
        return rc;
    if (r->continue_final_message) {
        rc = cut_for_continuation(out, r, e);
        if (rc != ERR_OK)
            chat_rendered_fini(out);
    }
    return rc;
}

/* How many ids are counted before a prompt is simply too long. */
static size_t most_ids(const struct served *served, const struct oai_request *r)
{
    if (r->truncate_prompt_tokens != 0 || r->kind == OAI_TOKENIZE)
        return 0;
    return (size_t)served->max_model_len * TOKENS_PER_CONTEXT;
}

/* The field that holds the prompt, for messages. */
static const char *prompt_field(const struct oai_request *r)
{
    return r->kind == OAI_CHAT ? "messages" : "prompt";
}

static enum err_code encode_chat(struct prompt *p, const struct served *served,
                                 const struct oai_request *r, struct err *e)
{
    struct chat_rendered text = { 0 };
    enum err_code rc = prompt_render(&text, served, r, e);

    if (rc != ERR_OK)
        return rc;
    if (r->add_special_tokens)
        rc = tokenizer_encode(served->tokenizer, "", 0, TOKENIZER_SPECIAL, 0, &p->ids, e);
    if (rc == ERR_OK)
        rc = tokenizer_encode_spans(served->tokenizer, text.text, text.n, text.user, text.n_user,
                                    most_ids(served, r), &p->ids, e);
    chat_rendered_fini(&text);
    return rc;
}

static enum err_code copy_ids(struct token_list *l, const int32_t *ids, uint32_t n, struct err *e)
{
    l->id = malloc((n ? n : 1) * sizeof *l->id);
    if (l->id == NULL)
        return err_nomem(e, "prompt", n * sizeof *l->id);
    memcpy(l->id, ids, n * sizeof *ids);
    l->n = l->cap = n;
    return ERR_OK;
}

static enum err_code encode_prompt(struct prompt *p, const struct served *served,
                                   const struct oai_request *r, const struct oai_prompt *in,
                                   struct err *e)
{
    unsigned flags = TOKENIZER_PARSE_SPECIAL | (r->add_special_tokens ? TOKENIZER_SPECIAL : 0);

    if (in->text.s)
        return tokenizer_encode(served->tokenizer, in->text.s, in->text.n, flags,
                                most_ids(served, r), &p->ids, e);
    return copy_ids(&p->ids, in->ids, in->n_ids, e);
}

/* Keep the last ids only, where the client asks for it. */
static void truncate_ids(struct token_list *l, const struct served *served,
                         const struct oai_request *r)
{
    size_t keep = r->truncate_prompt_tokens < 0 ? served->max_model_len - 1
                                                : (size_t)r->truncate_prompt_tokens;

    if (r->truncate_prompt_tokens == 0 || l->n <= keep)
        return;
    memmove(l->id, l->id + l->n - keep, keep * sizeof *l->id);
    l->n = keep;
}

static enum err_code check_length(const struct prompt *p, const struct served *served,
                                  const struct oai_request *r, struct err *e)
{
    const char *field = prompt_field(r);
    uint32_t room = r->max_tokens > 0 ? 1 : 0;

    if (p->ids.n == 0)
        return err_set_param(e, ERR_INVALID, field,
                             "%s: no token; expected at least one, as the model has no token that "
                             "begins a text",
                             field);
    if (p->ids.n + room > served->max_model_len)
        return err_set_param(e, ERR_LIMIT, field,
                             "%s: %zu tokens; the context of %u tokens holds at most %u and a "
                             "token of output",
                             field, p->ids.n, served->max_model_len, served->max_model_len - 1);
    return ERR_OK;
}

static enum err_code echo_text(struct prompt *p, const struct served *served,
                               const struct oai_request *r, const struct oai_prompt *in,
                               struct err *e)
{
    if (!in->text.s || r->truncate_prompt_tokens != 0)
        return tokenizer_decode(served->tokenizer, p->ids.id, p->ids.n, r->skip_special_tokens,
                                &p->text, &p->n_text, e);
    p->text = malloc(in->text.n + 1);
    if (p->text == NULL)
        return err_nomem(e, "prompt", in->text.n + 1);
    memcpy(p->text, in->text.s, in->text.n);
    p->text[in->text.n] = '\0';
    p->n_text = in->text.n;
    return ERR_OK;
}

static enum err_code read_all(struct prompt_set *s, const struct served *served,
                              const struct job *job, struct err *e)
{
    const struct oai_request *r = &s->req;
    bool chat = r->n_prompts == 0;
    enum err_code rc = ERR_OK;

    s->n = chat ? 1 : r->n_prompts;
    s->prompt = calloc(s->n, sizeof *s->prompt);
    if (s->prompt == NULL)
        return err_nomem(e, "prompts", s->n * sizeof *s->prompt);
    for (uint32_t i = 0; rc == ERR_OK && i < s->n; i++) {
        struct prompt *p = &s->prompt[i];
        if (job && job_stopped(job))
            return err_set(e, ERR_CONFLICT, "the client is gone");
        rc = chat ? encode_chat(p, served, r, e) : encode_prompt(p, served, r, &r->prompt[i], e);
        if (rc == ERR_LIMIT)
            rc = err_set_param(e, ERR_LIMIT, prompt_field(r),
                               "%s: more than %zu tokens; the context of %u tokens holds at most "
                               "%u and a token of output",
                               prompt_field(r), most_ids(served, r), served->max_model_len,
                               served->max_model_len - 1);
        if (rc != ERR_OK || r->kind == OAI_TOKENIZE)
            continue;
        truncate_ids(&p->ids, served, r);
        rc = check_length(p, served, r, e);
        if (rc == ERR_OK && r->echo && !chat)
            rc = echo_text(p, served, r, &r->prompt[i], e);
    }
    return rc;
}

enum err_code prompt_set_read(struct prompt_set *out, const struct served *served,
                              enum oai_kind kind, const char *body, size_t n, const struct job *job,
                              struct err *e)
{
    enum err_code rc;

    memset(out, 0, sizeof *out);
    rc = oai_request_parse(&out->req, kind, body ? body : "", n, &served->defaults, e);
    if (rc != ERR_OK)
        return rc;
    out->have_req = true;
    rc = prompt_check_model(served, &out->req.model, e);
    if (rc == ERR_OK && kind != OAI_DETOKENIZE && kind != OAI_TEMPLATE)
        rc = read_all(out, served, job, e);
    if (rc != ERR_OK)
        prompt_set_fini(out);
    return rc;
}

void prompt_set_fini(struct prompt_set *s)
{
    for (uint32_t i = 0; s->prompt && i < s->n; i++) {
        token_list_fini(&s->prompt[i].ids);
        free(s->prompt[i].text);
    }
    free(s->prompt);
    if (s->have_req)
        oai_request_fini(&s->req);
    memset(s, 0, sizeof *s);
}
