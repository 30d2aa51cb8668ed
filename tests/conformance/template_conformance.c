/* template_conformance.c: render chat templates as the reference engine does.
 *
 *   template_conformance DIR
 *
 * DIR holds NAME.jinja, NAME.json (rows: conversation name -> text or error) and
 * conversations.json (tests/conformance/README.md).  Every row of
 * every NAME.json is one case: the text must be equal byte for byte, and an
 * error row must raise.  Prints a line a failure and "N passed, M failed". */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/chat/template.h"
#include "proto/text/json.h"

struct tally {
    unsigned passed, failed;
};

static char *read_file(const char *dir, const char *name, const char *suffix)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s%s", dir, name, suffix);
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        return NULL;
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    char *text = malloc((size_t)n + 1);
    if (text == NULL || fread(text, 1, (size_t)n, f) != (size_t)n) {
        fprintf(stderr, "%s: cannot be read\n", path);
        exit(2);
    }
    text[n] = '\0';
    fclose(f);
    return text;
}

static void show_difference(const char *got, const char *want)
{
    size_t i = 0;
    while (got[i] != '\0' && got[i] == want[i])
        i++;
    size_t from = i > 40 ? i - 40 : 0;
    printf("    at byte %zu\n    got  ...%.100s\n    want ...%.100s\n", i, got + from, want + from);
}

/* Variables beyond the named ones, as one object: the date, and what the
 * conversation carries. */
static struct json_doc extra_variables(const struct json *all, const struct json *conversation)
{
    static const char *const named[] = { "messages", "tools", "documents",
                                         "add_generation_prompt" };
    struct buf text = { 0 };
    struct json_doc doc;
    struct err e;
    const struct json *date = json_get(all, "date_string");
    BUF_LIT(&text, "{");
    if (date != NULL) {
        BUF_LIT(&text, "\"date_string\":");
        json_put_value(&text, date);
    }
    const struct json *key = json_first(conversation);
    for (uint32_t i = 0; i < conversation->n; i++, key = json_next(key + 1)) {
        bool is_named = false;
        for (size_t k = 0; k < sizeof named / sizeof named[0]; k++)
            is_named = is_named || json_string_is(key, named[k]);
        if (is_named)
            continue;
        if (text.n > 1)
            BUF_LIT(&text, ",");
        json_put_value(&text, key);
        BUF_LIT(&text, ":");
        json_put_value(&text, key + 1);
    }
    BUF_LIT(&text, "}");
    if (json_parse(&doc, text.p, text.n, 0, &e) != ERR_OK) {
        fprintf(stderr, "variables: %s\n", e.message);
        exit(2);
    }
    buf_fini(&text);
    return doc;
}

static bool is_true(const struct json *v)
{
    return v != NULL && v->kind == JSON_BOOL && v->u.boolean;
}

/* row: the conversation's name, followed by what is expected of it. */
static void run_row(const char *name, const struct chat_template *t, const struct json *file,
                    const struct json *all, const struct json *row, struct tally *tally)
{
    const char *called = row->u.string;
    const struct json *conversation = json_get(json_get(all, "conversations"), called);
    if (conversation == NULL) {
        printf("FAIL %s/%s: no such conversation\n", name, called);
        tally->failed++;
        return;
    }
    const struct json *prompt = json_get(conversation, "add_generation_prompt");
    const struct json *tools = json_get(conversation, "tools");
    if (is_true(tools) || (tools != NULL && tools->kind == JSON_STRING))
        tools = json_get(all, "tools");
    struct json_doc kwargs = extra_variables(all, conversation);
    struct chat_input in = {
        .messages = json_get(conversation, "messages"),
        .tools = tools,
        .documents = json_get(conversation, "documents"),
        .kwargs = kwargs.value,
        .bos_token = json_get(file, "bos_token")->u.string,
        .eos_token = json_get(file, "eos_token")->u.string,
        .add_generation_prompt = prompt == NULL || is_true(prompt),
        .now = 1795953600, /* 2026-11-29, noon UTC */
    };
    struct chat_rendered got = { 0 };
    struct err e = { 0 };
    enum err_code rc = chat_template_render(t, &in, &got, &e);
    const struct json *text = json_get(row + 1, "text");
    bool good = text == NULL ? rc != ERR_OK : rc == ERR_OK && json_string_is(text, got.text);
    if (!good) {
        printf("FAIL %s/%s: %s\n", name, called,
               rc != ERR_OK   ? e.message
               : text == NULL ? "rendered, expected an error"
                              : "text differs");
        if (rc == ERR_OK && text != NULL)
            show_difference(got.text, text->u.string);
    }
    tally->passed += good;
    tally->failed += !good;
    if (rc == ERR_OK)
        chat_rendered_fini(&got);
    json_doc_fini(&kwargs);
}

/* The document in text (may be NULL); value is NULL when it is none. */
static struct json_doc parse_text(const char *text, const char *name)
{
    struct json_doc doc = { 0 };
    struct err e;
    if (text != NULL && json_parse(&doc, text, strlen(text), 0, &e) != ERR_OK) {
        fprintf(stderr, "%s.json: %s\n", name, e.message);
        exit(2);
    }
    return doc;
}

static void run_template(const char *dir, const char *name, const struct json *all,
                         struct tally *tally)
{
    char *expected = read_file(dir, name, ".json"), *text = read_file(dir, name, ".jinja");
    struct json_doc file = parse_text(expected, name);
    const struct json *rows = json_get(file.value, "rows");
    struct chat_template *t = NULL;
    struct err e = { 0 };
    if (rows == NULL || text == NULL) {
        printf("FAIL %s: no rows or no %s.jinja\n", name, name);
        tally->failed++;
    } else {
        bool refused = chat_template_parse(&t, name, text, &e) != ERR_OK;
        const struct json *row = json_first(rows);
        for (uint32_t i = 0; i < rows->n; i++, row = json_next(row + 1)) {
            if (!refused) {
                run_row(name, t, file.value, all, row, tally);
                continue;
            }
            /* Refused when parsed: what every row that raises expects. */
            bool good = json_get(row + 1, "text") == NULL;
            if (!good)
                printf("FAIL %s/%s: %s\n", name, row->u.string, e.message);
            tally->passed += good;
            tally->failed += !good;
        }
    }
    chat_template_free(t);
    json_doc_fini(&file);
    free(expected);
    free(text);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: template_conformance DIR\n");
        return 2;
    }
    setenv("TZ", "UTC", 1);
    char *text = read_file(argv[1], "conversations", ".json");
    struct json_doc all = parse_text(text, "conversations");
    struct dirent **entry;
    int n = scandir(argv[1], &entry, NULL, alphasort);
    if (all.value == NULL || n < 0) {
        fprintf(stderr, "%s: no conversations.json there\n", argv[1]);
        return 2;
    }
    struct tally tally = { 0 };
    for (int i = 0; i < n; i++) {
        char name[256];
        size_t length = strlen(entry[i]->d_name);
        if (length > 5 && length < sizeof name &&
            strcmp(entry[i]->d_name + length - 5, ".json") == 0 &&
            strcmp(entry[i]->d_name, "conversations.json") != 0) {
            snprintf(name, sizeof name, "%.*s", (int)(length - 5), entry[i]->d_name);
            run_template(argv[1], name, all.value, &tally);
        }
        free(entry[i]);
    }
    free(entry);
    json_doc_fini(&all);
    free(text);
    printf("%u passed, %u failed\n", tally.passed, tally.failed);
    return tally.failed == 0 && tally.passed > 0 ? 0 : 1;
}
