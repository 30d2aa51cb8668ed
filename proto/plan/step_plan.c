/* step_plan.c: the contract of a step plan, checked.
 *
 * Reads the plan, allocates one scratch set for the call.  Any thread that
 * holds the plan.  Promises that a plan it passes keeps every store inside the
 * pool, every stored slot private, and every admitted position mapped. */
#include "proto/plan/step_plan.h"

#include <stdlib.h>

#include "proto/plan/kv_slot.h"

/* Slots stored so far: open addressing, value + 1, 0 empty. */
struct slot_set {
    uint64_t *cell;
    uint64_t mask;
};

static bool set_add(struct slot_set *s, uint64_t value)
{
    uint64_t i = (value + 1) * 0x9E3779B97F4A7C15u;
    for (i = (i >> 20) & s->mask; s->cell[i] != 0; i = (i + 1) & s->mask)
        if (s->cell[i] == value + 1)
            return false;
    s->cell[i] = value + 1;
    return true;
}

static enum err_code set_init(struct slot_set *s, uint64_t n, struct err *e)
{
    uint64_t size = 16;
    while (size < 2 * n)
        size *= 2;
    s->cell = calloc(size, sizeof *s->cell);
    s->mask = size - 1;
    return s->cell != NULL ? ERR_OK : err_nomem(e, "plan check", size * sizeof *s->cell);
}

static enum err_code check_rows(const struct step_plan *p, struct err *e)
{
    if (p->cu_seqlens[0] != 0)
        return err_set(e, ERR_INVALID, "cu_seqlens[0] = %d: expected 0", p->cu_seqlens[0]);
    for (uint32_t r = 0; r < p->n_rows; r++) {
        int32_t from = p->cu_seqlens[r], to = p->cu_seqlens[r + 1];
        if (to < from || (uint32_t)to > p->n_tokens)
            return err_set(e, ERR_INVALID, "cu_seqlens[%u] = %d: expected %d..%u", r + 1, to, from,
                           p->n_tokens);
        if (p->past_seqlens[r] < 0)
            return err_set(e, ERR_INVALID, "past_seqlens[%u] = %d: expected >= 0", r,
                           p->past_seqlens[r]);
        if ((uint32_t)(to - from) > p->max_query_len)
            return err_set(e, ERR_INVALID, "max_query_len = %u: row %u has %d new tokens",
                           p->max_query_len, r, to - from);
        uint64_t kv = (uint64_t)p->past_seqlens[r] + (uint64_t)(to - from);
        if (to > from && kv > p->max_kv_len)
            return err_set(e, ERR_INVALID, "max_kv_len = %u: row %u has %llu", p->max_kv_len, r,
                           (unsigned long long)kv);
    }
    if ((uint32_t)p->cu_seqlens[p->n_rows] != p->n_tokens)
        return err_set(e, ERR_INVALID, "cu_seqlens[%u] = %d: expected n_tokens = %u", p->n_rows,
                       p->cu_seqlens[p->n_rows], p->n_tokens);
    return ERR_OK;
}

static enum err_code check_tokens(const struct step_plan *p, struct err *e)
{
    for (uint32_t r = 0; r < p->n_rows; r++)
        for (int32_t t = p->cu_seqlens[r]; t < p->cu_seqlens[r + 1]; t++) {
            int32_t want = p->past_seqlens[r] + (t - p->cu_seqlens[r]);
            int32_t from = p->token_from != NULL ? p->token_from[t] : -1;
            if (from < -1 || (from >= 0 && t + 1 != p->cu_seqlens[r + 1]))
                return err_set(e, ERR_INVALID,
                               "token_from[%d] = %d: expected -1, or an output for the row's last "
                               "token",
                               t, from);
            if (from >= 0 ? p->token[t] != -1 : p->token[t] < 0)
                return err_set(e, ERR_INVALID, "token[%d] = %d: expected %s", t, p->token[t],
                               from >= 0 ? "-1 beside token_from" : ">= 0");
            if (p->position[t] != want)
                return err_set(e, ERR_INVALID, "position[%d] = %d: expected %d (row %u)", t,
                               p->position[t], want, r);
        }
    return ERR_OK;
}

