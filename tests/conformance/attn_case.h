/* attn_case.h: one conformance case of the attention operator, read from its file.
 *
 * The format: DIR/ID.json names the attributes, the shape and the filling of each
 * input, and files of little-endian float32 with the expected results.  Inputs
 * are generated from a key, so that a case is small (README.md in this folder).
 * Owns what it loads.  One thread. */
#ifndef TESTS_CONFORMANCE_ATTN_CASE_H
#define TESTS_CONFORMANCE_ATTN_CASE_H

#include "attention/attn.h"

enum attn_expect { EXPECT_OUTPUT, EXPECT_KEY_CACHE, EXPECT_VALUE_CACHE, EXPECT_QK, EXPECTS };

struct attn_case {
    char id[96];
    enum attn_dtype dtype, cache_dtype;
    int32_t head_size;
    struct attn_attrs attrs;
    struct attn_tensor in[ATTN_INPUTS]; /* host memory, owned */
    float *want[EXPECTS];               /* owned; NULL: not given */
    int64_t n_want[EXPECTS];
    int64_t want_shape[EXPECTS][ATTN_RANK];
};

/* Read DIR/ID.json.  On failure prints why to stderr and returns false. */
bool attn_case_load(struct attn_case *c, const char *json_path);
void attn_case_free(struct attn_case *c);

/* Elements of a tensor. */
int64_t attn_elements(const struct attn_tensor *t);

#endif
