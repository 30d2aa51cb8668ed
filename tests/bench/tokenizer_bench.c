/* tokenizer_bench.c: how fast a tokenizer loads and encodes.
 *
 *   tokenizer_bench TOKENIZER.json TEXT.txt [SECONDS]
 *
 * Encodes the text in one piece, again and again for SECONDS (default 3), on
 * one thread; prints load time, tokens, MB/s (10^6 bytes) of the best round,
 * decode speed, and the time for one megabyte of a single letter. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "model/tokenizer/tokenizer.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static char *read_all(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL || fseek(f, 0, SEEK_END) != 0) {
        fprintf(stderr, "%s: cannot be read\n", path);
        exit(2);
    }
    *n = (size_t)ftell(f);
    rewind(f);
    char *s = malloc(*n + 1);
    if (s == NULL || fread(s, 1, *n, f) != *n) {
        fprintf(stderr, "%s: cannot be read\n", path);
        exit(2);
    }
    fclose(f);
    return s;
}

static double encode_once(const struct tokenizer *t, const char *s, size_t n,
                          struct token_list *ids)
{
    struct err e;
    ids->n = 0;
    double from = now();
    if (tokenizer_encode(t, s, n, TOKENIZER_PARSE_SPECIAL, 0, ids, &e)) {
        fprintf(stderr, "%s\n", e.message);
        exit(1);
    }
    return now() - from;
}

int main(int argc, char **argv)
{
    struct tokenizer *t;
    struct token_list ids = { 0 };
    struct err e;
    if (argc < 3) {
        fprintf(stderr, "usage: tokenizer_bench TOKENIZER.json TEXT.txt [SECONDS]\n");
        return 2;
    }
    double from = now();
    if (tokenizer_open_file(&t, argv[1], &e)) {
        fprintf(stderr, "%s\n", e.message);
        return 1;
    }
    double load = now() - from;
    size_t n;
    char *text = read_all(argv[2], &n);
    double first = encode_once(t, text, n, &ids), best = first, spent = 0;
    double seconds = argc > 3 ? atof(argv[3]) : 3;
    while (spent < seconds) {
        double x = encode_once(t, text, n, &ids);
        best = x < best ? x : best;
        spent += x;
    }
    char *back;
    size_t k, n_ids = ids.n;
    from = now();
    if (tokenizer_decode(t, ids.id, ids.n, false, &back, &k, &e)) {
        fprintf(stderr, "%s\n", e.message);
        return 1;
    }
    double decode = now() - from;
    free(back);
    char *letters = malloc(1000000);
    if (letters == NULL)
        return 1;
    memset(letters, 'a', 1000000);
    double long_piece = encode_once(t, letters, 1000000, &ids);
    printf("load %.0f ms; %zu bytes, %zu tokens; encode %.1f MB/s (first round %.1f); "
           "decode %.1f MB/s; 1 MB of one letter %.0f ms\n",
           load * 1e3, n, n_ids, (double)n / best * 1e-6, (double)n / first * 1e-6,
           (double)k / decode * 1e-6, long_piece * 1e3);
    free(letters);
    free(text);
    token_list_fini(&ids);
    tokenizer_close(t);
    return 0;
}
