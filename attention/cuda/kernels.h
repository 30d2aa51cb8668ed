/* kernels.h: the host's entry to each kernel: prepare once, launch many times.
 *
 * prepare_* raise a kernel's shared-memory limit and are called at open, never
 * while capturing.  launch_* enqueue and return.  Host code of the plugin. */
#ifndef ATTENTION_CUDA_KERNELS_H
#define ATTENTION_CUDA_KERNELS_H

#include <cuda_runtime_api.h>

#include "attention/cuda/call.h"

/* head_size above this has no kernel: a row must fit 48 KiB of shared memory. */
enum { CUDA_MAX_HEAD = 12288 };

cudaError_t launch_prologue(const struct attn_call *c, cudaStream_t stream);
cudaError_t launch_generic(const struct attn_call *c, cudaStream_t stream);

/* One tuple of the kernels with instances by cache kind and head width. */
struct kernel_family {
    cudaError_t (*prepare)(void);
    cudaError_t (*launch)(const struct attn_call *c, int n_sm, cudaStream_t stream);
};

extern const struct kernel_family split_bf16, split_f16, split_e4m3, split_int8;
extern const struct kernel_family prefill_bf16, prefill_f16, prefill_e4m3, prefill_int8;

extern const struct kernel_family latent_kernels[CACHE_KINDS];
cudaError_t launch_latent_merge(const struct attn_call *c, cudaStream_t stream);

/* Padded width with an instance for a head of n channels; 0 beyond 256. */
int padded_width(int n);

#endif
