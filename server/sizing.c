/* sizing.c: pool and context sizes from options, model and free memory. */
#include "server/sizing.h"

#include <inttypes.h>
#include <string.h>

#define GIB ((uint64_t)1 << 30)

/* A quarter of free memory; steps short enough that a cancelled or a new request
 * does not wait long on a slow device. */
enum { AUTO_SHARE = 4, MIN_OUTPUTS = 256, CPU_STEP_TOKENS = 512, STEP_TOKENS = 2048 };

/* On a device: kernels that are loaded when first used, and the runtime's own. */
static const uint64_t device_reserve = (uint64_t)256 << 20;

/* A number in a file, after key (NULL: the first); 0 when there is none. */
static uint64_t read_number(const char *path, const char *key)
{
    FILE *f = fopen(path, "r");
    char line[256];
    uint64_t v = 0;

    while (f && fgets(line, sizeof line, f)) {
        const char *at = key ? strstr(line, key) : line;
        if (at && sscanf(at + (key ? strlen(key) : 0), "%" SCNu64, &v) == 1)
            break;
    }
    if (f)
        fclose(f);
    return v;
}

/* What the machine, and the control group around us, still allow. */
static uint64_t free_memory(void)
{
    uint64_t machine = read_number("/proc/meminfo", "MemAvailable:") * 1024;
    uint64_t limit = read_number("/sys/fs/cgroup/memory.max", NULL);
    uint64_t used = read_number("/sys/fs/cgroup/memory.current", NULL);
    uint64_t group = limit > used ? limit - used : 0;

    return limit > 0 && group < machine ? group : machine;
}

