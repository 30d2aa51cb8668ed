/* stops.c: one Knuth-Morris-Pratt automaton a stop string; the longest state is
 * exactly what must be held back. */
#include "server/generate/stops.h"

#include <stdlib.h>

enum err_code stop_set_init(struct stop_set *s, const struct oai_text *stop, uint32_t n,
                            struct err *e)
{
    *s = (struct stop_set){ .stop = stop, .n = n };
    if (n == 0)
        return ERR_OK;
    s->fail = calloc(n, sizeof *s->fail);
    if (s->fail == NULL)
        return err_nomem(e, "stop strings", n * sizeof *s->fail);
    for (uint32_t i = 0; i < n; i++) {
        const struct oai_text *t = &stop[i];
        uint32_t *f = s->fail[i] = malloc((t->n + 1) * sizeof *f);
        if (f == NULL) {
            stop_set_fini(s);
            return err_nomem(e, "a stop string", (t->n + 1) * sizeof *f);
        }
        f[0] = f[1] = 0;
        for (uint32_t k = 1, b = 0; k < t->n; k++) {
            while (b > 0 && t->s[b] != t->s[k])
                b = f[b];
            b += t->s[b] == t->s[k];
            f[k + 1] = b;
        }
    }
    return ERR_OK;
}

void stop_set_fini(struct stop_set *s)
{
    for (uint32_t i = 0; s->fail && i < s->n; i++)
        free(s->fail[i]);
    free(s->fail);
    s->fail = NULL;
    s->n = 0;
}

enum err_code stop_match_init(struct stop_match *m, const struct stop_set *set, struct err *e)
{
    *m = (struct stop_match){ .set = set };
    if (set->n == 0)
        return ERR_OK;
    m->state = calloc(set->n, sizeof *m->state);
    return m->state ? ERR_OK : err_nomem(e, "stop matcher", set->n * sizeof *m->state);
}

void stop_match_fini(struct stop_match *m)
{
    free(m->state);
    m->state = NULL;
    buf_fini(&m->held);
}

/* Advance every automaton by c: the completed stop (longest), or -1. */
static int32_t step(struct stop_match *m, char c)
{
    int32_t found = -1;

    for (uint32_t i = 0; i < m->set->n; i++) {
        const struct oai_text *t = &m->set->stop[i];
        uint32_t k = m->state[i];
        while (k > 0 && t->s[k] != c)
            k = m->set->fail[i][k];
        k += t->s[k] == c;
        m->state[i] = k;
        if (k == t->n && (found < 0 || t->n > m->set->stop[found].n))
            found = (int32_t)i;
    }
    return found;
}

int32_t stop_match_feed(struct stop_match *m, const char *text, size_t n, bool include,
                        struct buf *out)
{
    size_t hold = 0, all;

    if (m->set->n == 0) {
        buf_put(out, text, n);
        return -1;
    }
    for (size_t i = 0; i < n; i++) {
        int32_t found = step(m, text[i]);
        if (found < 0)
            continue;
        buf_put(&m->held, text, i + 1);
        out->failed |= m->held.failed;
        buf_put(out, m->held.p, m->held.n - (include ? 0 : m->set->stop[found].n));
        buf_reset(&m->held);
        return found;
    }
    for (uint32_t i = 0; i < m->set->n; i++)
        if (m->state[i] > hold)
            hold = m->state[i];
    buf_put(&m->held, text, n);
    out->failed |= m->held.failed;
    if (out->failed)
        return -1;
    all = m->held.n;
    buf_put(out, m->held.p, all - hold);
    if (hold > 0)
        memmove(m->held.p, m->held.p + all - hold, hold);
    m->held.n = hold;
    return -1;
}

void stop_match_flush(struct stop_match *m, struct buf *out)
{
    buf_put(out, m->held.p, m->held.n);
    buf_reset(&m->held);
}
