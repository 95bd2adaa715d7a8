// Launching linear_wide.cuh: how a call is cut, and the kernel of its format (linear_wide.cu has which calls, and the maps).
#pragma once

#include "kernels/cuda/linear_wide.cuh"

#include "kernels/cuda/linear_wide_call.cuh"

#define SHARED_MAX (227u * 1024)
// And what outliers need: what was taken of them, and where rows begin.
#define BARRIER_BYTES (WIDE_STAGES * 16 + 16 + WIDE_TILES * WIDE_ROW_STARTS * 4)
#define STAGES_GOOD 4u
#define STAGES_FEW 6u // of N = 16: the fastest when all stages were asked for before activations (README.md)

// ---- the cut ----

// Blocks of threads that the rows take.
static uint32_t
wide_blocks(const linear_call *c)
{
    uint32_t fours = 0;

    for (uint32_t i = 0; i < c->part_count; i++) {
        fours += (c->part[i].tiles + 3) / 4;
    }
    return (fours + WIDE_FOURS - 1) / WIDE_FOURS;
}

// Warpgroups of a block of threads whose rows are neighbours in one matrix, whatever block it is.
static uint32_t
wide_neighbours(const linear_call *c)
{
    if (c->paired) {
        return WIDE_FOURS / 2;
    }
    for (uint32_t i = 0; i + 1 < c->part_count; i++) {
        if ((c->part[i].tiles + 3) / 4 % WIDE_FOURS != 0) {
            return 1;
        }
    }
    return WIDE_FOURS;
}

// Bytes of shared memory for the sums of outliers of a block's share of rows.
static uint32_t
outlier_bytes(const linear_call *c, uint32_t ranks, uint32_t n)
{
    uint32_t all = c->paired ? WIDE_TILES / 2 : WIDE_TILES;

    return (all + ranks - 1) / ranks * (c->paired ? 32 : 16) * (n + 4) * 4;
}

// What a block costs besides its units, in units: it starts, and its sums meet; and what it costs more where they meet in global memory.
#define COST_BLOCK 10u
#define COST_FAR 6u

typedef struct {
    uint32_t n, stage_bytes, partials_bytes, own_bytes, turn, kept_bytes;
} wide_sizes;

// Rounds of the whole GPU times what a block takes, in units.
static uint32_t
wide_cost(uint32_t blocks, uint32_t at_once, uint32_t segments, uint32_t besides, uint32_t stages)
{
    uint32_t cost = (blocks + at_once - 1) / at_once * (segments * (SEGMENT / WIDE_UNIT) + besides);

    return cost * 8 / (stages < STAGES_GOOD ? 4 + stages : 8); // fewer do not keep the loads ahead
}

// Segments of a block of threads, how many blocks share K and how they meet: what takes the shortest time.
static bool
cut(const bt_cuda *cuda, wide_call *w, const wide_sizes *sizes)
{
    linear_call *c = &w->c;
    uint32_t segments = (c->padded + SEGMENT - 1) / SEGMENT, best = 0, most = sizes->n <= 16 ? STAGES_FEW : WIDE_STAGES;
    uint32_t blocks = wide_blocks(c) * ((c->tokens + sizes->n - 1) / sizes->n);

    for (uint32_t run = WIDE_RUN; run >= 1; run /= 2) {
        uint32_t ranks = (segments + run - 1) / run, sums = w->turned != NULL ? outlier_bytes(c, ranks, sizes->n) : 0;
        int32_t left = (int32_t)(SHARED_MAX - BARRIER_BYTES - sizes->own_bytes) - (int32_t)sums;
        uint32_t stages = left > 0 ? (uint32_t)left / sizes->stage_bytes / sizes->turn * sizes->turn : 0,
                 each = run < segments ? run : segments;
        bool keeps = sizes->kept_bytes != 0 && each > 2;
        bool far_fits = !keeps && ranks > 1 && blocks <= BT_CUDA_MEETINGS - WIDE_TURNS &&
                        (size_t)blocks * ranks * sizes->partials_bytes <= cuda->partial_floats * 4;

        if (keeps && (size_t)blocks * ranks * sizes->kept_bytes > cuda->partial_floats * 4) {
            continue;
        }
        for (int far = 0; far < (far_fits ? 2 : 1) && ranks <= WIDE_RANKS && stages >= 2; far++) {
            uint32_t clusters = cuda->clusters[ranks], cost;

            if (!far && clusters == 0) { // a part of a GPU has no room for so large ones
                continue;
            }
            cost = far ? wide_cost(blocks * ranks, (uint32_t)cuda->sms, each, COST_BLOCK + COST_FAR, stages)
                       : wide_cost(blocks, clusters, each, COST_BLOCK, stages);
            if (best == 0 || cost < best) {
                best = cost;
                c->run = run, c->groups = ranks;
                w->stages = stages < most ? stages : most;
                w->outlier_bytes = sums;
                w->runs = far ? cuda->partials : NULL;
                w->kept = keeps ? cuda->partials : NULL;
            }
        }
    }
    return best != 0;
}

