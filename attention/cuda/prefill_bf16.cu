/* prefill_bf16.cu: prefill.cuh for bf16 caches. */
#include "attention/cuda/prefill.cuh"

const struct kernel_family prefill_bf16 = { prefill::prepare_any<CACHE_BF16>,
                                            prefill::start_any<CACHE_BF16> };
