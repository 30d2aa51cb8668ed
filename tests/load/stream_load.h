/* stream_load.h: the parts of the streaming load client: its options, what it
 * records, and the report.  One thread; see stream_load.c for the connections. */
#ifndef TESTS_LOAD_STREAM_LOAD_H
#define TESTS_LOAD_STREAM_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct load_options {
    const char *host; /* numeric IPv4 address                           */
    int port;
    const char *model; /* "": the field is left out                      */
    bool chat;         /* /v1/chat/completions instead of /v1/completions */
    bool text;         /* prompts of words; else of random token ids     */
    bool ignore_eos, json;
    uint32_t concurrency, requests, prompt_tokens, max_tokens, vocab, shared_tokens;
    double cancel_share; /* part of the requests cut after some tokens     */
    double temperature;
    uint64_t seed;
    uint32_t timeout_s; /* for the whole run                              */
};

/* ERR texts go to stderr; false: exit with 2.  Prints help and exits on --help. */
bool load_options_parse(struct load_options *o, int argc, char **argv);

/* A growing list of durations in microseconds. */
struct samples {
    double *us;
    size_t n, cap;
};
void samples_add(struct samples *s, double us);
/* q in [0, 1]; sorts; 0 when empty. */
double samples_quantile(struct samples *s, double q);

struct load_result {
    uint64_t done, cancelled, lost, refused, tokens, prompt_tokens, cached_tokens;
    double wall_s;
    struct samples ttft, itl, total;
    char first_fault[256];
};

void load_report(const struct load_options *o, struct load_result *r);

#endif
