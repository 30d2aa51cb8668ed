/* device.cu: the interface "device" (attention/platform/device.h) over the CUDA runtime. */
#include "attention/cuda/interfaces.h"

#include <stdio.h>
#include <string.h>

enum err_code cuda_result(cudaError_t rc, const char *what, struct err *e)
{
    if (rc == cudaSuccess)
        return ERR_OK;
    cudaGetLastError();
    enum err_code code = rc == cudaErrorMemoryAllocation ? ERR_NOMEM : ERR_GPU;
    return err_set(e, code, "%s: %s: %s", what, cudaGetErrorName(rc), cudaGetErrorString(rc));
}

uint32_t cuda_count(struct err *e)
{
    int n = 0;
    cudaError_t rc = cudaGetDeviceCount(&n);
    if (cuda_result(rc, "looking for CUDA devices", e) != ERR_OK)
        return 0;
    if (n == 0)
        err_set(e, ERR_GPU, "looking for CUDA devices: the driver lists none");
    return (uint32_t)n;
}

namespace
{

enum err_code open_device(int32_t i, struct device_info *out, struct err *e)
{
    struct cudaDeviceProp p;
    uint32_t n = cuda_count(e);
    if (n == 0)
        return ERR_GPU;
    if (i < 0 || (uint32_t)i >= n)
        return err_set(e, ERR_INVALID, "device %d: there are %u, expected 0 to %u", (int)i, n,
                       n - 1);
    enum err_code rc = cuda_result(cudaSetDevice(i), "selecting the device", e);
    if (rc == ERR_OK)
        rc = cuda_result(cudaGetDeviceProperties(&p, i), "reading device properties", e);
    size_t free_bytes = 0, total_bytes = 0;
    if (rc == ERR_OK)
        rc = cuda_result(cudaMemGetInfo(&free_bytes, &total_bytes), "reading free memory", e);
    if (rc != ERR_OK || out == NULL)
        return rc;
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%.127s", p.name);
    out->major = p.major;
    out->minor = p.minor;
    out->n_sm = p.multiProcessorCount;
    out->total_bytes = total_bytes;
    out->free_bytes = free_bytes;
    out->l2_bytes = (uint64_t)p.l2CacheSize;
    return ERR_OK;
}

enum err_code alloc(void **out, size_t bytes, struct err *e)
{
    char what[64];
    snprintf(what, sizeof what, "allocating %zu bytes of device memory", bytes);
    return cuda_result(cudaMalloc(out, bytes > 0 ? bytes : 1), what, e);
}

void free_memory(void *p)
{
    cudaFree(p);
}

enum err_code alloc_pinned(void **out, size_t bytes, struct err *e)
{
    char what[64];
    snprintf(what, sizeof what, "allocating %zu bytes of pinned memory", bytes);
    return cuda_result(cudaMallocHost(out, bytes > 0 ? bytes : 1), what, e);
}

void free_pinned(void *p)
{
    cudaFreeHost(p);
}

enum err_code copy(void *to, const void *from, size_t bytes, enum device_copy way, void *stream,
                   struct err *e)
{
    static const enum cudaMemcpyKind kinds[] = { cudaMemcpyDeviceToDevice, cudaMemcpyHostToDevice,
                                                 cudaMemcpyDeviceToHost };
    if (bytes == 0)
        return ERR_OK;
    return cuda_result(cudaMemcpyAsync(to, from, bytes, kinds[way], (cudaStream_t)stream),
                       "copying", e);
}

enum err_code fill(void *to, int byte, size_t bytes, void *stream, struct err *e)
{
    if (bytes == 0)
        return ERR_OK;
    return cuda_result(cudaMemsetAsync(to, byte, bytes, (cudaStream_t)stream), "filling", e);
}

enum err_code stream_create(void **out, struct err *e)
{
    return cuda_result(cudaStreamCreateWithFlags((cudaStream_t *)out, cudaStreamNonBlocking),
                       "creating a stream", e);
}

void stream_destroy(void *stream)
{
    if (stream != NULL)
        cudaStreamDestroy((cudaStream_t)stream);
}

enum err_code stream_wait(void *stream, struct err *e)
{
    return cuda_result(cudaStreamSynchronize((cudaStream_t)stream), "waiting for the stream", e);
}

enum err_code event_create(void **out, struct err *e)
{
    return cuda_result(cudaEventCreate((cudaEvent_t *)out), "creating an event", e);
}

void event_destroy(void *event)
{
    if (event != NULL)
        cudaEventDestroy((cudaEvent_t)event);
}

enum err_code event_record(void *event, void *stream, struct err *e)
{
    return cuda_result(cudaEventRecord((cudaEvent_t)event, (cudaStream_t)stream),
                       "recording an event", e);
}

enum err_code event_done(void *event, int *done, struct err *e)
{
    cudaError_t rc = cudaEventQuery((cudaEvent_t)event);
    *done = rc == cudaSuccess;
    return rc == cudaErrorNotReady ? ERR_OK : cuda_result(rc, "asking for an event", e);
}

enum err_code event_wait(void *event, struct err *e)
{
    return cuda_result(cudaEventSynchronize((cudaEvent_t)event), "waiting for an event", e);
}

enum err_code event_elapsed(void *from, void *to, double *us, struct err *e)
{
    float ms = 0.0f;
    cudaError_t rc = cudaEventElapsedTime(&ms, (cudaEvent_t)from, (cudaEvent_t)to);
    *us = (double)ms * 1e3;
    return cuda_result(rc, "timing two events", e);
}

enum err_code capture_begin(void *stream, struct err *e)
{
    return cuda_result(
        cudaStreamBeginCapture((cudaStream_t)stream, cudaStreamCaptureModeThreadLocal),
        "beginning a capture", e);
}

enum err_code capture_end(void *stream, void **out, struct err *e)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    enum err_code rc =
        cuda_result(cudaStreamEndCapture((cudaStream_t)stream, &graph), "ending a capture", e);
    if (rc != ERR_OK)
        return rc;
    rc = cuda_result(cudaGraphInstantiate(&exec, graph, 0), "instantiating a graph", e);
    cudaGraphDestroy(graph);
    if (rc == ERR_OK)
        *out = exec;
    return rc;
}

enum err_code graph_launch(void *graph, void *stream, struct err *e)
{
    return cuda_result(cudaGraphLaunch((cudaGraphExec_t)graph, (cudaStream_t)stream),
                       "launching a graph", e);
}

void graph_destroy(void *graph)
{
    if (graph != NULL)
        cudaGraphExecDestroy((cudaGraphExec_t)graph);
}

} // namespace

const struct device_ops cuda_device = {
    ATTN_ABI,      cuda_count,    open_device,  alloc,         free_memory,    alloc_pinned,
    free_pinned,   copy,          fill,         stream_create, stream_destroy, stream_wait,
    event_create,  event_destroy, event_record, event_done,    event_wait,     event_elapsed,
    capture_begin, capture_end,   graph_launch, graph_destroy,
};
