// Linear layers of 16-bit weights (F16, BF16) on tensor cores (sm_90a): activations rounded to the weights' type, products summed in f32.
//
// Their numbers are not those of kernels/cpu/ref, which multiplies f32 activations, so a model with such layers has another digest on CUDA
// (common/model/digest.h). What they are:
//
//     x^ = bf16(x)                   BF16, x normed as ref norms it, half to even
//     x^ = f16(x · 2^s)              F16, s of the row: its largest lies in 2^14 … 2^15, so nothing overflows and what vanishes is small
//     d  = 0; for k = 0, 16, …: d = wgmma(d, x^[k … k + 15], w[k … k + 15])
//     r  = d [· 2^-s] [+ bias], then softcap and epilogue as ref has them
//
// The same whatever else is in the batch: an output's K goes through the same instruction (64 tokens by 32 or 128 columns by 16 of K, tokens
// always on the first side, weights on the second) in the same order, and K is never split. Kernels differ in how many tokens and columns
// lie side by side, which no output sees. cuBLASLt was the other choice: it promises equal bits for equal calls, not for equal rows of calls
// with other counts of tokens, nor over its versions; what it picks for 1 and for 2,048 tokens are different kernels, with K in other pieces.
//
// 128 tokens and fewer: blocks of threads, two a multiprocessor, that take tiles of 64 tokens × 32 columns of y (of a pair: 16 of gate and
// the same 16 of up) through a ring of stages of 128 columns of K. Two warps fill it by boxes: one the weights, before the kernel before
// is over, one the activations, of those only the rows that there are; the tensor cores see 64 all the same, which costs nothing: a stage's
// weights are 8 KB, 360 cycles at a multiprocessor's share of HBM, and its products about 220. What the other rows read is whatever lies
// there, and nobody stores it.
//
// More: the kernel of INT8 prompts (linear_prompt.cuh: 2 × 128 tokens × 128 columns a cluster), with other products and another end.
#pragma once

#include "kernels/cuda/linear_half_finish.cuh"
#include "kernels/cuda/linear_prompt.cuh"
#include "kernels/cuda/ptx_wgmma_half.cuh"

#define HALF_K 64u // columns of a box: PROMPT_K bytes

// Of a stage: a wait for 8 KB of weights and not for 4, which is what took the time where a block of threads had a multiprocessor for itself.
#define HALF_BOXES 2u
#define HALF_TOKENS 64u
#define HALF_COLUMNS 32u
#define HALF_THREADS 192u
#define HALF_STAGES_MAX 20u
#define HALF_RING (104u << 10)               // two blocks of threads on a multiprocessor
#define HALF_BEHIND (HALF_TOKENS * PROMPT_K) // bytes that the last stage's rows may reach beyond the ring
#define HALF_SHARED (HALF_RING + 1024u)

// Maps of x^ and of each part's weights.
typedef struct {
    CUtensorMap x, weights[3];
} half_maps;

typedef struct {
    uint32_t tiles[3];                     // of each part, in columns; a pair has one count
    uint32_t rows, steps, total;           // tiles of tokens, stages of a tile, tiles
    uint32_t x_bytes, stage_bytes, stages; // x_bytes of a box
} half_cut;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// ---- few tokens ----

typedef struct {
    uint32_t part, row, token;
} half_tile;

// Tiles of tokens with the same weights follow each other.
template <bool PAIR>
static __device__ __forceinline__ half_tile
half_tile_of(const half_cut &h, uint32_t index)
{
    uint32_t column = index / h.rows;
    half_tile t = {0, 0, (index - column * h.rows) * HALF_TOKENS};

    if constexpr (!PAIR) {
        while (t.part < 2 && column >= h.tiles[t.part]) {
            column -= h.tiles[t.part++];
        }
    }
    t.row = column * (PAIR ? HALF_COLUMNS / 2 : HALF_COLUMNS);
    return t;
}

// The stages of a ring one after the other, as who fills them sees them.
typedef struct {
    uint32_t slot, round, stage;
} half_ring;

// The stage may be written.
static __device__ __forceinline__ void
half_wait_empty(const prompt_shared &s, const half_ring &r)
{
    if (r.round != 0) {
        bt_barrier_wait(s.empty + r.slot * 8, (r.round - 1) & 1);
    }
}

