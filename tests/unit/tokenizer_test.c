/* tokenizer_test.c: the tokenizer's public promises, case by case. */
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "model/tokenizer/internal.h"
#include "support/test.h"

#define TALES "deploy/models/tales-7m"
#define SMALL "tests/conformance/tokenizers/small/"

static struct tokenizer *open_file(const char *path)
{
    struct err e;
    struct tokenizer *t;
    assert_ok(tokenizer_open_file(&t, path, &e), e);
    return t;
}

static struct token_list encoded(const struct tokenizer *t, const char *s, unsigned flags)
{
    struct token_list ids = { 0 };
    struct err e;
    assert_ok(tokenizer_encode(t, s, strlen(s), flags, 0, &ids, &e), e);
    return ids;
}

static size_t count_of(const struct token_list *ids, int32_t id)
{
    size_t k = 0;
    for (size_t i = 0; i < ids->n; i++)
        k += ids->id[i] == id;
    return k;
}

static void assert_decodes(const struct tokenizer *t, const struct token_list *ids,
                           const char *want)
{
    struct err e;
    char *s;
    size_t n;
    assert_ok(tokenizer_decode(t, ids->id, ids->n, false, &s, &n, &e), e);
    assert_string_equal(s, want);
    free(s);
}

TEST(ids_know_their_text)
{
    struct tokenizer *t = open_file(TALES "/tokenizer.json");
    size_t n;
    char buf[16];
    int32_t the = tokenizer_find(t, "\xc4\xa0the");
    assert_true(the > 0);
    assert_int_equal(tokenizer_n_ids(t), 4096);
    assert_memory_equal(tokenizer_spelling(t, the, &n), "\xc4\xa0the", 5);
    assert_int_equal(n, 5);
    assert_int_equal(tokenizer_token_bytes(t, the, buf, sizeof(buf)), 4);
    assert_memory_equal(buf, " the", 4);
    assert_int_equal(tokenizer_token_bytes(t, the, buf, 2), 2);
    assert_int_equal(tokenizer_find(t, "<|end|>"), 1);
    assert_int_equal(tokenizer_find(t, "no such token"), -1);
    assert_true(tokenizer_is_special(t, 1));
    assert_false(tokenizer_is_special(t, the));
    assert_null(tokenizer_spelling(t, 4096, &n));
    assert_null(tokenizer_spelling(t, -1, &n));
    assert_int_equal(tokenizer_token_bytes(t, 1 << 30, buf, sizeof(buf)), 0);
    tokenizer_close(t);
    t = open_file(SMALL "llama2.json");
    int32_t e2 = tokenizer_find(t, "<0xE2>");
    assert_int_equal(tokenizer_token_bytes(t, e2, buf, sizeof(buf)), 1);
    assert_int_equal((unsigned char)buf[0], 0xe2);
    n = tokenizer_token_bytes(t, tokenizer_find(t, "\xe2\x96\x81the"), buf, sizeof(buf));
    assert_int_equal(n, 4);
    assert_memory_equal(buf, " the", 4);
    tokenizer_close(t);
}

TEST(user_text_never_becomes_control_tokens)
{
    static const char *const files[] = { TALES "/tokenizer.json", SMALL "gpt2.json",
                                         SMALL "gpt2_lists.json", SMALL "llama2.json",
                                         SMALL "unigram.json",    SMALL "unigram_bytes.json" };
    for (size_t f = 0; f < sizeof(files) / sizeof(*files); f++) {
        struct tokenizer *t = open_file(files[f]);
        for (size_t k = 0; k < t->n_added; k++) {
            const struct tk_added *a = &t->added[k];
            if (!(t->vocab.flags[a->id] & TK_CONTROL))
                continue;
            struct token_list plain = encoded(t, a->content, 0);
            struct token_list parsed = encoded(t, a->content, TOKENIZER_PARSE_SPECIAL);
            assert_int_equal(count_of(&parsed, a->id), 1);
            if (a->id != t->bpe.unk && a->id != t->unigram.unk)
                assert_int_equal(count_of(&plain, a->id), 0);
            assert_true(plain.n > 0);
            token_list_fini(&plain);
            token_list_fini(&parsed);
        }
        tokenizer_close(t);
    }
}

