/* tokenizer_smoke.c: the fuzz targets on mutated tokenizers and texts, the same
 * every run:  tokenizer_smoke ROUNDS TOKENIZER.json... */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/tokenizer_fuzz.h"
#include "support/rng.h"

enum { MOST = 1 << 16 };

static const char *const words[] = {
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "null",
    "true",
    "-1",
    "1e308",
    "\"id\"",
    "4294967296",
    "\"type\"",
    "\"BPE\"",
    "\"Unigram\"",
    "\\u0000",
    "\\ud83d",
    "(?i:",
    "\\p{",
    "{1,3}+",
    "&&[^",
    "\\s",
    "\\x{110000}",
    "<s>",
    "</s>",
    "<unk>",
    "<|end|>",
    "<think>",
    "the",
    "<0x0A>",
    "\xe2\x96\x81",
    " ",
    "\n",
    "'s",
    "123",
    "\xf0\x9f\x98\x80",
    "\xc3",
    "\xed\xa0\x80",
    "e\xcc\x81",
    "\xe4\xb8\xad",
    "\xff",
};

static size_t insert(uint8_t *p, size_t n, size_t at, const void *s, size_t k)
{
    if (n + k >= MOST)
        return n;
    memmove(p + at + k, p + at, n - at);
    memcpy(p + at, s, k);
    return n + k;
}

static size_t mutate(struct rng *r, uint8_t *p, size_t n)
{
    for (uint32_t i = 0; i <= rng_below(r, 4); i++) {
        size_t at = n == 0 ? 0 : rng_below(r, (uint32_t)n), cut = 1 + rng_below(r, 30);
        const char *w = words[rng_below(r, sizeof(words) / sizeof(words[0]))];
        uint8_t piece[32];
        cut = cut > n - at ? n - at : cut;
        switch (rng_below(r, 4)) {
        case 0:
            if (n > 0)
                p[at] = (uint8_t)rng_next(r);
            break;
        case 1:
            n = insert(p, n, at, w, strlen(w));
            break;
        case 2:
            memmove(p + at, p + at + cut, n - at - cut);
            n -= cut;
            break;
        default: /* a stretch from elsewhere */
            memcpy(piece, p + at, cut);
            n = insert(p, n, n == 0 ? 0 : rng_below(r, (uint32_t)n), piece, cut);
        }
    }
    return n;
}

int main(int argc, char **argv)
{
    static uint8_t seed[MOST], x[MOST];
    struct rng r = { 11 };
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
            memcpy(x, seed, n_seed);
            tokenizer_fuzz_json(x, mutate(&r, x, n_seed));
            size_t n = 0;
            for (uint32_t w = rng_below(&r, 30) + 2; w > 0; w--) {
                const char *s = words[rng_below(&r, sizeof(words) / sizeof(words[0]))];
                n = insert(x, n, n, s, strlen(s));
            }
            x[0] = (uint8_t)rng_next(&r);
            x[1] = (uint8_t)rng_next(&r);
            tokenizer_fuzz_text(x, mutate(&r, x, n));
        }
    }
    printf("%d files, %ld mutations and texts each\n", argc - 2, rounds);
    return argc > 2 && rounds > 0 ? 0 : 2;
}
