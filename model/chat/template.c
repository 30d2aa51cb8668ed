/* template.c: see template.h.  Turns JSON values into the interpreter's
 * values, marking what clients wrote, and the rendered text back into bytes and
 * spans.
 *
 * Marks: every string of messages, tools, documents and kwargs counts as user
 * text, except message roles and the type of a content part when they are plain
 * identifiers, since templates build control tokens from them. */
#include "model/chat/template.h"

#include <stdlib.h>
#include <string.h>

#include "model/chat/jinja.h"
#include "proto/text/json.h"

struct chat_template {
    struct jinja_arena arena;
    const struct jinja_node *root;
    char *name;
};

/* Parse into t, in a frame of its own: a failure lands here. */
static bool parsed(struct jinja *j, struct chat_template *t, const char *name, const char *text)
{
    if (setjmp(j->escape) != 0)
        return false;
    size_t n = strlen(text), n_name = strlen(name) + 1, n_copy = 0;
    char *copy = jinja_alloc(j, n + 1);
    /* The reference reads templates with line ends normalised. */
    for (size_t i = 0; i < n; i++) {
        bool crlf = text[i] == '\r' && text[i + 1] == '\n';
        if (!crlf)
            copy[n_copy++] = text[i] == '\r' ? '\n' : text[i];
    }
    t->name = jinja_alloc(j, n_name);
    memcpy(t->name, name, n_name);
    t->root = jinja_parse(j, copy, n_copy);
    return true;
}

enum err_code chat_template_parse(struct chat_template **out, const char *name, const char *text,
                                  struct err *e)
{
    size_t n = strlen(text);
    if (n > JINJA_MAX_TEMPLATE)
        return err_set(e, ERR_LIMIT, "%s: %zu bytes, at most %d expected", name, n,
                       JINJA_MAX_TEMPLATE);
    struct chat_template *t = calloc(1, sizeof *t);
    if (t == NULL)
        return err_nomem(e, "chat template", sizeof *t);
    t->arena.limit = JINJA_MAX_ARENA;
    struct jinja j = { .arena = &t->arena, .err = e, .name = name, .line = 1 };
    if (!parsed(&j, t, name, text)) {
        chat_template_free(t);
        return j.rc;
    }
    *out = t;
    return ERR_OK;
}

void chat_template_free(struct chat_template *t)
{
    if (t == NULL)
        return;
    jinja_arena_free(&t->arena);
    free(t);
}

/* ---- JSON to values ------------------------------------------------------------------- */

static bool is_identifier(const struct json *v)
{
    if (v->kind != JSON_STRING || v->n == 0 || v->n > 64)
        return false;
    for (uint32_t i = 0; i < v->n; i++) {
        char c = v->u.string[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '_' || c == '-'))
            return false;
    }
    return true;
}

/* Borrows the document's bytes. */
static struct jinja_value string_value(struct jinja *j, const struct json *s, bool user)
{
    struct jinja_value v = jinja_string(j, s->u.string, s->n);
    if (user && s->n > 0) {
        uint8_t *marks = jinja_alloc(j, s->n);
        memset(marks, 1, s->n);
        v.u.str->user = marks;
    }
    return v;
}

static struct jinja_value value_of(struct jinja *j, const struct json *c, bool user);

static struct jinja_value map_of(struct jinja *j, const struct json *c, bool user)
{
    struct jinja_value v = jinja_map_new(j);
    const struct json *key = json_first(c);
    for (uint32_t i = 0; i < c->n; i++, key = json_next(key + 1)) {
        bool plain =
            (json_string_is(key, "role") || json_string_is(key, "type")) && is_identifier(key + 1);
        jinja_map_put(j, v.u.map, string_value(j, key, user), value_of(j, key + 1, user && !plain));
    }
    return v;
}

static struct jinja_value list_of(struct jinja *j, const struct json *c, bool user)
{
    struct jinja_value v = jinja_list_new(j, JV_LIST);
    const struct json *item = json_first(c);
    for (uint32_t i = 0; i < c->n; i++, item = json_next(item))
        jinja_list_add(j, v.u.list, value_of(j, item, user));
    return v;
}

