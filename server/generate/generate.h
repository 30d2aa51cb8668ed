/* generate.h: a completion or chat request from its body to its last event.
 *
 * A generation outlives its client: it is freed when the engine has ended every
 * sequence, every mail has come back, and the client has its answer or is gone.
 * The I/O thread, except where gen_prepare says pool. */
#ifndef SERVER_GENERATE_GENERATE_H
#define SERVER_GENERATE_GENERATE_H

#include "server/generate/choice.h"
#include "server/http/http.h"
#include "server/generate/prompt.h"
#include "server/server.h"

/* One prompt of a generation: one request to the scheduler. */
struct gen_prompt {
    struct sample_params params; /* arrays borrowed from the request */
    struct engine_cancel cancel;
    bool cancel_out;            /* the cancel mail is with the engine, or was      */
    uint32_t n_running;         /* sequences the engine has not ended              */
    struct kvpool_lookup found; /* in the cache, by its first start         */
    struct score_list scores;   /* of the prompt; [i] is token i + 1          */
};

/* One sequence. */
struct gen_choice {
    struct choice c;
    struct engine_cancel cancel;
    bool done;        /* by the engine */
    bool cancelled;   /* by us: its cancel was posted */
    bool finished;    /* its finish was sent, or it waits for the whole reply */
    bool opened;      /* stream: what precedes its first text was sent        */
    uint64_t last_us; /* of its latest token */
};

struct gen {
    struct srv *srv;
    struct exchange *x; /* NULL: answered, or the client is gone */
    struct gen *prev, *next;
    uv_work_t work;
    enum oai_kind kind;
    char *body;
    size_t n_body;
    char id[48], request_id[REQUEST_ID_BYTES + 1];
    int64_t created;
    uint64_t number; /* of this generation, from 1 */
    uint64_t tenant;

    /* Made on the pool. */
    enum err_code rc;
    struct err err;
    struct prompt_set prompts;
    struct stop_set stops;
    struct choice_rules rules;
    struct sched_request *request; /* [prompts.n] */
    struct gen_prompt *prompt;     /* [prompts.n] */
    struct gen_choice *choice;     /* [prompts.n * n], by prompt, then sample */
    uint32_t n_choices;

    struct engine_submit submit;
    struct oai_stream stream;
    bool working, submitted, accepted, streaming;
    uint32_t n_running; /* sequences the engine has not ended */
    uint32_t n_open;    /* choices not finished for the client */
    uint32_t n_mail;    /* with the engine */

    /* For the log and the metrics. */
    int status;
    const char *end; /* why it ended, when not by its choices' finish */
    uint64_t began_us, first_us;
    uint64_t sent_us; /* stream: when something was last sent */
    uint64_t queued_us, prefill_us, decode_us;
    uint32_t n_preempted;
};

struct gen_slot {
    struct gen *g; /* NULL: free */
    req_id id;
    uint32_t prompt, next_free;
};

/* Take a batch's event. */
void gen_event(struct srv *srv, const struct engine_batch *b, const struct engine_event *ev);

/* Answer with an error (mid-stream: as an event) and cancel the rest.  The
 * generation may be freed on return. */
void gen_fail(struct gen *g, const struct err *e, const char *end);

/* Comment lines on streams that were silent for long, so that proxies between
 * do not give up. Called every few seconds. */
void gen_ping(struct srv *srv);

/* Live generation of an engine request, and which of its prompts. */
struct gen *gen_find(const struct srv *srv, req_id id, uint32_t *prompt);

/* --- gen_reply.c: what the client is told ------------------------------ */

/* Headers, and the first events of a stream. */
void gen_reply_begin(struct gen *g);
/* Send what choice i has gathered, when it is due; its finish when it has one.
 * False: the client is gone. */
bool gen_reply_choice(struct gen *g, uint32_t i, bool flush);
/* Every choice is finished: the whole reply, or the stream's end. */
void gen_reply_end(struct gen *g);

/* --- gen_prepare.c: on the pool ---------------------------------------- */

/* Fill everything that the client's body decides; result in g->rc, g->err. */
void gen_prepare(struct gen *g);
/* The key domain of a request's prefixes. */
uint64_t gen_salt(const struct srv *srv, const struct oai_text *cache_salt);
void gen_unprepare(struct gen *g);

#endif
