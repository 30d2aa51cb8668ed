/* http_libfuzzer.c: libFuzzer over the request parser: how the bytes are cut must
 * not change what is read.  The same property runs on mutations in http_test. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/http/parser.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* A hash of everything a parser reports for bytes fed in pieces of `piece`. */
static uint64_t story(const char *data, size_t n, size_t piece)
{
    struct http_limits lim = { 1024, 2048 };
    struct http_parser p;
    uint64_t h = 14695981039346656037u;
    size_t at = 0;

    http_parser_init(&p, &lim);
    while (at < n) {
        size_t end = at + piece < n ? at + piece : n, used;
        enum parse_event ev;
        do {
            ev = http_parser_feed(&p, data + at, end - at, &used);
            at += used;
            if (ev != PARSE_MORE) /* pieces do not count */
                h = (h ^ (uint64_t)ev) * 1099511628211u;
            if (ev == PARSE_HEAD)
                h = (h ^ p.method ^ strlen(p.path) << 8) * 1099511628211u;
            if (ev == PARSE_MESSAGE) {
                h = (h ^ p.n_body) * 1099511628211u;
                http_parser_next(&p);
            }
        } while (ev != PARSE_MORE && ev != PARSE_BAD);
        if (ev == PARSE_BAD) {
            h ^= (uint64_t)p.status;
            break;
        }
    }
    http_parser_fini(&p);
    return h;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 2)
        return 0;
    size_t piece = 1 + data[0] % 16;
    if (story((const char *)data + 1, n - 1, n) != story((const char *)data + 1, n - 1, piece)) {
        fprintf(stderr, "pieces of %zu bytes are read differently\n", piece);
        abort();
    }
    return 0;
}
