/* engine.h: the thread that turns requests into tokens, a step at a time.
 *
 * It alone touches the pool, the scheduler and the model's steps.  The I/O
 * thread talks to it by mail; it talks back in batches of events, at least one
 * batch a step, which engine_dispatch hands out.  Every mail posted is given back
 * exactly once, by its done(), behind the events that it caused; until then it
 * belongs to the engine.  Idle, the thread sleeps.
 *
 * Everything here: the I/O thread, but engine_snapshot: any thread. */
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
    ENGINE_STATE,  /* struct engine_state  */
    ENGINE_RESET,  /* struct engine_reset  */
    ENGINE_PIN,    /* struct engine_pin    */
    ENGINE_BLOCKS, /* struct engine_blocks */
    ENGINE_STEPS,  /* struct engine_steps  */
    ENGINE_STOP    /* the thread ends; nothing is answered after it */
};

struct engine_mail {
    struct mail mail; /* first */
    enum engine_mail_kind kind;
    void (*done)(struct engine_mail *m); /* the mail is the poster's again; on the I/O thread */
    void *owner;                         /* the poster's own */
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
struct engine_state {
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

struct engine_config {
    struct model *model; /* borrowed; opened, not started */
    struct kvpool_config pool;
    struct sched_config sched;
    bool eager, poison;              /* model_limits */
    uint32_t n_steps;                /* recorded; 0: none */
    struct serving_metrics *metrics; /* borrowed */
    const struct srv_log *log;       /* borrowed */
    void (*wake)(void *ctx);         /* on the engine thread: engine_dispatch has work */
    void *wake_ctx;
};

/* Starts the model for the pool and step sizes, then the thread. */
MUST_USE enum err_code engine_create(struct engine **out, const struct engine_config *cfg,
                                     struct err *e);
/* Stops and joins the thread.  Every mail that it has is given back; events are lost. */
void engine_destroy(struct engine *g);

/* The mail is taken (done and owner are set, the kind need not be); ERR_BUSY when
 * too many submissions wait for the engine. */
MUST_USE enum err_code engine_post_submit(struct engine *g, struct engine_submit *m, struct err *e);
void engine_post(struct engine *g, struct engine_mail *m);

/* Who is told what becomes of requests: the scheduler's events, in order, each
 * with the time at which the engine sent it.  ev and what it points at are
 * borrowed for the call. */
struct engine_reader {
    void *ctx;
    void (*event)(void *ctx, const struct sched_event *ev, uint64_t sent_us);
};

/* Hand out what waits, in order: events to the reader, mails to their done(). */
void engine_dispatch(struct engine *g, const struct engine_reader *to);

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
