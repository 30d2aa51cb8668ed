/* split_bf16.cu: split.cuh for bf16 caches. */
#include "attention/cuda/split.cuh"

const struct kernel_family split_bf16 = { split::prepare_any<CACHE_BF16>,
                                          split::start_any<CACHE_BF16> };
