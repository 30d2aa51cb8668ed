/* split.c: pre-tokenization, from a segment to pieces.
 *
 * A step looks at each piece alone.  Steps that only cut leave the text where
 * it is; those that change it build a new one.  All state is in struct
 * tk_work; any thread with its own. */
#include <string.h>

#include "model/tokenizer/internal.h"
#include "proto/utf8.h"

/* The next stretch of s that a step's pattern or predicate matches. */
static enum err_code next_match(struct tk_work *w, const struct tk_step *p, const char *s, size_t n,
                                size_t from, bool *found, size_t *at, size_t *end)
{
    if (p->kind == TK_SPLIT)
        return tk_pattern_next(&p->pat, w->md, s, n, from, found, at, end, w->e);
    *found = false;
    for (size_t i = from, k; i < n; i += k) {
        uint32_t c = tk_char_at(s, n, i, &k);
        if (p->kind == TK_DIGITS        ? tk_is_numeric(c)
            : p->kind == TK_PUNCTUATION ? tk_is_punct(c)
                                        : tk_is_space(c)) {
            *found = true;
            *at = i;
            *end = i + k;
            break;
        }
    }
    return ERR_OK;
}

/* Matches and what lies between, as spans whose origin says "match". */
static enum err_code find_spans(struct tk_work *w, const struct tk_step *p, const char *s, size_t n)
{
    size_t done = 0, from = 0, at, end, last = SIZE_MAX;
    bool found;
    w->spans.n = 0;
    while (from <= n) {
        enum err_code rc = next_match(w, p, s, n, from, &found, &at, &end);
        if (rc)
            return rc;
        if (!found)
            break;
        from = end;
        if (at == end) { /* an empty match still separates, once in one place */
            size_t k = 1;
            if (end < n)
                tk_char_at(s, n, end, &k);
            from = end + k;
            if (at == last)
                continue;
        }
        last = end;
        if (at > done)
            rc = tk_pieces_add(&w->spans, done, at - done, p->invert, w->e);
        if (!rc)
            rc = tk_pieces_add(&w->spans, at, end - at, !p->invert, w->e);
        if (rc)
            return rc;
        done = end;
    }
    return done < n ? tk_pieces_add(&w->spans, done, n - done, p->invert, w->e) : ERR_OK;
}

/* Join spans as the behaviour says, in place; returns how many remain. */
static size_t join_spans(struct tk_piece *p, size_t n, enum tk_behavior b)
{
    size_t k = 0;
    bool before = false;
    if (b == TK_MERGED_NEXT) { /* from the right; the joined ones gather at the end */
        k = n;
        for (size_t i = n; i-- > 0;) {
            bool match = p[i].origin;
            if (match && !before && k < n) {
                p[k].n += p[k].at - p[i].at;
                p[k].at = p[i].at;
            } else {
                p[--k] = p[i];
            }
            before = match;
        }
        memmove(p, p + k, (n - k) * sizeof(*p));
        return n - k;
    }
    for (size_t i = 0; i < n; i++) {
        bool match = p[i].origin;
        bool join = b == TK_CONTIGUOUS ? match == before : match && !before;
        if (b == TK_REMOVED) {
            if (!match)
                p[k++] = p[i];
        } else if (b != TK_ISOLATED && join && k > 0) {
            p[k - 1].n = p[i].at + p[i].n - p[k - 1].at;
        } else {
            p[k++] = p[i];
        }
        before = match;
    }
    return k;
}

static enum err_code split_piece(struct tk_work *w, const struct tk_step *p,
                                 const struct tk_piece *x)
{
    enum err_code rc = find_spans(w, p, w->base + x->at, x->n);
    if (rc)
        return rc;
    size_t n = join_spans(w->spans.p, w->spans.n, p->behavior);
    for (size_t i = 0; i < n && !rc; i++) {
        const struct tk_piece *y = &w->spans.p[i];
        if (y->n > 0)
            rc =
                tk_pieces_add(&w->next, (size_t)x->at + y->at, y->n, x->origin && y->at == 0, w->e);
    }
    return rc;
}

/* The common case of split_piece, without the list of spans. */
static enum err_code isolate_piece(struct tk_work *w, const struct tk_step *p,
                                   const struct tk_piece *x)
{
    const char *s = w->base + x->at;
    size_t n = x->n, done = 0, from = 0, at, end;
    while (from < n) {
        bool found;
        enum err_code rc = next_match(w, p, s, n, from, &found, &at, &end);
        if (rc)
            return rc;
        if (!found)
            break;
        from = end;
        if (at == end) {
            size_t k = 1;
            if (end < n)
                tk_char_at(s, n, end, &k);
            from = end + k;
        }
        if (at > done)
            rc = tk_pieces_add(&w->next, x->at + done, at - done, x->origin && done == 0, w->e);
        if (!rc && end > at)
            rc = tk_pieces_add(&w->next, x->at + at, end - at, x->origin && at == 0, w->e);
        if (rc)
            return rc;
        done = end;
    }
    return done < n ? tk_pieces_add(&w->next, x->at + done, n - done, x->origin && done == 0, w->e)
                    : ERR_OK;
}

