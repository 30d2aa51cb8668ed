/* openai_response_test.c: the exact bytes of every reply shape, and that each
 * is valid JSON in one line. */
#include "proto/openai/response.h"

#include <math.h>

#include "proto/openai/sse.h"
#include "proto/utf8.h"
#include "support/test.h"

#define T(literal) ((struct oai_text){ "" literal, sizeof(literal) - 1 })

static const struct oai_identity completion = { OAI_COMPLETION, "cmpl-1", "m", 1 };
static const struct oai_identity chat = { OAI_CHAT, "chatcmpl-1", "m\"x", 2 };

static void check_json(const char *s, size_t n)
{
    struct json_doc doc;
    struct err e;
    assert_null(memchr(s, '\n', n));
    enum err_code rc = json_parse(&doc, s, n, 0, &e);
    assert_ok(rc, e);
    json_doc_fini(&doc);
}

/* What was written is `expected` and valid; empties the buffer. */
static void body_is(struct buf *o, const char *expected)
{
    check_json(o->p, o->n);
    buf_put(o, "", 1);
    assert_false(o->failed);
    assert_string_equal(o->p, expected);
    buf_reset(o);
}

/* What was written is one event whose data is `expected`. */
static void event_is(struct buf *o, const char *expected)
{
    assert_true(o->n > 8);
    assert_memory_equal(o->p, "data: ", 6);
    assert_memory_equal(o->p + o->n - 2, "\n\n", 2);
    check_json(o->p + 6, o->n - 8);
    o->p[o->n - 2] = '\0';
    assert_string_equal(o->p + 6, expected);
    buf_reset(o);
}

#define HEAD                                                                                       \
    "{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1,\"model\":\"m\","             \
    "\"system_fingerprint\":null,\"choices\":["
#define CHAT_TAIL  "\"created\":2,\"model\":\"m\\\"x\",\"system_fingerprint\":null,\"choices\":["
#define CHAT_HEAD  "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\"," CHAT_TAIL
#define CHUNK_HEAD "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\"," CHAT_TAIL
#define USAGE(p, c, t, k)                                                                          \
    "{\"prompt_tokens\":" #p ",\"completion_tokens\":" #c ",\"total_tokens\":" #t                  \
    ",\"prompt_tokens_details\":{\"cached_tokens\":" #k "}}"

TEST(completion_reply)
{
    struct buf o = { 0 };
    const struct oai_usage usage = { 7, 2, 0, 0 };
    const struct oai_choice c[] = {
        { .text = T("hi\n"), .finish = OAI_FINISH_LENGTH, .stop_reason = OAI_NO_STOP_REASON },
        { .index = 1, .finish = OAI_FINISH_STOP, .stop_reason = { T("\n"), -1 } },
        { .index = 2, .text = T("x"), .finish = OAI_FINISH_STOP, .stop_reason = { .token = 0 } },
    };
    oai_write_reply(&o, &completion, c, 1, &usage, NULL);
    body_is(&o, HEAD "{\"index\":0,\"text\":\"hi\\n\",\"logprobs\":null,\"finish_reason\":"
                     "\"length\",\"stop_reason\":null}],\"usage\":" USAGE(7, 2, 9, 0) "}");
    oai_write_reply(&o, &completion, c + 1, 2, &usage, NULL);
    body_is(&o,
            HEAD "{\"index\":1,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\","
                 "\"stop_reason\":\"\\n\"},{\"index\":2,\"text\":\"x\",\"logprobs\":null,"
                 "\"finish_reason\":\"stop\",\"stop_reason\":0}],\"usage\":" USAGE(7, 2, 9, 0) "}");
    buf_fini(&o);
}

