/* server_alloc_test.c: every allocation on a request's way fails once: the error
 * is ERR_NOMEM (or the parser's 500), nothing leaks, and the same work succeeds
 * afterwards. */
#include "support/test.h"

#include "server/generate/choice.h"
#include "server/http/parser.h"
#include "server/options.h"
#include "server/engine/pins.h"
#include "server/generate/prompt.h"
#include "server/engine/steps.h"
#include "support/alloc_fail.h"

static struct tokenizer *tok;

static int open_tokenizer(void **state)
{
    struct err e = { 0 };

    (void)state;
    assert_ok(tokenizer_open(&tok, "deploy/models/tales-7m", &e), e);
    return 0;
}

static int close_tokenizer(void **state)
{
    (void)state;
    tokenizer_close(tok);
    return 0;
}

/* Run fn with its n-th allocation failing, for every n until none is left. */
static void every_allocation(enum err_code (*fn)(struct err *))
{
    int64_t n = 0;

    for (;; n++) {
        struct err e = { 0 };
        alloc_fail_at(n, false);
        enum err_code rc = fn(&e);
        bool fired = alloc_fail_fired();
        alloc_fail_at(-1, false);
        if (!fired) {
            assert_ok(rc, e);
            break;
        }
        if (rc != ERR_NOMEM)
            fail_msg("allocation %lld failed, and the call said %d: %s", (long long)n, rc,
                     e.message);
    }
    assert_true(n > 0);
}

static enum err_code read_options(struct err *e)
{
    static char *argv[] = { "quired", "--served-model-name", "a,b", "--port", "1", "m" };
    struct srv_options o;
    enum err_code rc = srv_options_read(&o, 6, argv, NULL, e);

    srv_options_fini(&o);
    return rc;
}

TEST(options)
{
    every_allocation(read_options);
}

static enum err_code read_prompts(struct err *e)
{
    static const char body[] = "{\"prompt\":[\"Once upon a time\",\"<|user|> é\"],\"echo\":true}";
    static const char *const names[] = { "m" };
    static struct served served;
    struct prompt_set s;
    enum err_code rc;

    served.tokenizer = tok;
    served.max_model_len = 100;
    served.name = names;
    served.n_names = 1;
    oai_defaults_init(&served.defaults);
    rc = prompt_set_read(&s, &served, OAI_COMPLETION, body, sizeof body - 1, NULL, e);
    if (rc == ERR_OK)
        prompt_set_fini(&s);
    return rc;
}

TEST(prompts)
{
    every_allocation(read_prompts);
}

static struct oai_request req;

static enum err_code run_choice(struct err *e)
{
    struct stop_set stops;
    struct choice c;
    const int32_t top[2] = { 5, 6 };
    const float lp[2] = { -1, -2 };
    enum err_code rc = stop_set_init(&stops, req.stop, req.n_stop, e);
    struct choice_rules rules = { tok, &req, &stops, 0 };

    if (rc != ERR_OK)
        return rc;
    rc = choice_init(&c, &rules, e);
    if (rc == ERR_OK) {
        for (int32_t i = 0; rc == ERR_OK && i < 200; i++) {
            struct sampled t = { 300 + i, -1, 2, top, lp, false };
            rc = choice_push(&c, &t, e);
        }
        if (rc == ERR_OK)
            rc = choice_end(&c, true, -1, e);
        choice_fini(&c);
    }
    stop_set_fini(&stops);
    return rc;
}

TEST(choices)
{
    static const char body[] = "{\"prompt\":\"x\",\"stop\":[\"zzzz\",\"yyyy\"],\"logprobs\":2,"
                               "\"return_token_ids\":true}";
    struct oai_defaults d;
    struct err e = { 0 };

    oai_defaults_init(&d);
    assert_ok(oai_request_parse(&req, OAI_COMPLETION, body, sizeof body - 1, &d, &e), e);
    every_allocation(run_choice);
    oai_request_fini(&req);
}

static enum err_code parse_http(struct err *e)
{
    static const char text[] =
        "POST /v1/completions?x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        "5\r\nhello\r\n0\r\n\r\n";
    struct http_parser p;
    struct http_limits lim = { .head_bytes = 4096, .body_bytes = 4096 };
    size_t at = 0, used;
    enum parse_event ev = PARSE_MORE;

    http_parser_init(&p, &lim);
    while (ev != PARSE_BAD && ev != PARSE_MESSAGE) {
        ev = http_parser_feed(&p, text + at, sizeof text - 1 - at, &used);
        at += used;
    }
    if (ev == PARSE_BAD) {
        assert_int_equal(p.status, 500);
        err_set(e, ERR_NOMEM, "%s", p.problem);
    }
    http_parser_fini(&p);
    return ev == PARSE_BAD ? ERR_NOMEM : ERR_OK;
}

TEST(http)
{
    every_allocation(parse_http);
}

/* Tables that the engine makes at its start, and a copy that it makes later. */
static enum err_code make_tables(struct err *e)
{
    struct srv_pins *pins = NULL;
    struct srv_steps *steps = NULL;
    struct srv_steps_copy copy;
    enum err_code rc = srv_pins_create(&pins, 8, e);

    if (rc == ERR_OK)
        rc = srv_steps_create(&steps, 8, 4, e);
    if (rc == ERR_OK)
        rc = srv_steps_copy(steps, 8, true, &copy, e);
    if (rc == ERR_OK)
        srv_steps_copy_fini(&copy);
    srv_steps_destroy(steps);
    srv_pins_destroy(pins);
    return rc;
}

TEST(tables)
{
    every_allocation(make_tables);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(options), RUN(prompts), RUN(choices), RUN(http), RUN(tables),
    };

    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
