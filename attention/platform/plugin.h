/* plugin.h: how a device backend is loaded.
 *
 * A plugin is a shared object (quire_cuda.so) with exactly one exported symbol,
 * quire_plugin_entry, of type quire_plugin_fn.  Asked for an interface by name
 * under an ABI number it returns that interface's table of functions, or NULL
 * when it was built for another ABI or has no such interface:
 *
 *   "attention"  const struct attn_backend *
 *   other names  belong to the folders that define them ("model": model/step/ops.h)
 *
 * Owns the dlopen handle.  Any thread; open and close are not concurrent. */
#ifndef ATTENTION_PLATFORM_PLUGIN_H
#define ATTENTION_PLATFORM_PLUGIN_H

#include <stdint.h>

#include "proto/err.h"

#define QUIRE_PLUGIN_SYMBOL "quire_plugin_entry"

typedef const void *quire_plugin_fn(uint32_t abi, const char *interface);

struct plugin;

/* Load a plugin.  ERR_NOT_FOUND when the file is missing, ERR_IO when it does
 * not load (a library it needs is absent) or lacks the symbol; the message
 * carries the loader's own words. */
MUST_USE enum err_code plugin_open(struct plugin **out, const char *path, struct err *e);

/* An interface of the plugin, borrowed until plugin_close; NULL when it
 * has none of that name for this ABI. */
const void *plugin_find(const struct plugin *p, uint32_t abi, const char *interface);

void plugin_close(struct plugin *p);

#endif
