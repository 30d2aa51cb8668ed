/* kv_slabs.c: see kv_slabs.h. */
#include "attention/kv_slabs.h"

#include <stdlib.h>
#include <string.h>

struct attn_kv {
    struct attn *attn; /* borrowed */
    struct kv_layout lay;
    uint32_t n_blocks;
    uint32_t n_slabs; /* pairs */
    void **k, **v;    /* [n_slabs]; v all NULL without V */
};

_Static_assert((int)KV_F32 == (int)ATTN_F32 && (int)KV_F16 == (int)ATTN_F16 &&
                   (int)KV_BF16 == (int)ATTN_BF16 && (int)KV_INT8 == (int)ATTN_INT8 &&
                   (int)KV_E4M3 == (int)ATTN_E4M3,
               "kv_dtype and attn_dtype agree");

enum attn_dtype attn_dtype_of_kv(enum kv_dtype d)
{
    return (enum attn_dtype)d;
}

static enum err_code map_slabs(struct attn_kv *kv, struct err *e)
{
    const struct attn_backend *b = attn_backend_of(kv->attn);
    void *self = attn_backend_self(kv->attn);
    size_t k_bytes = kv_layout_k_slab_bytes(&kv->lay, kv->n_blocks);
    size_t v_bytes = kv_layout_v_slab_bytes(&kv->lay, kv->n_blocks);
    enum err_code rc = ERR_OK;
    for (uint32_t i = 0; rc == ERR_OK && i < kv->n_slabs; i++) {
        rc = b->map(self, k_bytes, &kv->k[i], e);
        if (rc == ERR_OK && kv->lay.v_width > 0)
            rc = b->map(self, v_bytes, &kv->v[i], e);
    }
    return rc;
}

enum err_code attn_kv_create(struct attn_kv **out, struct attn *a, const struct kv_layout *lay,
                             uint32_t n_blocks, struct err *e)
{
    struct attn_kv *kv = calloc(1, sizeof *kv);
    enum err_code rc;
    if (kv == NULL)
        return err_nomem(e, "KV slabs", sizeof *kv);
    kv->attn = a;
    kv->lay = *lay;
    kv->n_blocks = n_blocks;
    kv->n_slabs = lay->layers_per_group;
    kv->k = calloc(2 * (size_t)kv->n_slabs + 1, sizeof *kv->k);
    if (kv->k == NULL) {
        free(kv);
        return err_nomem(e, "KV slab table", 2 * lay->layers_per_group * sizeof(void *));
    }
    kv->v = kv->k + kv->n_slabs;
    rc = map_slabs(kv, e);
    if (rc) {
        attn_kv_destroy(kv);
        return rc;
    }
    *out = kv;
    return ERR_OK;
}

void attn_kv_destroy(struct attn_kv *kv)
{
    const struct attn_backend *b;
    void *self;
    if (kv == NULL)
        return;
    b = attn_backend_of(kv->attn);
    self = attn_backend_self(kv->attn);
    for (uint32_t i = 0; i < kv->n_slabs; i++) {
        if (kv->k[i] != NULL)
            b->unmap(self, kv->k[i], kv_layout_k_slab_bytes(&kv->lay, kv->n_blocks));
        if (kv->v[i] != NULL)
            b->unmap(self, kv->v[i], kv_layout_v_slab_bytes(&kv->lay, kv->n_blocks));
    }
    free(kv->k);
    free(kv);
}

static struct attn_tensor view(const struct attn_kv *kv, void *data, enum kv_dtype d,
                               uint32_t width)
{
    struct attn_tensor t = attn_view(data, attn_dtype_of_kv(d), 4, kv->n_blocks,
                                     kv->lay.block_tokens, kv->lay.kv_heads, width);
    t.device = attn_backend_of(kv->attn)->device;
    return t;
}

struct attn_tensor attn_kv_key(const struct attn_kv *kv, uint32_t layer)
{
    return view(kv, kv->k[kv->lay.layer_slab[layer]], kv->lay.k_dtype, kv->lay.k_width);
}

struct attn_tensor attn_kv_value(const struct attn_kv *kv, uint32_t layer)
{
    if (kv->lay.v_width == 0)
        return (struct attn_tensor){ 0 };
    return view(kv, kv->v[kv->lay.layer_slab[layer]], kv->lay.v_dtype, kv->lay.v_width);
}

