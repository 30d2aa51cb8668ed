/* attention_plan_smoke.c: the fuzz target on random bytes, a fixed number of
 * rounds: attention_plan_smoke [rounds] [seed]. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "fuzz/attention_plan_fuzz.h"
#include "support/rng.h"

int main(int argc, char **argv)
{
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 3000;
    struct rng r = { argc > 2 ? strtoull(argv[2], NULL, 10) : 1 };
    uint64_t planned, accepted, ran;
    uint8_t bytes[256];
    for (uint64_t i = 0; i < rounds; i++) {
        size_t n = rng_below(&r, sizeof bytes);
        for (size_t k = 0; k < n; k++)
            bytes[k] = (uint8_t)rng_next(&r);
        attention_plan_fuzz(bytes, n);
    }
    attention_plan_fuzz_counts(&planned, &accepted, &ran);
    printf("%" PRIu64 " planned, %" PRIu64 " accepted, %" PRIu64 " ran\n", planned, accepted, ran);
    /* A generator that only ever meets one side of the rules tests nothing. */
    return accepted * 10 > planned && accepted < planned && ran * 2 > accepted ? 0 : 1;
}
