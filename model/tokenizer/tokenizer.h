/* tokenizer.h: text to token ids and back, from tokenizer.json.
 *
 * Immutable after open; encode and decode may run on any thread at once. */
#ifndef MODEL_TOKENIZER_TOKENIZER_H
#define MODEL_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"

struct tokenizer;

/* Reads DIR/tokenizer.json and DIR/tokenizer_config.json (optional).
 * ERR_INVALID names the file, the key, what was found and what is supported. */
MUST_USE enum err_code tokenizer_open(struct tokenizer **out, const char *dir, struct err *e);
/* The same from one tokenizer.json, wherever it is. */
MUST_USE enum err_code tokenizer_open_file(struct tokenizer **out, const char *file, struct err *e);
void tokenizer_close(struct tokenizer *t);

/* A growing array of ids; init with zeros, fini frees. */
struct token_list {
    int32_t *id;
    size_t n, cap;
};
void token_list_fini(struct token_list *l);

enum tokenizer_flags {
    TOKENIZER_SPECIAL = 1,      /* apply the post-processor (BOS, EOS)          */
    TOKENIZER_PARSE_SPECIAL = 2 /* text may spell control tokens; without it they
                                 * are encoded as ordinary text                 */
};

/* Append the ids of text[0..n) (UTF-8, any bytes incl. NUL).  ERR_LIMIT when
 * more than max_ids would be appended (0: no limit). */
MUST_USE enum err_code tokenizer_encode(const struct tokenizer *t, const char *text, size_t n,
                                        unsigned flags, size_t max_ids, struct token_list *out,
                                        struct err *e);

/* Encode rendered chat text in which [start, end) byte spans come from users:
 * control tokens are recognised outside the spans only. spans ascending. */
struct text_span {
    size_t start, end;
};
MUST_USE enum err_code tokenizer_encode_spans(const struct tokenizer *t, const char *text, size_t n,
                                              const struct text_span *span, size_t n_spans,
                                              size_t max_ids, struct token_list *out,
                                              struct err *e);

/* Text of ids[0..n) (malloc'd, taken by the caller, NUL-terminated, *out_n
 * bytes).  Ids without text give none. */
MUST_USE enum err_code tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n,
                                        bool skip_special, char **out, size_t *out_n,
                                        struct err *e);

/* Ids in the tokenizer (largest id + 1), added tokens included. */
int32_t tokenizer_n_ids(const struct tokenizer *t);
/* Id whose surface form is text, or -1. */
int32_t tokenizer_find(const struct tokenizer *t, const char *text);
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);
/* The vocabulary's own spelling ("Ġthe", "<|end|>"), *n bytes, borrowed; NULL
 * when the id has none. */
const char *tokenizer_spelling(const struct tokenizer *t, int32_t id, size_t *n);
/* Bytes that the id alone stands for (may be part of a character), into buf;
 * returns the length, at most cap. */
size_t tokenizer_token_bytes(const struct tokenizer *t, int32_t id, char *buf, size_t cap);

/* From tokenizer_config.json; NULL where absent.  Borrowed. */
const char *tokenizer_chat_template(const struct tokenizer *t);
const char *tokenizer_bos(const struct tokenizer *t);
const char *tokenizer_eos(const struct tokenizer *t);

/* Incremental detokenising of one sequence: text comes out in whole UTF-8
 * characters as soon as later ids cannot change it; the concatenation equals
 * tokenizer_decode of all ids. */
struct detok;
MUST_USE enum err_code detok_create(struct detok **out, const struct tokenizer *t,
                                    bool skip_special, struct err *e);
void detok_destroy(struct detok *d);
/* The text that id releases, *n bytes, borrowed until the next call. */
MUST_USE enum err_code detok_push(struct detok *d, int32_t id, const char **text, size_t *n,
                                  struct err *e);
/* What is still held at the end (a cut character becomes U+FFFD). */
MUST_USE enum err_code detok_flush(struct detok *d, const char **text, size_t *n, struct err *e);

#endif
