// A call of linear_wide.cuh as its blocks of threads see it: sizes, what lies where in shared memory, which tiles are whose.
#pragma once

#include "kernels/cuda/finish.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_call.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ptx_wgmma.cuh"
#include "kernels/cuda/ready.cuh"

#define WIDE_UNIT 128u
#ifndef WIDE_FOURS
#define WIDE_FOURS 2u // warpgroups that multiply, and so four tiles each, of a block of threads; 4: linear_wide_tall.cu
#endif
#define WIDE_TILES (WIDE_FOURS * 4)
#define WIDE_ROWS (WIDE_TILES * 16)
#define WIDE_WORKERS (WIDE_FOURS * 128) // threads that multiply
#define WIDE_THREADS (WIDE_WORKERS + 128)
#define WIDE_RUN 4u   // segments at most
#define WIDE_RANKS 8u // blocks of threads that share K at most
#define WIDE_STAGES 12u
#define WIDE_AHEAD 2u        // stages whose weights are asked for before activations are there (linear_wide_load.cuh)
#define WIDE_TURNS 4u        // counters (linear_wide_turn.cuh)
#define WIDE_ROW_STARTS 18u  // words of a tile (linear_wide_outliers.cuh)
#define WIDE_WORKERS_MEET 1u // barrier of those that multiply
#define WIDE_BOTH 64u        // of more tokens a thread finishes four and the four so many further at once

typedef struct {
    linear_call c;       // groups: blocks that share K; run: segments of each
    const float *turned; // [columns][turned_stride] scale * code of each activation; NULL: no outliers
    size_t turned_stride;
    uint32_t stages, outlier_bytes; // of shared memory for their sums
    uint32_t fours;                 // warpgroups whose rows are one box
    // [blocks of rows and tokens][groups] sums of runs of K that meet in global memory; NULL: those of a cluster meet
    float *runs;
    float *
        kept; // [blocks of threads][WIDE_WORKERS · N / 2] sums of third segments (wide::kept), of runs of more than two
    uint32_t *meetings; // counters, 0 between launches: WIDE_TURNS of the turning, then one a meeting in global memory
    uint32_t turns;     // pieces of `turned` (linear_wide_turn.cuh); 0: no outliers
    uint8_t share[WIDE_RANKS + 1]; // first tile that each of those that share K finishes, and the end
    bt_cuda_leaves leaves;         // of pairs in tall blocks that share K with nobody (linear_wide_codes.cuh)
} wide_call;

// What a block of threads loads, as boxes.
typedef struct {
    CUtensorMap a8, sa, sums;                   // of N tokens: 128 columns, their blocks, four blocks of 32
    CUtensorMap codes[3], scales[3], minima[3]; // of a part's tiles for `fours` warpgroups: 128 columns
} wide_maps;

// Maps of a call for n tokens a block of threads and `blocks` scales in 128 columns; false: this driver cannot.
bool bt_cuda_wide_maps(const wide_call *w, uint32_t n, uint32_t blocks, wide_maps *maps);
// Launches, of codes of 4 bits (symmetric ones in blocks of 128 and up to 64 tokens also with 256 rows a block of threads, N = 16, 24, 32, 48 or 64,
// or with 128 rows and n = 24, 48, 80, 96 or 112) and of 8.
cudaError_t bt_cuda_wide_tall(bt_cuda *cuda, wide_call *w);
cudaError_t bt_cuda_wide_between(bt_cuda *cuda, wide_call *w, uint32_t n);
cudaError_t bt_cuda_wide_nibbles(bt_cuda *cuda, wide_call *w);
cudaError_t bt_cuda_wide_bytes(bt_cuda *cuda, wide_call *w);
// Of codes of 8 bits with a scale a row where rows are many; false: it is none of these calls (linear_wide_head.cu).
bool bt_cuda_wide_head(bt_cuda *cuda, const wide_call *w, cudaError_t *error);

// Partial sums, from row to row. They are put in pairs, four lanes a row: four rows that are 8 banks apart are without conflicts.
template <int N> struct wide_row_floats {
    static const int count = N < 64 ? N + 4 : N + 8;
};

