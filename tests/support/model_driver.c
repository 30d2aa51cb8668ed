/* model_driver.c: see model_driver.h. */
#include "support/model_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/plan/kv_slot.h"

struct seq {
    int32_t *token; /* [max_model_len + 1] */
    uint32_t n, computed;
    blk_id *table[KV_GROUPS]; /* [cols] */
    uint32_t shared;          /* leading columns that belong to another sequence */
};

struct driver {
    struct model *m;
    const struct model_info *info;
    uint32_t cols, block, n_blocks, max_tokens, max_rows, max_outputs;
    struct seq seq[DRIVER_SEQS];
    blk_id *free_list;
    uint32_t n_free;
    uint64_t step;
    struct step_plan plan;
    int32_t *token, *position, *cu, *past;
    int32_t *slot[KV_GROUPS], *table[KV_GROUPS];
    struct plan_output *output;
};

static const struct sample_params greedy = { .top_p = 1,
                                             .repetition_penalty = 1,
                                             .n_logprobs = -1 };

static void *must(void *p)
{
    if (p == NULL) {
        fprintf(stderr, "model_driver: out of memory\n");
        exit(2);
    }
    return p;
}

static void make_arrays(struct driver *d)
{
    uint32_t groups = d->info->layout.n_groups;
    d->token = must(calloc(d->max_tokens, 4));
    d->position = must(calloc(d->max_tokens, 4));
    d->cu = must(calloc(d->max_rows + 1, 4));
    d->past = must(calloc(d->max_rows, 4));
    d->output = must(calloc(d->max_outputs, sizeof *d->output));
    for (uint32_t g = 0; g < groups; g++) {
        d->slot[g] = must(calloc(d->max_tokens, 4));
        d->table[g] = must(calloc((size_t)d->max_rows * d->cols, 4));
    }
    for (int s = 0; s < DRIVER_SEQS; s++) {
        d->seq[s].token = must(calloc(d->info->max_model_len + 1, 4));
        for (uint32_t g = 0; g < groups; g++) {
            d->seq[s].table[g] = must(calloc(d->cols, sizeof(blk_id)));
            memset(d->seq[s].table[g], -1, d->cols * sizeof(blk_id));
        }
    }
    d->free_list = must(calloc(d->n_blocks, sizeof *d->free_list));
    for (uint32_t b = 0; b < d->n_blocks; b++)
        d->free_list[d->n_free++] = (blk_id)(d->n_blocks - 1 - b);
}

struct driver *driver_open(const struct driver_options *o, struct err *e)
{
    struct driver *d = must(calloc(1, sizeof *d));
    struct model_options mo = { .path = o->path,
                                .dtype = o->dtype,
                                .device = o->device ? o->device : MODEL_DEVICE_CPU,
                                .block_tokens = o->block_tokens ? o->block_tokens : 16,
                                .max_model_len = o->max_model_len,
                                .n_threads = o->n_threads };
    if (model_open(&d->m, &mo, e) != ERR_OK) {
        free(d);
        return NULL;
    }
    d->info = model_describe(d->m);
    d->block = mo.block_tokens;
    d->cols = (d->info->max_model_len + d->block - 1) / d->block;
    d->max_tokens = o->max_tokens;
    d->max_rows = o->max_rows;
    d->max_outputs = o->max_outputs;
    d->n_blocks = o->n_blocks ? o->n_blocks : d->cols * DRIVER_SEQS * d->info->layout.n_groups;
    struct model_limits lim = { .n_blocks = d->n_blocks,
                                .max_tokens = o->max_tokens,
                                .max_rows = o->max_rows,
                                .max_outputs = o->max_outputs,
                                .eager = o->eager,
                                .expand_from = o->expand_from };
    if (model_start(d->m, &lim, e) != ERR_OK) {
        model_close(d->m);
        free(d);
        return NULL;
    }
    make_arrays(d);
    return d;
}

struct driver *driver_open_or_exit(const struct driver_options *o)
{
    struct err e;
    struct driver *d = driver_open(o, &e);
    if (d != NULL)
        return d;
    fprintf(stderr, "%s\n", e.message);
    exit(strncmp(e.message, "device cuda: ", 13) == 0 ? 77 : 2);
}

void driver_close(struct driver *d)
{
    if (d == NULL)
        return;
    for (uint32_t g = 0; g < KV_GROUPS; g++) {
        free(d->slot[g]);
        free(d->table[g]);
        for (int s = 0; s < DRIVER_SEQS; s++)
            free(d->seq[s].table[g]);
    }
    for (int s = 0; s < DRIVER_SEQS; s++)
        free(d->seq[s].token);
    model_close(d->m);
    free(d->token);
    free(d->position);
    free(d->cu);
    free(d->past);
    free(d->output);
    free(d->free_list);
    free(d);
}

struct model *driver_model(struct driver *d)
{
    return d->m;
}

uint32_t driver_blocks(const struct driver *d)
{
    return d->n_blocks;
}

const struct step_plan *driver_plan(const struct driver *d)
{
    return &d->plan;
}

void driver_reset(struct driver *d, uint32_t s)
{
    struct seq *q = &d->seq[s];
    for (uint32_t g = 0; g < d->info->layout.n_groups; g++)
        for (uint32_t i = 0; i < d->cols; i++) {
            if (q->table[g][i] != BLK_NONE && i >= q->shared)
                d->free_list[d->n_free++] = q->table[g][i];
            q->table[g][i] = BLK_NONE;
        }
    q->n = q->computed = q->shared = 0;
}

