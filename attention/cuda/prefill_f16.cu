/* prefill_f16.cu: prefill.cuh for f16 caches. */
#include "attention/cuda/prefill.cuh"

const struct kernel_family prefill_f16 = { prefill::prepare_any<CACHE_F16>,
                                           prefill::start_any<CACHE_F16> };
