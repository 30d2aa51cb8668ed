/* dense.h: one call of attn_dense_* as its kernels see it.
 *
 * Plain data, passed by value at launch; lengths are read on the device.  Host
 * code of the plugin and its kernels. */
#ifndef ATTENTION_CUDA_DENSE_H
#define ATTENTION_CUDA_DENSE_H

#include <cuda_runtime_api.h>
#include <stdint.h>

extern "C" {
#include "attention/attn.h"
}

/* Widest heads, and query rows of a unit. */
enum { DENSE_K = 192, DENSE_V = 128, DENSE_ROWS = 128 };

/* Rows [row0, row0 + DENSE_ROWS) of a sequence of n_new tokens. */
struct dense_unit {
    int32_t first, n_new, row0, unused;
};

/* In the workspace, before its units. */
struct dense_head {
    int32_t n_units;
    uint32_t taken; /* items handed out beyond the first of each CTA */
    int32_t unused[2];
};

struct dense_call {
    const void *query, *key, *value; /* [tokens, heads or kv_heads, width]     */
    void *output;
    const int32_t *cu_seqlens;
    struct dense_head *list; /* written by the rows kernel */
    struct dense_unit *unit;
    int32_t tokens, batch, heads, kv_heads, k_width, v_width, most_units;
    int32_t window; /* 0: off */
    int32_t dtype_bf16;
    float scale, softcap;
    /* The latent write; latent NULL: none. */
    const void *latent;
    void *cache;
    const int32_t *slot_mapping;
    const float *k_scale;
    int32_t latent_width, k_channel, cache_kind; /* enum cache_kind */
    int64_t n_slots;
};

/* Whether the attention kernel can run on a device; readies it. */
cudaError_t dense_prepare(int major, int minor, int block_bytes, bool *runs);

/* attn_dense_* of the backend on a device of n_sm multiprocessors. */
enum err_code dense_workspace(const struct attn_dense *d, uint64_t *bytes, struct err *e);
enum err_code dense_attend(const struct attn_dense *d, int n_sm, void *workspace,
                           cudaStream_t stream, struct err *e);

/* dense_hopper.cu */
cudaError_t dense_hopper_prepare(void);
cudaError_t dense_hopper_launch(const struct dense_call *c, int n_sm, cudaStream_t stream);
int dense_hopper_bytes(void);

#endif
