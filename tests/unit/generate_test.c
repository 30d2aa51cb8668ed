/* generate_test.c: a generation through its states, over an engine and exchanges
 * that are this file's own: what the client is told, that its exchange ends once,
 * that the engine is asked to stop what nobody waits for, and that everything is
 * freed.  The tokenizer and the pool of threads are real; run under the thread
 * sanitizer as well. */
#include "support/test.h"

#include "server/generate/gen.h"
#include "support/alloc_fail.h"

/* ----------------------------------------------------- exchanges of its own */

/* A client: what it sent, and what it was told. */
struct client {
    struct exchange x; /* first */
    const char *body;
    char text[8192]; /* of the reply's body or stream */
    size_t n_text;
    uint32_t n_ends;      /* times the exchange ended */
    bool streaming, full; /* full: the next data drops it */
};

const char *http_field(const struct exchange *x, const char *name, size_t *n)
{
    (void)x;
    (void)name;
    *n = 0;
    return NULL;
}

char *http_take_body(struct exchange *x, size_t *n)
{
    const struct client *c = (const struct client *)x;

    *n = strlen(c->body);
    return strdup(c->body);
}

bool reply_header(struct exchange *x, const char *name, const char *fmt, ...)
{
    (void)x;
    (void)name;
    (void)fmt;
    return true;
}

static void put(struct client *c, const char *s, size_t n)
{
    assert_true(c->n_text + n < sizeof c->text);
    memcpy(c->text + c->n_text, s, n);
    c->text[c->n_text += n] = '\0';
}

static void end(struct client *c)
{
    assert_int_equal(c->n_ends++, 0);
    c->x.gone = NULL;
}

void reply_body(struct exchange *x, int status, const char *type, const char *body, size_t n)
{
    (void)type;
    x->status = status;
    put((struct client *)x, body, n);
    end((struct client *)x);
}

void reply_out(struct exchange *x, int status, const char *type, const struct buf *o)
{
    reply_body(x, status, type, o->p, o->n);
}

void reply_err(struct exchange *x, const struct err *e)
{
    reply_body(x, err_http_status(e->code), NULL, e->message, strlen(e->message));
}

void reply_error(struct exchange *x, int status, const char *code, const char *message)
{
    (void)code;
    reply_body(x, status, NULL, message, strlen(message));
}

void reply_stream_begin(struct exchange *x, const char *type)
{
    (void)type;
    x->status = 200;
    ((struct client *)x)->streaming = true;
}

static void leave(struct client *c)
{
    void (*gone)(struct exchange *, void *) = c->x.gone;

    end(c);
    if (gone)
        gone(&c->x, c->x.user);
}

bool reply_stream_data(struct exchange *x, const char *data, size_t n)
{
    struct client *c = (struct client *)x;

    assert_true(c->streaming && c->n_ends == 0);
    if (n == 0)
        return true;
    if (c->full) {
        leave(c);
        return false;
    }
    put(c, data, n);
    return true;
}

void reply_stream_end(struct exchange *x)
{
    assert_true(((struct client *)x)->streaming);
    end((struct client *)x);
}

/* ------------------------------------------------------ an engine of its own */

enum { MAX_MAILS = 64 };

struct engine {
    struct engine_submit *submit[MAX_MAILS];
    struct engine_cancel *cancel[MAX_MAILS];
    uint32_t n_submits, n_cancels;
    bool full;
};

enum err_code engine_post_submit(struct engine *g, struct engine_submit *m, struct err *e)
{
    if (g->full)
        return err_set(e, ERR_BUSY, "full");
    g->submit[g->n_submits++] = m;
    return ERR_OK;
}

void engine_post(struct engine *g, struct engine_mail *m)
{
    assert_int_equal(m->kind, ENGINE_CANCEL);
    g->cancel[g->n_cancels++] = (struct engine_cancel *)m;
}

/* ---------------------------------------------------------------- the world */

static struct tokenizer *tok;

