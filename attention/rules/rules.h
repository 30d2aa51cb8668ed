/* rules.h: the operator's rules, as a table.
 *
 * Private to attention/ and its tests.  Pure functions; any thread. */
#ifndef ATTENTION_RULES_RULES_H
#define ATTENTION_RULES_RULES_H

#include "attention/attn.h"

/* What a rule sees: the call, and what earlier rules derived from it (in plan:
 * everything but backend, kernel, workspace and private_). */
struct attn_call {
    const struct attn_attrs *attrs;
    const struct attn_args *args;
    enum attn_device device;
    uint64_t qk_bytes_limit;
    struct attn_plan *plan;
};

struct attn_rule {
    const char *name;
    enum err_code (*check)(struct attn_call *c, struct err *e);
};

/* The rules in the order they are applied; NULL past the last. */
size_t attn_rule_count(void);
const struct attn_rule *attn_rule_at(size_t i);

/* Apply every rule; on the first that fails, *failed (when not NULL) names it. */
MUST_USE enum err_code attn_validate(struct attn_call *c, const struct attn_rule **failed,
                                     struct err *e);

/* The dense entry point's rules. */
MUST_USE enum err_code attn_dense_validate(const struct attn_dense *d, enum attn_device device,
                                           struct err *e);

#endif
