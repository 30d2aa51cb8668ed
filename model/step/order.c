/* order.c: see step_order.h.  A stable partition of rows; tokens, slots,
 * tables and the outputs' token indices follow theirs. */
#include "model/step/order.h"

#include <stdlib.h>
#include <string.h>

struct step_order {
    struct step_plan plan;
    uint32_t max_tokens, max_rows, max_outputs, table_cols; /* what there is memory for */
    uint32_t *rows;  /* [max_rows] the plan's row at each place    */
    uint32_t *to;    /* [max_tokens] where a token of the plan went */
    uint32_t *place; /* [max_rows] where a row of the plan went     */
    int32_t *token, *token_from, *position, *cu, *past;
    int32_t *slot[KV_GROUPS], *table[KV_GROUPS];
    struct plan_output *output;
};

static void *array_of(size_t n, size_t size, enum err_code *rc, struct err *e)
{
    void *p = *rc == ERR_OK ? calloc(n + 1, size) : NULL;
    if (p == NULL && *rc == ERR_OK)
        *rc = err_nomem(e, "step order", (n + 1) * size);
    return p;
}

enum err_code model_step_order_create(struct step_order **out, const struct ops_limits *lim,
                                      struct err *e)
{
    enum err_code rc = ERR_OK;
    struct step_order *s = array_of(1, sizeof *s, &rc, e);
    if (rc)
        return rc;
    s->max_tokens = lim->max_tokens;
    s->max_rows = lim->max_rows;
    s->max_outputs = lim->max_outputs;
    s->table_cols = lim->table_cols;
    s->rows = array_of(lim->max_rows, sizeof *s->rows, &rc, e);
    s->place = array_of(lim->max_rows, sizeof *s->place, &rc, e);
    s->to = array_of(lim->max_tokens, sizeof *s->to, &rc, e);
    s->token = array_of(lim->max_tokens, sizeof *s->token, &rc, e);
    s->token_from = array_of(lim->max_tokens, sizeof *s->token_from, &rc, e);
    s->position = array_of(lim->max_tokens, sizeof *s->position, &rc, e);
    s->cu = array_of(lim->max_rows, sizeof *s->cu, &rc, e);
    s->past = array_of(lim->max_rows, sizeof *s->past, &rc, e);
    s->output = array_of(lim->max_outputs, sizeof *s->output, &rc, e);
    for (uint32_t g = 0; g < lim->n_groups; g++) {
        s->slot[g] = array_of(lim->max_tokens, sizeof(int32_t), &rc, e);
        s->table[g] = array_of((size_t)lim->max_rows * lim->table_cols, sizeof(int32_t), &rc, e);
    }
    if (rc) {
        model_step_order_destroy(s);
        return rc;
    }
    *out = s;
    return ERR_OK;
}

void model_step_order_destroy(struct step_order *s)
{
    if (s == NULL)
        return;
    for (int g = 0; g < KV_GROUPS; g++) {
        free(s->slot[g]);
        free(s->table[g]);
    }
    free(s->rows);
    free(s->place);
    free(s->to);
    free(s->token);
    free(s->token_from);
    free(s->position);
    free(s->cu);
    free(s->past);
    free(s->output);
    free(s);
}

static uint32_t length_of(const struct step_plan *p, uint32_t row)
{
    return (uint32_t)(p->cu_seqlens[row + 1] - p->cu_seqlens[row]);
}

static bool is_expanded(const struct step_plan *p, uint32_t row, uint32_t expand_from)
{
    return p->past_seqlens[row] == 0 && length_of(p, row) >= expand_from;
}

