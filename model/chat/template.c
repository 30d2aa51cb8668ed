/* template.c: see chat_template.h.  Turns cJSON into the interpreter's
 * values, marking what clients wrote, and the rendered text back into bytes and
 * spans.
 *
 * Marks: every string of messages, tools, documents and kwargs counts as user
 * text, except message roles and the type of a content part when they are plain
 * identifiers, since templates build control tokens from them. */
#include "model/chat/template.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/chat/jinja.h"

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

/* ---- cJSON to values ------------------------------------------------------------------ */

static bool is_identifier(const char *s)
{
    size_t n = 0;
    for (; s[n] != '\0'; n++) {
        char c = s[n];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '_' || c == '-') ||
            n >= 64)
            return false;
    }
    return n > 0;
}

static struct jinja_value string_value(struct jinja *j, const char *s, bool user)
{
    struct jinja_value v = jinja_cstring(j, s);
    if (user && v.u.str->n > 0) {
        uint8_t *marks = jinja_alloc(j, v.u.str->n);
        memset(marks, 1, v.u.str->n);
        v.u.str->user = marks;
    }
    return v;
}

/* The codec marks numbers that a double alone would misread (proto/text/json.h). */
static struct jinja_value number_value(const cJSON *c)
{
    if (c->valuestring != NULL)
        return strcmp(c->valuestring, "real") == 0 ? jinja_float(c->valuedouble)
                                                   : jinja_int(strtoll(c->valuestring, NULL, 10));
    if (c->valuedouble != floor(c->valuedouble) || fabs(c->valuedouble) >= 0x1p63)
        return jinja_float(c->valuedouble);
    return jinja_int((int64_t)c->valuedouble);
}

static struct jinja_value value_of(struct jinja *j, const cJSON *c, bool user)
{
    if (++j->depth > JINJA_MAX_DEPTH)
        jinja_fail(j, "messages are nested deeper than %d levels", JINJA_MAX_DEPTH);
    struct jinja_value v = jinja_none();
    if (cJSON_IsString(c)) {
        v = string_value(j, c->valuestring, user);
    } else if (cJSON_IsBool(c)) {
        v = jinja_bool(cJSON_IsTrue(c));
    } else if (cJSON_IsNumber(c)) {
        v = number_value(c);
    } else if (cJSON_IsArray(c)) {
        v = jinja_list_new(j, JV_LIST);
        for (const cJSON *i = c->child; i != NULL; i = i->next)
            jinja_list_add(j, v.u.list, value_of(j, i, user));
    } else if (cJSON_IsObject(c)) {
        v = jinja_map_new(j);
        for (const cJSON *i = c->child; i != NULL; i = i->next) {
            bool plain = cJSON_IsString(i) && is_identifier(i->valuestring) &&
                         (strcmp(i->string, "role") == 0 || strcmp(i->string, "type") == 0);
            jinja_map_put(j, v.u.map, string_value(j, i->string, user),
                          value_of(j, i, user && !plain));
        }
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
    for (const cJSON *i = in->kwargs->child; i != NULL; i = i->next)
        set(j, i->string, value_of(j, i, true));
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
