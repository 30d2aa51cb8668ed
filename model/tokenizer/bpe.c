/* bpe.c: byte-pair merging of one piece.
 *
 * A piece is first looked up whole: where merging a vocabulary entry's own
 * symbols gives back that entry, the entry is the answer.  Other pieces are
 * cut where no merge can ever join (see cut_at) and each part is merged, by
 * scanning when it is short and through a heap when it is long, so that one
 * piece of n symbols costs O(n log n).  Immutable but for bpe.whole, which
 * caches facts that every thread would find alike. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer/internal.h"

enum { SHORT = 64 }; /* symbols merged by scanning */

static const struct tk_merge *find_merge(const struct tk_bpe *b, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint32_t i = (uint32_t)(key * 0x9E3779B97F4A7C15u >> b->merge_shift);
    for (;; i = (i + 1) & b->merge_mask) {
        const struct tk_merge *m = &b->merge[i];
        if (m->left == left && m->right == right)
            return m;
        if (m->left < 0)
            return NULL;
    }
}

static uint32_t junction_bit(const struct tk_bpe *b, uint32_t left, uint32_t right)
{
    if (b->raw)
        return left << 8 | right;
    return (left * 0x9E3779B1u ^ right * 0x85EBCA77u) >> 10;
}

static bool joined(const struct tk_bpe *b, uint32_t left, uint32_t right)
{
    uint32_t k = junction_bit(b, left, right);
    return b->junction[k >> 6] >> (k & 63) & 1;
}

static int32_t char_id(const struct tokenizer *t, uint32_t c, const char *s, size_t n)
{
    return c < 0x10000 ? t->bpe.char_id[c] : tk_vocab_find(&t->vocab, s, n);
}

/* End of the part of s that starts at from: the first place where no merge
 * can join the two characters.  A symbol always covers the text it was merged
 * from, so a merge across a place joins exactly the characters beside it; if
 * no merge of the vocabulary does that, none ever happens there.  Characters
 * without an id are never cut at: neighbours may fuse. */
static size_t cut_at(const struct tokenizer *t, const char *s, size_t n, size_t from)
{
    const struct tk_bpe *b = &t->bpe;
    if (b->raw) {
        for (size_t i = from + 1; i < n; i++)
            if (!joined(b, (unsigned char)s[i - 1], (unsigned char)s[i]))
                return i;
        return n;
    }
    size_t k;
    uint32_t left = tk_char_at(s, n, from, &k);
    bool known = char_id(t, left, s + from, k) >= 0;
    for (size_t i = from + k; i < n; i += k) {
        uint32_t c = tk_char_at(s, n, i, &k);
        bool ok = char_id(t, c, s + i, k) >= 0;
        if (known && ok && !joined(b, left, c))
            return i;
        left = c;
        known = ok;
    }
    return n;
}

/* ---- initial symbols ------------------------------------------------------- */

struct symbols {
    int32_t *id;
    size_t n;
    int32_t unk; /* held back, fusing with the next; -1: none */
};

static void unknown(const struct tk_bpe *b, struct symbols *y)
{
    if (b->unk < 0)
        return;
    if (y->unk >= 0 && !b->fuse_unk)
        y->id[y->n++] = y->unk;
    y->unk = b->unk;
}

static void known(struct symbols *y, int32_t id)
{
    if (y->unk >= 0)
        y->id[y->n++] = y->unk;
    y->unk = -1;
    y->id[y->n++] = id;
}

/* Every byte of s as its own token, when the vocabulary has them all. */
static bool fall_back(const struct tk_bpe *b, struct symbols *y, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (b->byte_id[(unsigned char)s[i]] < 0)
            return false;
    for (size_t i = 0; i < n; i++)
        y->id[y->n++] = b->byte_id[(unsigned char)s[i]];
    return true;
}

