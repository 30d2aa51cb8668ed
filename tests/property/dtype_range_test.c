/* dtype_range_test.c: weights of mixed types whose activations pass 65,504, the
 * largest float16.
 *
 * A small model in two shards, one bfloat16, one float32, whose MLP reaches some
 * hundred thousand.  In the default type, float32 and bfloat16 its logits are
 * finite and those of a double-precision reference (a prompt of one token attends
 * to itself alone); forced float16 is refused before a weight is read.  Weights that
 * end in logits which are no numbers end in an error, never in a token. */
#include "support/test.h"

#include <math.h>
#include <stdio.h>

#include "proto/number/formats.h"
#include "scheduler/sched.h"
#include "support/fixture.h"
#include "support/model_driver.h"
#include "support/rng.h"

enum { HIDDEN = 64, INTER = 96, LAYERS = 2, HEADS = 4, KV = 2, HEAD = 16, VOCAB = 128 };
enum { TENSORS = 2 + 9 * LAYERS + 1, LENGTH = 64 };

struct tensor {
    char name[64];
    uint32_t rows, cols; /* cols 0: a vector */
    bool wide;           /* float32, in the second shard */
    float *value;
};

struct weights {
    struct tensor tensor[TENSORS];
    uint32_t n;
};

static size_t n_values(const struct tensor *t)
{
    return (size_t)t->rows * (t->cols ? t->cols : 1);
}

static float *value_of(struct weights *w, const char *name)
{
    for (uint32_t i = 0; i < w->n; i++)
        if (strcmp(w->tensor[i].name, name) == 0)
            return w->tensor[i].value;
    fail_msg("no tensor %s", name);
    return NULL;
}

static float *layer_value(struct weights *w, uint32_t i, const char *part)
{
    char name[64];
    snprintf(name, sizeof name, "model.layers.%u.%s.weight", i, part);
    return value_of(w, name);
}

/* Uniform in +-spread, ones for a vector; bfloat16 values where they are stored so. */
static void add(struct weights *w, struct rng *r, const char *name, uint32_t rows, uint32_t cols,
                double spread, bool wide)
{
    struct tensor *t = &w->tensor[w->n++];
    snprintf(t->name, sizeof t->name, "%s", name);
    t->rows = rows;
    t->cols = cols;
    t->wide = wide;
    t->value = malloc(n_values(t) * sizeof *t->value);
    for (size_t i = 0; i < n_values(t); i++) {
        float v = cols ? (float)((rng_unit(r) * 2 - 1) * spread) : 1.0f;
        t->value[i] = wide ? v : bf16_to_float(float_to_bf16(v));
    }
}

static void make_weights(struct weights *w)
{
    static const struct {
        const char *name;
        uint32_t rows, cols;
        double spread;
    } parts[] = {
        { "input_layernorm", HIDDEN, 0, 0 },
        { "self_attn.q_proj", HEADS * HEAD, HIDDEN, 0.2 },
        { "self_attn.k_proj", KV * HEAD, HIDDEN, 0.2 },
        { "self_attn.v_proj", KV * HEAD, HIDDEN, 0.2 },
        { "self_attn.o_proj", HIDDEN, HEADS * HEAD, 0.2 },
        { "post_attention_layernorm", HIDDEN, 0, 0 },
        { "mlp.gate_proj", INTER, HIDDEN, 0.4 },
        { "mlp.up_proj", INTER, HIDDEN, 60000 }, /* what makes it large */
        { "mlp.down_proj", HIDDEN, INTER, 0.2 },
    };
    struct rng r = { 3 };
    char name[64];
    memset(w, 0, sizeof *w);
    add(w, &r, "model.embed_tokens.weight", VOCAB, HIDDEN, 1, false);
    for (uint32_t i = 0; i < LAYERS; i++)
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
            snprintf(name, sizeof name, "model.layers.%u.%s.weight", i, parts[k].name);
            add(w, &r, name, parts[k].rows, parts[k].cols, parts[k].spread, i % 2 == 1);
        }
    add(w, &r, "model.norm.weight", HIDDEN, 0, 0, true);
    add(w, &r, "lm_head.weight", VOCAB, HIDDEN, 0.2, true);
}

