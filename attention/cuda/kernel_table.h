/* kernel_table.h: the CUDA backend's row for each kernel, in order of preference.
 *
 * Plain C and C++, so that programs without CUDA can print it: the feature x
 * backend table of attention/README.md comes from here.  Pure data. */
#ifndef ATTENTION_CUDA_KERNEL_TABLE_H
#define ATTENTION_CUDA_KERNEL_TABLE_H

#include "attention/attn.h"

enum { CUDA_DECODE, CUDA_PREFILL, CUDA_LATENT, CUDA_REFERENCE, CUDA_KERNELS };

/* Widths of the latent kernel; widest head of the reference kernel. */
enum { CUDA_LATENT_K = 576, CUDA_LATENT_V = 512, CUDA_MAX_HEAD_SIZE = 12288 };

#define CUDA_ALL_FEATURES (ATTN_BIT(ATTN_FEATURES) - 1)
#define CUDA_FUSED_FEATURES                                                                        \
    (CUDA_ALL_FEATURES & ~(ATTN_BIT(ATTN_HAS_BIAS) | ATTN_BIT(ATTN_HAS_QK_OUTPUT)))
#define CUDA_DTYPES (ATTN_BIT(ATTN_F16) | ATTN_BIT(ATTN_BF16))

static const struct attn_kernel cuda_kernel_table[CUDA_KERNELS] = {
    { "decode", CUDA_FUSED_FEATURES, CUDA_DTYPES, 256, false, "token_count <= batch_size" },
    { "prefill", CUDA_FUSED_FEATURES, CUDA_DTYPES, 256, false, "any ragged batch" },
    { "latent", CUDA_FUSED_FEATURES, CUDA_DTYPES, CUDA_LATENT_K, true, "head sizes 576/512" },
    { "reference", CUDA_ALL_FEATURES, CUDA_DTYPES, CUDA_MAX_HEAD_SIZE, false,
      "any shape, not fast" },
};

#endif