/* One character, with the prefix of continuing and the suffix of last ones. */
static enum err_code affixed(struct tk_work *w, struct symbols *y, const char *s, size_t n,
                             bool first, bool last)
{
    const struct tk_bpe *b = &w->t->bpe;
    struct buf *x = &w->spare;
    enum err_code rc = ERR_OK;
    x->n = 0;
    if (!first && b->prefix)
        rc = buf_add(x, b->prefix, strlen(b->prefix), w->e);
    if (!rc)
        rc = buf_add(x, s, n, w->e);
    if (!rc && last && b->suffix)
        rc = buf_add(x, b->suffix, strlen(b->suffix), w->e);
    if (rc)
        return rc;
    int32_t id = tk_vocab_find(&w->t->vocab, x->p, x->n);
    if (id >= 0)
        known(y, id);
    else if (!b->byte_fallback || !fall_back(b, y, x->p, x->n))
        unknown(b, y);
    return ERR_OK;
}

/* Most symbols that n bytes can give. */
static size_t max_symbols(const struct tk_bpe *b, size_t n)
{
    return n * (1 + (b->prefix ? strlen(b->prefix) : 0)) + (b->suffix ? strlen(b->suffix) : 0) + 1;
}

static enum err_code split_symbols(struct tk_work *w, const char *s, size_t n, struct symbols *y)
{
    const struct tokenizer *t = w->t;
    const struct tk_bpe *b = &t->bpe;
    y->n = 0;
    y->unk = -1;
    for (size_t i = 0, k = 1; i < n; i += k) {
        int32_t id;
        if (b->raw) {
            id = b->byte_id[(unsigned char)s[i]];
        } else if (b->prefix || b->suffix) {
            tk_char_at(s, n, i, &k);
            enum err_code rc = affixed(w, y, s + i, k, i == 0, i + k == n);
            if (rc)
                return rc;
            continue;
        } else {
            uint32_t c = tk_char_at(s, n, i, &k);
            id = char_id(t, c, s + i, k);
            if (id < 0 && b->byte_fallback && fall_back(b, y, s + i, k))
                continue;
        }
        if (id >= 0)
            known(y, id);
        else
            unknown(b, y);
    }
    if (y->unk >= 0)
        y->id[y->n++] = y->unk;
    return ERR_OK;
}

/* ---- merging ----------------------------------------------------------------- */

/* id[0..n), n <= SHORT, merged in place; returns how many are left. */
static size_t merge_short(const struct tk_bpe *b, int32_t *id, size_t n)
{
    uint32_t rank[SHORT];
    int32_t to[SHORT];
    for (size_t i = 0; i + 1 < n; i++) {
        const struct tk_merge *m = find_merge(b, id[i], id[i + 1]);
        rank[i] = m ? m->rank : UINT32_MAX;
        to[i] = m ? m->id : -1;
    }
    while (n > 1) {
        size_t at = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[at])
                at = i;
        if (rank[at] == UINT32_MAX)
            break;
        id[at] = to[at];
        n--;
        for (size_t i = at + 1; i < n; i++)
            id[i] = id[i + 1];
        for (size_t i = at + 1; i + 1 < n; i++) {
            rank[i] = rank[i + 1];
            to[i] = to[i + 1];
        }
        for (size_t i = at > 0 ? at - 1 : at; i <= at && i + 1 < n; i++) {
            const struct tk_merge *m = find_merge(b, id[i], id[i + 1]);
            rank[i] = m ? m->rank : UINT32_MAX;
            to[i] = m ? m->id : -1;
        }
    }
    return n;
}

/* A long piece: symbols in a linked list, candidate merges in a min-heap of
 * rank << 32 | position, so that equal ranks go from left to right. */
struct chain {
    const struct tk_bpe *b;
    uint64_t *heap;
    size_t n_heap;
    int32_t *id;    /* -1: merged away */
    int32_t *to;    /* what the pair starting here becomes */
    uint32_t *rank; /* of that merge; UINT32_MAX: none */
    int32_t *next, *prev;
};

static void heap_push(struct chain *c, uint64_t key)
{
    size_t i = c->n_heap++;
    for (; i > 0 && c->heap[(i - 1) / 2] > key; i = (i - 1) / 2)
        c->heap[i] = c->heap[(i - 1) / 2];
    c->heap[i] = key;
}

