/* families.h: what distinguishes one architecture from the next: a table row.
 *
 * The layer loop, the loader and the config reader know features, never
 * architectures; a new family is a new row (and a feature where it truly
 * computes something new).  Constant data; any thread. */
#ifndef MODEL_LOAD_FAMILIES_H
#define MODEL_LOAD_FAMILIES_H

#include <stddef.h>
#include <stdint.h>

#include "model/load/config.h"

enum family_features {
    FAMILY_QKV_BIAS = 1 << 0,         /* q, k, v always biased                         */
    FAMILY_BIAS_KEYS = 1 << 1,        /* attention_bias and mlp_bias decide            */
    FAMILY_PACKED_QKV = 1 << 2,       /* one qkv_proj                                  */
    FAMILY_PACKED_GATE_UP = 1 << 3,   /* one gate_up_proj, gate rows first             */
    FAMILY_NORM_PLUS_ONE = 1 << 4,    /* norm weights are stored minus one             */
    FAMILY_SCALED_EMBED = 1 << 5,     /* embeddings times sqrt(hidden)                 */
    FAMILY_QK_NORM_HEAD = 1 << 6,     /* RMS norm of each q and k head                 */
    FAMILY_QK_NORM_FULL = 1 << 7,     /* RMS norm over the whole q and k projection    */
    FAMILY_SINKS = 1 << 8,            /* a logit a head that only takes probability    */
    FAMILY_MLA = 1 << 9,              /* latent attention                              */
    FAMILY_WINDOW_ALL = 1 << 10,      /* sliding_window on every layer                 */
    FAMILY_WINDOW_EVEN = 1 << 11,     /* on even layers                                */
    FAMILY_WINDOW_PATTERN = 1 << 12,  /* but every sliding_window_pattern-th layer     */
    FAMILY_WINDOW_SWITCH = 1 << 13,   /* use_sliding_window, from max_window_layers on */
    FAMILY_LOCAL_ROPE = 1 << 14,      /* windowed layers rotate by their own base      */
    FAMILY_NO_ROPE_LAYERS = 1 << 15,  /* some layers do not rotate                     */
    FAMILY_QUERY_SCALAR = 1 << 16,    /* softmax scale query_pre_attn_scalar^-1/2      */
    FAMILY_TIED = 1 << 17,            /* tie_word_embeddings unless told otherwise     */
    FAMILY_MOE = 1 << 18,             /* has expert layers                             */
    FAMILY_STACKED_EXPERTS = 1 << 19, /* all experts in one tensor, (in, out) each     */
    FAMILY_NORM_TOPK = 1 << 20        /* chosen experts' weights sum to 1 unless told otherwise */
};

/* Names of an MoE layer's tensors below model.layers.N. */
struct moe_names {
    const char *router, *experts, *gate, *up, *down, *shared;
};

enum { NORM_PRE_ATTN, NORM_POST_ATTN, NORM_PRE_FFN, NORM_POST_FFN, NORM_KINDS };

struct family {
    const char *architecture;
    unsigned features;
    const char *norm[NORM_KINDS]; /* NULL: the layer has none there */
    enum act_kind act;            /* when config.json does not say  */
    uint32_t head_dim;            /* default; 0: hidden / heads     */
    double rope_theta, partial;   /* defaults                       */
    enum routing_kind routing;
    const struct moe_names *moe;
};

/* NULL when the architecture is not served. */
const struct family *model_family_find(const char *architecture);
/* All names, comma-separated, for messages; cut where they do not fit in size bytes. */
void model_family_list(char *out, size_t size);

#endif
