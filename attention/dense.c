/* dense.c: the rules of the contiguous entry point (attn_dense_*).
 *
 * Pure functions; any thread.  Each message names the tensor, what was found
 * and what is expected. */
#include <math.h>

#include "attention/rules/rules.h"

#define INVALID(e, name, ...) err_set_param((e), ERR_INVALID, (name), __VA_ARGS__)

static enum err_code form(const char *name, const struct attn_tensor *t, int32_t rank,
                          enum attn_dtype dtype, enum attn_device device, struct err *e)
{
    if (t->rank != rank)
        return INVALID(e, name, "%s: rank %d, expected %d", name, t->rank, rank);
    if (t->dtype != dtype)
        return INVALID(e, name, "%s: %s, expected %s", name, attn_dtype_name(t->dtype),
                       attn_dtype_name(dtype));
    if (t->device != device)
        return INVALID(e, name, "%s: on %s, expected on %s", name, attn_device_name(t->device),
                       attn_device_name(device));
    for (int i = 0; i < rank; i++)
        if (t->shape[i] < 0 || t->shape[i] > INT32_MAX)
            return INVALID(e, name, "%s: dimension %d is %lld, expected 0 to %d", name, i,
                           (long long)t->shape[i], INT32_MAX);
    return ERR_OK;
}

static enum err_code want_dim(const char *name, const struct attn_tensor *t, int i, int64_t want,
                              struct err *e)
{
    if (t->shape[i] == want)
        return ERR_OK;
    return INVALID(e, name, "%s: dimension %d is %lld, expected %lld", name, i,
                   (long long)t->shape[i], (long long)want);
}

static enum err_code check_attrs(const struct attn_dense *d, struct err *e)
{
    if (d->num_heads < 1 || d->kv_num_heads < 1 || d->num_heads % d->kv_num_heads != 0)
        return INVALID(e, "num_heads",
                       "num_heads: %d, expected a positive multiple of kv_num_heads %d",
                       d->num_heads, d->kv_num_heads);
    if (!isfinite(d->scale) || d->scale <= 0)
        return INVALID(e, "scale", "scale: %g, expected an explicit number above 0",
                       (double)d->scale);
    if (!isfinite(d->softcap) || d->softcap < 0)
        return INVALID(e, "softcap", "softcap: %g, expected a finite number of at least 0",
                       (double)d->softcap);
    if (d->local_window_size != -1 && d->local_window_size < 1)
        return INVALID(e, "local_window_size", "local_window_size: %d, expected -1 or at least 1",
                       d->local_window_size);
    if (d->k_quant_type < 0 || d->k_quant_type >= ATTN_QUANTS)
        return INVALID(e, "k_quant_type", "k_quant_type: unknown value %d", d->k_quant_type);
    return ERR_OK;
}

static enum err_code check_rows(const struct attn_dense *d, enum attn_device device, struct err *e)
{
    enum attn_dtype t = d->query.dtype;
    int64_t n = d->query.shape[0], k_width;
    enum err_code rc;
    if (t != ATTN_F16 && t != ATTN_BF16 && !(t == ATTN_F32 && device == ATTN_HOST))
        return INVALID(e, "query", "query: %s, expected float16, bfloat16 or, on the host, float32",
                       attn_dtype_name(t));
    if ((rc = form("query", &d->query, 2, t, device, e)) ||
        (rc = form("key", &d->key, 2, t, device, e)) ||
        (rc = form("value", &d->value, 2, t, device, e)) ||
        (rc = form("output", &d->output, 2, t, device, e)) ||
        (rc = form("cumulative_sequence_length", &d->cu_seqlens, 1, ATTN_I32, device, e)))
        return rc;
    k_width = d->query.shape[1] / d->num_heads;
    if (k_width == 0 || k_width % 8 != 0 || d->query.shape[1] % d->num_heads != 0)
        return INVALID(e, "query", "query: width %lld, expected num_heads %d times a multiple of 8",
                       (long long)d->query.shape[1], d->num_heads);
    if (d->value.shape[1] == 0 || d->value.shape[1] % (8 * (int64_t)d->kv_num_heads) != 0)
        return INVALID(e, "value",
                       "value: width %lld, expected kv_num_heads %d times a multiple of 8",
                       (long long)d->value.shape[1], d->kv_num_heads);
    if (d->cu_seqlens.shape[0] < 2)
        return INVALID(e, "cumulative_sequence_length",
                       "cumulative_sequence_length: %lld entries, expected batch_size + 1 with "
                       "batch_size at least 1",
                       (long long)d->cu_seqlens.shape[0]);
    if ((rc = want_dim("key", &d->key, 0, n, e)) ||
        (rc = want_dim("key", &d->key, 1, d->kv_num_heads * k_width, e)) ||
        (rc = want_dim("value", &d->value, 0, n, e)) ||
        (rc = want_dim("output", &d->output, 0, n, e)))
        return rc;
    return want_dim("output", &d->output, 1,
                    d->value.shape[1] / d->kv_num_heads * (int64_t)d->num_heads, e);
}

