/* response.c: whole replies, errors, model lists and token bodies.
 * Streams: openai_stream.c; log probabilities: openai_logprobs.c.  Any thread;
 * a json_out belongs to one. */
#include "proto/openai/response.h"

#include "proto/openai/write.h"

/* -------------------------------------------------------------- small parts */

void oai_put_text(struct json_out *o, struct oai_text t)
{
    json_out_string(o, t.s, t.n);
}

void oai_put_ids(struct json_out *o, const int32_t *ids, uint32_t n)
{
    JSON_LIT(o, "[");
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0)
            JSON_LIT(o, ",");
        json_out_int(o, ids[i]);
    }
    JSON_LIT(o, "]");
}

void oai_put_finish(struct json_out *o, enum oai_finish finish)
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
    json_out_raw(o, names[finish].s, names[finish].n);
}

void oai_put_stop_reason(struct json_out *o, struct oai_stop_reason r)
{
    if (r.text.s != NULL || r.token < 0)
        oai_put_text(o, r.text);
    else
        json_out_int(o, r.token);
}

void oai_put_usage(struct json_out *o, const struct oai_usage *u)
{
    JSON_LIT(o, "{\"prompt_tokens\":");
    json_out_uint(o, u->prompt_tokens);
    JSON_LIT(o, ",\"completion_tokens\":");
    json_out_uint(o, u->completion_tokens);
    JSON_LIT(o, ",\"total_tokens\":");
    json_out_uint(o, u->prompt_tokens + u->completion_tokens);
    JSON_LIT(o, ",\"prompt_tokens_details\":{\"cached_tokens\":");
    json_out_uint(o, u->cached_tokens);
    JSON_LIT(o, "}");
    if (u->reasoning_tokens > 0) {
        JSON_LIT(o, ",\"completion_tokens_details\":{\"reasoning_tokens\":");
        json_out_uint(o, u->reasoning_tokens);
        JSON_LIT(o, "}");
    }
    JSON_LIT(o, "}");
}

void oai_put_cache(struct json_out *o, const struct oai_cache_report *c)
{
    JSON_LIT(o, ",\"cache\":{\"query_tokens\":");
    json_out_uint(o, c->query_tokens);
    JSON_LIT(o, ",\"hit_tokens\":");
    json_out_uint(o, c->hit_tokens);
    JSON_LIT(o, ",\"miss_tokens\":{\"never_seen\":");
    json_out_uint(o, c->miss_never);
    JSON_LIT(o, ",\"evicted\":");
    json_out_uint(o, c->miss_evicted);
    JSON_LIT(o, ",\"salt\":");
    json_out_uint(o, c->miss_salt);
    JSON_LIT(o, ",\"granularity\":");
    json_out_uint(o, c->miss_granularity);
    JSON_LIT(o, ",\"window\":");
    json_out_uint(o, c->miss_window);
    JSON_LIT(o, "}}");
}

/* {"index":0,"id":..,"type":"function","function":{..}}; what is absent is left
 * out, and so is the index of an unstreamed call. */
void oai_put_tool_call(struct json_out *o, const struct oai_tool_call *t, bool with_index)
{
    JSON_LIT(o, "{");
    if (with_index) {
        JSON_LIT(o, "\"index\":");
        json_out_uint(o, t->index);
        JSON_LIT(o, ",");
    }
    if (t->id.s != NULL) {
        JSON_LIT(o, "\"id\":");
        oai_put_text(o, t->id);
        JSON_LIT(o, ",\"type\":\"function\",");
    }
    JSON_LIT(o, "\"function\":{");
    if (t->name.s != NULL) {
        JSON_LIT(o, "\"name\":");
        oai_put_text(o, t->name);
        JSON_LIT(o, ",");
    }
    JSON_LIT(o, "\"arguments\":\"");
    json_out_escaped(o, t->arguments.s, t->arguments.n);
    JSON_LIT(o, "\"}}");
}

void oai_put_identity(struct json_out *o, const struct oai_identity *id, const char *object)
{
    JSON_LIT(o, "{\"id\":");
    json_out_cstring(o, id->id);
    JSON_LIT(o, ",\"object\":\"");
    json_out_raw(o, object, strlen(object));
    JSON_LIT(o, "\",\"created\":");
    json_out_int(o, id->created);
    JSON_LIT(o, ",\"model\":");
    json_out_cstring(o, id->model);
    JSON_LIT(o, ",\"system_fingerprint\":null");
}

/* ------------------------------------------------------------ whole replies */

static void put_message(struct json_out *o, const struct oai_choice *c)
{
    JSON_LIT(o, "\"message\":{\"role\":\"assistant\",\"content\":");
    if (c->text.s == NULL && c->n_tool_calls == 0)
        JSON_LIT(o, "\"\"");
    else
        oai_put_text(o, c->text);
    JSON_LIT(o, ",\"refusal\":null");
    for (uint32_t i = 0; i < c->n_tool_calls; i++) {
        if (i == 0)
            JSON_LIT(o, ",\"tool_calls\":[");
        else
            JSON_LIT(o, ",");
        oai_put_tool_call(o, &c->tool_calls[i], false);
    }
    if (c->n_tool_calls > 0)
        JSON_LIT(o, "]");
    JSON_LIT(o, "}");
}

