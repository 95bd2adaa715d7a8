// INT8 products of many tokens with the outputs finished where they are summed (sm_90a), for matrices with one scale a row.
//
//     cluster       two blocks: 2 × 128 tokens × 128 columns of y (of a pair: 64 of gate and the same 64 of up). Each loads its own
//                   tokens and half of the weights for both: 24 KB instead of 32 from the L2 cache for 512 cycles of tensor cores
//     warps 0 – 3   one of them has the copy engine fill stages of 128 columns of K, tile after tile
//     warps 4 – 11  two warpgroups, which take the block's tiles by turns: one multiplies (128 × 128 s32 in registers) while the other
//                   finishes its tile, so that tensor cores wait for neither scales nor stores
//
// Blocks are as many as there are multiprocessors and go on to the next tile by themselves; neighbours in time are the tokens of one
// matrix tile, so that weights come from memory once.
//
// What is stored is f32: y, y + …, or silu(gate) · up, for which the largest of each row is found on the way (atomicMax of bits: no order to
// keep), so that the next layer's INT8 takes one more pass and no waiting for a row.
//
// Roofline (8B shape, 2,048 tokens): 4,096 INT8 products a cycle and multiprocessor; 893 G a layer are 470 us at 1.83 GHz, and what cuBLASLt
// reaches of that is 1,400 – 1,590 TOPS; it then writes s32, which is read and written again.
#pragma once

#include "kernels/cuda/finish.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx_multicast.cuh"

#define PROMPT_TOKENS 128u  // of a block's tile
#define PROMPT_COLUMNS 128u // of a block's tile
#define PROMPT_K 128u       // of a stage
#define PROMPT_STAGES 6u
#define PROMPT_STAGE_BYTES ((PROMPT_TOKENS + PROMPT_COLUMNS) * PROMPT_K)
#define PROMPT_SHARED (PROMPT_STAGES * PROMPT_STAGE_BYTES + 2048u) // barriers, and stages at a multiple of 1,024
#define PROMPT_THREADS 384u
#define PROMPT_NEAR 8u // pairs of tiles of tokens that follow each other with the same weights

typedef struct {
    CUtensorMap a8, codes[3];
} prompt_maps;

typedef struct {
    uint32_t tiles[3]; // of each part, in columns; a pair has one count
    uint32_t columns, rows, steps,
        total;      // tiles of columns, pairs of tiles of tokens, stages of a tile, and pairs of tiles
    uint32_t near;  // pairs of tiles of tokens that follow each other with the same weights
    uint32_t *amax; // [tokens], for the INT8 of what is stored; NULL = not wanted
} prompt_cut;

static inline prompt_cut
bt_cuda_prompt_cut(const linear_call *c, uint32_t steps)
{
    uint32_t each = c->paired ? PROMPT_COLUMNS / 2 : PROMPT_COLUMNS;
    prompt_cut p;

    memset(&p, 0, sizeof p);
    for (uint32_t i = 0; i < (c->paired ? 1 : c->part_count); i++) {
        p.tiles[i] = (c->part[i].rows + each - 1) / each;
        p.columns += p.tiles[i];
    }
    p.rows = (c->tokens + 2 * PROMPT_TOKENS - 1) / (2 * PROMPT_TOKENS);
    p.steps = steps;
    p.total = p.rows * p.columns;
    p.near = PROMPT_NEAR;
    return p;
}

typedef struct {
    uint32_t part, row, token; // the first row of the part, the block's first token
} prompt_tile;

template <bool PAIR>
static __device__ __forceinline__ prompt_tile
prompt_tile_of(const prompt_cut &p, uint32_t index, uint32_t rank)
{
    uint32_t group = index / (p.near * p.columns), rest = index - group * p.near * p.columns;
    uint32_t near = min(p.near, p.rows - group * p.near), column = rest / near;
    prompt_tile t = {0, 0, ((group * p.near + rest - column * near) * 2 + rank) * PROMPT_TOKENS};

    if constexpr (!PAIR) {
        while (t.part < 2 && column >= p.tiles[t.part]) {
            column -= p.tiles[t.part++];
        }
    }
    t.row = column * (PAIR ? PROMPT_COLUMNS / 2 : PROMPT_COLUMNS);
    return t;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

typedef struct {
    uint32_t stages, full, empty; // shared memory: stages, and barriers of 8 bytes each
} prompt_shared;

static __device__ __forceinline__ prompt_shared
prompt_shared_of(const uint8_t *memory)
{
    uint32_t at = bt_shared_at(memory);

    return {(at + PROMPT_STAGES * 16 + 1023) & ~1023u, at, at + PROMPT_STAGES * 8};
}

// Every thread, before anything else; bt_wait_before follows.
static __device__ __forceinline__ void
prompt_begin(const prompt_shared &s)
{
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < PROMPT_STAGES; i++) {
            bt_barrier_init(s.full + i * 8, 1);
            bt_barrier_init(s.empty + i * 8, 8); // four warps of each block
        }
        bt_barrier_init_done();
    }
    bt_cluster_sync();
    bt_let_next();
}

