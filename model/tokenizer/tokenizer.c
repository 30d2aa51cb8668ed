/* tokenizer.c: encoding, and questions about ids.
 *
 * Owns what one call needs (struct tk_work) for its duration; the tokenizer
 * itself is only read.  Any thread. */
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer/added.h"
#include "model/tokenizer/internal.h"
#include "proto/utf8.h"

enum { MAX_TEXT_BYTES = 1 << 30 };

static void work_fini(struct tk_work *w)
{
    buf_fini(&w->norm);
    buf_fini(&w->norm_spare);
    buf_fini(&w->built[0]);
    buf_fini(&w->built[1]);
    buf_fini(&w->spare);
    free(w->pieces.p);
    free(w->next.p);
    free(w->spans.p);
    free(w->mem);
    pcre2_match_data_free(w->md);
}

/* One stretch without added tokens: s is normalised.  origin: the input
 * begins here. */
static enum err_code encode_plain(struct tk_work *w, const char *s, size_t n, bool origin)
{
    const struct tokenizer *t = w->t;
    if (n == 0)
        return ERR_OK;
    w->base = s;
    w->pieces.n = 0;
    enum err_code rc = tk_pieces_add(&w->pieces, 0, n, origin, w->e);
    if (!rc)
        rc = tk_pretokenize(w);
    for (size_t i = 0; i < w->pieces.n && !rc; i++) {
        const char *p = w->base + w->pieces.p[i].at;
        size_t k = w->pieces.p[i].n;
        rc = t->model == TK_MODEL_BPE ? tk_bpe_piece(w, p, k) : tk_unigram_piece(w, p, k);
    }
    return rc;
}

/* One stretch without unnormalised added tokens.  Where text of users lies in
 * it and a normaliser may have moved it, no control token is recognised: those
 * of the template were found before. */
