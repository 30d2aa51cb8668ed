/* regex.c: the reference library's regular expressions on PCRE2.
 *
 * tokenizer.json writes patterns for Oniguruma.  The dialects differ in a few
 * constructs, which are rewritten before compiling; a pattern that still does
 * not compile is refused at load, and a match that hits PCRE2's limits is an
 * error, never "no match".  Compiled patterns are immutable: any thread, each
 * with its own match data. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer/internal.h"
#include "model/tokenizer/scan.h"

#define SPACES                                                                                     \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}"             \
    "\\x{202f}\\x{205f}\\x{3000}"
#define WORDS                                                                                      \
    "\\p{L}\\p{M}\\p{Nl}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}\\x{24b6}-\\x{24e9}"     \
    "\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"

struct rewriter {
    const char *s;
    size_t n, i;
    struct buf *out;
    struct err *e;
    int depth;
};

static enum err_code put(struct rewriter *r, const char *s)
{
    return buf_add(r->out, s, strlen(s), r->e);
}

static bool ahead(const struct rewriter *r, const char *s)
{
    size_t k = strlen(s);
    return r->n - r->i >= k && memcmp(r->s + r->i, s, k) == 0;
}

/* \p{Name} or \P{Name}: PCRE2 reads a script's name as script extensions. */
static enum err_code property(struct rewriter *r)
{
    const char *open = r->s + r->i, *end = memchr(open, '}', r->n - r->i);
    if (end == NULL)
        return err_set(r->e, ERR_INVALID, "regex: \\p without closing brace");
    size_t k = (size_t)(end - open) + 1;
    bool category = k <= 6; /* \p{L}, \p{Lu}, \p{^L}, not a script's name */
    static const char *const general[] = { "Alphabetic", "Lowercase", "Uppercase", "Any",
                                           "White_Space" };
    for (size_t g = 0; g < sizeof(general) / sizeof(*general); g++)
        category |= k == strlen(general[g]) + 4 && !memcmp(open + 3, general[g], k - 4);
    r->i += k;
    if (category)
        return buf_add(r->out, open, k, r->e);
    bool negated = open[3] == '^';
    bool upper = (open[1] == 'P') != negated;
    enum err_code rc = put(r, upper ? "\\P{sc:" : "\\p{sc:");
    return rc ? rc : buf_add(r->out, open + 3 + negated, k - 3 - negated, r->e);
}

/* An escape at r->i.  \s, \w and \h mean other sets here. */
static enum err_code escape(struct rewriter *r, bool in_class)
{
    static const struct {
        char c;
        const char *in, *out;
    } sets[] = {
        { 's', SPACES, "[" SPACES "]" },     { 'S', "\\S\\x{180e}", "[^" SPACES "]" },
        { 'w', WORDS, "[" WORDS "]" },       { 'W', NULL, "[^" WORDS "]" },
        { 'h', "0-9a-fA-F", "[0-9a-fA-F]" }, { 'H', NULL, "[^0-9a-fA-F]" },
    };
    if (r->i + 1 >= r->n)
        return err_set(r->e, ERR_INVALID, "regex: nothing after the last backslash");
    char c = r->s[r->i + 1];
    if ((c == 'p' || c == 'P') && r->i + 2 < r->n && r->s[r->i + 2] == '{')
        return property(r);
    for (size_t k = 0; k < sizeof(sets) / sizeof(*sets); k++) {
        const char *to = in_class ? sets[k].in : sets[k].out;
        if (sets[k].c != c)
            continue;
        if (to == NULL)
            return err_set(r->e, ERR_INVALID, "regex: \\%c inside a class is not supported", c);
        r->i += 2;
        return put(r, to);
    }
    size_t k = 1;
    while (r->i + 1 + k < r->n && ((unsigned char)r->s[r->i + 1 + k] & 0xc0) == 0x80)
        k++;
    r->i += 1 + k;
    return buf_add(r->out, r->s + r->i - 1 - k, 1 + k, r->e);
}

static enum err_code char_class(struct rewriter *r);

/* The items of a class up to "&&" or its end, as "[...]" into r->out.  A
 * nested class is a union: written as alternatives outside the brackets. */
