/* kv_layout.c: grouping of layers, and the byte and block arithmetic of it.
 * Pure functions over the caller's storage; any thread. */
#include "proto/plan/kv_layout.h"

#include <stdbool.h>
#include <string.h>

enum { MIN_BLOCK_TOKENS = 16, MAX_BLOCK_TOKENS = 256, MAX_WIDTH = 65536, MAX_HEADS = 4096 };

/* One attention kind of the model: layers that may share a group. */
struct kind_count {
    enum kv_kind kind;
    uint32_t window, n_layers;
    uint32_t first_group; /* set once the group size is known */
    uint32_t next;        /* layers placed so far */
};

static const char *kind_name(enum kv_kind k)
{
    return k == KV_FULL ? "full" : k == KV_WINDOW ? "window" : "latent";
}

static enum err_code check_layer(const struct kv_layer_desc *d, const struct kv_layer_desc *first,
                                 uint32_t layer, struct err *e)
{
    if (d->kind != KV_FULL && d->kind != KV_WINDOW && d->kind != KV_LATENT)
        return err_set(e, ERR_INVALID, "layer %u: unknown attention kind %d", layer, (int)d->kind);
    if (d->kind == KV_WINDOW && d->window == 0)
        return err_set(e, ERR_INVALID, "layer %u: window 0: expected at least 1 token", layer);
    if (d->kind != KV_WINDOW && d->window != 0)
        return err_set(e, ERR_INVALID, "layer %u: window %u on a %s layer: expected 0", layer,
                       d->window, kind_name(d->kind));
    if (d->kv_heads == 0 || d->kv_heads > MAX_HEADS || d->k_width == 0 || d->k_width > MAX_WIDTH ||
        d->v_width > MAX_WIDTH)
        return err_set(e, ERR_INVALID,
                       "layer %u: kv_heads %u, widths K %u V %u: expected 1..%d heads, 1..%d "
                       "channels",
                       layer, d->kv_heads, d->k_width, d->v_width, MAX_HEADS, MAX_WIDTH);
    if (d->kind == KV_LATENT && (d->kv_heads != 1 || d->v_width != 0))
        return err_set(e, ERR_INVALID,
                       "layer %u: latent with kv_heads %u, V width %u: expected 1 and 0", layer,
                       d->kv_heads, d->v_width);
    if (d->kind != KV_LATENT && d->v_width == 0)
        return err_set(e, ERR_INVALID, "layer %u: V width 0 on a %s layer", layer,
                       kind_name(d->kind));
    if (d->kv_heads != first->kv_heads || d->k_width != first->k_width ||
        d->v_width != first->v_width)
        return err_set(e, ERR_INVALID,
                       "layer %u: kv_heads %u, widths K %u V %u: layer 0 has %u, %u and %u", layer,
                       d->kv_heads, d->k_width, d->v_width, first->kv_heads, first->k_width,
                       first->v_width);
    return ERR_OK;
}

/* Position of the layer's kind in kinds[], adding it when new; -1: no room. */
static int find_kind(struct kind_count *kinds, uint32_t *n, const struct kv_layer_desc *d)
{
    for (uint32_t i = 0; i < *n; i++)
        if (kinds[i].kind == d->kind && kinds[i].window == d->window)
            return (int)i;
    if (*n == KV_GROUPS)
        return -1;
    kinds[*n] = (struct kind_count){ .kind = d->kind, .window = d->window };
    return (int)(*n)++;
}

static uint32_t groups_of(const struct kind_count *kinds, uint32_t n_kinds, uint32_t per_group)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_kinds; i++)
        n += (kinds[i].n_layers + per_group - 1) / per_group;
    return n;
}

/* Fewest groups whose padding stays within an eighth of the layers; where no
 * size does, least padding.  Every group costs the step a table and a slot
 * array, so a little padding is the cheaper of the two.  0: none fits. */
static uint32_t choose_size(const struct kind_count *kinds, uint32_t n_kinds, uint32_t n_layers)
{
    uint32_t best = 0, best_groups = 0, best_pad = 0;
    for (uint32_t m = 1; m <= n_layers; m++) {
        uint32_t g = groups_of(kinds, n_kinds, m), pad = g * m - n_layers;
        if (g > KV_GROUPS)
            continue;
        bool small = pad * 8 <= n_layers, best_small = best_pad * 8 <= n_layers;
        bool better = best == 0 || (small && !best_small);
        if (!better && small == best_small)
            better = small ? g < best_groups || (g == best_groups && pad < best_pad)
                           : pad < best_pad || (pad == best_pad && g < best_groups);
        if (better) {
            best = m;
            best_groups = g;
            best_pad = pad;
        }
    }
    return best;
}

