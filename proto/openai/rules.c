/* rules.c: the rule table of the request codec, and how a rule of each
 * kind reads its value.  Pure functions; any thread. */
#include <float.h>
#include <math.h>

#include "proto/openai/fields.h"

#define COMPLETION (1u << OAI_COMPLETION)
#define CHAT       (1u << OAI_CHAT)
#define GENERATE   (COMPLETION | CHAT)
#define TOKENIZE   (1u << OAI_TOKENIZE)
#define DETOKENIZE (1u << OAI_DETOKENIZE)
#define TEMPLATE   (1u << OAI_TEMPLATE)
#define TALK       (CHAT | TOKENIZE | TEMPLATE) /* may carry messages */
#define ANY        (GENERATE | TOKENIZE | DETOKENIZE | TEMPLATE)

/* --------------------------------------------------- fields of own shape */

static enum err_code read_logprobs(struct oai_parse *p, const struct json *v, struct err *e)
{
    if (p->r->kind == OAI_CHAT) {
        if (v->kind != JSON_BOOL)
            return oai_wrong(e, "logprobs", v, "true or false");
        p->chat_logprobs = v->u.boolean;
        return ERR_OK;
    }
    int64_t k;
    if (!oai_integer(v, &k) || k < 0 || k > p->d->max_logprobs)
        return oai_wrong(e, "logprobs", v, "an integer from 0 to %u", p->d->max_logprobs);
    p->r->params.n_logprobs = (int32_t)k;
    return ERR_OK;
}

static enum err_code read_top_logprobs(struct oai_parse *p, const struct json *v, struct err *e)
{
    int64_t k;
    if (!oai_integer(v, &k) || k < 0 || k > p->d->max_logprobs)
        return oai_wrong(e, "top_logprobs", v, "an integer from 0 to %u", p->d->max_logprobs);
    p->top_logprobs = (int32_t)k;
    return ERR_OK;
}

static enum err_code read_best_of(struct oai_parse *p, const struct json *v, struct err *e)
{
    int64_t k;
    if (!oai_integer(v, &k) || k < 1 || k > p->d->max_n)
        return oai_wrong(e, "best_of", v, "an integer from 1 to %u", p->d->max_n);
    p->best_of = (int)k;
    return ERR_OK;
}

static enum err_code read_truncate(struct oai_parse *p, const struct json *v, struct err *e)
{
    uint32_t most = p->d->max_model_len != 0 ? p->d->max_model_len : INT32_MAX;
    int64_t k;
    if (!oai_integer(v, &k) || (k != -1 && (k < 1 || k > most)))
        return oai_wrong(e, "truncate_prompt_tokens", v, "-1 or an integer from 1 to %u", most);
    p->r->truncate_prompt_tokens = (int32_t)k;
    return ERR_OK;
}

static enum err_code read_stream_options(struct oai_parse *p, const struct json *v, struct err *e)
{
    static const struct {
        const char *key, *path;
        size_t at;
    } options[] = {
        { "include_usage", "stream_options.include_usage",
          offsetof(struct oai_request, include_usage) },
        { "continuous_usage_stats", "stream_options.continuous_usage_stats",
          offsetof(struct oai_request, continuous_usage) },
    };
    if (v->kind != JSON_OBJECT)
        return oai_wrong(e, "stream_options", v, "an object");
    p->stream_options = true;
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        const struct json *o = json_get(v, options[i].key);
        if (o == NULL || o->kind == JSON_NULL)
            continue;
        if (o->kind != JSON_BOOL)
            return oai_wrong(e, options[i].path, o, "true or false");
        memcpy((char *)p->r + options[i].at, &o->u.boolean, sizeof(bool));
    }
    return ERR_OK;
}

static enum err_code read_response_format(struct oai_parse *p, const struct json *v, struct err *e)
{
    (void)p;
    if (v->kind != JSON_OBJECT)
        return oai_wrong(e, "response_format", v, "an object with a type");
    const struct json *type = json_get(v, "type");
    if (type == NULL)
        return oai_wrong(e, "response_format.type", type, "\"text\"");
    if (json_string_is(type, "json_object") || json_string_is(type, "json_schema"))
        return err_set_param(e, ERR_INVALID, "response_format",
                             "response_format: type \"%s\" is not supported yet, expected "
                             "\"text\"",
                             type->u.string);
    if (!json_string_is(type, "text"))
        return oai_wrong(e, "response_format.type", type, "\"text\"");
    return ERR_OK;
}

