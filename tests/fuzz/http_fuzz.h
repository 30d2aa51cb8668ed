/* http_fuzz.h: any bytes through the HTTP parser and through whole connections, with
 * what must hold for them.  Driven by libFuzzer and by a deterministic mutator. */
#ifndef TESTS_FUZZ_HTTP_FUZZ_H
#define TESTS_FUZZ_HTTP_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* How the bytes are cut does not change what the parser reads; data[0] is the size of
 * the pieces.  Aborts when that fails. */
void http_fuzz_parser(const uint8_t *data, size_t n);

/* The bytes as clients of a server that echoes: data[0] seeds how they are cut, when
 * replies that wait are given, and which clients leave.  Aborts when a reply is out
 * of order or is not of HTTP's form, when `gone` is not called exactly for what was
 * left, or when a connection outlives its server. */
void http_fuzz_connections(const uint8_t *data, size_t n);

#endif