/* Full and latent kinds first, windows after them, each in order of layers. */
static void place_groups(struct kv_layout *out, struct kind_count *kinds, uint32_t n_kinds)
{
    for (int windowed = 0; windowed < 2; windowed++)
        for (uint32_t i = 0; i < n_kinds; i++) {
            if ((kinds[i].kind == KV_WINDOW) != windowed)
                continue;
            kinds[i].first_group = out->n_groups;
            for (uint32_t left = kinds[i].n_layers; left > 0;) {
                uint32_t n = left < out->layers_per_group ? left : out->layers_per_group;
                out->group[out->n_groups++] = (struct kv_group){ .kind = kinds[i].kind,
                                                                 .window = kinds[i].window,
                                                                 .n_layers = n };
                left -= n;
            }
        }
}

enum err_code kv_layout_init(struct kv_layout *out, const struct kv_layer_desc *layers,
                             uint32_t n_layers, uint32_t block_tokens, enum kv_dtype k_dtype,
                             enum kv_dtype v_dtype, struct err *e)
{
    struct kind_count kinds[KV_GROUPS];
    uint32_t n_kinds = 0;

    if (n_layers == 0 || n_layers > KV_LAYERS)
        return err_set(e, ERR_INVALID, "%u layers: expected 1..%d", n_layers, KV_LAYERS);
    if (block_tokens < MIN_BLOCK_TOKENS || block_tokens > MAX_BLOCK_TOKENS ||
        (block_tokens & (block_tokens - 1)) != 0)
        return err_set(e, ERR_INVALID, "block size %u: expected a power of two in %d..%d",
                       block_tokens, MIN_BLOCK_TOKENS, MAX_BLOCK_TOKENS);
    if (kv_dtype_bytes(k_dtype) == 0 || kv_dtype_bytes(v_dtype) == 0)
        return err_set(e, ERR_INVALID, "unknown cache type: K %d, V %d", (int)k_dtype,
                       (int)v_dtype);
    for (uint32_t l = 0; l < n_layers; l++) {
        enum err_code rc = check_layer(&layers[l], &layers[0], l, e);
        if (rc != ERR_OK)
            return rc;
        int k = find_kind(kinds, &n_kinds, &layers[l]);
        if (k < 0)
            return err_set(e, ERR_INVALID,
                           "layer %u: window %u is attention kind number %d: at most %d", l,
                           layers[l].window, KV_GROUPS + 1, KV_GROUPS);
        kinds[k].n_layers++;
    }
    uint32_t per_group = choose_size(kinds, n_kinds, n_layers);
    if (per_group == 0)
        return err_set(e, ERR_INVALID, "%u layers of %u attention kinds need more than %d groups",
                       n_layers, n_kinds, KV_GROUPS);

    memset(out, 0, sizeof *out);
    out->block_tokens = block_tokens;
    out->layers_per_group = per_group;
    out->kv_heads = layers[0].kv_heads;
    out->k_width = layers[0].k_width;
    out->v_width = layers[0].v_width;
    out->k_dtype = k_dtype;
    out->v_dtype = v_dtype;
    out->n_layers = n_layers;
    place_groups(out, kinds, n_kinds);
    for (uint32_t l = 0; l < n_layers; l++) {
        struct kind_count *k = &kinds[find_kind(kinds, &n_kinds, &layers[l])];
        out->layer_group[l] = (uint16_t)(k->first_group + k->next / per_group);
        out->layer_slab[l] = (uint16_t)(k->next % per_group);
        k->next++;
    }
    return ERR_OK;
}

uint32_t kv_dtype_bytes(enum kv_dtype d)
{
    switch (d) {
    case KV_F32:
        return 4;
    case KV_F16:
    case KV_BF16:
        return 2;
    case KV_INT8:
    case KV_E4M3:
        return 1;
    }
    return 0;
}

uint64_t kv_layout_k_slab_bytes(const struct kv_layout *lay, uint32_t n_blocks)
{
    return (uint64_t)n_blocks * lay->block_tokens * lay->kv_heads * lay->k_width *
           kv_dtype_bytes(lay->k_dtype);
}

uint64_t kv_layout_v_slab_bytes(const struct kv_layout *lay, uint32_t n_blocks)
{
    return (uint64_t)n_blocks * lay->block_tokens * lay->kv_heads * lay->v_width *
           kv_dtype_bytes(lay->v_dtype);
}

uint64_t kv_layout_block_bytes(const struct kv_layout *lay)
{
    return lay->layers_per_group *
           (kv_layout_k_slab_bytes(lay, 1) + kv_layout_v_slab_bytes(lay, 1));
}

uint64_t kv_layout_blocks_for(const struct kv_layout *lay, uint64_t n_tokens, uint32_t chunk)
{
    uint64_t b = lay->block_tokens, all = n_tokens / b + (n_tokens % b != 0), sum = 0;
    if (chunk == 0)
        chunk = 1;
    for (uint32_t g = 0; g < lay->n_groups; g++) {
        uint64_t n = all;
        if (lay->group[g].window != 0) {
            uint64_t ring = ((uint64_t)lay->group[g].window + chunk - 1 + b - 1) / b + 1;
            n = ring < n ? ring : n;
        }
        sum += n;
    }
    return sum;
}
