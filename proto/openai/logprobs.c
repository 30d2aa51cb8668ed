/* logprobs.c: log probabilities in the two dialects of the API.
 *
 * Completions name a token by its text.  A token that is not whole characters
 * is spelled "bytes:\xf0\x9f", so that distinct tokens stay distinct keys; of
 * two tokens with the same text the likelier is kept.  Chat gives the text
 * (U+FFFD where it is not whole) and the exact bytes.  Any thread. */
#include <math.h>

#include "proto/openai/write.h"
#include "proto/utf8.h"

static void put_logprob(struct buf *o, float logprob)
{
    if (logprob > -9999.0f) /* false for NaN too */
        json_put_float(o, logprob);
    else
        BUF_LIT(o, "-9999.0");
}

/* Characters that start in the token: continuation bytes belong to the one
 * before. */
static uint32_t count_characters(struct oai_text t)
{
    uint32_t n = 0;
    for (size_t i = 0; i < t.n; i++)
        n += ((unsigned char)t.s[i] & 0xc0) != 0x80;
    return n;
}

uint32_t oai_text_offset_after(const struct oai_logprobs *lp)
{
    uint32_t at = lp->text_offset;
    for (uint32_t i = 0; i < lp->n; i++)
        at += lp->token[i].silent ? 0 : count_characters(lp->token[i].token);
    return at;
}

/* ------------------------------------------------------------- completions */

static void put_spelling(struct buf *o, struct oai_text t)
{
    static const char hex[] = "0123456789abcdef";
    if (t.s == NULL || utf8_is_valid(t.s, t.n)) {
        json_put_string(o, t.s == NULL ? "" : t.s, t.n);
        return;
    }
    BUF_LIT(o, "\"bytes:");
    for (size_t i = 0; i < t.n; i++) {
        unsigned char c = (unsigned char)t.s[i];
        char five[5] = { '\\', '\\', 'x', hex[c >> 4], hex[c & 15] };
        buf_put(o, five, 5);
    }
    BUF_LIT(o, "\"");
}

static bool same_text(struct oai_text a, struct oai_text b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.s, b.s, a.n) == 0);
}

/* {"text": logprob, ...}: the alternatives, then the token itself unless it is
 * among them. */
static void put_top_map(struct buf *o, const struct oai_token *t)
{
    bool seen = false;
    BUF_LIT(o, "{");
    for (uint32_t i = 0; i < t->n_top; i++) {
        const struct oai_alternative *a = &t->top[i];
        bool again = false;
        for (uint32_t j = 0; j < i && !again; j++)
            again = same_text(t->top[j].token, a->token);
        seen = seen || same_text(a->token, t->token);
        if (again)
            continue;
        if (i > 0)
            BUF_LIT(o, ",");
        put_spelling(o, a->token);
        BUF_LIT(o, ":");
        put_logprob(o, a->logprob);
    }
    if (!seen) {
        if (t->n_top > 0)
            BUF_LIT(o, ",");
        put_spelling(o, t->token);
        BUF_LIT(o, ":");
        put_logprob(o, t->logprob);
    }
    BUF_LIT(o, "}");
}

static void put_completion(struct buf *o, const struct oai_logprobs *lp)
{
    const struct oai_token *t = lp->token;
    BUF_LIT(o, "{\"tokens\":[");
    for (uint32_t i = 0; i < lp->n; i++) {
        if (i > 0)
            BUF_LIT(o, ",");
        put_spelling(o, t[i].token);
    }
    BUF_LIT(o, "],\"token_logprobs\":[");
    for (uint32_t i = 0; i < lp->n; i++) {
        if (i > 0)
            BUF_LIT(o, ",");
        if (t[i].scored)
            put_logprob(o, t[i].logprob);
        else
            BUF_LIT(o, "null");
    }
    BUF_LIT(o, "],\"top_logprobs\":[");
    for (uint32_t i = 0; i < lp->n; i++) {
        if (i > 0)
            BUF_LIT(o, ",");
        if (t[i].scored)
            put_top_map(o, &t[i]);
        else
            BUF_LIT(o, "null");
    }
    BUF_LIT(o, "],\"text_offset\":[");
    uint32_t at = lp->text_offset;
    for (uint32_t i = 0; i < lp->n; i++) {
        if (i > 0)
            BUF_LIT(o, ",");
        json_put_uint(o, at);
        at += t[i].silent ? 0 : count_characters(t[i].token);
    }
    BUF_LIT(o, "]}");
}

