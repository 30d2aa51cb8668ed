/* tokenizer_fuzz.h: the fuzz targets of the tokenizer, shared by libFuzzer and
 * the smoke program.  Both run from the source folder. */
#ifndef TESTS_FUZZ_TOKENIZER_FUZZ_H
#define TESTS_FUZZ_TOKENIZER_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* data is a tokenizer.json: refused with a message, or it encodes. */
int tokenizer_fuzz_json(const uint8_t *data, size_t n);
/* data is text for one of several tokenizers (the first byte chooses): no
 * control token comes out, streams decode to the whole. */
int tokenizer_fuzz_text(const uint8_t *data, size_t n);

#endif
