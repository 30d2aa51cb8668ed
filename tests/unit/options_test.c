/* options_test.c: where values come from, which one wins, and what is said about
 * wrong ones. */
#include "support/test.h"

#include <stdio.h>
#include <unistd.h>

#include "server/options.h"

#define ARGS(...) ((char *[]){ "quired", __VA_ARGS__, NULL })

static enum err_code read_args(struct srv_options *o, char **argv, char **env, struct err *e)
{
    int argc = 0;

    while (argv[argc])
        argc++;
    return srv_options_read(o, argc, argv, env, e);
}

static void expect_error(char **argv, const char *text)
{
    struct srv_options o;
    struct err e = { 0 };

    assert_int_equal(read_args(&o, argv, NULL, &e), ERR_INVALID);
    assert_contains(e.message, text);
    srv_options_fini(&o);
}

TEST(defaults)
{
    struct srv_options o;
    struct err e = { 0 };

    assert_ok(read_args(&o, ARGS("m"), NULL, &e), e);
    assert_string_equal(o.model, "m");
    assert_int_equal(o.port, 8000);
    assert_int_equal(o.block_size, 16);
    assert_int_equal(o.max_num_seqs, 256);
    assert_int_equal(o.max_body_bytes, 32 * 1000 * 1000 / 1000 / 1000 * 1024 * 1024);
    assert_true(o.prefix_caching);
    assert_true(o.pin_budget == 0);
    assert_int_equal(o.max_pins, 64);
    assert_int_equal(o.step_history, 512);
    assert_int_equal(o.look_ahead_tokens, 64);
    assert_false(o.poison);
    assert_true(o.shutdown_timeout == 30);
    assert_false(o.seed_given);
    srv_options_fini(&o);
}

TEST(command_line_forms)
{
    struct srv_options o;
    struct err e = { 0 };

    assert_ok(read_args(&o,
                        ARGS("--port=1", "--max-model-len", "128k", "--no-enable-prefix-caching",
                             "--served_model_name", "a, b", "--served-model-name", "c", "--dtype",
                             "float32", "--seed", "0", "--", "-odd-"),
                        NULL, &e),
              e);
    assert_int_equal(o.port, 1);
    assert_int_equal(o.max_model_len, 128000);
    assert_false(o.prefix_caching);
    assert_int_equal(o.served_names.n, 3);
    assert_string_equal(o.served_names.item[1], "b");
    assert_string_equal(o.served_names.item[2], "c");
    assert_int_equal(o.dtype, 1);
    assert_true(o.seed_given);
    assert_string_equal(o.model, "-odd-");
    srv_options_fini(&o);
}

TEST(nearer_sources_win)
{
    char path[] = "/tmp/quire-options-XXXXXX";
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "w");
    char *env[] = { "QUIRE_PORT=2", "QUIRE_API_KEY=env", "VLLM_API_KEY=other", NULL };
    struct srv_options o;
    struct err e = { 0 };

    fputs("# comment\n---\nport: 1\nmax_num_seqs = 7   # seven\nmodel: \"some dir\"\n"
          "enable-prefix-caching: false\nserved-model-name: [x, y]\napi-key: file\n\n",
          f);
    fclose(f);
    assert_ok(read_args(&o, ARGS("--config", path, "--port", "3"), env, &e), e);
    assert_int_equal(o.port, 3);
    assert_int_equal(o.max_num_seqs, 7);
    assert_string_equal(o.model, "some dir");
    assert_false(o.prefix_caching);
    assert_int_equal(o.served_names.n, 2);
    assert_int_equal(o.api_keys.n, 1);
    assert_string_equal(o.api_keys.item[0], "env");
    srv_options_fini(&o);
    assert_ok(read_args(&o, ARGS("--config", path), env, &e), e);
    assert_int_equal(o.port, 2);
    srv_options_fini(&o);
    unlink(path);
}

TEST(vllm_key_variable)
{
    char *env[] = { "VLLM_API_KEY=k", NULL };
    struct srv_options o;
    struct err e = { 0 };

    assert_ok(read_args(&o, ARGS("m"), env, &e), e);
    assert_string_equal(o.api_keys.item[0], "k");
    srv_options_fini(&o);
}

TEST(unknown_flags_name_the_nearest)
{
    expect_error(ARGS("--max-num-seq", "1"), "did you mean --max-num-seqs?");
    expect_error(ARGS("--prot", "1"), "did you mean --port?");
    expect_error(ARGS("--no-enable-prefix-cache"), "did you mean --no-enable-prefix-caching?");
    expect_error(ARGS("--zzzzzzzzzz"), "--help lists them");
    expect_error(ARGS("-x"), "-x: unknown option");
}

