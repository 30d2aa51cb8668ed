/* detok.c: ids to text.
 *
 * The decoder's steps form a chain.  A step receives tokens as fragments of
 * whole characters followed by an end, and passes tokens on as soon as later
 * ones cannot change them; decoding at once is pushing everything and
 * flushing, so that a stream always equals the whole.  A struct detok belongs
 * to one sequence and one thread at a time. */
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer/internal.h"
#include "proto/utf8.h"

static const char replacement[] = "\xef\xbf\xbd";

/* What one step remembers. */
struct stage {
    struct buf token;   /* fragments of the token under way           */
    struct buf pending; /* bytes of a cut character, of byte tokens;  */
    bool has_pending;   /* BPE, CTC: the token before this one        */
    size_t n_tokens;    /* ended so far                               */
    int32_t skip;       /* STRIP: characters still to drop            */
    bool begun;         /* a fragment or end of this token was seen   */
};

struct detok {
    const struct tokenizer *t; /* borrowed for the detok's life */
    bool skip_special;
    struct stage *stage; /* [decoder.n] */
    struct buf out, scratch, scratch2;
    pcre2_match_data *md;
    struct err *e; /* of the call under way */
};

static enum err_code feed(struct detok *d, size_t k, const char *s, size_t n);
static enum err_code end(struct detok *d, size_t k);

/* One whole token. */
static enum err_code pass(struct detok *d, size_t k, const char *s, size_t n)
{
    enum err_code rc = feed(d, k, s, n);
    return rc ? rc : end(d, k);
}

/* ---- byte level ------------------------------------------------------------ */

/* Pass on the characters that are complete in the pending bytes; a byte that
 * belongs to none becomes U+FFFD, as does each cut sequence.  last: nothing
 * follows. */
static enum err_code lossy(struct detok *d, size_t k, bool last)
{
    struct buf *p = &d->stage[k].pending;
    size_t i = 0;
    enum err_code rc = ERR_OK;
    while (i < p->n && !rc) {
        size_t good = utf8_valid_prefix(p->p + i, p->n - i);
        if (good > 0) {
            rc = feed(d, k + 1, p->p + i, good);
            i += good;
            continue;
        }
        size_t rest = p->n - i, cut = rest < 3 ? rest : 3;
        while (cut > 1 && utf8_incomplete_tail(p->p + i, cut) != cut)
            cut--;
        if (!last && cut == rest && utf8_incomplete_tail(p->p + i, cut) == cut)
            break;
        rc = feed(d, k + 1, replacement, 3);
        i += cut;
    }
    memmove(p->p, p->p + i, p->n - i);
    p->n -= i;
    return rc;
}

static enum err_code end_byte_level(struct detok *d, size_t k)
{
    struct stage *g = &d->stage[k];
    enum err_code rc = buf_reserve(&g->pending, g->token.n, d->e);
    if (rc)
        return rc;
    size_t n;
    if (tk_unmap(g->token.p, g->token.n, g->pending.p + g->pending.n, &n))
        g->pending.n += n;
    else
        rc = buf_add(&g->pending, g->token.p, g->token.n, d->e);
    return rc || g->pending.n == 0 ? rc : lossy(d, k, false);
}

/* ---- byte fallback ------------------------------------------------------------ */

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The byte that <0xNN> spells, or -1.  A sign may stand for the first digit. */
static int byte_of(const char *s, size_t n)
{
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>')
        return -1;
    int hi = s[3] == '+' ? 0 : hex(s[3]), lo = hex(s[4]);
    return hi < 0 || lo < 0 ? -1 : hi << 4 | lo;
}

