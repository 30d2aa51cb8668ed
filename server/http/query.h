/* query.h: the query of a URL, by rule: `?limit=10&state=held`.
 *
 * Pure functions; any thread. */
#ifndef SERVER_HTTP_QUERY_H
#define SERVER_HTTP_QUERY_H

#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"

/* One name a query may hold. */
struct query_rule {
    const char *name;
    uint64_t lo, hi;   /* of a whole number                                     */
    const char *words; /* not NULL: one of "a|b|c" instead; the value its index */
    uint64_t *out;     /* keeps what it has where the name is absent            */
};

/* Read query (undecoded, "" when there is none) by at most 16 rules.  ERR_INVALID,
 * param the name: an unknown name, one given twice, a value outside its rule; no
 * value is changed then. */
MUST_USE enum err_code query_read(const char *query, const struct query_rule *rule, size_t n,
                                  struct err *e);

#endif