uint32_t attn_kv_n_blocks(const struct attn_kv *kv)
{
    return kv->n_blocks;
}

uint64_t attn_kv_bytes(const struct attn_kv *kv)
{
    uint64_t k = kv_layout_k_slab_bytes(&kv->lay, kv->n_blocks);
    uint64_t v = kv->lay.v_width > 0 ? kv_layout_v_slab_bytes(&kv->lay, kv->n_blocks) : 0;
    return kv->n_slabs * (k + v);
}

_Static_assert(sizeof(struct plan_copy) == 2 * sizeof(int32_t), "a copy is two block ids");

enum err_code attn_kv_copy(struct attn_kv *kv, const struct plan_copy *copy, uint32_t n_copies,
                           void *stream, struct err *e)
{
    const struct attn_backend *b = attn_backend_of(kv->attn);
    void *self = attn_backend_self(kv->attn);
    enum err_code rc = ERR_OK;
    for (uint32_t i = 0; i < n_copies; i++)
        if (copy[i].from < 0 || (uint32_t)copy[i].from >= kv->n_blocks || copy[i].to < 0 ||
            (uint32_t)copy[i].to >= kv->n_blocks)
            return err_set(e, ERR_INVALID, "block copy %u: %d to %d, expected ids below %u", i,
                           copy[i].from, copy[i].to, kv->n_blocks);
    if (n_copies == 0)
        return ERR_OK;
    for (uint32_t i = 0; rc == ERR_OK && i < kv->n_slabs; i++) {
        const int32_t *ids = (const int32_t *)copy;
        rc = b->copy_blocks(self, kv->k[i], kv_layout_k_slab_bytes(&kv->lay, 1), ids, n_copies,
                            stream, e);
        if (rc == ERR_OK && kv->v[i] != NULL)
            rc = b->copy_blocks(self, kv->v[i], kv_layout_v_slab_bytes(&kv->lay, 1), ids, n_copies,
                                stream, e);
    }
    return rc;
}

enum err_code attn_kv_poison_init(struct attn_kv *kv, struct err *e)
{
    const struct attn_backend *b = attn_backend_of(kv->attn);
    void *self = attn_backend_self(kv->attn);
    size_t k = kv_layout_k_slab_bytes(&kv->lay, 1), v = kv_layout_v_slab_bytes(&kv->lay, 1);
    size_t last = kv->n_blocks - 1;
    unsigned char *nan = malloc(k > v ? k : v);
    enum err_code rc = ERR_OK;
    if (nan == NULL)
        return err_nomem(e, "a poisoned KV block", k > v ? k : v);
    memset(nan, 0xFF, k > v ? k : v); /* NaN in every float type */
    for (uint32_t i = 0; rc == ERR_OK && i < kv->n_slabs; i++) {
        rc = b->copy_in(self, (char *)kv->k[i] + last * k, nan, k, e);
        if (rc == ERR_OK && kv->v[i] != NULL)
            rc = b->copy_in(self, (char *)kv->v[i] + last * v, nan, v, e);
    }
    free(nan);
    return rc;
}

enum err_code attn_kv_poison(struct attn_kv *kv, const struct step_plan *p, void *stream,
                             struct err *e)
{
    enum { AT_ONCE = 64 };
    struct plan_copy copy[AT_ONCE];
    uint32_t n = 0;
    for (uint32_t g = 0; g < p->n_groups; g++)
        for (uint32_t t = 0; t < p->n_tokens; t++) {
            int32_t slot = p->slot_mapping[g][t];
            if (slot < 0 || (uint32_t)slot % kv->lay.block_tokens != 0)
                continue;
            copy[n++] = (struct plan_copy){ (blk_id)kv->n_blocks - 1,
                                            slot / (int32_t)kv->lay.block_tokens };
            enum err_code rc = n == AT_ONCE ? attn_kv_copy(kv, copy, n, stream, e) : ERR_OK;
            if (rc != ERR_OK)
                return rc;
            n = n == AT_ONCE ? 0 : n;
        }
    return attn_kv_copy(kv, copy, n, stream, e);
}
