/* attn.h: the paged-attention operator, its plan/run split and its backends.
 *
 * One call attends a packed, ragged batch: it writes this step's K/V rows into
 * the paged cache, then attends every query token to its sequence's history
 * through block_table (README.md has the contract in these names).
 *
 *   attn_plan   validates by the rule table, chooses a kernel from static facts
 *               (shapes, dtypes, attributes, device), sizes the workspace from
 *               bounds.  Reads no tensor but the host's attention_metadata.
 *   attn_begin  once a step for all calls whose plans are alike (the layers of a
 *               class): works out who computes what, where the backend does that
 *               apart from attn_run.  May be left out.
 *   attn_run    computes.  Allocates nothing, reads back nothing from a device,
 *               never waits; may be called again and again under one plan with
 *               other pointers, and captured into a graph on a device backend.
 *
 * Owns nothing but the handle.  One struct attn is used by one thread at a time
 * (on the CPU, the thread that calls its pool); attn_plan on a const struct attn
 * may run on any thread.  No CUDA type appears here: a device backend arrives
 * as a struct attn_backend from a plugin (plugin.h). */
#ifndef ATTENTION_ATTN_H
#define ATTENTION_ATTN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"

struct workers;      /* platform/workers.h */
struct attn_backend; /* below */

/* ---- tensors ------------------------------------------------------------- */

/* The first five in the order of enum kv_dtype. */
enum attn_dtype { ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_INT8, ATTN_E4M3, ATTN_I32, ATTN_DTYPES };

enum attn_device { ATTN_HOST, ATTN_CUDA, ATTN_DEVICES };

enum { ATTN_RANK = 4 };

/* A dense row-major view; the memory is borrowed for the call.  rank 0 means
 * absent.  data may be NULL while planning, and when a dimension is 0. */
struct attn_tensor {
    void *data;
    enum attn_dtype dtype;
    enum attn_device device;
    int32_t rank;
    int64_t shape[ATTN_RANK];
};

/* Indices are the contract's. */
enum attn_input {
    ATTN_QUERY,           /* T   (token_count, num_heads*head_size) or packed Q,K,V   */
    ATTN_KEY,             /* T   (token_count, kv_num_heads*head_size)                */
    ATTN_VALUE,           /* T   as key                                               */
    ATTN_KEY_CACHE,       /* TC  (num_blocks, block_size, kv_num_heads, head_size)    */
    ATTN_VALUE_CACHE,     /* TC  as key_cache; absent in LATENT                       */
    ATTN_CU_SEQLENS,      /* i32 (batch_size + 1), cumulative_sequence_length         */
    ATTN_PAST_SEQLENS,    /* i32 (batch_size)                                         */
    ATTN_BLOCK_TABLE,     /* i32 (batch_size, columns); -1 not mapped                 */
    ATTN_COS_CACHE,       /* T   (max_seq_len, rotary_dim/2)                          */
    ATTN_SIN_CACHE,       /* T   as cos_cache                                         */
    ATTN_SLOT_MAPPING,    /* i32 (token_count); -1 do not store                       */
    ATTN_HEAD_SINK,       /* T   (num_heads)                                          */
    ATTN_Q_NORM_WEIGHT,   /* T   (head_size)                                          */
    ATTN_K_NORM_WEIGHT,   /* T   (head_size)                                          */
    ATTN_K_SCALE,         /* f32 (1) or (kv_num_heads, 1, head_size)                  */
    ATTN_V_SCALE,         /* f32 as k_scale; absent in LATENT                         */
    ATTN_METADATA,        /* i32 (2), HOST: max_query_len_bound, max_kv_len_bound     */
    ATTN_QUERY_POSITIONS, /* i32 (token_count)                                        */
    ATTN_BIAS,            /* T   (batch_size|1, num_heads|1, query cap., context cap.) */
    ATTN_INPUTS
};

enum attn_output {
    ATTN_OUT,             /* T   (token_count, num_heads*effective_v_head_size)         */
    ATTN_KEY_CACHE_OUT,   /* TC  the same buffer as key_cache, or absent                */
    ATTN_VALUE_CACHE_OUT, /* TC  the same buffer as value_cache, or absent              */
    ATTN_QK,              /* f32, f16 or bf16 (num_heads, token_count, max_context_len) */
    ATTN_OUTPUTS
};

struct attn_args {
    struct attn_tensor in[ATTN_INPUTS];
    struct attn_tensor out[ATTN_OUTPUTS];
    void *schedule; /* NULL, or plan->schedule_bytes that attn_begin has filled  */
};

