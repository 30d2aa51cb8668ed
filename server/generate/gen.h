/* gen.h: what the files of this room know of a generation.
 *
 * PREPARE -read-> SUBMIT -accepted-> GATHER (one whole reply)  -replied-> END
 *                                 -> STREAM (event by event)   -replied->
 * and from every state: -refused, failed, cancelled, client gone-> END
 *
 * x is the exchange exactly until END.  A generation is freed with its last
 * reference; there is one for each of: the exchange, the job, each mail that is
 * with the engine, each sequence that the engine runs.  I/O thread, but what
 * prepare.c fills while the job runs. */
#ifndef SERVER_GENERATE_GEN_H
#define SERVER_GENERATE_GEN_H

#include "server/generate/choice.h"
#include "server/generate/generate.h"
#include "server/generate/prompt.h"

enum gen_state {
    GEN_PREPARE, /* a job reads the body                              */
    GEN_SUBMIT,  /* the engine has not answered the submission        */
    GEN_GATHER,  /* accepted; the reply leaves whole, at the end      */
    GEN_STREAM,  /* accepted; headers went out, text leaves as it comes */
    GEN_END,     /* the client has its reply or is gone               */
    GEN_STATES
};

/* How it went for the client; set with END. */
enum gen_outcome {
    GEN_FINISHED,  /* by its choices' own finish reasons */
    GEN_REJECTED,  /* before the engine accepted it */
    GEN_CANCELLED, /* the client left, or an operator, or the shutdown */
    GEN_FAILED
};

/* One prompt: one request to the scheduler. */
struct gen_prompt {
    struct sample_params params; /* arrays borrowed from the request  */
    struct engine_cancel cancel;
    struct kvpool_lookup found; /* in the cache, by its first start  */
    struct score_list scores;   /* of the prompt; [i] is token i + 1 */
};

/* A sequence as the engine sees it. */
enum gen_seq {
    GEN_SEQ_NONE,  /* not with the engine, or refused */
    GEN_SEQ_ASKED, /* submitted, not answered         */
    GEN_SEQ_RUNS,
    GEN_SEQ_CANCELLED, /* accepted; its cancel is on its way */
    GEN_SEQ_DONE
};

struct gen_choice {
    struct choice c; /* c.finish: the client's view of its end */
    struct engine_cancel cancel;
    enum gen_seq seq;
    bool opened;      /* stream: what precedes its first text was sent */
    uint64_t last_us; /* of its latest token */
};

struct gen {
    struct generator *gr;
    struct exchange *x; /* NULL in END */
    enum gen_state state;
    enum gen_outcome outcome;
    uint32_t n_refs;
    struct gen *prev, *next; /* of the live ones */
    enum oai_kind kind;
    uint64_t arrival; /* its number among the daemon's requests, from 1: seeds depend on it */
    uint64_t tenant;
    int64_t created;
    char id[48], request_id[REQUEST_ID_BYTES + 1];

    /* The job's until it is done. */
    struct job job;
    char *body;
    size_t n_body;
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
    uint32_t n_open; /* choices that the client still waits for */

    /* For the log and the metrics. */
    int status;
    uint64_t began_us, first_us;
    uint64_t sent_us; /* stream: when something was last sent */
    uint64_t queued_us, prefill_us, decode_us;
    uint32_t n_preempted;
};

/* Which generation an engine's request id stands for: a slot's number is in it. */
struct gen_slot {
    struct gen *g; /* NULL: free */
    req_id id;
    uint32_t prompt, next_free;
};

struct generator {
    struct generator_config cfg;
    struct engine *engine; /* NULL while loading */
    struct gen *live;
    struct gen_slot *slots;
    uint32_t n_slots, free_slot;
    uint64_t n_ids;      /* given to the engine's requests */
    uint64_t n_arrivals; /* requests that came; seeds depend on it, so that nothing else counts */
    struct buf out;      /* what is being written; empty between two calls */
};

/* --- live.c: finding them ------------------------------------------------- */

void gen_live_add(struct gen *g);
void gen_live_remove(struct gen *g);
/* A slot, and by it an engine id, for each prompt.  ERR_NOMEM takes none. */
MUST_USE enum err_code gen_live_take_slots(struct gen *g, struct err *e);
/* Whether it has slots: it was submitted. */
bool gen_live_has_slots(const struct gen *g);
/* Whether an id is its own, or its client's. */
bool gen_live_is_named(const struct gen *g, const char *id);
/* The slot of an engine id, NULL when it has ended. */
const struct gen_slot *gen_live_slot(const struct generator *gr, req_id id);

/* --- account.c ------------------------------------------------------------ */

/* Log line and metrics of one that ended. */
void gen_account(const struct gen *g);

/* --- reply.c: what the client is told ------------------------------------- */

/* Each may find that the client is gone, which on_gone then has seen: g is in END,
 * and the call returns ERR_OK.  ERR_NOMEM: nothing of this call was sent. */

/* What a stream needs before it begins. */
MUST_USE enum err_code gen_reply_open(struct gen *g, struct err *e);
/* A stream's headers and first events. */
MUST_USE enum err_code gen_reply_begin(struct gen *g, struct err *e);
/* A stream sends what choice i has gathered, when it is due, and its finish when
 * it has one. */
MUST_USE enum err_code gen_reply_choice(struct gen *g, uint32_t i, struct err *e);
/* Every choice is finished: the whole reply, or the stream's end. */
MUST_USE enum err_code gen_reply_end(struct gen *g, struct err *e);
/* An error instead of the rest of the reply; the exchange ends in any case. */
void gen_reply_error(struct gen *g, const struct err *e);

/* --- prepare.c: on the pool ----------------------------------------------- */

/* Fill everything that the client's body decides; result in g->rc, g->err. */
void gen_prepare(struct gen *g);
void gen_unprepare(struct gen *g);

#endif