struct world {
    uv_loop_t loop;
    struct work_count work;
    struct jobs jobs;
    struct served served;
    struct serving_metrics metrics;
    struct srv_log log;
    struct srv_ids ids;
    enum srv_phase phase;
    struct engine engine;
    struct generator *gen;
};

static void open_world(struct world *w)
{
    static const char *const names[] = { "m" };
    struct serving_metrics_config mc = { .model_name = "m", .max_model_len = 512 };
    struct generator_config c = { .served = &w->served,
                                  .phase = &w->phase,
                                  .log = &w->log,
                                  .metrics = &w->metrics,
                                  .ids = &w->ids,
                                  .jobs = &w->jobs,
                                  .work = &w->work };
    struct err e = { 0 };

    memset(w, 0, sizeof *w);
    assert_int_equal(uv_loop_init(&w->loop), 0);
    jobs_init(&w->jobs, &w->loop, 16, &w->work);
    srv_log_init(&w->log, -1, SRV_ERROR + 1, 0);
    assert_ok(serving_metrics_init(&w->metrics, &mc, &e), e);
    w->served = (struct served){ .name = names,
                                 .n_names = 1,
                                 .tokenizer = tok,
                                 .max_model_len = 512,
                                 .seed_key = 7,
                                 .stream_interval = 1 };
    oai_defaults_init(&w->served.defaults);
    w->served.defaults.vocab_size = (uint32_t)tokenizer_n_ids(tok);
    w->served.defaults.max_model_len = 512;
    w->phase = SRV_SERVING;
    assert_ok(generator_create(&w->gen, &c, &e), e);
    generator_set_engine(w->gen, &w->engine);
}

/* Nobody waits for anything, and no generation is left. */
static void close_world(struct world *w)
{
    uv_run(&w->loop, UV_RUN_DEFAULT);
    assert_int_equal(w->work.n, 0);
    assert_null(w->gen->live);
    generator_destroy(w->gen);
    serving_metrics_fini(&w->metrics);
    assert_int_equal(uv_loop_close(&w->loop), 0);
}

#define PROMPT "\"prompt\":\"Once upon a time\""

static void ask(struct world *w, struct client *c, const char *body)
{
    memset(c, 0, sizeof *c);
    c->body = body;
    strcpy(c->x.request_id, "mine");
    gen_start(w->gen, &c->x, OAI_COMPLETION);
}

/* The job reads the body; the submission is with the engine then. */
static void prepare(struct world *w)
{
    uv_run(&w->loop, UV_RUN_DEFAULT);
}

static void answer(struct world *w, uint32_t i, enum err_code rc)
{
    struct engine_submit *m = w->engine.submit[i];

    m->rc = rc;
    if (rc != ERR_OK)
        err_set(&m->err, rc, "refused");
    m->head.done(&m->head);
}

/* A request that the engine has accepted. */
static void begin(struct world *w, struct client *c, const char *body)
{
    ask(w, c, body);
    prepare(w);
    assert_int_equal(w->engine.n_submits, 1);
    answer(w, 0, ERR_OK);
}

static void tell(struct world *w, struct sched_event ev)
{
    gen_event(w->gen, &ev, 1);
}

static void tell_token(struct world *w, req_id id, uint32_t choice, int32_t token)
{
    struct sampled out = { .token = token };

    tell(w, (struct sched_event){
                .kind = SCHED_TOKEN, .id = id, .choice = choice, .out = &out, .n_output = 1 });
}

static void tell_done(struct world *w, req_id id, uint32_t choice, enum finish finish,
                      const struct err *why)
{
    tell(w, (struct sched_event){ .kind = SCHED_DONE,
                                  .id = id,
                                  .choice = choice,
                                  .finish = finish,
                                  .stop_id = -1,
                                  .n_output = 1,
                                  .why = why });
}

static req_id id_of(const struct world *w, uint32_t prompt)
{
    return w->engine.submit[0]->request[prompt].id;
}

static void bring_cancels_home(struct world *w)
{
    for (uint32_t i = 0; i < w->engine.n_cancels; i++)
        w->engine.cancel[i]->head.done(&w->engine.cancel[i]->head);
    w->engine.n_cancels = 0;
}