static uint64_t heap_pop(struct chain *c)
{
    uint64_t top = c->heap[0], key = c->heap[--c->n_heap];
    size_t i = 0;
    for (;;) {
        size_t k = 2 * i + 1;
        if (k >= c->n_heap)
            break;
        if (k + 1 < c->n_heap && c->heap[k + 1] < c->heap[k])
            k++;
        if (c->heap[k] >= key)
            break;
        c->heap[i] = c->heap[k];
        i = k;
    }
    c->heap[i] = key;
    return top;
}

/* Look up the pair that starts at symbol i and offer its merge. */
static void offer(struct chain *c, int32_t i)
{
    const struct tk_merge *m =
        c->next[i] < 0 ? NULL : find_merge(c->b, c->id[i], c->id[c->next[i]]);
    c->rank[i] = m ? m->rank : UINT32_MAX;
    c->to[i] = m ? m->id : -1;
    if (m)
        heap_push(c, (uint64_t)m->rank << 32 | (uint32_t)i);
}

/* As merge_short for any n; mem holds max_symbols * LONG_BYTES bytes, the ids
 * behind the heap. */
enum { LONG_BYTES = 3 * 8 + 5 * 4 };

static size_t merge_long(struct chain *c, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        c->next[i] = i + 1 < n ? (int32_t)i + 1 : -1;
        c->prev[i] = (int32_t)i - 1;
    }
    for (size_t i = 0; i < n; i++)
        offer(c, (int32_t)i);
    while (c->n_heap > 0) {
        uint64_t top = heap_pop(c);
        int32_t i = (int32_t)(uint32_t)top;
        if (c->rank[i] != (uint32_t)(top >> 32))
            continue; /* the pair has changed since */
        int32_t gone = c->next[i];
        c->id[i] = c->to[i];
        c->next[i] = c->next[gone];
        if (c->next[i] >= 0)
            c->prev[c->next[i]] = i;
        c->id[gone] = -1;
        c->rank[gone] = UINT32_MAX;
        offer(c, i);
        if (c->prev[i] >= 0)
            offer(c, c->prev[i]);
    }
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        if (c->id[i] >= 0)
            c->id[k++] = c->id[i];
    return k;
}

/* The ids of s[0..n) by merging alone, borrowed until the next call: *ids in
 * few (room for SHORT + 1) or in w->mem. */
static enum err_code merge(struct tk_work *w, const char *s, size_t n, int32_t *few,
                           const int32_t **ids, size_t *n_ids)
{
    const struct tk_bpe *b = &w->t->bpe;
    size_t room = max_symbols(b, n);
    if (room <= SHORT + 1) {
        struct symbols y = { .id = few };
        enum err_code rc = split_symbols(w, s, n, &y);
        *ids = few;
        *n_ids = rc ? 0 : merge_short(b, few, y.n);
        return rc;
    }
    enum err_code rc = tk_work_mem(w, room * LONG_BYTES);
    if (rc)
        return rc;
    struct chain c = { .b = b, .heap = w->mem };
    c.id = (int32_t *)(c.heap + 3 * room);
    c.to = c.id + room;
    c.rank = (uint32_t *)(c.to + room);
    c.next = (int32_t *)(c.rank + room);
    c.prev = c.next + room;
    struct symbols y = { .id = c.id };
    rc = split_symbols(w, s, n, &y);
    if (rc)
        return rc;
    *ids = c.id;
    *n_ids = y.n <= SHORT ? merge_short(b, c.id, y.n) : merge_long(&c, y.n);
    return ERR_OK;
}

