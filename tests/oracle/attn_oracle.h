/* attn_oracle.h: the attention operator once more, naively, in double.
 *
 * Written from the contract, sharing no arithmetic with the backends: no tiles,
 * no online softmax, its own number formats.  Slow and obvious.  One thread. */
#ifndef TESTS_ORACLE_ATTN_ORACLE_H
#define TESTS_ORACLE_ATTN_ORACLE_H

#include "attention/attn.h"

struct oracle_result {
    int64_t tokens, heads, v_width, qk_cols;
    double *out; /* [tokens][heads][v_width]          */
    double *qk;  /* [heads][tokens][qk_cols], or NULL */
    double *k, *v; /* caches after the call, dequantised; v NULL in LATENT */
};

/* args as for attn_run, host memory; its caches are left alone. */
void oracle_run(const struct attn_attrs *attrs, const struct attn_args *args,
                struct oracle_result *res);
void oracle_free(struct oracle_result *res);

/* Element i of a tensor's memory as a double. */
double oracle_value(enum attn_dtype d, const void *p, int64_t i);

#endif