/* The run of byte tokens is over: its text, or U+FFFD for each byte. */
static enum err_code end_run(struct detok *d, size_t k)
{
    struct buf *p = &d->stage[k].pending;
    enum err_code rc = ERR_OK;
    if (p->n == 0)
        return ERR_OK;
    if (utf8_is_valid(p->p, p->n))
        rc = pass(d, k + 1, p->p, p->n);
    else
        for (size_t i = 0; i < p->n && !rc; i++)
            rc = pass(d, k + 1, replacement, 3);
    p->n = 0;
    return rc;
}

static enum err_code end_byte_fallback(struct detok *d, size_t k)
{
    struct stage *g = &d->stage[k];
    int b = byte_of(g->token.p, g->token.n);
    if (b >= 0) {
        char c = (char)b;
        return buf_add(&g->pending, &c, 1, d->e);
    }
    enum err_code rc = end_run(d, k);
    return rc ? rc : pass(d, k + 1, g->token.p, g->token.n);
}

/* ---- steps on whole tokens --------------------------------------------------- */

static enum err_code swap_literal(struct detok *d, struct buf *in, struct buf *out,
                                  const char *from, const char *to)
{
    struct tk_pattern pat = { .literal = (char *)(uintptr_t)from, .n = strlen(from) };
    out->n = 0;
    return tk_replace(&pat, in->p, in->n, to, strlen(to), out, d->md, d->e);
}

/* English punctuation without the spaces that word pieces put before it:
 * scratch to scratch. */
static enum err_code clean(struct detok *d)
{
    static const char *const pairs[][2] = {
        { " .", "." },   { " ?", "?" },     { " !", "!" },    { " ,", "," },
        { " ' ", "'" },  { " n't", "n't" }, { " 'm", "'m" },  { " do not", " don't" },
        { " 's", "'s" }, { " 've", "'ve" }, { " 're", "'re" }
    };
    for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++) {
        enum err_code rc = swap_literal(d, &d->scratch, &d->scratch2, pairs[i][0], pairs[i][1]);
        if (rc)
            return rc;
        struct buf x = d->scratch;
        d->scratch = d->scratch2;
        d->scratch2 = x;
    }
    return ERR_OK;
}

static enum err_code end_wordpiece(struct detok *d, size_t k)
{
    const struct tk_step *p = &d->t->decoder.p[k];
    struct stage *g = &d->stage[k];
    size_t skip = 0;
    d->scratch.n = 0;
    enum err_code rc = buf_reserve(&d->scratch, g->token.n + 1, d->e);
    if (!rc && g->n_tokens > 0) {
        if (p->n > 0 && g->token.n >= p->n && memcmp(g->token.p, p->text, p->n) == 0)
            skip = p->n;
        else if (p->n > 0)
            rc = buf_add(&d->scratch, " ", 1, d->e);
    }
    if (!rc)
        rc = buf_add(&d->scratch, g->token.p + skip, g->token.n - skip, d->e);
    if (!rc && p->on)
        rc = clean(d);
    return rc ? rc : pass(d, k + 1, d->scratch.p, d->scratch.n);
}

static enum err_code end_ctc(struct detok *d, size_t k)
{
    const struct tk_step *p = &d->t->decoder.p[k];
    struct stage *g = &d->stage[k];
    if (g->n_tokens > 0 && g->pending.n == g->token.n &&
        memcmp(g->pending.p, g->token.p, g->token.n) == 0)
        return ERR_OK; /* the same token again */
    g->pending.n = 0;
    enum err_code rc = buf_add(&g->pending, g->token.p, g->token.n, d->e);
    if (!rc)
        rc = swap_literal(d, &g->token, &d->scratch, p->text, "");
    if (!rc && p->on) {
        rc = clean(d);
        if (!rc)
            rc = swap_literal(d, &d->scratch, &d->scratch2, p->word, " ");
        struct buf x = d->scratch;
        d->scratch = d->scratch2;
        d->scratch2 = x;
    }
    return rc || d->scratch.n == 0 ? rc : pass(d, k + 1, d->scratch.p, d->scratch.n);
}

