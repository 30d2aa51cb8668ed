/* request.c: parse a request body: JSON, then every rule in the table's
 * order, then what one field demands of another.  Owns nothing; any thread. */
#include "proto/openai/request.h"

#include "proto/openai/fields.h"

void oai_defaults_init(struct oai_defaults *d)
{
    *d = (struct oai_defaults){
        .temperature = 1,
        .top_p = 1,
        .repetition_penalty = 1,
        .max_tokens = 16,
        .max_tokens_chat = OAI_TOKENS_TO_LIMIT,
        .max_logprobs = 20,
        .max_n = 128,
        .max_prompts = 1024,
        .max_choices = 1024,
        .max_stops = 16,
        .max_stop_bytes = 1024,
        .max_stop_ids = 128,
        .max_bias = 1024,
        .max_messages = 4096,
        .max_tools = 1024,
        .max_values = 2097152,
    };
}

void oai_request_fini(struct oai_request *r)
{
    oai_arrays_free(r);
    json_doc_fini(&r->doc);
    *r = (struct oai_request){ 0 };
}

/* ------------------------------------------------------------------- fields */

static void set_defaults(struct oai_request *r, enum oai_kind kind, const struct oai_defaults *d)
{
    r->kind = kind;
    r->parallel_tool_calls = true;
    r->n = 1;
    r->max_tokens = kind == OAI_CHAT ? d->max_tokens_chat : d->max_tokens;
    r->prompt_logprobs = -1;
    r->skip_special_tokens = kind != OAI_DETOKENIZE;
    r->params = (struct sample_params){
        .temperature = d->temperature,
        .top_p = d->top_p,
        .min_p = d->min_p,
        .top_k = d->top_k,
        .repetition_penalty = d->repetition_penalty,
        .n_logprobs = -1,
    };
}

static const struct oai_rule *find_rule(const struct json *key, enum oai_kind kind)
{
    for (size_t i = 0; i < oai_n_rules; i++) {
        const struct oai_rule *rule = &oai_rules[i];
        if ((rule->kinds >> kind & 1) != 0 && rule->key[0] == key->u.string[0] &&
            json_string_is(key, rule->key))
            return rule;
    }
    return NULL;
}

/* Apply the table to the body; null counts as absent. */
static enum err_code read_fields(struct oai_parse *p, const struct json *body, struct err *e)
{
    const struct json *found[OAI_MAX_RULES] = { NULL };
    const struct json *key = json_first(body);
    for (uint32_t i = 0; i < body->n; i++, key = json_next(key + 1)) {
        const struct oai_rule *rule = find_rule(key, p->r->kind);
        if (rule != NULL && key[1].kind != JSON_NULL)
            found[rule - oai_rules] = key + 1;
    }
    for (size_t i = 0; i < oai_n_rules; i++) {
        const struct oai_rule *rule = &oai_rules[i];
        if ((rule->kinds >> p->r->kind & 1) == 0)
            continue;
        if (found[i] != NULL) {
            enum err_code rc = oai_apply_rule(p, rule, found[i], e);
            if (rc)
                return rc;
        } else if (rule->required) {
            return err_set_param(e, ERR_INVALID, rule->key,
                                 "%s: missing, expected in every "
                                 "request of this kind",
                                 rule->key);
        }
    }
    return ERR_OK;
}

/* ------------------------------------------------------------ cross checks */

static enum err_code check_counts(const struct oai_parse *p, struct err *e)
{
    const struct oai_request *r = p->r;
    if (p->best_of > 1 && (uint32_t)p->best_of != r->n)
        return err_set_param(e, ERR_INVALID, "best_of",
                             "best_of: found %d, expected n (%u); picking among more is not "
                             "supported",
                             p->best_of, r->n);
    if ((uint64_t)r->n_prompts * r->n > p->d->max_choices)
        return err_set_param(e, ERR_INVALID, "n",
                             "n: found %u for each of %u prompts, expected at most %u choices "
                             "in all",
                             r->n, r->n_prompts, p->d->max_choices);
    if (r->max_tokens == 0 && !r->echo && r->prompt_logprobs < 0)
        return err_set_param(e, ERR_INVALID, "max_tokens",
                             "max_tokens: found 0, expected at least 1 without echo or "
                             "prompt_logprobs");
    if (r->params.min_tokens > r->max_tokens)
        return err_set_param(e, ERR_INVALID, "min_tokens",
                             "min_tokens: found %u, expected at most max_tokens (%u)",
                             r->params.min_tokens, r->max_tokens);
    return ERR_OK;
}

static enum err_code check_streaming(const struct oai_parse *p, struct err *e)
{
    const struct oai_request *r = p->r;
    if (p->stream_options && !r->stream)
        return err_set_param(e, ERR_INVALID, "stream_options",
                             "stream_options: found without stream, expected stream: true");
    if (r->stream && r->prompt_logprobs >= 0)
        return err_set_param(e, ERR_INVALID, "prompt_logprobs",
                             "prompt_logprobs: found %d with stream, expected stream: false",
                             r->prompt_logprobs);
    return ERR_OK;
}

