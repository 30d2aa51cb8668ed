/* engine_loop.h: decode through the real scheduler and pool.  One thread. */
#ifndef TESTS_BENCH_ENGINE_LOOP_H
#define TESTS_BENCH_ENGINE_LOOP_H

#include "model/model.h"

/* Decode `batch` rows for `steps` steps together after prompts of `context` on a
 * started model that holds n_blocks, takes max_tokens a step and max_outputs
 * outputs; print a step's time, the host's share, and how long the device had
 * nothing to do: with overlap, a step that was begun before the one before it
 * had ended leaves no gap. */
void engine_loop_bench(struct model *m, uint32_t n_blocks, uint32_t max_tokens,
                       uint32_t max_outputs, uint32_t batch, uint32_t context, uint32_t steps,
                       bool overlap);

#endif