/* Row r of group g stores something: everything its queries admit is mapped. */
static enum err_code check_admitted(const struct step_plan *p, const struct kv_layout *lay,
                                    uint32_t g, uint32_t r, struct err *e)
{
    int64_t b = lay->block_tokens, w = lay->group[g].window, past = p->past_seqlens[r];
    int64_t end = past + p->cu_seqlens[r + 1] - p->cu_seqlens[r];
    int64_t low = w > 0 && past - w + 1 > 0 ? past - w + 1 : 0;
    const int32_t *row = p->block_table[g] + (size_t)r * p->table_cols[g];
    for (int64_t i = low / b; i <= (end - 1) / b; i++)
        if (i >= p->table_cols[g] || row[i] < 0)
            return err_set(e, ERR_INVALID,
                           "block_table[%u][%u][%lld] is not mapped: positions %lld..%lld are read",
                           g, r, (long long)i, (long long)low, (long long)end - 1);
    return ERR_OK;
}

static enum err_code check_slot(const struct step_plan *p, const struct kv_layout *lay, uint32_t g,
                                uint32_t r, int32_t t, struct slot_set *seen, struct err *e)
{
    int32_t b = (int32_t)lay->block_tokens, slot = p->slot_mapping[g][t], pos = p->position[t];
    const int32_t *row = p->block_table[g] + (size_t)r * p->table_cols[g];
    int32_t entry = (uint32_t)(pos / b) < p->table_cols[g] ? row[pos / b] : -1;
    if (entry < 0 || kv_slot(entry, pos, kv_block_shift(lay->block_tokens)) != slot)
        return err_set(e, ERR_INVALID,
                       "slot_mapping[%u][%d] = %d: position %d is in block_table[%u][%u][%d] = %d",
                       g, t, slot, pos, g, r, pos / b, entry);
    if (!set_add(seen, (uint64_t)slot))
        return err_set(e, ERR_INVALID, "slot_mapping[%u][%d] = %d: stored twice in this step", g, t,
                       slot);
    return ERR_OK;
}

static enum err_code check_group(const struct step_plan *p, const struct kv_layout *lay,
                                 uint32_t n_blocks, uint32_t g, struct slot_set *seen,
                                 struct err *e)
{
    enum err_code rc = ERR_OK;
    for (uint32_t r = 0; r < p->n_rows; r++) {
        const int32_t *row = p->block_table[g] + (size_t)r * p->table_cols[g];
        for (uint32_t c = 0; c < p->table_cols[g]; c++)
            if (row[c] < -1 || (row[c] >= 0 && (uint32_t)row[c] >= n_blocks))
                return err_set(e, ERR_INVALID, "block_table[%u][%u][%u] = %d: expected -1..%u", g,
                               r, c, row[c], n_blocks - 1);
        bool stores = false;
        for (int32_t t = p->cu_seqlens[r]; rc == ERR_OK && t < p->cu_seqlens[r + 1]; t++) {
            int32_t slot = p->slot_mapping[g][t];
            if (slot < -1 || slot >= (int64_t)n_blocks * lay->block_tokens)
                return err_set(e, ERR_INVALID, "slot_mapping[%u][%d] = %d: expected -1..%lld", g, t,
                               slot, (long long)n_blocks * lay->block_tokens - 1);
            if (slot >= 0)
                rc = check_slot(p, lay, g, r, t, seen, e);
            stores = stores || slot >= 0;
        }
        if (rc == ERR_OK && stores)
            rc = check_admitted(p, lay, g, r, e);
        if (rc != ERR_OK)
            return rc;
    }
    return ERR_OK;
}

