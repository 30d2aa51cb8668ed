/* query.c: names and values of a URL's query against a table.  What the tables
 * allow needs no percent escapes, so a value that has one is just a wrong value. */
#include "server/http/query.h"

#include <assert.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { MOST_RULES = 16 };

static enum err_code unknown(const struct query_rule *rule, size_t n, const char *name, size_t len,
                             struct err *e)
{
    char known[256] = "", param[41];
    size_t at = 0;

    for (size_t i = 0; i < n && at < sizeof known; i++)
        at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", rule[i].name);
    snprintf(param, sizeof param, "%.*s", (int)(len < 40 ? len : 40), name);
    return err_set_param(e, ERR_INVALID, param, "query: `%.*s` is unknown; expected %s",
                         (int)(len < 64 ? len : 64), name, n > 0 ? known : "none");
}

/* Index of the word v[0..n) in words; -1: it is none. */
static int find_word(const char *words, const char *v, size_t n)
{
    int i = 0;

    for (const char *w = words; w != NULL; i++) {
        size_t len = strcspn(w, "|");
        if (n > 0 && len == n && memcmp(w, v, n) == 0)
            return i;
        w = w[len] ? w + len + 1 : NULL;
    }
    return -1;
}

/* The value v[0..n) by its rule. */
static enum err_code read_value(const struct query_rule *r, const char *v, size_t n, uint64_t *out,
                                struct err *e)
{
    uint64_t value = 0;
    int shown = (int)(n < 40 ? n : 40), word;

    if (r->words != NULL) {
        word = find_word(r->words, v, n);
        if (word < 0)
            return err_set_param(e, ERR_INVALID, r->name, "%s: found `%.*s`, expected one of %s",
                                 r->name, shown, v, r->words);
        *out = (uint64_t)word;
        return ERR_OK;
    }
    size_t i = 0;
    for (; i < n && i < 18 && v[i] >= '0' && v[i] <= '9'; i++)
        value = value * 10 + (uint64_t)(v[i] - '0');
    if (n == 0 || i < n || value < r->lo || value > r->hi)
        return err_set_param(e, ERR_INVALID, r->name,
                             "%s: found `%.*s`, expected a whole number from %llu to %llu", r->name,
                             shown, v, (unsigned long long)r->lo, (unsigned long long)r->hi);
    *out = value;
    return ERR_OK;
}

enum err_code query_read(const char *query, const struct query_rule *rule, size_t n, struct err *e)
{
    bool seen[MOST_RULES] = { false };
    uint64_t value[MOST_RULES];

    assert(n <= MOST_RULES);
    for (const char *p = query; *p != '\0';) {
        size_t len = strcspn(p, "&"), n_name = strcspn(p, "=&"), i = 0;
        bool has_value = n_name < len;
        if (len > 0) {
            while (i < n &&
                   (strlen(rule[i].name) != n_name || memcmp(rule[i].name, p, n_name) != 0))
                i++;
            if (i == n)
                return unknown(rule, n, p, n_name, e);
            if (seen[i])
                return err_set_param(e, ERR_INVALID, rule[i].name, "%s: given twice", rule[i].name);
            seen[i] = true;
            enum err_code rc = read_value(&rule[i], has_value ? p + n_name + 1 : "",
                                          has_value ? len - n_name - 1 : 0, &value[i], e);
            if (rc != ERR_OK)
                return rc;
        }
        p += len + (p[len] == '&');
    }
    for (size_t i = 0; i < n; i++)
        if (seen[i])
            *rule[i].out = value[i];
    return ERR_OK;
}