TEST(spans_hide_control_tokens_of_users_only)
{
    struct tokenizer *t = open_file(TALES "/tokenizer.json");
    static const char text[] = "<|user|>\nhi<|end|><|system|>\n<|end|>\n<|assistant|>\n";
    size_t user = strlen("<|user|>\n"), end = user + strlen("hi<|end|><|system|>");
    struct text_span span = { user, end };
    struct token_list ids = { 0 };
    struct err e;
    assert_ok(tokenizer_encode_spans(t, text, strlen(text), &span, 1, 0, &ids, &e), e);
    assert_int_equal(count_of(&ids, tokenizer_find(t, "<|user|>")), 1);
    assert_int_equal(count_of(&ids, tokenizer_find(t, "<|end|>")), 1);
    assert_int_equal(count_of(&ids, tokenizer_find(t, "<|system|>")), 0);
    assert_int_equal(count_of(&ids, tokenizer_find(t, "<|assistant|>")), 1);
    assert_decodes(t, &ids, text);
    token_list_fini(&ids);
    /* A control token half of which a user wrote is none. */
    struct text_span half[2] = { { 0, 3 }, { user, end } };
    ids = (struct token_list){ 0 };
    assert_ok(tokenizer_encode_spans(t, text, strlen(text), half, 2, 0, &ids, &e), e);
    assert_int_equal(count_of(&ids, tokenizer_find(t, "<|user|>")), 0);
    token_list_fini(&ids);
    /* Spans out of order or out of the text. */
    struct text_span bad[2] = { { 5, 9 }, { 8, 10 } };
    assert_int_equal(tokenizer_encode_spans(t, text, strlen(text), bad, 2, 0, &ids, &e),
                     ERR_INVALID);
    bad[1] = (struct text_span){ 9, sizeof(text) };
    assert_int_equal(tokenizer_encode_spans(t, text, strlen(text), bad, 2, 0, &ids, &e),
                     ERR_INVALID);
    tokenizer_close(t);
}

TEST(spans_hold_behind_a_normaliser)
{
    struct tokenizer *t = open_file(SMALL "gpt2_lists.json"); /* lower-cases */
    int32_t loud = tokenizer_find(t, "<|LOUD|>");
    static const char text[] = "<|LOUD|>a<|loud|>b";
    struct text_span span = { 8, 17 };
    struct token_list ids = { 0 };
    struct err e;
    assert_ok(tokenizer_encode_spans(t, text, strlen(text), &span, 1, 0, &ids, &e), e);
    assert_int_equal(ids.id[0], loud);
    assert_int_equal(count_of(&ids, loud), 1);
    token_list_fini(&ids);
    ids = encoded(t, text, TOKENIZER_PARSE_SPECIAL);
    assert_int_equal(count_of(&ids, loud), 2);
    token_list_fini(&ids);
    tokenizer_close(t);
}

TEST(limits_are_kept_and_change_nothing)
{
    struct tokenizer *t = open_file(TALES "/tokenizer.json");
    struct token_list ids = { 0 };
    struct err e;
    static const char text[] = "Once upon a time there was a little girl";
    assert_ok(tokenizer_encode(t, "x", 1, 0, 0, &ids, &e), e);
    size_t before = ids.n, whole;
    assert_int_equal(tokenizer_encode(t, text, strlen(text), 0, 3, &ids, &e), ERR_LIMIT);
    assert_contains(e.message, "more than");
    assert_int_equal(ids.n, before);
    assert_ok(tokenizer_encode(t, text, strlen(text), 0, 0, &ids, &e), e);
    whole = ids.n - before;
    ids.n = before;
    assert_ok(tokenizer_encode(t, text, strlen(text), 0, whole, &ids, &e), e);
    assert_int_equal(tokenizer_encode(t, text, strlen(text), 0, whole - 1, &ids, &e), ERR_LIMIT);
    ids.n = 0;
    assert_ok(tokenizer_encode(t, NULL, 0, TOKENIZER_SPECIAL, 0, &ids, &e), e);
    assert_int_equal(ids.n, 1); /* BOS alone */
    token_list_fini(&ids);
    tokenizer_close(t);
}

