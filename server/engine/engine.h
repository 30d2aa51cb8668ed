/* engine.h: the thread that turns requests into tokens, a step at a time.
 *
 * It alone touches the pool, the scheduler and the model's steps.  The I/O
 * thread talks to it by mail; it talks back in batches of events, at least one
 * batch a step.  Every mail posted comes back exactly once as ENGINE_ANSWER,
 * after everything that it caused; until then it belongs to the engine.  Idle,
 * the thread sleeps.
 *
 * engine_create, engine_destroy and everything called engine_post_*: the I/O
 * thread.  engine_snapshot: any thread. */
#ifndef SERVER_ENGINE_ENGINE_H
#define SERVER_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "kvpool/kvpool.h"
#include "model/model.h"
#include "proto/metrics/serving.h"
#include "scheduler/sched.h"
#include "server/base/clock.h"
#include "server/base/log.h"
#include "server/engine/mailbox.h"
#include "server/engine/pins.h"
#include "server/engine/steps.h"

struct engine;

enum engine_mail_kind {
    ENGINE_SUBMIT, /* struct engine_submit */
    ENGINE_CANCEL, /* struct engine_cancel */
    ENGINE_QUERY,  /* struct engine_query  */
    ENGINE_RESET,  /* struct engine_reset  */
    ENGINE_PIN,    /* struct engine_pin    */
    ENGINE_BLOCKS, /* struct engine_blocks */
    ENGINE_STEPS,  /* struct engine_steps  */
    ENGINE_STOP    /* the thread ends; nothing is answered after it */
};

struct engine_mail {
    struct mail mail; /* first */
    enum engine_mail_kind kind;
    void *owner; /* the poster's own */
};

/* Submit n requests, all or none. */
struct engine_submit {
    struct engine_mail head;
    const struct sched_request *request; /* borrowed until the last DONE */
    uint32_t n;
    enum err_code rc; /* answer */
    struct err err;
};

struct engine_cancel {
    struct engine_mail head;
    req_id id;
    int32_t choice; /* < 0: all */
};

/* The exact ledger now, checked; where wanted, the requests and the pins too. */
struct engine_query {
    struct engine_mail head;
    bool want_live, want_pins;
    struct kvpool_stats pool; /* answer */
    struct sched_stats sched;
    enum err_code check;
    struct err err;
    struct sched_live *live; /* owned by the poster once answered; free() */
    uint32_t n_live, cap_live;
    struct srv_pin *pins; /* likewise */
    uint32_t n_pins;
    bool reset_waits; /* a reset when idle was asked for and has not happened */
};

/* Drop the cached prefixes, unless something runs: then not at all, or
 * (when_idle) as soon as nothing does. */
struct engine_reset {
    struct engine_mail head;
    bool when_idle;
    bool done; /* answer; later when !done && when_idle */
    uint32_t n_freed;
    struct kvpool_stats pool; /* after; what holds it when !done */
    struct sched_stats sched;
};

/* Pins: set one on what is cached of tokens[0..n); remove one or all; drop those
 * whose time is up. */
struct engine_pin {
    struct engine_mail head;
    enum { ENGINE_PIN_ADD, ENGINE_PIN_REMOVE, ENGINE_PIN_EXPIRE } verb;
    const int32_t *tokens; /* borrowed until answered */
    uint32_t n_tokens;
    struct kvpool_key key;
    uint64_t ttl_us;
    uint64_t number;  /* REMOVE; 0: all */
    enum err_code rc; /* answer */
    struct err err;
    struct srv_pin pin;
    uint32_t n_removed;
    struct kvpool_stats pool; /* after */
};

/* Who holds a block: the first few of them. */
enum { ENGINE_HOLDERS = 8 };
struct engine_holder {
    req_id id;
    uint32_t choice;
};
struct engine_holders {
    uint32_t n;
    struct engine_holder who[ENGINE_HOLDERS];
};

/* The block map: blocks [first, first + n) into the poster's arrays. */
struct engine_blocks {
    struct engine_mail head;
    uint32_t first, n;              /* answer: n of them exist */
    struct kvpool_block *block;     /* [n] the poster's */
    struct engine_holders *holders; /* [n] the poster's, zeroed */
    uint32_t n_blocks;              /* answer: in the pool */
    uint64_t step;
};

/* The last n recorded steps. */
struct engine_steps {
    struct engine_mail head;
    uint32_t n;
    bool with_rows;
    enum err_code rc; /* answer */
    struct err err;
    struct srv_steps_copy steps; /* srv_steps_copy_fini is the poster's */
};

enum engine_event_kind {
    ENGINE_ANSWER,       /* mail                                             */
    ENGINE_PROMPT_TOKEN, /* as struct sched_event's kinds of the same names  */
    ENGINE_TOKEN,
    ENGINE_DONE
};

struct engine_event {
    enum engine_event_kind kind;
    enum finish finish;
    req_id id;
    uint32_t choice, position;
    int32_t token;
    float logprob;
    uint32_t n_top, top; /* batch->top_token[top..top+n_top) */
    int32_t stop_id;
    uint32_t n_prompt, n_output, n_cached, n_preempted;
    struct kvpool_lookup found;
    uint64_t queued_us, prefill_us, decode_us;
    enum err_code code; /* DONE by FINISH_ERROR: what kind of failure, else ERR_OK  */
    uint32_t message;   /* batch->text + message; the empty string when none        */
    struct engine_mail *mail;
};

enum { ENGINE_BATCH_EVENTS = 512, ENGINE_BATCH_TOP = 8192, ENGINE_BATCH_TEXT = 4096 };

struct engine_batch {
    struct mail mail; /* first */
    uint32_t n, n_top, n_text;
    uint64_t now_us; /* when it was sent */
    struct engine_event event[ENGINE_BATCH_EVENTS];
    int32_t top_token[ENGINE_BATCH_TOP];
    float top_logprob[ENGINE_BATCH_TOP];
    char text[ENGINE_BATCH_TEXT];
};

struct engine_config {
    struct model *model; /* borrowed; opened, not started */
    struct kvpool_config pool;
    struct sched_config sched;
    bool eager, poison;              /* model_limits */
    uint32_t n_steps;                /* recorded; 0: none */
    struct serving_metrics *metrics; /* borrowed */
    const struct srv_log *log;       /* borrowed */
    void (*wake)(void *ctx);         /* called from the engine thread: events wait */
    void *wake_ctx;
};

/* Starts the model for the pool and step sizes, then the thread. */
MUST_USE enum err_code engine_create(struct engine **out, const struct engine_config *cfg,
                                     struct err *e);
/* Stops and joins the thread.  Events not yet taken are lost. */
void engine_destroy(struct engine *g);

/* The mail is taken; ERR_BUSY when too many submissions wait for the engine. */
MUST_USE enum err_code engine_post_submit(struct engine *g, struct engine_submit *m, struct err *e);
void engine_post(struct engine *g, struct engine_mail *m);

/* The batches that wait, oldest first, linked by mail.next; NULL: none.  Give
 * each back. */
struct engine_batch *engine_take(struct engine *g);
void engine_give_back(struct engine *g, struct engine_batch *b);

/* The state after the last step, consistent in itself. */
struct engine_snapshot {
    struct kvpool_stats pool;
    struct sched_stats sched;
    bool busy;                     /* work exists                                    */
    uint64_t progress_us;          /* when a step last ended, or work last began     */
    uint64_t n_faults;             /* steps that failed                              */
    char fault[ERR_MESSAGE_BYTES]; /* the last step's failure; "" after a good step */
};
void engine_snapshot(struct engine *g, struct engine_snapshot *out);

#endif
