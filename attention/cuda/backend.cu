/* backend.cu: the interface "attention": the operator's CUDA backend.
 *
 *   decode     split kernel alone     few tokens: at most one a sequence on average
 *   prefill    split kernel for the sequences of few rows, prefill kernel for the rest
 *   latent     latent kernel         head sizes 576/512
 *   reference  generic kernel         bias, output_qk, odd shapes
 *   dense      attn_dense_*           contiguous K and V
 * Each after the prologue, and after the planner: launched by `begin` for all
 * layers of a class, else by the call itself.  What is chosen and how much is
 * launched depends on static facts and bounds; every length is read on the device.
 *
 * Owns the choice of device.  One struct attn a thread, like attn.h says. */
#include "attention/cuda/dense.h"
#include "attention/cuda/interfaces.h"
#include "attention/cuda/kernel_table.h"
#include "attention/cuda/kernels.h"
#include "attention/cuda/planner.h"

#include <stdlib.h>

namespace
{

enum { WIDTHS = 3 };

const int widths[WIDTHS] = { 64, 128, 256 };

struct cuda_attn {
    int device, last_stage;
    struct device_limits limits;
    /* Which instances this device runs, by cache kind and width. */
    bool split[CACHE_KINDS][WIDTHS], prefill[CACHE_KINDS][WIDTHS], hopper[CACHE_KINDS][WIDTHS];
    bool latent[CACHE_KINDS], latent_hopper[CACHE_KINDS], dense;
};

const struct kernel_family *const split_kernels[CACHE_KINDS] = { &split_bf16, &split_f16,
                                                                 &split_e4m3, &split_int8 };
const struct kernel_family *const prefill_kernels[CACHE_KINDS] = { &prefill_bf16, &prefill_f16,
                                                                   &prefill_e4m3, &prefill_int8 };
/* NULL where there is none. */
const struct kernel_family *const hopper_kernels[CACHE_KINDS] = { &hopper_bf16, &hopper_f16, NULL,
                                                                  NULL };

const struct kernel_family *const latent_hopper_kernels[CACHE_KINDS] = { &latent_hopper_bf16,
                                                                         &latent_hopper_f16, NULL,
                                                                         NULL };

/* Index of a head's padded width in widths[]; WIDTHS beyond the last. */
int width_index(int head_size)
{
    int i = 0;
    while (i < WIDTHS && head_size > widths[i])
        i++;
    return i;
}

enum err_code prepare(const struct kernel_family *f, int width, const struct device_limits *limits,
                      bool runs, struct err *e)
{
    return runs ? cuda_result(f->prepare(width, limits),
                              "preparing kernels (was the plugin built for this GPU?)", e)
                : ERR_OK;
}

/* Ready every instance that the device has room for. */
enum err_code prepare_all(struct cuda_attn *a, struct err *e)
{
    const struct device_limits *limits = &a->limits;
    enum err_code rc = cuda_result(prepare_planner(), "preparing kernels", e);
    if (rc == ERR_OK)
        rc = cuda_result(prepare_prologue(), "preparing kernels", e);
    for (int k = 0; rc == ERR_OK && k < CACHE_KINDS; k++) {
        int element = k < CACHE_E4M3 ? 2 : 1;
        a->latent[k] = latent_stages(limits, element) > 0;
        rc = prepare(&latent_kernels[k], CUDA_LATENT_K, limits, a->latent[k], e);
        a->latent_hopper[k] = latent_hopper_kernels[k] != NULL &&
                              latent_hopper_runs(limits, QUIRE_CUDA_HOPPER, element);
        if (rc == ERR_OK)
            rc = prepare(latent_hopper_kernels[k], CUDA_LATENT_K, limits, a->latent_hopper[k], e);
        for (int i = 0; rc == ERR_OK && i < WIDTHS; i++) {
            int d = widths[i];
            a->split[k][i] =
                split_stages(limits, element, d, 8) > 0 && split_stages(limits, element, d, 16) > 0;
            a->prefill[k][i] = prefill_bytes(element, d) <= limits->block_bytes;
            a->hopper[k][i] =
                hopper_kernels[k] != NULL && hopper_runs(limits, QUIRE_CUDA_HOPPER, element, d);
            rc = prepare(split_kernels[k], d, limits, a->split[k][i], e);
            if (rc == ERR_OK)
                rc = prepare(prefill_kernels[k], d, limits, a->prefill[k][i], e);
            if (rc == ERR_OK)
                rc = prepare(hopper_kernels[k], d, limits, a->hopper[k][i], e);
        }
    }
    return rc;
}

enum err_code read_limits(int device, struct device_limits *limits, struct err *e)
{
    const struct {
        enum cudaDeviceAttr attribute;
        int32_t *to;
    } reads[] = {
        { cudaDevAttrComputeCapabilityMajor, &limits->major },
        { cudaDevAttrComputeCapabilityMinor, &limits->minor },
        { cudaDevAttrMultiProcessorCount, &limits->n_sm },
        { cudaDevAttrMaxSharedMemoryPerBlockOptin, &limits->block_bytes },
        { cudaDevAttrMaxSharedMemoryPerMultiprocessor, &limits->sm_bytes },
    };
    enum err_code rc = ERR_OK;
    for (const auto &r : reads)
        if (rc == ERR_OK)
            rc = cuda_result(cudaDeviceGetAttribute(r.to, r.attribute, device),
                             "reading device properties", e);
    return rc;
}

enum err_code open_backend(void **self, const struct attn_options *opt, struct err *e)
{
    struct device_info info;
    enum err_code rc = cuda_device.open(opt->device_index, &info, e);
    if (rc != ERR_OK)
        return rc;
    if (info.major < 8)
        return err_set(e, ERR_GPU, "device %d, %s: compute capability %d.%d, expected 8.0 or newer",
                       (int)opt->device_index, info.name, (int)info.major, (int)info.minor);
    struct cuda_attn *a = (struct cuda_attn *)calloc(1, sizeof *a);
    if (a == NULL)
        return err_nomem(e, "attention backend", sizeof *a);
    a->device = opt->device_index;
    a->last_stage = opt->last_stage;
    rc = read_limits(a->device, &a->limits, e);
    if (opt->shared_limit > 0 && (int32_t)opt->shared_limit < a->limits.block_bytes)
        a->limits.block_bytes = (int32_t)opt->shared_limit;
    if (rc == ERR_OK)
        rc = prepare_all(a, e);
    if (rc == ERR_OK)
        rc = cuda_result(
            dense_prepare(a->limits.major, a->limits.minor, a->limits.block_bytes, &a->dense),
            "preparing dense attention", e);
    if (rc != ERR_OK) {
        free(a);
        return rc;
    }
    *self = a;
    return ERR_OK;
}

void close_backend(void *self)
{
    free(self);
}

enum cache_kind cache_kind_of(enum attn_dtype d)
{
    return d == ATTN_BF16   ? CACHE_BF16
           : d == ATTN_F16  ? CACHE_F16
           : d == ATTN_E4M3 ? CACHE_E4M3
                            : CACHE_INT8;
}

bool fits(const void *self, uint32_t k, const struct attn_plan *p)
{
    const struct cuda_attn *a = (const struct cuda_attn *)self;
    enum cache_kind cache = cache_kind_of(p->k_cache_dtype);
    int width = width_index(p->head_size);
    if (k == CUDA_REFERENCE)
        return true;
    if (k == CUDA_LATENT)
        return p->head_size == CUDA_LATENT_K && p->v_head_size == CUDA_LATENT_V && a->latent[cache];
    if (width == WIDTHS || !a->split[cache][width])
        return false;
    /* Rows are copied 16 bytes at a time. */
    if (p->head_size * (cache < CACHE_E4M3 ? 2 : 1) % 16 != 0)
        return false;
    return k == CUDA_PREFILL ? a->prefill[cache][width] : p->token_count <= p->batch_size;
}

/* ---- workspace ------------------------------------------------------------ */

/* Byte offsets of the parts; total is what a call needs. */
struct layout {
    uint64_t q, q_factor, arrived, part, part_state, total;
    int32_t q_width, max_chunks, part_rows, split_rows, q_form;
    struct plan_rule rule;
};

/* The same of the planner's lists. */
struct schedule {
    uint64_t list[LISTS], total;
    int64_t most_units[LISTS];
    int32_t tile_rows[LISTS];
    enum share share[LISTS];
};

uint64_t take(uint64_t *at, uint64_t bytes)
{
    uint64_t here = *at;
    *at = (here + bytes + 255) & ~(uint64_t)255;
    return here;
}

/* Partial results are of fp32 whatever the cache holds: beside 8-bit keys, and beside the
 * wide rows of a latent cache, they weigh more. */
struct plan_rule chunk_rule(bool latent, bool quantised)
{
    if (latent)
        return { quantised ? LATENT_CHUNK / 2 : LATENT_CHUNK, PLAN_CHUNKS };
    return { PLAN_CHUNK_MIN, quantised ? PLAN_CHUNKS / 2 : PLAN_CHUNKS };
}

struct layout lay_out(const struct attn_plan *p)
{
    struct layout l = {};
    bool generic = p->kernel == CUDA_REFERENCE;
    bool quantised = p->k_cache_dtype == ATTN_INT8 || p->k_cache_dtype == ATTN_E4M3;
    int64_t rows = p->token_count, span = p->max_kv_len, at_most;
    uint64_t heads = (uint64_t)p->token_count * (uint64_t)p->num_heads;

