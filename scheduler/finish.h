/* finish.h: how sequences and requests end, and what the outside is told.
 *
 * Layer 5 of the scheduler's inside, over rows.h.  Engine thread. */
#ifndef SCHEDULER_FINISH_H
#define SCHEDULER_FINISH_H

#include "scheduler/state.h"

void sched_run_add(struct sched *s, struct seq *q);
void sched_run_remove(struct sched *s, struct seq *q);
/* Close what it holds in the pool. */
void sched_seq_release(struct sched *s, struct seq *q);
/* End one sequence: release, event, and the request with its last one.  The
 * request must not be touched afterwards unless another sequence lives. */
void sched_seq_finish(struct sched *s, struct seq *q, enum finish why, int32_t stop_id,
                      const struct err *why_failed);
/* End every sequence that lives. */
void sched_req_finish(struct sched *s, struct req *r, enum finish why,
                      const struct err *why_failed);
void sched_emit(struct sched *s, const struct sched_event *ev);
/* Free the ended requests that no step in flight names. */
void sched_free_deferred(struct sched *s);

#endif