TEST(any_bytes_encode)
{
    struct tokenizer *t = open_file(TALES "/tokenizer.json");
    struct token_list ids = { 0 };
    struct err e;
    char *s;
    size_t n;
    assert_ok(tokenizer_encode(t, "A\0B", 3, 0, 0, &ids, &e), e);
    assert_ok(tokenizer_decode(t, ids.id, ids.n, true, &s, &n, &e), e);
    assert_int_equal(n, 3);
    assert_memory_equal(s, "A\0B", 3);
    free(s);
    ids.n = 0;
    assert_ok(tokenizer_encode(t, "a\xff\xe4\xb8z", 5, 0, 0, &ids, &e), e);
    assert_decodes(t, &ids, "a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdz");
    token_list_fini(&ids);
    tokenizer_close(t);
}

TEST(a_cut_character_waits_and_ends_as_one_mark)
{
    struct tokenizer *t = open_file(TALES "/tokenizer.json");
    const char *s;
    size_t n;
    struct err e;
    struct detok *d;
    static const unsigned char smile[] = { 0xf0, 0x9f, 0x98, 0x80 };
    assert_ok(detok_create(&d, t, true, &e), e);
    for (int i = 0; i < 3; i++) {
        assert_ok(detok_push(d, t->bpe.byte_id[smile[i]], &s, &n, &e), e);
        assert_int_equal(n, 0);
    }
    assert_ok(detok_push(d, t->bpe.byte_id[smile[3]], &s, &n, &e), e);
    assert_int_equal(n, 4);
    assert_memory_equal(s, smile, 4);
    assert_ok(detok_push(d, 1, &s, &n, &e), e); /* special: skipped */
    assert_int_equal(n, 0);
    assert_ok(detok_push(d, 99999, &s, &n, &e), e); /* no text */
    assert_int_equal(n, 0);
    for (int i = 0; i < 3; i++)
        assert_ok(detok_push(d, t->bpe.byte_id[smile[i]], &s, &n, &e), e);
    assert_ok(detok_flush(d, &s, &n, &e), e);
    assert_int_equal(n, 3);
    assert_memory_equal(s, "\xef\xbf\xbd", 3);
    detok_destroy(d);
    tokenizer_close(t);
}

static double seconds(void)
{
    struct timespec x;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &x);
    return (double)x.tv_sec + 1e-9 * (double)x.tv_nsec;
}

/* One long piece: four times the text may take some ten times as long on a
 * busy machine under sanitizers, not sixteen. */
TEST(one_letter_many_times_is_not_quadratic)
{
    static const char *const files[] = { TALES "/tokenizer.json", SMALL "llama2.json",
                                         SMALL "unigram.json" };
    enum { MOST = 200000 };
    char *s = malloc(MOST);
    assert_non_null(s);
    for (int c = 0; c < 2; c++)
        for (size_t f = 0; f < sizeof(files) / sizeof(*files); f++) {
            struct tokenizer *t = open_file(files[f]);
            double took[2];
            memset(s, "a "[c], MOST);
            for (int k = 0; k < 2; k++) {
                struct token_list ids = { 0 };
                struct err e;
                double from = seconds();
                assert_ok(tokenizer_encode(t, s, k ? MOST : MOST / 4, 0, 0, &ids, &e), e);
                took[k] = seconds() - from;
                token_list_fini(&ids);
            }
            if (took[1] > 10 * took[0] + 0.5)
                fail_msg("%s: %.3f s for a quarter, %.3f s for the whole", files[f], took[0],
                         took[1]);
            tokenizer_close(t);
        }
    free(s);
}

/* ---- bad files ------------------------------------------------------------------ */

static void assert_refused(const char *json, const char *message)
{
    struct tokenizer *t;
    struct err e;
    size_t n = strlen(json);
    char *copy = malloc(n + 1);
    assert_non_null(copy);
    memcpy(copy, json, n + 1);
    assert_int_equal(tokenizer_open_text(&t, copy, n, "tokenizer.json", &e), ERR_INVALID);
    assert_null(t);
    assert_contains(e.message, message);
    free(copy);
}

#define BPE(rest) "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}," rest

