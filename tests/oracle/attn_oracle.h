/* attn_oracle.h: the attention operator once more, naively, in double.
 *
 * Written from the contract, sharing no arithmetic with the backends: no tiles,
 * no online softmax, its own number formats.  Slow and obvious.  One thread. */
#ifndef TESTS_ORACLE_ATTN_ORACLE_H
#define TESTS_ORACLE_ATTN_ORACLE_H

#include "attention/attn.h"

struct oracle_result {
    int64_t tokens, heads, v_width, qk_cols;
    double *out;   /* [tokens][heads][v_width]          */
    double *qk;    /* [heads][tokens][qk_cols], or NULL */
    double *k, *v; /* caches, dequantised; v NULL in LATENT */
};

/* The caches as the call should leave them, given the call before it runs
 * (host memory; left alone): k and v. */
void oracle_store(const struct attn_attrs *attrs, const struct attn_args *args,
                  struct oracle_result *res);

/* The outputs that follow from the caches as the call left them: out and qk.
 * Apart from the store, so that a code that rounding put on the next step is
 * judged there and not again in the output. */
void oracle_attend(const struct attn_attrs *attrs, const struct attn_args *args,
                   struct oracle_result *res);
void oracle_free(struct oracle_result *res);

/* Element i of a tensor's memory as a double. */
double oracle_value(enum attn_dtype d, const void *p, int64_t i);

#endif
