/* workspace.c: the memory of a call of the CPU backend: tiles, scratch of each
 * worker, partial results.
 *
 * Pure functions on the job; the calling thread. */
#include "attention/cpu/job.h"

enum {
    UNITS_PER_WORKER = 4,        /* fewer than this: split long contexts */
    PARTIAL_MAX_BYTES = 64 << 20 /* of all partial results               */
};

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* Splits that pay, 0 for none: only batches too small to occupy the pool are
 * split, and more than max_kv_len can fill is never needed. */
static int64_t count_splits(const struct attn_cpu_job *j, int64_t units, uint32_t n_workers,
                            int64_t max_kv_len)
{
    int64_t most = PARTIAL_MAX_BYTES / 4 / attn_cpu_job_partial_floats(j);
    int64_t n = (max_kv_len + TILE - 1) / TILE;
    if (n_workers == 1 || units == 0 || units >= (int64_t)UNITS_PER_WORKER * n_workers ||
        j->qk_mode != ATTN_QK_NONE)
        return 0;
    n = n < most / units ? n : most / units;
    return n > 1 ? n : 0;
}

enum err_code attn_cpu_job_workspace(struct attn_cpu_job *j, uint32_t n_workers, int64_t max_kv_len,
                                     char *base, uint64_t *bytes, struct err *e)
{
    int64_t tiles = attn_cpu_job_max_q_tiles(j), units, at;
    if (tiles > INT32_MAX / ((int64_t)j->kv_heads * j->head_parts))
        return err_set_param(e, ERR_LIMIT, "query",
                             "query: %lld tokens of %d heads, more than one call can attend",
                             (long long)j->n_tokens, j->num_heads);
    units = tiles * j->kv_heads * j->head_parts;
    j->scratch_bytes = attn_cpu_job_scratch_bytes(j);
    if (j->scratch_bytes < (int64_t)j->store_width * 4)
        j->scratch_bytes = (int64_t)j->store_width * 4;
    j->scratch_bytes = round_up(j->scratch_bytes, 64);
    j->partial_floats = attn_cpu_job_partial_floats(j);
    j->n_splits = count_splits(j, units, n_workers, max_kv_len);
    at = round_up(tiles * (int64_t)sizeof *j->q_tile, 64);
    *bytes = (uint64_t)(at + j->scratch_bytes * n_workers +
                        units * j->n_splits * j->partial_floats * 4 + 63);
    if (base == NULL)
        return ERR_OK;
    base = (char *)(((uintptr_t)base + 63) & ~(uintptr_t)63);
    j->q_tile = (struct attn_cpu_q_tile *)base;
    j->scratch = base + at;
    if (j->n_splits > 0)
        j->partial = (float *)(j->scratch + j->scratch_bytes * n_workers);
    return ERR_OK;
}
