/* load.c: tokenizer.json to struct tokenizer.
 *
 * Runs at start, once.  Everything the file says is checked here; what this
 * code does not support is refused with the key's name, so that a tokenizer
 * that opens encodes as the reference library does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer/internal.h"

enum { MAX_IDS = 1 << 24 };

struct loader {
    struct tokenizer *t;
    struct json_doc doc;
    const struct json *root, *model, *vocab, *added;
    struct err *e;
};

static enum err_code wrong(struct loader *l, const char *key, const struct json *v,
                           const char *expected)
{
    return err_set(l->e, ERR_INVALID, "tokenizer.json: %s: %s: %s expected", key, json_kind_name(v),
                   expected);
}

static enum err_code find_model(struct loader *l)
{
    l->root = l->doc.value;
    if (l->root->kind != JSON_OBJECT)
        return wrong(l, "document", l->root, "an object");
    l->model = json_get(l->root, "model");
    if (l->model == NULL || l->model->kind != JSON_OBJECT)
        return wrong(l, "model", l->model, "an object");
    const struct json *type = json_get(l->model, "type");
    l->vocab = json_get(l->model, "vocab");
    if (json_string_is(type, "BPE") || (!type && json_get(l->model, "merges"))) {
        l->t->model = TK_MODEL_BPE;
        if (l->vocab == NULL || l->vocab->kind != JSON_OBJECT)
            return wrong(l, "model.vocab", l->vocab, "an object");
    } else if (json_string_is(type, "Unigram") ||
               (!type && l->vocab && l->vocab->kind == JSON_ARRAY)) {
        l->t->model = TK_MODEL_UNIGRAM;
        if (l->vocab == NULL || l->vocab->kind != JSON_ARRAY)
            return wrong(l, "model.vocab", l->vocab, "an array");
    } else {
        return wrong(l, "model.type", type, "\"BPE\" or \"Unigram\"");
    }
    l->added = json_get(l->root, "added_tokens");
    if (l->added && l->added->kind != JSON_ARRAY)
        return wrong(l, "added_tokens", l->added, "an array");
    return ERR_OK;
}

/* Largest id of the vocabulary and the added tokens, and the text's bytes. */
static enum err_code measure(struct loader *l, int32_t *n_ids, size_t *bytes)
{
    int32_t top = -1;
    *bytes = 0;
    const struct json *k = json_first(l->vocab);
    for (uint32_t i = 0; i < l->vocab->n; i++) {
        int32_t id = (int32_t)i;
        if (l->t->model == TK_MODEL_BPE) {
            *bytes += k->n;
            k = k + 1; /* the name's value */
            id = tk_id(k);
            if (id < 0 || id >= MAX_IDS)
                return wrong(l, "model.vocab", k, "ids from 0 to 16777215");
        } else {
            const struct json *piece = json_first(k);
            if (k->kind != JSON_ARRAY || k->n != 2 || piece->kind != JSON_STRING ||
                !json_is_number(json_next(piece)) || id >= MAX_IDS)
                return wrong(l, "model.vocab", k, "up to 16777216 pairs of piece and score");
            *bytes += piece->n;
        }
        top = id > top ? id : top;
        k = json_next(k);
    }
    k = l->added ? json_first(l->added) : NULL;
    for (uint32_t i = 0; l->added && i < l->added->n; i++, k = json_next(k)) {
        const struct json *v = json_get(k, "id");
        const struct json *text = json_get(k, "content");
        int32_t id = tk_id(v);
        if (id < 0 || id >= MAX_IDS)
            return wrong(l, "added_tokens.id", v, "an id from 0 to 16777215");
        if (text == NULL || text->kind != JSON_STRING)
            return wrong(l, "added_tokens.content", text, "a string");
        *bytes += text->n;
        top = id > top ? id : top;
    }
    *n_ids = top + 1;
    return ERR_OK;
}

static enum err_code load_vocab(struct loader *l)
{
    int32_t n_ids = 0;
    size_t bytes = 0;
    enum err_code rc = measure(l, &n_ids, &bytes);
    if (!rc)
        rc = tk_vocab_init(&l->t->vocab, n_ids, 2 * bytes, l->e);
    if (rc)
        return rc;
    const struct json *k = json_first(l->vocab);
    for (uint32_t i = 0; i < l->vocab->n && !rc; i++) {
        bool bpe = l->t->model == TK_MODEL_BPE;
        const struct json *text = bpe ? k : json_first(k);
        if (bpe)
            k = k + 1;
        int32_t id = bpe ? tk_id(k) : (int32_t)i;
        rc = tk_vocab_spell(&l->t->vocab, id, text->u.string, text->n, l->e);
        l->t->vocab.flags[id] |= TK_MODEL;
        k = json_next(k);
    }
    return rc;
}

