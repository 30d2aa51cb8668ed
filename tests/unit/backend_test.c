/* backend_test.c: which device a model opens on, and what is said about it. */
#include <stdio.h>

#include "model/model.h"
#include "support/test.h"

static const char *const no_plugin = "/nonexistent/quire_cuda.so";
static const char *model_dir;

static enum err_code open_on(enum model_device device, enum model_dtype dtype, struct model **out,
                             struct err *e)
{
    struct model_options o = { .path = model_dir,
                               .dtype = dtype,
                               .device = device,
                               .block_tokens = 16,
                               .max_model_len = 64,
                               .n_threads = 1,
                               .plugin = no_plugin };
    return model_open(out, &o, e);
}

TEST(auto_falls_back_and_says_why)
{
    struct model *m = NULL;
    struct err e = { 0 };
    assert_int_equal(open_on(MODEL_DEVICE_AUTO, MODEL_AUTO, &m, &e), ERR_OK);
    const struct model_info *info = model_describe(m);
    assert_string_equal(info->backend, "cpu");
    assert_string_equal(info->device_note,
                        "computes on the CPU: plugin: /nonexistent/quire_cuda.so does not exist");
    model_close(m);
}

TEST(cpu_asked_for_needs_no_note)
{
    struct model *m = NULL;
    struct err e = { 0 };
    assert_int_equal(open_on(MODEL_DEVICE_CPU, MODEL_FLOAT32, &m, &e), ERR_OK);
    assert_string_equal(model_describe(m)->device_note, "");
    model_close(m);
}

TEST(cuda_demanded_is_cuda_or_nothing)
{
    struct model *m = NULL;
    struct err e = { 0 };
    assert_int_equal(open_on(MODEL_DEVICE_CUDA, MODEL_AUTO, &m, &e), ERR_NOT_FOUND);
    assert_null(m);
    assert_string_equal(e.message,
                        "device cuda: plugin: /nonexistent/quire_cuda.so does not exist");
    assert_int_equal(open_on(MODEL_DEVICE_CUDA, MODEL_FLOAT32, &m, &e), ERR_INVALID);
    assert_string_equal(e.message,
                        "device cuda: dtype float32: the cuda backend computes in bfloat16");
}

TEST(a_cpu_has_no_device_memory)
{
    struct model *m = NULL;
    struct err e = { 0 };
    struct model_limits lim = { .max_tokens = 8, .max_rows = 2, .max_outputs = 2 };
    struct model_memory memory;
    assert_int_equal(open_on(MODEL_DEVICE_CPU, MODEL_FLOAT32, &m, &e), ERR_OK);
    assert_int_equal(model_memory(m, &lim, &memory, &e), ERR_OK);
    assert_int_equal(memory.total_bytes, 0);
    assert_int_equal(memory.step_bytes, 0);
    model_close(m);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        RUN(auto_falls_back_and_says_why),
        RUN(cpu_asked_for_needs_no_note),
        RUN(cuda_demanded_is_cuda_or_nothing),
        RUN(a_cpu_has_no_device_memory),
    };
    if (argc != 2) {
        fprintf(stderr, "usage: backend_test MODEL_DIR\n");
        return 2;
    }
    model_dir = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