// The block's own half of a stage's weights, to both.
template <bool PAIR, uint32_t WIDTH>
static __device__ __forceinline__ void
prompt_load_weights(const prompt_maps &maps, const prompt_tile &t, uint32_t rank, uint32_t step, uint32_t stage,
                    uint32_t full)
{
    uint32_t row = PAIR ? t.row : t.row + rank * PROMPT_COLUMNS / 2;

    bt_bulk_box_all(stage + PROMPT_TOKENS * PROMPT_K + rank * (PROMPT_COLUMNS / 2 * PROMPT_K),
                    &maps.codes[PAIR ? rank : t.part], step * WIDTH, row, full, 3);
}

// One warp: all stages of all tiles, and of the first tile those weights that there is room for before the kernel before is over. A stage
// has PROMPT_K bytes of a row, which are WIDTH elements.
template <bool PAIR, uint32_t WIDTH>
static __device__ __forceinline__ void
prompt_load(const prompt_maps &maps, const prompt_cut &p, const prompt_shared &s, uint32_t rank)
{
    uint32_t slot = 0, round = 0, ahead = min(p.steps, PROMPT_STAGES);
    prompt_tile first = prompt_tile_of<PAIR>(p, blockIdx.x / 2, rank);

    for (uint32_t step = 0; step < ahead; step++) {
        if (bt_elect()) {
            bt_barrier_expect(s.full + step * 8, PROMPT_STAGE_BYTES);
            prompt_load_weights<PAIR, WIDTH>(maps, first, rank, step, s.stages + step * PROMPT_STAGE_BYTES,
                                             s.full + step * 8);
        }
    }
    bt_wait_before();
    for (uint32_t index = blockIdx.x / 2; index < p.total; index += gridDim.x / 2) {
        prompt_tile t = prompt_tile_of<PAIR>(p, index, rank);

        for (uint32_t step = 0; step < p.steps; step++) {
            uint32_t stage = s.stages + slot * PROMPT_STAGE_BYTES, full = s.full + slot * 8;
            bool there = index == blockIdx.x / 2 && step < ahead;

            if (round != 0) {
                bt_barrier_wait(s.empty + slot * 8, (round - 1) & 1);
            }
            if (bt_elect()) {
                if (!there) {
                    bt_barrier_expect(full, PROMPT_STAGE_BYTES);
                    prompt_load_weights<PAIR, WIDTH>(maps, t, rank, step, stage, full);
                }
                bt_bulk_box(stage, &maps.a8, step * WIDTH, t.token, full);
            }
            slot = slot + 1 == PROMPT_STAGES ? 0 : slot + 1;
            round += slot == 0;
        }
    }
}

// A warp is done with a stage of both blocks' weights.
static __device__ __forceinline__ void
prompt_release(const prompt_shared &s, uint32_t slot)
{
    if (threadIdx.x % 32 < 2) {
        bt_barrier_arrive_there(bt_cluster_at(s.empty + slot * 8, threadIdx.x % 32));
    }
}

// The warpgroups multiply strictly by turns: the parity of a stage's barrier tells a round only from the one before, so a warpgroup
// must not wait for a stage until the rounds before its own have been seen.
static __device__ __forceinline__ void
prompt_my_turn(uint32_t group)
{
    bt_bar_sync(1 + group, 256);
}

static __device__ __forceinline__ void
prompt_your_turn(uint32_t group)
{
    bt_bar_arrive(1 + (group ^ 1), 256);
}

// What one instruction multiplies: 64 tokens and 32 bytes of K by 128 columns.
struct prompt_int8 {
    typedef int32_t number;

    static __device__ __forceinline__ void multiply(int32_t *d, uint64_t a, uint64_t b)
    {
        bt_wgmma_shared<128>(d, a, b, 1);
    }

    static __device__ __forceinline__ void there(int32_t *d)
    {
        bt_wgmma_there<128>(d);
    }
};