/* Whether merging the form of id gives id. */
static enum err_code is_whole(struct tk_work *w, int32_t id, bool *yes)
{
    const struct tk_vocab *v = &w->t->vocab;
    _Atomic unsigned char *fact = &w->t->bpe.whole[id];
    unsigned char f = atomic_load_explicit(fact, memory_order_relaxed);
    if (f == 0) {
        int32_t few[SHORT + 1];
        const int32_t *ids;
        size_t n;
        enum err_code rc = merge(w, v->blob.p + v->form_at[id], v->form_len[id], few, &ids, &n);
        if (rc)
            return rc;
        f = n == 1 && ids[0] == id ? 1 : 2;
        atomic_store_explicit(fact, f, memory_order_relaxed);
    }
    *yes = f == 1;
    return ERR_OK;
}

enum err_code tk_bpe_piece(struct tk_work *w, const char *s, size_t n)
{
    const struct tokenizer *t = w->t;
    const struct tk_bpe *b = &t->bpe;
    int32_t few[SHORT + 1];
    for (size_t i = 0, end; i < n; i = end) {
        enum err_code rc;
        bool cut = i > 0 && b->cut; /* the whole piece first, then cut parts */
        end = cut ? cut_at(t, s, n, i) : n;
        for (;;) {
            int32_t id = tk_vocab_find(&t->vocab, s + i, end - i);
            bool take = id >= 0 && !(t->vocab.flags[id] & TK_CONTROL);
            if (take && !(b->ignore_merges && i == 0 && end == n)) {
                rc = is_whole(w, id, &take);
                if (rc)
                    return rc;
            }
            if (take) {
                rc = tk_emit(w, id);
                break;
            }
            if (!cut && b->cut) {
                cut = true;
                end = cut_at(t, s, n, i);
                if (end < n)
                    continue;
            }
            const int32_t *ids;
            size_t k;
            rc = merge(w, s + i, end - i, few, &ids, &k);
            for (size_t j = 0; rc == ERR_OK && j < k; j++)
                rc = tk_emit(w, ids[j]);
            break;
        }
        if (rc)
            return rc;
    }
    return ERR_OK;
}

/* ---- loading ------------------------------------------------------------------- */

/* The two operands of merge number k, as they stand in the file. */
static enum err_code operands(const struct json *m, uint32_t k, const char *part[2], size_t len[2],
                              struct err *e)
{
    if (m->kind == JSON_STRING) {
        const char *s = m->u.string, *gap = memchr(s, ' ', m->n);
        if (gap && !memchr(gap + 1, ' ', m->n - (size_t)(gap + 1 - s))) {
            part[0] = s;
            len[0] = (size_t)(gap - s);
            part[1] = gap + 1;
            len[1] = m->n - len[0] - 1;
            return ERR_OK;
        }
    } else if (m->kind == JSON_ARRAY && m->n == 2) {
        const struct json *a = json_first(m), *c = json_next(a);
        if (a->kind == JSON_STRING && c->kind == JSON_STRING) {
            part[0] = a->u.string;
            len[0] = a->n;
            part[1] = c->u.string;
            len[1] = c->n;
            return ERR_OK;
        }
    }
    return err_set(e, ERR_INVALID,
                   "tokenizer.json: model.merges[%u]: %s: \"a b\" or [\"a\", \"b\"] expected", k,
                   json_kind_name(m));
}

static uint32_t last_char(const struct tk_bpe *b, const char *s, size_t n)
{
    size_t i = n - 1, k;
    if (b->raw)
        return (unsigned char)s[i];
    while (i > 0 && ((unsigned char)s[i] & 0xc0) == 0x80)
        i--;
    return tk_char_at(s, n, i, &k);
}

static void note_junction(struct tk_bpe *b, const char *a, size_t na, const char *c, size_t nc)
{
    size_t k;
    if (na == 0 || nc == 0)
        return;
    uint32_t right = b->raw ? (unsigned char)c[0] : tk_char_at(c, nc, 0, &k);
    uint32_t bit = junction_bit(b, last_char(b, a, na), right);
    b->junction[bit >> 6] |= (uint64_t)1 << (bit & 63);
}