static void free_weights(struct weights *w)
{
    for (uint32_t i = 0; i < w->n; i++)
        free(w->tensor[i].value);
}

/* ---- files ----------------------------------------------------------------------- */

static FILE *create(const char *dir, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    return f;
}

static void write_shard(const struct weights *w, const char *dir, bool wide, const char *name)
{
    FILE *f = create(dir, name);
    char header[8192];
    uint64_t at = 0, size = wide ? 4 : 2;
    size_t n = (size_t)snprintf(header, sizeof header, "{");
    for (uint32_t i = 0; i < w->n; i++) {
        const struct tensor *t = &w->tensor[i];
        if (t->wide != wide)
            continue;
        n += (size_t)snprintf(header + n, sizeof header - n,
                              "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%u", at ? "," : "", t->name,
                              wide ? "F32" : "BF16", t->rows);
        if (t->cols)
            n += (size_t)snprintf(header + n, sizeof header - n, ",%u", t->cols);
        n +=
            (size_t)snprintf(header + n, sizeof header - n, "],\"data_offsets\":[%llu,%llu]}",
                             (unsigned long long)at, (unsigned long long)(at + n_values(t) * size));
        at += n_values(t) * size;
    }
    n += (size_t)snprintf(header + n, sizeof header - n, "}");
    uint64_t length = n;
    fwrite(&length, 1, 8, f);
    fwrite(header, 1, n, f);
    for (uint32_t i = 0; i < w->n; i++) {
        const struct tensor *t = &w->tensor[i];
        for (size_t k = 0; t->wide == wide && k < n_values(t); k++)
            fwrite((const char *)&t->value[k] + (wide ? 0 : 2), 1, size, f);
    }
    assert_int_equal(fclose(f), 0);
}

static void write_model(const struct weights *w, const char *dir)
{
    write_shard(w, dir, false, "model-00001-of-00002.safetensors");
    write_shard(w, dir, true, "model-00002-of-00002.safetensors");
    FILE *f = create(dir, "model.safetensors.index.json");
    fprintf(f, "{\"metadata\":{},\"weight_map\":{");
    for (uint32_t i = 0; i < w->n; i++)
        fprintf(f, "%s\"%s\":\"model-0000%d-of-00002.safetensors\"", i ? "," : "",
                w->tensor[i].name, w->tensor[i].wide ? 2 : 1);
    fprintf(f, "}}");
    fclose(f);
    f = create(dir, "config.json");
    fprintf(f,
            "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\","
            "\"hidden_size\":%d,\"intermediate_size\":%d,\"num_hidden_layers\":%d,"
            "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"head_dim\":%d,"
            "\"vocab_size\":%d,\"max_position_embeddings\":128,\"rope_theta\":10000.0,"
            "\"rms_norm_eps\":1e-05,\"hidden_act\":\"silu\",\"tie_word_embeddings\":false,"
            "\"bos_token_id\":0,\"eos_token_id\":1,\"torch_dtype\":\"bfloat16\"}",
            HIDDEN, INTER, LAYERS, HEADS, KV, HEAD, VOCAB);
    fclose(f);
}

/* ---- the reference: one token, in double --------------------------------------------- */

static void multiply(const float *m, const double *x, uint32_t rows, uint32_t cols, double *y)
{
    for (uint32_t i = 0; i < rows; i++) {
        y[i] = 0;
        for (uint32_t k = 0; k < cols; k++)
            y[i] += (double)m[(size_t)i * cols + k] * x[k];
    }
}

static void norm(const double *x, double *y)
{
    double sum = 0;
    for (int i = 0; i < HIDDEN; i++)
        sum += x[i] * x[i];
    for (int i = 0; i < HIDDEN; i++)
        y[i] = x[i] / sqrt(sum / HIDDEN + 1e-5);
}