/* Whether the string member key of the model is there and not empty. */
static bool has_text(struct loader *l, const char *key)
{
    const struct json *v = json_get(l->model, key);
    return v && v->kind == JSON_STRING && v->n > 0;
}

static enum err_code load_steps(struct loader *l)
{
    struct tokenizer *t = l->t;
    enum err_code rc = tk_load_normalizer(&t->normalizer, json_get(l->root, "normalizer"), l->e);
    if (!rc)
        rc = tk_load_pretokenizer(&t->pretokenizer, json_get(l->root, "pre_tokenizer"), l->e);
    if (!rc)
        rc = tk_load_decoder(&t->decoder, json_get(l->root, "decoder"), l->e);
    struct tk_steps *p = &t->pretokenizer;
    /* Mapping bytes to characters last only renames what the model matches:
     * match the bytes themselves. */
    if (!rc && t->model == TK_MODEL_BPE && p->n > 0 && p->p[p->n - 1].kind == TK_BYTE_CHARS &&
        !has_text(l, "continuing_subword_prefix") && !has_text(l, "end_of_word_suffix")) {
        p->n--;
        t->bpe.raw = true;
    }
    return rc;
}

/* Id of text in the model's own vocabulary, or -1. */
static int32_t model_id(const struct tokenizer *t, const char *s, size_t n, struct buf *x)
{
    size_t k;
    if (!t->bpe.raw)
        return tk_vocab_find(&t->vocab, s, n);
    return x->cap >= n && tk_unmap(s, n, x->p, &k) ? tk_vocab_find(&t->vocab, x->p, k) : -1;
}

/* A token of one symbol is part of the alphabet, whatever else it is. */
static bool is_symbol(const struct tokenizer *t, int32_t id)
{
    size_t k;
    uint32_t n = t->vocab.form_len[id];
    if (t->vocab.form_at[id] == UINT32_MAX || n == 0)
        return false;
    tk_char_at(t->vocab.blob.p + t->vocab.form_at[id], n, 0, &k);
    return t->bpe.raw ? n == 1 : k == n;
}

static enum err_code load_added_one(struct loader *l, const struct json *v, struct tk_added *a,
                                    struct buf *x)
{
    struct tokenizer *t = l->t;
    const struct json *text = json_get(v, "content");
    *a = (struct tk_added){ .id = tk_id(json_get(v, "id")), .n = text->n };
    a->single_word = tk_flag(json_get(v, "single_word"), false);
    a->lstrip = tk_flag(json_get(v, "lstrip"), false);
    a->rstrip = tk_flag(json_get(v, "rstrip"), false);
    a->special = tk_flag(json_get(v, "special"), false);
    a->normalized = tk_flag(json_get(v, "normalized"), !a->special);
    a->content = malloc((size_t)text->n + 1);
    if (a->content == NULL)
        return err_nomem(l->e, "added tokens", text->n);
    memcpy(a->content, text->u.string, text->n);
    a->content[text->n] = '\0';
    enum err_code rc = buf_reserve(x, text->n, l->e);
    if (rc)
        return rc;
    int32_t id = model_id(t, a->content, a->n, x);
    bool own = id >= 0;
    if (own)
        a->id = id;
    t->vocab.flags[a->id] |=
        (unsigned char)(TK_ADDED | (a->special ? TK_SPECIAL : 0) |
                        (!own || (a->special && !is_symbol(t, id)) ? TK_CONTROL : 0));
    return tk_vocab_spell(&t->vocab, a->id, a->content, a->n, l->e);
}

/* Put token number k where its text will be looked for. */
static enum err_code index_added(struct loader *l, int32_t k, struct buf *x, struct buf *spare,
                                 pcre2_match_data *md)
{
    struct tokenizer *t = l->t;
    const struct tk_added *a = &t->added[k];
    if (a->n == 0)
        return ERR_OK;
    if (!a->normalized)
        return tk_trie_add(&t->trie, a->content, a->n, k, l->e);
    enum err_code rc = tk_normalize(&t->normalizer, a->content, a->n, x, spare, md, l->e);
    if (!rc && x->n > 0)
        rc = tk_trie_add(&t->trie_normalized, x->p, x->n, k, l->e);
    if (!rc && t->normalizer.n > 0) /* what it decodes to */
        rc = tk_vocab_spell(&t->vocab, a->id, x->p, x->n, l->e);
    return rc;
}