/* ------------------------------------------------------------------ replies */

TEST(a_whole_reply_leaves_once_when_the_last_choice_ends)
{
    struct world w;
    struct client c;

    open_world(&w);
    begin(&w, &c, "{" PROMPT ",\"n\":2}");
    assert_int_equal(w.engine.submit[0]->request[0].n, 2);
    tell_token(&w, id_of(&w, 0), 0, 300);
    tell_token(&w, id_of(&w, 0), 1, 301);
    tell_done(&w, id_of(&w, 0), 0, FINISH_LENGTH, NULL);
    assert_int_equal(c.n_ends, 0);
    tell_done(&w, id_of(&w, 0), 1, FINISH_STOP, NULL);
    assert_int_equal(c.n_ends, 1);
    assert_int_equal(c.x.status, 200);
    assert_contains(c.text, "\"finish_reason\":\"length\"");
    assert_contains(c.text, "\"finish_reason\":\"stop\"");
    assert_int_equal(w.engine.n_cancels, 0);
    close_world(&w);
}

TEST(a_stream_leaves_token_by_token)
{
    struct world w;
    struct client c;

    open_world(&w);
    begin(&w, &c, "{" PROMPT ",\"stream\":true}");
    assert_true(c.streaming);
    for (int32_t i = 0; i < 5; i++) {
        size_t before = c.n_text;
        tell_token(&w, id_of(&w, 0), 0, 300 + i);
        assert_true(c.n_text > before);
    }
    tell_done(&w, id_of(&w, 0), 0, FINISH_LENGTH, NULL);
    assert_int_equal(c.n_ends, 1);
    assert_contains(c.text, "\"finish_reason\":\"length\"");
    assert_contains(c.text, "data: [DONE]\n\n");
    close_world(&w);
}

/* From the event to the exchange a token allocates nothing, once buffers have the
 * size that tokens need. */
TEST(a_streamed_token_allocates_nothing)
{
    struct world w;
    struct client c;

    open_world(&w);
    begin(&w, &c, "{" PROMPT ",\"stream\":true,\"stop\":\"never said\",\"max_tokens\":300}");
    for (int32_t i = 0; i < 200; i++) {
        if (i == 100)
            alloc_fail_at(-1, false);
        c.n_text = 0;
        tell_token(&w, id_of(&w, 0), 0, 300 + i % 100);
        assert_true(i > 100 || c.n_text > 0);
    }
    assert_int_equal(alloc_fail_count(), 0);
    tell_done(&w, id_of(&w, 0), 0, FINISH_LENGTH, NULL);
    close_world(&w);
}

/* The engine still runs it: it is told to stop, and its later events find nobody. */
TEST(a_stop_string_ends_the_reply_before_the_engine_does)
{
    struct world w;
    struct client c;
    char body[128];
    const char *text;
    size_t n;
    struct oai_text at;
    struct token_table t;
    struct err e = { 0 };

    assert_ok(token_table_init(&t, tok, &e), e);
    at = token_table_get(&t, 300);
    text = at.s;
    n = at.n;
    snprintf(body, sizeof body, "{" PROMPT ",\"stop\":\"%.*s\"}", (int)n, text);
    open_world(&w);
    begin(&w, &c, body);
    tell_token(&w, id_of(&w, 0), 0, 300);
    assert_int_equal(c.n_ends, 1);
    assert_contains(c.text, "\"finish_reason\":\"stop\"");
    assert_int_equal(w.engine.n_cancels, 1);
    tell_token(&w, id_of(&w, 0), 0, 301);
    tell_done(&w, id_of(&w, 0), 0, FINISH_CANCELLED, NULL);
    assert_non_null(w.gen->live); /* a mail is out */
    bring_cancels_home(&w);
    assert_null(w.gen->live);
    close_world(&w);
    token_table_fini(&t);
}

/* ------------------------------------------------------------------ refusals */

TEST(a_bad_body_is_refused_and_the_engine_not_asked)
{
    struct world w;
    struct client c;

    open_world(&w);
    ask(&w, &c, "{" PROMPT ",\"n\":0}");
    prepare(&w);
    assert_int_equal(c.x.status, 400);
    assert_int_equal(w.engine.n_submits, 0);
    close_world(&w);
}

