/* make_model.c: write a model directory of a given shape with random weights.
 *
 * usage: make_model [--preset NAME] [--layers N] [--vocab N] [--seed N] DIR
 * Presets: llama-3.2-1b (untied, as a 1B-shaped load), llama-3.1-8b, tiny.
 * Weights are bfloat16, uniform with the spread that keeps activations near
 * one; norms are one.  tokenizer files are copied from --tokenizer DIR when
 * given.  Written in one pass. */
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "support/fixture.h"
#include "support/rng.h"

struct shape {
    const char *name;
    uint32_t hidden, inter, layers, heads, kv_heads, head_dim, vocab, positions;
    double theta;
};

static const struct shape presets[] = {
    { "llama-3.2-1b", 2048, 8192, 16, 32, 8, 64, 128256, 131072, 500000 },
    { "llama-3.1-8b", 4096, 14336, 32, 32, 8, 128, 128256, 131072, 500000 },
    { "tiny", 256, 768, 8, 4, 2, 64, 4096, 2048, 10000 },
};

enum { TENSORS_MAX = 4096 };

struct tensor {
    char name[96];
    uint64_t rows, cols; /* cols 0: a vector of ones */
};

static struct tensor tensor[TENSORS_MAX];
static uint32_t n_tensors;

static void add(uint64_t rows, uint64_t cols, const char *fmt, uint32_t layer)
{
    struct tensor *t = &tensor[n_tensors++];
    snprintf(t->name, sizeof t->name, fmt, layer);
    t->rows = rows;
    t->cols = cols;
}

static void list_tensors(const struct shape *s)
{
    uint32_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    add(s->vocab, s->hidden, "model.embed_tokens.weight", 0);
    for (uint32_t i = 0; i < s->layers; i++) {
        add(s->hidden, 0, "model.layers.%u.input_layernorm.weight", i);
        add(q, s->hidden, "model.layers.%u.self_attn.q_proj.weight", i);
        add(kv, s->hidden, "model.layers.%u.self_attn.k_proj.weight", i);
        add(kv, s->hidden, "model.layers.%u.self_attn.v_proj.weight", i);
        add(s->hidden, q, "model.layers.%u.self_attn.o_proj.weight", i);
        add(s->hidden, 0, "model.layers.%u.post_attention_layernorm.weight", i);
        add(s->inter, s->hidden, "model.layers.%u.mlp.gate_proj.weight", i);
        add(s->inter, s->hidden, "model.layers.%u.mlp.up_proj.weight", i);
        add(s->hidden, s->inter, "model.layers.%u.mlp.down_proj.weight", i);
    }
    add(s->hidden, 0, "model.norm.weight", 0);
    add(s->vocab, s->hidden, "lm_head.weight", 0);
}

static uint64_t n_elements(const struct tensor *t)
{
    return t->rows * (t->cols ? t->cols : 1);
}

