/* rules.c: the rules of the operator, in the order applied.
 *
 * Four files hold them, one row a rule; together they fill the derived fields of
 * the plan.  Contents are read from the host's attention_metadata only.  Pure
 * functions; any thread. */
#include "attention/rules/internal.h"

static const struct attn_rule_set *const sets[] = {
    &attn_attr_rules,
    &attn_tensor_rules,
    &attn_shape_rules,
    &attn_rest_rules,
};

enum { SETS = sizeof sets / sizeof *sets };

size_t attn_rule_count(void)
{
    size_t n = 0;
    for (int i = 0; i < SETS; i++)
        n += sets[i]->n;
    return n;
}

const struct attn_rule *attn_rule_at(size_t at)
{
    for (int i = 0; i < SETS; i++) {
        if (at < sets[i]->n)
            return &sets[i]->rule[at];
        at -= sets[i]->n;
    }
    return NULL;
}

enum err_code attn_validate(struct attn_call *c, const struct attn_rule **failed, struct err *e)
{
    for (int s = 0; s < SETS; s++)
        for (size_t i = 0; i < sets[s]->n; i++) {
            enum err_code rc = sets[s]->rule[i].check(c, e);
            if (rc == ERR_OK)
                continue;
            if (failed != NULL)
                *failed = &sets[s]->rule[i];
            return rc;
        }
    return ERR_OK;
}
