/* split_f16.cu: split.cuh for f16 caches. */
#include "attention/cuda/split.cuh"

const struct kernel_family split_f16 = { split::prepare_any<CACHE_F16>,
                                         split::start_any<CACHE_F16> };
