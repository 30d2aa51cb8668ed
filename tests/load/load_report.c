/* load_report.c: options of the streaming load client and its report. */
#include "load/stream_load.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "support/rng.h"

static const char help[] =
    "stream_load: load any OpenAI-compatible server with streaming requests\n"
    "\n"
    "  --host ADDR          IPv4 address (127.0.0.1)\n"
    "  --port N             (8000)\n"
    "  --model NAME         value of \"model\" (left out)\n"
    "  --chat               POST /v1/chat/completions (/v1/completions)\n"
    "  --text               prompts of words (default: random token ids)\n"
    "  --vocab N            token ids are drawn from 8..N-1 (4096)\n"
    "  --concurrency N      streams at once (16)\n"
    "  --requests N         in all (4 x concurrency)\n"
    "  --prompt-tokens N    (128)\n"
    "  --shared-tokens N    leading part that all prompts share (0)\n"
    "  --max-tokens N       (64)\n"
    "  --ignore-eos         always run to max-tokens\n"
    "  --temperature X      (0)\n"
    "  --cancel-share X     part of the streams closed after a few tokens (0)\n"
    "  --seed N             draws prompts and cancellations; printed (another one each run,\n"
    "                       so that no prompt is in a prefix cache from the run before)\n"
    "  --timeout S          for the whole run (600)\n"
    "  --json               print one JSON object instead of a table\n"
    "\n"
    "Exit status: 0 when every stream that was not cancelled ended with a finish\n"
    "reason and [DONE]; 1 when any was lost or refused.\n";

enum {
    OPT_HOST = 1,
    OPT_PORT,
    OPT_MODEL,
    OPT_CHAT,
    OPT_TEXT,
    OPT_VOCAB,
    OPT_CONCURRENCY,
    OPT_REQUESTS,
    OPT_PROMPT,
    OPT_SHARED,
    OPT_MAX,
    OPT_IGNORE_EOS,
    OPT_TEMPERATURE,
    OPT_CANCEL,
    OPT_SEED,
    OPT_TIMEOUT,
    OPT_JSON,
    OPT_HELP
};

static const struct option table[] = {
    { "host", 1, NULL, OPT_HOST },
    { "port", 1, NULL, OPT_PORT },
    { "model", 1, NULL, OPT_MODEL },
    { "chat", 0, NULL, OPT_CHAT },
    { "text", 0, NULL, OPT_TEXT },
    { "vocab", 1, NULL, OPT_VOCAB },
    { "concurrency", 1, NULL, OPT_CONCURRENCY },
    { "requests", 1, NULL, OPT_REQUESTS },
    { "prompt-tokens", 1, NULL, OPT_PROMPT },
    { "shared-tokens", 1, NULL, OPT_SHARED },
    { "max-tokens", 1, NULL, OPT_MAX },
    { "ignore-eos", 0, NULL, OPT_IGNORE_EOS },
    { "temperature", 1, NULL, OPT_TEMPERATURE },
    { "cancel-share", 1, NULL, OPT_CANCEL },
    { "seed", 1, NULL, OPT_SEED },
    { "timeout", 1, NULL, OPT_TIMEOUT },
    { "json", 0, NULL, OPT_JSON },
    { "help", 0, NULL, OPT_HELP },
    { NULL, 0, NULL, 0 },
};

/* A whole decimal number in lo..hi, or exit with a message. */
static double number(const char *name, const char *text, double lo, double hi)
{
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    if (errno != 0 || end == text || *end != '\0' || !(v >= lo && v <= hi)) {
        fprintf(stderr, "stream_load: --%s: found '%s', expected %g..%g\n", name, text, lo, hi);
        exit(2);
    }
    return v;
}

