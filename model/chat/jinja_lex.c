/* jinja_lex.c: template text to tokens, with Jinja's white-space control.
 *
 * Owns nothing: tokens live in the parse's arena.  One thread per parse.
 * Rules (jinja.palletsprojects.com, "Whitespace Control"): trim_blocks removes
 * the newline after a block or comment tag; lstrip_blocks removes blanks before
 * one at the start of a line; '-' strips all white space, '+' nothing; one
 * newline at the template's end is dropped. */
#include "model/chat/jinja_lex.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/utf8.h"

struct lexer {
    struct jinja *j;
    const char *p;
    size_t n, at;
    int line;
    bool line_start; /* the last byte consumed ended a line */
    struct jinja_token *token;
    size_t n_tokens, cap;
};

static struct jinja_token *push(struct lexer *x, enum jinja_token_type type, const char *p,
                                size_t n)
{
    if (x->n_tokens == x->cap) {
        size_t cap = x->cap == 0 ? 256 : 2 * x->cap;
        struct jinja_token *t = jinja_alloc(x->j, cap * sizeof *t);
        if (x->n_tokens > 0)
            memcpy(t, x->token, x->n_tokens * sizeof *t);
        x->token = t;
        x->cap = cap;
    }
    struct jinja_token *t = &x->token[x->n_tokens++];
    *t = (struct jinja_token){ .type = type, .line = x->line, .p = p, .n = n };
    return t;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Consume n bytes, counting lines. */
static void skip(struct lexer *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (x->p[x->at + i] == '\n')
            x->line++;
    x->at += n;
    if (n > 0)
        x->line_start = x->p[x->at - 1] == '\n';
}

static bool looking_at(const struct lexer *x, const char *s)
{
    size_t n = strlen(s);
    return x->n - x->at >= n && memcmp(x->p + x->at, s, n) == 0;
}

/* Where the next tag begins: "{{", "{%" or "{#". */
static size_t find_tag(const struct lexer *x)
{
    for (size_t i = x->at; i + 1 < x->n; i++)
        if (x->p[i] == '{' && (x->p[i + 1] == '{' || x->p[i + 1] == '%' || x->p[i + 1] == '#'))
            return i;
    return x->n;
}

/* End of text [from, to) before a tag, white space controlled. */
static size_t control_before(const struct lexer *x, size_t from, size_t to, char kind, char sign)
{
    if (sign == '-') {
        while (to > from && is_space(x->p[to - 1]))
            to--;
        return to;
    }
    if (kind == '{' || sign == '+')
        return to;
    size_t i = to;
    while (i > from && (x->p[i - 1] == ' ' || x->p[i - 1] == '\t'))
        i--;
    if ((i > from && x->p[i - 1] == '\n') || (i == from && x->line_start))
        return i;
    return to;
}

/* After a closing tag: all white space for '-', one newline for blocks. */
static void control_after(struct lexer *x, char sign, bool block)
{
    size_t n = 0;
    if (sign == '-')
        while (x->at + n < x->n && is_space(x->p[x->at + n]))
            n++;
    else if (block && sign != '+' && x->at < x->n && x->p[x->at] == '\n')
        n = 1;
    skip(x, n);
}

static void lex_comment(struct lexer *x)
{
    for (size_t i = x->at; i + 1 < x->n; i++)
        if (x->p[i] == '#' && x->p[i + 1] == '}') {
            char sign = i > x->at ? x->p[i - 1] : ' ';
            skip(x, i + 2 - x->at);
            control_after(x, sign, true);
            return;
        }
    jinja_fail(x->j, "a comment begins that never ends");
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* A backslash escape at p[0] = the character after the backslash; writes its
 * bytes to out and returns how many characters it took. */
static size_t unescape(struct lexer *x, const char *p, size_t n, char *out, size_t *n_out)
{
    static const char from[] = "ntr\\'\"abfv0", to[] = "\n\t\r\\'\"\a\b\f\v\0";
    size_t digits = p[0] == 'x' ? 2 : p[0] == 'u' ? 4 : p[0] == 'U' ? 8 : 0;
    if (digits > 0) {
        uint32_t c = 0;
        for (size_t i = 1; i <= digits; i++) {
            int h = i < n ? hex_value(p[i]) : -1;
            if (h < 0)
                jinja_fail(x->j, "a \\%c escape needs %zu hexadecimal digits", p[0], digits);
            c = c << 4 | (uint32_t)h;
        }
        if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
            c = 0xfffd;
        *n_out = utf8_encode(c, out);
        return digits + 1;
    }
    const char *at = memchr(from, p[0], sizeof from - 1);
    if (p[0] == '\n') {
        *n_out = 0;
    } else if (at != NULL) {
        out[0] = to[at - from];
        *n_out = 1;
    } else {
        out[0] = '\\';
        out[1] = p[0];
        *n_out = 2;
    }
    return 1;
}

static void lex_string(struct lexer *x)
{
    char quote = x->p[x->at];
    size_t end = x->at + 1;
    while (end < x->n && x->p[end] != quote)
        end += x->p[end] == '\\' ? 2 : 1;
    if (end >= x->n)
        jinja_fail(x->j, "a string begins that never ends");
    char *s = jinja_alloc(x->j, 2 * (end - x->at) + 1);
    size_t n = 0;
    for (size_t i = x->at + 1; i < end;) {
        if (x->p[i] == '\\') {
            size_t put;
            size_t took = unescape(x, x->p + i + 1, end - i - 1, s + n, &put);
            n += put;
            i += 1 + took;
        } else {
            s[n++] = x->p[i++];
        }
    }
    push(x, JT_STRING, s, n);
    skip(x, end + 1 - x->at);
}

static void lex_number(struct lexer *x)
{
    char text[64];
    size_t n = 0, i = x->at;
    bool real = false;
    for (; i < x->n && n + 1 < sizeof text; i++) {
        char c = x->p[i];
        bool sign =
            (c == '+' || c == '-') && i > x->at && (x->p[i - 1] == 'e' || x->p[i - 1] == 'E');
        bool point = c == '.' && !real && i + 1 < x->n && x->p[i + 1] >= '0' && x->p[i + 1] <= '9';
        bool exponent = (c == 'e' || c == 'E') && i + 1 < x->n &&
                        ((x->p[i + 1] >= '0' && x->p[i + 1] <= '9') || x->p[i + 1] == '-' ||
                         x->p[i + 1] == '+');
        if (c == '_')
            continue;
        if (!(c >= '0' && c <= '9') && !point && !exponent && !sign)
            break;
        real = real || point || exponent;
        text[n++] = c;
    }
    text[n] = '\0';
    struct jinja_token *t = push(x, real ? JT_FLOAT : JT_INT, x->p + x->at, i - x->at);
    errno = 0;
    if (real)
        t->real = strtod(text, NULL);
    else
        t->integer = strtoll(text, NULL, 10);
    if (errno == ERANGE)
        jinja_fail(x->j, "number %s is out of range", text);
    skip(x, i - x->at);
}

static bool is_name_byte(char c, bool first)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80) != 0 ||
           (!first && c >= '0' && c <= '9');
}

