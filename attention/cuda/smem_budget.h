/* smem_budget.h: which instances of the kernels a device can run: by its compute capability
 * and by the shared memory that a block and a multiprocessor have.
 *
 * C17, C++ and CUDA: the kernels' shapes and the choice at run time come from the
 * same numbers, and the tests hold them against every kind of device on the host.
 * Sizes are of one CTA, in bytes; element is of the cache, 1 or 2; d is the padded
 * width of a head.  Pure functions. */
#ifndef ATTENTION_CUDA_SMEM_BUDGET_H
#define ATTENTION_CUDA_SMEM_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
#define BUDGET constexpr
#else
#define BUDGET static inline
#endif

struct device_limits {
    int32_t major, minor; /* compute capability                   */
    int32_t n_sm;
    int32_t block_bytes, sm_bytes; /* shared memory, the most there is */
};

enum {
    HOPPER_BLOCK_BYTES = 227 * 1024, /* what shapes are made for          */
    RESERVED_BYTES = 1024            /* the system's share of each block  */
};

/* CTAs of `bytes` that a multiprocessor holds, `most` at most, at least one. */
BUDGET int32_t resident_ctas(const struct device_limits *r, int32_t bytes, int32_t most)
{
    int32_t n = r->sm_bytes / (bytes + RESERVED_BYTES);
    return n < 1 ? 1 : n < most ? n : most;
}

/* ---- split.cuh: four warps, each with a ring of 16 keys a stage --------------- */

enum { SPLIT_WARPS = 4, SPLIT_GRANULE = 16, SPLIT_MOST_STAGES = 8 };

/* rows: packed rows a tile, 8 or 16. */
BUDGET int32_t split_ctas(int element, int d, int rows)
{
    return d == 256   ? (element == 1 ? (rows == 8 ? 3 : 2) : 1)
           : d == 128 ? (rows == 16     ? 2
                         : element == 1 ? 4
                                        : 3)
                      : 4;
}

/* Of one warp. */
BUDGET int32_t split_stage_bytes(int element, int d)
{
    return 2 * SPLIT_GRANULE * d * element;
}

/* The warps' states and two counters. */
BUDGET int32_t split_exchange_bytes(int rows)
{
    return SPLIT_WARPS * rows * 8 + 8;
}

/* The merge of the warps reuses the rings. */
BUDGET int32_t split_bytes(int element, int d, int rows, int stages)
{
    int32_t rings = SPLIT_WARPS * stages * split_stage_bytes(element, d);
    int32_t merge = SPLIT_WARPS * rows * (d + 4) * 4;
    return (rings > merge ? rings : merge) + split_exchange_bytes(rows);
}

/* What split_ctas CTAs have room for; a wide CTA alone is held to what sm_80 has. */
BUDGET int32_t split_full_stages(int element, int d, int rows)
{
    int32_t ctas = split_ctas(element, d, rows);
    int32_t room = HOPPER_BLOCK_BYTES / ctas - RESERVED_BYTES - split_exchange_bytes(rows);
    int32_t n = room / (SPLIT_WARPS * split_stage_bytes(element, d));
    return ctas == 1 ? 2 : n < SPLIT_MOST_STAGES ? n : SPLIT_MOST_STAGES;
}

/* The instance for devices without that much room: a single stage for the widest
 * rows, where nothing is under way while a warp computes. */
BUDGET int32_t split_few_stages(int element, int d, int rows)
{
    return element == 2 && d == 256 ? 1 : split_full_stages(element, d, rows);
}

/* Stages of the instance to run; 0: none fits. */
BUDGET int32_t split_stages(const struct device_limits *r, int element, int d, int rows)
{
    int32_t full = split_full_stages(element, d, rows), few = split_few_stages(element, d, rows);
    return split_bytes(element, d, rows, full) <= r->block_bytes  ? full
           : split_bytes(element, d, rows, few) <= r->block_bytes ? few
                                                                  : 0;
}

/* ---- prefill.cuh: a tile of Q, two stages of K and V --------------------------- */

BUDGET int32_t prefill_rows(int d)
{
    return d <= 128 ? 128 : 64;
}

BUDGET int32_t prefill_keys(int d)
{
    return d <= 128 ? 64 : 32;
}

BUDGET int32_t prefill_bytes(int element, int d)
{
    return prefill_rows(d) * d * 2 + 4 * prefill_keys(d) * d * element + 16;
}

/* ---- hopper.cuh: two tiles of Q, two stages of K and V, all of 128 rows --------- */

BUDGET int32_t hopper_bytes(int d)
{
    return 1024 + 6 * 128 * d * 2 + 256;
}

/* built: whether the plugin has code for sm_90a, which no other device runs. */
BUDGET bool hopper_runs(const struct device_limits *r, bool built, int element, int d)
{
    return built && r->major == 9 && r->minor == 0 && element == 2 && d <= 128 &&
           hopper_bytes(d) <= r->block_bytes;
}

/* ---- latent.cuh: 64 rows of Q, stages of 32 keys, the weights -------------------- */

enum {
    LATENT_K = 576,
    LATENT_ROWS = 64,
    LATENT_KEYS = 32,
    LATENT_CHUNK = 1024 /* keys at least: an item's start and end weigh more than its reads */
};

BUDGET int32_t latent_bytes(int element, int stages)
{
    return LATENT_ROWS * LATENT_K * 2 + stages * LATENT_KEYS * LATENT_K * element +
           LATENT_ROWS * LATENT_KEYS * 2 + (6 * LATENT_ROWS + 1) * 4;
}

BUDGET int32_t latent_full_stages(int element)
{
    return element == 2 ? 3 : 4;
}

/* Where three stages of 16-bit keys are too many. */
BUDGET int32_t latent_few_stages(int element)
{
    return element == 2 ? 2 : latent_full_stages(element);
}

/* Stages of the instance to run; 0: none fits. */
BUDGET int32_t latent_stages(const struct device_limits *r, int element)
{
    int32_t full = latent_full_stages(element), few = latent_few_stages(element);
    return latent_bytes(element, full) <= r->block_bytes  ? full
           : latent_bytes(element, few) <= r->block_bytes ? few
                                                          : 0;
}

/* ---- latent_hopper.cuh: three tiles of 48 keys and weights, panels of Q, notes ------- */

BUDGET int32_t latent_hopper_bytes(void)
{
    return 3 * (48 * LATENT_K * 2 + LATENT_ROWS * 128) + 4 * LATENT_ROWS * 128 + 2560;
}

BUDGET bool latent_hopper_runs(const struct device_limits *r, bool built, int element)
{
    return built && r->major == 9 && r->minor == 0 && element == 2 &&
           latent_hopper_bytes() <= r->block_bytes;
}

#endif
