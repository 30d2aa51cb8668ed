/* kv_fixture.h: small layouts and pools for tests of kvpool and scheduler.
 *
 * pool_of(.blocks = 8, .windows = {0, 64}) makes a pool whose layer groups have
 * the given windows (0: full attention), 16 tokens a block unless said. */
#ifndef TESTS_SUPPORT_KV_FIXTURE_H
#define TESTS_SUPPORT_KV_FIXTURE_H

#include "kvpool/kvpool.h"
#include "support/test.h"

struct pool_spec {
    uint32_t blocks, block_tokens, seqs, seq_tokens, chunk, boundary, hash_bits;
    bool no_caching;
    uint32_t n_groups; /* 0: 1 */
    uint32_t windows[KV_GROUPS];
};

/* One layer a group, whatever the windows: two full groups are two groups. */
static inline struct kv_layout layout_of(const struct pool_spec *spec)
{
    struct kv_layout lay = { .block_tokens = spec->block_tokens > 0 ? spec->block_tokens : 16,
                             .n_groups = spec->n_groups > 0 ? spec->n_groups : 1,
                             .layers_per_group = 1,
                             .kv_heads = 1,
                             .k_width = 8,
                             .v_width = 8 };
    lay.n_layers = lay.n_groups;
    for (uint32_t g = 0; g < lay.n_groups; g++) {
        lay.group[g] = (struct kv_group){ .kind = spec->windows[g] > 0 ? KV_WINDOW : KV_FULL,
                                          .window = spec->windows[g],
                                          .n_layers = 1 };
        lay.layer_group[g] = (uint16_t)g;
    }
    return lay;
}

static inline struct kvpool_config config_of(const struct pool_spec *spec)
{
    return (struct kvpool_config){
        .n_blocks = spec->blocks,
        .max_seqs = spec->seqs > 0 ? spec->seqs : 16,
        .max_seq_tokens = spec->seq_tokens > 0 ? spec->seq_tokens : 8192,
        .max_chunk = spec->chunk > 0 ? spec->chunk : 8192,
        .prefix_caching = !spec->no_caching,
        .boundary_blocks = spec->boundary,
        .hash_bits = spec->hash_bits,
    };
}

static inline struct kvpool *pool_from(struct pool_spec spec)
{
    struct kv_layout lay = layout_of(&spec);
    struct kvpool_config cfg = config_of(&spec);
    struct kvpool *p = NULL;
    struct err e;
    assert_ok(kvpool_create(&p, &lay, &cfg, &e), e);
    return p;
}

#define pool_of(...) pool_from((struct pool_spec){ __VA_ARGS__ })

/* Tokens of a text: a distinct one for each seed. */
static inline int32_t token_at(uint32_t seed, uint32_t pos)
{
    return (int32_t)((seed * 2654435761u + pos * 40503u) >> 8 & 0x7fffff);
}

static inline void fill_text(int32_t *out, uint32_t seed, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = token_at(seed, i);
}

#define assert_ledger(p)                                                                           \
    do {                                                                                           \
        struct err le_;                                                                            \
        assert_ok(kvpool_check(p, &le_), le_);                                                     \
    } while (0)

#endif
