/* choice_test.c: tokens to text with the bundled model's tokenizer: whole
 * characters, stops across tokens, stop ids, ends. */
#include "support/test.h"

#include <stdio.h>

#include "proto/utf8.h"
#include "server/generate/choice.h"
#include "support/rng.h"

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

/* A choice of a request parsed from JSON. */
struct fixture {
    struct oai_request req;
    struct stop_set stops;
    struct choice_rules rules;
    struct choice c;
};

static void set_up(struct fixture *f, const char *body)
{
    static const int32_t eos[] = { 1 };
    struct oai_defaults d;
    struct err e = { 0 };

    oai_defaults_init(&d);
    d.eos = eos;
    d.n_eos = 1;
    assert_ok(oai_request_parse(&f->req, OAI_COMPLETION, body, strlen(body), &d, &e), e);
    assert_ok(stop_set_init(&f->stops, f->req.stop, f->req.n_stop, &e), e);
    f->rules = (struct choice_rules){ tok, &f->req, &f->stops, f->req.ignore_eos ? 0 : 1 };
    assert_ok(choice_init(&f->c, &f->rules, &e), e);
}

static void tear_down(struct fixture *f)
{
    choice_fini(&f->c);
    stop_set_fini(&f->stops);
    oai_request_fini(&f->req);
}

static void push(struct fixture *f, int32_t id)
{
    struct sampled t = { .token = id };
    struct err e = { 0 };

    assert_ok(choice_push(&f->c, &t, &e), e);
}

/* Push the text's tokens until the choice ends; how many it took. */
static uint32_t push_text(struct fixture *f, const char *text)
{
    struct token_list l = { 0 };
    struct err e = { 0 };
    uint32_t n = 0;

    assert_ok(tokenizer_encode(tok, text, strlen(text), 0, 0, &l, &e), e);
    for (size_t i = 0; i < l.n && f->c.finish == OAI_FINISH_NONE; i++, n++)
        push(f, l.id[i]);
    token_list_fini(&l);
    return n;
}

static void expect_text(struct fixture *f, const char *want)
{
    if (f->c.text.n != strlen(want) || (f->c.text.n && memcmp(f->c.text.p, want, f->c.text.n) != 0))
        fail_msg("\"%.*s\", \"%s\" expected", (int)f->c.text.n, f->c.text.p, want);
}

TEST(stop_string_over_tokens)
{
    struct fixture f;

    set_up(&f, "{\"prompt\":\"x\",\"stop\":[\"een yel\"]}");
    push_text(&f, "red green yellow blue");
    assert_int_equal(f.c.finish, OAI_FINISH_STOP);
    expect_text(&f, "red gr");
    assert_int_equal(f.c.reason.text.n, 7);
    tear_down(&f);
    set_up(&f, "{\"prompt\":\"x\",\"stop\":\"Thu\",\"include_stop_str_in_output\":true}");
    push_text(&f, "Mon, Tue, Wed, Thu, Fri");
    expect_text(&f, "Mon, Tue, Wed, Thu");
    tear_down(&f);
}

TEST(held_text_comes_out_at_the_end)
{
    struct fixture f;
    struct err e = { 0 };

    set_up(&f, "{\"prompt\":\"x\",\"stop\":\"blue moon\"}");
    push_text(&f, "red blue");
    assert_true(f.c.text.n < 8);
    assert_ok(choice_end(&f.c, true, -1, &e), e);
    assert_int_equal(f.c.finish, OAI_FINISH_LENGTH);
    expect_text(&f, "red blue");
    tear_down(&f);
}

TEST(eos_has_no_text_and_no_reason_a_client_stop_id_has_its_id)
{
    struct fixture f;
    struct err e = { 0 };
    int32_t the = tokenizer_find(tok, "\xC4\xA0the");

    assert_true(the > 0);
    char body[96];
    snprintf(body, sizeof body, "{\"prompt\":\"x\",\"stop_token_ids\":[%d]}", the);
    set_up(&f, body);
    push_text(&f, "hi");
    push(&f, 1);
    assert_ok(choice_end(&f.c, false, 1, &e), e);
    expect_text(&f, "hi");
    assert_int_equal(f.c.reason.token, -1);
    assert_int_equal(f.c.finish, OAI_FINISH_STOP);
    tear_down(&f);
    set_up(&f, body);
    push_text(&f, "hi");
    push(&f, the);
    assert_ok(choice_end(&f.c, false, the, &e), e);
    expect_text(&f, "hi");
    assert_int_equal(f.c.reason.token, the);
    tear_down(&f);
}

TEST(min_tokens_looks_past_early_stops)
{
    struct fixture f;

    set_up(&f, "{\"prompt\":\"x\",\"stop\":\"a\",\"min_tokens\":3}");
    push_text(&f, "a a a");
    assert_int_equal(f.c.finish, OAI_FINISH_NONE);
    expect_text(&f, "a a a");
    push_text(&f, " big");
    assert_int_equal(f.c.finish, OAI_FINISH_NONE);
    push_text(&f, " cat");
    assert_int_equal(f.c.finish, OAI_FINISH_STOP);
    expect_text(&f, "a a a big c");
    tear_down(&f);
}

TEST(random_ids_stream_whole_characters_and_equal_the_whole)
{
    struct rng g = { 3 };
    struct err e = { 0 };

    for (int round = 0; round < 500; round++) {
        struct fixture f;
        struct buf joined = { 0 };
        int32_t ids[40];
        char *want;
        size_t n_want;

        set_up(&f, "{\"prompt\":\"x\",\"ignore_eos\":true}");
        for (int i = 0; i < 40; i++) { /* bytes and characters of many bytes */
            ids[i] = rng_below(&g, 2) ? 5 + (int32_t)rng_below(&g, 256)
                                      : (int32_t)rng_below(&g, (uint32_t)tokenizer_n_ids(tok) + 50);
            push(&f, ids[i]);
            assert_true(utf8_is_valid(f.c.text.p, f.c.text.n));
            buf_put(&joined, f.c.text.p, f.c.text.n);
            choice_sent(&f.c);
        }
        assert_ok(choice_end(&f.c, true, -1, &e), e);
        buf_put(&joined, f.c.text.p, f.c.text.n);
        assert_ok(tokenizer_decode(tok, ids, 40, true, &want, &n_want, &e), e);
        assert_int_equal(joined.n, n_want);
        assert_memory_equal(joined.p, want, n_want);
        free(want);
        buf_fini(&joined);
        tear_down(&f);
    }
}

TEST(a_limit_inside_a_character_ends_in_one_replacement)
{
    struct fixture f;
    struct err e = { 0 };
    struct token_list l = { 0 };

    set_up(&f, "{\"prompt\":\"x\"}");
    assert_ok(tokenizer_encode(tok, "\xF0\x9F\x98\x80", 4, 0, 0, &l, &e), e);
    assert_true(l.n > 1);
    for (size_t i = 0; i + 1 < l.n; i++)
        push(&f, l.id[i]);
    assert_int_equal(f.c.text.n, 0);
    assert_ok(choice_end(&f.c, true, -1, &e), e);
    expect_text(&f, "\xEF\xBF\xBD");
    assert_int_equal(f.c.n_tokens, l.n - 1);
    token_list_fini(&l);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(stop_string_over_tokens),
        RUN(held_text_comes_out_at_the_end),
        RUN(eos_has_no_text_and_no_reason_a_client_stop_id_has_its_id),
        RUN(min_tokens_looks_past_early_stops),
        RUN(random_ids_stream_whole_characters_and_equal_the_whole),
        RUN(a_limit_inside_a_character_ends_in_one_replacement),
    };

    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
