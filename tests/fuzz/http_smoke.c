/* http_smoke.c: the HTTP fuzz targets under a deterministic mutator.
 *   http_smoke [ROUNDS] [SEED]     a tenth of the rounds are whole connections */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/http_fuzz.h"
#include "support/rng.h"

enum { MAX_BYTES = 4096 };

#define HOST "Host: h\r\n"

static const char *const requests[] = {
    "GET /echo HTTP/1.1\r\n" HOST "\r\n",
    "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhello",
    "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "POST /stream HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\nabcd",
    "POST /stream HTTP/1.0\r\nContent-Length: 4\r\n\r\nabcd",
    "GET /hold?later HTTP/1.1\r\n" HOST "\r\n",
    "GET /hold?s HTTP/1.1\r\n" HOST "\r\n",
    "GET /big?30000 HTTP/1.1\r\n" HOST "\r\n",
    "HEAD /big?300 HTTP/1.1\r\n" HOST "\r\n",
    "GET /none HTTP/1.1\r\n" HOST "\r\n",
    "OPTIONS * HTTP/1.1\r\n" HOST "\r\n",
    "POST /echo HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 2\r\n\r\nhi",
    "POST /refuse HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 2\r\n\r\nhi",
    "GET /echo HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n",
    "GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    "DELETE http://h/missing%41 HTTP/1.1\r\n" HOST "x-request-id: abc\r\n\r\n",
};
static const char *const pieces[] = {
    "\r\n",
    "\n",
    "\r",
    "\r\n\r\n",
    ": ",
    "\r\n ",
    "%",
    "%00",
    "?",
    "chunked",
    "close",
    "keep-alive",
    "HTTP/1.0",
    "HTTP/1.1",
    "0\r\n\r\n",
    "ffffffff",
    "-1",
    "18446744073709551616",
    "Expect: ",
    "Connection:",
    "Transfer-Encoding: chunked\r\n",
    "Content-Length: 3\r\n",
    "\x80",
    "\x01",
    "GET / ",
};
enum {
    N_REQUESTS = sizeof requests / sizeof *requests,
    N_PIECES = sizeof pieces / sizeof *pieces,
};

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
    size_t at = 1 + rng_below(r, (uint32_t)n), left = n - at;
    size_t cut = rng_below(r, left < 8 ? (uint32_t)left + 1 : 9);
    const char *p = pieces[rng_below(r, N_PIECES)];
    uint8_t byte = (uint8_t)rng_next(r);

    switch (rng_below(r, 4)) {
    case 0:
        return splice(buf, n, at, cut, "", 0);
    case 1:
        return splice(buf, n, at, left > 0, &byte, 1);
    case 2:
        return splice(buf, n, at, 0, p, strlen(p));
    default:
        return splice(buf, n, at, cut, p, strlen(p));
    }
}

int main(int argc, char **argv)
{
    long rounds = argc > 1 ? atol(argv[1]) : 10000;
    struct rng r = { argc > 2 ? strtoull(argv[2], NULL, 0) : 1 };
    uint8_t buf[MAX_BYTES];

    for (long i = 0; i < rounds; i++) {
        size_t n = 1;
        buf[0] = (uint8_t)rng_next(&r);
        for (uint32_t k = 1 + rng_below(&r, 5); k > 0; k--) {
            const char *s = requests[rng_below(&r, N_REQUESTS)];
            n = splice(buf, n, n, 0, s, strlen(s));
        }
        for (uint32_t k = rng_below(&r, 5); k > 0; k--)
            n = mutate(&r, buf, n);
        uint8_t *exact = malloc(n); /* so that a read past the end is seen */
        if (exact == NULL)
            return 1;
        memcpy(exact, buf, n);
        http_fuzz_parser(exact, n);
        if (i % 10 == 0)
            http_fuzz_connections(exact, n);
        free(exact);
    }
    printf("%ld rounds\n", rounds);
    return 0;
}
