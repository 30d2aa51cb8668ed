/* normalize.c: normalisation steps over whole segments.
 *
 * Every step reads one text and writes another; text is valid UTF-8 and stays
 * so.  No shared state; any thread. */
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "model/tokenizer/internal.h"
#include "proto/utf8.h"

static enum err_code add_char(struct buf *out, uint32_t c, struct err *e)
{
    char buf[4];
    return buf_add(out, buf, utf8_encode(c, buf), e);
}

static enum err_code known_run(const char *s, size_t n, int form, struct buf *out, struct err *e)
{
    if (n == 0)
        return ERR_OK;
    utf8proc_uint8_t *to = NULL;
    utf8proc_ssize_t k = utf8proc_map((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)n, &to,
                                      (utf8proc_option_t)form);
    if (k == UTF8PROC_ERROR_NOMEM)
        return err_nomem(e, "normalised text", n);
    if (k < 0)
        return err_set(e, ERR_INVALID, "text: cannot be normalised: %s", utf8proc_errmsg(k));
    enum err_code rc = buf_add(out, (const char *)to, (size_t)k, e);
    free(to);
    return rc;
}

/* A run without ASCII behind its first character.  Characters that the
 * reference's tables lack pass, and nothing combines across them. */
static enum err_code unicode_run(const char *s, size_t n, int form, struct buf *out, struct err *e)
{
    size_t from = 0;
    enum err_code rc = ERR_OK;
    for (size_t i = 0, k; i < n && !rc; i += k) {
        if (!tk_is_inert(tk_char_at(s, n, i, &k)))
            continue;
        rc = known_run(s + from, i - from, form, out, e);
        if (!rc)
            rc = buf_add(out, s + i, k, e);
        from = i + k;
    }
    return rc ? rc : known_run(s + from, n - from, form, out, e);
}

/* ASCII never changes and never combines with what stands before it, so only
 * the stretches of other characters, with the ASCII one they may modify, are
 * looked at. */
static enum err_code unicode(const char *s, size_t n, int form, struct buf *out, struct err *e)
{
    size_t plain = 0, i = 0;
    while (i < n) {
        if ((unsigned char)s[i] < 0x80) {
            i++;
            continue;
        }
        size_t from = i > plain ? i - 1 : i;
        while (i < n && (unsigned char)s[i] >= 0x80)
            i++;
        enum err_code rc = buf_add(out, s + plain, from - plain, e);
        if (!rc)
            rc = unicode_run(s + from, i - from, form, out, e);
        if (rc)
            return rc;
        plain = i;
    }
    return buf_add(out, s + plain, n - plain, e);
}

static enum err_code lowercase(const char *s, size_t n, struct buf *out, struct err *e)
{
    enum err_code rc = ERR_OK;
    for (size_t i = 0, k; i < n && !rc; i += k) {
        uint32_t c = tk_char_at(s, n, i, &k);
        if (c == 0x130) /* the one letter whose lower case is two characters */
            rc = buf_add(out, "i\xcc\x87", 3, e);
        else
            rc = add_char(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c), e);
    }
    return rc;
}

static bool is_mark(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k >= UTF8PROC_CATEGORY_MN && k <= UTF8PROC_CATEGORY_ME;
}

