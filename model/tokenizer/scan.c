/* scan.c: see tokenizer_scan.h. */
#include "model/tokenizer/scan.h"

#include <string.h>

#include "model/tokenizer/internal.h"

enum family { GPT2, CL100K, O200K, DIGITS, KANA_HAN, DEEPSEEK };

struct scanner {
    const char *pattern;
    enum family family;
    int digits;        /* \p{N}{1,digits} */
    bool contractions; /* O200K: 's and kin behind a word */
};

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACE_END    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER        "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER        "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define LEAD         "[^\\r\\n\\p{L}\\p{N}]?"

static const struct scanner scanners[] = {
    { "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", GPT2, 0,
      false },
    { CONTRACTIONS "|" LEAD "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACE_END, CL100K,
      3, false },
    { CONTRACTIONS "|" LEAD "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACE_END, CL100K, 1,
      false },
    { LEAD UPPER "*" LOWER "+" CONTRACTIONS "?|" LEAD UPPER "+" LOWER "*" CONTRACTIONS
                 "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" SPACE_END,
      O200K, 3, true },
    { LEAD UPPER "*" LOWER "+|" LEAD UPPER "+" LOWER
                 "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" SPACE_END,
      O200K, 1, false },
    { "\\p{N}{1,3}", DIGITS, 3, false },
    { "[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f\xe3\x82\xa0-\xe3\x83\xbf]+", KANA_HAN, 0,
      false },
    { "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?"
      "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
      DEEPSEEK, 0, false },
};

enum { N_SCANNERS = sizeof(scanners) / sizeof(*scanners) };

int tk_scan_recognise(const char *pat, size_t n)
{
    for (int k = 0; k < N_SCANNERS; k++)
        if (strlen(scanners[k].pattern) == n && memcmp(scanners[k].pattern, pat, n) == 0)
            return k;
    return TK_SCAN_NONE;
}

const char *tk_scan_pattern(int k)
{
    return k >= 0 && k < N_SCANNERS ? scanners[k].pattern : NULL;
}

/* ---- character classes ------------------------------------------------------- */

enum {
    UP = TK_UP,
    LOW = TK_LOW,
    LETTER = TK_LETTER,
    MARK = TK_MARK,
    NUM = TK_NUM,
    PUNCT = TK_PUNCT,
    SYM = TK_SYM,
    SPACE = TK_SPACE,
    NEWLINE = TK_NEWLINE,
    L = UP | LOW | LETTER,
    WS = SPACE | NEWLINE
};

/* Class of the character at s[i], *k its bytes; 0 bytes and class 0 at the end. */
static inline unsigned class_at(const char *s, size_t n, size_t i, size_t *k)
{
#define R16(x) x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x
    static const unsigned short ascii[128] = {
        0, 0, 0, 0, 0, 0, 0, 0, 0, SPACE, NEWLINE, SPACE, SPACE, NEWLINE, 0, 0, R16(0),
        /*   ! " # $ % & ' ( ) * + , - . / */
        SPACE, PUNCT, PUNCT, PUNCT, SYM, PUNCT, PUNCT, PUNCT, PUNCT, PUNCT, PUNCT, SYM, PUNCT,
        PUNCT, PUNCT, PUNCT,
        /* 0-9 : ; < = > ? */
        NUM, NUM, NUM, NUM, NUM, NUM, NUM, NUM, NUM, NUM, PUNCT, PUNCT, SYM, SYM, SYM, PUNCT,
        /* @ A-Z [ \ ] ^ _ */
        PUNCT, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP, UP,
        UP, UP, UP, UP, UP, PUNCT, PUNCT, PUNCT, SYM, PUNCT,
        /* ` a-z { | } ~ DEL */
        SYM, LOW, LOW, LOW, LOW, LOW, LOW, LOW, LOW, LOW, LOW, LOW, LOW, LOW, LOW, LOW, LOW, LOW,
        LOW, LOW, LOW, LOW, LOW, LOW, LOW, LOW, LOW, PUNCT, SYM, PUNCT, SYM, 0
    };
#undef R16
    if (i >= n) {
        *k = 0;
        return 0;
    }
    unsigned char c = (unsigned char)s[i];
    if (c < 0x80) {
        *k = 1;
        return ascii[c];
    }
    return tk_class(tk_char_at(s, n, i, k));
}

