/* added.c: finding added tokens in text.
 *
 * A trie over the tokens' bytes; the longest token at the leftmost place wins,
 * as in the reference library.  Tokens that may not be recognised (control
 * tokens inside text that a user wrote) do not take part at all. */
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer/added.h"

enum err_code tk_trie_add(struct tk_trie *t, const char *s, size_t n, int32_t token, struct err *e)
{
    if (t->n + n + 1 > t->cap) { /* so that no link moves below */
        size_t cap = t->cap * 2 > t->n + n + 256 ? t->cap * 2 : t->n + n + 256;
        struct tk_trie_node *node = realloc(t->node, cap * sizeof(*node));
        if (node == NULL)
            return err_nomem(e, "added tokens", cap * sizeof(*node));
        t->node = node;
        t->cap = cap;
    }
    int32_t *link = &t->first[(unsigned char)s[0]];
    for (size_t i = 0;; i++) {
        while (*link != 0 && t->node[*link].byte != (unsigned char)s[i])
            link = &t->node[*link].sibling;
        int32_t at = *link;
        if (at == 0) {
            if (t->n == 0)
                t->n = 1; /* node 0 is nobody's */
            at = (int32_t)t->n++;
            t->node[at] = (struct tk_trie_node){ .token = -1, .byte = (unsigned char)s[i] };
            *link = at;
        }
        if (i + 1 == n) {
            if (t->node[at].token < 0)
                t->node[at].token = token;
            break;
        }
        link = &t->node[at].child;
    }
    t->any = true;
    return ERR_OK;
}

/* Whether the control token at [from, to) of the searched text may stand. */
static bool may_control(const struct tk_search *q, size_t from, size_t to)
{
    if (q->control == TK_CONTROL_ALL)
        return true;
    if (q->control == TK_CONTROL_NONE)
        return false;
    size_t lo = 0, hi = q->n_spans; /* first span that ends behind from */
    from += q->offset;
    to += q->offset;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (q->span[mid].end <= from)
            lo = mid + 1;
        else
            hi = mid;
    }
    for (; lo < q->n_spans && q->span[lo].start < to; lo++)
        if (q->span[lo].end > q->span[lo].start)
            return false;
    return true;
}

/* Character before s[i]. */
static uint32_t char_before(const char *s, size_t i, size_t *k)
{
    size_t at = i - 1;
    while (at > 0 && ((unsigned char)s[at] & 0xc0) == 0x80)
        at--;
    return tk_char_at(s, i, at, k);
}

static bool alone(const char *s, size_t n, size_t from, size_t to)
{
    size_t k;
    return (from == 0 || !tk_is_word(char_before(s, from, &k))) &&
           (to == n || !tk_is_word(tk_char_at(s, n, to, &k)));
}

/* Longest allowed token that starts at s[i]; -1: none. */
static int32_t longest(const struct tk_search *q, const char *s, size_t n, size_t i, size_t *len)
{
    const struct tk_trie *t = q->trie;
    int32_t best = -1, at = t->first[(unsigned char)s[i]];
    for (size_t k = i; at != 0;) {
        const struct tk_trie_node *x = &t->node[at];
        if (x->byte != (unsigned char)s[k]) {
            at = x->sibling;
            continue;
        }
        k++;
        if (x->token >= 0) {
            const struct tk_added *a = &q->t->added[x->token];
            if (!(q->t->vocab.flags[a->id] & TK_CONTROL) || may_control(q, i, k)) {
                best = x->token;
                *len = k - i;
            }
        }
        if (k == n)
            break;
        at = x->child;
    }
    return best;
}

bool tk_search_next(struct tk_search *q, const char *s, size_t n, struct tk_found *f)
{
    const struct tk_trie *t = q->trie;
    for (size_t i = q->at; t->any && i < n; i++) {
        size_t len = 0, k;
        if (t->first[(unsigned char)s[i]] == 0)
            continue;
        int32_t token = longest(q, s, n, i, &len);
        if (token < 0)
            continue;
        const struct tk_added *a = &q->t->added[token];
        size_t from = i, to = i + len;
        if (a->single_word && !alone(s, n, from, to)) {
            i = to - 1; /* the reference library passes over the rejected match */
            continue;
        }
        q->at = to;
        while (a->lstrip && from > q->done && tk_is_space(char_before(s, from, &k)))
            from -= k;
        while (a->rstrip && to < n && tk_is_space(tk_char_at(s, n, to, &k)))
            to += k;
        f->gap_from = q->done;
        f->gap_to = from > q->done ? from : q->done;
        f->id = a->id;
        q->done = to;
        return true;
    }
    f->gap_from = q->done < n ? q->done : n;
    f->gap_to = n;
    f->id = -1;
    return false;
}
