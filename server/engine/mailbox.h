/* mailbox.h: a queue between threads that sleeps instead of spinning.
 *
 * Messages are linked through a struct mail that the poster embeds in them, so
 * posting allocates nothing and cannot fail; mailbox_offer additionally refuses
 * when the box is full, which is where the bound is.  Any number of posters,
 * one reader.  A message belongs to the box from post to take. */
#ifndef SERVER_ENGINE_MAILBOX_H
#define SERVER_ENGINE_MAILBOX_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/err.h"

struct mail {
    struct mail *next;
};

struct mailbox {
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct mail *head, **tail;
    uint32_t n, cap;
    void (*wake)(void *ctx); /* called by a poster when the box was empty; or NULL */
    void *wake_ctx;
};

MUST_USE enum err_code mailbox_init(struct mailbox *b, uint32_t cap, void (*wake)(void *),
                                    void *wake_ctx, struct err *e);
/* The box must be empty or its messages no longer matter. */
void mailbox_fini(struct mailbox *b);

/* Always taken. */
void mailbox_post(struct mailbox *b, struct mail *m);
/* False, and nothing changed, when cap messages wait already. */
bool mailbox_offer(struct mailbox *b, struct mail *m);

/* Everything posted so far, oldest first, linked by next; NULL: nothing. */
struct mail *mailbox_take(struct mailbox *b);
/* The same, sleeping until there is something. */
struct mail *mailbox_wait(struct mailbox *b);
/* Only the oldest, sleeping until there is one. */
struct mail *mailbox_wait_one(struct mailbox *b);

#endif
