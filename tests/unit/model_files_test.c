/* model_files_test.c: safetensors headers, shards and their index, and what a
 * model directory refuses: each rule asserts its message. */
#include "support/test.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "model/load/checkpoint.h"
#include "model/load/config.h"
#include "model/model.h"
#include "model/load/safetensors.h"
#include "support/fixture.h"

/* ---- one file, in memory ---- */

struct bytes {
    unsigned char b[4096];
    size_t n;
};

static struct bytes file_of(const char *header, size_t n_data)
{
    struct bytes f = { .n = 8 + strlen(header) + n_data };
    uint64_t n = strlen(header);
    for (int i = 0; i < 8; i++)
        f.b[i] = (unsigned char)(n >> 8 * i);
    memcpy(f.b + 8, header, n);
    for (size_t i = 0; i < n_data; i++)
        f.b[8 + n + i] = (unsigned char)i;
    return f;
}

static void refuse(const char *header, size_t n_data, const char *why)
{
    struct bytes f = file_of(header, n_data);
    struct st_file *st = NULL;
    struct err e;
    assert_int_equal(model_st_open_bytes(&st, "x.safetensors", f.b, f.n, &e), ERR_INVALID);
    assert_null(st);
    assert_contains(e.message, "x.safetensors");
    assert_contains(e.message, why);
}

TEST(reads_tensors_and_metadata)
{
    struct bytes f = file_of("{\"__metadata__\":{\"format\":\"p\\\"t\"},"
                             "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]},"
                             " \"a\" : {\"shape\":[1,2], \"dtype\":\"BF16\","
                             "\"data_offsets\":[0,4]},"
                             "\"none\":{\"dtype\":\"U8\",\"shape\":[0,7],\"data_offsets\":[12,12]},"
                             "\"one\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[12,13]}}  ",
                             13);
    struct st_file *st;
    struct err e;
    assert_ok(model_st_open_bytes(&st, "x", f.b, f.n, &e), e);
    assert_int_equal(model_st_n_tensors(st), 4);
    const struct st_tensor *t = model_st_find(st, "b");
    assert_non_null(t);
    assert_int_equal(t->n_bytes, 8);
    assert_int_equal(t->data[0], 4);
    assert_int_equal(model_st_find(st, "a")->shape[1], 2);
    assert_int_equal(model_st_find(st, "none")->n_bytes, 0);
    assert_int_equal(model_st_find(st, "one")->n_elements, 1);
    assert_null(model_st_find(st, "aa"));
    model_st_close(st);
}

TEST(refuses_hostile_lengths)
{
    struct bytes f = file_of("{}", 0);
    struct st_file *st;
    struct err e;
    clock_t t = clock();
    memset(f.b, 0xFF, 8);
    assert_int_equal(model_st_open_bytes(&st, "x", f.b, f.n, &e), ERR_INVALID);
    assert_contains(e.message, "header of 18446744073709551615 bytes, expected at most 100000000");
    memset(f.b, 0, 8);
    f.b[3] = 1; /* 16 MiB in a file of 10 bytes */
    assert_int_equal(model_st_open_bytes(&st, "x", f.b, f.n, &e), ERR_INVALID);
    assert_contains(e.message, "in a file of 10");
    assert_int_equal(model_st_open_bytes(&st, "x", f.b, 7, &e), ERR_INVALID);
    assert_contains(e.message, "7 bytes, expected at least 8");
    assert_true((double)(clock() - t) / CLOCKS_PER_SEC < 0.1);
}

#define T(name, dtype, shape, a, b)                                                                \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" a "," b "]}"

