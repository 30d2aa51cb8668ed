/* log_test.c: what a log line looks like, in both forms, whatever is put in. */
#include "support/test.h"

#include <stdio.h>
#include <unistd.h>

#include "proto/text/json.h"
#include "proto/utf8.h"
#include "server/base/log.h"

/* A log into a pipe, and what it wrote: one string until the next call. */
struct sink {
    struct srv_log log;
    int fd;
    char text[65536];
};

static struct sink sink;

static struct srv_log *sink_open(int level, int format)
{
    int fd[2];

    assert_int_equal(pipe(fd), 0);
    sink.fd = fd[0];
    srv_log_init(&sink.log, fd[1], level, format);
    return &sink.log;
}

/* Everything written; the log is closed. */
static const char *written(void)
{
    size_t n = 0;
    ssize_t r;

    close(sink.log.fd);
    while ((r = read(sink.fd, sink.text + n, sizeof sink.text - 1 - n)) > 0)
        n += (size_t)r;
    close(sink.fd);
    sink.text[n] = '\0';
    return sink.text;
}

/* The text behind the time stamp, which has a fixed form. */
static const char *behind_stamp(const char *line)
{
    static const char form[] = "dddd-dd-ddTdd:dd:dd.dddZ";

    for (size_t i = 0; form[i]; i++)
        if (form[i] == 'd' ? line[i] < '0' || line[i] > '9' : line[i] != form[i])
            fail_msg("\"%s\" does not begin with %s", line, form);
    return line + sizeof form - 1;
}

static size_t count(const char *text, char c)
{
    size_t n = 0;

    for (; *text; text++)
        n += *text == c;
    return n;
}

TEST(text_line)
{
    srv_logf(sink_open(SRV_INFO, SRV_LOG_TEXT), SRV_WARNING, "%d blocks of %s", 3, "four");
    assert_string_equal(behind_stamp(written()), " warning 3 blocks of four\n");
}

TEST(json_line)
{
    srv_logf(sink_open(SRV_INFO, SRV_LOG_JSON), SRV_ERROR, "a \"b\" \\ \t c");
    assert_contains(written(), "\"level\":\"error\",\"message\":\"a \\\"b\\\" \\\\ \\t c\"}\n");
    assert_memory_equal(sink.text, "{\"time\":\"", 9);
    behind_stamp(sink.text + 9);
}

TEST(one_message_is_one_line)
{
    srv_logf(sink_open(SRV_INFO, SRV_LOG_TEXT), SRV_INFO, "a\nb\r\nc");
    assert_string_equal(behind_stamp(written()), " info a b  c\n");
}

TEST(control_characters_cannot_draw_on_a_terminal)
{
    srv_logf(sink_open(SRV_INFO, SRV_LOG_TEXT), SRV_INFO, "a\x1b[2Jb\x7f");
    assert_string_equal(behind_stamp(written()), " info a [2Jb \n");
}

TEST(levels)
{
    static const char *const names[] = { "debug", "info", "warning", "error" };

    for (int least = SRV_DEBUG; least <= SRV_ERROR; least++) {
        struct srv_log *l = sink_open(least, SRV_LOG_TEXT);
        for (int level = SRV_DEBUG; level <= SRV_ERROR; level++) {
            assert_int_equal(srv_log_shows(l, (enum srv_log_level)level), level >= least);
            srv_logf(l, (enum srv_log_level)level, "x");
        }
        assert_int_equal(count(written(), '\n'), SRV_ERROR - least + 1);
        for (int level = least; level <= SRV_ERROR; level++)
            assert_contains(sink.text, names[level]);
    }
}

