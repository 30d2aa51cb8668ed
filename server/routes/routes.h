/* routes.h: one function a route.  Each answers its exchange once, now or
 * later.  I/O thread. */
#ifndef SERVER_ROUTES_ROUTES_H
#define SERVER_ROUTES_ROUTES_H

#include "server/http/http.h"

struct srv;

/* completions.c */
void handle_completions(struct srv *srv, struct exchange *x);
void handle_chat(struct srv *srv, struct exchange *x);
/* text.c */
void handle_tokenize(struct srv *srv, struct exchange *x);
void handle_detokenize(struct srv *srv, struct exchange *x);
void handle_apply_template(struct srv *srv, struct exchange *x);
/* info.c */
void handle_models(struct srv *srv, struct exchange *x);
void handle_model(struct srv *srv, struct exchange *x);
void handle_health(struct srv *srv, struct exchange *x);
void handle_ready(struct srv *srv, struct exchange *x);
void handle_version(struct srv *srv, struct exchange *x);
void handle_metrics(struct srv *srv, struct exchange *x);
/* admin.c */
void handle_cache(struct srv *srv, struct exchange *x);
void handle_cache_reset(struct srv *srv, struct exchange *x);
void handle_requests(struct srv *srv, struct exchange *x);
void handle_request_delete(struct srv *srv, struct exchange *x);
/* pins.c */
void handle_pin(struct srv *srv, struct exchange *x);
void handle_unpin(struct srv *srv, struct exchange *x);
/* map.c */
void handle_blocks(struct srv *srv, struct exchange *x);
void handle_steps(struct srv *srv, struct exchange *x);

/* Pins expire while nothing else wakes the engine. Called every few seconds. */
void admin_tick(struct srv *srv);

#endif
