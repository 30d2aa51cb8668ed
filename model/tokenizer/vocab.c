/* vocab.c: spellings of ids, their index, and the byte-level
 * alphabet.
 *
 * Owns nothing beyond the struct passed in; after tk_vocab_index everything is
 * read-only and any thread may look up. */
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "model/tokenizer/internal.h"
#include "proto/utf8.h"

enum err_code tk_vocab_init(struct tk_vocab *v, int32_t n_ids, size_t text_bytes, struct err *e)
{
    size_t k = (size_t)n_ids + 1;
    *v = (struct tk_vocab){ .n_ids = n_ids };
    v->at = malloc(k * sizeof(*v->at));
    v->len = calloc(k, sizeof(*v->len));
    v->form_at = malloc(k * sizeof(*v->form_at));
    v->form_len = calloc(k, sizeof(*v->form_len));
    v->flags = calloc(k, 1);
    if (!v->at || !v->len || !v->form_at || !v->form_len || !v->flags) {
        tk_vocab_fini(v);
        return err_nomem(e, "vocabulary", k * 17);
    }
    memset(v->at, 0xff, k * sizeof(*v->at));
    memset(v->form_at, 0xff, k * sizeof(*v->form_at));
    enum err_code rc = buf_reserve(&v->blob, text_bytes, e);
    if (rc)
        tk_vocab_fini(v);
    return rc;
}

void tk_vocab_fini(struct tk_vocab *v)
{
    free(v->at);
    free(v->len);
    free(v->form_at);
    free(v->form_len);
    free(v->flags);
    buf_fini(&v->blob);
    free(v->map.slot);
    *v = (struct tk_vocab){ 0 };
}

enum err_code tk_vocab_spell(struct tk_vocab *v, int32_t id, const char *s, size_t n, struct err *e)
{
    if (v->blob.n + n >= UINT32_MAX)
        return err_set(e, ERR_LIMIT, "tokenizer.json: vocabulary text: at most 4 GiB");
    uint32_t at = (uint32_t)v->blob.n;
    enum err_code rc = buf_add(&v->blob, s, n, e);
    if (rc)
        return rc;
    v->at[id] = at;
    v->len[id] = (uint32_t)n;
    return ERR_OK;
}

static uint32_t hash(const char *s, size_t n)
{
    return (uint32_t)XXH3_64bits(s, n);
}

static void map_put(struct tk_vocab *v, int32_t id)
{
    const char *s = v->blob.p + v->form_at[id];
    uint32_t n = v->form_len[id], h = hash(s, n), i = h & v->map.mask;
    struct tk_map_slot *slot = v->map.slot;
    for (; slot[i].id >= 0; i = (i + 1) & v->map.mask) {
        int32_t other = slot[i].id; /* the same text twice: the later id holds */
        if (slot[i].hash == h && v->form_len[other] == n &&
            memcmp(v->blob.p + v->form_at[other], s, n) == 0)
            break;
    }
    slot[i] = (struct tk_map_slot){ .hash = h, .id = id };
}

enum err_code tk_vocab_index(struct tk_vocab *v, bool raw, struct err *e)
{
    uint32_t n = 0;
    for (int32_t id = 0; id < v->n_ids; id++) {
        if (!(v->flags[id] & TK_MODEL))
            continue;
        uint32_t at = v->at[id], len = v->len[id];
        if (raw) {
            enum err_code rc = buf_reserve(&v->blob, len, e);
            if (rc)
                return rc;
            size_t k;
            if (!tk_unmap(v->blob.p + at, len, v->blob.p + v->blob.n, &k))
                continue;
            if (v->blob.n + k >= UINT32_MAX)
                return err_set(e, ERR_LIMIT, "tokenizer.json: vocabulary text: at most 4 GiB");
            at = (uint32_t)v->blob.n;
            len = (uint32_t)k;
            v->blob.n += k;
        }
        v->form_at[id] = at;
        v->form_len[id] = len;
        v->max_form = len > v->max_form ? len : v->max_form;
        n++;
    }
    uint32_t cap = 64;
    while (cap < n * 2)
        cap *= 2;
    v->map.slot = malloc(cap * sizeof(*v->map.slot));
    if (v->map.slot == NULL)
        return err_nomem(e, "vocabulary index", cap * sizeof(*v->map.slot));
    memset(v->map.slot, 0xff, cap * sizeof(*v->map.slot));
    v->map.mask = cap - 1;
    for (int32_t id = 0; id < v->n_ids; id++)
        if (v->form_at[id] != UINT32_MAX)
            map_put(v, id);
    return ERR_OK;
}

int32_t tk_vocab_find(const struct tk_vocab *v, const char *s, size_t n)
{
    if (n > v->max_form || v->map.slot == NULL)
        return -1;
    uint32_t h = hash(s, n);
    for (uint32_t i = h & v->map.mask;; i = (i + 1) & v->map.mask) {
        const struct tk_map_slot *p = &v->map.slot[i];
        if (p->id < 0)
            return -1;
        if (p->hash == h && v->form_len[p->id] == n &&
            memcmp(v->blob.p + v->form_at[p->id], s, n) == 0)
            return p->id;
    }
}

/* Printable Latin-1 stands for itself; the other 68 bytes, in order, for
 * U+0100 and up: 00-20, 7F-A0, AD. */
uint32_t tk_byte_char(unsigned char b)
{
    if (b <= 0x20)
        return 0x100u + b;
    if (b >= 0x7f && b <= 0xa0)
        return 0x121u + (b - 0x7fu);
    return b == 0xad ? 0x143 : b;
}

int tk_char_byte(uint32_t c)
{
    if ((c > 0x20 && c < 0x7f) || (c > 0xa0 && c <= 0xff && c != 0xad))
        return (int)c;
    if (c >= 0x100 && c <= 0x120)
        return (int)(c - 0x100);
    if (c >= 0x121 && c <= 0x142)
        return (int)(c - 0x121 + 0x7f);
    return c == 0x143 ? 0xad : -1;
}

bool tk_unmap(const char *s, size_t n, char *out, size_t *out_n)
{
    size_t w = 0;
    for (size_t i = 0, k; i < n; i += k) {
        int b = tk_char_byte(tk_char_at(s, n, i, &k));
        if (b < 0)
            return false;
        out[w++] = (char)b;
    }
    *out_n = w;
    return true;
}

uint32_t tk_char_at(const char *s, size_t n, size_t i, size_t *k)
{
    unsigned char c = (unsigned char)s[i];
    if (c < 0x80) {
        *k = 1;
        return c;
    }
    size_t len = c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    if (len > n - i) { /* callers pass valid UTF-8; never read past it anyway */
        *k = n - i;
        return 0xfffd;
    }
    *k = len;
    const unsigned char *u = (const unsigned char *)s + i;
    if (len == 2)
        return (uint32_t)(u[0] & 0x1f) << 6 | (u[1] & 0x3f);
    if (len == 3)
        return (uint32_t)(u[0] & 0x0f) << 12 | (uint32_t)(u[1] & 0x3f) << 6 | (u[2] & 0x3f);
    return (uint32_t)(u[0] & 0x07) << 18 | (uint32_t)(u[1] & 0x3f) << 12 |
           (uint32_t)(u[2] & 0x3f) << 6 | (u[3] & 0x3f);
}