static enum err_code index_spans(struct loader *l)
{
    struct tokenizer *t = l->t;
    bool any = false;
    for (size_t k = 0; k < t->n_added; k++)
        any |= t->added[k].normalized && (t->vocab.flags[t->added[k].id] & TK_CONTROL);
    enum err_code rc = ERR_OK;
    if (!any || t->normalizer.n == 0)
        return ERR_OK;
    for (size_t k = 0; k < t->n_added && !rc; k++) {
        const struct tk_added *a = &t->added[k];
        if (a->n > 0 && (!a->normalized || (t->vocab.flags[a->id] & TK_CONTROL)))
            rc = tk_trie_add(&t->trie_spans, a->content, a->n, (int32_t)k, l->e);
    }
    return rc;
}

static enum err_code load_added(struct loader *l)
{
    struct tokenizer *t = l->t;
    if (l->added == NULL || l->added->n == 0)
        return ERR_OK;
    struct buf x = { 0 }, spare = { 0 };
    pcre2_match_data *md = pcre2_match_data_create(1, NULL);
    t->added = calloc(l->added->n, sizeof(*t->added));
    enum err_code rc =
        t->added && md ? ERR_OK : err_nomem(l->e, "added tokens", l->added->n * sizeof(*t->added));
    const struct json *v = json_first(l->added);
    for (uint32_t i = 0; i < l->added->n && !rc; i++, v = json_next(v))
        rc = load_added_one(l, v, &t->added[t->n_added++], &x);
    for (size_t k = 0; k < t->n_added && !rc; k++)
        rc = index_added(l, (int32_t)k, &x, &spare, md);
    if (!rc)
        rc = index_spans(l);
    buf_fini(&x);
    buf_fini(&spare);
    pcre2_match_data_free(md);
    return rc;
}

/* ---- post-processor -------------------------------------------------------------- */

/* Append id, which must exist. */
static enum err_code add_id(struct loader *l, struct token_list *to, const struct json *v)
{
    int32_t id = tk_id(v);
    if (id < 0 || id >= l->t->vocab.n_ids)
        return wrong(l, "post_processor: id", v, "an id of the vocabulary");
    return token_list_add(to, id, l->e);
}

/* before = left + before, after = after + right; takes both lists. */
static enum err_code wrap(struct loader *l, struct token_list *left, struct token_list *right,
                          enum err_code rc)
{
    struct tokenizer *t = l->t;
    for (size_t i = 0; i < t->before.n && !rc; i++)
        rc = token_list_add(left, t->before.id[i], l->e);
    for (size_t i = 0; i < right->n && !rc; i++)
        rc = token_list_add(&t->after, right->id[i], l->e);
    token_list_fini(right);
    if (rc) {
        token_list_fini(left);
        return rc;
    }
    token_list_fini(&t->before);
    t->before = *left;
    return ERR_OK;
}

/* The ids that special_tokens gives to the special token v of a template, added to
 * to. */
static enum err_code add_special(struct loader *l, struct token_list *to, const struct json *known,
                                 const struct json *v)
{
    const struct json *name = json_get(v, "id");
    bool named = name && name->kind == JSON_STRING;
    const struct json *ids =
        named ? json_get(json_get_bytes(known, name->u.string, name->n), "ids") : NULL;
    if (ids == NULL || ids->kind != JSON_ARRAY)
        return wrong(l, "post_processor.special_tokens", ids, "the ids of every SpecialToken");
    enum err_code rc = ERR_OK;
    const struct json *id = json_first(ids);
    for (uint32_t i = 0; i < ids->n && !rc; i++, id = json_next(id))
        rc = add_id(l, to, id);
    return rc;
}

/* TemplateProcessing: what "single" puts before and after the sequence A. */
static enum err_code load_frame(struct loader *l, const struct json *v)
{
    const struct json *single = json_get(v, "single"), *known = json_get(v, "special_tokens");
    if (single == NULL || single->kind != JSON_ARRAY)
        return wrong(l, "post_processor.single", single, "an array");
    struct token_list side[2] = { { 0 }, { 0 } };
    bool seen = false;
    enum err_code rc = ERR_OK;
    const struct json *k = json_first(single);
    for (uint32_t i = 0; i < single->n && !rc; i++, k = json_next(k)) {
        const struct json *special = json_get(k, "SpecialToken");
        if (special)
            rc = add_special(l, &side[seen], known, special);
        else if (seen || !json_string_is(json_get(json_get(k, "Sequence"), "id"), "A"))
            rc = wrong(l, "post_processor.single", k, "one Sequence A and SpecialTokens");
        else
            seen = true;
    }
    if (!rc && !seen)
        rc = wrong(l, "post_processor.single", single, "a Sequence A");
    return wrap(l, &side[0], &side[1], rc);
}

