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

void srv_logf(const struct srv_log *l, enum srv_log_level level, const char *fmt, ...)
{
    char text[1024], when[32], line[1200];
    va_list ap;

    if ((int)level < l->level)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (char *p = text; *p; p++)
        if (*p == '\n' || *p == '\r')
            *p = ' ';
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
    write_all(l->fd, line, n < (int)sizeof line ? (size_t)n : sizeof line - 1);
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

void srv_log_request(const struct srv_log *l, const struct srv_request_line *r)
{
    char when[32], line[1024];

    if (l->level > SRV_INFO)
        return;
    stamp(when);
    if (l->format == SRV_LOG_JSON) {
        request_json(l, r, when);
        return;
    }
    int n = snprintf(line, sizeof line,
                     "%s info request %s (%s) %s: %d %s, prompt %llu (cached %llu), output %llu, "
                     "choices %llu, queue %.1f ms, prefill %.1f ms, decode %.1f ms, "
                     "first token %.1f ms, total %.1f ms%s\n",
                     when, r->id, r->request_id, r->path, r->status, r->finish,
                     (unsigned long long)r->n_prompt, (unsigned long long)r->n_cached,
                     (unsigned long long)r->n_output, (unsigned long long)r->n_choices,
                     (double)r->queued_us / 1e3, (double)r->prefill_us / 1e3,
                     (double)r->decode_us / 1e3, (double)r->first_token_us / 1e3,
                     (double)r->total_us / 1e3, r->n_preempted ? ", preempted" : "");
    write_all(l->fd, line, n < (int)sizeof line ? (size_t)n : sizeof line - 1);
}
