/* step_plan_test.c: a good plan passes; each way to break one is named. */
#include "proto/plan/step_plan.h"
#include "support/test.h"

/* Two groups (full; window 32), 16 tokens a block, 8 blocks.  Row 0 decodes
 * position 34, row 1 prefills 0..2, row 2 is padding. */
struct fixture {
    struct kv_layout lay;
    struct step_plan p;
    int32_t token[4], position[4], cu[4], past[3], slot[2][4], table[2][3 * 3];
    struct plan_copy copy[2];
    struct plan_output out[2];
    struct sample_params params;
    int32_t history[35], history1[3];
};

static void init(struct fixture *f)
{
    struct kv_layer_desc d[2] = {
        { .kind = KV_FULL, .kv_heads = 1, .k_width = 8, .v_width = 8 },
        { .kind = KV_WINDOW, .window = 32, .kv_heads = 1, .k_width = 8, .v_width = 8 },
    };
    struct err e;
    memset(f, 0, sizeof *f);
    assert_ok(kv_layout_init(&f->lay, d, 2, 16, KV_F32, KV_F32, &e), e);
    static const int32_t token[4] = { 9, 1, 2, 3 }, position[4] = { 34, 0, 1, 2 };
    static const int32_t cu[4] = { 0, 1, 4, 4 }, past[3] = { 34, 0, 0 };
    static const int32_t slots[2][4] = { { 2 * 16 + 2, 48, 49, 50 }, { 5 * 16 + 2, 96, 97, 98 } };
    static const int32_t table[2][9] = { { 0, 1, 2, 3, -1, -1, -1, -1, -1 },
                                         { 4, 7, 5, 6, -1, -1, -1, -1, -1 } };
    memcpy(f->token, token, sizeof token);
    memcpy(f->position, position, sizeof position);
    memcpy(f->cu, cu, sizeof cu);
    memcpy(f->past, past, sizeof past);
    memcpy(f->slot, slots, sizeof slots);
    memcpy(f->table, table, sizeof table);
    f->history[34] = 9;
    memcpy(f->history1, token + 1, sizeof f->history1);
    f->copy[0] = (struct plan_copy){ .from = 0, .to = 2 };
    f->copy[1] = (struct plan_copy){ .from = 0, .to = 5 };
    f->out[0] = (struct plan_output){ .row = 0,
                                      .token = 0,
                                      .target = -1,
                                      .params = &f->params,
                                      .history = f->history,
                                      .n_history = 35,
                                      .n_prompt = 30 };
    f->out[1] = (struct plan_output){ .row = 1,
                                      .token = 3,
                                      .target = -1,
                                      .params = &f->params,
                                      .history = f->history1,
                                      .n_history = 3,
                                      .n_prompt = 3 };
    f->p = (struct step_plan){ .step = 1,
                               .n_tokens = 4,
                               .n_rows = 3,
                               .n_groups = 2,
                               .max_query_len = 3,
                               .max_kv_len = 35,
                               .token = f->token,
                               .position = f->position,
                               .cu_seqlens = f->cu,
                               .past_seqlens = f->past,
                               .slot_mapping = { f->slot[0], f->slot[1] },
                               .block_table = { f->table[0], f->table[1] },
                               .table_cols = { 3, 3 },
                               .n_copies = 2,
                               .copy = f->copy,
                               .n_outputs = 2,
                               .output = f->out };
}

TEST(good_plan_passes)
{
    struct fixture f;
    struct err e;
    init(&f);
    assert_ok(step_plan_check(&f.p, &f.lay, 8, &e), e);
    f.table[1][0] = -1; /* below row 0's window: position 34 sees 3..34 */
    f.past[0] = 34;
    assert_int_equal(step_plan_check(&f.p, &f.lay, 8, &e), ERR_INVALID);
    f.lay.group[1].window = 16; /* now it sees 19..34 */
    assert_ok(step_plan_check(&f.p, &f.lay, 8, &e), e);
    init(&f);
    f.slot[0][0] = f.slot[1][0] = -1; /* a suppressed store */
    assert_ok(step_plan_check(&f.p, &f.lay, 8, &e), e);
}

TEST(empty_plan_passes)
{
    struct fixture f;
    struct err e;
    init(&f);
    f.p.n_tokens = f.p.n_rows = f.p.n_outputs = f.p.n_copies = 0;
    assert_ok(step_plan_check(&f.p, &f.lay, 8, &e), e);
}

