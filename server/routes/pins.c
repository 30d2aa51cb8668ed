/* pins.c: POST /admin/cache/pin and /unpin.
 *
 * A pin's body is the body of the request whose prefix it keeps (`prompt`, text
 * or ids, or `messages`, with cache_salt and whatever else shapes the prompt),
 * so that both name the same tokens; or `request_id`, a live request's.  It holds
 * what is cached of them now, in whole blocks, for `ttl_seconds`.  Bodies are read
 * on the pool; the rest is the I/O thread's. */
#include "server/routes/routes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/base/clock.h"
#include "server/generate/prompt.h"
#include "server/routes/ask.h"
#include "server/generate/generate.h"
#include "server/http/http.h"

enum { DEFAULT_TTL = 3600, MOST_TTL = 30 * 24 * 3600, MOST_VALUES = 1 << 21 };

/* What a pin's ask carries while its body is read. */
struct pin_job {
    struct job job;
    struct admin_ask *ask;
    char *body;
    size_t n_body;
    enum err_code rc;
    struct err err;
    int64_t ttl;
    char request_id[REQUEST_ID_BYTES + 1]; /* "": the body has the prompt */
    struct prompt_set prompts;
    struct token_list ids; /* a live request's */
};

/* ----------------------------------------------------------------- answers */

static void put_budget(struct buf *o, const struct admin_ask *q)
{
    admin_put(o, "pinned_blocks", q->m.pin.pool.n_pinned);
    admin_put(o, "budget_blocks", q->rt->pin_budget);
}

static void answer_pin(struct admin_ask *q)
{
    const struct engine_pin *a = &q->m.pin;
    struct buf o = { 0 };

    if (a->rc != ERR_OK) {
        reply_err(q->x, &a->err);
        return;
    }
    BUF_LIT(&o, "{\"pin\":");
    admin_put_pin(&o, &a->pin);
    admin_put(&o, "prompt_tokens", a->n_tokens);
    put_budget(&o, q);
    BUF_LIT(&o, "}");
    admin_reply(q, &o);
}

static void answer_unpin(struct admin_ask *q)
{
    const struct engine_pin *a = &q->m.pin;
    struct buf o = { 0 };
    struct err e;

    if (a->n_removed == 0 && a->number != 0) {
        err_set_param(&e, ERR_NOT_FOUND, "pin", "pin: there is no `pin-%llu` (any more)",
                      (unsigned long long)a->number);
        reply_err(q->x, &e);
        return;
    }
    BUF_LIT(&o, "{");
    admin_put(&o, "unpinned", a->n_removed);
    put_budget(&o, q);
    BUF_LIT(&o, "}");
    admin_reply(q, &o);
}

/* -------------------------------------------------------------------- pin */

static void release_pin(struct admin_ask *q)
{
    struct pin_job *j = q->more;

    prompt_set_fini(&j->prompts);
    token_list_fini(&j->ids);
    free(j->body);
    free(j);
}

/* Keys of a pin's own. */
static enum err_code read_keys(struct pin_job *j, const struct json *body, bool *chat,
                               struct err *e)
{
    const struct json *ttl = json_get(body, "ttl_seconds"), *id = json_get(body, "request_id");
    char shown[JSON_SHOW_BYTES];

    j->ttl = DEFAULT_TTL;
    if (ttl != NULL && ttl->kind != JSON_NULL) {
        if (ttl->kind != JSON_INT || ttl->u.integer < 1 || ttl->u.integer > MOST_TTL)
            return err_set_param(e, ERR_INVALID, "ttl_seconds",
                                 "ttl_seconds: found %s, expected a whole number from 1 to %d",
                                 json_show(ttl, shown), MOST_TTL);
        j->ttl = ttl->u.integer;
    }
    *chat = json_get(body, "messages") != NULL;
    if (id == NULL || id->kind == JSON_NULL)
        return ERR_OK;
    if (*chat || json_get(body, "prompt") != NULL)
        return err_set_param(e, ERR_INVALID, "request_id",
                             "request_id: expected either it or a prompt, found both");
    if (id->kind != JSON_STRING || id->n == 0 || id->n > REQUEST_ID_BYTES ||
        memchr(id->u.string, '\0', id->n))
        return err_set_param(e, ERR_INVALID, "request_id",
                             "request_id: found %s, expected the id of a live request",
                             json_show(id, shown));
    memcpy(j->request_id, id->u.string, id->n);
    return ERR_OK;
}

static enum err_code read_body(struct pin_job *j, const struct served *served, struct err *e)
{
    const char *body = j->body ? j->body : "";
    struct json_doc doc;
    bool chat = false;
    enum err_code rc = json_parse(&doc, body, j->n_body, MOST_VALUES, e);

    if (rc != ERR_OK)
        return rc;
    rc = read_keys(j, doc.value, &chat, e);
    json_doc_fini(&doc);
    if (rc != ERR_OK || j->request_id[0] != '\0')
        return rc;
    rc = prompt_set_read(&j->prompts, served, chat ? OAI_CHAT : OAI_COMPLETION, body, j->n_body,
                         &j->job, e);
    if (rc == ERR_OK && j->prompts.n != 1)
        rc = err_set_param(e, ERR_INVALID, "prompt", "prompt: found %u prompts, expected one",
                           j->prompts.n);
    return rc;
}

