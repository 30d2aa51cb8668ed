/* internal.h: what the tokenizer's files share.  Private to model/tokenizer/.
 *
 * A tokenizer is a pipeline.  Encoding: added tokens are cut out of the text,
 * the rest is normalised, normalised added tokens are cut out of that, the
 * rest is split into pieces, and the model turns each piece into ids; the
 * template puts special ids around them.  Decoding: a chain of decoder steps
 * over the ids' spellings.
 *
 * Everything reachable from struct tokenizer is immutable after open, except
 * bpe.whole, a table of atomically written facts that any thread would
 * compute alike.  What one encode call needs besides lives in struct tk_work. */
#ifndef MODEL_TOKENIZER_INTERNAL_H
#define MODEL_TOKENIZER_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdatomic.h>

#include "model/tokenizer/tokenizer.h"
#include "proto/text/json.h"

/* ---- members of a JSON document -------------------------------------------- */

enum { TK_MAX_FILE_BYTES = 1 << 30, TK_MAX_VALUES = 1 << 26 }; /* of one file */

/* Non-negative integer below 2^31, or -1. */
static inline int32_t tk_id(const struct json *v)
{
    bool fits = v != NULL && v->kind == JSON_INT && v->u.integer >= 0 && v->u.integer <= INT32_MAX;
    return fits ? (int32_t)v->u.integer : -1;
}

/* Whether v is true; absent and null give the default. */
static inline bool tk_flag(const struct json *v, bool absent)
{
    return v == NULL || v->kind == JSON_NULL ? absent : v->kind == JSON_BOOL && v->u.boolean;
}

/* ---- growing arrays ------------------------------------------------------ */

struct tk_piece {
    uint32_t at, n;
    bool origin; /* begins where the whole input begins */
};
struct tk_pieces {
    struct tk_piece *p;
    size_t n, cap;
};
MUST_USE enum err_code tk_pieces_add(struct tk_pieces *l, size_t at, size_t n, bool origin,
                                     struct err *e);

/* ---- vocabulary ---------------------------------------------------------- */

enum { TK_ADDED = 1, TK_SPECIAL = 2, TK_CONTROL = 4, TK_MODEL = 8 };

/* text -> id by open addressing. */
struct tk_map {
    struct tk_map_slot {
        uint32_t hash;
        int32_t id; /* -1: empty */
    } *slot;
    uint32_t mask;
};

struct tk_vocab {
    int32_t n_ids;                /* largest id + 1 */
    uint32_t *at, *len;           /* spelling of an id in blob; at = UINT32_MAX: none */
    uint32_t *form_at, *form_len; /* what the model matches: the spelling, or
                                   * the bytes it stands for (byte-level) */
    unsigned char *flags;         /* TK_* */
    struct buf blob;
    struct tk_map map; /* forms of the model's vocabulary -> id */
    uint32_t max_form; /* longest form in bytes */
};

/* Room for ids 0..n_ids-1 with text_bytes of spellings. */
MUST_USE enum err_code tk_vocab_init(struct tk_vocab *v, int32_t n_ids, size_t text_bytes,
                                     struct err *e);
void tk_vocab_fini(struct tk_vocab *v);
/* Spell id; the last call for an id wins. */
MUST_USE enum err_code tk_vocab_spell(struct tk_vocab *v, int32_t id, const char *s, size_t n,
                                      struct err *e);
/* Build forms and map from the spellings of the ids flagged TK_MODEL.  raw: a
 * form is the bytes of its spelling, ids with other characters have none. */
MUST_USE enum err_code tk_vocab_index(struct tk_vocab *v, bool raw, struct err *e);
/* Id of the model's form s, or -1. */
int32_t tk_vocab_find(const struct tk_vocab *v, const char *s, size_t n);

/* Byte <-> character of the byte-level alphabet.  Of char: -1 when c is none. */
uint32_t tk_byte_char(unsigned char b);
int tk_char_byte(uint32_t c);
/* Bytes that a byte-level spelling stands for, into out (n bytes suffice);
 * false when a character is outside the alphabet. */
bool tk_unmap(const char *s, size_t n, char *out, size_t *out_n);

/* ---- patterns ------------------------------------------------------------ */

struct tk_regex {
    pcre2_code *code;
    bool jit;
    int scanner; /* hand-written equal, or TK_SCAN_NONE */
};
struct tk_pattern {
    char *literal; /* owned; NULL when regex */
    size_t n;
    struct tk_regex re;
};
MUST_USE enum err_code tk_regex_compile(struct tk_regex *r, const char *pat, size_t n,
                                        struct err *e);
void tk_regex_fini(struct tk_regex *r);
/* First match in s[0..n) from `from` on: *found, [*at, *end). */
MUST_USE enum err_code tk_regex_next(const struct tk_regex *r, pcre2_match_data *md, const char *s,
                                     size_t n, size_t from, bool *found, size_t *at, size_t *end,
                                     struct err *e);
