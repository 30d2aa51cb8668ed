/* drain.h: leaving: SIGTERM or SIGINT stops new work, lets running requests
 * finish for a time, cancels what is left, and stops the loop once every reply
 * is sent; a second signal exits at once, and so does one while loading.
 *
 *   LOADING -signal-> exit 0      SERVING -signal-> DRAINING -signal-> exit 1
 *   DRAINING -nothing left, all sent (or not in time)-> the loop stops
 *   DRAINING -timeout-> cancelled -still something left, stuck_s later-> exit 1
 *
 * Owns its handles, which are closed with the loop's others.  The thread of the
 * loop. */
#ifndef SERVER_DRAIN_H
#define SERVER_DRAIN_H

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "server/base/log.h"
#include "server/base/phase.h"

struct drain_config {
    uv_loop_t *loop; /* borrowed, as everything here */
    const struct srv_log *log;
    enum srv_phase *phase;     /* set to SRV_DRAINING by the first signal */
    double timeout_s, stuck_s; /* for requests to end; after they were cancelled */
    const char *uds; /* the Unix socket to remove where the loop is not left; NULL: none */

    void *ctx;
    uint32_t (*n_left)(void *ctx); /* requests that must end */
    bool (*all_sent)(void *ctx);   /* every reply was handed to the kernel */
    void (*on_begin)(void *ctx);   /* draining begins */
    void (*cancel_all)(void *ctx); /* time is up: end what runs, now or soon */
};

struct drain {
    struct drain_config cfg;
    uv_timer_t timer;
    uv_signal_t sigterm, sigint;
    uint64_t flush_until_us; /* once nothing is left; else 0 */
};

/* Install the signal handlers; uv's error number or 0. */
int drain_watch(struct drain *d, const struct drain_config *cfg);
/* What the first signal does, or where one came already, the second. */
void drain_begin(struct drain *d);
/* Something ended: stop the loop soon when it was the last. */
void drain_check(struct drain *d);
/* Stop the loop, whatever runs. */
void drain_stop(struct drain *d);

#endif
