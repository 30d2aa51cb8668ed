/* sizing.h: the memory arithmetic: how many KV blocks, how long a context, what
 * a step may hold.  sizing_measure reads what memory is free; sizing_compute is
 * pure.  The loading thread, before the model is started. */
#ifndef SERVER_SIZING_H
#define SERVER_SIZING_H

#include <stdio.h>

#include "kvpool/kvpool.h"
#include "model/model.h"
#include "scheduler/sched.h"
#include "server/options.h"

struct sizing_memory {
    uint64_t free_bytes;        /* memory that this process may still take */
    struct model_memory device; /* all 0 on the CPU, or where sizes are given */
};

struct sizing {
    struct sizing_memory memory;
    uint64_t kv_bytes, block_bytes;
    uint32_t n_blocks, max_model_len;
    uint32_t pin_budget; /* of the blocks: what pins may hold */
    bool model_len_cut;  /* the pool, not the model, bounds the context */
    struct kvpool_config pool;
    struct sched_config sched;
};

/* What is free.  The device is measured, which takes as long as a start, only
 * where the size of the pool depends on it or --plan asks.  model_memory's errors. */
MUST_USE enum err_code sizing_measure(struct sizing_memory *out, const struct srv_options *o,
                                      struct model *m, struct err *e);

/* ERR_LIMIT when the pool cannot hold one sequence of the context asked for:
 * both numbers and what to set. */
MUST_USE enum err_code sizing_compute(struct sizing *out, const struct srv_options *o,
                                      const struct model_info *m, const struct sizing_memory *free,
                                      struct err *e);

/* --plan: one figure a line. */
void sizing_print(FILE *f, const struct sizing *s, const struct srv_options *o,
                  const struct model_info *m);

#endif