static struct jinja_value value_of(struct jinja *j, const struct json *c, bool user)
{
    if (++j->depth > JINJA_MAX_DEPTH)
        jinja_fail(j, "messages are nested deeper than %d levels", JINJA_MAX_DEPTH);
    struct jinja_value v = jinja_none();
    switch (c->kind) {
    case JSON_NULL:
        break;
    case JSON_BOOL:
        v = jinja_bool(c->u.boolean);
        break;
    case JSON_INT:
        v = jinja_int(c->u.integer);
        break;
    case JSON_BIGINT:
        v = jinja_bigint(j, c->u.digits, c->n);
        break;
    case JSON_REAL:
        v = jinja_float(c->u.real);
        break;
    case JSON_STRING:
        v = string_value(j, c, user);
        break;
    case JSON_ARRAY:
        v = list_of(j, c, user);
        break;
    case JSON_OBJECT:
        v = map_of(j, c, user);
        break;
    }
    j->depth--;
    return v;
}

/* ---- rendering --------------------------------------------------------------------------- */

static void set(struct jinja *j, const char *name, struct jinja_value v)
{
    jinja_scope_set(j, jinja_cstring(j, name).u.str, v);
}

static void set_variables(struct jinja *j, const struct chat_input *in)
{
    jinja_scope_push(j);
    set(j, "messages", value_of(j, in->messages, true));
    set(j, "tools", in->tools == NULL ? jinja_none() : value_of(j, in->tools, true));
    set(j, "documents", in->documents == NULL ? jinja_none() : value_of(j, in->documents, true));
    set(j, "bos_token", jinja_cstring(j, in->bos_token));
    set(j, "eos_token", jinja_cstring(j, in->eos_token));
    set(j, "add_generation_prompt", jinja_bool(in->add_generation_prompt));
    if (in->kwargs == NULL)
        return;
    const struct json *key = json_first(in->kwargs);
    for (uint32_t i = 0; i < in->kwargs->n; i++, key = json_next(key + 1))
        set(j, key->u.string, value_of(j, key + 1, true));
}

/* Bytes and spans of user text out of the arena into the caller's memory. */
static enum err_code take_result(const struct jinja_buf *b, struct chat_rendered *out,
                                 struct err *e)
{
    size_t spans = 0;
    for (size_t i = 0; b->user != NULL && i < b->n; i++)
        spans += b->user[i] && (i == 0 || !b->user[i - 1]);
    char *text = malloc(b->n + 1);
    struct text_span *span = malloc((spans + 1) * sizeof *span);
    if (text == NULL || span == NULL) {
        free(text);
        free(span);
        return err_nomem(e, "rendered chat template", b->n + 1 + spans * sizeof *span);
    }
    if (b->n > 0)
        memcpy(text, b->p, b->n);
    text[b->n] = '\0';
    size_t k = 0;
    for (size_t i = 0; b->user != NULL && i < b->n; i++) {
        if (b->user[i] && (i == 0 || !b->user[i - 1]))
            span[k].start = i;
        if (b->user[i] && (i + 1 == b->n || !b->user[i + 1]))
            span[k++].end = i + 1;
    }
    *out = (struct chat_rendered){ .text = text, .n = b->n, .user = span, .n_user = spans };
    return ERR_OK;
}

/* The walk, in a frame of its own: a failure lands here, and what changed
 * meanwhile lies in the caller's. */
static bool rendered(struct jinja *j, const struct chat_template *t, const struct chat_input *in)
{
    if (setjmp(j->escape) != 0)
        return false;
    set_variables(j, in);
    jinja_render(j, t->root);
    return true;
}

enum err_code chat_template_render(const struct chat_template *t, const struct chat_input *in,
                                   struct chat_rendered *out, struct err *e)
{
    struct jinja_arena arena = { .limit = JINJA_MAX_ARENA };
    struct jinja_buf text;
    struct jinja j = {
        .arena = &arena, .err = e, .name = t->name, .line = 1, .out = &text, .now = in->now
    };
    jinja_buf_init(&text, &j);
    enum err_code rc = rendered(&j, t, in) ? take_result(&text, out, e) : j.rc;
    jinja_arena_free(&arena);
    return rc;
}

void chat_rendered_fini(struct chat_rendered *r)
{
    free(r->text);
    free(r->user);
    *r = (struct chat_rendered){ 0 };
}
