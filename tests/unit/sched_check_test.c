/* sched_check_test.c: the scheduler's check sees what is broken on purpose: each
 * numbered invariant, on a busy scheduler with two steps in flight. */
#include <stddef.h>

#include "property/sched_world.h"
#include "scheduler/state.h"
#include "support/test.h"

/* Running: 1, 2 and 3 (two choices); resuming: a part of 3; waiting: 5, 6 (of one
 * tenant), 7 (of another). */
static struct world w;

static struct req *find(req_id id)
{
    struct req *r = sched_queue_find(&w.sched->queue, id);
    assert_non_null(r);
    return r;
}

static void setup(void)
{
    world_open(&w,
               &(struct world_config){
                   .n_blocks = 64,
                   .max_seqs = 3,
                   .sched = { .max_num_seqs = 3, .max_num_batched_tokens = 64, .overlap = true } });
    for (req_id id = 1; id <= 2; id++)
        assert_int_equal(world_submit_simple(&w, id, id, 20, 60), ERR_OK);
    for (req_id id = 3; id <= 7; id += id == 3 ? 2 : 1) {
        struct sched_request r = { .id = id, .n_prompt = 20, .max_tokens = 60, .n = 1 };
        struct err e;
        r.n = id == 3 ? 2 : 1;
        r.tenant = id == 7 ? 7 : 0;
        assert_ok(world_submit_like(&w, r, id, NULL, &e), e);
    }
    for (int i = 0; i < 6; i++)
        assert_true(world_step(&w));
    assert_true(w.sched->n_run == 3 && w.sched->queue.n_resume == 1);
    assert_int_equal(w.sched->queue.n_waiting, 3);
    assert_int_equal(w.sched->n_flight, 1);
    struct err e;
    assert_ok(sched_check(w.sched, &e), e);
}

/* The fault in *at, of any integer type, is seen under its number and leaves no
 * trace once undone. */
static void expect_seen(const char *number, void *at, size_t n, uint64_t wrong)
{
    struct err e;
    unsigned char was[sizeof wrong];
    assert_true(n <= sizeof wrong);
    memcpy(was, at, n);
    memcpy(at, &wrong, n); /* little end first */
    assert_int_equal(sched_check(w.sched, &e), ERR_INVALID);
    assert_contains(e.message, "scheduler invariant");
    assert_contains(e.message, number);
    memcpy(at, was, n);
    assert_ok(sched_check(w.sched, &e), e);
}
#define PLANT(number, field, wrong) expect_seen(number, &(field), sizeof(field), (uint64_t)(wrong))

static void end(void)
{
    world_drain(&w, 10000);
    world_expect_idle(&w);
    world_close(&w);
}

TEST(a_request_that_is_not_where_it_should_be)
{
    setup();
    struct req *r = find(5), *other = find(6);
    PLANT("(1)", r->n_live, 2);
    PLANT("(1)", r->arrival, 100);
    PLANT("(1)", other->prev, (uintptr_t)NULL);
    PLANT("(1)", r->seq[0].choice, 1);
    PLANT("(1)", w.sched->queue.newest, (uintptr_t)r);
    req_id id = r->r.id;
    r->r.id = 99;
    struct err e;
    assert_int_equal(sched_check(w.sched, &e), ERR_INVALID);
    assert_contains(e.message, "(1): request 99 is not found by its id");
    r->r.id = id;
    end();
}

TEST(a_sequence_in_two_places_or_none)
{
    setup();
    struct seq *running = w.sched->run[0], *resumes = w.sched->queue.resume_first;
    PLANT("(2)", running->state, SEQ_WAIT);
    PLANT("(2)", running->state, SEQ_UNFORKED);
    PLANT("(2)", resumes->state, SEQ_RUN);
    PLANT("(2)", resumes->state, SEQ_UNFORKED);
    PLANT("(2)", find(5)->seq[0].state, SEQ_UNFORKED);
    PLANT("(2)", w.sched->run[1], (uintptr_t)running);
    end();
}

TEST(the_pool_knows_other_sequences)
{
    setup();
    struct seq *a = w.sched->run[0], *b = w.sched->run[1];
    PLANT("(3)", a->sid, SEQ_NONE);
    PLANT("(3)", w.sched->queue.resume_first->sid, b->sid);
    PLANT("(3)", w.sched->queue.resume_first->computed, 1);
    PLANT("(2)", w.sched->n_run, 2);
    end();
}

TEST(tokens_do_not_add_up)
{
    setup();
    struct seq *q = w.sched->run[0];
    PLANT("(4)", q->computed, q->computed - 1);
    PLANT("(4)", q->flight, q->flight + 1);
    PLANT("(4)", q->planned, 1);
    PLANT("(5)", q->known, q->known + 1);
    PLANT("(5)", q->due, q->due + 1);
    PLANT("(5)", q->cap, q->known - 1);
    PLANT("(5)", q->req->limit, 1);
    PLANT("(5)", q->req->lp_next, q->req->r.n_prompt + 1);
    end();
}

TEST(the_queue_counts_wrongly)
{
    setup();
    struct queue *q = &w.sched->queue;
    PLANT("(6)", q->n_waiting, 2);
    PLANT("(6)", q->n_waiting_tokens, 59);
    PLANT("(6)", q->n_resume, 0);
    PLANT("(6)", q->n_resume_tokens, 0);
    PLANT("(6)", q->resume_last, (uintptr_t)NULL);
    struct req *r = find(5);
    PLANT("(7)", r->flow->tail, (uintptr_t)r);
    PLANT("(7)", r->flow->tenant, (uintptr_t)find(7)->tenant);
    PLANT("(7)", r->start_us, 1);
    PLANT("(7)", r->tenant->n_reqs, 1);
    PLANT("(7)", r->tenant->deficit, 1000000);
    PLANT("(7)", r->tenant->deficit, -1000000);
    PLANT("(7)", q->n_tenants, 3);
    PLANT("(7)", q->first->priority, -5);
    end();
}

TEST(a_step_past_its_budgets)
{
    setup();
    struct step *t = sched_step_oldest(w.sched);
    PLANT("(8)", t->plan.view.step, 1);
    PLANT("(8)", t->n_outputs, t->n_outputs + 1);
    PLANT("(8)", w.sched->cfg.max_num_batched_tokens, 2);
    PLANT("(8)", w.sched->cfg.max_outputs, 1);
    PLANT("(8)", w.sched->n_flight, 3);
    end();
}

TEST(an_ended_request_is_kept_too_long)
{
    setup();
    world_cancel(&w, 2, -1); /* a step in flight names it */
    struct req *r = w.sched->deferred;
    assert_non_null(r);
    struct err e;
    assert_ok(sched_check(w.sched, &e), e);
    PLANT("(9)", r->last_step, w.sched->step - w.sched->n_flight);
    PLANT("(9)", r->last_step, w.sched->step + 1);
    PLANT("(9)", r->n_live, 1);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(a_request_that_is_not_where_it_should_be),
        RUN(a_sequence_in_two_places_or_none),
        RUN(the_pool_knows_other_sequences),
        RUN(tokens_do_not_add_up),
        RUN(the_queue_counts_wrongly),
        RUN(a_step_past_its_budgets),
        RUN(an_ended_request_is_kept_too_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
