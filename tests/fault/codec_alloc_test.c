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
    const struct CMUnitTest tests[] = { RUN(requests), RUN(streams), RUN(metrics) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
