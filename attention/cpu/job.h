/* job.h: one call of the CPU backend, in plain pointers and numbers.
 *
 * The paged operator and the dense entry point both fill a struct attn_cpu_job; prologue.c
 * and attend.c work from it alone.  Private to attention/cpu. */
#ifndef ATTENTION_CPU_JOB_H
#define ATTENTION_CPU_JOB_H

#include <stdint.h>

#include "attention/attn.h"
#include "attention/cpu/inner.h"
#include "attention/platform/workers.h"
#include "proto/number/formats.h"

/* Positions are attended in tiles on absolute boundaries: the unit of the online
 * softmax and of splitting a long context over threads.  Partial results of
 * tiles merge in order of position, so that nothing but positions shapes them. */
enum { TILE_SHIFT = 8, TILE = 1 << TILE_SHIFT, TILE_ROWS = 64 };

/* Where rows of K or V come from. */
struct attn_cpu_source {
    const char *base;
    enum attn_dtype dtype;
    int32_t width, kv_heads;
    int64_t head_bytes, token_bytes; /* from one KV head, one slot, to the next */
    const float *scale;              /* 8-bit types: (1), or (kv_heads, width) */
    bool per_channel;
};

/* Where new rows of K or V go. */
struct attn_cpu_store {
    char *base; /* NULL: nothing to store */
    enum attn_dtype dtype;
    int32_t width, kv_heads;
    const float *scale;
    int32_t quant; /* enum attn_quant */
};

/* Rows of new tokens: element (token, head, channel) at
 * base + (token * stride + head * width + channel) elements. */
struct attn_cpu_rows {
    const char *base;
    int64_t stride;
};

struct attn_cpu_rotary {
    const void *cos_, *sin_; /* NULL: no rotation */
    int64_t n_rows;
    int32_t dim, offset, interleaved;
};

/* New tokens of one sequence that are attended together, with its lengths. */
struct attn_cpu_q_tile {
    int32_t seq, first, n; /* tokens [first, first + n) of the batch */
    int32_t seq_first;     /* cum[seq]                               */
    int64_t past, kv_len;
};

struct attn_cpu_job {
    const struct attn_cpu_inner *inner;
    enum attn_dtype dtype; /* T */
    int32_t num_heads, kv_heads, group, k_width, v_width, v_stride;
    float scale, softcap;
    int64_t window; /* <= 0: off */
    int64_t n_tokens, n_seqs;

    struct attn_cpu_rows query, key, value; /* base NULL: absent */
    const void *q_norm, *k_norm;
    float epsilon;
    struct attn_cpu_rotary rotary;
    const int32_t *cu, *past, *positions, *slots;

    struct attn_cpu_store k_store, v_store;
    int64_t n_slots; /* num_blocks * block_size */
    struct attn_cpu_source k, v;
    const int32_t *table;
    int64_t table_cols, num_blocks;
    int32_t block_shift;

    const void *head_sink;
    const void *bias;
    int64_t bias_shape[4];
    char *out;
    char *qk;
    enum attn_dtype qk_dtype;
    int64_t qk_cols;
    int32_t qk_mode;

    /* Tiling: heads of a group and tokens of a sequence that go together. */
    int32_t tile_heads, tile_tokens, head_parts;
    /* Workspace. */
    int64_t n_q_tiles;
    struct attn_cpu_q_tile *q_tile;
    char *scratch; /* scratch_bytes for each worker */
    int64_t scratch_bytes;
    int32_t store_width; /* widest row that attn_cpu_prologue_store handles */
    float *partial;      /* [unit][split][partial_floats], or NULL: no splits */
    int64_t n_splits, partial_floats;
};

/* ---- rows of any type (rows.c) ---------------------------------------------- */

void attn_cpu_row_load(enum attn_dtype d, const void *from, int64_t n, float *to);
void attn_cpu_row_store(enum attn_dtype d, const float *from, int64_t n, void *to);

/* ---- sequences (job.c) ------------------------------------------------------- */

/* A source with its strides filled in. */
struct attn_cpu_source attn_cpu_job_source(const void *base, enum attn_dtype dtype, int32_t width,
                                           int32_t kv_heads);

/* Fill tile_heads, tile_tokens, head_parts, v_stride from the head counts. */
void attn_cpu_job_shape(struct attn_cpu_job *j);

/* Upper bound of q tiles. */
int64_t attn_cpu_job_max_q_tiles(const struct attn_cpu_job *j);

/* Cut the batch into q tiles.  Lengths out of range are clamped so that tiles
 * are disjoint and inside the batch whatever the arrays hold. */
void attn_cpu_job_cut(struct attn_cpu_job *j);

/* Position of token t of its sequence's tile. */
int64_t attn_cpu_job_position(const struct attn_cpu_job *j, const struct attn_cpu_q_tile *q,
                              int64_t t);

/* ---- memory (workspace.c) ---------------------------------------------------- */

/* Bytes of the workspace behind j (its q tiles, each worker's scratch, partial
 * results where splitting may pay); with a base, also places them there.
 * max_kv_len bounds what is worth splitting.  ERR_LIMIT when it cannot be. */
MUST_USE enum err_code attn_cpu_job_workspace(struct attn_cpu_job *j, uint32_t n_workers,
                                              int64_t max_kv_len, char *base, uint64_t *bytes,
                                              struct err *e);

/* ---- phases ------------------------------------------------------------------ */

/* Norm and rotate one head row in place at position p. */
void attn_cpu_prologue_row(const struct attn_cpu_job *j, float *x, const void *norm, int64_t p);

/* Store the new K and V rows of the batch to their slots. */
void attn_cpu_prologue_store(const struct attn_cpu_job *j, struct workers *w);

/* Bytes of one worker's scratch, and floats of one split's partial result of one
 * unit. */
int64_t attn_cpu_job_scratch_bytes(const struct attn_cpu_job *j);
int64_t attn_cpu_job_partial_floats(const struct attn_cpu_job *j);

/* Attend every token; writes out and qk. */
void attn_cpu_attend(struct attn_cpu_job *j, struct workers *w);

#endif