/* -------------------------------------------------------------- the table */

#define AT(field)             .at = offsetof(struct oai_request, field)
#define PARAM(field)          .at = offsetof(struct oai_request, params.field)
#define GIVEN(field)          .given = offsetof(struct oai_request, field)
#define UP_TO(limit)          .hi_from = offsetof(struct oai_defaults, limit)
#define BOOL(k, mask, field)  { .key = k, .kinds = mask, .kind = RULE_BOOL, AT(field) }
#define READ(k, mask, reader) { .key = k, .kinds = mask, .kind = RULE_READER, .read = reader }
#define REFUSE(k, mask)       { .key = k, .kinds = mask, .kind = RULE_REFUSED }
#define IGNORE(k, mask, a, b) { .key = k, .kinds = mask, .kind = RULE_IGNORED, .lo = a, .hi = b }
#define FLOAT(k, a, b, field)                                                                      \
    { .key = k, .kinds = GENERATE, .kind = RULE_FLOAT, .lo = a, .hi = b, PARAM(field) }
#define FLOAT_ABOVE(k, a, b, field)                                                                \
    { .key = k,                                                                                    \
      .kinds = GENERATE,                                                                           \
      .kind = RULE_FLOAT,                                                                          \
      .above = true,                                                                               \
      .lo = a,                                                                                     \
      .hi = b,                                                                                     \
      PARAM(field) }
#define TEXT(k, mask, a, b, field)                                                                 \
    { .key = k, .kinds = mask, .kind = RULE_TEXT, .lo = a, .hi = b, AT(field) }

