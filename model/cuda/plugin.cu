/* plugin.cu: the one symbol that quire_cuda.so exports (attention/platform/plugin.h): a
 * table of the interfaces inside, attention's and the model's, looked up by name
 * under the ABI number.  Owns nothing; any thread. */
#include <stddef.h>
#include <string.h>

#include "model/cuda/ops_cuda.h"

extern "C" __attribute__((visibility("default"))) const void *quire_plugin_entry(
    uint32_t abi, const char *interface)
{
    static const struct {
        uint32_t abi;
        const char *name;
        const void *table;
    } interfaces[] = {
        { ATTN_ABI, "attention", &cuda_attention },
        { ATTN_ABI, "device", &cuda_device },
        { MODEL_ABI, "model", &cuda_model },
    };

    for (const auto &row : interfaces) {
        if (row.abi == abi && strcmp(row.name, interface) == 0)
            return row.table;
    }
    return NULL;
}
