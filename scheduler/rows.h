/* rows.h: the rows of the step that is being planned.
 *
 * Layer 4 of the scheduler's inside, over state.h.  Engine thread. */
#ifndef SCHEDULER_ROWS_H
#define SCHEDULER_ROWS_H

#include "scheduler/state.h"

/* Plan n tokens of q as the next row; ERR_BUSY: no blocks, nothing changed. */
MUST_USE enum err_code sched_row_add(struct sched *s, struct seq *q, uint32_t n, struct err *e);
/* Undo q's row, if it has one and the step is only being planned. */
void sched_row_drop(struct sched *s, struct seq *q);
/* The largest chunk <= n whose outputs still fit the step; 0: none does. */
uint32_t sched_row_fit(const struct sched *s, const struct seq *q, uint32_t n);

/* Prompt scores among the logits of the next n tokens of q. */
uint32_t sched_row_targets(const struct seq *q, uint32_t n);

#endif
