/* response.c: whole replies, errors, model lists and token bodies.
 * Streams: stream.c; log probabilities: logprobs.c.  Any thread;
 * a buffer belongs to one. */
#include "proto/openai/response.h"

#include "proto/openai/write.h"

/* ------------------------------------------------------------ whole replies */

static void put_message(struct buf *o, const struct oai_choice *c)
{
    BUF_LIT(o, "\"message\":{\"role\":\"assistant\",\"content\":");
    if (c->text.s == NULL && c->n_tool_calls == 0)
        BUF_LIT(o, "\"\"");
    else
        oai_put_text(o, c->text);
    BUF_LIT(o, ",\"refusal\":null");
    for (uint32_t i = 0; i < c->n_tool_calls; i++) {
        if (i == 0)
            BUF_LIT(o, ",\"tool_calls\":[");
        else
            BUF_LIT(o, ",");
        oai_put_tool_call(o, &c->tool_calls[i], false);
    }
    if (c->n_tool_calls > 0)
        BUF_LIT(o, "]");
    BUF_LIT(o, "}");
}

static void put_choice(struct buf *o, enum oai_kind kind, const struct oai_choice *c)
{
    BUF_LIT(o, "{\"index\":");
    json_put_uint(o, c->index);
    BUF_LIT(o, ",");
    if (kind == OAI_CHAT) {
        put_message(o, c);
    } else {
        BUF_LIT(o, "\"text\":\"");
        json_put_escaped(o, c->text.s, c->text.n);
        BUF_LIT(o, "\"");
    }
    BUF_LIT(o, ",\"logprobs\":");
    oai_put_logprobs(o, kind, c->logprobs);
    BUF_LIT(o, ",\"finish_reason\":");
    oai_put_finish(o, c->finish);
    BUF_LIT(o, ",\"stop_reason\":");
    oai_put_stop_reason(o, c->stop_reason);
    if (c->token_ids != NULL) {
        BUF_LIT(o, ",\"token_ids\":");
        oai_put_ids(o, c->token_ids, c->n_token_ids);
    }
    if (kind == OAI_COMPLETION && c->prompt_token_ids != NULL) {
        BUF_LIT(o, ",\"prompt_token_ids\":");
        oai_put_ids(o, c->prompt_token_ids, c->n_prompt_token_ids);
    }
    if (kind == OAI_COMPLETION && c->prompt_logprobs != NULL) {
        BUF_LIT(o, ",\"prompt_logprobs\":");
        oai_put_prompt_logprobs(o, c->prompt_logprobs);
    }
    BUF_LIT(o, "}");
}

void oai_write_reply(struct buf *o, const struct oai_identity *id, const struct oai_choice *choice,
                     uint32_t n_choices, const struct oai_usage *usage,
                     const struct oai_cache_report *cache)
{
    bool chat = id->kind == OAI_CHAT;
    oai_put_identity(o, id, chat ? "chat.completion" : "text_completion");
    BUF_LIT(o, ",\"choices\":[");
    for (uint32_t i = 0; i < n_choices; i++) {
        if (i > 0)
            BUF_LIT(o, ",");
        put_choice(o, id->kind, &choice[i]);
    }
    BUF_LIT(o, "],\"usage\":");
    oai_put_usage(o, usage);
    /* A chat has one prompt: what belongs to it stands once, at the top. */
    if (chat && n_choices > 0 && choice->prompt_token_ids != NULL) {
        BUF_LIT(o, ",\"prompt_token_ids\":");
        oai_put_ids(o, choice->prompt_token_ids, choice->n_prompt_token_ids);
    }
    if (chat && n_choices > 0 && choice->prompt_logprobs != NULL) {
        BUF_LIT(o, ",\"prompt_logprobs\":");
        oai_put_prompt_logprobs(o, choice->prompt_logprobs);
    }
    if (cache != NULL)
        oai_put_cache(o, cache);
    BUF_LIT(o, "}");
}

/* ------------------------------------------------------------------- errors */

