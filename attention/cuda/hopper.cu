/* hopper.cu: hopper.cuh for the 16-bit caches. */
#include "attention/cuda/hopper.cuh"

const struct kernel_family hopper_bf16 = { hopper::prepare_any<CACHE_BF16>,
                                           hopper::start_any<CACHE_BF16> };
const struct kernel_family hopper_f16 = { hopper::prepare_any<CACHE_F16>,
                                          hopper::start_any<CACHE_F16> };