static void write_header(FILE *f)
{
    size_t cap = 256 * (size_t)n_tensors + 64, n = 0;
    char *h = malloc(cap);
    uint64_t at = 0;
    if (h == NULL)
        exit(2);
    n += (size_t)snprintf(h + n, cap - n, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (uint32_t i = 0; i < n_tensors; i++) {
        const struct tensor *t = &tensor[i];
        uint64_t bytes = n_elements(t) * 2;
        n += (size_t)snprintf(h + n, cap - n, ",\"%s\":{\"dtype\":\"BF16\",\"shape\":[%llu",
                              t->name, (unsigned long long)t->rows);
        if (t->cols)
            n += (size_t)snprintf(h + n, cap - n, ",%llu", (unsigned long long)t->cols);
        n += (size_t)snprintf(h + n, cap - n, "],\"data_offsets\":[%llu,%llu]}",
                              (unsigned long long)at, (unsigned long long)(at + bytes));
        at += bytes;
    }
    n += (size_t)snprintf(h + n, cap - n, "}");
    while (n % 8 != 0)
        h[n++] = ' ';
    uint64_t length = n;
    fwrite(&length, 1, 8, f);
    fwrite(h, 1, n, f);
    free(h);
}

/* Uniform in +-sqrt(3/cols), from a table of 64 Ki values: fast enough to be
 * bound by the disk. */
static void write_tensor(FILE *f, const struct tensor *t, struct rng *r)
{
    enum { CHUNK = 1 << 16 };
    static uint16_t table[CHUNK], out[CHUNK];
    double spread = t->cols ? sqrt(3.0 / (double)t->cols) : 0;
    for (uint32_t i = 0; i < CHUNK; i++) {
        float v = t->cols ? (float)((rng_unit(r) * 2 - 1) * spread) : 1.0f;
        uint32_t u;
        memcpy(&u, &v, sizeof u);
        table[i] = (uint16_t)(u >> 16);
    }
    for (uint64_t left = n_elements(t); left > 0;) {
        uint32_t n = left < CHUNK ? (uint32_t)left : CHUNK;
        for (uint32_t i = 0; i < n; i += 4) {
            uint64_t z = rng_next(r);
            for (uint32_t j = 0; j < 4; j++)
                out[i + j] = table[z >> 16 * j & 0xFFFF];
        }
        fwrite(out, 2, n, f);
        left -= n;
    }
}

static void write_config(FILE *f, const struct shape *s)
{
    fprintf(f,
            "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\","
            "\"hidden_size\":%u,\"intermediate_size\":%u,\"num_hidden_layers\":%u,"
            "\"num_attention_heads\":%u,\"num_key_value_heads\":%u,\"head_dim\":%u,"
            "\"vocab_size\":%u,\"max_position_embeddings\":%u,\"rope_theta\":%.1f,"
            "\"rms_norm_eps\":1e-05,\"hidden_act\":\"silu\",\"tie_word_embeddings\":false,"
            "\"bos_token_id\":0,\"eos_token_id\":1,\"torch_dtype\":\"bfloat16\"}\n",
            s->hidden, s->inter, s->layers, s->heads, s->kv_heads, s->head_dim, s->vocab,
            s->positions, s->theta);
}

static FILE *create(const char *dir, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (f == NULL) {
        fprintf(stderr, "make_model: %s: %s\n", path, strerror(errno));
        exit(1);
    }
    return f;
}

static void copy_tokenizer(const char *from, const char *to)
{
    static const char *const names[] = { "tokenizer.json", "tokenizer_config.json" };
    for (int i = 0; i < 2; i++) {
        char a[4096], b[4096];
        struct err e;
        snprintf(a, sizeof a, "%s/%s", from, names[i]);
        snprintf(b, sizeof b, "%s/%s", to, names[i]);
        if (fixture_copy(a, b, &e) != ERR_OK) {
            fprintf(stderr, "make_model: %s\n", e.message);
            exit(1);
        }
    }
}

int main(int argc, char **argv)
{
    struct shape s = presets[0];
    struct rng r = { 1 };
    const char *tokenizer = NULL;
    int i = 1;
    for (; i + 1 < argc && strncmp(argv[i], "--", 2) == 0; i += 2) {
        const char *o = argv[i], *v = argv[i + 1];
        bool known = false;
        for (size_t p = 0; strcmp(o, "--preset") == 0 && p < sizeof presets / sizeof *presets; p++)
            if (strcmp(presets[p].name, v) == 0) {
                s = presets[p];
                known = true;
            }
        if (strcmp(o, "--layers") == 0)
            known = (s.layers = (uint32_t)strtoul(v, NULL, 10)) > 0;
        else if (strcmp(o, "--vocab") == 0)
            known = (s.vocab = (uint32_t)strtoul(v, NULL, 10)) > 0;
        else if (strcmp(o, "--seed") == 0)
            known = (r.state = strtoull(v, NULL, 10)) > 0;
        else if (strcmp(o, "--tokenizer") == 0)
            known = (tokenizer = v) != NULL;
        if (!known)
            break;
    }
    if (i + 1 != argc || s.layers > 256) {
        fprintf(stderr, "usage: make_model [--preset llama-3.2-1b|llama-3.1-8b|tiny] [--layers N] "
                        "[--vocab N] [--seed N] [--tokenizer DIR] DIR\n");
        return 2;
    }
    mkdir(argv[i], 0777);
    FILE *f = create(argv[i], "config.json");
    write_config(f, &s);
    fclose(f);
    f = create(argv[i], "model.safetensors");
    list_tensors(&s);
    write_header(f);
    for (uint32_t t = 0; t < n_tensors; t++)
        write_tensor(f, &tensor[t], &r);
    if (ferror(f) || fclose(f) != 0) {
        fprintf(stderr, "make_model: %s: cannot be written\n", argv[i]);
        return 1;
    }
    if (tokenizer != NULL)
        copy_tokenizer(tokenizer, argv[i]);
    return 0;
}
