/* pool_bench.c: nanoseconds a block of each pool operation, by pool size.
 *
 *   pool_bench [rounds]
 *
 * Sequences of 64 blocks (1,024 tokens) with texts of their own.  The pool is
 * aged first: filled, closed in random order and used over, so that ids, index
 * and lists are scattered as after long service.  Then, per pool size:
 *   fresh    reserve from free blocks
 *   evict    reserve from cached blocks: eviction and hand-out
 *   publish  commit: hash, index, publish
 *   release  close: every block to its place in the eviction order
 *   lookup   open with every block cached: hash, compare, hold
 *   decode   one reserve and one commit of one token, per token
 * The figures are medians over rounds; the best of all would flatter. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kvpool/kvpool.h"
#include "support/rng.h"

enum { B = 16, LEN = 64, TOKENS = B * LEN, MAX_ROUNDS = 1001 };

struct bench {
    struct kvpool *pool;
    struct rng r;
    uint32_t n_texts, n_batch; /* texts that fill the pool; sequences a round */
    seq_id *seq;
    uint32_t *pick;
    int32_t *batch; /* [n_batch][TOKENS] */
};

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void text(int32_t *out, uint64_t number)
{
    struct rng r = { number * 0x9E3779B97F4A7C15u };
    for (uint32_t i = 0; i < TOKENS; i += 2) {
        uint64_t v = rng_next(&r);
        out[i] = (int32_t)(v & 0x1ffff);
        out[i + 1] = (int32_t)(v >> 32 & 0x1ffff);
    }
}

static void must(enum err_code rc, const struct err *e)
{
    if (rc == ERR_OK)
        return;
    fprintf(stderr, "%s\n", e->message);
    exit(1);
}

static uint32_t open_one(struct bench *b, uint32_t i)
{
    struct err e;
    uint32_t cached;
    must(kvpool_open(b->pool, b->batch + (size_t)i * TOKENS, TOKENS, NULL, &b->seq[i], &cached, &e),
         &e);
    return cached;
}

/* Fill with texts first..first+n, close each batch in random order. */
static void run_texts(struct bench *b, uint64_t first, uint32_t n)
{
    struct err e;
    for (uint32_t done = 0; done < n; done += b->n_batch) {
        uint32_t k = n - done < b->n_batch ? n - done : b->n_batch;
        for (uint32_t i = 0; i < k; i++) {
            text(b->batch + (size_t)i * TOKENS, first + done + i);
            uint32_t cached = open_one(b, i);
            must(kvpool_reserve(b->pool, b->seq[i], TOKENS - cached, &e), &e);
            kvpool_commit(b->pool, b->seq[i], b->batch + (size_t)i * TOKENS + cached,
                          TOKENS - cached);
        }
        for (uint32_t i = k; i > 0; i--) {
            uint32_t j = rng_below(&b->r, i);
            kvpool_close(b->pool, b->seq[j]);
            b->seq[j] = b->seq[i - 1];
        }
    }
}

struct sample {
    double reserve, publish, release, lookup, decode;
};

/* One round of new texts; what is reserved comes from wherever it is. */
static struct sample round_new(struct bench *b, uint64_t first)
{
    struct sample s = { 0 };
    struct err e;
    double blocks = (double)b->n_batch * LEN, t0, t1;
    for (uint32_t i = 0; i < b->n_batch; i++) {
        text(b->batch + (size_t)i * TOKENS, first + i);
        open_one(b, i);
    }
    t0 = now_ns();
    for (uint32_t i = 0; i < b->n_batch; i++)
        must(kvpool_reserve(b->pool, b->seq[i], TOKENS, &e), &e);
    t1 = now_ns();
    s.reserve = (t1 - t0) / blocks;
    t0 = now_ns();
    for (uint32_t i = 0; i < b->n_batch; i++)
        kvpool_commit(b->pool, b->seq[i], b->batch + (size_t)i * TOKENS, TOKENS);
    t1 = now_ns();
    s.publish = (t1 - t0) / blocks;
    t0 = now_ns();
    for (uint32_t i = 0; i < b->n_batch; i++)
        kvpool_close(b->pool, b->seq[i]);
    t1 = now_ns();
    s.release = (t1 - t0) / blocks;
    return s;
}

/* Open texts that are cached, chosen at random among first..first+n. */
static double round_lookup(struct bench *b, uint64_t first, uint32_t n)
{
    uint64_t hit = 0;
    for (uint32_t i = 0; i < b->n_batch; i++)
        text(b->batch + (size_t)i * TOKENS, first + rng_below(&b->r, n));
    double t0 = now_ns();
    for (uint32_t i = 0; i < b->n_batch; i++)
        hit += open_one(b, i);
    double t1 = now_ns();
    for (uint32_t i = 0; i < b->n_batch; i++)
        kvpool_close(b->pool, b->seq[i]);
    if (hit != (uint64_t)b->n_batch * (TOKENS - B)) {
        fprintf(stderr, "lookup found %llu of %llu tokens\n", (unsigned long long)hit,
                (unsigned long long)b->n_batch * (TOKENS - B));
        exit(1);
    }
    return (t1 - t0) / ((double)b->n_batch * (LEN - 1));
}

