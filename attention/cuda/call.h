/* call.h: one call of the operator as the kernels see it: pointers, the shapes
 * and attributes that no step changes, and the parts of the workspace.
 *
 * Plain data, passed by value at launch, so that a captured graph carries it
 * whole.  Per-step lengths are not in it: kernels read them on the device. */
#ifndef ATTENTION_CUDA_CALL_H
#define ATTENTION_CUDA_CALL_H

#include <stdint.h>

struct plan_head; /* planner.h */
struct plan_unit;

/* A step's lists: for the split or latent kernel, and for the prefill kernel. */
enum { LIST_SPLIT, LIST_PREFILL, LISTS };

/* Who serves which sequences, and how their keys are cut. */
enum share {
    SHARE_NONE,    /* no such list                             */
    SHARE_SPLIT,   /* those of few rows, in chunks             */
    SHARE_PREFILL, /* the others, all keys at once             */
    SHARE_LATENT   /* all: one query in chunks, more at once   */
};

/* What the cache holds, and hence what the matrix units are fed. */
enum cache_kind { CACHE_BF16, CACHE_F16, CACHE_E4M3, CACHE_INT8, CACHE_KINDS };

/* How the prologue leaves Q for the kernel that follows.
 *   Q_NATIVE  T, rows of q_width
 *   Q_HALF    fp16 in the channel order of 8-bit caches, K's channel scales and
 *             a power of two folded in, the rest of the scale in q_factor
 *   Q_FLOAT   fp32, K's scales not folded in */
enum q_form { Q_NATIVE, Q_HALF, Q_FLOAT };

struct attn_call {
    const void *query, *key, *value; /* key, value NULL when packed            */
    void *key_cache, *value_cache;   /* equal in LATENT                        */
    const int32_t *cu_seqlens, *past_seqlens, *block_table;
    const void *cos_cache, *sin_cache;
    const int32_t *slot_mapping;
    const void *head_sink, *q_norm, *k_norm;
    const float *k_scale, *v_scale;
    const int32_t *positions;
    const void *bias;
    void *output, *qk;

    /* Workspace: [tokens, heads, q_width], then per (token, head) q_factor and
     * arrived; partial results of split sequences [rows, max_chunks, heads], O
     * and (max, sum). */
    void *q;
    float *q_factor;
    uint32_t *arrived;
    float *part, *part_state;

    /* The planner's lists (planner.h), in a class's memory or the workspace. */
    struct plan_head *list[LISTS];
    struct plan_unit *unit[LISTS];
    int32_t most_units[LISTS], tile_rows[LISTS];
    enum share share[LISTS];

    int64_t bias_stride_batch, bias_stride_head; /* 0 where broadcast          */
    int64_t bias_rows, bias_cols, qk_cols;
    int32_t tokens, batch, table_cols, num_blocks, block_shift;
    int32_t heads, kv_heads, group, head_size, v_head_size;
    int32_t q_width; /* padded row length of q                                 */
    int32_t query_stride, key_stride;
    int32_t rotary_dim, rotary_offset, rotary_interleaved, rotary_rows;
    int32_t window; /* 0: off */
    int32_t max_chunks, part_rows;
    int32_t chunk_least, chunks;           /* struct plan_rule */
    int32_t dtype_bf16, qk_dtype, qk_mode; /* qk_dtype: enum attn_dtype         */
    int32_t cache, q_form, latent;
    int32_t k_channel, v_channel; /* scales per channel                        */
    int32_t split_rows;           /* sequences of at most so many packed rows are the split
                                   * kernel's, longer ones the prefill kernel's          */
    float scale, softcap, epsilon;
};

#endif
