/* engine.c: the loop of the engine thread and the packing of its events.
 *
 * Owns the pool, the scheduler, the mailboxes and a fixed number of event
 * batches; when all are out, the thread waits for the I/O thread to return one,
 * so a slow reader of events slows the engine instead of growing memory.
 * Nothing is allocated after creation but what an answer to an operator needs,
 * which the poster frees. */
#include "server/engine/engine.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/engine/inspect.h"
#include "server/engine/step_log.h"

enum { N_BATCHES = 8, MAX_SUBMISSIONS = 4096 };
enum { BATCH_EVENTS = 512, BATCH_TOP = 8192, BATCH_ERRORS = 16 };

/* One event on its way to the I/O thread. */
struct event {
    struct engine_mail *mail; /* is given back; NULL: sched */
    struct sched_event sched; /* points at out, and at the batch's why[] */
    struct sampled out;       /* points into the batch's top arrays */
};

struct batch {
    struct mail mail; /* first */
    uint32_t n, n_top, n_why;
    uint64_t sent_us;
    struct event event[BATCH_EVENTS];
    int32_t top_token[BATCH_TOP];
    float top_logprob[BATCH_TOP];
    struct err why[BATCH_ERRORS];
};

struct engine {
    struct model *model; /* borrowed */
    struct kvpool *pool;
    struct sched *sched;
    struct engine_config cfg;
    struct mailbox inbox, outbox, spare;
    struct batch *batches;          /* [N_BATCHES] */
    struct batch *open;             /* being filled; engine thread */
    const struct step_plan *flight; /* begun and not ended */
    pthread_t thread;
    bool stop;
    _Atomic bool ended;
    struct srv_pins *pins;
    struct srv_steps *steps;
    bool reset_waits; /* for the engine to be idle */
    uint64_t progress_us, n_faults, n_violations;
    bool was_busy;
    char fault[ERR_MESSAGE_BYTES];
    pthread_mutex_t shot_lock;
    struct engine_snapshot shot;
    struct step_log step_log;
};

static uint64_t clock_now(void *ctx)
{
    (void)ctx;
    return srv_now_us();
}

/* ---------------------------------------------------------------- events */

static void send_batch(struct engine *g)
{
    if (g->open->n == 0)
        return;
    g->open->sent_us = srv_now_us();
    mailbox_post(&g->outbox, &g->open->mail);
    g->open = (struct batch *)mailbox_wait_one(&g->spare);
    g->open->n = g->open->n_top = g->open->n_why = 0;
}

/* A free event with room for n_top alternatives and n_why errors behind it. */
static struct event *new_event(struct engine *g, uint32_t n_top, uint32_t n_why)
{
    const struct batch *b = g->open;

    if (b->n == BATCH_EVENTS || b->n_top + n_top > BATCH_TOP || b->n_why + n_why > BATCH_ERRORS)
        send_batch(g);
    return &g->open->event[g->open->n++];
}

/* The scheduler's sink: a copy of the event, and of what it points at. */
static void on_event(void *ctx, const struct sched_event *s)
{
    struct engine *g = ctx;
    uint32_t n_top = s->out ? s->out->n_top : 0;

    if (n_top > BATCH_TOP)
        n_top = BATCH_TOP;
    struct event *ev = new_event(g, n_top, s->why != NULL);
    struct batch *b = g->open;
    ev->mail = NULL;
    ev->sched = *s;
    if (s->out) {
        ev->out = *s->out;
        ev->out.n_top = n_top;
        ev->sched.out = &ev->out;
    }
    if (n_top > 0) {
        ev->out.top_token =
            memcpy(b->top_token + b->n_top, s->out->top_token, n_top * sizeof *b->top_token);
        ev->out.top_logprob =
            memcpy(b->top_logprob + b->n_top, s->out->top_logprob, n_top * sizeof *b->top_logprob);
        b->n_top += n_top;
    }
    if (s->why) {
        b->why[b->n_why] = *s->why;
        ev->sched.why = &b->why[b->n_why++];
    }
}

