/* tokenizer_libfuzzer.c: libFuzzer's entry to FUZZ_TARGET of tokenizer_fuzz.c. */
#include "fuzz/tokenizer_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    return FUZZ_TARGET(data, n);
}
