/* model_files_smoke.c: model_files_fuzz under a deterministic mutator.
 *
 * usage: model_files_smoke ROUNDS CONFIG.json... */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/model_files_fuzz.h"
#include "support/rng.h"

enum { MOST = 1 << 14, SEEDS = 64 };

static const char *const words[] = {
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "null",
    "true",
    "false",
    "-1",
    "0",
    "1e308",
    "0.5",
    "4294967296",
    "18446744073709551615",
    "9223372036854775808",
    "\"dtype\":\"F32\"",
    "\"shape\":[2,2]",
    "\"data_offsets\":[0,16]",
    "\"__metadata__\":{}",
    "\\u0000",
    "\xff",
    "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4}",
    "\"rope_type\":\"longrope\"",
    "\"layer_types\":[]",
    "\"num_experts_per_tok\":9",
    "\"n_group\":3",
    "\"sliding_window\":1",
    "\"head_dim\":8",
    "\"partial_rotary_factor\":0.01",
    "\"num_hidden_layers\":512",
};

struct input {
    uint8_t b[MOST];
    size_t n;
};

static struct input seed[SEEDS];
static uint32_t n_seeds;

/* A file whose header is `header`, with room for its data. */
static void add_safetensors(const char *header, size_t n_data)
{
    struct input *s = &seed[n_seeds++];
    uint64_t n = strlen(header);
    s->b[0] = 0;
    memcpy(s->b + 1, &n, 8);
    memcpy(s->b + 9, header, n);
    s->n = 9 + n + n_data;
}

static void add_config(const char *path)
{
    struct input *s = &seed[n_seeds];
    FILE *f = fopen(path, "rb");
    if (f == NULL || n_seeds == SEEDS) {
        fprintf(stderr, "model_files_smoke: %s: cannot be used\n", path);
        exit(2);
    }
    s->b[0] = 1;
    s->n = 1 + fread(s->b + 1, 1, MOST - 1, f);
    fclose(f);
    n_seeds++;
}

static void splice(struct input *s, size_t at, size_t cut, const void *p, size_t n)
{
    if (at + cut > s->n || s->n - cut + n > MOST)
        return;
    memmove(s->b + at + n, s->b + at + cut, s->n - at - cut);
    memcpy(s->b + at, p, n);
    s->n += n - cut;
}

/* Keep the length field true, most of the time: otherwise little else is read. */
static void repair(struct input *s, struct rng *r)
{
    if (s->b[0] % 2 != 0 || s->n < 9 || rng_below(r, 8) == 0)
        return;
    uint64_t n = 0;
    for (size_t i = 9, depth = 0; i < s->n; i++) {
        depth += s->b[i] == '{';
        if (s->b[i] == '}' && --depth == 0) {
            n = i + 1 - 9;
            break;
        }
        if (depth > s->n)
            break;
    }
    memcpy(s->b + 1, &n, 8);
}

static void mutate(struct input *s, struct rng *r)
{
    for (uint32_t k = 0; k <= rng_below(r, 4); k++) {
        size_t at = 1 + rng_below(r, (uint32_t)s->n);
        const char *w = words[rng_below(r, sizeof words / sizeof *words)];
        uint8_t byte = (uint8_t)rng_next(r);
        if (at >= s->n)
            at = s->n - 1;
        switch (rng_below(r, 5)) {
        case 0:
            s->b[at] = byte;
            break;
        case 1:
            splice(s, at, 0, w, strlen(w));
            break;
        case 2:
            splice(s, at, rng_below(r, 24), "", 0);
            break;
        case 3:
            splice(s, at, rng_below(r, 12), w, strlen(w));
            break;
        default:
            s->b[at] = (uint8_t)('0' + byte % 10);
            break;
        }
    }
    repair(s, r);
}

int main(int argc, char **argv)
{
    static struct input s;
    struct rng r = { 20261129 };
    if (argc < 3) {
        fprintf(stderr, "usage: model_files_smoke ROUNDS CONFIG.json...\n");
        return 2;
    }
    add_safetensors("{\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}", 16);
    add_safetensors("{\"__metadata__\":{\"format\":\"pt\"},"
                    "\"a\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[0,6]},"
                    "\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[6,6]},"
                    "\"c\":{\"dtype\":\"F16\",\"shape\":[1,2],\"data_offsets\":[6,10]}}",
                    10);
    for (int i = 2; i < argc; i++)
        add_config(argv[i]);
    for (uint32_t i = 0; i < n_seeds; i++)
        model_files_fuzz(seed[i].b, seed[i].n);
    unsigned long rounds = strtoul(argv[1], NULL, 10);
    for (unsigned long i = 0; i < rounds; i++) {
        s = seed[rng_below(&r, n_seeds)];
        mutate(&s, &r);
        model_files_fuzz(s.b, s.n);
    }
    printf("%lu inputs\n", rounds);
    return 0;
}
