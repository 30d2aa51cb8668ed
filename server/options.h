/* options.h: everything an operator can set, from one rule table.
 *
 * A value comes from, later ones winning: the table's default, the file named
 * by --config, the environment (QUIRE_ and the flag's name in capitals), the
 * command line.  Names and meanings are those users of vLLM know.  Read once
 * in main(), const afterwards: any thread.  Owns every string it points to. */
#ifndef SERVER_OPTIONS_H
#define SERVER_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "proto/err.h"
#include "server/base/list.h"

enum srv_overlap { SRV_OVERLAP_AUTO, SRV_OVERLAP_ON, SRV_OVERLAP_OFF };

struct srv_options {
    const char *model;         /* directory                                   */
    const char *config;        /* configuration file, NULL: none              */
    const char *tokenizer;     /* directory, NULL: the model's                */
    const char *chat_template; /* file, or the template itself; NULL: model's */
    struct srv_list served_names;

    const char *host, *uds;
    uint64_t port;
    struct srv_list api_keys, admin_keys;

    int dtype, device; /* enum model_dtype, enum model_device         */
    uint64_t max_model_len, block_size, kv_bytes, n_blocks, threads;
    double gpu_share; /* of device memory                            */
    bool eager;       /* no captured steps                           */
    bool poison;      /* KV blocks hold NaN before they are used     */
    int overlap;      /* enum srv_overlap                            */
    bool prefix_caching;
    double pin_budget; /* share of the KV blocks for pins             */
    uint64_t max_pins, step_history;
    int generation_config; /* 0: the model's defaults, 1: none            */

    uint64_t max_num_seqs, max_num_batched_tokens, long_prefill_threshold;
    uint64_t max_partial_prefills, look_ahead_tokens, max_queued_reqs, max_queued_tokens,
        itl_target_ms;
    int policy; /* enum sched_policy                           */

    uint64_t max_logprobs, stream_interval, seed;
    bool seed_given, force_include_usage, request_id_headers;

    uint64_t max_connections, max_body_bytes, max_total_body_bytes, max_header_bytes;
    uint64_t stream_buffer_bytes;
    double header_timeout, body_timeout, idle_timeout, write_timeout;
    double health_timeout, shutdown_timeout;

    int log_level, log_format; /* enum srv_log_level, enum srv_log_format */
    bool log_requests, plan, help, version;

    const char *ignored[SRV_LIST_MAX]; /* accepted flags that change nothing here */
    uint32_t n_ignored;

    struct srv_text *texts; /* owned strings, a list */
};

/* Fill *out from defaults, file, environment (envp: NAME=VALUE, NULL-ended)
 * and arguments (argv[0] is skipped).  ERR_INVALID names the flag, what was
 * found and what is expected; an unknown flag's message names the nearest.
 * *out must be passed to srv_options_fini in every case. */
MUST_USE enum err_code srv_options_read(struct srv_options *out, int argc, char *const argv[],
                                        char *const envp[], struct err *e);
void srv_options_fini(struct srv_options *o);

/* The help text, generated from the table. */
void srv_options_help(FILE *f);

/* A row of the table: name without dashes, the default's text (NULL: none), help. */
struct srv_option {
    const char *name, *initial, *help;
};
/* Row i, borrowed for ever; false behind the last one. */
bool srv_options_row(size_t i, struct srv_option *out);

/* "128k" = 128,000, "128K" and "128Ki" = 131,072, also with M, G, T, decimals
 * ("1.5G") and a trailing B.  ERR_INVALID when it is none of these. */
MUST_USE enum err_code srv_parse_size(const char *text, uint64_t *out, struct err *e);

/* Edits (insert, delete, replace, swap of neighbours) between two words. */
uint32_t srv_edit_distance(const char *a, const char *b);

#endif
