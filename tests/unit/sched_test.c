/* sched_test.c: what the scheduler promises, one case each, with the real pool
 * and the hash model of sched_world. */
#include "property/sched_world.h"

#include "kvpool/pool.h"
#include "support/test.h"

static const struct sample_params greedy = { .top_p = 1,
                                             .repetition_penalty = 1,
                                             .n_logprobs = -1 };

/* The token that request (seed, n_prompt) says at output i, greedy. */
static int32_t says(uint64_t seed, uint32_t n_prompt, uint32_t i)
{
    uint64_t chain = 0x51D7348C2F1B9E3Du;
    for (uint32_t k = 0; k < n_prompt; k++)
        chain = world_chain(chain, world_prompt_token(seed, k));
    for (uint32_t k = 0; k < i; k++)
        chain = world_chain(chain, world_next_token(chain, 0));
    return world_next_token(chain, 0);
}

static void submit(struct world *w, req_id id, uint64_t seed, uint32_t n_prompt, uint32_t out)
{
    assert_int_equal(world_submit_simple(w, id, seed, n_prompt, out), ERR_OK);
}

static struct sched_stats stats_of(const struct world *w)
{
    struct sched_stats st;
    sched_stats(w->sched, &st);
    return st;
}

static uint64_t held_blocks(const struct world *w)
{
    struct kvpool_stats st;
    kvpool_stats(w->pool, &st);
    return st.n_held;
}

TEST(one_request_runs_to_its_limit)
{
    struct world w;
    world_open(&w, &(struct world_config){ .n_blocks = 16 });
    submit(&w, 1, 1, 20, 10);
    world_drain(&w, 10);
    assert_int_equal(w.req[1].seq[0].finish, FINISH_LENGTH);
    assert_int_equal(w.n_steps, 10); /* prompt and first token in one */
    world_expect_idle(&w);
    world_close(&w);
}

TEST(edges_of_blocks_and_lengths)
{
    struct world w;
    world_open(&w, &(struct world_config){ .n_blocks = 8 });
    const uint32_t outs[] = { 1, 15, 16, 17 };
    for (uint32_t n = 1; n <= 65; n++)
        for (uint32_t k = 0; k < 4; k++) {
            submit(&w, 1, n, n, outs[k]);
            uint64_t most = 0;
            while (world_plan(&w)) {
                most = held_blocks(&w) > most ? held_blocks(&w) : most;
                world_finish(&w);
            }
            /* The last token is never computed. */
            assert_int_equal(most, (n + outs[k] - 1 + 15) / 16);
            assert_int_equal(w.req[1].seq[0].n_output, outs[k]);
            world_expect_idle(&w);
            world_forget(&w, 1);
        }
    world_close(&w);
}

TEST(one_budget_for_decode_and_prompts)
{
    struct world w;
    world_open(&w,
               &(struct world_config){ .n_blocks = 64, .sched = { .max_num_batched_tokens = 16 } });
    submit(&w, 1, 1, 10, 30);
    assert_true(world_step(&w));
    submit(&w, 2, 2, 40, 2);
    assert_true(world_plan(&w));
    assert_int_equal(w.in_flight->n_rows, 2);
    assert_int_equal(w.in_flight->n_tokens, 16); /* 1 decode, 15 of the prompt */
    assert_int_equal(w.in_flight->cu_seqlens[1], 1);
    assert_int_equal(w.in_flight->n_outputs, 1); /* none of a part-done prompt */
    world_finish(&w);
    world_drain(&w, 40);
    assert_int_equal(w.most_tokens, 16);
    world_expect_idle(&w);
    world_close(&w);
}

