/* openai_request_test.c: every field's accepted and rejected forms, what lands
 * where, and what one field demands of another. */
#include "proto/openai/request.h"

#include <float.h>
#include <stdio.h>
#include <time.h>

#include "proto/openai/fields.h"
#include "proto/utf8.h"
#include "support/test.h"

static const int32_t eos[] = { 2, 7 };

static struct oai_defaults limits(void)
{
    struct oai_defaults d;
    oai_defaults_init(&d);
    d.vocab_size = 1000;
    d.max_model_len = 256;
    d.eos = eos;
    d.n_eos = 2;
    return d;
}

static enum err_code try_parse(struct oai_request *r, enum oai_kind kind, const char *body,
                               struct err *e)
{
    struct oai_defaults d = limits();
    *e = (struct err){ 0 };
    return oai_request_parse(r, kind, body, strlen(body), &d, e);
}

static struct oai_request accepted(enum oai_kind kind, const char *body)
{
    struct oai_request r;
    struct err e;
    if (try_parse(&r, kind, body, &e) != ERR_OK)
        fail_msg("refused: %s: %s", body, e.message);
    return r;
}

static void rejected(enum oai_kind kind, const char *body, const char *param)
{
    struct oai_request r;
    struct err e;
    enum err_code rc = try_parse(&r, kind, body, &e);
    if (rc == ERR_OK)
        fail_msg("accepted: %s", body);
    assert_int_equal(err_http_status(rc), 400);
    if (strcmp(e.param, param) != 0)
        fail_msg("%s: param \"%s\", expected \"%s\" (%s)", body, e.param, param, e.message);
    assert_true(utf8_is_valid(e.message, strlen(e.message)));
    if (*param && strncmp(e.message, param, strcspn(param, ".[")) != 0)
        fail_msg("%s: the message does not begin with the field: %s", body, e.message);
}

/* ------------------------------------------------ every field, every form */

#define WRONG_NUMBERS "\"16\"", "true", "[]", "{}", "[1]"
#define WRONG_BOOLS   "0", "1", "0.01", "\"16\"", "\"true\"", "[]", "{}"

