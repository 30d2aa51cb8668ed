/* plan.h: the arrays of a step plan, allocated once.
 *
 * Owns every array that a struct step_plan points to, each one allocation with
 * the capacity of the largest step.  Engine thread.  Promises: no allocation
 * after create; block tables are as wide as the step needs, not the capacity. */
#ifndef SCHEDULER_PLAN_H
#define SCHEDULER_PLAN_H

#include "kvpool/kvpool.h"
#include "proto/plan/step_plan.h"

struct plan_buffer {
    struct step_plan view; /* what the reader gets */
    uint32_t max_tokens, max_rows, max_outputs, max_cols, block_tokens, block_shift;
    int32_t *token, *token_from, *position, *cu_seqlens, *past_seqlens;
    int32_t *slot_mapping[KV_GROUPS], *block_table[KV_GROUPS];
    struct plan_output *output;
};

MUST_USE enum err_code sched_plan_init(struct plan_buffer *b, const struct kv_layout *lay,
                                       uint32_t max_tokens, uint32_t max_rows, uint32_t max_outputs,
                                       uint32_t max_model_len, struct err *e);
void sched_plan_fini(struct plan_buffer *b);

/* Begin step `step`; rows and outputs are added in order. */
void sched_plan_begin(struct plan_buffer *b, uint64_t step);
/* A row of tokens[0..n) that follow `past` computed ones.  from >= 0: the last
 * one is what that output of the step before samples.  Returns its index. */
uint32_t sched_plan_add_row(struct plan_buffer *b, const int32_t *tokens, uint32_t n, uint32_t past,
                            int32_t from);
/* The next output, to be filled by the caller; ascending by token. */
struct plan_output *sched_plan_add_output(struct plan_buffer *b);
/* Slots and tables from the pool, whose sequence sid[r] is row r with its blocks
 * reserved; takes the pool's copies.  Borrowed until the next sched_plan_begin. */
const struct step_plan *sched_plan_end(struct plan_buffer *b, struct kvpool *pool,
                                       const seq_id *sid);

#endif
