/* log.h: log lines, text or JSON, one write(2) each, to standard error.
 *
 * Owns nothing; a struct srv_log is const after init: any thread. */
#ifndef SERVER_BASE_LOG_H
#define SERVER_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/err.h"

enum srv_log_format { SRV_LOG_TEXT, SRV_LOG_JSON };
enum srv_log_level { SRV_DEBUG, SRV_INFO, SRV_WARNING, SRV_ERROR };

struct srv_log {
    int fd, level, format; /* enum srv_log_level, enum srv_log_format */
};

void srv_log_init(struct srv_log *l, int fd, int level, int format);

/* Whether lines of this level are written: ask before working out what a debug
 * line says. */
static inline bool srv_log_shows(const struct srv_log *l, enum srv_log_level level)
{
    return (int)level >= l->level;
}

/* One line of at most about 1,100 bytes, cut between characters.  Newlines, as
 * text every control character, become spaces, bytes that are not UTF-8 '?'. */
void srv_logf(const struct srv_log *l, enum srv_log_level level, const char *fmt, ...)
    PRINTF_LIKE(3, 4);

/* What one generation request did; written once, at its end.  As text, a long id
 * or path is cut. */
struct srv_request_line {
    const char *id, *request_id; /* ours, and the x-request-id */
    const char *path;
    int status;
    const char *finish; /* stop, length, cancelled, error, rejected; of the first choice */
    uint64_t n_prompt, n_cached, n_output, n_choices, n_preempted;
    uint64_t queued_us, prefill_us, decode_us, first_token_us, total_us;
};
void srv_log_request(const struct srv_log *l, const struct srv_request_line *r);

#endif