/* The names of the contract ("key_cache", "float16", "int8"), for messages and
 * tests; "?" for a value out of range.  attn_dtype_bytes is 0 then. */
const char *attn_input_name(enum attn_input i);
const char *attn_output_name(enum attn_output o);
const char *attn_dtype_name(enum attn_dtype d);
const char *attn_device_name(enum attn_device d);
size_t attn_dtype_bytes(enum attn_dtype d);

/* A present host tensor; unused trailing dimensions may be anything. */
struct attn_tensor attn_view(void *data, enum attn_dtype dtype, int32_t rank, int64_t d0,
                             int64_t d1, int64_t d2, int64_t d3);

static inline bool attn_present(const struct attn_tensor *t)
{
    return t->rank != 0;
}

/* ---- attributes ---------------------------------------------------------- */

enum attn_quant { ATTN_QUANT_NONE, ATTN_PER_TENSOR, ATTN_PER_CHANNEL, ATTN_QUANTS };
enum attn_layout { ATTN_SEPARATE, ATTN_LATENT, ATTN_LAYOUTS };
enum attn_qk_mode { ATTN_QK_NONE, ATTN_QK_SCORES, ATTN_QK_PROBABILITIES, ATTN_QK_MODES };

/* Enumerations are ints so that an unknown value can be named, not assumed. */
struct attn_attrs {
    int32_t num_heads, kv_num_heads;
    float scale;               /* 0: 1/sqrt(head_size)                          */
    float softcap;             /* 0: off                                        */
    int32_t local_window_size; /* -1: off; W admits W positions, own included   */
    int32_t do_rotary, rotary_interleaved, rotary_offset;
    float qk_norm_epsilon;
    int32_t k_quant_type, v_quant_type;        /* enum attn_quant               */
    const char *k_cache_dtype, *v_cache_dtype; /* NULL or "": the tensor's own  */
    int32_t kv_cache_layout;                   /* enum attn_layout              */
    int32_t v_head_size;                       /* 0: head_size                  */
    int32_t qk_output;                         /* enum attn_qk_mode             */
};

/* Every attribute at its default. */
struct attn_attrs attn_attrs_default(int32_t num_heads, int32_t kv_num_heads);

/* ---- features ------------------------------------------------------------ */

/* What a call may ask of a kernel beyond plain separate causal attention.
 * A kernel lists the bits it serves; attn_plan collects the bits of a call. */
enum attn_feature {
    ATTN_HAS_PACKED,
    ATTN_HAS_LATENT,
    ATTN_HAS_WINDOW,
    ATTN_HAS_SOFTCAP,
    ATTN_HAS_SINK,
    ATTN_HAS_QK_NORM,
    ATTN_HAS_ROTARY,
    ATTN_HAS_SLOTS,
    ATTN_HAS_POSITIONS,
    ATTN_HAS_INT8_TENSOR, /* the quantised cache forms, of K or of V */
    ATTN_HAS_INT8_CHANNEL,
    ATTN_HAS_E4M3_TENSOR,
    ATTN_HAS_E4M3_CHANNEL,
    ATTN_HAS_BIAS,
    ATTN_HAS_QK_OUTPUT,
    ATTN_FEATURES
};

#define ATTN_BIT(x) (1u << (x))

/* "attention_bias", "local_window_size": the attribute or input at the root of
 * the feature. */
const char *attn_feature_name(enum attn_feature f);

/* ---- plan ---------------------------------------------------------------- */

/* How one input pattern is read. */
enum attn_mode { ATTN_MODE_SEPARATE, ATTN_MODE_PACKED, ATTN_MODE_LATENT };

enum { ATTN_PLAN_PRIVATE = 16 };

/* The result of validation and dispatch.  Plain data in the caller's storage,
 * valid while the struct attn that made it is open; holds no pointer into the
 * args.  All fields may be read, none written. */
struct attn_plan {
    const struct attn_backend *backend; /* chosen; backend->name reports it      */
    uint32_t kernel;                    /* index into backend->kernel            */
    uint64_t workspace_bytes;           /* on backend->device, 64-byte aligned   */
    uint64_t schedule_bytes;            /* the same, for attn_begin; 0: nothing to do */
    uint32_t features;                  /* ATTN_BIT(enum attn_feature) of the call */