/* kinds of bodies in which a form is tried; "X" stands for the form. */
static const struct {
    const char *key;
    enum oai_kind kind;
    const char *good[10], *bad[14];
} forms[] = {
    { "model", OAI_COMPLETION, { "\"m\"", "\"\"" }, { "1", "0.01", "true", "[]", "{}" } },
    { "model", OAI_DETOKENIZE, { "\"m\"" }, { "1" } },
    { "user", OAI_CHAT, { "\"u\"", "\"\"" }, { "1", "0.01", "true", "[]", "{}" } },
    { "cache_salt",
      OAI_COMPLETION,
      { "\"a\"", "\"\\u0000\"" },
      { "\"\"", "1", "0.01", "true", "[]", "{}" } },
    { "truncate_prompt_tokens",
      OAI_COMPLETION,
      { "-1", "1", "256" },
      { "0", "-2", "257", "0.01", WRONG_NUMBERS } },
    { "max_tokens",
      OAI_COMPLETION,
      { "1", "256", "16.0" },
      { "0", "-1", "257", "1e9", "0.01", WRONG_NUMBERS } },
    { "max_tokens", OAI_CHAT, { "1", "256" }, { "0", "257", "0.01", WRONG_NUMBERS } },
    { "max_completion_tokens", OAI_CHAT, { "1", "256" }, { "-1", "257", "0.01", WRONG_NUMBERS } },
    { "min_tokens", OAI_COMPLETION, { "0", "16" }, { "-1", "257", "0.01", WRONG_NUMBERS } },
    { "n", OAI_COMPLETION, { "1", "128" }, { "0", "-1", "129", "5000000", "0.01", WRONG_NUMBERS } },
    { "n", OAI_CHAT, { "1", "128" }, { "0", "129", "1e300", WRONG_NUMBERS } },
    { "best_of", OAI_COMPLETION, { "1" }, { "0", "2", "5000000", "0.01", WRONG_NUMBERS } },
    { "temperature",
      OAI_COMPLETION,
      { "0", "0.0", "1e-40", "1", "2", "2.0", "0.7" },
      { "-0.1", "2.01", "3", "1e308", WRONG_NUMBERS } },
    { "top_p",
      OAI_COMPLETION,
      { "1", "0.1", "1e-6", "1e-60" },
      { "0", "0.0", "-0.1", "1.01", WRONG_NUMBERS } },
    { "top_k",
      OAI_COMPLETION,
      { "-1", "0", "1", "40", "2147483647" },
      { "0.01", "-2", "2147483648", "1e20", WRONG_NUMBERS } },
    { "min_p", OAI_COMPLETION, { "0", "0.05", "1" }, { "-0.1", "1.1", WRONG_NUMBERS } },
    { "presence_penalty", OAI_CHAT, { "-2", "0", "2", "0.5" }, { "-2.1", "2.1", WRONG_NUMBERS } },
    { "frequency_penalty", OAI_CHAT, { "-2", "0", "2" }, { "-2.1", "2.1", WRONG_NUMBERS } },
    { "repetition_penalty", OAI_CHAT, { "1", "1.1", "0.5" }, { "0", "-1", "101", WRONG_NUMBERS } },
    { "seed",
      OAI_COMPLETION,
      { "0", "42", "-1", "9223372036854775807" },
      { "9223372036854775808", "0.5", WRONG_NUMBERS } },
    { "logit_bias",
      OAI_COMPLETION,
      { "{}", "{\"0\":1}", "{\"999\":-100,\"5\":0.5}" },
      { "{\"1000\":1}", "{\"-1\":1}", "{\"x\":1}", "{\"\":1}", "{\"01\":1}", "{\"1.0\":1}",
        "{\"99999999999\":1}", "{\"1\\u0000\":1}", "1", "0.01", "\"16\"", "true", "[]" } },
    { "stop",
      OAI_COMPLETION,
      { "\"a\"", "[]", "[\"a\",\"bc\"]", "\"\\u0000\"", "[\"\\n\"]" },
      { "\"\"", "1", "0.01", "true", "{}" } },
    { "stop_token_ids",
      OAI_COMPLETION,
      { "[]", "[0]", "[5,999]" },
      { "1", "0.01", "\"16\"", "true", "{}" } },
    { "ignore_eos", OAI_COMPLETION, { "true", "false" }, { WRONG_BOOLS } },
    { "include_stop_str_in_output", OAI_CHAT, { "true", "false" }, { WRONG_BOOLS } },
    { "priority",
      OAI_COMPLETION,
      { "0", "-5", "2147483647", "-2147483648" },
      { "2147483648", "0.01", WRONG_NUMBERS } },
    { "logprobs",
      OAI_COMPLETION,
      { "0", "1", "20" },
      { "-1", "21", "1000000000", "0.01", WRONG_NUMBERS } },
    { "logprobs", OAI_CHAT, { "true", "false" }, { WRONG_BOOLS } },
    { "top_logprobs", OAI_CHAT, { "0" }, { "5", "-1", "21", "0.01", WRONG_NUMBERS } },
    { "prompt_logprobs", OAI_COMPLETION, { "0", "20" }, { "-1", "21", "0.01", WRONG_NUMBERS } },
    { "echo", OAI_COMPLETION, { "true", "false" }, { WRONG_BOOLS } },
    { "skip_special_tokens", OAI_COMPLETION, { "true", "false" }, { WRONG_BOOLS } },
    { "skip_special_tokens", OAI_DETOKENIZE, { "true", "false" }, { WRONG_BOOLS } },
    { "add_special_tokens", OAI_TOKENIZE, { "true", "false" }, { WRONG_BOOLS } },
    { "return_token_ids", OAI_COMPLETION, { "true", "false" }, { WRONG_BOOLS } },
    { "return_token_strs", OAI_TOKENIZE, { "true", "false" }, { WRONG_BOOLS } },
    { "stream", OAI_COMPLETION, { "true", "false" }, { WRONG_BOOLS } },
    { "stream_options", OAI_COMPLETION, { NULL }, { "1", "0.01", "\"16\"", "true", "[]", "{}" } },
    { "cache", OAI_COMPLETION, { "true", "false" }, { WRONG_BOOLS } },
    { "response_format",
      OAI_CHAT,
      { "{\"type\":\"text\"}" },
      { "{\"type\":\"json_object\"}", "{\"type\":\"json_schema\",\"json_schema\":{}}", "1", "0.01",
        "\"16\"", "true", "[]" } },
    { "suffix", OAI_COMPLETION, { "\"\"" }, { "\"x\"", "1" } },
    { "prompt_embeds", OAI_COMPLETION, { "[]" }, { "\"x\"", "[1]" } },
    { "use_beam_search", OAI_COMPLETION, { "false" }, { "true" } },
    { "chat_template", OAI_CHAT, { "\"\"" }, { "\"{{ x }}\"" } },
    { "functions", OAI_CHAT, { "[]" }, { "[{}]" } },
    { "function_call", OAI_CHAT, { "\"\"" }, { "\"auto\"" } },
    { "audio", OAI_CHAT, { NULL }, { "{}" } },
    { "structured_outputs", OAI_CHAT, { "false" }, { "{\"json\":{}}" } },
    { "guided_json", OAI_CHAT, { "\"\"" }, { "{}" } },
    { "guided_regex", OAI_CHAT, { "\"\"" }, { "\"a*\"" } },
    { "guided_choice", OAI_CHAT, { "[]" }, { "[\"a\"]" } },
    { "guided_grammar", OAI_CHAT, { "\"\"" }, { "\"g\"" } },
    { "parallel_tool_calls", OAI_CHAT, { "true", "false" }, { WRONG_BOOLS } },
    { "documents", OAI_CHAT, { "[]", "[{\"text\":\"d\"}]" }, { "1", "\"16\"", "true", "{}" } },
    { "chat_template_kwargs", OAI_CHAT, { "{}", "{\"a\":[1]}" }, { "1", "\"16\"", "true", "[]" } },
    { "add_generation_prompt", OAI_CHAT, { "true", "false" }, { WRONG_BOOLS } },
    { "continue_final_message", OAI_CHAT, { "true", "false" }, { WRONG_BOOLS } },
    { "tools",
      OAI_CHAT,
      { "[]", "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]",
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}]" },
      { "1", "\"16\"", "true", "{}" } },
    { "tool_choice",
      OAI_CHAT,
      { "\"none\"" },
      { "\"auto\"", "\"required\"", "\"x\"", "1", "true", "[]" } },
    { "prompt",
      OAI_COMPLETION,
      { "\"\"", "\"A\\u0000B\"", "[\"a\"]", "[\"a\",\"\"]", "[0]", "[999,1]", "[[1],[2,3]]" },
      { "1", "0.01", "true", "[]", "{}" } },
    { "prompt", OAI_TOKENIZE, { "\"\"", "\"a\"" }, { "1", "true", "[]", "{}", "[\"a\"]", "[1]" } },
    { "tokens", OAI_DETOKENIZE, { "[]", "[1,2]" }, { "1", "\"16\"", "true", "{}" } },
    { "messages",
      OAI_CHAT,
      { "[{\"role\":\"user\",\"content\":\"x\"}]" },
      { "1", "\"16\"", "true", "[]", "{}" } },
};

