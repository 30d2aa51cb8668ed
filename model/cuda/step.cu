/* step.cu: a step's arrays, to the device in one copy and back in one.
 *
 * The buffer has a part of fixed layout, whose addresses captured graphs hold,
 * and behind it the block tables as narrow as the step's longest row; a kernel
 * spreads those into tables of fixed width.  What penalties, biases and masks
 * need goes into `lists`, copied only by steps that have any: nothing captured
 * points there, for every sampling row carries its own pointers.
 *
 * A step may be begun while the one before it runs: what the host fills and
 * reads is there twice, and a token that the plan does not know is taken from
 * the results of the step before, on the device.
 *
 * Owns the buffers of both.  The engine's thread. */
#include "model/cuda/ops_cuda.h"

#include <stdlib.h>
#include <string.h>

namespace
{

size_t take(size_t *at, size_t bytes)
{
    size_t here = *at;
    *at = (here + bytes + 255) & ~(size_t)255;
    return here;
}

struct step_layout lay_out(const struct ops_limits *lim)
{
    struct step_layout l = {};
    l.sample = take(&l.total, lim->max_outputs * sizeof(struct sample_row));
    l.patch =
        take(&l.total, (lim->max_rows + (size_t)lim->max_outputs) * sizeof(struct token_patch));
    l.output_row = take(&l.total, lim->max_outputs * 4ul);
    l.cu = take(&l.total, lim->max_rows * 4ul + 4);
    l.past = take(&l.total, lim->max_rows * 4ul);
    l.token = take(&l.total, lim->max_tokens * 4ul);
    for (uint32_t g = 0; g < lim->n_groups; g++)
        l.slot[g] = take(&l.total, lim->max_tokens * 4ul);
    l.table = l.total;
    l.total += (size_t)lim->n_groups * lim->max_rows * lim->table_cols * 4;
    return l;
}

/* Room for `bytes`; what was there is lost, and no step reads it any more. */
enum err_code mirror_grow(struct mirror *m, size_t bytes, struct err *e)
{
    void *host = NULL, *device = NULL;
    if (bytes <= m->bytes)
        return ERR_OK;
    enum err_code rc = cuda_result(cudaMallocHost(&host, bytes), "allocating pinned memory", e);
    if (rc == ERR_OK)
        rc = cuda_result(cudaMalloc(&device, bytes), "allocating step memory", e);
    if (rc != ERR_OK) {
        cudaFreeHost(host);
        return rc;
    }
    cudaFreeHost(m->host);
    cudaFree(m->device);
    *m = { (char *)host, (char *)device, bytes };
    return ERR_OK;
}

void mirror_free(struct mirror *m)
{
    if (m->host != NULL)
        cudaFreeHost(m->host);
    cudaFree(m->device);
    *m = {};
}

/* ---- sampling rows ---- */

size_t list_bytes(const struct plan_output *o)
{
    const struct sample_params *p = o->params;
    size_t n = p->n_bias * sizeof(struct logit_bias);
    n += sample_penalised(p) ? o->n_history * 4ul : 0;
    return n + (plan_stops_masked(o) ? p->n_stop_ids * 4ul : 0);
}

/* Append to the lists; where it will lie on the device. */
const void *append(struct step_slot *k, size_t *at, const void *from, size_t bytes)
{
    if (bytes == 0)
        return NULL;
    memcpy(k->lists.host + *at, from, bytes);
    const void *to = k->lists.device + *at;
    *at += bytes;
    return to;
}

void fill_sample(struct step_slot *k, const struct plan_output *p, struct sample_row *r,
                 size_t *list)
{
    const struct sample_params *q = p->params;
    r->seed = p->seed;
    r->n_history = p->n_history;
    r->n_prompt = p->n_prompt;
    r->temperature = q->temperature;
    r->top_p = q->top_p;
    r->min_p = q->min_p;
    r->repetition = q->repetition_penalty;
    r->presence = q->presence_penalty;
    r->frequency = q->frequency_penalty;
    r->top_k = q->top_k;
    r->target = p->target;
    r->want_logprob = q->n_logprobs >= 0 || p->target >= 0;
    if (p->target >= 0)
        return;
    r->penalised = sample_penalised(q);
    r->n_bias = q->n_bias;
    r->n_stop = plan_stops_masked(p) ? q->n_stop_ids : 0;
    r->bias = (const struct logit_bias *)append(k, list, q->bias, q->n_bias * sizeof *q->bias);
    r->stop = (const int32_t *)append(k, list, q->stop_ids, r->n_stop * 4ul);
    r->history =
        (const int32_t *)append(k, list, p->history, r->penalised ? p->n_history * 4ul : 0);
}

enum err_code fill_samples(struct cuda_ops *o, struct step_slot *k, const struct step_plan *p,
                           uint32_t n, size_t *n_list, struct err *e)
{
    struct sample_row *row = (struct sample_row *)(k->host + o->at.sample);
    size_t bytes = 0, tops = 0, first = o->lim.max_outputs * sizeof(struct sample_out);
    for (uint32_t i = 0; i < p->n_outputs; i++) {
        bytes += list_bytes(&p->output[i]);
        tops += plan_n_top(&p->output[i], o->lim.vocab);
    }
    const size_t top_bytes = tops * (sizeof(int32_t) + sizeof(float)), n_tops = tops;
    k->n_result_bytes = tops > 0 ? first + top_bytes : p->n_outputs * sizeof(struct sample_out);
    enum err_code rc = mirror_grow(&k->lists, bytes, e);
    if (rc == ERR_OK)
        rc = mirror_grow(&k->results, first + top_bytes, e);
    if (rc != ERR_OK)
        return rc;
    memset(row, 0, n * sizeof *row);
    *n_list = tops = 0;
    for (uint32_t i = 0; i < p->n_outputs; i++) {
        struct sampled *s = &k->sampled[i];
        row[i].out = (struct sample_out *)k->results.device + i;
        row[i].top_token = (int32_t *)(k->results.device + first) + tops;
        row[i].top_logprob = (float *)(k->results.device + first) + n_tops + tops;
        s->top_token = (int32_t *)(k->results.host + first) + tops;
        s->top_logprob = (float *)(k->results.host + first) + n_tops + tops;
        row[i].n_top = s->n_top = plan_n_top(&p->output[i], o->lim.vocab);
        tops += s->n_top;
        fill_sample(k, &p->output[i], &row[i], n_list);
    }
    return ERR_OK;
}

/* ---- tokens of the step before ---- */

/* Where they go: into the token array, and behind the histories that penalties
 * read.  *n patches. */
enum err_code fill_patches(struct cuda_ops *o, struct step_slot *k, const struct step_plan *p,
                           uint32_t *n, struct err *e)
{
    const struct step_slot *before = &o->slot[(o->turn + 1) % STEP_SLOTS];
    const struct sample_row *row = (const struct sample_row *)(k->host + o->at.sample);
    struct token_patch *patch = (struct token_patch *)(k->host + o->at.patch);
    const uint32_t have = before->step + 1 == p->step ? before->n_outputs : 0;
    *n = 0;
    if (p->token_from == NULL)
        return ERR_OK;
    for (uint32_t i = 0; i < p->n_tokens; i++) {
        int32_t from = p->token_from[i];
        if (from < 0)
            continue;
        if ((uint32_t)from >= have || *n >= o->lim.max_rows)
            return err_set(e, ERR_INVALID,
                           "step plan: token_from[%u] is %d, expected an output of the step "
                           "before, which had %u",
                           i, from, have);
        patch[*n].to = (int32_t *)(o->step_device + o->at.token) + i;
        patch[(*n)++].from = (uint32_t)from;
    }
    for (uint32_t i = 0; i < p->n_outputs; i++) {
        int32_t from = p->token_from[p->output[i].token];
        if (from < 0 || row[i].history == NULL)
            continue;
        patch[*n].to = (int32_t *)row[i].history + (row[i].n_history - 1);
        patch[(*n)++].from = (uint32_t)from;
    }
    return ERR_OK;
}

/* ---- the plan ---- */

void fill_ints(void *to, const int32_t *from, uint32_t n, uint32_t padded, int32_t rest)
{
    int32_t *p = (int32_t *)to;
    if (n > 0)
        memcpy(p, from, n * sizeof *p);
    for (uint32_t i = n; i < padded; i++)
        p[i] = rest;
}

void fill_plan(struct cuda_ops *o, struct step_slot *k, const struct step_plan *p,
               const struct op_plan *s)
{
    char *h = k->host;
    uint32_t *row = (uint32_t *)(h + o->at.output_row);
    const int32_t none = 0;
    fill_ints(h + o->at.token, p->token, p->n_tokens, s->n_tokens, 0);
    fill_ints(h + o->at.cu, p->n_rows > 0 ? p->cu_seqlens : &none, p->n_rows + 1, s->n_rows + 1,
              (int32_t)p->n_tokens);
    fill_ints(h + o->at.past, p->past_seqlens, p->n_rows, s->n_rows, 0);
    for (uint32_t i = 0; i < s->n_outputs; i++)
        row[i] = i < p->n_outputs ? p->output[i].token : 0;
    for (uint32_t g = 0; g < p->n_groups; g++)
        fill_ints(h + o->at.slot[g], p->slot_mapping[g], p->n_tokens, s->n_tokens, -1);
}

/* The bytes behind the fixed part. */
size_t fill_tables(struct cuda_ops *o, struct step_slot *k, const struct step_plan *p)
{
    char *to = k->host + o->at.table;
    for (uint32_t g = 0; g < p->n_groups; g++) {
        size_t bytes = (size_t)p->n_rows * p->table_cols[g] * 4;
        memcpy(to, p->block_table[g], bytes);
        to += bytes;
    }
    return (size_t)(to - k->host) - o->at.table;
}

void point(const struct cuda_ops *o, const struct step_plan *p, uint32_t pad, struct op_plan *s)
{
    const char *d = o->step_device;
    memset(s, 0, sizeof *s);
    s->token = (const int32_t *)(d + o->at.token);
    s->cu_seqlens = (const int32_t *)(d + o->at.cu);
    s->past_seqlens = (const int32_t *)(d + o->at.past);
    s->output_row = (const uint32_t *)(d + o->at.output_row);
    s->n_tokens = pad ? pad : p->n_tokens;
    s->n_rows = pad ? pad : p->n_rows;
    s->n_outputs = pad ? pad : p->n_outputs;
    s->max_query_len = p->max_query_len;
    s->max_kv_len = p->max_kv_len;
    for (uint32_t g = 0; g < p->n_groups; g++) {
        s->slot_mapping[g] = (const int32_t *)(d + o->at.slot[g]);
        s->block_table[g] = o->table[g];
        s->table_cols[g] = o->lim.table_cols;
    }
}

enum err_code check_plan(const struct cuda_ops *o, const struct step_plan *p, uint32_t pad,
                         struct err *e)
{
    const struct ops_limits *lim = &o->lim;
    if (p->n_groups != lim->n_groups)
        return err_set(e, ERR_INVALID, "step plan: %u groups, expected %u", p->n_groups,
                       lim->n_groups);
    if (pad > lim->max_tokens || pad > lim->max_rows || pad > lim->max_outputs)
        return err_set(e, ERR_LIMIT, "step plan: padded to %u", pad);
    for (uint32_t g = 0; g < p->n_groups; g++)
        if (p->table_cols[g] > lim->table_cols)
            return err_set(e, ERR_LIMIT,
                           "step plan: block_table[%u] has %u columns, expected at "
                           "most %u",
                           g, p->table_cols[g], lim->table_cols);
    return ERR_OK;
}

enum err_code slot_start(struct step_slot *k, size_t bytes, uint32_t max_outputs, struct err *e)
{
    enum err_code rc =
        cuda_result(cudaMallocHost((void **)&k->host, bytes), "allocating pinned memory", e);
    if (rc == ERR_OK)
        rc = mirror_grow(&k->results, max_outputs * (sizeof(struct sample_out) + 256), e);
    if (rc == ERR_OK)
        rc = cuda_result(cudaEventCreateWithFlags(&k->done, cudaEventDisableTiming),
                         "creating an event", e);
    k->sampled = (struct sampled *)calloc(max_outputs + 1ul, sizeof *k->sampled);
    if (rc == ERR_OK && k->sampled == NULL)
        rc = err_nomem(e, "results", max_outputs * sizeof *k->sampled);
    return rc;
}

void slot_free(struct step_slot *k)
{
    cudaFreeHost(k->host);
    mirror_free(&k->lists);
    mirror_free(&k->results);
    free(k->sampled);
    if (k->done != NULL)
        cudaEventDestroy(k->done);
    *k = {};
}

/* The next slot, once the queue no longer reads it. */
enum err_code slot_turn(struct cuda_ops *o, struct step_slot **out, struct err *e)
{
    struct step_slot *k = &o->slot[(o->turn + 1) % STEP_SLOTS];
    if (k->begun) { /* its step failed */
        enum err_code rc = cuda_result(cudaStreamSynchronize(o->stream), "waiting for a step", e);
        if (rc != ERR_OK)
            return rc;
    }
    k->begun = k->queued = false;
    o->turn = (o->turn + 1) % STEP_SLOTS;
    *out = k;
    return ERR_OK;
}

} // namespace

