/* request_smoke.c: the request fuzz target under a deterministic mutator.
 *   request_smoke [ROUNDS] [SEED] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/request_fuzz.h"
#include "support/bodies.h"
#include "support/rng.h"

enum { MAX_BYTES = 4096 };

static const char *const pieces[] = {
    "{",           "}",        "[",       "]",        ",",       ":",
    "\"",          "\\",       "\\u0000", "\\ud83d",  "\\ude00", "null",
    "true",        "-1",       "0",       "1e999",    "1e-400",  "9223372036854775808",
    "0.1",         "\xf0\x9f", "\xff",    "\xc0\x80", "\"n\":",  "\"stop\":\"\"",
    "\"prompt\":", "[[",       "]]",      "[[[[[[[[", " ",       "\n",
    "{\"a\":",
};
enum { N_PIECES = sizeof pieces / sizeof *pieces };

/* Replace `cut` bytes at `at` by s[0..k). */
static size_t splice(uint8_t *buf, size_t n, size_t at, size_t cut, const void *s, size_t k)
{
    if (n - cut + k > MAX_BYTES)
        return n;
    memmove(buf + at + k, buf + at + cut, n - at - cut);
    memcpy(buf + at, s, k);
    return n - cut + k;
}

static size_t mutate(struct rng *r, uint8_t *buf, size_t n)
{
    size_t at = 1 + rng_below(r, (uint32_t)n), left = at < n ? n - at : 0;
    size_t cut = left == 0 ? 0 : rng_below(r, left < 16 ? (uint32_t)left + 1 : 17);
    if (at > n)
        at = n;
    const char *p = pieces[rng_below(r, N_PIECES)];
    uint8_t byte = (uint8_t)rng_next(r);
    switch (rng_below(r, 5)) {
    case 0:
        return splice(buf, n, at, cut, "", 0);
    case 1:
        return splice(buf, n, at, left > 0, &byte, 1);
    case 2:
        return splice(buf, n, at, 0, p, strlen(p));
    case 3:
        return splice(buf, n, at, cut, p, strlen(p));
    default: { /* copy a piece of itself elsewhere */
        uint8_t copy[64];
        size_t from = rng_below(r, (uint32_t)n), k = rng_below(r, sizeof copy);
        k = k > n - from ? n - from : k;
        memcpy(copy, buf + from, k);
        return splice(buf, n, at, 0, copy, k);
    }
    }
}

int main(int argc, char **argv)
{
    long rounds = argc > 1 ? atol(argv[1]) : 20000;
    struct rng r = { argc > 2 ? strtoull(argv[2], NULL, 0) : 1 };
    uint8_t buf[MAX_BYTES];
    for (long i = 0; i < rounds; i++) {
        unsigned s = rng_below(&r, N_SEED_BODIES);
        size_t n = strlen(seed_bodies[s].text) + 1;
        buf[0] = (uint8_t)seed_bodies[s].kind;
        memcpy(buf + 1, seed_bodies[s].text, n - 1);
        for (uint32_t k = rng_below(&r, 6); k > 0 && n > 1; k--)
            n = mutate(&r, buf, n);
        uint8_t *exact = malloc(n); /* so that a read past the end is seen */
        if (exact == NULL)
            return 1;
        memcpy(exact, buf, n);
        request_fuzz_one(exact, n);
        free(exact);
    }
    printf("%ld bodies\n", rounds);
    return 0;
}
