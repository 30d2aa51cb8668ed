/* step_order_test.c: a step's rows in the order of their forms: every token keeps
 * what belongs to it, rows keep their order within a form. */
#include "support/test.h"

#include "model/step/order.h"
#include "support/rng.h"

enum { ROWS = 12, TOKENS = 200, OUTPUTS = 24, COLS = 7, GROUPS = 2 };

static const struct ops_limits limits = { .max_tokens = TOKENS,
                                          .max_rows = ROWS,
                                          .max_outputs = OUTPUTS,
                                          .n_groups = GROUPS,
                                          .table_cols = COLS };

/* Arrays in which every entry is its own. */
struct world {
    struct step_plan plan;
    int32_t token[TOKENS], from[TOKENS], position[TOKENS], cu[ROWS + 1], past[ROWS];
    int32_t slot[GROUPS][TOKENS], table[GROUPS][ROWS * COLS];
    struct plan_output output[OUTPUTS];
};

static void draw(struct world *w, struct rng *r)
{
    struct step_plan *p = &w->plan;
    memset(w, 0, sizeof *w);
    *p = (struct step_plan){ .step = 9,
                             .n_groups = GROUPS,
                             .token = w->token,
                             .token_from = rng_below(r, 2) ? w->from : NULL,
                             .position = w->position,
                             .cu_seqlens = w->cu,
                             .past_seqlens = w->past,
                             .output = w->output };
    p->n_rows = 1 + (uint32_t)rng_below(r, ROWS);
    for (uint32_t i = 0; i < p->n_rows; i++) {
        int32_t n = (int32_t)rng_below(r, 2) ? 1 : (int32_t)rng_below(r, 16);
        w->past[i] = rng_below(r, 2) ? 0 : 1 + (int32_t)rng_below(r, 90);
        w->cu[i + 1] = w->cu[i] + n;
        for (int32_t t = w->cu[i]; t < w->cu[i + 1]; t++) {
            w->token[t] = 1000 + t;
            w->from[t] = 3000 + t;
            w->position[t] = w->past[i] + t - w->cu[i];
            if (p->n_outputs < OUTPUTS && rng_below(r, 3) == 0)
                w->output[p->n_outputs++] = (struct plan_output){
                    .row = i, .token = (uint32_t)t, .history = &w->token[t], .seed = (uint64_t)t
                };
        }
    }
    p->n_tokens = (uint32_t)w->cu[p->n_rows];
    for (uint32_t g = 0; g < GROUPS; g++) {
        p->table_cols[g] = g + 1 + (uint32_t)rng_below(r, COLS - g);
        for (uint32_t t = 0; t < TOKENS; t++)
            w->slot[g][t] = (int32_t)(10000 * (g + 1) + t);
        for (uint32_t i = 0; i < ROWS * COLS; i++)
            w->table[g][i] = (int32_t)(50000 * (g + 1) + i);
        p->slot_mapping[g] = w->slot[g];
        p->block_table[g] = w->table[g];
    }
}

static bool is_late(const struct step_plan *p, uint32_t row, uint32_t expand_from)
{
    return p->past_seqlens[row] == 0 &&
           (uint32_t)(p->cu_seqlens[row + 1] - p->cu_seqlens[row]) >= expand_from;
}

/* The plan's row behind row i of the ordered one: early rows, then late ones. */
static uint32_t row_behind(const struct step_plan *p, uint32_t expand_from, uint32_t i)
{
    for (int late = 0; late < 2; late++)
        for (uint32_t row = 0; row < p->n_rows; row++)
            if (is_late(p, row, expand_from) == (late == 1) && i-- == 0)
                return row;
    fail_msg("no row");
    return 0;
}

