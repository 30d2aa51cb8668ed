/* linear.h: packed weight matrices and y = x W^T + b on the CPU.
 *
 * A matrix is cut into panels of 32 outputs; workers take groups of panels, so
 * a multiplication is one fork-join.  A row's result depends on that row and the
 * weights alone.  Matrices are immutable after creation; they are multiplied by in
 * by the engine's thread, and computed by its pool. */
#ifndef MODEL_CPU_LINEAR_H
#define MODEL_CPU_LINEAR_H

#include "attention/platform/workers.h"
#include "model/cpu/kernels.h"
#include "model/step/ops.h"

struct op_matrix {
    uint32_t n_rows, n_cols; /* GLU: n_rows counts outputs, gate and up pairs */
    bool glu, exact;
    enum panel_store store;
    uint32_t n_panels;
    size_t panel_bytes;
    unsigned char *data; /* owned, from model_cpu_map */
    size_t n_bytes;
    float *bias;                  /* owned, [n_panels * 32], or NULL */
    struct op_matrix *transposed; /* owned: the transpose, or NULL */
};

/* Zeroed memory for weights and scratch, 64-byte aligned; large ones lie in
 * huge pages where the system has them. */
MUST_USE enum err_code model_cpu_map(size_t bytes, const char *what, void **out, struct err *e);
void model_cpu_unmap(void *p, size_t bytes);

/* Pack d for activations of type `type`; where d asks for it, its transpose too. */
MUST_USE enum err_code model_cpu_matrix_create(struct workers *pool, const struct cpu_kernels *k,
                                               enum op_dtype type, const struct op_matrix_desc *d,
                                               struct op_matrix **out, struct err *e);
void model_cpu_matrix_destroy(struct op_matrix *m);

/* Bytes of scratch that model_cpu_linear needs for n rows. */
size_t model_cpu_linear_scratch(uint32_t n, uint32_t n_cols);

/* One multiplication.  type: of l->in (float32 for exact matrices).  scratch: borrowed. */
void model_cpu_linear(struct workers *pool, const struct cpu_kernels *k, enum op_dtype type,
                      const struct op_linear *l, uint32_t n, void *scratch);

/* The rows that row[0..n) name, taken from l->in, instead of 0..n-1. */
void model_cpu_linear_rows(struct workers *pool, const struct cpu_kernels *k, enum op_dtype type,
                           const struct op_linear *l, const uint32_t *row, uint32_t n,
                           void *scratch);

#endif