TEST(completion_with_everything)
{
    struct buf o = { 0 };
    const struct oai_usage usage = { 3, 2, 1, 4 };
    const struct oai_cache_report cache = { 3, 1, 2, 3, 4, 5, 6 };
    const int32_t ids[] = { 5, 6 }, prompt[] = { 1 };
    const struct oai_choice c = { .text = T("x"),
                                  .finish = OAI_FINISH_LENGTH,
                                  .stop_reason = OAI_NO_STOP_REASON,
                                  .token_ids = ids,
                                  .n_token_ids = 2,
                                  .prompt_token_ids = prompt,
                                  .n_prompt_token_ids = 1 };
    oai_write_reply(&o, &completion, &c, 1, &usage, &cache);
    body_is(&o,
            HEAD "{\"index\":0,\"text\":\"x\",\"logprobs\":null,\"finish_reason\":\"length\","
                 "\"stop_reason\":null,\"token_ids\":[5,6],\"prompt_token_ids\":[1]}],\"usage\":"
                 "{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5,"
                 "\"prompt_tokens_details\":{\"cached_tokens\":1},\"completion_tokens_details\":"
                 "{\"reasoning_tokens\":4}},\"cache\":{\"query_tokens\":3,\"hit_tokens\":1,"
                 "\"miss_tokens\":{\"never_seen\":2,\"evicted\":3,\"salt\":4,\"granularity\":5,"
                 "\"window\":6}}}");
    buf_fini(&o);
}

TEST(completion_logprobs)
{
    const struct oai_alternative top1[] = {
        { 3, -0.5f, T(" b") },
        { 4, -1.25f, T("\xf0\x9f") },
        { 5, -INFINITY, T("c") },
        { 6, -2.0f, T(" b") },
    };
    const struct oai_token t[] = {
        { .id = 2, .token = T("\xc3\xa9") },
        { .id = 3, .token = T(" b"), .scored = true, .logprob = -0.5f, .n_top = 4, .top = top1 },
        { .id = 1, .token = T("</s>"), .scored = true, .silent = true, .logprob = NAN },
        { .id = 9,
          .token = T("\xe2\x82"),
          .scored = true,
          .logprob = -0.1f,
          .n_top = 1,
          .top = top1 },
        { .id = 8, .token = T("\xac!"), .scored = true, .logprob = -3.0f },
        { .id = 7, .scored = true, .logprob = -3.0f },
    };
    const struct oai_logprobs lp = { t, 6, 10 };
    const struct oai_choice c = { .text = T("x"),
                                  .stop_reason = OAI_NO_STOP_REASON,
                                  .logprobs = &lp };
    const struct oai_usage usage = { 0 };
    struct buf o = { 0 };
    oai_write_reply(&o, &completion, &c, 1, &usage, NULL);
    body_is(&o, HEAD
            "{\"index\":0,\"text\":\"x\",\"logprobs\":{\"tokens\":[\"\xc3\xa9\",\" b\",\"</s>\","
            "\"bytes:\\\\xe2\\\\x82\",\"bytes:\\\\xac\\\\x21\",\"\"],\"token_logprobs\":[null,"
            "-0.5,-9999.0,-0.1,-3.0,-3.0],\"top_logprobs\":[null,{\" b\":-0.5,"
            "\"bytes:\\\\xf0\\\\x9f\":-1.25,\"c\":-9999.0},{\"</s>\":-9999.0},{\" b\":-0.5,"
            "\"bytes:\\\\xe2\\\\x82\":-0.1},{\"bytes:\\\\xac\\\\x21\":-3.0},{\"\":-3.0}],"
            "\"text_offset\":[10,11,13,13,14,15]},\"finish_reason\":null,\"stop_reason\":null}],"
            "\"usage\":" USAGE(0, 0, 0, 0) "}");
    assert_int_equal(oai_text_offset_after(&lp), 15);
    buf_fini(&o);
}

TEST(chat_reply)
{
    const struct oai_alternative top[] = { { 3, -0.1f, T("hi") }, { 4, -2.5f, T("\xff") } };
    const struct oai_token t[] = {
        { .id = 3, .token = T("hi"), .scored = true, .logprob = -0.1f, .n_top = 2, .top = top },
    };
    const struct oai_logprobs lp = { t, 1, 0 };
    const int32_t prompt[] = { 1, 2 };
    const struct oai_choice c[] = {
        { .text = T("hi"),
          .finish = OAI_FINISH_STOP,
          .stop_reason = OAI_NO_STOP_REASON,
          .logprobs = &lp,
          .prompt_token_ids = prompt,
          .n_prompt_token_ids = 2 },
        { .index = 1, .finish = OAI_FINISH_LENGTH, .stop_reason = OAI_NO_STOP_REASON },
    };
    const struct oai_usage usage = { 2, 2, 0, 0 };
    struct buf o = { 0 };
    oai_write_reply(&o, &chat, c, 2, &usage, NULL);
    body_is(&o, CHAT_HEAD
            "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"hi\",\"refusal\":null}"
            ",\"logprobs\":{\"content\":[{\"token\":\"hi\",\"logprob\":-0.1,\"bytes\":[104,105],"
            "\"top_logprobs\":[{\"token\":\"hi\",\"logprob\":-0.1,\"bytes\":[104,105]},"
            "{\"token\":\"\xef\xbf\xbd\",\"logprob\":-2.5,\"bytes\":[255]}]}],\"refusal\":null},"
            "\"finish_reason\":\"stop\",\"stop_reason\":null},{\"index\":1,\"message\":{\"role\":"
            "\"assistant\",\"content\":\"\",\"refusal\":null},\"logprobs\":null,\"finish_reason\":"
            "\"length\",\"stop_reason\":null}],\"usage\":" USAGE(2, 2, 4,
                                                                 0) ",\"prompt_token_ids\":[1,2]}");
    buf_fini(&o);
}

