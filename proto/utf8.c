/* utf8.c: see utf8.h. */
#include "proto/utf8.h"

#include <string.h>

/* Sequence length by lead byte and the range allowed for the second byte. */
static size_t lead(unsigned char c, unsigned char *lo, unsigned char *hi)
{
    *lo = 0x80;
    *hi = 0xbf;
    if (c < 0x80)
        return 1;
    if (c < 0xc2)
        return 0;
    if (c < 0xe0)
        return 2;
    if (c < 0xf0) {
        if (c == 0xe0)
            *lo = 0xa0;
        if (c == 0xed)
            *hi = 0x9f;
        return 3;
    }
    if (c > 0xf4)
        return 0;
    if (c == 0xf0)
        *lo = 0x90;
    if (c == 0xf4)
        *hi = 0x8f;
    return 4;
}

/* How many of the n bytes at s continue one valid sequence; *need gets its
 * whole length (0: bad lead byte). */
static size_t matched(const char *s, size_t n, size_t *need)
{
    unsigned char lo, hi;
    *need = n == 0 ? 0 : lead((unsigned char)s[0], &lo, &hi);
    if (*need == 0)
        return 0;
    size_t i = 1;
    for (; i < *need && i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c < lo || c > hi)
            break;
        lo = 0x80;
        hi = 0xbf;
    }
    return i;
}

size_t utf8_sequence_bytes(const char *s, size_t n)
{
    size_t need;
    size_t got = matched(s, n, &need);
    return got == need ? need : 0;
}

size_t utf8_valid_prefix(const char *s, size_t n)
{
    const uint64_t tops = UINT64_C(0x8080808080808080);
    for (size_t i = 0;;) {
        for (uint64_t w; n - i >= 8; i += 8) { /* eight at a time while all are ASCII */
            memcpy(&w, s + i, 8);
            if ((w & tops) == 0)
                continue;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
            i += (size_t)__builtin_ctzll(w & tops) / 8; /* the first that is not */
#endif
            break;
        }
        while (i < n && (unsigned char)s[i] < 0x80)
            i++;
        if (i == n)
            return n;
        unsigned char c = (unsigned char)s[i];
        bool two = c >= 0xc2 && c < 0xe0 && n - i >= 2 && ((unsigned char)s[i + 1] & 0xc0) == 0x80;
        size_t len = two ? 2 : utf8_sequence_bytes(s + i, n - i);
        if (len == 0)
            return i;
        i += len;
    }
}

size_t utf8_incomplete_tail(const char *s, size_t n)
{
    for (size_t k = 1; k <= 3 && k <= n; k++) {
        size_t need;
        size_t got = matched(s + n - k, k, &need);
        if (got == k && need > k)
            return k;
    }
    return 0;
}

uint32_t utf8_decode(const char *s, size_t n)
{
    static const unsigned char mask[5] = { 0, 0x7f, 0x1f, 0x0f, 0x07 };
    size_t len = utf8_sequence_bytes(s, n);
    uint32_t c = (unsigned char)s[0] & mask[len];
    for (size_t i = 1; i < len; i++)
        c = c << 6 | ((unsigned char)s[i] & 0x3f);
    return c;
}

size_t utf8_encode(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}
