/* steps.c: normalizer, pre_tokenizer and decoder of tokenizer.json
 * as lists of steps.
 *
 * Runs once, at load.  What a step does is in normalize.c,
 * split.c and detok.c; unknown types are refused by name. */
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer/internal.h"
#include "proto/utf8.h"

enum { MAX_STEPS = 64 };

struct reader {
    struct tk_steps *s;
    const char *where; /* "normalizer", ... */
    struct err *e;
    int depth;
};

void tk_steps_fini(struct tk_steps *s)
{
    for (size_t i = 0; i < s->n; i++) {
        free(s->p[i].pat.literal);
        tk_regex_fini(&s->p[i].pat.re);
        free(s->p[i].text);
        free(s->p[i].word);
    }
    free(s->p);
    *s = (struct tk_steps){ 0 };
}

/* A new last step, zeroed but for its kind; NULL when there is no room. */
static struct tk_step *push(struct reader *r, enum tk_kind kind)
{
    if (r->s->n == MAX_STEPS) {
        (void)err_set(r->e, ERR_LIMIT, "tokenizer.json: %s: more than %d steps", r->where,
                      MAX_STEPS);
        return NULL;
    }
    if (r->s->p == NULL) {
        r->s->p = calloc(MAX_STEPS, sizeof(*r->s->p));
        if (r->s->p == NULL) {
            (void)err_nomem(r->e, "tokenizer steps", MAX_STEPS * sizeof(*r->s->p));
            return NULL;
        }
    }
    struct tk_step *p = &r->s->p[r->s->n++];
    p->kind = kind;
    return p;
}

/* The code of the failure that push has described. */
static enum err_code full(const struct reader *r)
{
    return r->s->n == MAX_STEPS ? ERR_LIMIT : ERR_NOMEM;
}

static enum err_code simple(struct reader *r, enum tk_kind kind)
{
    return push(r, kind) ? ERR_OK : full(r);
}

static enum err_code wrong(struct reader *r, const char *key, const struct json *v,
                           const char *expected)
{
    return err_set(r->e, ERR_INVALID, "tokenizer.json: %s.%s: %s: %s expected", r->where, key,
                   json_kind_name(v), expected);
}

static enum err_code copy(struct reader *r, char **out, size_t *n, const char *key,
                          const struct json *v)
{
    if (v == NULL || v->kind != JSON_STRING)
        return wrong(r, key, v, "a string");
    *out = malloc((size_t)v->n + 1);
    if (*out == NULL)
        return err_nomem(r->e, key, v->n);
    memcpy(*out, v->u.string, v->n);
    (*out)[v->n] = '\0';
    *n = v->n;
    return ERR_OK;
}

/* {"String": s} or {"Regex": r}. */
static enum err_code pattern(struct reader *r, struct tk_step *p, const struct json *v)
{
    const struct json *lit = json_get(v, "String");
    const struct json *re = json_get(v, "Regex");
    if (lit)
        return copy(r, &p->pat.literal, &p->pat.n, "pattern.String", lit);
    if (re == NULL || re->kind != JSON_STRING)
        return wrong(r, "pattern", v, "{\"String\": ...} or {\"Regex\": ...}");
    return tk_regex_compile(&p->pat.re, re->u.string, re->n, r->e);
}

static enum err_code replace(struct reader *r, enum tk_kind kind, const struct json *v)
{
    struct tk_step *p = push(r, kind);
    if (p == NULL)
        return full(r);
    enum err_code rc = pattern(r, p, json_get(v, "pattern"));
    return rc ? rc : copy(r, &p->text, &p->n, "content", json_get(v, "content"));
}

