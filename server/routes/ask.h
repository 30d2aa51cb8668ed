/* ask.h: what the handlers of /admin share: an ask, a mail to the engine that is
 * answered between two steps, so that what they report is one state of it; and
 * pieces of their JSON.  I/O thread. */
#ifndef SERVER_ROUTES_ASK_H
#define SERVER_ROUTES_ASK_H

#include "server/routes/routes.h"

struct admin_ask {
    struct routes *rt;
    struct exchange *x;                   /* NULL: the client is gone */
    void (*answer)(struct admin_ask *q);  /* called when the mail is back and x is there */
    void (*release)(struct admin_ask *q); /* NULL, or frees what q carries */
    void *more;                           /* the handler's own */
    struct job *job;                      /* what runs before the mail is posted, or NULL */
    union {
        struct engine_mail head;
        struct engine_state state;
        struct engine_reset reset;
        struct engine_pin pin;
        struct engine_blocks blocks;
        struct engine_steps steps;
    } m;
};

/* An ask for x; NULL: x was answered (loading, out of memory).  Ends by
 * admin_ask_post, admin_ask_fail or admin_ask_end. */
struct admin_ask *admin_ask_new(struct routes *rt, struct exchange *x, enum engine_mail_kind kind,
                                void (*answer)(struct admin_ask *));
void admin_ask_post(struct admin_ask *q);
/* Answer with an error instead, and end. */
void admin_ask_fail(struct admin_ask *q, const struct err *e);
/* Release without an answer. */
void admin_ask_end(struct admin_ask *q);
/* The same for one whose job was cancelled, as its client left. */
void admin_ask_drop(struct admin_ask *q);

/* "key": with a comma before it unless it is the first. */
void admin_put_key(struct buf *o, const char *key);
void admin_put(struct buf *o, const char *key, uint64_t v);
/* "key":{ */
void admin_open(struct buf *o, const char *key);
/* 200 with what o holds; o is finished. */
void admin_reply(struct admin_ask *q, struct buf *o);

/* {"id":"pin-1","tokens":..,"blocks":..,"expires_in_seconds":..} */
void admin_put_pin(struct buf *o, const struct srv_pin *pin);

#endif