static enum err_code settle_logprobs(struct oai_parse *p, struct err *e)
{
    if (p->r->kind != OAI_CHAT)
        return ERR_OK;
    if (p->top_logprobs > 0 && !p->chat_logprobs)
        return err_set_param(e, ERR_INVALID, "top_logprobs",
                             "top_logprobs: found %d without logprobs, expected logprobs: true",
                             p->top_logprobs);
    if (p->chat_logprobs)
        p->r->params.n_logprobs = p->top_logprobs < 0 ? 0 : p->top_logprobs;
    return ERR_OK;
}

/* params.stop_ids: the model's ends, then the client's. */
static enum err_code settle_stop_ids(struct oai_parse *p, struct err *e)
{
    uint32_t n_eos = p->r->ignore_eos ? 0 : p->d->n_eos, n = n_eos + p->n_stop_token_ids;
    if (n == 0)
        return ERR_OK;
    int32_t *ids = oai_array(p->r, n, sizeof *ids, e);
    if (ids == NULL)
        return ERR_NOMEM;
    if (n_eos > 0)
        memcpy(ids, p->d->eos, n_eos * sizeof *ids);
    if (p->n_stop_token_ids > 0)
        memcpy(ids + n_eos, p->stop_token_ids, p->n_stop_token_ids * sizeof *ids);
    p->r->params.stop_ids = ids;
    p->r->params.n_stop_ids = n;
    return ERR_OK;
}

static enum err_code settle_text(struct oai_parse *p, struct err *e)
{
    struct oai_request *r = p->r;
    if (r->kind == OAI_TOKENIZE && (r->n_prompts > 0) == (r->messages != NULL))
        return err_set_param(e, ERR_INVALID, "prompt",
                             "prompt: found %s messages, expected one of prompt and messages",
                             r->n_prompts > 0 ? "with" : "and no");
    if (r->continue_final_message && r->has_generation_prompt && r->add_generation_prompt)
        return err_set_param(e, ERR_INVALID, "continue_final_message",
                             "continue_final_message: found true with add_generation_prompt, "
                             "expected one of them");
    if (!r->has_generation_prompt)
        r->add_generation_prompt = !r->continue_final_message;
    if (!r->has_add_special_tokens)
        r->add_special_tokens = r->messages == NULL;
    return ERR_OK;
}

/* Whether a tool of this name was given. */
static bool has_tool(const struct json *tools, struct oai_text name)
{
    const struct json *t = json_first(tools);
    for (uint32_t i = 0; i < tools->n; i++, t = json_next(t)) {
        const struct json *s = json_get(json_get(t, "function"), "name");
        if (s->n == name.n && memcmp(s->u.string, name.s, name.n) == 0)
            return true;
    }
    return false;
}

static enum err_code settle_tools(const struct oai_parse *p, struct err *e)
{
    struct oai_request *r = p->r;
    if (!r->has_tool_choice) {
        r->tool_choice = r->tools != NULL ? OAI_TOOL_AUTO : OAI_TOOL_NONE;
        return ERR_OK;
    }
    if (r->tool_choice != OAI_TOOL_NONE && r->tools == NULL)
        return err_set_param(e, ERR_INVALID, "tool_choice",
                             "tool_choice: found without tools, expected tools");
    if (r->tool_choice == OAI_TOOL_NAMED && !has_tool(r->tools, r->tool_name))
        return err_set_param(e, ERR_INVALID, "tool_choice.function.name",
                             "tool_choice.function.name: found \"%s\", expected the name of one "
                             "of tools",
                             r->tool_name.s);
    return ERR_OK;
}

static enum err_code settle(struct oai_parse *p, struct err *e)
{
    enum err_code rc = settle_text(p, e);
    if (!rc)
        rc = settle_tools(p, e);
    if (!rc)
        rc = check_counts(p, e);
    if (!rc)
        rc = check_streaming(p, e);
    if (!rc)
        rc = settle_logprobs(p, e);
    if (!rc)
        rc = settle_stop_ids(p, e);
    return rc;
}

enum err_code oai_request_parse(struct oai_request *out, enum oai_kind kind, const char *body,
                                size_t n, const struct oai_defaults *d, struct err *e)
{
    *out = (struct oai_request){ 0 };
    struct oai_parse p = { .r = out, .d = d, .top_logprobs = -1 };
    set_defaults(out, kind, d);
    enum err_code rc = json_parse(&out->doc, body, n, d->max_values, e);
    if (rc)
        return rc;
    const struct json *root = out->doc.value;
    if (root->kind != JSON_OBJECT) {
        char shown[JSON_SHOW_BYTES];
        rc = err_set(e, ERR_INVALID, "body: found %s, expected an object", json_show(root, shown));
    }
    if (!rc)
        rc = read_fields(&p, root, e);
    if (!rc)
        rc = settle(&p, e);
    if (rc)
        oai_request_fini(out);
    return rc;
}