// Sizes, and where things lie in a stage.
template <int BITS, int BLOCK, bool ASYM, int N> struct wide {
    static const int blocks = BLOCK == 0 ? 0 : 128 / (BLOCK ? BLOCK : 1); // of a unit
    static const int half_codes = BITS == 4 ? 4 * 1024 : 64 * 128;        // of a warpgroup
    static const int codes_at = N * 128;
    static const int sa_at = codes_at + (int)WIDE_FOURS * half_codes;
    static const int sums_at = sa_at + (blocks * N * 4 + 127) / 128 * 128; // boxes go to multiples of 128
    static const int scales_at = sums_at + (ASYM ? 4 * N * 4 : 0);
    static const int tile_scales = blocks * 32;
    static const int minima_at = scales_at + (int)WIDE_TILES * tile_scales;
    static const int stage_bytes = (minima_at + (ASYM ? (int)WIDE_TILES * tile_scales : 0) + 1023) / 1024 * 1024;
    static const int row_floats = wide_row_floats<N>::count;
    static const int partial_bytes = (int)WIDE_ROWS * row_floats * 4;
    static const int partials_bytes = partial_bytes * (ASYM ? 2 : 1);
    static const int outputs = N / 2; // of a thread
    // Of tall blocks sums stay in registers to the end and lie in the ring of stages then; else they have shared memory of their own.
    static const bool late = WIDE_FOURS == 4 && N <= 32 && !ASYM;
    // Of tall blocks of more tokens a thread has no registers for more than one segment's sums. The first pair lies in shared memory, and the
    // third segment's in global memory until the fourth's are there.
    static const bool kept = WIDE_FOURS == 4 && N > 32;
    static const int kept_bytes = kept ? (int)WIDE_WORKERS * N / 2 * 4 : 0;
    static const int own_bytes = late ? 0 : partials_bytes;
    static const int turn =
        BITS == 4 && BLOCK == 128 && !ASYM && N <= 64 && !kept ? 2 : 1; // stages of a turn of the loop

    // Has a row one scale, over all columns? And bytes of a tile's scales in a stage.
    static __device__ __forceinline__ bool by_row(const linear_call &c)
    {
        return c.part[0].block == BT_BLOCK_ROW;
    }

    static __device__ __forceinline__ uint32_t scales_of(const linear_call &c)
    {
        return BLOCK == 0 ? 0 : by_row(c) ? 32 : tile_scales;
    }
};

// Registers of a thread: the kernel begins with 168 each (640 threads: 96), and those that multiply get what the others give (of tall blocks
// nothing: outliers need theirs). `columns`: of outliers, on their way at once, while others multiply and after that.
template <int N> struct wide_registers {
    static const bool tall = WIDE_FOURS == 4;
    static const int workers = tall ? (N > 32 ? 104 : 96) : 216, others = tall ? (N > 32 ? 64 : 88) : 72;
    static const int columns = N > 64 ? 2 : N > 32 ? 4 : 8, columns_late = 8;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Four tiles (64 rows) of one part are a warpgroup's; of paired calls the first half of them have gates, the others their ups. False beyond
// the last.
static __device__ __forceinline__ bool
wide_four(const linear_call &c, uint32_t half, uint32_t *part, uint32_t *tile)
{
    uint32_t four = blockIdx.z * WIDE_FOURS + half;

    *part = 0;
    if (c.paired) {
        *part = half / (WIDE_FOURS / 2);
        four = blockIdx.z * (WIDE_FOURS / 2) + half % (WIDE_FOURS / 2);
    } else {
        while (*part + 1 < c.part_count && four >= (c.part[*part].tiles + 3) / 4) {
            four -= (c.part[(*part)++].tiles + 3) / 4;
        }
    }
    *tile = four * 4;
    return *tile < c.part[*part].tiles;
}

// Tile `here` of this block of threads: its part and its place there.
static __device__ __forceinline__ bool
wide_tile(const linear_call &c, uint32_t here, uint32_t *part, uint32_t *tile)
{
    if (!wide_four(c, here / 4, part, tile)) {
        return false;
    }
    *tile += here % 4;
    return *tile < c.part[*part].tiles;
}

// The tiles that block `rank` of those that share K finishes: *first … (paired: of the first half, each with one of the second).
static __device__ __forceinline__ uint32_t
wide_share(const wide_call &w, uint32_t rank, uint32_t *first)
{
    *first = w.share[rank];
    return w.share[rank + 1] - *first;
}

// Which tile of the block row `i` of the share lies in.
static __device__ __forceinline__ uint32_t
wide_share_tile(uint32_t first, uint32_t count, uint32_t i)
{
    return first + (i / 16 < count ? i / 16 : i / 16 - count + WIDE_TILES / 2);
}

#endif