    l.q_form = generic ? Q_FLOAT : quantised ? Q_HALF : Q_NATIVE;
    bool latent = p->kernel == CUDA_LATENT;
    l.q_width = generic || latent ? p->head_size : widths[width_index(p->head_size)];
    l.q = take(&l.total, heads * (uint64_t)l.q_width * (generic ? 4 : 2));
    l.q_factor = take(&l.total, heads * 4);
    l.arrived = take(&l.total, heads * 4);
    if (generic)
        return l;

    l.split_rows = INT32_MAX;
    if (latent) {
        rows = p->batch_size;
    } else if (p->kernel == CUDA_PREFILL) {
        l.split_rows = p->group > 16 ? p->group : 16;
        at_most = p->batch_size * (l.split_rows / p->group);
        rows = rows < at_most ? rows : at_most;
    }
    if (p->attrs.local_window_size > 0 && (p->features & ATTN_BIT(ATTN_HAS_POSITIONS)) == 0) {
        at_most = p->attrs.local_window_size + p->max_query_len;
        span = span < at_most ? span : at_most;
    }
    l.rule = chunk_rule(latent, quantised);
    l.max_chunks = plan_max_chunks(span, l.rule);
    l.part_rows = (int32_t)rows;
    uint64_t parts = (uint64_t)rows * (uint64_t)l.max_chunks * (uint64_t)p->num_heads;
    l.part = take(&l.total, parts * (uint64_t)(latent ? CUDA_LATENT_V : l.q_width) * 4);
    l.part_state = take(&l.total, parts * 8);
    return l;
}

struct schedule lay_out_lists(const struct attn_plan *p, const struct layout *l)
{
    struct schedule s = {};
    int64_t tokens = p->token_count, seqs = p->batch_size, few = seqs;
    if (p->kernel == CUDA_REFERENCE)
        return s;
    s.share[LIST_SPLIT] = p->kernel == CUDA_LATENT ? SHARE_LATENT : SHARE_SPLIT;
    s.tile_rows[LIST_SPLIT] = p->kernel == CUDA_LATENT ? LATENT_ROWS : p->group <= 8 ? 8 : 16;
    if (p->kernel == CUDA_PREFILL) {
        few *= l->split_rows / p->group;
        s.share[LIST_PREFILL] = SHARE_PREFILL;
        s.tile_rows[LIST_PREFILL] = prefill_rows(l->q_width);
        s.most_units[LIST_PREFILL] =
            plan_most_units(tokens, seqs, p->group, s.tile_rows[LIST_PREFILL], 1);
    }
    s.most_units[LIST_SPLIT] =
        plan_most_units(p->kernel == CUDA_PREFILL && few < tokens ? few : tokens, seqs, p->group,
                        s.tile_rows[LIST_SPLIT], l->max_chunks);
    for (int i = 0; i < LISTS; i++)
        if (s.share[i] != SHARE_NONE)
            s.list[i] = take(&s.total, sizeof(struct plan_head) +
                                           (uint64_t)s.most_units[i] * sizeof(struct plan_unit));
    return s;
}

enum err_code size_call(const void *, struct attn_plan *p, struct err *e)
{
    const int64_t most = INT32_MAX / 4;
    if (p->token_count * (p->num_heads + 2 * (int64_t)p->kv_num_heads) > most)
        return err_set_param(e, ERR_INVALID, "query",
                             "query: %lld tokens of %d heads, expected at most %lld rows a call",
                             (long long)p->token_count, (int)p->num_heads, (long long)most);
    if (p->num_blocks > INT32_MAX || p->batch_size > most || p->table_cols > most)
        return err_set_param(e, ERR_INVALID, "block_table",
                             "key_cache has %lld blocks, block_table is (%lld, %lld): expected at "
                             "most %lld of each",
                             (long long)p->num_blocks, (long long)p->batch_size,
                             (long long)p->table_cols, (long long)most);
    struct layout l = lay_out(p);
    struct schedule s = lay_out_lists(p, &l);
    for (int i = 0; i < LISTS; i++)
        if (s.most_units[i] * p->kv_num_heads > most)
            return err_set_param(e, ERR_INVALID, "query",
                                 "query: %lld tokens of %lld sequences, in up to %d parts of %d "
                                 "heads: expected at most %lld parts a call",
                                 (long long)p->token_count, (long long)p->batch_size,
                                 (int)l.max_chunks, (int)p->kv_num_heads, (long long)most);
    p->schedule_bytes = s.total;
    p->workspace_bytes = l.total + s.total;
    return ERR_OK;
}

/* ---- run ------------------------------------------------------------------ */

/* Tensors that are read or written 16 bytes at a time. */
enum err_code check_alignment(const struct attn_args *args, struct err *e)
{
    static const struct {
        enum attn_input input;
        const char *name;
    } wide[] = {
        { ATTN_QUERY, "query" },
        { ATTN_KEY, "key" },
        { ATTN_VALUE, "value" },
        { ATTN_KEY_CACHE, "key_cache" },
        { ATTN_VALUE_CACHE, "value_cache" },
    };
    for (const auto &w : wide) {
        const struct attn_tensor *t = &args->in[w.input];
        if (t->rank != 0 && (uintptr_t)t->data % 16 != 0)
            return err_set_param(e, ERR_INVALID, w.name, "%s at %p: expected 16-byte alignment",
                                 w.name, t->data);
    }
    if ((uintptr_t)args->out[ATTN_OUT].data % 16 != 0)
        return err_set_param(e, ERR_INVALID, "output", "output at %p: expected 16-byte alignment",
                             args->out[ATTN_OUT].data);
    return ERR_OK;
}

const void *input(const struct attn_args *args, enum attn_input i)
{
    return args->in[i].rank != 0 ? args->in[i].data : NULL;
}

void fill_pointers(struct attn_call *c, const struct attn_args *args)
{
    c->query = input(args, ATTN_QUERY);
    c->key = input(args, ATTN_KEY);
    c->value = input(args, ATTN_VALUE);
    c->key_cache = args->in[ATTN_KEY_CACHE].data;
    c->value_cache = c->latent ? c->key_cache : args->in[ATTN_VALUE_CACHE].data;
    c->cu_seqlens = (const int32_t *)input(args, ATTN_CU_SEQLENS);
    c->past_seqlens = (const int32_t *)input(args, ATTN_PAST_SEQLENS);
    c->block_table = (const int32_t *)input(args, ATTN_BLOCK_TABLE);
    c->cos_cache = input(args, ATTN_COS_CACHE);
    c->sin_cache = input(args, ATTN_SIN_CACHE);
    c->slot_mapping = (const int32_t *)input(args, ATTN_SLOT_MAPPING);
    c->head_sink = input(args, ATTN_HEAD_SINK);
    c->q_norm = input(args, ATTN_Q_NORM_WEIGHT);
    c->k_norm = input(args, ATTN_K_NORM_WEIGHT);
    c->k_scale = (const float *)input(args, ATTN_K_SCALE);
    c->v_scale = c->latent ? c->k_scale : (const float *)input(args, ATTN_V_SCALE);
    c->positions = (const int32_t *)input(args, ATTN_QUERY_POSITIONS);
    c->bias = input(args, ATTN_BIAS);
    c->output = args->out[ATTN_OUT].data;
    c->qk = args->out[ATTN_QK].rank != 0 ? args->out[ATTN_QK].data : NULL;
}

void fill_shapes(struct attn_call *c, const struct attn_plan *p)
{
    const int64_t *bias = p->bias_shape;
    c->latent = p->mode == ATTN_MODE_LATENT;
    c->tokens = (int32_t)p->token_count;
    c->batch = (int32_t)p->batch_size;
    c->table_cols = (int32_t)p->table_cols;
    c->num_blocks = (int32_t)p->num_blocks;
    c->block_shift = p->block_shift;
    c->heads = p->num_heads;
    c->kv_heads = p->kv_num_heads;
    c->group = p->group;
    c->head_size = p->head_size;
    c->v_head_size = p->v_head_size;
    c->query_stride = (int32_t)p->query_stride;
    c->key_stride = p->kv_num_heads * p->head_size;
    c->rotary_dim = p->rotary_dim;
    c->rotary_offset = p->attrs.rotary_offset;
    c->rotary_interleaved = p->attrs.rotary_interleaved;
    c->rotary_rows = (int32_t)(p->rotary_rows < INT32_MAX ? p->rotary_rows : INT32_MAX);
    c->window = p->attrs.local_window_size > 0 ? p->attrs.local_window_size : 0;
    c->bias_rows = bias[2];
    c->bias_cols = bias[3];
    c->bias_stride_head = bias[1] > 1 ? bias[2] * bias[3] : 0;
    c->bias_stride_batch = bias[0] > 1 ? bias[1] * bias[2] * bias[3] : 0;
    c->qk_cols = p->qk_cols;
    c->qk_dtype = p->qk_dtype;
    c->qk_mode = p->attrs.qk_output;
    c->dtype_bf16 = p->dtype == ATTN_BF16;
    c->cache = cache_kind_of(p->k_cache_dtype);
    c->k_channel = p->attrs.k_quant_type == ATTN_PER_CHANNEL;
    c->v_channel = c->latent ? c->k_channel : p->attrs.v_quant_type == ATTN_PER_CHANNEL;
    c->scale = p->scale;
    c->softcap = p->attrs.softcap;
    c->epsilon = p->attrs.qk_norm_epsilon;
}

void fill_workspace(struct attn_call *c, const struct layout *l, char *workspace)
{
    c->q = workspace + l->q;
    c->q_factor = (float *)(workspace + l->q_factor);
    c->arrived = (uint32_t *)(workspace + l->arrived);
    c->part = (float *)(workspace + l->part);
    c->part_state = (float *)(workspace + l->part_state);
    c->q_width = l->q_width;
    c->q_form = l->q_form;
    c->max_chunks = l->max_chunks;
    c->chunk_least = l->rule.least;
    c->chunks = l->rule.chunks;
    c->part_rows = l->part_rows;
    c->split_rows = l->split_rows;
}

void fill_lists(struct attn_call *c, const struct schedule *s, char *memory)
{
    for (int i = 0; i < LISTS; i++) {
        c->list[i] = (struct plan_head *)(memory + s->list[i]);
        c->unit[i] = (struct plan_unit *)(c->list[i] + 1);
        c->most_units[i] = (int32_t)s->most_units[i];
        c->tile_rows[i] = s->tile_rows[i];
        c->share[i] = s->share[i];
    }
}

/* The fastest prefill kernel that takes the call here. */
const struct kernel_family *prefill_for(const struct cuda_attn *a, const struct attn_call *c)
{
    return a->hopper[c->cache][width_index(c->head_size)] ? hopper_kernels[c->cache]
                                                          : prefill_kernels[c->cache];
}

/* What the kernels get.  The lists are the class's, or lie behind the rest of the
 * workspace. */
struct attn_call make_call(const struct attn_plan *p, const struct attn_args *args, void *workspace)
{
    struct attn_call c = {};
    struct layout l = lay_out(p);
    struct schedule s = lay_out_lists(p, &l);
    char *lists = (char *)args->schedule;
    fill_shapes(&c, p);
    fill_pointers(&c, args);
    fill_workspace(&c, &l, (char *)workspace);
    fill_lists(&c, &s, lists != NULL ? lists : (char *)workspace + l.total);
    return c;
}

enum err_code begin(void *self, const struct attn_plan *p, const struct attn_args *args,
                    void *stream, struct err *e)
{
    const struct cuda_attn *a = (const struct cuda_attn *)self;
    if ((uintptr_t)args->schedule % 16 != 0)
        return err_set_param(e, ERR_INVALID, "schedule",
                             "schedule at %p: expected 16-byte alignment", args->schedule);
    struct attn_call c = make_call(p, args, NULL);
    enum err_code rc = cuda_result(cudaSetDevice(a->device), "selecting the device", e);
    return rc != ERR_OK
               ? rc
               : cuda_result(launch_planner(&c, (cudaStream_t)stream), "launching the planner", e);
}

enum err_code run(void *self, const struct attn_plan *p, const struct attn_args *args,
                  void *workspace, void *stream, struct err *e)
{
    const struct cuda_attn *a = (const struct cuda_attn *)self;
    cudaStream_t s = (cudaStream_t)stream;
    if (p->token_count == 0)
        return ERR_OK;
    enum err_code rc = check_alignment(args, e);
    if (rc != ERR_OK)
        return rc;

    struct attn_call c = make_call(p, args, workspace);
    rc = cuda_result(cudaSetDevice(a->device), "selecting the device", e);
    if (rc == ERR_OK && args->schedule == NULL && p->schedule_bytes > 0)
        rc = cuda_result(launch_planner(&c, s), "launching the planner", e);
    if (rc == ERR_OK)
        rc = cuda_result(launch_prologue(&c, s), "launching the prologue", e);
    if (rc != ERR_OK || a->last_stage == ATTN_STAGE_PROLOGUE)
        return rc;
    if (p->kernel == CUDA_REFERENCE)
        return cuda_result(launch_generic(&c, s), "launching the generic kernel", e);
    if (p->kernel == CUDA_LATENT) {
        const struct kernel_family *f =
            a->latent_hopper[c.cache] ? latent_hopper_kernels[c.cache] : &latent_kernels[c.cache];
        rc = cuda_result(f->launch(&c, &a->limits, s), "launching the latent kernel", e);
        return rc != ERR_OK || a->last_stage == ATTN_STAGE_ATTEND
                   ? rc
                   : cuda_result(launch_latent_merge(&c, s), "launching the latent merge", e);
    }
    rc = cuda_result(split_kernels[c.cache]->launch(&c, &a->limits, s),
                     "launching the split kernel", e);
    if (rc == ERR_OK && p->kernel == CUDA_PREFILL)
        rc = cuda_result(prefill_for(a, &c)->launch(&c, &a->limits, s),
                         "launching the prefill kernel", e);
    return rc;
}

/* ---- dense ----------------------------------------------------------------- */

enum err_code dense_size(const void *self, const struct attn_dense *d, uint64_t *bytes,
                         struct err *e)
{
    if (!((const struct cuda_attn *)self)->dense)
        return err_set(e, ERR_INVALID, "dense attention: the cuda backend serves it on sm_90a");
    return dense_workspace(d, bytes, e);
}

enum err_code dense_run(void *self, const struct attn_dense *d, void *workspace, void *stream,
                        struct err *e)
{
    const struct cuda_attn *a = (const struct cuda_attn *)self;
    if (!a->dense)
        return err_set(e, ERR_INVALID, "dense attention: the cuda backend serves it on sm_90a");
    enum err_code rc = cuda_result(cudaSetDevice(a->device), "selecting the device", e);
    return rc != ERR_OK ? rc : dense_attend(d, a->limits.n_sm, workspace, (cudaStream_t)stream, e);
}

/* ---- cache memory --------------------------------------------------------- */

enum err_code map(void *self, size_t bytes, void **out, struct err *e)
{
    const struct cuda_attn *a = (const struct cuda_attn *)self;
    void *p = NULL;
    enum err_code rc = cuda_result(cudaSetDevice(a->device), "selecting the device", e);
    if (rc == ERR_OK)
        rc = cuda_device.alloc(&p, bytes, e);
    if (rc == ERR_OK)
        rc = cuda_result(cudaMemset(p, 0, bytes), "clearing cache memory", e);
    if (rc != ERR_OK) {
        cudaFree(p);
        return rc;
    }
    *out = p;
    return ERR_OK;
}

void unmap(void *, void *p, size_t)
{
    cudaFree(p);
}

enum err_code move(const struct cuda_attn *a, void *to, const void *from, size_t bytes,
                   enum cudaMemcpyKind way, struct err *e)
{
    enum err_code rc = cuda_result(cudaSetDevice(a->device), "selecting the device", e);
    if (rc == ERR_OK)
        rc = cuda_result(cudaDeviceSynchronize(), "waiting for the device", e);
    if (rc == ERR_OK)
        rc = cuda_result(cudaMemcpy(to, from, bytes, way), "copying", e);
    return rc;
}

enum err_code copy_in(void *self, void *to, const void *host, size_t bytes, struct err *e)
{
    return move((const struct cuda_attn *)self, to, host, bytes, cudaMemcpyHostToDevice, e);
}

enum err_code copy_out(void *self, void *host, const void *from, size_t bytes, struct err *e)
{
    return move((const struct cuda_attn *)self, host, from, bytes, cudaMemcpyDeviceToHost, e);
}

enum err_code copy_blocks(void *, void *slab, size_t bytes, const int32_t *from_to, uint32_t n,
                          void *stream, struct err *e)
{
    for (uint32_t i = 0; i < n; i++) {
        char *from = (char *)slab + (size_t)from_to[2 * i] * bytes;
        char *to = (char *)slab + (size_t)from_to[2 * i + 1] * bytes;
        enum err_code rc = cuda_device.copy(to, from, bytes, DEVICE_TO_DEVICE, stream, e);
        if (rc != ERR_OK)
            return rc;
    }
    return ERR_OK;
}

} // namespace

const struct attn_backend cuda_attention = {
    ATTN_ABI,     "cuda",       ATTN_CUDA,     cuda_kernel_table,
    CUDA_KERNELS, open_backend, close_backend, fits,
    size_call,    begin,        run,           dense_size,
    dense_run,    map,          unmap,         copy_in,
    copy_out,     copy_blocks,
};
