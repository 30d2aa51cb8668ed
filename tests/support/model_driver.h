/* model_driver.h: a model driven step by step without scheduler or pool.
 *
 * Owns block tables of its own (no sharing but what driver_share asks for) and
 * builds step plans from rows: as many tokens of each sequence as the test
 * wants.  Failures print and exit: a test program's tool.  One thread. */
#ifndef TESTS_SUPPORT_MODEL_DRIVER_H
#define TESTS_SUPPORT_MODEL_DRIVER_H

#include "model/model.h"

enum { DRIVER_SEQS = 256 };

struct driver;

struct driver_options {
    const char *path;
    enum model_dtype dtype;
    enum model_device device;                        /* 0: the CPU  */
    uint32_t max_model_len, n_threads, block_tokens; /* 0: 0, 0, 16 */
    uint32_t max_tokens, max_rows, max_outputs;      /* of a step   */
    uint32_t n_blocks;                               /* 0: enough for DRIVER_SEQS rows */
    bool eager;                                      /* model_limits */
    uint32_t expand_from;                            /* model_limits */
};

/* NULL and *e on failure. */
struct driver *driver_open(const struct driver_options *o, struct err *e);
/* The same; a failure is told and ends the program: with ctest's SKIP_RETURN_CODE,
 * 77, where a device is asked for that is not there, else with 2. */
struct driver *driver_open_or_exit(const struct driver_options *o);
void driver_close(struct driver *d);
struct model *driver_model(struct driver *d);
/* Blocks that the model was started with. */
uint32_t driver_blocks(const struct driver *d);
/* The plan of the last step. */
const struct step_plan *driver_plan(const struct driver *d);

/* Start sequence s from nothing. */
void driver_reset(struct driver *d, uint32_t s);
/* Start s from the first n_blocks full blocks of `from`: a prefix hit.  Returns
 * the tokens that need no compute. */
uint32_t driver_share(struct driver *d, uint32_t s, uint32_t from, uint32_t n_blocks);
/* Append known tokens, not computed yet. */
void driver_append(struct driver *d, uint32_t s, const int32_t *token, uint32_t n);
/* Tokens of s that are known but not computed. */
uint32_t driver_pending(const struct driver *d, uint32_t s);
uint32_t driver_length(const struct driver *d, uint32_t s);
const int32_t *driver_tokens(const struct driver *d, uint32_t s);

struct driver_row {
    uint32_t seq, n;                    /* compute n pending tokens of seq */
    bool all;                           /* an output at every token, else at the last one when
                                         * nothing stays pending */
    const struct sample_params *params; /* NULL: greedy, no logprobs */
    uint64_t seed;
    uint32_t n_prompt; /* of the history; 0: all */
};

/* Compute one step; outputs in row and token order. */
enum err_code driver_step(struct driver *d, const struct driver_row *row, uint32_t n_rows,
                          const struct sampled **out, uint32_t *n_out, struct err *e);

/* Greedy continuation of s by n tokens, prompt in chunks of `chunk` (0: whole). */
enum err_code driver_greedy(struct driver *d, uint32_t s, uint32_t n, uint32_t chunk, int32_t *out,
                            struct err *e);

#endif
