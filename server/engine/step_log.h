/* step_log.h: at --log-level debug, what the engine's steps computed, in a line at
 * most once a second.
 *
 * A struct step_log begins zeroed; it and the calls are the engine thread's. */
#ifndef SERVER_ENGINE_STEP_LOG_H
#define SERVER_ENGINE_STEP_LOG_H

#include "kvpool/kvpool.h"
#include "scheduler/sched.h"
#include "server/base/log.h"

struct step_log {
    uint64_t said_us; /* 0: never */
    struct sched_stats then;
    uint64_t hits_then, queries_then; /* tokens */
};

/* Steps may have ended: a line of what came since the last, if there was one and
 * it was a second ago.  now_us: srv_now_us's clock. */
void step_log_note(struct step_log *l, const struct srv_log *log, uint64_t now_us,
                   const struct sched_stats *s, const struct kvpool_stats *p);

#endif