TEST(a_step_is_planned_beside_the_one_that_runs)
{
    struct world w;
    world_open(&w, &(struct world_config){ .n_blocks = 64, .sched = { .overlap = true } });
    submit(&w, 1, 1, 20, 3);
    assert_true(world_plan(&w));
    submit(&w, 2, 2, 5, 1);
    assert_true(world_plan(&w));
    const struct step_plan *p = w.in_flight;
    assert_int_equal(p->n_rows, 2);
    assert_int_equal(p->token[0], -1);
    assert_int_equal(p->token_from[0], 0);
    assert_int_equal(p->past_seqlens[0], 20);
    assert_int_equal(p->output[0].n_history, 21);
    assert_int_equal(p->token_from[1], -1);
    world_finish(&w);
    assert_int_equal(w.req[1].seq[0].n_output, 1);
    assert_true(world_plan(&w));
    assert_int_equal(w.in_flight->n_rows, 1); /* the second one's only token is due */
    world_finish(&w);
    assert_true(w.req[2].seq[0].done);
    assert_false(world_plan(&w)); /* the first one's last token is due */
    world_finish(&w);
    assert_true(w.req[1].seq[0].done);
    world_expect_idle(&w);
    world_close(&w);
}

TEST(table_rows_are_as_wide_as_the_step_needs)
{
    struct world w;
    world_open(&w, &(struct world_config){ .n_blocks = 64 });
    submit(&w, 1, 1, 33, 3);
    submit(&w, 2, 2, 5, 3);
    assert_true(world_plan(&w));
    assert_int_equal(w.in_flight->table_cols[0], 3);
    assert_int_equal(w.in_flight->block_table[0][3 + 1], -1);
    world_finish(&w);
    world_drain(&w, 10);
    world_close(&w);
}

TEST(repeats_hit_the_prefix)
{
    struct world w;
    world_open(&w, &(struct world_config){ .n_blocks = 64 });
    const uint32_t want[] = { 0, 48, 48 };
    for (uint32_t i = 0; i < 3; i++) {
        submit(&w, i, 9, 53, 64);
        world_drain(&w, 100);
        assert_int_equal(w.req[i].n_cached, want[i]);
    }
    submit(&w, 4, 9, 64, 1);
    world_drain(&w, 100);
    submit(&w, 5, 9, 64, 1); /* fully cached: one block is recomputed */
    world_drain(&w, 100);
    assert_int_equal(w.req[5].n_cached, 48);
    assert_int_equal(stats_of(&w).tokens_prompt_cached, 48 * 4);
    world_expect_idle(&w);
    world_close(&w);
}

TEST(submit_refuses_what_can_never_be)
{
    struct world w;
    struct err e;
    world_open(&w, &(struct world_config){ .n_blocks = 8, .sched = { .max_model_len = 256 } });
    struct sched_request r = { .id = 1, .n_prompt = 100, .n = 1, .max_tokens = 30 };
    assert_int_equal(world_submit_like(&w, r, 1, NULL, &e), ERR_LIMIT);
    assert_contains(e.message, "9");
    assert_contains(e.message, "8");
    r.n_prompt = 256;
    assert_int_equal(world_submit_like(&w, r, 1, NULL, &e), ERR_LIMIT);
    assert_contains(e.message, "256 tokens");
    assert_contains(e.message, "255");
    r.n_prompt = 0;
    assert_int_equal(world_submit_like(&w, r, 1, NULL, &e), ERR_INVALID);
    r.n_prompt = 5;
    r.max_tokens = 0;
    assert_int_equal(world_submit_like(&w, r, 1, NULL, &e), ERR_INVALID);
    r.max_tokens = 5;
    r.n = 0;
    assert_int_equal(world_submit_like(&w, r, 1, NULL, &e), ERR_INVALID);
    r.n = 5000000;
    assert_int_equal(sched_submit(w.sched, &r, &e), ERR_LIMIT);
    assert_int_equal(stats_of(&w).n_waiting, 0);
    r.n = 1;
    assert_int_equal(world_submit_like(&w, r, 1, NULL, &e), ERR_OK);
    assert_int_equal(sched_submit(w.sched, &w.req[1].r, &e), ERR_CONFLICT);
    world_drain(&w, 10);
    world_expect_idle(&w);
    world_close(&w);
}

