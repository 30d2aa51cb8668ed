/* ids.c: names for requests: unguessable, never repeated.  I/O thread. */
#include <stdio.h>

#include <xxhash.h>

#include "server/server.h"

void srv_new_id(struct srv *srv, const char *prefix, char *out, size_t n)
{
    uint64_t in[2] = { ++srv->id_key[1], srv->id_key[0] };
    XXH128_hash_t h = XXH3_128bits_withSeed(in, sizeof in, srv->salt_key);

    snprintf(out, n, "%s%016llx%08llx", prefix, (unsigned long long)h.high64,
             (unsigned long long)(h.low64 >> 32));
}