/* Copies run before the first store, in any order among themselves. */
static enum err_code check_copies(const struct step_plan *p, uint32_t n_blocks, struct err *e)
{
    struct slot_set to = { 0 };
    enum err_code rc = set_init(&to, p->n_copies, e);
    for (uint32_t i = 0; rc == ERR_OK && i < p->n_copies; i++) {
        blk_id f = p->copy[i].from, t = p->copy[i].to;
        if (f < 0 || (uint32_t)f >= n_blocks || t < 0 || (uint32_t)t >= n_blocks)
            rc = err_set(e, ERR_INVALID, "copy[%u] = %d to %d: expected blocks 0..%u", i, f, t,
                         n_blocks - 1);
        else if (!set_add(&to, (uint64_t)t))
            rc = err_set(e, ERR_INVALID, "copy[%u].to = %d: copied to twice", i, t);
    }
    for (uint32_t i = 0; rc == ERR_OK && i < p->n_copies; i++)
        if (!set_add(&to, (uint64_t)p->copy[i].from)) {
            /* A source may be named by several copies, a target by none. */
            for (uint32_t j = 0; rc == ERR_OK && j < p->n_copies; j++)
                if (p->copy[j].to == p->copy[i].from)
                    rc = err_set(e, ERR_INVALID, "copy[%u].from = %d: is the target of copy[%u]", i,
                                 p->copy[i].from, j);
        }
    free(to.cell);
    return rc;
}

static enum err_code check_outputs(const struct step_plan *p, struct err *e)
{
    for (uint32_t i = 0; i < p->n_outputs; i++) {
        const struct plan_output *o = &p->output[i];
        if (o->row >= p->n_rows)
            return err_set(e, ERR_INVALID, "output[%u].row = %u: %u rows", i, o->row, p->n_rows);
        if (o->token < (uint32_t)p->cu_seqlens[o->row] ||
            o->token >= (uint32_t)p->cu_seqlens[o->row + 1])
            return err_set(e, ERR_INVALID, "output[%u].token = %u: row %u has tokens %d..%d", i,
                           o->token, o->row, p->cu_seqlens[o->row], p->cu_seqlens[o->row + 1] - 1);
        if (i > 0 && o->token < p->output[i - 1].token)
            return err_set(e, ERR_INVALID, "output[%u].token = %u: below output[%u]'s %u", i,
                           o->token, i - 1, p->output[i - 1].token);
        if (o->target < -1)
            return err_set(e, ERR_INVALID, "output[%u].target = %d: expected >= -1", i, o->target);
        if (o->params == NULL || o->history == NULL)
            return err_set(e, ERR_INVALID, "output[%u].%s is missing", i,
                           o->params == NULL ? "params" : "history");
        if (o->n_history != (uint32_t)p->position[o->token] + 1)
            return err_set(e, ERR_INVALID, "output[%u].n_history = %u: its token is at position %d",
                           i, o->n_history, p->position[o->token]);
        if (o->history[o->n_history - 1] != p->token[o->token])
            return err_set(e, ERR_INVALID, "output[%u].history ends in %d: token[%u] = %d", i,
                           o->history[o->n_history - 1], o->token, p->token[o->token]);
        if (o->n_prompt > o->n_history && o->target < 0)
            return err_set(e, ERR_INVALID, "output[%u].n_prompt = %u: history has %u and samples",
                           i, o->n_prompt, o->n_history);
    }
    return ERR_OK;
}

enum err_code step_plan_check(const struct step_plan *p, const struct kv_layout *lay,
                              uint32_t n_blocks, struct err *e)
{
    if (p->n_groups != lay->n_groups)
        return err_set(e, ERR_INVALID, "n_groups = %u: the layout has %u", p->n_groups,
                       lay->n_groups);
    enum err_code rc = check_rows(p, e);
    if (rc == ERR_OK)
        rc = check_tokens(p, e);
    struct slot_set seen = { 0 };
    if (rc == ERR_OK)
        rc = set_init(&seen, (uint64_t)p->n_tokens * p->n_groups, e);
    for (uint32_t g = 0; rc == ERR_OK && g < p->n_groups; g++)
        rc = check_group(p, lay, n_blocks, g, &seen, e);
    free(seen.cell);
    if (rc == ERR_OK)
        rc = check_copies(p, n_blocks, e);
    if (rc == ERR_OK)
        rc = check_outputs(p, e);
    return rc;
}
