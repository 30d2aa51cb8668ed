/* prefill_e4m3.cu: prefill.cuh for e4m3 caches. */
#include "attention/cuda/prefill.cuh"

const struct kernel_family prefill_e4m3 = { prefill::prepare_any<CACHE_E4M3>,
                                            prefill::start_any<CACHE_E4M3> };
