/* messages.c: the fields that a chat template reads: messages, tools,
 * tool_choice, documents.  Checked on the parsed body and handed on as they
 * lie there, but in the form templates expect: text parts joined, tool-call
 * arguments as objects.  Any thread. */
#include <stdio.h>

#include "proto/openai/fields.h"

/* The messages of one body being read: what they have in common with the body is
 * not copied, what the template wants otherwise is an edit. */
struct settling {
    struct oai_parse *p;
    struct buf edits; /* of struct json_edit, in document order */
};

static enum err_code replace(struct settling *s, const struct json *at, const struct json *with,
                             struct err *e)
{
    const struct json_edit edit = { at, with };
    buf_put(&s->edits, (const char *)&edit, sizeof edit);
    return buf_check(&s->edits, e);
}

/* ------------------------------------------------------------------ content */

static enum err_code check_part(const struct json *v, const char *path, struct err *e)
{
    char sub[OAI_PATH_BYTES + 8];
    if (v->kind == JSON_STRING)
        return ERR_OK;
    if (v->kind != JSON_OBJECT)
        return oai_wrong(e, path, v, "an object with type and text");
    const struct json *type = json_get(v, "type"), *text = json_get(v, "text");
    if (type == NULL || !json_string_is(type, "text")) {
        snprintf(sub, sizeof sub, "%s.type", path);
        return oai_wrong(e, sub, type, "\"text\"");
    }
    if (text == NULL || text->kind != JSON_STRING) {
        snprintf(sub, sizeof sub, "%s.text", path);
        return oai_wrong(e, sub, text, "a string");
    }
    return ERR_OK;
}

