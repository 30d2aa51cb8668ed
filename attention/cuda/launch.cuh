/* launch.cuh: one way to launch a kernel: as a dependent of what precedes it in
 * the stream, so that its set-up overlaps the predecessor's tail, also inside a
 * captured graph.  A kernel launched so calls wait_for_upstream() before it
 * touches anything that the predecessor wrote or may still read. */
#ifndef ATTENTION_CUDA_LAUNCH_CUH
#define ATTENTION_CUDA_LAUNCH_CUH

#include <cuda_runtime_api.h>
#include <stddef.h>

template <typename... P, typename... A>
static cudaError_t launch(void (*kernel)(P...), unsigned blocks, unsigned threads, size_t smem,
                          cudaStream_t stream, A... args)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute dependent = {};
    config.gridDim = dim3(blocks, 1, 1);
    config.blockDim = dim3(threads, 1, 1);
    config.dynamicSmemBytes = smem;
    config.stream = stream;
    dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    dependent.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &dependent;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

/* Let a small kernel run with shared memory divided as its neighbours need it: to
 * divide it anew a multiprocessor first has to run empty. */
template <typename... P> static cudaError_t keep_shared_memory(void (*kernel)(P...))
{
    return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                cudaSharedmemCarveoutMaxShared);
}

#endif