/* What SentencePiece's "nmt" rule drops (UINT32_MAX) and turns into spaces. */
static uint32_t nmt_char(uint32_t c)
{
    if ((c >= 1 && c <= 8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f || c == 0x8f ||
        c == 0x9f)
        return UINT32_MAX;
    if (c == 9 || c == 0xa || c == 0xc || c == 0xd || c == 0x1680 || (c >= 0x200b && c <= 0x200f) ||
        c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xfeff || c == 0xfffd)
        return ' ';
    return c;
}

static enum err_code by_char(enum tk_kind kind, const char *s, size_t n, struct buf *out,
                             struct err *e)
{
    enum err_code rc = ERR_OK;
    for (size_t i = 0, k; i < n && !rc; i += k) {
        uint32_t c = tk_char_at(s, n, i, &k);
        if (kind == TK_STRIP_ACCENTS) {
            if (!is_mark(c) || tk_is_inert(c))
                rc = buf_add(out, s + i, k, e);
        } else {
            uint32_t to = nmt_char(c);
            if (to != UINT32_MAX)
                rc = add_char(out, to, e);
        }
    }
    return rc;
}

static enum err_code strip(const struct tk_step *p, const char *s, size_t n, struct buf *out,
                           struct err *e)
{
    size_t from = 0, to = n, k;
    while (p->left && from < to && tk_is_space(tk_char_at(s, n, from, &k)))
        from += k;
    while (p->right && to > from) {
        size_t i = to - 1;
        while (i > from && ((unsigned char)s[i] & 0xc0) == 0x80)
            i--;
        if (!tk_is_space(tk_char_at(s, n, i, &k)))
            break;
        to = i;
    }
    return buf_add(out, s + from, to - from, e);
}

static enum err_code byte_chars(const char *s, size_t n, struct buf *out, struct err *e)
{
    enum err_code rc = buf_reserve(out, 2 * n, e);
    for (size_t i = 0; i < n && !rc; i++)
        rc = add_char(out, tk_byte_char((unsigned char)s[i]), e);
    return rc;
}

/* ---- SentencePiece's compiled map ------------------------------------------- */

static uint32_t unit_at(const struct tk_step *p, size_t i, size_t n_units)
{
    uint32_t u = 0;
    if (i < n_units)
        memcpy(&u, p->text + 4 + 4 * i, 4);
    return u;
}

static size_t unit_offset(uint32_t u)
{
    return (size_t)(u >> 10) << ((u & 0x200) >> 6);
}

/* The replacement of the shortest key that s begins with; NULL: none. */
static const char *mapped(const struct tk_step *p, const char *s, size_t n)
{
    uint32_t size;
    memcpy(&size, p->text, 4);
    size_t n_units = size / 4, at = unit_offset(unit_at(p, 0, n_units));
    for (size_t i = 0; i < n && s[i] != '\0'; i++) {
        unsigned char c = (unsigned char)s[i];
        at ^= c;
        uint32_t u = unit_at(p, at, n_units);
        if ((u & 0x800000ff) != c)
            return NULL;
        at ^= unit_offset(u);
        if (u & 0x100) {
            size_t to = 4 + (size_t)size + (unit_at(p, at, n_units) & 0x7fffffff);
            return to < p->n ? p->text + to : NULL;
        }
    }
    return NULL;
}

static enum err_code map_cluster(const struct tk_step *p, const char *s, size_t n, struct buf *out,
                                 struct err *e)
{
    const char *to = n < 6 ? mapped(p, s, n) : NULL;
    if (to)
        return buf_add(out, to, strlen(to), e);
    enum err_code rc = ERR_OK;
    for (size_t i = 0, k; i < n && !rc; i += k) {
        tk_char_at(s, n, i, &k);
        to = mapped(p, s + i, k);
        rc = to ? buf_add(out, to, strlen(to), e) : buf_add(out, s + i, k, e);
    }
    return rc;
}

/* The map is applied to whole grapheme clusters first, then to characters.
 * The text that ends the file's map is NUL-terminated by the loader. */
static enum err_code precompiled(const struct tk_step *p, const char *s, size_t n, struct buf *out,
                                 struct err *e)
{
    utf8proc_int32_t state = 0;
    size_t from = 0, k;
    uint32_t before = 0;
    enum err_code rc = ERR_OK;
    for (size_t i = 0; i < n && !rc; i += k) {
        uint32_t c = tk_char_at(s, n, i, &k);
        if (i > 0 && utf8proc_grapheme_break_stateful((utf8proc_int32_t)before, (utf8proc_int32_t)c,
                                                      &state)) {
            rc = map_cluster(p, s + from, i - from, out, e);
            from = i;
        }
        before = c;
    }
    return rc || from == n ? rc : map_cluster(p, s + from, n - from, out, e);
}

/* ---- patterns ------------------------------------------------------------------ */

enum err_code tk_pattern_next(const struct tk_pattern *pat, pcre2_match_data *md, const char *s,
                              size_t n, size_t from, bool *found, size_t *at, size_t *end,
                              struct err *e)
{
    if (pat->literal == NULL)
        return tk_regex_next(&pat->re, md, s, n, from, found, at, end, e);
    const char *p =
        pat->n > 0 && n - from >= pat->n ? memmem(s + from, n - from, pat->literal, pat->n) : NULL;
    *found = p != NULL;
    if (p) {
        *at = (size_t)(p - s);
        *end = *at + pat->n;
    }
    return ERR_OK;
}

enum err_code tk_replace(const struct tk_pattern *pat, const char *s, size_t n, const char *text,
                         size_t text_n, struct buf *out, pcre2_match_data *md, struct err *e)
{
    size_t done = 0, from = 0, at = 0, end = 0;
    bool found, any = false;
    while (from <= n) {
        size_t last = end;
        enum err_code rc = tk_pattern_next(pat, md, s, n, from, &found, &at, &end, e);
        if (rc)
            return rc;
        if (!found)
            break;
        from = end;
        if (at == end) { /* step over one character; not twice in one place */
            size_t k = 1;
            if (end < n)
                tk_char_at(s, n, end, &k);
            from = end + k;
            if (any && at == last)
                continue;
        }
        any = true;
        rc = buf_add(out, s + done, at - done, e);
        if (!rc)
            rc = buf_add(out, text, text_n, e);
        if (rc)
            return rc;
        done = end;
    }
    return buf_add(out, s + done, n - done, e);
}

static enum err_code apply(const struct tk_step *p, const char *s, size_t n, struct buf *out,
                           pcre2_match_data *md, struct err *e)
{
    enum err_code rc;
    switch (p->kind) {
    case TK_NFC:
        return unicode(s, n, UTF8PROC_STABLE | UTF8PROC_COMPOSE, out, e);
    case TK_NFD:
        return unicode(s, n, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, out, e);
    case TK_NFKC:
        return unicode(s, n, UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT, out, e);
    case TK_NFKD:
        return unicode(s, n, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT, out, e);
    case TK_LOWERCASE:
        return lowercase(s, n, out, e);
    case TK_STRIP:
        return strip(p, s, n, out, e);
    case TK_STRIP_ACCENTS:
    case TK_NMT:
        return by_char(p->kind, s, n, out, e);
    case TK_PRECOMPILED:
        return precompiled(p, s, n, out, e);
    case TK_REPLACE:
        return tk_replace(&p->pat, s, n, p->text, p->n, out, md, e);
    case TK_PREPEND:
        rc = n > 0 ? buf_add(out, p->text, p->n, e) : ERR_OK;
        return rc ? rc : buf_add(out, s, n, e);
    case TK_BYTE_CHARS:
        return byte_chars(s, n, out, e);
    default:
        return buf_add(out, s, n, e);
    }
}

enum err_code tk_normalize(const struct tk_steps *steps, const char *s, size_t n, struct buf *out,
                           struct buf *spare, pcre2_match_data *md, struct err *e)
{
    out->n = 0;
    enum err_code rc = buf_reserve(out, n, e);
    if (!rc && steps->n == 0)
        return buf_add(out, s, n, e);
    for (size_t k = 0; k < steps->n && !rc; k++) {
        if (k > 0) {
            struct buf x = *out;
            *out = *spare;
            *spare = x;
            out->n = 0;
            s = spare->p;
            n = spare->n;
            rc = buf_reserve(out, n, e);
        }
        if (!rc)
            rc = apply(&steps->p[k], s, n, out, md, e);
    }
    return rc;
}
