// Attention of prompts over an INT8 cache: a block of threads takes up to 64 (token, head) rows that share a KV head through the keys.
//
//     keys 0 … 63 | 64 … 127 | …     each tile's K, V and scales once into shared memory, one or two tiles ahead (cp.async)
//         │
//     4 warps, 16 rows each, and each for itself:
//         scores   m16n8k32: A = q of 16 rows, B = 8 keys.   c of lane (g, t): rows g, g + 8
//         softmax  in registers: a row lies in the four lanes of one g
//         values   m16n8k32: A = codes of p · scale_v, B = V, whose words are four keys of one dim
//
// Which key is which column is free as long as K and V agree: column 2t + e of score tile j is key 16 (j / 2) + 4t + 2 (j % 2) + e. So
// a lane's sixteen keys are 16 i + 4t + b: as codes they are the words of A as they lie, with no exchange, and they are also the keys
// that belong to lanes 4t + b of l. Which dim is which is free in the same way, so that all of K, Q and V are read sixteen bytes at once.
//
// What counts is instructions a (row, key): about 19 for softmax (prompt_softmax.cuh), 6 for adding a tile's values, and in all 43 where it
// was measured: at 2,048 tokens 93 M a layer and warp, 55 % of what an H200 can issue. Splits of 512 keys are merged from the left as they
// end, the total in `out`; where blocks are too few for the GPU, each split is a block's and prompt_merge_kernel merges.
// A row's state (max, w) is kept by the lanes with t odd (row g + 8) or even (row g), which work it out once and exchange it.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/prompt_split.cuh"

// ---- multiply ----

// Bits of BT_ROUND_MAGIC + q · k: u[j] are the lane's columns of score tile j.
template <int DIM>
static __device__ __forceinline__ void
prompt_scores(const prompt_shared<DIM> &s, const prompt_stage<DIM> &stage, const int32_t magic[4], int32_t u[8][4])
{
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, key = g / 2 * 4 + g % 2;

#pragma unroll
    for (uint32_t p = 0; p < DIM / 64; p++) {
        uint4 q0 = s.q[threadIdx.x / 32][p * 2][lane], q1 = s.q[threadIdx.x / 32][p * 2 + 1][lane];
        uint32_t a0[4] = {q0.x, q0.y, q0.z, q0.w}, a1[4] = {q1.x, q1.y, q1.z, q1.w};
        const uint8_t *from = stage.k + key * DIM + prompt_k_at<DIM>(key, p * 64 + t * 16);

#pragma unroll
        for (int j = 0; j < 8; j++) {
            uint4 k = *(const uint4 *)(from + (j / 2 * 16 + j % 2 * 2) * DIM);

            bt_mma_s8_from(u[j], a0, k.x, k.y, p == 0 ? magic : u[j]);
            bt_mma_s8_from(u[j], a1, k.z, k.w, u[j]);
        }
    }
}

// acc of tile 4b + j, column n: dim 32 b + 4n + j, so that V is read sixteen bytes at once. The two words of B come from different rows and have
// to be moved together; word by word instead (64 loads for 16 and as many moves) took 8 % longer, m16n8k16, which wants one word, 5 %.
template <int DIM>
static __device__ __forceinline__ void
prompt_values(const prompt_stage<DIM> &stage, const int32_t magic[4], const prompt_weights &w, float acc[DIM / 8][4])
{
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, codes[2][4];
    const uint8_t *from = stage.v + t * stage.v_pitch + g * 16;

#pragma unroll
    for (int i = 0; i < 8; i++) {
        codes[i / 4][i % 4] = __byte_perm(w.low[i / 4][i % 4], w.high[i / 4][i % 4], 0x5410);
    }
#pragma unroll
    for (int b = 0; b < DIM / 32; b++) {
        int32_t dot[4][4];

#pragma unroll
        for (int k = 0; k < 2; k++) {
            uint4 v0 = *(const uint4 *)(from + k * 8 * stage.v_pitch + b * 128);
            uint4 v1 = *(const uint4 *)(from + (k * 8 + 4) * stage.v_pitch + b * 128);

            bt_mma_u8_from(dot[0], codes[k], v0.x, v1.x, k == 0 ? magic : dot[0]);
            bt_mma_u8_from(dot[1], codes[k], v0.y, v1.y, k == 0 ? magic : dot[1]);
            bt_mma_u8_from(dot[2], codes[k], v0.z, v1.z, k == 0 ? magic : dot[2]);
            bt_mma_u8_from(dot[3], codes[k], v0.w, v1.w, k == 0 ? magic : dot[3]);
        }
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float &to = acc[b * 4 + i / 4][i % 4];

            to = fmaf(w.scale[i % 4 / 2], __int_as_float(dot[i / 4][i % 4]) - BT_ROUND_MAGIC, to * w.corr[i % 4 / 2]);
        }
    }
}

