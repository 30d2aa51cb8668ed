/* model.c: see model.h: opening a directory, and a step's sequence. */
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

#include "model/backend.h"
#include "model/load/checkpoint.h"
#include "model/load/config.h"
#include "model/load/families.h"
#include "model/step/forward.h"
#include "model/step/ops.h"
#include "model/cpu/sampling.h"
#include "model/step/resolve.h"
#include "proto/try.h"
#include "model/step/weights.h"

struct model {
    struct model_config config;
    struct model_info info;
    struct backend backend;
    struct ops ops;
    struct weights weights;
    struct forward *forward;
    struct sampler *sampler;     /* NULL where the device samples */
    struct step_resolve resolve; /* of the host's sampler */
    struct done {
        uint64_t step;
        uint32_t n_outputs;
        const struct sampled *sampled; /* NULL: the device has them */
    } last, before;                    /* forwarded last, and the one before */
    uint32_t n_flight;                 /* of these not collected */
    float *logits;                     /* host copy for model_logits */
};

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
    TRY(model_checkpoint_open(&ck, path, e));
    enum err_code rc =
        model_weights_load(&m->weights, &m->ops, &m->config, ck, m->info.max_model_len, e);
    model_checkpoint_close(ck);
    return rc;
}

static enum err_code make_layout(struct model *m, const struct model_options *opt, struct err *e)
{
    struct kv_layer_desc layers[KV_LAYERS];
    enum kv_dtype type = m->ops.type == OP_F32 ? KV_F32 : KV_BF16;
    model_config_kv_layers(&m->config, m->info.max_model_len, layers);
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
    m->info.async = m->ops.device != NULL;
    m->info.weight_bytes = m->weights.n_bytes;
    m->info.n_parameters = m->weights.n_parameters;
}

static enum err_code open_model(struct model *m, const struct model_options *opt, struct err *e)
{
    TRY(model_config_load(&m->config, opt->path, e));
    TRY(model_generation_load(&m->info.generation, &m->config, opt->path, e));
    TRY(choose_length(m, opt, e));
    TRY(model_backend_open(&m->backend, &m->ops, opt, e));
    m->info.device_note = m->backend.note;
    m->info.kernels = m->backend.kernels;
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
    model_sampler_destroy(m->sampler);
    model_forward_destroy(m->forward);
    model_weights_fini(&m->weights);
    model_backend_close(&m->backend, &m->ops);
    model_step_resolve_fini(&m->resolve);
    free(m->logits);
    free(m);
}

const struct model_info *model_describe(const struct model *m)
{
    return &m->info;
}

static struct forward_limits forward_limits_of(const struct model *m,
                                               const struct model_limits *lim)
{
    return (struct forward_limits){ .n_blocks = lim->n_blocks,
                                    .max_tokens = lim->max_tokens,
                                    .max_rows = lim->max_rows,
                                    .max_outputs = lim->max_outputs,
                                    .max_seq_tokens = lim->max_seq_tokens ? lim->max_seq_tokens
                                                                          : m->info.max_model_len,
                                    .eager = lim->eager,
                                    .poison = lim->poison,
                                    .expand_from = lim->expand_from };
}

enum err_code model_memory(struct model *m, const struct model_limits *lim,
                           struct model_memory *out, struct err *e)
{
    struct forward_limits fl = forward_limits_of(m, lim);
    struct device_info before, after;
    struct forward *f;
    memset(out, 0, sizeof *out);
    if (m->ops.device == NULL)
        return ERR_OK;
    if (m->forward != NULL)
        return err_set(e, ERR_CONFLICT, "model: already started");
    fl.n_blocks = 1;
    TRY(m->ops.device->open(m->ops.device_index, &before, e));
    TRY(model_forward_create(&f, &m->ops, &m->config, &m->weights, &m->info.layout, &fl, e));
    enum err_code rc = m->ops.device->open(m->ops.device_index, &after, e);
    model_forward_destroy(f);
    if (rc)
        return rc;
    out->total_bytes = after.total_bytes;
    out->free_bytes = after.free_bytes;
    out->step_bytes =
        before.free_bytes > after.free_bytes ? before.free_bytes - after.free_bytes : 0;
    return ERR_OK;
}

enum err_code model_start(struct model *m, const struct model_limits *lim, struct err *e)
{
    struct forward_limits fl = forward_limits_of(m, lim);
    if (m->forward != NULL)
        return err_set(e, ERR_CONFLICT, "model: already started");
    TRY(model_forward_create(&m->forward, &m->ops, &m->config, &m->weights, &m->info.layout, &fl,
                             e));
    if (m->ops.sample != NULL)
        return ERR_OK;
    enum err_code rc = model_sampler_create(&m->sampler, m->config.vocab, lim->max_outputs,
                                            m->ops.workers(m->ops.self), e);
    if (rc) {
        model_forward_destroy(m->forward);
        m->forward = NULL;
    }
    return rc;
}

enum err_code model_forward(struct model *m, const struct step_plan *plan, struct err *e)
{
    struct done now = { .step = plan->step, .n_outputs = plan->n_outputs };
    const struct step_plan *known = plan;
    if (m->forward == NULL)
        return err_set(e, ERR_CONFLICT, "model: not started");
    if (m->n_flight == 2)
        return err_set(e, ERR_CONFLICT, "model: steps %llu and %llu are not collected",
                       (unsigned long long)m->before.step, (unsigned long long)m->last.step);
    if (m->sampler != NULL)
        TRY(model_step_resolve_apply(&m->resolve, plan,
                                     m->last.step + 1 == plan->step ? m->last.sampled : NULL,
                                     m->last.n_outputs, &known, e));
    TRY(model_forward_step(m->forward, known, e));
    if (m->sampler != NULL)
        TRY(model_sampler_run(m->sampler, known, model_forward_logits(m->forward), &now.sampled,
                              e));
    m->before = m->last;
    m->last = now;
    m->n_flight++;
    return ERR_OK;
}

enum err_code model_collect(struct model *m, uint64_t step, const struct sampled **out,
                            struct err *e)
{
    const struct done *d = m->n_flight == 2 ? &m->before : &m->last;
    if (m->n_flight == 0 || d->step != step)
        return err_set(e, ERR_CONFLICT, "model: step %llu is not the oldest in flight (%llu)",
                       (unsigned long long)step,
                       (unsigned long long)(m->n_flight > 0 ? d->step : 0));
    m->n_flight--;
    *out = d->sampled;
    return m->ops.collect(m->ops.self, out, e);
}

const float *model_logits(struct model *m)
{
    size_t bytes = (size_t)m->last.n_outputs * m->config.vocab * sizeof(float);
    if (m->forward == NULL || m->last.step == 0)
        return NULL;
    if (m->ops.device == NULL)
        return model_forward_logits(m->forward);
    free(m->logits);
    m->logits = malloc(bytes + 1);
    if (m->logits == NULL ||
        m->ops.download(m->ops.self, m->logits, model_forward_logits(m->forward), bytes, NULL) !=
            ERR_OK)
        return NULL;
    return m->logits;
}
