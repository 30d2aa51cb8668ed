/* tokenizer_threads_test.c: many threads encode with one fresh tokenizer, whose
 * facts about whole pieces are found as they go, and all get the same ids. */
#include <pthread.h>
#include <stdio.h>

#include "model/tokenizer/tokenizer.h"
#include "support/test.h"

enum { N_THREADS = 4, ROUNDS = 20 };

static const char text[] =
    "Once upon a time, in a big forest, there lived a rhinoceros named Roxy. Roxy loved to climb: "
    "12345 trees, rocks & hills!  One day she found an icy hill;\n\nit wasn't like anything she'd "
    "seen before \xe2\x80\x94 caf\xc3\xa9, \xe4\xbd\xa0\xe5\xa5\xbd, \xf0\x9f\x98\x80.";

struct job {
    const struct tokenizer *t;
    struct token_list ids;
    enum err_code rc;
};

static void *encode(void *arg)
{
    struct job *j = arg;
    struct err e;
    for (int i = 0; i < ROUNDS && j->rc == ERR_OK; i++) {
        j->ids.n = 0;
        j->rc = tokenizer_encode(j->t, text, sizeof(text) - 1, TOKENIZER_SPECIAL, 0, &j->ids, &e);
    }
    return NULL;
}

TEST(threads_agree)
{
    struct tokenizer *t;
    struct err e;
    struct job job[N_THREADS] = { 0 };
    pthread_t thread[N_THREADS];
    assert_ok(tokenizer_open_file(&t, "deploy/models/tales-7m/tokenizer.json", &e), e);
    for (int i = 0; i < N_THREADS; i++) {
        job[i].t = t;
        assert_int_equal(pthread_create(&thread[i], NULL, encode, &job[i]), 0);
    }
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    for (int i = 0; i < N_THREADS; i++) {
        assert_int_equal(job[i].rc, ERR_OK);
        assert_true(job[i].ids.n > 50);
        assert_int_equal(job[i].ids.n, job[0].ids.n);
        assert_memory_equal(job[i].ids.id, job[0].ids.id, job[0].ids.n * sizeof(int32_t));
    }
    for (int i = 0; i < N_THREADS; i++)
        token_list_fini(&job[i].ids);
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = { RUN(threads_agree) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
