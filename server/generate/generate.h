/* generate.h: completion and chat requests, each from its body to its last byte.
 *
 * A generation outlives its client: it is freed when the engine has ended every
 * sequence of it and given back every mail, and the client has its reply or is
 * gone.  Everything here: the I/O thread. */
#ifndef SERVER_GENERATE_GENERATE_H
#define SERVER_GENERATE_GENERATE_H

#include "proto/metrics/serving.h"
#include "server/base/ids.h"
#include "server/base/log.h"
#include "server/base/phase.h"
#include "server/engine/engine.h"
#include "server/http/http.h"
#include "server/jobs/jobs.h"
#include "server/served/served.h"

/* All generations of the daemon, and what they share. */
struct generator;

/* Everything is borrowed for the generator's life. */
struct generator_config {
    const struct served *served;
    const enum srv_phase *phase; /* only SRV_SERVING accepts requests */
    const struct srv_log *log;
    struct serving_metrics *metrics;
    struct srv_ids *ids;
    struct jobs *jobs;
    struct work_count *work; /* counts generations that somebody waits for, or the engine has */
};
MUST_USE enum err_code generator_create(struct generator **out, const struct generator_config *cfg,
                                        struct err *e);
/* The engine that requests go to; once, before SRV_SERVING. */
void generator_set_engine(struct generator *gr, struct engine *engine);
/* No client is connected and no engine runs: what is left of generations goes. */
void generator_destroy(struct generator *gr);

/* Answer a request of this kind (OAI_COMPLETION, OAI_CHAT), now or later. */
void gen_start(struct generator *gr, struct exchange *x, enum oai_kind kind);

/* The engine's events, for struct engine_reader: ctx is the generator. */
void gen_event(void *ctx, const struct sched_event *ev, uint64_t sent_us);

/* Comment lines on streams that were silent for long, so that proxies between
 * do not give up.  Called every few seconds. */
void gen_ping(struct generator *gr);

/* Cancel those with this id: ours, or the client's x-request-id (which may name
 * several), or with id NULL every one; their clients are told e.  How many there were. */
uint32_t gen_cancel(struct generator *gr, const char *id, const struct err *e);

/* What others show of a live generation. */
struct gen_view {
    const char *id, *request_id; /* borrowed until the loop goes on */
    uint64_t began_us;
    uint32_t prompt; /* which of its prompts the engine's id stands for */
};
/* By the engine's id of one of its prompts; false: it has ended. */
bool gen_find(const struct generator *gr, req_id id, struct gen_view *out);

/* The one prompt of a live request, by its id as gen_cancel takes it, and the key
 * domain of its prefixes.  ids is the caller's (token_list_fini).  ERR_NOT_FOUND,
 * ERR_INVALID (it has several prompts), ERR_NOMEM. */
MUST_USE enum err_code gen_copy_prompt(const struct generator *gr, const char *id,
                                       struct token_list *ids, uint64_t *salt, struct err *e);

#endif