enum err_code step_start(struct cuda_ops *o, struct err *e)
{
    const struct ops_limits *lim = &o->lim;
    size_t table = (size_t)lim->max_rows * lim->table_cols * 4;
    size_t scratch = (size_t)lim->max_outputs * lim->vocab * 4;
    if (lim->vocab >= 1u << 20) /* masses are sums in fixed point */
        return err_set(e, ERR_INVALID,
                       "config.json: vocab_size %u, the cuda backend samples from "
                       "fewer than %u",
                       lim->vocab, 1u << 20);
    o->at = lay_out(lim);
    enum err_code rc =
        cuda_result(cudaMalloc((void **)&o->step_device, o->at.total), "allocating step memory", e);
    for (uint32_t i = 0; rc == ERR_OK && i < STEP_SLOTS; i++)
        rc = slot_start(&o->slot[i], o->at.total, lim->max_outputs, e);
    for (uint32_t g = 0; rc == ERR_OK && g < lim->n_groups; g++) {
        rc = cuda_result(cudaMalloc((void **)&o->table[g], table), "allocating block tables", e);
        if (rc == ERR_OK)
            rc = cuda_result(cudaMemset(o->table[g], 0xFF, table), "clearing block tables", e);
    }
    if (rc == ERR_OK)
        rc = cuda_result(cudaMalloc((void **)&o->sample.edited, scratch), "sampling scratch", e);
    if (rc == ERR_OK)
        rc = cuda_result(cudaMalloc((void **)&o->sample.seen, scratch), "sampling scratch", e);
    if (rc == ERR_OK)
        rc = cuda_result(cudaMemset(o->sample.seen, 0, scratch), "sampling scratch", e);
    if (rc == ERR_OK)
        rc = cuda_result(cudaMalloc((void **)&o->sample.parts,
                                    lim->max_outputs * (size_t)sample_slices(lim->vocab) *
                                        sizeof(struct sample_part)),
                         "sampling scratch", e);
    return rc;
}

