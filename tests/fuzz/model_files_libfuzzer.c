/* model_files_libfuzzer.c: model_files_fuzz under libFuzzer. */
#include "fuzz/model_files_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    model_files_fuzz(data, n);
    return 0;
}
