/* template_libfuzzer.c: libFuzzer's entry to template_fuzz.c. */
#include "fuzz/template_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    return template_fuzz_one(data, n);
}
