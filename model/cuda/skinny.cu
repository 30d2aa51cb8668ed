/* skinny.cu: how matmuls of few rows are cut and launched; see skinny.cuh.
 *
 * Clusters need compute capability 9.0; before, every CTA is alone.  Owns nothing.
 * The engine's thread. */
#include "attention/cuda/launch.cuh"
#include "model/cuda/ops_cuda.h"
#include "model/cuda/skinny.cuh"

namespace
{

enum { CTAS_PER_SM = 2 };

typedef void kernel(struct skinny_call);

kernel *kernel_of(int n)
{
    return n <= 8 ? skinny::matmul<1> : skinny::matmul<2>;
}

/* Warps over a tile's columns: all eight where a block has fewer tiles. */
int groups_of(int tiles)
{
    return tiles == 1 ? 8 : tiles == 2 ? 4 : tiles <= 4 ? 2 : 1;
}

/* Clusters that are resident at once. */
int clusters_of(const struct cuda_ops *o, int split)
{
    return CTAS_PER_SM * o->n_sm / split;
}

/* The least work of the busiest CTA, then the widest blocks, which read the tokens
 * least often. */
struct skinny_cut cut_of(const struct cuda_ops *o, int n_rows, int n_cols, bool glu)
{
    struct skinny_cut best = {};
    int64_t least = INT64_MAX;
    int channels = glu ? n_rows / 2 : n_rows;
    for (int split = 1; split <= o->skinny.split; split++) {
        for (int tiles = 1; tiles <= skinny::WARPS; tiles++) {
            struct skinny_cut c = { tiles, groups_of(tiles), split, 0, 0, 0 };
            int width = tiles * skinny::TILE / (glu ? 2 : 1), clusters = clusters_of(o, split);
            int shares = split * c.groups * skinny::COLS;
            c.blocks = (channels + width - 1) / width;
            c.chunks = (n_cols + shares - 1) / shares;
            /* In 1/64 of a tile: 3/4 of one for a block's tokens and end, 1/4 for a
             * cluster's. */
            int64_t rounds = (c.blocks + clusters - 1) / clusters;
            int64_t work = rounds * ((tiles * 64 + 48) / split + 16 * (split - 1));
            if (split > 1 && n_cols < shares)
                continue; /* some warps would have nothing to do */
            if (work < least || (work == least && tiles > best.tiles)) {
                least = work;
                best = c;
            }
        }
    }
    int stages = o->skinny.smem / (best.tiles * best.groups * skinny::STAGE_BYTES);
    best.stages = stages < 2 ? 2 : stages < skinny::MOST_STAGES ? stages : skinny::MOST_STAGES;
    return best;
}

/* A dependent of what precedes it in the queue (attention/cuda/launch.cuh), in
 * clusters of `split`. */
cudaError_t launch_matmul(const struct skinny_call *c, int clusters, size_t smem, cudaStream_t s)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attributes[2] = {};
    config.gridDim = dim3((unsigned)(clusters * c->cut.split));
    config.blockDim = dim3(skinny::THREADS);
    config.dynamicSmemBytes = smem;
    config.stream = s;
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = (unsigned)c->cut.split;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    config.attrs = attributes;
    config.numAttrs = c->cut.split > 1 ? 2 : 1;
    return cudaLaunchKernelEx(&config, kernel_of(c->n), *c);
}

bool aligned(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

} // namespace

enum err_code skinny_open(struct cuda_ops *o, int major, struct err *e)
{
    static const int tokens[] = { 8, 16 };
    int per_sm = 0, per_cta = 0;
    cudaError_t rc =
        cudaDeviceGetAttribute(&per_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor, o->device);
    if (rc == cudaSuccess)
        rc = cudaDeviceGetAttribute(&per_cta, cudaDevAttrMaxSharedMemoryPerBlockOptin, o->device);
    for (int n : tokens) {
        if (rc == cudaSuccess)
            rc = cudaFuncSetAttribute(kernel_of(n), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      per_cta);
        if (rc == cudaSuccess)
            rc = keep_shared_memory(kernel_of(n));
    }
    /* Two stages of eight warps keep memory busy; deeper rings would only crowd out
     * what runs between matmuls. */
    o->skinny.smem = per_sm / (CTAS_PER_SM + 1) - 1024;
    o->skinny.split = major >= 9 ? 2 : 1;
    return cuda_result(rc, "preparing matmuls of few rows", e);
}

bool skinny_takes(const struct op_linear *l, uint32_t n)
{
    const struct op_matrix *w = l->w;
    return n <= SKINNY_ROWS && !w->exact && w->n_cols % 8 == 0 && l->in_ld % 8 == 0 &&
           aligned(w->data) && aligned(l->in) && (uint64_t)w->n_rows * w->n_cols <= UINT32_MAX;
}

void skinny_run(struct cuda_ops *o, const struct op_linear *l, uint32_t n)
{
    const struct op_matrix *w = l->w;
    struct skinny_call c = {};
    c.w = (const __nv_bfloat16 *)w->data;
    c.in = (const __nv_bfloat16 *)l->in;
    c.bias = w->bias;
    c.to = l->to;
    c.in_ld = l->in_ld;
    c.to_ld = l->to_ld;
    c.n_rows = (int)w->n_rows;
    c.n_cols = (int)w->n_cols;
    c.n = (int)n;
    c.out = l->out;
    c.act = l->act;
    c.limit = l->limit;
    c.cut = cut_of(o, c.n_rows, c.n_cols, l->out == OP_OUT_GLU);
    int clusters = clusters_of(o, c.cut.split);
    clusters = clusters < c.cut.blocks ? clusters : c.cut.blocks;
    size_t smem = (size_t)c.cut.tiles * c.cut.groups * c.cut.stages * skinny::STAGE_BYTES;
    keep_fault(o, launch_matmul(&c, clusters, smem, o->stream), "a matmul of few rows");
}
