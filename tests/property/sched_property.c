/* sched_property.c: random lives of the scheduler over the real pool.
 *
 * Each round draws a pool, a layout, budgets and policies, then submits,
 * cancels (also while a step is in flight), aborts, fails logits and steps at
 * random.  sched_world checks every token against the plain sequence and every
 * cell that is read; the ledger is checked after every step; at the end all is
 * idle.  Arguments: rounds (300), seed (1). */
#include "property/sched_world.h"

#include <stdio.h>

#include "support/rng.h"
#include "support/test.h"

static uint64_t n_rounds = 300, seed = 1;

struct totals {
    uint64_t requests, tokens, steps, preemptions, most_preempted, cancelled, aborted, refused;
    uint64_t n_cached, errors, overlapped;
};

static const uint32_t budgets[] = { 1, 7, 16, 17, 4096 };

static uint32_t pick(struct rng *r, const uint32_t *of, uint32_t n)
{
    return of[rng_below(r, n)];
}

static void draw_world(struct rng *r, struct world_config *c)
{
    static const uint32_t seqs[] = { 1, 2, 3, 5, 8, 16 }, lens[] = { 64, 200, 512 };
    *c = (struct world_config){ .n_blocks = 4 + rng_below(r, 60) };
    switch (rng_below(r, 4)) {
    case 0: /* full layers, and a window in a group of its own */
        c->n_full = 1;
        c->n_windowed = 1 + rng_below(r, 2);
        c->window = 2 + rng_below(r, 70);
        c->n_blocks *= 2;
        break;
    case 1: /* windows only */
        c->n_windowed = 1;
        c->window = 2 + rng_below(r, 70);
        break;
    default:
        c->n_full = 1;
    }
    c->no_prefix_caching = rng_below(r, 4) == 0;
    struct sched_config *s = &c->sched;
    s->max_num_seqs = pick(r, seqs, 6);
    s->max_num_batched_tokens = pick(r, budgets, 5);
    s->max_model_len = pick(r, lens, 3);
    s->max_queued = 1 + rng_below(r, 40);
    s->max_queued_tokens = rng_below(r, 3) == 0 ? 500 : 0;
    s->long_prefill_threshold = rng_below(r, 2) == 0 ? 0 : 1 + rng_below(r, 40);
    s->max_partial_prefills = 1 + rng_below(r, 4);
    s->policy = rng_below(r, 2) == 0 ? SCHED_FCFS : SCHED_PRIORITY;
    s->look_ahead_tokens = rng_below(r, 3) == 0 ? 0 : 1 + rng_below(r, 20);
    s->overlap = rng_below(r, 2) == 0;
    s->itl_target_us = rng_below(r, 3) == 0 ? 200 + rng_below(r, 1000) : 0;
    s->max_outputs = rng_below(r, 3) == 0 ? s->max_num_seqs + rng_below(r, 8) : 0;
    c->max_seqs = rng_below(r, 4) == 0 ? 1 + rng_below(r, s->max_num_seqs) : 0;
}

/* long_winded: short prompts and long outputs, so that rows outgrow the pool. */
static req_id submit_one(struct world *w, struct rng *r, req_id next, bool long_winded,
                         struct totals *t)
{
    int32_t prompt[600], stop[2];
    uint32_t n = 1 + rng_below(r, w->max_model_len + 8), own = rng_below(r, 4);
    if (long_winded || rng_below(r, 3) > 0)
        n = 1 + n / 8;
    uint32_t room = w->n_blocks * w->lay.block_tokens / w->lay.n_groups;
    if (n > room && rng_below(r, 8) > 0)
        n = 1 + rng_below(r, room);
    uint32_t shared = rng_below(r, n + 1);
    for (uint32_t i = 0; i < n; i++)
        prompt[i] = world_prompt_token(i < shared ? own : 1000 + next, i);
    struct sample_params p = { .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1 };
    p.seed = rng_below(r, 3);
    stop[0] = (int32_t)rng_below(r, WORLD_VOCAB);
    stop[1] = (int32_t)rng_below(r, WORLD_VOCAB);
    p.stop_ids = stop;
    p.n_stop_ids = long_winded ? 0 : rng_below(r, 3);
    p.min_tokens = rng_below(r, 4) == 0 ? rng_below(r, 10) : 0;
    struct sched_request q = { .id = next, .prompt = prompt, .n_prompt = n };
    q.max_tokens = 1 + rng_below(r, long_winded || rng_below(r, 3) == 0 ? 250 : 20);
    if (n + q.max_tokens > room && n < room && rng_below(r, 8) > 0)
        q.max_tokens = room - n;
    q.n = rng_below(r, 4) == 0 ? 1 + rng_below(r, 5) : 1;
    q.prompt_logprobs = rng_below(r, 5) == 0;
    if (q.prompt_logprobs && rng_below(r, 3) == 0)
        q.max_tokens = 0;
    q.priority = (int32_t)rng_below(r, 5) - 2;
    q.tenant = rng_below(r, 4);
    q.key.salt = rng_below(r, 6) == 0;
    struct err e;
    enum err_code rc = world_submit(w, &q, &p, &e);
    if (rc != ERR_OK) {
        assert_true(rc == ERR_BUSY || rc == ERR_LIMIT);
        t->refused++;
        return next;
    }
    t->requests++;
    return next + 1;
}

static void cancel_one(struct world *w, struct rng *r, req_id next, struct totals *t)
{
    if (next == 0)
        return;
    uint32_t back = rng_below(r, next < 12 ? (uint32_t)next : 12);
    req_id id = next - 1 - back;
    world_cancel(w, id, rng_below(r, 2) == 0 ? -1 : (int32_t)rng_below(r, 5));
    t->cancelled++;
}

