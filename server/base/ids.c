/* ids.c: a keyed hash of a counter.  The caller's thread. */
#include "server/base/ids.h"

#include <stdio.h>

#include <xxhash.h>

void srv_new_id(struct srv_ids *ids, const char *prefix, char *out, size_t n)
{
    uint64_t in[2] = { ++ids->n, ids->key };
    XXH128_hash_t h = XXH3_128bits_withSeed(in, sizeof in, ids->seed);

    snprintf(out, n, "%s%016llx%08llx", prefix, (unsigned long long)h.high64,
             (unsigned long long)(h.low64 >> 32));
}
