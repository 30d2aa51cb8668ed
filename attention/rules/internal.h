/* internal.h: what the files of rules share.
 *
 * Private to attention/rules.  Pure functions; any thread. */
#ifndef ATTENTION_RULES_INTERNAL_H
#define ATTENTION_RULES_INTERNAL_H

#include "attention/rules/rules.h"

#define A(c)                  ((c)->attrs)
#define IN(c, i)              (&(c)->args->in[i])
#define OUT(c, o)             (&(c)->args->out[o])
#define HAS(c, i)             attn_present(IN(c, i))
#define LATENT(c)             (A(c)->kv_cache_layout == ATTN_LATENT)
#define INVALID(e, name, ...) err_set_param((e), ERR_INVALID, (name), __VA_ARGS__)

struct attn_rule_set {
    const struct attn_rule *rule;
    size_t n;
};

/* Applied in this order: a later rule relies on what earlier ones established. */
extern const struct attn_rule_set attn_attr_rules;   /* attributes, LATENT's exclusions */
extern const struct attn_rule_set attn_tensor_rules; /* form, device, presence, types   */
extern const struct attn_rule_set attn_shape_rules;  /* shapes, and the plan's numbers   */
extern const struct attn_rule_set attn_rest_rules;   /* quantisation, bounds, outputs    */

/* "(25, 256)" */
const char *attn_rule_shape_text(const struct attn_tensor *t, char buf[100]);

/* ERR_INVALID with found and expected unless t has this shape (rank). */
enum err_code attn_rule_want_shape(const char *name, const struct attn_tensor *t, int32_t rank,
                                   int64_t d0, int64_t d1, int64_t d2, int64_t d3, struct err *e);
enum err_code attn_rule_want_rank(const char *name, const struct attn_tensor *t, int32_t rank,
                                  struct err *e);

#endif