/* A body of that kind in which key has that value. */
static void body_with(char *out, size_t cap, enum oai_kind kind, const char *key, const char *value)
{
    static const struct {
        const char *key, *value;
    } base[OAI_KINDS] = {
        [OAI_COMPLETION] = { "prompt", "\"p\"" },
        [OAI_CHAT] = { "messages", "[{\"role\":\"user\",\"content\":\"hi\"}]" },
        [OAI_TOKENIZE] = { "prompt", "\"p\"" },
        [OAI_DETOKENIZE] = { "tokens", "[1]" },
        [OAI_TEMPLATE] = { "messages", "[{\"role\":\"user\",\"content\":\"hi\"}]" },
    };
    if (strcmp(key, base[kind].key) == 0)
        snprintf(out, cap, "{\"%s\":%s}", key, value);
    else
        snprintf(out, cap, "{\"%s\":%s,\"unknown\":{\"x\":[1]},\"%s\":%s}", key, value,
                 base[kind].key, base[kind].value);
}

TEST(every_form_of_every_field)
{
    char body[512];
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        for (int k = 0; k < 10 && forms[i].good[k] != NULL; k++) {
            body_with(body, sizeof body, forms[i].kind, forms[i].key, forms[i].good[k]);
            struct oai_request r = accepted(forms[i].kind, body);
            oai_request_fini(&r);
        }
        for (int k = 0; k < 14 && forms[i].bad[k] != NULL; k++) {
            body_with(body, sizeof body, forms[i].kind, forms[i].key, forms[i].bad[k]);
            rejected(forms[i].kind, body,
                     strcmp(forms[i].key, "max_completion_tokens") == 0 &&
                             strcmp(forms[i].bad[k], "0") == 0
                         ? "max_tokens"
                         : forms[i].key);
        }
    }
}

TEST(no_rule_is_untested_and_null_is_absent)
{
    for (size_t i = 0; i < oai_n_rules; i++) {
        bool seen = false;
        for (size_t k = 0; k < sizeof forms / sizeof *forms; k++)
            seen = seen || strcmp(forms[k].key, oai_rules[i].key) == 0;
        if (!seen)
            fail_msg("no forms for %s", oai_rules[i].key);
        for (enum oai_kind kind = 0; kind < OAI_KINDS; kind++) {
            if ((oai_rules[i].kinds >> kind & 1) == 0)
                continue;
            char body[256];
            body_with(body, sizeof body, kind, oai_rules[i].key, "null");
            struct oai_request r;
            struct err e;
            enum err_code rc = try_parse(&r, kind, body, &e);
            bool needed = oai_rules[i].required ||
                          (kind == OAI_TOKENIZE && strcmp(oai_rules[i].key, "prompt") == 0);
            if (needed) {
                assert_int_equal(rc, ERR_INVALID);
                assert_string_equal(e.param, oai_rules[i].key);
            } else {
                assert_ok(rc, e);
                oai_request_fini(&r);
            }
        }
    }
}

/* ------------------------------------------------------------ inner shapes */

#define TOOLS    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"
#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"