static void lex_operator(struct lexer *x)
{
    static const char *const two[] = { "==", "!=", "<=", ">=", "//", "**" };
    for (size_t i = 0; i < sizeof two / sizeof two[0]; i++)
        if (looking_at(x, two[i])) {
            push(x, JT_OP, x->p + x->at, 2);
            skip(x, 2);
            return;
        }
    if (strchr("+-*/%~<>=()[]{}.,:|", x->p[x->at]) == NULL)
        jinja_fail(x->j, "unexpected character '%c'", x->p[x->at]);
    push(x, JT_OP, x->p + x->at, 1);
    skip(x, 1);
}

/* Inside a tag, up to and with its end. */
static void lex_inside(struct lexer *x, bool block)
{
    const char *close = block ? "%}" : "}}";
    int open = 0; /* brackets */
    for (;;) {
        while (x->at < x->n && is_space(x->p[x->at]))
            skip(x, 1);
        if (x->at >= x->n)
            jinja_fail(x->j, "a tag begins that never ends: expected %s", close);
        char c = x->p[x->at];
        size_t signed_ = c == '-' || c == '+' ? 1 : 0;
        if (open == 0 && x->n - x->at >= 2 + signed_ &&
            memcmp(x->p + x->at + signed_, close, 2) == 0) {
            push(x, block ? JT_BLOCK_END : JT_PRINT_END, x->p + x->at, 2);
            skip(x, 2 + signed_);
            control_after(x, signed_ ? c : ' ', block);
            return;
        }
        if (c == '"' || c == '\'') {
            lex_string(x);
        } else if (c >= '0' && c <= '9') {
            lex_number(x);
        } else if (is_name_byte(c, true)) {
            size_t i = x->at;
            while (i < x->n && is_name_byte(x->p[i], false))
                i++;
            push(x, JT_NAME, x->p + x->at, i - x->at);
            skip(x, i - x->at);
        } else {
            if (strchr("([{", c) != NULL)
                open++;
            if (strchr(")]}", c) != NULL && --open < 0)
                jinja_fail(x->j, "unexpected '%c'", c);
            lex_operator(x);
        }
    }
}

