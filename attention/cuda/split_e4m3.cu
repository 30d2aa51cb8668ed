/* split_e4m3.cu: split.cuh for e4m3 caches. */
#include "attention/cuda/split.cuh"

const struct kernel_family split_e4m3 = { split::prepare_any<CACHE_E4M3>,
                                          split::start_any<CACHE_E4M3> };