/* Applied in this order, whatever the order in the body. */
const struct oai_rule oai_rules[] = {
    TEXT("model", ANY, 0, 1024, model),
    IGNORE("user", GENERATE, 0, 4096),
    TEXT("cache_salt", GENERATE, 1, 4096, cache_salt),

    { .key = "truncate_prompt_tokens",
      .kinds = GENERATE,
      .kind = RULE_READER,
      .read = read_truncate },
    { .key = "prompt",
      .kinds = COMPLETION,
      .kind = RULE_READER,
      .required = true,
      .read = oai_read_prompt },
    READ("prompt", TOKENIZE, oai_read_prompt),
    { .key = "tokens",
      .kinds = DETOKENIZE,
      .kind = RULE_READER,
      .required = true,
      .read = oai_read_tokens },
    { .key = "messages",
      .kinds = CHAT | TEMPLATE,
      .kind = RULE_READER,
      .required = true,
      .read = oai_read_messages },
    READ("messages", TOKENIZE, oai_read_messages),
    READ("tools", TALK, oai_read_tools),
    READ("tool_choice", CHAT, oai_read_tool_choice),
    BOOL("parallel_tool_calls", CHAT, parallel_tool_calls),
    READ("documents", TALK, oai_read_documents),
    { .key = "chat_template_kwargs", .kinds = TALK, .kind = RULE_OBJECT, AT(chat_template_kwargs) },
    { .key = "add_generation_prompt",
      .kinds = TALK,
      .kind = RULE_BOOL,
      AT(add_generation_prompt),
      GIVEN(has_generation_prompt) },
    BOOL("continue_final_message", TALK, continue_final_message),
    { .key = "add_special_tokens",
      .kinds = GENERATE | TOKENIZE,
      .kind = RULE_BOOL,
      AT(add_special_tokens),
      GIVEN(has_add_special_tokens) },

    { .key = "max_tokens",
      .kinds = GENERATE,
      .kind = RULE_UINT,
      .lo = 0,
      .hi = INT32_MAX,
      UP_TO(max_model_len),
      AT(max_tokens),
      GIVEN(has_max_tokens) },
    { .key = "max_completion_tokens",
      .kinds = GENERATE,
      .kind = RULE_UINT,
      .lo = 0,
      .hi = INT32_MAX,
      UP_TO(max_model_len),
      AT(max_tokens),
      GIVEN(has_max_tokens) },
    { .key = "min_tokens",
      .kinds = GENERATE,
      .kind = RULE_UINT,
      .lo = 0,
      .hi = INT32_MAX,
      UP_TO(max_model_len),
      PARAM(min_tokens) },
    { .key = "n", .kinds = GENERATE, .kind = RULE_UINT, .lo = 1, .hi = 128, UP_TO(max_n), AT(n) },
    READ("best_of", GENERATE, read_best_of),
    FLOAT("temperature", 0, 2, temperature),
    FLOAT_ABOVE("top_p", 0, 1, top_p),
    { .key = "top_k",
      .kinds = GENERATE,
      .kind = RULE_INT,
      .lo = -1,
      .hi = INT32_MAX,
      PARAM(top_k) },
    FLOAT("min_p", 0, 1, min_p),
    FLOAT("presence_penalty", -2, 2, presence_penalty),
    FLOAT("frequency_penalty", -2, 2, frequency_penalty),
    FLOAT_ABOVE("repetition_penalty", 0, 100, repetition_penalty),
    { .key = "seed", .kinds = GENERATE, .kind = RULE_SEED, PARAM(seed), GIVEN(has_seed) },
    READ("logit_bias", GENERATE, oai_read_bias),
    READ("stop", GENERATE, oai_read_stop),
    READ("stop_token_ids", GENERATE, oai_read_stop_ids),
    BOOL("ignore_eos", GENERATE, ignore_eos),
    BOOL("include_stop_str_in_output", GENERATE, include_stop_str_in_output),
    { .key = "priority",
      .kinds = GENERATE,
      .kind = RULE_INT,
      .lo = INT32_MIN,
      .hi = INT32_MAX,
      AT(priority) },

    READ("logprobs", GENERATE, read_logprobs),
    READ("top_logprobs", CHAT, read_top_logprobs),
    { .key = "prompt_logprobs",
      .kinds = GENERATE,
      .kind = RULE_INT,
      .lo = 0,
      .hi = 20,
      UP_TO(max_logprobs),
      AT(prompt_logprobs) },
    BOOL("echo", COMPLETION, echo),
    BOOL("skip_special_tokens", GENERATE | DETOKENIZE, skip_special_tokens),
    BOOL("return_token_ids", GENERATE, return_token_ids),
    BOOL("return_token_strs", TOKENIZE, return_token_strs),
    BOOL("stream", GENERATE, stream),
    READ("stream_options", GENERATE, read_stream_options),
    BOOL("cache", GENERATE, cache_report),

    /* Known elsewhere, and ignoring them would give a wrong answer. */
    READ("response_format", GENERATE, read_response_format),
    REFUSE("suffix", COMPLETION),
    REFUSE("prompt_embeds", COMPLETION),
    REFUSE("use_beam_search", GENERATE),
    REFUSE("chat_template", TALK),
    REFUSE("functions", CHAT),
    REFUSE("function_call", CHAT),
    REFUSE("audio", CHAT),
    REFUSE("structured_outputs", GENERATE),
    REFUSE("guided_json", GENERATE),
    REFUSE("guided_regex", GENERATE),
    REFUSE("guided_choice", GENERATE),
    REFUSE("guided_grammar", GENERATE),
};
const size_t oai_n_rules = sizeof oai_rules / sizeof *oai_rules;
_Static_assert(sizeof oai_rules / sizeof *oai_rules <= OAI_MAX_RULES, "raise OAI_MAX_RULES");

/* -------------------------------------------------------- kinds of rules */

static double upper_bound(const struct oai_parse *p, const struct oai_rule *rule)
{
    uint32_t limit = 0;
    if (rule->hi_from != 0)
        memcpy(&limit, (const char *)p->d + rule->hi_from, sizeof limit);
    return limit != 0 && limit <= INT32_MAX ? limit : rule->hi;
}

