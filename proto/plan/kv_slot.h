/* kv_slot.h: the number by which a token's place in the KV cache is named.
 *
 * A block of 2^shift tokens holds positions p with the same p >> shift; slots
 * count tokens over the whole pool.  Compiles as C17 and as CUDA.  Pure
 * functions; any thread, any device. */
#ifndef PROTO_PLAN_KV_SLOT_H
#define PROTO_PLAN_KV_SLOT_H

#include "proto/number/bits.h"

/* Slot of position pos, which lies in that block: block * block_tokens +
 * pos % block_tokens. */
static HD int64_t kv_slot(int64_t block, int64_t pos, int32_t shift)
{
    return (block << shift) + (pos & (((int64_t)1 << shift) - 1));
}

/* log2 of a block's tokens, which are a power of two. */
static HD int32_t kv_block_shift(uint64_t block_tokens)
{
    int32_t shift = 0;
    while ((uint64_t)1 << shift < block_tokens)
        shift++;
    return shift;
}

#endif