/* Below 2^53: what --seed accepts and JSON carries. */
static uint64_t fresh_seed(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    struct rng r = { (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec + (uint64_t)getpid() };
    return rng_next(&r) >> 11;
}

bool load_options_parse(struct load_options *o, int argc, char **argv)
{
    *o = (struct load_options){ .host = "127.0.0.1",
                                .port = 8000,
                                .model = "",
                                .concurrency = 16,
                                .prompt_tokens = 128,
                                .max_tokens = 64,
                                .vocab = 4096,
                                .seed = fresh_seed(),
                                .timeout_s = 600 };
    int c, at;
    while ((c = getopt_long(argc, argv, "", table, &at)) != -1) {
        const char *name = c == '?' ? "" : table[at].name;
        switch (c) {
        case OPT_HOST:
            o->host = optarg;
            break;
        case OPT_PORT:
            o->port = (int)number(name, optarg, 1, 65535);
            break;
        case OPT_MODEL:
            o->model = optarg;
            break;
        case OPT_CHAT:
            o->chat = true;
            o->text = true;
            break;
        case OPT_TEXT:
            o->text = true;
            break;
        case OPT_VOCAB:
            o->vocab = (uint32_t)number(name, optarg, 16, 1e7);
            break;
        case OPT_CONCURRENCY:
            o->concurrency = (uint32_t)number(name, optarg, 1, 20000);
            break;
        case OPT_REQUESTS:
            o->requests = (uint32_t)number(name, optarg, 1, 1e7);
            break;
        case OPT_PROMPT:
            o->prompt_tokens = (uint32_t)number(name, optarg, 1, 1e6);
            break;
        case OPT_SHARED:
            o->shared_tokens = (uint32_t)number(name, optarg, 0, 1e6);
            break;
        case OPT_MAX:
            o->max_tokens = (uint32_t)number(name, optarg, 1, 1e6);
            break;
        case OPT_IGNORE_EOS:
            o->ignore_eos = true;
            break;
        case OPT_TEMPERATURE:
            o->temperature = number(name, optarg, 0, 2);
            break;
        case OPT_CANCEL:
            o->cancel_share = number(name, optarg, 0, 1);
            break;
        case OPT_SEED:
            o->seed = (uint64_t)number(name, optarg, 0, 9e15);
            break;
        case OPT_TIMEOUT:
            o->timeout_s = (uint32_t)number(name, optarg, 1, 86400);
            break;
        case OPT_JSON:
            o->json = true;
            break;
        case OPT_HELP:
            fputs(help, stdout);
            exit(0);
        default:
            fputs(help, stderr);
            return false;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "stream_load: '%s': no argument expected\n", argv[optind]);
        return false;
    }
    if (o->requests == 0)
        o->requests = 4 * o->concurrency;
    return true;
}

void samples_add(struct samples *s, double us)
{
    if (s->n == s->cap) {
        s->cap = s->cap == 0 ? 1024 : 2 * s->cap;
        s->us = realloc(s->us, s->cap * sizeof *s->us);
        if (s->us == NULL)
            abort();
    }
    s->us[s->n++] = us;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double samples_quantile(struct samples *s, double q)
{
    if (s->n == 0)
        return 0;
    qsort(s->us, s->n, sizeof *s->us, compare);
    size_t i = (size_t)(q * (double)(s->n - 1) + 0.5);
    return s->us[i];
}

static void line(const char *name, struct samples *s)
{
    printf("  %-10s p50 %9.2f   p90 %9.2f   p99 %9.2f   max %9.2f ms\n", name,
           samples_quantile(s, 0.5) / 1e3, samples_quantile(s, 0.9) / 1e3,
           samples_quantile(s, 0.99) / 1e3, samples_quantile(s, 1) / 1e3);
}

static void json_line(const char *name, struct samples *s)
{
    printf(",\"%s_ms\":{\"p50\":%.3f,\"p90\":%.3f,\"p99\":%.3f,\"max\":%.3f}", name,
           samples_quantile(s, 0.5) / 1e3, samples_quantile(s, 0.9) / 1e3,
           samples_quantile(s, 0.99) / 1e3, samples_quantile(s, 1) / 1e3);
}

void load_report(const struct load_options *o, struct load_result *r)
{
    double tps = (double)r->tokens / r->wall_s;
    double prompt_tps = (double)r->prompt_tokens / r->wall_s;
    double cached =
        r->prompt_tokens > 0 ? 100.0 * (double)r->cached_tokens / (double)r->prompt_tokens : 0;
    if (o->json) {
        printf("{\"seed\":%llu,\"concurrency\":%u,\"requests\":%u,\"done\":%llu,\"cancelled\":%llu,"
               "\"lost\":%llu,\"refused\":%llu,\"wall_s\":%.3f,\"output_tokens\":%llu,"
               "\"output_tokens_per_s\":%.1f,\"prompt_tokens\":%llu,\"cached_tokens\":%llu,"
               "\"prompt_tokens_per_s\":%.1f",
               (unsigned long long)o->seed, o->concurrency, o->requests,
               (unsigned long long)r->done, (unsigned long long)r->cancelled,
               (unsigned long long)r->lost, (unsigned long long)r->refused, r->wall_s,
               (unsigned long long)r->tokens, tps, (unsigned long long)r->prompt_tokens,
               (unsigned long long)r->cached_tokens, prompt_tps);
        json_line("ttft", &r->ttft);
        json_line("itl", &r->itl);
        json_line("e2e", &r->total);
        printf("}\n");
    } else {
        printf("%u streams at once, %u requests, %u prompt tokens, %u max tokens, seed %llu: "
               "%.2f s\n",
               o->concurrency, o->requests, o->prompt_tokens, o->max_tokens,
               (unsigned long long)o->seed, r->wall_s);
        printf("  done %llu   cancelled %llu   lost %llu   refused %llu\n",
               (unsigned long long)r->done, (unsigned long long)r->cancelled,
               (unsigned long long)r->lost, (unsigned long long)r->refused);
        printf("  with %.1f %% of prompt tokens cached (%llu of %llu): output %llu tokens, "
               "%.1f tokens/s;  prompt %.1f tokens/s;  %.1f requests/s\n",
               cached, (unsigned long long)r->cached_tokens, (unsigned long long)r->prompt_tokens,
               (unsigned long long)r->tokens, tps, prompt_tps, (double)r->done / r->wall_s);
        line("TTFT", &r->ttft);
        line("ITL", &r->itl);
        line("end to end", &r->total);
    }
    if (r->first_fault[0] != '\0')
        fprintf(stderr, "first fault: %s\n", r->first_fault);
}
