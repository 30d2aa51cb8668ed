/* unigram.c: the most probable segmentation of one piece.
 *
 * A byte trie over the vocabulary and one pass of dynamic programming: cost is
 * the piece's length times the longest match.  Read-only after load; the
 * lattice is in struct tk_work. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer/internal.h"

#define UNKNOWN_PENALTY 10.0

/* ---- loading -------------------------------------------------------------- */

struct form {
    const char *s;
    uint32_t n;
    int32_t id;
};

static int by_text(const void *pa, const void *pb)
{
    const struct form *a = pa, *b = pb;
    int c = memcmp(a->s, b->s, a->n < b->n ? a->n : b->n);
    if (c)
        return c;
    if (a->n != b->n)
        return a->n < b->n ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* Which forms a node stands for: [lo, hi) share their first depth bytes. */
struct form_range {
    uint32_t lo, hi, depth;
};

/* Breadth first, so that the children of a node lie side by side. */
static void build(struct tk_unigram *u, const struct form *f, uint32_t n, struct form_range *todo)
{
    u->n_nodes = 1;
    u->node[0] = (struct tk_unigram_node){ .id = -1 };
    todo[0] = (struct form_range){ .lo = 0, .hi = n, .depth = 0 };
    for (uint32_t at = 0; at < u->n_nodes; at++) {
        struct form_range r = todo[at];
        while (r.lo < r.hi && f[r.lo].n == r.depth)
            u->node[at].id = f[r.lo++].id; /* the same text twice: the later id */
        u->node[at].child = u->n_nodes;
        while (r.lo < r.hi) {
            unsigned char c = (unsigned char)f[r.lo].s[r.depth];
            uint32_t hi = r.lo + 1;
            while (hi < r.hi && (unsigned char)f[hi].s[r.depth] == c)
                hi++;
            todo[u->n_nodes] = (struct form_range){ .lo = r.lo, .hi = hi, .depth = r.depth + 1 };
            u->node[u->n_nodes++] = (struct tk_unigram_node){ .id = -1, .byte = c };
            u->node[at].n_child++;
            r.lo = hi;
        }
    }
}

static enum err_code load_trie(struct tokenizer *t, struct err *e)
{
    const struct tk_vocab *v = &t->vocab;
    struct tk_unigram *u = &t->unigram;
    size_t bytes = 1;
    uint32_t n = 0;
    struct form *f = malloc(((size_t)v->n_ids + 1) * sizeof(*f));
    if (f == NULL)
        return err_nomem(e, "vocabulary", (size_t)v->n_ids * sizeof(*f));
    for (int32_t id = 0; id < v->n_ids; id++) {
        if (v->form_at[id] == UINT32_MAX || v->form_len[id] == 0 || (v->flags[id] & TK_CONTROL))
            continue; /* text never becomes a control token */
        f[n++] = (struct form){ .s = v->blob.p + v->form_at[id], .n = v->form_len[id], .id = id };
        bytes += v->form_len[id];
    }
    qsort(f, n, sizeof(*f), by_text);
    struct form_range *todo = malloc(bytes * sizeof(*todo));
    u->node = malloc(bytes * sizeof(*u->node));
    if (todo && u->node)
        build(u, f, n, todo);
    bool ok = todo && u->node;
    free(todo);
    free(f);
    return ok ? ERR_OK : err_nomem(e, "vocabulary trie", bytes * sizeof(*u->node));
}

enum err_code tk_unigram_load(struct tokenizer *t, const struct json *model, struct err *e)
{
    struct tk_unigram *u = &t->unigram;
    const struct json *unk = json_get(model, "unk_id");
    const struct json *vocab = json_get(model, "vocab");
    u->byte_fallback = tk_flag(json_get(model, "byte_fallback"), false);
    u->unk = -1;
    if (unk && unk->kind != JSON_NULL) {
        u->unk = tk_id(unk);
        if (u->unk < 0 || (uint32_t)u->unk >= vocab->n)
            return err_set(e, ERR_INVALID, "tokenizer.json: model.unk_id: an id below %u expected",
                           vocab->n);
    }
    u->score = malloc(((size_t)t->vocab.n_ids + 1) * sizeof(*u->score));
    if (u->score == NULL)
        return err_nomem(e, "scores", (size_t)t->vocab.n_ids * sizeof(*u->score));
    double least = 0;
    const struct json *k = json_first(vocab);
    for (uint32_t i = 0; i < vocab->n; i++, k = json_next(k)) {
        u->score[i] = json_number(json_next(json_first(k)));
        if (i == 0 || u->score[i] < least)
            least = u->score[i];
    }
    u->unk_score = least - UNKNOWN_PENALTY;
    for (int b = 0; b < 256; b++) {
        char s[8];
        int n = snprintf(s, sizeof(s), "<0x%02X>", (unsigned)b);
        u->byte_id[b] = tk_vocab_find(&t->vocab, s, (size_t)n);
    }
    return load_trie(t, e);
}

void tk_unigram_fini(struct tk_unigram *u)
{
    free(u->score);
    free(u->node);
    *u = (struct tk_unigram){ 0 };
}

/* ---- encoding ---------------------------------------------------------------- */

/* Best way to reach a byte: the piece that ends there. */
struct reach {
    double score;
    int32_t id;
    uint32_t from; /* UINT32_MAX: not reached */
};

static const struct tk_unigram_node *child(const struct tk_unigram *u,
                                           const struct tk_unigram_node *x, unsigned char c)
{
    const struct tk_unigram_node *p = u->node + x->child;
    size_t lo = 0, hi = x->n_child;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (p[mid].byte < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < x->n_child && p[lo].byte == c ? p + lo : NULL;
}

static void improve(struct reach *r, double score, int32_t id, size_t from)
{
    if (r->from == UINT32_MAX || score > r->score)
        *r = (struct reach){ .score = score, .id = id, .from = (uint32_t)from };
}

static enum err_code forward(const struct tk_unigram *u, struct reach *r, const char *s, size_t n,
                             struct err *e)
{
    for (size_t i = 0, k; i < n; i += k) {
        bool single = false;
        tk_char_at(s, n, i, &k);
        const struct tk_unigram_node *x = u->node;
        for (size_t j = i; j < n && (x = child(u, x, (unsigned char)s[j])) != NULL; j++) {
            if (x->id < 0)
                continue;
            improve(&r[j + 1], r[i].score + u->score[x->id], x->id, i);
            single |= j + 1 - i == k;
        }
        if (single)
            continue;
        if (u->unk < 0)
            return err_set(e, ERR_INVALID,
                           "text: \"%.*s\": not in the vocabulary, and no unk_id to stand for it",
                           (int)k, s + i);
        improve(&r[i + k], r[i].score + u->unk_score, u->unk, i);
    }
    return ERR_OK;
}

/* A run of unknown characters: a token of that very text, its bytes, or unk. */
static enum err_code emit_unknown(struct tk_work *w, const char *s, size_t n)
{
    const struct tokenizer *t = w->t;
    const struct tk_unigram *u = &t->unigram;
    int32_t id = tk_vocab_find(&t->vocab, s, n);
    if (id >= 0 && !(t->vocab.flags[id] & TK_CONTROL))
        return tk_emit(w, id);
    bool bytes = u->byte_fallback;
    for (size_t i = 0; i < n && bytes; i++)
        bytes = u->byte_id[(unsigned char)s[i]] >= 0;
    if (!bytes)
        return tk_emit(w, u->unk);
    enum err_code rc = ERR_OK;
    for (size_t i = 0; i < n && !rc; i++)
        rc = tk_emit(w, u->byte_id[(unsigned char)s[i]]);
    return rc;
}

enum err_code tk_unigram_piece(struct tk_work *w, const char *s, size_t n)
{
    const struct tk_unigram *u = &w->t->unigram;
    enum err_code rc = tk_work_mem(w, (n + 1) * sizeof(struct reach));
    if (rc)
        return rc;
    struct reach *r = w->mem;
    for (size_t i = 0; i <= n; i++)
        r[i] = (struct reach){ .from = UINT32_MAX };
    rc = forward(u, r, s, n, w->e);
    if (rc)
        return rc;
    /* Turn the chain of pieces around: from becomes to. */
    uint32_t to = UINT32_MAX, at = (uint32_t)n;
    int32_t id = -1;
    while (at > 0) {
        uint32_t from = r[at].from;
        int32_t mine = r[at].id;
        r[at].from = to;
        r[at].id = id;
        to = at;
        id = mine;
        at = from;
    }
    r[0].from = to;
    r[0].id = id;
    for (at = 0; at < n && !rc;) {
        uint32_t end = r[at].from;
        if (r[at].id != u->unk) {
            rc = tk_emit(w, r[at].id);
        } else {
            while (end < n && r[end].id == u->unk)
                end = r[end].from;
            rc = emit_unknown(w, s + at, end - at);
        }
        at = end;
    }
    return rc;
}
