/* request_libfuzzer.c: libFuzzer's entry to request_fuzz.h. */
#include "fuzz/request_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    request_fuzz_one(data, n);
    return 0;
}
