/* jinja_string.c: the string operations that methods and filters share.
 *
 * Owns nothing: results live in the render's arena.  One thread per render.
 * Marks of user text survive every operation that keeps the bytes. */
#include <string.h>
#include <utf8proc.h>

#include "model/chat/jinja.h"
#include "proto/utf8.h"

size_t jinja_space_at(const struct jinja_str *s, size_t at)
{
    unsigned char c = (unsigned char)s->p[at];
    if (c < 0x80)
        return c == ' ' || (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x1f) ? 1 : 0;
    size_t n = utf8_sequence_bytes(s->p + at, s->n - at);
    if (n == 0)
        return 0;
    uint32_t u = utf8_decode(s->p + at, n);
    bool space = u == 0x85 || u == 0xa0 || u == 0x1680 || (u >= 0x2000 && u <= 0x200a) ||
                 u == 0x2028 || u == 0x2029 || u == 0x202f || u == 0x205f || u == 0x3000;
    return space ? n : 0;
}

/* Start of the character that ends before byte `to`. */
static size_t character_before(const struct jinja_str *s, size_t to)
{
    size_t i = to - 1;
    while (i > 0 && to - i < 4 && ((unsigned char)s->p[i] & 0xc0) == 0x80)
        i--;
    return i;
}

/* Whether the character s[at..at+n) is to be stripped. */
static bool strippable(const struct jinja_str *s, size_t at, size_t n,
                       const struct jinja_str *chars)
{
    if (chars == NULL)
        return jinja_space_at(s, at) == n;
    return memmem(chars->p, chars->n, s->p + at, n) != NULL;
}

struct jinja_value jinja_strip(struct jinja *j, const struct jinja_str *s, int sides,
                               const struct jinja_str *chars)
{
    size_t from = 0, to = s->n;
    while ((sides & 1) && from < to) {
        size_t n = utf8_sequence_bytes(s->p + from, to - from);
        n = n == 0 ? 1 : n;
        if (!strippable(s, from, n, chars))
            break;
        from += n;
    }
    while ((sides & 2) && to > from) {
        size_t at = character_before(s, to);
        if (at < from || !strippable(s, at, to - at, chars))
            break;
        to = at;
    }
    jinja_step(j, 1 + (s->n - (to - from)) / 64);
    return jinja_substring(j, s, from, to);
}

struct jinja_value jinja_replace(struct jinja *j, const struct jinja_str *s,
                                 const struct jinja_str *old, const struct jinja_str *to,
                                 int64_t count)
{
    struct jinja_buf b;
    jinja_buf_init(&b, j);
    size_t at = 0;
    for (; count != 0 && at <= s->n; count--) {
        jinja_step(j, 1);
        const char *hit = old->n == 0 ? s->p + at : memmem(s->p + at, s->n - at, old->p, old->n);
        if (hit == NULL)
            break;
        size_t from = (size_t)(hit - s->p);
        jinja_buf_part(&b, s, at, from);
        jinja_buf_str(&b, to);
        at = from + old->n;
        if (old->n == 0) {
            size_t n = at < s->n ? utf8_sequence_bytes(s->p + at, s->n - at) : 0;
            n = at < s->n && n == 0 ? 1 : n;
            jinja_buf_part(&b, s, at, at + n);
            at += n;
            if (n == 0)
                return jinja_buf_value(&b);
        }
    }
    jinja_buf_part(&b, s, at, s->n);
    return jinja_buf_value(&b);
}

static bool is_cased(utf8proc_int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT;
}

struct jinja_value jinja_recase(struct jinja *j, const struct jinja_str *s, enum jinja_case how)
{
    struct jinja_buf b;
    jinja_buf_init(&b, j);
    bool first = true;
    for (size_t i = 0; i < s->n;) {
        size_t n = utf8_sequence_bytes(s->p + i, s->n - i);
        if (n == 0) {
            jinja_buf_part(&b, s, i, i + 1);
            i++;
            continue;
        }
        int32_t c = (int32_t)utf8_decode(s->p + i, n);
        bool upper = how == JC_UPPER || (how != JC_LOWER && first);
        int32_t to = upper ? utf8proc_toupper(c) : utf8proc_tolower(c);
        char out[4];
        size_t n_out = utf8_encode((uint32_t)to, out);
        if (upper && c == 0xdf) /* the one common letter whose capital is two */
            jinja_buf_marked(&b, "SS", 2, s->user != NULL && s->user[i]);
        else
            jinja_buf_marked(&b, out, n_out, s->user != NULL && s->user[i]);
        first = how == JC_TITLE ? !is_cased(c) : false;
        i += n;
    }
    return jinja_buf_value(&b);
}