static void answer(struct engine *g, struct engine_mail *m)
{
    new_event(g, 0, 0)->mail = m;
}

/* Give a batch's events to the reader (NULL: to nobody) and its mails back. */
static void read_batch(const struct batch *b, const struct engine_reader *to)
{
    for (uint32_t i = 0; i < b->n; i++) {
        const struct event *ev = &b->event[i];
        if (ev->mail)
            ev->mail->done(ev->mail);
        else if (to)
            to->event(to->ctx, &ev->sched, b->sent_us);
    }
}

void engine_dispatch(struct engine *g, const struct engine_reader *to)
{
    for (struct mail *m = mailbox_take(&g->outbox), *next; m; m = next) {
        next = m->next;
        read_batch((struct batch *)m, to);
        mailbox_post(&g->spare, m);
    }
}

/* ------------------------------------------------------------------ mail */

static void do_submit(struct engine *g, struct engine_submit *m)
{
    uint32_t i = 0;

    m->rc = ERR_OK;
    for (; i < m->n; i++) {
        m->rc = sched_submit(g->sched, &m->request[i], &m->err);
        if (m->rc != ERR_OK)
            break;
    }
    if (m->rc != ERR_OK)
        while (i-- > 0)
            sched_cancel(g->sched, m->request[i].id, -1);
}

static void add_live(void *ctx, const struct sched_live *r)
{
    struct engine_state *q = ctx;

    if (q->n_live == q->cap_live) {
        uint32_t cap = q->cap_live ? q->cap_live * 2 : 64;
        struct sched_live *p = realloc(q->live, cap * sizeof *p);
        if (p == NULL)
            return; /* the page shows fewer */
        q->live = p;
        q->cap_live = cap;
    }
    q->live[q->n_live++] = *r;
}

static void do_state(struct engine *g, struct engine_state *q)
{
    q->check = kvpool_check(g->pool, &q->err);
    if (q->check != ERR_OK)
        srv_logf(g->cfg.log, SRV_ERROR, "KV ledger: %s", q->err.message);
    kvpool_stats(g->pool, &q->pool);
    sched_stats(g->sched, &q->sched);
    if (q->want_live)
        sched_each(g->sched, add_live, q);
    if (q->want_pins)
        q->pins = malloc((g->cfg.pool.max_pins + 1) * sizeof *q->pins);
    if (q->pins != NULL)
        q->n_pins = srv_pins_list(g->pins, q->pins, g->cfg.pool.max_pins);
    q->reset_waits = g->reset_waits;
}

static void end_flight(struct engine *g);

static void do_reset(struct engine *g, struct engine_reset *r)
{
    end_flight(g); /* what it left behind rests until then */
    sched_stats(g->sched, &r->sched);
    kvpool_stats(g->pool, &r->pool);
    r->done = r->sched.n_running == 0 && r->sched.n_waiting == 0 && r->pool.n_seqs == 0;
    if (r->done) {
        r->n_freed = kvpool_reset_cache(g->pool);
        kvpool_stats(g->pool, &r->pool);
    } else if (r->when_idle) {
        g->reset_waits = true;
    }
}

/* The reset that waited for nothing to run. */
static void reset_idle(struct engine *g)
{
    struct kvpool_stats p;

    if (!g->reset_waits)
        return;
    kvpool_stats(g->pool, &p);
    if (p.n_seqs > 0)
        return;
    g->reset_waits = false;
    srv_logf(g->cfg.log, SRV_INFO, "prefix cache reset: %u blocks freed",
             kvpool_reset_cache(g->pool));
}

static void do_pin(struct engine *g, struct engine_pin *m)
{
    if (m->verb == ENGINE_PIN_ADD)
        m->rc = srv_pins_add(g->pins, g->pool, m->tokens, m->n_tokens, &m->key,
                             srv_now_us() + m->ttl_us, &m->pin, &m->err);
    else if (m->verb == ENGINE_PIN_REMOVE)
        m->n_removed = srv_pins_remove(g->pins, g->pool, m->number);
    kvpool_stats(g->pool, &m->pool);
}

