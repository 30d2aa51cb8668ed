/* plugin.c: see plugin.h. */
#include "attention/plugin.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

struct attn_plugin {
    void *handle; /* of dlopen, owned */
    quire_plugin_fn *entry;
};

enum err_code attn_plugin_open(struct attn_plugin **out, const char *path, struct err *e)
{
    if (access(path, F_OK) != 0)
        return err_set_param(e, ERR_NOT_FOUND, path, "plugin %s: no such file", path);

    struct attn_plugin *p = calloc(1, sizeof *p);
    if (p == NULL)
        return err_nomem(e, "plugin handle", sizeof *p);

    enum err_code rc;
    p->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (p->handle == NULL) {
        rc = err_set_param(e, ERR_IO, path, "plugin %s: does not load: %s", path, dlerror());
        goto fail_open;
    }
    void *symbol = dlsym(p->handle, QUIRE_PLUGIN_SYMBOL);
    if (symbol == NULL) {
        rc = err_set_param(e, ERR_IO, path, "plugin %s: has no symbol %s: %s", path,
                           QUIRE_PLUGIN_SYMBOL, dlerror());
        goto fail_symbol;
    }
    /* POSIX promises that an object pointer of dlsym holds a function's. */
    *(void **)&p->entry = symbol;
    *out = p;
    return ERR_OK;

fail_symbol:
    dlclose(p->handle);
fail_open:
    free(p);
    return rc;
}

const void *attn_plugin_find(const struct attn_plugin *p, uint32_t abi, const char *interface)
{
    return p->entry(abi, interface);
}

void attn_plugin_close(struct attn_plugin *p)
{
    if (p == NULL)
        return;
    dlclose(p->handle);
    free(p);
}
