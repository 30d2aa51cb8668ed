/* template_fuzz.h: the fuzz target of chat templates, shared by libFuzzer and
 * the smoke program. */
#ifndef TESTS_FUZZ_TEMPLATE_FUZZ_H
#define TESTS_FUZZ_TEMPLATE_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int template_fuzz_one(const uint8_t *data, size_t n);

#endif