/* The token before this one is no longer the last: its suffix is a space. */
static enum err_code end_bpe(struct detok *d, size_t k, bool flush)
{
    const struct tk_step *p = &d->t->decoder.p[k];
    struct stage *g = &d->stage[k];
    enum err_code rc = ERR_OK;
    if (g->has_pending) {
        struct tk_pattern pat = { .literal = p->text, .n = p->n };
        d->scratch.n = 0;
        rc = tk_replace(&pat, g->pending.p, g->pending.n, flush ? "" : " ", flush ? 0 : 1,
                        &d->scratch, d->md, d->e);
        if (!rc)
            rc = pass(d, k + 1, d->scratch.p, d->scratch.n);
    }
    struct buf x = g->pending;
    g->pending = g->token;
    g->token = x;
    g->has_pending = true;
    return rc;
}

static enum err_code end_replace(struct detok *d, size_t k)
{
    const struct tk_step *p = &d->t->decoder.p[k];
    struct stage *g = &d->stage[k];
    d->scratch.n = 0;
    enum err_code rc =
        tk_replace(&p->pat, g->token.p, g->token.n, p->text, p->n, &d->scratch, d->md, d->e);
    return rc ? rc : pass(d, k + 1, d->scratch.p, d->scratch.n);
}

/* Up to left and right characters off the ends of a whole token. */
static enum err_code end_strip(struct detok *d, size_t k)
{
    const struct tk_step *p = &d->t->decoder.p[k];
    const struct buf *x = &d->stage[k].token;
    size_t from = 0, to = x->n;
    for (int32_t i = 0; i < p->left && to - from >= p->n && !memcmp(x->p + from, p->text, p->n);
         i++)
        from += p->n;
    for (int32_t i = 0;
         i < p->right && to - from >= p->n && !memcmp(x->p + to - p->n, p->text, p->n); i++)
        to -= p->n;
    return pass(d, k + 1, x->p + from, to - from);
}

/* ---- the chain ------------------------------------------------------------------ */

/* STRIP at the left only: fragments pass as they come. */
static enum err_code feed_strip(struct detok *d, size_t k, const char *s, size_t n)
{
    const struct tk_step *p = &d->t->decoder.p[k];
    struct stage *g = &d->stage[k];
    if (!g->begun)
        g->skip = p->left;
    while (g->skip > 0 && n > 0) {
        if (n < p->n || memcmp(s, p->text, p->n) != 0) {
            g->skip = 0;
            break;
        }
        s += p->n;
        n -= p->n;
        g->skip--;
    }
    return n > 0 ? feed(d, k + 1, s, n) : ERR_OK;
}

static enum err_code feed_metaspace(struct detok *d, size_t k, const char *s, size_t n)
{
    const struct tk_step *p = &d->t->decoder.p[k];
    bool drop = d->stage[k].n_tokens == 0 && p->prepend != TK_PREPEND_NEVER;
    size_t from = 0;
    enum err_code rc = ERR_OK;
    for (size_t i = 0; i + p->n <= n && !rc;) {
        if (memcmp(s + i, p->text, p->n) != 0) {
            i++;
            continue;
        }
        if (i > from)
            rc = feed(d, k + 1, s + from, i - from);
        if (!rc && !drop)
            rc = feed(d, k + 1, " ", 1);
        i += p->n;
        from = i;
    }
    return rc || from == n ? rc : feed(d, k + 1, s + from, n - from);
}

