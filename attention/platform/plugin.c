/* plugin.c: loading a backend plugin; see plugin.h. */
#include "attention/platform/plugin.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct plugin {
    void *handle;
    quire_plugin_fn *entry;
};

enum err_code plugin_open(struct plugin **out, const char *path, struct err *e)
{
    struct plugin *p;
    void *symbol;
    if (access(path, F_OK) != 0)
        return err_set(e, ERR_NOT_FOUND, "plugin: %s does not exist", path);
    p = calloc(1, sizeof *p);
    if (p == NULL)
        return err_nomem(e, "plugin handle", sizeof *p);
    p->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (p->handle == NULL) {
        free(p);
        return err_set(e, ERR_IO, "plugin: %s", dlerror());
    }
    symbol = dlsym(p->handle, QUIRE_PLUGIN_SYMBOL);
    if (symbol == NULL) {
        plugin_close(p);
        return err_set(e, ERR_IO, "plugin: %s has no symbol " QUIRE_PLUGIN_SYMBOL, path);
    }
    memcpy(&p->entry, &symbol, sizeof symbol);
    *out = p;
    return ERR_OK;
}

const void *plugin_find(const struct plugin *p, uint32_t abi, const char *interface)
{
    return p->entry(abi, interface);
}

void plugin_close(struct plugin *p)
{
    if (p == NULL)
        return;
    dlclose(p->handle);
    free(p);
}
