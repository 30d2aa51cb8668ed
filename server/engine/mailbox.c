/* mailbox.c: a locked list with a condition for a blocking reader and a
 * callback for one that has an event loop. */
#include "server/engine/mailbox.h"

#include <string.h>

enum err_code mailbox_init(struct mailbox *b, uint32_t cap, void (*wake)(void *), void *wake_ctx,
                           struct err *e)
{
    int rc;

    memset(b, 0, sizeof *b);
    b->tail = &b->head;
    b->cap = cap;
    b->wake = wake;
    b->wake_ctx = wake_ctx;
    rc = pthread_mutex_init(&b->lock, NULL);
    if (rc != 0)
        return err_set(e, ERR_IO, "mailbox: no lock: %s", strerror(rc));
    rc = pthread_cond_init(&b->more, NULL);
    if (rc != 0) {
        pthread_mutex_destroy(&b->lock);
        return err_set(e, ERR_IO, "mailbox: no condition: %s", strerror(rc));
    }
    return ERR_OK;
}

void mailbox_fini(struct mailbox *b)
{
    pthread_cond_destroy(&b->more);
    pthread_mutex_destroy(&b->lock);
}

static bool post(struct mailbox *b, struct mail *m, bool bounded)
{
    bool was_empty;

    pthread_mutex_lock(&b->lock);
    if (bounded && b->n >= b->cap) {
        pthread_mutex_unlock(&b->lock);
        return false;
    }
    was_empty = b->n == 0;
    m->next = NULL;
    *b->tail = m;
    b->tail = &m->next;
    b->n++;
    if (was_empty && b->wake == NULL)
        pthread_cond_signal(&b->more);
    pthread_mutex_unlock(&b->lock);
    if (was_empty && b->wake)
        b->wake(b->wake_ctx);
    return true;
}

void mailbox_post(struct mailbox *b, struct mail *m)
{
    post(b, m, false);
}

bool mailbox_offer(struct mailbox *b, struct mail *m)
{
    return post(b, m, true);
}

static struct mail *take_locked(struct mailbox *b)
{
    struct mail *m = b->head;

    b->head = NULL;
    b->tail = &b->head;
    b->n = 0;
    return m;
}

struct mail *mailbox_take(struct mailbox *b)
{
    pthread_mutex_lock(&b->lock);
    struct mail *m = take_locked(b);
    pthread_mutex_unlock(&b->lock);
    return m;
}

struct mail *mailbox_wait(struct mailbox *b)
{
    pthread_mutex_lock(&b->lock);
    while (b->n == 0)
        pthread_cond_wait(&b->more, &b->lock);
    struct mail *m = take_locked(b);
    pthread_mutex_unlock(&b->lock);
    return m;
}

struct mail *mailbox_wait_one(struct mailbox *b)
{
    pthread_mutex_lock(&b->lock);
    while (b->n == 0)
        pthread_cond_wait(&b->more, &b->lock);
    struct mail *m = b->head;
    b->head = m->next;
    if (b->head == NULL)
        b->tail = &b->head;
    b->n--;
    pthread_mutex_unlock(&b->lock);
    return m;
}
