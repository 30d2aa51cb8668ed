/* loader.c: opening everything a request needs.  Owns what it puts into srv
 * until loader_unload.  One thread, before any request is served. */
#include "server/loader.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server/sizing.h"

enum { MAX_TEMPLATE_BYTES = 1 << 20 };

static enum err_code open_model(struct srv *srv, struct err *e)
{
    const struct srv_options *o = &srv->opt;
    struct model_options m = {
        .path = o->model,
        .dtype = (enum model_dtype)o->dtype,
        .device = (enum model_device)o->device,
        .block_tokens = (uint32_t)o->block_size,
        .max_model_len = (uint32_t)o->max_model_len,
        .n_threads = (uint32_t)o->threads,
    };

    uint64_t began = srv_now_us();
    enum err_code rc = model_open(&srv->model, &m, e);

    if (rc == ERR_OK)
        srv_logf(&srv->log, SRV_INFO, "%.3f GB of weights loaded in %.2f s",
                 (double)model_describe(srv->model)->weight_bytes / 1e9,
                 (double)(srv_now_us() - began) / 1e6);
    if (rc == ERR_OK)
        srv_logf(&srv->log, SRV_DEBUG, "computes in %s on %s; %s",
                 model_describe(srv->model)->dtype, model_describe(srv->model)->backend,
                 model_describe(srv->model)->kernels);
    return rc;
}

/* The text of --chat-template: a file where one has that name, else itself.  *out
 * (NULL before) is the caller's, free(), after an error too. */
static enum err_code read_template(const char *arg, char **out, struct err *e)
{
    FILE *f = fopen(arg, "r");
    size_t n;
    bool failed;

    if (f == NULL && strchr(arg, '{') == NULL)
        return err_set_param(e, ERR_IO, "chat-template", "--chat-template: %.200s: %s", arg,
                             strerror(errno));
    if (f == NULL) {
        *out = strdup(arg);
        return *out ? ERR_OK : err_nomem(e, "chat template", strlen(arg));
    }
    *out = malloc(MAX_TEMPLATE_BYTES + 1);
    n = *out ? fread(*out, 1, MAX_TEMPLATE_BYTES + 1, f) : 0;
    failed = ferror(f) != 0;
    fclose(f);
    if (*out == NULL)
        return err_nomem(e, "chat template", MAX_TEMPLATE_BYTES);
    if (failed)
        return err_set_param(e, ERR_IO, "chat-template",
                             "--chat-template: %.200s cannot be read as a file", arg);
    if (n > MAX_TEMPLATE_BYTES)
        return err_set_param(e, ERR_INVALID, "chat-template",
                             "--chat-template: %.200s is longer than %d bytes", arg,
                             MAX_TEMPLATE_BYTES);
    (*out)[n] = '\0';
    return ERR_OK;
}

static enum err_code open_template(struct srv *srv, struct err *e)
{
    const char *text = tokenizer_chat_template(srv->tokenizer);
    char *given = NULL;
    enum err_code rc = ERR_OK;

    if (srv->opt.chat_template) {
        rc = read_template(srv->opt.chat_template, &given, e);
        text = given;
    }
    if (rc == ERR_OK && text) {
        rc = chat_template_parse(&srv->chat, "chat template", text, e);
        /* It looks into content parts itself when it asks for their type. */
        srv->served.defaults.template_takes_parts =
            strstr(text, "['type']") || strstr(text, "[\"type\"]") || strstr(text, ".type ==");
        if (rc != ERR_OK && given == NULL) {
            srv_logf(&srv->log, SRV_WARNING, "no chat: %s", e->message);
            rc = ERR_OK; /* completions work without it */
        }
    }
    free(given);
    return rc;
}

static void fill_defaults(struct srv *srv)
{
    const struct model_info *m = model_describe(srv->model);
    const struct model_generation *g = &m->generation;
    struct oai_defaults *d = &srv->served.defaults;
    bool takes_parts = d->template_takes_parts;

    oai_defaults_init(d);
    if (srv->opt.generation_config == 0) {
        d->temperature = isnan(g->temperature) ? d->temperature : g->temperature;
        d->top_p = isnan(g->top_p) ? d->top_p : g->top_p;
        d->min_p = isnan(g->min_p) ? d->min_p : g->min_p;
        d->repetition_penalty =
            isnan(g->repetition_penalty) ? d->repetition_penalty : g->repetition_penalty;
        d->top_k = g->top_k < 0 ? d->top_k : g->top_k;
    }
    d->eos = m->eos;
    d->n_eos = m->n_eos;
    d->vocab_size = m->vocab_size;
    d->max_model_len = srv->served.max_model_len;
    d->max_logprobs = (uint32_t)srv->opt.max_logprobs;
    d->template_takes_parts = takes_parts;
}

