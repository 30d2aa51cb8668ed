/* prompt.c: the fields that carry text, ids and maps of ids: prompt,
 * tokens, stop, stop_token_ids, logit_bias.  Counts are checked before memory
 * is spent.  Any thread. */
#include <stdio.h>

#include "proto/openai/fields.h"

static uint32_t n_ids_of(const struct oai_parse *p)
{
    return p->d->vocab_size != 0 ? p->d->vocab_size : INT32_MAX;
}

enum err_code oai_read_ids(struct oai_parse *p, const struct json *v, const char *path,
                           const int32_t **out, uint32_t *n, struct err *e)
{
    *out = NULL;
    *n = 0;
    if (v->kind != JSON_ARRAY)
        return oai_wrong(e, path, v, "a list of token ids");
    if (v->n == 0)
        return ERR_OK;
    int32_t *ids = oai_array(p->r, v->n, sizeof *ids, e);
    if (ids == NULL)
        return ERR_NOMEM;
    int64_t limit = n_ids_of(p);
    const struct json *c = json_first(v);
    for (uint32_t i = 0; i < v->n; i++, c = json_next(c)) {
        int64_t id;
        if (!oai_integer(c, &id) || id < 0 || id >= limit) {
            char element[OAI_PATH_BYTES];
            snprintf(element, sizeof element, "%s[%u]", path, i);
            return oai_wrong(e, element, c, "a token id from 0 to %u", (uint32_t)limit - 1);
        }
        ids[i] = (int32_t)id;
    }
    *out = ids;
    *n = v->n;
    return ERR_OK;
}

/* ------------------------------------------------------------------ prompts */

static enum err_code read_id_prompt(struct oai_parse *p, const struct json *v, const char *path,
                                    struct oai_prompt *out, struct err *e)
{
    if (v->kind != JSON_ARRAY || v->n == 0)
        return oai_wrong(e, path, v, "a list of at least one token id");
    if (p->d->max_model_len != 0 && v->n > p->d->max_model_len && p->r->truncate_prompt_tokens == 0)
        return err_set_param(e, ERR_LIMIT, "prompt",
                             "%s: found %u tokens, expected at most %u, the model's context", path,
                             v->n, p->d->max_model_len);
    return oai_read_ids(p, v, path, &out->ids, &out->n_ids, e);
}