static enum err_code class_part(struct rewriter *r, bool first)
{
    struct buf items = { 0 }, *out = r->out;
    enum err_code rc = ERR_OK;
    size_t nested = 0;
    rc = put(r, "(?:");
    while (rc == ERR_OK && r->i < r->n && r->s[r->i] != ']' && !ahead(r, "&&")) {
        if (ahead(r, "[:")) {
            const char *end = memchr(r->s + r->i, ']', r->n - r->i);
            size_t k = end ? (size_t)(end - r->s - r->i) + 1 : r->n - r->i;
            rc = buf_add(&items, r->s + r->i, k, r->e);
            r->i += k;
        } else if (r->s[r->i] == '[') {
            if (nested++)
                rc = put(r, "|");
            if (!rc)
                rc = char_class(r);
        } else {
            r->out = &items;
            rc = r->s[r->i] == '\\' ? escape(r, true) : buf_add(&items, r->s + r->i++, 1, r->e);
            r->out = out;
        }
        if (first && !rc && r->i < r->n && r->s[r->i] == ']' && items.n == 0 && !nested) {
            rc = put(&(struct rewriter){ .out = &items, .e = r->e }, "\\]");
            r->i++;
        }
        first = false;
    }
    if (!rc && items.n > 0) {
        if (nested)
            rc = put(r, "|");
        if (!rc)
            rc = put(r, "[");
        if (!rc)
            rc = buf_add(r->out, items.p, items.n, r->e);
        if (!rc)
            rc = put(r, "]");
    }
    buf_fini(&items);
    return rc ? rc : put(r, ")");
}

/* A class without nesting and intersections, up to its bracket at k, is one in PCRE2. */
static enum err_code plain_class(struct rewriter *r, bool negated, size_t k)
{
    if (k >= r->n)
        return err_set(r->e, ERR_INVALID, "regex: class without closing bracket");
    enum err_code rc = put(r, negated ? "[^" : "[");
    while (rc == ERR_OK && r->i < k)
        rc = r->s[r->i] == '\\' ? escape(r, true) : buf_add(r->out, r->s + r->i++, 1, r->e);
    r->i = k + 1;
    return rc ? rc : put(r, "]");
}

/* The parts between &&, later ones as look-aheads, appended to all. */
static enum err_code class_parts(struct rewriter *r, struct buf *all)
{
    struct buf part = { 0 }, *out = r->out;
    enum err_code rc = ERR_OK;
    for (int parts = 0; rc == ERR_OK; parts++) {
        part.n = 0;
        r->out = &part;
        rc = class_part(r, parts == 0);
        r->out = out;
        bool more = !rc && ahead(r, "&&");
        if (!rc && more)
            rc = buf_add(all, "(?=", 3, r->e);
        if (!rc)
            rc = buf_add(all, part.p, part.n, r->e);
        if (!rc && more)
            rc = buf_add(all, ")", 1, r->e);
        if (!more)
            break;
        r->i += 2;
    }
    buf_fini(&part);
    return rc;
}

/* [...] with Oniguruma's nesting and intersections: [A&&B] becomes
 * (?=B)A, [^...] of more than one part (?!...)anything. */
static enum err_code char_class(struct rewriter *r)
{
    if (++r->depth > 16)
        return err_set(r->e, ERR_INVALID, "regex: classes nested too deep");
    size_t from = ++r->i, k = from;
    bool negated = k < r->n && r->s[k] == '^', plain = true;
    for (k += negated; k < r->n && (r->s[k] != ']' || k == from + negated); k++) {
        if (r->s[k] == '\\')
            k++;
        else if (r->s[k] == '[' || (r->s[k] == '&' && k + 1 < r->n && r->s[k + 1] == '&'))
            plain = false;
    }
    r->i += negated;
    if (plain) {
        enum err_code rc = plain_class(r, negated, k);
        r->depth--;
        return rc;
    }
    enum err_code rc = put(r, negated ? "(?:(?!" : "(?:");
    struct buf all = { 0 };
    if (!rc)
        rc = class_parts(r, &all);
    if (!rc && r->i >= r->n)
        rc = err_set(r->e, ERR_INVALID, "regex: class without closing bracket");
    r->i++;
    if (!rc)
        rc = buf_add(r->out, all.p, all.n, r->e);
    buf_fini(&all);
    r->depth--;
    return rc ? rc : put(r, negated ? ")(?s:.))" : ")");
}

/* {n,m}+ repeats the repetition in Oniguruma; in PCRE2 it is possessive. */
static enum err_code interval(struct rewriter *r, size_t atom)
{
    size_t k = r->i + 1;
    while (k < r->n && ((r->s[k] >= '0' && r->s[k] <= '9') || r->s[k] == ','))
        k++;
    bool ok = k < r->n && r->s[k] == '}' && k > r->i + 1;
    k += ok;
    size_t len = k - r->i;
    bool plus = ok && k < r->n && r->s[k] == '+';
    enum err_code rc = ERR_OK;
    if (plus) {
        rc = buf_reserve(r->out, 3, r->e);
        if (rc)
            return rc;
        memmove(r->out->p + atom + 3, r->out->p + atom, r->out->n - atom);
        memcpy(r->out->p + atom, "(?:", 3);
        r->out->n += 3;
    }
    rc = buf_add(r->out, r->s + r->i, len, r->e);
    r->i = k;
    return rc || !plus ? rc : put(r, ")");
}

