/* prefill_int8.cu: prefill.cuh for int8 caches. */
#include "attention/cuda/prefill.cuh"

const struct kernel_family prefill_int8 = { prefill::prepare_any<CACHE_INT8>,
                                            prefill::start_any<CACHE_INT8> };
