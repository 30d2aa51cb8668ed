/* stops.h: finding stop strings in text that arrives in pieces.
 *
 * The outcome depends on the text alone, never on how it was cut: output ends
 * at the first byte that completes any stop string (the longest of those that
 * it completes), and no byte that may still belong to one is released early,
 * nor any other byte late.  A struct stop_set is const after init and shared by
 * the choices of a request; a matcher has one user. */
#ifndef SERVER_GENERATE_STOPS_H
#define SERVER_GENERATE_STOPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/text/json.h"
#include "proto/openai/request.h"

struct stop_set {
    const struct oai_text *stop; /* borrowed */
    uint32_t n;
    uint32_t **fail; /* [n][stop[i].n + 1] longest border of each prefix; owned */
};

MUST_USE enum err_code stop_set_init(struct stop_set *s, const struct oai_text *stop, uint32_t n,
                                     struct err *e);
void stop_set_fini(struct stop_set *s);

struct stop_match {
    const struct stop_set *set; /* borrowed */
    uint32_t *state;            /* [set->n] bytes of each stop matched by the tail; owned */
    struct buf held;            /* bytes that may begin a stop; owned */
};

MUST_USE enum err_code stop_match_init(struct stop_match *m, const struct stop_set *set,
                                       struct err *e);
void stop_match_fini(struct stop_match *m);

/* Take text[0..n); append what may go out to out.  Returns the index of the
 * stop that ended the text, or -1; with include its bytes go out too. A failed
 * allocation shows in out->failed. */
int32_t stop_match_feed(struct stop_match *m, const char *text, size_t n, bool include,
                        struct buf *out);
/* The text ended by itself: what was held goes out. */
void stop_match_flush(struct stop_match *m, struct buf *out);

#endif
