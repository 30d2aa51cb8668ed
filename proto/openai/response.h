/* response.h: from plain structs to OpenAI's reply bodies.
 *
 * Everything is appended to a buffer; allocation failure is sticky there, so
 * callers check buf_check once.  No tokenizer: text, token bytes and
 * scores come in.  A log probability of -inf (or NaN) is written as -9999.0.
 * Pure functions of their arguments: any thread. */
#ifndef PROTO_OPENAI_RESPONSE_H
#define PROTO_OPENAI_RESPONSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"
#include "proto/text/json.h"
#include "proto/openai/request.h"

enum oai_finish {
    OAI_FINISH_NONE, /* null: more follows */
    OAI_FINISH_STOP,
    OAI_FINISH_LENGTH,
    OAI_FINISH_TOOL_CALLS
};

/* stop_reason: the stop string, or the stop token's id, or null. */
struct oai_stop_reason {
    struct oai_text text; /* s NULL: none */
    int32_t token;        /* -1: none     */
};
#define OAI_NO_STOP_REASON ((struct oai_stop_reason){ .token = -1 })

/* One of the likeliest tokens at a position. */
struct oai_alternative {
    int32_t id;
    float logprob;
    struct oai_text token; /* bytes the id stands for; need not be whole characters */
};

/* One token of a prompt or an output. */
struct oai_token {
    int32_t id;
    struct oai_text token; /* bytes, as above */
    bool scored;           /* false: no logprob exists (first prompt token): null */
    bool silent;           /* not in the text (skipped special): text_offset stays */
    float logprob;
    uint32_t n_top;
    const struct oai_alternative *top; /* [n_top] best first */
};

struct oai_logprobs {
    const struct oai_token *token; /* [n] */
    uint32_t n;
    uint32_t text_offset; /* completions: characters of text before token[0] */
};

/* text_offset after these tokens, for the next chunk. */
uint32_t oai_text_offset_after(const struct oai_logprobs *lp);

struct oai_tool_call {
    uint32_t index;       /* streams only                                        */
    struct oai_text id;   /* absent in later stream fragments                    */
    struct oai_text name; /* absent in later stream fragments                    */
    struct oai_text arguments;
};

struct oai_usage {
    uint64_t prompt_tokens;     /* once per prompt                               */
    uint64_t completion_tokens; /* summed over choices                           */
    uint64_t cached_tokens;
    uint64_t reasoning_tokens; /* completion_tokens_details only when not 0     */
};

/* Why prompt tokens were or were not found in the cache. */
struct oai_cache_report {
    uint64_t query_tokens, hit_tokens;
    uint64_t miss_never, miss_evicted, miss_salt, miss_granularity, miss_window;
};

/* What is the same in every part of one reply; borrowed. */
struct oai_identity {
    enum oai_kind kind; /* OAI_COMPLETION or OAI_CHAT */
    const char *id;     /* "cmpl-..." or "chatcmpl-..." */
    const char *model;
    int64_t created; /* Unix seconds */
};

struct oai_choice {
    uint32_t index;
    struct oai_text text; /* s NULL: "" (chat with tool calls: null) */
    enum oai_finish finish;
    struct oai_stop_reason stop_reason;
    const struct oai_logprobs *logprobs;        /* NULL: null            */
    const struct oai_logprobs *prompt_logprobs; /* NULL: key left out    */
    const int32_t *token_ids;                   /* NULL: key left out    */
    uint32_t n_token_ids;
    const int32_t *prompt_token_ids; /* NULL: key left out    */
    uint32_t n_prompt_token_ids;
    const struct oai_tool_call *tool_calls;
    uint32_t n_tool_calls;
};

/* A whole, unstreamed reply.  cache may be NULL. */
void oai_write_reply(struct buf *o, const struct oai_identity *id, const struct oai_choice *choice,
                     uint32_t n_choices, const struct oai_usage *usage,
                     const struct oai_cache_report *cache);

/* A stream's precomputed texts.  Immutable after init; any thread. */
struct oai_stream {
    enum oai_kind kind;
    bool include_usage;         /* chunks carry "usage":null, or delta's usage         */
    char *head;                 /* owned: event up to and with `"choices":[{"index":`  */
    size_t n_head, n_head_bare; /* bare: up to and with `"choices":[`          */
};
MUST_USE enum err_code oai_stream_init(struct oai_stream *s, const struct oai_identity *id,
                                       bool include_usage, struct err *e);
void oai_stream_fini(struct oai_stream *s);

/* One event of a choice.  Text must end on a whole character. */
struct oai_delta {
    uint32_t index;
    struct oai_text text;                /* s NULL: none (chat: delta {})      */
    const struct oai_logprobs *logprobs; /* NULL: null                         */
    enum oai_finish finish;
    struct oai_stop_reason stop_reason; /* written with a finish only         */
    const int32_t *token_ids;           /* NULL: key left out                 */
    uint32_t n_token_ids;
    const int32_t *prompt_token_ids; /* first event only; NULL: left out   */
    uint32_t n_prompt_token_ids;
    const struct oai_tool_call *tool; /* chat: a tool call's fragment       */
    const struct oai_usage *usage;    /* continuous_usage; else NULL        */
};
/* Chat: the first event of choice `index`, role and empty content.
 * prompt_token_ids may be NULL. */
void oai_stream_role(struct buf *o, const struct oai_stream *s, uint32_t index,
                     const int32_t *prompt_token_ids, uint32_t n_prompt_token_ids);
/* Completion text, chat content, tool fragment or finish. */
void oai_stream_delta(struct buf *o, const struct oai_stream *s, const struct oai_delta *d);
/* `"choices":[]` with usage, cache or both (NULL: not asked for); the last event
 * before [DONE]. */
void oai_stream_usage(struct buf *o, const struct oai_stream *s, const struct oai_usage *usage,
                      const struct oai_cache_report *cache);
/* Failure after the 200: an error event and [DONE]. */
void oai_stream_error(struct buf *o, const struct err *e);

/* {"error":{message,type,param,code}}; type and code by e->code. */
void oai_write_error(struct buf *o, const struct err *e);
/* The same with a status of HTTP's own (401, 405, 408, 431, ...); code may be
 * NULL. */
void oai_write_http_error(struct buf *o, int status, const char *code, const char *message);

struct oai_model {
    const char *id, *owned_by, *root; /* root NULL: null */
    int64_t created;
    uint32_t max_model_len;
};
void oai_write_model(struct buf *o, const struct oai_model *m);
void oai_write_models(struct buf *o, const struct oai_model *m, uint32_t n);

/* strs NULL: null. */
void oai_write_tokenized(struct buf *o, const int32_t *ids, uint32_t n, const struct oai_text *strs,
                         uint32_t max_model_len);
/* {"prompt": text}: detokenize and apply-template. */
void oai_write_prompt(struct buf *o, const char *text, size_t n);

#endif