    struct attn_attrs attrs; /* as given, cache dtype names dropped              */
    enum attn_mode mode;
    float scale; /* resolved                                                     */
    enum attn_dtype dtype, k_cache_dtype, v_cache_dtype;
    int32_t num_heads, kv_num_heads, group; /* group = num_heads / kv_num_heads  */
    int32_t head_size, v_head_size;         /* v_head_size: effective            */
    int32_t block_size, block_shift;        /* block_size = 1 << block_shift     */
    int64_t num_blocks, token_count, batch_size, table_cols;
    int32_t rotary_dim;   /* 0 when do_rotary is 0                               */
    int64_t rotary_rows;  /* max_seq_len of cos_cache                            */
    int64_t query_stride; /* elements a row of query                             */
    int64_t bias_shape[4];
    enum attn_dtype qk_dtype;
    int64_t qk_cols; /* max_context_len of output_qk, 0 without                   */
    /* Bounds for launches and workspace, clamped to the static limits; never a
     * mask.  Equal to the static limits when metadata is absent or 0. */
    int64_t max_query_len, max_kv_len;

    uint64_t private_[ATTN_PLAN_PRIVATE]; /* the backend's own                    */
    struct attn_tensor in[ATTN_INPUTS], out[ATTN_OUTPUTS]; /* shapes, data NULL  */
};

/* ---- the handle ---------------------------------------------------------- */

/* Of one call, in order. */
enum attn_stage { ATTN_STAGE_ALL, ATTN_STAGE_PROLOGUE, ATTN_STAGE_ATTEND };

struct attn_options {
    const struct attn_backend *backend; /* NULL: the CPU backend                  */
    struct workers *workers;            /* borrowed until attn_close; NULL: the
                                         * calling thread alone (CPU)            */
    uint64_t qk_bytes_limit;            /* output_qk above this is refused;
                                         * 0: 1 GiB                              */
    int32_t device_index;               /* which GPU, device backends only        */
    const char *only_kernel;            /* NULL, or the one kernel to consider
                                         * (tests and benchmarks)                */
    uint32_t shared_limit;              /* 0, or bytes of shared memory a block, as
                                         * on a device that has no more (tests)  */
    int32_t last_stage;                 /* enum attn_stage: a device launches nothing
                                         * behind it (benchmarks)                */
};

struct attn;

/* Open a backend.  *out is the caller's to close. */
MUST_USE enum err_code attn_open(struct attn **out, const struct attn_options *opt, struct err *e);
void attn_close(struct attn *a);

const struct attn_backend *attn_backend_of(const struct attn *a);
void *attn_backend_self(const struct attn *a);

/* Validate a call and choose its kernel.  ERR_INVALID names the tensor or
 * attribute, what was found and what is expected (spec: one rule, one message);
 * a combination that no kernel of the backend serves names the feature and the
 * backend. */
MUST_USE enum err_code attn_plan(const struct attn *a, const struct attn_attrs *attrs,
                                 const struct attn_args *args, struct attn_plan *out,
                                 struct err *e);

/* Fill args->schedule from the step's lengths, for every attn_run of this step on
 * this stream that gets it: calls under this plan, or under another of the same
 * attributes and shapes, with the same cumulative_sequence_length, past_seqlens
 * and query_positions.  Its memory is the class's own: nobody else's until the
 * last of them is done.  Captured like attn_run, ahead of it.  Does nothing where
 * plan->schedule_bytes is 0. */
MUST_USE enum err_code attn_begin(struct attn *a, const struct attn_plan *plan,
                                  const struct attn_args *args, void *stream, struct err *e);

/* Compute under a plan.  args must have the plan's presence, dtypes and shapes
 * (ERR_INVALID otherwise, nothing written); pointers are free to differ.
 * workspace has plan->workspace_bytes on the backend's device and need not be
 * initialised.  Without args->schedule the call does attn_begin's work itself.
 * stream is the backend's queue, NULL on the CPU, where the call returns when all
 * is written. */
MUST_USE enum err_code attn_run(struct attn *a, const struct attn_plan *plan,
                                const struct attn_args *args, void *workspace, void *stream,
                                struct err *e);

/* "cpu/reference": backend and kernel of a plan, into buf. */
const char *attn_plan_name(const struct attn_plan *plan, char *buf, size_t n);

/* ---- non-absorbed prefill over contiguous K and V ------------------------- */

/* MLA prefill of sequences that have no cached prefix, after the caller has
 * expanded the latent rows: causal attention over each sequence's own rows, K
 * and V widths free to differ.  The latent rows, already rotated, are quantised
 * like the operator does and written to their slots beside it.  cu_seqlens may begin
 * above 0: tokens before the first sequence, like those behind the last, are not
 * stored and their output is zero. */
