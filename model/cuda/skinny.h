/* skinny.h: how a matmul of few rows is cut, and what its kernel is given.
 *
 * Host code of the plugin and its kernel; the engine's thread. */
#ifndef MODEL_CUDA_SKINNY_H
#define MODEL_CUDA_SKINNY_H

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

extern "C" {
#include "model/step/ops.h"
}

/* A block is `tiles` x 16 rows of W.  Its columns are dealt in chunks to `split`
 * CTAs, in runs, and in a CTA to `groups` of warps, one by one: `chunks` each,
 * the last ones beyond the matrix.  All this depends on the matrix and the
 * device alone and fixes the order of every sum. */
struct skinny_cut {
    int tiles, groups, split, blocks, chunks;
    int stages; /* of a warp's ring */
};

struct skinny_call {
    const __nv_bfloat16 *w, *in;
    const float *bias;
    void *to;
    size_t in_ld, to_ld;
    int n_rows, n_cols, n;
    enum op_out out;
    enum act_kind act;
    float limit;
    struct skinny_cut cut;
};

#endif
