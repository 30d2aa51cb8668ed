/* plugin.cu: the one symbol that quire_cuda.so exports (attention/plugin.h): a
 * table of the interfaces inside, looked up by name under the ABI number.
 * Another folder's interface is one more row.  Owns nothing; any thread. */
#include <stddef.h>
#include <string.h>

#include "attention/cuda/interfaces.h"

extern "C" __attribute__((visibility("default"))) const void *
quire_plugin_entry(uint32_t abi, const char *interface)
{
    static const struct {
        uint32_t abi;
        const char *name;
        const void *table;
    } interfaces[] = {
        {ATTN_ABI, "attention", &cuda_attention},
        {ATTN_ABI, "device", &cuda_device},
    };

    for (const auto &row : interfaces) {
        if (row.abi == abi && strcmp(row.name, interface) == 0)
            return row.table;
    }
    return NULL;
}
