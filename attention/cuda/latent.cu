/* latent.cu: latent.cuh for every cache, and the merge of its chunks: one warp a
 * (sequence, head), for sequences of one query that were split. */
#include "attention/cuda/latent.cuh"

namespace
{

enum { MERGE_WARPS = 4 };

__global__ void merge_latent(const __grid_constant__ struct attn_call c)
{
    int64_t id = (int64_t)blockIdx.x * MERGE_WARPS + (threadIdx.x >> 5);
    int b = (int)(id / c.heads), head = (int)(id % c.heads), first, n;
    wait_for_upstream();
    if (b >= c.batch)
        return;
    sequence_tokens(c, b, &first, &n);
    struct plan_seq s = cut_sequence(c, SHARE_LATENT, c.past_seqlens[b], n, latent::ROWS);
    if (n == 1 && s.n_chunks > 1)
        merge_row<latent::DV>(c, first, b, head, s.n_chunks);
}

} // namespace

const struct kernel_family latent_kernels[CACHE_KINDS] = {
    { latent::prepare<CACHE_BF16>, latent::choose<CACHE_BF16> },
    { latent::prepare<CACHE_F16>, latent::choose<CACHE_F16> },
    { latent::prepare<CACHE_E4M3>, latent::choose<CACHE_E4M3> },
    { latent::prepare<CACHE_INT8>, latent::choose<CACHE_INT8> },
};

cudaError_t launch_latent_merge(const struct attn_call *c, cudaStream_t stream)
{
    int64_t warps = (int64_t)c->batch * c->heads;
    return launch(merge_latent, (unsigned)((warps + MERGE_WARPS - 1) / MERGE_WARPS),
                  MERGE_WARPS * 32, 0, stream, *c);
}
