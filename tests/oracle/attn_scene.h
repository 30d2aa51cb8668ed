/* attn_scene.h: random calls of the attention operator, apart from where their
 * bytes lie.
 *
 * A scene is the logical content of a call: sequences, their history row by row,
 * new tokens, features.  scene_build lays it out in a cache under a chosen block
 * size, block order, slot form and poison, so that a property can say: whatever
 * the layout, the results are the same bytes.  Owns its memory.  One thread. */
#ifndef TESTS_ORACLE_ATTN_SCENE_H
#define TESTS_ORACLE_ATTN_SCENE_H

#include "attention/attn.h"
#include "support/rng.h"

enum { SCENE_SEQS = 12 };

struct scene {
    struct attn_attrs attrs;
    enum attn_dtype dtype, cache;
    bool packed, latent;
    int32_t head_size, v_head_size, kv_heads;
    int32_t n_seqs, n_tokens, n_padding; /* n_tokens with padding */
    int32_t q_len[SCENE_SEQS], past[SCENE_SEQS];
    /* Rows in T: [token][heads][width]; cache rows [seq][position], kv_len each. */
    char *query, *key, *value;
    char *k_hist[SCENE_SEQS], *v_hist[SCENE_SEQS];
    size_t k_row, v_row; /* bytes of a cache row over KV heads; v_row 0 without V */
    bool *suppress;      /* [n_tokens], or NULL: token is not stored */
    int32_t *positions;  /* [n_tokens], or NULL */
    struct attn_tensor cos_, sin_, sink, q_norm, k_norm, k_scale, v_scale, bias;
    int32_t hole_from, hole_to; /* positions [from, to) of sequence 0 are unmapped,
                                 * multiples of 256; equal: none */
    enum attn_dtype qk_dtype;
};

struct layout {
    int32_t block_size;
    uint64_t seed;       /* order of physical blocks */
    int32_t spare;       /* blocks that nobody uses  */
    bool explicit_slots; /* else derived, which needs !suppress */
    int32_t bounds;      /* 0 absent, 1 tight, 2 loose */
    uint8_t poison;      /* byte of all storage that the call must not read */
};

/* A call in memory.  args and attrs go to attn_plan as they are. */
struct built {
    struct attn_attrs attrs;
    struct attn_args args;
    int32_t meta[2];
    void *owned[ATTN_INPUTS + ATTN_OUTPUTS];
};

/* What a random scene may contain. */
struct scene_wish {
    enum attn_dtype dtype;
    int32_t max_seqs, max_past, max_new, head_size; /* head_size 0: random */
    bool plain;                                     /* no feature at all beyond the shape */
    bool no_bias, no_qk, no_positions, no_holes, no_suppress, separate, float_cache;
};

struct scene *scene_random(struct rng *r, const struct scene_wish *wish);
void scene_free(struct scene *s);

/* Tokens [from, from + n) of sequence b alone, its past raised by what came
 * before; history rows are shared copies. */
struct scene *scene_cut(const struct scene *s, int32_t b, int32_t from, int32_t n);

/* Raise or lower nothing, lay the scene out. */
void scene_build(const struct scene *s, const struct layout *l, struct built *out);
void built_free(struct built *b);

/* Run a built call on a handle; fails the test with the message otherwise. */
void built_run(struct attn *a, struct built *b);

/* Cache rows of sequence b after a run back into the scene's history. */
void scene_absorb(struct scene *s, const struct built *built, int32_t b);

/* Whether every mapped cache row holds the same bytes in both. */
bool built_same_rows(const struct scene *s, const struct built *x, const struct built *y);

/* Slot of a position by the block table; -1 where unmapped. */
int64_t built_slot(const struct built *b, int32_t seq, int64_t pos);

int64_t scene_first_token(const struct scene *s, int32_t b);
size_t built_bytes(const struct attn_tensor *t);

#endif
