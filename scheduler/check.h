/* check.h: the scheduler's invariants, where they are checked on the way.
 *
 * Layer 4 of the scheduler's inside, over state.h.  Engine thread. */
#ifndef SCHEDULER_CHECK_H
#define SCHEDULER_CHECK_H

#include "scheduler/state.h"

/* Debug builds: end the program, saying which invariant of sched_check fails.
 * Release builds: nothing. */
void sched_assert(const struct sched *s);

#endif