static void put_error(struct buf *o, const char *type, const char *param, const char *code,
                      const char *message)
{
    BUF_LIT(o, "{\"error\":{\"message\":");
    json_put_cstring(o, message);
    BUF_LIT(o, ",\"type\":");
    json_put_cstring(o, type);
    BUF_LIT(o, ",\"param\":");
    json_put_cstring(o, param != NULL && *param != '\0' ? param : NULL);
    BUF_LIT(o, ",\"code\":");
    json_put_cstring(o, code);
    BUF_LIT(o, "}}");
}

void oai_write_error(struct buf *o, const struct err *e)
{
    static const struct {
        const char *type, *code;
    } rows[ERR_CODES] = {
        [ERR_OK] = { "server_error", NULL },
        [ERR_BUSY] = { "rate_limit_error", "rate_limit_exceeded" },
        [ERR_DRAINING] = { "server_error", "service_unavailable" },
        [ERR_INVALID] = { "invalid_request_error", NULL },
        [ERR_LIMIT] = { "invalid_request_error", NULL },
        [ERR_NOT_FOUND] = { "invalid_request_error", "not_found" },
        [ERR_CONFLICT] = { "invalid_request_error", "conflict" },
        [ERR_TOO_LARGE] = { "invalid_request_error", "request_too_large" },
        [ERR_IO] = { "server_error", NULL },
        [ERR_GPU] = { "server_error", NULL },
        [ERR_NOMEM] = { "server_error", NULL },
        [ERR_INTERNAL] = { "server_error", NULL },
    };
    static const char *const lengths[] = { "prompt", "messages", "max_tokens" };
    const char *code = rows[e->code].code;
    if (e->code == ERR_LIMIT)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            if (strcmp(e->param, lengths[i]) == 0)
                code = "context_length_exceeded";
    if (e->code == ERR_NOT_FOUND && strcmp(e->param, "model") == 0)
        code = "model_not_found";
    put_error(o, rows[e->code].type, e->param, code, e->message);
}

void oai_write_http_error(struct buf *o, int status, const char *code, const char *message)
{
    const char *type = status == 401   ? "authentication_error"
                       : status == 403 ? "permission_error"
                       : status == 429 ? "rate_limit_error"
                       : status >= 500 ? "server_error"
                                       : "invalid_request_error";
    put_error(o, type, NULL, code, message);
}

/* ------------------------------------------------------------ other bodies */

void oai_write_model(struct buf *o, const struct oai_model *m)
{
    BUF_LIT(o, "{\"id\":");
    json_put_cstring(o, m->id);
    BUF_LIT(o, ",\"object\":\"model\",\"created\":");
    json_put_int(o, m->created);
    BUF_LIT(o, ",\"owned_by\":");
    json_put_cstring(o, m->owned_by);
    BUF_LIT(o, ",\"root\":");
    json_put_cstring(o, m->root);
    BUF_LIT(o, ",\"parent\":null,\"max_model_len\":");
    json_put_uint(o, m->max_model_len);
    BUF_LIT(o, "}");
}

void oai_write_models(struct buf *o, const struct oai_model *m, uint32_t n)
{
    BUF_LIT(o, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0)
            BUF_LIT(o, ",");
        oai_write_model(o, &m[i]);
    }
    BUF_LIT(o, "]}");
}

void oai_write_tokenized(struct buf *o, const int32_t *ids, uint32_t n, const struct oai_text *strs,
                         uint32_t max_model_len)
{
    BUF_LIT(o, "{\"count\":");
    json_put_uint(o, n);
    BUF_LIT(o, ",\"max_model_len\":");
    json_put_uint(o, max_model_len);
    BUF_LIT(o, ",\"tokens\":");
    oai_put_ids(o, ids, n);
    BUF_LIT(o, ",\"token_strs\":");
    if (strs == NULL) {
        BUF_LIT(o, "null}");
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        buf_put(o, i == 0 ? "[" : ",", 1);
        json_put_string(o, strs[i].s == NULL ? "" : strs[i].s, strs[i].n);
    }
    if (n == 0)
        BUF_LIT(o, "[");
    BUF_LIT(o, "]}");
}

void oai_write_prompt(struct buf *o, const char *text, size_t n)
{
    BUF_LIT(o, "{\"prompt\":\"");
    json_put_escaped(o, text, n);
    BUF_LIT(o, "\"}");
}
