/* attention_plan_fuzz.h: the operator under arbitrary shapes and contents. */
#ifndef TESTS_FUZZ_ATTENTION_PLAN_FUZZ_H
#define TESTS_FUZZ_ATTENTION_PLAN_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Build a call from the bytes, plan it and, where it is small, run it.  Aborts
 * when a promise is broken. */
void attention_plan_fuzz(const uint8_t *data, size_t n);

/* How many calls were planned and how many ran, since the start. */
void attention_plan_fuzz_counts(uint64_t *planned, uint64_t *accepted, uint64_t *ran);

#endif
