/* sizing.h: the memory arithmetic: how many KV blocks, how long a context, what
 * a step may hold.  Pure but for measuring what memory is free.  The model's
 * thread, before it is started. */
#ifndef SERVER_SIZING_H
#define SERVER_SIZING_H

#include <stdio.h>

#include "kvpool/kvpool.h"
#include "model/model.h"
#include "scheduler/sched.h"
#include "server/options.h"

struct sizing {
    uint64_t free_bytes;        /* memory that this process may still take */
    struct model_memory device; /* all 0 on the CPU */
    uint64_t kv_bytes, block_bytes;
    uint32_t n_blocks, max_model_len;
    uint32_t pin_budget; /* of the blocks: what pins may hold */
    bool model_len_cut;  /* the pool, not the model, bounds the context */
    struct kvpool_config pool;
    struct sched_config sched;
};

/* ERR_LIMIT when the pool cannot hold one sequence of the context asked for:
 * both numbers and what to set. */
MUST_USE enum err_code sizing_compute(struct sizing *out, const struct srv_options *o,
                                      struct model *m, struct err *e);

/* --plan: one figure a line. */
void sizing_print(FILE *f, const struct sizing *s, const struct srv_options *o,
                  const struct model_info *m);

#endif