/* "cls" and "sep": [text, id]. */
static enum err_code load_bert(struct loader *l, const struct json *v)
{
    struct token_list side[2] = { { 0 }, { 0 } };
    static const char *const keys[2] = { "cls", "sep" };
    enum err_code rc = ERR_OK;
    for (int k = 0; k < 2 && !rc; k++) {
        const struct json *pair = json_get(v, keys[k]);
        if (pair == NULL || pair->kind != JSON_ARRAY || pair->n != 2)
            rc = wrong(l, "post_processor.cls or sep", pair, "[text, id]");
        else
            rc = add_id(l, &side[k], json_next(json_first(pair)));
    }
    return wrap(l, &side[0], &side[1], rc);
}

static enum err_code load_post(struct loader *l, const struct json *v, int depth)
{
    if (v == NULL || v->kind == JSON_NULL)
        return ERR_OK;
    const struct json *type = json_get(v, "type");
    if (json_string_is(type, "TemplateProcessing"))
        return load_frame(l, v);
    if (json_string_is(type, "BertProcessing") || json_string_is(type, "RobertaProcessing"))
        return load_bert(l, v);
    if (json_string_is(type, "ByteLevel"))
        return ERR_OK; /* moves offsets only */
    if (json_string_is(type, "Sequence") && depth < 8) {
        const struct json *list = json_get(v, "processors");
        if (list == NULL || list->kind != JSON_ARRAY)
            return wrong(l, "post_processor.processors", list, "an array");
        const struct json *k = json_first(list);
        enum err_code rc = ERR_OK;
        for (uint32_t i = 0; i < list->n && !rc; i++, k = json_next(k))
            rc = load_post(l, k, depth + 1);
        return rc;
    }
    return wrong(l, "post_processor.type", type,
                 "TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel or Sequence");
}

/* ---- opening ----------------------------------------------------------------------- */

static enum err_code load(struct loader *l)
{
    struct tokenizer *t = l->t;
    enum err_code rc = find_model(l);
    if (!rc)
        rc = load_vocab(l);
    if (!rc)
        rc = load_steps(l);
    if (!rc)
        rc = tk_vocab_index(&t->vocab, t->bpe.raw, l->e);
    if (!rc)
        rc = load_added(l);
    if (!rc)
        rc = t->model == TK_MODEL_BPE ? tk_bpe_load(t, l->model, l->e)
                                      : tk_unigram_load(t, l->model, l->e);
    if (!rc)
        rc = load_post(l, json_get(l->root, "post_processor"), 0);
    return rc;
}

enum err_code tokenizer_open_text(struct tokenizer **out, char *text, size_t n, const char *what,
                                  struct err *e)
{
    *out = NULL;
    struct loader l = { .t = calloc(1, sizeof(*l.t)), .e = e };
    if (l.t == NULL)
        return err_nomem(e, "tokenizer", sizeof(*l.t));
    enum err_code rc = json_parse_in_place(&l.doc, what, text, n, TK_MAX_VALUES, e);
    if (!rc)
        rc = load(&l);
    json_doc_fini(&l.doc);
    if (rc) {
        tokenizer_close(l.t);
        return rc;
    }
    *out = l.t;
    return ERR_OK;
}

enum err_code tokenizer_open_file(struct tokenizer **out, const char *file, struct err *e)
{
    struct buf text = { 0 };
    *out = NULL;
    enum err_code rc = buf_read_file(&text, file, TK_MAX_FILE_BYTES, e);
    if (!rc)
        rc = tokenizer_open_text(out, text.p, text.n, file, e);
    buf_fini(&text);
    return rc;
}

enum err_code tokenizer_open(struct tokenizer **out, const char *dir, struct err *e)
{
    char path[4096];
    *out = NULL;
    if ((size_t)snprintf(path, sizeof(path), "%s/tokenizer.json", dir) >= sizeof(path))
        return err_set(e, ERR_INVALID, "%.64s...: path too long", dir);
    struct tokenizer *t;
    enum err_code rc = tokenizer_open_file(&t, path, e);
    if (rc)
        return rc;
    rc = tk_load_config(t, dir, e);
    if (rc) {
        tokenizer_close(t);
        return rc;
    }
    *out = t;
    return ERR_OK;
}

void tokenizer_close(struct tokenizer *t)
{
    if (t == NULL)
        return;
    tk_vocab_fini(&t->vocab);
    for (size_t i = 0; i < t->n_added; i++)
        free(t->added[i].content);
    free(t->added);
    free(t->trie.node);
    free(t->trie_normalized.node);
    free(t->trie_spans.node);
    tk_steps_fini(&t->normalizer);
    tk_steps_fini(&t->pretokenizer);
    tk_steps_fini(&t->decoder);
    tk_bpe_fini(&t->bpe);
    tk_unigram_fini(&t->unigram);
    token_list_fini(&t->before);
    token_list_fini(&t->after);
    free(t->chat_template);
    free(t->bos);
    free(t->eos);
    free(t);
}