/* The pattern in PCRE2's dialect (malloc'd). */
MUST_USE enum err_code tk_regex_translate(const char *pat, size_t n, struct buf *out,
                                          struct err *e);

/* ---- steps ---------------------------------------------------------------- */

enum tk_kind {
    /* normalisers */
    TK_NFC,
    TK_NFD,
    TK_NFKC,
    TK_NFKD,
    TK_LOWERCASE,
    TK_STRIP,
    TK_STRIP_ACCENTS,
    TK_NMT,
    TK_PRECOMPILED,
    TK_REPLACE,
    TK_PREPEND,
    TK_BYTE_CHARS, /* pre-tokenizer too */
    /* pre-tokenizers */
    TK_SPLIT,
    TK_DIGITS,
    TK_PUNCTUATION,
    TK_WHITESPACE_SPLIT,
    TK_PREFIX_SPACE,
    TK_METASPACE,
    TK_FIXED_LENGTH,
    /* decoders */
    TK_DEC_BYTE_LEVEL,
    TK_DEC_REPLACE,
    TK_DEC_BYTE_FALLBACK,
    TK_DEC_FUSE,
    TK_DEC_STRIP,
    TK_DEC_METASPACE,
    TK_DEC_BPE,
    TK_DEC_WORDPIECE,
    TK_DEC_CTC,
    TK_DEC_JOIN /* no decoder: tokens joined by spaces */
};

enum tk_behavior { TK_REMOVED, TK_ISOLATED, TK_MERGED_PREVIOUS, TK_MERGED_NEXT, TK_CONTIGUOUS };
enum tk_prepend { TK_PREPEND_ALWAYS, TK_PREPEND_FIRST, TK_PREPEND_NEVER };

struct tk_step {
    enum tk_kind kind;
    struct tk_pattern pat; /* REPLACE, SPLIT */
    char *text;            /* owned: replacement, prefix, marker, suffix; charsmap */
    size_t n;
    char *word; /* owned: CTC's word delimiter */
    enum tk_behavior behavior;
    enum tk_prepend prepend;
    bool invert, on; /* on: add_prefix_space, individual_digits, split, cleanup */
    int32_t left, right;
};
struct tk_steps {
    struct tk_step *p;
    size_t n;
};
void tk_steps_fini(struct tk_steps *s);

MUST_USE enum err_code tk_load_normalizer(struct tk_steps *s, const struct json *v, struct err *e);
MUST_USE enum err_code tk_load_pretokenizer(struct tk_steps *s, const struct json *v,
                                            struct err *e);
MUST_USE enum err_code tk_load_decoder(struct tk_steps *s, const struct json *v, struct err *e);

/* ---- added tokens ---------------------------------------------------------- */

struct tk_added {
    int32_t id;
    char *content; /* owned */
    uint32_t n;
    bool single_word, lstrip, rstrip, normalized, special;
};
struct tk_trie_node {
    int32_t child, sibling; /* node indices, 0: none */
    int32_t token;          /* index into added, -1: none */
    unsigned char byte;
};
struct tk_trie {
    struct tk_trie_node *node;
    size_t n, cap;
    int32_t first[256]; /* node of each first byte, 0: none */
    bool any;
};
MUST_USE enum err_code tk_trie_add(struct tk_trie *t, const char *s, size_t n, int32_t token,
                                   struct err *e);

/* ---- models ---------------------------------------------------------------- */

struct tk_merge {
    int32_t left, right; /* left = -1: empty slot */
    uint32_t rank;
    int32_t id;
};
struct tk_bpe {
    bool byte_fallback, fuse_unk, ignore_merges;
    bool raw; /* pieces are bytes, an initial symbol a byte; else characters */
    int32_t unk;
    int32_t byte_id[256];  /* raw: of the byte; else of "<0xNN>"; -1 none */
    int32_t *char_id;      /* [65536] of the character, -1 none; NULL when raw */
    char *prefix, *suffix; /* owned; NULL when not used */
    struct tk_merge *merge;
    uint32_t merge_mask;
    int merge_shift;
    bool cut;                     /* junction may be used to cut pieces */
    uint64_t *junction;           /* bit set: some merge joins these two characters */
    _Atomic unsigned char *whole; /* [n_ids] 0 unknown, 1: merging the form's
                                   * symbols gives the id, 2: it does not */
};

struct tk_unigram_node {
    uint32_t child;   /* index of the first child */
    int32_t id;       /* -1: no piece ends here */
    uint16_t n_child; /* contiguous, ascending by byte */
    unsigned char byte;
};
struct tk_unigram {
    bool byte_fallback;
    int32_t unk;
    int32_t byte_id[256];
    double *score; /* [n_ids] */
    double unk_score;
    struct tk_unigram_node *node;
    uint32_t n_nodes;
};