TEST(chat_reply_with_tools)
{
    const struct oai_tool_call calls[] = {
        { 0, T("call_1"), T("f"), T("{\"a\": 1}") },
        { 1, T("call_2"), T("g"), T("") },
    };
    const struct oai_choice c = { .finish = OAI_FINISH_TOOL_CALLS,
                                  .tool_calls = calls,
                                  .n_tool_calls = 2,
                                  .stop_reason = OAI_NO_STOP_REASON };
    const struct oai_usage usage = { 1, 1, 0, 0 };
    struct buf o = { 0 };
    oai_write_reply(&o, &chat, &c, 1, &usage, NULL);
    body_is(
        &o, CHAT_HEAD
        "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":null,\"refusal\":null,"
        "\"tool_calls\":[{\"id\":\"call_1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
        "\"arguments\":\"{\\\"a\\\": 1}\"}},{\"id\":\"call_2\",\"type\":\"function\","
        "\"function\":{\"name\":\"g\",\"arguments\":\"\"}}]},\"logprobs\":null,"
        "\"finish_reason\":\"tool_calls\",\"stop_reason\":null}],\"usage\":" USAGE(1, 1, 2, 0) "}");
    buf_fini(&o);
}

TEST(prompt_logprobs)
{
    const struct oai_alternative top[] = { { 3, -0.5f, T("a") }, { 4, -1.5f, T("b") } };
    const struct oai_token t[] = {
        { .id = 2, .token = T("x") },
        { .id = 4, .token = T("b"), .scored = true, .logprob = -1.5f, .n_top = 2, .top = top },
        { .id = 9, .token = T("c"), .scored = true, .logprob = -4.0f, .n_top = 1, .top = top },
    };
    const struct oai_logprobs lp = { t, 3, 0 };
    const struct oai_choice c = { .text = T(""),
                                  .stop_reason = OAI_NO_STOP_REASON,
                                  .prompt_logprobs = &lp };
    const struct oai_usage usage = { 0 };
    struct buf o = { 0 };
#define RANKED(l, r, s) "{\"logprob\":" l ",\"rank\":" r ",\"decoded_token\":\"" s "\"}"
    static const char list[] =
        "\"prompt_logprobs\":[null,{\"3\":" RANKED("-0.5", "1", "a") ",\"4\":" RANKED(
            "-1.5", "2", "b") "},{\"3\":" RANKED("-0.5", "1", "a") ",\"9\":" RANKED("-4.0", "null",
                                                                                    "c") "}]";
    oai_write_reply(&o, &completion, &c, 1, &usage, NULL);
    check_json(o.p, o.n);
    buf_put(&o, "", 1);
    assert_contains(o.p, list);
    buf_reset(&o);
    oai_write_reply(&o, &chat, &c, 1, &usage, NULL);
    check_json(o.p, o.n);
    buf_put(&o, "", 1);
    assert_contains(o.p, list);
    buf_fini(&o);
}