/* What was sent, to where kernels read it. */
static void queue_arrival(struct cuda_ops *o, const struct step_plan *p, uint32_t n_patches)
{
    struct step_arrival a = {};
    const int32_t *table = (const int32_t *)(o->step_device + o->at.table);
    a.patch = (const struct token_patch *)(o->step_device + o->at.patch);
    a.results = (const struct sample_out *)o->slot[(o->turn + 1) % STEP_SLOTS].results.device;
    a.n_patches = n_patches;
    a.n_rows = p->n_rows;
    a.n_groups = p->n_groups;
    a.to_cols = o->lim.table_cols;
    for (uint32_t g = 0; g < p->n_groups; g++) {
        a.table[g] = table;
        a.to[g] = o->table[g];
        a.cols[g] = p->table_cols[g];
        table += (size_t)p->n_rows * p->table_cols[g];
    }
    rows_arrive(o, &a);
}

enum err_code step_begin(struct cuda_ops *o, const struct step_plan *p, uint32_t pad,
                         struct op_plan *out, struct err *e)
{
    struct step_slot *k = NULL;
    size_t n_list = 0;
    uint32_t n_patches = 0;
    enum err_code rc = check_plan(o, p, pad, e);
    if (rc == ERR_OK)
        rc = cuda_result(cudaSetDevice(o->device), "selecting the device", e);
    if (rc == ERR_OK)
        rc = slot_turn(o, &k, e);
    if (rc != ERR_OK)
        return rc;
    o->fault.code = ERR_OK;
    k->step = p->step;
    k->n_outputs = p->n_outputs;
    point(o, p, pad, out);
    rc = fill_samples(o, k, p, out->n_outputs, &n_list, e);
    if (rc == ERR_OK)
        rc = fill_patches(o, k, p, &n_patches, e);
    if (rc != ERR_OK)
        return rc;
    fill_plan(o, k, p, out);
    size_t bytes = o->at.table + fill_tables(o, k, p);
    k->begun = true;
    keep_fault(o,
               cudaMemcpyAsync(o->step_device, k->host, bytes, cudaMemcpyHostToDevice, o->stream),
               "sending the plan");
    if (n_list > 0)
        keep_fault(o,
                   cudaMemcpyAsync(k->lists.device, k->lists.host, n_list, cudaMemcpyHostToDevice,
                                   o->stream),
                   "sending lists");
    queue_arrival(o, p, n_patches);
    return ERR_OK;
}