static enum err_code check_latent_write(const struct attn_dense *d, enum attn_device device,
                                        struct err *e)
{
    bool there = attn_present(&d->latent);
    bool quant = d->k_quant_type != ATTN_QUANT_NONE;
    enum attn_dtype cache = d->latent_cache.dtype;
    int64_t width = d->latent.shape[1], b = d->latent_cache.shape[1];
    enum err_code rc;
    if (there != attn_present(&d->latent_cache) || there != attn_present(&d->slot_mapping))
        return INVALID(e, "latent", "latent, latent_cache, slot_mapping: expected all or none");
    if (attn_present(&d->k_scale) != (there && quant))
        return INVALID(e, "k_scale", "k_scale: %s, expected %s",
                       attn_present(&d->k_scale) ? "present" : "absent",
                       attn_present(&d->k_scale) ? "absent" : "present");
    if (!there)
        return ERR_OK;
    if (quant ? cache != ATTN_INT8 && cache != ATTN_E4M3 : cache != d->query.dtype)
        return INVALID(e, "latent_cache", "latent_cache: %s does not fit the quant type",
                       attn_dtype_name(cache));
    if ((rc = form("latent", &d->latent, 2, d->query.dtype, device, e)) ||
        (rc = form("latent_cache", &d->latent_cache, 4, cache, device, e)) ||
        (rc = form("slot_mapping", &d->slot_mapping, 1, ATTN_I32, device, e)) ||
        (rc = want_dim("latent", &d->latent, 0, d->query.shape[0], e)) ||
        (rc = want_dim("slot_mapping", &d->slot_mapping, 0, d->query.shape[0], e)) ||
        (rc = want_dim("latent_cache", &d->latent_cache, 2, 1, e)) ||
        (rc = want_dim("latent_cache", &d->latent_cache, 3, width, e)))
        return rc;
    if (width == 0 || width % 8 != 0)
        return INVALID(e, "latent", "latent: width %lld, expected a multiple of 8",
                       (long long)width);
    if (b < 16 || (b & (b - 1)) != 0)
        return INVALID(e, "latent_cache",
                       "latent_cache: block_size %lld, expected a power of two of at least 16",
                       (long long)b);
    if (!quant)
        return ERR_OK;
    if (d->k_quant_type == ATTN_PER_TENSOR)
        return (rc = form("k_scale", &d->k_scale, 1, ATTN_F32, device, e))
                   ? rc
                   : want_dim("k_scale", &d->k_scale, 0, 1, e);
    if ((rc = form("k_scale", &d->k_scale, 3, ATTN_F32, device, e)) ||
        (rc = want_dim("k_scale", &d->k_scale, 0, 1, e)) ||
        (rc = want_dim("k_scale", &d->k_scale, 1, 1, e)))
        return rc;
    return want_dim("k_scale", &d->k_scale, 2, width, e);
}

enum err_code attn_dense_validate(const struct attn_dense *d, enum attn_device device,
                                  struct err *e)
{
    enum err_code rc = check_attrs(d, e);
    if (rc == ERR_OK)
        rc = check_rows(d, device, e);
    return rc ? rc : check_latent_write(d, device, e);
}
