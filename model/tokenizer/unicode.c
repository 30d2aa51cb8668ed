/* unicode.c: character classes as the reference library has them.
 *
 * utf8proc knows Unicode 15; the reference's regular expressions know 17, its
 * normaliser 12 and its punctuation test 8.  The tables below are the
 * differences.  Pure functions; any thread. */
#include <utf8proc.h>

#include "model/tokenizer/internal.h"

struct char_range {
    uint32_t from, to;
    uint16_t class;
};

/* Ascending.  Characters that utf8proc's tables may lack. */
static const struct char_range newer[] = {
    { 0x897, 0x897, TK_MARK },       { 0x1b4e, 0x1b4f, TK_PUNCT },
    { 0x1b7f, 0x1b7f, TK_PUNCT },    { 0x1c89, 0x1c89, TK_UP },
    { 0x1c8a, 0x1c8a, TK_LOW },      { 0x2427, 0x2429, TK_SYM },
    { 0x2ffc, 0x2fff, TK_SYM },      { 0x31e4, 0x31e5, TK_SYM },
    { 0x31ef, 0x31ef, TK_SYM },      { 0xa7cb, 0xa7cc, TK_UP },
    { 0xa7cd, 0xa7cd, TK_LOW },      { 0xa7da, 0xa7da, TK_UP },
    { 0xa7db, 0xa7db, TK_LOW },      { 0xa7dc, 0xa7dc, TK_UP },
    { 0x105c0, 0x105f3, TK_LETTER }, { 0x10d40, 0x10d49, TK_NUM },
    { 0x10d4a, 0x10d4f, TK_LETTER }, { 0x10d50, 0x10d65, TK_UP },
    { 0x10d69, 0x10d6d, TK_MARK },   { 0x10d6e, 0x10d6e, TK_PUNCT },
    { 0x10d6f, 0x10d6f, TK_LETTER }, { 0x10d70, 0x10d85, TK_LOW },
    { 0x10d8e, 0x10d8f, TK_SYM },    { 0x10ec2, 0x10ec4, TK_LETTER },
    { 0x10efc, 0x10efc, TK_MARK },   { 0x11380, 0x11389, TK_LETTER },
    { 0x1138b, 0x1138b, TK_LETTER }, { 0x1138e, 0x1138e, TK_LETTER },
    { 0x11390, 0x113b5, TK_LETTER }, { 0x113b7, 0x113b7, TK_LETTER },
    { 0x113b8, 0x113c0, TK_MARK },   { 0x113c2, 0x113c2, TK_MARK },
    { 0x113c5, 0x113c5, TK_MARK },   { 0x113c7, 0x113ca, TK_MARK },
    { 0x113cc, 0x113d0, TK_MARK },   { 0x113d1, 0x113d1, TK_LETTER },
    { 0x113d2, 0x113d2, TK_MARK },   { 0x113d3, 0x113d3, TK_LETTER },
    { 0x113d4, 0x113d5, TK_PUNCT },  { 0x113d7, 0x113d8, TK_PUNCT },
    { 0x113e1, 0x113e2, TK_MARK },   { 0x116d0, 0x116e3, TK_NUM },
    { 0x11bc0, 0x11be0, TK_LETTER }, { 0x11be1, 0x11be1, TK_PUNCT },
    { 0x11bf0, 0x11bf9, TK_NUM },    { 0x11f5a, 0x11f5a, TK_MARK },
    { 0x13460, 0x143fa, TK_LETTER }, { 0x16100, 0x1611d, TK_LETTER },
    { 0x1611e, 0x1612f, TK_MARK },   { 0x16130, 0x16139, TK_NUM },
    { 0x16d40, 0x16d6c, TK_LETTER }, { 0x16d6d, 0x16d6f, TK_PUNCT },
    { 0x16d70, 0x16d79, TK_NUM },    { 0x18cff, 0x18cff, TK_LETTER },
    { 0x1cc00, 0x1ccef, TK_SYM },    { 0x1ccf0, 0x1ccf9, TK_NUM },
    { 0x1cd00, 0x1ceb3, TK_SYM },    { 0x1e5d0, 0x1e5ed, TK_LETTER },
    { 0x1e5ee, 0x1e5ef, TK_MARK },   { 0x1e5f0, 0x1e5f0, TK_LETTER },
    { 0x1e5f1, 0x1e5fa, TK_NUM },    { 0x1e5ff, 0x1e5ff, TK_PUNCT },
    { 0x1f8b2, 0x1f8bb, TK_SYM },    { 0x1f8c0, 0x1f8c1, TK_SYM },
    { 0x1fa89, 0x1fa89, TK_SYM },    { 0x1fa8f, 0x1fa8f, TK_SYM },
    { 0x1fabe, 0x1fabe, TK_SYM },    { 0x1fac6, 0x1fac6, TK_SYM },
    { 0x1fadc, 0x1fadc, TK_SYM },    { 0x1fadf, 0x1fadf, TK_SYM },
    { 0x1fae9, 0x1fae9, TK_SYM },    { 0x1fbcb, 0x1fbef, TK_SYM },
    { 0x2ebf0, 0x2ee5d, TK_LETTER },
};