/* "{% raw %}" at the position: emits the text up to endraw. */
static bool lex_raw(struct lexer *x)
{
    size_t i = x->at + 2;
    if (i < x->n && (x->p[i] == '-' || x->p[i] == '+'))
        i++;
    while (i < x->n && is_space(x->p[i]))
        i++;
    if (x->n - i < 3 || memcmp(x->p + i, "raw", 3) != 0 ||
        (i + 3 < x->n && is_name_byte(x->p[i + 3], false)))
        return false;
    const char *open_end = memmem(x->p + i, x->n - i, "%}", 2);
    if (open_end == NULL)
        jinja_fail(x->j, "a tag begins that never ends: expected %%}");
    char sign = open_end[-1];
    skip(x, (size_t)(open_end + 2 - x->p) - x->at);
    control_after(x, sign, true);
    for (size_t k = x->at; k + 1 < x->n; k++) {
        if (x->p[k] != '{' || x->p[k + 1] != '%')
            continue;
        size_t m = k + 2;
        char before = m < x->n ? x->p[m] : ' ';
        if (before == '-' || before == '+')
            m++;
        while (m < x->n && is_space(x->p[m]))
            m++;
        if (x->n - m < 6 || memcmp(x->p + m, "endraw", 6) != 0)
            continue;
        const char *end = memmem(x->p + m, x->n - m, "%}", 2);
        if (end == NULL)
            break;
        size_t text_end = control_before(x, x->at, k, '%', before);
        push(x, JT_TEXT, x->p + x->at, text_end - x->at);
        sign = end[-1];
        skip(x, (size_t)(end + 2 - x->p) - x->at);
        control_after(x, sign, true);
        return true;
    }
    jinja_fail(x->j, "a raw block begins that never ends");
}

struct jinja_token *jinja_lex(struct jinja *j, const char *text, size_t n)
{
    struct lexer x = { .j = j, .p = text, .n = n, .line = 1, .line_start = true };
    if (n > 0 && text[n - 1] == '\n')
        x.n = n - 1;
    while (x.at < x.n) {
        j->line = x.line;
        size_t tag = find_tag(&x);
        char kind = tag < x.n ? x.p[tag + 1] : ' ';
        char sign = tag + 2 < x.n ? x.p[tag + 2] : ' ';
        size_t end = tag < x.n ? control_before(&x, x.at, tag, kind, sign) : tag;
        if (end > x.at)
            push(&x, JT_TEXT, x.p + x.at, end - x.at);
        skip(&x, tag - x.at);
        if (tag >= x.n)
            break;
        j->line = x.line;
        if (kind == '%' && lex_raw(&x))
            continue;
        bool has_sign = sign == '-' || sign == '+';
        if (kind != '#')
            push(&x, kind == '{' ? JT_PRINT_BEGIN : JT_BLOCK_BEGIN, x.p + tag, 2);
        skip(&x, 2 + (kind != '#' && has_sign ? 1 : 0));
        if (kind == '#')
            lex_comment(&x);
        else
            lex_inside(&x, kind == '%');
    }
    push(&x, JT_END, text + n, 0);
    return x.token;
}
