/* loader_test.c: what loading fills in, and what it leaves behind where a file is
 * missing or broken: nothing open, and a message that names the file. */
#include "support/test.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/loader.h"

static const char model_dir[] = "deploy/models/tales-7m";
static struct srv srv;
static char dir[64];

static void on_events(uv_async_t *a)
{
    (void)a;
}

static int begin(void **state)
{
    (void)state;
    memset(&srv, 0, sizeof srv);
    assert_int_equal(uv_loop_init(&srv.loop), 0);
    assert_int_equal(uv_async_init(&srv.loop, &srv.events, on_events), 0);
    srv_log_init(&srv.log, STDERR_FILENO, SRV_ERROR, SRV_LOG_TEXT);
    strcpy(dir, "/tmp/quire-loader-XXXXXX");
    assert_non_null(mkdtemp(dir));
    return 0;
}

static void path_of(char out[256], const char *name)
{
    snprintf(out, 256, "%s/%s", dir, name);
}

static int end(void **state)
{
    static const char *const names[] = { "config.json", "model.safetensors", "tokenizer.json" };
    char path[256];

    (void)state;
    loader_unload(&srv);
    uv_close((uv_handle_t *)&srv.events, NULL);
    uv_run(&srv.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&srv.loop), 0);
    srv_options_fini(&srv.opt);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        path_of(path, names[i]);
        unlink(path);
    }
    rmdir(dir);
    return 0;
}

static enum err_code load(const char *model, const char *option, const char *value, struct err *e)
{
    char *argv[] = { "quired",     "--device",    "cpu",
                     "--dtype",    "float32",     "--num-gpu-blocks-override",
                     "64",         (char *)model, (char *)option,
                     (char *)value };

    assert_ok(srv_options_read(&srv.opt, option ? 10 : 8, argv, NULL, e), *e);
    srv.served.name = &srv.opt.model;
    srv.served.n_names = 1;
    return loader_load(&srv, e);
}

/* The phase is main's to change; loading leaves nothing open and sets no engine. */
static void assert_nothing_open(void)
{
    assert_int_equal(srv.phase, SRV_LOADING);
    assert_null(srv.engine);
    assert_null(srv.loaded_engine);
    assert_null(srv.model);
    assert_null(srv.tokenizer);
    assert_null(srv.chat);
    assert_null(srv.served.model);
    assert_null(srv.metrics.serving.registry);
}

static void link_file(const char *name)
{
    char from[256], to[256], here[200];

    assert_non_null(getcwd(here, sizeof here - 1));
    snprintf(from, sizeof from, "%.150s/%s/%s", here, model_dir, name);
    path_of(to, name);
    assert_int_equal(symlink(from, to), 0);
}

TEST(a_model_is_loaded_whole)
{
    struct err e = { 0 };
    struct engine_snapshot s;

    assert_ok(load(model_dir, NULL, NULL, &e), e);
    assert_int_equal(srv.phase, SRV_LOADING);
    assert_null(srv.engine);
    engine_snapshot(srv.loaded_engine, &s);
    assert_int_equal(s.pool.n_blocks, 64);
    assert_int_equal(srv.served.max_model_len, srv.served.defaults.max_model_len);
    assert_true(srv.served.max_model_len > 0 && srv.served.max_model_len <= 64 * 16);
    assert_non_null(srv.served.tokenizer);
    assert_non_null(srv.served.chat);
    assert_string_equal(srv.served.model->backend, "cpu");
    assert_contains(srv.served.model->kernels, "attention: ");
    assert_int_equal(srv.served.defaults.vocab_size, srv.served.model->vocab_size);
    loader_unload(&srv);
    assert_nothing_open();
}

TEST(a_missing_directory_is_named)
{
    struct err e = { 0 };

    assert_int_not_equal(load("/nonexistent/model", NULL, NULL, &e), ERR_OK);
    assert_contains(e.message, "/nonexistent/model");
    assert_nothing_open();
}

TEST(a_broken_config_is_named)
{
    struct err e = { 0 };
    char path[256];

    path_of(path, "config.json");
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("{\"architectures\": [", f);
    fclose(f);
    assert_int_not_equal(load(dir, NULL, NULL, &e), ERR_OK);
    assert_contains(e.message, "config.json");
    assert_nothing_open();
}

/* The weights are open by then, and are closed again. */
TEST(a_missing_tokenizer_is_named)
{
    struct err e = { 0 };

    link_file("config.json");
    link_file("model.safetensors");
    assert_int_not_equal(load(dir, NULL, NULL, &e), ERR_OK);
    assert_contains(e.message, "tokenizer.json");
    assert_nothing_open();
}

TEST(a_context_that_does_not_fit_ends_the_load)
{
    struct err e = { 0 };

    assert_int_equal(load(model_dir, "--max-model-len", "1025", &e), ERR_LIMIT);
    assert_contains(e.message, "at most 1024 tokens fit");
    assert_nothing_open();
}

TEST(a_template_that_is_given_must_be_one)
{
    struct err e = { 0 };

    assert_int_not_equal(load(model_dir, "--chat-template", "{% for %}", &e), ERR_OK);
    assert_contains(e.message, "chat template");
    assert_nothing_open();
}

TEST(a_template_file_that_is_missing_is_named)
{
    struct err e = { 0 };

    assert_int_equal(load(model_dir, "--chat-template", "/nonexistent.jinja", &e), ERR_IO);
    assert_string_equal(e.param, "chat-template");
    assert_contains(e.message, "/nonexistent.jinja");
    assert_nothing_open();
}

TEST(a_template_that_is_a_directory_is_refused)
{
    struct err e = { 0 };

    assert_int_equal(load(model_dir, "--chat-template", model_dir, &e), ERR_IO);
    assert_string_equal(e.param, "chat-template");
    assert_contains(e.message, "cannot be read");
    assert_nothing_open();
}

TEST(a_template_file_that_is_too_long_is_refused)
{
    char path[] = "/tmp/quire-template-XXXXXX";
    int fd = mkstemp(path);
    struct err e = { 0 };

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (1 << 20) + 1), 0);
    close(fd);
    assert_int_equal(load(model_dir, "--chat-template", path, &e), ERR_INVALID);
    unlink(path);
    assert_string_equal(e.param, "chat-template");
    assert_contains(e.message, "longer than 1048576 bytes");
    assert_nothing_open();
}

#define SCENE(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE(a_model_is_loaded_whole),
        SCENE(a_missing_directory_is_named),
        SCENE(a_broken_config_is_named),
        SCENE(a_missing_tokenizer_is_named),
        SCENE(a_context_that_does_not_fit_ends_the_load),
        SCENE(a_template_that_is_given_must_be_one),
        SCENE(a_template_file_that_is_missing_is_named),
        SCENE(a_template_that_is_a_directory_is_refused),
        SCENE(a_template_file_that_is_too_long_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