/* Ascending.  Characters that decompose or combine since Unicode 12.1: the
 * reference's normaliser passes them by. */
static const struct char_range inert[] = {
    { 0x7fd, 0x7fd, 0 },     { 0x898, 0x89f, 0 },     { 0x8ca, 0x8d3, 0 },
    { 0x9fe, 0x9fe, 0 },     { 0xc3c, 0xc3c, 0 },     { 0xd3b, 0xd3c, 0 },
    { 0xeba, 0xeba, 0 },     { 0x1715, 0x1715, 0 },   { 0x1abf, 0x1ace, 0 },
    { 0x1df6, 0x1dfa, 0 },   { 0x32ff, 0x32ff, 0 },   { 0xa7f2, 0xa7f4, 0 },
    { 0xa82c, 0xa82c, 0 },   { 0xab69, 0xab69, 0 },   { 0x10781, 0x10785, 0 },
    { 0x10787, 0x107b0, 0 }, { 0x107b2, 0x107ba, 0 }, { 0x10d24, 0x10d27, 0 },
    { 0x10eab, 0x10eac, 0 }, { 0x10efd, 0x10eff, 0 }, { 0x10f46, 0x10f50, 0 },
    { 0x10f82, 0x10f85, 0 }, { 0x11070, 0x11070, 0 }, { 0x1133b, 0x1133b, 0 },
    { 0x1145e, 0x1145e, 0 }, { 0x11839, 0x1183a, 0 }, { 0x11938, 0x11938, 0 },
    { 0x1193d, 0x1193e, 0 }, { 0x11943, 0x11943, 0 }, { 0x119e0, 0x119e0, 0 },
    { 0x11a34, 0x11a34, 0 }, { 0x11a47, 0x11a47, 0 }, { 0x11a99, 0x11a99, 0 },
    { 0x11d42, 0x11d42, 0 }, { 0x11d44, 0x11d45, 0 }, { 0x11d97, 0x11d97, 0 },
    { 0x11f41, 0x11f42, 0 }, { 0x16ff0, 0x16ff1, 0 }, { 0x1e030, 0x1e06d, 0 },
    { 0x1e08f, 0x1e08f, 0 }, { 0x1e130, 0x1e136, 0 }, { 0x1e2ae, 0x1e2ae, 0 },
    { 0x1e2ec, 0x1e2ef, 0 }, { 0x1e4ec, 0x1e4ef, 0 }, { 0x1f16c, 0x1f16c, 0 },
    { 0x1fbf0, 0x1fbf9, 0 },
};

/* Ascending.  Punctuation that the reference's punctuation test does not know. */
static const struct char_range late_punct[] = {
    { 0x61d, 0x61d, 0 },     { 0x9fd, 0x9fd, 0 },     { 0xa76, 0xa76, 0 },
    { 0xc77, 0xc77, 0 },     { 0xc84, 0xc84, 0 },     { 0x1b4e, 0x1b4f, 0 },
    { 0x1b7d, 0x1b7f, 0 },   { 0x2e43, 0x2e4f, 0 },   { 0x2e52, 0x2e5d, 0 },
    { 0x10d6e, 0x10d6e, 0 }, { 0x10ead, 0x10ead, 0 }, { 0x10f55, 0x10f59, 0 },
    { 0x10f86, 0x10f89, 0 }, { 0x113d4, 0x113d5, 0 }, { 0x113d7, 0x113d8, 0 },
    { 0x1144b, 0x1144f, 0 }, { 0x1145a, 0x1145b, 0 }, { 0x1145d, 0x1145d, 0 },
    { 0x11660, 0x1166c, 0 }, { 0x116b9, 0x116b9, 0 }, { 0x1183b, 0x1183b, 0 },
    { 0x11944, 0x11946, 0 }, { 0x119e2, 0x119e2, 0 }, { 0x11a3f, 0x11a46, 0 },
    { 0x11a9a, 0x11a9c, 0 }, { 0x11a9e, 0x11aa2, 0 }, { 0x11b00, 0x11b09, 0 },
    { 0x11be1, 0x11be1, 0 }, { 0x11c41, 0x11c45, 0 }, { 0x11c70, 0x11c71, 0 },
    { 0x11ef7, 0x11ef8, 0 }, { 0x11f43, 0x11f4f, 0 }, { 0x11fff, 0x11fff, 0 },
    { 0x12ff1, 0x12ff2, 0 }, { 0x16d6d, 0x16d6f, 0 }, { 0x16e97, 0x16e9a, 0 },
    { 0x16fe2, 0x16fe2, 0 }, { 0x1e5ff, 0x1e5ff, 0 }, { 0x1e95e, 0x1e95f, 0 },
};