static void handle_mail(struct engine *g, struct mail *list)
{
    srv_pins_expire(g->pins, g->pool, srv_now_us());
    while (list) {
        struct engine_mail *m = (struct engine_mail *)list;
        list = list->next;
        switch (m->kind) {
        case ENGINE_SUBMIT:
            do_submit(g, (struct engine_submit *)m);
            break;
        case ENGINE_CANCEL: {
            struct engine_cancel *c = (struct engine_cancel *)m;
            sched_cancel(g->sched, c->id, c->choice);
            break;
        }
        case ENGINE_STATE:
            do_state(g, (struct engine_state *)m);
            break;
        case ENGINE_RESET:
            do_reset(g, (struct engine_reset *)m);
            break;
        case ENGINE_PIN:
            do_pin(g, (struct engine_pin *)m);
            break;
        case ENGINE_BLOCKS:
            inspect_blocks(g->pool, g->sched, &model_describe(g->model)->layout,
                           (struct engine_blocks *)m);
            break;
        case ENGINE_STEPS: {
            struct engine_steps *s = (struct engine_steps *)m;
            s->rc = srv_steps_copy(g->steps, s->n, s->with_rows, &s->steps, &s->err);
            break;
        }
        case ENGINE_STOP:
            g->stop = true;
            continue;
        }
        answer(g, m);
    }
}

/* ------------------------------------------------------------------ step */

static void publish(struct engine *g)
{
    struct sched_stats s;
    struct kvpool_stats p;
    bool busy;

    sched_stats(g->sched, &s);
    kvpool_stats(g->pool, &p);
    busy = s.n_running + s.n_waiting > 0;
    if (busy && !g->was_busy)
        g->progress_us = srv_now_us();
    g->was_busy = busy;
    pthread_mutex_lock(&g->shot_lock);
    g->shot.pool = p;
    g->shot.sched = s;
    g->shot.busy = busy;
    g->shot.progress_us = g->progress_us;
    g->shot.n_faults = g->n_faults;
    memcpy(g->shot.fault, g->fault, sizeof g->fault);
    pthread_mutex_unlock(&g->shot_lock);
    if (srv_log_shows(g->cfg.log, SRV_DEBUG))
        step_log_note(&g->step_log, g->cfg.log, srv_now_us(), &s, &p);
}

static void fault(struct engine *g, const struct step_plan *plan, const struct err *e)
{
    srv_logf(g->cfg.log, SRV_ERROR, "step %llu failed: %s", (unsigned long long)plan->step,
             e->message);
    g->n_faults++;
    memcpy(g->fault, e->message, sizeof g->fault);
    uint64_t step = plan->step;
    sched_abort(g->sched, plan, e);
    srv_steps_ended(g->steps, g->sched, step, true, srv_now_us());
}

/* Debug builds prove every plan and every ledger; a finding is a bug of ours. */
static void prove_plan(const struct engine *g, const struct step_plan *plan)
{
#ifdef QUIRE_DEBUG
    struct err e;
    if (step_plan_check(plan, &model_describe(g->model)->layout, g->cfg.pool.n_blocks, &e) ==
        ERR_OK)
        return;
    srv_logf(g->cfg.log, SRV_ERROR, "step plan: %s", e.message);
    abort();
#else
    (void)g;
    (void)plan;
#endif
}

static void watch_ledger(struct engine *g)
{
    struct sched_stats s;

    sched_stats(g->sched, &s);
    if (s.ledger_violations == g->n_violations)
        return;
    g->n_violations = s.ledger_violations;
    srv_logf(g->cfg.log, SRV_ERROR, "KV ledger: %s", sched_last_violation(g->sched)->message);
#ifdef QUIRE_DEBUG
    abort();
#endif
}

