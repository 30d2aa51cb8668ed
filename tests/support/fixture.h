/* fixture.h: model directories made from conformance fixtures.  A test
 * program's tool: one thread. */
#ifndef TESTS_SUPPORT_FIXTURE_H
#define TESTS_SUPPORT_FIXTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "proto/err.h"

enum { FIXTURE_PROMPTS = 8 };

struct fixture_prompt {
    int32_t *token; /* prompt, then its greedy continuation */
    uint32_t n_prompt, n;
    double *margin; /* [n - n_prompt] */
    float *logits;  /* [n, vocab], predicting each successor */
    uint32_t vocab;
};

struct fixture {
    char *family;
    cJSON *root;
    uint32_t n_prompts;
    struct fixture_prompt prompt[FIXTURE_PROMPTS];
};

/* Read DIR/fixture.json and the logits that it names. */
MUST_USE enum err_code fixture_read(struct fixture *f, const char *dir, struct err *e);
void fixture_fini(struct fixture *f);

/* Write the filled tensors to TO/model.safetensors. */
MUST_USE enum err_code fixture_write_weights(const struct fixture *f, const char *to,
                                             struct err *e);

/* Copy one file. */
MUST_USE enum err_code fixture_copy(const char *from, const char *to, struct err *e);

/* A fresh directory, its name in out; fixture_remove deletes its plain files and it. */
MUST_USE enum err_code fixture_temp_dir(char *out, size_t cap, struct err *e);
void fixture_remove(const char *dir);

#endif