TEST(refuses_bad_offsets_and_shapes)
{
    refuse("{" T("a", "F32", "[4611686018427387904,4]", "0", "4") "}", 4, "shape overflows");
    refuse("{" T("a", "F64", "[4611686018427387904]", "0", "4") "}", 4, "size overflows");
    refuse("{" T("a", "F32", "[1]", "4", "0") "}", 4, "data_offsets [4, 0], expected ascending");
    refuse("{" T("a", "F32", "[2]", "0", "8") "}", 4, "at most 4");
    refuse("{" T("a", "F32", "[1]", "0", "18446744073709551615") "}", 4, "at most 4");
    refuse("{" T("a", "F32", "[2]", "0", "4") "}", 4,
           "span 4 bytes, its shape and dtype F32 need 8");
    refuse("{" T("a", "F32", "[1]", "0", "4") "," T("b", "F32", "[1]", "2", "6") "}", 6,
           "tensor b: begins at data byte 2, expected 4");
    refuse("{" T("a", "F32", "[1]", "0", "4") "," T("b", "F32", "[1]", "6", "10") "}", 10,
           "tensor b: begins at data byte 6, expected 4");
    refuse("{" T("a", "F32", "[1]", "0", "4") "}", 5,
           "tensors cover 4 data bytes, the file holds 5");
    refuse("{" T("a", "F32", "[1]", "0", "4") "," T("a", "F32", "[1]", "4", "8") "}", 8,
           "key \"a\" twice");
    refuse("{" T("a", "F4", "[1]", "0", "4") "}", 4, "dtype \"F4\" is not known");
    refuse("{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", "0", "4") "}", 4,
           "tensor a: shape: found a list of 9, expected a list of at most 8 integers");
    refuse("{" T("a", "F32", "[-1]", "0", "4") "}", 4, "non-negative integer");
    refuse("{" T("a", "F32", "[01]", "0", "4") "}", 4, "found '1', expected ',' or ']'");
    refuse("{" T("a", "F32", "[1.0]", "0", "4") "}", 4, "found 1, expected a non-negative integer");
    refuse("{" T("a", "F32", "[99999999999999999999]", "0", "4") "}", 4, "below 2^64");
}

TEST(refuses_bad_grammar)
{
    refuse("", 0, "header is not valid JSON: byte 0: found the end, expected a value");
    refuse("[]", 0, "header: found a list of 0, expected an object");
    refuse("{\"a\":1}", 0, "tensor a: entry: found 1, expected an object");
    refuse("{\"a\":{}}", 0, "dtype, shape and data_offsets");
    refuse("{\"a\":{\"dtype\":1,\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
           "dtype: found 1, expected a string");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[0]}}", 0, "dtype, shape and data_offsets");
    refuse("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 0, "key \"dtype\" twice");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0]}}", 0,
           "data_offsets: found a list of 1, expected two integers");
    refuse("{\"\":{}}", 0, "tensor name of 1 to 1024 bytes");
    refuse("{\"a\\u0000\":{}}", 0, "without NUL");
    refuse("{\"a\\ud800\":{}}", 0, "surrogate");
    refuse("{\"a", 0, "string without a closing quote");
    refuse("{\"__metadata__\":{\"a\":1}}", 0, "__metadata__: expected an object of strings");
    refuse("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "key \"__metadata__\" twice");
    refuse("{} x", 0, "nothing after");
    refuse("{\"\xff\":{}}", 0, "not valid UTF-8");
}

/* Every truncation of a good file is refused. */
TEST(refuses_every_truncation)
{
    struct bytes f = file_of("{" T("a", "F32", "[1]", "0", "4") "}", 4);
    for (size_t n = 0; n < f.n; n++) {
        unsigned char *cut = malloc(n + 1); /* exact, so that a read past it shows */
        struct st_file *st;
        memcpy(cut, f.b, n);
        assert_int_equal(model_st_open_bytes(&st, "x", cut, n, NULL), ERR_INVALID);
        free(cut);
    }
}

/* ---- directories ---- */

static char dir[256];

static void make_dir(void)
{
    struct err e;
    assert_ok(fixture_temp_dir(dir, sizeof dir, &e), e);
}

static void put(const char *name, const void *bytes, size_t n)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

static void drop(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    unlink(path);
}

