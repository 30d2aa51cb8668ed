/* attention_plan_libfuzzer.c: libFuzzer's door to attention_plan_fuzz. */
#include "fuzz/attention_plan_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    attention_plan_fuzz(data, n);
    return 0;
}
