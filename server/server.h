/* server.h: the daemon's one context, passed to everything that needs it.
 *
 * Created in main; the I/O thread's, except for what is said to be const after
 * loading (options, log, model, tokenizer, template, defaults), which the
 * pool's threads read as well. */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H

#include <time.h>
#include <uv.h>

#include "model/chat/template.h"
#include "model/model.h"
#include "model/tokenizer/tokenizer.h"
#include "proto/openai/request.h"
#include "server/base/ids.h"
#include "server/base/log.h"
#include "server/engine/engine.h"
#include "server/http/http_server.h"
#include "server/metrics.h"
#include "server/options.h"

enum srv_phase { SRV_LOADING, SRV_SERVING, SRV_DRAINING };

/* The bytes each token id stands for, for logprobs.  Const after creation. */
struct token_table {
    uint32_t n;
    uint32_t *at; /* [n+1] offsets into bytes */
    char *bytes;
};

struct srv {
    uv_loop_t loop;
    struct srv_options opt;
    struct srv_log log;
    enum srv_phase phase;
    uint64_t started_us;
    time_t created;
    int exit_code;

    /* Const after loading. */
    struct model *model;
    struct tokenizer *tokenizer;
    struct chat_template *chat; /* NULL: the model has none */
    bool chat_takes_parts;
    struct token_table tokens;
    struct oai_defaults defaults;
    const char *model_name; /* the first served name */
    uint32_t max_model_len;
    uint64_t salt_key;  /* of this process: hashes of salts are not guessable */
    uint64_t hash_seed; /* nor are those of the prefix index */
    struct srv_metrics metrics;
    struct engine *engine; /* NULL while loading */
    struct engine *loaded_engine;

    /* The I/O thread's. */
    struct http_server *http;
    uv_async_t events;
    uv_signal_t sigterm, sigint;
    uv_timer_t drain_timer, ping_timer;
    uv_work_t load_work;
    struct err load_err;
    enum err_code load_rc;
    struct gen *gens; /* live generations */
    struct gen_slot *slots;
    uint32_t n_slots, free_slot;
    uint64_t n_generations; /* ever, for ids and seeds */
    uint32_t n_jobs;        /* on the pool, or with the engine */
    struct srv_ids ids;
    uint32_t n_kv_blocks, pin_budget; /* of them, pins may hold */
    bool pins_expiring;               /* the engine was asked to drop what is due */
    uint64_t flush_until_us;          /* while draining, once nothing runs; else 0 */
    bool stopping;
};

#endif
