/* backend.c: see backend.h. */
#include "model/backend.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "model/cpu/kernels.h"

static const char plugin_name[] = "quire_cuda.so";

static enum err_code cpu_type(const struct model_options *opt, enum op_dtype *out, struct err *e)
{
    switch (opt->dtype) {
    case MODEL_AUTO:
        *out = model_cpu_has_bf16() ? OP_BF16 : OP_F32;
        return ERR_OK;
    case MODEL_FLOAT32:
        *out = OP_F32;
        return ERR_OK;
    case MODEL_BFLOAT16:
        *out = OP_BF16;
        return ERR_OK;
    case MODEL_FLOAT16:
        break;
    }
    return err_set(e, ERR_INVALID,
                   "dtype float16: the cpu backend computes in float32 or bfloat16");
}

static enum err_code open_cpu(struct ops *ops, const struct model_options *opt, struct err *e)
{
    enum op_dtype type = OP_F32;
    enum err_code rc = cpu_type(opt, &type, e);
    return rc ? rc : model_cpu_open(ops, type, opt->n_threads, e);
}

/* The plugin beside the running program, one folder above it (tests), or where
 * `cmake --install` puts it. */
static void find_plugin(char *path, size_t cap)
{
    static const char *const folders[] = { ".", "..", "../lib/quire" };
    char program[3072];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(program, '/');
    for (size_t i = 0; slash && i < sizeof folders / sizeof *folders; i++) {
        *slash = '\0';
        snprintf(path, cap, "%s/%s/%s", program, folders[i], plugin_name);
        if (access(path, F_OK) == 0)
            return;
    }
    snprintf(path, cap, "%s", plugin_name);
}

static enum err_code load_plugin(struct backend *b, const struct model_options *opt,
                                 const struct model_plugin **out, struct err *e)
{
    char path[4096];
    if (opt->plugin != NULL)
        snprintf(path, sizeof path, "%s", opt->plugin);
    else
        find_plugin(path, sizeof path);
    enum err_code rc = plugin_open(&b->plugin, path, e);
    if (rc == ERR_NOT_FOUND && opt->plugin == NULL)
        return err_set(e, rc, "no CUDA backend beside this program (%s)", plugin_name);
    if (rc)
        return rc;
    *out = plugin_find(b->plugin, MODEL_ABI, "model");
    if (*out == NULL)
        return err_set(e, ERR_INVALID, "plugin: %.200s has no interface \"model\" of version %d",
                       path, MODEL_ABI);
    return ERR_OK;
}

static enum err_code open_cuda(struct backend *b, struct ops *ops, const struct model_options *opt,
                               struct err *e)
{
    const struct model_plugin *device = NULL;
    enum err_code rc = ERR_OK;
    if (opt->dtype == MODEL_FLOAT32 || opt->dtype == MODEL_FLOAT16)
        return err_set(e, ERR_INVALID, "dtype %s: the cuda backend computes in bfloat16",
                       opt->dtype == MODEL_FLOAT32 ? "float32" : "float16");
    rc = load_plugin(b, opt, &device, e);
    if (rc == ERR_OK)
        rc = device->open(ops, 0, e);
    if (rc) {
        plugin_close(b->plugin);
        b->plugin = NULL;
    }
    return rc;
}

/* What computes, for the log. */
static void name_kernels(struct backend *b, const struct ops *ops)
{
    const struct attn_backend *a = ops->attention;
    size_t cap = sizeof b->kernels;
    int n = b->plugin ? snprintf(b->kernels, cap, "attention:")
                      : snprintf(b->kernels, cap,
                                 "matrices by %s%s; attention:", model_cpu_kernels_best()->name,
                                 ops->type == OP_BF16 ? " with bfloat16 products" : "");

    for (uint32_t i = 0; i < a->n_kernels && n > 0 && (size_t)n < cap; i++)
        n += snprintf(b->kernels + n, cap - (size_t)n, "%s %s", i ? "," : "", a->kernel[i].name);
}

static enum err_code choose(struct backend *b, struct ops *ops, const struct model_options *opt,
                            struct err *e)
{
    struct err why;
    memset(b, 0, sizeof *b);
    if (opt->device == MODEL_DEVICE_CPU)
        return open_cpu(ops, opt, e);
    if (opt->device == MODEL_DEVICE_CUDA) {
        enum err_code rc = open_cuda(b, ops, opt, &why);
        return rc ? err_set(e, rc, "device cuda: %s", why.message) : ERR_OK;
    }
    if (open_cuda(b, ops, opt, &why) == ERR_OK) {
        snprintf(b->note, sizeof b->note, "computes on the GPU (--device auto)");
        return ERR_OK;
    }
    snprintf(b->note, sizeof b->note, "computes on the CPU: %s", why.message);
    return open_cpu(ops, opt, e);
}

enum err_code model_backend_open(struct backend *b, struct ops *ops,
                                 const struct model_options *opt, struct err *e)
{
    enum err_code rc = choose(b, ops, opt, e);

    if (rc == ERR_OK)
        name_kernels(b, ops);
    return rc;
}

void model_backend_close(struct backend *b, struct ops *ops)
{
    if (ops->close != NULL)
        ops->close(ops->self);
    plugin_close(b->plugin);
    memset(ops, 0, sizeof *ops);
    b->plugin = NULL;
}