/* -------------------------------------------------------------------- chat */

/* "token":..,"logprob":..,"bytes":[..] */
static void put_chat_token(struct buf *o, struct oai_text t, float logprob)
{
    BUF_LIT(o, "\"token\":\"");
    json_put_escaped(o, t.s, t.n);
    BUF_LIT(o, "\",\"logprob\":");
    put_logprob(o, logprob);
    BUF_LIT(o, ",\"bytes\":[");
    for (size_t i = 0; i < t.n; i++) {
        if (i > 0)
            BUF_LIT(o, ",");
        json_put_uint(o, (unsigned char)t.s[i]);
    }
    BUF_LIT(o, "]");
}

static void put_chat(struct buf *o, const struct oai_logprobs *lp)
{
    BUF_LIT(o, "{\"content\":[");
    for (uint32_t i = 0; i < lp->n; i++) {
        const struct oai_token *t = &lp->token[i];
        if (i > 0)
            BUF_LIT(o, ",");
        BUF_LIT(o, "{");
        put_chat_token(o, t->token, t->logprob);
        BUF_LIT(o, ",\"top_logprobs\":[");
        for (uint32_t k = 0; k < t->n_top; k++) {
            if (k > 0)
                BUF_LIT(o, ",");
            BUF_LIT(o, "{");
            put_chat_token(o, t->top[k].token, t->top[k].logprob);
            BUF_LIT(o, "}");
        }
        BUF_LIT(o, "]}");
    }
    BUF_LIT(o, "],\"refusal\":null}");
}

void oai_put_logprobs(struct buf *o, enum oai_kind kind, const struct oai_logprobs *lp)
{
    if (lp == NULL)
        BUF_LIT(o, "null");
    else if (kind == OAI_CHAT)
        put_chat(o, lp);
    else
        put_completion(o, lp);
}

/* ------------------------------------------------------------------ prompts */

static void put_ranked(struct buf *o, int32_t id, struct oai_text t, float logprob, uint32_t rank)
{
    BUF_LIT(o, "\"");
    json_put_int(o, id);
    BUF_LIT(o, "\":{\"logprob\":");
    put_logprob(o, logprob);
    BUF_LIT(o, ",\"rank\":");
    if (rank > 0)
        json_put_uint(o, rank);
    else
        BUF_LIT(o, "null");
    BUF_LIT(o, ",\"decoded_token\":\"");
    json_put_escaped(o, t.s, t.n);
    BUF_LIT(o, "\"}");
}

void oai_put_prompt_logprobs(struct buf *o, const struct oai_logprobs *lp)
{
    BUF_LIT(o, "[");
    for (uint32_t i = 0; i < lp->n; i++) {
        const struct oai_token *t = &lp->token[i];
        if (i > 0)
            BUF_LIT(o, ",");
        if (!t->scored) {
            BUF_LIT(o, "null");
            continue;
        }
        bool seen = false;
        BUF_LIT(o, "{");
        for (uint32_t k = 0; k < t->n_top; k++) {
            if (k > 0)
                BUF_LIT(o, ",");
            put_ranked(o, t->top[k].id, t->top[k].token, t->top[k].logprob, k + 1);
            seen = seen || t->top[k].id == t->id;
        }
        if (!seen) { /* its rank is beyond what was asked for: not known here */
            if (t->n_top > 0)
                BUF_LIT(o, ",");
            put_ranked(o, t->id, t->token, t->logprob, 0);
        }
        BUF_LIT(o, "}");
    }
    BUF_LIT(o, "]");
}
