/* config.c: the files beside tokenizer.json: tokenizer_config.json,
 * chat_template.jinja, chat_template.json, special_tokens_map.json; all
 * optional.
 *
 * Runs at start, once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer/internal.h"
#include "proto/utf8.h"

struct config {
    struct tokenizer *t;
    const char *dir;
    struct err *e;
};

/* DIR/name; text->p NULL when there is no such file. */
static enum err_code read_beside(struct config *c, const char *name, struct buf *text)
{
    char path[4096];
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", c->dir, name) >= sizeof(path))
        return err_set(c->e, ERR_INVALID, "%.64s...: path too long", c->dir);
    enum err_code rc = buf_read_file(text, path, TK_MAX_FILE_BYTES, c->e);
    return rc == ERR_NOT_FOUND ? ERR_OK : rc;
}

/* Set *out (when it is still NULL) to the string v; a token may also be an
 * object with its text in "content". */
static enum err_code take(struct config *c, char **out, const char *file, const char *key,
                          const struct json *v)
{
    if (v && v->kind == JSON_OBJECT)
        v = json_get(v, "content");
    if (*out || v == NULL || v->kind == JSON_NULL)
        return ERR_OK;
    if (v->kind != JSON_STRING || memchr(v->u.string, 0, v->n))
        return err_set(c->e, ERR_INVALID, "%s/%s: %s: %s: a string without NUL expected", c->dir,
                       file, key, json_kind_name(v));
    *out = strndup(v->u.string, v->n);
    return *out ? ERR_OK : err_nomem(c->e, key, v->n);
}

/* chat_template: a string, or a list of {"name", "template"} of which
 * "default" is meant, or the first when none is called that. */
static enum err_code take_template(struct config *c, const char *file, const struct json *v)
{
    if (v && v->kind == JSON_ARRAY) {
        const struct json *k = json_first(v), *chosen = NULL;
        for (uint32_t i = 0; i < v->n; i++, k = json_next(k))
            if (chosen == NULL || json_string_is(json_get(k, "name"), "default"))
                chosen = k;
        if (chosen == NULL)
            return ERR_OK;
        v = json_get(chosen, "template");
        if (v == NULL || v->kind != JSON_STRING)
            return err_set(c->e, ERR_INVALID,
                           "%s/%s: chat_template: a list of {\"name\", \"template\"} expected",
                           c->dir, file);
    }
    return take(c, &c->t->chat_template, file, "chat_template", v);
}

/* Classes whose own code, not tokenizer.json, decides about BOS and EOS. */
static bool class_decides(const struct json *v)
{
    static const char *const names[] = { "LlamaTokenizer",     "LlamaTokenizerFast",
                                         "CodeLlamaTokenizer", "CodeLlamaTokenizerFast",
                                         "GemmaTokenizer",     "GemmaTokenizerFast" };
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (json_string_is(v, names[i]))
            return true;
    return false;
}

/* One side of the template by an explicit add_bos_token or add_eos_token. */
static enum err_code set_side(struct config *c, struct token_list *side, const struct json *on,
                              const char *token)
{
    int32_t id = token ? tokenizer_find(c->t, token) : -1;
    if (on == NULL || on->kind != JSON_BOOL || (on->u.boolean && id < 0))
        return ERR_OK;
    side->n = 0;
    return on->u.boolean ? token_list_add(side, id, c->e) : ERR_OK;
}

static enum err_code parse_config(struct config *c, const char *file, char *text, size_t n)
{
    struct json_doc doc;
    struct tokenizer *t = c->t;
    enum err_code rc = json_parse_in_place(&doc, file, text, n, TK_MAX_VALUES, c->e);
    if (rc)
        return rc;
    const struct json *root = doc.value;
    if (root->kind != JSON_OBJECT)
        rc = err_set(c->e, ERR_INVALID, "%s/%s: %s: an object expected", c->dir, file,
                     json_kind_name(root));
    if (!rc)
        rc = take_template(c, file, json_get(root, "chat_template"));
    if (!rc)
        rc = take(c, &t->bos, file, "bos_token", json_get(root, "bos_token"));
    if (!rc)
        rc = take(c, &t->eos, file, "eos_token", json_get(root, "eos_token"));
    if (!rc && class_decides(json_get(root, "tokenizer_class"))) {
        rc = set_side(c, &t->before, json_get(root, "add_bos_token"), t->bos);
        if (!rc)
            rc = set_side(c, &t->after, json_get(root, "add_eos_token"), t->eos);
    }
    json_doc_fini(&doc);
    return rc;
}

enum err_code tk_load_config(struct tokenizer *t, const char *dir, struct err *e)
{
    static const char *const files[] = { "tokenizer_config.json", "chat_template.json",
                                         "special_tokens_map.json" };
    struct config c = { .t = t, .dir = dir, .e = e };
    struct buf text = { 0 };
    enum err_code rc = read_beside(&c, "chat_template.jinja", &text);
    if (!rc && text.p && (memchr(text.p, 0, text.n) || !utf8_is_valid(text.p, text.n)))
        rc = err_set(e, ERR_INVALID, "%s/chat_template.jinja: UTF-8 without NUL expected", dir);
    t->chat_template = text.p; /* goes with the tokenizer, also on failure */
    for (size_t i = 0; i < sizeof(files) / sizeof(*files) && !rc; i++) {
        text = (struct buf){ 0 };
        rc = read_beside(&c, files[i], &text);
        if (!rc && text.p)
            rc = parse_config(&c, files[i], text.p, text.n);
        buf_fini(&text);
    }
    return rc;
}
