/* routes.h: one function a route.  Each answers its exchange once, now or
 * later.  I/O thread. */
#ifndef SERVER_ROUTES_ROUTES_H
#define SERVER_ROUTES_ROUTES_H

#include "server/base/list.h"
#include "server/base/phase.h"
#include "server/engine/engine.h"
#include "server/generate/generate.h"
#include "server/http/http.h"
#include "server/jobs/jobs.h"
#include "server/served/served.h"

/* What handlers work with: `app` of struct http_config.  Everything is borrowed. */
struct routes {
    const struct served *served;
    const enum srv_phase *phase;
    const struct srv_list *api_keys, *admin_keys;
    struct engine *engine; /* NULL while loading */
    struct generator *gen;
    struct jobs *jobs;
    struct work_count *work;
    double health_timeout_s;                   /* without a step before /health says stuck */
    uint64_t step_history;                     /* steps that the engine records */
    uint32_t pin_budget;                       /* blocks that pins may hold */
    void (*metrics)(void *ctx, struct buf *o); /* write what /metrics answers */
    void *metrics_ctx;
    bool pins_expiring; /* the engine was asked to drop what is due */
};

/* completions.c */
void handle_completions(struct routes *rt, struct exchange *x);
void handle_chat(struct routes *rt, struct exchange *x);
/* text.c */
void handle_tokenize(struct routes *rt, struct exchange *x);
void handle_detokenize(struct routes *rt, struct exchange *x);
void handle_apply_template(struct routes *rt, struct exchange *x);
/* info.c */
void handle_models(struct routes *rt, struct exchange *x);
void handle_model(struct routes *rt, struct exchange *x);
void handle_health(struct routes *rt, struct exchange *x);
void handle_ready(struct routes *rt, struct exchange *x);
void handle_version(struct routes *rt, struct exchange *x);
void handle_metrics(struct routes *rt, struct exchange *x);
/* admin.c */
void handle_cache(struct routes *rt, struct exchange *x);
void handle_cache_reset(struct routes *rt, struct exchange *x);
void handle_requests(struct routes *rt, struct exchange *x);
void handle_request_delete(struct routes *rt, struct exchange *x);
/* pins.c */
void handle_pin(struct routes *rt, struct exchange *x);
void handle_unpin(struct routes *rt, struct exchange *x);
/* map.c */
void handle_blocks(struct routes *rt, struct exchange *x);
void handle_steps(struct routes *rt, struct exchange *x);

/* Pins expire while nothing else wakes the engine. Called every few seconds. */
void admin_tick(struct routes *rt);

#endif