TEST(inner_faults_name_their_place)
{
    static const struct {
        enum oai_kind kind;
        const char *body, *param;
    } rows[] = {
        { OAI_COMPLETION, "{\"prompt\":[\"a\",1]}", "prompt[1]" },
        { OAI_COMPLETION, "{\"prompt\":[1,\"a\"]}", "prompt[1]" },
        { OAI_COMPLETION, "{\"prompt\":[-1]}", "prompt[0]" },
        { OAI_COMPLETION, "{\"prompt\":[1,1000]}", "prompt[1]" },
        { OAI_COMPLETION, "{\"prompt\":[0.5]}", "prompt[0]" },
        { OAI_COMPLETION, "{\"prompt\":[1e300]}", "prompt[0]" },
        { OAI_COMPLETION, "{\"prompt\":[null]}", "prompt[0]" },
        { OAI_COMPLETION, "{\"prompt\":[[]]}", "prompt[0]" },
        { OAI_COMPLETION, "{\"prompt\":[[1],[]]}", "prompt[1]" },
        { OAI_COMPLETION, "{\"prompt\":[[1],[2,1000]]}", "prompt[1][1]" },
        { OAI_COMPLETION, "{\"prompt\":[[1],2]}", "prompt[1]" },
        { OAI_COMPLETION, "{\"prompt\":[[[1]]]}", "prompt[0][0]" },
        { OAI_COMPLETION, "{}", "prompt" },
        { OAI_COMPLETION, "{\"Prompt\":\"x\"}", "prompt" },
        { OAI_COMPLETION, "{\"prompt\":\"x\",\"stop\":[\"a\",\"\"]}", "stop[1]" },
        { OAI_COMPLETION, "{\"prompt\":\"x\",\"stop\":[1]}", "stop[0]" },
        { OAI_COMPLETION, "{\"prompt\":\"x\",\"stop_token_ids\":[1,1000]}", "stop_token_ids[1]" },
        { OAI_COMPLETION, "{\"prompt\":\"x\",\"logit_bias\":{\"5\":101}}", "logit_bias.5" },
        { OAI_COMPLETION, "{\"prompt\":\"x\",\"logit_bias\":{\"5\":\"1\"}}", "logit_bias.5" },
        { OAI_COMPLETION, "{\"prompt\":\"x\",\"logit_bias\":{\"5\":null}}", "logit_bias.5" },
        { OAI_COMPLETION,
          "{\"prompt\":\"x\",\"stream\":true,\"stream_options\":{\"include_usage\":1}}",
          "stream_options.include_usage" },
        { OAI_COMPLETION,
          "{\"prompt\":\"x\",\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":\"\"}}",
          "stream_options.continuous_usage_stats" },
        { OAI_CHAT, "{\"messages\":[1]}", "messages[0]" },
        { OAI_CHAT, "{\"messages\":[{\"content\":\"x\"}]}", "messages[0].role" },
        { OAI_CHAT, "{\"messages\":[{\"role\":1,\"content\":\"x\"}]}", "messages[0].role" },
        { OAI_CHAT, "{\"messages\":[{\"role\":\"\",\"content\":\"x\"}]}", "messages[0].role" },
        { OAI_CHAT, "{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content" },
        { OAI_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":null}]}",
          "messages[0].content" },
        { OAI_CHAT,
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"user\",\"content\":5}]"
          "}",
          "messages[1].content" },
        { OAI_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\\u0000b\"}]}",
          "messages[0].content" },
        { OAI_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[5]}]}",
          "messages[0].content[0]" },
        { OAI_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
          "messages[0].content[0].type" },
        { OAI_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}",
          "messages[0].content[0].text" },
        { OAI_CHAT, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":5}]}",
          "messages[0].tool_calls" },
        { OAI_CHAT, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{}]}]}",
          "messages[0].tool_calls[0].function" },
        { OAI_CHAT, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]}",
          "messages[0].tool_calls[0].function.name" },
        { OAI_CHAT,
          "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":"
          "{\"name\":\"f\",\"arguments\":\"{\"}}]}]}",
          "messages[0].tool_calls[0].function.arguments" },
        { OAI_CHAT,
          "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":"
          "{\"name\":\"f\",\"arguments\":\"[]\"}}]}]}",
          "messages[0].tool_calls[0].function.arguments" },
        { OAI_CHAT, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[5]}]}",
          "messages[0].tool_calls[0]" },
        { OAI_CHAT,
          "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":"
          "{\"name\":\"f\",\"arguments\":5}}]}]}",
          "messages[0].tool_calls[0].function.arguments" },
        { OAI_CHAT, "{" MESSAGES ",\"tools\":[{}]}", "tools[0].type" },
        { OAI_CHAT, "{" MESSAGES ",\"tools\":[5]}", "tools[0]" },
        { OAI_CHAT, "{" MESSAGES ",\"tools\":[{\"type\":\"function\"}]}", "tools[0].function" },
        { OAI_CHAT,
          "{" MESSAGES ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","
          "\"parameters\":[]}}]}",
          "tools[0].function.parameters" },
        { OAI_CHAT, "{" MESSAGES "," TOOLS ",\"tool_choice\":{}}", "tool_choice.type" },
        { OAI_CHAT, "{" MESSAGES "," TOOLS ",\"tool_choice\":{\"type\":\"function\"}}",
          "tool_choice.function.name" },
        { OAI_CHAT, "{" MESSAGES ",\"response_format\":{}}", "response_format.type" },
        { OAI_CHAT,
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":"
          "\"function\",\"function\":{\"name\":\"\"}}]}",
          "tools[0].function.name" },
        { OAI_CHAT,
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":"
          "\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":{\"type\":\"function\","
          "\"function\":{\"name\":\"g\"}}}",
          "tool_choice.function.name" },
        { OAI_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"documents\":[1]}",
          "documents[0]" },
        { OAI_CHAT,
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"chat_template_kwargs\":"
          "{\"a\":{\"b\":[\"\\u0000\"]}}}",
          "chat_template_kwargs.a.b[0]" },
        { OAI_CHAT,
          "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"response_format\":"
          "{\"type\":\"xml\"}}",
          "response_format.type" },
        { OAI_TOKENIZE, "{\"prompt\":\"x\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
          "prompt" },
        { OAI_TOKENIZE, "{}", "prompt" },
        { OAI_DETOKENIZE, "{\"tokens\":[1,-1]}", "tokens[1]" },
        { OAI_COMPLETION, "[]", "" },
        { OAI_COMPLETION, "5", "" },
        { OAI_COMPLETION, "", "" },
        { OAI_COMPLETION, "{\"prompt\":\"x\"}}", "" },
        { OAI_COMPLETION, "{\"prompt\":\"x\",\"prompt\":\"y\"}", "prompt" },
        { OAI_COMPLETION, "{\"prompt\":\"\\ud83d\"}", "prompt" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        rejected(rows[i].kind, rows[i].body, rows[i].param);
}

TEST(fields_that_depend_on_each_other)
{
    rejected(OAI_COMPLETION, "{\"prompt\":\"x\",\"stream_options\":{\"include_usage\":true}}",
             "stream_options");
    rejected(OAI_COMPLETION, "{\"prompt\":\"x\",\"stream\":false,\"stream_options\":{}}",
             "stream_options");
    rejected(OAI_COMPLETION, "{\"prompt\":\"x\",\"min_tokens\":17}", "min_tokens");
    rejected(OAI_COMPLETION, "{\"prompt\":\"x\",\"n\":2,\"best_of\":3}", "best_of");
    rejected(OAI_COMPLETION, "{\"prompt\":\"x\",\"stream\":true,\"prompt_logprobs\":1}",
             "prompt_logprobs");
    rejected(OAI_CHAT,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"top_logprobs\":2,"
             "\"logprobs\":false}",
             "top_logprobs");
    rejected(OAI_CHAT,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"continue_final_message\":"
             "true,\"add_generation_prompt\":true}",
             "continue_final_message");
    static const char *const fine[] = {
        "{\"prompt\":\"x\",\"n\":3,\"best_of\":3}",
        "{\"prompt\":\"x\",\"n\":3,\"best_of\":1}",
        "{\"prompt\":\"x\",\"min_tokens\":17,\"max_tokens\":17}",
        "{\"prompt\":\"x\",\"echo\":true,\"max_tokens\":0}",
        "{\"prompt\":\"x\",\"prompt_logprobs\":0,\"max_tokens\":0}",
        "{\"prompt\":\"x\",\"stream\":true,\"stream_options\":null}",
        "{\"stream_options\":{\"include_usage\":true},\"prompt\":\"x\",\"stream\":true}",
    };
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        struct oai_request r = accepted(OAI_COMPLETION, fine[i]);
        oai_request_fini(&r);
    }
}

