/* template_conformance.c: render chat templates as the reference engine does.
 *
 *   template_conformance DIR
 *
 * DIR holds NAME.jinja, NAME.json (rows: conversation name -> text or error) and
 * conversations.json (tests/conformance/README.md).  Every row of
 * every NAME.json is one case: the text must be equal byte for byte, and an
 * error row must raise.  Prints a line a failure and "N passed, M failed". */
#include <cjson/cJSON.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/chat/template.h"

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

static const cJSON *get(const cJSON *o, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(o, key);
}

/* Variables beyond the named ones: the date, and what the conversation carries. */
static cJSON *extra_variables(const cJSON *all, const cJSON *conversation)
{
    static const char *const named[] = { "messages", "tools", "documents",
                                         "add_generation_prompt" };
    cJSON *kwargs = cJSON_CreateObject();
    const cJSON *date = get(all, "date_string");
    if (date != NULL)
        cJSON_AddItemToObject(kwargs, "date_string", cJSON_Duplicate(date, true));
    for (const cJSON *i = conversation->child; i != NULL; i = i->next) {
        bool is_named = false;
        for (size_t k = 0; k < sizeof named / sizeof named[0]; k++)
            is_named = is_named || strcmp(i->string, named[k]) == 0;
        if (!is_named)
            cJSON_AddItemToObject(kwargs, i->string, cJSON_Duplicate(i, true));
    }
    return kwargs;
}

static void run_row(const char *name, const struct chat_template *t, const cJSON *file,
                    const cJSON *all, const cJSON *row, struct tally *tally)
{
    const cJSON *conversation = get(get(all, "conversations"), row->string);
    if (conversation == NULL) {
        printf("FAIL %s/%s: no such conversation\n", name, row->string);
        tally->failed++;
        return;
    }
    const cJSON *prompt = get(conversation, "add_generation_prompt");
    const cJSON *tools = get(conversation, "tools");
    if (cJSON_IsTrue(tools) || cJSON_IsString(tools))
        tools = get(all, "tools");
    cJSON *kwargs = extra_variables(all, conversation);
    struct chat_input in = {
        .messages = get(conversation, "messages"),
        .tools = tools,
        .documents = get(conversation, "documents"),
        .kwargs = kwargs,
        .bos_token = get(file, "bos_token")->valuestring,
        .eos_token = get(file, "eos_token")->valuestring,
        .add_generation_prompt = prompt == NULL || cJSON_IsTrue(prompt),
        .now = 1795953600, /* 2026-11-29, noon UTC */
    };
    struct chat_rendered got = { 0 };
    struct err e = { 0 };
    enum err_code rc = chat_template_render(t, &in, &got, &e);
    const cJSON *text = get(row, "text");
    bool good =
        text == NULL ? rc != ERR_OK : rc == ERR_OK && strcmp(got.text, text->valuestring) == 0;
    if (!good) {
        printf("FAIL %s/%s: %s\n", name, row->string,
               rc != ERR_OK   ? e.message
               : text == NULL ? "rendered, expected an error"
                              : "text differs");
        if (rc == ERR_OK && text != NULL)
            show_difference(got.text, text->valuestring);
    }
    tally->passed += good;
    tally->failed += !good;
    if (rc == ERR_OK)
        chat_rendered_fini(&got);
    cJSON_Delete(kwargs);
}

static void run_template(const char *dir, const char *name, const cJSON *all, struct tally *tally)
{
    char *expected = read_file(dir, name, ".json"), *text = read_file(dir, name, ".jinja");
    cJSON *file = cJSON_Parse(expected);
    const cJSON *rows = get(file, "rows");
    struct chat_template *t = NULL;
    struct err e = { 0 };
    if (rows == NULL || text == NULL) {
        printf("FAIL %s: no rows or no %s.jinja\n", name, name);
        tally->failed++;
    } else if (chat_template_parse(&t, name, text, &e) != ERR_OK) {
        /* Refused when parsed: what every row that raises expects. */
        for (const cJSON *row = rows->child; row != NULL; row = row->next) {
            bool good = get(row, "text") == NULL;
            if (!good)
                printf("FAIL %s/%s: %s\n", name, row->string, e.message);
            tally->passed += good;
            tally->failed += !good;
        }
    } else {
        for (const cJSON *row = rows->child; row != NULL; row = row->next)
            run_row(name, t, file, all, row, tally);
    }
    chat_template_free(t);
    cJSON_Delete(file);
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
    cJSON *all = text == NULL ? NULL : cJSON_Parse(text);
    struct dirent **entry;
    int n = scandir(argv[1], &entry, NULL, alphasort);
    if (all == NULL || n < 0) {
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
            run_template(argv[1], name, all, &tally);
        }
        free(entry[i]);
    }
    free(entry);
    cJSON_Delete(all);
    free(text);
    printf("%u passed, %u failed\n", tally.passed, tally.failed);
    return tally.failed == 0 && tally.passed > 0 ? 0 : 1;
}
