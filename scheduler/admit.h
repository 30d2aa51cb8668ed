/* admit.h: who starts, and when.
 *
 * Layer 6 of the scheduler's inside, over finish.h and rows.h.  Engine thread. */
#ifndef SCHEDULER_ADMIT_H
#define SCHEDULER_ADMIT_H

#include "scheduler/state.h"

/* Start waiting sequences as rows of the step, within the budget. */
void sched_admit(struct sched *s, uint32_t *budget);
/* The same for those that have less to compute than any part-done prompt. */
void sched_admit_shorter(struct sched *s, uint32_t *budget);
/* Whoever would be admitted next, or NULL. */
struct seq *sched_admit_next(struct sched *s);

#endif