/* ------------------------------------------------------- what lands where */

TEST(defaults)
{
    struct oai_request r = accepted(OAI_COMPLETION, "{\"prompt\":\"hello\"}");
    assert_int_equal(r.n_prompts, 1);
    assert_string_equal(r.prompt->text.s, "hello");
    assert_int_equal(r.max_tokens, 16);
    assert_false(r.has_max_tokens);
    assert_true(r.params.temperature == 1 && r.params.top_p == 1 && r.params.min_p == 0);
    assert_true(r.params.repetition_penalty == 1 && r.params.top_k == 0);
    assert_int_equal(r.params.n_logprobs, -1);
    assert_int_equal(r.prompt_logprobs, -1);
    assert_int_equal(r.params.n_stop_ids, 2);
    assert_int_equal(r.params.stop_ids[1], 7);
    assert_int_equal(r.n, 1);
    assert_true(r.add_special_tokens && r.skip_special_tokens);
    assert_false(r.stream || r.echo || r.has_seed || r.cache_report);
    assert_null(r.model.s);
    oai_request_fini(&r);

    r = accepted(OAI_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}");
    assert_true(r.max_tokens == OAI_TOKENS_TO_LIMIT);
    assert_false(r.add_special_tokens);
    assert_true(r.add_generation_prompt);
    assert_int_equal(r.tool_choice, OAI_TOOL_NONE);
    assert_int_equal(r.messages->n, 1);
    oai_request_fini(&r);
}

