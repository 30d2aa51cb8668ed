/* json_test.c: what the JSON reader takes and refuses, and what the writer
 * writes. */
#include "proto/text/json.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <time.h>

#include "proto/utf8.h"
#include "support/test.h"

static struct json_doc parsed(const char *text, size_t n)
{
    struct json_doc doc;
    struct err e;
    enum err_code rc = json_parse(&doc, text, n, 0, &e);
    assert_ok(rc, e);
    return doc;
}

/* The message of the refusal; fails when the text is taken. */
static const char *refused(struct err *e, const char *text, size_t n)
{
    struct json_doc doc;
    *e = (struct err){ 0 };
    enum err_code rc = json_parse(&doc, text, n, 0, e);
    if (rc == ERR_OK)
        fail_msg("accepted: %.*s", (int)n, text);
    assert_int_equal(rc, ERR_INVALID);
    assert_true(utf8_is_valid(e->message, strlen(e->message)));
    assert_null(doc.value);
    assert_null(doc.strings);
    return e->message;
}

TEST(takes_valid_texts)
{
    static const char *const texts[] = {
        "null",
        " true ",
        "false",
        "0",
        "-0",
        "12",
        "-12",
        "1.5",
        "1e2",
        "1E+2",
        "0.0e-0",
        "\"\"",
        "\"a\"",
        "[]",
        "[ ]",
        "{}",
        "{ }",
        "[1,2,[3]]",
        "{\"a\":{\"b\":[]}}",
        "\t\r\n [ 1 , 2 ] \n",
        "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\"",
        "\"\x7f\"",
        "{\"\":1}",
        "[[],{},\"\",null]",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct json_doc doc = parsed(texts[i], strlen(texts[i]));
        json_doc_fini(&doc);
    }
}

TEST(refuses_invalid_texts)
{
    static const char *const texts[] = {
        "",
        " ",
        "nul",
        "nulll",
        "True",
        "NaN",
        "Infinity",
        "-",
        "+1",
        "01",
        "-01",
        "1.",
        ".5",
        "1e",
        "1e+",
        "0x10",
        "1 2",
        "\"",
        "\"a",
        "\"\\",
        "\"\\u12\"",
        "\"\\u12g4\"",
        "\"\\x41\"",
        "\"\\'\"",
        "'a'",
        "[",
        "]",
        "[1",
        "[1,",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{",
        "}",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":1",
        "{\"a\":1,",
        "{\"a\":1,}",
        "{a:1}",
        "{1:1}",
        "{\"a\" 1}",
        "{\"a\":1 \"b\":2}",
        "[1}",
        "{\"a\":1]",
        "null null",
        "{}x",
        "[]]",
        "\"a\nb\"",
        "\"a\tb\"",
        "\"\x01\"",
        "1e999",
        "-1e999",
        "// c\n1",
        "[1]/**/",
        "\xef\xbb\xbf{}",
    };
    struct err e;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        refused(&e, texts[i], strlen(texts[i]));
    refused(&e, "1\0", 2);
    refused(&e, "\"a\0b\"", 5);
}

TEST(refusals_say_where_and_what)
{
    struct err e;
    assert_contains(refused(&e, "{\"a\":1 \"b\":2}", 13), "byte 7: found '\"', expected ','");
    assert_string_equal(e.param, "");
    assert_contains(refused(&e, "{\"a\":", 5), "byte 5: found the end, expected a value");
    assert_string_equal(e.param, "a");
    assert_contains(refused(&e, "{\"top_p\":[1e999]}", 17), "top_p: ");
    assert_string_equal(e.param, "top_p");
    assert_contains(refused(&e, "[\x80]", 3), "not valid UTF-8: byte 1 is 0x80");
}

TEST(strings_keep_nul_and_pairs)
{
    static const char text[] = "[\"A\\u0000B\",\"\\ud83d\\ude00\",\"\\u20ac\\u00e9\\u0041\"]";
    struct json_doc doc = parsed(text, sizeof text - 1);
    const struct json *v = json_first(doc.value);
    assert_int_equal(v->n, 3);
    assert_memory_equal(v->u.string, "A\0B", 4);
    v = json_next(v);
    assert_int_equal(v->n, 4);
    assert_memory_equal(v->u.string, "\xf0\x9f\x98\x80", 5);
    v = json_next(v);
    assert_string_equal(v->u.string, "\xe2\x82\xac\xc3\xa9"
                                     "A");
    json_doc_fini(&doc);
}

TEST(lone_surrogates_and_bad_bytes_are_refused)
{
    static const char *const texts[] = {
        "{\"prompt\":\"\\ud83d\"}",        "{\"prompt\":\"\\ude00\"}",
        "{\"prompt\":\"\\ud83dx\"}",       "{\"prompt\":\"\\ud83d\\u0041\"}",
        "{\"prompt\":\"\\ud83d\\ud83d\"}", "{\"prompt\":\"\\ude00\\ud83d\"}",
    };
    struct err e;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_contains(refused(&e, texts[i], strlen(texts[i])), "surrogate");
        assert_string_equal(e.param, "prompt");
    }
    static const char *const bytes[] = {
        "\"\xc0\x80\"",         "\"\xc4\xe3\xba\xc3\"", "\"\xed\xa0\x80\"",
        "\"\xf4\x90\x80\x80\"", "\"\xe2\x82\"",         "\"\xff\"",
    };
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++)
        assert_contains(refused(&e, bytes[i], strlen(bytes[i])), "UTF-8");
}