static enum err_code fixed_piece(struct tk_work *w, const struct tk_step *p,
                                 const struct tk_piece *x)
{
    const char *s = w->base + x->at;
    for (size_t i = 0, from = 0; i < x->n; from = i) {
        for (int32_t c = 0; c < p->left && i < x->n; c++) {
            size_t k;
            tk_char_at(s, x->n, i, &k);
            i += k;
        }
        enum err_code rc =
            tk_pieces_add(&w->next, x->at + from, i - from, x->origin && from == 0, w->e);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

/* Append piece x, changed as p says, to out. */
static enum err_code rebuild_piece(struct tk_work *w, const struct tk_step *p,
                                   const struct tk_piece *x, struct buf *out)
{
    const char *s = w->base + x->at;
    enum err_code rc = ERR_OK;
    if (p->kind == TK_PREFIX_SPACE) {
        if (s[0] != ' ')
            rc = buf_add(out, " ", 1, w->e);
        return rc ? rc : buf_add(out, s, x->n, w->e);
    }
    if (p->kind == TK_BYTE_CHARS) {
        rc = buf_reserve(out, 2 * (size_t)x->n, w->e);
        for (size_t i = 0; i < x->n && !rc; i++)
            out->n += utf8_encode(tk_byte_char((unsigned char)s[i]), out->p + out->n);
        return rc;
    }
    bool marked = s[0] == ' ' || (x->n >= p->n && memcmp(s, p->text, p->n) == 0);
    if (!marked &&
        (p->prepend == TK_PREPEND_ALWAYS || (p->prepend == TK_PREPEND_FIRST && x->origin)))
        rc = buf_add(out, p->text, p->n, w->e);
    for (size_t i = 0, from = 0; i <= x->n && !rc; i++) {
        if (i < x->n && s[i] != ' ')
            continue;
        rc = buf_add(out, s + from, i - from, w->e);
        if (!rc && i < x->n)
            rc = buf_add(out, p->text, p->n, w->e);
        from = i + 1;
    }
    return rc;
}

/* Cut at every marker, which begins the piece behind it. */
static enum err_code cut_markers(struct tk_work *w, const struct tk_step *p, const char *text,
                                 size_t from, size_t to, bool origin)
{
    size_t start = from;
    const char *m;
    while (start < to) {
        size_t end = to;
        m = to - start > p->n ? memmem(text + start + 1, to - start - 1, p->text, p->n) : NULL;
        if (m)
            end = (size_t)(m - text);
        enum err_code rc =
            tk_pieces_add(&w->next, start, end - start, origin && start == from, w->e);
        if (rc)
            return rc;
        start = end;
    }
    return ERR_OK;
}

static enum err_code rebuild(struct tk_work *w, const struct tk_step *p)
{
    struct buf *out = w->base == w->built[0].p ? &w->built[1] : &w->built[0];
    out->n = 0;
    for (size_t i = 0; i < w->pieces.n; i++) {
        const struct tk_piece *x = &w->pieces.p[i];
        size_t from = out->n;
        enum err_code rc = rebuild_piece(w, p, x, out);
        if (!rc && out->n >= UINT32_MAX)
            rc = err_set(w->e, ERR_LIMIT, "text: at most 4 GiB");
        if (!rc && p->kind == TK_METASPACE && p->on)
            rc = cut_markers(w, p, out->p, from, out->n, x->origin);
        else if (!rc)
            rc = tk_pieces_add(&w->next, from, out->n - from, x->origin, w->e);
        if (rc)
            return rc;
    }
    w->base = out->p;
    return ERR_OK;
}

enum err_code tk_pretokenize(struct tk_work *w)
{
    const struct tk_steps *steps = &w->t->pretokenizer;
    for (size_t k = 0; k < steps->n; k++) {
        const struct tk_step *p = &steps->p[k];
        enum err_code rc = ERR_OK;
        w->next.n = 0;
        if (p->kind == TK_PREFIX_SPACE || p->kind == TK_BYTE_CHARS || p->kind == TK_METASPACE) {
            rc = rebuild(w, p);
        } else {
            for (size_t i = 0; i < w->pieces.n && !rc; i++) {
                const struct tk_piece *x = &w->pieces.p[i];
                rc = p->kind == TK_FIXED_LENGTH   ? fixed_piece(w, p, x)
                     : p->behavior == TK_ISOLATED ? isolate_piece(w, p, x)
                                                  : split_piece(w, p, x);
            }
        }
        if (rc)
            return rc;
        struct tk_pieces x = w->pieces;
        w->pieces = w->next;
        w->next = x;
    }
    return ERR_OK;
}
