/* model_files_fuzz.c: see model_files_fuzz.h.
 *
 * Properties: a refusal says why and yields nothing; an accepted safetensors
 * file tiles its data, finds each tensor by name, and every byte that it points
 * to can be read; an accepted config has shapes, windows and experts in range,
 * and its rotary tables can be made. */
#include "fuzz/model_files_fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/load/config.h"
#include "model/load/rope.h"
#include "model/load/safetensors.h"

#define REQUIRE(x)                                                                                 \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x);                                \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static void check_refusal(const struct err *e)
{
    REQUIRE(e->code == ERR_INVALID);
    REQUIRE(e->message[0] != '\0' && strchr(e->message, '\n') == NULL);
}

static void fuzz_safetensors(const uint8_t *data, size_t n)
{
    struct st_file *f = NULL;
    struct err e = { 0 };
    if (model_st_open_bytes(&f, "fuzz", data, n, &e) != ERR_OK) {
        REQUIRE(f == NULL);
        check_refusal(&e);
        return;
    }
    uint64_t total = 0;
    unsigned sum = 0;
    for (size_t i = 0; i < model_st_n_tensors(f); i++) {
        const struct st_tensor *t = model_st_tensor_at(f, i);
        char name[1025];
        memcpy(name, t->name, t->n_name);
        name[t->n_name] = '\0';
        if (strlen(name) == t->n_name)
            REQUIRE(model_st_find(f, name) == t);
        REQUIRE(t->data >= data && t->data + t->n_bytes <= data + n);
        for (uint64_t b = 0; b < t->n_bytes; b++)
            sum += t->data[b];
        total += t->n_bytes;
    }
    REQUIRE(total <= n && sum <= 255u * n);
    model_st_close(f);
}

static void fuzz_config(const uint8_t *data, size_t n)
{
    static struct model_config c;
    static struct kv_layer_desc layers[KV_LAYERS];
    struct err e = { 0 };
    if (model_config_parse(&c, (const char *)data, n, &e) != ERR_OK) {
        check_refusal(&e);
        return;
    }
    REQUIRE(c.family != NULL && c.n_layers >= 1 && c.n_layers <= KV_LAYERS);
    REQUIRE(c.n_heads % c.n_kv_heads == 0 && c.head_dim >= 1 && c.hidden >= 1);
    REQUIRE(c.moe.n_experts == 0 || (c.moe.top_k >= 1 && c.moe.top_k <= c.moe.n_experts));
    REQUIRE(c.moe.n_groups >= 1 && c.moe.top_groups <= c.moe.n_groups);
    REQUIRE(c.n_eos <= CONFIG_EOS);
    model_config_kv_layers(&c, 64, layers);
    for (uint32_t i = 0; i < c.n_layers; i++) {
        REQUIRE(c.layer[i].rope >= -1 && c.layer[i].rope <= 1);
        REQUIRE(layers[i].window < 64);
    }
    for (int i = 0; i < 2; i++) {
        uint32_t dim = model_rope_dim(&c, &c.rope[i]);
        REQUIRE(dim >= 2 && dim % 2 == 0);
        float *table = malloc((size_t)4 * dim * sizeof *table);
        REQUIRE(table != NULL);
        model_rope_fill(&c, &c.rope[i], 4, table, table + (size_t)2 * dim);
        free(table);
    }
}

void model_files_fuzz(const uint8_t *data, size_t n)
{
    if (n == 0)
        return;
    /* Exact and unaligned memory, so that a read past the end shows. */
    uint8_t *copy = malloc(n);
    REQUIRE(copy != NULL);
    memcpy(copy, data, n);
    if (copy[0] % 2 == 0)
        fuzz_safetensors(copy + 1, n - 1);
    else
        fuzz_config(copy + 1, n - 1);
    free(copy);
}