/* Wait for a step and commit what came of it. */
static void end_step(struct engine *g, const struct step_plan *plan)
{
    uint64_t step = plan->step;
    const struct sampled *out = NULL;
    struct err e = { 0 };

    enum err_code rc = model_collect(g->model, step, &out, &e);
    srv_steps_mark(g->steps, step, STEP_COLLECTED, srv_now_us());
    if (rc != ERR_OK) {
        fault(g, plan, &e);
    } else {
        g->fault[0] = '\0';
        sched_commit(g->sched, plan, out);
        srv_steps_ended(g->steps, g->sched, step, false, srv_now_us());
    }
    g->progress_us = srv_now_us();
    watch_ledger(g);
}

static void end_flight(struct engine *g)
{
    const struct step_plan *plan = g->flight;

    g->flight = NULL;
    if (plan)
        end_step(g, plan);
}

/* Plan and begin a step, end the oldest that is in flight: with overlap the one
 * before, which ran while this one was planned.  False: nothing is left to do. */
static bool run_step(struct engine *g)
{
    uint64_t began = srv_now_us();
    const struct step_plan *plan = sched_next(g->sched);
    bool worked = plan || g->flight;
    struct err e = { 0 };
    enum err_code rc = ERR_OK;

    if (plan) {
        srv_steps_planned(g->steps, g->sched, g->pool, plan, began, srv_now_us());
        prove_plan(g, plan);
        rc = model_forward(g->model, plan, &e);
        srv_steps_mark(g->steps, plan->step, STEP_LAUNCHED, srv_now_us());
        prom_observe(g->cfg.metrics->iteration_tokens, plan->n_tokens);
    }
    end_flight(g);
    if (rc != ERR_OK)
        fault(g, plan, &e);
    else
        g->flight = plan;
    if (!g->cfg.sched.overlap)
        end_flight(g);
    return worked;
}

static void *engine_main(void *arg)
{
    struct engine *g = arg;
    bool idle = true;

    pthread_setname_np(pthread_self(), "engine");
    while (!g->stop) {
        handle_mail(g, idle ? mailbox_wait(&g->inbox) : mailbox_take(&g->inbox));
        if (g->stop)
            break;
        publish(g); /* work that begins is seen as such before its first step ends */
        idle = !run_step(g);
        if (idle)
            reset_idle(g);
        publish(g);
        send_batch(g);
    }
    atomic_store(&g->ended, true);
    return NULL;
}

/* -------------------------------------------------------------- creation */

static enum err_code start_model(struct engine *g, struct err *e)
{
    struct model_limits lim = {
        .n_blocks = g->cfg.pool.n_blocks,
        .max_tokens = g->cfg.sched.max_num_batched_tokens,
        .max_rows = g->cfg.sched.max_num_seqs,
        .max_outputs = g->cfg.sched.max_outputs,
        .max_seq_tokens = g->cfg.pool.max_seq_tokens,
        .eager = g->cfg.eager,
        .poison = g->cfg.poison,
    };

    return model_start(g->model, &lim, e);
}

static enum err_code create_boxes(struct engine *g, struct err *e)
{
    enum err_code rc = mailbox_init(&g->inbox, MAX_SUBMISSIONS, NULL, NULL, e);

    if (rc != ERR_OK)
        return rc;
    rc = mailbox_init(&g->outbox, N_BATCHES, g->cfg.wake, g->cfg.wake_ctx, e);
    if (rc != ERR_OK)
        goto fail_outbox;
    rc = mailbox_init(&g->spare, N_BATCHES, NULL, NULL, e);
    if (rc != ERR_OK)
        goto fail_spare;
    g->batches = calloc(N_BATCHES, sizeof *g->batches);
    if (g->batches == NULL) {
        rc = err_nomem(e, "event batches", N_BATCHES * sizeof *g->batches);
        goto fail_batches;
    }
    g->open = &g->batches[0];
    for (int i = 1; i < N_BATCHES; i++)
        mailbox_post(&g->spare, &g->batches[i].mail);
    return ERR_OK;

fail_batches:
    mailbox_fini(&g->spare);
fail_spare:
    mailbox_fini(&g->outbox);
fail_outbox:
    mailbox_fini(&g->inbox);
    return rc;
}

