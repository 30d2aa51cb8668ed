/* workers.h: a small pool of threads for fork-join work.
 *
 * Owns n - 1 threads; the caller of a run is worker 0 and works too.  Between
 * runs the threads spin for a few microseconds, then sleep, so that an idle
 * pool costs nothing and a run that follows another soon starts fast.  A pool is
 * used by one thread at a time, and a run is never nested in another.  Work
 * must not depend on which worker does it: results are then the same for any n.
 * Everything written before a run is seen by its tasks, and everything tasks
 * wrote is seen after it. */
#ifndef ATTENTION_PLATFORM_WORKERS_H
#define ATTENTION_PLATFORM_WORKERS_H

#include <stdint.h>

#include "proto/err.h"

struct workers;

enum { WORKERS_MAX = 1024 };

/* Start a pool of n workers, the caller included: n - 1 threads.  n = 0 means
 * one per CPU that this process may run on.  ERR_LIMIT above WORKERS_MAX. */
MUST_USE enum err_code workers_create(struct workers **out, uint32_t n, struct err *e);

/* Stop and join the threads.  NULL is allowed. */
void workers_destroy(struct workers *w);

/* Number of workers, at least 1; 1 for NULL. */
uint32_t workers_count(const struct workers *w);

/* A task: index in [0, n_tasks), worker in [0, workers_count). */
typedef void workers_task(void *ctx, uint32_t task, uint32_t worker);

/* Run fn(ctx, i, worker) for every i in [0, n_tasks), in any order, each once;
 * returns when all are done.  Free workers take the next index, so uneven tasks
 * balance.  A NULL pool, and n_tasks of 1, run on the caller alone. */
void workers_run(struct workers *w, workers_task *fn, void *ctx, uint32_t n_tasks);

#endif
