/* workers.c: the fork-join pool.
 *
 * Owns n - 1 threads and one struct.  See workers.h for who may call.  Promises
 * that no task is lost or run twice, that a run returns only when its tasks are
 * done, and that a thread which is slow to wake delays nobody: tasks it has not
 * claimed are done by others.
 *
 * One 64-bit word publishes the work: a generation and the next unclaimed task.
 * A worker claims task i by compare-and-swap of the whole word, so a claim made
 * under an earlier generation fails; the fields beside the word are read before
 * the claim and are only trusted once it has succeeded. */
#include "attention/platform/workers.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

/* Looks at a shared word before going to sleep: some 10 to 50 us. */
enum { SPINS = 1000 };

#define NEXT_MASK 0xFFFFFFFFull
#define GEN_SHIFT 32

struct member {
    struct workers *pool;
    uint32_t id;
    pthread_t thread;
};

struct workers {
    uint32_t n;
    struct member *member; /* [n]; [0] is the caller and has no thread */

    _Atomic uint64_t word; /* generation << 32 | next task */
    _Atomic(workers_task *) task;
    _Atomic(void *) ctx;
    atomic_uint n_tasks;
    atomic_uint done; /* tasks finished */

    atomic_bool stop;
    atomic_uint sleepers, joiners;
    pthread_mutex_t lock;
    pthread_cond_t work, joined;
};

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* ---- sleeping ------------------------------------------------------------- */

/* Both waits of the pool look a while, then sleep under the lock.  A sleeper announces itself
 * before its last look and a publisher looks for sleepers after publishing, so one of them sees the
 * other. */

static uint64_t wait_for_work(struct workers *w, uint64_t seen_gen)
{
    uint64_t word;
    for (int i = 0; i < SPINS; i++) {
        word = atomic_load(&w->word);
        if (word >> GEN_SHIFT != seen_gen)
            return word;
        relax();
    }
    pthread_mutex_lock(&w->lock);
    atomic_fetch_add(&w->sleepers, 1);
    while ((word = atomic_load(&w->word)) >> GEN_SHIFT == seen_gen && !atomic_load(&w->stop))
        pthread_cond_wait(&w->work, &w->lock);
    atomic_fetch_sub(&w->sleepers, 1);
    pthread_mutex_unlock(&w->lock);
    return word;
}

static void wait_for_done(struct workers *w, uint32_t n)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load(&w->done) >= n)
            return;
        relax();
    }
    pthread_mutex_lock(&w->lock);
    atomic_fetch_add(&w->joiners, 1);
    while (atomic_load(&w->done) < n)
        pthread_cond_wait(&w->joined, &w->lock);
    atomic_fetch_sub(&w->joiners, 1);
    pthread_mutex_unlock(&w->lock);
}

static void finish(struct workers *w, uint32_t n_done)
{
    atomic_fetch_add(&w->done, n_done);
    if (atomic_load(&w->joiners) == 0)
        return;
    pthread_mutex_lock(&w->lock);
    pthread_cond_signal(&w->joined);
    pthread_mutex_unlock(&w->lock);
}

static void wake(struct workers *w, uint32_t n)
{
    uint32_t asleep = atomic_load(&w->sleepers);
    if (asleep == 0)
        return;
    pthread_mutex_lock(&w->lock);
    if (n >= asleep)
        pthread_cond_broadcast(&w->work);
    else
        for (uint32_t i = 0; i < n; i++)
            pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&w->lock);
}

/* ---- work ----------------------------------------------------------------- */

/* Claim and run tasks of generation gen until none is left. */
static void drain(struct workers *w, uint64_t gen, uint32_t worker)
{
    uint32_t n_done = 0;
    uint64_t word = atomic_load(&w->word);
    for (;;) {
        workers_task *fn = atomic_load(&w->task);
        void *ctx = atomic_load(&w->ctx);
        uint32_t n = atomic_load(&w->n_tasks), i = (uint32_t)(word & NEXT_MASK);
        if (word >> GEN_SHIFT != gen || i >= n)
            break;
        if (!atomic_compare_exchange_weak(&w->word, &word, word + 1))
            continue;
        fn(ctx, i, worker);
        n_done++;
        word = atomic_load(&w->word);
    }
    if (n_done > 0)
        finish(w, n_done);
}