static __device__ __forceinline__ void
half_step(const half_cut &h, const prompt_shared &s, half_ring *r)
{
    r->slot++, r->stage += h.stage_bytes;
    if (r->slot == h.stages) {
        r->slot = 0, r->stage = s.stages, r->round++;
    }
}

// A warp: the weights of all stages of all tiles. They wait for no kernel before this one.
template <bool PAIR>
static __device__ __forceinline__ void
half_load_weights(const half_maps &maps, const half_cut &h, const prompt_shared &s)
{
    half_ring r = {0, 0, s.stages};

    for (uint32_t index = blockIdx.x; index < h.total; index += gridDim.x) {
        half_tile t = half_tile_of<PAIR>(h, index);

        for (uint32_t step = 0; step < h.steps; step++) {
            uint32_t at = r.stage + HALF_BOXES * h.x_bytes, full = s.full + r.slot * 8, k = step * HALF_BOXES * HALF_K;

            half_wait_empty(s, r);
            if (bt_elect()) {
                bt_barrier_expect(full, HALF_BOXES * HALF_COLUMNS * PROMPT_K);
#pragma unroll
                for (uint32_t b = 0; b < HALF_BOXES; b++, k += HALF_K, at += HALF_COLUMNS * PROMPT_K) {
                    bt_bulk_box(at, &maps.weights[PAIR ? 0 : t.part], k, t.row, full);
                    if constexpr (PAIR) {
                        bt_bulk_box(at + HALF_COLUMNS / 2 * PROMPT_K, &maps.weights[1], k, t.row, full);
                    }
                }
            }
            half_step(h, s, &r);
        }
    }
}

// Another: their activations.
static __device__ __forceinline__ void
half_load_x(const half_maps &maps, const half_cut &h, const prompt_shared &s)
{
    half_ring r = {0, 0, s.stages};

    for (uint32_t index = blockIdx.x; index < h.total; index += gridDim.x) {
        uint32_t token = index % h.rows * HALF_TOKENS;

        for (uint32_t step = 0; step < h.steps; step++) {
            uint32_t full = s.full + r.slot * 8;

            half_wait_empty(s, r);
            if (bt_elect()) {
                bt_barrier_expect(full, HALF_BOXES * h.x_bytes);
#pragma unroll
                for (uint32_t b = 0; b < HALF_BOXES; b++) {
                    bt_bulk_box(r.stage + b * h.x_bytes, &maps.x, (step * HALF_BOXES + b) * HALF_K, token, full);
                }
            }
            half_step(h, s, &r);
        }
    }
}

// A warp is done with a stage.
static __device__ __forceinline__ void
half_release(const prompt_shared &s, uint32_t slot)
{
    if (threadIdx.x % 32 == 0) {
        bt_barrier_arrive(s.empty + slot * 8);
    }
}

// A tile's sums.
template <bool BRAIN>
static __device__ __forceinline__ void
half_multiply(const half_cut &h, const prompt_shared &s, half_ring *r, float d[16])
{
    uint32_t before = 0;

#pragma unroll
    for (int i = 0; i < 16; i++) {
        d[i] = 0.0f;
    }
    for (uint32_t step = 0; step < h.steps; step++) {
        uint32_t behind = r->stage + HALF_BOXES * h.x_bytes;

        bt_barrier_wait(s.full + r->slot * 8, r->round & 1);
        bt_wgmma_fence();
#pragma unroll
        for (uint32_t b = 0; b < HALF_BOXES; b++) {
            uint64_t x = bt_wgmma_rows(r->stage + b * h.x_bytes);
            uint64_t weights = bt_wgmma_rows(behind + b * HALF_COLUMNS * PROMPT_K);

#pragma unroll
            for (uint32_t k = 0; k < 4; k++) { // 32 bytes each
                bt_wgmma_half<HALF_COLUMNS, BRAIN>(d, x + 2 * k, weights + 2 * k);
            }
        }
        bt_wgmma_commit();
        if (step != 0) {
            bt_wgmma_wait<1>();
            half_release(s, before);
        }
        before = r->slot;
        half_step(h, s, r);
    }
    bt_wgmma_wait<0>();
    bt_wgmma_there<16>(d);
    half_release(s, before);
}