TEST(outside_of_serving_requests_are_refused)
{
    struct world w;
    struct client c;

    open_world(&w);
    w.phase = SRV_DRAINING;
    ask(&w, &c, "{" PROMPT "}");
    assert_int_equal(c.x.status, 503);
    close_world(&w);
}

TEST(more_bodies_than_the_pool_may_hold_are_refused)
{
    struct world w;
    struct client c[17];

    open_world(&w);
    for (int i = 0; i < 17; i++)
        ask(&w, &c[i], "{" PROMPT ",\"n\":0}");
    assert_int_equal(c[16].x.status, 429);
    assert_int_equal(c[15].n_ends, 0);
    prepare(&w);
    assert_int_equal(c[15].x.status, 400);
    close_world(&w);
}

TEST(a_full_engine_refuses_at_once)
{
    struct world w;
    struct client c;

    open_world(&w);
    w.engine.full = true;
    ask(&w, &c, "{" PROMPT "}");
    prepare(&w);
    assert_int_equal(c.x.status, 429);
    close_world(&w);
}

/* Of three prompts the third is refused: the ends of the first two are no answer. */
TEST(a_submission_refused_half_way_is_told_as_what_it_is)
{
    struct world w;
    struct client c;

    open_world(&w);
    ask(&w, &c, "{\"prompt\":[\"a\",\"b\",\"c\"]}");
    prepare(&w);
    tell_done(&w, id_of(&w, 1), 0, FINISH_CANCELLED, NULL);
    tell_done(&w, id_of(&w, 0), 0, FINISH_CANCELLED, NULL);
    assert_int_equal(c.n_ends, 0);
    answer(&w, 0, ERR_BUSY);
    assert_int_equal(c.x.status, 429);
    assert_int_equal(w.engine.n_cancels, 0);
    close_world(&w);
}

/* The status follows the code that the scheduler gives. */
TEST(failures_keep_their_kind)
{
    static const struct {
        enum err_code code;
        int status;
    } cases[] = { { ERR_LIMIT, 400 }, { ERR_NOMEM, 500 }, { ERR_GPU, 500 }, { ERR_INTERNAL, 500 } };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct world w;
        struct client c;
        struct err why = { .code = cases[i].code, .message = "it broke" };

        open_world(&w);
        begin(&w, &c, "{" PROMPT "}");
        tell_done(&w, id_of(&w, 0), 0, FINISH_ERROR, &why);
        assert_int_equal(c.x.status, cases[i].status);
        assert_contains(c.text, "it broke");
        close_world(&w);
    }
}

TEST(one_failed_sequence_ends_its_siblings)
{
    struct world w;
    struct client c;
    struct err why = { .code = ERR_GPU, .message = "it broke" };

    open_world(&w);
    begin(&w, &c, "{\"prompt\":[\"a\",\"b\"],\"n\":2,\"stream\":true}");
    tell_token(&w, id_of(&w, 0), 0, 300);
    tell_done(&w, id_of(&w, 0), 0, FINISH_ERROR, &why);
    assert_int_equal(c.n_ends, 1);
    assert_contains(c.text, "it broke");
    assert_contains(c.text, "data: [DONE]\n\n");
    assert_int_equal(w.engine.n_cancels, 2); /* of both prompts */
    for (uint32_t p = 0; p < 2; p++)
        for (uint32_t i = p == 0; i < 2; i++)
            tell_done(&w, id_of(&w, p), i, FINISH_CANCELLED, NULL);
    bring_cancels_home(&w);
    close_world(&w);
}

/* ------------------------------------------------------------ clients leave */

TEST(a_client_that_leaves_while_its_body_is_read)
{
    struct world w;
    struct client c;

    open_world(&w);
    ask(&w, &c, "{" PROMPT "}");
    assert_int_equal(w.work.n, 1);
    leave(&c);
    assert_int_equal(w.work.n, 0); /* nobody waits for it, whenever the job ends */
    prepare(&w);
    assert_int_equal(w.engine.n_submits, 0);
    close_world(&w);
}