static enum err_code behavior(struct reader *r, struct tk_step *p, const struct json *v,
                              enum tk_behavior absent)
{
    static const char *const names[] = { "Removed", "Isolated", "MergedWithPrevious",
                                         "MergedWithNext", "Contiguous" };
    const struct json *b = json_get(v, "behavior");
    p->behavior = absent;
    if (b == NULL)
        return ERR_OK;
    for (int k = 0; k < 5; k++)
        if (json_string_is(b, names[k])) {
            p->behavior = (enum tk_behavior)k;
            return ERR_OK;
        }
    return wrong(r, "behavior", b,
                 "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

static enum err_code regex_split(struct reader *r, const char *re, enum tk_behavior b, bool invert)
{
    struct tk_step *p = push(r, TK_SPLIT);
    if (p == NULL)
        return full(r);
    p->behavior = b;
    p->invert = invert;
    return tk_regex_compile(&p->pat.re, re, strlen(re), r->e);
}

/* replacement, prepend_scheme, and the older add_prefix_space. */
static enum err_code metaspace(struct reader *r, enum tk_kind kind, const struct json *v)
{
    struct tk_step *p = push(r, kind);
    if (p == NULL)
        return full(r);
    const struct json *rep = json_get(v, "replacement");
    const struct json *scheme = json_get(v, "prepend_scheme");
    p->on = tk_flag(json_get(v, "split"), true);
    p->prepend = TK_PREPEND_ALWAYS;
    if (json_string_is(scheme, "first"))
        p->prepend = TK_PREPEND_FIRST;
    else if (json_string_is(scheme, "never"))
        p->prepend = TK_PREPEND_NEVER;
    else if (scheme && !json_string_is(scheme, "always"))
        return wrong(r, "prepend_scheme", scheme, "always, first or never");
    else if (!scheme && !tk_flag(json_get(v, "add_prefix_space"), true))
        p->prepend = TK_PREPEND_NEVER;
    enum err_code rc = copy(r, &p->text, &p->n, "replacement", rep);
    if (!rc && utf8_sequence_bytes(p->text, p->n) != p->n)
        rc = wrong(r, "replacement", rep, "one character");
    return rc;
}

static int value64(char c)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

/* SentencePiece's compiled character map: base64 of a 32-bit size, a double
 * array trie of that many bytes, and NUL-terminated replacements. */
static enum err_code precompiled(struct reader *r, const struct json *v)
{
    const struct json *map = json_get(v, "precompiled_charsmap");
    if (map && map->kind == JSON_STRING && map->n == 0)
        return ERR_OK; /* identity */
    struct tk_step *p = push(r, TK_PRECOMPILED);
    if (p == NULL)
        return full(r);
    enum err_code rc = copy(r, &p->text, &p->n, "precompiled_charsmap", map);
    if (rc)
        return rc;
    size_t w = 0;
    uint32_t bits = 0, have = 0;
    for (size_t i = 0; i < p->n && p->text[i] != '='; i++) {
        int k = value64(p->text[i]);
        if (k < 0)
            return wrong(r, "precompiled_charsmap", map, "base64");
        bits = bits << 6 | (uint32_t)k;
        have += 6;
        if (have >= 8) {
            have -= 8;
            p->text[w++] = (char)(bits >> have);
        }
    }
    p->n = w;
    uint32_t size = 0;
    if (w >= 4)
        memcpy(&size, p->text, 4);
    if (w < 8 || size % 4 != 0 || size < 4 || size > w - 4 || (size < w - 4 && p->text[w - 1]))
        return wrong(r, "precompiled_charsmap", map, "a character map with its trie inside");
    return ERR_OK;
}

typedef enum err_code (*load_fn)(struct reader *r, const struct json *v);

/* A list of further descriptions under key. */
static enum err_code sequence(struct reader *r, const struct json *v, const char *key, load_fn one)
{
    const struct json *list = json_get(v, key);
    if (list == NULL || list->kind != JSON_ARRAY)
        return wrong(r, key, list, "an array");
    if (++r->depth > 8)
        return err_set(r->e, ERR_INVALID, "tokenizer.json: %s: nested too deep", r->where);
    const struct json *k = json_first(list);
    enum err_code rc = ERR_OK;
    for (uint32_t i = 0; i < list->n && rc == ERR_OK; i++, k = json_next(k))
        rc = one(r, k);
    r->depth--;
    return rc;
}

static enum err_code unsupported(struct reader *r, const struct json *type)
{
    int n = type && type->kind == JSON_STRING && type->n < 64 ? (int)type->n : 0;
    return err_set(r->e, ERR_INVALID, "tokenizer.json: %s.type: \"%.*s\": not supported", r->where,
                   n, n ? type->u.string : "");
}

static enum err_code normalizer(struct reader *r, const struct json *v)
{
    static const struct {
        const char *name;
        enum tk_kind kind;
    } plain[] = { { "NFC", TK_NFC },
                  { "NFD", TK_NFD },
                  { "NFKC", TK_NFKC },
                  { "NFKD", TK_NFKD },
                  { "Lowercase", TK_LOWERCASE },
                  { "StripAccents", TK_STRIP_ACCENTS },
                  { "Nmt", TK_NMT },
                  { "ByteLevel", TK_BYTE_CHARS } };
    const struct json *type = json_get(v, "type");
    for (size_t k = 0; k < sizeof(plain) / sizeof(*plain); k++)
        if (json_string_is(type, plain[k].name))
            return simple(r, plain[k].kind);
    if (json_string_is(type, "Sequence"))
        return sequence(r, v, "normalizers", normalizer);
    if (json_string_is(type, "Replace"))
        return replace(r, TK_REPLACE, v);
    if (json_string_is(type, "Precompiled"))
        return precompiled(r, v);
    if (json_string_is(type, "Prepend")) {
        struct tk_step *p = push(r, TK_PREPEND);
        return p ? copy(r, &p->text, &p->n, "prepend", json_get(v, "prepend")) : full(r);
    }
    if (json_string_is(type, "Strip")) {
        struct tk_step *p = push(r, TK_STRIP);
        if (p == NULL)
            return full(r);
        p->left = tk_flag(json_get(v, "strip_left"), true);
        p->right = tk_flag(json_get(v, "strip_right"), true);
        return ERR_OK;
    }
    return unsupported(r, type);
}

static enum err_code byte_level(struct reader *r, const struct json *v)
{
    enum err_code rc = ERR_OK;
    if (tk_flag(json_get(v, "add_prefix_space"), true))
        rc = simple(r, TK_PREFIX_SPACE);
    if (!rc && tk_flag(json_get(v, "use_regex"), true))
        rc = regex_split(
            r, "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
            TK_ISOLATED, false);
    return rc ? rc : simple(r, TK_BYTE_CHARS);
}

static enum err_code pretokenizer(struct reader *r, const struct json *v)
{
    const struct json *type = json_get(v, "type");
    struct tk_step *p;
    if (json_string_is(type, "Sequence"))
        return sequence(r, v, "pretokenizers", pretokenizer);
    if (json_string_is(type, "ByteLevel"))
        return byte_level(r, v);
    if (json_string_is(type, "Metaspace"))
        return metaspace(r, TK_METASPACE, v);
    if (json_string_is(type, "Whitespace"))
        return regex_split(r, "\\w+|[^\\w\\s]+", TK_REMOVED, true);
    if (json_string_is(type, "WhitespaceSplit"))
        return simple(r, TK_WHITESPACE_SPLIT);
    if (json_string_is(type, "BertPreTokenizer")) {
        enum err_code rc = simple(r, TK_WHITESPACE_SPLIT);
        p = rc ? NULL : push(r, TK_PUNCTUATION);
        if (p)
            p->behavior = TK_ISOLATED;
        return p ? ERR_OK : full(r);
    }
    if (json_string_is(type, "Digits")) {
        p = push(r, TK_DIGITS);
        if (p == NULL)
            return full(r);
        p->behavior =
            tk_flag(json_get(v, "individual_digits"), false) ? TK_ISOLATED : TK_CONTIGUOUS;
        return ERR_OK;
    }
    if (json_string_is(type, "Punctuation")) {
        p = push(r, TK_PUNCTUATION);
        return p ? behavior(r, p, v, TK_ISOLATED) : full(r);
    }
    if (json_string_is(type, "CharDelimiterSplit")) {
        p = push(r, TK_SPLIT);
        return p ? copy(r, &p->pat.literal, &p->pat.n, "delimiter", json_get(v, "delimiter"))
                 : full(r);
    }
    if (json_string_is(type, "FixedLength")) {
        const struct json *len = json_get(v, "length");
        p = push(r, TK_FIXED_LENGTH);
        if (p == NULL)
            return full(r);
        p->left = len ? tk_id(len) : 5;
        return p->left > 0 ? ERR_OK : wrong(r, "length", len, "a positive number");
    }
    if (json_string_is(type, "Split")) {
        p = push(r, TK_SPLIT);
        if (p == NULL)
            return full(r);
        p->invert = tk_flag(json_get(v, "invert"), false);
        enum err_code rc = pattern(r, p, json_get(v, "pattern"));
        return rc ? rc : behavior(r, p, v, TK_ISOLATED);
    }
    return unsupported(r, type);
}

static enum err_code decoder(struct reader *r, const struct json *v)
{
    const struct json *type = json_get(v, "type"), *k;
    struct tk_step *p;
    if (json_string_is(type, "Sequence"))
        return sequence(r, v, "decoders", decoder);
    if (json_string_is(type, "ByteLevel"))
        return simple(r, TK_DEC_BYTE_LEVEL);
    if (json_string_is(type, "ByteFallback"))
        return simple(r, TK_DEC_BYTE_FALLBACK);
    if (json_string_is(type, "Fuse"))
        return simple(r, TK_DEC_FUSE);
    if (json_string_is(type, "Replace"))
        return replace(r, TK_DEC_REPLACE, v);
    if (json_string_is(type, "Metaspace"))
        return metaspace(r, TK_DEC_METASPACE, v);
    if (json_string_is(type, "Strip")) {
        p = push(r, TK_DEC_STRIP);
        if (p == NULL)
            return full(r);
        p->left = tk_id(k = json_get(v, "start"));
        if (p->left < 0)
            return wrong(r, "start", k, "a number");
        p->right = tk_id(k = json_get(v, "stop"));
        if (p->right < 0)
            return wrong(r, "stop", k, "a number");
        enum err_code rc = copy(r, &p->text, &p->n, "content", k = json_get(v, "content"));
        if (!rc && utf8_sequence_bytes(p->text, p->n) != p->n)
            rc = wrong(r, "content", k, "one character");
        return rc;
    }
    if (json_string_is(type, "BPEDecoder")) {
        p = push(r, TK_DEC_BPE);
        return p ? copy(r, &p->text, &p->n, "suffix", json_get(v, "suffix")) : full(r);
    }
    if (json_string_is(type, "WordPiece")) {
        p = push(r, TK_DEC_WORDPIECE);
        if (p == NULL)
            return full(r);
        p->on = tk_flag(json_get(v, "cleanup"), true);
        return copy(r, &p->text, &p->n, "prefix", json_get(v, "prefix"));
    }
    if (json_string_is(type, "CTC")) {
        size_t unused;
        p = push(r, TK_DEC_CTC);
        if (p == NULL)
            return full(r);
        p->on = tk_flag(json_get(v, "cleanup"), true);
        enum err_code rc = copy(r, &p->text, &p->n, "pad_token", json_get(v, "pad_token"));
        return rc ? rc
                  : copy(r, &p->word, &unused, "word_delimiter_token",
                         json_get(v, "word_delimiter_token"));
    }
    return unsupported(r, type);
}

static enum err_code load(struct tk_steps *s, const struct json *v, const char *where, load_fn one,
                          struct err *e)
{
    struct reader r = { .s = s, .where = where, .e = e };
    if (v == NULL || v->kind == JSON_NULL)
        return ERR_OK;
    if (v->kind != JSON_OBJECT)
        return err_set(e, ERR_INVALID, "tokenizer.json: %s: %s: an object expected", where,
                       json_kind_name(v));
    return one(&r, v);
}

enum err_code tk_load_normalizer(struct tk_steps *s, const struct json *v, struct err *e)
{
    return load(s, v, "normalizer", normalizer, e);
}

enum err_code tk_load_pretokenizer(struct tk_steps *s, const struct json *v, struct err *e)
{
    return load(s, v, "pre_tokenizer", pretokenizer, e);
}

enum err_code tk_load_decoder(struct tk_steps *s, const struct json *v, struct err *e)
{
    struct reader r = { .s = s, .where = "decoder", .e = e };
    enum err_code rc = load(s, v, "decoder", decoder, e);
    if (!rc && (v == NULL || v->kind == JSON_NULL))
        rc = simple(&r, TK_DEC_JOIN);
    return rc;
}
