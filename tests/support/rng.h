/* rng.h: the tests' random numbers: splitmix64, so that a seed printed by a
 * failing run reproduces it anywhere. */
#ifndef TESTS_SUPPORT_RNG_H
#define TESTS_SUPPORT_RNG_H

#include <stdint.h>

struct rng {
    uint64_t state;
};

static inline uint64_t rng_next(struct rng *r)
{
    uint64_t z = r->state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* Uniform in [0, n), n > 0. */
static inline uint32_t rng_below(struct rng *r, uint32_t n)
{
    return (uint32_t)((rng_next(r) >> 32) * n >> 32);
}

/* Uniform in [0, 1). */
static inline double rng_unit(struct rng *r)
{
    return (double)(rng_next(r) >> 11) * 0x1p-53;
}

#endif
