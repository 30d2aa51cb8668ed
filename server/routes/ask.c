/* ask.c: asks on their way to the engine and back, and JSON that several of
 * /admin's answers share.  Owns every struct admin_ask until it ends.  I/O thread. */
#include "server/routes/ask.h"

#include <stdio.h>
#include <stdlib.h>

#include "proto/text/json.h"
#include "server/base/clock.h"

static void on_gone(struct exchange *x, void *user)
{
    struct admin_ask *q = user;

    (void)x;
    q->x = NULL;
    if (q->job == NULL || q->job->state != JOB_WANTED)
        return; /* with the engine, which answers soon */
    job_cancel(q->job);
    work_end(q->rt->work);
}

static void on_answer(struct engine_mail *m)
{
    struct admin_ask *q = m->owner;

    if (q->x)
        q->answer(q);
    admin_ask_end(q);
}

struct admin_ask *admin_ask_new(struct routes *rt, struct exchange *x, enum engine_mail_kind kind,
                                void (*answer)(struct admin_ask *))
{
    struct admin_ask *q = rt->engine ? calloc(1, sizeof *q) : NULL;

    if (q == NULL) {
        if (rt->engine == NULL)
            reply_error(x, 503, NULL, "the model is still loading");
        else
            reply_error(x, 500, NULL, "out of memory");
        return NULL;
    }
    q->rt = rt;
    q->x = x;
    q->answer = answer;
    q->m.head = (struct engine_mail){ .kind = kind, .done = on_answer, .owner = q };
    x->gone = on_gone;
    x->user = q;
    work_begin(rt->work);
    return q;
}

void admin_ask_post(struct admin_ask *q)
{
    engine_post(q->rt->engine, &q->m.head);
}

void admin_ask_drop(struct admin_ask *q)
{
    if (q->release)
        q->release(q);
    free(q);
}

void admin_ask_end(struct admin_ask *q)
{
    struct work_count *work = q->rt->work;

    admin_ask_drop(q);
    work_end(work);
}

void admin_ask_fail(struct admin_ask *q, const struct err *e)
{
    if (q->x)
        reply_err(q->x, e);
    admin_ask_end(q);
}

/* ------------------------------------------------------------ JSON pieces */

void admin_put_key(struct buf *o, const char *key)
{
    if (o->n > 0 && o->p[o->n - 1] != '{')
        BUF_LIT(o, ",");
    json_put_cstring(o, key);
    BUF_LIT(o, ":");
}

void admin_put(struct buf *o, const char *key, uint64_t v)
{
    admin_put_key(o, key);
    json_put_uint(o, v);
}

void admin_open(struct buf *o, const char *key)
{
    admin_put_key(o, key);
    BUF_LIT(o, "{");
}

void admin_reply(struct admin_ask *q, struct buf *o)
{
    reply_out(q->x, 200, CONTENT_JSON, o);
    buf_fini(o);
}

void admin_put_pin(struct buf *o, const struct srv_pin *pin)
{
    uint64_t now = srv_now_us();
    char id[32];

    snprintf(id, sizeof id, "pin-%llu", (unsigned long long)pin->number);
    BUF_LIT(o, "{\"id\":");
    json_put_cstring(o, id);
    admin_put(o, "tokens", pin->n_tokens);
    admin_put(o, "blocks", pin->n_blocks);
    admin_put_key(o, "expires_in_seconds");
    json_put_double(o, pin->expires_us > now ? (double)(pin->expires_us - now) / 1e6 : 0);
    BUF_LIT(o, "}");
}