enum tk_model { TK_MODEL_BPE, TK_MODEL_UNIGRAM };

struct tokenizer {
    struct tk_vocab vocab;
    struct tk_added *added;
    size_t n_added;
    struct tk_trie trie, trie_normalized; /* of the two kinds of added tokens */
    struct tk_trie trie_spans;            /* trie, and normalised control tokens: they are
                                           * looked for in the text itself where a
                                           * normaliser would blur what users wrote */
    struct tk_steps normalizer, pretokenizer, decoder;
    enum tk_model model;
    struct tk_bpe bpe;
    struct tk_unigram unigram;
    struct token_list before, after; /* the template's ids around the text */
    char *chat_template, *bos, *eos; /* owned */
};

/* What one encode call works with. */
struct tk_work {
    const struct tokenizer *t;
    struct token_list *out;
    size_t max;                  /* out->n never exceeds it */
    struct buf norm, norm_spare; /* a segment's normalised text         */
    const char *base;            /* what pieces lie in: the input, norm */
    struct buf built[2];         /* or text that a pre-tokenizer built  */
    struct tk_pieces pieces, next, spans;
    struct buf spare;
    pcre2_match_data *md;
    void *mem; /* symbols and heap of a long piece; lattice of unigram */
    size_t mem_n;
    struct err *e;
};
MUST_USE enum err_code tk_emit(struct tk_work *w, int32_t id);
/* At least n bytes of scratch in w->mem. */
MUST_USE enum err_code tk_work_mem(struct tk_work *w, size_t n);

MUST_USE enum err_code token_list_add(struct token_list *l, int32_t id, struct err *e);

/* tokenizer_open_file for text[0..n), which is overwritten (text[n] readable). */
MUST_USE enum err_code tokenizer_open_text(struct tokenizer **out, char *text, size_t n,
                                           const char *what, struct err *e);
/* bos, eos, chat template and BOS/EOS switches from the files beside
 * tokenizer.json. */
MUST_USE enum err_code tk_load_config(struct tokenizer *t, const char *dir, struct err *e);

MUST_USE enum err_code tk_bpe_load(struct tokenizer *t, const struct json *model, struct err *e);
void tk_bpe_fini(struct tk_bpe *b);
MUST_USE enum err_code tk_bpe_piece(struct tk_work *w, const char *s, size_t n);
MUST_USE enum err_code tk_unigram_load(struct tokenizer *t, const struct json *model,
                                       struct err *e);
void tk_unigram_fini(struct tk_unigram *u);
MUST_USE enum err_code tk_unigram_piece(struct tk_work *w, const char *s, size_t n);

/* Normalise s[0..n) into out (spare is scratch). */
MUST_USE enum err_code tk_normalize(const struct tk_steps *steps, const char *s, size_t n,
                                    struct buf *out, struct buf *spare, pcre2_match_data *md,
                                    struct err *e);
/* Cut the pieces of w->base further; may move w->base to text of its own. */
MUST_USE enum err_code tk_pretokenize(struct tk_work *w);
/* Replace every match of pat in s by text. */
MUST_USE enum err_code tk_replace(const struct tk_pattern *pat, const char *s, size_t n,
                                  const char *text, size_t text_n, struct buf *out,
                                  pcre2_match_data *md, struct err *e);
/* The next match of a pattern at or after from; as tk_regex_next. */
MUST_USE enum err_code tk_pattern_next(const struct tk_pattern *pat, pcre2_match_data *md,
                                       const char *s, size_t n, size_t from, bool *found,
                                       size_t *at, size_t *end, struct err *e);

/* Character classes, as the reference library's language defines them. */
enum {
    TK_UP = 1,     /* Lu Lt */
    TK_LOW = 2,    /* Ll    */
    TK_LETTER = 4, /* Lm Lo */
    TK_MARK = 8,
    TK_NUM = 16,
    TK_PUNCT = 32,
    TK_SYM = 64,
    TK_SPACE = 128,  /* White_Space but CR and LF */
    TK_NEWLINE = 256 /* CR, LF */
};
unsigned tk_class(uint32_t c);  /* one of the above, or 0 */
bool tk_is_inert(uint32_t c);   /* unknown to the reference's normaliser */
bool tk_is_space(uint32_t c);   /* White_Space */
bool tk_is_numeric(uint32_t c); /* N*         */
bool tk_is_punct(uint32_t c);   /* ASCII punctuation or P* */
bool tk_is_word(uint32_t c);    /* regex \w   */
/* Character at s[i], *k its bytes (valid UTF-8). */
uint32_t tk_char_at(const char *s, size_t n, size_t i, size_t *k);

#endif
