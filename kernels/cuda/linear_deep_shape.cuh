// A call of linear_deep.cuh as its blocks of threads see it: sizes, what lies where in shared memory, which tile is whose.
#pragma once

#include "kernels/cuda/linear_wide_outliers.cuh"
#include "kernels/cuda/ptx_multicast.cuh"

#define DEEP_TOKENS 128u  // of a tile
#define DEEP_ROWS 128u    // of a block's tile
#define DEEP_UNIT 128u    // columns of a stage
#define DEEP_WORKERS 256u // threads that multiply
#define DEEP_THREADS (DEEP_WORKERS + 128u)
#define DEEP_STAGES 4u
#define DEEP_HELPERS 3u // warps that have outliers

// Shared memory. A level of the tree has four floats of each multiplying thread sixteen times over; of the first level the last four stay
// in registers, or it would not fit.
#define DEEP_STAGE_BYTES (DEEP_TOKENS * DEEP_UNIT + 8192u) // tokens, codes
#define DEEP_FOUR_BYTES (DEEP_WORKERS * 16u)               // four floats of each thread
#define DEEP_LEVEL_0_AT (DEEP_STAGES * DEEP_STAGE_BYTES)
#define DEEP_LEVEL_1_AT (DEEP_LEVEL_0_AT + 15u * DEEP_FOUR_BYTES)
#define DEEP_SMALL_AT (DEEP_LEVEL_1_AT + 16u * DEEP_FOUR_BYTES)
#define DEEP_SMALL_BYTES 768u // of a stage: scales of activations (512), of weights
#define DEEP_BARRIERS_AT (DEEP_SMALL_AT + DEEP_STAGES * DEEP_SMALL_BYTES)
#define DEEP_SHARED (DEEP_BARRIERS_AT + DEEP_STAGES * 16u + 16u)
// Barriers: stages that are there, stages that are read, outliers' sums that are there, that are read.
#define DEEP_FULL(at, slot) ((at) + DEEP_BARRIERS_AT + (slot)*8u)
#define DEEP_EMPTY(at, slot) ((at) + DEEP_BARRIERS_AT + (DEEP_STAGES + (slot)) * 8u)
#define DEEP_SUMS_FULL(at) ((at) + DEEP_BARRIERS_AT + DEEP_STAGES * 16u)
#define DEEP_SUMS_EMPTY(at) (DEEP_SUMS_FULL(at) + 8u)

typedef struct {
    wide_call w; // c, and turned activations
    float *
        scratch; // of each block of threads: sums of outliers [128 rows][128 tokens], then levels of the tree from the third on
    uint32_t levels;               // of those
    uint32_t columns, rows, total; // pairs of blocks of rows, tiles of tokens, and of both
    uint32_t near;                 // tiles of tokens that follow each other with the same weights
    uint32_t units, box_fours;     // stages of a tile; warpgroups whose codes are one box
} deep_call;

// What a block of threads loads, as boxes of 128 columns: half of a tile's tokens, their scales, a part's tiles for one warpgroup or two.
typedef struct {
    CUtensorMap a8, sa, codes[3], scales[3];
} deep_maps;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

typedef struct {
    uint32_t block, token; // of rows; the first token
} deep_tile;

static __device__ __forceinline__ deep_tile
deep_tile_of(const deep_call &d, uint32_t index, uint32_t rank)
{
    uint32_t group = index / (d.near * d.columns), rest = index - group * d.near * d.columns;
    uint32_t near = min(d.near, d.rows - group * d.near), column = rest / near;
    deep_tile t = {column * 2 + rank, (group * d.near + rest - column * near) * DEEP_TOKENS};

    return t;
}

// The 64 rows of a warpgroup: their part and its first tile. False beyond the last.
static __device__ __forceinline__ bool
deep_four(const linear_call &c, uint32_t block, uint32_t half, uint32_t *part, uint32_t *tile)
{
    uint32_t four = c.paired ? block : block * 2 + half;

    *part = c.paired ? half : 0;
    while (!c.paired && *part + 1 < c.part_count && four >= (c.part[*part].tiles + 3) / 4) {
        four -= (c.part[(*part)++].tiles + 3) / 4;
    }
    *tile = four * 4;
    return *tile < c.part[*part].tiles;
}

// This block's scratch.
static __device__ __forceinline__ float *
deep_scratch(const deep_call &d)
{
    return d.scratch + (size_t)blockIdx.x * (1 + d.levels) * (DEEP_ROWS * DEEP_TOKENS);
}

// Every thread, before anything else.
static __device__ __forceinline__ void
deep_begin(uint32_t at)
{
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < DEEP_STAGES; i++) {
            bt_barrier_init(DEEP_FULL(at, i), 1);
            bt_barrier_init(DEEP_EMPTY(at, i), 2 * DEEP_WORKERS / 32); // of both blocks
        }
        bt_barrier_init(DEEP_SUMS_FULL(at), DEEP_HELPERS * 32);
        bt_barrier_init(DEEP_SUMS_EMPTY(at), DEEP_WORKERS);
        bt_barrier_init_done();
    }
    bt_cluster_sync();
    bt_let_next();
    bt_wait_before();
}

#endif