static enum err_code encode_segment(struct tk_work *w, const struct tk_search *outer, const char *s,
                                    size_t n, size_t offset)
{
    const struct tokenizer *t = w->t;
    bool moved = t->normalizer.n > 0, origin = offset == 0;
    if (n == 0)
        return ERR_OK;
    if (moved) {
        enum err_code rc = ERR_OK;
        if (origin) { /* not where the first character is dropped */
            size_t k;
            tk_char_at(s, n, 0, &k);
            rc = tk_normalize(&t->normalizer, s, k, &w->norm, &w->norm_spare, w->md, w->e);
            origin = w->norm.n > 0;
        }
        if (!rc)
            rc = tk_normalize(&t->normalizer, s, n, &w->norm, &w->norm_spare, w->md, w->e);
        if (rc)
            return rc;
        s = w->norm.p;
        n = w->norm.n;
    }
    struct tk_search q = *outer;
    q.trie = &t->trie_normalized;
    q.offset = offset;
    q.at = q.done = 0;
    if (moved && q.control == TK_CONTROL_OUTSIDE)
        q.control = TK_CONTROL_NONE;
    struct tk_found f;
    for (bool more = true; more;) {
        more = tk_search_next(&q, s, n, &f);
        enum err_code rc =
            encode_plain(w, s + f.gap_from, f.gap_to - f.gap_from, origin && f.gap_from == 0);
        if (!rc && more)
            rc = tk_emit(w, f.id);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

static enum err_code encode_text(struct tk_work *w, struct tk_search *q, const char *s, size_t n)
{
    struct tk_found f;
    for (bool more = true; more;) {
        more = tk_search_next(q, s, n, &f);
        enum err_code rc = encode_segment(w, q, s + f.gap_from, f.gap_to - f.gap_from, f.gap_from);
        if (!rc && more)
            rc = tk_emit(w, f.id);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

/* s with every byte that is not part of a character as U+FFFD, and the spans
 * moved along; both malloc'd. */
static enum err_code repair(const char *s, size_t n, struct text_span *span, size_t n_spans,
                            struct buf *out, struct err *e)
{
    size_t next = 0; /* span edges in order: start of 0, end of 0, start of 1 .. */
    for (size_t i = 0, k; i <= n; i += k) {
        while (next < 2 * n_spans) {
            size_t *edge = next % 2 ? &span[next / 2].end : &span[next / 2].start;
            if (*edge > i)
                break;
            *edge = out->n;
            next++;
        }
        if (i == n)
            break;
        k = utf8_sequence_bytes(s + i, n - i);
        enum err_code rc = k > 0 ? buf_add(out, s + i, k, e) : buf_add(out, "\xef\xbf\xbd", 3, e);
        if (rc)
            return rc;
        k = k > 0 ? k : 1;
    }
    return ERR_OK;
}

static enum err_code encode(const struct tokenizer *t, const char *text, size_t n,
                            struct tk_search *q, size_t max_ids, bool special,
                            struct token_list *out, struct err *e)
{
    size_t before = out->n;
    struct tk_work w = { .t = t, .out = out, .e = e };
    struct buf fixed = { 0 };
    struct text_span *moved = NULL;
    enum err_code rc = ERR_OK;
    w.max = max_ids && max_ids < SIZE_MAX - before ? before + max_ids : SIZE_MAX;
    if (n > MAX_TEXT_BYTES)
        return err_set(e, ERR_LIMIT, "text: %zu bytes: at most %d", n, MAX_TEXT_BYTES);
    if (n == 0)
        text = "";
    w.md = pcre2_match_data_create(1, NULL);
    if (w.md == NULL)
        return err_nomem(e, "regex match", 0);
    if (!utf8_is_valid(text, n)) {
        moved = malloc((q->n_spans + 1) * sizeof(*moved));
        if (moved == NULL)
            rc = err_nomem(e, "spans", q->n_spans * sizeof(*moved));
        else if (q->n_spans > 0)
            memcpy(moved, q->span, q->n_spans * sizeof(*moved));
        if (!rc)
            rc = repair(text, n, moved, q->n_spans, &fixed, e);
        text = fixed.p;
        n = fixed.n;
        q->span = moved;
    }
    for (size_t i = 0; special && i < t->before.n && !rc; i++)
        rc = tk_emit(&w, t->before.id[i]);
    if (!rc)
        rc = encode_text(&w, q, text, n);
    for (size_t i = 0; special && i < t->after.n && !rc; i++)
        rc = tk_emit(&w, t->after.id[i]);
    if (rc)
        out->n = before;
    work_fini(&w);
    buf_fini(&fixed);
    free(moved);
    return rc;
}

enum err_code tokenizer_encode(const struct tokenizer *t, const char *text, size_t n,
                               unsigned flags, size_t max_ids, struct token_list *out,
                               struct err *e)
{
    struct tk_search q = { .t = t, .trie = &t->trie };
    q.control = flags & TOKENIZER_PARSE_SPECIAL ? TK_CONTROL_ALL : TK_CONTROL_NONE;
    return encode(t, text, n, &q, max_ids, flags & TOKENIZER_SPECIAL, out, e);
}

enum err_code tokenizer_encode_spans(const struct tokenizer *t, const char *text, size_t n,
                                     const struct text_span *span, size_t n_spans, size_t max_ids,
                                     struct token_list *out, struct err *e)
{
    struct tk_search q = { .t = t,
                           .trie = n_spans > 0 && t->trie_spans.any ? &t->trie_spans : &t->trie,
                           .control = TK_CONTROL_OUTSIDE,
                           .span = span,
                           .n_spans = n_spans };
    if (n_spans == 0)
        q.control = TK_CONTROL_ALL;
    for (size_t i = 0; i < n_spans; i++)
        if (span[i].start > span[i].end || span[i].end > n ||
            (i > 0 && span[i].start < span[i - 1].end))
            return err_set(e, ERR_INVALID,
                           "text: span %zu [%zu, %zu): not ascending inside %zu "
                           "bytes",
                           i, span[i].start, span[i].end, n);
    return encode(t, text, n, &q, max_ids, false, out, e);
}

int32_t tokenizer_n_ids(const struct tokenizer *t)
{
    return t->vocab.n_ids;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text)
{
    size_t n = strlen(text), k = 0;
    for (size_t i = 0; i < t->n_added; i++)
        if (t->added[i].n == n && memcmp(t->added[i].content, text, n) == 0)
            return t->added[i].id;
    if (!(t->model == TK_MODEL_BPE && t->bpe.raw))
        return tk_vocab_find(&t->vocab, text, n);
    char *form = utf8_is_valid(text, n) ? malloc(n + 1) : NULL;
    int32_t id = -1;
    if (form && tk_unmap(text, n, form, &k))
        id = tk_vocab_find(&t->vocab, form, k);
    free(form);
    return id;
}

static bool has(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->vocab.n_ids && t->vocab.at[id] != UINT32_MAX;
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return has(t, id) && (t->vocab.flags[id] & TK_SPECIAL);
}

const char *tokenizer_spelling(const struct tokenizer *t, int32_t id, size_t *n)
{
    *n = 0;
    if (!has(t, id))
        return NULL;
    *n = t->vocab.len[id];
    return t->vocab.blob.p + t->vocab.at[id];
}

const char *tokenizer_chat_template(const struct tokenizer *t)
{
    return t->chat_template;
}

const char *tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

const char *tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}
