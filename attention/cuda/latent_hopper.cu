/* latent_hopper.cu: latent_hopper.cuh for the 16-bit caches. */
#include "attention/cuda/latent_hopper.cuh"

const struct kernel_family latent_hopper_bf16 = { latent_hopper::prepare<CACHE_BF16>,
                                                  latent_hopper::start<CACHE_BF16> };
const struct kernel_family latent_hopper_f16 = { latent_hopper::prepare<CACHE_F16>,
                                                 latent_hopper::start<CACHE_F16> };
