/* make_model.c: write a model directory of a given shape with random weights.
 *
 * usage: make_model [--preset NAME] [--layers N] [--vocab N] [--seed N] DIR
 * Presets: llama-3.2-1b (untied, as a 1B-shaped load), llama-3.1-8b, tiny, and
 * deepseek-v3: layers like its first three, latent attention and a dense MLP.
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

#include "proto/number/formats.h"
#include "support/fixture.h"
#include "support/rng.h"

struct shape {
    const char *name;
    uint32_t hidden, inter, layers, heads, kv_heads, head_dim, vocab, positions;
    double theta;
    uint32_t q_rank, kv_rank, nope, rope, v; /* latent attention: kv_rank > 0 */
};

static const struct shape presets[] = {
    { .name = "llama-3.2-1b",
      .hidden = 2048,
      .inter = 8192,
      .layers = 16,
      .heads = 32,
      .kv_heads = 8,
      .head_dim = 64,
      .vocab = 128256,
      .positions = 131072,
      .theta = 500000 },
    { .name = "llama-3.1-8b",
      .hidden = 4096,
      .inter = 14336,
      .layers = 32,
      .heads = 32,
      .kv_heads = 8,
      .head_dim = 128,
      .vocab = 128256,
      .positions = 131072,
      .theta = 500000 },
    { .name = "tiny",
      .hidden = 256,
      .inter = 768,
      .layers = 8,
      .heads = 4,
      .kv_heads = 2,
      .head_dim = 64,
      .vocab = 4096,
      .positions = 2048,
      .theta = 10000 },
    { .name = "deepseek-v3",
      .hidden = 7168,
      .inter = 18432,
      .layers = 3,
      .heads = 128,
      .kv_heads = 128,
      .head_dim = 192,
      .vocab = 129280,
      .positions = 163840,
      .theta = 10000,
      .q_rank = 1536,
      .kv_rank = 512,
      .nope = 128,
      .rope = 64,
      .v = 128 },
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

static void list_attention(const struct shape *s, uint32_t i)
{
    uint32_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    if (s->kv_rank == 0) {
        add(q, s->hidden, "model.layers.%u.self_attn.q_proj.weight", i);
        add(kv, s->hidden, "model.layers.%u.self_attn.k_proj.weight", i);
        add(kv, s->hidden, "model.layers.%u.self_attn.v_proj.weight", i);
        add(s->hidden, q, "model.layers.%u.self_attn.o_proj.weight", i);
        return;
    }
    add(s->q_rank, s->hidden, "model.layers.%u.self_attn.q_a_proj.weight", i);
    add(s->q_rank, 0, "model.layers.%u.self_attn.q_a_layernorm.weight", i);
    add(q, s->q_rank, "model.layers.%u.self_attn.q_b_proj.weight", i);
    add(s->kv_rank + s->rope, s->hidden, "model.layers.%u.self_attn.kv_a_proj_with_mqa.weight", i);
    add(s->kv_rank, 0, "model.layers.%u.self_attn.kv_a_layernorm.weight", i);
    add((uint64_t)s->heads * (s->nope + s->v), s->kv_rank,
        "model.layers.%u.self_attn.kv_b_proj.weight", i);
    add(s->hidden, (uint64_t)s->heads * s->v, "model.layers.%u.self_attn.o_proj.weight", i);
}

static void list_tensors(const struct shape *s)
{
    add(s->vocab, s->hidden, "model.embed_tokens.weight", 0);
    for (uint32_t i = 0; i < s->layers; i++) {
        add(s->hidden, 0, "model.layers.%u.input_layernorm.weight", i);
        list_attention(s, i);
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
        table[i] = float_to_bf16(v);
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
    fprintf(f, s->kv_rank > 0 ? "{\"architectures\":[\"DeepseekV3ForCausalLM\"],"
                                "\"model_type\":\"deepseek_v3\","
                              : "{\"architectures\":[\"LlamaForCausalLM\"],"
                                "\"model_type\":\"llama\",");
    if (s->kv_rank > 0)
        fprintf(f,
                "\"q_lora_rank\":%u,\"kv_lora_rank\":%u,\"qk_nope_head_dim\":%u,"
                "\"qk_rope_head_dim\":%u,\"v_head_dim\":%u,\"first_k_dense_replace\":%u,"
                "\"n_routed_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":64,"
                "\"n_shared_experts\":1,\"n_group\":1,\"topk_group\":1,"
                "\"routed_scaling_factor\":1.0,\"norm_topk_prob\":true,"
                "\"scoring_func\":\"sigmoid\",\"topk_method\":\"noaux_tc\",",
                s->q_rank, s->kv_rank, s->nope, s->rope, s->v, s->layers);
    fprintf(f,
            "\"hidden_size\":%u,\"intermediate_size\":%u,\"num_hidden_layers\":%u,"
            "\"num_attention_heads\":%u,\"num_key_value_heads\":%u,\"head_dim\":%u,"
            "\"vocab_size\":%u,\"max_position_embeddings\":%u,\"rope_theta\":%.1f,"
            "\"rms_norm_eps\":1e-05,\"hidden_act\":\"silu\",\"tie_word_embeddings\":false,"
            "\"bos_token_id\":0,\"eos_token_id\":1,\"torch_dtype\":\"bfloat16\"}\n",
            s->hidden, s->inter, s->layers, s->heads, s->kv_heads,
            s->kv_rank > 0 ? s->rope : s->head_dim, s->vocab, s->positions, s->theta);
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

static const char usage[] =
    "usage: make_model [--preset llama-3.2-1b|llama-3.1-8b|tiny|deepseek-v3] [--layers N]\n"
    "                  [--vocab N] [--seed N] [--tokenizer DIR] DIR\n";

int main(int argc, char **argv)
{
    struct shape s = presets[0];
    struct rng r = { 1 };
    const char *tokenizer = NULL;
    int i = 1;
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        fputs(usage, stdout);
        return 0;
    }
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
    if (i + 1 != argc || argv[i][0] == '-' || s.layers > 256) {
        fputs(usage, stderr);
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
