/* request_fuzz.h: one body through the request codec, with what must hold for
 * any bytes.  Driven by libFuzzer and by a deterministic mutator. */
#ifndef TESTS_FUZZ_REQUEST_FUZZ_H
#define TESTS_FUZZ_REQUEST_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* data[0] picks the kind of body; aborts when a property fails. */
void request_fuzz_one(const uint8_t *data, size_t n);

#endif
