/* messages.c: the fields that a chat template reads: messages, tools,
 * tool_choice, documents.  Checked on the parsed body, then turned into cJSON
 * in the form templates expect: text parts joined, tool-call arguments as
 * objects.  Any thread. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>

#include "proto/openai/fields.h"

/* Put `item` (given) in the place of an object's member.  Some versions of the
 * library report success although they could not copy the key. */
static enum err_code replace_member(cJSON *object, const char *key, cJSON *item, struct err *e)
{
    if (!cJSON_ReplaceItemInObjectCaseSensitive(object, key, item)) {
        cJSON_Delete(item);
        return err_nomem(e, key, sizeof *item);
    }
    return item->string == NULL ? err_nomem(e, key, strlen(key) + 1) : ERR_OK;
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

static const char *part_text(const cJSON *part)
{
    if (cJSON_IsString(part))
        return part->valuestring;
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(part, "text"));
}

/* A message's list of parts becomes one string. */
static enum err_code join_parts(cJSON *message, struct err *e)
{
    cJSON *content = cJSON_GetObjectItemCaseSensitive(message, "content");
    if (!cJSON_IsArray(content))
        return ERR_OK;
    struct buf text = { 0 };
    const cJSON *part;
    cJSON_ArrayForEach(part, content)
    {
        const char *s = part_text(part);
        if (part != content->child)
            BUF_LIT(&text, "\n");
        buf_put(&text, s, strlen(s));
    }
    buf_put(&text, "", 1);
    cJSON *joined = text.failed ? NULL : cJSON_CreateString(text.p);
    buf_fini(&text);
    if (joined == NULL)
        return err_nomem(e, "message content", sizeof *joined);
    return replace_member(message, "content", joined, e);
}

/* --------------------------------------------------------------- tool calls */

/* Arguments arrive as JSON text in a string; templates want the object. */
static enum err_code read_arguments(cJSON **out, const struct oai_parse *p, const struct json *v,
                                    const char *path, struct err *e)
{
    struct json_doc doc;
    struct err why;
    enum err_code rc = json_parse(&doc, v->u.string, v->n, p->d->max_values, &why);
    if (rc == ERR_NOMEM)
        return err_nomem(e, "tool call arguments", v->n);
    if (rc)
        return err_set_param(e, ERR_INVALID, path, "%s: found %.120s, expected a JSON object", path,
                             why.message);
    if (doc.value->kind != JSON_OBJECT)
        rc = oai_wrong(e, path, doc.value, "a JSON object");
    else
        rc = json_to_cjson(out, doc.value, path, e);
    json_doc_fini(&doc);
    return rc;
}

static enum err_code settle_arguments(cJSON *function, const struct oai_parse *p,
                                      const struct json *v, const char *path, struct err *e)
{
    cJSON *object = NULL;
    if (v == NULL || v->kind == JSON_OBJECT)
        return ERR_OK;
    if (v->kind != JSON_NULL && v->kind != JSON_STRING)
        return oai_wrong(e, path, v, "a string of JSON or an object");
    if (v->n == 0) /* null or "" */
        object = cJSON_CreateObject();
    else {
        enum err_code rc = read_arguments(&object, p, v, path, e);
        if (rc)
            return rc;
    }
    if (object == NULL)
        return err_nomem(e, "tool call arguments", sizeof *object);
    return replace_member(function, "arguments", object, e);
}

/* One call: v as it came, call its copy to be settled. */
static enum err_code settle_call(cJSON *call, const struct oai_parse *p, const struct json *v,
                                 const char *path, struct err *e)
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
    return settle_arguments(cJSON_GetObjectItemCaseSensitive(call, "function"), p,
                            json_get(function, "arguments"), sub, e);
}

static enum err_code settle_calls(cJSON *message, const struct oai_parse *p, const struct json *m,
                                  uint32_t i, struct err *e)
{
    char path[OAI_PATH_BYTES];
    const struct json *calls = json_get(m, "tool_calls");
    if (calls == NULL || calls->kind == JSON_NULL)
        return ERR_OK;
    snprintf(path, sizeof path, "messages[%u].tool_calls", i);
    if (calls->kind != JSON_ARRAY)
        return oai_wrong(e, path, calls, "a list");
    cJSON *call = cJSON_GetObjectItemCaseSensitive(message, "tool_calls")->child;
    const struct json *c = json_first(calls);
    for (uint32_t k = 0; k < calls->n; k++, c = json_next(c), call = call->next) {
        snprintf(path, sizeof path, "messages[%u].tool_calls[%u]", i, k);
        enum err_code rc = settle_call(call, p, c, path, e);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

/* ----------------------------------------------------------------- messages */

static enum err_code read_message(cJSON **out, const struct oai_parse *p, const struct json *m,
                                  uint32_t i, struct err *e)
{
    char path[OAI_PATH_BYTES];
    snprintf(path, sizeof path, "messages[%u]", i);
    if (m->kind != JSON_OBJECT)
        return oai_wrong(e, path, m, "an object with role and content");
    const struct json *role = json_get(m, "role");
    if (role == NULL || role->kind != JSON_STRING || role->n == 0 || role->n > 64) {
        snprintf(path, sizeof path, "messages[%u].role", i);
        return oai_wrong(e, path, role, "a name such as \"user\"");
    }
    enum err_code rc = check_content(m, role, i, e);
    if (!rc)
        rc = json_to_cjson(out, m, path, e);
    if (rc)
        return rc;
    rc = settle_calls(*out, p, m, i, e);
    if (!rc && !p->d->template_takes_parts)
        rc = join_parts(*out, e);
    if (rc)
        cJSON_Delete(*out);
    return rc;
}

enum err_code oai_read_messages(struct oai_parse *p, const struct json *v, struct err *e)
{
    if (v->kind != JSON_ARRAY || v->n == 0)
        return oai_wrong(e, "messages", v, "a list of at least one message");
    if (v->n > p->d->max_messages)
        return oai_wrong(e, "messages", v, "at most %u messages", p->d->max_messages);
    p->r->messages = cJSON_CreateArray();
    if (p->r->messages == NULL)
        return err_nomem(e, "messages", sizeof(cJSON));
    const struct json *m = json_first(v);
    for (uint32_t i = 0; i < v->n; i++, m = json_next(m)) {
        cJSON *message;
        enum err_code rc = read_message(&message, p, m, i, e);
        if (rc)
            return rc;
        cJSON_AddItemToArray(p->r->messages, message);
    }
    return ERR_OK;
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
    return json_to_cjson(&p->r->tools, v, "tools", e);
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
    return v->n == 0 ? ERR_OK : json_to_cjson(&p->r->documents, v, "documents", e);
}