// Which dims a lane has (prompt_split.cuh): register 2h + e of tiles 4b … 4b + 3 is piece 2b + e, whose dims begin at 32 b + 8t + 4e.
struct prompt_pieces {
    static __device__ __forceinline__ uint32_t at(int piece)
    {
        return piece / 2 * 32 + threadIdx.x % 4 * 8 + piece % 2 * 4;
    }

    template <int DIM> static __device__ __forceinline__ float4 of(const float acc[DIM / 8][4], int piece, int h)
    {
        int b = piece / 2, i = h * 2 + piece % 2;

        return make_float4(acc[b * 4][i], acc[b * 4 + 1][i], acc[b * 4 + 2][i], acc[b * 4 + 3][i]);
    }
};

// ---- the kernel ----

// Where a block is: everything but what a warp has in registers.
typedef struct {
    uint32_t tile, end; // the next tile, and where its keys end
    uint32_t slot;      // of the tile's stage
    bool fine;          // the thread's scales of the next tile are numbers
    bool strange;       // numbers that only prompt_weigh_any knows
} prompt_place;

template <int DIM, bool ANY>
static __device__ __forceinline__ void
prompt_tile(const attention_call &c, const prompt_shared<DIM> &s, const prompt_stage<DIM> &stage, prompt_state &state,
            const prompt_row rows[2], bool whole, uint32_t tile, float acc[DIM / 8][4])
{
    const int32_t magic[4] = {BT_ROUND_MAGIC_BITS, BT_ROUND_MAGIC_BITS, BT_ROUND_MAGIC_BITS, BT_ROUND_MAGIC_BITS};
    int32_t dot[8][4];
    prompt_weights weights;

    prompt_scores<DIM>(s, stage, magic, dot);
    if (ANY) {
        prompt_weigh_any(state, stage.scales, 1.0f, c.a.softcap, rows, tile, dot, weights);
    } else if (whole) {
        prompt_weigh<false>(state, stage.scales, rows, tile, dot, weights);
    } else {
        prompt_weigh<true>(state, stage.scales, rows, tile, dot, weights);
    }
    prompt_values<DIM>(stage, magic, weights, acc);
}

// The tiles up to key `to`, of one split. Without ANY it stops before a tile with strange numbers.
template <int DIM, bool ANY>
static __device__ __forceinline__ void
prompt_walk(const attention_call &c, prompt_shared<DIM> &s, prompt_state &state, const prompt_row rows[2],
            const prompt_row &low, const prompt_row &high, uint32_t to, prompt_place &at, float acc[DIM / 8][4])
{
    for (; at.tile < to; at.tile += 64) {
        uint32_t ahead = at.tile + (prompt_stage<DIM>::count - 1) * 64;
        uint32_t free_slot = at.slot == 0 ? prompt_stage<DIM>::count - 1 : at.slot - 1;
        uint32_t next = at.slot == prompt_stage<DIM>::count - 1 ? 0 : at.slot + 1;

        bt_copy_wait<prompt_stage<DIM>::count - 2>();
        asm volatile("" ::: "memory");                 // what has come is not read before here
        at.strange |= __syncthreads_or(!at.fine) != 0; // and everybody is done with the tile before this
        if (!ANY && at.strange) {
            return;
        }
        if (ahead < at.end) {
            prompt_load<DIM>(c, s, s.stages[free_slot], ahead);
        }
        bt_copy_commit();
        at.fine = prompt_turn_scales<DIM>(s, s.stages[next], at.tile + 64);
        if (at.tile < high.end && at.tile + 64 > prompt_first(low)) {
            bool whole = at.tile + 64 <= low.end && at.tile >= prompt_first(high);

            prompt_tile<DIM, ANY>(c, s, s.stages[at.slot], state, rows, whole, at.tile, acc);
        }
        at.slot = next;
    }
}

