/* tokenizer_alloc_test.c: every allocation of opening, encoding and decoding
 * fails once, alone and with all after it: ERR_NOMEM, nothing changed, nothing
 * left behind (the sanitizer build sees leaks). */
#include <stdio.h>

#include "model/tokenizer/internal.h"
#include "support/alloc_fail.h"
#include "support/test.h"

static char *copy_of(const char *path, size_t *n)
{
    struct err e;
    struct buf text = { 0 };
    assert_ok(buf_read_file(&text, path, 1 << 24, &e), e);
    return buf_take(&text, n);
}

static const char *const files[] = { "tests/conformance/tokenizers/small/gpt2_lists.json",
                                     "tests/conformance/tokenizers/small/llama2.json",
                                     "tests/conformance/tokenizers/small/unigram.json",
                                     "tests/conformance/tokenizers/small/continuing.json" };
enum { N_FILES = sizeof(files) / sizeof(*files) };

TEST(opening)
{
    for (int f = 0; f < N_FILES; f++) {
        size_t n;
        char *text = copy_of(files[f], &n), *work = malloc(n + 1);
        assert_non_null(work);
        for (int sticky = 0; sticky < 2; sticky++)
            for (int64_t k = 0;; k++) {
                struct tokenizer *t;
                struct err e;
                memcpy(work, text, n + 1);
                alloc_fail_at(k, sticky);
                enum err_code rc = tokenizer_open_text(&t, work, n, files[f], &e);
                bool fired = alloc_fail_fired();
                alloc_fail_at(-1, false);
                if (!fired) {
                    assert_ok(rc, e);
                    assert_true(k > 10);
                    tokenizer_close(t);
                    break;
                }
                if (rc == ERR_OK) { /* a regex without its fast form still works */
                    assert_non_null(t);
                    tokenizer_close(t);
                    continue;
                }
                assert_int_equal(rc, ERR_NOMEM);
                assert_null(t);
            }
        free(work);
        free(text);
    }
}

static enum err_code round_trip(const struct tokenizer *t, struct token_list *ids, struct err *e)
{
    static const char text[] =
        "the keeper's  old lighthouse \xe4\xbd\xa0\xe5\xa5\xbd 12345 "
        "\xff<unk>aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    struct text_span span = { 3, 9 };
    enum err_code rc = tokenizer_encode(t, text, sizeof(text) - 1, 3, 0, ids, e);
    if (!rc)
        rc = tokenizer_encode_spans(t, text, sizeof(text) - 1, &span, 1, 0, ids, e);
    char *back = NULL;
    size_t n;
    if (!rc)
        rc = tokenizer_decode(t, ids->id, ids->n, false, &back, &n, e);
    free(back);
    return rc;
}

TEST(encoding_and_decoding)
{
    for (int f = 0; f < N_FILES; f++) {
        struct tokenizer *t;
        struct err e;
        assert_ok(tokenizer_open_file(&t, files[f], &e), e);
        for (int sticky = 0; sticky < 2; sticky++)
            for (int64_t k = 0;; k++) {
                struct token_list ids = { 0 };
                alloc_fail_at(k, sticky);
                enum err_code rc = round_trip(t, &ids, &e);
                bool fired = alloc_fail_fired();
                alloc_fail_at(-1, false);
                token_list_fini(&ids);
                if (!fired) {
                    assert_ok(rc, e);
                    assert_true(k > 5);
                    break;
                }
                assert_int_equal(rc, ERR_NOMEM);
            }
        tokenizer_close(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { RUN(opening), RUN(encoding_and_decoding) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
