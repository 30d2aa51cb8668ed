/* request_fuzz.c: see request_fuzz.h.  Properties:
 * (1) json_parse takes a text exactly when writing it and parsing that again
 *     gives the same bytes; what it takes, an independent parser takes too.
 * (2) A refusal has a printable message and a 4xx status, and leaves nothing.
 * (3) An accepted request is inside every bound that was set. */
#include "fuzz/request_fuzz.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "proto/openai/request.h"
#include "proto/utf8.h"

#define REQUIRE(c)                                                                                 \
    do {                                                                                           \
        if (!(c)) {                                                                                \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #c);                                \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

enum { VOCAB = 500, CONTEXT = 64 };

static void check_refusal(enum err_code rc, const struct err *e)
{
    REQUIRE(rc == ERR_INVALID || rc == ERR_LIMIT);
    REQUIRE(e->code == rc && err_http_status(rc) == 400);
    REQUIRE(e->message[0] != '\0');
    REQUIRE(utf8_is_valid(e->message, strlen(e->message)));
    REQUIRE(utf8_is_valid(e->param, strlen(e->param)));
}

/* Depth as the other parser counts it stays below its own bound; it cuts at
 * NUL bytes, which are never part of valid JSON, so lengths agree. */
static void check_tree(const char *text, size_t n)
{
    struct json_doc doc, again;
    struct err e;
    enum err_code rc = json_parse(&doc, text, n, 100000, &e);
    if (rc) {
        check_refusal(rc, &e);
        return;
    }
    cJSON *other = cJSON_ParseWithLengthOpts(text, n, NULL, false);
    REQUIRE(other != NULL);
    cJSON_Delete(other);
    struct buf a = { 0 }, b = { 0 };
    json_put_value(&a, doc.value);
    REQUIRE(!a.failed && utf8_is_valid(a.p, a.n));
    REQUIRE(json_parse(&again, a.p, a.n, 0, &e) == ERR_OK);
    REQUIRE(json_span(again.value) == json_span(doc.value));
    json_put_value(&b, again.value);
    REQUIRE(a.n == b.n && memcmp(a.p, b.p, a.n) == 0);
    buf_fini(&a);
    buf_fini(&b);
    json_doc_fini(&again);
    json_doc_fini(&doc);
}

static void check_ids(const int32_t *id, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        REQUIRE(id[i] >= 0 && id[i] < VOCAB);
}

static void check_text(struct oai_text t)
{
    if (t.s != NULL)
        REQUIRE(utf8_is_valid(t.s, t.n) && t.s[t.n] == '\0');
}

static void check_params(const struct oai_request *r, const struct oai_defaults *d)
{
    const struct sample_params *p = &r->params;
    REQUIRE(p->temperature >= 0 && p->temperature <= 2);
    REQUIRE(p->top_p > 0 && p->top_p <= 1 && p->min_p >= 0 && p->min_p <= 1);
    REQUIRE(p->repetition_penalty > 0 && p->repetition_penalty <= 100);
    REQUIRE(fabsf(p->presence_penalty) <= 2 && fabsf(p->frequency_penalty) <= 2);
    REQUIRE(p->top_k >= -1 && p->n_logprobs >= -1 && p->n_logprobs <= (int)d->max_logprobs);
    REQUIRE(p->n_bias <= d->max_bias && p->n_stop_ids <= d->max_stop_ids + d->n_eos);
    for (uint32_t i = 0; i < p->n_bias; i++) {
        check_ids(&p->bias[i].token, 1);
        REQUIRE(p->bias[i].bias >= -100 && p->bias[i].bias <= 100);
    }
    check_ids(p->stop_ids, p->n_stop_ids);
    REQUIRE(r->n >= 1 && r->n <= d->max_n && r->n_prompts * r->n <= d->max_choices);
    REQUIRE(r->max_tokens <= CONTEXT || (!r->has_max_tokens && r->kind == OAI_CHAT));
    REQUIRE(r->max_tokens > 0 || r->echo || r->prompt_logprobs >= 0);
    REQUIRE(!r->include_usage || r->stream);
    REQUIRE(r->n_stop <= d->max_stops);
    for (uint32_t i = 0; i < r->n_stop; i++) {
        REQUIRE(r->stop[i].n > 0 && r->stop[i].n <= d->max_stop_bytes);
        check_text(r->stop[i]);
    }
}

static void check_request(const struct oai_request *r, const struct oai_defaults *d)
{
    check_text(r->model);
    check_text(r->cache_salt);
    check_text(r->tool_name);
    for (uint32_t i = 0; i < r->n_prompts; i++) {
        check_text(r->prompt[i].text);
        REQUIRE((r->prompt[i].text.s == NULL) == (r->prompt[i].n_ids > 0));
        check_ids(r->prompt[i].ids, r->prompt[i].n_ids);
    }
    check_ids(r->tokens, r->n_tokens);
    if (r->kind == OAI_COMPLETION || r->kind == OAI_CHAT)
        check_params(r, d);
    if (r->messages == NULL)
        return;
    REQUIRE(json_find_nul(r->messages) == NULL);
    const struct json *m = json_first(r->messages);
    for (uint32_t i = 0; i < r->messages->n; i++, m = json_next(m)) {
        const struct json *content = json_get(m, "content");
        REQUIRE(json_get(m, "role")->kind == JSON_STRING);
        REQUIRE(content == NULL || content->kind != JSON_ARRAY);
    }
    REQUIRE(m == json_next(r->messages));
}

void request_fuzz_one(const uint8_t *data, size_t n)
{
    static const int32_t eos[] = { 1 };
    if (n == 0)
        return;
    const char *text = (const char *)data + 1;
    struct oai_defaults d;
    oai_defaults_init(&d);
    d.vocab_size = VOCAB;
    d.max_model_len = CONTEXT;
    d.eos = eos;
    d.n_eos = 1;
    d.max_stops = 4;
    d.max_prompts = 8;
    d.max_choices = 16;
    d.max_n = 4;
    struct oai_request r;
    struct err e;
    enum err_code rc = oai_request_parse(&r, data[0] % OAI_KINDS, text, n - 1, &d, &e);
    if (rc == ERR_OK) {
        check_request(&r, &d);
        oai_request_fini(&r);
    } else {
        check_refusal(rc, &e);
    }
    check_tree(text, n - 1);
}
