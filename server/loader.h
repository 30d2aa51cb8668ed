/* loader.h: from options to a serving engine, on the pool, while the I/O thread
 * already answers /health and /ready. */
#ifndef SERVER_LOADER_H
#define SERVER_LOADER_H

#include "server/server.h"

/* Load model, tokenizer and template, size the pool, start the engine; fills
 * what of srv is const after loading.  On error nothing is left open. */
MUST_USE enum err_code loader_load(struct srv *srv, struct err *e);
void loader_unload(struct srv *srv);

/* --plan: load, print the arithmetic, unload. */
MUST_USE enum err_code loader_plan(struct srv *srv, struct err *e);

#endif