TEST(everything_at_once)
{
    struct oai_request r =
        accepted(OAI_COMPLETION,
                 "{\"model\":\"m\",\"prompt\":[[1,2],[3]],\"max_tokens\":5,\"temperature\":0.5,"
                 "\"top_p\":0.9,\"top_k\":40,\"min_p\":0.1,\"n\":2,\"best_of\":2,\"seed\":-3,"
                 "\"stop\":[\"a\",\"\\u0000\"],\"stop_token_ids\":[9],\"stream\":true,"
                 "\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true},"
                 "\"logprobs\":3,\"echo\":true,\"logit_bias\":{\"999\":-100,\"3\":2.5},"
                 "\"presence_penalty\":1,\"frequency_penalty\":-1,\"repetition_penalty\":1.5,"
                 "\"min_tokens\":2,\"ignore_eos\":true,\"return_token_ids\":true,"
                 "\"include_stop_str_in_output\":true,\"skip_special_tokens\":false,"
                 "\"add_special_tokens\":false,\"truncate_prompt_tokens\":-1,\"cache_salt\":\"s\","
                 "\"priority\":-7,\"user\":\"u\",\"cache\":true}");
    assert_string_equal(r.model.s, "m");
    assert_int_equal(r.n_prompts, 2);
    assert_null(r.prompt[0].text.s);
    assert_int_equal(r.prompt[0].n_ids, 2);
    assert_int_equal(r.prompt[1].ids[0], 3);
    assert_int_equal(r.max_tokens, 5);
    assert_true(r.has_max_tokens && r.has_seed);
    assert_true(r.params.temperature == 0.5f && r.params.top_p == 0.9f);
    assert_true(r.params.top_k == 40 && r.params.min_p == 0.1f);
    assert_true(r.params.seed == (uint64_t)-3);
    assert_int_equal(r.n, 2);
    assert_int_equal(r.n_stop, 2);
    assert_int_equal(r.stop[1].n, 1);
    assert_memory_equal(r.stop[1].s, "\0", 2);
    assert_int_equal(r.params.n_stop_ids, 1);
    assert_int_equal(r.params.stop_ids[0], 9);
    assert_true(r.stream && r.include_usage && r.continuous_usage && r.echo);
    assert_int_equal(r.params.n_logprobs, 3);
    assert_int_equal(r.params.n_bias, 2);
    assert_int_equal(r.params.bias[0].token, 999);
    assert_true(r.params.bias[0].bias == -100 && r.params.bias[1].bias == 2.5f);
    assert_true(r.params.presence_penalty == 1 && r.params.frequency_penalty == -1);
    assert_true(r.params.repetition_penalty == 1.5f);
    assert_int_equal(r.params.min_tokens, 2);
    assert_true(r.ignore_eos && r.return_token_ids && r.include_stop_str_in_output);
    assert_false(r.skip_special_tokens || r.add_special_tokens);
    assert_int_equal(r.truncate_prompt_tokens, -1);
    assert_string_equal(r.cache_salt.s, "s");
    assert_int_equal(r.priority, -7);
    assert_true(r.cache_report);
    oai_request_fini(&r);
}

TEST(prompts_keep_nul)
{
    struct oai_request r =
        accepted(OAI_COMPLETION, "{\"stop\\u0000x\":\"q\",\"prompt\":\"A\\u0000B\"}");
    assert_int_equal(r.prompt->text.n, 3);
    assert_memory_equal(r.prompt->text.s, "A\0B", 4);
    assert_int_equal(r.n_stop, 0);
    oai_request_fini(&r);
}

TEST(tiny_values_do_not_become_zero)
{
    struct oai_request r = accepted(OAI_COMPLETION, "{\"prompt\":\"x\",\"top_p\":1e-60,"
                                                    "\"repetition_penalty\":1e-50}");
    assert_true(r.params.top_p == FLT_MIN && r.params.repetition_penalty == FLT_MIN);
    oai_request_fini(&r);
}

static void messages_are(const char *messages, bool parts, const char *expected)
{
    char body[1024];
    snprintf(body, sizeof body, "{\"messages\":%s}", messages);
    struct oai_defaults d = limits();
    d.template_takes_parts = parts;
    struct oai_request r;
    struct err e;
    enum err_code rc = oai_request_parse(&r, OAI_CHAT, body, strlen(body), &d, &e);
    assert_ok(rc, e);
    struct buf text = { 0 };
    json_put_value(&text, r.messages);
    assert_int_equal(text.n, strlen(expected));
    assert_memory_equal(text.p, expected, text.n);
    buf_fini(&text);
    oai_request_fini(&r);
}

