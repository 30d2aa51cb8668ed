/* philox.h: Philox4x32-10, a random number from a key and a counter alone.
 * Pure functions, C17 and CUDA; any thread. */
#ifndef PROTO_NUMBER_PHILOX_H
#define PROTO_NUMBER_PHILOX_H

#include "proto/number/bits.h"

/* Ten rounds over counter c under key k. */
static HD void philox4x32(const uint32_t c[4], const uint32_t k[2], uint32_t out[4])
{
    uint32_t x0 = c[0], x1 = c[1], x2 = c[2], x3 = c[3], k0 = k[0], k1 = k[1];
    for (int i = 0; i < 10; i++) {
        uint64_t a = (uint64_t)0xD2511F53u * x0, b = (uint64_t)0xCD9E8D57u * x2;
        uint32_t y0 = (uint32_t)(b >> 32) ^ x1 ^ k0, y2 = (uint32_t)(a >> 32) ^ x3 ^ k1;
        x1 = (uint32_t)b;
        x3 = (uint32_t)a;
        x0 = y0;
        x2 = y2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = x0;
    out[1] = x1;
    out[2] = x2;
    out[3] = x3;
}

/* Uniform in [0, 1), 53 bits, for a sequence's seed and a position in it. */
static HD double philox_unit(uint64_t seed, uint64_t position)
{
    uint32_t c[4] = { (uint32_t)position, (uint32_t)(position >> 32), 0, 0 };
    uint32_t k[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) }, r[4];
    philox4x32(c, k, r);
    return (double)((uint64_t)r[0] << 21 | r[1] >> 11) * 0x1p-53;
}

#endif