static void *thread_main(void *arg)
{
    struct member *m = arg;
    struct workers *w = m->pool;
    uint64_t gen = 0;
    for (;;) {
        uint64_t word = wait_for_work(w, gen);
        if (atomic_load(&w->stop))
            return NULL;
        gen = word >> GEN_SHIFT;
        drain(w, gen, m->id);
    }
}

/* Publish a new generation whose fields are already in place. */
static uint64_t publish(struct workers *w)
{
    uint64_t gen = (atomic_load(&w->word) >> GEN_SHIFT) + 1;
    atomic_store(&w->word, gen << GEN_SHIFT);
    return gen & ~0ull >> GEN_SHIFT;
}

void workers_run(struct workers *w, workers_task *fn, void *ctx, uint32_t n_tasks)
{
    uint64_t gen;
    if (w == NULL || w->n == 1 || n_tasks <= 1) {
        for (uint32_t i = 0; i < n_tasks; i++)
            fn(ctx, i, 0);
        return;
    }
    /* The old generation's tasks are all claimed: no claim can succeed while
     * the fields change, provided n_tasks never rises before the new word. */
    atomic_store(&w->n_tasks, 0);
    atomic_store(&w->word, atomic_load(&w->word) | NEXT_MASK);
    atomic_store(&w->done, 0);
    atomic_store(&w->task, fn);
    atomic_store(&w->ctx, ctx);
    atomic_store(&w->n_tasks, n_tasks);
    gen = publish(w);
    wake(w, n_tasks - 1);
    drain(w, gen, 0);
    wait_for_done(w, n_tasks);
}

/* ---- create and destroy ----------------------------------------------------------------- */

uint32_t workers_count(const struct workers *w)
{
    return w == NULL ? 1 : w->n;
}

static uint32_t count_cpus(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    int n = CPU_COUNT(&set);
    return n < 1 ? 1 : n > WORKERS_MAX ? WORKERS_MAX : (uint32_t)n;
}

/* Start threads 1..n-1 with every signal blocked: signals are the program's
 * business, not the pool's.  Returns how many members stand, the caller first. */
static uint32_t start_threads(struct workers *w)
{
    sigset_t all, old;
    uint32_t i;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (i = 1; i < w->n; i++) {
        w->member[i] = (struct member){ .pool = w, .id = i };
        if (pthread_create(&w->member[i].thread, NULL, thread_main, &w->member[i]) != 0)
            break;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return i;
}

static void stop_threads(struct workers *w, uint32_t n)
{
    pthread_mutex_lock(&w->lock);
    atomic_store(&w->stop, true);
    /* A new generation ends the spinning, a broadcast the sleep. */
    atomic_store(&w->n_tasks, 0);
    publish(w);
    pthread_cond_broadcast(&w->work);
    pthread_mutex_unlock(&w->lock);
    for (uint32_t i = 1; i < n; i++)
        pthread_join(w->member[i].thread, NULL);
}

enum err_code workers_create(struct workers **out, uint32_t n, struct err *e)
{
    struct workers *w;
    uint32_t started;
    if (n == 0)
        n = count_cpus();
    if (n > WORKERS_MAX)
        return err_set(e, ERR_LIMIT, "workers: %u asked for, at most %d are supported", n,
                       WORKERS_MAX);
    w = calloc(1, sizeof *w);
    if (w == NULL)
        return err_nomem(e, "thread pool", sizeof *w);
    w->member = calloc(n, sizeof *w->member);
    if (w->member == NULL) {
        free(w);
        return err_nomem(e, "thread pool members", n * sizeof *w->member);
    }
    w->n = n;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->work, NULL);
    pthread_cond_init(&w->joined, NULL);
    started = start_threads(w);
    if (started < n) {
        stop_threads(w, started);
        w->n = 1;
        workers_destroy(w);
        return err_set(e, ERR_IO, "workers: the system gave %u of %u threads", started - 1, n - 1);
    }
    *out = w;
    return ERR_OK;
}

void workers_destroy(struct workers *w)
{
    if (w == NULL)
        return;
    if (w->n > 1)
        stop_threads(w, w->n);
    pthread_cond_destroy(&w->joined);
    pthread_cond_destroy(&w->work);
    pthread_mutex_destroy(&w->lock);
    free(w->member);
    free(w);
}
