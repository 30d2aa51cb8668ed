/* job.c: how a call is cut into tiles of rows.
 *
 * Pure functions on the job; the calling thread.  A tile holds tile_tokens
 * tokens of one sequence times tile_heads query heads that share a KV head, so
 * that each row of K and V is loaded once for all of them. */
#include "attention/cpu/job.h"

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

struct attn_cpu_source attn_cpu_job_source(const void *base, enum attn_dtype dtype, int32_t width,
                                           int32_t kv_heads)
{
    int64_t head_bytes = width * (int64_t)attn_dtype_bytes(dtype);
    return (struct attn_cpu_source){ .base = base,
                                     .dtype = dtype,
                                     .width = width,
                                     .kv_heads = kv_heads,
                                     .head_bytes = head_bytes,
                                     .token_bytes = head_bytes * kv_heads };
}

void attn_cpu_job_shape(struct attn_cpu_job *j)
{
    j->group = j->num_heads / j->kv_heads;
    j->tile_heads = j->group < TILE_ROWS ? j->group : TILE_ROWS;
    j->head_parts = (j->group + j->tile_heads - 1) / j->tile_heads;
    j->tile_tokens = TILE_ROWS / j->tile_heads;
    if (j->tile_tokens > j->n_tokens)
        j->tile_tokens = j->n_tokens > 0 ? (int32_t)j->n_tokens : 1;
    j->v_stride = (int32_t)round_up(j->v_width, INNER_PAD);
}

int64_t attn_cpu_job_max_q_tiles(const struct attn_cpu_job *j)
{
    return j->n_tokens / j->tile_tokens + (j->n_seqs < j->n_tokens ? j->n_seqs : j->n_tokens);
}

int64_t attn_cpu_job_position(const struct attn_cpu_job *j, const struct attn_cpu_q_tile *q,
                              int64_t t)
{
    return j->positions != NULL ? j->positions[t] : q->past + (t - q->seq_first);
}

void attn_cpu_job_cut(struct attn_cpu_job *j)
{
    int64_t end = 0, n = 0;
    int64_t capacity = j->table != NULL ? j->table_cols << j->block_shift : INT64_MAX;
    for (int64_t b = 0; b < j->n_seqs; b++) {
        int64_t first = j->cu[b], stop = j->cu[b + 1];
        int64_t past = j->past != NULL && j->past[b] > 0 ? j->past[b] : 0;
        int64_t kv_len;
        first = first < end ? end : first;
        stop = stop > j->n_tokens ? j->n_tokens : stop;
        if (stop <= first)
            continue;
        end = stop;
        kv_len = past + (stop - first);
        for (int64_t t = first; t < stop; t += j->tile_tokens)
            j->q_tile[n++] = (struct attn_cpu_q_tile){
                .seq = (int32_t)b,
                .first = (int32_t)t,
                .n = (int32_t)(stop - t < j->tile_tokens ? stop - t : j->tile_tokens),
                .seq_first = (int32_t)first,
                .past = past,
                .kv_len = kv_len < capacity ? kv_len : capacity,
            };
    }
    j->n_q_tiles = n;
}