template <int DIM>
static __global__ void
__launch_bounds__(PROMPT_THREADS, DIM == 64    ? 4
                                  : DIM == 128 ? 3
                                               : 2)
    prompt_kernel(const __grid_constant__ attention_call c, const bt_cuda_tile *tiles)
{
    extern __shared__ __align__(128) uint8_t memory[];
    prompt_shared<DIM> &s = *(prompt_shared<DIM> *)memory;
    float acc[DIM / 8][4] = {};

    bt_wait_before();
    bt_let_next();
    s.item = prompt_item_of(c, tiles, blockIdx.x); // the same of all threads
    __syncthreads();
    const prompt_item &item = s.item;
    uint32_t tile, end, first_row = threadIdx.x / 32 * 16;

    if (!prompt_range(c, item, s.blocks, &tile, &end)) {
        return;
    }
    prompt_load_queries<DIM>(c, item, s);
    prompt_row rows[2] = {prompt_row_of(c, item, prompt_row_index(0)), prompt_row_of(c, item, prompt_row_index(1))};
    prompt_row low = prompt_row_of(c, item, first_row), high = prompt_row_of(c, item, first_row + 15); // of the warp
    prompt_state state = prompt_begin(c, item);
    bool ordinary = state.w > 0x1p-60f && state.w < 0x1p60f;
    prompt_place at = {tile, end, 0, true, __syncthreads_or(!ordinary || c.a.softcap > 0) != 0};

    s.sources[threadIdx.x] = prompt_source_of<DIM>(c, item);
    if (threadIdx.x < 64) {
        prompt_load_scales<DIM>(c, s, tile);
    }
    for (uint32_t i = 0; i < prompt_stage<DIM>::count - 1; i++) {
        if (tile + i * 64 < end) {
            prompt_load<DIM>(c, s, s.stages[i], tile + i * 64);
        }
        bt_copy_commit();
    }
    high.end = first_row < item.rows ? high.end : 0; // a warp without rows
    bt_copy_wait<prompt_stage<DIM>::count - 2>();
    asm volatile("" ::: "memory");
    at.fine = prompt_turn_scales<DIM>(s, s.stages[0], tile);
    while (at.tile < end) {
        uint32_t split = at.tile / BT_ATTENTION_SPLIT, to = (split + 1) * BT_ATTENTION_SPLIT;

        to = to < end ? to : end;
        prompt_walk<DIM, false>(c, s, state, rows, low, high, at.strange ? 0 : to, at, acc);
        if (at.strange) {
            prompt_walk<DIM, true>(c, s, state, rows, low, high, to, at, acc);
        }
        prompt_end_split<DIM, prompt_pieces>(
            c, item,
            [&](int h, float m, float sum) {
                prompt_merge<DIM, prompt_pieces>(c, item, s.totals[threadIdx.x][h], rows[h], h, m, sum, split, acc);
            },
            state, rows, split, acc);
    }
    if (c.splits != 0 && item.first / 64 * 64 >= item.split * BT_ATTENTION_SPLIT + BT_ATTENTION_SPLIT) {
        prompt_end_split<DIM, prompt_pieces>(
            c, item, [](int, float, float) {}, state, rows, item.split, acc); // nobody saw any of it
    }
}

// Splits that were worked on apart, from the left: a warp a (token, head) of the step's prompts.
template <int DIM>
static __global__ void
prompt_merge_kernel(const __grid_constant__ attention_call c, const bt_cuda_tile *tiles)
{
    const uint32_t width = DIM / 32;
    bt_cuda_tile tile = tiles[blockIdx.x];
    uint32_t n = blockIdx.y * blockDim.y + threadIdx.y, token = n / c.a.heads, head = n % c.a.heads;

    bt_wait_before();
    bt_let_next();
    if (token >= tile.count) {
        return;
    }
    uint32_t row = tile.row + token, splits = (c.positions[row] + BT_ATTENTION_SPLIT) / BT_ATTENTION_SPLIT;
    const float *from = c.partials + ((size_t)row * c.a.heads + head) * c.splits * (BT_PARTIAL_HEAD + DIM);
    float m = 0.0f, l = 0.0f, acc[width] = {};
    bool seen = false;

    for (uint32_t first = 0; first < splits; first += 4) {
        float max[4], sum[4], there[4], value[4][width];

#pragma unroll
        for (uint32_t i = 0; i < 4; i++) { // all on their way before the first is needed
            const float *at = from + (size_t)(first + i < splits ? first + i : first) * (BT_PARTIAL_HEAD + DIM);

            max[i] = at[BT_PARTIAL_MAX], sum[i] = at[BT_PARTIAL_SUM], there[i] = at[BT_PARTIAL_SEEN];
#pragma unroll
            for (uint32_t d = 0; d < width; d++) {
                value[i][d] = at[BT_PARTIAL_HEAD + d * 32 + threadIdx.x];
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            float most = seen && m > max[i] ? m : max[i], a = bt_ref_exp2(m - most), b = bt_ref_exp2(max[i] - most);

            if (first + i >= splits || there[i] == 0.0f) {
                continue;
            }
            l = seen ? fmaf(l, a, sum[i] * b) : sum[i];
#pragma unroll
            for (uint32_t d = 0; d < width; d++) {
                acc[d] = seen ? fmaf(acc[d], a, value[i][d] * b) : value[i][d];
            }
            m = most, seen = true;
        }
    }
#pragma unroll
    for (uint32_t d = 0; d < width; d++) {
        c.a.out[row * c.a.out_stride + (size_t)head * DIM + d * 32 + threadIdx.x] = acc[d] * (1.0f / l);
    }
}