TEST(duplicate_keys_are_refused)
{
    struct err e;
    assert_contains(refused(&e, "{\"n\":1,\"n\":2}", 13), "\"n\" twice");
    assert_string_equal(e.param, "n");
    refused(&e, "{\"a\":{\"b\":1,\"\\u0062\":2}}", 24);
    assert_string_equal(e.param, "a");
    static const char apart[] = "{\"stop\":1,\"stop\\u0000x\":2,\"Stop\":3}";
    struct json_doc doc = parsed(apart, sizeof apart - 1);
    assert_int_equal(json_get(doc.value, "stop")->u.integer, 1);
    assert_int_equal(json_get(doc.value, "Stop")->u.integer, 3);
    assert_null(json_get(doc.value, "top"));
    json_doc_fini(&doc);
    /* Enough keys for the sorted check: distinct ones pass, one pair does not. */
    char big[4000];
    for (int twice = 0; twice < 2; twice++) {
        size_t n = 0;
        for (int i = 0; i < 100; i++)
            n += (size_t)sprintf(big + n, "%c\"k%d\":{}", i == 0 ? '{' : ',',
                                 twice && i == 77 ? 13 : i);
        big[n++] = '}';
        if (twice)
            assert_contains(refused(&e, big, n), "\"k13\" twice");
        else {
            doc = parsed(big, n);
            assert_int_equal(doc.value->n, 100);
            json_doc_fini(&doc);
        }
    }
}

/* The reader's hash of a key of eight bytes is (8 ^ key) * factor, folded: these
 * keys all fold to zero. */
TEST(keys_chosen_to_collide_are_told_apart)
{
    enum { KEYS = 2000 };
    uint64_t factor = UINT64_C(0x9e3779b97f4a7c15), inverse = 1;
    for (int i = 0; i < 6; i++)
        inverse *= 2 - factor * inverse;
    assert_true(factor * inverse == 1);
    char *text = malloc(KEYS * 16);
    size_t n = 0;
    uint32_t found = 0;
    text[n++] = '{';
    for (uint64_t v = 1; found < KEYS; v++) {
        uint64_t key = ((v << 32 | v) * inverse) ^ 8;
        char byte[8];
        bool plain = true;
        memcpy(byte, &key, 8);
        for (int i = 0; i < 8; i++)
            plain = plain && byte[i] > ' ' && byte[i] < 0x7f && byte[i] != '"' && byte[i] != '\\';
        if (!plain)
            continue;
        n += (size_t)sprintf(text + n, "%s\"%.8s\":1", found++ > 0 ? "," : "", byte);
    }
    text[n++] = '}';
    struct json_doc doc = parsed(text, n);
    assert_int_equal(doc.value->n, KEYS);
    json_doc_fini(&doc);
    memcpy(text + 2, text + n - 12, 8); /* the first is the last */
    struct err e;
    assert_contains(refused(&e, text, n), "twice in one object");
    free(text);
}