TEST(output_is_cut_at_the_context)
{
    struct world w;
    world_open(&w, &(struct world_config){ .n_blocks = 32, .sched = { .max_model_len = 256 } });
    submit(&w, 1, 1, 240, 1000);
    submit(&w, 2, 2, 255, 1000);
    world_drain(&w, 100);
    assert_int_equal(w.req[1].seq[0].n_output, 16);
    assert_int_equal(w.req[2].seq[0].n_output, 1);
    assert_int_equal(w.req[2].seq[0].finish, FINISH_LENGTH);
    world_expect_idle(&w);
    world_close(&w);
}

TEST(a_full_queue_is_busy_with_both_numbers)
{
    struct world w;
    struct err e;
    world_open(&w, &(struct world_config){
                       .n_blocks = 16, .sched = { .max_queued = 3, .max_queued_tokens = 100 } });
    for (req_id i = 0; i < 3; i++)
        submit(&w, i, i, 10, 2);
    struct sched_request r = { .id = 9, .n_prompt = 10, .n = 1, .max_tokens = 2 };
    assert_int_equal(world_submit_like(&w, r, 1, NULL, &e), ERR_BUSY);
    assert_contains(e.message, "3");
    world_drain(&w, 10);
    submit(&w, 4, 4, 90, 2);
    r.n_prompt = 20;
    assert_int_equal(world_submit_like(&w, r, 1, NULL, &e), ERR_BUSY);
    assert_contains(e.message, "90");
    assert_contains(e.message, "100");
    world_drain(&w, 10);
    r.n_prompt = 101; /* alone in the queue it may be longer than the cap */
    assert_int_equal(world_submit_like(&w, r, 1, NULL, &e), ERR_OK);
    world_drain(&w, 10);
    world_expect_idle(&w);
    world_close(&w);
}

TEST(a_stop_id_ends_and_is_told)
{
    struct world w;
    struct err e;
    world_open(&w, &(struct world_config){ .n_blocks = 16 });
    int32_t stop[] = { -5, says(3, 12, 4) };
    struct sample_params p = greedy;
    p.stop_ids = stop;
    p.n_stop_ids = 2;
    struct sched_request r = { .id = 1, .n_prompt = 12, .n = 1, .max_tokens = 50 };
    assert_int_equal(world_submit_like(&w, r, 3, &p, &e), ERR_OK);
    r.id = 2;
    r.max_tokens = 5; /* the stop comes exactly on the limit */
    assert_int_equal(world_submit_like(&w, r, 3, &p, &e), ERR_OK);
    r.id = 3;
    r.max_tokens = 4;
    assert_int_equal(world_submit_like(&w, r, 3, &p, &e), ERR_OK);
    world_drain(&w, 50);
    assert_int_equal(w.req[1].seq[0].finish, FINISH_STOP);
    assert_int_equal(w.req[1].seq[0].stop_id, stop[1]);
    assert_int_equal(w.req[1].seq[0].n_output, 5);
    assert_int_equal(w.req[2].seq[0].finish, FINISH_STOP);
    assert_int_equal(w.req[3].seq[0].finish, FINISH_LENGTH);
    world_expect_idle(&w);
    world_close(&w);
}

TEST(four_sequences_share_the_prompt)
{
    struct world w;
    struct err e;
    world_open(&w, &(struct world_config){ .n_blocks = 32 });
    struct sample_params p = greedy;
    p.seed = 7;
    struct sched_request r = { .id = 1, .n_prompt = 35, .n = 4, .max_tokens = 20 };
    assert_int_equal(world_submit_like(&w, r, 3, &p, &e), ERR_OK);
    assert_true(world_plan(&w));
    assert_int_equal(w.in_flight->n_outputs, 4); /* of one logits row */
    assert_int_equal(w.in_flight->output[3].token, 34);
    assert_int_equal(w.in_flight->output[3].seed, 10);
    world_finish(&w);
    assert_int_equal(held_blocks(&w), 3); /* two full ones and the shared last */
    assert_true(world_plan(&w));
    assert_int_equal(w.in_flight->n_rows, 4);
    assert_int_equal(w.in_flight->n_copies, 3);
    assert_int_equal(held_blocks(&w), 6); /* two once, and four of their own */
    world_finish(&w);
    world_drain(&w, 30);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(w.req[1].seq[i].finish, FINISH_LENGTH);
    world_expect_idle(&w);
    world_close(&w);
}