// A tile's sums: d[64 · half + 4j + 2h + e] is token 64 · half + 16 · warp + lane / 4 + 8h, column 8j + 2 · (lane % 4) + e.
template <typename UNIT>
static __device__ __forceinline__ void
prompt_multiply(const prompt_shared &s, uint32_t first, uint32_t steps, uint32_t group, bool more,
                typename UNIT::number d[128])
{
    uint32_t slot = first % PROMPT_STAGES, round = first / PROMPT_STAGES, before = 0;

#pragma unroll
    for (int i = 0; i < 128; i++) {
        d[i] = 0;
    }
    for (uint32_t step = 0; step < steps; step++) {
        uint32_t stage = s.stages + slot * PROMPT_STAGE_BYTES;
        uint64_t low = bt_wgmma_rows(stage), high = bt_wgmma_rows(stage + 64 * PROMPT_K);
        uint64_t codes = bt_wgmma_rows(stage + PROMPT_TOKENS * PROMPT_K);

        bt_barrier_wait(s.full + slot * 8, round & 1);
        bt_wgmma_fence();
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) { // 32 bytes each
            UNIT::multiply(d, low + 2 * k, codes + 2 * k);
            UNIT::multiply(d + 64, high + 2 * k, codes + 2 * k);
        }
        bt_wgmma_commit();
        if (step != 0) {
            bt_wgmma_wait<1>();
            prompt_release(s, before);
        }
        before = slot;
        slot = slot + 1 == PROMPT_STAGES ? 0 : slot + 1;
        round += slot == 0;
    }
    if (more) {
        prompt_your_turn(group);
    }
    bt_wgmma_wait<0>();
    UNIT::there(d);
    prompt_release(s, before);
}

// Where a thread's numbers go.
typedef struct {
    uint32_t token[2][2]; // [half][h]
    float sa[2][2];
} prompt_place;

static __device__ __forceinline__ prompt_place
prompt_place_of(const linear_call &c, const prompt_tile &t)
{
    uint32_t first = t.token + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    prompt_place at;

#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t token = first + i / 2 * 64 + i % 2 * 8;

        at.token[i / 2][i % 2] = token;
        at.sa[i / 2][i % 2] = token < c.tokens ? c.sa[token] : 0.0f;
    }
    return at;
}

static __device__ __forceinline__ float2
prompt_scales(const bt_cuda_matrix &m, uint32_t row)
{
    return __half22float2(*(const __half2 *)(m.scales + row)); // one a row: they lie in the order of rows
}

// y or y + …
template <bt_finish WHAT>
static __device__ __forceinline__ void
prompt_store(const linear_call &c, const prompt_tile &t, const int32_t d[128])
{
    const bt_cuda_matrix &m = c.part[t.part];
    prompt_place at = prompt_place_of(c, t);
    float *y = c.y + start_of(c, t.part) + t.row + threadIdx.x % 4 * 2;
    uint32_t rows = m.rows - t.row;

#pragma unroll
    for (int four = 0; four < 16; four += 4) {
        float2 old[4][4];

        if constexpr (WHAT == BT_FINISH_ADD) {
#pragma unroll
            for (int i = 0; i < 16; i++) {
                uint32_t token = at.token[i % 4 / 2][i % 2], column = (four + i / 4) * 8;

                old[i / 4][i % 4] = token < c.tokens && column < rows
                                        ? *(const float2 *)(y + token * c.y_stride + column)
                                        : make_float2(0.0f, 0.0f);
            }
        }
#pragma unroll
        for (int j = four; j < four + 4; j++) {
            if (j * 8 < rows) {
                uint32_t row = t.row + j * 8 + threadIdx.x % 4 * 2;
                float2 sw = prompt_scales(m, row), bias = make_float2(0.0f, 0.0f);

                if (c.bias[t.part] != NULL) {
                    bias = make_float2(c.bias[t.part][row], c.bias[t.part][row + 1]);
                }
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    uint32_t token = at.token[i / 2][i % 2];
                    float sa = at.sa[i / 2][i % 2];
                    const int32_t *dots = d + i / 2 * 64 + j * 4 + i % 2 * 2;
                    float2 r =
                        make_float2(fmaf(sw.x * sa, (float)dots[0], 0.0f), fmaf(sw.y * sa, (float)dots[1], 0.0f));

                    if (c.bias[t.part] != NULL) {
                        r.x += bias.x, r.y += bias.y;
                    }
                    if constexpr (WHAT == BT_FINISH_ADD) {
                        r.x = fmaf(c.scale, r.x, old[j - four][i].x), r.y = fmaf(c.scale, r.y, old[j - four][i].y);
                    } else {
                        r.x = c.scale * r.x, r.y = c.scale * r.y;
                    }
                    if (token < c.tokens) {
                        *(float2 *)(y + token * c.y_stride + j * 8) = r;
                    }
                }
            }
        }
    }
}

