/* model.h: a model directory that computes steps.
 *
 * model_open loads config, weights and generation defaults from a Hugging Face
 * model directory; model_start allocates the KV slabs and scratch for a pool of
 * a given size; then model_forward and model_collect, once each a step, from
 * the engine thread alone.  One more step may be forwarded before the last one is
 * collected; they are collected in order.  Everything else is const after open:
 * any thread. */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/err.h"
#include "proto/plan/kv_layout.h"
#include "proto/plan/step_plan.h"

enum model_dtype { MODEL_AUTO, MODEL_FLOAT32, MODEL_BFLOAT16, MODEL_FLOAT16 };
enum model_device { MODEL_DEVICE_AUTO, MODEL_DEVICE_CPU, MODEL_DEVICE_CUDA };

struct model_options {
    const char *path;       /* model directory                              */
    enum model_dtype dtype; /* AUTO: bf16 where the device computes it, else f32 */
    enum model_device device;
    uint32_t block_tokens;  /* 16..256, power of two                        */
    uint32_t max_model_len; /* 0: the model's own                           */
    uint32_t n_threads;     /* CPU compute threads; 0: physical cores       */
    const char *plugin;     /* quire_cuda.so; NULL: beside the program, one folder
                             * above it, or in ../lib/quire from there      */
};

struct model_limits {
    uint32_t n_blocks;       /* KV pool                         */
    uint32_t max_tokens;     /* a step                          */
    uint32_t max_rows;       /* a step                          */
    uint32_t max_outputs;    /* logits rows a step              */
    uint32_t max_seq_tokens; /* of one sequence; 0: max_model_len */
    bool eager;              /* capture nothing                 */
    bool poison;             /* debugging: KV blocks hold NaN until they are stored to
                              * (attn_kv_poison); takes one block more */
    uint32_t expand_from;    /* forward.h's: 0 but in tests     */
};

/* What a device backend may fill with KV blocks; all 0 on the CPU. */
struct model_memory {
    uint64_t total_bytes;
    uint64_t free_bytes; /* with weights, scratch and captured steps in place */
    uint64_t step_bytes; /* of scratch and captured steps                     */
};

/* Generation defaults (generation_config.json); NAN or -1 where absent. */
struct model_generation {
    float temperature, top_p, min_p, repetition_penalty;
    int32_t top_k;
};

struct model_info {
    const char *architecture; /* "LlamaForCausalLM" */
    const char *backend;      /* "cpu" or "cuda"    */
    const char *dtype;        /* "float32", ...     */
    bool async;               /* model_forward returns before the step is done */
    const char *kernels;      /* instruction set and attention kernels, in words */
    const char *device_note;  /* why this backend; "" when asked for */
    uint32_t vocab_size;      /* rows of the head: ids are 0..vocab_size-1 */
    uint32_t max_model_len;   /* served context     */
    uint32_t n_eos;
    const int32_t *eos; /* config and generation_config, merged */
    uint64_t weight_bytes, n_parameters;
    struct model_generation generation;
    struct kv_layout layout;
};

struct model;

/* ERR_INVALID / ERR_IO with one line naming the file, the tensor or key, what
 * was found and what is expected. */
MUST_USE enum err_code model_open(struct model **out, const struct model_options *opt,
                                  struct err *e);
void model_close(struct model *m);

/* Borrowed for the model's life. */
const struct model_info *model_describe(const struct model *m);

/* The device's memory for steps of these limits (n_blocks is not read), measured:
 * scratch is taken and steps are captured over a pool of one block, and given
 * back.  Before model_start. */
MUST_USE enum err_code model_memory(struct model *m, const struct model_limits *lim,
                                    struct model_memory *out, struct err *e);

/* Allocate slabs and scratch; on a device, capture the steps that are replayed.
 * Once. */
MUST_USE enum err_code model_start(struct model *m, const struct model_limits *lim, struct err *e);

/* Compute one step: block copies, forward of every token, logits where the plan
 * asks, sampling. The CPU backend has finished on return; a GPU one may still
 * run.  The plan is not read afterwards.  Its token_from needs step - 1 to be the
 * last one forwarded.  ERR_CONFLICT: two steps are not collected.  ERR_GPU or
 * ERR_NOMEM: the step did not happen. */
MUST_USE enum err_code model_forward(struct model *m, const struct step_plan *plan, struct err *e);

/* Wait for step `step`, the oldest not collected, and take its results,
 * [plan->n_outputs], borrowed until the second model_forward from now. */
MUST_USE enum err_code model_collect(struct model *m, uint64_t step, const struct sampled **out,
                                     struct err *e);

/* Logits of the last step's outputs, once it is collected, [n_outputs,
 * vocab_size] float32, before bias and penalties; borrowed until the next
 * forward.  NULL before the first, or when they cannot be read.  For tests. */
const float *model_logits(struct model *m);

#endif
