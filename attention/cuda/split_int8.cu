/* split_int8.cu: split.cuh for int8 caches. */
#include "attention/cuda/split.cuh"

const struct kernel_family split_int8 = { split::prepare_any<CACHE_INT8>,
                                          split::start_any<CACHE_INT8> };