static void destroy_boxes(struct engine *g)
{
    free(g->batches);
    mailbox_fini(&g->spare);
    mailbox_fini(&g->outbox);
    mailbox_fini(&g->inbox);
}

enum err_code engine_create(struct engine **out, const struct engine_config *cfg, struct err *e)
{
    struct engine *g = calloc(1, sizeof *g);
    const struct kv_layout *lay = &model_describe(cfg->model)->layout;
    struct sched_sink sink = { .ctx = g, .event = on_event };
    enum err_code rc;
    int sys;

    if (g == NULL)
        return err_nomem(e, "engine", sizeof *g);
    g->model = cfg->model;
    g->cfg = *cfg;
    pthread_mutex_init(&g->shot_lock, NULL);
    rc = create_boxes(g, e);
    if (rc != ERR_OK)
        goto fail_boxes;
    rc = kvpool_create(&g->pool, lay, &cfg->pool, e);
    if (rc != ERR_OK)
        goto fail_pool;
    rc = sched_create(&g->sched, g->pool, lay, &cfg->sched, clock_now, NULL, &sink, e);
    if (rc != ERR_OK)
        goto fail_sched;
    rc = srv_pins_create(&g->pins, cfg->pool.max_pins, e);
    if (rc != ERR_OK)
        goto fail_start;
    rc = srv_steps_create(&g->steps, cfg->n_steps, cfg->sched.max_num_seqs, e);
    if (rc != ERR_OK)
        goto fail_start;
    rc = start_model(g, e);
    if (rc != ERR_OK)
        goto fail_start;
    g->progress_us = srv_now_us();
    publish(g);
    sys = pthread_create(&g->thread, NULL, engine_main, g);
    if (sys != 0) {
        rc = err_set(e, ERR_IO, "engine: no thread: %s", strerror(sys));
        goto fail_start;
    }
    *out = g;
    return ERR_OK;

fail_start:
    srv_pins_destroy(g->pins);
    srv_steps_destroy(g->steps);
    sched_destroy(g->sched);
fail_sched:
    kvpool_destroy(g->pool);
fail_pool:
    destroy_boxes(g);
fail_boxes:
    pthread_mutex_destroy(&g->shot_lock);
    free(g);
    return rc;
}

void engine_destroy(struct engine *g)
{
    struct engine_mail stop = { .kind = ENGINE_STOP };

    if (g == NULL)
        return;
    mailbox_post(&g->inbox, &stop.mail);
    /* The thread may wait for a batch before it comes to its end. */
    while (!atomic_load(&g->ended)) {
        engine_dispatch(g, NULL);
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    pthread_join(g->thread, NULL);
    engine_dispatch(g, NULL);
    read_batch(g->open, NULL);
    srv_pins_destroy(g->pins);
    srv_steps_destroy(g->steps);
    sched_destroy(g->sched);
    kvpool_destroy(g->pool);
    destroy_boxes(g);
    pthread_mutex_destroy(&g->shot_lock);
    free(g);
}

enum err_code engine_post_submit(struct engine *g, struct engine_submit *m, struct err *e)
{
    m->head.kind = ENGINE_SUBMIT;
    if (!mailbox_offer(&g->inbox, &m->head.mail))
        return err_set(e, ERR_BUSY, "%d requests wait to be queued already", MAX_SUBMISSIONS);
    return ERR_OK;
}

void engine_post(struct engine *g, struct engine_mail *m)
{
    mailbox_post(&g->inbox, &m->mail);
}

void engine_snapshot(struct engine *g, struct engine_snapshot *out)
{
    pthread_mutex_lock(&g->shot_lock);
    *out = g->shot;
    pthread_mutex_unlock(&g->shot_lock);
}
