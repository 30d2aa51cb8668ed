/* ops_cpu.h: the CPU backend's own state, shared by its files.
 * The engine's thread, with the pool it owns. */
#ifndef MODEL_CPU_OPS_CPU_H
#define MODEL_CPU_OPS_CPU_H

#include "attention/platform/workers.h"
#include "model/cpu/kernels.h"
#include "model/cpu/linear.h"
#include "model/step/ops.h"

struct cpu_ops {
    struct workers *pool;
    const struct cpu_kernels *k;
    enum op_dtype type;
    uint32_t max_tokens;
    uint32_t widest; /* columns of the widest matrix */
    void *scratch;   /* packed activations           */
    size_t n_scratch;
    struct moe_scratch *moe; /* NULL: no MoE layer yet  */
    uint32_t *output_row;    /* [max_outputs] of the step */
    struct err fault;        /* of the step: code 0 or why   */
};

/* moe.c: one MoE layer; scratch grows on the first call. */
void model_cpu_moe(struct cpu_ops *o, const struct op_moe *m, uint32_t n);
void model_cpu_moe_scratch_free(struct moe_scratch *s);

static inline size_t op_size(enum op_dtype t)
{
    return t == OP_F32 ? 4 : 2;
}

#endif
