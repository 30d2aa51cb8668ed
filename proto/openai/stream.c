/* stream.c: the events of a streamed reply.  What all events of one
 * stream share is formatted once, in oai_stream_init; an event is then a few
 * copies and one escaped string.  Any thread; a buffer belongs to one. */
#include <stdlib.h>

#include "proto/openai/write.h"
#include "proto/openai/sse.h"

enum err_code oai_stream_init(struct oai_stream *s, const struct oai_identity *id,
                              bool include_usage, struct err *e)
{
    struct buf o = { 0 };
    sse_begin(&o);
    oai_put_identity(&o, id, id->kind == OAI_CHAT ? "chat.completion.chunk" : "text_completion");
    BUF_LIT(&o, ",\"choices\":[");
    size_t bare = o.n;
    BUF_LIT(&o, "{\"index\":");
    enum err_code rc = buf_check(&o, e);
    if (rc) {
        buf_fini(&o);
        return rc;
    }
    *s = (struct oai_stream){ .kind = id->kind,
                              .include_usage = include_usage,
                              .head = o.p,
                              .n_head = o.n,
                              .n_head_bare = bare };
    return ERR_OK;
}

void oai_stream_fini(struct oai_stream *s)
{
    free(s->head);
    *s = (struct oai_stream){ 0 };
}

/* After the choice: the usage key where the client asked, and the framing. */
static void end_event(struct buf *o, const struct oai_stream *s, const struct oai_usage *usage)
{
    if (usage != NULL) {
        BUF_LIT(o, ",\"usage\":");
        oai_put_usage(o, usage);
    } else if (s->include_usage) {
        BUF_LIT(o, ",\"usage\":null");
    }
    BUF_LIT(o, "}" SSE_END);
}

static void begin_choice(struct buf *o, const struct oai_stream *s, uint32_t index)
{
    buf_put(o, s->head, s->n_head);
    json_put_uint(o, index);
}

static void put_prompt_ids(struct buf *o, const int32_t *ids, uint32_t n)
{
    if (ids == NULL)
        return;
    BUF_LIT(o, ",\"prompt_token_ids\":");
    oai_put_ids(o, ids, n);
}

void oai_stream_role(struct buf *o, const struct oai_stream *s, uint32_t index,
                     const int32_t *prompt_token_ids, uint32_t n_prompt_token_ids)
{
    begin_choice(o, s, index);
    BUF_LIT(o, ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
               "\"finish_reason\":null}]");
    put_prompt_ids(o, prompt_token_ids, n_prompt_token_ids);
    end_event(o, s, NULL);
}

static void put_chat_delta(struct buf *o, const struct oai_delta *d)
{
    if (d->tool != NULL) {
        BUF_LIT(o, ",\"delta\":{\"tool_calls\":[");
        oai_put_tool_call(o, d->tool, true);
        BUF_LIT(o, "]}");
    } else if (d->text.s != NULL) {
        BUF_LIT(o, ",\"delta\":{\"content\":\"");
        json_put_escaped(o, d->text.s, d->text.n);
        BUF_LIT(o, "\"}");
    } else {
        BUF_LIT(o, ",\"delta\":{}");
    }
}

void oai_stream_delta(struct buf *o, const struct oai_stream *s, const struct oai_delta *d)
{
    bool chat = s->kind == OAI_CHAT;
    begin_choice(o, s, d->index);
    if (chat) {
        put_chat_delta(o, d);
    } else {
        BUF_LIT(o, ",\"text\":\"");
        json_put_escaped(o, d->text.s, d->text.n);
        BUF_LIT(o, "\"");
    }
    if (d->logprobs == NULL && d->finish == OAI_FINISH_NONE) {
        BUF_LIT(o, ",\"logprobs\":null,\"finish_reason\":null");
    } else {
        BUF_LIT(o, ",\"logprobs\":");
        oai_put_logprobs(o, s->kind, d->logprobs);
        BUF_LIT(o, ",\"finish_reason\":");
        oai_put_finish(o, d->finish);
    }
    if (d->finish != OAI_FINISH_NONE) {
        BUF_LIT(o, ",\"stop_reason\":");
        oai_put_stop_reason(o, d->stop_reason);
    } else if (!chat) {
        BUF_LIT(o, ",\"stop_reason\":null");
    }
    if (d->token_ids != NULL) {
        BUF_LIT(o, ",\"token_ids\":");
        oai_put_ids(o, d->token_ids, d->n_token_ids);
    }
    if (!chat)
        put_prompt_ids(o, d->prompt_token_ids, d->n_prompt_token_ids);
    BUF_LIT(o, "}]");
    if (chat)
        put_prompt_ids(o, d->prompt_token_ids, d->n_prompt_token_ids);
    end_event(o, s, d->usage);
}

void oai_stream_usage(struct buf *o, const struct oai_stream *s, const struct oai_usage *usage,
                      const struct oai_cache_report *cache)
{
    buf_put(o, s->head, s->n_head_bare);
    BUF_LIT(o, "]");
    if (usage != NULL) {
        BUF_LIT(o, ",\"usage\":");
        oai_put_usage(o, usage);
    }
    if (cache != NULL)
        oai_put_cache(o, cache);
    BUF_LIT(o, "}" SSE_END);
}

void oai_stream_error(struct buf *o, const struct err *e)
{
    sse_begin(o);
    oai_write_error(o, e);
    sse_end(o);
    sse_done(o);
}