TEST(in_place_is_the_same_without_a_copy)
{
    static const char text[] =
        "{\"a\\u0041\":[\"\",\"x\\ty\",12345678901234567890123,-1.5],\"\":\"z\"}";
    char own[sizeof text];
    memcpy(own, text, sizeof text);
    struct json_doc doc;
    struct err e;
    assert_ok(json_parse_in_place(&doc, "file", own, sizeof text - 1, 0, &e), e);
    assert_null(doc.strings);
    const struct json *list = json_get(doc.value, "aA");
    assert_int_equal(list->n, 4);
    const struct json *v = json_next(json_first(list));
    assert_string_equal(v->u.string, "x\ty");
    assert_true(v->u.string > own && v->u.string < own + sizeof own);
    v = json_next(v);
    assert_int_equal(v->kind, JSON_BIGINT);
    assert_memory_equal(v->u.digits, "12345678901234567890123", v->n);
    struct buf o = { 0 };
    json_put_value(&o, doc.value);
    static const char again[] = "{\"aA\":[\"\",\"x\\ty\",12345678901234567890123,-1.5],\"\":\"z\"}";
    assert_int_equal(o.n, sizeof again - 1);
    assert_memory_equal(o.p, again, o.n);
    buf_fini(&o);
    json_doc_fini(&doc);
    char bad[] = "{\"k\":[1,}";
    assert_int_equal(json_parse_in_place(&doc, "file.json", bad, sizeof bad - 1, 0, &e),
                     ERR_INVALID);
    assert_string_equal(e.message,
                        "k: file.json is not valid JSON: byte 8: found '}', expected a value");
    assert_null(doc.value);
}