#define BROKEN(change, text)                                                                       \
    do {                                                                                           \
        struct fixture f;                                                                          \
        struct err e_;                                                                             \
        init(&f);                                                                                  \
        change;                                                                                    \
        assert_int_equal(step_plan_check(&f.p, &f.lay, 8, &e_), ERR_INVALID);                      \
        assert_contains(e_.message, text);                                                         \
    } while (0)

TEST(rows_are_named)
{
    BROKEN(f.p.n_groups = 1, "n_groups = 1");
    BROKEN(f.cu[0] = 1, "cu_seqlens[0] = 1");
    BROKEN(f.cu[1] = -1, "cu_seqlens[1] = -1");
    BROKEN(f.cu[2] = 5, "cu_seqlens[2] = 5");
    BROKEN((f.cu[2] = 3, f.cu[3] = 3, f.p.n_outputs = 1), "cu_seqlens[3] = 3");
    BROKEN(f.past[1] = -1, "past_seqlens[1] = -1");
    BROKEN(f.p.max_query_len = 2, "max_query_len = 2");
    BROKEN(f.p.max_kv_len = 34, "max_kv_len = 34");
    BROKEN(f.token[2] = -7, "token[2] = -7");
    BROKEN(f.position[3] = 3, "position[3] = 3: expected 2");
}

TEST(a_token_may_come_from_the_step_before)
{
    static const int32_t last[] = { 0, -1, -1, 2 }, middle[] = { -1, -1, 0, -1 };
    struct fixture good;
    struct err e;
    init(&good);
    good.p.token_from = last;
    good.token[0] = good.token[3] = good.history[34] = good.history1[2] = -1;
    assert_ok(step_plan_check(&good.p, &good.lay, 8, &e), e);
    BROKEN((f.p.token_from = last, f.token[0] = 9, f.token[3] = -1), "token[0] = 9: expected -1");
    BROKEN((f.p.token_from = middle, f.token[2] = -1), "token_from[2] = 0");
}

TEST(slots_and_tables_are_named)
{
    BROKEN(f.slot[1][2] = 128, "slot_mapping[1][2] = 128: expected -1..127");
    BROKEN(f.slot[1][2] = -2, "slot_mapping[1][2] = -2");
    BROKEN(f.slot[0][1] = 49, "slot_mapping[0][1] = 49: position 0 is in block_table[0][1][0] = 3");
    BROKEN(f.table[0][3] = 8, "block_table[0][1][0] = 8");
    BROKEN(f.table[1][8] = -2, "block_table[1][2][2] = -2");
    BROKEN(f.table[0][2] = -1, "position 34 is in block_table[0][0][2] = -1");
    BROKEN(f.table[0][0] = -1, "block_table[0][0][0] is not mapped");
    BROKEN((f.table[1][3] = 3, f.slot[1][1] = 48, f.slot[1][2] = 49, f.slot[1][3] = 50),
           "slot_mapping[1][1] = 48: stored twice");
    BROKEN(f.p.table_cols[0] = 2, "slot_mapping[0][0]");
}

TEST(copies_and_outputs_are_named)
{
    BROKEN(f.copy[1].to = 8, "copy[1] = 0 to 8");
    BROKEN(f.copy[1].from = -1, "copy[1] = -1");
    BROKEN(f.copy[1].to = 2, "copy[1].to = 2: copied to twice");
    BROKEN(f.copy[1].from = 2, "copy[1].from = 2: is the target of copy[0]");
    BROKEN(f.out[0].row = 3, "output[0].row = 3");
    BROKEN(f.out[1].token = 0, "output[1].token = 0: row 1 has tokens 1..3");
    BROKEN((f.out[0] = f.out[1], f.out[1].token = 2), "output[1].token = 2: below");
    BROKEN(f.out[0].target = -2, "output[0].target = -2");
    BROKEN(f.out[0].params = NULL, "output[0].params is missing");
    BROKEN(f.out[0].n_history = 34, "output[0].n_history = 34");
    BROKEN(f.history[34] = 8, "output[0].history ends in 8");
    BROKEN(f.out[1].n_prompt = 4, "output[1].n_prompt = 4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(good_plan_passes),
        RUN(empty_plan_passes),
        RUN(rows_are_named),
        RUN(slots_and_tables_are_named),
        RUN(copies_and_outputs_are_named),
        RUN(a_token_may_come_from_the_step_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