struct attn_dense {
    int32_t num_heads, kv_num_heads;
    float scale; /* required, > 0 */
    float softcap;
    int32_t local_window_size;
    struct attn_tensor query;      /* T (token_count, num_heads*k_width)             */
    struct attn_tensor key;        /* T (token_count, kv_num_heads*k_width)          */
    struct attn_tensor value;      /* T (token_count, kv_num_heads*v_width)          */
    struct attn_tensor cu_seqlens; /* i32 (batch_size + 1)                       */
    struct attn_tensor output;     /* T (token_count, num_heads*v_width)             */
    /* The latent write; all absent or all present (k_scale iff quantised). */
    struct attn_tensor latent;       /* T (token_count, width)                   */
    struct attn_tensor latent_cache; /* TC (num_blocks, block_size, 1, width)    */
    struct attn_tensor slot_mapping; /* i32 (token_count)                        */
    struct attn_tensor k_scale;      /* f32 (1) or (1, 1, width)                 */
    int32_t k_quant_type;
};

/* Bytes of workspace, or ERR_INVALID with the rule's message. */
MUST_USE enum err_code attn_dense_plan(const struct attn *a, const struct attn_dense *d,
                                       uint64_t *workspace_bytes, struct err *e);
MUST_USE enum err_code attn_dense_run(struct attn *a, const struct attn_dense *d, void *workspace,
                                      void *stream, struct err *e);

/* ---- the backend seam ----------------------------------------------------- */

/* Raised whenever a struct of this header or of plugin.h changes shape. */
enum { ATTN_ABI = 3 };

/* One row of the feature x backend table, and what dispatch matches on. */
struct attn_kernel {
    const char *name;      /* "decode", "prefill", "latent", "reference"     */
    uint32_t features;     /* ATTN_BIT(enum attn_feature) served              */
    uint32_t dtypes;       /* ATTN_BIT(enum attn_dtype) of T                  */
    int32_t max_head_size; /* 0: no limit                                     */
    bool latent_only;      /* serves LATENT calls and no other                */
    const char *note;      /* shape preference in words, for the table        */
};

/* kernel[] is in order of preference.  attn_plan offers a call to each kernel
 * whose features, dtypes and head size cover it and takes the first that fits;
 * the last should fit whatever it covers. */
struct attn_backend {
    uint32_t abi; /* ATTN_ABI */
    const char *name;
    enum attn_device device;
    const struct attn_kernel *kernel;
    uint32_t n_kernels;

    enum err_code (*open)(void **self, const struct attn_options *opt, struct err *e);
    void (*close)(void *self);

    /* Whether kernel k suits this call: static facts only (a heuristic of
     * speed, or a limit such as a head size without an instance). */
    bool (*fits)(const void *self, uint32_t k, const struct attn_plan *p);
    /* Fill p->workspace_bytes, p->schedule_bytes and p->private_ for p->kernel. */
    enum err_code (*size)(const void *self, struct attn_plan *p, struct err *e);
    /* attn_begin; NULL where schedule_bytes is always 0. */
    enum err_code (*begin)(void *self, const struct attn_plan *p, const struct attn_args *args,
                           void *stream, struct err *e);
    enum err_code (*run)(void *self, const struct attn_plan *p, const struct attn_args *args,
                         void *workspace, void *stream, struct err *e);

    /* attn_dense_*, validated; NULL when not served. */
    enum err_code (*dense_size)(const void *self, const struct attn_dense *d, uint64_t *bytes,
                                struct err *e);
    enum err_code (*dense_run)(void *self, const struct attn_dense *d, void *workspace,
                               void *stream, struct err *e);

    /* Cache memory (kv_slabs.h): zeroed, committed lazily where the device can. */
    enum err_code (*map)(void *self, size_t bytes, void **out, struct err *e);
    void (*unmap)(void *self, void *p, size_t bytes);
    /* Move bytes to and from mapped memory (loading, tests; never in a step).
     * Both wait: for all work queued before, and until the bytes have moved. */
    enum err_code (*copy_in)(void *self, void *to, const void *host, size_t bytes, struct err *e);
    enum err_code (*copy_out)(void *self, void *host, const void *from, size_t bytes,
                              struct err *e);
    /* Copy n runs of `bytes` inside one slab: from_to[2i] -> from_to[2i+1], block
     * ids on the host; ordered on stream. */
    enum err_code (*copy_blocks)(void *self, void *slab, size_t bytes, const int32_t *from_to,
                                 uint32_t n, void *stream, struct err *e);
};

/* The CPU backend; always there. */
const struct attn_backend *attn_cpu_backend(void);

#endif
