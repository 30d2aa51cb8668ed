/* jobs.h: work for the thread pool of a loop: bounded, counted, cancellable.
 *
 * A job runs once on a thread of the pool and then reports on the loop's thread,
 * exactly once, whatever happened; only then is its memory the caller's again.
 * Everything but run and job_stopped: the loop's thread.
 *
 *   IDLE -jobs_submit-> WANTED -done-> IDLE
 *   WANTED -job_cancel-> CANCELLED -done-> IDLE
 *
 * Work whose result somebody waits for is counted in struct work_count, which
 * jobs share with whatever else the daemon must finish before it may end. */
#ifndef SERVER_JOBS_JOBS_H
#define SERVER_JOBS_JOBS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "proto/err.h"

/* How many pieces of work somebody waits for.  One thread's. */
struct work_count {
    uint32_t n;
    void (*ended)(void *ctx); /* one of them ended; or NULL */
    void *ctx;
};
void work_begin(struct work_count *w);
void work_end(struct work_count *w);

/* The jobs of one loop. */
struct jobs {
    uv_loop_t *loop;
    struct work_count *work; /* borrowed; counts the wanted ones */
    uint32_t n, max;         /* submitted and not done */
};

enum job_state { JOB_IDLE, JOB_WANTED, JOB_CANCELLED };

/* Embedded in what the work is about; all 0 before its first use. */
struct job {
    uv_work_t request;
    struct jobs *jobs;
    enum job_state state;
    _Atomic bool stop;
    void (*run)(struct job *j);                  /* on the pool */
    void (*done)(struct job *j, bool cancelled); /* on the loop; cancelled: run may not have been
                                                  * called, or not have come to its end */
};

void jobs_init(struct jobs *q, uv_loop_t *loop, uint32_t max, struct work_count *work);

/* ERR_BUSY: max jobs are submitted already.  ERR_NOMEM.  On error nothing runs
 * and done is not called. */
MUST_USE enum err_code jobs_submit(struct jobs *q, struct job *j, void (*run)(struct job *),
                                   void (*done)(struct job *, bool cancelled), struct err *e);

/* Nobody waits for the result any more: it does not begin, or is asked to stop;
 * done comes later, and counts as no wanted work.  No effect on a job that is
 * cancelled or idle. */
void job_cancel(struct job *j);

/* Whether a running job should end early.  Any thread. */
bool job_stopped(const struct job *j);

#endif
