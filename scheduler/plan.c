/* plan.c: the arrays of a step plan, allocated once.
 *
 * Owns what plan.h says.  Engine thread.  A row's slots and table are copied
 * from the pool when the step is closed, after its last reservation. */
#include "scheduler/plan.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/plan/kv_slot.h"

/* One array of n elements; counts what was asked for. */
static void *array(uint64_t n, size_t size, uint64_t *bytes)
{
    *bytes += n * size;
    if (n > SIZE_MAX / size)
        return NULL;
    return malloc((size_t)(n * size + 1));
}

enum err_code sched_plan_init(struct plan_buffer *b, const struct kv_layout *lay,
                              uint32_t max_tokens, uint32_t max_rows, uint32_t max_outputs,
                              uint32_t max_model_len, struct err *e)
{
    uint64_t bytes = 0;
    *b = (struct plan_buffer){
        .max_tokens = max_tokens,
        .max_rows = max_rows,
        .max_outputs = max_outputs,
        .block_tokens = lay->block_tokens,
        .max_cols =
            (uint32_t)(((uint64_t)max_model_len + lay->block_tokens - 1) / lay->block_tokens),
    };
    b->block_shift = (uint32_t)kv_block_shift(lay->block_tokens);
    b->view.n_groups = lay->n_groups;
    b->token = array(max_tokens, sizeof(int32_t), &bytes);
    b->token_from = array(max_tokens, sizeof(int32_t), &bytes);
    b->position = array(max_tokens, sizeof(int32_t), &bytes);
    b->cu_seqlens = array((uint64_t)max_rows + 1, sizeof(int32_t), &bytes);
    b->past_seqlens = array(max_rows, sizeof(int32_t), &bytes);
    b->output = array(max_outputs, sizeof *b->output, &bytes);
    bool ok =
        b->token && b->token_from && b->position && b->cu_seqlens && b->past_seqlens && b->output;
    for (uint32_t g = 0; g < lay->n_groups; g++) {
        b->slot_mapping[g] = array(max_tokens, sizeof(int32_t), &bytes);
        b->block_table[g] = array((uint64_t)max_rows * b->max_cols, sizeof(blk_id), &bytes);
        ok = ok && b->slot_mapping[g] && b->block_table[g];
    }
    if (!ok) {
        sched_plan_fini(b);
        return err_nomem(e, "step plan buffers", bytes);
    }
    b->view.token = b->token;
    b->view.position = b->position;
    b->view.cu_seqlens = b->cu_seqlens;
    b->view.past_seqlens = b->past_seqlens;
    b->view.output = b->output;
    for (uint32_t g = 0; g < lay->n_groups; g++) {
        b->view.slot_mapping[g] = b->slot_mapping[g];
        b->view.block_table[g] = b->block_table[g];
    }
    return ERR_OK;
}

void sched_plan_fini(struct plan_buffer *b)
{
    free(b->token);
    free(b->token_from);
    free(b->position);
    free(b->cu_seqlens);
    free(b->past_seqlens);
    free(b->output);
    for (uint32_t g = 0; g < KV_GROUPS; g++) {
        free(b->slot_mapping[g]);
        free(b->block_table[g]);
    }
    *b = (struct plan_buffer){ 0 };
}

void sched_plan_begin(struct plan_buffer *b, uint64_t step)
{
    struct step_plan *v = &b->view;
    v->step = step;
    v->n_tokens = v->n_rows = v->n_outputs = v->n_copies = 0;
    v->max_query_len = v->max_kv_len = 0;
    v->copy = NULL;
    v->token_from = NULL;
    b->cu_seqlens[0] = 0;
}

uint32_t sched_plan_add_row(struct plan_buffer *b, const int32_t *tokens, uint32_t n, uint32_t past,
                            int32_t from)
{
    struct step_plan *v = &b->view;
    assert(n > 0 && v->n_rows < b->max_rows && n <= b->max_tokens - v->n_tokens);
    uint32_t r = v->n_rows++, t = v->n_tokens;
    memcpy(b->token + t, tokens, (size_t)n * sizeof *tokens);
    for (uint32_t i = 0; i < n; i++)
        b->position[t + i] = (int32_t)(past + i);
    memset(b->token_from + t, 0xff, (size_t)n * sizeof *b->token_from);
    if (from >= 0) {
        b->token[t + n - 1] = -1;
        b->token_from[t + n - 1] = from;
        v->token_from = b->token_from;
    }
    b->past_seqlens[r] = (int32_t)past;
    v->n_tokens = t + n;
    b->cu_seqlens[r + 1] = (int32_t)v->n_tokens;
    if (n > v->max_query_len)
        v->max_query_len = n;
    if (past + n > v->max_kv_len)
        v->max_kv_len = past + n;
    return r;
}

struct plan_output *sched_plan_add_output(struct plan_buffer *b)
{
    assert(b->view.n_outputs < b->max_outputs);
    struct plan_output *o = &b->output[b->view.n_outputs++];
    *o = (struct plan_output){ .row = b->view.n_rows - 1, .target = -1 };
    return o;
}

/* Group g's table rows, `cols` wide, and its slots. */
static void fill_group(struct plan_buffer *b, const struct kvpool *pool, const seq_id *sid,
                       uint32_t g, uint32_t cols)
{
    const struct step_plan *v = &b->view;
    const uint32_t shift = b->block_shift;
    int32_t *slot = b->slot_mapping[g];
    for (uint32_t r = 0; r < v->n_rows; r++) {
        uint32_t n;
        const blk_id *from = kvpool_table(pool, sid[r], g, &n);
        blk_id *row = b->block_table[g] + (size_t)r * cols;
        if (n > cols)
            n = cols;
        memcpy(row, from, n * sizeof *row);
        for (uint32_t c = n; c < cols; c++)
            row[c] = BLK_NONE;
        uint32_t pos = (uint32_t)b->past_seqlens[r];
        for (int32_t t = b->cu_seqlens[r]; t < b->cu_seqlens[r + 1]; t++, pos++) {
            blk_id blk = row[pos >> shift];
            slot[t] = blk < 0 ? -1 : (int32_t)kv_slot(blk, pos, (int32_t)shift);
        }
    }
}

const struct step_plan *sched_plan_end(struct plan_buffer *b, struct kvpool *pool,
                                       const seq_id *sid)
{
    struct step_plan *v = &b->view;
    uint32_t cols = (v->max_kv_len + b->block_tokens - 1) >> b->block_shift;
    for (uint32_t g = 0; g < v->n_groups; g++) {
        v->table_cols[g] = cols;
        fill_group(b, pool, sid, g, cols);
    }
    v->copy = kvpool_take_copies(pool, &v->n_copies);
    return v;
}
