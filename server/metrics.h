/* metrics.h: what only this daemon knows, beside the serving engine's common
 * metrics: the ledger, steps, connections.  Creation before threads start;
 * refresh from the I/O thread. */
#ifndef SERVER_METRICS_H
#define SERVER_METRICS_H

#include "proto/metrics/serving.h"
#include "server/engine/engine.h"

struct srv_metrics {
    struct serving_metrics serving;
    struct prom_gauge *blocks_free, *blocks_cached, *blocks_held, *blocks_resting;
    struct prom_gauge *tokens_wasted, *connections, *start_time;
    struct prom_counter *evictions, *block_copies, *tokens_recomputed;
    struct prom_counter *steps, *step_faults, *ledger_violations;
};

MUST_USE enum err_code srv_metrics_init(struct srv_metrics *m,
                                        const struct serving_metrics_config *c, struct err *e);
void srv_metrics_fini(struct srv_metrics *m);

/* Carry the engine's counts over. */
void srv_metrics_refresh(struct srv_metrics *m, const struct engine_snapshot *s,
                         uint32_t n_connections);

#endif
