/* response.c: whole replies, errors, model lists and token bodies.
 * Streams: openai_stream.c; log probabilities: openai_logprobs.c.  Any thread;
 * a buffer belongs to one. */
#include "proto/openai/response.h"

#include "proto/openai/write.h"

/* -------------------------------------------------------------- small parts */

void oai_put_text(struct buf *o, struct oai_text t)
{
    json_put_string(o, t.s, t.n);
}

void oai_put_ids(struct buf *o, const int32_t *ids, uint32_t n)
{
    BUF_LIT(o, "[");
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0)
            BUF_LIT(o, ",");
        json_put_int(o, ids[i]);
    }
    BUF_LIT(o, "]");
}

void oai_put_finish(struct buf *o, enum oai_finish finish)
{
    static const struct {
        const char *s;
        size_t n;
    } names[] = {
        [OAI_FINISH_NONE] = { "null", 4 },
        [OAI_FINISH_STOP] = { "\"stop\"", 6 },
        [OAI_FINISH_LENGTH] = { "\"length\"", 8 },
        [OAI_FINISH_TOOL_CALLS] = { "\"tool_calls\"", 12 },
        [OAI_FINISH_CONTENT_FILTER] = { "\"content_filter\"", 16 },
    };
    buf_put(o, names[finish].s, names[finish].n);
}

void oai_put_stop_reason(struct buf *o, struct oai_stop_reason r)
{
    if (r.text.s != NULL || r.token < 0)
        oai_put_text(o, r.text);
    else
        json_put_int(o, r.token);
}

void oai_put_usage(struct buf *o, const struct oai_usage *u)
{
    BUF_LIT(o, "{\"prompt_tokens\":");
    json_put_uint(o, u->prompt_tokens);
    BUF_LIT(o, ",\"completion_tokens\":");
    json_put_uint(o, u->completion_tokens);
    BUF_LIT(o, ",\"total_tokens\":");
    json_put_uint(o, u->prompt_tokens + u->completion_tokens);
    BUF_LIT(o, ",\"prompt_tokens_details\":{\"cached_tokens\":");
    json_put_uint(o, u->cached_tokens);
    BUF_LIT(o, "}");
    if (u->reasoning_tokens > 0) {
        BUF_LIT(o, ",\"completion_tokens_details\":{\"reasoning_tokens\":");
        json_put_uint(o, u->reasoning_tokens);
        BUF_LIT(o, "}");
    }
    BUF_LIT(o, "}");
}

void oai_put_cache(struct buf *o, const struct oai_cache_report *c)
{
    BUF_LIT(o, ",\"cache\":{\"query_tokens\":");
    json_put_uint(o, c->query_tokens);
    BUF_LIT(o, ",\"hit_tokens\":");
    json_put_uint(o, c->hit_tokens);
    BUF_LIT(o, ",\"miss_tokens\":{\"never_seen\":");
    json_put_uint(o, c->miss_never);
    BUF_LIT(o, ",\"evicted\":");
    json_put_uint(o, c->miss_evicted);
    BUF_LIT(o, ",\"salt\":");
    json_put_uint(o, c->miss_salt);
    BUF_LIT(o, ",\"granularity\":");
    json_put_uint(o, c->miss_granularity);
    BUF_LIT(o, ",\"window\":");
    json_put_uint(o, c->miss_window);
    BUF_LIT(o, "}}");
}

/* {"index":0,"id":..,"type":"function","function":{..}}; what is absent is left
 * out, and so is the index of an unstreamed call. */
void oai_put_tool_call(struct buf *o, const struct oai_tool_call *t, bool with_index)
{
    BUF_LIT(o, "{");
    if (with_index) {
        BUF_LIT(o, "\"index\":");
        json_put_uint(o, t->index);
        BUF_LIT(o, ",");
    }
    if (t->id.s != NULL) {
        BUF_LIT(o, "\"id\":");
        oai_put_text(o, t->id);
        BUF_LIT(o, ",\"type\":\"function\",");
    }
    BUF_LIT(o, "\"function\":{");
    if (t->name.s != NULL) {
        BUF_LIT(o, "\"name\":");
        oai_put_text(o, t->name);
        BUF_LIT(o, ",");
    }
    BUF_LIT(o, "\"arguments\":\"");
    json_put_escaped(o, t->arguments.s, t->arguments.n);
    BUF_LIT(o, "\"}}");
}

void oai_put_identity(struct buf *o, const struct oai_identity *id, const char *object)
{
    BUF_LIT(o, "{\"id\":");
    json_put_cstring(o, id->id);
    BUF_LIT(o, ",\"object\":\"");
    buf_put(o, object, strlen(object));
    BUF_LIT(o, "\",\"created\":");
    json_put_int(o, id->created);
    BUF_LIT(o, ",\"model\":");
    json_put_cstring(o, id->model);
    BUF_LIT(o, ",\"system_fingerprint\":null");
}

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