TEST(many_siblings_find_outputs_beside_the_decoding_rows)
{
    struct world w;
    struct err e;
    world_open(&w, &(struct world_config){ .n_blocks = 64,
                                           .sched = { .max_num_seqs = 4, .max_outputs = 8 } });
    for (req_id i = 0; i < 3; i++)
        submit(&w, i, i, 10, 60);
    assert_true(world_step(&w));
    struct sched_request r = { .id = 9, .n_prompt = 20, .n = 6, .max_tokens = 4 };
    assert_int_equal(world_submit_like(&w, r, 9, NULL, &e), ERR_LIMIT);
    assert_contains(e.message, "6");
    assert_contains(e.message, "5");
    r.n = 5;
    assert_int_equal(world_submit_like(&w, r, 9, NULL, &e), ERR_OK);
    assert_true(world_plan(&w));
    assert_int_equal(w.in_flight->n_outputs, 8);
    world_finish(&w);
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(w.req[9].seq[i].n_output, 1);
    world_drain(&w, 200);
    world_expect_idle(&w);
    world_close(&w);
}

TEST(siblings_beyond_the_rows_wait)
{
    struct world w;
    struct err e;
    world_open(&w, &(struct world_config){ .n_blocks = 32, .sched = { .max_num_seqs = 2 } });
    struct sched_request r = { .id = 1, .n_prompt = 35, .n = 5, .max_tokens = 9 };
    assert_int_equal(world_submit_like(&w, r, 3, NULL, &e), ERR_OK);
    world_drain(&w, 60);
    assert_int_equal(w.most_rows, 2);
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(w.req[1].seq[i].n_output, 9);
    world_expect_idle(&w);
    world_close(&w);
}

TEST(siblings_without_room_wait)
{
    struct world w;
    struct err e;
    world_open(&w, &(struct world_config){ .n_blocks = 5 });
    struct sched_request r = { .id = 1, .n_prompt = 35, .n = 4, .max_tokens = 40 };
    assert_int_equal(world_submit_like(&w, r, 3, NULL, &e), ERR_OK);
    world_drain(&w, 400);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(w.req[1].seq[i].n_output, 40);
    world_expect_idle(&w);
    world_close(&w);
}

TEST(prompt_scores_come_in_order_across_chunks)
{
    struct world w;
    struct err e;
    const uint32_t budgets[] = { 1, 7, 16, 64 };
    for (uint32_t b = 0; b < 4; b++) {
        world_open(&w, &(struct world_config){ .n_blocks = 32,
                                               .sched = { .max_num_batched_tokens = budgets[b] } });
        struct sched_request r = {
            .id = 1, .n_prompt = 50, .n = 2, .max_tokens = 3, .prompt_logprobs = true
        };
        assert_int_equal(world_submit_like(&w, r, 3, NULL, &e), ERR_OK);
        world_drain(&w, 200);
        assert_int_equal(w.req[1].lp_next, 50);
        r.id = 2; /* the same over a cached prefix */
        assert_int_equal(world_submit_like(&w, r, 3, NULL, &e), ERR_OK);
        r.id = 3;
        r.max_tokens = 0;
        assert_int_equal(world_submit_like(&w, r, 3, NULL, &e), ERR_OK);
        world_drain(&w, 200);
        assert_int_equal(w.req[2].lp_next, 50);
        assert_int_equal(w.req[3].lp_next, 50);
        assert_int_equal(w.req[3].seq[1].n_output, 0);
        assert_int_equal(w.req[3].seq[1].finish, FINISH_LENGTH);
        world_expect_idle(&w);
        world_close(&w);
    }
}