TEST(numbers_keep_their_value)
{
    static const struct {
        const char *text;
        enum json_kind kind;
        int64_t integer;
        double real;
    } rows[] = {
        { "9223372036854775807", JSON_INT, INT64_MAX, 0 },
        { "-9223372036854775808", JSON_INT, INT64_MIN, 0 },
        { "9223372036854775808", JSON_BIGINT, 0, 9223372036854775808.0 },
        { "-9223372036854775809", JSON_BIGINT, 0, -9223372036854775809.0 },
        { "18446744073709551616", JSON_BIGINT, 0, 18446744073709551616.0 },
        { "00", JSON_NULL, 0, 0 },
        { "1.0", JSON_REAL, 0, 1 },
        { "0.1", JSON_REAL, 0, 0.1 },
        { "-0.0", JSON_REAL, 0, -0.0 },
        { "1e-400", JSON_REAL, 0, 0 },
        { "4.9e-324", JSON_REAL, 0, 4.9e-324 },
        { "1.7976931348623157e308", JSON_REAL, 0, DBL_MAX },
        { "123456789012345678901234567890", JSON_BIGINT, 0, 123456789012345678901234567890.0 },
        { "0.30000000000000004", JSON_REAL, 0, 0.30000000000000004 },
        { "9007199254740993e0", JSON_REAL, 0, 9007199254740992.0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct err e;
        if (rows[i].kind == JSON_NULL) {
            refused(&e, rows[i].text, strlen(rows[i].text));
            continue;
        }
        struct json_doc doc = parsed(rows[i].text, strlen(rows[i].text));
        assert_int_equal(doc.value->kind, rows[i].kind);
        if (rows[i].kind == JSON_INT)
            assert_true(doc.value->u.integer == rows[i].integer);
        else {
            double v = json_number(doc.value);
            assert_memory_equal(&v, &rows[i].real, sizeof(double));
        }
        if (rows[i].kind == JSON_BIGINT) { /* digit by digit */
            assert_int_equal(doc.value->n, strlen(rows[i].text));
            assert_memory_equal(doc.value->u.digits, rows[i].text, doc.value->n);
        }
        json_doc_fini(&doc);
    }
}

TEST(spans_lead_from_value_to_value)
{
    static const char text[] = "{\"a\":[1,[2,{\"x\":3}],4],\"b\":\"s\"}";
    struct json_doc doc = parsed(text, sizeof text - 1);
    const struct json *a = json_get(doc.value, "a"), *b = json_get(doc.value, "b");
    assert_int_equal(a->n, 3);
    assert_int_equal(json_span(a), 8);
    const struct json *last = json_next(json_next(json_first(a)));
    assert_int_equal(last->u.integer, 4);
    assert_true(json_string_is(b, "s"));
    assert_int_equal(json_span(doc.value), 12);
    json_doc_fini(&doc);
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

TEST(hostile_nesting_is_refused_at_once)
{
    enum { N = 100000 };
    char *text = malloc(N * 5);
    struct err e;
    double start = cpu_seconds();
    memset(text, '[', N);
    assert_contains(refused(&e, text, N), "nested deeper");
    for (int i = 0; i < N; i++)
        memcpy(text + 5 * i, "{\"a\":", 5);
    assert_contains(refused(&e, text, N * 5), "nested deeper");
    assert_true(cpu_seconds() - start < 0.05);
    memset(text, '[', JSON_MAX_DEPTH);
    memset(text + JSON_MAX_DEPTH, ']', JSON_MAX_DEPTH);
    struct json_doc doc = parsed(text, 2 * JSON_MAX_DEPTH);
    json_doc_fini(&doc);
    free(text);
}

TEST(value_bound_is_a_limit)
{
    struct json_doc doc;
    struct err e;
    assert_int_equal(json_parse(&doc, "[1,2,3]", 7, 3, &e), ERR_LIMIT);
    assert_contains(e.message, "more than 3");
    assert_int_equal(json_parse(&doc, "[1,2,3]", 7, 4, &e), ERR_OK);
    json_doc_fini(&doc);
}

TEST(long_numbers_are_refused)
{
    char text[400];
    memset(text, '1', sizeof text);
    struct err e;
    assert_contains(refused(&e, text, sizeof text), "longer than 255");
    struct json_doc doc = parsed(text, 255);
    json_doc_fini(&doc);
}

/* ------------------------------------------------------------------ writer */

static char *text_of(struct buf *o)
{
    buf_put(o, "", 1);
    assert_false(o->failed);
    return o->p;
}

TEST(escapes_exactly_what_must_be)
{
    static const struct {
        const char *in;
        size_t n;
        const char *out;
    } rows[] = {
        { "", 0, "\"\"" },
        { "plain text", 10, "\"plain text\"" },
        { "a\"b\\c/d", 7, "\"a\\\"b\\\\c/d\"" },
        { "\b\f\n\r\t", 5, "\"\\b\\f\\n\\r\\t\"" },
        { "\0\x01\x1f\x7f", 4, "\"\\u0000\\u0001\\u001f\x7f\"" },
        { "caf\xc3\xa9 \xf0\x9f\x98\x80", 10, "\"caf\xc3\xa9 \xf0\x9f\x98\x80\"" },
        { "\xc2\x85\xe2\x80\xa8\xe2\x80\xa9\xe2\x80\xa7", 11,
          "\"\\u0085\\u2028\\u2029\xe2\x80\xa7\"" },
        { "a\xff\x62\xf0\x9f\x98", 6, "\"a\xef\xbf\xbd\x62\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"" },
        { "12345678\"", 9, "\"12345678\\\"\"" },
        { "\xc3\xa9\n\xc3\xa9", 5, "\"\xc3\xa9\\n\xc3\xa9\"" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct buf o = { 0 };
        json_put_string(&o, rows[i].in, rows[i].n);
        assert_string_equal(text_of(&o), rows[i].out);
        buf_fini(&o);
    }
    struct buf o = { 0 };
    json_put_string(&o, NULL, 0);
    json_put_escaped(&o, NULL, 0);
    assert_string_equal(text_of(&o), "null");
    buf_fini(&o);
}

TEST(numbers_are_written_short)
{
    static const struct {
        double v;
        const char *as_double, *as_float;
    } rows[] = {
        { 0, "0.0", "0.0" },
        { -0.0, "-0.0", "-0.0" },
        { 1, "1.0", "1.0" },
        { -1.5, "-1.5", "-1.5" },
        { 0.1, "0.1", "0.1" },
        { 123456.75, "123456.75", "123456.75" },
        { 1e-5, "1e-05", "1e-05" },
        { 0.00025, "0.00025", "0.00025" },
        { 1e22, "1e+22", "1e+22" },
        { 2560, "2560.0", "2560.0" },
        { 1e8, "100000000.0", "100000000.0" },
        { -9999, "-9999.0", "-9999.0" },
        { 0.30000000000000004, "0.30000000000000004", "0.3" },
        { 1.0 / 3, "0.3333333333333333", "0.33333334" },
        { 16777216, "16777216.0", "16777216.0" },
        { INFINITY, "null", "null" },
        { NAN, "null", "null" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct buf o = { 0 };
        json_put_double(&o, rows[i].v);
        const char *got = text_of(&o);
        if (strcmp(rows[i].as_double, "1e-05") != 0) /* either notation of 1e-5 will do */
            assert_string_equal(got, rows[i].as_double);
        assert_true(!isfinite(rows[i].v) || strtod(got, NULL) == rows[i].v);
        buf_fini(&o);
        json_put_float(&o, (float)rows[i].v);
        got = text_of(&o);
        if (strcmp(rows[i].as_float, "1e-05") != 0)
            assert_string_equal(got, rows[i].as_float);
        buf_fini(&o);
    }
    struct buf o = { 0 };
    json_put_int(&o, INT64_MIN);
    BUF_LIT(&o, " ");
    json_put_int(&o, INT64_MAX);
    BUF_LIT(&o, " ");
    json_put_uint(&o, UINT64_MAX);
    BUF_LIT(&o, " ");
    json_put_int(&o, 0);
    assert_string_equal(text_of(&o),
                        "-9223372036854775808 9223372036854775807 18446744073709551615 0");
    buf_fini(&o);
}

TEST(cap_fails_once_and_for_all)
{
    struct buf o = { .max = 300 };
    struct err e;
    for (int i = 0; i < 100; i++)
        BUF_LIT(&o, "0123456789");
    assert_true(o.failed);
    assert_true(o.n <= 300);
    size_t n = o.n;
    BUF_LIT(&o, "x");
    assert_int_equal(o.n, n);
    assert_int_equal(buf_check(&o, &e), ERR_NOMEM);
    buf_reset(&o);
    BUF_LIT(&o, "x");
    assert_int_equal(buf_check(&o, &e), ERR_OK);
    assert_int_equal(o.n, 1);
    buf_fini(&o);
}

TEST(values_are_written_back)
{
    static const char text[] = " { \"a\" : [ 1 , -2.5 , \"x\\n\\u0000\" , true , null ] , "
                               "\"b\" : { } , \"c\" : [ ] } ";
    struct json_doc doc = parsed(text, sizeof text - 1);
    struct buf o = { 0 };
    json_put_value(&o, doc.value);
    assert_string_equal(text_of(&o),
                        "{\"a\":[1,-2.5,\"x\\n\\u0000\",true,null],\"b\":{},\"c\":[]}");
    buf_fini(&o);
    json_doc_fini(&doc);
}

static const struct json *only(const char *text, struct json_doc *doc)
{
    *doc = parsed(text, strlen(text));
    return doc->value;
}

TEST(copies_have_the_edits)
{
    static const char text[] =
        "{\"a\":[1,{\"b\":\"x\",\"c\":[]},null],\"d\":{\"e\":[2,3]},\"f\":4}";
    struct json_doc doc = parsed(text, sizeof text - 1), object, list, string;
    const struct json *a = json_get(doc.value, "a"), *in = json_next(json_first(a));
    const struct json_edit edit[] = {
        { json_get(in, "b"), only("{\"p\":[5,6]}", &object) },
        { json_get(json_get(doc.value, "d"), "e"), only("\"s\"", &string) },
        { json_get(doc.value, "f"), only("[[]]", &list) },
    };
    static const char *const wanted[] = {
        "{\"a\":[1,{\"b\":\"x\",\"c\":[]},null],\"d\":{\"e\":[2,3]},\"f\":4}",
        "{\"a\":[1,{\"b\":{\"p\":[5,6]},\"c\":[]},null],\"d\":{\"e\":[2,3]},\"f\":4}",
        "{\"a\":[1,{\"b\":{\"p\":[5,6]},\"c\":[]},null],\"d\":{\"e\":\"s\"},\"f\":4}",
        "{\"a\":[1,{\"b\":{\"p\":[5,6]},\"c\":[]},null],\"d\":{\"e\":\"s\"},\"f\":[[]]}",
    };
    for (size_t n = 0; n <= 3; n++) {
        uint32_t span = json_edited_span(doc.value, edit, n);
        struct json *copy = malloc(span * sizeof *copy); /* exactly: the sanitizer sees one more */
        json_edited(copy, doc.value, edit, n);
        assert_int_equal(json_span(copy), span);
        struct buf o = { 0 };
        json_put_value(&o, copy);
        assert_string_equal(text_of(&o), wanted[n]);
        buf_fini(&o);
        free(copy);
    }
    const struct json_edit whole = { doc.value, string.value };
    struct json one;
    assert_int_equal(json_edited_span(doc.value, &whole, 1), 1);
    json_edited(&one, doc.value, &whole, 1);
    assert_true(json_string_is(&one, "s"));
    json_doc_fini(&doc);
    json_doc_fini(&object);
    json_doc_fini(&list);
    json_doc_fini(&string);
}

TEST(nul_is_found_and_named)
{
    static const struct {
        const char *text, *path;
    } rows[] = {
        { "{\"a\":[1,{\"b\":\"x\"}]}", NULL },
        { "{\"a\":[1,{\"b\":\"x\\u0000\"}]}", "messages.a[1].b" },
        { "{\"a\":[[],[0,{\"b\":{},\"x\\u0000\":1}]]}", "messages.a[1][1]" },
        { "\"\\u0000\"", "messages" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct json_doc doc = parsed(rows[i].text, strlen(rows[i].text));
        const struct json *nul = json_find_nul(doc.value);
        assert_int_equal(nul != NULL, rows[i].path != NULL);
        if (nul != NULL) {
            char path[64], cut[8];
            json_path(doc.value, nul, "messages", path, sizeof path);
            assert_string_equal(path, rows[i].path);
            json_path(doc.value, nul, "messages", cut, sizeof cut);
            assert_string_equal(cut, "message");
        }
        json_doc_fini(&doc);
    }
}

TEST(shows_what_was_found)
{
    static const struct {
        const char *text, *shown;
    } rows[] = {
        { "null", "null" },
        { "true", "true" },
        { "-3", "-3" },
        { "0.01", "0.01" },
        { "\"16\"", "\"16\"" },
        { "[1,2]", "a list of 2" },
        { "{\"a\":1}", "an object of 1" },
        { "\"\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9"
          "\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9 "
          "\xc3\xa9\xc3\xa9\"",
          "\"\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9"
          "\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9 ...\"" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct json_doc doc = parsed(rows[i].text, strlen(rows[i].text));
        char buf[JSON_SHOW_BYTES];
        assert_string_equal(json_show(doc.value, buf), rows[i].shown);
        json_doc_fini(&doc);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(takes_valid_texts),
        RUN(refuses_invalid_texts),
        RUN(refusals_say_where_and_what),
        RUN(strings_keep_nul_and_pairs),
        RUN(lone_surrogates_and_bad_bytes_are_refused),
        RUN(duplicate_keys_are_refused),
        RUN(keys_chosen_to_collide_are_told_apart),
        RUN(in_place_is_the_same_without_a_copy),
        RUN(numbers_keep_their_value),
        RUN(spans_lead_from_value_to_value),
        RUN(hostile_nesting_is_refused_at_once),
        RUN(value_bound_is_a_limit),
        RUN(long_numbers_are_refused),
        RUN(escapes_exactly_what_must_be),
        RUN(numbers_are_written_short),
        RUN(cap_fails_once_and_for_all),
        RUN(values_are_written_back),
        RUN(copies_have_the_edits),
        RUN(nul_is_found_and_named),
        RUN(shows_what_was_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
