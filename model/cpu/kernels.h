/* kernels.h: the CPU backend's inner loops, one table per instruction set.
 *
 * Every kernel computes a row of its result from that row of its input alone,
 * in an order fixed by the shapes of the weights: the same row gives the same
 * bits alone or among others, on any number of threads.
 * Pure functions; any thread. */
#ifndef MODEL_CPU_KERNELS_H
#define MODEL_CPU_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "model/step/ops.h"

/* Columns of a weight panel: outputs that one pass over K computes together. */
enum { PANEL = 32, MICRO_ROWS_MAX = 12 };

/* How a packed panel is stored: for each k, PANEL weights side by side. */
enum panel_store {
    PANEL_F32,   /* [K][32] float                                            */
    PANEL_BF16,  /* [K][32] bfloat16, widened exactly when read              */
    PANEL_PAIRS, /* [K/2][32][2] bfloat16, for the pairwise dot instruction  */
    PANEL_STORES
};

/* c[m][32] = sum over k of a[k][m] * panel[k][.], m < mr; a is packed [k][mr]
 * (PANEL_PAIRS: [k/2][mr][2] bfloat16), n_k counts k (PANEL_PAIRS: pairs).
 * Every step asks the caches for what lies at ahead, which moves by stride bytes
 * a step (at most two lines' worth): memory is then busy while this panel is
 * multiplied.  The addresses need not be valid. */
typedef void micro_fn(const void *panel, const void *a, uint32_t n_k, uint32_t mr, float *c,
                      const char *ahead, size_t stride);

/* The same for two neighbouring panels at once, c[2][mr][32], mr <= PAIR_ROWS: a
 * few rows are bound by memory, and two streams of weights fill it better than
 * one with any prefetching. */
enum { PAIR_ROWS = 4 };
typedef void micro_pair_fn(const void *panel, size_t panel_bytes, const void *a, uint32_t n_k,
                           uint32_t mr, float *c);

/* Where a finished block of mr rows goes. */
struct finish {
    enum op_out out;
    enum act_kind act; /* OP_OUT_GLU */
    float limit;
    enum op_dtype type; /* of OP_OUT_T and OP_OUT_GLU */
    const float *bias;  /* [32] of this panel, or NULL */
    uint32_t n_valid;   /* columns of the panel that exist (GLU: pairs) */
    void *to;           /* first row, first column of the panel */
    size_t ld;          /* elements between rows */
};

struct cpu_kernels {
    const char *name;
    uint32_t micro_rows;                     /* best block height, <= MICRO_ROWS_MAX */
    micro_fn *micro[PANEL_STORES];           /* NULL: not on this instruction set */
    micro_pair_fn *micro_pair[PANEL_STORES]; /* NULL: one panel at a time */
    /* Takes c[mr][32] by value: it may be overwritten. */
    void (*finish)(const struct finish *f, float *c, uint32_t mr);
    /* out = x * w / rms(x), n wide; w NULL: plain cast. */
    void (*norm)(const float *x, const float *w, float eps, uint32_t n, enum op_dtype type,
                 void *out);
    float (*sum_of_squares)(const float *x, uint32_t n);
    /* Largest of x; *finite: none is infinite or NaN. */
    float (*max)(const float *x, uint32_t n, bool *finite);
    /* Sum of e^((x - shift) * scale); the terms go to out unless NULL. */
    double (*exp_sum)(const float *x, uint32_t n, float shift, float scale, float *out);
    void (*widen)(const void *x, enum op_dtype type, uint32_t n, float scale, float *out);
    void (*narrow)(const float *x, uint32_t n, enum op_dtype type, void *out);
    void (*add)(float *x, const float *y, uint32_t n, float scale);
};

/* The best of this machine; exact ones never multiply in bfloat16. */
const struct cpu_kernels *model_cpu_kernels_best(void);
/* By name ("generic", "avx2", "avx512"), NULL when this machine lacks it. */
const struct cpu_kernels *model_cpu_kernels_named(const char *name);
/* Whether the machine multiplies bfloat16 pairs (AVX512-BF16). */
bool model_cpu_has_bf16(void);

#endif