static void step_one(struct world *w, struct rng *r, req_id next, struct totals *t)
{
    bool planned = world_plan(w);
    if (w->n_flight == 0)
        return;
    while (rng_below(r, 12) == 0)
        cancel_one(w, r, next, t);
    if (planned && w->overlap && w->n_flight == 1 && rng_below(r, 8) > 0)
        return; /* the next one is planned beside it */
    t->overlapped += w->n_flight == 2;
    if (rng_below(r, 200) == 0) {
        world_abort(w, "injected");
        t->aborted++;
        return;
    }
    if (rng_below(r, 300) == 0)
        w->next_fail = w->n_outputs;
    world_finish(w);
}

static void add_up(struct world *w, req_id next, struct totals *t)
{
    struct sched_stats st;
    sched_stats(w->sched, &st);
    t->preemptions += st.preemptions;
    t->n_cached += st.tokens_prompt_cached;
    t->errors += st.finished[FINISH_ERROR];
    t->tokens += w->n_tokens;
    t->steps += w->n_steps;
    for (req_id i = 0; i < next; i++)
        for (uint32_t k = 0; k < w->req[i].r.n; k++) {
            const struct world_seq *q = &w->req[i].seq[k];
            if (q->n_preempted > t->most_preempted)
                t->most_preempted = q->n_preempted;
            if (q->finish == FINISH_ERROR && strcmp(q->message, "injected") != 0 &&
                strstr(q->message, "finite") == NULL)
                fail_msg("request %llu ended with: %s", (unsigned long long)i, q->message);
        }
}

TEST(random_lives)
{
    struct totals t = { 0 };
    for (uint64_t round = 0; round < n_rounds; round++) {
        struct rng r = { seed * 1000003 + round };
        struct world_config c;
        struct world w;
        draw_world(&r, &c);
        world_open(&w, &c);
        w.may_fail = true;
        uint32_t eager = 1 + rng_below(&r, 8);
        bool long_winded = rng_below(&r, 2) == 0;
        req_id next = 0;
        for (uint32_t i = 0; i < 300 && next < WORLD_REQS - 1; i++) {
            if (rng_below(&r, 10) < eager)
                next = submit_one(&w, &r, next, long_winded, &t);
            if (rng_below(&r, 25) == 0)
                cancel_one(&w, &r, next, &t);
            step_one(&w, &r, next, &t);
            if (rng_below(&r, 100) == 0)
                kvpool_reset_cache(w.pool);
        }
        world_drain(&w, 2000000);
        world_expect_idle(&w);
        add_up(&w, next, &t);
        if (t.most_preempted > 3)
            fail_msg("round %llu: a sequence was preempted %llu times", (unsigned long long)round,
                     (unsigned long long)t.most_preempted);
        world_close(&w);
    }
    printf("%llu rounds: %llu requests, %llu refused, %llu tokens, %llu steps, %llu preemptions "
           "(at most %llu of one), %llu cancels, %llu aborts, %llu errors, %llu cached, "
           "%llu steps overlapped\n",
           (unsigned long long)n_rounds, (unsigned long long)t.requests,
           (unsigned long long)t.refused, (unsigned long long)t.tokens, (unsigned long long)t.steps,
           (unsigned long long)t.preemptions, (unsigned long long)t.most_preempted,
           (unsigned long long)t.cancelled, (unsigned long long)t.aborted,
           (unsigned long long)t.errors, (unsigned long long)t.n_cached,
           (unsigned long long)t.overlapped);
    assert_true(t.overlapped > 0 && t.preemptions > 0 && t.aborted > 0 && t.errors > 0 &&
                t.n_cached > 0);
}

/* Rows that all grow to the size of the pool and start whenever their prompt
 * fits: as much preemption as can be had. */
TEST(nobody_is_preempted_more_than_three_times)
{
    uint64_t n_preempted = 0, most = 0;
    for (uint64_t round = 0; round < 8 + n_rounds / 30; round++) {
        struct rng r = { seed * 7000003 + round };
        struct world w;
        struct world_config c = { .n_blocks = 8 + rng_below(&r, 16),
                                  .no_prefix_caching = rng_below(&r, 2) == 0,
                                  .sched = { .max_num_seqs = 16,
                                             .max_num_batched_tokens = pick(&r, budgets + 2, 3),
                                             .max_model_len = 1024,
                                             .look_ahead_tokens = 1,
                                             .overlap = rng_below(&r, 2) == 0,
                                             .max_partial_prefills = 1 + rng_below(&r, 3) } };
        world_open(&w, &c);
        uint32_t room = c.n_blocks * 16;
        for (req_id i = 0; i < 60; i++) {
            uint32_t n = 1 + rng_below(&r, 24);
            assert_int_equal(world_submit_simple(&w, i, i, n, room - n - rng_below(&r, room / 2)),
                             ERR_OK);
        }
        world_drain(&w, 1000000);
        world_expect_idle(&w);
        struct totals t = { 0 };
        add_up(&w, 60, &t);
        n_preempted += t.preemptions;
        most = t.most_preempted > most ? t.most_preempted : most;
        world_close(&w);
    }
    printf("%llu preemptions, at most %llu of one\n", (unsigned long long)n_preempted,
           (unsigned long long)most);
    assert_int_equal(most, 3);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        n_rounds = strtoull(argv[1], NULL, 10);
    if (argc > 2)
        seed = strtoull(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = { RUN(random_lives),
                                        RUN(nobody_is_preempted_more_than_three_times) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