/* Logits after one token; the largest activation of any MLP. */
static double reference(struct weights *w, int32_t token, double logits[VOCAB])
{
    double x[HIDDEN], h[HIDDEN], y[HIDDEN], v[KV * HEAD], all[HEADS * HEAD], largest = 0;
    double gate[INTER], up[INTER];
    for (int i = 0; i < HIDDEN; i++)
        x[i] = (double)value_of(w, "model.embed_tokens.weight")[token * HIDDEN + i];
    for (uint32_t l = 0; l < LAYERS; l++) {
        norm(x, h);
        multiply(layer_value(w, l, "self_attn.v_proj"), h, KV * HEAD, HIDDEN, v);
        for (int i = 0; i < HEADS * HEAD; i++)
            all[i] = v[i / HEAD / (HEADS / KV) * HEAD + i % HEAD];
        multiply(layer_value(w, l, "self_attn.o_proj"), all, HIDDEN, HEADS * HEAD, y);
        for (int i = 0; i < HIDDEN; i++)
            x[i] += y[i];
        norm(x, h);
        multiply(layer_value(w, l, "mlp.gate_proj"), h, INTER, HIDDEN, gate);
        multiply(layer_value(w, l, "mlp.up_proj"), h, INTER, HIDDEN, up);
        for (int i = 0; i < INTER; i++) {
            up[i] *= gate[i] / (1 + exp(-gate[i]));
            largest = fabs(up[i]) > largest ? fabs(up[i]) : largest;
        }
        multiply(layer_value(w, l, "mlp.down_proj"), up, HIDDEN, INTER, y);
        for (int i = 0; i < HIDDEN; i++)
            x[i] += y[i];
    }
    norm(x, h);
    multiply(value_of(w, "lm_head.weight"), h, VOCAB, HIDDEN, logits);
    return largest;
}

/* ---- tests ----------------------------------------------------------------------- */

static struct driver_options options(const char *dir, enum model_dtype dtype)
{
    return (struct driver_options){ .path = dir,
                                    .dtype = dtype,
                                    .max_model_len = LENGTH,
                                    .max_tokens = LENGTH,
                                    .max_rows = 2,
                                    .max_outputs = LENGTH,
                                    .n_threads = 1 };
}

static void compare(struct weights *w, const char *dir, enum model_dtype dtype, double limit)
{
    struct driver_options o = options(dir, dtype);
    struct err e = { 0 };
    struct driver *d = driver_open(&o, &e);
    double want[VOCAB], diff = 0, size = 0;
    if (d == NULL)
        fail_msg("%s", e.message);
    for (int32_t token = 2; token < 10; token++) {
        struct driver_row row = { .seq = 0, .n = 1, .all = true };
        const struct sampled *out;
        uint32_t n_out;
        assert_true(reference(w, token, want) > 65504);
        driver_reset(d, 0);
        driver_append(d, 0, &token, 1);
        assert_ok(driver_step(d, &row, 1, &out, &n_out, &e), e);
        assert_false(out[0].failed);
        const float *got = model_logits(driver_model(d));
        for (int i = 0; i < VOCAB; i++) {
            assert_true(isfinite(got[i]));
            diff += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
            size += want[i] * want[i];
        }
    }
    if (!(sqrt(diff / size) <= limit))
        fail_msg("error %g, expected at most %g", sqrt(diff / size), limit);
    driver_close(d);
}

TEST(activations_beyond_float16_stay_finite_in_every_type_there_is)
{
    struct weights w;
    struct err e = { 0 };
    char dir[2048];
    make_weights(&w);
    assert_ok(fixture_temp_dir(dir, sizeof dir, &e), e);
    write_model(&w, dir);
    compare(&w, dir, MODEL_FLOAT32, 1e-5);
    compare(&w, dir, MODEL_BFLOAT16, 3e-2);
    compare(&w, dir, MODEL_AUTO, 3e-2);
    struct driver_options o = options(dir, MODEL_FLOAT16);
    assert_null(driver_open(&o, &e));
    assert_contains(e.message, "float16");
    fixture_remove(dir);
    free_weights(&w);
}

/* What came of a request for eight tokens. */
struct outcome {
    uint32_t n_tokens, n_errors, n_done;
};

static void on_event(void *ctx, const struct sched_event *ev)
{
    struct outcome *o = ctx;
    o->n_tokens += ev->kind == SCHED_TOKEN;
    o->n_done += ev->kind == SCHED_DONE;
    o->n_errors += ev->kind == SCHED_DONE && ev->finish == FINISH_ERROR;
}