TEST(wrong_values_name_flag_found_and_expected)
{
    expect_error(ARGS("--port", "70000"), "--port: 70000 is outside 0 to 65535");
    expect_error(ARGS("--port", "1.5"), "--port: \"1.5\" is not a number");
    expect_error(ARGS("--port"), "--port: needs a value");
    expect_error(ARGS("--dtype", "int4", "m"), "is none of auto|float32|bfloat16|float16");
    expect_error(ARGS("--plan=maybe", "m"), "is not true or false");
    expect_error(ARGS("--block-size", "48", "m"), "not a power of two");
    expect_error(ARGS("--http-idle-timeout", "nan", "m"), "is not a number");
    expect_error(ARGS("a", "b"), "a second MODEL");
    expect_error(ARGS("--served-model-name", "a,,b", "m"), "an empty entry");
    expect_error(ARGS("--config", "/nonexistent", "m"), "/nonexistent");
    expect_error((char *[]){ "quired", NULL }, "no MODEL given");
}

TEST(config_errors_name_file_and_line)
{
    char path[] = "/tmp/quire-options-XXXXXX";
    FILE *f = fdopen(mkstemp(path), "w");
    char want[64];

    fputs("port: 1\nprot: 2\n", f);
    fclose(f);
    snprintf(want, sizeof want, "%s line 2: --prot: unknown option", path);
    expect_error(ARGS("--config", path, "m"), want);
    unlink(path);
}

TEST(flags_without_effect_are_accepted)
{
    struct srv_options o;
    struct err e = { 0 };

    assert_ok(read_args(&o, ARGS("--swap-space", "4", "--trust-remote-code", "m"), NULL, &e), e);
    assert_int_equal(o.n_ignored, 2);
    assert_string_equal(o.model, "m");
    srv_options_fini(&o);
}

/* What --help prints, NUL-terminated; free(). */
static char *help_text(void)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);

    assert_non_null(f);
    srv_options_help(f);
    assert_int_equal(fclose(f), 0);
    char *copy = strdup(text); /* gcc takes what the stream wrote for a local */
    free(text);
    assert_non_null(copy);
    return copy;
}

TEST(every_row_has_help_and_a_default_that_parses)
{
    struct srv_option row, other;
    char *help = help_text();
    size_t i;

    for (i = 0; srv_options_row(i, &row); i++) {
        struct srv_options o;
        struct err e = { 0 };
        char arg[256], shown[96];

        assert_true(strlen(row.help) >= 10);
        for (size_t k = 0; k < i && srv_options_row(k, &other); k++)
            assert_string_not_equal(row.name, other.name);
        /* Its own line, with help on the next one. */
        snprintf(shown, sizeof shown, "\n  --%s", row.name);
        const char *at = strstr(help, shown);
        while (at && at[strlen(shown)] != ' ' && at[strlen(shown)] != '\n')
            at = strstr(at + 1, shown);
        const char *line = at ? strchr(at + 1, '\n') : NULL;
        if (line == NULL || strncmp(line + 9, row.help, strlen(row.help)) != 0)
            fail_msg("--%s: --help does not show it with its text", row.name);
        if (row.initial == NULL)
            continue;
        snprintf(arg, sizeof arg, "--%s=%s", row.name, row.initial);
        assert_ok(read_args(&o, ARGS(arg, "m"), NULL, &e), e);
        srv_options_fini(&o);
    }
    assert_true(i > 0);
    free(help);
}

TEST(sizes)
{
    static const struct {
        const char *text;
        uint64_t value;
    } good[] = {
        { "0", 0 },           { "4096", 4096 },       { "128k", 128000 },     { "128K", 131072 },
        { "128Ki", 131072 },  { "128KiB", 131072 },   { "1.5G", 1610612736 }, { "25.6k", 25600 },
        { "2g", 2000000000 }, { "1T", 1099511627776 }
    };
    static const char *const bad[] = { "",      "-1",  "1.5", "k",   "0x10",    "1kk",
                                       "1e400", "inf", "nan", "1 k", "9999999T" };
    uint64_t v;

    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(srv_parse_size(good[i].text, &v, NULL), ERR_OK);
        assert_int_equal(v, good[i].value);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (srv_parse_size(bad[i], &v, NULL) == ERR_OK)
            fail_msg("\"%s\" was read as %llu", bad[i], (unsigned long long)v);
}

TEST(edit_distance)
{
    assert_int_equal(srv_edit_distance("", "abc"), 3);
    assert_int_equal(srv_edit_distance("port", "port"), 0);
    assert_int_equal(srv_edit_distance("prot", "port"), 1);
    assert_int_equal(srv_edit_distance("kitten", "sitting"), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(defaults),
        RUN(command_line_forms),
        RUN(nearer_sources_win),
        RUN(vllm_key_variable),
        RUN(unknown_flags_name_the_nearest),
        RUN(wrong_values_name_flag_found_and_expected),
        RUN(config_errors_name_file_and_line),
        RUN(flags_without_effect_are_accepted),
        RUN(every_row_has_help_and_a_default_that_parses),
        RUN(sizes),
        RUN(edit_distance),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
