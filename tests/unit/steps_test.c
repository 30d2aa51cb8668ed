/* steps_test.c: the flight recorder and the table of pins over a real pool and
 * scheduler; the model is a clock. */
#include "support/kv_drive.h"

#include "server/engine/pins.h"
#include "server/engine/steps.h"

struct world {
    struct kvpool *pool;
    struct sched *sched;
    struct srv_steps *steps;
    struct sample_params params;
    int32_t prompt[64];
    uint64_t now;
    uint32_t n_done;
};

static uint64_t now_us(void *ctx)
{
    return ++((struct world *)ctx)->now;
}

static void on_event(void *ctx, const struct sched_event *ev)
{
    ((struct world *)ctx)->n_done += ev->kind == SCHED_DONE;
}

static void open_world(struct world *w, uint32_t n_steps)
{
    struct pool_spec spec = { .blocks = 400, .seqs = 64 };
    struct kv_layout lay = layout_of(&spec);
    struct sched_config cfg = { .max_num_seqs = 64,
                                .max_num_batched_tokens = 64,
                                .max_model_len = 512,
                                .max_queued = 64,
                                .max_partial_prefills = 1 };
    struct sched_sink sink = { w, on_event };
    struct err e;
    memset(w, 0, sizeof *w);
    w->pool = pool_from(spec);
    fill_text(w->prompt, 1, 64);
    assert_ok(sched_create(&w->sched, w->pool, &lay, &cfg, now_us, w, &sink, &e), e);
    assert_ok(srv_steps_create(&w->steps, n_steps, cfg.max_num_seqs, &e), e);
}

static void close_world(struct world *w)
{
    srv_steps_destroy(w->steps);
    sched_destroy(w->sched);
    kvpool_destroy(w->pool);
}

static void submit(struct world *w, req_id id, uint32_t max_tokens)
{
    struct sched_request r = { .id = id,
                               .prompt = w->prompt,
                               .n_prompt = 20,
                               .max_tokens = max_tokens,
                               .n = 1,
                               .params = &w->params };
    struct err e;
    assert_ok(sched_submit(w->sched, &r, &e), e);
}

/* One step as the engine runs it; false: nothing to do. */
static bool step(struct world *w, bool fails)
{
    uint64_t began = now_us(w);
    const struct step_plan *plan = sched_next(w->sched);
    struct sampled out[64] = { 0 };
    struct err why;
    if (plan == NULL)
        return false;
    uint64_t n = plan->step;
    srv_steps_planned(w->steps, w->sched, w->pool, plan, began, now_us(w));
    srv_steps_mark(w->steps, n, STEP_LAUNCHED, now_us(w));
    srv_steps_mark(w->steps, n, STEP_COLLECTED, now_us(w));
    if (fails) {
        err_set(&why, ERR_GPU, "no");
        sched_abort(w->sched, plan, &why);
    } else {
        sched_commit(w->sched, plan, out);
    }
    srv_steps_ended(w->steps, w->sched, n, fails, now_us(w));
    return true;
}

TEST(a_step_is_told_as_it_was)
{
    struct world w;
    struct srv_steps_copy c;
    struct err e;
    open_world(&w, 16);
    assert_ok(srv_steps_copy(w.steps, 10, true, &c, &e), e);
    assert_int_equal(c.n_steps, 0);
    srv_steps_copy_fini(&c);
    submit(&w, 7, 3);
    submit(&w, 8, 2);
    while (step(&w, false))
        ;
    assert_int_equal(w.n_done, 2);
    assert_ok(srv_steps_copy(w.steps, 10, true, &c, &e), e);
    assert_int_equal(c.n_steps, 3);
    assert_int_equal(c.step[0].n_tokens, 40);
    assert_int_equal(c.step[0].n_decodes, 0);
    assert_int_equal(c.step[0].n_rows, 2);
    assert_int_equal(c.step[1].n_decodes, 2);
    assert_int_equal(c.step[0].n_idle_blocks, 396); /* two blocks each */
    assert_int_equal(c.step[1].n_finished[FINISH_LENGTH], 1);
    assert_int_equal(c.step[2].n_finished[FINISH_LENGTH], 1);
    assert_int_equal(c.step[2].n_running, 0);
    assert_int_equal(c.n_rows, 5);
    const struct srv_step_row *r = &c.row[c.step[1].first_row];
    assert_int_equal(r[0].id + r[1].id, 15);
    assert_int_equal(r[0].past, 20);
    assert_int_equal(r[0].n, 1);
    assert_int_equal(r[0].left, 0);
    for (uint32_t i = 0; i < 3; i++) {
        const struct srv_step *s = &c.step[i];
        assert_int_equal(s->state, STEP_DONE);
        assert_true(s->began_us < s->planned_us && s->planned_us < s->launched_us &&
                    s->launched_us < s->collected_us && s->collected_us < s->ended_us);
    }
    srv_steps_copy_fini(&c);
    submit(&w, 9, 3);
    assert_true(step(&w, true));
    assert_ok(srv_steps_copy(w.steps, 1, false, &c, &e), e);
    assert_int_equal(c.step[0].state, STEP_FAILED);
    assert_int_equal(c.step[0].n_finished[FINISH_ERROR], 1);
    assert_true(c.step[0].first_row == UINT64_MAX);
    srv_steps_copy_fini(&c);
    close_world(&w);
}