static void put_merge(struct tk_bpe *b, struct tk_merge m)
{
    uint64_t key = (uint64_t)(uint32_t)m.left << 32 | (uint32_t)m.right;
    uint32_t i = (uint32_t)(key * 0x9E3779B97F4A7C15u >> b->merge_shift);
    while (b->merge[i].left >= 0 && (b->merge[i].left != m.left || b->merge[i].right != m.right))
        i = (i + 1) & b->merge_mask;
    b->merge[i] = m; /* the same pair twice: the later rank holds */
}

static bool is_byte_token(const struct tk_bpe *b, int32_t id)
{
    for (int k = 0; !b->raw && k < 256; k++)
        if (b->byte_id[k] == id)
            return true;
    return false;
}

/* Merge number k.  x is scratch: left, right and joined form, one after
 * another. */
static enum err_code load_merge(struct tokenizer *t, const struct json *m, uint32_t k,
                                struct buf *x, struct err *e)
{
    struct tk_bpe *b = &t->bpe;
    const char *part[2] = { NULL };
    size_t len[2] = { 0 }, off = b->prefix ? strlen(b->prefix) : 0;
    enum err_code rc = operands(m, k, part, len, e);
    if (rc)
        return rc;
    x->n = 0;
    rc = buf_reserve(x, 2 * (len[0] + len[1]), e);
    if (rc)
        return rc;
    for (int p = 0; p < 2; p++) {
        size_t n = len[p];
        if (!b->raw)
            memcpy(x->p + x->n, part[p], n);
        else if (!tk_unmap(part[p], len[p], x->p + x->n, &n))
            return ERR_OK; /* text never contains it */
        part[p] = x->p + x->n;
        len[p] = n;
        x->n += n;
    }
    off = off < len[1] ? off : len[1];
    struct tk_merge to = { .rank = k };
    to.left = tk_vocab_find(&t->vocab, part[0], len[0]);
    to.right = tk_vocab_find(&t->vocab, part[1], len[1]);
    if (off == 0) {
        to.id = tk_vocab_find(&t->vocab, part[0], len[0] + len[1]);
    } else {
        char *whole = x->p + x->n;
        memcpy(whole, part[0], len[0]);
        memcpy(whole + len[0], part[1] + off, len[1] - off);
        to.id = tk_vocab_find(&t->vocab, whole, len[0] + len[1] - off);
    }
    if (to.left < 0 || to.right < 0 || to.id < 0)
        return err_set(e, ERR_INVALID,
                       "tokenizer.json: model.merges[%u]: \"%.*s\" + \"%.*s\": the parts and "
                       "their union must be in model.vocab",
                       k, (int)(len[0] < 64 ? len[0] : 64), part[0],
                       (int)(len[1] < 64 ? len[1] : 64), part[1]);
    if (t->vocab.flags[to.id] & TK_CONTROL)
        return ERR_OK; /* text never becomes a control token */
    put_merge(b, to);
    note_junction(b, part[0], len[0], part[1], len[1]);
    if (to.left == b->unk || to.right == b->unk ||
        (b->byte_fallback && (is_byte_token(b, to.left) || is_byte_token(b, to.right))))
        b->cut = false;
    return ERR_OK;
}

static enum err_code load_merges(struct tokenizer *t, const struct json *v, struct err *e)
{
    struct tk_bpe *b = &t->bpe;
    uint32_t n = v ? v->n : 0, bits = 4;
    if (v && v->kind != JSON_ARRAY)
        return err_set(e, ERR_INVALID, "tokenizer.json: model.merges: %s: an array expected",
                       json_kind_name(v));
    while (((uint64_t)1 << bits) < (uint64_t)n * 2)
        bits++;
    size_t bytes = ((size_t)1 << bits) * sizeof(*b->merge);
    size_t junction = b->raw ? 65536 / 8 : ((size_t)1 << 22) / 8;
    b->merge = malloc(bytes);
    b->junction = calloc(1, junction);
    if (!b->merge || !b->junction)
        return err_nomem(e, "merges", bytes + junction);
    memset(b->merge, 0xff, bytes);
    b->merge_mask = (uint32_t)(((uint64_t)1 << bits) - 1);
    b->merge_shift = 64 - (int)bits;
    struct buf x = { 0 };
    const struct json *m = v ? json_first(v) : NULL;
    enum err_code rc = ERR_OK;
    for (uint32_t k = 0; k < n && rc == ERR_OK; k++, m = json_next(m))
        rc = load_merge(t, m, k, &x, e);
    buf_fini(&x);
    return rc;
}