/* A fragment of the token under way reaches step k. */
static enum err_code feed(struct detok *d, size_t k, const char *s, size_t n)
{
    const struct tk_steps *steps = &d->t->decoder;
    if (k == steps->n)
        return buf_add(&d->out, s, n, d->e);
    struct stage *g = &d->stage[k];
    enum err_code rc = ERR_OK;
    switch (steps->p[k].kind) {
    case TK_DEC_FUSE:
        rc = feed(d, k + 1, s, n);
        break;
    case TK_DEC_JOIN:
        if (!g->begun && g->n_tokens > 0)
            rc = feed(d, k + 1, " ", 1);
        if (!rc)
            rc = feed(d, k + 1, s, n);
        break;
    case TK_DEC_METASPACE:
        rc = feed_metaspace(d, k, s, n);
        break;
    case TK_DEC_STRIP:
        if (steps->p[k].right == 0) {
            rc = feed_strip(d, k, s, n);
            break;
        } /* fall through */
    default:
        rc = buf_add(&g->token, s, n, d->e);
    }
    g->begun = true;
    return rc;
}

/* The token under way at step k is complete. */
static enum err_code end(struct detok *d, size_t k)
{
    const struct tk_steps *steps = &d->t->decoder;
    if (k == steps->n)
        return ERR_OK;
    struct stage *g = &d->stage[k];
    enum err_code rc = buf_reserve(&g->token, 0, d->e); /* never NULL below */
    if (rc)
        return rc;
    switch (steps->p[k].kind) {
    case TK_DEC_BYTE_LEVEL:
        rc = end_byte_level(d, k);
        break;
    case TK_DEC_BYTE_FALLBACK:
        rc = end_byte_fallback(d, k);
        break;
    case TK_DEC_REPLACE:
        rc = end_replace(d, k);
        break;
    case TK_DEC_WORDPIECE:
        rc = end_wordpiece(d, k);
        break;
    case TK_DEC_CTC:
        rc = end_ctc(d, k);
        break;
    case TK_DEC_BPE:
        rc = end_bpe(d, k, false);
        break;
    case TK_DEC_STRIP:
        rc = steps->p[k].right == 0 ? end(d, k + 1) : end_strip(d, k);
        break;
    case TK_DEC_METASPACE:
        rc = end(d, k + 1);
        break;
    default: /* FUSE and JOIN go on with one token */
        break;
    }
    g->token.n = 0;
    g->begun = false;
    g->n_tokens++;
    return rc;
}

/* No further token reaches step k. */
static enum err_code finish(struct detok *d, size_t k)
{
    const struct tk_steps *steps = &d->t->decoder;
    enum err_code rc = ERR_OK;
    if (k == steps->n)
        return ERR_OK;
    switch (steps->p[k].kind) {
    case TK_DEC_BYTE_LEVEL:
        if (d->stage[k].pending.n > 0)
            rc = lossy(d, k, true);
        if (!rc)
            rc = end(d, k + 1);
        break;
    case TK_DEC_BYTE_FALLBACK:
        rc = end_run(d, k);
        break;
    case TK_DEC_BPE:
        rc = end_bpe(d, k, true);
        d->stage[k].has_pending = false;
        break;
    case TK_DEC_FUSE:
    case TK_DEC_JOIN:
        rc = end(d, k + 1);
        break;
    default:
        break;
    }
    return rc ? rc : finish(d, k + 1);
}

static enum err_code push(struct detok *d, int32_t id)
{
    size_t n;
    const char *s = tokenizer_spelling(d->t, id, &n);
    if (s == NULL || (d->skip_special && tokenizer_is_special(d->t, id)))
        return ERR_OK;
    return pass(d, 0, s, n);
}

/* ---- the public part --------------------------------------------------------------- */

enum err_code detok_create(struct detok **out, const struct tokenizer *t, bool skip_special,
                           struct err *e)
{
    *out = NULL;
    struct detok *d = calloc(1, sizeof(*d));
    if (d == NULL)
        return err_nomem(e, "detokenizer", sizeof(*d));
    d->t = t;
    d->skip_special = skip_special;
    d->stage = calloc(t->decoder.n + 1, sizeof(*d->stage));
    d->md = pcre2_match_data_create(1, NULL);
    enum err_code rc = d->stage && d->md ? buf_reserve(&d->out, 64, e)
                                         : err_nomem(e, "detokenizer", sizeof(*d->stage));
    if (rc) {
        detok_destroy(d);
        return rc;
    }
    *out = d;
    return ERR_OK;
}