// The largest of each token that a warp has, to all that there are.
static __device__ __forceinline__ void
prompt_amax(const linear_call &c, const prompt_place &at, uint32_t *to, uint32_t amax[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        amax[i] = max(amax[i], __shfl_xor_sync(0xffffffffu, amax[i], 1));
        amax[i] = max(amax[i], __shfl_xor_sync(0xffffffffu, amax[i], 2));
        if (threadIdx.x % 4 == 0 && at.token[i / 2][i % 2] < c.tokens) {
            atomicMax(to + at.token[i / 2][i % 2], amax[i]);
        }
    }
}

// silu(gate) · up: columns 8j of gate and 64 + 8j of up are the same of y.
static __device__ __forceinline__ void
prompt_pair(const linear_call &c, const prompt_cut &p, const prompt_tile &t, const int32_t d[128])
{
    prompt_place at = prompt_place_of(c, t);
    uint32_t column = t.row + threadIdx.x % 4 * 2, amax[4] = {};

#pragma unroll
    for (int j = 0; j < 8; j++) {
        if (t.row + j * 8 < c.part[0].rows) {
            float2 gate = prompt_scales(c.part[0], column + j * 8), up = prompt_scales(c.part[1], column + j * 8);

#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int32_t *dots = d + half * 64 + j * 4;
                float v[4];

#pragma unroll
                for (int i = 0; i < 4; i++) {
                    v[i] = fmaf((i % 2 ? gate.y : gate.x) * at.sa[half][i / 2], (float)dots[i], 0.0f);
                }
                bt_silu4(v);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    v[i] *= fmaf((i % 2 ? up.y : up.x) * at.sa[half][i / 2], (float)dots[32 + i], 0.0f);
                    amax[half * 2 + i / 2] = max(amax[half * 2 + i / 2], bt_bits_of_float(v[i]) & 0x7fffffffu);
                }
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    if (at.token[half][h] < c.tokens) {
                        *(float2 *)(c.y + at.token[half][h] * c.y_stride + column + j * 8) =
                            make_float2(v[2 * h], v[2 * h + 1]);
                    }
                }
            }
        }
    }
    if (p.amax != NULL) {
        prompt_amax(c, at, p.amax, amax);
    }
}

#endif

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define PROMPT_CLUSTER __cluster_dims__(2, 1, 1)
#else
#define PROMPT_CLUSTER
#endif

template <bt_finish WHAT>
static __global__ void PROMPT_CLUSTER
__launch_bounds__(PROMPT_THREADS, 1)
    prompt_kernel(const __grid_constant__ prompt_maps maps, const __grid_constant__ linear_call c,
                  const __grid_constant__ prompt_cut p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t memory[];
    const bool pair = WHAT == BT_FINISH_SILU;
    uint32_t rank = bt_cluster_rank(), turn = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0); // seen to be a warp's
    prompt_shared s = prompt_shared_of(memory);

    prompt_begin(s);
    if (turn == 0) {
        bt_registers_fewer<40>(); // 40 + 2 × 232 are the 3 × 168 of the launch
        if (__shfl_sync(0xffffffffu, threadIdx.x / 32, 0) == 0) {
            prompt_load<pair, PROMPT_K>(maps, p, s, rank);
        } else {
            bt_wait_before();
        }
    } else {
        uint32_t tile = 0;
        int32_t d[128];

        bt_registers_more<232>();
        bt_wait_before();
        for (uint32_t index = blockIdx.x / 2; index < p.total; index += gridDim.x / 2, tile++) {
            if (tile % 2 == turn - 1) {
                prompt_tile t = prompt_tile_of<pair>(p, index, rank);

                if (tile != 0) {
                    prompt_my_turn(turn - 1);
                }
                prompt_multiply<prompt_int8>(s, tile * p.steps, p.steps, turn - 1, index + gridDim.x / 2 < p.total, d);
                if constexpr (pair) {
                    prompt_pair(c, p, t, d);
                } else {
                    prompt_store<WHAT>(c, t, d);
                }
            }
        }
    }
    bt_cluster_sync(); // nobody leaves while the other may still write here
#endif
}