TEST(broken_files_are_refused_by_name)
{
    assert_refused("", "byte 0");
    assert_refused("[1, 2", "byte 5");
    assert_refused("{\"a\":1,}", "byte 7: found '}', expected a key");
    assert_refused("{} x", "byte 3: found 'x', expected nothing after the value");
    assert_refused("\xef\xbb\xbf{}", "byte 0: found byte 0xef, expected a value");
    assert_refused("{\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"\\u0061\":2}}}", "key \"a\" twice");
    assert_refused("\"\\ud800\"", "surrogate");
    assert_refused("\"\xff\"", "UTF-8");
    assert_refused("[1]", "an object expected");
    assert_refused("{\"model\":3}", "model: a number");
    assert_refused("{\"model\":{\"type\":\"WordPiece\"}}", "model.type");
    assert_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":[]}}", "model.vocab");
    assert_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1}}}", "model.vocab");
    assert_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":99999999}}}", "16777215");
    assert_refused("{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}}", "pairs");
    assert_refused("{\"model\":{\"type\":\"Unigram\",\"unk_id\":7,\"vocab\":[[\"a\",0]]}}",
                   "unk_id");
    assert_refused(BPE("\"merges\":[\"a b c\"]}}"), "merges[0]");
    assert_refused(BPE("\"merges\":[\"a b\",\"b a\"]}}"), "merges[1]");
    assert_refused(BPE("\"merges\":[[\"a\"]]}}"), "merges[0]");
    assert_refused(BPE("\"merges\":[]},\"normalizer\":{\"type\":\"Odd\"}}"), "\"Odd\"");
    assert_refused(BPE("\"merges\":[]},\"pre_tokenizer\":{\"type\":\"Odd\"}}"), "pre_tokenizer");
    assert_refused(BPE("\"merges\":[]},\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":"
                       "\"Isolated\",\"pattern\":{\"Regex\":\"(a\"}}}"),
                   "regex");
    assert_refused(BPE("\"merges\":[]},\"decoder\":{\"type\":\"Odd\"}}"), "decoder.type");
    assert_refused(BPE("\"merges\":[]},\"post_processor\":{\"type\":\"Odd\"}}"),
                   "post_processor.type");
    assert_refused(BPE("\"merges\":[]},\"added_tokens\":[{\"id\":1.5,\"content\":\"x\"}]}"),
                   "added_tokens.id");
    assert_refused(BPE("\"merges\":[]},\"added_tokens\":[{\"id\":5}]}"), "added_tokens.content");
    assert_refused(BPE("\"merges\":[]},\"post_processor\":{\"type\":\"TemplateProcessing\","
                       "\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}]}}"),
                   "special_tokens");
    assert_refused(BPE("\"merges\":[]},\"post_processor\":{\"type\":\"BertProcessing\","
                       "\"cls\":[\"x\",9],\"sep\":[\"x\",1]}}"),
                   "post_processor");
}

TEST(deep_nesting_is_refused)
{
    char deep[4096];
    memset(deep, '[', sizeof(deep) - 1);
    deep[sizeof(deep) - 1] = '\0';
    assert_refused(deep, "byte 128: nested deeper than 128");
}

TEST(a_missing_file_is_said_to_be_missing)
{
    struct tokenizer *t;
    struct err e;
    assert_int_equal(tokenizer_open(&t, "/nowhere/at/all", &e), ERR_NOT_FOUND);
    assert_contains(e.message, "/nowhere/at/all/tokenizer.json");
}

/* ---- the files beside tokenizer.json ------------------------------------------------ */

static char dir[64];

static void write_file(const char *name, const char *text)
{
    char path[160];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    fclose(f);
}

static void remove_file(const char *name)
{
    char path[160];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    (void)unlink(path);
}

static int make_dir(void **state)
{
    (void)state;
    snprintf(dir, sizeof(dir), "/tmp/tokenizer_test.XXXXXX");
    return mkdtemp(dir) == NULL;
}

static int drop_dir(void **state)
{
    static const char *const names[] = { "tokenizer.json", "tokenizer_config.json",
                                         "chat_template.jinja", "special_tokens_map.json" };
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        remove_file(names[i]);
    return rmdir(dir);
}

#define MODEL                                                                                      \
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"<s>\":1,\"</s>\":2},\"merges\":[]},"        \
    "\"added_tokens\":[{\"id\":1,\"content\":\"<s>\",\"special\":true},"                           \
    "{\"id\":2,\"content\":\"</s>\",\"special\":true}]}"

