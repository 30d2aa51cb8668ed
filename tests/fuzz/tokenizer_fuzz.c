/* tokenizer_fuzz.c: see tokenizer_fuzz.h. */
#include "fuzz/tokenizer_fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer/internal.h"
#include "proto/utf8.h"

#define REQUIRE(x)                                                                                 \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x);                                \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* Decoded at once and as a stream, skipping or not. */
static void decode_both_ways(const struct tokenizer *t, const struct token_list *ids, bool skip)
{
    struct err e;
    char *whole;
    size_t n, k, at = 0;
    const char *s;
    struct detok *d;
    REQUIRE(tokenizer_decode(t, ids->id, ids->n, skip, &whole, &n, &e) == ERR_OK);
    REQUIRE(utf8_is_valid(whole, n));
    REQUIRE(detok_create(&d, t, skip, &e) == ERR_OK);
    for (size_t i = 0; i <= ids->n; i++) {
        REQUIRE((i < ids->n ? detok_push(d, ids->id[i], &s, &k, &e) : detok_flush(d, &s, &k, &e)) ==
                ERR_OK);
        REQUIRE(utf8_is_valid(s, k));
        REQUIRE(k <= n - at && memcmp(whole + at, s, k) == 0);
        at += k;
    }
    REQUIRE(at == n);
    detok_destroy(d);
    free(whole);
}

static void encode_and_back(const struct tokenizer *t, const char *s, size_t n, unsigned flags)
{
    struct token_list ids = { 0 };
    struct err e;
    enum err_code rc = tokenizer_encode(t, s, n, flags, 0, &ids, &e);
    REQUIRE(rc == ERR_OK || (ids.n == 0 && e.message[0] != '\0'));
    for (size_t i = 0; i < ids.n; i++) {
        REQUIRE(ids.id[i] >= 0 && ids.id[i] < tokenizer_n_ids(t));
        REQUIRE(flags || !(t->vocab.flags[ids.id[i]] & TK_CONTROL) || ids.id[i] == t->bpe.unk ||
                ids.id[i] == t->unigram.unk);
    }
    decode_both_ways(t, &ids, flags & TOKENIZER_SPECIAL);
    token_list_fini(&ids);
}

int tokenizer_fuzz_json(const uint8_t *data, size_t n)
{
    static const char text[] = "The quick  brown \xc3\xa9\xe4\xb8\xad\n<s>1234</s> fox's\t\xf0\x9f"
                               "\x98\x80 e\xcc\x81 \xe2\x96\x81x";
    struct tokenizer *t;
    struct err e;
    char *copy = malloc(n + 1);
    REQUIRE(copy != NULL);
    memcpy(copy, data, n);
    copy[n] = '\0';
    enum err_code rc = tokenizer_open_text(&t, copy, n, "tokenizer.json", &e);
    free(copy);
    if (rc) {
        REQUIRE(t == NULL && e.code == rc && e.message[0] != '\0');
        return 0;
    }
    encode_and_back(t, text, sizeof(text) - 1, 0);
    encode_and_back(t, text, sizeof(text) - 1, TOKENIZER_SPECIAL | TOKENIZER_PARSE_SPECIAL);
    tokenizer_close(t);
    return 0;
}

static struct tokenizer *nth(unsigned k)
{
    static const char *const files[] = {
        "deploy/models/tales-7m/tokenizer.json",
#define SMALL(name) "tests/conformance/tokenizers/small/" name ".json"
        SMALL("behaviours"),
        SMALL("continuing"),
        SMALL("ctc"),
        SMALL("end_of_word"),
        SMALL("falcon_like"),
        SMALL("gpt2"),
        SMALL("gpt2_lists"),
        SMALL("llama2"),
        SMALL("metaspace"),
        SMALL("mistral"),
        SMALL("single_unknown"),
        SMALL("strip_both"),
        SMALL("unigram"),
        SMALL("unigram_bytes"),
        SMALL("words"),
        SMALL("words_split"),
#undef SMALL
    };
    enum { N = sizeof(files) / sizeof(*files) };
    static struct tokenizer *open[N];
    struct err e;
    k %= N;
    if (open[k] == NULL && tokenizer_open_file(&open[k], files[k], &e)) {
        fprintf(stderr, "%s\n", e.message);
        abort();
    }
    return open[k];
}

int tokenizer_fuzz_text(const uint8_t *data, size_t n)
{
    if (n < 2)
        return 0;
    const struct tokenizer *t = nth(data[0]);
    const char *s = (const char *)data + 2;
    n -= 2;
    encode_and_back(t, s, n, 0);
    encode_and_back(t, s, n, data[1] & 3);
    struct text_span span = { .start = data[1] % (n + 1), .end = n };
    struct token_list ids = { 0 };
    struct err e;
    if (tokenizer_encode_spans(t, s, n, &span, 1, 0, &ids, &e) == ERR_OK)
        decode_both_ways(t, &ids, true);
    token_list_fini(&ids);
    return 0;
}