static enum err_code read_prompt_list(struct oai_parse *p, const struct json *v,
                                      struct oai_prompt *out, struct err *e)
{
    const struct json *c = json_first(v);
    enum json_kind kind = c->kind;
    for (uint32_t i = 0; i < v->n; i++, c = json_next(c)) {
        char path[OAI_PATH_BYTES];
        snprintf(path, sizeof path, "prompt[%u]", i);
        if (c->kind != kind)
            return oai_wrong(e, path, c, "a %s like prompt[0]",
                             kind == JSON_STRING ? "string" : "list of token ids");
        if (kind == JSON_STRING) {
            out[i].text = (struct oai_text){ c->u.string, c->n };
            continue;
        }
        enum err_code rc = read_id_prompt(p, c, path, &out[i], e);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

enum err_code oai_read_prompt(struct oai_parse *p, const struct json *v, struct err *e)
{
    bool one_string = v->kind == JSON_STRING;
    if (p->r->kind == OAI_TOKENIZE && !one_string)
        return oai_wrong(e, "prompt", v, "a string");
    if (!one_string && (v->kind != JSON_ARRAY || v->n == 0))
        return oai_wrong(e, "prompt", v, "a string, or a list (not empty) of strings or token ids");
    enum json_kind first = one_string ? JSON_STRING : json_first(v)->kind;
    bool one_list = !one_string && json_is_number(json_first(v));
    if (!one_string && !one_list && first != JSON_STRING && first != JSON_ARRAY)
        return oai_wrong(e, "prompt[0]", json_first(v),
                         "a string, a token id or a list of token ids");
    uint32_t n = one_string || one_list ? 1 : v->n;
    if (n > p->d->max_prompts)
        return oai_wrong(e, "prompt", v, "at most %u prompts", p->d->max_prompts);
    struct oai_prompt *out = oai_array(p->r, n, sizeof *out, e);
    if (out == NULL)
        return ERR_NOMEM;
    enum err_code rc = ERR_OK;
    if (one_string)
        out->text = (struct oai_text){ v->u.string, v->n };
    else if (one_list)
        rc = read_id_prompt(p, v, "prompt", out, e);
    else
        rc = read_prompt_list(p, v, out, e);
    p->r->prompt = out;
    p->r->n_prompts = n;
    return rc;
}

enum err_code oai_read_tokens(struct oai_parse *p, const struct json *v, struct err *e)
{
    return oai_read_ids(p, v, "tokens", &p->r->tokens, &p->r->n_tokens, e);
}

/* --------------------------------------------------------------- stop rules */

static enum err_code read_stop_string(const struct oai_parse *p, const struct json *v,
                                      const char *path, struct oai_text *out, struct err *e)
{
    if (v->kind != JSON_STRING || v->n == 0)
        return oai_wrong(e, path, v, "a string that is not empty");
    if (v->n > p->d->max_stop_bytes)
        return err_set_param(e, ERR_INVALID, path,
                             "%s: found a string of %u bytes, expected at most %u", path, v->n,
                             p->d->max_stop_bytes);
    *out = (struct oai_text){ v->u.string, v->n };
    return ERR_OK;
}

enum err_code oai_read_stop(struct oai_parse *p, const struct json *v, struct err *e)
{
    if (v->kind != JSON_STRING && v->kind != JSON_ARRAY)
        return oai_wrong(e, "stop", v, "a string or a list of strings");
    uint32_t n = v->kind == JSON_STRING ? 1 : v->n;
    if (n > p->d->max_stops)
        return oai_wrong(e, "stop", v, "at most %u strings", p->d->max_stops);
    if (n == 0)
        return ERR_OK;
    struct oai_text *out = oai_array(p->r, n, sizeof *out, e);
    if (out == NULL)
        return ERR_NOMEM;
    p->r->stop = out;
    p->r->n_stop = n;
    if (v->kind == JSON_STRING)
        return read_stop_string(p, v, "stop", out, e);
    const struct json *c = json_first(v);
    for (uint32_t i = 0; i < n; i++, c = json_next(c)) {
        char path[OAI_PATH_BYTES];
        snprintf(path, sizeof path, "stop[%u]", i);
        enum err_code rc = read_stop_string(p, c, path, &out[i], e);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

enum err_code oai_read_stop_ids(struct oai_parse *p, const struct json *v, struct err *e)
{
    if (v->kind == JSON_ARRAY && v->n > p->d->max_stop_ids)
        return oai_wrong(e, "stop_token_ids", v, "at most %u ids", p->d->max_stop_ids);
    return oai_read_ids(p, v, "stop_token_ids", &p->stop_token_ids, &p->n_stop_token_ids, e);
}

/* --------------------------------------------------------------- logit bias */

/* A key "50256" as an id: digits only, no leading zero, below the vocabulary. */
static bool id_of_key(const struct oai_parse *p, const struct json *key, int32_t *out)
{
    uint64_t id = 0;
    if (key->n == 0 || key->n > 10 || (key->u.string[0] == '0' && key->n > 1))
        return false;
    for (uint32_t i = 0; i < key->n; i++) {
        if (key->u.string[i] < '0' || key->u.string[i] > '9')
            return false;
        id = id * 10 + (uint64_t)(key->u.string[i] - '0');
    }
    if (id >= n_ids_of(p))
        return false;
    *out = (int32_t)id;
    return true;
}

enum err_code oai_read_bias(struct oai_parse *p, const struct json *v, struct err *e)
{
    if (v->kind != JSON_OBJECT)
        return oai_wrong(e, "logit_bias", v, "an object from token ids to numbers");
    if (v->n > p->d->max_bias)
        return oai_wrong(e, "logit_bias", v, "at most %u entries", p->d->max_bias);
    if (v->n == 0)
        return ERR_OK;
    struct logit_bias *out = oai_array(p->r, v->n, sizeof *out, e);
    if (out == NULL)
        return ERR_NOMEM;
    const struct json *key = json_first(v);
    for (uint32_t i = 0; i < v->n; i++, key = json_next(key + 1)) {
        const struct json *b = key + 1;
        if (!id_of_key(p, key, &out[i].token))
            return oai_wrong(e, "logit_bias", key, "keys that are token ids from 0 to %u",
                             n_ids_of(p) - 1);
        double x = json_is_number(b) ? json_number(b) : 0;
        if (!json_is_number(b) || x < -100 || x > 100) {
            char path[OAI_PATH_BYTES];
            snprintf(path, sizeof path, "logit_bias.%s", key->u.string);
            return oai_wrong(e, path, b, "a number from -100 to 100");
        }
        out[i].bias = (float)x;
    }
    p->r->params.bias = out;
    p->r->params.n_bias = v->n;
    return ERR_OK;
}
