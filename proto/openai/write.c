/* write.c: parts of replies that whole bodies and streams share (write.h).  Any
 * thread; a buffer belongs to one. */
#include "proto/openai/write.h"

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