static void put_index(const char *text)
{
    put("model.safetensors.index.json", text, strlen(text));
}

static void refuse_dir(const char *why)
{
    struct checkpoint *c = NULL;
    struct err e;
    assert_int_not_equal(model_checkpoint_open(&c, dir, &e), ERR_OK);
    assert_null(c);
    assert_contains(e.message, why);
}

TEST(shards_follow_the_index_alone)
{
    struct bytes a = file_of("{" T("a", "F32", "[1]", "0", "4") "}", 4);
    struct bytes b =
        file_of("{" T("b", "F32", "[1]", "0", "4") "," T("a", "F32", "[1]", "4", "8") "}", 8);
    struct checkpoint *c;
    struct err e;
    make_dir();
    refuse_dir("holds neither model.safetensors nor model.safetensors.index.json");
    put("s1.safetensors", a.b, a.n);
    put("s2.safetensors", b.b, b.n);
    put("stray.safetensors", "not a checkpoint", 16);
    put_index("{\"metadata\":{},\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":"
              "\"s2.safetensors\"}}");
    assert_ok(model_checkpoint_open(&c, dir, &e), e);
    assert_int_equal(model_checkpoint_n_tensors(c), 2);
    assert_int_equal(model_checkpoint_find(c, "a")->data[0], 0); /* s1's, not s2's */
    assert_null(model_checkpoint_find(c, "c"));
    model_checkpoint_close(c);
    put_index("{\"weight_map\":{\"a\":\"s1.safetensors\",\"c\":\"s2.safetensors\"}}");
    refuse_dir("tensor c is said to be in s2.safetensors, which does not hold it");
    drop("s2.safetensors");
    put_index("{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"}}");
    refuse_dir("s2.safetensors: cannot be opened");
    put_index("{\"weight_map\":{\"a\":\"../s1.safetensors\"}}");
    refuse_dir("weight_map.a: expected the name of a file in the model's directory");
    put_index("{\"weight_map\":{\"a\":\"s1.safetensors\",\"a\":\"s1.safetensors\"}}");
    refuse_dir("key \"a\" twice");
    put_index("{\"weight_map\":[]}");
    refuse_dir("weight_map is an array, expected an object");
    put_index("{}");
    refuse_dir("weight_map is missing");
    put_index("{\"weight_map\":{}} x");
    refuse_dir("found 'x', expected nothing after the value");
    fixture_remove(dir);
}

TEST(a_needed_tensor_fits_or_is_named)
{
    struct bytes f =
        file_of("{" T("a", "F32", "[1]", "0", "4") "," T("u", "U8", "[1]", "4", "5") "}", 5);
    uint64_t one[2] = { 1, 1 }, two[1] = { 2 };
    const struct st_tensor *t;
    struct checkpoint *c;
    struct err e;
    make_dir();
    put("model.safetensors", f.b, f.n);
    assert_ok(model_checkpoint_open(&c, dir, &e), e);
    assert_ok(model_checkpoint_need(c, "a", 1, one, &t, &e), e);
    assert_int_equal(model_checkpoint_need(c, "a", 1, two, &t, &e), ERR_INVALID);
    assert_contains(e.message, "tensor a has shape [1], config.json makes it [2]");
    assert_int_equal(model_checkpoint_need(c, "a", 2, one, &t, &e), ERR_INVALID);
    assert_int_equal(model_checkpoint_need(c, "z", 2, one, &t, &e), ERR_INVALID);
    assert_contains(e.message, "tensor z is missing, expected shape [1, 1]");
    assert_int_equal(model_checkpoint_need(c, "u", 1, one, &t, &e), ERR_INVALID);
    assert_contains(e.message, "tensor u is U8, expected BF16, F16 or F32");
    model_checkpoint_close(c);
    fixture_remove(dir);
}

/* ---- whole models ---- */