TEST(a_client_that_leaves_before_the_engine_answers)
{
    struct world w;
    struct client c;

    for (int refused = 0; refused < 2; refused++) {
        open_world(&w);
        ask(&w, &c, "{" PROMPT ",\"n\":2}");
        prepare(&w);
        leave(&c);
        assert_int_equal(w.engine.n_cancels, 1);
        assert_int_equal(w.engine.cancel[0]->choice, -1);
        answer(&w, 0, refused ? ERR_BUSY : ERR_OK);
        for (uint32_t i = 0; i < 2 && !refused; i++)
            tell_done(&w, id_of(&w, 0), i, FINISH_CANCELLED, NULL);
        assert_int_equal(w.work.n, 1); /* the engine has a mail of it */
        bring_cancels_home(&w);
        close_world(&w);
    }
}

TEST(a_client_that_leaves_in_the_middle)
{
    static const char *const bodies[] = { "{" PROMPT "}", "{" PROMPT ",\"stream\":true}" };

    for (int i = 0; i < 2; i++) {
        struct world w;
        struct client c;

        open_world(&w);
        begin(&w, &c, bodies[i]);
        tell_token(&w, id_of(&w, 0), 0, 300);
        leave(&c);
        assert_int_equal(w.engine.n_cancels, 1);
        tell_token(&w, id_of(&w, 0), 0, 301);
        bring_cancels_home(&w);
        tell_done(&w, id_of(&w, 0), 0, FINISH_CANCELLED, NULL);
        close_world(&w);
    }
}

TEST(a_reader_too_far_behind_is_dropped_and_its_sequence_cancelled)
{
    struct world w;
    struct client c;

    open_world(&w);
    begin(&w, &c, "{" PROMPT ",\"stream\":true}");
    c.full = true;
    tell_token(&w, id_of(&w, 0), 0, 300);
    assert_int_equal(c.n_ends, 1);
    assert_int_equal(w.engine.n_cancels, 1);
    tell_done(&w, id_of(&w, 0), 0, FINISH_CANCELLED, NULL);
    bring_cancels_home(&w);
    close_world(&w);
}

TEST(an_operator_cancels_by_either_id)
{
    for (int i = 0; i < 2; i++) {
        struct world w;
        struct client c;
        struct gen_view v;
        char id[64];
        struct err e;

        open_world(&w);
        err_set(&e, ERR_CONFLICT, "cancelled");
        begin(&w, &c, "{" PROMPT "}");
        req_id engine_id = id_of(&w, 0);
        assert_true(gen_find(w.gen, engine_id, &v));
        snprintf(id, sizeof id, "%s", i == 0 ? v.id : v.request_id);
        assert_int_equal(gen_cancel(w.gen, "cmpl-none", &e), 0);
        assert_int_equal(gen_cancel(w.gen, id, &e), 1);
        assert_int_equal(c.x.status, 409);
        assert_int_equal(gen_cancel(w.gen, id, &e), 0); /* it has no client any more */
        bring_cancels_home(&w);
        tell_done(&w, engine_id, 0, FINISH_CANCELLED, NULL);
        assert_false(gen_find(w.gen, engine_id, &v));
        close_world(&w);
    }
}

/* ------------------------------------------------------------------- faults */

/* The error of a stream is written into no memory: the exchange ends all the same,
 * and says so. */
TEST(a_stream_whose_error_cannot_be_written_ends)
{
    struct world w;
    struct client c;
    struct err why = { .code = ERR_GPU, .message = "it broke" };

    open_world(&w);
    begin(&w, &c, "{" PROMPT ",\"stream\":true}");
    alloc_fail_at(0, true);
    tell_done(&w, id_of(&w, 0), 0, FINISH_ERROR, &why);
    alloc_fail_at(-1, false);
    assert_int_equal(c.n_ends, 1);
    assert_contains(c.text, "\"error\"");
    assert_contains(c.text, "data: [DONE]\n\n");
    close_world(&w);
}