#endif

template <bt_finish WHAT, bool BRAIN>
static __global__ void
__launch_bounds__(HALF_THREADS, 2)
    half_kernel(const __grid_constant__ half_maps maps, const __grid_constant__ linear_call c,
                const __grid_constant__ half_cut h, const __grid_constant__ half_out out)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t memory[];
    __shared__ uint64_t barriers[2 * HALF_STAGES_MAX];
    prompt_shared s = {(bt_shared_at(memory) + 1023) & ~1023u, bt_shared_at(barriers),
                       bt_shared_at(barriers + HALF_STAGES_MAX)};
    bool pair = WHAT == BT_FINISH_SILU || (WHAT == BT_FINISH_ANY && c.paired);
    uint32_t warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); // seen to be a warp's

    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < h.stages; i++) {
            bt_barrier_init(s.full + i * 8, 2);  // weights and activations
            bt_barrier_init(s.empty + i * 8, 4); // warps
        }
        bt_barrier_init_done();
    }
    __syncthreads();
    bt_let_next();
    if (warp == 4) {
        if (pair) {
            half_load_weights<true>(maps, h, s);
        } else {
            half_load_weights<false>(maps, h, s);
        }
    }
    bt_wait_before();
    if (warp == 5) {
        half_load_x(maps, h, s);
    } else if (warp < 4) {
        half_ring r = {0, 0, s.stages};
        float d[16];

        for (uint32_t index = blockIdx.x; index < h.total; index += gridDim.x) {
            half_tile t = pair ? half_tile_of<true>(h, index) : half_tile_of<false>(h, index);

            half_multiply<BRAIN>(h, s, &r, d);
            half_finish<WHAT, HALF_COLUMNS>(c, out, t.part, t.row, t.token, d);
        }
    }
#endif
}

// ---- many ----

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <bool BRAIN> struct half_unit {
    typedef float number;

    static __device__ __forceinline__ void multiply(float *d, uint64_t a, uint64_t b)
    {
        bt_wgmma_half<128, BRAIN>(d, a, b);
    }

    static __device__ __forceinline__ void there(float *d)
    {
        bt_wgmma_there<128>(d);
    }
};

#endif

template <bt_finish WHAT, bool BRAIN, bool PAIR>
static __global__ void PROMPT_CLUSTER
__launch_bounds__(PROMPT_THREADS, 1)
    half_prompt_kernel(const __grid_constant__ prompt_maps maps, const __grid_constant__ linear_call c,
                       const __grid_constant__ prompt_cut p, const __grid_constant__ half_out out)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t memory[];
    uint32_t rank = bt_cluster_rank(), turn = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0); // seen to be a warp's
    prompt_shared s = prompt_shared_of(memory);

    prompt_begin(s);
    if (turn == 0) {
        bt_registers_fewer<40>();
        if (__shfl_sync(0xffffffffu, threadIdx.x / 32, 0) == 0) {
            prompt_load<PAIR, HALF_K>(maps, p, s, rank);
        } else {
            bt_wait_before();
        }
    } else {
        uint32_t tile = 0;
        float d[128];

        bt_registers_more<232>();
        bt_wait_before();
        for (uint32_t index = blockIdx.x / 2; index < p.total; index += gridDim.x / 2, tile++) {
            if (tile % 2 == turn - 1) {
                prompt_tile t = prompt_tile_of<PAIR>(p, index, rank);

                if (tile != 0) {
                    prompt_my_turn(turn - 1);
                }
                prompt_multiply<half_unit<BRAIN>>(s, tile * p.steps, p.steps, turn - 1, index + gridDim.x / 2 < p.total,
                                                  d);
                half_finish<WHAT, PROMPT_COLUMNS>(c, out, t.part, t.row, t.token, d);
                half_finish<WHAT, PROMPT_COLUMNS>(c, out, t.part, t.row, t.token + 64, d + 64);
            }
        }
    }
    bt_cluster_sync(); // nobody leaves while the other may still write here
#endif
}
