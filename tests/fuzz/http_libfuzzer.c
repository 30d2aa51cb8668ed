/* http_libfuzzer.c: libFuzzer's entry to http_fuzz.h; FUZZ_TARGET names the function. */
#include "fuzz/http_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    FUZZ_TARGET(data, n);
    return 0;
}