static void make_model(const char *family, struct fixture *f)
{
    char from[512], to[512];
    struct err e;
    make_dir();
    snprintf(from, sizeof from, "tests/conformance/models/%s", family);
    assert_ok(fixture_read(f, from, &e), e);
    assert_ok(fixture_write_weights(f, dir, &e), e);
    snprintf(from, sizeof from, "tests/conformance/models/%s/config.json", family);
    snprintf(to, sizeof to, "%s/config.json", dir);
    assert_ok(fixture_copy(from, to, &e), e);
}

/* Open the directory; expect why, or success when NULL. */
static void try_open(const char *why)
{
    struct model_options o = { .path = dir,
                               .dtype = MODEL_FLOAT32,
                               .device = MODEL_DEVICE_CPU,
                               .block_tokens = 16,
                               .max_model_len = 64,
                               .n_threads = 1 };
    struct model *m = NULL;
    struct err e;
    enum err_code rc = model_open(&m, &o, &e);
    if (why == NULL) {
        assert_ok(rc, e);
        model_close(m);
        return;
    }
    assert_int_not_equal(rc, ERR_OK);
    assert_null(m);
    assert_contains(e.message, why);
}

static void edit_config(const struct fixture *f, const char *key, cJSON *value)
{
    char path[512];
    struct err e;
    snprintf(path, sizeof path, "tests/conformance/models/%s/config.json", f->family);
    char to[512];
    snprintf(to, sizeof to, "%s/config.json", dir);
    assert_ok(fixture_copy(path, to, &e), e);
    FILE *in = fopen(to, "rb");
    char text[16384];
    size_t n = fread(text, 1, sizeof text, in);
    fclose(in);
    cJSON *root = cJSON_ParseWithLength(text, n);
    cJSON_DeleteItemFromObject(root, key);
    if (value != NULL)
        cJSON_AddItemToObject(root, key, value);
    char *out = cJSON_PrintUnformatted(root);
    put("config.json", out, strlen(out));
    free(out);
    cJSON_Delete(root);
}

static cJSON *tensors(const struct fixture *f)
{
    return cJSON_GetObjectItem(f->root, "tensors");
}

TEST(heads_follow_the_file)
{
    struct fixture f;
    struct err e;
    make_model("llama", &f); /* untied, with a head of its own */
    try_open(NULL);
    edit_config(&f, "tie_word_embeddings", cJSON_CreateTrue()); /* the file's head is used */
    try_open(NULL);
    cJSON_DeleteItemFromObject(tensors(&f), "lm_head.weight");
    assert_ok(fixture_write_weights(&f, dir, &e), e);
    try_open(NULL); /* tied, no head */
    edit_config(&f, "tie_word_embeddings", cJSON_CreateFalse());
    try_open("tensor lm_head.weight is missing and config.json's tie_word_embeddings is false");
    fixture_fini(&f);
    fixture_remove(dir);
}

TEST(missing_extra_and_misshapen_tensors_are_named)
{
    struct fixture f;
    struct err e;
    make_model("llama", &f);
    cJSON *extra = cJSON_Duplicate(cJSON_GetObjectItem(tensors(&f), "model.norm.weight"), true);
    cJSON_AddItemToObject(tensors(&f), "model.layers.1.self_attn.q_proj.bias", extra);
    assert_ok(fixture_write_weights(&f, dir, &e), e);
    try_open("tensor model.layers.1.self_attn.q_proj.bias is not used by LlamaForCausalLM");
    cJSON_DeleteItemFromObject(tensors(&f), "model.layers.1.self_attn.q_proj.bias");
    extra = cJSON_Duplicate(cJSON_GetObjectItem(tensors(&f), "model.norm.weight"), true);
    cJSON_AddItemToObject(tensors(&f), "model.layers.1.self_attn.rotary_emb.inv_freq", extra);
    extra = cJSON_Duplicate(cJSON_GetObjectItem(tensors(&f), "model.norm.weight"), true);
    cJSON_AddItemToObject(tensors(&f), "model.layers.3.self_attn.q_proj.weight", extra);
    assert_ok(fixture_write_weights(&f, dir, &e), e);
    try_open(NULL); /* a table that is computed, a layer beyond the last */
    cJSON *q = cJSON_GetObjectItem(tensors(&f), "model.layers.2.mlp.up_proj.weight");
    cJSON_SetIntValue(cJSON_GetObjectItem(q, "shape")->child, 511);
    assert_ok(fixture_write_weights(&f, dir, &e), e);
    try_open("tensor model.layers.2.mlp.up_proj.weight has shape [511, 256], config.json makes it "
             "[512, 256]");
    cJSON_DeleteItemFromObject(tensors(&f), "model.layers.2.mlp.up_proj.weight");
    assert_ok(fixture_write_weights(&f, dir, &e), e);
    try_open("tensor model.layers.2.mlp.up_proj.weight is missing, expected shape [512, 256]");
    fixture_fini(&f);
    fixture_remove(dir);
}