uint32_t driver_share(struct driver *d, uint32_t s, uint32_t from, uint32_t n_blocks)
{
    struct seq *q = &d->seq[s];
    const struct seq *p = &d->seq[from];
    driver_reset(d, s);
    for (uint32_t g = 0; g < d->info->layout.n_groups; g++)
        memcpy(q->table[g], p->table[g], n_blocks * sizeof(blk_id));
    memcpy(q->token, p->token, (size_t)n_blocks * d->block * 4);
    q->shared = n_blocks;
    q->n = q->computed = n_blocks * d->block;
    return q->n;
}

void driver_append(struct driver *d, uint32_t s, const int32_t *token, uint32_t n)
{
    struct seq *q = &d->seq[s];
    if (q->n + n > d->info->max_model_len + 1) {
        fprintf(stderr, "model_driver: sequence %u passes max_model_len\n", s);
        exit(2);
    }
    memcpy(q->token + q->n, token, n * sizeof *token);
    q->n += n;
}

uint32_t driver_pending(const struct driver *d, uint32_t s)
{
    return d->seq[s].n - d->seq[s].computed;
}

uint32_t driver_length(const struct driver *d, uint32_t s)
{
    return d->seq[s].n;
}

const int32_t *driver_tokens(const struct driver *d, uint32_t s)
{
    return d->seq[s].token;
}

static blk_id block_of(struct driver *d, struct seq *q, uint32_t g, uint32_t col)
{
    if (q->table[g][col] == BLK_NONE) {
        if (d->n_free == 0) {
            fprintf(stderr, "model_driver: out of blocks\n");
            exit(2);
        }
        q->table[g][col] = d->free_list[--d->n_free];
    }
    return q->table[g][col];
}

/* The row's table as the operator may see it: unmapped below the window. */
static void fill_table(struct driver *d, const struct seq *q, uint32_t g, uint32_t row)
{
    uint32_t window = d->info->layout.group[g].window, first = 0;
    int32_t *to = d->table[g] + (size_t)row * d->cols;
    if (window > 0 && q->computed + 1 > window)
        first = (q->computed + 1 - window) / d->block;
    for (uint32_t i = 0; i < d->cols; i++)
        to[i] = i < first ? BLK_NONE : q->table[g][i];
}

static void add_row(struct driver *d, const struct driver_row *r, uint32_t row)
{
    struct step_plan *p = &d->plan;
    struct seq *q = &d->seq[r->seq];
    d->past[row] = (int32_t)q->computed;
    for (uint32_t i = 0; i < r->n; i++) {
        uint32_t at = p->n_tokens + i, pos = q->computed + i;
        d->token[at] = q->token[pos];
        d->position[at] = (int32_t)pos;
        for (uint32_t g = 0; g < p->n_groups; g++)
            d->slot[g][at] =
                (int32_t)kv_slot(block_of(d, q, g, pos / d->block), pos, kv_block_shift(d->block));
        if (r->all || pos + 1 == q->n)
            d->output[p->n_outputs++] =
                (struct plan_output){ .row = row,
                                      .token = at,
                                      .target = -1,
                                      .params = r->params ? r->params : &greedy,
                                      .seed = r->seed,
                                      .history = q->token,
                                      .n_history = pos + 1,
                                      .n_prompt = r->n_prompt ? r->n_prompt : pos + 1 };
    }
    for (uint32_t g = 0; g < p->n_groups; g++)
        fill_table(d, q, g, row);
    p->n_tokens += r->n;
    d->cu[row + 1] = (int32_t)p->n_tokens;
    if (r->n > p->max_query_len)
        p->max_query_len = r->n;
    if (q->computed + r->n > p->max_kv_len)
        p->max_kv_len = q->computed + r->n;
}

enum err_code driver_step(struct driver *d, const struct driver_row *row, uint32_t n_rows,
                          const struct sampled **out, uint32_t *n_out, struct err *e)
{
    struct step_plan *p = &d->plan;
    *p = (struct step_plan){ .step = ++d->step,
                             .n_rows = n_rows,
                             .n_groups = d->info->layout.n_groups,
                             .token = d->token,
                             .position = d->position,
                             .cu_seqlens = d->cu,
                             .past_seqlens = d->past,
                             .output = d->output };
    for (uint32_t g = 0; g < p->n_groups; g++) {
        p->slot_mapping[g] = d->slot[g];
        p->block_table[g] = d->table[g];
        p->table_cols[g] = d->cols;
    }
    for (uint32_t i = 0; i < n_rows; i++)
        add_row(d, &row[i], i);
    enum err_code rc = step_plan_check(p, &d->info->layout, d->n_blocks, e);
    if (rc)
        return rc;
    rc = model_forward(d->m, p, e);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < n_rows; i++)
        d->seq[row[i].seq].computed += row[i].n;
    *n_out = p->n_outputs;
    return model_collect(d->m, p->step, out, e);
}

enum err_code driver_greedy(struct driver *d, uint32_t s, uint32_t n, uint32_t chunk, int32_t *out,
                            struct err *e)
{
    uint32_t got = 0;
    while (got < n) {
        uint32_t pending = driver_pending(d, s);
        struct driver_row row = { .seq = s, .n = chunk && chunk < pending ? chunk : pending };
        const struct sampled *sampled;
        uint32_t n_out;
        enum err_code rc = driver_step(d, &row, 1, &sampled, &n_out, e);
        if (rc)
            return rc;
        if (n_out == 0)
            continue;
        if (sampled[0].failed)
            return err_set(e, ERR_GPU, "logits are not finite");
        out[got++] = sampled[0].token;
        driver_append(d, s, &sampled[0].token, 1);
    }
    return ERR_OK;
}