TEST(messages_take_the_templates_form)
{
    static const char parts[] = "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":"
                                "\"a\"},\"b\",{\"type\":\"text\",\"text\":\"\"}],\"name\":\"n\"}]";
    messages_are(parts, false, "[{\"role\":\"user\",\"content\":\"a\\nb\\n\",\"name\":\"n\"}]");
    messages_are(parts, true, parts);
    messages_are("[{\"role\":\"user\",\"content\":[]}]", false,
                 "[{\"role\":\"user\",\"content\":\"\"}]");
    messages_are("[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\","
                 "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"
                 "\"{\\\"x\\\": [1, {}]}\"}},{\"function\":{\"name\":\"g\",\"arguments\":\"\"}},"
                 "{\"function\":{\"name\":\"h\",\"arguments\":{\"y\":2}}},"
                 "{\"function\":{\"name\":\"i\"}}]}]",
                 false,
                 "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\","
                 "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"
                 "{\"x\":[1,{}]}}},{\"function\":{\"name\":\"g\",\"arguments\":{}}},"
                 "{\"function\":{\"name\":\"h\",\"arguments\":{\"y\":2}}},"
                 "{\"function\":{\"name\":\"i\"}}]}]");
    /* Either of the two may come first, in any message. */
    messages_are(
        "[{\"role\":\"user\",\"content\":[\"u\"]},{\"tool_calls\":[{\"function\":{\"name\":"
        "\"f\",\"arguments\":\"{}\"}}],\"content\":[\"a\",\"b\"],\"role\":\"assistant\"}]",
        false,
        "[{\"role\":\"user\",\"content\":\"u\"},{\"tool_calls\":[{\"function\":{\"name\":"
        "\"f\",\"arguments\":{}}}],\"content\":\"a\\nb\",\"role\":\"assistant\"}]");
    /* Integers keep their digits, also inside arguments. */
    messages_are("[{\"role\":\"assistant\",\"n\":9223372036854775808,\"tool_calls\":[{\"function\":"
                 "{\"name\":\"f\",\"arguments\":\"{\\\"x\\\":-12345678901234567890123}\"}}]}]",
                 false,
                 "[{\"role\":\"assistant\",\"n\":9223372036854775808,\"tool_calls\":[{\"function\":"
                 "{\"name\":\"f\",\"arguments\":{\"x\":-12345678901234567890123}}}]}]");
}

TEST(tools_and_their_choice)
{
    static const struct {
        const char *body;
        enum oai_tool_choice choice;
    } rows[] = {
        { "{" MESSAGES "," TOOLS "}", OAI_TOOL_AUTO },
        { "{" MESSAGES "," TOOLS ",\"tool_choice\":\"none\"}", OAI_TOOL_NONE },
        { "{\"tool_choice\":\"required\"," MESSAGES "," TOOLS "}", OAI_TOOL_REQUIRED },
        { "{" MESSAGES "," TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":"
          "{\"name\":\"f\"}}}",
          OAI_TOOL_NAMED },
        { "{" MESSAGES ",\"tools\":[]}", OAI_TOOL_NONE },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct oai_request r = accepted(OAI_CHAT, rows[i].body);
        assert_int_equal(r.tool_choice, rows[i].choice);
        if (rows[i].choice == OAI_TOOL_NAMED)
            assert_string_equal(r.tool_name.s, "f");
        oai_request_fini(&r);
    }
}

TEST(chat_limits_and_logprobs)
{
    struct oai_request r = accepted(OAI_CHAT, "{" MESSAGES ",\"max_completion_tokens\":9,"
                                              "\"max_tokens\":3,\"logprobs\":true}");
    assert_int_equal(r.max_tokens, 9);
    assert_int_equal(r.params.n_logprobs, 0);
    oai_request_fini(&r);
    r = accepted(OAI_CHAT, "{" MESSAGES ",\"logprobs\":true,\"top_logprobs\":20}");
    assert_int_equal(r.params.n_logprobs, 20);
    oai_request_fini(&r);
    r = accepted(OAI_CHAT, "{" MESSAGES ",\"continue_final_message\":true}");
    assert_false(r.add_generation_prompt);
    oai_request_fini(&r);
}

TEST(token_bodies)
{
    struct oai_request r = accepted(OAI_TOKENIZE, "{\"prompt\":\"x\",\"return_token_strs\":true}");
    assert_true(r.return_token_strs && r.add_special_tokens);
    oai_request_fini(&r);
    r = accepted(OAI_TOKENIZE, "{" MESSAGES "}");
    assert_true(r.n_prompts == 0 && r.messages != NULL && !r.add_special_tokens);
    oai_request_fini(&r);
    r = accepted(OAI_DETOKENIZE, "{\"tokens\":[5,999]}");
    assert_true(r.n_tokens == 2 && r.tokens[1] == 999 && !r.skip_special_tokens);
    oai_request_fini(&r);
    r = accepted(OAI_TEMPLATE, "{" MESSAGES ",\"add_generation_prompt\":false}");
    assert_false(r.add_generation_prompt);
    oai_request_fini(&r);
}