/* byte_id and char_id from the vocabulary. */
static enum err_code load_symbols(struct tokenizer *t, struct err *e)
{
    struct tk_bpe *b = &t->bpe;
    struct tk_vocab *v = &t->vocab;
    for (int i = 0; i < 256; i++) {
        char s[8] = { (char)i };
        int k = b->raw ? 1 : snprintf(s, sizeof(s), "<0x%02X>", (unsigned)i);
        b->byte_id[i] = tk_vocab_find(v, s, (size_t)k);
        if (b->raw && b->byte_id[i] < 0)
            b->cut = false;
    }
    if (b->raw)
        return ERR_OK;
    b->char_id = malloc(65536 * sizeof(*b->char_id));
    if (b->char_id == NULL)
        return err_nomem(e, "characters", 65536 * sizeof(*b->char_id));
    memset(b->char_id, 0xff, 65536 * sizeof(*b->char_id));
    for (int32_t id = 0; id < v->n_ids; id++) {
        uint32_t n = v->form_len[id];
        size_t k;
        if (v->form_at[id] == UINT32_MAX || n == 0 || n > 3)
            continue;
        const char *s = v->blob.p + v->form_at[id];
        uint32_t c = tk_char_at(s, n, 0, &k);
        if (k == n && c < 65536)
            b->char_id[c] = tk_vocab_find(v, s, n);
    }
    return ERR_OK;
}

static enum err_code affix(char **out, const struct json *v, const char *key, struct err *e)
{
    if (v == NULL || v->kind == JSON_NULL || (v->kind == JSON_STRING && v->n == 0))
        return ERR_OK;
    if (v->kind != JSON_STRING || v->n > 256 || memchr(v->u.string, 0, v->n))
        return err_set(e, ERR_INVALID,
                       "tokenizer.json: model.%s: %s: null or up to 256 bytes expected", key,
                       json_kind_name(v));
    *out = strndup(v->u.string, v->n);
    return *out ? ERR_OK : err_nomem(e, key, v->n);
}

enum err_code tk_bpe_load(struct tokenizer *t, const struct json *model, struct err *e)
{
    struct tk_bpe *b = &t->bpe;
    const struct json *unk = json_get(model, "unk_token");
    b->byte_fallback = tk_flag(json_get(model, "byte_fallback"), false);
    b->fuse_unk = tk_flag(json_get(model, "fuse_unk"), false);
    b->ignore_merges = tk_flag(json_get(model, "ignore_merges"), false);
    b->unk = -1;
    if (unk && unk->kind == JSON_STRING)
        b->unk = tk_vocab_find(&t->vocab, unk->u.string, unk->n);
    enum err_code rc = affix(&b->prefix, json_get(model, "continuing_subword_prefix"),
                             "continuing_subword_prefix", e);
    if (!rc)
        rc = affix(&b->suffix, json_get(model, "end_of_word_suffix"), "end_of_word_suffix", e);
    b->cut = !b->prefix && !b->suffix;
    if (!rc)
        rc = load_symbols(t, e);
    if (!rc)
        rc = load_merges(t, json_get(model, "merges"), e);
    if (rc)
        return rc;
    b->whole = calloc((size_t)t->vocab.n_ids + 1, sizeof(*b->whole));
    return b->whole ? ERR_OK : err_nomem(e, "vocabulary facts", (size_t)t->vocab.n_ids);
}

void tk_bpe_fini(struct tk_bpe *b)
{
    free(b->char_id);
    free(b->prefix);
    free(b->suffix);
    free(b->merge);
    free(b->junction);
    free((void *)b->whole);
    *b = (struct tk_bpe){ 0 };
}
