/* step_plan.h: the contract between scheduling and compute, one step at a time.
 *
 * The scheduler fills it, attention and model read it; nothing else crosses.
 * n tokens, r rows.  All arrays are owned by the scheduler; the model reads them
 * before its forward returns, and not after.  Host memory.
 *
 * A step may be planned while the one before it runs.  The token which that one
 * will sample for a row is not known then: token_from names the output that it
 * will come from, and the model takes it from its own results. */
#ifndef PROTO_PLAN_STEP_PLAN_H
#define PROTO_PLAN_STEP_PLAN_H

#include <stdint.h>

#include "proto/ids.h"
#include "proto/plan/kv_layout.h"
#include "proto/plan/sample_params.h"

/* One use of the logits computed at one token of the step. */
struct plan_output {
    uint32_t row;   /* row of the step                                    */
    uint32_t token; /* index into token[]: logits predicting its successor */
    int32_t target; /* -1: sample the successor.  Else: do not sample,
                     * report this token's logprob (prompt logprobs)      */
    const struct sample_params *params;
    uint64_t seed;          /* Philox key of this sequence (params->seed + choice) */
    const int32_t *history; /* [n_history] the sequence up to and with token; its
                             * last entry is -1 where token_from names that token  */
    uint32_t n_history;     /* = position of the successor                        */
    uint32_t n_prompt;      /* leading part of history that is prompt             */
};

/* Whether the stop ids may not be sampled here: min_tokens is not reached. */
static inline bool plan_stops_masked(const struct plan_output *o)
{
    return o->n_history - o->n_prompt < o->params->min_tokens && o->params->n_stop_ids > 0;
}

/* Alternatives to report, of a vocabulary of that many. */
static inline uint32_t plan_n_top(const struct plan_output *o, uint32_t vocab)
{
    int32_t n = o->params->n_logprobs;
    return n <= 0 ? 0 : (uint32_t)n < vocab ? (uint32_t)n : vocab;
}

/* Copy a whole block (all slabs) before the step's first store: copy-on-write. */
struct plan_copy {
    blk_id from, to;
};

struct step_plan {
    uint64_t step; /* monotonic from 1; keys resting blocks */
    uint32_t n_tokens, n_rows, n_groups;
    uint32_t max_query_len, max_kv_len;     /* over rows; kv length after this step   */
    const int32_t *token, *position;        /* [n]                                    */
    const int32_t *token_from;              /* NULL: all tokens are known.  Else [n]: -1,
                                             * or the output of step - 1 whose sampled
                                             * token this one is; token[] is -1 then   */
    const int32_t *cu_seqlens;              /* [r+1], [0] = 0, [r] = n                */
    const int32_t *past_seqlens;            /* [r] tokens in KV before this step      */
    const int32_t *slot_mapping[KV_GROUPS]; /* [n] block*B+offset; -1 skips       */
    const int32_t *block_table[KV_GROUPS];  /* [r, table_cols]; -1 unmapped       */
    uint32_t table_cols[KV_GROUPS];
    uint32_t n_copies;
    const struct plan_copy *copy; /* [n_copies] */
    uint32_t n_outputs;
    const struct plan_output *output; /* [n_outputs], token ascending */
};

/* What came of one plan_output; arrays borrowed from the model until its next
 * forward.  Logprobs are natural logs of the softmax of the raw logits (before
 * bias, penalties and temperature). */
struct sampled {
    int32_t token;            /* sampled, or the target                          */
    float logprob;            /* its logprob; 0 when n_logprobs < 0              */
    uint32_t n_top;           /* = params->n_logprobs, or 0                      */
    const int32_t *top_token; /* [n_top] best first                              */
    const float *top_logprob; /* [n_top]                                         */
    bool failed;              /* logits were not finite: the request must end in
                               * an error, no token exists                       */
};

/* Check every array of a plan against the operator's contract: prefix sums,
 * slots in range and pairwise distinct, table entries in range, each stored
 * slot equal to its table entry, outputs ascending.  ERR_INVALID names the
 * array, the index and the value.  Debug builds run it every step. */
MUST_USE enum err_code step_plan_check(const struct step_plan *p, const struct kv_layout *lay,
                                       uint32_t n_blocks, struct err *e);

#endif