static struct tokenizer *open_dir(const char *config)
{
    struct tokenizer *t;
    struct err e;
    write_file("tokenizer.json", MODEL);
    write_file("tokenizer_config.json", config);
    assert_ok(tokenizer_open(&t, dir, &e), e);
    return t;
}

TEST(config_gives_tokens_and_template)
{
    struct tokenizer *t = open_dir("{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\"},"
                                   "\"chat_template\":\"{{ x }}\"}");
    assert_string_equal(tokenizer_bos(t), "<s>");
    assert_string_equal(tokenizer_eos(t), "</s>");
    assert_string_equal(tokenizer_chat_template(t), "{{ x }}");
    tokenizer_close(t);
    t = open_dir("{\"bos_token\":null}");
    assert_null(tokenizer_bos(t));
    assert_null(tokenizer_eos(t));
    assert_null(tokenizer_chat_template(t));
    tokenizer_close(t);
    write_file("special_tokens_map.json", "{\"eos_token\":\"</s>\"}");
    t = open_dir("{}");
    assert_string_equal(tokenizer_eos(t), "</s>");
    tokenizer_close(t);
    remove_file("special_tokens_map.json");
}

TEST(templates_come_as_text_list_or_file)
{
    struct tokenizer *t = open_dir("{\"chat_template\":[{\"name\":\"tool_use\",\"template\":"
                                   "\"T\"},{\"name\":\"default\",\"template\":\"D\"}]}");
    assert_string_equal(tokenizer_chat_template(t), "D");
    tokenizer_close(t);
    t = open_dir("{\"chat_template\":[{\"name\":\"only\",\"template\":\"O\"}]}");
    assert_string_equal(tokenizer_chat_template(t), "O");
    tokenizer_close(t);
    write_file("chat_template.jinja", "from the file");
    t = open_dir("{\"chat_template\":\"from the config\"}");
    assert_string_equal(tokenizer_chat_template(t), "from the file");
    tokenizer_close(t);
    remove_file("chat_template.jinja");
    struct err e;
    write_file("tokenizer_config.json", "{\"chat_template\":7}");
    assert_int_equal(tokenizer_open(&t, dir, &e), ERR_INVALID);
    assert_contains(e.message, "chat_template");
    write_file("tokenizer_config.json", "{\"bos_token\":");
    assert_int_equal(tokenizer_open(&t, dir, &e), ERR_INVALID);
    assert_contains(e.message, "tokenizer_config.json");
}

TEST(bos_follows_an_explicit_switch_of_the_classes_that_have_one)
{
    static const struct {
        const char *config;
        size_t n;
    } rows[] = {
        { "{\"tokenizer_class\":\"LlamaTokenizerFast\",\"bos_token\":\"<s>\","
          "\"add_bos_token\":true}",
          2 },
        { "{\"tokenizer_class\":\"LlamaTokenizerFast\",\"bos_token\":\"<s>\","
          "\"add_bos_token\":false}",
          1 },
        { "{\"tokenizer_class\":\"PreTrainedTokenizerFast\",\"bos_token\":\"<s>\","
          "\"add_bos_token\":true}",
          1 },
        { "{\"tokenizer_class\":\"LlamaTokenizer\",\"bos_token\":\"<s>\",\"eos_token\":\"</s>\","
          "\"add_bos_token\":true,\"add_eos_token\":true}",
          3 },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        struct tokenizer *t = open_dir(rows[i].config);
        struct token_list ids = encoded(t, "a", TOKENIZER_SPECIAL);
        assert_int_equal(ids.n, rows[i].n);
        token_list_fini(&ids);
        tokenizer_close(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(ids_know_their_text),
        RUN(user_text_never_becomes_control_tokens),
        RUN(spans_hide_control_tokens_of_users_only),
        RUN(spans_hold_behind_a_normaliser),
        RUN(limits_are_kept_and_change_nothing),
        RUN(any_bytes_encode),
        RUN(a_cut_character_waits_and_ends_as_one_mark),
        RUN(one_letter_many_times_is_not_quadratic),
        RUN(broken_files_are_refused_by_name),
        RUN(deep_nesting_is_refused),
        RUN(a_missing_file_is_said_to_be_missing),
        RUN(config_gives_tokens_and_template),
        RUN(templates_come_as_text_list_or_file),
        RUN(bos_follows_an_explicit_switch_of_the_classes_that_have_one),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