static enum err_code check_content(const struct json *m, const struct json *role, uint32_t i,
                                   struct err *e)
{
    char path[OAI_PATH_BYTES];
    const struct json *content = json_get(m, "content");
    snprintf(path, sizeof path, "messages[%u].content", i);
    if (content == NULL || content->kind == JSON_NULL) {
        if (json_string_is(role, "assistant"))
            return ERR_OK;
        return oai_wrong(e, path, content, "a string or a list of text parts");
    }
    if (content->kind == JSON_STRING)
        return ERR_OK;
    if (content->kind != JSON_ARRAY)
        return oai_wrong(e, path, content, "a string or a list of text parts");
    const struct json *c = json_first(content);
    for (uint32_t k = 0; k < content->n; k++, c = json_next(c)) {
        snprintf(path, sizeof path, "messages[%u].content[%u]", i, k);
        enum err_code rc = check_part(c, path, e);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

static const struct json *part_text(const struct json *part)
{
    return part->kind == JSON_STRING ? part : json_get(part, "text");
}

/* A message's list of parts becomes one string. */
static enum err_code join_parts(struct settling *s, const struct json *m, struct err *e)
{
    const struct json *content = json_get(m, "content");
    if (content == NULL || content->kind != JSON_ARRAY)
        return ERR_OK;
    size_t n = 0;
    const struct json *part = json_first(content);
    for (uint32_t i = 0; i < content->n; i++, part = json_next(part))
        n += part_text(part)->n + (i > 0);
    struct json *joined = oai_array(s->p->r, 1, sizeof *joined, e);
    char *text = joined == NULL ? NULL : oai_array(s->p->r, n + 1, 1, e);
    if (text == NULL)
        return ERR_NOMEM;
    *joined = (struct json){ .kind = JSON_STRING, .n = (uint32_t)n, .u.string = text };
    part = json_first(content);
    for (uint32_t i = 0; i < content->n; i++, part = json_next(part)) {
        const struct json *t = part_text(part);
        if (i > 0)
            *text++ = '\n';
        memcpy(text, t->u.string, t->n);
        text += t->n;
    }
    return replace(s, content, joined, e);
}

/* --------------------------------------------------------------- tool calls */

/* Arguments arrive as JSON text in a string; templates want the object.  *out and
 * its strings are the request's. */
static enum err_code read_arguments(const struct json **out, const struct oai_parse *p,
                                    const struct json *v, const char *path, struct err *e)
{
    struct json_doc doc;
    struct err why;
    char *text = oai_array(p->r, v->n, 1, e);
    if (text == NULL)
        return ERR_NOMEM;
    memcpy(text, v->u.string, v->n);
    enum err_code rc = json_parse_in_place(&doc, "a text that", text, v->n, p->d->max_values, &why);
    if (rc == ERR_NOMEM)
        return err_nomem(e, "tool call arguments", v->n);
    if (rc)
        return err_set_param(e, ERR_INVALID, path, "%s: found %.120s, expected a JSON object", path,
                             why.message);
    if (doc.value->kind != JSON_OBJECT)
        rc = oai_wrong(e, path, doc.value, "a JSON object");
    else
        rc = oai_check_text(doc.value, path, e);
    if (!rc) {
        struct json *own = oai_array(p->r, json_span(doc.value), sizeof *own, e);
        rc = own == NULL ? ERR_NOMEM : ERR_OK;
        if (own != NULL)
            *out = memcpy(own, doc.value, json_span(doc.value) * sizeof *own);
    }
    json_doc_fini(&doc);
    return rc;
}

static enum err_code settle_arguments(struct settling *s, const struct json *v, const char *path,
                                      struct err *e)
{
    static const struct json empty = { .kind = JSON_OBJECT, .u.span = 1 };
    const struct json *object = &empty;
    if (v == NULL || v->kind == JSON_OBJECT)
        return ERR_OK;
    if (v->kind != JSON_NULL && v->kind != JSON_STRING)
        return oai_wrong(e, path, v, "a string of JSON or an object");
    if (v->n > 0) { /* neither null nor "" */
        enum err_code rc = read_arguments(&object, s->p, v, path, e);
        if (rc)
            return rc;
    }
    return replace(s, v, object, e);
}

static enum err_code settle_call(struct settling *s, const struct json *v, const char *path,
                                 struct err *e)
{
    char sub[OAI_PATH_BYTES + 24];
    if (v->kind != JSON_OBJECT)
        return oai_wrong(e, path, v, "an object with a function");
    const struct json *function = json_get(v, "function");
    snprintf(sub, sizeof sub, "%s.function", path);
    if (function == NULL || function->kind != JSON_OBJECT)
        return oai_wrong(e, sub, function, "an object");
    const struct json *name = json_get(function, "name");
    snprintf(sub, sizeof sub, "%s.function.name", path);
    if (name == NULL || name->kind != JSON_STRING)
        return oai_wrong(e, sub, name, "a string");
    snprintf(sub, sizeof sub, "%s.function.arguments", path);
    return settle_arguments(s, json_get(function, "arguments"), sub, e);
}

static enum err_code settle_calls(struct settling *s, const struct json *m, uint32_t i,
                                  struct err *e)
{
    char path[OAI_PATH_BYTES];
    const struct json *calls = json_get(m, "tool_calls");
    if (calls == NULL || calls->kind == JSON_NULL)
        return ERR_OK;
    snprintf(path, sizeof path, "messages[%u].tool_calls", i);
    if (calls->kind != JSON_ARRAY)
        return oai_wrong(e, path, calls, "a list");
    const struct json *c = json_first(calls);
    for (uint32_t k = 0; k < calls->n; k++, c = json_next(c)) {
        snprintf(path, sizeof path, "messages[%u].tool_calls[%u]", i, k);
        enum err_code rc = settle_call(s, c, path, e);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

/* ----------------------------------------------------------------- messages */

static enum err_code read_message(struct settling *s, const struct json *m, uint32_t i,
                                  struct err *e)
{
    char path[OAI_PATH_BYTES];
    snprintf(path, sizeof path, "messages[%u]", i);
    if (m->kind != JSON_OBJECT)
        return oai_wrong(e, path, m, "an object with role and content");
    const struct json *role = json_get(m, "role"), *calls = json_get(m, "tool_calls");
    if (role == NULL || role->kind != JSON_STRING || role->n == 0 || role->n > 64) {
        snprintf(path, sizeof path, "messages[%u].role", i);
        return oai_wrong(e, path, role, "a name such as \"user\"");
    }
    enum err_code rc = check_content(m, role, i, e);
    if (!rc)
        rc = oai_check_text(m, path, e);
    if (rc)
        return rc;
    /* Edits go in document order. */
    bool join = !s->p->d->template_takes_parts, calls_first = calls < json_get(m, "content");
    if (calls_first)
        rc = settle_calls(s, m, i, e);
    if (!rc && join)
        rc = join_parts(s, m, e);
    if (!rc && !calls_first)
        rc = settle_calls(s, m, i, e);
    return rc;
}

static enum err_code settle_messages(struct settling *s, const struct json *v, struct err *e)
{
    const struct json *m = json_first(v);
    for (uint32_t i = 0; i < v->n; i++, m = json_next(m)) {
        enum err_code rc = read_message(s, m, i, e);
        if (rc)
            return rc;
    }
    const struct json_edit *edit = (const struct json_edit *)s->edits.p;
    size_t n = s->edits.n / sizeof *edit;
    s->p->r->messages = v;
    if (n == 0)
        return ERR_OK;
    struct json *edited = oai_array(s->p->r, json_edited_span(v, edit, n), sizeof *edited, e);
    if (edited == NULL)
        return ERR_NOMEM;
    json_edited(edited, v, edit, n);
    s->p->r->messages = edited;
    return ERR_OK;
}

enum err_code oai_read_messages(struct oai_parse *p, const struct json *v, struct err *e)
{
    if (v->kind != JSON_ARRAY || v->n == 0)
        return oai_wrong(e, "messages", v, "a list of at least one message");
    if (v->n > p->d->max_messages)
        return oai_wrong(e, "messages", v, "at most %u messages", p->d->max_messages);
    struct settling s = { .p = p };
    enum err_code rc = settle_messages(&s, v, e);
    buf_fini(&s.edits);
    return rc;
}

/* -------------------------------------------------------------------- tools */

static enum err_code check_tool(const struct json *t, uint32_t i, struct err *e)
{
    char path[OAI_PATH_BYTES];
    snprintf(path, sizeof path, "tools[%u]", i);
    if (t->kind != JSON_OBJECT)
        return oai_wrong(e, path, t, "an object with type and function");
    const struct json *type = json_get(t, "type"), *function = json_get(t, "function");
    if (type == NULL || !json_string_is(type, "function")) {
        snprintf(path, sizeof path, "tools[%u].type", i);
        return oai_wrong(e, path, type, "\"function\"");
    }
    if (function == NULL || function->kind != JSON_OBJECT) {
        snprintf(path, sizeof path, "tools[%u].function", i);
        return oai_wrong(e, path, function, "an object");
    }
    const struct json *name = json_get(function, "name");
    if (name == NULL || name->kind != JSON_STRING || name->n == 0 || name->n > 256) {
        snprintf(path, sizeof path, "tools[%u].function.name", i);
        return oai_wrong(e, path, name, "a string of 1 to 256 bytes");
    }
    const struct json *schema = json_get(function, "parameters");
    if (schema != NULL && schema->kind != JSON_OBJECT && schema->kind != JSON_NULL) {
        snprintf(path, sizeof path, "tools[%u].function.parameters", i);
        return oai_wrong(e, path, schema, "an object");
    }
    return ERR_OK;
}

enum err_code oai_read_tools(struct oai_parse *p, const struct json *v, struct err *e)
{
    if (v->kind != JSON_ARRAY)
        return oai_wrong(e, "tools", v, "a list of functions");
    if (v->n > p->d->max_tools)
        return oai_wrong(e, "tools", v, "at most %u functions", p->d->max_tools);
    if (v->n == 0)
        return ERR_OK; /* as if absent */
    const struct json *t = json_first(v);
    for (uint32_t i = 0; i < v->n; i++, t = json_next(t)) {
        enum err_code rc = check_tool(t, i, e);
        if (rc)
            return rc;
    }
    p->r->tools = v;
    return oai_check_text(v, "tools", e);
}

enum err_code oai_read_tool_choice(struct oai_parse *p, const struct json *v, struct err *e)
{
    static const char *const names[] = {
        [OAI_TOOL_AUTO] = "auto",
        [OAI_TOOL_NONE] = "none",
        [OAI_TOOL_REQUIRED] = "required",
    };
    struct oai_request *r = p->r;
    r->has_tool_choice = true;
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (json_string_is(v, names[i])) {
            r->tool_choice = (enum oai_tool_choice)i;
            return ERR_OK;
        }
    if (v->kind != JSON_OBJECT)
        return oai_wrong(e, "tool_choice", v,
                         "\"none\", \"auto\", \"required\" or an object naming a function");
    const struct json *type = json_get(v, "type"), *function = json_get(v, "function");
    if (type == NULL || !json_string_is(type, "function"))
        return oai_wrong(e, "tool_choice.type", type, "\"function\"");
    const struct json *name = function == NULL ? NULL : json_get(function, "name");
    if (name == NULL || name->kind != JSON_STRING || name->n == 0)
        return oai_wrong(e, "tool_choice.function.name", name, "a string");
    r->tool_choice = OAI_TOOL_NAMED;
    r->tool_name = (struct oai_text){ name->u.string, name->n };
    return ERR_OK;
}

enum err_code oai_read_documents(struct oai_parse *p, const struct json *v, struct err *e)
{
    if (v->kind != JSON_ARRAY)
        return oai_wrong(e, "documents", v, "a list of objects");
    const struct json *c = v->n == 0 ? NULL : json_first(v);
    for (uint32_t i = 0; i < v->n; i++, c = json_next(c))
        if (c->kind != JSON_OBJECT) {
            char path[OAI_PATH_BYTES];
            snprintf(path, sizeof path, "documents[%u]", i);
            return oai_wrong(e, path, c, "an object");
        }
    if (v->n == 0)
        return ERR_OK; /* as if absent */
    p->r->documents = v;
    return oai_check_text(v, "documents", e);
}