/* --------------------------------------------------------- hostile sizes */

/* head, then n times item separated by commas, then tail. */
static char *repeated(const char *head, const char *item, size_t n, const char *tail)
{
    size_t k = strlen(head), len = strlen(item);
    char *s = malloc(k + n * (len + 1) + strlen(tail) + 1);
    memcpy(s, head, k);
    for (size_t i = 0; i < n; i++) {
        memcpy(s + k, item, len);
        k += len;
        if (i + 1 < n)
            s[k++] = ',';
    }
    strcpy(s + k, tail);
    return s;
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

TEST(hostile_sizes_are_refused_cheaply)
{
    static const struct {
        const char *head, *item, *tail, *param;
    } rows[] = {
        { "{\"prompt\":[", "\"a\"", "]}", "prompt" },
        { "{\"prompt\":[", "[1]", "]}", "prompt" },
        { "{\"prompt\":[", "1", "]}", "prompt" },
        { "{\"prompt\":\"x\",\"stop\":[", "\"a\"", "]}", "stop" },
        { "{\"prompt\":\"x\",\"stop_token_ids\":[", "1", "]}", "stop_token_ids" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *body = repeated(rows[i].head, rows[i].item, 100000, rows[i].tail);
        double start = cpu_seconds();
        rejected(OAI_COMPLETION, body, rows[i].param);
        assert_true(cpu_seconds() - start < 0.2); /* sanitizers included; 50 ms is for release */
        free(body);
    }
    char *bias = malloc(2000000);
    size_t n = (size_t)sprintf(bias, "{\"prompt\":\"x\",\"logit_bias\":{");
    for (int i = 0; i < 100000; i++)
        n += (size_t)sprintf(bias + n, "%s\"%d\":1", i ? "," : "", i);
    strcpy(bias + n, "}}");
    rejected(OAI_COMPLETION, bias, "logit_bias");
    free(bias);
    char *stop = malloc(5000);
    memset(stop, 'a', 5000);
    memcpy(stop, "{\"prompt\":\"x\",\"stop\":\"", 22);
    strcpy(stop + 4000, "\"}");
    rejected(OAI_COMPLETION, stop, "stop");
    free(stop);
    char *many = repeated("{\"n\":128,\"prompt\":[", "\"a\"", 9, "]}");
    rejected(OAI_COMPLETION, many, "n");
    free(many);
}

TEST(too_long_a_prompt_gives_both_numbers)
{
    char *body = repeated("{\"prompt\":[", "5", 257, "]}");
    struct oai_request r;
    struct err e;
    assert_int_equal(try_parse(&r, OAI_COMPLETION, body, &e), ERR_LIMIT);
    assert_string_equal(e.param, "prompt");
    assert_contains(e.message, "257");
    assert_contains(e.message, "256");
    free(body);
    body = repeated("{\"truncate_prompt_tokens\":10,\"prompt\":[", "5", 257, "]}");
    r = accepted(OAI_COMPLETION, body);
    assert_int_equal(r.prompt->n_ids, 257);
    oai_request_fini(&r);
    free(body);
    body = repeated("{\"prompt\":[", "5", 256, "]}");
    r = accepted(OAI_COMPLETION, body);
    oai_request_fini(&r);
    free(body);
}

TEST(no_check_without_a_model)
{
    struct oai_defaults d;
    oai_defaults_init(&d);
    struct oai_request r;
    struct err e;
    static const char body[] = "{\"prompt\":[2147483646],\"max_tokens\":2000000}";
    enum err_code rc = oai_request_parse(&r, OAI_COMPLETION, body, sizeof body - 1, &d, &e);
    assert_ok(rc, e);
    assert_int_equal(r.prompt->ids[0], 2147483646);
    assert_int_equal(r.params.n_stop_ids, 0);
    oai_request_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(every_form_of_every_field),
        RUN(no_rule_is_untested_and_null_is_absent),
        RUN(inner_faults_name_their_place),
        RUN(fields_that_depend_on_each_other),
        RUN(defaults),
        RUN(everything_at_once),
        RUN(prompts_keep_nul),
        RUN(tiny_values_do_not_become_zero),
        RUN(messages_take_the_templates_form),
        RUN(tools_and_their_choice),
        RUN(chat_limits_and_logprobs),
        RUN(token_bodies),
        RUN(hostile_sizes_are_refused_cheaply),
        RUN(too_long_a_prompt_gives_both_numbers),
        RUN(no_check_without_a_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