TEST(config_rules_name_the_key)
{
    struct fixture f;
    make_model("llama", &f);
    static const struct {
        const char *key, *value, *why;
    } rules[] = {
        { "architectures", "[\"BertModel\"]", "architectures is BertModel, expected one of Llama" },
        { "architectures", NULL, "architectures is missing" },
        { "hidden_size", "0", "hidden_size is 0, expected an integer from 1" },
        { "hidden_size", "\"256\"", "hidden_size is a string, expected an integer" },
        { "hidden_size", "256.5", "hidden_size is 256.5" },
        { "hidden_size", "1e300", "hidden_size is 1e+300" },
        { "num_hidden_layers", NULL, "num_hidden_layers is missing" },
        { "num_key_value_heads", "3", "num_attention_heads 4: not a multiple of" },
        { "head_dim", "60", "head size 60: expected a positive multiple of 8" },
        { "hidden_act", "\"relu\"", "hidden_act is \"relu\", expected silu" },
        { "rms_norm_eps", "-1", "rms_norm_eps is -1, expected" },
        { "tie_word_embeddings", "1", "tie_word_embeddings is a number, expected true or false" },
        { "rope_scaling", "{\"rope_type\":\"dynamic\"}", "rope_type is \"dynamic\", expected" },
        { "rope_scaling", "{\"rope_type\":\"linear\"}", "rope_scaling.factor is missing" },
        { "rope_scaling", "[]", "rope_scaling is a list, expected an object" },
        { "layer_types", "[\"full_attention\"]", "layer_types has 1 entries, expected 3" },
        { "layer_types", "[\"full_attention\",\"full_attention\",\"linear\"]",
          "layer_types[2] is linear" },
        { "layer_types", "[\"full_attention\",\"sliding_attention\",\"full_attention\"]",
          "sliding_window is missing" },
        { "eos_token_id", "[1,\"x\"]", "eos_token_id: expected token ids" },
        { "quantization_config", "{\"quant_method\":\"gptq\"}",
          "quant_method is \"gptq\", which is not supported" },
        { "max_position_embeddings", "32",
          "max_model_len 64: config.json's "
          "max_position_embeddings is 32" },
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        edit_config(&f, rules[i].key, rules[i].value ? cJSON_Parse(rules[i].value) : NULL);
        try_open(rules[i].why);
    }
    put("config.json", "{\"a\":", 5);
    try_open("config.json is not valid JSON: byte 5: found the end, expected a value");
    drop("config.json");
    try_open("holds no config.json");
    fixture_fini(&f);
    fixture_remove(dir);
}

/* A config of 32 layers with `extra` keys: which layers have a window. */
static uint32_t windows_of(const char *architecture, const char *extra)
{
    static struct model_config c;
    char text[2048];
    uint32_t mask = 0;
    struct err e;
    int n = snprintf(text, sizeof text,
                     "{\"architectures\":[\"%s\"],\"hidden_size\":64,\"intermediate_size\":64,"
                     "\"num_hidden_layers\":32,\"num_attention_heads\":4,\"head_dim\":16,"
                     "\"vocab_size\":100,\"max_position_embeddings\":4096,%s}",
                     architecture, extra);
    assert_ok(model_config_parse(&c, text, (size_t)n, &e), e);
    for (uint32_t i = 0; i < 32; i++)
        mask |= (uint32_t)(c.layer[i].window == 8) << i;
    return mask;
}