// Which tiles of a block of rows those that share K finish.
static void
share(wide_call *w)
{
    uint32_t all = w->c.paired ? WIDE_TILES / 2 : WIDE_TILES;

    for (uint32_t i = 0; i <= w->c.groups; i++) {
        w->share[i] = (uint8_t)(i * all / w->c.groups);
    }
}

// How many clusters of `ranks` blocks, each with a multiprocessor of its own, the GPU has at work at once: a cluster lies within a group of
// multiprocessors, and those are not all of one size.
template <typename... P>
static uint32_t
clusters_at_once(const bt_cuda *cuda, void (*kernel)(P...), uint32_t ranks)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute cluster = {};
    int count = 0;

    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = ranks, cluster.val.clusterDim.y = 1, cluster.val.clusterDim.z = 1;
    config.gridDim = dim3(ranks), config.blockDim = dim3(WIDE_THREADS), config.dynamicSmemBytes = SHARED_MAX;
    config.attrs = &cluster, config.numAttrs = ranks > 1;
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_MAX) != cudaSuccess ||
        cudaOccupancyMaxActiveClusters(&count, kernel, &config) != cudaSuccess) {
        cudaGetLastError();
        return (uint32_t)cuda->sms / ranks;
    }
    return (uint32_t)count;
}

template <int BITS, int BLOCK, bool ASYM, int N>
static cudaError_t
go(bt_cuda *cuda, wide_call *w)
{
    typedef wide<BITS, BLOCK, ASYM, N> W;
    const wide_sizes sizes = {N, W::stage_bytes, W::partials_bytes, W::own_bytes, W::turn, W::kept_bytes};
    wide_maps maps;

    for (uint32_t ranks = 1; ranks <= WIDE_RANKS && cuda->clusters[ranks] == 0; ranks++) {
        cuda->clusters[ranks] = clusters_at_once(cuda, wide_kernel<BITS, BLOCK, ASYM, N>, ranks);
    }
    w->fours = wide_neighbours(&w->c);
    if (!cut(cuda, w, &sizes) || !bt_cuda_wide_maps(w, N, W::blocks, &maps)) {
        return cudaErrorNotSupported;
    }
    share(w);
    if (WIDE_FOURS != 4 || N <= 16 || w->c.groups != 1 || !w->c.paired) {
        w->leaves.to.a8 = NULL;
    }
    return bt_cuda_go_clustered(cuda, wide_kernel<BITS, BLOCK, ASYM, N>,
                                dim3(w->c.groups, (w->c.tokens + N - 1) / N, wide_blocks(&w->c)), dim3(WIDE_THREADS),
                                w->stages * W::stage_bytes + W::own_bytes + w->outlier_bytes + BARRIER_BYTES,
                                w->runs != NULL ? 1 : w->c.groups, *w, maps);
}

template <int BITS, int BLOCK, bool ASYM>
static cudaError_t
go_tokens(bt_cuda *cuda, wide_call *w)
{
    if constexpr (!ASYM) {
        if (w->c.tokens > 64) {
            return go<BITS, BLOCK, ASYM, 128>(cuda, w);
        }
    }
    return w->c.tokens > 32 ? go<BITS, BLOCK, ASYM, 64>(cuda, w) : go<BITS, BLOCK, ASYM, 32>(cuda, w);
}

template <int BITS, bool ASYM>
static cudaError_t
go_block(bt_cuda *cuda, wide_call *w, uint32_t block)
{
    return block == 32   ? go_tokens<BITS, 32, ASYM>(cuda, w)
           : block == 64 ? go_tokens<BITS, 64, ASYM>(cuda, w)
                         : go_tokens<BITS, 128, ASYM>(cuda, w);
}