TEST(a_whole_reply_that_cannot_be_written_is_an_error)
{
    struct world w;
    struct client c;

    open_world(&w);
    begin(&w, &c, "{" PROMPT "}");
    tell_token(&w, id_of(&w, 0), 0, 300);
    alloc_fail_at(0, true);
    tell_done(&w, id_of(&w, 0), 0, FINISH_LENGTH, NULL);
    alloc_fail_at(-1, false);
    assert_int_equal(c.n_ends, 1);
    assert_int_equal(c.x.status, 500);
    close_world(&w);
}

/* The seed of the n-th request of a daemon, whatever became of those before it by
 * then: being read, or with the engine. */
TEST(seeds_follow_the_order_of_arrival)
{
    struct world w;
    struct client c[3];
    uint64_t together[3], apart[3];

    open_world(&w);
    for (int i = 0; i < 3; i++)
        ask(&w, &c[i], "{" PROMPT "}");
    prepare(&w);
    assert_int_equal(w.engine.n_submits, 3);
    for (uint32_t i = 0; i < 3; i++) /* submitted in any order: find each by its number */
        for (struct gen *g = w.gen->live; g; g = g->next)
            if (g->arrival == i + 1)
                together[i] = g->request[0].params->seed;
    for (uint32_t i = 0; i < 3; i++)
        answer(&w, i, ERR_BUSY);
    close_world(&w);
    open_world(&w);
    for (uint32_t i = 0; i < 3; i++) {
        ask(&w, &c[i], "{" PROMPT "}");
        prepare(&w);
        apart[i] = w.engine.submit[i]->request[0].params->seed;
        answer(&w, i, ERR_BUSY);
    }
    close_world(&w);
    for (int i = 0; i < 3; i++)
        assert_true(together[i] == apart[i]);
    assert_true(apart[0] != apart[1] && apart[1] != apart[2]);
}

/* What the engine did not come to end goes with the generator. */
TEST(destroyed_with_sequences_that_did_not_end)
{
    struct world w;
    struct client c;

    open_world(&w);
    begin(&w, &c, "{" PROMPT ",\"stream\":true}");
    tell_token(&w, id_of(&w, 0), 0, 300);
    leave(&c);
    bring_cancels_home(&w);
    generator_destroy(w.gen);
    assert_int_equal(w.work.n, 0);
    serving_metrics_fini(&w.metrics);
    assert_int_equal(uv_loop_close(&w.loop), 0);
}

static int open_tokenizer(void **state)
{
    struct err e = { 0 };

    (void)state;
    assert_ok(tokenizer_open(&tok, "deploy/models/tales-7m", &e), e);
    return 0;
}

static int close_tokenizer(void **state)
{
    (void)state;
    tokenizer_close(tok);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(a_whole_reply_leaves_once_when_the_last_choice_ends),
        RUN(a_stream_leaves_token_by_token),
        RUN(a_streamed_token_allocates_nothing),
        RUN(a_stop_string_ends_the_reply_before_the_engine_does),
        RUN(a_bad_body_is_refused_and_the_engine_not_asked),
        RUN(outside_of_serving_requests_are_refused),
        RUN(more_bodies_than_the_pool_may_hold_are_refused),
        RUN(a_full_engine_refuses_at_once),
        RUN(a_submission_refused_half_way_is_told_as_what_it_is),
        RUN(failures_keep_their_kind),
        RUN(one_failed_sequence_ends_its_siblings),
        RUN(a_client_that_leaves_while_its_body_is_read),
        RUN(a_client_that_leaves_before_the_engine_answers),
        RUN(a_client_that_leaves_in_the_middle),
        RUN(a_reader_too_far_behind_is_dropped_and_its_sequence_cancelled),
        RUN(an_operator_cancels_by_either_id),
        RUN(a_stream_whose_error_cannot_be_written_ends),
        RUN(a_whole_reply_that_cannot_be_written_is_an_error),
        RUN(seeds_follow_the_order_of_arrival),
        RUN(destroyed_with_sequences_that_did_not_end),
    };

    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