void detok_destroy(struct detok *d)
{
    if (d == NULL)
        return;
    for (size_t k = 0; d->stage && k < d->t->decoder.n; k++) {
        buf_fini(&d->stage[k].token);
        buf_fini(&d->stage[k].pending);
    }
    free(d->stage);
    buf_fini(&d->out);
    buf_fini(&d->scratch);
    buf_fini(&d->scratch2);
    pcre2_match_data_free(d->md);
    free(d);
}

enum err_code detok_push(struct detok *d, int32_t id, const char **text, size_t *n, struct err *e)
{
    d->e = e;
    d->out.n = 0;
    enum err_code rc = push(d, id);
    *text = d->out.p;
    *n = d->out.n;
    return rc;
}

enum err_code detok_flush(struct detok *d, const char **text, size_t *n, struct err *e)
{
    d->e = e;
    d->out.n = 0;
    enum err_code rc = finish(d, 0);
    *text = d->out.p;
    *n = d->out.n;
    return rc;
}

enum err_code tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n,
                               bool skip_special, char **out, size_t *out_n, struct err *e)
{
    struct detok *d;
    *out = NULL;
    *out_n = 0;
    enum err_code rc = detok_create(&d, t, skip_special, e);
    if (rc)
        return rc;
    d->e = e;
    for (size_t i = 0; i < n && !rc; i++)
        rc = push(d, ids[i]);
    if (!rc)
        rc = finish(d, 0);
    if (!rc)
        rc = buf_reserve(&d->out, 0, e);
    if (!rc)
        *out = buf_take(&d->out, out_n);
    detok_destroy(d);
    return rc;
}

/* The spelling of one id after the steps that work alike wherever it stands. */
static enum err_code alone(const struct tokenizer *t, const char *s, size_t n, struct buf *x,
                           struct buf *y, pcre2_match_data *md)
{
    enum err_code rc = buf_add(x, s, n, NULL);
    for (size_t k = 0; k < t->decoder.n && !rc; k++) {
        const struct tk_step *p = &t->decoder.p[k];
        const struct tk_pattern marker = { .literal = p->text, .n = p->n };
        bool replace = p->kind == TK_DEC_REPLACE, space = p->kind == TK_DEC_METASPACE;
        if (p->kind == TK_DEC_BYTE_LEVEL) {
            size_t len;
            if (tk_unmap(x->p, x->n, x->p, &len)) /* never longer than what is read */
                x->n = len;
        } else if (p->kind == TK_DEC_BYTE_FALLBACK) {
            int b = byte_of(x->p, x->n);
            if (b >= 0) {
                x->p[0] = (char)b;
                x->n = 1;
                break;
            }
        } else if (replace || space) {
            y->n = 0;
            rc = buf_reserve(y, x->n, NULL);
            if (!rc)
                rc = tk_replace(replace ? &p->pat : &marker, x->p, x->n, replace ? p->text : " ",
                                replace ? p->n : 1, y, md, NULL);
            struct buf z = *x;
            *x = *y;
            *y = z;
        }
    }
    return rc;
}

size_t tokenizer_token_bytes(const struct tokenizer *t, int32_t id, char *buf, size_t cap)
{
    size_t n;
    const char *s = tokenizer_spelling(t, id, &n);
    if (s == NULL)
        return 0;
    struct buf x = { 0 }, y = { 0 };
    pcre2_match_data *md = pcre2_match_data_create(1, NULL);
    if (md == NULL || alone(t, s, n, &x, &y, md))
        x.n = 0;
    n = x.n < cap ? x.n : cap;
    if (n > 0)
        memcpy(buf, x.p, n);
    buf_fini(&x);
    buf_fini(&y);
    pcre2_match_data_free(md);
    return n;
}
