/* want.c: the checks that many rules share: a tensor's rank and shape.  Pure
 * functions; any thread. */
#include <stdio.h>

#include "attention/rules/internal.h"

const char *attn_rule_shape_text(const struct attn_tensor *t, char buf[100])
{
    int n = snprintf(buf, 100, "(");
    for (int i = 0; i < t->rank && i < ATTN_RANK; i++)
        n += snprintf(buf + n, 100 - (size_t)n, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
    snprintf(buf + n, 100 - (size_t)n, ")");
    return buf;
}

enum err_code attn_rule_want_shape(const char *name, const struct attn_tensor *t, int32_t rank,
                                   int64_t d0, int64_t d1, int64_t d2, int64_t d3, struct err *e)
{
    struct attn_tensor w = { .rank = rank, .shape = { d0, d1, d2, d3 } };
    char found[100], expected[100];
    bool same = t->rank == rank;
    for (int i = 0; same && i < rank; i++)
        same = t->shape[i] == w.shape[i];
    if (same)
        return ERR_OK;
    return INVALID(e, name, "%s: shape %s, expected %s", name, attn_rule_shape_text(t, found),
                   attn_rule_shape_text(&w, expected));
}

enum err_code attn_rule_want_rank(const char *name, const struct attn_tensor *t, int32_t rank,
                                  struct err *e)
{
    char found[100];
    if (t->rank == rank)
        return ERR_OK;
    return INVALID(e, name, "%s: rank %d (shape %s), expected rank %d", name, t->rank,
                   attn_rule_shape_text(t, found), rank);
}