static enum err_code apply_integer(struct oai_parse *p, const struct oai_rule *rule,
                                   const struct json *v, struct err *e)
{
    double hi = upper_bound(p, rule);
    int64_t i;
    if (!oai_integer(v, &i) || (double)i < rule->lo || (double)i > hi)
        return oai_wrong(e, rule->key, v, "an integer from %.0f to %.0f", rule->lo, hi);
    int32_t as_int = (int32_t)i;
    uint32_t as_uint = (uint32_t)i;
    memcpy((char *)p->r + rule->at, rule->kind == RULE_INT ? (void *)&as_int : (void *)&as_uint,
           sizeof as_int);
    return ERR_OK;
}

static enum err_code apply_seed(struct oai_parse *p, const struct oai_rule *rule,
                                const struct json *v, struct err *e)
{
    int64_t i;
    if (!oai_integer(v, &i))
        return oai_wrong(e, rule->key, v, "a 64-bit integer");
    uint64_t seed = (uint64_t)i;
    memcpy((char *)p->r + rule->at, &seed, sizeof seed);
    return ERR_OK;
}

static enum err_code apply_float(struct oai_parse *p, const struct oai_rule *rule,
                                 const struct json *v, struct err *e)
{
    bool number = json_is_number(v);
    double x = number ? json_number(v) : 0;
    if (!number || x > rule->hi || x < rule->lo || (rule->above && x == rule->lo))
        return oai_wrong(e, rule->key, v,
                         rule->above ? "a number above %g, up to %g" : "a number from %g to %g",
                         rule->lo, rule->hi);
    float f = (float)x;
    if (rule->above && !((double)f > rule->lo))
        f = FLT_MIN; /* too small for a float, but not zero */
    memcpy((char *)p->r + rule->at, &f, sizeof f);
    return ERR_OK;
}

static enum err_code apply_text(struct oai_parse *p, const struct oai_rule *rule,
                                const struct json *v, struct err *e)
{
    if (v->kind != JSON_STRING || v->n < rule->lo || v->n > rule->hi)
        return oai_wrong(e, rule->key, v, "a string of %.0f to %.0f bytes", rule->lo, rule->hi);
    struct oai_text t = { v->u.string, v->n };
    if (rule->kind == RULE_TEXT)
        memcpy((char *)p->r + rule->at, &t, sizeof t);
    return ERR_OK;
}

static enum err_code apply_object(struct oai_parse *p, const struct oai_rule *rule,
                                  const struct json *v, struct err *e)
{
    if (v->kind != JSON_OBJECT)
        return oai_wrong(e, rule->key, v, "an object");
    enum err_code rc = oai_check_text(v, rule->key, e);
    if (!rc)
        memcpy((char *)p->r + rule->at, &v, sizeof v);
    return rc;
}

static enum err_code apply_refused(const struct oai_rule *rule, const struct json *v, struct err *e)
{
    bool harmless = (v->kind == JSON_BOOL && !v->u.boolean) ||
                    (v->kind == JSON_INT && v->u.integer == 0) ||
                    ((v->kind == JSON_STRING || v->kind == JSON_ARRAY) && v->n == 0);
    if (harmless)
        return ERR_OK;
    char shown[JSON_SHOW_BYTES];
    return err_set_param(e, ERR_INVALID, rule->key, "%s: found %s, but it is not supported here",
                         rule->key, json_show(v, shown));
}

enum err_code oai_apply_rule(struct oai_parse *p, const struct oai_rule *rule, const struct json *v,
                             struct err *e)
{
    if (rule->given != 0)
        memcpy((char *)p->r + rule->given, &(bool){ true }, sizeof(bool));
    switch (rule->kind) {
    case RULE_BOOL:
        if (v->kind != JSON_BOOL)
            return oai_wrong(e, rule->key, v, "true or false");
        memcpy((char *)p->r + rule->at, &v->u.boolean, sizeof(bool));
        return ERR_OK;
    case RULE_INT:
    case RULE_UINT:
        return apply_integer(p, rule, v, e);
    case RULE_SEED:
        return apply_seed(p, rule, v, e);
    case RULE_FLOAT:
        return apply_float(p, rule, v, e);
    case RULE_TEXT:
    case RULE_IGNORED:
        return apply_text(p, rule, v, e);
    case RULE_OBJECT:
        return apply_object(p, rule, v, e);
    case RULE_READER:
        return rule->read(p, v, e);
    case RULE_REFUSED:
        break;
    }
    return apply_refused(rule, v, e);
}