/* Longest sequence that n_blocks hold, at most `most` tokens. */
static uint32_t longest(const struct kv_layout *lay, uint32_t n_blocks, uint32_t chunk,
                        uint32_t most)
{
    uint32_t lo = 0, hi = most;

    while (lo < hi) {
        uint32_t mid = lo + (hi - lo + 1) / 2;
        if (kv_layout_blocks_for(lay, mid, chunk) <= n_blocks)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

/* What the share of device memory leaves now that everything else has its place. */
static uint64_t device_kv_bytes(const struct model_memory *d, double share)
{
    uint64_t most = (uint64_t)((double)d->total_bytes * share);
    uint64_t taken = d->total_bytes - d->free_bytes + device_reserve;

    return most > taken ? most - taken : 0;
}

static uint32_t choose_blocks(struct sizing *s, const struct srv_options *o)
{
    uint64_t n;

    if (o->n_blocks)
        return (uint32_t)o->n_blocks;
    s->kv_bytes = s->memory.free_bytes / AUTO_SHARE;
    if (s->kv_bytes > 4 * GIB)
        s->kv_bytes = 4 * GIB;
    if (s->memory.device.total_bytes > 0)
        s->kv_bytes = device_kv_bytes(&s->memory.device, o->gpu_share);
    if (o->kv_bytes)
        s->kv_bytes = o->kv_bytes;
    n = s->kv_bytes / s->block_bytes;
    return n > INT32_MAX ? INT32_MAX : (uint32_t)n;
}

static uint32_t most_outputs(const struct srv_options *o)
{
    uint32_t n = 2 * (uint32_t)o->max_num_seqs;

    return n > MIN_OUTPUTS ? n : MIN_OUTPUTS;
}

static void fill_configs(struct sizing *s, const struct srv_options *o, const struct model_info *m,
                         uint32_t budget)
{
    uint32_t seqs = (uint32_t)o->max_num_seqs;

    s->pool = (struct kvpool_config){ .n_blocks = s->n_blocks,
                                      .max_seqs = seqs,
                                      .max_seq_tokens = s->max_model_len,
                                      .max_chunk = budget,
                                      .prefix_caching = o->prefix_caching,
                                      .max_pins = s->pin_budget > 0 ? (uint32_t)o->max_pins : 0,
                                      .pin_budget = s->pin_budget };
    s->sched = (struct sched_config){
        .max_num_seqs = seqs,
        .max_num_batched_tokens = budget,
        .max_model_len = s->max_model_len,
        .max_queued = (uint32_t)o->max_queued_reqs,
        .max_queued_tokens = o->max_queued_tokens,
        .long_prefill_threshold = (uint32_t)o->long_prefill_threshold,
        .max_partial_prefills = (uint32_t)o->max_partial_prefills,
        .policy = (enum sched_policy)o->policy,
        .look_ahead_tokens = (uint32_t)o->look_ahead_tokens,
        .itl_target_us = (uint32_t)o->itl_target_ms * 1000,
        .max_outputs = most_outputs(o),
        .overlap = o->overlap == SRV_OVERLAP_ON || (o->overlap == SRV_OVERLAP_AUTO && m->async),
    };
}

static uint32_t step_tokens(const struct srv_options *o, const struct model_info *m)
{
    if (o->max_num_batched_tokens)
        return (uint32_t)o->max_num_batched_tokens;
    return strcmp(m->backend, "cpu") == 0 ? CPU_STEP_TOKENS : STEP_TOKENS;
}

enum err_code sizing_measure(struct sizing_memory *out, const struct srv_options *o,
                             struct model *m, struct err *e)
{
    struct model_limits lim = { .max_tokens = step_tokens(o, model_describe(m)),
                                .max_rows = (uint32_t)o->max_num_seqs,
                                .max_outputs = most_outputs(o),
                                .max_seq_tokens = (uint32_t)o->max_model_len,
                                .eager = o->eager };

    *out = (struct sizing_memory){ .free_bytes = free_memory() };
    if (!o->plan && (o->n_blocks > 0 || o->kv_bytes > 0))
        return ERR_OK;
    return model_memory(m, &lim, &out->device, e);
}

enum err_code sizing_compute(struct sizing *s, const struct srv_options *o,
                             const struct model_info *m, const struct sizing_memory *free,
                             struct err *e)
{
    const struct kv_layout *lay = &m->layout;
    uint32_t chunk = step_tokens(o, m), fits;

    memset(s, 0, sizeof *s);
    s->memory = *free;
    s->block_bytes = kv_layout_block_bytes(lay);
    s->n_blocks = choose_blocks(s, o);
    s->kv_bytes = (uint64_t)s->n_blocks * s->block_bytes;
    s->max_model_len = o->max_model_len ? (uint32_t)o->max_model_len : m->max_model_len;
    s->pin_budget = (uint32_t)(s->n_blocks * o->pin_budget);
    fits = longest(lay, s->n_blocks - s->pin_budget, chunk, s->max_model_len);
    if (fits < s->max_model_len && o->max_model_len)
        return err_set_param(e, ERR_LIMIT, "max-model-len",
                             "--max-model-len %u needs %" PRIu64 " KV blocks, the pool has %u "
                             "(%" PRIu64 " bytes): at most %u tokens fit; set a smaller context "
                             "or a larger --kv-cache-memory-bytes",
                             s->max_model_len, kv_layout_blocks_for(lay, s->max_model_len, chunk),
                             s->n_blocks - s->pin_budget,
                             (s->n_blocks - s->pin_budget) * s->block_bytes, fits);
    if (fits < 2)
        return err_set_param(e, ERR_LIMIT, "kv-cache-memory-bytes",
                             "the KV pool has %u blocks of %" PRIu64 " bytes: not even a sequence "
                             "of 2 tokens fits",
                             s->n_blocks, s->block_bytes);
    s->model_len_cut = fits < s->max_model_len;
    s->max_model_len = fits;
    fill_configs(s, o, m, chunk);
    return ERR_OK;
}

void sizing_print(FILE *f, const struct sizing *s, const struct srv_options *o,
                  const struct model_info *m)
{
    static const char *const kinds[] = { "full", "window", "latent" };
    const struct kv_layout *lay = &m->layout;
    uint32_t chunk = s->pool.max_chunk;

    fprintf(f, "model            %s\n", o->model);
    fprintf(f, "architecture     %s, %" PRIu64 " parameters, %s on %s\n", m->architecture,
            m->n_parameters, m->dtype, m->backend);
    fprintf(f, "weights          %" PRIu64 " bytes\n", m->weight_bytes);
    fprintf(f, "memory free      %" PRIu64 " bytes\n", s->memory.free_bytes);
    if (s->memory.device.total_bytes > 0)
        fprintf(f,
                "device           %" PRIu64 " bytes, %" PRIu64 " free, %" PRIu64
                " for steps, %" PRIu64 " reserved\n",
                s->memory.device.total_bytes, s->memory.device.free_bytes,
                s->memory.device.step_bytes, device_reserve);
    fprintf(f,
            "KV cache         %" PRIu64 " bytes: %u blocks of %" PRIu64 " bytes, %u tokens each\n",
            s->kv_bytes, s->n_blocks, s->block_bytes, lay->block_tokens);
    for (uint32_t i = 0; i < lay->n_groups; i++)
        fprintf(f, "  group %u        %s, window %u, %u layers\n", i, kinds[lay->group[i].kind],
                lay->group[i].window, lay->group[i].n_layers);
    if (s->pin_budget > 0)
        fprintf(f, "pins             at most %u blocks\n", s->pin_budget);
    fprintf(f, "context          %u tokens%s\n", s->max_model_len,
            s->model_len_cut ? " (cut to what the pool holds)" : "");
    fprintf(f, "step             at most %u tokens, %u sequences\n",
            s->sched.max_num_batched_tokens, s->sched.max_num_seqs);
    fprintf(f, "sequences that fit at once:\n");
    for (uint32_t n = s->max_model_len;; n /= 2) {
        uint64_t need = kv_layout_blocks_for(lay, n, chunk);
        fprintf(f, "  of %7u tokens  %" PRIu64 "\n", n,
                need ? (s->n_blocks - s->pin_budget) / need : 0);
        if (n <= 256 || n / 2 == 0)
            break;
    }
}