TEST(completion_stream)
{
    struct oai_stream s;
    struct err e;
    struct buf o = { 0 };
    enum err_code rc = oai_stream_init(&s, &completion, false, &e);
    assert_ok(rc, e);
    struct oai_delta d = { .index = 3, .text = T("a\"b") };
    oai_stream_delta(&o, &s, &d);
    event_is(&o, HEAD "{\"index\":3,\"text\":\"a\\\"b\",\"logprobs\":null,\"finish_reason\":null,"
                      "\"stop_reason\":null}]}");
    const int32_t ids[] = { 5 }, prompt[] = { 1, 2 };
    const struct oai_token t = { .id = 5, .token = T("x"), .scored = true, .logprob = -1.0f };
    const struct oai_logprobs lp = { &t, 1, 4 };
    d = (struct oai_delta){ .text = T("x"),
                            .token_ids = ids,
                            .n_token_ids = 1,
                            .prompt_token_ids = prompt,
                            .n_prompt_token_ids = 2,
                            .logprobs = &lp };
    oai_stream_delta(&o, &s, &d);
    event_is(&o, HEAD
             "{\"index\":0,\"text\":\"x\",\"logprobs\":{\"tokens\":[\"x\"],\"token_logprobs\":"
             "[-1.0],\"top_logprobs\":[{\"x\":-1.0}],\"text_offset\":[4]},\"finish_reason\":null,"
             "\"stop_reason\":null,\"token_ids\":[5],\"prompt_token_ids\":[1,2]}]}");
    d = (struct oai_delta){ .finish = OAI_FINISH_STOP, .stop_reason = { .token = 7 } };
    oai_stream_delta(&o, &s, &d);
    event_is(&o, HEAD "{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\","
                      "\"stop_reason\":7}]}");
    oai_stream_fini(&s);
    buf_fini(&o);
}

TEST(chat_stream_in_order)
{
    struct oai_stream s;
    struct err e;
    struct buf o = { 0 };
    enum err_code rc = oai_stream_init(&s, &chat, true, &e);
    assert_ok(rc, e);
    const int32_t prompt[] = { 4 };
    oai_stream_role(&o, &s, 0, prompt, 1);
    event_is(&o, CHUNK_HEAD "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                            "\"logprobs\":null,\"finish_reason\":null}],\"prompt_token_ids\":[4],"
                            "\"usage\":null}");
    struct oai_delta d = { .text = T("hi") };
    oai_stream_delta(&o, &s, &d);
    event_is(&o, CHUNK_HEAD "{\"index\":0,\"delta\":{\"content\":\"hi\"},\"logprobs\":null,"
                            "\"finish_reason\":null}],\"usage\":null}");
    const struct oai_tool_call first = { 0, T("call_1"), T("f"), T("") };
    d = (struct oai_delta){ .tool = &first };
    oai_stream_delta(&o, &s, &d);
    event_is(&o, CHUNK_HEAD
             "{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"call_1\",\"type\":"
             "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"\"}}]},\"logprobs\":null,"
             "\"finish_reason\":null}],\"usage\":null}");
    const struct oai_tool_call more = { .arguments = T("{}") };
    d = (struct oai_delta){ .tool = &more };
    oai_stream_delta(&o, &s, &d);
    event_is(&o, CHUNK_HEAD "{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":"
                            "{\"arguments\":\"{}\"}}]},\"logprobs\":null,\"finish_reason\":null}]"
                            ",\"usage\":null}");
    const struct oai_usage usage = { 7, 2, 4, 0 };
    d = (struct oai_delta){ .index = 1,
                            .finish = OAI_FINISH_TOOL_CALLS,
                            .stop_reason = OAI_NO_STOP_REASON,
                            .usage = &usage };
    oai_stream_delta(&o, &s, &d);
    event_is(&o,
             CHUNK_HEAD "{\"index\":1,\"delta\":{},\"logprobs\":null,\"finish_reason\":"
                        "\"tool_calls\",\"stop_reason\":null}],\"usage\":" USAGE(7, 2, 9, 4) "}");
    oai_stream_usage(&o, &s, &usage, NULL);
    event_is(&o, CHUNK_HEAD "],\"usage\":" USAGE(7, 2, 9, 4) "}");
    const struct oai_cache_report cache = { 7, 1, 2, 0, 0, 4, 0 };
    oai_stream_usage(&o, &s, NULL, &cache);
    event_is(&o, CHUNK_HEAD "],\"cache\":{\"query_tokens\":7,\"hit_tokens\":1,\"miss_tokens\":"
                            "{\"never_seen\":2,\"evicted\":0,\"salt\":0,\"granularity\":4,"
                            "\"window\":0}}}");
    sse_done(&o);
    BUF_LIT(&o, SSE_PING);
    assert_memory_equal(o.p, "data: [DONE]\n\n: ping\n\n", o.n);
    oai_stream_fini(&s);
    buf_fini(&o);
}

