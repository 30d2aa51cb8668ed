/* template_smoke.c: the fuzz target on mutations of own templates, the same
 * every run:  template_smoke ROUNDS FILE... */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/template_fuzz.h"
#include "support/rng.h"

enum { MOST = 1 << 16 };

/* Words that make mutations reach deeper than bytes do. */
static const char *const words[] = {
    "{{",       "}}",
    "{%",       "%}",
    "{#",       "#}",
    "-",        "endif",
    "endfor",   " in ",
    " if ",     "else",
    "|",        "(",
    ")",        "[",
    "]",        ":",
    ",",        "~",
    "loop",     "namespace(a=1)",
    "messages", "tools",
    " is ",     "not ",
    "'",        "\"",
    "\\",       "range(9)",
    "tojson",   "none",
    "1e308",    "9223372036854775807",
    "{",        "}",
    "*",        "**",
    "//",       "%",
    ".items()", "macro m(x)",
    "endmacro", "set x",
    "call",     "recursive",
    "\xff",
};

static size_t mutate(struct rng *r, uint8_t *p, size_t n)
{
    for (uint32_t i = 0; i <= rng_below(r, 6); i++) {
        size_t at = n == 0 ? 0 : rng_below(r, (uint32_t)n);
        const char *w = words[rng_below(r, sizeof words / sizeof words[0])];
        size_t n_w = strlen(w), cut = 1 + rng_below(r, 20);
        switch (rng_below(r, 4)) {
        case 0:
            if (n > 0)
                p[at] = (uint8_t)rng_next(r);
            break;
        case 1:
            if (n + n_w < MOST) {
                memmove(p + at + n_w, p + at, n - at);
                memcpy(p + at, w, n_w);
                n += n_w;
            }
            break;
        case 2:
            cut = cut > n - at ? n - at : cut;
            memmove(p + at, p + at + cut, n - at - cut);
            n -= cut;
            break;
        default: /* a stretch from elsewhere */
            cut = cut > n - at ? n - at : cut;
            if (n > 0 && n + cut < MOST) {
                uint8_t tmp[32];
                memcpy(tmp, p + at, cut);
                size_t to = rng_below(r, (uint32_t)n);
                memmove(p + to + cut, p + to, n - to);
                memcpy(p + to, tmp, cut);
                n += cut;
            }
        }
    }
    return n;
}

int main(int argc, char **argv)
{
    static uint8_t seed[MOST], text[MOST];
    struct rng r = { 7 };
    long rounds = argc > 1 ? atol(argv[1]) : 0;
    for (int i = 2; i < argc; i++) {
        FILE *f = fopen(argv[i], "rb");
        if (f == NULL) {
            fprintf(stderr, "%s: cannot be read\n", argv[i]);
            return 2;
        }
        size_t n_seed = fread(seed, 1, MOST / 2, f);
        fclose(f);
        for (long k = 0; k < rounds; k++) {
            /* A window of the template, so that errors do not all lie early. */
            size_t from = rng_below(&r, (uint32_t)n_seed), n = 1 + rng_below(&r, 400);
            n = n > n_seed - from ? n_seed - from : n;
            memcpy(text, seed + from, n);
            n = mutate(&r, text, n);
            template_fuzz_one(text, n);
        }
    }
    printf("%d files, %ld mutations each\n", argc - 2, rounds);
    return argc > 2 && rounds > 0 ? 0 : 2;
}
