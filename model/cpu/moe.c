/* moe.c: mixture-of-experts layers on the CPU.
 *
 * Tokens are sorted by expert (a counting sort: order within an expert is token
 * order), each expert multiplies its rows once, and every token then adds its
 * experts' results in the order of its own choice: what a token gets does not
 * depend on the others.  Owns its scratch; the engine's thread. */
#include <stdlib.h>
#include <string.h>

#include "model/cpu/ops_cpu.h"
#include "model/step/routing.h"

struct moe_scratch {
    uint32_t max_tokens, top_k, n_experts, hidden, inter;
    float *wide;      /* [n, hidden] router input    */
    float *logits;    /* [n, n_experts]              */
    uint32_t *expert; /* [n, top_k]                  */
    float *weight;    /* [n, top_k]                  */
    uint32_t *begin;  /* [n_experts + 1]             */
    uint32_t *row;    /* [n * top_k] token of a slot */
    uint32_t *slot;   /* [n, top_k] where it went    */
    void *mid;        /* T [n * top_k, inter]        */
    float *result;    /* [n * top_k, hidden]         */
    void *block;      /* the one allocation          */
    size_t n_block;
};

void model_cpu_moe_scratch_free(struct moe_scratch *s)
{
    if (s == NULL)
        return;
    model_cpu_unmap(s->block, s->n_block);
    free(s);
}

static void *carve(unsigned char **p, size_t bytes)
{
    void *at = *p;
    *p += (bytes + 63) & ~(size_t)63;
    return at;
}

static enum err_code make_scratch(struct cpu_ops *o, const struct op_moe *m, uint32_t inter)
{
    const struct moe_config *c = m->config;
    size_t n = o->max_tokens, pairs = n * c->top_k;
    struct moe_scratch *s = calloc(1, sizeof *s);
    if (s == NULL)
        return err_nomem(&o->fault, "MoE scratch", sizeof *s);
    s->n_block = n * m->hidden * 4 + n * c->n_experts * 4 + pairs * 16 + (c->n_experts + 1) * 4ul +
                 pairs * inter * 4 + pairs * m->hidden * 4 + 1024;
    enum err_code rc = model_cpu_map(s->n_block, "MoE scratch", &s->block, &o->fault);
    if (rc) {
        free(s);
        return rc;
    }
    unsigned char *p = s->block;
    s->wide = carve(&p, n * m->hidden * 4);
    s->logits = carve(&p, n * c->n_experts * 4);
    s->expert = carve(&p, pairs * 4);
    s->weight = carve(&p, pairs * 4);
    s->begin = carve(&p, (c->n_experts + 1) * 4ul);
    s->row = carve(&p, pairs * 4);
    s->slot = carve(&p, pairs * 4);
    s->mid = carve(&p, pairs * inter * 4);
    s->result = carve(&p, pairs * m->hidden * 4);
    o->moe = s;
    return ERR_OK;
}

static void route(struct cpu_ops *o, const struct op_moe *m, uint32_t n)
{
    const struct moe_config *c = m->config;
    struct moe_scratch *s = o->moe;
    o->k->widen(m->in, o->type, n * m->hidden, 1, s->wide);
    struct op_linear l = { .w = m->router,
                           .in = s->wide,
                           .in_ld = m->hidden,
                           .to = s->logits,
                           .to_ld = c->n_experts,
                           .out = OP_OUT_F32 };
    model_cpu_linear(o->pool, o->k, OP_F32, &l, n, o->scratch);
    memset(s->begin, 0, (c->n_experts + 1) * sizeof *s->begin);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t expert[ROUTE_TOP];
        float weight[ROUTE_TOP];
        model_route_token(c, s->logits + (size_t)i * c->n_experts, m->choice_bias, expert, weight);
        for (uint32_t j = 0; j < c->top_k; j++) {
            s->expert[i * c->top_k + j] = expert[j];
            s->weight[i * c->top_k + j] = weight[j];
            s->begin[expert[j] + 1]++;
        }
    }
    for (uint32_t x = 0; x < c->n_experts; x++)
        s->begin[x + 1] += s->begin[x];
}

/* Slots in expert order; begin[x] is moved to the end of x and put back. */
static void sort_slots(const struct moe_config *c, struct moe_scratch *s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < c->top_k; j++) {
            uint32_t at = s->begin[s->expert[i * c->top_k + j]]++;
            s->row[at] = i;
            s->slot[i * c->top_k + j] = at;
        }
    }
    memmove(s->begin + 1, s->begin, c->n_experts * sizeof *s->begin);
    s->begin[0] = 0;
}

static void run_expert(struct cpu_ops *o, const struct op_moe *m, uint32_t x, uint32_t inter)
{
    struct moe_scratch *s = o->moe;
    uint32_t at = s->begin[x], n = s->begin[x + 1] - at;
    unsigned char *mid = (unsigned char *)s->mid + (size_t)at * inter * op_size(o->type);
    struct op_linear up = { .w = m->gate_up[x],
                            .in = m->in,
                            .in_ld = m->hidden,
                            .to = mid,
                            .to_ld = inter,
                            .out = OP_OUT_GLU,
                            .act = m->act,
                            .limit = m->limit };
    struct op_linear down = { .w = m->down[x],
                              .in = mid,
                              .in_ld = inter,
                              .to = s->result + (size_t)at * m->hidden,
                              .to_ld = m->hidden,
                              .out = OP_OUT_F32 };
    if (n == 0)
        return;
    model_cpu_linear_rows(o->pool, o->k, o->type, &up, s->row + at, n, o->scratch);
    model_cpu_linear(o->pool, o->k, o->type, &down, n, o->scratch);
}

void model_cpu_moe(struct cpu_ops *o, const struct op_moe *m, uint32_t n)
{
    const struct moe_config *c = m->config;
    uint32_t inter = m->gate_up[0]->n_rows;
    if (n == 0 || (o->moe == NULL && make_scratch(o, m, inter) != ERR_OK))
        return;
    struct moe_scratch *s = o->moe;
    route(o, m, n);
    sort_slots(c, s, n);
    for (uint32_t x = 0; x < c->n_experts; x++)
        run_expert(o, m, x, inter);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < c->top_k; j++) {
            size_t at = s->slot[i * c->top_k + j];
            o->k->add(m->to + (size_t)i * m->hidden, s->result + at * m->hidden, m->hidden,
                      s->weight[i * c->top_k + j]);
        }
}