TEST(errors)
{
    struct buf o = { 0 };
    struct err e;
    err_set_param(&e, ERR_INVALID, "top_k", "top_k: found 0.01\n\xff, expected \"an\" integer");
    oai_write_error(&o, &e);
    body_is(&o, "{\"error\":{\"message\":\"top_k: found 0.01?\?, expected \\\"an\\\" integer\","
                "\"type\":\"invalid_request_error\",\"param\":\"top_k\",\"code\":null}}");
    err_set_param(&e, ERR_LIMIT, "prompt", "m");
    oai_write_error(&o, &e);
    body_is(&o, "{\"error\":{\"message\":\"m\",\"type\":\"invalid_request_error\",\"param\":"
                "\"prompt\",\"code\":\"context_length_exceeded\"}}");
    err_set_param(&e, ERR_NOT_FOUND, "model", "m");
    oai_write_error(&o, &e);
    body_is(&o, "{\"error\":{\"message\":\"m\",\"type\":\"invalid_request_error\",\"param\":"
                "\"model\",\"code\":\"model_not_found\"}}");
    err_set(&e, ERR_BUSY, "m");
    oai_write_error(&o, &e);
    body_is(&o, "{\"error\":{\"message\":\"m\",\"type\":\"rate_limit_error\",\"param\":null,"
                "\"code\":\"rate_limit_exceeded\"}}");
    oai_write_http_error(&o, 401, "invalid_api_key", "no key");
    body_is(&o, "{\"error\":{\"message\":\"no key\",\"type\":\"authentication_error\",\"param\":"
                "null,\"code\":\"invalid_api_key\"}}");
    err_set(&e, ERR_GPU, "lost");
    oai_stream_error(&o, &e);
    buf_put(&o, "", 1);
    assert_string_equal(o.p, "data: {\"error\":{\"message\":\"lost\",\"type\":\"server_error\","
                             "\"param\":null,\"code\":null}}\n\ndata: [DONE]\n\n");
    buf_reset(&o);
    for (enum err_code c = ERR_OK; c < ERR_CODES; c++) {
        err_set(&e, c, "m");
        oai_write_error(&o, &e);
        check_json(o.p, o.n);
        buf_reset(&o);
    }
    buf_fini(&o);
}

TEST(models_and_tokens)
{
    struct buf o = { 0 };
    const struct oai_model m[] = { { "a", "quire", "/m/a", 5, 2048 },
                                   { "b", "quire", NULL, 5, 1 } };
    oai_write_models(&o, m, 2);
    body_is(&o, "{\"object\":\"list\",\"data\":[{\"id\":\"a\",\"object\":\"model\",\"created\":5,"
                "\"owned_by\":\"quire\",\"root\":\"/m/a\",\"parent\":null,\"max_model_len\":2048},"
                "{\"id\":\"b\",\"object\":\"model\",\"created\":5,\"owned_by\":\"quire\",\"root\":"
                "null,\"parent\":null,\"max_model_len\":1}]}");
    const int32_t ids[] = { 1, 20 };
    const struct oai_text strs[] = { T("\xc4\xa0the"), { NULL, 0 } };
    oai_write_tokenized(&o, ids, 2, strs, 2048);
    body_is(&o, "{\"count\":2,\"max_model_len\":2048,\"tokens\":[1,20],\"token_strs\":"
                "[\"\xc4\xa0the\",\"\"]}");
    oai_write_tokenized(&o, ids, 2, NULL, 8);
    body_is(&o, "{\"count\":2,\"max_model_len\":8,\"tokens\":[1,20],\"token_strs\":null}");
    oai_write_tokenized(&o, NULL, 0, strs, 8);
    body_is(&o, "{\"count\":0,\"max_model_len\":8,\"tokens\":[],\"token_strs\":[]}");
    oai_write_prompt(&o, "a\0b", 3);
    body_is(&o, "{\"prompt\":\"a\\u0000b\"}");
    buf_fini(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(completion_reply),  RUN(completion_with_everything), RUN(completion_logprobs),
        RUN(chat_reply),        RUN(chat_reply_with_tools),      RUN(prompt_logprobs),
        RUN(completion_stream), RUN(chat_stream_in_order),       RUN(errors),
        RUN(models_and_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
