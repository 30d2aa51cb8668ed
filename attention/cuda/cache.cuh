/* cache.cuh: cache rows on their way into matrix fragments.
 *
 * A tile in shared memory is rows of ROW_BYTES, one a key, cut into 16-byte
 * pieces whose place is swizzled by the row, so that the eight rows that one
 * matrix load reads lie in different banks.  8-bit rows stay 8-bit in memory and
 * become fp16 in registers; for them the channels of each 16 are taken in the
 * order 4q..4q+3 a lane, which the prologue gives Q too.
 *
 * Owns nothing; device code only. */
#ifndef ATTENTION_CUDA_CACHE_CUH
#define ATTENTION_CUDA_CACHE_CUH

#include "attention/cuda/call.h"
#include "attention/cuda/ptx.cuh"

template <int KIND> struct cache_type {
    typedef __half mma_type;
    typedef uint8_t element;
};
template <> struct cache_type<CACHE_BF16> {
    typedef __nv_bfloat16 mma_type;
    typedef __nv_bfloat16 element;
};
template <> struct cache_type<CACHE_F16> {
    typedef __half mma_type;
    typedef __half element;
};

template <int KIND, int D> struct cache_tile {
    typedef typename cache_type<KIND>::mma_type M;
    enum {
        ELEMENT = sizeof(typename cache_type<KIND>::element),
        ROW_BYTES = D * ELEMENT,
        PIECES = ROW_BYTES / 16
    };

    /* Byte offset of piece p of row r. */
    static __device__ __forceinline__ uint32_t at(int r, int p)
    {
        int s = PIECES % 8 == 0 ? (p ^ (r & 7)) : (p ^ ((r >> 1) & 3));
        return (uint32_t)(r * ROW_BYTES + s * 16);
    }

    static __device__ __forceinline__ uint32_t half2_of(uint32_t two)
    {
        return KIND == CACHE_E4M3 ? e4m3x2_half2(two) : int8x2_half2(two);
    }

    /* K fragments of 16 keys from row r0 and channels [32 s, 32 s + 32):
     * b[step of 16 channels][8 keys][2]. */
    static __device__ __forceinline__ void k_fragments(uint32_t b[2][2][2], uint32_t tile, int r0,
                                                       int s)
    {
        int lane = threadIdx.x & 31, m = lane >> 3, row = lane & 7;
        if constexpr (ELEMENT == 2) {
            for (int h = 0; h < 2; h++) {
                uint32_t x[4];
                load_matrices(x, tile + at(r0 + (m >> 1) * 8 + row, s * 4 + h * 2 + (m & 1)));
                b[h][0][0] = x[0];
                b[h][0][1] = x[1];
                b[h][1][0] = x[2];
                b[h][1][1] = x[3];
            }
        } else {
            uint32_t x[4];
            load_matrices(x, tile + at(r0 + (m & 1) * 8 + row, s * 2 + (m >> 1)));
            for (int i = 0; i < 4; i++) {
                b[i >> 1][i & 1][0] = half2_of(x[i] & 0xFFFFu);
                b[i >> 1][i & 1][1] = half2_of(x[i] >> 16);
            }
        }
    }

    /* V fragments of 16 keys from row r0 and channels [32 s, 32 s + 32):
     * b[four tiles of 8 channels][2]. */
    static __device__ __forceinline__ void v_fragments(uint32_t b[4][2], uint32_t tile, int r0,
                                                       int s)
    {
        int lane = threadIdx.x & 31, m = lane >> 3, row = lane & 7;
        if constexpr (ELEMENT == 2) {
            for (int h = 0; h < 2; h++) {
                uint32_t x[4];
                load_matrices_t(x, tile + at(r0 + (m & 1) * 8 + row, s * 4 + h * 2 + (m >> 1)));
                b[h * 2][0] = x[0];
                b[h * 2][1] = x[1];
                b[h * 2 + 1][0] = x[2];
                b[h * 2 + 1][1] = x[3];
            }
        } else {
            uint32_t x[4];
            load_matrices_t(x, tile + at(r0 + (m & 1) * 8 + row, s * 2 + (m >> 1)));
            for (int i = 0; i < 4; i++) {
                b[(i >> 1) * 2][i & 1] = half2_of(__byte_perm(x[i], 0, 0x4420));
                b[(i >> 1) * 2 + 1][i & 1] = half2_of(__byte_perm(x[i], 0, 0x4431));
            }
        }
    }

    /* The same with keys as the rows of the product: K (keys x channels) as a left
     * factor, a[step of 16 channels][4]. */
    static __device__ __forceinline__ void k_left(uint32_t a[2][4], uint32_t tile, int r0, int s)
    {
        int lane = threadIdx.x & 31, m = lane >> 3, row = lane & 7;
        if constexpr (ELEMENT == 2) {
            for (int h = 0; h < 2; h++)
                load_matrices(a[h], tile + at(r0 + (m & 1) * 8 + row, s * 4 + h * 2 + (m >> 1)));
        } else {
            uint32_t x[4];
            load_matrices(x, tile + at(r0 + (m & 1) * 8 + row, s * 2 + (m >> 1)));
            for (int i = 0; i < 4; i++) {
                a[i >> 1][i & 1] = half2_of(x[i] & 0xFFFFu);
                a[i >> 1][2 + (i & 1)] = half2_of(x[i] >> 16);
            }
        }
    }

    /* V transposed (channels x keys) as a left factor: a[tile of 16 channels][4] for
     * channels [32 s, 32 s + 32). */
    static __device__ __forceinline__ void v_left(uint32_t a[2][4], uint32_t tile, int r0, int s)
    {
        int lane = threadIdx.x & 31, m = lane >> 3, row = lane & 7;
        if constexpr (ELEMENT == 2) {
            for (int h = 0; h < 2; h++)
                load_matrices_t(a[h], tile + at(r0 + (m >> 1) * 8 + row, s * 4 + h * 2 + (m & 1)));
        } else {
            uint32_t x[4];
            load_matrices_t(x, tile + at(r0 + (m & 1) * 8 + row, s * 2 + (m >> 1)));
            for (int i = 0; i < 4; i++) {
                a[i >> 1][(i & 1) * 2] = half2_of(__byte_perm(x[i], 0, 0x4420));
                a[i >> 1][(i & 1) * 2 + 1] = half2_of(__byte_perm(x[i], 0, 0x4431));
            }
        }
    }

    /* The channel of row r (lane / 4, h = 1 for eight below) of v_left's tile t. */
    static __device__ __forceinline__ int left_channel(int t, int r, int h)
    {
        return t * 16 + (ELEMENT == 2 ? h * 8 + r : r * 2 + h);
    }

    /* The channel of output tile nt, quad lane q, element i (0 or 1). */
    static __device__ __forceinline__ int channel(int nt, int q, int i)
    {
        return ELEMENT == 2 ? nt * 8 + q * 2 + i : (nt >> 1) * 16 + q * 4 + i * 2 + (nt & 1);
    }
};

/* Table entry of the granule of 16 keys that begins at pos, or -1. */
__device__ __forceinline__ int granule_block(const struct attn_call &c, const int32_t *row, int pos)
{
    int i = pos >> c.block_shift;
    if (i >= c.table_cols)
        return -1;
    int b = row[i];
    return b < c.num_blocks ? b : -1;
}

/* kv_slot of a position in its block, in 32 bits: a pool has fewer slots. */
__device__ __forceinline__ uint32_t cache_slot(const struct attn_call &c, int block, int pos)
{
    return ((uint32_t)block << c.block_shift) + (uint32_t)(pos & ((1 << c.block_shift) - 1));
}

/* Byte offset in a cache of (block, position, kv head), rows of row_bytes. */
__device__ __forceinline__ int64_t cache_offset(const struct attn_call &c, int block, int pos,
                                                int head, int row_bytes)
{
    return ((int64_t)cache_slot(c, block, pos) * c.kv_heads + head) * row_bytes;
}

#endif