static void put_choice(struct json_out *o, enum oai_kind kind, const struct oai_choice *c)
{
    JSON_LIT(o, "{\"index\":");
    json_out_uint(o, c->index);
    JSON_LIT(o, ",");
    if (kind == OAI_CHAT) {
        put_message(o, c);
    } else {
        JSON_LIT(o, "\"text\":\"");
        json_out_escaped(o, c->text.s, c->text.n);
        JSON_LIT(o, "\"");
    }
    JSON_LIT(o, ",\"logprobs\":");
    oai_put_logprobs(o, kind, c->logprobs);
    JSON_LIT(o, ",\"finish_reason\":");
    oai_put_finish(o, c->finish);
    JSON_LIT(o, ",\"stop_reason\":");
    oai_put_stop_reason(o, c->stop_reason);
    if (c->token_ids != NULL) {
        JSON_LIT(o, ",\"token_ids\":");
        oai_put_ids(o, c->token_ids, c->n_token_ids);
    }
    if (kind == OAI_COMPLETION && c->prompt_token_ids != NULL) {
        JSON_LIT(o, ",\"prompt_token_ids\":");
        oai_put_ids(o, c->prompt_token_ids, c->n_prompt_token_ids);
    }
    if (kind == OAI_COMPLETION && c->prompt_logprobs != NULL) {
        JSON_LIT(o, ",\"prompt_logprobs\":");
        oai_put_prompt_logprobs(o, c->prompt_logprobs);
    }
    JSON_LIT(o, "}");
}

void oai_write_reply(struct json_out *o, const struct oai_identity *id,
                     const struct oai_choice *choice, uint32_t n_choices,
                     const struct oai_usage *usage, const struct oai_cache_report *cache)
{
    bool chat = id->kind == OAI_CHAT;
    oai_put_identity(o, id, chat ? "chat.completion" : "text_completion");
    JSON_LIT(o, ",\"choices\":[");
    for (uint32_t i = 0; i < n_choices; i++) {
        if (i > 0)
            JSON_LIT(o, ",");
        put_choice(o, id->kind, &choice[i]);
    }
    JSON_LIT(o, "],\"usage\":");
    oai_put_usage(o, usage);
    /* A chat has one prompt: what belongs to it stands once, at the top. */
    if (chat && n_choices > 0 && choice->prompt_token_ids != NULL) {
        JSON_LIT(o, ",\"prompt_token_ids\":");
        oai_put_ids(o, choice->prompt_token_ids, choice->n_prompt_token_ids);
    }
    if (chat && n_choices > 0 && choice->prompt_logprobs != NULL) {
        JSON_LIT(o, ",\"prompt_logprobs\":");
        oai_put_prompt_logprobs(o, choice->prompt_logprobs);
    }
    if (cache != NULL)
        oai_put_cache(o, cache);
    JSON_LIT(o, "}");
}

/* ------------------------------------------------------------------- errors */

static void put_error(struct json_out *o, const char *type, const char *param, const char *code,
                      const char *message)
{
    JSON_LIT(o, "{\"error\":{\"message\":");
    json_out_cstring(o, message);
    JSON_LIT(o, ",\"type\":");
    json_out_cstring(o, type);
    JSON_LIT(o, ",\"param\":");
    json_out_cstring(o, param != NULL && *param != '\0' ? param : NULL);
    JSON_LIT(o, ",\"code\":");
    json_out_cstring(o, code);
    JSON_LIT(o, "}}");
}

void oai_write_error(struct json_out *o, const struct err *e)
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

void oai_write_http_error(struct json_out *o, int status, const char *code, const char *message)
{
    const char *type = status == 401   ? "authentication_error"
                       : status == 403 ? "permission_error"
                       : status == 429 ? "rate_limit_error"
                       : status >= 500 ? "server_error"
                                       : "invalid_request_error";
    put_error(o, type, NULL, code, message);
}

/* ------------------------------------------------------------ other bodies */

void oai_write_model(struct json_out *o, const struct oai_model *m)
{
    JSON_LIT(o, "{\"id\":");
    json_out_cstring(o, m->id);
    JSON_LIT(o, ",\"object\":\"model\",\"created\":");
    json_out_int(o, m->created);
    JSON_LIT(o, ",\"owned_by\":");
    json_out_cstring(o, m->owned_by);
    JSON_LIT(o, ",\"root\":");
    json_out_cstring(o, m->root);
    JSON_LIT(o, ",\"parent\":null,\"max_model_len\":");
    json_out_uint(o, m->max_model_len);
    JSON_LIT(o, "}");
}

void oai_write_models(struct json_out *o, const struct oai_model *m, uint32_t n)
{
    JSON_LIT(o, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0)
            JSON_LIT(o, ",");
        oai_write_model(o, &m[i]);
    }
    JSON_LIT(o, "]}");
}

void oai_write_tokenized(struct json_out *o, const int32_t *ids, uint32_t n,
                         const struct oai_text *strs, uint32_t max_model_len)
{
    JSON_LIT(o, "{\"count\":");
    json_out_uint(o, n);
    JSON_LIT(o, ",\"max_model_len\":");
    json_out_uint(o, max_model_len);
    JSON_LIT(o, ",\"tokens\":");
    oai_put_ids(o, ids, n);
    JSON_LIT(o, ",\"token_strs\":");
    if (strs == NULL) {
        JSON_LIT(o, "null}");
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        json_out_raw(o, i == 0 ? "[" : ",", 1);
        json_out_string(o, strs[i].s == NULL ? "" : strs[i].s, strs[i].n);
    }
    if (n == 0)
        JSON_LIT(o, "[");
    JSON_LIT(o, "]}");
}

void oai_write_prompt(struct json_out *o, const char *text, size_t n)
{
    JSON_LIT(o, "{\"prompt\":\"");
    json_out_escaped(o, text, n);
    JSON_LIT(o, "\"}");
}
