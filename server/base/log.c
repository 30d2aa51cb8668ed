/* log.c: composing log lines.  Each is built whole, then written at once, so
 * that lines of different threads do not mix.  Any thread. */
#include "server/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "proto/text/json.h"
#include "proto/utf8.h"

enum { MAX_TEXT_BYTES = 1024, MAX_FIELD_BYTES = 256 };

static const char *const level_names[] = { "debug", "info", "warning", "error" };

void srv_log_init(struct srv_log *l, int fd, int level, int format)
{
    *l = (struct srv_log){ .fd = fd, .level = level, .format = format };
}

static void write_all(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t w = write(fd, p, n);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return; /* a log that cannot be written must not stop the daemon */
        p += w;
        n -= (size_t)w;
    }
}

/* 2026-01-31T12:00:00.123Z */
static void stamp(char out[32])
{
    struct timespec now;
    struct tm tm;

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    size_t n = strftime(out, 24, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out + n, 32 - n, ".%03ldZ", now.tv_nsec / 1000000);
}

/* The length of s, at most most bytes and whole characters. */
static int field_bytes(const char *s, size_t most)
{
    size_t n = strnlen(s, most);

    return (int)(n < most ? n : n - utf8_incomplete_tail(s, n));
}

/* Make text one line of valid UTF-8, in place; every control character goes where
 * all is asked for, else those that end a line. */
static void clean(char *text, bool all)
{
    for (size_t left = strlen(text), n; left > 0; text += n, left -= n) {
        unsigned char c = (unsigned char)*text;
        n = utf8_sequence_bytes(text, left);
        if (n == 0) {
            *text = '?';
            n = 1;
        } else if (c == '\n' || c == '\r' || (all && (c < 0x20 || c == 0x7f))) {
            *text = ' ';
        }
    }
}

void srv_logf(const struct srv_log *l, enum srv_log_level level, const char *fmt, ...)
{
    char text[MAX_TEXT_BYTES], when[32], line[MAX_TEXT_BYTES + 64];
    va_list ap;

    if (!srv_log_shows(l, level))
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    text[field_bytes(text, sizeof text - 1)] = '\0';
    clean(text, l->format == SRV_LOG_TEXT);
    stamp(when);
    if (l->format == SRV_LOG_JSON) {
        struct buf o = { 0 };
        BUF_LIT(&o, "{\"time\":");
        json_put_cstring(&o, when);
        BUF_LIT(&o, ",\"level\":");
        json_put_cstring(&o, level_names[level]);
        BUF_LIT(&o, ",\"message\":");
        json_put_cstring(&o, text);
        BUF_LIT(&o, "}\n");
        if (!o.failed)
            write_all(l->fd, o.p, o.n);
        buf_fini(&o);
        return;
    }
    int n = snprintf(line, sizeof line, "%s %s %s\n", when, level_names[level], text);
    write_all(l->fd, line, (size_t)n);
}

static void number(struct buf *o, const char *key, uint64_t v)
{
    BUF_LIT(o, ",\"");
    buf_put(o, key, strlen(key));
    BUF_LIT(o, "\":");
    json_put_uint(o, v);
}

static void request_json(const struct srv_log *l, const struct srv_request_line *r,
                         const char *when)
{
    struct buf o = { 0 };

    BUF_LIT(&o, "{\"time\":");
    json_put_cstring(&o, when);
    BUF_LIT(&o, ",\"level\":\"info\",\"message\":\"request\",\"id\":");
    json_put_cstring(&o, r->id);
    BUF_LIT(&o, ",\"request_id\":");
    json_put_cstring(&o, r->request_id);
    BUF_LIT(&o, ",\"path\":");
    json_put_cstring(&o, r->path);
    number(&o, "status", (uint64_t)r->status);
    BUF_LIT(&o, ",\"finish\":");
    json_put_cstring(&o, r->finish);
    number(&o, "prompt_tokens", r->n_prompt);
    number(&o, "cached_tokens", r->n_cached);
    number(&o, "output_tokens", r->n_output);
    number(&o, "choices", r->n_choices);
    number(&o, "preemptions", r->n_preempted);
    number(&o, "queue_us", r->queued_us);
    number(&o, "prefill_us", r->prefill_us);
    number(&o, "decode_us", r->decode_us);
    number(&o, "first_token_us", r->first_token_us);
    number(&o, "total_us", r->total_us);
    BUF_LIT(&o, "}\n");
    if (!o.failed)
        write_all(l->fd, o.p, o.n);
    buf_fini(&o);
}

static void request_text(const struct srv_log *l, const struct srv_request_line *r,
                         const char *when)
{
    char line[3 * MAX_FIELD_BYTES + 512];

    snprintf(line, sizeof line,
             "%s info request %.*s (%.*s) %.*s: %d %s, prompt %llu (cached %llu), output %llu, "
             "choices %llu, queue %.1f ms, prefill %.1f ms, decode %.1f ms, "
             "first token %.1f ms, total %.1f ms%s",
             when, field_bytes(r->id, MAX_FIELD_BYTES), r->id,
             field_bytes(r->request_id, MAX_FIELD_BYTES), r->request_id,
             field_bytes(r->path, MAX_FIELD_BYTES), r->path, r->status, r->finish,
             (unsigned long long)r->n_prompt, (unsigned long long)r->n_cached,
             (unsigned long long)r->n_output, (unsigned long long)r->n_choices,
             (double)r->queued_us / 1e3, (double)r->prefill_us / 1e3, (double)r->decode_us / 1e3,
             (double)r->first_token_us / 1e3, (double)r->total_us / 1e3,
             r->n_preempted ? ", preempted" : "");
    clean(line, true);
    size_t n = strlen(line);
    line[n] = '\n';
    write_all(l->fd, line, n + 1);
}

void srv_log_request(const struct srv_log *l, const struct srv_request_line *r)
{
    char when[32];

    if (!srv_log_shows(l, SRV_INFO))
        return;
    stamp(when);
    if (l->format == SRV_LOG_JSON)
        request_json(l, r, when);
    else
        request_text(l, r, when);
}