/* Cut where a character ends, in both forms. */
TEST(long_messages_are_cut_between_characters)
{
    char longer[4096];

    for (int shift = 0; shift < 3; shift++)
        for (int format = SRV_LOG_TEXT; format <= SRV_LOG_JSON; format++) {
            memset(longer, 'x', sizeof longer);
            for (size_t i = (size_t)shift; i + 3 < sizeof longer; i += 3)
                memcpy(longer + i, "\xe2\x82\xac", 3); /* the euro sign */
            longer[sizeof longer - 1] = '\0';
            srv_logf(sink_open(SRV_INFO, format), SRV_INFO, "%s", longer);
            const char *line = written();
            size_t n = strlen(line);
            assert_true(n > 900 && n < 1300);
            assert_true(line[n - 1] == '\n' && count(line, '\n') == 1);
            assert_true(utf8_is_valid(line, n));
            assert_null(strstr(line, "\xef\xbf\xbd"));
            if (format == SRV_LOG_JSON)
                assert_memory_equal(line + n - 3, "\"}\n", 3);
        }
}

static const struct srv_request_line request = {
    .id = "cmpl-1",
    .request_id = "mine",
    .path = "/v1/completions",
    .status = 200,
    .finish = "stop",
    .n_prompt = 1,
    .n_cached = 2,
    .n_output = 3,
    .n_choices = 4,
    .n_preempted = 5,
    .queued_us = 6000,
    .prefill_us = 7000,
    .decode_us = 8000,
    .first_token_us = 9000,
    .total_us = 10500,
};

TEST(request_as_text)
{
    srv_log_request(sink_open(SRV_INFO, SRV_LOG_TEXT), &request);
    assert_string_equal(behind_stamp(written()),
                        " info request cmpl-1 (mine) /v1/completions: 200 stop, prompt 1 "
                        "(cached 2), output 3, choices 4, queue 6.0 ms, prefill 7.0 ms, decode "
                        "8.0 ms, first token 9.0 ms, total 10.5 ms, preempted\n");
}

TEST(request_as_json)
{
    srv_log_request(sink_open(SRV_DEBUG, SRV_LOG_JSON), &request);
    assert_contains(written(),
                    ",\"level\":\"info\",\"message\":\"request\",\"id\":\"cmpl-1\","
                    "\"request_id\":\"mine\",\"path\":\"/v1/completions\",\"status\":200,"
                    "\"finish\":\"stop\",\"prompt_tokens\":1,\"cached_tokens\":2,"
                    "\"output_tokens\":3,\"choices\":4,\"preemptions\":5,\"queue_us\":6000,"
                    "\"prefill_us\":7000,\"decode_us\":8000,\"first_token_us\":9000,"
                    "\"total_us\":10500}\n");
}

TEST(request_below_the_level)
{
    srv_log_request(sink_open(SRV_WARNING, SRV_LOG_TEXT), &request);
    assert_string_equal(written(), "");
}

/* A client chooses its x-request-id and path: a long one costs no other field. */
TEST(long_fields_leave_the_others_whole)
{
    char id[3001];
    struct srv_request_line r = request;

    for (size_t i = 0; i < sizeof id - 1; i += 2)
        memcpy(id + i, "\xc3\xa9", 2);
    id[sizeof id - 1] = '\0';
    r.request_id = id;
    srv_log_request(sink_open(SRV_INFO, SRV_LOG_TEXT), &r);
    assert_contains(written(), "total 10.5 ms, preempted\n");
    assert_true(utf8_is_valid(sink.text, strlen(sink.text)));
    r.request_id = "a\nb";
    r.path = id;
    srv_log_request(sink_open(SRV_INFO, SRV_LOG_TEXT), &r);
    assert_contains(written(), "(a b) ");
    assert_contains(sink.text, "total 10.5 ms, preempted\n");
    assert_int_equal(count(sink.text, '\n'), 1);
}

TEST(a_log_that_is_gone_stops_nobody)
{
    struct srv_log l;

    srv_log_init(&l, -1, SRV_INFO, SRV_LOG_TEXT);
    srv_logf(&l, SRV_INFO, "x");
    srv_log_request(&l, &request);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(text_line),
        RUN(json_line),
        RUN(one_message_is_one_line),
        RUN(control_characters_cannot_draw_on_a_terminal),
        RUN(levels),
        RUN(long_messages_are_cut_between_characters),
        RUN(request_as_text),
        RUN(request_as_json),
        RUN(request_below_the_level),
        RUN(long_fields_leave_the_others_whole),
        RUN(a_log_that_is_gone_stops_nobody),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