static enum err_code init_metrics(struct srv *srv, const struct sizing *s, struct err *e)
{
    char block[16], blocks[16];
    const struct model_info *m = model_describe(srv->model);
    struct prom_label labels[] = {
        { "block_size", block },
        { "num_gpu_blocks", blocks },
        { "enable_prefix_caching", srv->opt.prefix_caching ? "True" : "False" },
        { "cache_dtype", m->dtype },
        { "device", m->backend },
    };
    struct serving_metrics_config c = { .model_name = srv->served.name[0],
                                        .max_model_len = s->max_model_len,
                                        .cache_config = labels,
                                        .n_cache_config = sizeof labels / sizeof *labels };

    snprintf(block, sizeof block, "%u", m->layout.block_tokens);
    snprintf(blocks, sizeof blocks, "%u", s->n_blocks);
    return srv_metrics_init(&srv->metrics, &c, e);
}

static void on_wake(void *ctx)
{
    uv_async_send(ctx);
}

static enum err_code compute_sizes(struct sizing *s, struct srv *srv, struct err *e)
{
    struct sizing_memory memory;
    enum err_code rc = sizing_measure(&memory, &srv->opt, srv->model, e);

    if (rc == ERR_OK && memory.device.total_bytes > 0)
        srv_logf(&srv->log, SRV_DEBUG, "device: %.3f GB, %.3f GB free, %.3f GB taken by scratch%s",
                 (double)memory.device.total_bytes / 1e9, (double)memory.device.free_bytes / 1e9,
                 (double)memory.device.step_bytes / 1e9,
                 srv->opt.eager ? "" : " and captured steps");
    return rc ? rc : sizing_compute(s, &srv->opt, model_describe(srv->model), &memory, e);
}

static enum err_code open_files(struct srv *srv, struct err *e)
{
    const char *dir = srv->opt.tokenizer ? srv->opt.tokenizer : srv->opt.model;
    enum err_code rc = open_model(srv, e);

    if (rc == ERR_OK)
        rc = tokenizer_open(&srv->tokenizer, dir, e);
    if (rc == ERR_OK)
        rc = token_table_init(&srv->served.tokens, srv->tokenizer, e);
    if (rc == ERR_OK)
        rc = open_template(srv, e);
    return rc;
}

enum err_code loader_load(struct srv *srv, struct err *e)
{
    struct sizing s;
    enum err_code rc = open_files(srv, e);

    if (rc == ERR_OK)
        rc = compute_sizes(&s, srv, e);
    if (rc == ERR_OK) {
        srv->served.max_model_len = s.max_model_len;
        srv->served.model = model_describe(srv->model);
        srv->served.tokenizer = srv->tokenizer;
        srv->served.chat = srv->chat;
        srv->pin_budget = s.pin_budget;
        s.pool.hash_seed = srv->hash_seed;
        fill_defaults(srv);
        rc = init_metrics(srv, &s, e);
    }
    if (rc == ERR_OK) {
        struct engine_config c = { .model = srv->model,
                                   .pool = s.pool,
                                   .sched = s.sched,
                                   .eager = srv->opt.eager,
                                   .poison = srv->opt.poison,
                                   .n_steps = (uint32_t)srv->opt.step_history,
                                   .metrics = &srv->metrics.serving,
                                   .log = &srv->log,
                                   .wake = on_wake,
                                   .wake_ctx = &srv->events };
        if (s.model_len_cut)
            srv_logf(&srv->log, SRV_WARNING,
                     "context cut to %u tokens: the KV pool of %u blocks holds no more",
                     s.max_model_len, s.n_blocks);
        uint64_t began = srv_now_us();
        rc = engine_create(&srv->loaded_engine, &c, e);
        if (rc == ERR_OK)
            srv_logf(&srv->log, SRV_INFO, "KV cache of %.3f GB and steps ready in %.2f s",
                     (double)s.kv_bytes / 1e9, (double)(srv_now_us() - began) / 1e6);
    }
    if (rc != ERR_OK)
        loader_unload(srv);
    return rc;
}

void loader_unload(struct srv *srv)
{
    engine_destroy(srv->loaded_engine);
    srv->engine = srv->loaded_engine = NULL;
    srv_metrics_fini(&srv->metrics);
    if (srv->chat)
        chat_template_free(srv->chat);
    token_table_fini(&srv->served.tokens);
    if (srv->tokenizer)
        tokenizer_close(srv->tokenizer);
    if (srv->model)
        model_close(srv->model);
    srv->served.model = NULL;
    srv->served.tokenizer = NULL;
    srv->served.chat = srv->chat = NULL;
    srv->tokenizer = NULL;
    srv->model = NULL;
}

enum err_code loader_plan(struct srv *srv, struct err *e)
{
    struct sizing s;
    enum err_code rc = open_model(srv, e);

    if (rc == ERR_OK)
        rc = compute_sizes(&s, srv, e);
    if (rc == ERR_OK)
        sizing_print(stdout, &s, &srv->opt, model_describe(srv->model));
    loader_unload(srv);
    return rc;
}
