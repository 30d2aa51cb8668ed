/* request.h: from the JSON body of a request to a native request.
 *
 * One rule table (rules.c) gives each field its key, kind, range and
 * destination.  An optional field that is null has its default; unknown keys
 * are ignored; any wrong type or range is ERR_INVALID whose param is the
 * field ("stream_options.include_usage", "messages[2].content") and whose
 * message has found and expected.  Every bound is checked before memory is
 * spent on what it bounds.
 *
 * Pure functions of their arguments: any thread.  A parsed request is
 * immutable and owns everything it points to. */
#ifndef PROTO_OPENAI_REQUEST_H
#define PROTO_OPENAI_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"
#include "proto/text/json.h"
#include "proto/plan/sample_params.h"

enum oai_kind {
    OAI_COMPLETION, /* POST /v1/completions                                    */
    OAI_CHAT,       /* POST /v1/chat/completions                               */
    OAI_TOKENIZE,   /* POST /tokenize: prompt (one string) or messages         */
    OAI_DETOKENIZE, /* POST /detokenize: tokens                                */
    OAI_TEMPLATE,   /* POST /apply-template: messages                          */
    OAI_KINDS
};

/* What the daemon decides: defaults of absent fields and limits.  Everything
 * is borrowed for the call of oai_request_parse. */
struct oai_defaults {
    /* Defaults; generation_config.json's where the model has them. */
    float temperature, top_p, min_p, repetition_penalty;
    int32_t top_k;
    uint32_t max_tokens;      /* completions: 16                              */
    uint32_t max_tokens_chat; /* chat: OAI_TOKENS_TO_LIMIT                    */
    /* EOS ids, put before the client's stop_token_ids unless ignore_eos. */
    const int32_t *eos;
    uint32_t n_eos;
    /* Limits. */
    uint32_t vocab_size;     /* ids are 0..vocab_size-1; 0: no check         */
    uint32_t max_model_len;  /* prompt + output; 0: no check                 */
    uint32_t max_logprobs;   /* 20 */
    uint32_t max_n;          /* 128 */
    uint32_t max_prompts;    /* 1024 */
    uint32_t max_choices;    /* prompts x n; 1024 */
    uint32_t max_stops;      /* stop strings; 16 */
    uint32_t max_stop_bytes; /* one of them; 1024 */
    uint32_t max_stop_ids;   /* 128 */
    uint32_t max_bias;       /* logit_bias entries; 1024 */
    uint32_t max_messages;   /* 4096 */
    uint32_t max_tools;      /* 1024 */
    uint32_t max_values;     /* JSON values in a body; 2097152 */
    /* The chat template iterates over content parts: keep arrays as they are.
     * Otherwise text parts are joined by line breaks into one string. */
    bool template_takes_parts;
};

#define OAI_TOKENS_TO_LIMIT UINT32_MAX /* max_tokens: up to the context's end */

/* Fill with the values stated above: OpenAI's defaults, no model's. */
void oai_defaults_init(struct oai_defaults *d);

/* A counted string; may contain NULs; NUL-terminated too.  s NULL: absent. */
struct oai_text {
    const char *s;
    size_t n;
};

/* One prompt: text, or ids when text.s is NULL.  Ids are in range; a text may
 * be empty, an id list is not. */
struct oai_prompt {
    struct oai_text text;
    const int32_t *ids;
    uint32_t n_ids;
};

enum oai_tool_choice { OAI_TOOL_AUTO, OAI_TOOL_NONE, OAI_TOOL_REQUIRED, OAI_TOOL_NAMED };

struct oai_request {
    enum oai_kind kind;
    struct oai_text model;      /* absent: the served model */
    struct oai_text cache_salt; /* absent or not empty */

    /* Completion, tokenize. */
    const struct oai_prompt *prompt;
    uint32_t n_prompts; /* 0 when messages are given */
    bool echo;

    /* Detokenize. */
    const int32_t *tokens;
    uint32_t n_tokens;

    /* Chat, template, tokenize: for model/chat/template.h; NULL when absent.  No
     * string holds U+0000.  In messages, tool_calls' arguments are objects, and
     * text parts are joined unless the template takes parts. */
    const struct json *messages, *tools, *documents, *chat_template_kwargs;
    enum oai_tool_choice tool_choice; /* default auto with tools, else none */
    struct oai_text tool_name;        /* OAI_TOOL_NAMED */
    bool parallel_tool_calls;         /* default true */
    bool add_generation_prompt;       /* default: not continue_final_message */
    bool continue_final_message;

    /* Generation.  params.seed holds the client's seed when has_seed, else 0;
     * params.stop_ids are defaults' EOS ids (unless ignore_eos) followed by
     * stop_token_ids.  n_logprobs: -1 none, else alternatives per token. */
    struct sample_params params;
    bool has_seed;
    uint32_t n;
    uint32_t max_tokens;         /* 0 with echo or prompt_logprobs: prompt only   */
    bool has_max_tokens;         /* the client gave it                            */
    int32_t prompt_logprobs;     /* -1: none                                      */
    const struct oai_text *stop; /* none is empty */
    uint32_t n_stop;
    bool ignore_eos, include_stop_str_in_output;
    int32_t priority;               /* lower first; default 0 */
    int32_t truncate_prompt_tokens; /* keep the last so many; -1: to the context; 0: off */

    /* Text and reply. */
    bool add_special_tokens;  /* default true; chat: false */
    bool skip_special_tokens; /* default true */
    bool return_token_ids, return_token_strs;
    bool stream, include_usage, continuous_usage;
    bool cache_report; /* key `cache`: the reply carries a cache object */

    /* What the client gave itself, where that changes another default. */
    bool has_generation_prompt, has_add_special_tokens, has_tool_choice;

    struct json_doc doc; /* the body; every oai_text and value points into it */
    void *arrays;        /* owned blocks behind the arrays above */
};

/* Parse body[0..n) (borrowed for the call).  On error *out needs no fini.
 * ERR_INVALID, ERR_LIMIT (a prompt of ids longer than max_model_len, both
 * numbers in the message) or ERR_NOMEM. */
MUST_USE enum err_code oai_request_parse(struct oai_request *out, enum oai_kind kind,
                                         const char *body, size_t n, const struct oai_defaults *d,
                                         struct err *e);
void oai_request_fini(struct oai_request *r);

#endif