TEST(prompt_scores_fit_the_outputs_of_a_step)
{
    struct world w;
    struct err e;
    world_open(&w, &(struct world_config){ .n_blocks = 64,
                                           .sched = { .max_num_seqs = 4, .max_outputs = 8 } });
    struct sched_request r = { .n_prompt = 60, .n = 3, .max_tokens = 4, .prompt_logprobs = true };
    for (r.id = 0; r.id < 4; r.id++)
        assert_int_equal(world_submit_like(&w, r, r.id, NULL, &e), ERR_OK);
    world_drain(&w, 400);
    for (req_id i = 0; i < 4; i++)
        assert_int_equal(w.req[i].lp_next, 60);
    world_expect_idle(&w);
    world_close(&w);
}

TEST(cancel_in_every_state)
{
    struct world w;
    struct err e;
    world_open(
        &w, &(struct world_config){ .n_blocks = 32,
                                    .sched = { .max_num_seqs = 3, .max_num_batched_tokens = 16 } });
    submit(&w, 1, 1, 10, 50);
    submit(&w, 2, 2, 100, 5);
    submit(&w, 3, 3, 10, 5);
    assert_false(sched_cancel(w.sched, 77, -1));
    assert_true(world_step(&w));
    world_cancel(&w, 3, -1); /* waiting */
    world_cancel(&w, 2, -1); /* part done */
    assert_true(world_step(&w));
    assert_true(world_plan(&w));
    world_cancel(&w, 1, -1); /* its step is in flight */
    struct kvpool_stats st;
    kvpool_stats(w.pool, &st);
    assert_true(st.n_resting > 0);
    world_finish(&w);
    assert_int_equal(w.req[1].seq[0].finish, FINISH_CANCELLED);
    assert_false(world_step(&w));
    world_expect_idle(&w);

    struct sched_request r = { .id = 4, .n_prompt = 10, .n = 3, .max_tokens = 30 };
    assert_int_equal(world_submit_like(&w, r, 3, NULL, &e), ERR_OK);
    world_cancel(&w, 4, 0); /* the one that would compute the prompt */
    assert_true(world_step(&w));
    assert_int_equal(w.req[4].seq[0].n_output, 0);
    assert_int_equal(w.req[4].seq[1].n_output, 1);
    assert_true(world_plan(&w));
    world_cancel(&w, 4, 1);
    world_finish(&w);
    assert_int_equal(w.req[4].seq[1].n_output, 1);
    world_drain(&w, 40);
    assert_int_equal(w.req[4].seq[2].n_output, 30);
    world_expect_idle(&w);
    world_close(&w);
}

TEST(cancel_the_lead_while_its_prompt_is_in_flight)
{
    struct world w;
    struct err e;
    for (int how = 0; how < 3; how++) {
        world_open(&w, &(struct world_config){ .n_blocks = 32,
                                               .sched = { .max_num_batched_tokens = 16 } });
        struct sched_request r = { .id = 4, .n_prompt = 30, .n = 3, .max_tokens = 7 };
        assert_int_equal(world_submit_like(&w, r, 3, NULL, &e), ERR_OK);
        if (how == 1)
            assert_true(world_step(&w));
        assert_true(world_plan(&w));
        world_cancel(&w, 4, how == 2 ? 1 : 0);
        if (how == 2)
            world_cancel(&w, 4, 2);
        world_finish(&w);
        world_drain(&w, 40);
        assert_int_equal(w.req[4].seq[0].n_output, how == 2 ? 7 : 0);
        assert_int_equal(w.req[4].seq[2].n_output, how == 2 ? 0 : 7);
        world_expect_idle(&w);
        world_close(&w);
    }
}

TEST(an_aborted_step_ends_its_requests_only)
{
    struct world w;
    world_open(&w, &(struct world_config){ .n_blocks = 32, .sched = { .max_num_seqs = 2 } });
    w.may_fail = true;
    for (req_id i = 0; i < 3; i++)
        submit(&w, i, i, 20, 10);
    assert_true(world_step(&w));
    assert_true(world_plan(&w));
    world_abort(&w, "device lost");
    assert_int_equal(w.req[0].seq[0].finish, FINISH_ERROR);
    assert_string_equal(w.req[1].seq[0].message, "device lost");
    assert_int_equal(w.req[1].seq[0].code, ERR_GPU);
    assert_int_equal(w.req[2].n_live, 1);
    world_drain(&w, 20);
    assert_int_equal(w.req[2].seq[0].n_output, 10);
    world_expect_idle(&w);
    world_close(&w);
}

