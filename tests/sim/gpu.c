/* gpu.c: what a step costs on the modelled GPU.
 *
 * A step reads the weights once or computes, whichever is slower, reads the KV
 * of its decode rows, computes the attention of its prompt chunks, and pays a
 * fixed overhead.  A roofline, not a measurement: it ranks policies. */
#include "sim/sim.h"

const struct gpu gpu_8b = {
    .overhead_us = 300,
    .weight_bytes = 16e9,
    .flop_per_token = 16e9,
    .bytes_per_s = 4.0e12,
    .flop_per_s = 600e12,
    .kv_bytes_per_token = 131072,
    .attn_flop = 524288,
};

/* Tokens of the row's context that one query reads, averaged over layers. */
static double seen(const struct kv_layout *lay, double length)
{
    double sum = 0, layers = 0;
    for (uint32_t g = 0; g < lay->n_groups; g++) {
        double w = lay->group[g].window, n = lay->group[g].n_layers;
        sum += n * (w > 0 && w < length ? w : length);
        layers += n;
    }
    return sum / layers;
}

uint64_t gpu_step_us(const struct gpu *g, const struct kv_layout *lay, const struct step_plan *p)
{
    double kv = 0, pairs = 0;
    for (uint32_t r = 0; r < p->n_rows; r++) {
        double n = p->cu_seqlens[r + 1] - p->cu_seqlens[r], past = p->past_seqlens[r];
        kv += seen(lay, past + n);
        pairs += n > 1 ? n * seen(lay, past + n / 2) : 0;
    }
    double weights = g->weight_bytes / g->bytes_per_s;
    double compute = p->n_tokens * g->flop_per_token / g->flop_per_s;
    double s = weights > compute ? weights : compute;
    s += kv * g->kv_bytes_per_token / g->bytes_per_s + pairs * g->attn_flop / g->flop_per_s;
    return (uint64_t)(g->overhead_us + s * 1e6);
}
