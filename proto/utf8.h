/* utf8.h: validate and cut UTF-8 (Unicode 15, table 3-7: no overlong form, no
 * surrogate, nothing above U+10FFFF).  Pure functions; any thread. */
#ifndef PROTO_UTF8_H
#define PROTO_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the valid sequence at the start of s[0..n): 1..4, or 0 when the
 * bytes there are not one (n = 0 included). */
size_t utf8_sequence_bytes(const char *s, size_t n);

/* Length of the longest valid prefix of s[0..n); n when all of it is valid. */
size_t utf8_valid_prefix(const char *s, size_t n);

static inline bool utf8_is_valid(const char *s, size_t n)
{
    return utf8_valid_prefix(s, n) == n;
}

/* How many bytes at the end of s[0..n) are a proper prefix of some valid
 * sequence and could still be completed by later bytes: 0..3. */
size_t utf8_incomplete_tail(const char *s, size_t n);

/* Code point of the valid sequence at s (utf8_sequence_bytes(s, n) > 0). */
uint32_t utf8_decode(const char *s, size_t n);

/* Write code point c (a scalar value) to out; returns 1..4. */
size_t utf8_encode(uint32_t c, char out[4]);

#endif
