/* model_files_fuzz.h: one input for the readers of model files: the first byte
 * chooses safetensors (even) or config.json (odd), the rest is the file. */
#ifndef TESTS_FUZZ_MODEL_FILES_FUZZ_H
#define TESTS_FUZZ_MODEL_FILES_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Aborts when a property fails. */
void model_files_fuzz(const uint8_t *data, size_t n);

#endif
