/* interfaces.h: the tables inside the plugin, and how its host code turns the
 * runtime's errors into the project's.  Host code of the plugin; any thread. */
#ifndef ATTENTION_CUDA_INTERFACES_H
#define ATTENTION_CUDA_INTERFACES_H

#include <cuda_runtime_api.h>

extern "C" {
#include "attention/attn.h"
#include "attention/platform/device.h"
}

extern const struct attn_backend cuda_attention;
extern const struct device_ops cuda_device;

/* ERR_OK for success; else ERR_NOMEM or ERR_GPU: what was tried, and the
 * runtime's words.  Clears the runtime's sticky copy of the error. */
enum err_code cuda_result(cudaError_t rc, const char *what, struct err *e);

/* Devices that can be used: 0 with the reason in *e. */
uint32_t cuda_count(struct err *e);

#endif