TEST(windows_follow_their_family)
{
    static const char on[] = "\"use_sliding_window\":true,\"sliding_window\":8";
    char text[256];
    assert_int_equal(windows_of("LlamaForCausalLM", "\"sliding_window\":8"), 0);
    assert_int_equal(windows_of("MistralForCausalLM", "\"sliding_window\":8"), 0xFFFFFFFF);
    assert_int_equal(windows_of("MistralForCausalLM", "\"sliding_window\":null"), 0);
    assert_int_equal(windows_of("Gemma2ForCausalLM", "\"sliding_window\":8"), 0x55555555);
    assert_int_equal(windows_of("Gemma3ForCausalLM", "\"sliding_window\":8"), 0xDF7DF7DF);
    assert_int_equal(windows_of("Qwen2ForCausalLM", "\"sliding_window\":8,"
                                                    "\"use_sliding_window\":false"),
                     0);
    assert_int_equal(windows_of("Qwen2ForCausalLM", on), 0xF0000000);
    snprintf(text, sizeof text, "%s,\"max_window_layers\":16", on);
    assert_int_equal(windows_of("Qwen3ForCausalLM", text), 0xFFFF0000);
    snprintf(text, sizeof text,
             "%s,\"max_window_layers\":16,\"num_experts\":8,"
             "\"num_experts_per_tok\":2",
             on);
    assert_int_equal(windows_of("Qwen3MoeForCausalLM", text), 0xFFFFFFFF);
    assert_int_equal(windows_of("SmolLM3ForCausalLM", on), 0x88888888);
}

TEST(generation_defaults_and_ends_merge)
{
    struct fixture f;
    struct err e;
    struct model *m;
    make_model("llama", &f);
    static const char defaults[] = "{\"temperature\":0.8,\"top_p\":0.95,\"top_k\":40,"
                                   "\"do_sample\":true,\"eos_token_id\":[2,7]}";
    put("generation_config.json", defaults, strlen(defaults));
    struct model_options o = { .path = dir,
                               .dtype = MODEL_FLOAT32,
                               .device = MODEL_DEVICE_CPU,
                               .block_tokens = 16,
                               .n_threads = 1 };
    assert_ok(model_open(&m, &o, &e), e);
    const struct model_info *i = model_describe(m);
    assert_true(i->generation.temperature == 0.8f && i->generation.top_p == 0.95f);
    assert_true(i->generation.min_p != i->generation.min_p); /* absent: NAN */
    assert_int_equal(i->generation.top_k, 40);
    assert_int_equal(i->n_eos, 2);
    assert_int_equal(i->eos[0], 2);
    assert_int_equal(i->eos[1], 7);
    assert_int_equal(i->max_model_len, 2048);
    assert_int_equal(i->vocab_size, 384);
    assert_string_equal(i->dtype, "float32");
    model_close(m);
    put("generation_config.json", "{\"temperature\":\"hot\"}", 21);
    try_open("generation_config.json: temperature is a string, expected a number");
    fixture_fini(&f);
    fixture_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(reads_tensors_and_metadata),
        RUN(refuses_hostile_lengths),
        RUN(refuses_bad_offsets_and_shapes),
        RUN(refuses_bad_grammar),
        RUN(refuses_every_truncation),
        RUN(shards_follow_the_index_alone),
        RUN(a_needed_tensor_fits_or_is_named),
        RUN(heads_follow_the_file),
        RUN(missing_extra_and_misshapen_tensors_are_named),
        RUN(config_rules_name_the_key),
        RUN(windows_follow_their_family),
        RUN(generation_defaults_and_ends_merge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