static const struct char_range *find(const struct char_range *r, size_t n, uint32_t c)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (r[mid].to < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && r[lo].from <= c ? r + lo : NULL;
}

#define FIND(table, c) find(table, sizeof(table) / sizeof(*(table)), c)

unsigned tk_class(uint32_t c)
{
    static const uint16_t of[] = {
        [UTF8PROC_CATEGORY_CN] = 0,         [UTF8PROC_CATEGORY_LU] = TK_UP,
        [UTF8PROC_CATEGORY_LL] = TK_LOW,    [UTF8PROC_CATEGORY_LT] = TK_UP,
        [UTF8PROC_CATEGORY_LM] = TK_LETTER, [UTF8PROC_CATEGORY_LO] = TK_LETTER,
        [UTF8PROC_CATEGORY_MN] = TK_MARK,   [UTF8PROC_CATEGORY_MC] = TK_MARK,
        [UTF8PROC_CATEGORY_ME] = TK_MARK,   [UTF8PROC_CATEGORY_ND] = TK_NUM,
        [UTF8PROC_CATEGORY_NL] = TK_NUM,    [UTF8PROC_CATEGORY_NO] = TK_NUM,
        [UTF8PROC_CATEGORY_PC] = TK_PUNCT,  [UTF8PROC_CATEGORY_PD] = TK_PUNCT,
        [UTF8PROC_CATEGORY_PS] = TK_PUNCT,  [UTF8PROC_CATEGORY_PE] = TK_PUNCT,
        [UTF8PROC_CATEGORY_PI] = TK_PUNCT,  [UTF8PROC_CATEGORY_PF] = TK_PUNCT,
        [UTF8PROC_CATEGORY_PO] = TK_PUNCT,  [UTF8PROC_CATEGORY_SM] = TK_SYM,
        [UTF8PROC_CATEGORY_SC] = TK_SYM,    [UTF8PROC_CATEGORY_SK] = TK_SYM,
        [UTF8PROC_CATEGORY_SO] = TK_SYM,    [UTF8PROC_CATEGORY_ZS] = 0,
        [UTF8PROC_CATEGORY_ZL] = 0,         [UTF8PROC_CATEGORY_ZP] = 0,
        [UTF8PROC_CATEGORY_CC] = 0,         [UTF8PROC_CATEGORY_CF] = 0,
        [UTF8PROC_CATEGORY_CS] = 0,         [UTF8PROC_CATEGORY_CO] = 0,
    };
    if (tk_is_space(c))
        return c == '\n' || c == '\r' ? TK_NEWLINE : TK_SPACE;
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    if (k != UTF8PROC_CATEGORY_CN)
        return of[k];
    const struct char_range *r = FIND(newer, c);
    return r ? r->class : 0;
}

bool tk_is_inert(uint32_t c)
{
    return c >= 0x7fd && (FIND(inert, c) || FIND(newer, c));
}

bool tk_is_space(uint32_t c)
{
    return (c >= 9 && c <= 0xd) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

bool tk_is_numeric(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
}

bool tk_is_punct(uint32_t c)
{
    if (c < 0x80)
        return (c >= 0x21 && c <= 0x2f) || (c >= 0x3a && c <= 0x40) || (c >= 0x5b && c <= 0x60) ||
               (c >= 0x7b && c <= 0x7e);
    if (c == 0x166d || c == 0x111c9)
        return true; /* symbols today */
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO && !FIND(late_punct, c);
}

bool tk_is_word(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    if (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_NL)
        return true; /* letters, marks, decimal digits, letter numbers */
    return k == UTF8PROC_CATEGORY_PC || c == 0x200c || c == 0x200d ||
           (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
           (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
}