TEST(logits_that_are_not_finite_end_the_sequence)
{
    struct world w;
    world_open(&w, &(struct world_config){ .n_blocks = 32 });
    w.may_fail = true;
    submit(&w, 1, 1, 20, 10);
    submit(&w, 2, 2, 20, 10);
    w.next_fail = 4;
    world_drain(&w, 20);
    assert_int_equal(w.req[1].seq[0].finish, FINISH_ERROR);
    assert_int_equal(w.req[1].seq[0].n_output, 2);
    assert_contains(w.req[1].seq[0].message, "finite");
    assert_int_equal(w.req[1].seq[0].code, ERR_INTERNAL);
    assert_int_equal(w.req[2].seq[0].n_output, 10);
    world_expect_idle(&w);
    world_close(&w);
}

TEST(what_no_longer_fits_ends_in_an_error)
{
    struct world w;
    struct err e;
    world_open(&w, &(struct world_config){ .n_blocks = 8 });
    /* Blocks vanish after submission: another owner of the pool takes six. */
    w.may_fail = true;
    submit(&w, 1, 1, 60, 20);
    int32_t other[96];
    for (int i = 0; i < 96; i++)
        other[i] = i;
    seq_id sid;
    uint32_t cached;
    assert_ok(kvpool_open(w.pool, other, 96, NULL, &sid, &cached, &e), e);
    assert_ok(kvpool_reserve(w.pool, sid, 64, &e), e);
    assert_ok(kvpool_reserve(w.pool, sid, 32, &e), e);
    assert_false(world_step(&w));
    assert_int_equal(w.req[1].seq[0].finish, FINISH_ERROR);
    assert_contains(w.req[1].seq[0].message, "2 of 8");
    assert_int_equal(w.req[1].seq[0].code, ERR_LIMIT);
    kvpool_close(w.pool, sid);
    submit(&w, 2, 1, 60, 20);
    world_drain(&w, 30);
    world_expect_idle(&w);
    world_close(&w);
}

TEST(a_damaged_sequence_ends_and_the_others_go_on)
{
    struct world w;
    world_open(&w, &(struct world_config){ .n_blocks = 32 });
    w.may_fail = true;
    w.may_break = true;
    submit(&w, 1, 1, 20, 30);
    submit(&w, 2, 2, 20, 30);
    assert_true(world_plan(&w));
    int32_t hurt = w.in_flight->block_table[0][0]; /* of the first row */
    world_finish(&w);
    kvpool_blk(w.pool, hurt)->ref++;
    assert_true(world_step(&w));
    assert_int_equal(w.req[1].seq[0].finish, FINISH_ERROR);
    assert_contains(w.req[1].seq[0].message, "ledger");
    assert_int_equal(w.req[1].seq[0].code, ERR_INTERNAL);
    assert_int_equal(stats_of(&w).ledger_violations, 1);
    assert_contains(sched_last_violation(w.sched)->message, "(1)");
    world_drain(&w, 40);
    assert_int_equal(w.req[2].seq[0].n_output, 30);
    assert_int_equal(stats_of(&w).n_running, 0);
    world_close(&w);
}

static void collect(void *ctx, const struct sched_live *r)
{
    struct sched_live *list = ctx;
    while (list->id != 0)
        list++;
    *list = *r;
}