static void expect_row(const struct step_plan *p, const struct step_plan *q, uint32_t row,
                       uint32_t i)
{
    uint32_t n = (uint32_t)(p->cu_seqlens[row + 1] - p->cu_seqlens[row]);
    uint32_t from = (uint32_t)p->cu_seqlens[row], at = (uint32_t)q->cu_seqlens[i];
    size_t bytes = n * sizeof(int32_t);
    assert_int_equal(q->cu_seqlens[i + 1] - q->cu_seqlens[i], n);
    assert_int_equal(q->past_seqlens[i], p->past_seqlens[row]);
    assert_memory_equal(q->token + at, p->token + from, bytes);
    assert_memory_equal(q->position + at, p->position + from, bytes);
    assert_true((p->token_from != NULL) == (q->token_from != NULL));
    if (p->token_from != NULL)
        assert_memory_equal(q->token_from + at, p->token_from + from, bytes);
    for (uint32_t g = 0; g < GROUPS; g++) {
        size_t cols = p->table_cols[g];
        assert_int_equal(q->table_cols[g], cols);
        assert_memory_equal(q->slot_mapping[g] + at, p->slot_mapping[g] + from, bytes);
        assert_memory_equal(q->block_table[g] + i * cols, p->block_table[g] + row * cols,
                            cols * sizeof(int32_t));
    }
}

TEST(every_token_keeps_what_is_its_own)
{
    struct step_order *s;
    struct world w;
    struct rng r = { 5 };
    struct err e = { 0 };
    uint32_t n_moved = 0;
    assert_ok(model_step_order_create(&s, &limits, &e), e);
    for (int step = 0; step < 400; step++) {
        const struct step_plan *q, *p = &w.plan;
        struct step_part part;
        uint32_t from = 2 + (uint32_t)rng_below(&r, 6), tokens = 0, early = 0, query = 0, kv = 0;
        bool in_order = true;
        draw(&w, &r);
        assert_ok(model_step_order_apply(s, p, from, &q, &part, &e), e);
        for (uint32_t i = 0; i < p->n_rows; i++) {
            uint32_t row = row_behind(p, from, i);
            expect_row(p, q, row, i);
            in_order = in_order && row == i;
            if (is_late(p, row, from))
                continue;
            uint32_t n = (uint32_t)(q->cu_seqlens[i + 1] - q->cu_seqlens[i]);
            uint32_t all = n + (uint32_t)q->past_seqlens[i];
            early++;
            tokens += n;
            query = n > query ? n : query;
            kv = all > kv ? all : kv;
        }
        assert_true(in_order == (q == p));
        n_moved += !in_order;
        assert_int_equal(part.n_rows, early);
        assert_int_equal(part.n_tokens, tokens);
        assert_int_equal(part.max_query_len, query);
        assert_int_equal(part.max_kv_len, kv);
        assert_int_equal(q->n_outputs, p->n_outputs);
        for (uint32_t i = 0; i < p->n_outputs; i++) {
            const struct plan_output *a = &p->output[i], *b = &q->output[i];
            assert_int_equal(q->token[b->token], p->token[a->token]);
            assert_true((uint32_t)q->cu_seqlens[b->row] <= b->token &&
                        b->token < (uint32_t)q->cu_seqlens[b->row + 1]);
            assert_true(b->history == a->history && b->seed == a->seed);
        }
    }
    assert_true(n_moved > 100);
    model_step_order_destroy(s);
}

TEST(a_plan_beyond_the_limits_is_refused_with_both_numbers)
{
    struct step_order *s;
    static struct world w;
    struct rng r = { 6 };
    struct err e = { 0 };
    const struct step_plan *q;
    struct step_part part;
    assert_ok(model_step_order_create(&s, &limits, &e), e);
    draw(&w, &r);
    w.plan.table_cols[1] = COLS + 1;
    assert_int_equal(model_step_order_apply(s, &w.plan, 2, &q, &part, &e), ERR_LIMIT);
    assert_contains(e.message, "block_table[1] has 8 columns, expected at most 7");
    draw(&w, &r);
    w.plan.n_tokens = TOKENS + 1;
    assert_int_equal(model_step_order_apply(s, &w.plan, 2, &q, &part, &e), ERR_LIMIT);
    assert_contains(e.message, "201 tokens");
    model_step_order_destroy(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(every_token_keeps_what_is_its_own),
        RUN(a_plan_beyond_the_limits_is_refused_with_both_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
