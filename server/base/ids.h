/* ids.h: names for requests: unguessable, never repeated within a process.
 *
 * A struct srv_ids belongs to its caller and is one thread's at a time. */
#ifndef SERVER_BASE_IDS_H
#define SERVER_BASE_IDS_H

#include <stddef.h>
#include <stdint.h>

enum { SRV_ID_DIGITS = 24 };

/* key and seed: random, drawn once a process. */
struct srv_ids {
    uint64_t key, seed;
    uint64_t n; /* names given so far */
};

/* prefix and SRV_ID_DIGITS hexadecimal digits, cut to n bytes with the final 0. */
void srv_new_id(struct srv_ids *ids, const char *prefix, char *out, size_t n);

#endif