static uint64_t no_clock(void *ctx)
{
    (void)ctx;
    return 1;
}

static struct outcome serve(const char *dir, enum model_dtype dtype)
{
    static const int32_t prompt[] = { 5, 6, 7 };
    struct sample_params params = {
        .temperature = 1, .top_p = 0.9f, .repetition_penalty = 1, .n_logprobs = 3
    };
    struct sched_request r = {
        .id = 1, .prompt = prompt, .n_prompt = 3, .max_tokens = 8, .n = 1, .params = &params
    };
    struct model_options mo = { .path = dir,
                                .dtype = dtype,
                                .device = MODEL_DEVICE_CPU,
                                .block_tokens = 16,
                                .max_model_len = LENGTH,
                                .n_threads = 1 };
    struct model_limits lim = {
        .n_blocks = 16, .max_tokens = LENGTH, .max_rows = 2, .max_outputs = 2
    };
    struct kvpool_config pc = {
        .n_blocks = 16, .max_seqs = 2, .max_seq_tokens = LENGTH, .max_chunk = LENGTH
    };
    struct sched_config sc = { .max_num_seqs = 2,
                               .max_num_batched_tokens = LENGTH,
                               .max_model_len = LENGTH,
                               .max_queued = 2,
                               .max_partial_prefills = 1,
                               .max_outputs = 2 };
    struct outcome o = { 0 };
    struct sched_sink sink = { &o, on_event };
    const struct step_plan *plan;
    struct model *m;
    struct kvpool *pool;
    struct sched *sched;
    struct err e = { 0 };
    assert_ok(model_open(&m, &mo, &e), e);
    const struct kv_layout *lay = &model_describe(m)->layout;
    assert_ok(model_start(m, &lim, &e), e);
    assert_ok(kvpool_create(&pool, lay, &pc, &e), e);
    assert_ok(sched_create(&sched, pool, lay, &sc, no_clock, NULL, &sink, &e), e);
    assert_ok(sched_submit(sched, &r, &e), e);
    while ((plan = sched_next(sched)) != NULL) {
        const struct sampled *out;
        assert_ok(model_forward(m, plan, &e), e);
        assert_ok(model_collect(m, plan->step, &out, &e), e);
        sched_commit(sched, plan, out);
    }
    sched_destroy(sched);
    kvpool_destroy(pool);
    model_close(m);
    return o;
}

TEST(logits_that_are_no_numbers_never_become_a_token)
{
    struct weights w;
    struct err e = { 0 };
    char dir[2048];
    assert_ok(fixture_temp_dir(dir, sizeof dir, &e), e);
    make_weights(&w);
    write_model(&w, dir);
    struct outcome good = serve(dir, MODEL_FLOAT32);
    assert_int_equal(good.n_tokens, 8);
    assert_int_equal(good.n_errors, 0);

    /* One entry of one logit. */
    float *head = value_of(&w, "lm_head.weight"), kept = head[77 * HIDDEN + 3];
    head[77 * HIDDEN + 3] = NAN;
    write_model(&w, dir);
    for (int t = MODEL_AUTO; t <= MODEL_BFLOAT16; t++) {
        struct outcome o = serve(dir, (enum model_dtype)t);
        assert_int_equal(o.n_tokens, 0);
        assert_int_equal(o.n_done, 1);
        assert_int_equal(o.n_errors, 1);
    }
    head[77 * HIDDEN + 3] = kept;

    /* Activations that overflow every type. */
    float *up = layer_value(&w, 1, "mlp.up_proj");
    for (int i = 0; i < INTER * HIDDEN; i++)
        up[i] = i % 2 ? 3e38f : -3e38f;
    write_model(&w, dir);
    for (int t = MODEL_AUTO; t <= MODEL_BFLOAT16; t++) {
        struct outcome o = serve(dir, (enum model_dtype)t);
        assert_int_equal(o.n_tokens, 0);
        assert_int_equal(o.n_errors, 1);
    }
    fixture_remove(dir);
    free_weights(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN(activations_beyond_float16_stay_finite_in_every_type_there_is),
        RUN(logits_that_are_no_numbers_never_become_a_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
