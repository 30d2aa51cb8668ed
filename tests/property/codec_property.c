/* codec_property.c: what must hold for every value, tried on many.
 *   CODEC_ROUNDS (environment) scales the number tried. */
#include <math.h>
#include <stdio.h>

#include "proto/text/json.h"
#include "proto/openai/response.h"
#include "proto/utf8.h"
#include "support/bodies.h"
#include "support/rng.h"
#include "support/test.h"

static uint32_t rounds(uint32_t usual)
{
    const char *s = getenv("CODEC_ROUNDS");
    return s != NULL ? usual * (uint32_t)atoi(s) : usual;
}

/* Text of up to n bytes: mostly characters, of all lengths; at times any bytes. */
static size_t random_text(struct rng *r, char *buf, size_t n, bool bytes)
{
    size_t k = 0;
    while (k + 4 <= n && rng_below(r, 24) != 0) {
        uint32_t c = rng_below(r, 8) == 0   ? rng_below(r, 0x110000)
                     : rng_below(r, 4) == 0 ? rng_below(r, 0x20)
                                            : rng_below(r, 0x300);
        if (bytes && rng_below(r, 4) == 0)
            buf[k++] = (char)rng_next(r);
        else if (c < 0xd800 || c > 0xdfff)
            k += utf8_encode(c, buf + k);
    }
    return k;
}

/* What a reader must get: text with each byte that starts no character as
 * U+FFFD. */
static size_t repaired(const char *s, size_t n, char *out)
{
    size_t k = 0;
    for (size_t i = 0; i < n;) {
        size_t len = utf8_sequence_bytes(s + i, n - i);
        memcpy(out + k, len > 0 ? s + i : "\xef\xbf\xbd", len > 0 ? len : 3);
        k += len > 0 ? len : 3;
        i += len > 0 ? len : 1;
    }
    return k;
}

TEST(escaped_strings_read_back)
{
    struct rng r = { 11 };
    struct buf o = { 0 };
    for (uint32_t i = 0; i < rounds(20000); i++) {
        char text[200], fixed[600];
        size_t n = random_text(&r, text, 1 + rng_below(&r, 199), i % 2);
        buf_reset(&o);
        json_put_string(&o, text, n);
        assert_false(o.failed);
        for (size_t k = 0; k < o.n; k++)
            assert_true((unsigned char)o.p[k] >= 0x20);
        struct json_doc doc;
        struct err e;
        enum err_code rc = json_parse(&doc, o.p, o.n, 0, &e);
        assert_ok(rc, e);
        size_t want = repaired(text, n, fixed);
        assert_int_equal(doc.value->n, want);
        assert_memory_equal(doc.value->u.string, fixed, want);
        json_doc_fini(&doc);
    }
    buf_fini(&o);
}

/* The fast paths agree with a walk from character to character, wherever the
 * bytes lie. */
TEST(valid_prefixes_agree_with_a_plain_walk)
{
    struct rng r = { 16 };
    for (uint32_t i = 0; i < rounds(20000); i++) {
        char text[208];
        size_t from = rng_below(&r, 8);
        size_t n = random_text(&r, text + from, 1 + rng_below(&r, 199), i % 2);
        const char *s = text + from;
        size_t at = 0, len;
        while (at < n && (len = utf8_sequence_bytes(s + at, n - at)) > 0)
            at += len;
        assert_int_equal(utf8_valid_prefix(s, n), at);
        if (n > 0) { /* and cut anywhere */
            size_t cut = rng_below(&r, (uint32_t)n);
            at = 0;
            while (at < cut && (len = utf8_sequence_bytes(s + at, cut - at)) > 0)
                at += len;
            assert_int_equal(utf8_valid_prefix(s, cut), at);
        }
    }
}

static double parsed_number(const struct buf *o)
{
    struct json_doc doc;
    struct err e;
    enum err_code rc = json_parse(&doc, o->p, o->n, 0, &e);
    assert_ok(rc, e);
    assert_int_equal(doc.value->kind, JSON_REAL);
    double v = doc.value->u.real;
    json_doc_fini(&doc);
    return v;
}

TEST(numbers_read_back)
{
    struct rng r = { 12 };
    struct buf o = { 0 };
    for (uint32_t i = 0; i < rounds(50000); i++) {
        uint64_t bits = rng_next(&r);
        double d;
        memcpy(&d, &bits, sizeof d);
        if (i % 3 == 0) /* the range in which most numbers live */
            d = (rng_unit(&r) - 0.5) * pow(10, (double)rng_below(&r, 20) - 8);
        if (isfinite(d)) {
            buf_reset(&o);
            json_put_double(&o, d);
            double back = parsed_number(&o);
            assert_memory_equal(&back, &d, sizeof d);
        }
        float f = (float)d;
        if (isfinite(f)) {
            buf_reset(&o);
            json_put_float(&o, f);
            float back = (float)parsed_number(&o);
            assert_memory_equal(&back, &f, sizeof f);
            char shortest[40]; /* no longer than the library's shortest, in digits */
            int digits = 1;
            do
                snprintf(shortest, sizeof shortest, "%.*e", digits - 1, (double)f);
            while (strtof(shortest, NULL) != f && ++digits <= 9);
            int mine = 0, zeros = 0;
            for (size_t k = 0; k < o.n && o.p[k] != 'e'; k++)
                if (o.p[k] >= '0' && o.p[k] <= '9' && (mine > 0 || o.p[k] != '0')) {
                    mine++;
                    zeros = o.p[k] == '0' ? zeros + 1 : 0;
                }
            bool whole = o.n > 2 && memcmp(o.p + o.n - 2, ".0", 2) == 0; /* in full */
            if (!whole && mine - zeros > digits)
                fail_msg("%.*s is longer than %s", (int)o.n, o.p, shortest);
        }
    }
    buf_fini(&o);
}

