/* admin.h: what the handlers of /admin share: a question that goes to the engine
 * by mail and comes back, so that what they report is the state between two
 * steps; and pieces of their JSON.  I/O thread. */
#ifndef SERVER_ROUTES_ADMIN_H
#define SERVER_ROUTES_ADMIN_H

#include "server/http/http.h"
#include "server/server.h"

struct inquiry {
    struct srv *srv;
    struct exchange *x;                 /* NULL: the client is gone */
    void (*answer)(struct inquiry *q);  /* called when the mail is back and x is there */
    void (*release)(struct inquiry *q); /* NULL, or frees what q carries */
    void *more;                         /* the handler's own */
    union {
        struct engine_mail head;
        struct engine_query query;
        struct engine_reset reset;
        struct engine_pin pin;
        struct engine_blocks blocks;
        struct engine_steps steps;
    } m;
};

/* A question of x's; NULL: x was answered (loading, out of memory).  Ends by
 * inquiry_post, inquiry_fail or inquiry_end. */
struct inquiry *inquiry_new(struct srv *srv, struct exchange *x, enum engine_mail_kind kind,
                            void (*answer)(struct inquiry *));
void inquiry_post(struct inquiry *q);
/* Answer with an error instead, and end. */
void inquiry_fail(struct inquiry *q, const struct err *e);
/* Release without an answer. */
void inquiry_end(struct inquiry *q);

/* "key": with a comma before it unless it is the first. */
void admin_put_key(struct buf *o, const char *key);
void admin_put(struct buf *o, const char *key, uint64_t v);
/* "key":{ */
void admin_open(struct buf *o, const char *key);
/* 200 with what o holds; o is finished. */
void admin_reply(struct inquiry *q, struct buf *o);

/* {"id":"pin-1","tokens":..,"blocks":..,"expires_in_seconds":..} */
void admin_put_pin(struct buf *o, const struct srv_pin *pin);

#endif