/* Decode 128 tokens of every sequence of the batch, interleaved. */
static double round_decode(struct bench *b, uint64_t first)
{
    struct err e;
    for (uint32_t i = 0; i < b->n_batch; i++) {
        text(b->batch + (size_t)i * TOKENS, first + i);
        uint32_t cached;
        must(kvpool_open(b->pool, b->batch + (size_t)i * TOKENS, 1, NULL, &b->seq[i], &cached, &e),
             &e);
    }
    double t0 = now_ns();
    for (uint32_t n = 0; n < 128; n++)
        for (uint32_t i = 0; i < b->n_batch; i++) {
            must(kvpool_reserve(b->pool, b->seq[i], 1, &e), &e);
            kvpool_commit(b->pool, b->seq[i], b->batch + (size_t)i * TOKENS + n, 1);
        }
    double t1 = now_ns();
    for (uint32_t i = 0; i < b->n_batch; i++)
        kvpool_close(b->pool, b->seq[i]);
    return (t1 - t0) / (128.0 * b->n_batch);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, uint32_t n)
{
    qsort(v, n, sizeof *v, by_value);
    return v[n / 2];
}

static void measure(uint32_t n_blocks, uint32_t rounds)
{
    static double fresh[MAX_ROUNDS], evict[MAX_ROUNDS], publish[MAX_ROUNDS], release[MAX_ROUNDS],
        lookup[MAX_ROUNDS], decode[MAX_ROUNDS];
    struct kv_layer_desc d = { .kind = KV_FULL, .kv_heads = 1, .k_width = 8, .v_width = 8 };
    struct kv_layout lay;
    struct err e;
    struct bench b = { .r = { n_blocks }, .n_texts = n_blocks / LEN };
    b.n_batch = b.n_texts / 3 < 128 ? b.n_texts / 3 : 128;
    struct kvpool_config cfg = { .n_blocks = n_blocks,
                                 .max_seqs = b.n_batch,
                                 .max_seq_tokens = 2 * TOKENS,
                                 .max_chunk = TOKENS,
                                 .prefix_caching = true };
    must(kv_layout_init(&lay, &d, 1, B, KV_BF16, KV_BF16, &e), &e);
    must(kvpool_create(&b.pool, &lay, &cfg, &e), &e);
    b.seq = calloc(b.n_batch, sizeof *b.seq);
    b.batch = calloc((size_t)b.n_batch * TOKENS, sizeof *b.batch);
    uint64_t next = 1;
    run_texts(&b, next, b.n_texts * 2);
    next += b.n_texts * 2;
    for (uint32_t i = 0; i < b.n_texts; i += b.n_batch) /* scatter by reuse in random order */
        round_lookup(&b, next - b.n_texts + b.n_batch, b.n_texts - 2 * b.n_batch);
    for (uint32_t i = 0; i < rounds; i++, next += b.n_batch) {
        struct sample s = round_new(&b, next);
        evict[i] = s.reserve;
        publish[i] = s.publish;
        release[i] = s.release;
        lookup[i] = round_lookup(&b, next, b.n_batch);
    }
    /* Look-ups all over the pool, not only of what was just used. */
    run_texts(&b, next, b.n_texts);
    for (uint32_t i = 0; i < rounds; i++)
        lookup[i] = round_lookup(&b, next + b.n_batch, b.n_texts - 2 * b.n_batch);
    next += b.n_texts;
    for (uint32_t i = 0; i < rounds; i++, next += b.n_batch)
        decode[i] = round_decode(&b, next);
    for (uint32_t i = 0; i < rounds; i++, next += b.n_batch) {
        kvpool_reset_cache(b.pool);
        fresh[i] = round_new(&b, next).reserve;
    }
    must(kvpool_check(b.pool, &e), &e);
    printf("%9u %7.1f %7.1f %7.1f %7.1f %7.1f %7.1f\n", n_blocks, median(fresh, rounds),
           median(evict, rounds), median(publish, rounds), median(release, rounds),
           median(lookup, rounds), median(decode, rounds));
    fflush(stdout);
    free(b.seq);
    free(b.batch);
    kvpool_destroy(b.pool);
}

int main(int argc, char **argv)
{
    uint32_t rounds = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 51;
    if (rounds < 1 || rounds > MAX_ROUNDS) {
        fprintf(stderr, "rounds: 1..%d\n", MAX_ROUNDS);
        return 2;
    }
    printf("ns a block   fresh   evict publish release  lookup  decode (ns a token)\n");
    for (uint32_t n = 1000; n <= 1000000; n *= 10)
        measure(n, rounds);
    return 0;
}
