/* codec_alloc_test.c: every allocation of the codecs fails once, alone and with
 * all after it: the code is ERR_NOMEM and nothing stays behind (the leak check
 * of the sanitizer build sees the rest).  cJSON allocates through us too. */
#include <cjson/cJSON.h>
#include <stdio.h>

#include "proto/openai/request.h"
#include "proto/openai/response.h"
#include "proto/metrics/serving.h"
#include "support/alloc_fail.h"
#include "support/bodies.h"
#include "support/test.h"

static void *hooked_malloc(size_t n)
{
    return malloc(n);
}

static void hooked_free(void *p)
{
    free(p);
}

static const struct oai_defaults *limits(void)
{
    static const int32_t eos[] = { 2 };
    static struct oai_defaults d;
    oai_defaults_init(&d);
    d.eos = eos;
    d.n_eos = 1;
    return &d;
}

static enum err_code parse_body(int s, struct err *e)
{
    struct oai_request r;
    enum err_code rc = oai_request_parse(&r, seed_bodies[s].kind, seed_bodies[s].text,
                                         strlen(seed_bodies[s].text), limits(), e);
    if (rc == ERR_OK)
        oai_request_fini(&r);
    return rc;
}

TEST(requests)
{
    for (int s = 0; s < N_SEED_BODIES; s++) {
        struct err e;
        alloc_fail_at(-1, false);
        enum err_code whole = parse_body(s, &e);
        for (int sticky = 0; sticky < 2; sticky++)
            for (int64_t n = 0;; n++) {
                alloc_fail_at(n, sticky);
                enum err_code rc = parse_body(s, &e);
                bool fired = alloc_fail_fired();
                alloc_fail_at(-1, false);
                if (!fired) {
                    assert_int_equal(rc, whole);
                    assert_true(n > 1);
                    break;
                }
                assert_int_equal(rc, ERR_NOMEM);
                assert_int_equal(e.code, ERR_NOMEM);
                assert_int_equal(err_http_status(rc), 500);
            }
    }
}

/* A document of many values with an object whose keys are hashed. */
static enum err_code parse_document(const char *text, size_t n, bool in_place, struct err *e)
{
    static char own[4096];
    struct json_doc doc;
    memcpy(own, text, n);
    enum err_code rc = in_place ? json_parse_in_place(&doc, "file", own, n, 0, e)
                                : json_parse_named(&doc, "file", own, n, 0, e);
    if (rc == ERR_OK)
        json_doc_fini(&doc);
    return rc;
}

TEST(documents)
{
    static char text[4096];
    size_t n = 0;
    text[n++] = '[';
    for (int i = 0; i < 200; i++)
        n += (size_t)sprintf(text + n, "%d,", i);
    for (int i = 0; i < 40; i++)
        n += (size_t)sprintf(text + n, "%c\"k%d\":{}", i == 0 ? '{' : ',', i);
    n += (size_t)sprintf(text + n, "}]");
    for (int in_place = 0; in_place < 2; in_place++)
        for (int64_t at = 0;; at++) {
            struct err e;
            alloc_fail_at(at, false);
            enum err_code rc = parse_document(text, n, in_place, &e);
            bool fired = alloc_fail_fired();
            alloc_fail_at(-1, false);
            if (!fired) {
                assert_ok(rc, e);
                assert_true(at >= 3 - in_place);
                break;
            }
            assert_int_equal(rc, ERR_NOMEM);
            assert_int_equal(e.code, ERR_NOMEM);
        }
}

static enum err_code write_stream(struct err *e)
{
    const struct oai_identity id = { OAI_CHAT, "chatcmpl-1", "m", 1 };
    const struct oai_delta d = { .text = { "hello\n", 6 } };
    struct oai_stream s;
    enum err_code rc = oai_stream_init(&s, &id, true, e);
    if (rc)
        return rc;
    struct buf o = { 0 };
    for (int i = 0; i < 20; i++)
        oai_stream_delta(&o, &s, &d);
    rc = buf_check(&o, e);
    buf_fini(&o);
    oai_stream_fini(&s);
    return rc;
}

TEST(streams)
{
    struct err e;
    for (int64_t n = 0;; n++) {
        alloc_fail_at(n, false);
        enum err_code rc = write_stream(&e);
        bool fired = alloc_fail_fired();
        alloc_fail_at(-1, false);
        assert_int_equal(rc, fired ? ERR_NOMEM : ERR_OK);
        if (!fired)
            break;
    }
}

TEST(metrics)
{
    static const struct prom_label cache[] = { { "block_size", "16" } };
    const struct serving_metrics_config c = { "m", 4096, cache, 1 };
    struct err e;
    for (int64_t n = 0;; n++) {
        struct serving_metrics m;
        alloc_fail_at(n, false);
        enum err_code rc = serving_metrics_init(&m, &c, &e);
        bool fired = alloc_fail_fired();
        alloc_fail_at(-1, false);
        assert_int_equal(rc, fired ? ERR_NOMEM : ERR_OK);
        if (rc)
            assert_null(m.registry);
        else
            serving_metrics_fini(&m);
        if (!fired)
            break;
    }
}

int main(void)
{
    cJSON_Hooks hooks = { hooked_malloc, hooked_free };
    cJSON_InitHooks(&hooks);
    const struct CMUnitTest tests[] = { RUN(requests), RUN(documents), RUN(streams), RUN(metrics) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
