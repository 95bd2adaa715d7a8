// Launching linear_wide.cuh: the map of activations, and how a call is cut.
#pragma once

#include "kernels/cuda/linear_wide.cuh"

#include "kernels/cuda/linear_wide_call.cuh"

#define SHARED_MAX (227u * 1024)
#define BARRIER_BYTES (WIDE_STAGES * 16 + 16) // and what was taken of outliers
#define STAGES_GOOD 4u

// ---- the cut ----

// Blocks of threads that the rows take.
static uint32_t
wide_blocks(const linear_call *c)
{
    uint32_t fours = 0;

    for (uint32_t i = 0; i < c->part_count; i++) {
        fours += (c->part[i].tiles + 3) / 4;
    }
    return (fours + 1) / 2;
}

// Bytes of shared memory for the sums of outliers of a block's share of rows.
static uint32_t
outlier_bytes(const linear_call *c, uint32_t ranks, uint32_t n)
{
    uint32_t all = c->paired ? WIDE_TILES / 2 : WIDE_TILES;

    return (all + ranks - 1) / ranks * (c->paired ? 32 : 16) * (n + 4) * 4;
}

typedef struct {
    uint32_t n, stage_bytes, partials_bytes;
} wide_sizes;

// Segments of a block of threads and blocks of a cluster: the fewest rounds of the whole GPU, weighed with what a block costs besides.
static bool
cut(const bt_cuda *cuda, wide_call *w, const wide_sizes *sizes)
{
    linear_call *c = &w->c;
    uint32_t segments = (c->padded + SEGMENT - 1) / SEGMENT, best = 0;
    uint32_t blocks = wide_blocks(c) * ((c->tokens + sizes->n - 1) / sizes->n), slots = (uint32_t)cuda->sms;

    for (uint32_t run = WIDE_RUN; run >= 1; run /= 2) {
        uint32_t ranks = (segments + run - 1) / run, sums = w->turned != NULL ? outlier_bytes(c, ranks, sizes->n) : 0;
        int32_t left = (int32_t)(SHARED_MAX - BARRIER_BYTES - sizes->partials_bytes) - (int32_t)sums;
        uint32_t stages = left > 0 ? (uint32_t)left / sizes->stage_bytes : 0;
        uint32_t cost = (blocks * ranks + slots - 1) / slots * ((run < segments ? run : segments) * 8 + 10);

        cost = cost * 8 / (stages < STAGES_GOOD ? 4 + stages : 8); // fewer do not keep the loads ahead
        if (ranks <= WIDE_RANKS && (best == 0 || cost < best) && stages >= 2) {
            best = cost;
            c->run = run, c->groups = ranks;
            w->stages = stages < WIDE_STAGES ? stages : WIDE_STAGES;
            w->outlier_bytes = sums;
        }
    }
    return best != 0;
}

template <int BITS, int BLOCK, bool ASYM, int N>
static cudaError_t
go(bt_cuda *cuda, wide_call *w)
{
    typedef wide<BITS, BLOCK, ASYM, N> W;
    const wide_sizes sizes = {N, W::stage_bytes, W::partials_bytes};
    wide_maps maps;

    if (!cut(cuda, w, &sizes) || !bt_cuda_wide_maps(&w->c, N, W::blocks, &maps)) {
        return cudaErrorNotSupported;
    }
    return bt_cuda_go_clustered(cuda, wide_kernel<BITS, BLOCK, ASYM, N>,
                                dim3(w->c.groups, (w->c.tokens + N - 1) / N, wide_blocks(&w->c)), dim3(WIDE_THREADS),
                                w->stages * W::stage_bytes + W::partials_bytes + w->outlier_bytes + BARRIER_BYTES,
                                w->c.groups, *w, maps);
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