enum { MAX_GROUPS = 64 };

enum err_code tk_regex_translate(const char *pat, size_t n, struct buf *out, struct err *e)
{
    struct rewriter r = { .s = pat, .n = n, .out = out, .e = e };
    size_t atom = 0, open[MAX_GROUPS];
    int depth = 0;
    enum err_code rc = ERR_OK;
    while (rc == ERR_OK && r.i < n) {
        char c = pat[r.i];
        if (c == '{') {
            rc = interval(&r, atom);
            continue;
        }
        if (c == ')') {
            atom = depth > 0 ? open[--depth] : out->n;
        } else if (c != '*' && c != '+' && c != '?') {
            if (((unsigned char)c & 0xc0) != 0x80)
                atom = out->n;
        }
        if (c == '(') {
            if (depth == MAX_GROUPS)
                return err_set(e, ERR_INVALID, "regex: groups nested too deep");
            open[depth++] = out->n;
            if (r.i + 1 < n && pat[r.i + 1] == '?') { /* (?i: and kin, whole */
                rc = buf_add(out, pat + r.i, 2, e);
                r.i += 2;
                continue;
            }
        }
        rc = c == '\\'  ? escape(&r, false)
             : c == '[' ? char_class(&r)
                        : buf_add(out, pat + r.i++, 1, e);
    }
    return rc;
}

enum err_code tk_regex_compile(struct tk_regex *r, const char *pat, size_t n, struct err *e)
{
    struct buf x = { 0 };
    *r = (struct tk_regex){ 0 };
    if (n > 65536)
        return err_set(e, ERR_LIMIT, "regex: %zu bytes: at most 65536", n);
    enum err_code rc = tk_regex_translate(pat, n, &x, e);
    if (rc) {
        buf_fini(&x);
        return rc;
    }
    int code;
    PCRE2_SIZE at;
    r->code = pcre2_compile((PCRE2_SPTR)(x.p ? x.p : ""), x.n,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                            &code, &at, NULL);
    if (r->code == NULL) {
        char why[128] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof(why));
        size_t keep = x.n < 120 ? x.n : 120;
        rc = code == PCRE2_ERROR_HEAP_FAILED
                 ? err_nomem(e, "regex", n)
                 : err_set(e, ERR_INVALID, "regex \"%.*s\": offset %zu: %s", (int)keep,
                           x.p ? x.p : "", (size_t)at, why);
        buf_fini(&x);
        return rc;
    }
    buf_fini(&x);
    r->jit = pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE) == 0;
    r->scanner = tk_scan_recognise(pat, n);
    return ERR_OK;
}

void tk_regex_fini(struct tk_regex *r)
{
    pcre2_code_free(r->code);
    *r = (struct tk_regex){ 0 };
}

enum err_code tk_regex_next(const struct tk_regex *r, pcre2_match_data *md, const char *s, size_t n,
                            size_t from, bool *found, size_t *at, size_t *end, struct err *e)
{
    *found = false;
    if (r->scanner != TK_SCAN_NONE) {
        *found = tk_scan(r->scanner, s, n, from, at, end);
        return ERR_OK;
    }
    int rc = r->jit ? pcre2_jit_match(r->code, (PCRE2_SPTR)s, n, from, 0, md, NULL)
                    : PCRE2_ERROR_JIT_STACKLIMIT;
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter's frames are on the heap */
        rc = pcre2_match(r->code, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, md,
                         NULL);
    if (rc == PCRE2_ERROR_NOMATCH)
        return ERR_OK;
    if (rc == PCRE2_ERROR_NOMEMORY)
        return err_nomem(e, "regex match", n);
    if (rc < 0) {
        char why[128] = "";
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof(why));
        return err_set(e, ERR_LIMIT, "text: the tokenizer's pattern gave up: %s", why);
    }
    const PCRE2_SIZE *o = pcre2_get_ovector_pointer(md);
    *found = true;
    *at = o[0];
    *end = o[1];
    if (*end < *at || *at < from)
        return err_set(e, ERR_INVALID, "text: the tokenizer's pattern matches backwards (\\K)");
    return ERR_OK;
}