static struct pin_job *job_of(struct job *j)
{
    return (struct pin_job *)((char *)j - offsetof(struct pin_job, job));
}

static void on_run(struct job *job)
{
    struct pin_job *j = job_of(job);

    j->rc = read_body(j, j->ask->rt->served, &j->err);
}

static void on_read(struct job *job, bool cancelled)
{
    struct pin_job *j = job_of(job);
    struct admin_ask *q = j->ask;
    struct engine_pin *m = &q->m.pin;
    const struct token_list *ids = &j->ids;

    if (cancelled) {
        admin_ask_drop(q);
        return;
    }
    if (j->rc == ERR_OK && j->request_id[0] != '\0') {
        j->rc = gen_copy_prompt(q->rt->gen, j->request_id, &j->ids, &m->key.salt, &j->err);
    } else if (j->rc == ERR_OK) {
        ids = &j->prompts.prompt[0].ids;
        m->key.salt = prompt_salt(q->rt->served, &j->prompts.req.cache_salt);
    }
    if (j->rc != ERR_OK) {
        admin_ask_fail(q, &j->err);
        return;
    }
    m->verb = ENGINE_PIN_ADD;
    m->tokens = ids->id;
    m->n_tokens = (uint32_t)ids->n;
    m->ttl_us = (uint64_t)j->ttl * 1000000;
    admin_ask_post(q);
}

void handle_pin(struct routes *rt, struct exchange *x)
{
    struct pin_job *j = calloc(1, sizeof *j);
    struct admin_ask *q = j ? admin_ask_new(rt, x, ENGINE_PIN, answer_pin) : NULL;

    if (q == NULL) {
        if (j == NULL)
            reply_error(x, 500, NULL, "out of memory");
        free(j);
        return;
    }
    q->more = j;
    q->release = release_pin;
    q->job = &j->job;
    j->ask = q;
    j->body = http_take_body(x, &j->n_body);
    if (jobs_submit(rt->jobs, &j->job, on_run, on_read, &j->err) != ERR_OK)
        admin_ask_fail(q, &j->err);
}

/* ------------------------------------------------------------------ unpin */

/* "pin-12", or "all" (0). */
static bool read_name(const struct json *v, uint64_t *number)
{
    uint64_t n = 0;

    if (v == NULL || v->kind != JSON_STRING || v->n > 20)
        return false;
    *number = 0;
    if (json_string_is(v, "all"))
        return true;
    if (v->n < 5 || memcmp(v->u.string, "pin-", 4) != 0)
        return false;
    for (uint32_t i = 4; i < v->n; i++) {
        if (v->u.string[i] < '0' || v->u.string[i] > '9')
            return false;
        n = n * 10 + (uint64_t)(v->u.string[i] - '0');
    }
    *number = n;
    return n > 0;
}

static enum err_code read_unpin(const char *body, size_t n, uint64_t *number, struct err *e)
{
    struct json_doc doc;
    char shown[JSON_SHOW_BYTES];
    enum err_code rc = json_parse(&doc, body, n, MOST_VALUES, e);

    if (rc != ERR_OK)
        return rc;
    const struct json *v = json_get(doc.value, "pin");
    if (!read_name(v, number))
        rc = err_set_param(e, ERR_INVALID, "pin",
                           "pin: found %s, expected the id that a pin was answered with, or "
                           "\"all\"",
                           v ? json_show(v, shown) : "nothing");
    json_doc_fini(&doc);
    return rc;
}

void handle_unpin(struct routes *rt, struct exchange *x)
{
    struct admin_ask *q;
    struct err e;
    uint64_t number = 0;
    size_t n;
    char *body = http_take_body(x, &n);
    enum err_code rc = read_unpin(body ? body : "", n, &number, &e);

    free(body);
    if (rc != ERR_OK) {
        reply_err(x, &e);
        return;
    }
    q = admin_ask_new(rt, x, ENGINE_PIN, answer_unpin);
    if (q == NULL)
        return;
    q->m.pin.verb = ENGINE_PIN_REMOVE;
    q->m.pin.number = number;
    admin_ask_post(q);
}

/* ----------------------------------------------------------------- expiry */

/* Nobody waits for it: no client, no count. */
static void on_expired(struct engine_mail *m)
{
    struct admin_ask *q = m->owner;

    q->rt->pins_expiring = false;
    free(q);
}

void admin_tick(struct routes *rt)
{
    struct engine_snapshot s;
    struct admin_ask *q;

    if (rt->engine == NULL || rt->pin_budget == 0 || rt->pins_expiring)
        return;
    engine_snapshot(rt->engine, &s);
    q = s.pool.n_pins > 0 && !s.busy ? calloc(1, sizeof *q) : NULL;
    if (q == NULL)
        return;
    rt->pins_expiring = true;
    q->rt = rt;
    q->m.head = (struct engine_mail){ .kind = ENGINE_PIN, .done = on_expired, .owner = q };
    q->m.pin.verb = ENGINE_PIN_EXPIRE;
    admin_ask_post(q);
}
