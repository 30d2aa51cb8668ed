/* kernels.h: the host's entry to each kernel: prepare once, launch many times.
 *
 * prepare_* raise a kernel's shared-memory limit and are called at open, never
 * while capturing.  launch_* enqueue and return.  Host code of the plugin. */
#ifndef ATTENTION_CUDA_KERNELS_H
#define ATTENTION_CUDA_KERNELS_H

#include <cuda_runtime_api.h>

#include "attention/cuda/call.h"
#include "attention/cuda/smem_budget.h"

/* The step's lists, before anything that works them off. */
cudaError_t prepare_planner(void);
cudaError_t launch_planner(const struct attn_call *c, cudaStream_t stream);

cudaError_t prepare_prologue(void);
cudaError_t launch_prologue(const struct attn_call *c, cudaStream_t stream);
cudaError_t launch_generic(const struct attn_call *c, cudaStream_t stream);

/* The instances of a kernel for one cache kind, by head width: those that smem_budget.h
 * finds room for, and no other may be asked for. */
struct kernel_family {
    cudaError_t (*prepare)(int width, const struct device_limits *limits);
    cudaError_t (*launch)(const struct attn_call *c, const struct device_limits *limits,
                          cudaStream_t stream);
};

extern const struct kernel_family split_bf16, split_f16, split_e4m3, split_int8;
extern const struct kernel_family prefill_bf16, prefill_f16, prefill_e4m3, prefill_int8;

extern const struct kernel_family latent_kernels[CACHE_KINDS];
cudaError_t launch_latent_merge(const struct attn_call *c, cudaStream_t stream);

/* sm_90a only: 16-bit caches, q_width 64 and 128. */
extern const struct kernel_family hopper_bf16, hopper_f16;
extern const struct kernel_family latent_hopper_bf16, latent_hopper_f16;

#endif