/* Both ways of reading give one document. */
TEST(in_place_reads_as_a_copy_does)
{
    struct rng r = { 15 };
    for (uint32_t i = 0; i < rounds(2000); i++) {
        struct buf text = { 0 }, copied = { 0 }, placed = { 0 };
        BUF_LIT(&text, "[");
        for (uint32_t k = rng_below(&r, 6); k > 0; k--) {
            char s[100];
            size_t n = random_text(&r, s, 1 + rng_below(&r, 99), false);
            json_put_string(&text, s, n);
            BUF_LIT(&text, ",");
            for (uint32_t d = 1 + rng_below(&r, 30); d > 0; d--)
                BUF_LIT(&text, "7");
            BUF_LIT(&text, ",");
        }
        BUF_LIT(&text, "null]");
        struct json_doc doc;
        struct err e;
        assert_ok(json_parse(&doc, text.p, text.n, 0, &e), e);
        json_put_value(&copied, doc.value);
        json_doc_fini(&doc);
        assert_ok(json_parse_in_place(&doc, "text", text.p, text.n, 0, &e), e);
        json_put_value(&placed, doc.value);
        json_doc_fini(&doc);
        assert_int_equal(copied.n, placed.n);
        assert_memory_equal(copied.p, placed.p, placed.n);
        buf_fini(&text);
        buf_fini(&copied);
        buf_fini(&placed);
    }
}

TEST(integers_read_back)
{
    struct rng r = { 13 };
    struct buf o = { 0 };
    for (uint32_t i = 0; i < rounds(20000); i++) {
        int64_t v = (int64_t)(rng_next(&r) >> rng_below(&r, 64));
        v = i % 2 ? v : -v;
        buf_reset(&o);
        json_put_int(&o, v);
        struct json_doc doc;
        struct err e;
        enum err_code rc = json_parse(&doc, o.p, o.n, 0, &e);
        assert_ok(rc, e);
        assert_true(doc.value->kind == JSON_INT && doc.value->u.integer == v);
        json_doc_fini(&doc);
    }
    buf_fini(&o);
}

TEST(every_cut_is_refused)
{
    struct oai_defaults d;
    oai_defaults_init(&d);
    for (int s = 0; s < N_SEED_BODIES; s++) {
        size_t n = strlen(seed_bodies[s].text);
        for (size_t k = 0; k <= n; k++) {
            char *exact = malloc(k + 1); /* a byte more only because of k = 0 */
            memcpy(exact, seed_bodies[s].text, k);
            struct oai_request r;
            struct err e;
            enum err_code rc = oai_request_parse(&r, seed_bodies[s].kind, exact, k, &d, &e);
            if (k == n) {
                /* Two seeds hold a rejection of their own; cut short or whole,
                 * the whole text at least parses. */
                struct json_doc doc;
                assert_int_equal(json_parse(&doc, exact, k, 0, &e), ERR_OK);
                json_doc_fini(&doc);
                if (rc == ERR_OK)
                    oai_request_fini(&r);
            } else {
                assert_int_equal(rc, ERR_INVALID);
                assert_int_equal(err_http_status(rc), 400);
            }
            free(exact);
        }
    }
}

/* Streamed text, put together again, is the text; each event is one line. */
TEST(deltas_join_to_the_text)
{
    struct rng r = { 14 };
    struct err e;
    struct oai_stream s;
    const struct oai_identity id = { OAI_CHAT, "chatcmpl-x", "m", 1 };
    enum err_code rc = oai_stream_init(&s, &id, false, &e);
    assert_ok(rc, e);
    for (uint32_t i = 0; i < rounds(300); i++) {
        char text[2000], joined[2000];
        size_t n = 0, k = 0;
        struct buf o = { 0 };
        for (int c = 0; c < 8; c++) {
            size_t len = random_text(&r, text + n, 200, false);
            struct oai_delta d = { .text = { text + n, len } };
            oai_stream_delta(&o, &s, &d);
            n += len;
        }
        for (size_t at = 0; at < o.n;) {
            char *end = memchr(o.p + at, '\n', o.n - at);
            assert_non_null(end);
            struct json_doc doc;
            rc = json_parse(&doc, o.p + at + 6, (size_t)(end - o.p) - at - 6, 0, &e);
            assert_ok(rc, e);
            const struct json *choice = json_first(json_get(doc.value, "choices"));
            const struct json *c = json_get(json_get(choice, "delta"), "content");
            memcpy(joined + k, c->u.string, c->n);
            k += c->n;
            json_doc_fini(&doc);
            assert_int_equal(end[1], '\n');
            at = (size_t)(end - o.p) + 2;
        }
        assert_int_equal(k, n);
        assert_memory_equal(joined, text, n);
        buf_fini(&o);
    }
    oai_stream_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(escaped_strings_read_back),
        RUN(numbers_read_back),
        RUN(integers_read_back),
        RUN(in_place_reads_as_a_copy_does),
        RUN(valid_prefixes_agree_with_a_plain_walk),
        RUN(every_cut_is_refused),
        RUN(deltas_join_to_the_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
