/* fields.h: what the files of the OpenAI request codec share: the state
 * of one parse, the rules, and the readers of fields with a shape of their own.
 * Private to proto/openai/.  Any thread; a parse belongs to one. */
#ifndef PROTO_OPENAI_FIELDS_H
#define PROTO_OPENAI_FIELDS_H

#include "proto/openai/request.h"

enum { OAI_MAX_RULES = 72, OAI_PATH_BYTES = 96 };

/* One body being read into *r. */
struct oai_parse {
    struct oai_request *r;
    const struct oai_defaults *d;
    bool chat_logprobs;   /* chat's boolean `logprobs`              */
    int32_t top_logprobs; /* chat; -1: not given                    */
    const int32_t *stop_token_ids;
    uint32_t n_stop_token_ids;
    int best_of;         /* 0: not given                           */
    bool stream_options; /* given                                  */
};

enum oai_rule_kind {
    RULE_BOOL,    /* bool                                                    */
    RULE_INT,     /* int32_t in [lo, hi]                                     */
    RULE_UINT,    /* uint32_t in [lo, hi]                                    */
    RULE_SEED,    /* uint64_t, any int64 (negative ones wrap)                */
    RULE_FLOAT,   /* float in [lo, hi], or (lo, hi] when `above`             */
    RULE_TEXT,    /* struct oai_text of lo..hi bytes                         */
    RULE_OBJECT,  /* an object for the template, as it is                    */
    RULE_READER,  /* `read` decides                                          */
    RULE_IGNORED, /* text of lo..hi bytes, checked and then ignored         */
    RULE_REFUSED  /* known, not served: only null, false, "", 0 and [] pass  */
};

struct oai_rule {
    const char *key;
    unsigned kinds; /* mask of 1u << enum oai_kind */
    enum oai_rule_kind kind;
    bool above; /* lo itself is excluded                                */
    bool required;
    double lo, hi;
    size_t hi_from; /* offset in oai_defaults of a uint32_t that replaces hi
                     * unless it is 0 there; 0: none                        */
    size_t at;      /* offset in oai_request                                */
    size_t given;   /* offset in oai_request of a bool set when given; 0: none */
    enum err_code (*read)(struct oai_parse *p, const struct json *v, struct err *e);
};

extern const struct oai_rule oai_rules[];
extern const size_t oai_n_rules;

/* Store v, which is not null, where the rule says. */
MUST_USE enum err_code oai_apply_rule(struct oai_parse *p, const struct oai_rule *rule,
                                      const struct json *v, struct err *e);

/* "path: found v, expected ..." as ERR_INVALID with that param; v NULL: nothing. */
enum err_code oai_wrong(struct err *e, const char *path, const struct json *v, const char *expected,
                        ...) PRINTF_LIKE(4, 5);

/* Refuse U+0000 in any string or key of v, a value for the template at path. */
MUST_USE enum err_code oai_check_text(const struct json *v, const char *path, struct err *e);

/* Integer value of v: written as one, or a real without fraction (16.0). */
bool oai_integer(const struct json *v, int64_t *out);

/* n zeroed elements owned by the request (n > 0); NULL after err_nomem. */
void *oai_array(struct oai_request *r, size_t n, size_t size, struct err *e);
void oai_arrays_free(struct oai_request *r);

/* Token ids of an array, each checked against the vocabulary; path names it. */
MUST_USE enum err_code oai_read_ids(struct oai_parse *p, const struct json *v, const char *path,
                                    const int32_t **out, uint32_t *n, struct err *e);

/* prompt.c */
enum err_code oai_read_prompt(struct oai_parse *p, const struct json *v, struct err *e);
enum err_code oai_read_tokens(struct oai_parse *p, const struct json *v, struct err *e);
enum err_code oai_read_stop(struct oai_parse *p, const struct json *v, struct err *e);
enum err_code oai_read_stop_ids(struct oai_parse *p, const struct json *v, struct err *e);
enum err_code oai_read_bias(struct oai_parse *p, const struct json *v, struct err *e);

/* messages.c */
enum err_code oai_read_messages(struct oai_parse *p, const struct json *v, struct err *e);
enum err_code oai_read_tools(struct oai_parse *p, const struct json *v, struct err *e);
enum err_code oai_read_tool_choice(struct oai_parse *p, const struct json *v, struct err *e);
enum err_code oai_read_documents(struct oai_parse *p, const struct json *v, struct err *e);

#endif
