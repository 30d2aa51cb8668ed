/* codec_bench.c: what a token, a string and a body cost in the codecs.
 * Prints nanoseconds of CPU time a call, best of several runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/openai/request.h"
#include "proto/openai/response.h"
#include "proto/metrics/serving.h"
#include "support/bodies.h"

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

struct bench {
    struct buf o;
    struct oai_stream s;
    struct oai_delta d;
    const char *text;
    size_t n;
    struct serving_metrics m;
    int body;
};

static void escape(struct bench *b)
{
    json_put_escaped(&b->o, b->text, b->n);
}

static void delta(struct bench *b)
{
    oai_stream_delta(&b->o, &b->s, &b->d);
}

static void number(struct bench *b)
{
    json_put_float(&b->o, -0.34657359f);
}

static void parse(struct bench *b)
{
    struct oai_defaults d;
    struct oai_request r;
    oai_defaults_init(&d);
    if (oai_request_parse(&r, seed_bodies[b->body].kind, b->text, b->n, &d, NULL) == ERR_OK)
        oai_request_fini(&r);
}

static void observe(struct bench *b)
{
    prom_observe(b->m.inter_token_latency, 0.02);
}

static void render(struct bench *b)
{
    prom_render(&b->o, b->m.registry);
}

static void measure(const char *name, struct bench *b, void (*f)(struct bench *), long n)
{
    double best = 1e30;
    size_t bytes = 0;
    for (int run = 0; run < 7; run++) {
        double start = now_ns();
        for (long i = 0; i < n; i++) {
            if (b->o.n > 32768)
                buf_reset(&b->o);
            f(b);
        }
        double each = (now_ns() - start) / (double)n;
        best = each < best ? each : best;
    }
    buf_reset(&b->o);
    f(b);
    bytes = b->o.n;
    buf_reset(&b->o);
    printf("%-34s %10.1f ns  %6zu bytes out\n", name, best, bytes);
}

static void set_text(struct bench *b, const char *s)
{
    b->text = s;
    b->n = strlen(s);
}

/* A prompt of n ids. */
static char *ids_body(int n)
{
    char *s = malloc((size_t)n * 7 + 64);
    if (s == NULL)
        exit(1);
    size_t k = (size_t)sprintf(s, "{\"prompt\":[");
    for (int i = 0; i < n; i++)
        k += (size_t)sprintf(s + k, "%s%d", i ? "," : "", i * 37 % 32000);
    strcpy(s + k, "]}");
    return s;
}

int main(void)
{
    struct bench b = { .body = 0 };
    const struct oai_identity id = { OAI_CHAT, "chatcmpl-0123456789abcdef", "tales-7m",
                                     1764000000 };
    const struct serving_metrics_config c = { .model_name = "tales-7m", .max_model_len = 4096 };
    if (oai_stream_init(&b.s, &id, false, NULL) || serving_metrics_init(&b.m, &c, NULL))
        return 1;
    set_text(&b, " token");
    measure("escape, 6 plain bytes", &b, escape, 2000000);
    set_text(&b, "A line of ordinary text, some eighty bytes long, as a client's prompt may be.\n");
    measure("escape, 78 bytes, one escape", &b, escape, 1000000);
    set_text(&b, "\xe4\xb8\xad\xe6\x96\x87\xf0\x9f\x98\x80");
    measure("escape, 3 wide characters", &b, escape, 1000000);
    measure("float", &b, number, 1000000);
    b.d = (struct oai_delta){ .text = { " token", 6 } };
    measure("stream event, chat delta", &b, delta, 1000000);
    const struct oai_alternative top[5] = {
        { 1, -0.125f, { " a", 2 } }, { 2, -1.7238f, { " b", 2 } }, { 3, -2.31f, { " c", 2 } },
        { 4, -3.9f, { " d", 2 } },   { 5, -4.25f, { " e", 2 } },
    };
    const struct oai_token t = {
        .id = 1, .token = { " a", 2 }, .scored = true, .logprob = -0.125f, .n_top = 5, .top = top
    };
    const struct oai_logprobs lp = { &t, 1, 0 };
    b.d.logprobs = &lp;
    measure("stream event, 5 logprobs", &b, delta, 200000);
    for (b.body = 0; b.body < 3; b.body++) {
        char name[64];
        set_text(&b, seed_bodies[b.body].text);
        snprintf(name, sizeof name, "parse, body %d of %zu bytes", b.body, b.n);
        measure(name, &b, parse, 50000);
    }
    b.body = 0;
    char *big = ids_body(32768);
    set_text(&b, big);
    measure("parse, prompt of 32768 ids", &b, parse, 20);
    free(big);
    measure("observe, histogram", &b, observe, 1000000);
    measure("render metrics", &b, render, 500);
    buf_fini(&b.o);
    oai_stream_fini(&b.s);
    serving_metrics_fini(&b.m);
    return 0;
}
