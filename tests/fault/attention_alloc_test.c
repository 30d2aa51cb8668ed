/* attention_alloc_test.c: every allocation of attention/ fails once. */
#include "attention/attn.h"
#include "attention/kv_slabs.h"
#include "attention/platform/workers.h"
#include "support/alloc_fail.h"
#include "support/test.h"

static enum err_code build_all(struct workers **w, struct attn **a, struct attn_kv **kv,
                               struct err *e)
{
    struct kv_layer_desc layers[2] = { { KV_FULL, 0, 2, 16, 16 }, { KV_FULL, 0, 2, 16, 16 } };
    struct attn_options opt = { 0 };
    struct kv_layout lay;
    enum err_code rc = kv_layout_init(&lay, layers, 2, 16, KV_F32, KV_F32, e);
    if (rc == ERR_OK)
        rc = workers_create(w, 3, e);
    opt.workers = *w;
    if (rc == ERR_OK)
        rc = attn_open(a, &opt, e);
    if (rc == ERR_OK)
        rc = attn_kv_create(kv, *a, &lay, 10, e);
    return rc;
}

TEST(each_failure_is_reported_and_leaves_nothing)
{
    for (int n = 0; n < 100; n++) {
        struct workers *w = NULL;
        struct attn *a = NULL;
        struct attn_kv *kv = NULL;
        struct err e = { 0 };
        enum err_code rc;
        alloc_fail_at(n, false);
        rc = build_all(&w, &a, &kv, &e);
        bool fired = alloc_fail_fired();
        alloc_fail_at(-1, false);
        attn_kv_destroy(kv);
        attn_close(a);
        workers_destroy(w);
        if (!fired) {
            assert_ok(rc, e);
            assert_true(n >= 5);
            return;
        }
        assert_int_equal(rc, ERR_NOMEM);
        assert_true(e.message[0] != '\0');
    }
    fail_msg("allocations never ended");
}

int main(void)
{
    const struct CMUnitTest tests[] = { RUN(each_failure_is_reported_and_leaves_nothing) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