TEST(live_requests_are_listed_in_order)
{
    struct world w;
    world_open(&w, &(struct world_config){ .n_blocks = 32, .sched = { .max_num_seqs = 1 } });
    submit(&w, 5, 1, 20, 10);
    submit(&w, 3, 2, 30, 10);
    assert_true(world_step(&w));
    struct sched_live list[4] = { { 0 } };
    sched_each(w.sched, collect, list);
    assert_int_equal(list[0].id, 5);
    assert_true(list[0].running);
    assert_int_equal(list[0].n_computed, 20);
    assert_int_equal(list[0].n_blocks, 2);
    assert_int_equal(list[1].id, 3);
    assert_false(list[1].running);
    assert_true(list[1].waited_us > 0);
    assert_int_equal(list[2].id, 0);
    assert_int_equal(stats_of(&w).n_waiting_tokens, 30);
    world_drain(&w, 30);
    world_close(&w);
}

TEST(destroy_with_work_left_leaves_the_pool_empty)
{
    struct world w;
    struct err e;
    world_open(&w, &(struct world_config){ .n_blocks = 32, .sched = { .max_num_seqs = 2 } });
    for (req_id i = 0; i < 5; i++)
        submit(&w, i, i, 40, 10);
    assert_true(world_step(&w));
    assert_true(world_plan(&w));
    sched_destroy(w.sched);
    struct kvpool_stats st;
    kvpool_stats(w.pool, &st);
    assert_int_equal(st.n_seqs + st.n_held + st.n_resting, 0);
    assert_ok(kvpool_check(w.pool, &e), e);
    w.sched = NULL;
    world_close(&w);
}

TEST(bad_configurations_are_refused)
{
    struct world w;
    struct err e;
    world_open(&w, &(struct world_config){ .n_blocks = 32 });
    struct sched_config good = { .max_num_seqs = 4,
                                 .max_num_batched_tokens = 64,
                                 .max_model_len = 128,
                                 .max_queued = 4,
                                 .max_partial_prefills = 1 };
    struct sched *s;
    for (int i = 0; i < 6; i++) {
        struct sched_config c = good;
        const char *name[] = { "max_num_seqs",  "max_num_batched_tokens",
                               "max_model_len", "max_partial_prefills",
                               "max_outputs",   "max_queued" };
        if (i == 0)
            c.max_num_seqs = 0;
        if (i == 1)
            c.max_num_batched_tokens = 0;
        if (i == 2)
            c.max_model_len = 0;
        if (i == 3)
            c.max_partial_prefills = 0;
        if (i == 4)
            c.max_outputs = 3;
        if (i == 5)
            c.max_queued = 0;
        assert_int_equal(sched_create(&s, w.pool, &w.lay, &c, NULL, NULL,
                                      &(struct sched_sink){ NULL, NULL }, &e),
                         ERR_INVALID);
        assert_contains(e.message, name[i]);
    }
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(one_request_runs_to_its_limit),
        RUN(edges_of_blocks_and_lengths),
        RUN(one_budget_for_decode_and_prompts),
        RUN(a_step_is_planned_beside_the_one_that_runs),
        RUN(table_rows_are_as_wide_as_the_step_needs),
        RUN(repeats_hit_the_prefix),
        RUN(submit_refuses_what_can_never_be),
        RUN(output_is_cut_at_the_context),
        RUN(a_full_queue_is_busy_with_both_numbers),
        RUN(a_stop_id_ends_and_is_told),
        RUN(four_sequences_share_the_prompt),
        RUN(many_siblings_find_outputs_beside_the_decoding_rows),
        RUN(siblings_beyond_the_rows_wait),
        RUN(siblings_without_room_wait),
        RUN(prompt_scores_come_in_order_across_chunks),
        RUN(prompt_scores_fit_the_outputs_of_a_step),
        RUN(cancel_in_every_state),
        RUN(cancel_the_lead_while_its_prompt_is_in_flight),
        RUN(an_aborted_step_ends_its_requests_only),
        RUN(logits_that_are_not_finite_end_the_sequence),
        RUN(what_no_longer_fits_ends_in_an_error),
        RUN(a_damaged_sequence_ends_and_the_others_go_on),
        RUN(live_requests_are_listed_in_order),
        RUN(destroy_with_work_left_leaves_the_pool_empty),
        RUN(bad_configurations_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