enum err_code step_finish(struct cuda_ops *o, struct err *e)
{
    struct step_slot *k = &o->slot[o->turn];
    if (k->n_result_bytes > 0 && k->n_outputs > 0)
        keep_fault(o,
                   cudaMemcpyAsync(k->results.host, k->results.device, k->n_result_bytes,
                                   cudaMemcpyDeviceToHost, o->stream),
                   "fetching results");
    keep_fault(o, cudaEventRecord(k->done, o->stream), "recording the step");
    k->queued = o->fault.code == ERR_OK;
    if (o->fault.code != ERR_OK && e != NULL)
        *e = o->fault;
    return o->fault.code;
}

enum err_code step_collect(struct cuda_ops *o, const struct sampled **out, struct err *e)
{
    struct step_slot *older = &o->slot[(o->turn + 1) % STEP_SLOTS];
    struct step_slot *k = older->queued ? older : &o->slot[o->turn];
    const struct sample_out *r = (const struct sample_out *)k->results.host;
    enum err_code rc = cuda_result(cudaEventSynchronize(k->done), "computing the step", e);
    k->begun = k->queued = false;
    if (rc != ERR_OK)
        return rc;
    for (uint32_t i = 0; i < k->n_outputs; i++) {
        struct sampled *s = &k->sampled[i];
        s->token = r[i].token;
        s->failed = r[i].failed != 0;
        s->logprob = r[i].logprob;
        if (s->failed)
            s->n_top = 0;
    }
    if (out != NULL)
        *out = k->sampled;
    return ERR_OK;
}

void step_free(struct cuda_ops *o)
{
    cudaFree(o->step_device);
    o->step_device = NULL;
    for (uint32_t i = 0; i < STEP_SLOTS; i++)
        slot_free(&o->slot[i]);
    for (uint32_t g = 0; g < KV_GROUPS; g++) {
        cudaFree(o->table[g]);
        o->table[g] = NULL;
    }
    cudaFree(o->sample.edited);
    cudaFree(o->sample.seen);
    cudaFree(o->sample.parts);
    o->sample = {};
}
