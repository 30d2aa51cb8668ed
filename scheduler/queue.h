/* queue.h: who waits, and whose turn it is.
 *
 * Layer 2 of the scheduler's inside, over request.h.  Engine thread. */
#ifndef SCHEDULER_QUEUE_H
#define SCHEDULER_QUEUE_H

#include "scheduler/request.h"

struct tenant {
    uint64_t key;
    int64_t deficit;
    uint32_t n_reqs;     /* live requests */
    struct flow *flows;  /* one a level in which it waits */
    struct tenant *next; /* hash chain */
};

/* One tenant's waiting requests of one priority, by arrival. */
struct flow {
    struct tenant *tenant;
    struct level *level;
    struct req *head, *tail;
    struct flow *prev, *next; /* ring of its level */
    struct flow *other;       /* its tenant's next flow */
};

struct level {
    int32_t priority;
    struct flow *turn; /* whose turn it is; the ring is never empty */
    struct level *prev, *next;
};

struct queue {
    bool by_priority;
    struct level *first; /* ascending priority */
    struct tenant **tenant;
    struct req **id;
    uint32_t mask;      /* of both tables */
    uint32_t n_waiting; /* requests never admitted yet */
    uint64_t n_waiting_tokens;
    uint32_t n_tenants;
    struct req *oldest, *newest;
    struct seq *resume_first, *resume_last; /* by priority, arrival, choice */
    uint32_t n_resume;
    uint64_t n_resume_tokens;
};

MUST_USE enum err_code sched_queue_init(struct queue *q, uint32_t max_reqs, bool by_priority,
                                        struct err *e);
void sched_queue_fini(struct queue *q);
struct req *sched_queue_find(const struct queue *q, req_id id);
/* Register a new request and queue it.  ERR_NOMEM changes nothing. */
MUST_USE enum err_code sched_queue_add(struct queue *q, struct req *r, struct err *e);
/* Forget a request altogether (it may still wait); does not free it. */
void sched_queue_remove(struct queue *q, struct req *r);
/* The new request whose turn it is, or NULL; its place is kept until it is
 * taken, so that asking again gives the same one unless a better level came. */
struct req *sched_queue_peek(struct queue *q);
/* Take a waiting request out of its flow: it starts or ends. */
void sched_queue_take(struct queue *q, struct req *r);
void sched_queue_charge(struct req *r, uint64_t n_tokens);
void sched_queue_resume_add(struct queue *q, struct seq *s);
void sched_queue_resume_take(struct queue *q, struct seq *s);
/* Whether a resumes before b: by priority, arrival, choice. */
bool sched_queue_resumes_before(const struct queue *q, const struct seq *a, const struct seq *b);
int32_t sched_queue_priority(const struct queue *q, const struct req *r);

#endif