/* Both rings turn. */
TEST(the_oldest_go_first)
{
    struct world w;
    struct srv_steps_copy c;
    struct err e;
    open_world(&w, 4);
    for (req_id id = 1; id <= 8; id++)
        submit(&w, id, 100);
    for (uint32_t i = 0; i < 90; i++)
        assert_true(step(&w, false));
    assert_ok(srv_steps_copy(w.steps, 1000, true, &c, &e), e);
    assert_int_equal(c.n_steps, 4);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(c.step[i].step, 87 + i);
        assert_int_equal(c.step[i].n_rows, 8);
        for (uint32_t k = 0; k < 8; k++)
            assert_int_equal(c.row[c.step[i].first_row + k].past,
                             c.row[c.step[0].first_row + k].past + i);
    }
    srv_steps_copy_fini(&c);
    srv_steps_mark(w.steps, 3, STEP_LAUNCHED, 1); /* long gone: no harm */
    srv_steps_ended(w.steps, w.sched, 0, false, 1);
    close_world(&w);
}

/* 40 rows a step, 4 x 32 kept: the oldest of 4 steps is left without. */
TEST(steps_outlive_their_rows)
{
    struct world w;
    struct srv_steps_copy c;
    struct err e;
    open_world(&w, 4);
    for (req_id id = 1; id <= 40; id++)
        submit(&w, id, 100);
    for (uint32_t i = 0; i < 40; i++)
        assert_true(step(&w, false));
    assert_ok(srv_steps_copy(w.steps, 4, true, &c, &e), e);
    assert_int_equal(c.n_steps, 4);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(c.step[i].n_rows, 40);
    assert_true(c.step[0].first_row == UINT64_MAX);
    assert_int_equal(c.step[1].first_row, 0);
    assert_int_equal(c.n_rows, 120);
    srv_steps_copy_fini(&c);
    close_world(&w);
}

TEST(nothing_is_recorded_when_off)
{
    struct world w;
    struct srv_steps_copy c;
    struct err e;
    open_world(&w, 0);
    submit(&w, 7, 3);
    while (step(&w, false))
        ;
    assert_ok(srv_steps_copy(w.steps, 10, true, &c, &e), e);
    assert_int_equal(c.n_steps + c.n_rows, 0);
    srv_steps_copy_fini(&c);
    close_world(&w);
}

TEST(pins_have_names_of_their_own)
{
    struct pool_spec spec = { .blocks = 64 };
    struct kv_layout lay = layout_of(&spec);
    struct kvpool_config cfg = config_of(&spec);
    struct kvpool *p = NULL;
    struct srv_pins *t = NULL;
    struct srv_pin a, b, c, list[4];
    struct err e;
    cfg.max_pins = 2;
    cfg.pin_budget = 20;
    assert_ok(kvpool_create(&p, &lay, &cfg, &e), e);
    assert_ok(srv_pins_create(&t, 2, &e), e);
    for (uint32_t i = 1; i <= 3; i++)
        drive_request(p, i, 100, 1, 4096);
    fill_text(drive.text, 1, 100);
    assert_ok(srv_pins_add(t, p, drive.text, 100, NULL, 50, &a, &e), e);
    assert_int_equal(a.number, 1);
    assert_int_equal(a.n_tokens, 96);
    assert_int_equal(a.n_blocks, 6);
    fill_text(drive.text, 2, 100);
    assert_ok(srv_pins_add(t, p, drive.text, 100, NULL, 90, &b, &e), e);
    fill_text(drive.text, 3, 100);
    assert_int_equal(srv_pins_add(t, p, drive.text, 100, NULL, 9, &c, &e), ERR_CONFLICT);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_contains(e.message, "2 pins are set: at most 2");
    srv_pins_expire(t, p, 49);
    assert_int_equal(srv_pins_list(t, list, 4), 2);
    srv_pins_expire(t, p, 50);
    assert_int_equal(srv_pins_list(t, list, 4), 1);
    assert_int_equal(list[0].number, 2);
    /* The slot is taken again; the old name does not reach it. */
    assert_ok(srv_pins_add(t, p, drive.text, 100, NULL, 99, &c, &e), e);
    assert_int_equal(c.number, 3);
    assert_int_equal(srv_pins_remove(t, p, a.number), 0);
    assert_int_equal(drive_stats(p).n_pins, 2);
    assert_int_equal(srv_pins_list(t, list, 1), 1);
    assert_int_equal(srv_pins_remove(t, p, 2), 1);
    assert_int_equal(srv_pins_remove(t, p, 0), 1);
    assert_int_equal(srv_pins_remove(t, p, 0), 0);
    srv_pins_expire(t, p, 1000);
    fill_text(drive.text, 9, 100);
    assert_int_equal(srv_pins_add(t, p, drive.text, 100, NULL, 9, &c, &e), ERR_NOT_FOUND);
    assert_pool_idle(p);
    srv_pins_destroy(t);
    kvpool_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(a_step_is_told_as_it_was),     RUN(the_oldest_go_first),
        RUN(steps_outlive_their_rows),     RUN(nothing_is_recorded_when_off),
        RUN(pins_have_names_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
