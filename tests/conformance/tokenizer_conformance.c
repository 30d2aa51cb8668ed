/* tokenizer_conformance.c: a tokenizer against the reference library's output.
 *
 *   tokenizer_conformance TOKENIZER.json ROWS.json TEXTS.json
 *
 * TEXTS.json is a list of strings; ROWS.json has "rows", one for each text:
 * ids (no special tokens added), special (with them), text and plain (ids
 * decoded, special tokens kept and skipped).  Every id list is also decoded as
 * a stream.  Ends with "N passed, M failed"; exit status 0 when none failed,
 * 77 when TOKENIZER.json does not exist, which says so. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/tokenizer/tokenizer.h"
#include "proto/text/json.h"

struct document {
    char *text;
    struct json_doc doc;
};

static void die(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(2);
}

static void document_open(struct document *d, const char *path)
{
    struct err e;
    FILE *f = fopen(path, "rb");
    if (f == NULL || fseek(f, 0, SEEK_END) != 0)
        die(path, "cannot be read");
    long n = ftell(f);
    rewind(f);
    d->text = malloc((size_t)n + 1);
    if (d->text == NULL || fread(d->text, 1, (size_t)n, f) != (size_t)n)
        die(path, "cannot be read");
    fclose(f);
    d->text[n] = '\0';
    if (json_parse_in_place(&d->doc, path, d->text, (size_t)n, 0, &e))
        die(path, e.message);
}

static void print_ids(const char *label, const int32_t *id, size_t n)
{
    printf("    %s", label);
    for (size_t i = 0; i < n && i < 40; i++)
        printf(" %d", id[i]);
    printf("%s\n", n > 40 ? " ..." : "");
}

static bool ids_equal(const struct json *want, const struct token_list *got, const char *label)
{
    const struct json *k = json_first(want);
    bool equal = want->n == got->n;
    for (uint32_t i = 0; i < want->n && equal; i++, k = json_next(k))
        equal = k->kind == JSON_INT && k->u.integer == got->id[i];
    if (!equal) {
        struct token_list w = { .id = calloc(want->n + 1, sizeof(int32_t)), .n = want->n };
        k = json_first(want);
        for (uint32_t i = 0; w.id && i < want->n; i++, k = json_next(k))
            w.id[i] = (int32_t)k->u.integer;
        printf("    %s differ\n", label);
        print_ids("want", w.id, w.n);
        print_ids("got ", got->id, got->n);
        token_list_fini(&w);
    }
    return equal;
}

static bool text_equal(const struct json *want, const char *got, size_t n, const char *label)
{
    if (want->n == n && memcmp(want->u.string, got, n) == 0)
        return true;
    printf("    %s differs\n    want \"%.*s\"\n    got  \"%.*s\"\n", label, (int)want->n,
           want->u.string, (int)n, got);
    return false;
}

/* Decode ids at once and as a stream; both must give want. */
static bool decodes(const struct tokenizer *t, const struct token_list *ids, bool skip,
                    const struct json *want, const char *label)
{
    struct err e;
    char *whole, *joined = NULL;
    size_t n, k = 0, m;
    const char *s;
    struct detok *d;
    if (tokenizer_decode(t, ids->id, ids->n, skip, &whole, &n, &e) || detok_create(&d, t, skip, &e))
        die(label, e.message);
    for (size_t i = 0; i <= ids->n; i++) {
        if (i < ids->n ? detok_push(d, ids->id[i], &s, &m, &e) : detok_flush(d, &s, &m, &e))
            die(label, e.message);
        joined = realloc(joined, k + m + 1);
        if (joined == NULL)
            die(label, "out of memory");
        memcpy(joined + k, s, m);
        k += m;
    }
    bool ok = text_equal(want, whole, n, label);
    if (k != n || memcmp(joined, whole, n) != 0) {
        printf("    %s: the stream differs from the whole\n", label);
        ok = false;
    }
    detok_destroy(d);
    free(joined);
    free(whole);
    return ok;
}

static bool check(const struct tokenizer *t, const struct json *text, const struct json *row)
{
    struct token_list ids = { 0 }, special = { 0 };
    struct err e;
    const char *s = text->u.string;
    if (tokenizer_encode(t, s, text->n, TOKENIZER_PARSE_SPECIAL, 0, &ids, &e) ||
        tokenizer_encode(t, s, text->n, TOKENIZER_PARSE_SPECIAL | TOKENIZER_SPECIAL, 0, &special,
                         &e)) {
        printf("    %s\n", e.message);
        token_list_fini(&ids);
        token_list_fini(&special);
        return false;
    }
    bool ok = ids_equal(json_get(row, "ids"), &ids, "ids");
    ok &= ids_equal(json_get(row, "special"), &special, "special");
    ok &= decodes(t, &ids, false, json_get(row, "text"), "text");
    ok &= decodes(t, &ids, true, json_get(row, "plain"), "plain");
    token_list_fini(&ids);
    token_list_fini(&special);
    return ok;
}

int main(int argc, char **argv)
{
    struct document rows, texts;
    struct tokenizer *t;
    struct err e;
    if (argc != 4) {
        fprintf(stderr, "usage: tokenizer_conformance TOKENIZER.json ROWS.json TEXTS.json\n");
        return 2;
    }
    if (access(argv[1], F_OK) != 0) {
        printf("SKIPPED: %s is not here; tests/conformance/tokenizers/fetch gets it\n", argv[1]);
        return 77;
    }
    if (tokenizer_open_file(&t, argv[1], &e))
        die(argv[1], e.message);
    document_open(&rows, argv[2]);
    document_open(&texts, argv[3]);
    const struct json *list = json_get(rows.doc.value, "rows");
    const struct json *text = json_first(texts.doc.value);
    if (list == NULL || list->kind != JSON_ARRAY || texts.doc.value->kind != JSON_ARRAY ||
        list->n != texts.doc.value->n)
        die(argv[2], "\"rows\" must be a list as long as TEXTS.json");
    const struct json *row = json_first(list);
    unsigned passed = 0, failed = 0;
    for (uint32_t i = 0; i < list->n; i++) {
        if (check(t, text, row)) {
            passed++;
        } else {
            printf("  text %u: \"%.*s\"\n", i, (int)text->n, text->u.string);
            failed++;
        }
        row = json_next(row);
        text = json_next(text);
    }
    printf("%u passed, %u failed\n", passed, failed);
    json_doc_fini(&rows.doc);
    json_doc_fini(&texts.doc);
    free(rows.text);
    free(texts.text);
    tokenizer_close(t);
    return failed > 0;
}
