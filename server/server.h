/* server.h: the daemon's one context, passed to everything that needs it.
 *
 * Created in main; the I/O thread's, except for what is said to be const after
 * loading (options, log, model, tokenizer, template, defaults), which the
 * pool's threads read as well. */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H

#include <time.h>
#include <uv.h>

#include "server/base/ids.h"
#include "server/base/log.h"
#include "server/base/phase.h"
#include "server/drain.h"
#include "server/engine/engine.h"
#include "server/generate/generate.h"
#include "server/http/http_server.h"
#include "server/jobs/jobs.h"
#include "server/metrics.h"
#include "server/options.h"
#include "server/routes/routes.h"
#include "server/served/served.h"

enum { SRV_MAX_JOBS = 1024 }; /* bodies that are being read, or wait to be */

struct srv {
    uv_loop_t loop;
    struct srv_options opt;
    struct srv_log log;
    enum srv_phase phase;
    uint64_t started_us;
    int exit_code;

    /* Const after loading; served borrows from what is open. */
    struct model *model;
    struct tokenizer *tokenizer;
    struct chat_template *chat; /* NULL: the model has none */
    struct served served;
    uint64_t hash_seed; /* of this process: hashes of the prefix index cannot be guessed */
    struct srv_metrics metrics;
    struct engine *engine; /* NULL while loading */
    struct engine *loaded_engine;

    /* The I/O thread's. */
    struct http_server *http;
    uv_async_t events;
    struct drain drain;
    uv_timer_t ping_timer;
    struct job load;
    struct err load_err;
    enum err_code load_rc;
    struct work_count work; /* what must end before a drained daemon does */
    struct jobs jobs;
    struct generator *gen;
    struct srv_ids ids;
    struct routes routes;
    uint32_t n_kv_blocks, pin_budget; /* of them, pins may hold */
};

#endif
