/* model.c: see model.h: opening a directory, and a step's sequence. */
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

#include "model/checkpoint.h"
#include "model/config.h"
#include "model/cpu/kernels.h"
#include "model/families.h"
#include "model/forward.h"
#include "model/ops.h"
#include "model/sampling.h"
#include "model/weights.h"

#define TRY(call)                                                                                  \
    do {                                                                                           \
        enum err_code rc_ = (call);                                                                \
        if (rc_)                                                                                   \
            return rc_;                                                                            \
    } while (0)

struct model {
    struct model_config config;
    struct model_info info;
    struct ops ops;
    struct weights weights;
    struct forward *forward;
    struct sampler *sampler;
    uint64_t step; /* last computed */
    const struct sampled *sampled;
};

static enum err_code choose_type(const struct model_options *opt, enum op_dtype *out,
                                 struct err *e)
{
    switch (opt->dtype) {
    case MODEL_AUTO:
        *out = cpu_has_bf16() ? OP_BF16 : OP_F32;
        return ERR_OK;
    case MODEL_FLOAT32:
        *out = OP_F32;
        return ERR_OK;
    case MODEL_BFLOAT16:
        *out = OP_BF16;
        return ERR_OK;
    case MODEL_FLOAT16:
        break;
    }
    return err_set(e, ERR_INVALID,
                   "dtype float16: the cpu backend computes in float32 or bfloat16");
}

static enum err_code choose_length(struct model *m, const struct model_options *opt, struct err *e)
{
    uint32_t own = m->config.max_positions;
    if (opt->max_model_len > own)
        return err_set(e, ERR_INVALID,
                       "max_model_len %u: config.json's max_position_embeddings is %u",
                       opt->max_model_len, own);
    m->info.max_model_len = opt->max_model_len ? opt->max_model_len : own;
    return ERR_OK;
}

static enum err_code open_weights(struct model *m, const char *path, struct err *e)
{
    struct checkpoint *ck;
    TRY(checkpoint_open(&ck, path, e));
    enum err_code rc =
        weights_load(&m->weights, &m->ops, &m->config, ck, m->info.max_model_len, e);
    checkpoint_close(ck);
    return rc;
}

static enum err_code make_layout(struct model *m, const struct model_options *opt, struct err *e)
{
    struct kv_layer_desc layers[KV_LAYERS];
    enum kv_dtype type = m->ops.type == OP_F32 ? KV_F32 : KV_BF16;
    config_kv_layers(&m->config, m->info.max_model_len, layers);
    return kv_layout_init(&m->info.layout, layers, m->config.n_layers, opt->block_tokens, type,
                          type, e);
}

static void describe(struct model *m)
{
    m->info.architecture = m->config.family->architecture;
    m->info.backend = m->ops.name;
    m->info.dtype = m->ops.type == OP_F32 ? "float32" : "bfloat16";
    m->info.vocab_size = m->config.vocab;
    m->info.n_eos = m->config.n_eos;
    m->info.eos = m->config.eos;
    m->info.bos = m->config.bos;
    m->info.weight_bytes = m->weights.n_bytes;
    m->info.n_parameters = m->weights.n_parameters;
}

static enum err_code open_model(struct model *m, const struct model_options *opt, struct err *e)
{
    enum op_dtype type = OP_F32;
    if (opt->device == MODEL_DEVICE_CUDA)
        return err_set(e, ERR_INVALID, "device cuda: this build has no CUDA backend");
    m->info.device_note = opt->device == MODEL_DEVICE_CPU ? "" : "no CUDA backend in this build";
    TRY(choose_type(opt, &type, e));
    TRY(config_load(&m->config, opt->path, e));
    TRY(generation_load(&m->info.generation, &m->config, opt->path, e));
    TRY(choose_length(m, opt, e));
    TRY(ops_cpu_open(&m->ops, type, opt->n_threads, e));
    TRY(make_layout(m, opt, e));
    TRY(open_weights(m, opt->path, e));
    describe(m);
    return ERR_OK;
}

enum err_code model_open(struct model **out, const struct model_options *opt, struct err *e)
{
    struct model *m = calloc(1, sizeof *m);
    if (m == NULL)
        return err_nomem(e, "model", sizeof *m);
    enum err_code rc = open_model(m, opt, e);
    if (rc) {
        model_close(m);
        return rc;
    }
    *out = m;
    return ERR_OK;
}

void model_close(struct model *m)
{
    if (m == NULL)
        return;
    sampler_destroy(m->sampler);
    forward_destroy(m->forward);
    weights_fini(&m->weights);
    if (m->ops.close != NULL)
        m->ops.close(m->ops.self);
    free(m);
}

const struct model_info *model_describe(const struct model *m)
{
    return &m->info;
}

enum err_code model_start(struct model *m, const struct model_limits *lim, struct err *e)
{
    struct forward_limits fl = { lim->n_blocks, lim->max_tokens, lim->max_rows,
                                 lim->max_outputs };
    if (m->forward != NULL)
        return err_set(e, ERR_CONFLICT, "model: already started");
    TRY(forward_create(&m->forward, &m->ops, &m->config, &m->weights, &m->info.layout, &fl, e));
    enum err_code rc = sampler_create(&m->sampler, m->config.vocab, lim->max_outputs,
                                      m->ops.workers(m->ops.self), e);
    if (rc) {
        forward_destroy(m->forward);
        m->forward = NULL;
    }
    return rc;
}

enum err_code model_forward(struct model *m, const struct step_plan *plan, struct err *e)
{
    if (m->forward == NULL)
        return err_set(e, ERR_CONFLICT, "model: not started");
    TRY(forward_step(m->forward, plan, e));
    TRY(sampler_run(m->sampler, plan, forward_logits(m->forward), &m->sampled, e));
    m->step = plan->step;
    return ERR_OK;
}

enum err_code model_collect(struct model *m, uint64_t step, const struct sampled **out,
                            struct err *e)
{
    if (m->sampled == NULL || m->step != step)
        return err_set(e, ERR_CONFLICT, "model: step %llu is not the last computed (%llu)",
                       (unsigned long long)step, (unsigned long long)m->step);
    *out = m->sampled;
    return ERR_OK;
}

const float *model_logits(const struct model *m)
{
    return m->forward ? forward_logits(m->forward) : NULL;
}