struct text {
    const char *s;
    size_t n;
};

/* End of the run of characters in `in` (and in nothing of `out`) from i on. */
static inline size_t run(const struct text *x, size_t i, unsigned in)
{
    size_t k;
    while (i < x->n && (class_at(x->s, x->n, i, &k) & in))
        i += k;
    return i;
}

static inline size_t run_not(const struct text *x, size_t i, unsigned out)
{
    size_t k;
    while (i < x->n && !(class_at(x->s, x->n, i, &k) & out))
        i += k;
    return i;
}

/* ---- common parts ---------------------------------------------------------------- */

/* Length of 's 't 're 've 'm 'll 'd at s[i], 0 when none; fold: in any case,
 * U+017F being an s. */
static size_t contraction(const struct text *x, size_t i, bool fold)
{
    size_t left = x->n - i;
    const char *s = x->s + i;
    if (left < 2 || s[0] != '\'')
        return 0;
    if (fold && left >= 3 && s[1] == '\xc5' && s[2] == '\xbf')
        return 3;
    char a = fold ? (char)(s[1] | 0x20) : s[1], b = left < 3 ? 0
                                                    : fold   ? (char)(s[2] | 0x20)
                                                             : s[2];
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ (the first part where lines): white space is at i. */
static size_t space_end(const struct text *x, size_t i, bool lines)
{
    size_t j = i, k, last = i, line = 0;
    for (unsigned c; j < x->n && ((c = class_at(x->s, x->n, j, &k)) & WS); j += k) {
        last = j;
        if (c & NEWLINE)
            line = j + 1;
    }
    if (lines && line > 0)
        return line;
    return j == x->n || last == i ? j : last;
}

static size_t digits_end(const struct text *x, size_t i, int most)
{
    size_t k;
    for (int d = 0; d < most && i < x->n && (class_at(x->s, x->n, i, &k) & NUM); d++)
        i += k;
    return i;
}

/* ---- the families: end of the match that starts at i, i when none does ------------ */

static size_t gpt2(const struct text *x, size_t i)
{
    size_t k, k2, from = i;
    size_t c = contraction(x, i, false);
    if (c > 0)
        return i + c;
    unsigned here = class_at(x->s, x->n, i, &k);
    if (x->s[i] == ' ') {
        unsigned then = class_at(x->s, x->n, i + 1, &k2);
        if (k2 > 0 && !(then & WS)) {
            from = i + 1;
            here = then;
        }
    }
    if (here & WS)
        return space_end(x, i, false);
    if (here & L)
        return run(x, from, L);
    if (here & NUM)
        return run(x, from, NUM);
    return run_not(x, from, WS | L | NUM);
}

/* ` ?[^\s\p{L}\p{N}]+` and the newlines (and slashes) behind it. */
static size_t symbols(const struct text *x, size_t i, bool slash)
{
    size_t k, from = i + (x->s[i] == ' ');
    if (from == x->n || (class_at(x->s, x->n, from, &k) & (WS | L | NUM)))
        return i;
    size_t end = run_not(x, from, WS | L | NUM);
    while (end < x->n && (x->s[end] == '\r' || x->s[end] == '\n' || (slash && x->s[end] == '/')))
        end++;
    return end;
}

/* What CL100K and O200K share behind the words. */
static size_t other(const struct text *x, size_t i, unsigned here, int digits, bool slash)
{
    if (here & NUM)
        return digits_end(x, i, digits);
    size_t end = symbols(x, i, slash);
    if (end > i || !(here & WS))
        return end;
    return space_end(x, i, true);
}

static size_t cl100k(const struct text *x, size_t i, int digits)
{
    size_t k, k2, c = contraction(x, i, true);
    if (c > 0)
        return i + c;
    unsigned here = class_at(x->s, x->n, i, &k);
    if (here & L)
        return run(x, i + k, L);
    if (!(here & (NEWLINE | NUM)) && (class_at(x->s, x->n, i + k, &k2) & L))
        return run(x, i + k + k2, L);
    return other(x, i, here, digits, false);
}

/* UPPER*LOWER+ from i, both greedy: the end, or i. */
static size_t word_lower(const struct text *x, size_t i)
{
    size_t j = i, k, both_end = i;
    unsigned c = 0;
    for (; j < x->n && ((c = class_at(x->s, x->n, j, &k)) & (UP | LETTER | MARK)); j += k)
        if (c & (LETTER | MARK))
            both_end = j + k;
    if (j < x->n && (c & LOW))
        return run(x, j, LOW | LETTER | MARK);
    return both_end; /* give back until LOWER+ has a character */
}

/* UPPER+LOWER*. */
static size_t word_upper(const struct text *x, size_t i)
{
    size_t j = run(x, i, UP | LETTER | MARK);
    return j > i ? run(x, j, LOW | LETTER | MARK) : i;
}

static size_t o200k(const struct text *x, size_t i, const struct scanner *p)
{
    size_t k, end, from;
    unsigned here = class_at(x->s, x->n, i, &k);
    bool lead = !(here & (NEWLINE | L | NUM));
    size_t (*const word[2])(const struct text *, size_t) = { word_lower, word_upper };
    for (int w = 0; w < 2; w++)
        for (int skip = lead; skip >= 0; skip--) {
            from = skip ? i + k : i;
            if (from >= x->n || (end = word[w](x, from)) == from)
                continue;
            return end + (p->contractions && end < x->n ? contraction(x, end, true) : 0);
        }
    return other(x, i, here, p->digits, true);
}

static bool ascii_letter(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

static size_t deepseek(const struct text *x, size_t i)
{
    size_t k, k2, end;
    unsigned here = class_at(x->s, x->n, i, &k);
    if ((unsigned char)x->s[i] < 0x80 && (here & (PUNCT | SYM)) && i + 1 < x->n &&
        ascii_letter(x->s[i + 1])) {
        for (end = i + 1; end < x->n && ascii_letter(x->s[end]);)
            end++;
        return end;
    }
    if (here & (L | MARK))
        return run(x, i + k, L | MARK);
    if (!(here & (NEWLINE | PUNCT | SYM)) && (class_at(x->s, x->n, i + k, &k2) & (L | MARK)))
        return run(x, i + k + k2, L | MARK);
    size_t from = i + (x->s[i] == ' ');
    if (from < x->n && (class_at(x->s, x->n, from, &k2) & (PUNCT | SYM))) {
        end = run(x, from, PUNCT | SYM);
        while (end < x->n && (x->s[end] == '\r' || x->s[end] == '\n'))
            end++;
        return end;
    }
    return here & WS ? space_end(x, i, true) : i;
}

static size_t kana_han(const struct text *x, size_t i)
{
    size_t k;
    for (; i < x->n; i += k) {
        uint32_t c = tk_char_at(x->s, x->n, i, &k);
        if (!((c >= 0x4e00 && c <= 0x9fa5) || (c >= 0x3040 && c <= 0x30ff)))
            break;
    }
    return i;
}

static size_t match_end(const struct scanner *p, const struct text *x, size_t i)
{
    switch (p->family) {
    case GPT2:
        return gpt2(x, i);
    case CL100K:
        return cl100k(x, i, p->digits);
    case O200K:
        return o200k(x, i, p);
    case DIGITS:
        return digits_end(x, i, p->digits);
    case KANA_HAN:
        return kana_han(x, i);
    case DEEPSEEK:
        return deepseek(x, i);
    }
    return i;
}

bool tk_scan(int scanner, const char *s, size_t n, size_t from, size_t *at, size_t *end)
{
    const struct text x = { .s = s, .n = n };
    const struct scanner *p = &scanners[scanner];
    for (size_t i = from, k; i < n; i += k) {
        size_t j = match_end(p, &x, i);
        if (j > i) {
            *at = i;
            *end = j;
            return true;
        }
        tk_char_at(s, n, i, &k);
    }
    return false;
}