/* Fills rows and *part; whether the plan's own order is another. */
static bool sort_rows(struct step_order *s, const struct step_plan *p, uint32_t expand_from,
                      struct step_part *part)
{
    uint32_t n = 0;
    bool moved = false;
    *part = (struct step_part){ 0 };
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t row = 0; row < p->n_rows; row++) {
            if (is_expanded(p, row, expand_from) != (pass == 1))
                continue;
            moved = moved || row != n;
            s->rows[n++] = row;
            if (pass == 1)
                continue;
            uint32_t len = length_of(p, row), kv = (uint32_t)p->past_seqlens[row] + len;
            part->n_rows++;
            part->n_tokens += len;
            part->max_query_len = len > part->max_query_len ? len : part->max_query_len;
            part->max_kv_len = kv > part->max_kv_len ? kv : part->max_kv_len;
        }
    return moved;
}

static void copy_row(struct step_order *s, const struct step_plan *p, uint32_t i, uint32_t at)
{
    uint32_t row = s->rows[i], from = (uint32_t)p->cu_seqlens[row], n = length_of(p, row);
    size_t bytes = n * sizeof(int32_t);
    s->place[row] = i;
    for (uint32_t t = 0; t < n; t++)
        s->to[from + t] = at + t;
    s->cu[i + 1] = (int32_t)(at + n);
    s->past[i] = p->past_seqlens[row];
    memcpy(s->token + at, p->token + from, bytes);
    memcpy(s->position + at, p->position + from, bytes);
    if (p->token_from != NULL)
        memcpy(s->token_from + at, p->token_from + from, bytes);
    for (uint32_t g = 0; g < p->n_groups; g++) {
        size_t cols = p->table_cols[g];
        memcpy(s->slot[g] + at, p->slot_mapping[g] + from, bytes);
        memcpy(s->table[g] + i * cols, p->block_table[g] + row * cols, cols * sizeof(int32_t));
    }
}

static enum err_code check_room(const struct step_order *s, const struct step_plan *p,
                                struct err *e)
{
    if (p->n_tokens > s->max_tokens || p->n_rows > s->max_rows || p->n_outputs > s->max_outputs)
        return err_set(
            e, ERR_LIMIT, "step plan: %u tokens, %u rows, %u outputs, expected at most %u, %u, %u",
            p->n_tokens, p->n_rows, p->n_outputs, s->max_tokens, s->max_rows, s->max_outputs);
    for (uint32_t g = 0; g < p->n_groups; g++)
        if (s->table[g] == NULL || p->table_cols[g] > s->table_cols)
            return err_set(e, ERR_LIMIT,
                           "step plan: block_table[%u] has %u columns, expected at most %u", g,
                           p->table_cols[g], s->table[g] != NULL ? s->table_cols : 0);
    return ERR_OK;
}

static void point(struct step_order *s, const struct step_plan *p)
{
    struct step_plan *q = &s->plan;
    *q = *p;
    q->token = s->token;
    q->token_from = p->token_from != NULL ? s->token_from : NULL;
    q->position = s->position;
    q->cu_seqlens = s->cu;
    q->past_seqlens = s->past;
    q->output = s->output;
    for (uint32_t g = 0; g < p->n_groups; g++) {
        q->slot_mapping[g] = s->slot[g];
        q->block_table[g] = s->table[g];
    }
}

enum err_code model_step_order_apply(struct step_order *s, const struct step_plan *p,
                                     uint32_t expand_from, const struct step_plan **out,
                                     struct step_part *absorbed, struct err *e)
{
    enum err_code rc = check_room(s, p, e);
    if (rc)
        return rc;
    *out = p;
    if (!sort_rows(s, p, expand_from, absorbed))
        return ERR_OK;
    s->cu[0] = 0;
    for (uint32_t i = 0; i < p->n_rows; i++)
        copy_row(s, p, i, (uint32_t)s->cu[i]);
    for (uint32_t i = 0; i < p->n_outputs; i++) {
        s->output[i] = p->output[i];
        s->output[i].token = s->to[p->output[i].token];
        s->output[i].row = s->place[p->output[i].row];
    }
    point(s, p);
    *out = &s->plan;
    return ERR_OK;
}
